// SPDX-License-Identifier: GPL-2.0-or-later
#include "base/loop_thread.h"

#include "base/clock.h"
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
#include <unistd.h>

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
 * Which is better depends on the guest, and on what else runs; what comes one by
 * one when served at once may come in dozens otherwise. So it is tried: WINDOW
 * turns in the manner there is, then as many in the other one; batch is it unless
 * it has answered clearly less in a time, as it costs less. Then there is a rest,
 * after a trial that changed nothing twice as long as before.
 *
 * Batch ends at once when it brings less than MANY requests a turn, and a trial
 * that goes badly is ended early: a vCPU that never waits keeps the processor for
 * milliseconds. Where processors are idle the thread wakes up at once either way.
 *
 * The loop spins a moment before it sleeps, where there is a processor for that
 * besides the vCPU's, and not in batch, which says that there is none idle.
 */

#define WINDOW   32
#define REST_MIN 64
#define REST_MAX 1024
#define LOOK     16 /* turns of batch, to see what they bring */
#define MANY     2
#define CLEARLY  1.25
#define SPIN_NS  32000

enum phase {
	REST,   /* t->rest turns */
	BEFORE, /* WINDOW turns, in the same manner */
	TRIAL,  /* WINDOW turns, in the other one */
};

struct loop_thread {
	struct loop *loop;
	pthread_t thread;
	struct loop_task started;
	sem_t running;    /* or ended */
	atomic_int error; /* why it ended */
	bool stopped;
	/* [l] */
	bool chooses; /* nobody else has chosen how this process is scheduled */
	bool others;  /* there is more than one processor */
	bool batch;
	enum phase phase;
	unsigned rest, turns; /* turns of this phase */
	uint64_t served;      /* requests in this phase */
	uint64_t since;       /* ns: when it began */
	uint64_t took;        /* ns: BEFORE */
	double before;        /* requests for a nanosecond in BEFORE */
	unsigned looked;      /* turns of batch since the last look, and what they brought */
	uint64_t brought;
};

static void change_manner(struct loop_thread *t)
{
	t->batch = !t->batch;
	t->looked = 0;
	t->brought = 0;
	loop_spin(t->loop, t->batch || !t->others ? 0 : SPIN_NS);
	/* Where it is forbidden it is as it was. */
	(void)sched_setscheduler(0, t->batch ? SCHED_BATCH : SCHED_OTHER, &(struct sched_param){ 0 });
}

void loop_thread_left(void)
{
	if (sched_getscheduler(0) == SCHED_BATCH && sched_getscheduler(getpid()) == SCHED_OTHER)
		(void)sched_setscheduler(0, SCHED_OTHER, &(struct sched_param){ 0 });
}

static double rate_until(const struct loop_thread *t, uint64_t now)
{
	return (double)t->served / (double)(now - t->since + 1);
}

static bool goes_badly(const struct loop_thread *t)
{
	uint64_t now = clock_ns();

	return now - t->since > 2 * t->took && rate_until(t, now) < t->before;
}

static void begin(struct loop_thread *t, enum phase phase, uint64_t now)
{
	t->phase = phase;
	t->turns = 0;
	t->served = 0;
	t->since = now;
}

static void begin_rest(struct loop_thread *t, bool changed)
{
	t->rest = changed ? REST_MIN : t->rest < REST_MAX ? 2 * t->rest : REST_MAX;
	begin(t, REST, clock_ns());
}

/* At the end of a trial: shall it stay so? Of batch is known that it brings many. */
static bool is_better(const struct loop_thread *t, uint64_t now)
{
	return rate_until(t, now) > (t->batch ? t->before / CLEARLY : t->before * CLEARLY);
}

static void end_phase(struct loop_thread *t)
{
	uint64_t now = clock_ns();
	bool better;

	switch (t->phase) {
	case REST: begin(t, BEFORE, now); break;
	case BEFORE:
		t->before = rate_until(t, now);
		t->took = now - t->since;
		change_manner(t);
		begin(t, TRIAL, now);
		break;
	case TRIAL:
		better = is_better(t, now);
		if (!better)
			change_manner(t);
		begin_rest(t, better);
		break;
	}
}

/* Does batch bring little? */
static bool look(struct loop_thread *t, unsigned n)
{
	bool little;

	t->brought += n;
	if (++t->looked < LOOK)
		return false;
	little = t->brought < MANY * LOOK;
	t->looked = 0;
	t->brought = 0;
	return little;
}

static void on_served(void *arg, unsigned n)
{
	struct loop_thread *t = arg;
	bool trial = t->phase == TRIAL;

	if (!t->chooses)
		return;
	t->served += n;
	if (t->batch && look(t, n)) {
		change_manner(t);
		begin_rest(t, !trial);
		return;
	}
	if (++t->turns >= (t->phase == REST ? t->rest : WINDOW) || (trial && goes_badly(t)))
		end_phase(t);
}

static void on_started(struct loop_task *task)
{
	sem_post(&container_of(task, struct loop_thread, started)->running);
}

static void *run(void *arg)
{
	struct loop_thread *t = arg;
	cpu_set_t cpus;
	int error;

	t->chooses = sched_getscheduler(0) == SCHED_OTHER;
	t->others = sched_getaffinity(0, sizeof(cpus), &cpus) < 0 || CPU_COUNT(&cpus) > 1;
	if (t->chooses && t->others)
		loop_spin(t->loop, SPIN_NS);
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
	t->rest = REST_MIN;
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
