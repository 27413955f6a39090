// SPDX-License-Identifier: GPL-2.0-or-later
/* Raw images: reading, writing, odd sizes, holes, what is refused. */
#include "blkfix.h"

#include "block/block_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (1ull << 20)

static const struct blk_options raw = { .format = BLK_RAW };

struct fixture {
	char path[BLKFIX_PATH];
	struct loop *loop;
	struct blk *b;
	struct blk_queue *q;
};

static void open_all(struct fixture *f, const struct blk_options *opt)
{
	struct err err;

	f->b = blkfix_open(f->path, opt);
	assert_int_equal(loop_new(&f->loop, &err), 0);
	assert_int_equal(blk_queue_open(f->b, f->loop, &f->q, &err), 0);
}

static void close_all(struct fixture *f)
{
	blk_queue_close(f->q);
	blk_close(f->b);
	loop_free(f->loop);
}

static void teardown(struct fixture *f)
{
	close_all(f);
	blkfix_rm(f->path);
}

static void test_read_write(void **state)
{
	static uint8_t buf[100000], other[100000];
	struct fixture f;

	blkfix_make(f.path, MIB, 1);
	open_all(&f, &raw);
	assert_int_equal(blk_size(f.b), MIB);
	assert_string_equal(blk_info(f.b)->format, "raw");
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 12345, buf, sizeof(buf)), 0);
	assert_true(blkfix_is(buf, sizeof(buf), 12345, 1));
	blkfix_fill(buf, sizeof(buf), 500000, 2);
	assert_int_equal(blkfix_io(f.q, BLK_WRITE, 0, 500000, buf, sizeof(buf)), 0);
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 500000, other, sizeof(other)), 0);
	assert_memory_equal(buf, other, sizeof(buf));
	assert_int_equal(blkfix_io(f.q, BLK_FLUSH, 0, 0, NULL, 0), 0);
	close_all(&f);
	blkfix_pread(f.path, other, sizeof(other), 500000);
	assert_memory_equal(buf, other, sizeof(buf));
	blkfix_pread(f.path, other, 10, 500000 - 10);
	assert_true(blkfix_is(other, 10, 500000 - 10, 1));
	blkfix_rm(f.path);
}

/* Outside is refused, whatever the numbers; nothing outside is touched. */
static void test_range(void **state)
{
	static const enum blk_op ops[] = { BLK_READ, BLK_WRITE, BLK_DISCARD, BLK_WRITE_ZEROES };
	static const uint64_t bad[][2] = { { MIB, 1 },          { MIB - 1, 2 },           { UINT64_MAX, 1 },
		                           { UINT64_MAX, 512 }, { INT64_MAX, 1 },         { 0, MIB + 1 },
		                           { 1, UINT64_MAX },   { UINT64_MAX - 511, 512 } };
	uint8_t buf[512] = { 0 };
	struct fixture f;

	blkfix_make(f.path, MIB, 1);
	open_all(&f, &raw);
	for (unsigned o = 0; o < 4; o++) {
		for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
			assert_int_equal(blkfix_io(f.q, ops[o], 0, bad[i][0], buf, bad[i][1]), -EINVAL);
		assert_int_equal(blkfix_io(f.q, ops[o], 0, MIB, buf, 0), 0);
	}
	assert_int_equal(blkfix_length(f.path), MIB);
	teardown(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_read_write),
		cmocka_unit_test(test_range),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
