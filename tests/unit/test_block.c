// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Raw images: reading, writing, odd sizes, holes, what is refused. Each test
 * runs in all ways there are to get at a file: by io_uring and by threads,
 * through the page cache and past it, on a disk and in memory.
 */
#include "base/container_of.h"
#include "blkfix.h"
#include "block/block_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define LEN(a) (sizeof(a) / sizeof(*(a)))
#define MIB    (1ull << 20)
#define PAGE   4096
#define SLACK  65536 /* what a file system needs to remember holes */

static struct way {
	const char *name;
	enum blkfix_loop loop;
	enum blk_cache cache;
	const char *dir;
} ways[] = {
	{ "pool", BLKFIX_POLL, BLK_WRITEBACK, NULL },
	{ "pool, O_DIRECT", BLKFIX_POLL, BLK_DIRECT, NULL },
	{ "pool, memory", BLKFIX_POLL, BLK_WRITEBACK, "/dev/shm" },
	{ "ring", BLKFIX_RING, BLK_WRITEBACK, NULL },
	{ "ring, O_DIRECT", BLKFIX_RING, BLK_DIRECT, NULL },
	{ "ring, memory", BLKFIX_RING, BLK_WRITEBACK, "/dev/shm" },
	{ "ring, writethrough", BLKFIX_RING, BLK_WRITETHROUGH, NULL },
};

static const struct way *way;

static void make(struct blkfix *f, uint64_t size, unsigned seed)
{
	if (way->dir)
		setenv("BLKFIX_DIR", way->dir, 1);
	else
		unsetenv("BLKFIX_DIR");
	blkfix_make(f->path, size, seed);
}

static void start(struct blkfix *f, uint64_t size, unsigned seed)
{
	make(f, size, seed);
	blkfix_start(f, &(struct blk_options){ .format = BLK_RAW, .cache = way->cache }, way->loop);
}

static void stop(struct blkfix *f)
{
	blkfix_stop(f);
	blkfix_rm(f->path);
}

/* Aligned for O_DIRECT, or not at all. */
static uint8_t area[2 * MIB + PAGE] __attribute__((aligned(PAGE)));
static uint8_t *const odd = area + 1;

static void test_read_write(void **state)
{
	struct blkfix f;

	start(&f, MIB, 1);
	assert_int_equal(blk_size(f.b), MIB);
	assert_string_equal(blk_info(f.b)->format, "raw");
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 12345, odd, 100000), 0);
	assert_true(blkfix_is(odd, 100000, 12345, 1));
	blkfix_fill(odd, 100000, 500000, 2);
	assert_int_equal(blkfix_io(f.q, BLK_WRITE, 0, 500000, odd, 100000), 0);
	memset(odd, 0, 100000);
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 500000, odd, 100000), 0);
	assert_true(blkfix_is(odd, 100000, 500000, 2));
	blkfix_fill(area, 64 * 1024, 65536, 3);
	assert_int_equal(blkfix_io(f.q, BLK_WRITE, 0, 65536, area, 64 * 1024), 0);
	memset(area, 0, MIB);
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 0, area, MIB), 0);
	assert_true(blkfix_is(area, 65536, 0, 1));
	assert_true(blkfix_is(area + 65536, 65536, 65536, 3));
	assert_true(blkfix_is(area + 131072, 500000 - 131072, 131072, 1));
	assert_int_equal(blkfix_io(f.q, BLK_FLUSH, 0, 0, NULL, 0), 0);
	blkfix_stop(&f);
	blkfix_pread(f.path, odd, 100000, 500000);
	assert_true(blkfix_is(odd, 100000, 500000, 2));
	blkfix_rm(f.path);
}

/* Many pieces, of all sizes, also empty ones. */
static void test_pieces(void **state)
{
	static struct iovec iov[BLK_MAX_IOV];
	static uint8_t back[2 * MIB];
	struct blkfix f;
	size_t len = 0;
	unsigned seed = 7;

	start(&f, 2 * MIB, 0);
	for (unsigned i = 0; i < BLK_MAX_IOV; i++) {
		iov[i] = (struct iovec){ .iov_base = odd + len, .iov_len = (size_t)(rand_r(&seed) % 1500) };
		len += iov[i].iov_len;
	}
	blkfix_fill(odd, len, 0, 9);
	assert_int_equal(blkfix_iov(f.q, BLK_WRITE, 77, iov, BLK_MAX_IOV), 0);
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 77, back, len), 0);
	assert_memory_equal(back, odd, len);
	memset(odd, 0, len);
	assert_int_equal(blkfix_iov(f.q, BLK_READ, 77, iov, BLK_MAX_IOV), 0);
	assert_memory_equal(back, odd, len);
	stop(&f);
}

