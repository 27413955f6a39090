// SPDX-License-Identifier: GPL-2.0-or-later
#include "machine/kernel_cache.h"

#include "base/io.h"
#include "base/privdir.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

/*
 * How it works
 *
 * An entry is a file: the unpacked kernel, then a trailer that repeats what it
 * was unpacked from. Its name is the kernel file's device and inode, so that a
 * kernel that is built again in place takes the place of its predecessor here
 * as well. It is written under another name and renamed: two who start at once
 * each boot from the file they have open, and the last one's stays.
 *
 * When is an entry good? The kernel file must be as it was, to the nanosecond
 * of its times. ctime cannot be set, but two writes within one tick of the
 * clock leave the same: so what was made from a file that had changed a moment
 * before is booted once and not kept.
 *
 * Nothing waits for the disk. After a crash of the host a file may have its
 * size and not its contents, so an entry is good only until the host boots
 * again. The trailer comes last, where a write that failed is missed. It is
 * compared as a whole: no field of a file is believed. An entry has the mtime
 * of its kernel, which it loses when anybody writes to it.
 *
 * The KEEP entries that were used last stay; the use is the atime.
 */

#define KEEP      8
#define BLOCK     65536u /* of zeros: a hole */
#define SETTLED_S 2      /* no file system has coarser times */
#define MARK      ".elf"
#define NAME_LEN  96
#define UUID_LEN  36

struct trailer {
	char magic[8];
	char boot[sizeof(((struct kcache *)0)->boot)];
	struct kcache_key key;
	uint64_t size; /* of the kernel before it */
};
static_assert(sizeof(struct trailer) == 48 + sizeof(struct kcache_key) + 8, "all of it can be compared");

/* Only its own parent is made, as the XDG directories' rules want it. */
static char *make_path(void)
{
	const char *xdg = privdir_env("XDG_CACHE_HOME"), *home = privdir_env("HOME");
	char *path = NULL;
	int n = -1;

	if (xdg)
		n = asprintf(&path, "%s/kvm", xdg);
	else if (!geteuid())
		n = asprintf(&path, "/var/cache/kvm");
	else if (home && (n = asprintf(&path, "%s/.cache/kvm", home)) >= 0) {
		path[n - (int)strlen("/kvm")] = '\0';
		(void)mkdir(path, 0700); /* mostly it is there */
		path[n - (int)strlen("/kvm")] = '/';
	}
	return n < 0 ? NULL : path;
}

static int read_boot_id(struct kcache *c, struct err *err)
{
	static const char path[] = "/proc/sys/kernel/random/boot_id";
	int fd = open(path, O_RDONLY | O_CLOEXEC), error;

	if (fd < 0)
		return err_sys(err, -errno, "%s", path);
	error = read_at(fd, c->boot, UUID_LEN, 0);
	close(fd);
	return error ? err_sys(err, error, "%s", path) : 0;
}

int kcache_open(struct kcache *c, struct err *err)
{
	int error;

	*c = (struct kcache){ .fd = -1, .path = make_path() };
	if (!c->path)
		return err_set(err, -ENOENT, "there is no place for it: HOME is no directory of yours");
	error = c->fd = privdir_open(c->path, true, "XDG_CACHE_HOME", err);
	if (c->fd >= 0)
		error = read_boot_id(c, err);
	if (error)
		kcache_close(c);
	return error;
}

void kcache_close(struct kcache *c)
{
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
	free(c->path);
	c->path = NULL;
}

int kcache_key(int fd, uint64_t offset, uint64_t len, struct kcache_key *key)
{
	struct stat st;

	if (fstat(fd, &st))
		return -errno;
	*key = (struct kcache_key){ .dev = st.st_dev,
		                    .ino = st.st_ino,
		                    .size = (uint64_t)st.st_size,
		                    .mtime = (uint64_t)st.st_mtim.tv_sec,
		                    .mtime_ns = (uint64_t)st.st_mtim.tv_nsec,
		                    .ctime = (uint64_t)st.st_ctim.tv_sec,
		                    .ctime_ns = (uint64_t)st.st_ctim.tv_nsec,
		                    .offset = offset,
		                    .len = len };
	return 0;
}

static void entry_name(const struct kcache_key *key, char name[static NAME_LEN])
{
	snprintf(name, NAME_LEN, "%llx-%llx" MARK, (unsigned long long)key->dev, (unsigned long long)key->ino);
}

static struct trailer make_trailer(const struct kcache *c, const struct kcache_key *key, uint64_t size)
{
	struct trailer t = { .magic = "kvm-elf1", .key = *key, .size = size };

	memcpy(t.boot, c->boot, sizeof(t.boot));
	return t;
}

