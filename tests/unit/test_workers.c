// SPDX-License-Identifier: GPL-2.0-or-later
/* Workers: all that is given is done, in order, by no more threads than were allowed, without their owner. */
#include "base/workers.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#define MAX 4

/* What one of the tests gives. */
struct item {
	struct work work; /* first */
	unsigned number;
};

int __real_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*start)(void *), void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*start)(void *), void *arg);

static bool no_threads;

int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*start)(void *), void *arg)
{
	return no_threads ? EAGAIN : __real_pthread_create(t, attr, start, arg);
}

static sem_t begun, go, ended;
static atomic_uint ndone, last, disordered;

static void count(struct work *w)
{
	struct item *it = (struct item *)w;

	if (atomic_exchange(&last, it->number) >= it->number)
		atomic_fetch_add(&disordered, 1);
	atomic_fetch_add(&ndone, 1);
	free(it);
}

static void give(struct workers *ws, void (*run)(struct work *w), unsigned number)
{
	struct item *it = calloc(1, sizeof(*it));

	assert_non_null(it);
	it->work.run = run;
	it->number = number;
	assert_true(workers_give(ws, &it->work));
}

static void meet(struct work *w)
{
	sem_post(&begun);
	sem_wait(&go);
	sem_post(&ended);
	free(w);
}

static void wait_n(sem_t *s, unsigned n)
{
	while (n--)
		sem_wait(s);
}

static void post_n(sem_t *s, unsigned n)
{
	while (n--)
		sem_post(s);
}

/* One worker takes it all in the order in which it came; freeing waits for the last of it. */
static void test_order(void **state)
{
	struct workers *ws = workers_new(1);

	assert_non_null(ws);
	atomic_store(&ndone, 0);
	atomic_store(&last, 0);
	atomic_store(&disordered, 0);
	for (unsigned i = 1; i <= 10000; i++)
		give(ws, count, i);
	give(ws, meet, 0);
	wait_n(&begun, 1);
	post_n(&go, 1);
	workers_free(ws);
	assert_int_equal(atomic_load(&ndone), 10000);
	assert_int_equal(atomic_load(&disordered), 0);
	wait_n(&ended, 1);
}

/* As many at once as were allowed; what is more waits, and is not lost. */
static void test_at_once(void **state)
{
	struct workers *ws = workers_new(MAX);
	int n;

	assert_non_null(ws);
	for (unsigned round = 0; round < 200; round++) {
		for (unsigned i = 0; i < MAX + 2; i++)
			give(ws, meet, 0);
		wait_n(&begun, MAX);
		sem_getvalue(&begun, &n);
		assert_int_equal(n, 0);
		post_n(&go, MAX);
		wait_n(&begun, 2);
		post_n(&go, 2);
		wait_n(&ended, MAX + 2);
	}
	workers_free(ws);
}

/* Where no thread can be had, the caller is told and keeps its work; later there may be one. */
static void test_no_thread(void **state)
{
	struct workers *ws = workers_new(MAX);
	struct item it = { .work.run = count };

	assert_non_null(ws);
	no_threads = true;
	assert_false(workers_give(ws, &it.work));
	no_threads = false;
	give(ws, meet, 0);
	wait_n(&begun, 1);
	no_threads = true;
	give(ws, meet, 0); /* waits for the one there is */
	post_n(&go, 2);
	wait_n(&begun, 1);
	wait_n(&ended, 2);
	no_threads = false;
	workers_free(ws);
	workers_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_at_once),
		cmocka_unit_test(test_no_thread),
	};

	sem_init(&begun, 0, 0);
	sem_init(&go, 0, 0);
	sem_init(&ended, 0, 0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
