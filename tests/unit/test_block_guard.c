// SPDX-License-Identifier: GPL-2.0-or-later
/* Formats by their magic, and raw disks that must not come to look like one. */
#include "blkfix.h"
#include "block/block_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define SIZE 65536

static const struct blk_options guess = { .format = BLK_GUESS };
static const struct blk_options raw = { .format = BLK_RAW };

static void poke(const char *path, const void *buf, size_t n, off_t off)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, buf, n, off), n);
	close(fd);
}

/* Opened as it is: an error that names the format and the way out; as raw: any bytes. */
static void test_probe(void **state)
{
	char path[BLKFIX_PATH];
	struct err err;
	struct blk *b;

	for (const struct blk_format_entry *e = blk_formats; e->name; e++) {
		blkfix_make(path, SIZE, 1);
		poke(path, e->magic, e->magic_len, e->at);
		if (!e->open) {
			assert_int_equal(blk_open(path, &guess, &b, &err), -ENOTSUP);
			assert_non_null(strstr(err.msg, e->name));
			assert_non_null(strstr(err.msg, "format=raw"));
		}
		b = blkfix_open(path, &raw);
		assert_string_equal(blk_info(b)->format, "raw");
		blk_close(b);
		blkfix_rm(path);
	}
	blkfix_make(path, 3, 1); /* too short for any */
	blk_close(blkfix_open(path, &guess));
	blkfix_rm(path);
}

static int write_at(struct blkfix *f, const void *buf, size_t n, uint64_t off)
{
	uint8_t copy[SIZE];

	memcpy(copy, buf, n);
	return blkfix_io(f->q, BLK_WRITE, 0, off, copy, n);
}

static void check_untouched(const struct blkfix *f, const uint8_t *want)
{
	uint8_t now[1024];

	blkfix_pread(f->path, now, sizeof(now), 0);
	assert_memory_equal(now, want, sizeof(now));
}

/* The sector with a magic, alone, with more behind it, and cut in two. */
static void whole(struct blkfix *f, const struct blk_format_entry *e)
{
	uint8_t sector[4096], before[1024];
	struct iovec iov[2] = { { .iov_base = sector, .iov_len = e->at + 2 },
		                { .iov_base = sector + e->at + 2, .iov_len = sizeof(sector) - e->at - 2 } };

	blkfix_pread(f->path, before, sizeof(before), 0);
	blkfix_fill(sector, sizeof(sector), 0, 3);
	memcpy(sector + e->at, e->magic, e->magic_len);
	assert_int_equal(write_at(f, sector, 512, 0), -EIO);
	assert_int_equal(write_at(f, sector, 4096, 0), -EIO);
	assert_int_equal(blkfix_iov(f->q, BLK_WRITE, 0, iov, 2), -EIO);
	check_untouched(f, before);
	assert_int_equal(write_at(f, sector, 512, 512), 0); /* elsewhere it is no magic */
}

/* Byte by byte: all but the last one pass, in whatever order. */
static void in_parts(struct blkfix *f, const struct blk_format_entry *e)
{
	uint8_t zero[512] = { 0 };

	assert_int_equal(write_at(f, zero, 512, 0), 0);
	for (unsigned i = 1; i < e->magic_len; i++)
		assert_int_equal(write_at(f, e->magic + i, 1, e->at + i), 0);
	assert_int_equal(write_at(f, e->magic, 1, e->at), -EIO);
	assert_int_equal(write_at(f, e->magic, e->magic_len, e->at), -EIO);
	assert_int_equal(blkfix_io(f->q, BLK_WRITE_ZEROES, 0, e->at + 1, NULL, 1), 0);
	assert_int_equal(write_at(f, e->magic, 1, e->at), 0);
	assert_int_equal(write_at(f, e->magic + 1, 1, e->at + 1), -EIO);
	assert_int_equal(blkfix_io(f->q, BLK_DISCARD, 0, 0, NULL, 4096), 0);
	assert_int_equal(write_at(f, e->magic + 1, 1, e->at + 1), 0);
}

