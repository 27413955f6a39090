// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A file on a bad day: under random operations its requests end in errors and
 * were done, half done or not done at all, the metadata's too, and end late.
 * What succeeded is there, what was flushed with success survives a crash at any
 * moment, what failed is there or not, and nothing else has changed; the image
 * is clean or leaky, and all is well once the file is.
 * KVM_FAULT_ROUNDS: how often all shapes are gone through (1), KVM_FAULT_SEED:
 * what the first round begins with (0).
 */
#include "block/image.h"
#include "block/qcow2/check.h"
#include "block/qcow2/edit.h"
#include "block/qcow2/qcow2.h"
#include "qcow2fix.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define KIB 1024ull

static char dir[64]; /* of files of the host */

struct shape {
	const char *name;
	struct qcow2_create c;
	unsigned threads;
	uint64_t backing_sectors;
	uint64_t leaked; /* clusters, before */
	bool compressed, snapshot;
};

static const struct shape shapes[] = {
	{ "4 KiB clusters",
	  { .version = 3, .cluster_bits = 12, .refcount_order = 4, .size = 1024 * KIB },
	  .threads = 1 },
	{ "512-byte clusters, 64-bit refcounts: tables grow",
	  { .version = 3, .cluster_bits = 9, .refcount_order = 6, .size = 512 * KIB },
	  .threads = 1,
	  .leaked = 3900 },
	{ "64 KiB clusters, three loops",
	  { .version = 3, .cluster_bits = 16, .refcount_order = 4, .size = 2048 * KIB },
	  .threads = 3 },
	{ "version 2", { .version = 2, .cluster_bits = 10, .refcount_order = 4, .size = 512 * KIB }, .threads = 1 },
	{ "on a backing file, three loops",
	  { .version = 3, .cluster_bits = 13, .refcount_order = 1, .size = 1024 * KIB },
	  .threads = 3,
	  .backing_sectors = 1503 },
	{ "compressed",
	  { .version = 3, .cluster_bits = 12, .refcount_order = 4, .size = 1024 * KIB },
	  .threads = 1,
	  .compressed = true },
	{ "a snapshot",
	  { .version = 3, .cluster_bits = 9, .refcount_order = 3, .size = 512 * KIB },
	  .threads = 1,
	  .snapshot = true },
	{ "compressed, a snapshot, three loops",
	  { .version = 3, .cluster_bits = 14, .refcount_order = 5, .size = 1024 * KIB },
	  .threads = 3,
	  .compressed = true,
	  .snapshot = true },
};

#define NSHAPES (sizeof(shapes) / sizeof(shapes[0]))

static unsigned number(const char *name, unsigned otherwise)
{
	const char *s = getenv(name);

	return s ? (unsigned)strtoul(s, NULL, 10) : otherwise;
}

/* The image on a copy of @file, which is closed with it. */
static struct blk *open_copy(struct logblk *file, bool as_is)
{
	struct logblk *copy = logblk_copy(file);
	struct blk_options opt = { 0 };
	struct blk *b;
	struct err err;

	assert_int_equal((as_is ? qcow2_open_as_is : qcow2_open)(&copy->blk, &opt, &b, &err), 0);
	return b;
}

/* The file of @b, as closing leaves it, in place of @f's. */
static void close_into(struct fix *f, struct blk *b)
{
	struct logblk *file = (struct logblk *)qcow2_image(b)->file;

	assert_int_equal(qcow2_worker_stop(qcow2_image(b)), 0);
	logblk_set(f->file, file->mem, blk_size(&file->blk));
	blk_close(b);
}

