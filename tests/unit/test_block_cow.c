// SPDX-License-Identifier: GPL-2.0-or-later
/* Copy-on-write in memory: against a model, on images of all sizes, from several threads. */
#include "base/container_of.h"
#include "base/loop_thread.h"
#include "blkfix.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define SIZE 262144
#define GIB  (1ull << 30)

static const struct blk_options cow = { .format = BLK_RAW, .cow = true };

static uint8_t model[SIZE], buf[SIZE];

/* One random request, done to the disk and to the model. */
static void one(struct blkfix *f, unsigned *seed)
{
	size_t n = 512 * (1 + (size_t)rand_r(seed) % 40);
	uint64_t off = 512 * ((uint64_t)rand_r(seed) % (SIZE / 512 - n / 512 + 1));

	switch (rand_r(seed) % 5) {
	case 0:
	case 1:
		memset(buf, 0xaa, n);
		assert_int_equal(blkfix_io(f->q, BLK_READ, 0, off, buf, n), 0);
		assert_memory_equal(buf, model + off, n);
		break;
	case 2:
	case 3:
		blkfix_fill(buf, n, off, *seed);
		memcpy(model + off, buf, n);
		assert_int_equal(blkfix_io(f->q, BLK_WRITE, 0, off, buf, n), 0);
		break;
	default:
		memset(model + off, 0, n);
		assert_int_equal(
		        blkfix_io(f->q, rand_r(seed) & 1 ? BLK_DISCARD : BLK_WRITE_ZEROES, BLK_MAY_UNMAP, off, NULL, n),
		        0);
	}
}

static void test_model(void **state)
{
	for (unsigned round = 0; round < 10; round++) {
		struct blkfix f;
		unsigned seed = round + 1;

		blkfix_make(f.path, SIZE, 1);
		assert_int_equal(chmod(f.path, 0444), 0);
		blkfix_fill(model, SIZE, 0, 1);
		blkfix_start(&f, &cow, round & 1 ? BLKFIX_RING : BLKFIX_POLL);
		assert_false(blk_info(f.b)->read_only);
		for (unsigned i = 0; i < 300; i++)
			one(&f, &seed);
		assert_int_equal(blkfix_io(f.q, BLK_FLUSH, 0, 0, NULL, 0), 0);
		assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 0, buf, SIZE), 0);
		assert_memory_equal(buf, model, SIZE);
		blkfix_stop(&f);
		blkfix_pread(f.path, buf, SIZE, 0); /* and the file is what it was */
		assert_true(blkfix_is(buf, SIZE, 0, 1));
		blkfix_rm(f.path);
	}
}

static void test_range(void **state)
{
	struct blkfix f;

	blkfix_make(f.path, SIZE, 1);
	blkfix_start(&f, &cow, BLKFIX_POLL);
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, SIZE, buf, 512), -EINVAL);
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 1, buf, 512), -EINVAL);
	assert_int_equal(blkfix_io(f.q, BLK_WRITE, 0, 0, buf, 100), -EINVAL);
	assert_int_equal(blkfix_io(f.q, BLK_WRITE, 0, SIZE - 512, buf, 1024), -EINVAL);
	assert_int_equal(blkfix_io(f.q, BLK_WRITE, 0, SIZE - 512, buf, 512), 0);
	blkfix_stop(&f);
	blkfix_rm(f.path);
}

/* Pages of this process in memory. */
static unsigned long resident(void)
{
	unsigned long size, pages = 0;
	FILE *f = fopen("/proc/self/statm", "re");

	assert_non_null(f);
	assert_int_equal(fscanf(f, "%lu %lu", &size, &pages), 2);
	fclose(f);
	return pages;
}

