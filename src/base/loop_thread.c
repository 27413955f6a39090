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
 * The thread is of SCHED_BATCH: on a processor that is idle it wakes up as fast
 * as any, but it takes none away from a vCPU. There a guest that starts many
 * requests would be interrupted for each, and get them back one by one. So it
 * goes on until it has to wait, and then all of them are served at once.
 */

struct loop_thread {
	struct loop *loop;
	pthread_t thread;
	struct loop_task started;
	sem_t running;    /* or ended */
	atomic_int error; /* why it ended */
	bool stopped;
};

static void on_started(struct loop_task *task)
{
	sem_post(&container_of(task, struct loop_thread, started)->running);
}

static void *run(void *arg)
{
	struct loop_thread *t = arg;
	int error;

	(void)sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){ 0 }); /* may be forbidden, and then is not */
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
	error = loop_new_ring(&t->loop, err);
	if (!error) {
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