/* Every second cluster, with sectors that are alike in four bytes of 512: small when compressed. */
static void fill(struct fix *f, bool compress)
{
	struct blk *b = open_copy(f->file, true);
	struct qcow2_writer *w;
	struct err err;
	uint64_t per = f->cluster / SECTOR;
	uint8_t *buf = malloc(f->cluster);

	assert_non_null(buf);
	assert_int_equal(qcow2_writer_new(qcow2_image(b), compress, &w, &err), 0);
	for (uint64_t c = 0; c < f->nsectors / per; c += 2) {
		uint32_t id = atomic_fetch_add(&f->next_id, 1);

		for (uint64_t i = 0; i < per; i++) {
			f->sector[c * per + i].id = i % 3 ? 0 : id;
			sector_fill(buf + i * SECTOR, f->sector[c * per + i].id);
		}
		assert_int_equal(qcow2_writer_put(w, c, buf), 0);
	}
	assert_int_equal(qcow2_writer_end(w, 0), 0);
	free(buf);
	close_into(f, b);
}

/* Snapshots are made, applied and deleted as image.c does it: all flags and counts are right afterwards. */
static void repair(struct fix *f)
{
	struct blk *b = open_copy(f->file, true);
	struct qcow2_check result;
	struct err err;

	assert_int_equal(qcow2_repair(qcow2_image(b), &result, &err), 0);
	assert_int_equal(result.bad, 0);
	close_into(f, b);
}

static void take_snapshot(struct fix *f, const char *name)
{
	struct blk *b = open_copy(f->file, true);
	struct err err;

	assert_int_equal(qcow2_snapshot_create(qcow2_image(b), name, &err), 0);
	close_into(f, b);
	repair(f);
}

static void make(struct fix *f, const struct shape *s, char path[64])
{
	struct qcow2_create c = s->c;

	if (s->backing_sectors) {
		fix_backing(path, s->backing_sectors);
		c.backing = path;
		c.backing_format = "raw";
	}
	fix_create(f, &c);
	for (uint64_t i = 0; i < s->backing_sectors && i < f->nsectors; i++)
		f->sector[i].id = OF_BACKING | (uint32_t)i;
	if (s->compressed || s->snapshot)
		fill(f, s->compressed);
	if (s->snapshot)
		take_snapshot(f, "then");
	if (s->leaked)
		fix_leak(f, s->leaked);
}

/* @file holds what the snapshot held. */
static void verify_snapshot(struct fix *f, const uint32_t *then)
{
	struct fix was = { .nsectors = f->nsectors, .cluster = f->cluster, .file = logblk_copy(f->file) };
	struct blk *b = open_copy(was.file, true);
	struct err err;

	assert_int_equal(qcow2_snapshot_apply(qcow2_image(b), "then", &err), 0);
	close_into(&was, b);
	repair(&was);
	was.sector = calloc(was.nsectors, sizeof(*was.sector));
	assert_non_null(was.sector);
	for (uint64_t i = 0; i < was.nsectors; i++)
		was.sector[i].id = then[i];
	fix_open(&was);
	fix_verify(&was);
	fix_free(&was);
}

static void crash(struct fix *f, struct logblk *before, unsigned n, unsigned *rng)
{
	for (unsigned i = 0; i < n; i++) {
		size_t at = rnd(rng) % (f->file->nlog + 1);
		struct logblk *file = logblk_copy(before);

		logblk_crash(f->file, at, rng, file);
		fix_verify_crash(f, file, at);
		blk_close(&file->blk);
	}
}

/* What the image left, when it was closed with everything written. */
static void end(struct fix *f, const struct shape *s, const uint32_t *then)
{
	fix_close(f);
	fix_check(f->file, true);
	fix_qemu_check(f->file, true);
	fix_open(f);
	fix_verify(f);
	fix_close(f);
	if (s->snapshot)
		verify_snapshot(f, then);
}

/* Of 1000 requests, in three parts of a run. */
static const unsigned mishaps[3] = { 20, 200, 3 };

