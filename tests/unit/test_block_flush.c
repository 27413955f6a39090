// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Flushes: who waits for which fdatasync(2), how many there are, and what
 * happens when one fails. The fdatasync is ours: it waits until it is told how
 * to end. So nothing here depends on time.
 */
#include "base/container_of.h"
#include "base/loop_thread.h"
#include "blkfix.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (1ull << 20)

/* The host's disk. */

static sem_t began, go;
static atomic_uint nsyncs;
static atomic_int result; /* 0 or an errno */
static atomic_bool gated;

int fdatasync(int fd)
{
	atomic_fetch_add(&nsyncs, 1);
	if (atomic_load(&gated)) {
		sem_post(&began);
		while (sem_wait(&go))
			;
	}
	errno = atomic_load(&result);
	return errno ? -1 : 0;
}

static void wait_sem(sem_t *s)
{
	while (sem_wait(s))
		;
}

/* A queue on a thread of its own, and requests sent there. */

struct agent {
	struct loop_thread *thread;
	struct blk_queue *q;
	struct blk *b;
	struct loop_task task;
	struct sent *sent;
	sem_t ready;
};

struct sent {
	struct blk_req req;
	struct iovec iov;
	uint8_t buf[512];
	atomic_int error; /* 1: not done */
	sem_t done;
};

static void on_open(struct loop_task *t)
{
	struct agent *a = container_of(t, struct agent, task);
	struct err err;

	if (a->q)
		blk_queue_close(a->q);
	else if (blk_queue_open(a->b, loop_thread_loop(a->thread), &a->q, &err))
		abort();
	sem_post(&a->ready);
}

static void agent_start(struct agent *a, struct blk *b)
{
	struct err err;

	*a = (struct agent){ .b = b };
	sem_init(&a->ready, 0, 0);
	assert_int_equal(loop_thread_new("agent", &a->thread, &err), 0);
	a->task.cb = on_open;
	loop_post(loop_thread_loop(a->thread), &a->task);
	wait_sem(&a->ready);
}

static void agent_stop(struct agent *a)
{
	a->task.cb = on_open;
	loop_post(loop_thread_loop(a->thread), &a->task);
	wait_sem(&a->ready);
	loop_thread_free(a->thread);
	sem_destroy(&a->ready);
}

static void on_done(struct blk_req *r, int error)
{
	struct sent *s = container_of(r, struct sent, req);

	atomic_store(&s->error, error);
	sem_post(&s->done);
}

static void on_submit(struct loop_task *t)
{
	struct agent *a = container_of(t, struct agent, task);

	blk_submit(a->q, &a->sent->req);
	sem_post(&a->ready);
}

/* Submitted when this returns. */
static void submit(struct agent *a, struct sent *s, enum blk_op op, unsigned flags)
{
	memset(s, 0, sizeof(*s));
	sem_init(&s->done, 0, 0);
	atomic_store(&s->error, 1);
	s->iov = (struct iovec){ .iov_base = s->buf, .iov_len = sizeof(s->buf) };
	s->req = (struct blk_req){ .op = op, .flags = flags, .len = sizeof(s->buf), .iov = &s->iov, .niov = 1 };
	s->req.done = on_done;
	a->sent = s;
	a->task.cb = on_submit;
	loop_post(loop_thread_loop(a->thread), &a->task);
	wait_sem(&a->ready);
}

static int wait_done(struct sent *s)
{
	wait_sem(&s->done);
	return atomic_load(&s->error);
}

static int send_and_wait(struct agent *a, enum blk_op op, unsigned flags)
{
	struct sent s;

	submit(a, &s, op, flags);
	return wait_done(&s);
}

static bool is_done(struct sent *s)
{
	return atomic_load(&s->error) <= 0;
}

/* The disk, with two queues. */

struct fixture {
	char path[BLKFIX_PATH];
	struct blk *b;
	struct agent a, c;
};

static void setup_with(struct fixture *f, enum blk_cache cache)
{
	blkfix_make(f->path, MIB, 1);
	f->b = blkfix_open(f->path, &(struct blk_options){ .format = BLK_RAW, .cache = cache });
	agent_start(&f->a, f->b);
	agent_start(&f->c, f->b);
	sem_init(&began, 0, 0);
	sem_init(&go, 0, 0);
	atomic_store(&nsyncs, 0);
	atomic_store(&result, 0);
	atomic_store(&gated, true);
}

static void setup(struct fixture *f)
{
	setup_with(f, BLK_WRITEBACK);
}

