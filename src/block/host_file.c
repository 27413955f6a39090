// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/host_file.h"

#include "block/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/stat.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#define PAGE 4096u

static int check_type(const char *path, const struct stat *st, struct err *err)
{
	if (S_ISREG(st->st_mode) || S_ISBLK(st->st_mode))
		return 0;
	return err_set(err, S_ISDIR(st->st_mode) ? -EISDIR : -EINVAL,
	               "%s: a disk is a regular file or a block device, not a %s", path,
	               S_ISDIR(st->st_mode)    ? "directory"
	               : S_ISFIFO(st->st_mode) ? "FIFO"
	               : S_ISSOCK(st->st_mode) ? "socket"
	                                       : "character device");
}

static int open_failed(int error, const char *path, bool write, struct err *err)
{
	if (write && (error == -EACCES || error == -EROFS || error == -EPERM))
		return err_set(err, error, "%s: cannot be written to; ro opens it for reading only", path);
	return err_sys(err, error, "%s", path);
}

/*
 * Looked at before it is opened: opening alone can wait for the other end of a
 * FIFO or start a device. And again after, when it can no longer change.
 */
static int open_cached(struct host_file *f, const char *path, bool write, struct stat *st, struct err *err)
{
	int error;

	if (stat(path, st))
		return err_sys(err, -errno, "%s", path);
	error = check_type(path, st, err);
	if (error)
		return error;
	f->cached = open(path, (write ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (f->cached < 0)
		return open_failed(-errno, path, write, err);
	f->fd = f->cached;
	if (fstat(f->fd, st) || fcntl(f->fd, F_SETFL, 0)) /* with O_NONBLOCK a ring would answer EAGAIN */
		return err_sys(err, -errno, "%s", path);
	return check_type(path, st, err);
}

static int measure_device(struct host_file *f, const char *path, bool write, struct err *err)
{
	unsigned physical = 512;
	int read_only = 0, sector = 512;

	if (ioctl(f->fd, BLKGETSIZE64, &f->size))
		return err_sys(err, -errno, "%s: size", path);
	if (!ioctl(f->fd, BLKPBSZGET, &physical) && physical > 512)
		f->block = physical < PAGE ? physical : PAGE;
	if (!ioctl(f->fd, BLKSSZGET, &sector))
		f->sector = (uint32_t)sector;
	if (write && !ioctl(f->fd, BLKROGET, &read_only) && read_only)
		return open_failed(-EROFS, path, write, err);
	return 0;
}

/* Does the device take discards? */
static bool device_discards(dev_t dev)
{
	char path[100];
	unsigned long long max = 0;
	FILE *s;

	snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/queue/discard_max_bytes", major(dev), minor(dev));
	s = fopen(path, "re");
	if (!s) { /* a partition's queue is the disk's */
		snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/../queue/discard_max_bytes", major(dev), minor(dev));
		s = fopen(path, "re");
	}
	if (!s)
		return false;
	if (fscanf(s, "%llu", &max) != 1)
		max = 0;
	fclose(s);
	return max;
}

/* A kernel that does not tell (before 6.1): the smallest read that is not refused. */
static int probe_alignment(struct host_file *f)
{
	void *buf = aligned_alloc(PAGE, PAGE);
	uint32_t n = 512;

	if (!buf)
		return -ENOMEM;
	while (n < PAGE && pread(f->fd, buf, n, 0) < 0 && errno == EINVAL)
		n *= 2;
	free(buf);
	f->align = n;
	f->mem_align = n;
	return 0;
}

static int find_alignment(struct host_file *f)
{
	struct statx sx = { .stx_mask = 0 };

	if (statx(f->fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &sx) || !(sx.stx_mask & STATX_DIOALIGN))
		return probe_alignment(f);
	if (!sx.stx_dio_offset_align)
		return -EINVAL; /* not for this file */
	f->align = sx.stx_dio_offset_align;
	f->mem_align = sx.stx_dio_mem_align;
	return 0;
}

/* Another descriptor of the same file, whatever its path has come to mean. */
static int open_again(int fd, int flags)
{
	char same[64];

	snprintf(same, sizeof(same), "/proc/self/fd/%d", fd);
	return open(same, flags | O_CLOEXEC);
}

static int open_direct(struct host_file *f, const char *path, bool write, struct err *err)
{
	int error = 0;

	f->fd = open_again(f->cached, (write ? O_RDWR : O_RDONLY) | O_DIRECT);
	if (f->fd < 0)
		error = -errno;
	else
		error = find_alignment(f);
	if (error == -EINVAL)
		return err_set(err, error, "%s: its file system does not do cache=none (O_DIRECT)", path);
	return error ? err_sys(err, error, "%s: O_DIRECT", path) : 0;
}

/* A hole past the end changes nothing, and tells whether there can be holes. */
static bool file_discards(int fd, off_t size)
{
	return !fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, size, 1);
}

static bool in_memory(int fd)
{
	struct statfs fs;

	return !fstatfs(fd, &fs) && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC);
}

int host_file_open(struct host_file *f, const char *path, bool write, bool direct, struct err *err)
{
	struct stat st;
	int error;

	*f = (struct host_file){ .fd = -1, .cached = -1, .block = 512, .sector = 1, .align = 1, .mem_align = 1 };
	error = open_cached(f, path, write, &st, err);
	if (!error)
		error = image_lock(f->cached, path, write, err);
	if (error)
		return error;
	f->is_device = S_ISBLK(st.st_mode);
	f->can_discard = f->is_device ? device_discards(st.st_rdev) : write && file_discards(f->cached, st.st_size);
	f->in_memory = !f->is_device && in_memory(f->cached);
	f->size = (uint64_t)st.st_size;
	if (f->is_device)
		error = measure_device(f, path, write, err);
	if (!error && direct)
		error = open_direct(f, path, write, err);
	if (f->align > f->block)
		f->block = f->align < PAGE ? f->align : PAGE;
	return error;
}

void host_file_close(struct host_file *f)
{
	if (f->fd >= 0 && f->fd != f->cached)
		close(f->fd);
	if (f->cached >= 0)
		close(f->cached);
}

static int another(int fd)
{
	int flags = fcntl(fd, F_GETFL), other = flags < 0 ? -1 : open_again(fd, flags & (O_ACCMODE | O_DIRECT));

	return other < 0 ? fd : other;
}

void host_file_again(const struct host_file *f, struct host_fds *fds)
{
	fds->cached = another(f->cached);
	fds->fd = f->fd == f->cached ? fds->cached : another(f->fd);
}

void host_file_again_close(const struct host_file *f, const struct host_fds *fds)
{
	if (fds->fd != f->fd && fds->fd != fds->cached)
		close(fds->fd);
	if (fds->cached != f->cached)
		close(fds->cached);
}