static void run_shape(const struct shape *s, unsigned seed)
{
	struct fix f = { .discards = true };
	struct logblk *before;
	unsigned rng = seed;
	char path[64] = "";
	uint32_t *then;

	make(&f, s, path);
	then = calloc(f.nsectors, sizeof(*then));
	assert_non_null(then);
	for (uint64_t i = 0; i < f.nsectors; i++)
		then[i] = f.sector[i].id;
	before = logblk_copy(f.file);
	f.file->keep = true;
	f.file->rng = seed;
	fix_begin_history(&f);
	fix_open(&f);
	f.may_fail = true;
	for (unsigned i = 0; i < 3; i++) {
		atomic_store(&f.file->late, i % 2 == 0);
		atomic_store(&f.file->mishaps, mishaps[i]);
		fix_run(&f, &(struct fix_mix){ .n = 300 / s->threads,
		                               .depth = 6,
		                               .threads = s->threads,
		                               .seed = seed * 3 + i,
		                               .max_sectors = s->threads > 1 ? 3 : 60 });
		atomic_store(&f.file->mishaps, 0);
		fix_verify(&f);
	}
	f.may_fail = false;
	assert_int_equal(blk_do(f.b, BLK_FLUSH, 0, 0, NULL, 0), 0);
	crash(&f, before, 20, &rng);
	end(&f, s, then);
	free(then);
	blk_close(&before->blk);
	fix_free(&f);
	if (path[0])
		assert_int_equal(unlink(path), 0);
}

static void test_mishaps(void **state)
{
	unsigned seed = number("KVM_FAULT_SEED", 0);

	for (unsigned r = number("KVM_FAULT_ROUNDS", 1); r--; seed += 100)
		for (unsigned i = 0; i < NSHAPES; i++) {
			print_message("seed %u: %s\n", seed + i, shapes[i].name);
			run_shape(&shapes[i], seed + i);
		}
}

/*
 * A larger refcount table is in place, and the write of the header that names
 * it is told as failed: the header may name either, so neither may be used for
 * anything else, and what one of them does not count must not be in use.
 */
static void run_header(unsigned seed, bool mend)
{
	static const struct shape s = {
		.c = { .version = 3, .cluster_bits = 9, .refcount_order = 6, .size = 512 * KIB }, .threads = 1
	};
	struct fix f = { .discards = true };
	char path[64];

	make(&f, &s, path);
	fix_leak(&f, 3900);
	fix_begin_history(&f);
	fix_open(&f);
	f.may_fail = true;
	atomic_store(&f.file->bad_at, QCOW2_AT_REFTABLE);
	atomic_store(&f.file->bad_len, 12);
	for (unsigned i = 0; i < 4; i++) {
		fix_run(&f,
		        &(struct fix_mix){ .n = 200, .depth = 6, .threads = 1, .seed = seed + i, .max_sectors = 60 });
		fix_verify(&f);
		fix_verify_crash(&f, f.file, SIZE_MAX - 1);
	}
	assert_true(atomic_load(&f.failed));
	assert_int_equal(blk_do(f.b, BLK_FLUSH, 0, 0, NULL, 0), -EIO);
	if (mend) {
		atomic_store(&f.file->bad_len, 0);
		assert_int_equal(blk_do(f.b, BLK_FLUSH, 0, 0, NULL, 0), 0);
		fix_verify(&f);
		end(&f, &s, NULL);
	} else {
		assert_int_equal(qcow2_worker_stop(qcow2_image(f.b)), -EIO);
		fix_verify_crash(&f, f.file, SIZE_MAX - 1);
	}
	fix_free(&f);
}

static void test_header(void **state)
{
	for (unsigned i = 0; i < 4; i++)
		run_header(10 * i, i % 2);
}

/*
 * On a file of the host, by a ring or by threads, past the page cache or not:
 * every transfer is cut short, and many begin late. Compressed clusters, a
 * second image on top of the first, which is written to with what the first has
 * around it.
 */
static void run_short(const char *path, enum blk_cache cache, bool ring, unsigned seed, struct fix *f)
{
	struct blk_options opt = { .format = BLK_QCOW2, .cache = cache, .fault = "short@1+,slow@3=2,slow@20=3" };
	struct err err;

	if (blk_open(path, &opt, &f->b, &err)) {
		print_message("%s\n", err.msg); /* no O_DIRECT here */
		return;
	}
	fix_verify(f);
	fix_run(f,
	        &(struct fix_mix){
	                .n = 150, .depth = 6, .threads = 1 + seed % 3, .seed = seed, .max_sectors = 90, .ring = ring });
	fix_verify(f);
	blk_close(f->b);
}

