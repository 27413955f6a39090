// SPDX-License-Identifier: GPL-2.0-or-later
/* The 9p server: what a good client gets, message by message. */
#include "fs/p9_impl.h"
#include "p9fix.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cmocka.h>

#define ROOT 0u
#define RDWR (P9_DOTL_CREATE | 2u)

static struct p9fix *setup(void)
{
	struct p9fix *f = p9fix_new(NULL, P9_MAP_NONE, false);

	assert_int_equal(p9c_start(&f->c, 65536, ROOT, geteuid()), 0);
	return f;
}

static struct stat host_stat(struct p9fix *f, const char *name)
{
	struct stat st;

	assert_int_equal(fstatat(f->dirfd, name, &st, AT_SYMLINK_NOFOLLOW), 0);
	return st;
}

static void test_new(void **state)
{
	static const struct {
		const char *dir, *text;
		int error;
	} bad[] = {
		{ "/nonexistent", "/nonexistent: No such file or directory", -ENOENT },
		{ "/dev/null", "/dev/null: Not a directory", -ENOTDIR },
	};

	for (unsigned i = 0; i < 2; i++) {
		struct p9_export ex = { .dir = bad[i].dir };
		struct loop *loop;
		struct p9 *p9;
		struct err err;

		assert_int_equal(loop_new(&loop, &err), 0);
		assert_int_equal(p9_new(&ex, loop, &p9, &err), bad[i].error);
		assert_string_equal(err.msg, bad[i].text);
		loop_free(loop);
	}
	p9_free(NULL);
}

static void test_version(void **state)
{
	struct p9fix *f = p9fix_new(NULL, P9_MAP_NONE, false);
	struct p9c *c = &f->c;
	char s[16];

	assert_int_equal(p9c_call(c, P9_TATTACH, "uussu", 0u, P9_NOFID, "", "", 0u), -EPROTO);
	assert_int_equal(p9c_call(c, P9_TVERSION, "us", 8192u, "9P2000.u"), 0);
	assert_int_equal(wire_u32(&c->r), 8192);
	assert_int_equal(wire_str(&c->r, s, sizeof(s)), 7);
	assert_string_equal(s, "unknown");
	assert_int_equal(p9c_call(c, P9_TATTACH, "uussu", 0u, P9_NOFID, "", "", 0u), -EPROTO);
	assert_int_equal(p9c_call(c, P9_TVERSION, "us", 4095u, "9P2000.L"), -EMSGSIZE);
	assert_int_equal(p9c_call(c, P9_TVERSION, "us", ~0u, "9P2000.L"), 0);
	assert_int_equal(wire_u32(&c->r), 1 << 20);
	assert_int_equal(wire_str(&c->r, s, sizeof(s)), 8);
	assert_string_equal(s, "9P2000.L");
	assert_int_equal(p9c_call(c, P9_TAUTH, "ussu", 0u, "", "", 0u), -EOPNOTSUPP);
	assert_int_equal(p9c_call(c, 200, ""), -EOPNOTSUPP);
	assert_int_equal(p9c_walk(c, 0, 1, ""), -EBADF);
	assert_int_equal(p9c_call(c, P9_TATTACH, "uussu", 0u, 1u, "", "", 0u), -EBADF);
	assert_int_equal(p9c_call(c, P9_TATTACH, "uussu", 0u, P9_NOFID, "root", "any", P9_NONUNAME), 0);
	assert_int_equal(p9c_qid(c).type, P9_QTDIR);
	assert_int_equal(p9c_call(c, P9_TATTACH, "uussu", 0u, P9_NOFID, "", "", 0u), -EBADF);
	/* A version ends the session. */
	assert_int_equal(p9c_call(c, P9_TVERSION, "us", 8192u, "9P2000.L"), 0);
	assert_int_equal(p9c_walk(c, 0, 1, ""), -EBADF);
	p9fix_free(f);
}

static void test_walk(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	struct p9c_attr a, b;

	assert_int_equal(mkdirat(f->dirfd, "a", 0755), 0);
	assert_int_equal(mkdirat(f->dirfd, "a/b", 0755), 0);
	p9fix_put(f, "share/a/b/file", "text");
	assert_int_equal(p9c_walk(c, ROOT, 1, "a/b/file"), 0);
	assert_int_equal(p9c_getattr(c, 1, &a), 0);
	assert_int_equal(a.size, 4);
	assert_int_equal(p9c_walk(c, ROOT, 1, "a"), -EBADF);
	assert_int_equal(p9c_walk(c, ROOT, 2, "a/b/none"), -ENOENT);
	assert_int_equal(p9c_walk(c, ROOT, 2, "none"), -ENOENT);
	assert_int_equal(p9c_walk(c, 1, 2, "x"), -ENOTDIR);
	/* In part: as many qids as steps, and no fid. */
	assert_int_equal(p9c_call(c, P9_TWALK, "uuhsss", ROOT, 2u, 3u, "a", "none", "x"), 0);
	assert_int_equal(wire_u16(&c->r), 1);
	assert_int_equal(p9c_clunk(c, 2), -EBADF);
	/* Up, not above the root. */
	assert_int_equal(p9c_walk(c, ROOT, 2, "a/b/../../.."), 0);
	assert_int_equal(p9c_getattr(c, ROOT, &a), 0);
	assert_int_equal(p9c_getattr(c, 2, &b), 0);
	assert_true(a.qid.path == b.qid.path);
	assert_int_equal(p9c_walk(c, 2, 2, "a"), 0); /* in place */
	assert_int_equal(p9c_walk(c, 2, 3, "b"), 0);
	assert_int_equal(p9c_walk(c, 1, 4, ".."), -ENOTDIR);
	assert_int_equal(p9c_walk(c, 3, 4, "./file"), 0);
	assert_int_equal(p9c_clunk(c, 4), 0);
	assert_int_equal(p9c_walk(c, ROOT, P9_NOFID, ""), -EBADF);
	p9fix_free(f);
}

