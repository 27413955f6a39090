// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Crashes: all writes of the engine are logged, and files are made as a crash
 * at any moment may leave them: what a flush had made durable, and any part of
 * the rest. Each must be clean or leaky, and hold all that was flushed.
 * KVM_CRASH_STATES: how many states in all (300).
 */
#include "block/qcow2/qcow2.h"
#include "qcow2fix.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define KIB (1ull << 10)

struct shape {
	const char *name;
	struct qcow2_create c;
	unsigned threads;
	uint64_t backing_sectors;
	uint64_t leaked; /* clusters, before */
};

static const struct shape shapes[] = {
	{ "4 KiB clusters", { .version = 3, .cluster_bits = 12, .refcount_order = 4, .size = 1024 * KIB }, 1, 0, 0 },
	{ "512-byte clusters, 64-bit refcounts: tables grow",
	  { .version = 3, .cluster_bits = 9, .refcount_order = 6, .size = 512 * KIB },
	  1,
	  0,
	  3900 },
	{ "64 KiB clusters, three loops",
	  { .version = 3, .cluster_bits = 16, .refcount_order = 4, .size = 2048 * KIB },
	  3,
	  0,
	  0 },
	{ "version 2", { .version = 2, .cluster_bits = 10, .refcount_order = 4, .size = 512 * KIB }, 1, 0, 0 },
	{ "on a backing file",
	  { .version = 3, .cluster_bits = 12, .refcount_order = 4, .size = 1024 * KIB },
	  1,
	  1503,
	  0 },
	{ "on a backing file, three loops",
	  { .version = 3, .cluster_bits = 13, .refcount_order = 1, .size = 1024 * KIB },
	  3,
	  1503,
	  0 },
};

#define NSHAPES (sizeof(shapes) / sizeof(shapes[0]))

static unsigned states(void)
{
	const char *s = getenv("KVM_CRASH_STATES");

	return s ? (unsigned)strtoul(s, NULL, 10) : 300;
}

/* @n states of what @f's file went through since it was @before. */
static void crash(struct fix *f, struct logblk *before, unsigned n, unsigned *rng)
{
	for (unsigned i = 0; i < n; i++) {
		size_t at = rnd(rng) % (f->file->nlog + 1);
		struct logblk *file = logblk_copy(before);

		logblk_crash(f->file, at, rng, file);
		fix_verify_crash(f, file, at);
		if (i % 40 == 0)
			fix_qemu_check(file, true);
		blk_close(&file->blk);
	}
}

static void run_shape(const struct shape *s, unsigned n, unsigned seed)
{
	struct qcow2_create c = s->c;
	struct fix f = { .discards = true };
	struct logblk *before;
	unsigned rng = seed;
	char path[64] = "";

	if (s->backing_sectors) {
		fix_backing(path, s->backing_sectors);
		c.backing = path;
		c.backing_format = "raw";
	}
	fix_create(&f, &c);
	for (uint64_t i = 0; i < s->backing_sectors && i < f.nsectors; i++)
		f.sector[i].id = OF_BACKING | (uint32_t)i;
	if (s->leaked)
		fix_leak(&f, s->leaked);
	before = logblk_copy(f.file);
	f.file->keep = true;
	fix_begin_history(&f);
	fix_open(&f);
	fix_run(&f, &(struct fix_mix){ .n = 600 / s->threads,
	                               .depth = 6,
	                               .threads = s->threads,
	                               .seed = seed,
	                               .max_sectors = s->threads > 1 ? 3 : 60 });
	assert_int_equal(qcow2_worker_stop((struct qcow2 *)f.b), 0);
	crash(&f, before, n, &rng);
	blk_close(&before->blk);
	fix_free(&f);
	if (path[0])
		assert_int_equal(unlink(path), 0);
}

static void test_crash(void **state)
{
	unsigned rounds = 1 + states() / 1000, n = states() / rounds / NSHAPES;

	for (unsigned r = 0; r < rounds; r++)
		for (unsigned i = 0; i < NSHAPES; i++) {
			print_message("%s: %u states\n", shapes[i].name, n);
			run_shape(&shapes[i], n, 100 * r + i);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_crash),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