/* Many at once, at places that do not meet; some start another when they are done. */
struct storm {
	struct blk_req req;
	struct iovec iov;
	struct blkfix *f;
	unsigned *left, rounds;
	uint8_t *buf;
};

static void storm_next(struct storm *s)
{
	s->iov = (struct iovec){ .iov_base = s->buf, .iov_len = PAGE };
	s->req.op = s->rounds & 1 ? BLK_READ : BLK_WRITE;
	blk_submit(s->f->q, &s->req);
}

static void on_storm(struct blk_req *r, int error)
{
	struct storm *s = container_of(r, struct storm, req);

	assert_int_equal(error, 0);
	assert_true(blkfix_is(s->buf, 16, s->req.off, 5));
	if (s->rounds--)
		storm_next(s);
	else if (!--*s->left)
		loop_quit(s->f->loop);
}

static void test_many(void **state)
{
	static struct storm storm[256];
	struct blkfix f;
	unsigned left = LEN(storm);

	start(&f, MIB, 0);
	for (unsigned i = 0; i < LEN(storm); i++) {
		struct storm *s = &storm[i];

		*s = (struct storm){ .f = &f, .left = &left, .rounds = 20, .buf = area + i * PAGE };
		s->req = (struct blk_req){ .off = i * PAGE, .len = PAGE, .iov = &s->iov, .niov = 1, .done = on_storm };
		blkfix_fill(s->buf, PAGE, s->req.off, 5);
		storm_next(s);
	}
	assert_int_equal(blk_queue_inflight(f.q), LEN(storm));
	assert_int_equal(loop_run(f.loop), 0);
	blkfix_drain(f.q, f.loop);
	blkfix_pread(f.path, area, MIB, 0);
	assert_true(blkfix_is(area, MIB, 0, 5));
	stop(&f);
}

/* Outside is refused, whatever the numbers; nothing outside is touched. */
static void test_range(void **state)
{
	static const enum blk_op ops[] = { BLK_READ, BLK_WRITE, BLK_DISCARD, BLK_WRITE_ZEROES };
	static const uint64_t bad[][2] = { { MIB, 1 },          { MIB - 1, 2 },           { UINT64_MAX, 1 },
		                           { UINT64_MAX, 512 }, { INT64_MAX, 1 },         { 0, MIB + 1 },
		                           { 1, UINT64_MAX },   { UINT64_MAX - 511, 512 } };
	struct blkfix f;

	start(&f, MIB, 1);
	for (unsigned o = 0; o < LEN(ops); o++) {
		for (unsigned i = 0; i < LEN(bad); i++)
			assert_int_equal(blkfix_io(f.q, ops[o], 0, bad[i][0], area, bad[i][1]), -EINVAL);
		assert_int_equal(blkfix_io(f.q, ops[o], 0, MIB, area, 0), 0);
	}
	assert_int_equal(blkfix_length(f.path), MIB);
	stop(&f);
}

/* A length that is no multiple of 512: rounded up, zeroes past the end, and never longer. */
static void test_odd_size(void **state)
{
	struct blkfix f;

	start(&f, 10000, 1);
	assert_int_equal(blk_size(f.b), 10240);
	memset(area, 'x', 1024);
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 9728, area, 512), 0);
	assert_true(blkfix_is(area, 272, 9728, 1));
	assert_true(blkfix_is(area + 272, 240, 0, 0));
	assert_int_equal(area[512], 'x');
	memset(area, 'x', 512);
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 10000, area, 240), 0);
	assert_true(blkfix_is(area, 240, 0, 0));
	memset(area, 'y', 512);
	assert_int_equal(blkfix_io(f.q, BLK_WRITE, 0, 9728, area, 512), -ENOSPC); /* no place for these */
	assert_int_equal(blkfix_io(f.q, BLK_WRITE, 0, 10100, area, 1), -ENOSPC);
	memset(area + 272, 0, 240);
	assert_int_equal(blkfix_io(f.q, BLK_WRITE, 0, 9728, area, 512), 0);
	assert_int_equal(blkfix_io(f.q, BLK_WRITE, 0, 10100, area + 272, 100), 0);
	assert_int_equal(blkfix_io(f.q, BLK_WRITE_ZEROES, 0, 9900, NULL, 340), 0);
	assert_int_equal(blkfix_io(f.q, BLK_WRITE_ZEROES, BLK_MAY_UNMAP, 9950, NULL, 290), 0);
	assert_int_equal(blkfix_io(f.q, BLK_DISCARD, 0, 10000, NULL, 240), 0);
	assert_int_equal(blkfix_io(f.q, BLK_FLUSH, 0, 0, NULL, 0), 0);
	assert_int_equal(blkfix_length(f.path), 10000);
	blkfix_pread(f.path, area, 10000 - 9728, 9728);
	for (unsigned i = 0; i < 9900 - 9728; i++)
		assert_int_equal(area[i], 'y');
	assert_true(blkfix_is(area + 9900 - 9728, 100, 0, 0));
	stop(&f);
}

