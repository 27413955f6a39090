// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Against qemu-img and qemu-io, both ways: images that they made in many shapes
 * are what we read, stay sound under our random operations, and are then what
 * they read; again and again. Skipped where they are not installed.
 */
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

#define SECTORS 8192u /* 4 MiB */

static char dir[64]; /* of the test's files; the working directory */

struct shape {
	const char *options; /* of qemu-img create -o */
	bool compressed;
	bool snapshots;
	bool no_discards; /* version 2 on a backing file cannot make zeroes of them */
	unsigned backing; /* length of the chain below */
};

static const struct shape shapes[] = {
	{ .options = "cluster_size=65536" },
	{ .options = "compat=0.10,cluster_size=4096" },
	{ .options = "cluster_size=512,refcount_bits=1" },
	{ .options = "cluster_size=1024,refcount_bits=64" },
	{ .options = "cluster_size=2M,refcount_bits=32" },
	{ .options = "cluster_size=64k,preallocation=metadata" },
	{ .options = "cluster_size=4k,preallocation=full" },
	{ .options = "cluster_size=32k,lazy_refcounts=on" },
	{ .options = "cluster_size=64k", .compressed = true },
	{ .options = "cluster_size=4k", .compressed = true },
	{ .options = "cluster_size=512,compat=0.10", .compressed = true },
	{ .options = "cluster_size=64k,compression_type=zstd", .compressed = true },
	{ .options = "cluster_size=2M", .compressed = true },
	{ .options = "cluster_size=16k", .snapshots = true },
	{ .options = "cluster_size=1k,refcount_bits=2", .snapshots = true },
	{ .options = "cluster_size=64k,compat=0.10", .snapshots = true, .compressed = true },
	{ .options = "cluster_size=4k", .backing = 1 },
	{ .options = "cluster_size=64k", .backing = 4, .snapshots = true },
	{ .options = "cluster_size=64k", .backing = 2, .compressed = true },
	{ .options = "cluster_size=8k,compat=0.10", .backing = 1, .no_discards = true },
};

#define NSHAPES (sizeof(shapes) / sizeof(shapes[0]))

/* A raw file of numbered sectors, with gaps so that something can be compressed and something left out. */
static void make_raw(const char *path, unsigned seed, struct fix *f)
{
	FILE *out = fopen(path, "wb");
	uint8_t buf[SECTOR];
	unsigned rng = seed;

	assert_non_null(out);
	for (uint64_t i = 0; i < f->nsectors; i++) {
		bool gap = rnd(&rng) % 3 || (i >> 8) % 4 == seed % 4;

		f->sector[i].id = gap ? 0 : atomic_fetch_add(&f->next_id, 1);
		sector_fill(buf, f->sector[i].id);
		assert_int_equal(fwrite(buf, SECTOR, 1, out), 1);
	}
	assert_int_equal(fclose(out), 0);
}

static void model_init(struct fix *f, const struct shape *s)
{
	*f = (struct fix){ .nsectors = SECTORS, .discards = !s->no_discards, .cluster = 2u << 20 };
	f->sector = calloc(SECTORS, sizeof(*f->sector));
	assert_non_null(f->sector);
	atomic_store(&f->next_id, 1);
}

/* The file @path, converted by qemu-img with @options, is what the model says. */
static void compare(const struct fix *f, const char *path, const char *options)
{
	uint8_t buf[SECTOR];
	FILE *in;

	sh("qemu-img convert %s -O raw %s got.raw", options, path);
	in = fopen("got.raw", "rb");
	assert_non_null(in);
	for (uint64_t i = 0; i < f->nsectors; i++) {
		assert_int_equal(fread(buf, SECTOR, 1, in), 1);
		if (!sector_is(buf, f->sector[i].id))
			fail_msg("%s %s: sector %u is not %x", options, path, (unsigned)i, f->sector[i].id);
	}
	fclose(in);
}

