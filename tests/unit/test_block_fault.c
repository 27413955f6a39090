// SPDX-License-Identifier: GPL-2.0-or-later
/* Faults to order: what can be asked for, and that each one happens where it was asked for, in every engine. */
#include "blkfix.h"
#include "block/fault.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define SIZE 262144

static const struct {
	enum blkfix_loop loop;
	enum blk_cache cache;
} ways[] = { { BLKFIX_POLL, BLK_WRITEBACK }, { BLKFIX_RING, BLK_WRITEBACK }, { BLKFIX_RING, BLK_DIRECT } };

static uint8_t buf[SIZE] __attribute__((aligned(4096)));

static void test_syntax(void **state)
{
	static const char *const good[] = { "eio@1",  "enospc@2:write",   "short@1+",
		                            "slow@3", "slow@3+:flush=20", "eio@7:read,enospc@1+:write,slow@1+=1" };
	static const char *const bad[] = { "",        "eio",     "eio@",     "eio@0",      "eio@-1",
		                           "eio@x",   "eio@1x",  "eio@1:",   "eio@1:trim", "eio@1:read:write",
		                           "eio@1=5", "slow@1=", "slow@1=0", "slow@1=5s",  "fast@1",
		                           "eio@1,",  ",eio@1",  "eio@1 ",   "eio@1++",    "eio@99999999999999999999" };
	struct fault *f;
	struct err err;

	for (unsigned i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_int_equal(fault_new(good[i], &f, &err), 0);
		fault_free(f);
	}
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(fault_new(bad[i], &f, &err), -EINVAL);
		assert_non_null(strstr(err.msg, bad[i]));
	}
}

static void start(struct blkfix *f, unsigned i, const char *spec)
{
	struct blk_options opt = { .format = BLK_RAW, .cache = ways[i].cache, .fault = spec };

	blkfix_make(f->path, SIZE, 1);
	blkfix_start(f, &opt, ways[i].loop);
}

static void stop(struct blkfix *f)
{
	blkfix_stop(f);
	blkfix_rm(f->path);
}

/* The errors of reads, writes and flushes in turn, five rounds of them. */
static void expect(const char *spec, const int errors[15])
{
	static const enum blk_op ops[] = { BLK_READ, BLK_WRITE, BLK_FLUSH };

	for (unsigned i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		struct blkfix f;

		start(&f, i, spec);
		for (unsigned n = 0; n < 15; n++)
			assert_int_equal(blkfix_io(f.q, ops[n % 3], 0, 0, buf, 4096), errors[n]);
		stop(&f);
	}
}

static void test_which(void **state)
{
	expect("eio@2:read", (int[15]){ 0, 0, 0, -EIO });
	expect("enospc@5", (int[15]){ 0, 0, 0, 0, -ENOSPC });
	expect("enospc@4+:write", (int[15]){ 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -ENOSPC, 0, 0, -ENOSPC, 0 });
	expect("eio@1:write,eio@5:read", (int[15]){ 0, -EIO, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -EIO });
	expect("slow@1+=1", (int[15]){ 0 });
	/* A flush that failed fails for ever; the host is not asked again. */
	expect("eio@2:flush", (int[15]){ 0, 0, 0, 0, 0, -EIO, 0, 0, -EIO, 0, 0, -EIO, 0, 0, -EIO });
}

/* A failed write has done nothing, a failed read has read nothing. */
static void test_nothing_done(void **state)
{
	for (unsigned i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		struct blkfix f;

		start(&f, i, "eio@1:write,eio@1:read");
		memset(buf, 'x', 8192);
		assert_int_equal(blkfix_io(f.q, BLK_WRITE, 0, 0, buf, 8192), -EIO);
		assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 0, buf, 8192), -EIO);
		assert_int_equal(buf[0], 'x');
		assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 0, buf, 8192), 0);
		assert_true(blkfix_is(buf, 8192, 0, 1));
		stop(&f);
	}
}

/* Cut transfers go on where they stopped, in the middle of a piece and of the list. */
static void test_short(void **state)
{
	for (unsigned i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		struct iovec iov[8];
		struct blkfix f;

		start(&f, i, "short@1+");
		for (unsigned k = 0; k < 8; k++)
			iov[k] = (struct iovec){ .iov_base = buf + k * 8192, .iov_len = 8192 };
		memset(buf, 0, SIZE);
		assert_int_equal(blkfix_iov(f.q, BLK_READ, 4096, iov, 8), 0);
		assert_true(blkfix_is(buf, 65536, 4096, 1));
		blkfix_fill(buf, 65536, 8192, 2);
		assert_int_equal(blkfix_iov(f.q, BLK_WRITE, 8192, iov, 8), 0);
		assert_int_equal(blkfix_io(f.q, BLK_WRITE_ZEROES, 0, 131072, NULL, 65536), 0);
		assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 0, buf, SIZE), 0);
		assert_true(blkfix_is(buf, 8192, 0, 1) && blkfix_is(buf + 8192, 65536, 8192, 2));
		assert_true(blkfix_is(buf + 73728, 131072 - 73728, 73728, 1));
		assert_true(blkfix_is(buf + 131072, 65536, 0, 0));
		stop(&f);
	}
}

/* What opening does is not counted. */
static void test_guess(void **state)
{
	struct blk_options opt = { .fault = "eio@1:read" };
	struct blkfix f;

	blkfix_make(f.path, SIZE, 1);
	blkfix_start(&f, &opt, BLKFIX_POLL);
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 0, buf, 512), -EIO);
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 0, buf, 512), 0);
	stop(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_syntax), cmocka_unit_test(test_which), cmocka_unit_test(test_nothing_done),
		cmocka_unit_test(test_short),  cmocka_unit_test(test_guess),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