static void test_empty(void **state)
{
	struct blkfix f;

	start(&f, 0, 0);
	assert_int_equal(blk_size(f.b), 0);
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 0, area, 1), -EINVAL);
	assert_int_equal(blkfix_io(f.q, BLK_FLUSH, 0, 0, NULL, 0), 0);
	stop(&f);
}

/* Somebody makes the file shorter under us: an error, not old memory. */
static void test_shrunk(void **state)
{
	struct blkfix f;

	start(&f, MIB, 1);
	assert_int_equal(truncate(f.path, MIB / 2), 0);
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, MIB / 2 - PAGE, area, 2 * PAGE), -EIO);
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, MIB / 2 - PAGE, area, PAGE), 0);
	stop(&f);
}

static void test_zeroes(void **state)
{
	struct blkfix f;
	uint64_t before;

	start(&f, 2 * MIB, 1);
	before = blkfix_allocated(f.path);
	assert_int_equal(blkfix_io(f.q, BLK_WRITE_ZEROES, 0, 4096 + 100, NULL, 300000), 0);
	assert_true(blkfix_allocated(f.path) + SLACK >= before);
	assert_int_equal(blkfix_io(f.q, BLK_WRITE_ZEROES, BLK_MAY_UNMAP, MIB, NULL, MIB / 2), 0);
	assert_true(blkfix_allocated(f.path) <= before - MIB / 2 + SLACK);
	assert_int_equal(blkfix_io(f.q, BLK_DISCARD, 0, MIB + MIB / 2, NULL, MIB / 4), 0);
	assert_true(blkfix_allocated(f.path) <= before - MIB / 2 - MIB / 4 + SLACK);
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 0, area, 2 * MIB), 0);
	assert_true(blkfix_is(area, 4196, 0, 1));
	assert_true(blkfix_is(area + 4196, 300000, 0, 0));
	assert_true(blkfix_is(area + 304196, MIB - 304196, 304196, 1));
	assert_true(blkfix_is(area + MIB, MIB / 4 * 3, 0, 0));
	assert_true(blkfix_is(area + MIB / 4 * 7, MIB / 4, MIB / 4 * 7, 1));
	stop(&f);
}

/* discard=off: what the user laid out stays. */
static void test_no_discard(void **state)
{
	struct blkfix f;
	uint64_t before;

	make(&f, MIB, 1);
	blkfix_start(&f, &(struct blk_options){ .format = BLK_RAW, .cache = way->cache, .no_discard = true },
	             way->loop);
	before = blkfix_allocated(f.path);
	assert_false(blk_info(f.b)->can_discard);
	assert_int_equal(blkfix_io(f.q, BLK_DISCARD, 0, 0, NULL, MIB), -EOPNOTSUPP);
	assert_int_equal(blkfix_io(f.q, BLK_WRITE_ZEROES, BLK_MAY_UNMAP, 0, NULL, MIB), 0);
	assert_true(blkfix_allocated(f.path) + SLACK >= before);
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 0, area, MIB), 0);
	assert_true(blkfix_is(area, MIB, 0, 0));
	stop(&f);
}

static void test_read_only(void **state)
{
	struct blkfix f;

	make(&f, MIB, 1);
	assert_int_equal(chmod(f.path, 0444), 0);
	blkfix_start(&f, &(struct blk_options){ .cache = way->cache, .read_only = true }, way->loop);
	assert_true(blk_info(f.b)->read_only);
	assert_int_equal(blkfix_io(f.q, BLK_WRITE, 0, 0, area, 512), -EROFS);
	assert_int_equal(blkfix_io(f.q, BLK_WRITE_ZEROES, 0, 0, NULL, 512), -EROFS);
	assert_int_equal(blkfix_io(f.q, BLK_DISCARD, 0, 0, NULL, 512), -EROFS);
	assert_int_equal(blkfix_io(f.q, BLK_FLUSH, 0, 0, NULL, 0), 0);
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 0, area, MIB), 0);
	assert_true(blkfix_is(area, MIB, 0, 1));
	stop(&f);
}