static void test_getattr(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	struct p9c_attr a;
	struct stat st;

	p9fix_put(f, "share/file", "hello");
	st = host_stat(f, "file");
	assert_int_equal(p9c_walk(c, ROOT, 1, "file"), 0);
	assert_int_equal(p9c_getattr(c, 1, &a), 0);
	assert_true((a.valid & P9_STATS_BASIC) == P9_STATS_BASIC);
	assert_true(a.qid.path == st.st_ino && a.qid.version && !a.qid.type);
	assert_true(a.mode == st.st_mode && a.uid == st.st_uid && a.gid == st.st_gid && a.nlink == 1 && a.rdev == 0);
	assert_true(a.size == 5 && a.blksize == (uint64_t)st.st_blksize && a.blocks == (uint64_t)st.st_blocks);
	assert_true(a.mtime == (uint64_t)st.st_mtim.tv_sec && a.mtime_ns == (uint64_t)st.st_mtim.tv_nsec);
	assert_true(a.atime == (uint64_t)st.st_atim.tv_sec && a.ctime_ns == (uint64_t)st.st_ctim.tv_nsec);
	if (a.valid & P9_STATS_BTIME)
		assert_true(a.btime && a.btime <= a.ctime);
	p9fix_free(f);
}

/* The version changes with the content, also where size and second stay. */
static void test_qid_version(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	struct p9c_attr a, b;

	assert_int_equal(p9c_create(c, ROOT, 1, "file", RDWR, 0644), 0);
	assert_int_equal(p9c_write(c, 1, 0, "a", 1), 1);
	assert_int_equal(p9c_getattr(c, 1, &a), 0);
	assert_int_equal(p9c_getattr(c, 1, &b), 0);
	assert_int_equal(a.qid.version, b.qid.version);
	assert_int_equal(p9c_write(c, 1, 1, "b", 1), 1);
	assert_int_equal(p9c_getattr(c, 1, &b), 0);
	assert_int_not_equal(a.qid.version, b.qid.version);
	assert_true(a.qid.path == b.qid.path);
	p9fix_free(f);
}

static void test_files(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	char buf[100] = "";
	struct p9c_attr a;

	assert_int_equal(p9c_create(c, ROOT, 1, "file", RDWR | P9_DOTL_EXCL, 0640), 0);
	assert_int_equal(host_stat(f, "file").st_mode, S_IFREG | 0640);
	assert_int_equal(p9c_write(c, 1, 0, "hello world", 11), 11);
	assert_int_equal(p9c_write(c, 1, 6, "there", 5), 5);
	assert_int_equal(p9c_read(c, 1, 0, buf, sizeof(buf)), 11);
	assert_string_equal(buf, "hello there");
	assert_int_equal(p9c_read(c, 1, 11, buf, sizeof(buf)), 0);
	assert_int_equal(p9c_read(c, 1, 4, buf, 3), 3);
	assert_memory_equal(buf, "o t", 3);
	assert_int_equal(p9c_read(c, 1, ~0ull, buf, 3), -EINVAL);
	assert_int_equal(p9c_write(c, 1, ~0ull, buf, 3), -EINVAL);
	assert_int_equal(p9c_call(c, P9_TFSYNC, "uu", 1u, 0u), 0);
	assert_int_equal(p9c_call(c, P9_TFSYNC, "u", 1u), 0);
	assert_int_equal(p9c_call(c, P9_TFSYNC, "uu", ROOT, 1u), -EBADF);
	assert_int_equal(p9c_clunk(c, 1), 0);
	/* Exclusive where it exists; else it is opened. */
	assert_int_equal(p9c_create(c, ROOT, 1, "file", RDWR | P9_DOTL_EXCL, 0640), -EEXIST);
	assert_int_equal(p9c_create(c, ROOT, 1, "file", RDWR, 0640), 0);
	assert_int_equal(p9c_getattr(c, 1, &a), 0);
	assert_int_equal(a.size, 11);
	assert_int_equal(p9c_clunk(c, 1), 0);
	assert_int_equal(p9c_create(c, ROOT, 1, "file", RDWR | P9_DOTL_TRUNC, 0640), 0);
	assert_int_equal(p9c_getattr(c, 1, &a), 0);
	assert_int_equal(a.size, 0);
	assert_int_equal(p9c_open(c, 1, 0), -EBUSY);
	assert_int_equal(p9c_walk(c, 1, 1, ""), -EBADF); /* it is open */
	assert_int_equal(p9c_walk(c, 1, 2, ""), 0);
	assert_int_equal(p9c_read(c, 2, 0, buf, 1), -EBADF);
	assert_int_equal(p9c_open(c, 2, 3), -EINVAL);
	assert_int_equal(p9c_open(c, 2, 0), 0);
	assert_int_equal(p9c_write(c, 2, 0, "x", 1), -EBADF);
	assert_int_equal(p9c_open(c, ROOT, 2), -EISDIR);
	p9fix_free(f);
}