static void guarded(enum blkfix_loop loop, enum blk_cache cache)
{
	for (const struct blk_format_entry *e = blk_formats; e->name; e++) {
		struct blkfix f;

		if (!memcmp(e->magic, "QED", 4))
			continue; /* ends in a zero byte: a part of it is all of it, see test_zero_byte() */
		blkfix_make(f.path, SIZE, 1);
		blkfix_start(&f, &(struct blk_options){ .cache = cache }, loop);
		whole(&f, e);
		in_parts(&f, e);
		blkfix_stop(&f);
		blkfix_rm(f.path);
	}
}

static void test_guarded(void **state)
{
	guarded(BLKFIX_POLL, BLK_WRITEBACK);
	guarded(BLKFIX_RING, BLK_WRITEBACK);
	guarded(BLKFIX_RING, BLK_DIRECT);
}

/* A zero that completes a magic comes by other ways than a write as well. */
static void test_zero_byte(void **state)
{
	struct blkfix f;

	blkfix_make(f.path, SIZE, 1);
	blkfix_start(&f, &guess, BLKFIX_POLL);
	assert_int_equal(write_at(&f, "QEDx", 4, 0), 0);
	assert_int_equal(write_at(&f, "\0", 1, 3), -EIO);
	assert_int_equal(blkfix_io(f.q, BLK_WRITE_ZEROES, 0, 3, NULL, 1), -EIO);
	assert_int_equal(blkfix_io(f.q, BLK_DISCARD, 0, 3, NULL, 512), -EIO);
	assert_int_equal(blkfix_io(f.q, BLK_WRITE_ZEROES, 0, 2, NULL, 2), 0);
	blkfix_stop(&f);
	blkfix_rm(f.path);
}

/* What passes is there afterwards, all of it; from memory that O_DIRECT likes, and that it does not. */
static void passes(enum blk_cache cache)
{
	static const uint64_t at[] = { 0, 1, 100, 511, 512 };
	static const size_t len[] = { 1, 411, 412, 512, 513, 4096, 5000, 20000, 20480 };
	static uint8_t memory[20480 + 1] __attribute__((aligned(4096)));

	for (unsigned i = 0; i < sizeof(at) / sizeof(at[0]); i++)
		for (unsigned k = 0; k < sizeof(len) / sizeof(len[0]); k++) {
			uint8_t *buf = memory + (k & 1);
			struct blkfix f;

			blkfix_make(f.path, SIZE, 1);
			blkfix_start(&f, &(struct blk_options){ .cache = cache }, BLKFIX_RING);
			blkfix_fill(buf, len[k], 0, 2);
			assert_int_equal(blkfix_io(f.q, BLK_WRITE, 0, at[i], buf, len[k]), 0);
			blkfix_stop(&f);
			blkfix_pread(f.path, buf, at[i], 0);
			assert_true(blkfix_is(buf, at[i], 0, 1));
			blkfix_pread(f.path, buf, len[k], at[i]);
			assert_true(blkfix_is(buf, len[k], 0, 2));
			blkfix_pread(f.path, buf, 100, at[i] + len[k]);
			assert_true(blkfix_is(buf, 100, at[i] + len[k], 1));
			blkfix_rm(f.path);
		}
}

static void test_passes(void **state)
{
	passes(BLK_WRITEBACK);
	passes(BLK_DIRECT);
}

/* The user said raw: the guest may do as it likes. */
static void test_asked_for(void **state)
{
	struct blkfix f;

	blkfix_make(f.path, SIZE, 1);
	blkfix_start(&f, &raw, BLKFIX_POLL);
	assert_int_equal(write_at(&f, "QFI\xfb", 4, 0), 0);
	blkfix_stop(&f);
	blkfix_rm(f.path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_probe),  cmocka_unit_test(test_guarded),   cmocka_unit_test(test_zero_byte),
		cmocka_unit_test(test_passes), cmocka_unit_test(test_asked_for),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