/* As image formats use their file: it grows where it is written, and past its end there are zeroes. */
static void test_grows(void **state)
{
	struct blkfix f;
	struct err err;

	make(&f, 1000, 1);
	f.b = NULL;
	assert_int_equal(blk_file_open(f.path, &(struct blk_options){ .cache = way->cache }, &f.b, &err), 0);
	assert_int_equal(blk_file_use(f.b, BLK_FILE_GROWS, &err), 0);
	assert_int_equal((way->loop == BLKFIX_RING ? loop_new_ring : loop_new)(&f.loop, &err), 0);
	assert_int_equal(blk_queue_open(f.b, f.loop, &f.q, &err), 0);
	assert_int_equal(blk_size(f.b), 1000);
	memset(area, 'x', 10000);
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 500, area, 10000), 0);
	assert_true(blkfix_is(area, 500, 500, 1) && blkfix_is(area + 500, 9500, 0, 0));
	memset(area, 'x', 10000);
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, MIB, area, 10000), 0);
	assert_true(blkfix_is(area, 10000, 0, 0));
	assert_int_equal(blk_size(f.b), 1000);
	blkfix_fill(area, 8192, 65536, 4);
	assert_int_equal(blkfix_io(f.q, BLK_WRITE, 0, 65536, area, 8192), 0);
	assert_int_equal(blk_size(f.b), 65536 + 8192);
	assert_int_equal(blkfix_io(f.q, BLK_WRITE_ZEROES, 0, 65536 + 8192, NULL, 100000), 0);
	assert_int_equal(blk_size(f.b), 65536 + 8192 + 100000);
	assert_int_equal(blkfix_length(f.path), 65536 + 8192 + 100000);
	assert_int_equal(blk_truncate(f.b, 65536 + 4096), 0);
	assert_int_equal(blk_size(f.b), 65536 + 4096);
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 65536, area, 8192), 0);
	assert_true(blkfix_is(area, 4096, 65536, 4) && blkfix_is(area + 4096, 4096, 0, 0));
	assert_int_equal(blkfix_io(f.q, BLK_WRITE, 0, (uint64_t)INT64_MAX - 10, area, 100), -EINVAL);
	blkfix_stop(&f);
	assert_int_equal(blkfix_length(f.path), 65536 + 4096);
	blkfix_rm(f.path);
}

/* Without a loop. */
static void test_blocking(void **state)
{
	struct blkfix f;

	start(&f, 4 * MIB, 1);
	assert_int_equal(blk_do(f.b, BLK_READ, 0, 100, odd, 70000), 0);
	assert_true(blkfix_is(odd, 70000, 100, 1));
	blkfix_fill(odd, 70000, 9, 2);
	assert_int_equal(blk_do(f.b, BLK_WRITE, BLK_FUA, 9, odd, 70000), 0);
	assert_int_equal(blk_do(f.b, BLK_FLUSH, 0, 0, NULL, 0), 0);
	assert_int_equal(blk_do(f.b, BLK_WRITE_ZEROES, 0, MIB, NULL, 3 * MIB), 0);
	assert_int_equal(blk_do(f.b, BLK_READ, 0, 4 * MIB, odd, 1), -EINVAL);
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 0, area, 2 * MIB), 0);
	assert_true(blkfix_is(area + 9, 70000, 9, 2));
	assert_true(blkfix_is(area + MIB, MIB, 0, 0));
	stop(&f);
}

/* Idle is told once, later, and not before everything is done. */
struct idle {
	struct blkfix *f;
	unsigned calls;
	bool inside;
};

static void on_idle(void *arg)
{
	struct idle *i = arg;

	assert_false(i->inside);
	assert_int_equal(blk_queue_inflight(i->f->q), 0);
	i->calls++;
	loop_quit(i->f->loop);
}

static void nothing(struct blk_req *r, int error)
{
	assert_int_equal(error, 0);
}