static void test_open_flags(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	char buf[16];

	p9fix_put(f, "share/file", "12345");
	assert_int_equal(p9c_walk(c, ROOT, 1, "file"), 0);
	assert_int_equal(p9c_walk(c, ROOT, 2, "file"), 0);
	assert_int_equal(p9c_walk(c, ROOT, 3, "file"), 0);
	assert_int_equal(p9c_open(c, 1, 2 | P9_DOTL_APPEND), 0);
	assert_int_equal(p9c_write(c, 1, 0, "67", 2), 2);
	assert_int_equal(p9c_read(c, 1, 0, buf, 16), 7);
	assert_memory_equal(buf, "1234567", 7);
	assert_int_equal(p9c_open(c, 2, 1 | P9_DOTL_SYNC | P9_DOTL_DSYNC | 040000 /* O_DIRECT */), 0);
	assert_int_equal(p9c_write(c, 2, 1, "x", 1), 1); /* by a worker */
	assert_int_equal(p9c_read(c, 1, 0, buf, 3), 3);
	assert_memory_equal(buf, "1x3", 3);
	assert_int_equal(p9c_open(c, 3, P9_DOTL_DIRECTORY), -ENOTDIR);
	assert_int_equal(p9c_open(c, 3, 1 | P9_DOTL_TRUNC), 0);
	assert_int_equal(p9c_read(c, 1, 0, buf, 16), 0);
	p9fix_free(f);
}

/* Megabytes, so that replies and messages are as long as they may be. */
static void test_large(void **state)
{
	const uint32_t n = 65536 - 24;
	uint8_t *a = malloc(n), *b = malloc(n);
	struct p9fix *f = setup();
	struct p9c *c = &f->c;

	assert_int_equal(p9c_create(c, ROOT, 1, "file", RDWR, 0644), 0);
	for (unsigned i = 0; i < 30; i++) {
		memset(a, (int)i + 1, n);
		a[i * 100] ^= 0xff;
		assert_int_equal(p9c_write(c, 1, (uint64_t)i * n, a, n), n);
		assert_int_equal(p9c_read(c, 1, (uint64_t)i * n, b, n), n);
		assert_memory_equal(a, b, n);
	}
	/* More than fits: as much as does. */
	assert_int_equal(p9c_call(c, P9_TREAD, "uqu", 1u, (uint64_t)0, ~0u), 0);
	assert_int_equal(wire_u32(&c->r), 65536 - P9_IO_HEADER);
	free(a);
	free(b);
	p9fix_free(f);
}

/* Clients before Linux 4.20 leave the data out of the size of a write. */
static void test_old_write(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	uint8_t msg[64];
	struct p9c_req *r;
	size_t n;
	char buf[8];

	assert_int_equal(p9c_create(c, ROOT, 1, "file", RDWR, 0644), 0);
	n = (size_t)snprintf(buf, sizeof(buf), "old");
	uint8_t *big = malloc(P9C_MAX);
	size_t len = p9c_build(big, P9_TWRITE, 7, "uqud", 1u, (uint64_t)0, (unsigned)n, buf, n);

	memcpy(msg, big, len);
	free(big);
	msg[0] = (uint8_t)(len - n);
	assert_true(p9c_submit(c, &r, msg, len) > 0);
	assert_int_equal(p9c_wait(r), 0);
	assert_int_equal(wire_u32(&c->r), 3);
	assert_int_equal(host_stat(f, "file").st_size, 3);
	p9fix_free(f);
}

/* Reading is not to be seen on the host, where that is ours to decide. */
static void test_atime(void **state)
{
	const struct timespec old[2] = { { .tv_sec = 1000 }, { .tv_sec = 2000 } };
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	char buf[8];

	p9fix_put(f, "share/file", "12345");
	assert_int_equal(p9c_walk(c, ROOT, 1, "file"), 0);
	assert_int_equal(p9c_open(c, 1, 0), 0);
	assert_int_equal(p9c_walk(c, ROOT, 2, ""), 0);
	assert_int_equal(p9c_open(c, 2, 0), 0);
	assert_int_equal(utimensat(f->dirfd, "file", old, 0), 0);
	assert_int_equal(utimensat(f->topfd, "share", old, 0), 0);
	assert_int_equal(p9c_read(c, 1, 0, buf, 8), 5);
	assert_int_equal(p9c_call(c, P9_TREADDIR, "uqu", 2u, (uint64_t)0, 4096u), 0);
	assert_int_equal(host_stat(f, "file").st_atim.tv_sec, 1000);
	assert_int_equal(host_stat(f, ".").st_atim.tv_sec, 1000);
	p9fix_free(f);
}

/* The page cache has the beginning of what is read, and not the rest: it comes whole, at the end of the file too. */
static void test_cold(void **state)
{
	const uint32_t n = 65536 - 24;
	uint8_t *a = malloc(n), *b = calloc(1, n);
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	int fd;

	assert_int_equal(p9c_create(c, ROOT, 1, "file", RDWR, 0644), 0);
	for (unsigned i = 0; i < n; i++)
		a[i] = (uint8_t)(i * 7 + i / 256);
	for (unsigned i = 0; i < 32; i++)
		assert_int_equal(p9c_write(c, 1, (uint64_t)i * n, a, n), n);
	assert_int_equal(p9c_call(c, P9_TFSYNC, "uu", 1u, 0u), 0);
	fd = openat(f->dirfd, "file", O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); /* nothing is read ahead */
	for (unsigned i = 0; i < 32; i++) {
		assert_int_equal(pread(fd, b, 8192, (off_t)i * n), 8192);
		assert_int_equal(p9c_read(c, 1, (uint64_t)i * n, b, n), n);
		assert_memory_equal(a, b, n);
	}
	assert_int_equal(p9c_read(c, 1, 31ull * n + 100, b, n), n - 100);
	assert_memory_equal(a + 100, b, n - 100);
	close(fd);
	free(a);
	free(b);
	p9fix_free(f);
}

