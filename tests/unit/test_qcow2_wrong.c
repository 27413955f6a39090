// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * What can go wrong: headers that are refused, each for its reason; tables that
 * point where they must not; a disk that is full, and then is not; memory for
 * few slices; clusters that are freed while a read still uses them.
 */
#include "base/container_of.h"
#include "block/qcow2/qcow2.h"
#include "qcow2fix.h"

#include <errno.h>
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

static struct logblk *image(unsigned bits, uint64_t size)
{
	struct qcow2_create c = qcow2_create_default;
	struct logblk *file = logblk_new("/tmp/wrong.qcow2");
	struct err err;

	c.cluster_bits = bits;
	c.size = size;
	assert_int_equal(qcow2_create(&file->blk, &c, &err), 0);
	return file;
}

/* Headers. */

struct wrong {
	const char *name;
	unsigned at, len; /* of the field */
	uint64_t value;
	int error;
	const char *says;
};

static const struct wrong wrongs[] = {
	{ "magic", 0, 4, 0x51464900, -EINVAL, "no header" },
	{ "version", 4, 4, 4, -ENOTSUP, "version 4" },
	{ "small clusters", 20, 4, 8, -EINVAL, "512 bytes to 2 MiB" },
	{ "large clusters", 20, 4, 22, -EINVAL, "512 bytes to 2 MiB" },
	{ "enormous clusters", 20, 4, 0xffffffff, -EINVAL, "512 bytes to 2 MiB" },
	{ "AES", 32, 4, 1, -ENOTSUP, "AES" },
	{ "LUKS", 32, 4, 2, -ENOTSUP, "LUKS" },
	{ "other encryption", 32, 4, 77, -ENOTSUP, "unknown encryption" },
	{ "data file", 72, 8, 4, -ENOTSUP, "external data file" },
	{ "extended L2", 72, 8, 16, -ENOTSUP, "extended L2" },
	{ "unknown bit", 72, 8, 1ull << 40, -ENOTSUP, "bit 40" },
	{ "unknown and known bits", 72, 8, 1ull << 63 | 1, -ENOTSUP, "bit 63" },
	{ "compression not told", 104, 1, 1, -EINVAL, "compression" },
	{ "compression told, not there", 72, 8, 8, -EINVAL, "compression" },
	{ "L1 of 32 GiB", 36, 4, 0xffffffff, -EINVAL, "larger than 32 MiB" },
	{ "L1 too small", 36, 4, 0, -EINVAL, "too small" },
	{ "L1 between clusters", 40, 8, 65536 * 3 + 8, -EINVAL, "L1 table" },
	{ "L1 at the header", 40, 8, 0, -EINVAL, "L1 table" },
	{ "L1 at the end of numbers", 40, 8, 0xffffffffffff0000, -EINVAL, "L1 table" },
	{ "L1 on the refcount table", 40, 8, 65536, -EINVAL, "lies over" },
	{ "no refcount table", 56, 4, 0, -EINVAL, "no refcount table" },
	{ "refcount table of 256 TiB", 56, 4, 0xffffffff, -EINVAL, "larger than 8 MiB" },
	{ "refcount table between clusters", 48, 8, 65537, -EINVAL, "refcount table" },
	{ "snapshots", 60, 4, 65537, -EINVAL, "snapshots" },
	{ "snapshots between clusters", 60, 4, 1, -EINVAL, "snapshot table" },
	{ "size", 24, 8, 1ull << 63, -EINVAL, "too large" },
	{ "size beyond L1", 24, 8, 1ull << 40, -EINVAL, "too small" },
	{ "refcounts", 96, 4, 7, -EINVAL, "64 bits" },
	{ "header length", 100, 4, 96, -EINVAL, "length" },
	{ "header length, odd", 100, 4, 109, -EINVAL, "length" },
	{ "header length, past the cluster", 100, 4, 1u << 30, -EINVAL, "length" },
	{ "backing name past the cluster", 8, 8, 65536, -EINVAL, "backing" },
	{ "extension", 116, 4, 0xfffffff0, -EINVAL, "extension" },
};

static void put(uint8_t *p, unsigned len, uint64_t v)
{
	while (len--) {
		p[len] = (uint8_t)v;
		v >>= 8;
	}
}

static void test_headers(void **state)
{
	for (unsigned i = 0; i < sizeof(wrongs) / sizeof(wrongs[0]); i++) {
		const struct wrong *w = &wrongs[i];

		for (unsigned ro = 0; ro < 2; ro++) {
			struct logblk *file = image(16, 64 * MIB);
			struct err err = { .msg = "" };
			struct blk *b;
			int error;

			file->mem[112] = 0x12; /* an extension that nobody knows, of length 0 */
			file->mem[8 + 8] = 0;
			put(file->mem + w->at, w->len, w->value);
			if (w->at == 8)
				put(file->mem + 16, 4, 10);
			error = fix_image_open(file, ro, &b, &err);
			if (error != w->error || !strstr(err.msg, w->says))
				fail_msg("%s: %d, %s", w->name, error, err.msg);
			blk_close(&file->blk);
		}
	}
}