static void test_short(void **state)
{
	struct fix f = { .nsectors = 4096, .discards = true, .cluster = 32768 };
	struct image_create c = { .format = BLK_QCOW2, .qcow2 = qcow2_create_default };
	struct image_convert v = { .from = "base.raw", .to = "base.qcow2", .compress = true };
	struct err err;
	uint8_t buf[SECTOR];
	FILE *raw;

	strcpy(dir, "/tmp/kvm-fault-XXXXXX");
	assert_true(mkdtemp(dir) && !chdir(dir));
	raw = fopen("base.raw", "wb");
	f.sector = calloc(f.nsectors, sizeof(*f.sector));
	assert_true(raw && f.sector);
	atomic_store(&f.next_id, 1);
	for (uint64_t i = 0; i < f.nsectors; i++) {
		f.sector[i].id = i % 3 || i / 1000 % 2 ? 0 : atomic_fetch_add(&f.next_id, 1);
		sector_fill(buf, f.sector[i].id);
		assert_int_equal(fwrite(buf, SECTOR, 1, raw), 1);
	}
	fclose(raw);
	c.qcow2.cluster_bits = 15;
	v.create = c;
	assert_int_equal(image_convert(&v, &err), 0);
	c.size = f.nsectors * SECTOR;
	c.qcow2.backing = "base.qcow2";
	c.qcow2.backing_format = "qcow2";
	for (unsigned i = 0; i < 8; i++)
		run_short("base.qcow2", i % 4 / 2 ? BLK_DIRECT : BLK_WRITEBACK, i % 2, i, &f);
	assert_int_equal(image_create("top.qcow2", &c, &err), 0);
	for (unsigned i = 0; i < 8; i++)
		run_short("top.qcow2", i % 4 / 2 ? BLK_DIRECT : BLK_WRITEBACK, i % 2, 100 + i, &f);
	if (have_qemu_img())
		sh("qemu-img check -q base.qcow2 && qemu-img check -q top.qcow2");
	free(f.sector);
	sh("rm base.raw base.qcow2 top.qcow2");
	assert_true(!chdir("/") && !rmdir(dir));
}

/* Tools. */

enum tool { TAKE, APPLY, DELETE, LONGER, SHORTER, REPAIR, NTOOLS };

static int use(struct qcow2 *im, enum tool t)
{
	struct qcow2_check result;
	struct err err;

	switch (t) {
	case TAKE: return qcow2_snapshot_create(im, "now", &err);
	case APPLY: return qcow2_snapshot_apply(im, "then", &err);
	case DELETE: return qcow2_snapshot_delete(im, "other", &err);
	case LONGER: return qcow2_resize(im, im->h.size + 300 * KIB, &err);
	case SHORTER: return qcow2_resize(im, im->h.size - 100 * KIB - SECTOR, &err);
	default: return qcow2_repair(im, &result, &err);
	}
}

/*
 * The disk of @file holds the @n sectors that @one says, or those that @other
 * does; the rest is zero, and from @loose on each may be.
 */
static void verify_either(struct logblk *file, const uint32_t *one, const uint32_t *other, uint64_t n, uint64_t loose)
{
	struct blk *b = open_copy(file, false);
	uint64_t size = blk_size(b) / SECTOR;
	uint8_t *buf = malloc(size * SECTOR);
	bool is_one = true, is_other = true;

	assert_non_null(buf);
	assert_int_equal(blk_do(b, BLK_READ, 0, 0, buf, size * SECTOR), 0);
	for (uint64_t i = 0; i < size; i++) {
		if (i >= loose && sector_is(buf + i * SECTOR, 0))
			continue;
		is_one &= sector_is(buf + i * SECTOR, i < n ? one[i] : 0);
		is_other &= sector_is(buf + i * SECTOR, i < n ? other[i] : 0);
	}
	assert_true(is_one || is_other);
	free(buf);
	blk_close(b);
}

static void note(const struct fix *f, uint32_t *ids)
{
	for (uint64_t i = 0; i < f->nsectors; i++)
		ids[i] = f->sector[i].id;
}

