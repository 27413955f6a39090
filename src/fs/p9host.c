// SPDX-License-Identifier: GPL-2.0-or-later
#include "fs/p9_impl.h"

#include "base/io.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

/*
 * How it works
 *
 * Files are counted descriptors. The last user does not close one on a slow
 * file system itself, for that may wait (NFS writes back then): a worker does.
 *
 * How many there are is counted over all shares of the process, since the limit
 * is the process's: FDS_RESERVE of them stay for everything else.
 */

#define FDS_RESERVE 256
#define FDS_STEP    64

static atomic_uint fds_held; /* by all servers together */
static atomic_uint fds_most;

static unsigned fds_limit(void)
{
	struct rlimit rl;

	if (getrlimit(RLIMIT_NOFILE, &rl) || rl.rlim_cur <= FDS_RESERVE)
		return 16; /* next to nothing, but the root can be shown */
	return rl.rlim_cur - FDS_RESERVE < P9_MAX_FIDS ? (unsigned)rl.rlim_cur - FDS_RESERVE : P9_MAX_FIDS;
}

/* Counts one more, even if it is one too many. What the limit is is asked now and then, and before it is refused. */
static bool fds_take(void)
{
	unsigned n = atomic_fetch_add(&fds_held, 1);

	if (n % FDS_STEP == 0 || n >= atomic_load(&fds_most))
		atomic_store(&fds_most, fds_limit());
	return n < atomic_load(&fds_most);
}

/* A file beyond the process's size limit shall be EFBIG to the client, not the end of us: hence no SIGXFSZ. */
void host_prepare(void)
{
	signal(SIGXFSZ, SIG_IGN);
	io_raise_fd_limit();
}

int host_new(const struct p9_export *ex, struct loop *loop, struct host **out, struct err *err)
{
	struct host *h = calloc(1, sizeof(*h));
	pthread_condattr_t attr;

	if (!h)
		return err_set(err, -ENOMEM, "out of memory");
	h->fds = open("/proc/self/fd", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (h->fds < 0) {
		int error = -errno;

		free(h);
		return err_sys(err, error, "/proc/self/fd");
	}
	h->refs = 1;
	h->map = ex->map;
	h->ro = ex->ro;
	h->euid = geteuid();
	h->egid = getegid();
	h->loop = loop;
	h->queue_end = &h->queue;
	h->done_end = &h->done;
	pthread_mutex_init(&h->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&h->more, &attr);
	pthread_condattr_destroy(&attr);
	*out = h;
	return 0;
}

struct host *host_get(struct host *h)
{
	atomic_fetch_add(&h->refs, 1);
	return h;
}

void host_put(struct host *h)
{
	if (!h || atomic_fetch_sub(&h->refs, 1) != 1)
		return;
	assert(!h->queue && !h->done && !h->workers);
	qids_exit(&h->qids);
	pthread_cond_destroy(&h->more);
	pthread_mutex_destroy(&h->lock);
	close(h->fds);
	free(h);
}

/*
 * File systems that answer from this machine. What is missing here, and all
 * that ask somebody else (NFS, SMB, FUSE, 9p, Ceph, AFS, autofs), counts as
 * slow. Overlayfs is what its layers are; they are local where it is used.
 */
bool host_is_slow(struct host *h, int fd)
{
	static const uint32_t local[] = {
		EXT4_SUPER_MAGIC,     XFS_SUPER_MAGIC,   BTRFS_SUPER_MAGIC,     TMPFS_MAGIC,
		RAMFS_MAGIC,          F2FS_SUPER_MAGIC,  OVERLAYFS_SUPER_MAGIC, SQUASHFS_MAGIC,
		EROFS_SUPER_MAGIC_V1, ISOFS_SUPER_MAGIC, MSDOS_SUPER_MAGIC,     EXFAT_SUPER_MAGIC,
		REISERFS_SUPER_MAGIC, NILFS_SUPER_MAGIC, UDF_SUPER_MAGIC,       HUGETLBFS_MAGIC,
		0x2fc12fc1, /* ZFS */
		0x3153464a, /* JFS */
		0x7366746e, /* NTFS */
		0xca451a4e, /* bcachefs */
	};
	struct statfs fs;

	if (h->hook || fstatfs(fd, &fs))
		return true;
	for (unsigned i = 0; i < sizeof(local) / sizeof(local[0]); i++)
		if ((uint32_t)fs.f_type == local[i])
			return false;
	return true;
}

int file_stat(int fd, struct statx *st)
{
	return statx(fd, "", AT_EMPTY_PATH | AT_NO_AUTOMOUNT, STATX_BASIC_STATS | STATX_BTIME, st) ? -errno : 0;
}

int file_new(struct host *h, int fd, const struct statx *st, bool slow, struct file **out)
{
	struct file *f = NULL;
	int error = -EMFILE;

	if (fds_take()) {
		f = calloc(1, sizeof(*f));
		error = -ENOMEM;
	}
	if (!f) {
		atomic_fetch_sub(&fds_held, 1);
		if (fd >= 0)
			close(fd);
		return error;
	}
	f->refs = 1;
	f->host = host_get(h);
	f->fd = fd;
	f->slow = slow;
	f->type = st->stx_mode & S_IFMT;
	f->dev = makedev(st->stx_dev_major, st->stx_dev_minor);
	f->ino = st->stx_ino;
	pthread_mutex_init(&f->lock, NULL);
	*out = f;
	return 0;
}

struct file *file_get(struct file *f)
{
	if (f)
		atomic_fetch_add(&f->refs, 1);
	return f;
}

static void file_close(struct file *f)
{
	struct host *h = f->host;

	dirbuf_free(h, f->dir);
	if (f->fd >= 0)
		close(f->fd);
	atomic_fetch_sub(&fds_held, 1);
	pthread_mutex_destroy(&f->lock);
	free(f);
	host_put(h);
}

static void run_close(struct job *j)
{
	file_close((struct file *)((char *)j - offsetof(struct file, job)));
}

void file_put(struct file *f)
{
	if (!f || atomic_fetch_sub(&f->refs, 1) != 1)
		return;
	if (!f->slow) {
		file_close(f);
		return;
	}
	f->job.run = run_close;
	pool_push(f->host, &f->job);
}

const char *fd_name(int fd, char *buf)
{
	snprintf(buf, PROC_FD_SIZE, "%d", fd);
	return buf;
}

const char *proc_fd(int fd, char *buf)
{
	snprintf(buf, PROC_FD_SIZE, "/proc/self/fd/%d", fd);
	return buf;
}

int file_reopen(const struct host *h, int fd, int flags)
{
	char name[PROC_FD_SIZE];

	fd = openat(h->fds, fd_name(fd, name), flags | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}
