// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Block devices of the host: loop devices, some with sectors of 4096 bytes,
 * where requests of 512 go past O_DIRECT. Needs root and losetup(8).
 */
#include "blkfix.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SIZE (8u << 20)

static char file[BLKFIX_PATH];
static uint8_t area[65536 + 4096] __attribute__((aligned(4096)));

/* False: not on this host. */
static bool attach(const char *options, char path[BLKFIX_PATH])
{
	char command[256];
	bool ok;
	FILE *p;

	snprintf(command, sizeof(command), "losetup %s --show -f %s 2>/dev/null", options, file);
	p = popen(command, "re");
	ok = p && fgets(path, BLKFIX_PATH, p);
	path[ok ? strcspn(path, "\n") : 0] = '\0';
	if (p)
		ok &= pclose(p) == 0;
	return ok;
}

static void detach(const char *path)
{
	char command[256];

	snprintf(command, sizeof(command), "losetup -d %s", path);
	assert_int_equal(system(command), 0);
}

static int setup(void **state)
{
	blkfix_make(file, SIZE, 1);
	return 0;
}

static int teardown(void **state)
{
	blkfix_rm(file);
	return 0;
}

/* Sectors in the middle of a larger one, in memory that is aligned or not: their neighbours stay. */
static void small_requests(struct blkfix *f)
{
	for (unsigned i = 0; i < 64; i++) {
		uint8_t *p = area + (i & 1);
		uint64_t off = 1000448 + 512 * i * 3;

		blkfix_fill(p, 512, off, 2);
		assert_int_equal(blkfix_io(f->q, BLK_WRITE, i & 4 ? BLK_FUA : 0, off, p, 512), 0);
		memset(p, 0, 1536);
		assert_int_equal(blkfix_io(f->q, BLK_READ, 0, off - 512, p, 1536), 0);
		assert_true(blkfix_is(p, 512, off - 512, 1) && blkfix_is(p + 512, 512, off, 2));
		assert_true(blkfix_is(p + 1024, 512, off + 512, 1));
	}
	assert_int_equal(blkfix_io(f->q, BLK_READ, 0, 1000448 - 1024, area, 65536), 0); /* 4096 * 244 */
	for (unsigned i = 0; i < 21; i++)
		assert_true(blkfix_is(area + 1024 + 1536 * i, 512, 1000448 + 1536 * i, 2));
}

static void large_requests(struct blkfix *f)
{
	blkfix_fill(area, 65536, 4096, 3);
	assert_int_equal(blkfix_io(f->q, BLK_WRITE, 0, 4096, area, 65536), 0);
	memset(area, 0, sizeof(area));
	assert_int_equal(blkfix_io(f->q, BLK_READ, 0, 4096, area + 1, 65536), 0);
	assert_true(blkfix_is(area + 1, 65536, 4096, 3));
	assert_int_equal(blkfix_io(f->q, BLK_READ, 0, SIZE, area, 512), -EINVAL);
	assert_int_equal(blkfix_io(f->q, BLK_FLUSH, 0, 0, NULL, 0), 0);
}

static void zeroes(struct blkfix *f)
{
	static const struct {
		uint64_t off, len;
		unsigned flags;
	} z[] = { { 2 << 20, 65536, 0 },
		  { 3 << 20, 65536, BLK_MAY_UNMAP },
		  { (4 << 20) + 512, 1024, 0 },
		  { (5 << 20) + 512, 1024, BLK_MAY_UNMAP } };

	for (unsigned i = 0; i < sizeof(z) / sizeof(z[0]); i++) {
		assert_int_equal(blkfix_io(f->q, BLK_WRITE_ZEROES, z[i].flags, z[i].off, NULL, z[i].len), 0);
		assert_int_equal(blkfix_io(f->q, BLK_READ, 0, z[i].off - 512, area, 512 + z[i].len), 0);
		assert_true(blkfix_is(area, 512, z[i].off - 512, 1) && blkfix_is(area + 512, z[i].len, 0, 0));
		assert_int_equal(blkfix_io(f->q, BLK_READ, 0, z[i].off + z[i].len, area, 512), 0);
		assert_true(blkfix_is(area, 512, z[i].off + z[i].len, 1));
	}
	if (!blk_info(f->b)->can_discard)
		return;
	assert_int_equal(blkfix_io(f->q, BLK_DISCARD, 0, (6 << 20) - 512, NULL, 65536), 0); /* a part of it, perhaps */
	assert_int_equal(blkfix_io(f->q, BLK_DISCARD, 0, (6 << 20) - 1024, NULL, 512), 0);
	assert_int_equal(blkfix_io(f->q, BLK_READ, 0, (6 << 20) - 4096, area, 3072), 0);
	assert_true(blkfix_is(area, 3072, (6 << 20) - 4096, 1));
}

static void use(const char *options, uint32_t block, enum blk_cache cache, enum blkfix_loop loop)
{
	struct blk_options opt = { .format = BLK_RAW, .cache = cache };
	struct blkfix f;
	struct blk *b;
	struct err err;

	if (!attach(options, f.path)) {
		print_message("losetup %s: not here\n", options);
		skip();
	}
	blkfix_start(&f, &opt, loop);
	assert_int_equal(blk_size(f.b), SIZE);
	assert_int_equal(blk_info(f.b)->block, block);
	assert_int_equal(blk_info(f.b)->align, cache == BLK_DIRECT ? block : 1);
	assert_int_equal(blk_open(f.path, &opt, &b, &err), -EBUSY);
	small_requests(&f);
	large_requests(&f);
	zeroes(&f);
	blkfix_stop(&f);
	blkfix_start(&f, &opt, loop); /* all of it is there for others */
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 4096, area, 65536), 0);
	assert_true(blkfix_is(area, 65536, 4096, 3));
	blkfix_stop(&f);
	detach(f.path);
}

static void test_512(void **state)
{
	use("", 512, BLK_WRITEBACK, BLKFIX_POLL);
}

static void test_512_direct(void **state)
{
	use("", 512, BLK_DIRECT, BLKFIX_RING);
}

static void test_4096(void **state)
{
	use("-b 4096", 4096, BLK_WRITEBACK, BLKFIX_RING);
}

static void test_4096_direct(void **state)
{
	use("-b 4096", 4096, BLK_DIRECT, BLKFIX_RING);
}

static void test_4096_direct_pool(void **state)
{
	use("-b 4096", 4096, BLK_DIRECT, BLKFIX_POLL);
}

static void test_read_only(void **state)
{
	char path[BLKFIX_PATH];
	struct err err;
	struct blk *b;

	if (!attach("-r", path))
		skip();
	assert_true(blk_open(path, &(struct blk_options){ .format = BLK_RAW }, &b, &err) < 0);
	assert_non_null(strstr(err.msg, "ro "));
	blk_close(blkfix_open(path, &(struct blk_options){ .read_only = true }));
	detach(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_512, setup, teardown),
		cmocka_unit_test_setup_teardown(test_512_direct, setup, teardown),
		cmocka_unit_test_setup_teardown(test_4096, setup, teardown),
		cmocka_unit_test_setup_teardown(test_4096_direct, setup, teardown),
		cmocka_unit_test_setup_teardown(test_4096_direct_pool, setup, teardown),
		cmocka_unit_test_setup_teardown(test_read_only, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
