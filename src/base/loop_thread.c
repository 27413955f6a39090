// SPDX-License-Identifier: GPL-2.0-or-later
#include "base/loop_thread.h"

#include "base/container_of.h"
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/*
 * How it works
 *
 * Where all processors are busy, a request of a guest wakes the thread up on the
 * one of its vCPU, and one of two things is better:
 *
 *	at once     the vCPU is interrupted, and has its answer before it would
 *	            have gone to sleep: for a guest that asks and waits
 *	batch       SCHED_BATCH: the vCPU goes on until it waits, and then all that
 *	            it has asked is served together: for a guest that asks much.
 *	            Interrupted, it would get it back one by one
 *
 * Only trying tells which: what comes one by one when served at once may come
 * in dozens otherwise. So after AT_ONCE_MIN turns there is a trial of TRIAL turns,
 * and the manner stays as long as trials bring MANY requests a turn. After one
 * that brought less the next comes twice as late, up to AT_ONCE_MAX. Where
 * processors are idle the thread wakes up at once either way.
 */

#define AT_ONCE_MIN 256
#define AT_ONCE_MAX 2048
#define TRIAL       16
#define MANY        2

struct loop_thread {
	struct loop *loop;
	pthread_t thread;
	struct loop_task started;
	sem_t running;    /* or ended */
	atomic_int error; /* why it ended */
	bool stopped;
	/* [l] */
	bool chooses; /* nobody else has chosen how this process is scheduled */
	bool batch;
	unsigned turns, served; /* in this manner, since the last decision */
	unsigned at_once;       /* turns until the next trial */
};

static void set_batch(struct loop_thread *t, bool batch)
{
	t->batch = batch;
	(void)sched_setscheduler(0, batch ? SCHED_BATCH : SCHED_OTHER, &(struct sched_param){ 0 }); /* forbidden: as it was */
}

static void on_served(void *arg, unsigned n)
{
	struct loop_thread *t = arg;

	t->served += n;
	if (++t->turns < (t->batch ? TRIAL : t->at_once) || !t->chooses)
		return;
	if (!t->batch) {
		set_batch(t, true);
	} else if (t->served < MANY * t->turns) {
		set_batch(t, false);
		t->at_once = t->at_once < AT_ONCE_MAX ? 2 * t->at_once : AT_ONCE_MAX;
	} else {
		t->at_once = AT_ONCE_MIN;
	}
	t->turns = t->served = 0;
}

static void on_started(struct loop_task *task)
{
	sem_post(&container_of(task, struct loop_thread, started)->running);
}

static void *run(void *arg)
{
	struct loop_thread *t = arg;
	int error;

	t->chooses = sched_getscheduler(0) == SCHED_OTHER;
	error = loop_run(t->loop);

	atomic_store(&t->error, error);
	if (error) /* the kernel has no memory for a wait: later on nobody is left to tell */
		log_line("an I/O thread has ended: %s", strerror(-error));
	sem_post(&t->running);
	return NULL;
}

/* Signals are for other threads. */
static int start(struct loop_thread *t)
{
	sigset_t all, old;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	error = pthread_create(&t->thread, NULL, run, t);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return -error;
}

static void free_all(struct loop_thread *t)
{
	loop_free(t->loop);
	sem_destroy(&t->running);
	free(t);
}

/* Until it runs, loop_here() is true for everybody. */
static int wait_until_it_runs(struct loop_thread *t)
{
	t->started.cb = on_started;
	loop_post(t->loop, &t->started);
	while (sem_wait(&t->running) && errno == EINTR)
		;
	if (!atomic_load(&t->error))
		return 0;
	pthread_join(t->thread, NULL);
	loop_task_del(t->loop, &t->started);
	return atomic_load(&t->error);
}

int loop_thread_new(const char *name, struct loop_thread **out, struct err *err)
{
	struct loop_thread *t = calloc(1, sizeof(*t));
	int error;

	if (!t)
		return err_set(err, -ENOMEM, "out of memory");
	sem_init(&t->running, 0, 0);
	t->at_once = AT_ONCE_MIN;
	error = loop_new_ring(&t->loop, err);
	if (!error) {
		loop_on_served(t->loop, on_served, t);
		error = start(t);
		if (!error)
			error = wait_until_it_runs(t);
		if (error)
			err_sys(err, error, "thread %s", name);
	}
	if (error) {
		free_all(t);
		return error;
	}
	pthread_setname_np(t->thread, name);
	*out = t;
	return 0;
}

void loop_thread_stop(struct loop_thread *t)
{
	if (!t || t->stopped)
		return;
	loop_quit(t->loop);
	pthread_join(t->thread, NULL);
	t->stopped = true;
}

void loop_thread_free(struct loop_thread *t)
{
	if (!t)
		return;
	loop_thread_stop(t);
	free_all(t);
}

struct loop *loop_thread_loop(struct loop_thread *t)
{
	return t->loop;
}