/* Longer headers and unknown extensions are fine, and stay. */
static void test_unknown_extension(void **state)
{
	struct logblk *file = image(16, 64 * MIB);
	uint8_t before[256], sector[512] = { 7 };
	struct blk *b;
	struct err err;

	put(file->mem + 100, 4, 128);
	put(file->mem + 128, 4, 0x12345678);
	put(file->mem + 132, 4, 13);
	memcpy(file->mem + 136, "unknown to us", 13);
	memcpy(before, file->mem, sizeof(before));
	assert_int_equal(fix_image_open(file, false, &b, &err), 0);
	assert_int_equal(blk_do(b, BLK_WRITE, 0, 512, sector, 512), 0);
	assert_int_equal(blk_do(b, BLK_FLUSH, 0, 0, NULL, 0), 0);
	assert_memory_equal(before, file->mem, sizeof(before));
	blk_close(b);
}

static void test_corrupt_bit(void **state)
{
	struct logblk *file = image(16, 64 * MIB);
	struct blk *b;
	struct err err;

	put(file->mem + 72, 8, 2);
	assert_int_equal(fix_image_open(file, false, &b, &err), -EROFS);
	assert_non_null(strstr(err.msg, "kvm disk check --repair"));
	assert_int_equal(fix_image_open(file, true, &b, &err), 0);
	blk_close(b);
}

/* Tables. */

/* Guest data of 4 clusters of 64 KiB; its L2 entry 1 is then @entry. Reading that cluster must fail, and only that. */
static void check_entry(uint64_t entry)
{
	struct fix f = { 0 };
	struct qcow2_create c = qcow2_create_default;
	uint8_t buf[65536], head[65536 * 4];
	struct logblk *file;
	uint64_t l1;

	c.size = 64 * MIB;
	fix_create(&f, &c);
	fix_open(&f);
	memset(buf, 1, sizeof(buf));
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(blk_do(f.b, BLK_WRITE, 0, i * 65536, buf, 65536), 0);
	file = fix_close(&f);
	l1 = get_be64(file->mem + get_be64(file->mem + QCOW2_AT_L1_OFFSET)) & QCOW2_OFFSET;
	put(file->mem + l1 + 8, 8, entry ? entry : l1 | QCOW2_COPIED);
	memcpy(head, file->mem, sizeof(head));
	fix_open(&f);
	assert_int_equal(blk_do(f.b, BLK_READ, 0, 65536, buf, 512), -EIO);
	assert_int_equal(blk_do(f.b, BLK_WRITE, 0, 65536 + 512, buf, 512), -EIO);
	assert_int_equal(blk_do(f.b, BLK_WRITE_ZEROES, 0, 65536, NULL, 65536), -EIO);
	for (unsigned i = 0; i < 4; i++)
		if (i != 1) {
			assert_int_equal(blk_do(f.b, BLK_READ, 0, i * 65536, buf, 512), 0);
			assert_int_equal(buf[511], 1);
			assert_int_equal(blk_do(f.b, BLK_WRITE, 0, i * 65536, buf, 512), 0);
		}
	assert_int_equal(blk_do(f.b, BLK_FLUSH, 0, 0, NULL, 0), 0);
	assert_memory_equal(head, file->mem, sizeof(head));
	assert_int_equal(get_be64(file->mem + l1 + 8), entry ? entry : l1 | QCOW2_COPIED);
	fix_free(&f);
}

static void test_entries(void **state)
{
	check_entry(QCOW2_COPIED);                       /* at 0, the header */
	check_entry(QCOW2_COPIED | 65536);               /* the refcount table */
	check_entry(QCOW2_COPIED | 2 * 65536);           /* a refcount block */
	check_entry(QCOW2_COPIED | 3 * 65536);           /* the L1 table */
	check_entry(0);                                  /* its own L2 table */
	check_entry(QCOW2_COPIED | (5 * 65536 + 512));   /* between clusters */
	check_entry(QCOW2_COPIED | 1ull << 40);          /* past the end */
	check_entry(QCOW2_COPIED | 5 * 65536 | 1u << 3); /* reserved bits */
	check_entry(QCOW2_COPIED | 5 * 65536 | 1ull << 57);
	check_entry(QCOW2_COMPRESSED | 1ull << 50); /* past the end */
	check_entry(QCOW2_COMPRESSED | 100);        /* the header */
}