static void test_idle(void **state)
{
	struct blkfix f;
	struct idle i = { .f = &f };
	struct blk_req req[8];
	struct iovec iov[8];

	start(&f, MIB, 1);
	for (unsigned round = 0; round < 3; round++) {
		unsigned n = round * 4;

		i.inside = true;
		for (unsigned k = 0; k < n; k++) {
			iov[k] = (struct iovec){ .iov_base = area + k * PAGE, .iov_len = PAGE };
			req[k] = (struct blk_req){
				.off = k * PAGE, .len = PAGE, .iov = &iov[k], .niov = 1, .done = nothing
			};
			blk_submit(f.q, &req[k]);
		}
		blk_queue_when_idle(f.q, on_idle, &i);
		i.inside = false;
		assert_int_equal(loop_run(f.loop), 0);
		assert_int_equal(i.calls, round + 1);
	}
	blk_queue_when_idle(f.q, on_idle, &i);
	blk_queue_when_idle(f.q, NULL, NULL);
	blkfix_drain(f.q, f.loop);
	assert_int_equal(i.calls, 3);
	stop(&f);
}

static void refuse(const char *path, const struct blk_options *opt, int error, const char *text)
{
	struct blk *b = NULL;
	struct err err = { .msg = "" };

	assert_int_equal(blk_open(path, opt, &b, &err), error);
	if (!strstr(err.msg, text) || strchr(err.msg, '\n'))
		fail_msg("%s: %s", path, err.msg);
}

static void test_refused(void **state)
{
	static const struct blk_options opt = { .format = BLK_GUESS };
	char dir[] = "/tmp/kvm-blk-XXXXXX", path[64];

	assert_non_null(mkdtemp(dir));
	refuse(dir, &opt, -EISDIR, "directory");
	refuse("/dev/null", &opt, -EINVAL, "character device");
	snprintf(path, sizeof(path), "%s/none", dir);
	refuse(path, &opt, -ENOENT, path);
	snprintf(path, sizeof(path), "%s/fifo", dir);
	assert_int_equal(mkfifo(path, 0600), 0);
	refuse(path, &opt, -EINVAL, "FIFO");
	assert_int_equal(unlink(path), 0);
	assert_int_equal(rmdir(dir), 0);
	refuse("/proc/version", &(struct blk_options){ .cache = BLK_DIRECT, .read_only = true }, -EINVAL, "O_DIRECT");
}

/* A host whose sandbox answers io_uring_setup(2) with EPERM: the same works by threads. */
static void forbid_io_uring(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = { .len = LEN(code), .filter = code };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog))
		_exit(2);
}

static int without_io_uring(void)
{
	struct blkfix f;
	bool ok;

	forbid_io_uring();
	way = &ways[0];
	make(&f, MIB, 1);
	blkfix_start(&f, &(struct blk_options){ .format = BLK_RAW }, BLKFIX_RING);
	ok = !loop_has_ring(f.loop) && !blkfix_io(f.q, BLK_READ, 0, 100, odd, 70000) && blkfix_is(odd, 70000, 100, 1);
	ok &= !blkfix_io(f.q, BLK_WRITE, BLK_FUA, 100, odd, 70000);
	stop(&f);
	return ok ? 0 : 1;
}

static void test_seccomp(void **state)
{
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (!pid)
		_exit(without_io_uring());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == 2)
		skip();
	assert_int_equal(WEXITSTATUS(status), 0);
}

static int run_way(const struct way *w)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_read_write), cmocka_unit_test(test_pieces),   cmocka_unit_test(test_many),
		cmocka_unit_test(test_range),      cmocka_unit_test(test_odd_size), cmocka_unit_test(test_empty),
		cmocka_unit_test(test_shrunk),     cmocka_unit_test(test_zeroes),   cmocka_unit_test(test_no_discard),
		cmocka_unit_test(test_read_only),  cmocka_unit_test(test_grows),    cmocka_unit_test(test_blocking),
		cmocka_unit_test(test_idle),
	};
	struct blkfix f;
	struct blk *b;
	struct err err;
	int error;

	way = w;
	if (w->loop == BLKFIX_RING && !blkfix_has_ring()) {
		print_message("%s: no io_uring on this host: skipped\n", w->name);
		return 0;
	}
	make(&f, MIB, 0);
	error = blk_open(f.path, &(struct blk_options){ .cache = w->cache }, &b, &err);
	if (error == -EINVAL)
		print_message("%s: %s: skipped\n", w->name, err.msg);
	else if (!error)
		blk_close(b);
	blkfix_rm(f.path);
	return error == -EINVAL ? 0 : cmocka_run_group_tests_name(w->name, tests, NULL, NULL);
}

int main(void)
{
	static const struct CMUnitTest once[] = { cmocka_unit_test(test_refused), cmocka_unit_test(test_seccomp) };
	int failed = cmocka_run_group_tests_name("once", once, NULL, NULL);

	for (unsigned i = 0; i < LEN(ways); i++)
		failed += run_way(&ways[i]);
	return failed;
}