/* A large disk costs what was written, and a discard gives it back. */
static void test_memory(void **state)
{
	unsigned long start, full, after;
	struct blkfix f;

#ifdef __SANITIZE_THREAD__
	skip(); /* its own memory for ours is several times as large */
#endif
	blkfix_make(f.path, 100 * GIB, 0);
	start = resident();
	blkfix_start(&f, &cow, BLKFIX_POLL);
	memset(buf, 'x', SIZE);
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(blkfix_io(f.q, BLK_WRITE, 0, i * GIB, buf, SIZE), 0);
	full = resident();
	assert_in_range(full - start, 100 * SIZE / 4096, 100 * SIZE / 4096 + 2000);
	assert_int_equal(blkfix_io(f.q, BLK_DISCARD, 0, 512, NULL, 100 * GIB - 1024), 0);
	after = resident();
	assert_true(after < start + 100 * GIB / 512 / 8 / 4096 + 2000); /* but for the bitmap */
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 0, buf, SIZE), 0);
	assert_int_equal(buf[511], 'x');
	assert_true(blkfix_is(buf + 512, SIZE - 512, 0, 0));
	blkfix_stop(&f);
	blkfix_rm(f.path);
}

/* Queues on threads of their own, in sectors that lie between each other's. */
#define NTHREADS 4
#define ROUNDS   2000

struct worker {
	struct blk *b;
	unsigned id;
	pthread_t thread;
};

static void *work(void *arg)
{
	struct worker *w = arg;
	struct loop *loop;
	struct blk_queue *q;
	struct err err;
	uint8_t mine[512];
	unsigned seed = w->id;

	if (loop_new_ring(&loop, &err) || blk_queue_open(w->b, loop, &q, &err))
		abort();
	for (unsigned i = 0; i < ROUNDS; i++) {
		uint64_t off = ((uint64_t)rand_r(&seed) % (SIZE / 512 / NTHREADS) * NTHREADS + w->id) * 512;

		blkfix_fill(mine, 512, off, i + 2);
		if (blkfix_io(q, BLK_WRITE, 0, off, mine, 512))
			abort();
		memset(mine, 0, 512);
		if (blkfix_io(q, BLK_READ, 0, off, mine, 512) || !blkfix_is(mine, 512, off, i + 2))
			abort();
		if (i % 7 == 0 && (blkfix_io(q, BLK_DISCARD, 0, off, NULL, 512) ||
		                   blkfix_io(q, BLK_READ, 0, off, mine, 512) || !blkfix_is(mine, 512, off, 0)))
			abort();
	}
	blk_queue_close(q);
	loop_free(loop);
	return NULL;
}

static void test_threads(void **state)
{
	struct worker w[NTHREADS];
	char path[BLKFIX_PATH];
	struct blk *b;

	blkfix_make(path, SIZE, 1);
	b = blkfix_open(path, &cow);
	for (unsigned i = 0; i < NTHREADS; i++) {
		w[i] = (struct worker){ .b = b, .id = i };
		assert_int_equal(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
	}
	for (unsigned i = 0; i < NTHREADS; i++)
		assert_int_equal(pthread_join(w[i].thread, NULL), 0);
	blk_close(b);
	blkfix_rm(path);
}

/* The image below cannot be read: told, and what is in memory stays readable. */
static void test_error_below(void **state)
{
	struct blkfix f;

	blkfix_make(f.path, SIZE, 1);
	blkfix_start(&f, &(struct blk_options){ .format = BLK_RAW, .cow = true, .fault = "eio@1+:read" }, BLKFIX_RING);
	memset(buf, 'x', 1024);
	assert_int_equal(blkfix_io(f.q, BLK_WRITE, 0, 0, buf, 1024), 0);
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 0, buf, 1536), -EIO);
	assert_int_equal(blkfix_io(f.q, BLK_READ, 0, 0, buf, 1024), 0);
	blkfix_stop(&f);
	blkfix_rm(f.path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_model),   cmocka_unit_test(test_range),       cmocka_unit_test(test_memory),
		cmocka_unit_test(test_threads), cmocka_unit_test(test_error_below),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