static void teardown(struct fixture *f)
{
	agent_stop(&f->a);
	agent_stop(&f->c);
	blk_close(f->b);
	blkfix_rm(f->path);
}

/* Nothing written: nothing to do. */
static void test_nothing_to_do(void **state)
{
	struct fixture f;

	setup(&f);
	assert_int_equal(send_and_wait(&f.a, BLK_FLUSH, 0), 0);
	assert_int_equal(send_and_wait(&f.a, BLK_READ, 0), 0);
	assert_int_equal(send_and_wait(&f.a, BLK_FLUSH, 0), 0);
	assert_int_equal(atomic_load(&nsyncs), 0);
	atomic_store(&gated, false);
	assert_int_equal(send_and_wait(&f.a, BLK_WRITE, 0), 0);
	assert_int_equal(send_and_wait(&f.c, BLK_FLUSH, 0), 0); /* another queue's write counts */
	assert_int_equal(atomic_load(&nsyncs), 1);
	assert_int_equal(send_and_wait(&f.a, BLK_FLUSH, 0), 0);
	assert_int_equal(atomic_load(&nsyncs), 1);
	assert_int_equal(send_and_wait(&f.a, BLK_WRITE_ZEROES, 0), 0);
	assert_int_equal(send_and_wait(&f.a, BLK_FLUSH, 0), 0);
	assert_int_equal(atomic_load(&nsyncs), 2);
	assert_int_equal(send_and_wait(&f.c, BLK_DISCARD, 0), 0);
	assert_int_equal(send_and_wait(&f.a, BLK_FLUSH, 0), 0);
	assert_int_equal(atomic_load(&nsyncs), 3);
	teardown(&f);
}

/* Those who come while one is at work, from any queue, share the next one. */
static void test_grouped(void **state)
{
	struct fixture f;
	struct sent first, s[6];

	setup(&f);
	assert_int_equal(send_and_wait(&f.a, BLK_WRITE, 0), 0);
	submit(&f.a, &first, BLK_FLUSH, 0);
	wait_sem(&began);
	assert_int_equal(send_and_wait(&f.c, BLK_WRITE, 0), 0); /* the first may or may not cover this */
	for (unsigned i = 0; i < 6; i++)
		submit(i & 1 ? &f.a : &f.c, &s[i], BLK_FLUSH, 0);
	assert_false(is_done(&first));
	sem_post(&go);
	assert_int_equal(wait_done(&first), 0);
	wait_sem(&began);
	for (unsigned i = 0; i < 6; i++)
		assert_false(is_done(&s[i]));
	sem_post(&go);
	for (unsigned i = 0; i < 6; i++)
		assert_int_equal(wait_done(&s[i]), 0);
	assert_int_equal(atomic_load(&nsyncs), 2);
	teardown(&f);
}

/* What came while one was at work, but had nothing new to wait for, needs no other. */
static void test_covered(void **state)
{
	struct fixture f;
	struct sent first, second;

	setup(&f);
	assert_int_equal(send_and_wait(&f.a, BLK_WRITE, 0), 0);
	submit(&f.a, &first, BLK_FLUSH, 0);
	wait_sem(&began);
	submit(&f.c, &second, BLK_FLUSH, 0);
	assert_false(is_done(&second));
	sem_post(&go);
	assert_int_equal(wait_done(&first), 0);
	assert_int_equal(wait_done(&second), 0);
	assert_int_equal(atomic_load(&nsyncs), 1);
	teardown(&f);
}

/* Reads and writes go on while one is at work. */
static void test_others_go_on(void **state)
{
	struct fixture f;
	struct sent flush;

	setup(&f);
	assert_int_equal(send_and_wait(&f.a, BLK_WRITE, 0), 0);
	submit(&f.a, &flush, BLK_FLUSH, 0);
	wait_sem(&began);
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(send_and_wait(i & 1 ? &f.a : &f.c, i & 2 ? BLK_READ : BLK_WRITE, 0), 0);
	assert_false(is_done(&flush));
	sem_post(&go);
	assert_int_equal(wait_done(&flush), 0);
	teardown(&f);
}