static void test_unlinked(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	struct p9c_attr a;
	char buf[8];

	assert_int_equal(p9c_create(c, ROOT, 1, "file", RDWR, 0644), 0);
	assert_int_equal(p9c_write(c, 1, 0, "gone", 4), 4);
	assert_int_equal(p9c_walk(c, ROOT, 2, "file"), 0);
	assert_int_equal(p9c_call(c, P9_TUNLINKAT, "usu", ROOT, "file", 0u), 0);
	assert_int_equal(p9c_walk(c, ROOT, 3, "file"), -ENOENT);
	assert_int_equal(p9c_getattr(c, 1, &a), 0);
	assert_true(a.nlink == 0 && a.size == 4);
	assert_int_equal(p9c_getattr(c, 2, &a), 0);
	assert_int_equal(a.nlink, 0);
	assert_int_equal(p9c_read(c, 1, 0, buf, 8), 4);
	assert_int_equal(p9c_open(c, 2, 0), 0); /* by the place that is held */
	assert_int_equal(p9c_read(c, 2, 0, buf, 8), 4);
	assert_int_equal(p9c_call(c, P9_TREMOVE, "u", 2u), -ENOENT);
	assert_int_equal(p9c_clunk(c, 2), -EBADF); /* removed or not */
	p9fix_free(f);
}

static void test_rename(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	char buf[8];

	assert_int_equal(p9c_call(c, P9_TMKDIR, "usuu", ROOT, "d", 0755u, 0u), 0);
	assert_int_equal(p9c_qid(c).type, P9_QTDIR);
	assert_int_equal(p9c_walk(c, ROOT, 9, "d"), 0);
	assert_int_equal(p9c_create(c, ROOT, 1, "file", RDWR, 0644), 0);
	assert_int_equal(p9c_write(c, 1, 0, "text", 4), 4);
	assert_int_equal(p9c_call(c, P9_TRENAMEAT, "usus", ROOT, "file", 9u, "new"), 0);
	assert_int_equal(p9c_read(c, 1, 0, buf, 8), 4);
	host_stat(f, "d/new");
	/* By fid, wherever it is now. */
	assert_int_equal(p9c_call(c, P9_TRENAME, "uus", 1u, ROOT, "back"), 0);
	host_stat(f, "back");
	assert_int_equal(p9c_call(c, P9_TRENAME, "uus", 9u, ROOT, "e"), 0);
	host_stat(f, "e");
	assert_int_equal(p9c_create(c, 9, 2, "inside", RDWR, 0644), 0); /* the same directory */
	host_stat(f, "e/inside");
	assert_int_equal(p9c_call(c, P9_TREMOVE, "u", 2u), 0);
	assert_int_equal(p9c_call(c, P9_TREMOVE, "u", 9u), 0);
	assert_int_equal(faccessat(f->dirfd, "e", F_OK, 0), -1);
	assert_int_equal(p9c_call(c, P9_TRENAME, "uus", ROOT, ROOT, "r"), -EBUSY);
	assert_int_equal(p9c_call(c, P9_TRENAMEAT, "usus", ROOT, "none", ROOT, "x"), -ENOENT);
	p9fix_free(f);
}

static void test_names(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	char buf[300];

	assert_int_equal(p9c_call(c, P9_TSYMLINK, "ussu", ROOT, "link", "/etc/passwd", 0u), 0);
	assert_int_equal(p9c_qid(c).type, P9_QTSYMLINK);
	assert_int_equal(p9c_walk(c, ROOT, 1, "link"), 0);
	assert_int_equal(p9c_call(c, P9_TREADLINK, "u", 1u), 0);
	assert_int_equal(wire_str(&c->r, buf, sizeof(buf)), 11);
	assert_string_equal(buf, "/etc/passwd");
	assert_int_equal(p9c_call(c, P9_TREADLINK, "u", ROOT), -EINVAL);
	assert_int_equal(p9c_open(c, 1, 0), -ELOOP);
	assert_int_equal(p9c_walk(c, 1, 2, "x"), -ENOTDIR);
	/* A link to a symlink is to the symlink. */
	assert_int_equal(p9c_call(c, P9_TLINK, "uus", ROOT, 1u, "link2"), 0);
	assert_true(S_ISLNK(host_stat(f, "link2").st_mode));
	p9fix_put(f, "share/file", "x");
	assert_int_equal(p9c_walk(c, ROOT, 3, "file"), 0);
	assert_int_equal(p9c_call(c, P9_TLINK, "uus", ROOT, 3u, "hard"), 0);
	assert_int_equal(host_stat(f, "hard").st_nlink, 2);
	assert_int_equal(p9c_call(c, P9_TLINK, "uus", ROOT, 3u, "hard"), -EEXIST);
	assert_int_equal(p9c_call(c, P9_TMKNOD, "usuuuu", ROOT, "fifo", S_IFIFO | 0600u, 0u, 0u, 0u), 0);
	assert_int_equal(p9c_walk(c, ROOT, 4, "fifo"), 0);
	assert_int_equal(p9c_open(c, 4, 0), -ENXIO);
	assert_int_equal(p9c_create(c, ROOT, 5, "fifo", RDWR, 0644), -ENXIO);
	assert_int_equal(p9c_create(c, ROOT, 5, "link", RDWR, 0644), -ELOOP);
	assert_int_equal(p9c_call(c, P9_TMKNOD, "usuuuu", ROOT, "dir", S_IFDIR | 0700u, 0u, 0u, 0u), -EINVAL);
	assert_int_equal(p9c_call(c, P9_TUNLINKAT, "usu", ROOT, "fifo", P9_DOTL_AT_REMOVEDIR), -ENOTDIR);
	assert_int_equal(p9c_call(c, P9_TUNLINKAT, "usu", ROOT, "fifo", 1u), -EINVAL);
	assert_int_equal(p9c_call(c, P9_TUNLINKAT, "usu", ROOT, "fifo", 0u), 0);
	p9fix_free(f);
}