/* An L1 entry that cannot be covers 512 MiB with -EIO. */
static void test_l1(void **state)
{
	static const uint64_t bad[] = { 512 * 3, 65536, 1ull << 40 | QCOW2_COPIED, QCOW2_COPIED,
		                        1ull << 60 | 65536 * 5 };

	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct logblk *file = image(16, 2048 * MIB);
		uint8_t buf[512] = { 0 };
		struct blk *b;
		struct err err;

		put(file->mem + get_be64(file->mem + QCOW2_AT_L1_OFFSET) + 8, 8, bad[i]);
		assert_int_equal(fix_image_open(file, false, &b, &err), 0);
		assert_int_equal(blk_do(b, BLK_READ, 0, 512 * MIB, buf, 512), -EIO);
		assert_int_equal(blk_do(b, BLK_WRITE, 0, 1023 * MIB, buf, 512), -EIO);
		assert_int_equal(blk_do(b, BLK_DISCARD, 0, 600 * MIB, NULL, MIB), -EIO);
		assert_int_equal(blk_do(b, BLK_READ, 0, 1024 * MIB, buf, 512), 0);
		assert_int_equal(blk_do(b, BLK_WRITE, 0, 512 * MIB - 512, buf, 512), 0);
		blk_close(b);
	}
}

/* A full disk. */

static void full_round(struct fix *f, uint64_t room, unsigned seed)
{
	uint64_t size = atomic_load(&f->file->blk.size);

	f->file->room = size + room;
	atomic_store(&f->file->full, true);
	f->may_fail = true;
	fix_run(f, &(struct fix_mix){ .n = 400, .depth = 6, .threads = 1, .seed = seed, .max_sectors = 100 });
	assert_true(atomic_load(&f->failed));
	atomic_store(&f->file->full, false);
	f->may_fail = false;
}

/*
 * While it is full requests fail, a flush may too; afterwards all goes well, and
 * no cluster has two owners.
 */
static void test_full(void **state)
{
	for (unsigned i = 0; i < 12; i++) {
		struct fix f = { .discards = true };
		struct qcow2_create c = qcow2_create_default;
		uint8_t *buf = malloc(4 * MIB);

		c.cluster_bits = i % 2 ? 12 : 9;
		c.size = 4 * MIB;
		fix_create(&f, &c);
		fix_open(&f);
		((struct qcow2 *)f.b)->arena_clusters = 1 + i;
		full_round(&f, i * 3000, i);
		assert_int_equal(blk_do(f.b, BLK_FLUSH, 0, 0, NULL, 0), 0);
		/* What failed is anything: all is written anew. */
		for (uint64_t k = 0; k < f.nsectors; k++) {
			f.sector[k].id = atomic_fetch_add(&f.next_id, 1);
			sector_fill(buf + k * SECTOR, f.sector[k].id);
		}
		assert_int_equal(blk_do(f.b, BLK_WRITE, 0, 0, buf, 4 * MIB), 0);
		fix_run(&f, &(struct fix_mix){ .n = 300, .depth = 6, .threads = 1, .seed = i, .max_sectors = 100 });
		fix_verify(&f);
		fix_check(fix_close(&f), false);
		fix_open(&f);
		fix_verify(&f);
		fix_free(&f);
		free(buf);
	}
}

/* A disk that fails altogether for a while: flushes say so, and nothing is lost that was not told. */
static void test_failing(void **state)
{
	struct fix f = { .discards = true };
	struct qcow2_create c = qcow2_create_default;
	uint8_t buf[512] = { 9 }, got[512];

	c.cluster_bits = 12;
	c.size = 4 * MIB;
	fix_create(&f, &c);
	fix_open(&f);
	assert_int_equal(blk_do(f.b, BLK_WRITE, 0, MIB, buf, 512), 0);
	atomic_store(&f.file->fail, -EIO);
	assert_int_equal(blk_do(f.b, BLK_FLUSH, 0, 0, NULL, 0), -EIO);
	assert_int_equal(blk_do(f.b, BLK_WRITE, 0, 2 * MIB, buf, 512), -EIO);
	assert_int_equal(blk_do(f.b, BLK_READ, 0, MIB, got, 512), 0);
	assert_memory_equal(buf, got, 512);
	atomic_store(&f.file->fail, 0);
	assert_int_equal(blk_do(f.b, BLK_FLUSH, 0, 0, NULL, 0), 0);
	fix_check(f.file, true);
	fix_check(fix_close(&f), false);
	fix_free(&f);
}

/* Memory for few slices. */