/* t.qcow2 with the model's contents, chain and all; every image of the chain has a part of it. */
static void make_image(struct fix *f, const struct shape *s, unsigned seed)
{
	make_raw("src.raw", seed, f);
	if (!s->backing) {
		sh("qemu-img convert -q %s -f raw -O qcow2 -o %s src.raw t.qcow2", s->compressed ? "-c" : "",
		   s->options);
		return;
	}
	sh("qemu-img convert -q %s -f raw -O qcow2 src.raw base0.qcow2", s->compressed ? "-c" : "");
	for (unsigned i = 1; i < s->backing; i++)
		sh("qemu-img create -q -f qcow2 -F qcow2 -b base%u.qcow2 base%u.qcow2 && qemu-io -f qcow2 -c 'write -q "
		   "-s "
		   "src.raw %uk 64k' -c 'write -q -z %uk 8k' base%u.qcow2 >/dev/null",
		   i - 1, i, 128 * i, 1024 * i, i);
	sh("qemu-img create -q -f qcow2 -F qcow2 -b base%u.qcow2 -o %s t.qcow2", s->backing - 1, s->options);
	for (unsigned i = 1; i < s->backing; i++) {
		for (unsigned k = 0; k < 128; k++)
			f->sector[256 * i + k].id = f->sector[k].id; /* -s writes the file's beginning */
		for (unsigned k = 0; k < 16; k++)
			f->sector[2048 * i + k].id = 0;
	}
}

/* qemu-io changes t.qcow2, and the model follows. */
static void qemu_changes(struct fix *f, unsigned seed)
{
	unsigned rng = seed;

	for (unsigned i = 0; i < 4; i++) {
		unsigned first = rnd(&rng) % (SECTORS - 400), n = 1 + rnd(&rng) % 300,
		         id = atomic_fetch_add(&f->next_id, n);
		FILE *out = fopen("chunk.raw", "wb");
		uint8_t buf[SECTOR];

		assert_non_null(out);
		for (unsigned k = 0; k < n; k++) {
			f->sector[first + k].id = id + k;
			sector_fill(buf, id + k);
			assert_int_equal(fwrite(buf, SECTOR, 1, out), 1);
		}
		assert_int_equal(fclose(out), 0);
		sh("qemu-io -f qcow2 -c 'write -q -s chunk.raw %u %u' -c 'write -q -z %u 512' t.qcow2 >/dev/null",
		   first * SECTOR, n * SECTOR, (first + n) * SECTOR);
		f->sector[first + n].id = 0;
	}
}

/* We change it. */
static void our_changes(struct fix *f, unsigned seed)
{
	f->file = logblk_load("t.qcow2");
	fix_open(f);
	fix_verify(f);
	fix_run(f, &(struct fix_mix){ .n = 400,
	                              .depth = 6,
	                              .threads = 1 + seed % 2,
	                              .seed = seed,
	                              .max_sectors = seed % 2 ? 3 : 120 });
	fix_verify(f);
	fix_close(f);
	fix_check(f->file, false);
	logblk_save(f->file, "t.qcow2");
	blk_close(&f->file->blk);
	sh("qemu-img check -q -f qcow2 t.qcow2");
	compare(f, "t.qcow2", "-f qcow2");
}

static void run_shape(const struct shape *s, unsigned seed)
{
	struct fix f, then;

	model_init(&f, s);
	make_image(&f, s, seed);
	model_init(&then, s);
	memcpy(then.sector, f.sector, SECTORS * sizeof(*f.sector));
	if (s->snapshots)
		sh("qemu-img snapshot -c one t.qcow2");
	for (unsigned round = 0; round < 3; round++) {
		our_changes(&f, seed * 10 + round);
		qemu_changes(&f, seed * 10 + round);
		compare(&f, "t.qcow2", "-f qcow2");
		if (s->snapshots)
			compare(&then, "t.qcow2", "-f qcow2 -l snapshot.name=one");
	}
	if (s->snapshots) {
		sh("qemu-img snapshot -a one t.qcow2 && qemu-img snapshot -d one t.qcow2");
		our_changes(&then, seed + 77);
	}
	sh("rm -f *");
	free(f.sector);
	free(then.sector);
}