/* Names that may not be made or removed. */
static void test_bad_names(void **state)
{
	static const struct {
		const char *name;
		int make, remove, rename;
	} bad[] = {
		{ "", -ENOENT, -ENOENT, -ENOENT },
		{ "a/b", -ENOENT, -ENOENT, -ENOENT },
		{ "/", -ENOENT, -ENOENT, -ENOENT },
		{ "../x", -ENOENT, -ENOENT, -ENOENT },
		{ ".", -EEXIST, -EINVAL, -EBUSY },
		{ "..", -EEXIST, -ENOTEMPTY, -EBUSY },
		{ "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
		  "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
		  "01234567890123456789012345678901234567890123456789012345",
		  -ENAMETOOLONG, -ENAMETOOLONG, -ENAMETOOLONG },
	};
	struct p9fix *f = setup();
	struct p9c *c = &f->c;

	p9fix_put(f, "share/file", "x");
	assert_int_equal(p9c_walk(c, ROOT, 1, "file"), 0);
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		const char *n = bad[i].name;

		assert_int_equal(p9c_create(c, ROOT, 2, n, RDWR, 0644), bad[i].make);
		assert_int_equal(p9c_call(c, P9_TMKDIR, "usuu", ROOT, n, 0755u, 0u), bad[i].make);
		assert_int_equal(p9c_call(c, P9_TMKNOD, "usuuuu", ROOT, n, 0100644u, 0u, 0u, 0u), bad[i].make);
		assert_int_equal(p9c_call(c, P9_TSYMLINK, "ussu", ROOT, n, "t", 0u), bad[i].make);
		assert_int_equal(p9c_call(c, P9_TLINK, "uus", ROOT, 1u, n), bad[i].make);
		assert_int_equal(p9c_call(c, P9_TUNLINKAT, "usu", ROOT, n, 0u), bad[i].remove);
		assert_int_equal(p9c_call(c, P9_TUNLINKAT, "usu", ROOT, n, P9_DOTL_AT_REMOVEDIR), bad[i].remove);
		assert_int_equal(p9c_call(c, P9_TRENAMEAT, "usus", ROOT, n, ROOT, "y"), bad[i].rename);
		assert_int_equal(p9c_call(c, P9_TRENAMEAT, "usus", ROOT, "file", ROOT, n), bad[i].rename);
		assert_int_equal(p9c_call(c, P9_TRENAME, "uus", 1u, ROOT, n), bad[i].rename);
	}
	assert_int_equal(p9c_call(c, P9_TMKDIR, "uhduu", ROOT, 3u, "a\0b", (size_t)3, 0755u, 0u), -EINVAL);
	assert_int_equal(p9c_call(c, P9_TWALK, "uuhs", ROOT, 2u, 1u, "a/b"), -ENOENT);
	assert_int_equal(p9c_call(c, P9_TWALK, "uuh", ROOT, 2u, 17u), -EINVAL);
	assert_int_equal(p9c_call(c, P9_TWALK, "uuhs", ROOT, 2u, 1u, bad[6].name), -ENAMETOOLONG);
	host_stat(f, "file");
	p9fix_free(f);
}

static int setattr(struct p9c *c, uint32_t fid, uint32_t valid, uint32_t mode, uint64_t size, uint64_t t, uint64_t ns)
{
	return p9c_call(c, P9_TSETATTR, "uuuuuqqqqq", fid, valid, mode, 0u, 0u, size, t, ns, t + 1, ns);
}

static void test_setattr(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	struct stat st, later;

	p9fix_put(f, "share/file", "12345");
	assert_int_equal(symlinkat("nowhere", f->dirfd, "link"), 0);
	assert_int_equal(p9c_walk(c, ROOT, 1, "file"), 0);
	assert_int_equal(setattr(c, 1, P9_SET_MODE, 0100751, 0, 0, 0), 0);
	assert_int_equal(host_stat(f, "file").st_mode, S_IFREG | 0751);
	assert_int_equal(setattr(c, 1, P9_SET_SIZE, 0, 3, 0, 0), 0);
	assert_int_equal(host_stat(f, "file").st_size, 3);
	assert_int_equal(setattr(c, 1, P9_SET_SIZE, 0, ~0ull, 0, 0), -EFBIG);
	assert_int_equal(setattr(c, ROOT, P9_SET_SIZE, 0, 0, 0, 0), -EISDIR);
	assert_int_equal(
	        setattr(c, 1, P9_SET_ATIME | P9_SET_ATIME_SET | P9_SET_MTIME | P9_SET_MTIME_SET, 0, 0, 1000, 7), 0);
	st = host_stat(f, "file");
	assert_true(st.st_atim.tv_sec == 1000 && st.st_atim.tv_nsec == 7 && st.st_mtim.tv_sec == 1001);
	assert_int_equal(setattr(c, 1, P9_SET_ATIME | P9_SET_ATIME_SET, 0, 0, 1000, UTIME_NOW), -EINVAL);
	assert_int_equal(setattr(c, 1, P9_SET_MTIME, 0, 0, 0, 0), 0); /* now */
	st = host_stat(f, "file");
	assert_true(st.st_atim.tv_sec == 1000 && st.st_mtim.tv_sec > 100000);
	do {
		assert_int_equal(setattr(c, 1, P9_SET_CTIME, 0, 0, 0, 0), 0);
		later = host_stat(f, "file");
	} while (!memcmp(&st.st_ctim, &later.st_ctim, sizeof(st.st_ctim)));
	assert_memory_equal(&st.st_mtim, &later.st_mtim, sizeof(st.st_mtim));
	/* A symlink itself, not what it names. */
	assert_int_equal(p9c_walk(c, ROOT, 2, "link"), 0);
	assert_int_equal(setattr(c, 2, P9_SET_MTIME | P9_SET_MTIME_SET, 0, 0, 5, 0), 0);
	assert_int_equal(host_stat(f, "link").st_mtim.tv_sec, 6);
	assert_int_equal(setattr(c, 2, P9_SET_SIZE, 0, 0, 0, 0), -EINVAL);
	p9fix_free(f);
}