/* 0: the open file @fd is the entry of @key. */
static int check(const struct kcache *c, int fd, const struct kcache_key *key, uint64_t *size)
{
	struct trailer want, is;
	struct stat st;
	int error;

	if (fstat(fd, &st))
		return -errno;
	if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_mode & 077 ||
	    (uint64_t)st.st_mtim.tv_sec != key->mtime || (uint64_t)st.st_size <= sizeof(is))
		return -ESTALE;
	*size = (uint64_t)st.st_size - sizeof(is);
	want = make_trailer(c, key, *size);
	error = read_at(fd, &is, sizeof(is), *size);
	if (error)
		return error;
	return memcmp(&is, &want, sizeof(is)) ? -ESTALE : 0;
}

int kcache_find(const struct kcache *c, const struct kcache_key *key, uint64_t *size)
{
	const struct timespec used[2] = { { .tv_nsec = UTIME_NOW }, { .tv_nsec = UTIME_OMIT } };
	char name[NAME_LEN];
	int fd, error;

	entry_name(key, name);
	fd = openat(c->fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	error = check(c, fd, key, size);
	if (error) {
		close(fd);
		return error;
	}
	(void)futimens(fd, used); /* or it is dropped sooner */
	return fd;
}

int kcache_may_keep(const struct kcache *c, uint64_t size, struct err *err)
{
	struct statvfs v;

	if (faccessat(c->fd, ".", W_OK, AT_EACCESS))
		return err_sys(err, -errno, "%s", c->path);
	if (fstatvfs(c->fd, &v))
		return err_sys(err, -errno, "%s", c->path);
	if (v.f_bavail < size / v.f_frsize + 1)
		return err_sys(err, -ENOSPC, "%s", c->path);
	return 0;
}

static bool is_zero(const uint8_t *p, uint64_t len)
{
	return !p[0] && !memcmp(p, p + 1, len - 1);
}

/* A third of Debian's kernel is zeros, its .bss: they are neither written nor, at the next start, read. */
static int write_data(int fd, const uint8_t *data, uint64_t size)
{
	uint64_t from = 0, n;

	for (uint64_t at = 0; at < size; at += n) {
		int error;

		n = size - at < BLOCK ? size - at : BLOCK;
		if (!is_zero(data + at, n))
			continue;
		error = write_at(fd, data + from, at - from, from);
		if (error)
			return error;
		from = at + n;
	}
	return write_at(fd, data + from, size - from, from);
}

static int write_entry(const struct kcache *c, int fd, const struct kcache_key *key, const uint8_t *data, uint64_t size)
{
	const struct timespec times[2] = { { .tv_nsec = UTIME_NOW },
		                           { .tv_sec = (time_t)key->mtime, .tv_nsec = (long)key->mtime_ns } };
	struct trailer t = make_trailer(c, key, size);
	int error = write_data(fd, data, size);

	if (!error)
		error = write_at(fd, &t, sizeof(t), size);
	if (!error && futimens(fd, times))
		error = -errno;
	return error;
}

static bool is_settled(const struct kcache_key *key)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return now.tv_sec > (time_t)key->ctime + SETTLED_S;
}

/* How many files there are; @oldest is the name of the one that was used the longest time ago. */
static unsigned count(DIR *dir, char oldest[static NAME_LEN])
{
	struct timespec least = { 0 };
	struct dirent *e;
	unsigned n = 0;
	struct stat st;

	rewinddir(dir);
	while ((e = readdir(dir))) {
		if (!strstr(e->d_name, MARK) || strlen(e->d_name) >= NAME_LEN ||
		    fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW))
			continue;
		if (!n++ || st.st_atim.tv_sec < least.tv_sec ||
		    (st.st_atim.tv_sec == least.tv_sec && st.st_atim.tv_nsec < least.tv_nsec)) {
			least = st.st_atim;
			snprintf(oldest, NAME_LEN, "%s", e->d_name);
		}
	}
	return n;
}

/* Also what a start has left that was killed while it wrote. */
static void sweep(const struct kcache *c)
{
	int fd = openat(c->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	char name[NAME_LEN];

	if (!dir)
		return;
	while (count(dir, name) > KEEP && !unlinkat(c->fd, name, 0))
		;
	closedir(dir);
}

int kcache_put(const struct kcache *c, const struct kcache_key *key, const uint8_t *data, uint64_t size,
               struct err *err)
{
	char name[NAME_LEN], tmp[NAME_LEN];
	struct timespec now;
	int fd, error;

	clock_gettime(CLOCK_MONOTONIC, &now);
	entry_name(key, name);
	snprintf(tmp, sizeof(tmp), "new-%d-%lld-%ld" MARK, (int)getpid(), (long long)now.tv_sec, now.tv_nsec);
	fd = openat(c->fd, tmp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return err_sys(err, -errno, "%s", c->path);
	error = write_entry(c, fd, key, data, size);
	if (error || !is_settled(key) || renameat(c->fd, tmp, c->fd, name))
		unlinkat(c->fd, tmp, 0);
	else
		sweep(c);
	if (!error)
		return fd;
	close(fd);
	return err_sys(err, error, "%s", c->path);
}