static unsigned number(const char *name, unsigned otherwise)
{
	const char *s = getenv(name);

	return s ? (unsigned)strtoul(s, NULL, 10) : otherwise;
}

static void run_shapes(unsigned seed)
{
	for (unsigned i = 0; i < NSHAPES; i++) {
		print_message("seed %u: %s%s%s, %u below\n", seed, shapes[i].options,
		              shapes[i].compressed ? ", compressed" : "", shapes[i].snapshots ? ", a snapshot" : "",
		              shapes[i].backing);
		run_shape(&shapes[i], seed + i + 1);
	}
}

static void test_shapes(void **state)
{
	unsigned seed = number("KVM_QCOW2_SEED", 0);

	if (!have_qemu_img())
		skip();
	for (unsigned r = number("KVM_QCOW2_ROUNDS", 1); r--; seed += 100)
		run_shapes(seed);
}

/* Not closed, with lazy refcounts: opening makes them anew. */
static void test_dirty(void **state)
{
	struct logblk *file;
	struct blk *b;
	struct err err;
	uint8_t buf[4096];

	if (!have_qemu_img())
		skip();
	sh("qemu-img create -q -f qcow2 -o lazy_refcounts=on,cluster_size=4k t.qcow2 4M");
	sh_status("qemu-io -f qcow2 -c 'write -q -P 7 0 1M' -c 'write -q -P 8 2M 64k' -c flush -c abort t.qcow2 "
	          ">/dev/null 2>&1");
	assert_int_not_equal(sh_status("qemu-img check -q -f qcow2 t.qcow2 >/dev/null 2>&1"), 0);
	file = logblk_load("t.qcow2");
	assert_int_equal(fix_image_open(logblk_copy(file), true, &b, &err), 0);
	assert_int_equal(blk_do(b, BLK_READ, 0, 1020 << 10, buf, 4096), 0);
	assert_int_equal(buf[5], 7);
	blk_close(b);
	assert_int_equal(fix_image_open(file, false, &b, &err), 0);
	logblk_save(file, "t.qcow2");
	blk_close(b);
	sh("qemu-img check -q -f qcow2 t.qcow2 && qemu-io -f qcow2 -c 'read -q -P 8 2M 64k' t.qcow2 && rm t.qcow2");
}

/* A bitmap says what was written: the bit that says that it can be trusted goes before the first write. */
static void test_autoclear(void **state)
{
	struct logblk *file;
	struct blk *b;
	struct err err;
	uint8_t sector[512] = { 1 };

	if (!have_qemu_img())
		skip();
	sh("qemu-img create -q -f qcow2 t.qcow2 4M && qemu-img bitmap --add t.qcow2 b0");
	file = logblk_load("t.qcow2");
	assert_int_equal(file->mem[95], 1);
	assert_int_equal(fix_image_open(file, false, &b, &err), 0);
	assert_int_equal(blk_do(b, BLK_READ, 0, 0, sector, 512), 0);
	assert_int_equal(file->mem[95], 1);
	assert_int_equal(blk_do(b, BLK_WRITE, 0, 0, sector, 512), 0);
	assert_int_equal(file->mem[95], 0);
	fix_check(file, true);
	blk_close(b);
	sh("rm t.qcow2");
}

static int go(void **state)
{
	strcpy(dir, "/tmp/kvm-qcow2-XXXXXX");
	return mkdtemp(dir) ? chdir(dir) : -1;
}

static int end(void **state)
{
	return chdir("/") || rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shapes),
		cmocka_unit_test(test_dirty),
		cmocka_unit_test(test_autoclear),
	};

	return cmocka_run_group_tests(tests, go, end);
}