static void test_few_slices(void **state)
{
	for (unsigned threads = 1; threads < 4; threads += 2) {
		struct fix f = { .discards = true };
		struct qcow2_create c = qcow2_create_default;

		c.cluster_bits = 9;
		c.size = 4 * MIB; /* 128 slices */
		fix_create(&f, &c);
		fix_open(&f);
		((struct qcow2 *)f.b)->slices_max = 3;
		fix_run(&f, &(struct fix_mix){ .n = 4000,
		                               .depth = 8,
		                               .threads = threads,
		                               .seed = threads,
		                               .max_sectors = threads > 1 ? 3 : 80 });
		fix_verify(&f);
		fix_check(fix_close(&f), false);
		fix_open(&f);
		fix_verify(&f);
		fix_free(&f);
	}
}

/* 20,000 rewrites with a flush each leave the file's size where it was. */
static void test_rewrites(void **state)
{
	struct logblk *file = image(16, 8 * MIB);
	uint64_t size, len = 8 * MIB;
	uint8_t *buf = calloc(1, len);
	unsigned rng = 1;
	struct blk *b;
	struct err err;

	assert_int_equal(fix_image_open(file, false, &b, &err), 0);
	assert_int_equal(blk_do(b, BLK_WRITE, 0, 0, buf, len), 0);
	assert_int_equal(blk_do(b, BLK_FLUSH, 0, 0, NULL, 0), 0);
	size = blk_size(&file->blk);
	for (unsigned i = 0; i < 20000; i++) {
		assert_int_equal(blk_do(b, BLK_WRITE, 0, rnd(&rng) % (len / 4096) * 4096, buf, 4096), 0);
		assert_int_equal(blk_do(b, BLK_FLUSH, 0, 0, NULL, 0), 0);
	}
	assert_int_equal(blk_size(&file->blk), size);
	blk_close(b);
	free(buf);
}

/* Discarded and written again, over and over: what was freed is used again. */
static void test_reuse(void **state)
{
	struct logblk *file = image(16, 8 * MIB);
	uint8_t *buf = malloc(8 * MIB);
	uint64_t most = 0;
	struct blk *b;
	struct err err;

	memset(buf, 3, 8 * MIB);
	assert_int_equal(fix_image_open(file, false, &b, &err), 0);
	for (unsigned i = 0; i < 60; i++) {
		assert_int_equal(blk_do(b, BLK_WRITE, 0, 0, buf, 8 * MIB), 0);
		assert_int_equal(blk_do(b, BLK_FLUSH, 0, 0, NULL, 0), 0);
		assert_int_equal(blk_do(b, BLK_DISCARD, 0, 0, NULL, 8 * MIB), 0);
		assert_int_equal(blk_do(b, BLK_FLUSH, 0, 0, NULL, 0), 0);
		if (blk_size(&file->blk) > most)
			most = blk_size(&file->blk);
	}
	assert_true(most < 200 * MIB);
	blk_close(b);
	free(buf);
}

/* Flushes that wait share a commit. */
static void on_flush(struct blk_req *r, int error)
{
	assert_int_equal(error, 0);
}

static void test_flush_grouping(void **state)
{
	struct logblk *file = image(16, 8 * MIB);
	uint8_t buf[512] = { 1 };
	struct loop *loop;
	struct blk_queue *q;
	struct blk_req req[10];
	struct blk *b;
	struct err err;
	unsigned before;

	assert_int_equal(fix_image_open(file, false, &b, &err), 0);
	assert_int_equal(blk_do(b, BLK_WRITE, 0, 0, buf, 512), 0);
	assert_int_equal(loop_new(&loop, &err), 0);
	assert_int_equal(blk_queue_open(b, loop, &q, &err), 0);
	before = file->flushes;
	pthread_mutex_lock(&file->lock); /* the first commit, whatever it took, waits in its first write */
	for (unsigned i = 0; i < 10; i++) {
		req[i] = (struct blk_req){ .op = BLK_FLUSH, .done = on_flush };
		blk_submit(q, &req[i]);
	}
	pthread_mutex_unlock(&file->lock);
	blk_queue_when_idle(q, (void (*)(void *))loop_quit, loop);
	assert_int_equal(loop_run(loop), 0);
	assert_in_range(file->flushes - before, 2, 3); /* one with two barriers, then one with nothing left to write */
	blk_queue_close(q);
	loop_free(loop);
	blk_close(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_headers),
		cmocka_unit_test(test_unknown_extension),
		cmocka_unit_test(test_corrupt_bit),
		cmocka_unit_test(test_entries),
		cmocka_unit_test(test_l1),
		cmocka_unit_test(test_full),
		cmocka_unit_test(test_failing),
		cmocka_unit_test(test_few_slices),
		cmocka_unit_test(test_rewrites),
		cmocka_unit_test(test_reuse),
		cmocka_unit_test(test_flush_grouping),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