static void test_statfs(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	struct statfs s;

	assert_int_equal(fstatfs(f->dirfd, &s), 0);
	assert_int_equal(p9c_call(c, P9_TSTATFS, "u", ROOT), 0);
	assert_int_equal(wire_u32(&c->r), (uint32_t)s.f_type);
	assert_int_equal(wire_u32(&c->r), s.f_bsize);
	assert_int_equal(wire_u64(&c->r), s.f_blocks);
	wire_skip(&c->r, 16);
	assert_int_equal(wire_u64(&c->r), s.f_files);
	wire_skip(&c->r, 16);
	assert_int_equal(wire_u32(&c->r), s.f_namelen);
	assert_true(!c->r.bad && !c->r.left);
	p9fix_free(f);
}

static bool has_name(const char *list, int n, const char *name)
{
	for (int i = 0; i < n; i += (int)strlen(list + i) + 1)
		if (!strcmp(list + i, name))
			return true;
	return false;
}

static void test_xattr(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	static char big[70000];
	char buf[1000];
	int n;

	p9fix_put(f, "share/file", "x");
	assert_int_equal(p9c_walk(c, ROOT, 1, "file"), 0);
	n = p9c_setxattr(c, 1, "user.a", "value", 5, 0);
	if (n == -EOPNOTSUPP) {
		print_message("no user xattrs here\n");
		p9fix_free(f);
		skip();
	}
	assert_int_equal(n, 0);
	assert_int_equal(p9c_setxattr(c, 1, "user.b", NULL, 0, 0), 0); /* empty is not removed */
	assert_int_equal(p9c_getxattr(c, 1, "user.a", buf, sizeof(buf)), 5);
	assert_memory_equal(buf, "value", 5);
	assert_int_equal(p9c_getxattr(c, 1, "user.b", buf, sizeof(buf)), 0);
	n = p9c_getxattr(c, 1, "", buf, sizeof(buf));
	assert_true(n > 0 && has_name(buf, n, "user.a") && has_name(buf, n, "user.b"));
	assert_int_equal(p9c_setxattr(c, 1, "user.a", "x", 1, XATTR_CREATE), -EEXIST);
	assert_int_equal(p9c_setxattr(c, 1, "user.c", "x", 1, XATTR_REPLACE), -ENODATA);
	assert_int_equal(p9c_setxattr(c, 1, "user.a", NULL, 0, XATTR_REPLACE), 0);
	assert_int_equal(p9c_getxattr(c, 1, "user.a", buf, sizeof(buf)), -ENODATA);
	assert_int_equal(p9c_setxattr(c, 1, "", "x", 1, 0), -ERANGE);
	assert_int_equal(p9c_setxattr(c, 1, "user.a", big, 65537, 0), -E2BIG);
	/* What was not written whole is not set. */
	assert_int_equal(p9c_walk(c, 1, 2, ""), 0);
	assert_int_equal(p9c_call(c, P9_TXATTRCREATE, "usqu", 2u, "user.d", (uint64_t)4, 0u), 0);
	assert_int_equal(p9c_write(c, 2, 0, "abc", 3), 3);
	assert_int_equal(p9c_write(c, 2, 2, "abc", 3), -ENOSPC);
	assert_int_equal(p9c_read(c, 2, 0, buf, 3), -EBADF);
	assert_int_equal(p9c_walk(c, 2, 3, ""), -EBADF); /* it is a value, not a file */
	assert_int_equal(p9c_clunk(c, 2), -EINVAL);
	assert_int_equal(p9c_clunk(c, 2), -EBADF);
	assert_int_equal(p9c_getxattr(c, 1, "user.d", buf, sizeof(buf)), -ENODATA);
	p9fix_free(f);
}

static int lock(struct p9c *c, uint32_t fid, unsigned type, uint64_t start, uint64_t len, uint32_t proc)
{
	int error = p9c_call(c, P9_TLOCK, "ubuqqus", fid, type, 0u, start, len, proc, "guest");

	return error ? error : wire_u8(&c->r);
}

