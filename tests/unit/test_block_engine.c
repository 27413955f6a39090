// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Who makes the system calls of a request: the loop itself where it is quick,
 * a thread of the pool where it may wait. The calls are ours here: they say on
 * which thread they came, and answer as a host may: not now, half of it,
 * interrupted. The clock is ours, too.
 */
#include "blkfix.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define SIZE 65536

static pthread_t me;
static atomic_uint here, elsewhere; /* calls on the loop's thread, and on others */
static atomic_int refuse;           /* preadv2 answers so: an errno; -1: half of it, 0: all */
static atomic_uint interrupt;       /* so many of the next calls */
static atomic_uint write_ns;        /* that every write takes */
static _Atomic uint64_t ahead_ns;   /* of the real clock */

int clock_gettime(clockid_t id, struct timespec *ts)
{
	int r = (int)syscall(SYS_clock_gettime, id, ts);
	uint64_t ns = (uint64_t)ts->tv_nsec + atomic_load(&ahead_ns);

	ts->tv_sec += (time_t)(ns / 1000000000u);
	ts->tv_nsec = (long)(ns % 1000000000u);
	return r;
}

static bool note(void)
{
	atomic_fetch_add(pthread_equal(pthread_self(), me) ? &here : &elsewhere, 1);
	if (!atomic_load(&interrupt))
		return false;
	atomic_fetch_sub(&interrupt, 1);
	errno = EINTR;
	return true;
}

ssize_t pwritev(int fd, const struct iovec *iov, int n, off_t off)
{
	if (note())
		return -1;
	atomic_fetch_add(&ahead_ns, atomic_load(&write_ns));
	return pwrite(fd, iov[0].iov_base, iov[0].iov_len, off); /* a list is written piece by piece */
}

ssize_t preadv(int fd, const struct iovec *iov, int n, off_t off)
{
	return note() ? -1 : pread(fd, iov[0].iov_base, iov[0].iov_len, off);
}

ssize_t preadv2(int fd, const struct iovec *iov, int n, off_t off, int flags)
{
	int r = atomic_load(&refuse);

	if (note())
		return -1;
	if (r > 0) {
		errno = r;
		return -1;
	}
	return pread(fd, iov[0].iov_base, r ? iov[0].iov_len / 2 : iov[0].iov_len, off);
}

static atomic_bool no_holes; /* a file system that cannot fallocate(2) */

int fallocate(int fd, int mode, off_t off, off_t len)
{
	if (!atomic_load(&no_holes))
		return (int)syscall(SYS_fallocate, fd, mode, off, len);
	errno = EOPNOTSUPP;
	return -1;
}

static uint8_t buf[SIZE] __attribute__((aligned(4096)));

static void start_with(struct blkfix *f, enum blk_cache cache)
{
	blkfix_make(f->path, SIZE, 1);
	blkfix_start(f, &(struct blk_options){ .format = BLK_RAW, .cache = cache }, BLKFIX_POLL);
	me = pthread_self();
	atomic_store(&here, 0);
	atomic_store(&elsewhere, 0);
	atomic_store(&refuse, 0);
	atomic_store(&interrupt, 0);
	atomic_store(&write_ns, 0);
}

static void stop(struct blkfix *f)
{
	blkfix_stop(f);
	blkfix_rm(f->path);
}

static void expect_calls(unsigned on_loop, unsigned on_pool)
{
	assert_int_equal(atomic_exchange(&here, 0), on_loop);
	assert_int_equal(atomic_exchange(&elsewhere, 0), on_pool);
}

static void read_all(struct blkfix *f)
{
	memset(buf, 0, 8192);
	assert_int_equal(blkfix_io(f->q, BLK_READ, 0, 0, buf, 8192), 0);
	assert_true(blkfix_is(buf, 8192, 0, 1));
}

