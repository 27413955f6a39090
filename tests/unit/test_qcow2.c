// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * QCOW2 images of many shapes, made by us, under random operations: every read
 * is what the model says, closing leaves an image without leaks, and opened
 * again it holds the same.
 */
#include "blkfix.h"
#include "block/image.h"
#include "qcow2fix.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct shape {
	const char *name;
	struct qcow2_create c;
	uint64_t backing_sectors; /* 0: none */
};

#define MIB (1ull << 20)

static const struct shape shapes[] = {
	{ "usual", { .version = 3, .cluster_bits = 16, .refcount_order = 4, .size = 24 * MIB }, 0 },
	{ "512-byte clusters", { .version = 3, .cluster_bits = 9, .refcount_order = 4, .size = MIB }, 0 },
	{ "4 KiB clusters, 1-bit refcounts",
	  { .version = 3, .cluster_bits = 12, .refcount_order = 0, .size = 8 * MIB },
	  0 },
	{ "8 KiB, 2 bits", { .version = 3, .cluster_bits = 13, .refcount_order = 1, .size = 8 * MIB }, 0 },
	{ "1 KiB, 8 bits", { .version = 3, .cluster_bits = 10, .refcount_order = 3, .size = 2 * MIB }, 0 },
	{ "64 bits: the refcount table grows",
	  { .version = 3, .cluster_bits = 9, .refcount_order = 6, .size = 4 * MIB },
	  0 },
	{ "32 bits, 2 MiB clusters", { .version = 3, .cluster_bits = 21, .refcount_order = 5, .size = 32 * MIB }, 0 },
	{ "version 2", { .version = 2, .cluster_bits = 12, .refcount_order = 4, .size = 8 * MIB }, 0 },
	{ "version 2 on a longer one",
	  { .version = 2, .cluster_bits = 12, .refcount_order = 4, .size = 2 * MIB },
	  5000 },
	{ "on a shorter one", { .version = 3, .cluster_bits = 13, .refcount_order = 4, .size = 4 * MIB }, 4101 },
	{ "64 KiB on a shorter one", { .version = 3, .cluster_bits = 16, .refcount_order = 4, .size = 4 * MIB }, 1001 },
	{ "a size between clusters",
	  { .version = 3, .cluster_bits = 16, .refcount_order = 4, .size = 5 * MIB + 1536 },
	  0 },
};

/* Creates and opens @s; its backing file, if any, is at @path. */
static void start(struct fix *f, const struct shape *s, char path[64])
{
	struct qcow2_create c = s->c;

	*f = (struct fix){ .discards = s->c.version > 2 || !s->backing_sectors };
	path[0] = 0;
	if (s->backing_sectors) {
		fix_backing(path, s->backing_sectors);
		c.backing = path;
		c.backing_format = "raw";
	}
	fix_create(f, &c);
	for (uint64_t i = 0; i < s->backing_sectors && i < f->nsectors; i++)
		f->sector[i].id = OF_BACKING | (uint32_t)i;
	fix_open(f);
}

static void finish(struct fix *f, const char *path)
{
	struct logblk *file = fix_close(f);

	fix_check(file, false);
	fix_qemu_check(file, false);
	fix_open(f);
	fix_verify(f);
	fix_free(f);
	if (path[0])
		assert_int_equal(unlink(path), 0);
}

static void run_shape(const struct shape *s, const struct fix_mix *m)
{
	struct fix f;
	char path[64];

	start(&f, s, path);
	fix_run(&f, m);
	fix_verify(&f);
	finish(&f, path);
}

static void test_one_loop(void **state)
{
	for (unsigned i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
		struct fix_mix m = { .n = 1500, .depth = 8, .threads = 1, .seed = i + 1, .max_sectors = 300 };

		print_message("%s\n", shapes[i].name);
		run_shape(&shapes[i], &m);
	}
}

/* Small operations from several loops meet in clusters. */
static void test_many_loops(void **state)
{
	for (unsigned i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
		struct fix_mix m = { .n = 1500, .depth = 16, .threads = 3, .seed = i + 1, .max_sectors = 3 };

		print_message("%s\n", shapes[i].name);
		run_shape(&shapes[i], &m);
	}
}

