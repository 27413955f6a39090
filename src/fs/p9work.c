// SPDX-License-Identifier: GPL-2.0-or-later
#include "fs/p9_impl.h"

#include "base/container_of.h"
#include "base/loop_thread.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/*
 * How it works
 *
 * Jobs wait in one queue. A new one wakes an idle worker, or starts another if
 * there are fewer than MAX_WORKERS; one that was idle for IDLE_SECONDS ends.
 * Workers are detached and never waited for, as one may hang for ever in a dead
 * mount: each holds a reference to the host, and that is all that holds it.
 * Once the session is gone they empty the queue (descriptors to be closed) and
 * end.
 *
 * Where no thread can be started a job waits for the workers there are. If
 * there are none at all it is done here and now: late is better than never.
 */

#define MAX_WORKERS  64
#define IDLE_SECONDS 10
#define STACK_SIZE   (512u << 10)

/* Waits for a job, with the lock held. NULL: the worker should end. */
static struct job *next_job(struct host *h)
{
	struct timespec until;
	struct job *j;
	int error = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += IDLE_SECONDS;
	h->idle++;
	while (!h->queue && !h->dead && !error)
		error = pthread_cond_timedwait(&h->more, &h->lock, &until);
	h->idle--;
	j = h->queue;
	if (j) {
		h->queue = j->next;
		if (!h->queue)
			h->queue_end = &h->queue;
	}
	return j;
}

static void *worker(void *arg)
{
	struct host *h = arg;
	struct job *j;

	loop_thread_left();
	pthread_setname_np(pthread_self(), "9p");
	pthread_mutex_lock(&h->lock);
	while ((j = next_job(h))) {
		pthread_mutex_unlock(&h->lock);
		j->run(j);
		pthread_mutex_lock(&h->lock);
	}
	h->workers--;
	pthread_mutex_unlock(&h->lock);
	host_put(h);
	return NULL;
}

/* Signals are the main thread's. */
static int start_worker(struct host *h)
{
	pthread_attr_t attr;
	sigset_t all, old;
	pthread_t thread;
	int error;

	sigfillset(&all);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, STACK_SIZE);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	error = pthread_create(&thread, &attr, worker, host_get(h));
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	if (error)
		atomic_fetch_sub(&h->refs, 1); /* the caller has another */
	return error;
}

static unsigned queue_length(const struct host *h)
{
	unsigned n = 0;

	for (const struct job *j = h->queue; j && n <= h->idle; j = j->next)
		n++;
	return n;
}

void pool_push(struct host *h, struct job *j)
{
	bool alone;

	pthread_mutex_lock(&h->lock);
	/* An idle worker that was woken for an earlier job may not have come to it yet: count jobs, too. */
	if (h->workers < MAX_WORKERS && queue_length(h) >= h->idle && !start_worker(h))
		h->workers++;
	alone = !h->workers;
	if (!alone) {
		j->next = NULL;
		*h->queue_end = j;
		h->queue_end = &j->next;
		pthread_cond_signal(&h->more);
	}
	pthread_mutex_unlock(&h->lock);
	if (alone)
		j->run(j);
}

bool pool_cancel(struct host *h, struct job *j)
{
	struct job **p;
	bool found;

	pthread_mutex_lock(&h->lock);
	for (p = &h->queue; *p && *p != j; p = &(*p)->next)
		;
	found = *p;
	if (found) {
		*p = j->next;
		if (!*p)
			h->queue_end = p;
	}
	pthread_mutex_unlock(&h->lock);
	return found;
}

void pool_done(struct op *op)
{
	struct host *h = op->host;
	bool dead;

	pthread_mutex_lock(&h->lock);
	dead = h->dead;
	if (!dead) {
		op->done_next = NULL;
		*h->done_end = op;
		h->done_end = &op->done_next;
		/* Under the lock: once the session is dead nothing is posted to a loop that may be gone. */
		loop_post(h->loop, &h->task);
	}
	pthread_mutex_unlock(&h->lock);
	if (dead)
		op_free(op);
}

struct op *pool_reap(struct host *h)
{
	struct op *op;

	pthread_mutex_lock(&h->lock);
	op = h->done;
	if (op) {
		h->done = op->done_next;
		if (!h->done)
			h->done_end = &h->done;
	}
	pthread_mutex_unlock(&h->lock);
	return op;
}

void pool_end(struct host *h)
{
	pthread_mutex_lock(&h->lock);
	h->dead = true;
	pthread_cond_broadcast(&h->more);
	pthread_mutex_unlock(&h->lock);
}