static void test_read(void **state)
{
	struct blkfix f;

	start_with(&f, BLK_WRITEBACK);
	read_all(&f);
	expect_calls(1, 0);
	atomic_store(&refuse, EAGAIN); /* not in the cache */
	read_all(&f);
	expect_calls(1, 1);
	atomic_store(&refuse, EOPNOTSUPP); /* this file system cannot tell */
	read_all(&f);
	expect_calls(1, 1);
	atomic_store(&refuse, -1); /* half of it is there */
	read_all(&f);
	expect_calls(1, 1);
	atomic_store(&refuse, EIO);
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 0, buf, 8192), -EIO);
	expect_calls(1, 0);
	stop(&f);
}

static void write_one(struct blkfix *f)
{
	blkfix_fill(buf, 4096, 0, 1);
	assert_int_equal(blkfix_io(f->q, BLK_WRITE, 0, 0, buf, 4096), 0);
}

/* A write that took long sends others to the pool, for a while. */
static void test_write(void **state)
{
	struct blkfix f;

	start_with(&f, BLK_WRITEBACK);
	for (unsigned i = 0; i < 10; i++)
		write_one(&f);
	expect_calls(10, 0);
	atomic_store(&write_ns, 5000000);
	write_one(&f);
	expect_calls(1, 0);
	atomic_store(&write_ns, 0);
	for (unsigned i = 0; i < 10; i++)
		write_one(&f);
	expect_calls(0, 10);
	read_all(&f);
	expect_calls(1, 0);
	atomic_fetch_add(&ahead_ns, 1000000000);
	write_one(&f);
	expect_calls(1, 0);
	stop(&f);
}

static void test_direct(void **state)
{
	struct blkfix f;

	start_with(&f, BLK_DIRECT);
	write_one(&f);
	read_all(&f);
	expect_calls(0, 2);
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 0, buf + 1, 4096), 0); /* by way of other memory */
	expect_calls(0, 1);
	assert_true(blkfix_is(buf + 1, 4096, 0, 1));
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 0, buf + 1, 100), 0); /* by way of the page cache */
	expect_calls(1, 0);
	stop(&f);
}

static void test_interrupted(void **state)
{
	struct blkfix f;

	start_with(&f, BLK_WRITEBACK);
	atomic_store(&interrupt, 3);
	read_all(&f);
	expect_calls(1, 3);
	atomic_store(&interrupt, 3);
	write_one(&f);
	expect_calls(1, 3);
	stop(&f);
}

/* Discards are not offered, zeroes are written. */
static void test_no_holes(void **state)
{
	struct blkfix f;

	atomic_store(&no_holes, true);
	start_with(&f, BLK_WRITEBACK);
	assert_false(blk_info(f.b)->can_discard);
	assert_int_equal(blkfix_io(f.q, BLK_DISCARD, 0, 0, NULL, 4096), -EOPNOTSUPP);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(blkfix_io(f.q, BLK_WRITE_ZEROES, i & 1 ? BLK_MAY_UNMAP : 0, i * 8192, NULL, 4096), 0);
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 0, buf, 32768), 0);
	for (unsigned i = 0; i < 8; i++)
		assert_true(blkfix_is(buf + i * 4096, 4096, i * 4096, i & 1));
	stop(&f);
	atomic_store(&no_holes, false);
	start_with(&f, BLK_WRITEBACK);
	assert_true(blk_info(f.b)->can_discard);
	stop(&f);
}

/* Piece by piece, each a call of its own. */
static void test_lists(void **state)
{
	struct iovec iov[4];
	struct blkfix f;

	start_with(&f, BLK_WRITEBACK);
	for (unsigned i = 0; i < 4; i++)
		iov[i] = (struct iovec){ .iov_base = buf + 1024 * (3 - i), .iov_len = 1024 };
	blkfix_fill(buf, 4096, 0, 2);
	assert_int_equal(blkfix_iov(f.q, BLK_WRITE, 512, iov, 4), 0);
	memset(buf, 0, 4096);
	assert_int_equal(blkfix_iov(f.q, BLK_READ, 512, iov, 4), 0);
	assert_true(blkfix_is(buf, 4096, 0, 2));
	expect_calls(2, 6);
	stop(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_read),        cmocka_unit_test(test_write), cmocka_unit_test(test_direct),
		cmocka_unit_test(test_interrupted), cmocka_unit_test(test_lists), cmocka_unit_test(test_no_holes),
	};

	unsetenv("BLKFIX_DIR");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