static void test_lock(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	char client[16];

	p9fix_put(f, "share/file", "12345");
	for (uint32_t fid = 1; fid < 5; fid++)
		assert_int_equal(p9c_walk(c, ROOT, fid, "file"), 0);
	assert_int_equal(lock(c, 1, P9_LOCK_RDLCK, 0, 1, 7), -EBADF);
	for (uint32_t fid = 1; fid < 4; fid++)
		assert_int_equal(p9c_open(c, fid, 0), 0);
	/* A write lock through a fid that may only read; the same process through another one. */
	assert_int_equal(lock(c, 1, P9_LOCK_WRLCK, 0, 10, 7), P9_LOCK_SUCCESS);
	assert_int_equal(lock(c, 2, P9_LOCK_WRLCK, 5, 10, 7), P9_LOCK_SUCCESS);
	assert_int_equal(lock(c, 3, P9_LOCK_RDLCK, 12, 1, 8), P9_LOCK_BLOCKED);
	assert_int_equal(lock(c, 3, P9_LOCK_RDLCK, 15, 0, 8), P9_LOCK_SUCCESS);
	assert_int_equal(p9c_call(c, P9_TGETLOCK, "ubqqus", 3u, P9_LOCK_WRLCK, (uint64_t)0, (uint64_t)0, 8u, "guest"),
	                 0);
	assert_int_equal(wire_u8(&c->r), P9_LOCK_WRLCK);
	assert_int_equal(wire_u64(&c->r), 0);
	assert_int_equal(wire_u64(&c->r), 15);
	wire_skip(&c->r, 4);
	assert_int_equal(wire_str(&c->r, client, sizeof(client)), 5);
	assert_int_equal(p9c_call(c, P9_TGETLOCK, "ubqqus", 2u, P9_LOCK_WRLCK, (uint64_t)0, (uint64_t)9, 7u, "guest"),
	                 0);
	assert_int_equal(wire_u8(&c->r), P9_LOCK_UNLCK);
	/* As Linux asks, whatever lock it has in mind. */
	assert_int_equal(p9c_call(c, P9_TGETLOCK, "ubqqus", 2u, P9_LOCK_UNLCK, (uint64_t)0, (uint64_t)0, 7u, "guest"),
	                 0);
	assert_int_equal(wire_u8(&c->r), P9_LOCK_RDLCK);
	assert_int_equal(wire_u64(&c->r), 15);
	assert_int_equal(lock(c, 1, P9_LOCK_UNLCK, 0, 0, 7), P9_LOCK_SUCCESS);
	assert_int_equal(lock(c, 3, P9_LOCK_WRLCK, 0, 0, 8), P9_LOCK_SUCCESS);
	assert_int_equal(lock(c, 1, P9_LOCK_WRLCK, 0, 1, 7), P9_LOCK_BLOCKED);
	/* The last fid that they came by. */
	assert_int_equal(p9c_clunk(c, 3), 0);
	assert_int_equal(lock(c, 1, P9_LOCK_WRLCK, 0, 1, 7), P9_LOCK_SUCCESS);
	assert_int_equal(p9c_clunk(c, 1), 0);
	assert_int_equal(p9c_open(c, 4, 0), 0);
	assert_int_equal(lock(c, 4, P9_LOCK_WRLCK, 0, 1, 9), P9_LOCK_BLOCKED); /* by fid 2 as well */
	assert_int_equal(p9c_clunk(c, 2), 0);
	assert_int_equal(lock(c, 4, P9_LOCK_WRLCK, 0, 1, 9), P9_LOCK_SUCCESS);
	assert_int_equal(lock(c, 4, 3, 0, 1, 9), -EINVAL);
	assert_int_equal(lock(c, 4, P9_LOCK_RDLCK, 1ull << 63, 1, 9), -EINVAL);
	assert_int_equal(lock(c, 4, P9_LOCK_UNLCK, 0, 1, 1234), P9_LOCK_SUCCESS);
	p9fix_free(f);
}

/* Others on the host see them, and they are gone with the connection. */
static void test_lock_host(void **state)
{
	struct flock fl = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1 };
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	int fd;

	p9fix_put(f, "share/file", "12345");
	fd = openat(f->dirfd, "file", O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(p9c_walk(c, ROOT, 1, "file"), 0);
	assert_int_equal(p9c_open(c, 1, 0), 0);
	assert_int_equal(lock(c, 1, P9_LOCK_RDLCK, 0, 0, 7), P9_LOCK_SUCCESS);
	assert_int_equal(fcntl(fd, F_OFD_SETLK, &fl), -1);
	p9_reset(f->p9);
	assert_int_equal(fcntl(fd, F_OFD_SETLK, &fl), 0);
	assert_int_equal(p9c_start(c, 8192, ROOT, 0), 0);
	assert_int_equal(p9c_walk(c, ROOT, 1, "file"), 0);
	assert_int_equal(p9c_open(c, 1, 2), 0);
	assert_int_equal(lock(c, 1, P9_LOCK_RDLCK, 0, 0, 7), P9_LOCK_BLOCKED);
	close(fd);
	p9fix_free(f);
}

static void test_readonly(void **state)
{
	struct p9fix *f = p9fix_new(NULL, P9_MAP_NONE, true);
	struct p9c *c = &f->c;
	char buf[8];

	p9fix_put(f, "share/file", "12345");
	assert_int_equal(p9c_start(c, 8192, ROOT, 0), 0);
	for (uint32_t fid = 1; fid < 4; fid++)
		assert_int_equal(p9c_walk(c, ROOT, fid, "file"), 0);
	assert_int_equal(p9c_open(c, 1, 1), -EROFS);
	assert_int_equal(p9c_open(c, 1, 2), -EROFS);
	assert_int_equal(p9c_open(c, 1, P9_DOTL_TRUNC), -EROFS);
	assert_int_equal(p9c_open(c, 1, 0), 0);
	assert_int_equal(p9c_read(c, 1, 0, buf, 8), 5);
	assert_int_equal(p9c_write(c, 1, 0, "x", 1), -EROFS);
	assert_int_equal(p9c_create(c, ROOT, 9, "new", 0, 0644), -EROFS);
	assert_int_equal(p9c_create(c, ROOT, 9, "file", 0, 0644), -EROFS);
	assert_int_equal(p9c_call(c, P9_TMKDIR, "usuu", ROOT, "d", 0755u, 0u), -EROFS);
	assert_int_equal(p9c_call(c, P9_TMKNOD, "usuuuu", ROOT, "d", 0100644u, 0u, 0u, 0u), -EROFS);
	assert_int_equal(p9c_call(c, P9_TSYMLINK, "ussu", ROOT, "d", "t", 0u), -EROFS);
	assert_int_equal(p9c_call(c, P9_TLINK, "uus", ROOT, 1u, "d"), -EROFS);
	assert_int_equal(p9c_call(c, P9_TRENAME, "uus", 1u, ROOT, "d"), -EROFS);
	assert_int_equal(p9c_call(c, P9_TRENAMEAT, "usus", ROOT, "file", ROOT, "d"), -EROFS);
	assert_int_equal(p9c_call(c, P9_TUNLINKAT, "usu", ROOT, "file", 0u), -EROFS);
	assert_int_equal(p9c_call(c, P9_TREMOVE, "u", 2u), -EROFS);
	assert_int_equal(p9c_clunk(c, 2), -EBADF);
	assert_int_equal(setattr(c, 3, P9_SET_MODE, 0777, 0, 0, 0), -EROFS);
	assert_int_equal(p9c_call(c, P9_TXATTRCREATE, "usqu", 3u, "user.a", (uint64_t)1, 0u), -EROFS);
	assert_int_equal(lock(c, 1, P9_LOCK_RDLCK, 0, 0, 7), P9_LOCK_SUCCESS);
	assert_int_equal(lock(c, 1, P9_LOCK_WRLCK, 0, 0, 7), P9_LOCK_SUCCESS);
	p9fix_free(f);
}