/* What was there at closing is there, and goes on to be changed, round after round. */
static void test_reopen(void **state)
{
	struct fix f;
	char path[64];

	start(&f, &shapes[2], path);
	for (unsigned round = 0; round < 12; round++) {
		struct fix_mix m = { .n = 300, .depth = 4, .threads = 1 + round % 2, .seed = round, .max_sectors = 60 };

		fix_run(&f, &m);
		fix_check(fix_close(&f), false);
		fix_open(&f);
		fix_verify(&f);
	}
	finish(&f, path);
}

/* The host gets the space of a discard back though nothing more is asked of the image than the flush. */
static void test_space_comes_back(void **state)
{
	struct image_create c = { .format = BLK_QCOW2, .qcow2 = qcow2_create_default, .size = 8 * MIB };
	uint8_t *data = malloc(8 * MIB);
	char path[BLKFIX_PATH];
	struct blk *b;
	struct err err;

	assert_non_null(data);
	blkfix_make(path, 0, 0);
	assert_int_equal(image_create(path, &c, &err), 0);
	b = blkfix_open(path, &(struct blk_options){ .format = BLK_QCOW2 });
	blkfix_fill(data, 8 * MIB, 0, 1);
	assert_int_equal(blk_do(b, BLK_WRITE, 0, 0, data, 8 * MIB), 0);
	assert_int_equal(blk_do(b, BLK_FLUSH, 0, 0, NULL, 0), 0);
	assert_true(blkfix_allocated(path) > 8 * MIB);
	assert_int_equal(blk_do(b, BLK_DISCARD, 0, 2 * MIB, NULL, 6 * MIB), 0);
	assert_int_equal(blk_do(b, BLK_FLUSH, 0, 0, NULL, 0), 0);
	while (blkfix_allocated(path) > 3 * MIB) /* nobody tells; the test's own time limit is that of this */
		usleep(1000);
	assert_int_equal(blk_do(b, BLK_READ, 0, 0, data, 8 * MIB), 0);
	assert_true(blkfix_is(data, 2 * MIB, 0, 1));
	for (size_t i = 2 * MIB; i < 8 * MIB; i++)
		assert_int_equal(data[i], 0);
	blk_close(b);
	free(data);
	blkfix_rm(path);
}

/* Reads that come in pieces, also those that fill a new cluster up. */
static void test_short_reads(void **state)
{
	static const struct blk_options plain = { .format = BLK_QCOW2 };
	struct image_create c = { .format = BLK_QCOW2, .size = 4 * MIB, .qcow2 = qcow2_create_default };
	static uint8_t buf[4 * MIB], model[4 * MIB];
	struct err err;

	for (unsigned cache = BLK_WRITEBACK; cache <= BLK_DIRECT; cache += BLK_DIRECT - BLK_WRITEBACK) {
		struct blkfix f;

		blkfix_make(f.path, 0, 0);
		assert_int_equal(image_create(f.path, &c, &err), 0);
		blkfix_fill(model, sizeof(model), 0, 1);
		blkfix_start(&f, &plain, BLKFIX_POLL);
		assert_int_equal(blkfix_io(f.q, BLK_WRITE, 0, 0, model, sizeof(model)), 0);
		blkfix_stop(&f);
		assert_int_equal(image_snapshot(f.path, IMAGE_SNAPSHOT_CREATE, "s", &err),
		                 0); /* what is written moves */
		blkfix_start(&f, &(struct blk_options){ .cache = (enum blk_cache)cache, .fault = "short@1+:read" },
		             BLKFIX_POLL);
		for (unsigned i = 0; i < 48; i++) {
			uint64_t off = i * 65536 + i % 3 * 4096, len = i % 4 ? 4096 : 40960;

			memset(model + off, (int)i, len);
			assert_int_equal(blkfix_io(f.q, BLK_WRITE, 0, off, model + off, len), 0);
		}
		assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 0, buf, sizeof(buf)), 0);
		assert_memory_equal(buf, model, sizeof(buf));
		blkfix_stop(&f);
		blkfix_rm(f.path);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_loop),    cmocka_unit_test(test_many_loops),
		cmocka_unit_test(test_reopen),      cmocka_unit_test(test_space_comes_back),
		cmocka_unit_test(test_short_reads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