/* @file, as a tool left it that was cut short: it is sound, also when it is written to before it is repaired. */
static void verify_tool(struct fix *f, struct logblk *file, enum tool t, const uint32_t *then, const uint32_t *now)
{
	struct fix g = { .nsectors = f->nsectors, .cluster = f->cluster, .discards = true, .file = logblk_copy(file) };

	/* What is cut off may be gone before the size says so. */
	verify_either(file, now, t == APPLY ? then : now, f->nsectors, f->nsectors - (t == SHORTER ? 201 : 0));
	if (t != LONGER && t != SHORTER)
		verify_snapshot(&g, then);
	fix_open(&g);
	g.nsectors = blk_size(g.b) / SECTOR;
	g.sector = calloc(g.nsectors, sizeof(*g.sector));
	assert_non_null(g.sector);
	g.may_fail = true; /* what is there now does not matter here: only what it does to the snapshot */
	atomic_store(&g.next_id, 1u << 30);
	fix_run(&g, &(struct fix_mix){ .n = 100, .depth = 4, .threads = 1, .seed = t, .max_sectors = 60 });
	assert_int_equal(atomic_load(&g.failed), 0);
	fix_close(&g);
	g.nsectors = f->nsectors;
	if (t != LONGER && t != SHORTER)
		verify_snapshot(&g, then);
	repair(&g);
	fix_check(g.file, false);
	fix_qemu_check(g.file, false);
	blk_close(&g.file->blk);
	free(g.sector);
}

static void run_tool(struct fix *f, enum tool t, unsigned seed, const uint32_t *then, const uint32_t *now)
{
	struct blk *b = open_copy(f->file, t == LONGER || t == SHORTER ? false : true);
	struct logblk *file = (struct logblk *)qcow2_image(b)->file, *crashed;
	unsigned rng = seed;

	file->rng = seed;
	file->keep = true;
	atomic_store(&file->mishaps, seed % 3 * 40);
	(void)!use(qcow2_image(b), t);
	(void)!qcow2_worker_stop(qcow2_image(b));
	atomic_store(&file->mishaps, 0);
	verify_tool(f, file, t, then, now);
	for (unsigned i = 0; i < 4; i++) { /* a crash, or it was killed */
		crashed = logblk_copy(f->file);
		logblk_crash(file, rnd(&rng) % (file->nlog + 1), &rng, crashed);
		verify_tool(f, crashed, t, then, now);
		blk_close(&crashed->blk);
	}
	blk_close(b);
}

/* Snapshots and sizes, with mishaps and crashes: before, or after, and nothing between. */
static void test_tools(void **state)
{
	unsigned seed = number("KVM_FAULT_SEED", 0);

	for (unsigned n = 12 * number("KVM_FAULT_ROUNDS", 1); n--; seed++) {
		enum tool t = seed % NTOOLS;
		bool resize = t == LONGER || t == SHORTER;
		struct shape s = {
			.c = { .version = 3, .cluster_bits = 9 + seed % 5, .refcount_order = 5, .size = 512 * KIB },
			.compressed = seed % 2,
			.snapshot = !resize
		};
		struct fix f = { .discards = true };
		uint32_t *then, *now;
		char path[64];

		print_message("seed %u: tool %d\n", seed, (int)t);
		make(&f, &s, path);
		then = calloc(f.nsectors, sizeof(*then));
		now = calloc(f.nsectors, sizeof(*now));
		assert_true(then && now);
		note(&f, then);
		fix_open(&f);
		fix_run(&f, &(struct fix_mix){ .n = 200, .depth = 4, .threads = 1, .seed = seed, .max_sectors = 60 });
		fix_close(&f);
		if (t == DELETE)
			take_snapshot(&f, "other");
		note(&f, now);
		run_tool(&f, t, seed, then, now);
		free(then);
		free(now);
		fix_free(&f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_mishaps),
		cmocka_unit_test(test_header),
		cmocka_unit_test(test_short),
		cmocka_unit_test(test_tools),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