/* Once failed, never again: also for those who wait, and for writes that are to be durable. */
static void test_failed(void **state)
{
	struct fixture f;
	struct sent first, second;

	setup(&f);
	assert_int_equal(send_and_wait(&f.a, BLK_WRITE, 0), 0);
	submit(&f.a, &first, BLK_FLUSH, 0);
	wait_sem(&began);
	assert_int_equal(send_and_wait(&f.c, BLK_WRITE, 0), 0);
	submit(&f.c, &second, BLK_FLUSH, 0);
	atomic_store(&result, EIO);
	sem_post(&go);
	assert_int_equal(wait_done(&first), -EIO);
	assert_int_equal(wait_done(&second), -EIO);
	atomic_store(&result, 0);
	atomic_store(&gated, false);
	assert_int_equal(send_and_wait(&f.a, BLK_FLUSH, 0), -EIO);
	assert_int_equal(send_and_wait(&f.a, BLK_WRITE, 0), 0);
	assert_int_equal(send_and_wait(&f.c, BLK_FLUSH, 0), -EIO);
	assert_int_equal(send_and_wait(&f.c, BLK_WRITE, BLK_FUA), -EIO);
	assert_int_equal(send_and_wait(&f.c, BLK_READ, 0), 0);
	assert_int_equal(atomic_load(&nsyncs), 1);
	agent_stop(&f.a);
	agent_stop(&f.c);
	blk_close(f.b);
	f.b = blkfix_open(f.path, &(struct blk_options){ .format = BLK_RAW }); /* opened anew: a new start */
	agent_start(&f.a, f.b);
	agent_start(&f.c, f.b);
	assert_int_equal(send_and_wait(&f.a, BLK_WRITE, 0), 0);
	assert_int_equal(send_and_wait(&f.a, BLK_FLUSH, 0), 0);
	teardown(&f);
}

/* A durable write is done when its fdatasync is; such writes share them too. */
static void durable(enum blk_cache cache, unsigned flags)
{
	struct fixture f;
	struct sent first, s[4];

	setup_with(&f, cache);
	submit(&f.a, &first, BLK_WRITE, flags);
	wait_sem(&began);
	assert_false(is_done(&first));
	submit(&f.c, &s[0], BLK_WRITE, flags);
	submit(&f.a, &s[1], BLK_WRITE_ZEROES, flags);
	submit(&f.c, &s[2], BLK_WRITE, flags);
	submit(&f.a, &s[3], BLK_WRITE, flags);
	for (unsigned i = 0; i < 4; i++) /* a read behind each: the writes themselves are over */
		assert_int_equal(send_and_wait(i & 1 ? &f.a : &f.c, BLK_READ, 0), 0);
	atomic_store(&gated, false);
	sem_post(&go);
	assert_int_equal(wait_done(&first), 0);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(wait_done(&s[i]), 0);
	assert_in_range(atomic_load(&nsyncs), 2, 5);
	teardown(&f);
}

static void test_durable(void **state)
{
	durable(BLK_WRITETHROUGH, 0);
	durable(BLK_WRITEBACK, BLK_FUA);
}

static void test_unsafe(void **state)
{
	struct fixture f;

	setup_with(&f, BLK_UNSAFE);
	assert_int_equal(send_and_wait(&f.a, BLK_WRITE, 0), 0);
	assert_int_equal(send_and_wait(&f.a, BLK_FLUSH, 0), 0);
	assert_int_equal(send_and_wait(&f.a, BLK_WRITE, BLK_FUA), 0);
	assert_int_equal(atomic_load(&nsyncs), 0);
	teardown(&f);
}

/* From all sides at once: every flush ends, and no more fdatasyncs than flushes. */
struct storm {
	struct agent *a;
	pthread_t thread;
};

static void *on_storm(void *arg)
{
	struct storm *s = arg;

	for (unsigned i = 0; i < 300; i++)
		if (send_and_wait(s->a, BLK_WRITE, 0) || send_and_wait(s->a, BLK_FLUSH, 0))
			abort();
	return NULL;
}

static void test_storm(void **state)
{
	struct fixture f;
	struct storm s[2] = { { .a = &f.a }, { .a = &f.c } };

	setup(&f);
	atomic_store(&gated, false);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&s[i].thread, NULL, on_storm, &s[i]), 0);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(pthread_join(s[i].thread, NULL), 0);
	assert_in_range(atomic_load(&nsyncs), 1, 600);
	teardown(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nothing_to_do), cmocka_unit_test(test_grouped),
		cmocka_unit_test(test_covered),       cmocka_unit_test(test_failed),
		cmocka_unit_test(test_others_go_on),  cmocka_unit_test(test_durable),
		cmocka_unit_test(test_unsafe),        cmocka_unit_test(test_storm),
	};

	/* The thread pool calls fdatasync(2); a ring's would not be ours. */
	if (setenv("KVM_NO_URING", "1", 1))
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