static int compare(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

/* Files of other file systems have numbers of their own, also if their inodes have the same. */
static void test_qid_path(void **state)
{
	static const ino_t inodes[] = {
		1, 2, 77, (1ull << 48) - 1, 1ull << 48, 0xefffffffffffffff, 0xf000000000000000, ~0ull
	};
	const unsigned ninodes = sizeof(inodes) / sizeof(inodes[0]), ndevs = 4200;
	uint64_t *seen = calloc((size_t)ninodes * ndevs, sizeof(*seen));
	struct qids q = { 0 };
	size_t n = 0;

	qids_init(&q, 5);
	for (dev_t dev = 0; dev < ndevs; dev++)
		for (unsigned i = 0; i < ninodes; i++)
			seen[n++] = qid_path(&q, dev, inodes[i]);
	n = 0;
	for (dev_t dev = 0; dev < ndevs; dev++)
		for (unsigned i = 0; i < ninodes; i++, n++) {
			assert_true(seen[n] == qid_path(&q, dev, inodes[i])); /* stable */
			if (dev == 5 && inodes[i] >> 60 != 0xf)
				assert_true(seen[n] == inodes[i]);
		}
	qsort(seen, n, sizeof(*seen), compare);
	for (size_t i = 1; i < n; i++)
		assert_true(seen[i] != seen[i - 1]);
	qids_exit(&q);
	free(seen);
}

/* A file system mounted inside: walked into, by a worker, and told apart from what is around it. */
static void test_mount(void **state)
{
	struct p9fix *f;
	struct p9c *c;
	struct p9c_attr a, b;
	char path[128];

	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) {
		print_message("needs root\n");
		skip();
	}
	f = setup();
	c = &f->c;
	assert_int_equal(mkdirat(f->dirfd, "m", 0755), 0);
	snprintf(path, sizeof(path), "%s/share/m", f->top);
	assert_int_equal(mount("p9test", path, "tmpfs", 0, NULL), 0);
	p9fix_put(f, "share/m/inside", "text");
	assert_int_equal(p9c_walk(c, ROOT, 1, "m"), 0);
	assert_int_equal(p9c_walk(c, ROOT, 2, "m/inside"), 0);
	assert_int_equal(p9c_getattr(c, 1, &a), 0);
	assert_int_equal(p9c_getattr(c, 2, &b), 0);
	assert_true(a.qid.path >> 60 == 0xf && b.qid.path >> 60 == 0xf && a.qid.path != b.qid.path);
	assert_int_equal(b.size, 4);
	assert_int_equal(p9c_create(c, 1, 3, "new", RDWR, 0644), 0);
	assert_int_equal(p9c_walk(c, 1, 4, "../m/../m/new"), 0);
	assert_int_equal(p9c_call(c, P9_TRENAMEAT, "usus", 1u, "new", ROOT, "new"), -EXDEV);
	assert_int_equal(p9c_call(c, P9_TUNLINKAT, "usu", ROOT, "m", P9_DOTL_AT_REMOVEDIR), -EBUSY);
	assert_int_equal(umount2(path, MNT_DETACH), 0);
	assert_int_equal(p9c_write(c, 3, 0, "x", 1), 1);    /* still held */
	assert_int_equal(p9c_walk(c, 1, 5, ".."), -ENOENT); /* but it is nowhere */
	p9fix_free(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_new),        cmocka_unit_test(test_version),     cmocka_unit_test(test_walk),
		cmocka_unit_test(test_getattr),    cmocka_unit_test(test_qid_version), cmocka_unit_test(test_files),
		cmocka_unit_test(test_open_flags), cmocka_unit_test(test_large),       cmocka_unit_test(test_old_write),
		cmocka_unit_test(test_unlinked),   cmocka_unit_test(test_rename),      cmocka_unit_test(test_names),
		cmocka_unit_test(test_bad_names),  cmocka_unit_test(test_setattr),     cmocka_unit_test(test_statfs),
		cmocka_unit_test(test_xattr),      cmocka_unit_test(test_lock),        cmocka_unit_test(test_lock_host),
		cmocka_unit_test(test_readonly),   cmocka_unit_test(test_atime),       cmocka_unit_test(test_cold),
		cmocka_unit_test(test_qid_path),   cmocka_unit_test(test_mount),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
