// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The event loop. Nothing here measures time: a wake-up that gets lost hangs
 * the test, a callback that must not come fails it. Timers an hour away stand
 * for "never".
 */
#include "base/evt.h"
#include "base/loop.h"
#include "base/loop_thread.h"
#include "base/workers.h"

#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#define LEN(a)             (sizeof(a) / sizeof(*(a)))
#define OUTER(p, type, at) ((type *)(void *)((char *)(p)-offsetof(type, at)))
#define HOUR               3600000000000ull
#define STORM_THREADS      4
#define STORM_POSTS        20000
#define PING_ROUNDS        2000
#define SWAP_ROUNDS        4000 /* more than a loop has places */

/* A pipe with its reading end on the loop. */
struct chan {
	struct loop_fd f;
	struct loop *l;
	int wr;
	struct chan *victim;  /* removed by the callback */
	struct chan *newborn; /* added by it */
	bool quit;
	unsigned calls;
	short revents;
};

struct timer {
	struct loop_timer t;
	struct loop *l;
	struct timer *victim;
	unsigned again; /* how often it sets itself once more */
	bool quit;
	unsigned calls, order; /* @order: when it fired, from 1 */
	unsigned *clock;
};

struct task {
	struct loop_task t;
	struct loop *l;
	unsigned again;
	bool quit;
	unsigned calls;
};

/* Every test runs on either kind of loop. */
static int (*make_loop)(struct loop **out, struct err *err);

static struct loop *new_loop(void)
{
	struct loop *l;
	struct err err;

	assert_int_equal(make_loop(&l, &err), 0);
	assert_true(make_loop == loop_new || loop_has_ring(l));
	return l;
}

static int setup(void **state)
{
	*state = new_loop();
	return 0;
}

static int teardown(void **state)
{
	loop_free(*state);
	return 0;
}

static void chan_cb(struct loop_fd *f, short revents)
{
	struct chan *c = OUTER(f, struct chan, f);
	char byte;

	c->calls++;
	c->revents = revents;
	if (revents & POLLIN)
		assert_in_range(read(f->fd, &byte, 1), 0, 1);
	if (c->victim)
		loop_fd_del(c->l, &c->victim->f);
	if (c->newborn)
		loop_fd_add(c->l, &c->newborn->f);
	c->victim = c->newborn = NULL;
	if (c->quit)
		loop_quit(c->l);
}

static void chan_init(struct chan *c, struct loop *l)
{
	int p[2];

	assert_int_equal(pipe2(p, O_CLOEXEC), 0);
	*c = (struct chan){ .f = { .fd = p[0], .events = POLLIN, .cb = chan_cb }, .l = l, .wr = p[1] };
}

static void chan_fini(struct chan *c)
{
	close(c->f.fd);
	if (c->wr >= 0)
		close(c->wr);
}

static void chan_send(struct chan *c)
{
	assert_int_equal(write(c->wr, "x", 1), 1);
}

static void timer_cb(struct loop_timer *lt)
{
	struct timer *t = OUTER(lt, struct timer, t);

	assert_false(lt->armed);
	t->calls++;
	if (t->clock)
		t->order = ++*t->clock;
	if (t->victim)
		loop_timer_del(t->l, &t->victim->t);
	if (t->again) {
		t->again--;
		loop_timer_set(t->l, lt, 0);
	} else if (t->quit) {
		loop_quit(t->l);
	}
}

static struct timer timer_new(struct loop *l)
{
	return (struct timer){ .t = { .cb = timer_cb }, .l = l };
}

static void task_cb(struct loop_task *lt)
{
	struct task *t = OUTER(lt, struct task, t);

	assert_true(loop_here(t->l));
	t->calls++;
	if (t->again) {
		t->again--;
		loop_post(t->l, lt);
	} else if (t->quit) {
		loop_quit(t->l);
	}
}

static struct task task_new(struct loop *l)
{
	return (struct task){ .t = { .cb = task_cb }, .l = l };
}

static void run(struct loop *l)
{
	assert_int_equal(loop_run(l), 0);
}

static void free_null(void **state)
{
	loop_free(NULL);
}

/* Each quit ends one run, and only one. */
static void quit_before_run(void **state)
{
	struct loop *l = *state;
	struct task t = task_new(l);

	loop_quit(l);
	run(l);
	t.quit = true;
	loop_post(l, &t.t);
	run(l);
	assert_int_equal(t.calls, 1);
	loop_quit(l);
	loop_quit(l);
	run(l);
}

static void fd_ready(void **state)
{
	struct chan a, b;

	chan_init(&a, *state);
	chan_init(&b, *state);
	loop_fd_add(*state, &a.f);
	loop_fd_add(*state, &b.f);
	a.quit = true;
	chan_send(&a);
	run(*state);
	assert_int_equal(a.calls, 1);
	assert_int_equal(a.revents, POLLIN);
	assert_int_equal(b.calls, 0);
	loop_fd_del(*state, &a.f);
	loop_fd_del(*state, &b.f);
	loop_fd_del(*state, &b.f); /* once more is nothing */
	chan_fini(&a);
	chan_fini(&b);
}

static void fd_hangup(void **state)
{
	struct chan c;

	chan_init(&c, *state);
	c.quit = true;
	loop_fd_add(*state, &c.f);
	close(c.wr);
	c.wr = -1;
	run(*state);
	assert_int_equal(c.revents, POLLHUP);
	loop_fd_del(*state, &c.f);
	chan_fini(&c);
}

/* A file, which epoll would refuse, is always ready, also at its end. */
static void fd_regular_file(void **state)
{
	FILE *tmp = tmpfile();
	struct chan c = { .f = { .fd = fileno(tmp), .events = POLLIN, .cb = chan_cb }, .l = *state, .quit = true };

	loop_fd_add(*state, &c.f);
	run(*state);
	assert_int_equal(c.calls, 1);
	assert_int_equal(c.revents & POLLIN, POLLIN);
	loop_fd_del(*state, &c.f);
	fclose(tmp);
}

struct waker {
	struct loop_task t;
	struct chan *c;
};

static void wake_cb(struct loop_task *t)
{
	struct chan *c = OUTER(t, struct waker, t)->c;

	assert_int_equal(c->calls, 0);
	c->f.events = POLLIN;
}

/* Without events a ready descriptor sleeps; they may be set at any time. */
static void fd_asleep(void **state)
{
	struct chan sleeper, other;
	struct waker w = { .t = { .cb = wake_cb }, .c = &sleeper };

	chan_init(&sleeper, *state);
	chan_init(&other, *state);
	loop_fd_add(*state, &sleeper.f);
	loop_fd_add(*state, &other.f);
	sleeper.f.events = 0;
	sleeper.quit = other.quit = true;
	chan_send(&sleeper);
	chan_send(&other);
	run(*state);
	assert_int_equal(sleeper.calls, 0);
	assert_int_equal(other.calls, 1);
	loop_post(*state, &w.t);
	run(*state);
	assert_int_equal(sleeper.calls, 1);
	loop_fd_del(*state, &sleeper.f);
	loop_fd_del(*state, &other.f);
	chan_fini(&sleeper);
	chan_fini(&other);
}

static void lull_cb(struct loop_fd *f, short revents)
{
	struct chan *c = OUTER(f, struct chan, f);

	c->calls++;
	c->victim->f.events = 0;
	loop_quit(c->l);
}

/* Put to sleep by another callback of the same turn: not called in it either. */
static void fd_put_to_sleep(void **state)
{
	struct chan c[2];

	for (unsigned i = 0; i < 2; i++) {
		chan_init(&c[i], *state);
		c[i].f.cb = lull_cb;
		c[i].victim = &c[1 - i];
		loop_fd_add(*state, &c[i].f);
		chan_send(&c[i]);
	}
	run(*state);
	assert_int_equal(c[0].calls + c[1].calls, 1);
	for (unsigned i = 0; i < 2; i++) {
		loop_fd_del(*state, &c[i].f);
		chan_fini(&c[i]);
	}
}

/* Two ready ones, each removing the other: whichever comes first, the second never does. */
static void fd_del_ready(void **state)
{
	struct chan c[2];

	for (unsigned i = 0; i < 2; i++) {
		chan_init(&c[i], *state);
		c[i].victim = &c[1 - i];
		c[i].quit = true;
		loop_fd_add(*state, &c[i].f);
		chan_send(&c[i]);
	}
	run(*state);
	assert_int_equal(c[0].calls + c[1].calls, 1);
	for (unsigned i = 0; i < 2; i++) {
		loop_fd_del(*state, &c[i].f);
		chan_fini(&c[i]);
	}
}

static void suicide_cb(struct loop_fd *f, short revents)
{
	struct chan *c = OUTER(f, struct chan, f);
	struct loop *l = c->l;

	loop_fd_del(l, f);
	chan_fini(c);
	free(c);
	loop_quit(l);
}

/* A callback may free its own struct: the sanitizers watch that nobody looks at it again. */
static void fd_del_self(void **state)
{
	struct chan *c = malloc(sizeof(*c));

	chan_init(c, *state);
	c->f.cb = suicide_cb;
	loop_fd_add(*state, &c->f);
	chan_send(c);
	run(*state);
}

/* Removed and added again within one callback: still there in the next turn. */
static void fd_readd(void **state)
{
	struct chan c;

	chan_init(&c, *state);
	c.victim = c.newborn = &c;
	loop_fd_add(*state, &c.f);
	chan_send(&c);
	chan_send(&c);
	c.quit = true;
	run(*state);
	run(*state);
	assert_int_equal(c.calls, 2);
	loop_fd_del(*state, &c.f);
	chan_fini(&c);
}

static void fd_add_in_callback(void **state)
{
	struct chan c[3];

	for (unsigned i = 0; i < LEN(c); i++) {
		chan_init(&c[i], *state);
		chan_send(&c[i]);
	}
	c[0].newborn = &c[1];
	c[1].newborn = &c[2];
	c[2].quit = true;
	loop_fd_add(*state, &c[0].f);
	run(*state);
	for (unsigned i = 0; i < LEN(c); i++) {
		assert_int_equal(c[i].calls, 1);
		loop_fd_del(*state, &c[i].f);
		chan_fini(&c[i]);
	}
}

static bool fires_before(const struct timer *t, unsigned a, unsigned b)
{
	return t[a].t.at < t[b].t.at || (t[a].t.at == t[b].t.at && a < b);
}

/* By time, and those of one time as they were set. */
static void timer_order(void **state)
{
	static const unsigned ns[] = { 900000, 0, 500000, 0, 0, 700000, 1, 500000, 2, 800000 };
	struct timer t[LEN(ns)], last = timer_new(*state);
	unsigned clock = 0;

	for (unsigned i = 0; i < LEN(ns); i++) {
		t[i] = timer_new(*state);
		t[i].clock = &clock;
		loop_timer_set(*state, &t[i].t, ns[i]);
	}
	last.quit = true;
	loop_timer_set(*state, &last.t, 1000000);
	run(*state);
	for (unsigned i = 0; i < LEN(ns); i++) {
		unsigned order = 1;

		for (unsigned j = 0; j < LEN(ns); j++)
			order += fires_before(t, j, i);
		assert_int_equal(t[i].calls, 1);
		assert_int_equal(t[i].order, order);
	}
}

/* A timer is moved forth and back, and fires once. */
static void timer_move(void **state)
{
	struct timer t = timer_new(*state), u = timer_new(*state);

	t.quit = true;
	loop_timer_set(*state, &u.t, HOUR);
	loop_timer_set(*state, &t.t, 2 * HOUR);
	loop_timer_set(*state, &t.t, 0);
	run(*state);
	assert_int_equal(t.calls, 1);
	assert_int_equal(u.calls, 0);
	loop_timer_set(*state, &t.t, 0);
	loop_timer_set(*state, &t.t, HOUR);
	u.quit = true;
	loop_timer_set(*state, &u.t, 0);
	run(*state);
	assert_int_equal(t.calls, 1);
	assert_int_equal(u.calls, 1);
	loop_timer_del(*state, &t.t);
}

static void timer_never(void **state)
{
	struct timer t = timer_new(*state), u = timer_new(*state);

	u.quit = true;
	loop_timer_set(*state, &u.t, 0);
	loop_timer_set(*state, &t.t, UINT64_MAX); /* must not wrap around to now */
	run(*state);
	assert_int_equal(t.calls, 0);
	assert_true(t.t.armed);
	loop_timer_del(*state, &t.t);
	assert_false(t.t.armed);
	loop_timer_del(*state, &t.t);
}

/* All due at once; each removes another one. */
static void timer_del_due(void **state)
{
	struct timer t[3];

	for (unsigned i = 0; i < LEN(t); i++) {
		t[i] = timer_new(*state);
		loop_timer_set(*state, &t[i].t, 0);
	}
	t[0].victim = &t[1];
	t[2].victim = &t[2]; /* itself, no longer armed */
	t[2].quit = true;
	run(*state);
	assert_int_equal(t[0].calls, 1);
	assert_int_equal(t[1].calls, 0);
	assert_int_equal(t[2].calls, 1);
}

static void timer_again(void **state)
{
	struct timer t = timer_new(*state);

	t.again = 1000;
	t.quit = true;
	loop_timer_set(*state, &t.t, 0);
	run(*state);
	assert_int_equal(t.calls, 1001);
}

/* A descriptor that is always ready does not keep timers from firing. */
static void timer_with_busy_fd(void **state)
{
	struct chan c;
	struct timer t = timer_new(*state);

	chan_init(&c, *state);
	c.f.events = POLLIN;
	close(c.wr);
	c.wr = -1; /* hung up for good */
	loop_fd_add(*state, &c.f);
	t.again = 10;
	t.quit = true;
	loop_timer_set(*state, &t.t, 0);
	run(*state);
	assert_int_equal(t.calls, 11);
	loop_fd_del(*state, &c.f);
	chan_fini(&c);
}

static void task_once(void **state)
{
	struct task t = task_new(*state), u = task_new(*state);

	for (unsigned i = 0; i < 5; i++)
		loop_post(*state, &t.t);
	u.quit = true;
	loop_post(*state, &u.t);
	loop_post(*state, &t.t);
	run(*state);
	assert_int_equal(t.calls, 1);
	assert_int_equal(u.calls, 1);
}

static void task_again(void **state)
{
	struct task t = task_new(*state), u = task_new(*state);

	t.again = 1000;
	t.quit = true;
	u.again = 500;
	loop_post(*state, &t.t);
	loop_post(*state, &u.t);
	run(*state);
	assert_int_equal(t.calls, 1001);
	assert_int_equal(u.calls, 501);
}

/* Tasks that post themselves for ever starve neither descriptors nor timers. */
static void task_forever(void **state)
{
	struct task t = task_new(*state), u = task_new(*state);
	struct timer tm = timer_new(*state);
	struct chan c;

	t.again = u.again = UINT32_MAX;
	loop_post(*state, &t.t);
	loop_post(*state, &u.t);
	chan_init(&c, *state);
	c.quit = true;
	loop_fd_add(*state, &c.f);
	chan_send(&c);
	run(*state);
	tm.quit = true;
	loop_timer_set(*state, &tm.t, 0);
	run(*state);
	assert_int_equal(c.calls, 1);
	assert_int_equal(tm.calls, 1);
	assert_in_range(t.calls, 1, UINT32_MAX - 1);
	assert_in_range(u.calls, 1, UINT32_MAX - 1);
	loop_fd_del(*state, &c.f);
	chan_fini(&c);
}

/* Taken back before the run: any of them, also those never posted; the others keep their order. */
static void task_del(void **state)
{
	for (unsigned del = 0; del < 16; del++) {
		struct task t[5];

		for (unsigned i = 0; i < LEN(t); i++) {
			t[i] = task_new(*state);
			if (i < 4)
				loop_post(*state, &t[i].t);
		}
		for (unsigned i = 0; i < 4; i++)
			if (del >> i & 1)
				loop_task_del(*state, &t[i].t);
		loop_task_del(*state, &t[4].t);
		t[4].quit = true;
		loop_post(*state, &t[4].t);
		run(*state);
		for (unsigned i = 0; i < LEN(t); i++)
			assert_int_equal(t[i].calls, !(del >> i & 1));
	}
}

struct killer {
	struct task task, *victim;
};

static void kill_cb(struct loop_task *t)
{
	struct killer *k = OUTER(t, struct killer, task.t);

	k->task.calls++;
	loop_task_del(k->task.l, &k->victim->t);
	loop_quit(k->task.l);
}

/* Taken back by the callback of another one of the same turn, and freed. */
static void task_del_pending(void **state)
{
	struct killer k = { .task = task_new(*state), .victim = malloc(sizeof(*k.victim)) };
	struct task after = task_new(*state);

	k.task.t.cb = kill_cb;
	*k.victim = task_new(*state);
	loop_post(*state, &k.task.t);
	loop_post(*state, &k.victim->t);
	run(*state);
	assert_int_equal(k.task.calls, 1);
	assert_int_equal(k.victim->calls, 0);
	free(k.victim);
	after.quit = true;
	loop_post(*state, &after.t);
	run(*state);
	assert_int_equal(after.calls, 1);
}

/* Taken back and posted again: runs once. */
static void task_del_repost(void **state)
{
	struct task t = task_new(*state);

	t.quit = true;
	for (unsigned i = 0; i < 100; i++) {
		loop_post(*state, &t.t);
		loop_task_del(*state, &t.t);
		loop_post(*state, &t.t);
		run(*state);
		assert_int_equal(t.calls, i + 1);
	}
}

/* Other threads. */

static void start(pthread_t *t, void *(*fn)(void *), void *arg)
{
	assert_int_equal(pthread_create(t, NULL, fn, arg), 0);
}

static void *quit_thread(void *l)
{
	loop_quit(l);
	return NULL;
}

static void quit_from_thread(void **state)
{
	struct timer never = timer_new(*state);
	pthread_t t;

	loop_timer_set(*state, &never.t, HOUR);
	for (unsigned i = 0; i < 200; i++) {
		start(&t, quit_thread, *state);
		run(*state);
		pthread_join(t, NULL);
	}
	loop_timer_del(*state, &never.t);
}

struct elsewhere {
	struct loop_task t;
	struct loop *l;
	pthread_t thread;
	bool here;
};

static void *elsewhere_thread(void *arg)
{
	struct elsewhere *e = arg;

	e->here = loop_here(e->l);
	loop_quit(e->l);
	return NULL;
}

static void elsewhere_cb(struct loop_task *t)
{
	struct elsewhere *e = OUTER(t, struct elsewhere, t);

	assert_true(loop_here(e->l));
	start(&e->thread, elsewhere_thread, e);
}

static void here(void **state)
{
	struct elsewhere e = { .t = { .cb = elsewhere_cb }, .l = *state, .here = true };

	assert_true(loop_here(*state));
	loop_post(*state, &e.t);
	run(*state);
	pthread_join(e.thread, NULL);
	assert_false(e.here);
	assert_true(loop_here(*state));
}

static void on_signal(int sig)
{
}

static void *signal_thread(void *arg)
{
	struct elsewhere *e = arg;

	for (unsigned i = 0; i < 1000; i++)
		pthread_kill(e->thread, SIGUSR1);
	loop_quit(e->l);
	return NULL;
}

/* A signal that interrupts the wait is nothing to the loop. */
static void signals(void **state)
{
	struct elsewhere e = { .l = *state, .thread = pthread_self() };
	struct sigaction sa = { .sa_handler = on_signal }, old;
	struct chan c;
	pthread_t t;

	chan_init(&c, *state);
	loop_fd_add(*state, &c.f);
	sigaction(SIGUSR1, &sa, &old);
	start(&t, signal_thread, &e);
	run(*state);
	pthread_join(t, NULL);
	sigaction(SIGUSR1, &old, NULL);
	assert_int_equal(c.calls, 0);
	loop_fd_del(*state, &c.f);
	chan_fini(&c);
}

/*
 * The storm: each thread counts up and posts its task after every step, as a
 * backend does with completions. The last value must have been seen when all
 * is over, however many posts fell together.
 */
struct storm {
	struct loop_task t, *done;
	struct loop *l;
	pthread_t thread;
	atomic_uint said;
	unsigned seen, calls;
	sem_t heard;
};

struct storm_end {
	struct loop_task t;
	struct loop *l;
	atomic_uint left;
	struct storm s[STORM_THREADS];
};

static void storm_cb(struct loop_task *t)
{
	struct storm *s = OUTER(t, struct storm, t);
	unsigned said = atomic_load(&s->said);

	assert_true(said >= s->seen);
	s->seen = said;
	s->calls++;
}

static void storm_end_cb(struct loop_task *t)
{
	loop_quit(OUTER(t, struct storm_end, t)->l);
}

static void *storm_thread(void *arg)
{
	struct storm *s = arg;
	struct storm_end *e = OUTER(s->done, struct storm_end, t);

	for (unsigned i = 1; i <= STORM_POSTS; i++) {
		atomic_store(&s->said, i);
		loop_post(s->l, &s->t);
	}
	if (atomic_fetch_sub(&e->left, 1) == 1)
		loop_post(e->l, &e->t); /* behind everything that was posted before */
	return NULL;
}

static void post_storm(void **state)
{
	struct storm_end *e = calloc(1, sizeof(*e));

	e->t.cb = storm_end_cb;
	e->l = *state;
	atomic_store(&e->left, STORM_THREADS);
	for (unsigned i = 0; i < STORM_THREADS; i++) {
		e->s[i] = (struct storm){ .t = { .cb = storm_cb }, .done = &e->t, .l = *state };
		start(&e->s[i].thread, storm_thread, &e->s[i]);
	}
	run(*state);
	for (unsigned i = 0; i < STORM_THREADS; i++) {
		pthread_join(e->s[i].thread, NULL);
		assert_int_equal(e->s[i].seen, STORM_POSTS);
		assert_in_range(e->s[i].calls, 1, STORM_POSTS);
	}
	free(e);
}

static void ping_cb(struct loop_task *t)
{
	struct storm *s = OUTER(t, struct storm, t);

	s->calls++;
	sem_post(&s->heard);
}

static void *ping_thread(void *arg)
{
	struct storm *s = arg;
	struct storm_end *e = OUTER(s->done, struct storm_end, t);

	for (unsigned i = 0; i < PING_ROUNDS; i++) {
		loop_post(s->l, &s->t);
		while (sem_wait(&s->heard))
			;
	}
	if (atomic_fetch_sub(&e->left, 1) == 1)
		loop_post(e->l, &e->t);
	return NULL;
}

/* Every post is waited for: one lost wake-up and this hangs. */
static void post_ping(void **state)
{
	struct storm_end *e = calloc(1, sizeof(*e));

	e->t.cb = storm_end_cb;
	e->l = *state;
	atomic_store(&e->left, STORM_THREADS);
	for (unsigned i = 0; i < STORM_THREADS; i++) {
		e->s[i] = (struct storm){ .t = { .cb = ping_cb }, .done = &e->t, .l = *state };
		sem_init(&e->s[i].heard, 0, 0);
		start(&e->s[i].thread, ping_thread, &e->s[i]);
	}
	run(*state);
	for (unsigned i = 0; i < STORM_THREADS; i++) {
		pthread_join(e->s[i].thread, NULL);
		assert_int_equal(e->s[i].calls, PING_ROUNDS);
		sem_destroy(&e->s[i].heard);
	}
	free(e);
}

/* A counter wakes the loop for each signal, or for several at once; nobody reads it. */
struct counter {
	struct loop_fd f;
	struct loop *l;
	unsigned calls, want;
};

static void on_counter(struct loop_fd *f, short revents)
{
	struct counter *c = OUTER(f, struct counter, f);

	assert_true(revents & POLLIN);
	if (++c->calls == c->want)
		loop_quit(c->l);
	else
		evt_signal(f->fd);
}

static void counter(void **state)
{
	struct counter c = { .l = *state, .want = 1000 };

	c.f = (struct loop_fd){
		.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .events = POLLIN, .counter = true, .cb = on_counter
	};
	for (unsigned i = 0; i < 3; i++) { /* removed and added again, with a signal still in it or not */
		evt_signal(c.f.fd);
		loop_fd_add(c.l, &c.f);
		assert_int_equal(loop_run(c.l), 0);
		assert_int_equal(c.calls, 1000);
		loop_fd_del(c.l, &c.f);
		c.calls = 0;
	}
	close(c.f.fd);
}

/* A counter that is taken from the loop while it says something, and given back, again and again: it stays heard. */
struct swap {
	struct loop_fd f;
	struct loop_task next;
	struct loop *l;
	unsigned rounds;
};

static void on_swap(struct loop_task *t)
{
	struct swap *s = OUTER(t, struct swap, next);

	evt_signal(s->f.fd);
	loop_fd_del(s->l, &s->f);
	loop_fd_add(s->l, &s->f);
	evt_signal(s->f.fd);
}

static void on_swapped(struct loop_fd *f, short revents)
{
	struct swap *s = OUTER(f, struct swap, f);

	if (++s->rounds == SWAP_ROUNDS)
		loop_quit(s->l);
	loop_post(s->l, &s->next);
}

static void fd_swapped(void **state)
{
	struct swap s = { .l = *state, .next.cb = on_swap };

	s.f = (struct loop_fd){
		.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .events = POLLIN, .counter = true, .cb = on_swapped
	};
	loop_fd_add(s.l, &s.f);
	loop_post(s.l, &s.next);
	assert_int_equal(loop_run(s.l), 0);
	loop_task_del(s.l, &s.next);
	loop_fd_del(s.l, &s.f);
	close(s.f.fd);
}

/* What was to be read has been read, before the loop has looked; and now something else is wanted. */
static void on_change(struct loop_task *t)
{
	struct swap *s = OUTER(t, struct swap, next);
	uint64_t n;

	evt_signal(s->f.fd);
	assert_int_equal(read(s->f.fd, &n, sizeof(n)), sizeof(n));
	s->f.events = POLLOUT;
}

static void on_changed(struct loop_fd *f, short revents)
{
	assert_int_equal(revents, POLLOUT);
	loop_quit(OUTER(f, struct swap, f)->l);
}

static void fd_wants_another(void **state)
{
	struct swap s = { .l = *state, .next.cb = on_change };

	s.f = (struct loop_fd){ .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .events = POLLIN, .cb = on_changed };
	loop_fd_add(s.l, &s.f);
	loop_post(s.l, &s.next);
	assert_int_equal(loop_run(s.l), 0);
	loop_fd_del(s.l, &s.f);
	close(s.f.fd);
}

/* As many as 64 disks with 16 queues each have: all are heard. */
static void fd_many(void **state)
{
	static struct counter c[64 * 16];
	struct rlimit r;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &r), 0);
	r.rlim_cur = r.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &r), 0);
	if (r.rlim_cur < LEN(c) + 100)
		skip();
	for (unsigned i = 0; i < LEN(c); i++) {
		c[i] = (struct counter){ .l = *state, .want = 2 };
		c[i].f = (struct loop_fd){ .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
			                   .events = POLLIN,
			                   .counter = true,
			                   .cb = on_counter };
		loop_fd_add(c[i].l, &c[i].f);
	}
	for (unsigned i = 0; i < LEN(c); i++) {
		evt_signal(c[i].f.fd);
		assert_int_equal(loop_run(*state), 0);
		assert_int_equal(c[i].calls, 2);
	}
	for (unsigned i = 0; i < LEN(c); i++) {
		loop_fd_del(*state, &c[i].f);
		close(c[i].f.fd);
	}
}

/* Work for the end of the turn: once, in order, before the next sleep; what it leaves, too. */
struct late {
	struct loop_later t;
	struct loop *l;
	struct late *next;
	unsigned calls, again, order;
	unsigned *clock;
	bool quit;
};

static void on_late(struct loop_later *t)
{
	struct late *x = OUTER(t, struct late, t);

	x->calls++;
	x->order = ++*x->clock;
	if (x->next)
		loop_later(x->l, &x->next->t);
	if (x->again && x->again--)
		loop_later(x->l, t);
	if (x->quit)
		loop_quit(x->l);
}

static void later_order(void **state)
{
	unsigned clock = 0;
	struct late c = { .t.cb = on_late, .l = *state, .clock = &clock, .quit = true };
	struct late b = { .t.cb = on_late, .l = *state, .clock = &clock, .next = &c };
	struct late a = { .t.cb = on_late, .l = *state, .clock = &clock };
	struct late gone = { .t.cb = on_late, .l = *state, .clock = &clock };

	loop_later(*state, &a.t);
	loop_later(*state, &gone.t);
	loop_later(*state, &b.t);
	loop_later(*state, &a.t);
	loop_later_del(*state, &gone.t);
	loop_later_del(*state, &gone.t);
	assert_int_equal(loop_run(*state), 0);
	assert_true(a.order == 1 && b.order == 2 && c.order == 3 && gone.calls == 0);
	assert_true(a.calls == 1 && b.calls == 1 && c.calls == 1);
}

/* One that is never through does not keep the others away, nor does the loop sleep on it. */
static void later_forever(void **state)
{
	unsigned clock = 0;
	struct late a = { .t.cb = on_late, .l = *state, .clock = &clock, .again = 1000000 };
	struct timer far = { .t.cb = timer_cb, .l = *state, .clock = &clock };
	struct timer soon = { .t.cb = timer_cb, .l = *state, .clock = &clock, .quit = true };

	loop_later(*state, &a.t);
	loop_timer_set(*state, &far.t, HOUR);
	loop_timer_set(*state, &soon.t, 1000000);
	assert_int_equal(loop_run(*state), 0);
	assert_true(soon.calls == 1 && far.calls == 0 && a.calls > 1 && a.again);
	loop_timer_del(*state, &far.t);
	loop_later_del(*state, &a.t);
}

/* Operations in the ring: many more than it has entries, each completes once. */
struct op {
	struct loop_io io;
	struct loop *l;
	unsigned *left;
	unsigned calls;
};

static void on_op(struct loop_io *io, int res)
{
	struct op *o = OUTER(io, struct op, io);

	assert_int_equal(res, 0);
	o->calls++;
	if (!--*o->left)
		loop_quit(o->l);
}

static struct op ops[5000];

static void start_ops(struct loop_task *t)
{
	struct loop *l = OUTER(t, struct task, t)->l;

	for (unsigned i = 0; i < LEN(ops); i++) {
		struct io_uring_sqe *sqe = loop_sqe(l);

		io_uring_prep_nop(sqe);
		io_uring_sqe_set_data(sqe, &ops[i].io);
	}
}

static void ring_ops(void **state)
{
	struct task start = { .t.cb = start_ops, .l = *state };

	for (unsigned round = 0; round < 3; round++) {
		unsigned left = LEN(ops);

		for (unsigned i = 0; i < LEN(ops); i++)
			ops[i] = (struct op){ .io.cb = on_op, .l = *state, .left = &left };
		loop_post(*state, &start.t);
		assert_int_equal(loop_run(*state), 0);
		for (unsigned i = 0; i < LEN(ops); i++)
			assert_int_equal(ops[i].calls, 1);
	}
}

static void ring_forbidden(void **state)
{
	struct loop *l;
	struct err err;

	assert_int_equal(setenv("KVM_NO_URING", "1", 1), 0);
	assert_int_equal(loop_new_ring(&l, &err), 0);
	assert_false(loop_has_ring(l));
	assert_int_equal(unsetenv("KVM_NO_URING"), 0);
	loop_free(l);
}

/* A loop with a thread of its own: running at once, nobody else's, and gone when it is freed. */
struct visit {
	struct loop_task t;
	struct loop *l;
	bool here;
	pthread_t thread;
	char name[16];
	sem_t done;
};

static void on_visit(struct loop_task *lt)
{
	struct visit *v = OUTER(lt, struct visit, t);

	v->here = loop_here(v->l);
	v->thread = pthread_self();
	pthread_getname_np(v->thread, v->name, sizeof(v->name));
	sem_post(&v->done);
}

static void own_thread(void **state)
{
	struct visit v = { .t.cb = on_visit };
	struct loop_thread *t;
	struct err err;

	sem_init(&v.done, 0, 0);
	for (unsigned i = 0; i < 100; i++) {
		assert_int_equal(loop_thread_new("some-name", &t, &err), 0);
		v.l = loop_thread_loop(t);
		assert_false(loop_here(v.l));
		loop_post(v.l, &v.t);
		while (sem_wait(&v.done))
			;
		assert_true(v.here && !pthread_equal(v.thread, pthread_self()));
		assert_string_equal(v.name, "some-name");
		loop_thread_free(t);
	}
	loop_thread_free(NULL);
	sem_destroy(&v.done);
}

/* A turn that serves @n. */
struct turn {
	struct loop *l;
	unsigned n;
	int policy; /* in which it ran */
};

static void serve(void *arg)
{
	struct turn *t = arg;

	t->policy = sched_getscheduler(0);
	loop_served(t->l, t->n);
}

/* The policy in which the next turn runs, after @turns that serve @n each. */
static int policy_after(struct loop *l, unsigned turns, unsigned n)
{
	struct turn t = { .l = l, .n = n };

	while (turns--)
		loop_call(l, serve, &t);
	t.n = 0;
	loop_call(l, serve, &t);
	return t.policy;
}

#define LITTLE 1
#define MUCH   100000000 /* so much more that no pause of this host's matters */

/* A trial in which little is answered: it is over after 32 turns, or before. */
static void lose_trial(struct loop *l, int then)
{
	unsigned n = 0;

	while (policy_after(l, 1, LITTLE) != then)
		assert_true(++n < 32);
}

static void win_trial(struct loop *l, unsigned rest, int now)
{
	policy_after(l, rest + 32, LITTLE);
	assert_int_equal(policy_after(l, 32, MUCH), now);
}

/* Now and then it tries the other manner, and stays with that in which it answers more. */
static void manners(void **state)
{
	struct loop_thread *t;
	struct loop *l;
	struct err err;

	assert_int_equal(loop_thread_new("manners", &t, &err), 0);
	l = loop_thread_loop(t);
	for (unsigned i = 0, rest = 64; i < 6; i++, rest = rest < 1024 ? 2 * rest : 1024) { /* at once is better */
		assert_int_equal(policy_after(l, rest + 31, MUCH), SCHED_OTHER);
		assert_int_equal(policy_after(l, 1, MUCH), SCHED_BATCH);
		assert_int_equal(policy_after(l, 1000, 0), SCHED_BATCH); /* who has served nobody has learned nothing */
		lose_trial(l, SCHED_OTHER);
	}
	win_trial(l, 1024, SCHED_BATCH);
	for (unsigned i = 0, rest = 64; i < 6; i++, rest = rest < 1024 ? 2 * rest : 1024) { /* batch is */
		assert_int_equal(policy_after(l, rest + 31, MUCH), SCHED_BATCH);
		assert_int_equal(policy_after(l, 1, MUCH), SCHED_OTHER);
		lose_trial(l, SCHED_BATCH);
	}
	policy_after(l, 1024 + 32, 2 * LITTLE);
	assert_int_equal(policy_after(l, 32, MUCH), SCHED_OTHER); /* at once again */
	win_trial(l, 64, SCHED_BATCH);
	assert_int_equal(policy_after(l, 15, LITTLE), SCHED_BATCH); /* until batch brings no more than one a turn */
	assert_int_equal(policy_after(l, 1, LITTLE), SCHED_OTHER);
	loop_thread_free(t);
}

/* A descriptor that never says anything; the program says it is ready. */
struct spun {
	struct loop_fd f;
	struct loop_task begin;
	struct loop_timer patience;
	struct loop *l;
	atomic_bool ready;
	unsigned calls;
	bool serves, last;
};

static bool spun_ready(struct loop_fd *f, bool last)
{
	OUTER(f, struct spun, f)->last = last;
	return atomic_load(&OUTER(f, struct spun, f)->ready);
}

static void on_spun(struct loop_fd *f, short revents)
{
	struct spun *s = OUTER(f, struct spun, f);

	s->calls++;
	if (s->calls == 200)
		loop_quit(s->l);
	if (s->serves)
		evt_signal(f->fd); /* now and then it is looked at */
	else
		atomic_store(&s->ready, false);
	loop_served(s->l, s->serves);
}

static void on_patience(struct loop_timer *t)
{
	loop_quit(OUTER(t, struct spun, patience)->l);
}

static void on_begin(struct loop_task *t)
{
	loop_served(OUTER(t, struct spun, begin)->l, 1);
}

static void *make_ready(void *arg)
{
	usleep(1000);
	atomic_store(&((struct spun *)arg)->ready, true);
	return NULL;
}

/* It is called before its descriptor says a word, and again and again as long as that serves somebody. */
static void spinning(void **state)
{
	struct spun s = { .begin.cb = on_begin, .patience.cb = on_patience };
	pthread_t thread;
	struct err err;

	assert_int_equal(loop_new_ring(&s.l, &err), 0);
	if (!loop_has_ring(s.l)) {
		loop_free(s.l);
		skip();
	}
	s.f = (struct loop_fd){ .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
		                .events = POLLIN,
		                .counter = true,
		                .cb = on_spun,
		                .ready = spun_ready };
	loop_fd_add(s.l, &s.f);
	loop_spin(s.l, 60000000000);
	for (unsigned i = 0; i < 2; i++) {
		s.calls = 0;
		atomic_store(&s.ready, false);
		loop_post(s.l, &s.begin);
		pthread_create(&thread, NULL, make_ready, &s);
		if (!s.serves) /* then it sleeps after the first call */
			loop_timer_set(s.l, &s.patience, 200000000);
		assert_int_equal(loop_run(s.l), 0);
		pthread_join(thread, NULL);
		assert_true(s.serves ? s.calls >= 200 : s.calls == 1);
		assert_true(s.serves || s.last); /* it does not sleep before the last look */
		s.serves = true;
	}
	loop_fd_del(s.l, &s.f);
	close(s.f.fd);
	loop_free(s.l);
}

/* Three that are ready all the time share what is served while the loop spins. */
struct rival {
	struct loop_fd f;
	struct loop_task begin;
	struct loop *l;
	unsigned calls, *total;
};

static bool rival_ready(struct loop_fd *f, bool last)
{
	return true;
}

static void on_rival(struct loop_fd *f, short revents)
{
	struct rival *r = OUTER(f, struct rival, f);

	r->calls++;
	loop_served(r->l, 1);
	if (++*r->total == 3000)
		loop_quit(r->l);
}

static void on_rivals_begin(struct loop_task *t)
{
	loop_served(OUTER(t, struct rival, begin)->l, 1);
}

static void spinning_is_fair(void **state)
{
	unsigned total = 0;
	struct rival r[3];
	struct loop *l;
	struct err err;

	assert_int_equal(loop_new_ring(&l, &err), 0);
	if (!loop_has_ring(l)) {
		loop_free(l);
		skip();
	}
	loop_spin(l, 60000000000);
	for (unsigned i = 0; i < LEN(r); i++) {
		r[i] = (struct rival){ .l = l, .total = &total, .begin.cb = on_rivals_begin };
		r[i].f = (struct loop_fd){ .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
			                   .events = POLLIN,
			                   .counter = true,
			                   .cb = on_rival,
			                   .ready = rival_ready };
		loop_fd_add(l, &r[i].f);
	}
	loop_post(l, &r[0].begin);
	assert_int_equal(loop_run(l), 0);
	for (unsigned i = 0; i < LEN(r); i++) {
		assert_in_range(r[i].calls, 900, 1100);
		loop_fd_del(l, &r[i].f);
		close(r[i].f.fd);
	}
	loop_free(l);
}

/* A thread that is started in batch is not in batch. */
struct child {
	struct work work;
	struct workers *ws;
	sem_t done;
	int policy;
};

static void look_around(struct work *w)
{
	struct child *c = OUTER(w, struct child, work);

	c->policy = sched_getscheduler(0);
	sem_post(&c->done);
}

static void have_child(void *arg)
{
	struct child *c = arg;

	assert_true(workers_give(c->ws, &c->work));
}

static void manners_are_not_inherited(void **state)
{
	struct child c = { .work.run = look_around, .ws = workers_new(1) };
	struct loop_thread *t;
	struct err err;

	assert_true(c.ws && !sem_init(&c.done, 0, 0));
	assert_int_equal(loop_thread_new("manners", &t, &err), 0);
	policy_after(loop_thread_loop(t), 64 + 31, MUCH);
	assert_int_equal(policy_after(loop_thread_loop(t), 1, MUCH), SCHED_BATCH);
	loop_call(loop_thread_loop(t), have_child, &c);
	assert_int_equal(sem_wait(&c.done), 0);
	assert_int_equal(c.policy, SCHED_OTHER);
	workers_free(c.ws);
	loop_thread_free(t);
	sem_destroy(&c.done);
}

/* Whoever has started the program with a policy of his own keeps that. */
static void manners_of_others(void **state)
{
	struct loop_thread *t;
	struct err err;

	assert_int_equal(sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){ 0 }), 0);
	assert_int_equal(loop_thread_new("manners", &t, &err), 0);
	assert_int_equal(policy_after(loop_thread_loop(t), 300, 100), SCHED_IDLE);
	loop_thread_free(t);
	if (sched_setscheduler(0, SCHED_OTHER, &(struct sched_param){ 0 }))
		print_message("the rest runs with SCHED_IDLE\n");
}

static bool have_ring(void)
{
	struct loop *l;
	struct err err;
	bool has;

	assert_int_equal(loop_new_ring(&l, &err), 0);
	has = loop_has_ring(l);
	loop_free(l);
	return has;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(free_null),
		TEST(quit_before_run),
		TEST(fd_ready),
		TEST(fd_hangup),
		TEST(fd_regular_file),
		TEST(fd_asleep),
		TEST(fd_put_to_sleep),
		TEST(fd_del_ready),
		TEST(fd_del_self),
		TEST(fd_readd),
		TEST(fd_add_in_callback),
		TEST(timer_order),
		TEST(timer_move),
		TEST(timer_never),
		TEST(timer_del_due),
		TEST(timer_again),
		TEST(timer_with_busy_fd),
		TEST(task_once),
		TEST(task_again),
		TEST(task_forever),
		TEST(task_del),
		TEST(task_del_pending),
		TEST(task_del_repost),
		TEST(quit_from_thread),
		TEST(here),
		TEST(signals),
		TEST(post_storm),
		TEST(post_ping),
		TEST(counter),
		TEST(fd_swapped),
		TEST(fd_wants_another),
		TEST(fd_many),
		TEST(later_order),
		TEST(later_forever),
		cmocka_unit_test(ring_forbidden),
		cmocka_unit_test(own_thread),
		cmocka_unit_test(spinning),
		cmocka_unit_test(spinning_is_fair),
		cmocka_unit_test(manners),
		cmocka_unit_test(manners_are_not_inherited),
		cmocka_unit_test(manners_of_others),
	};
	static const struct CMUnitTest of_ring[] = { TEST(ring_ops) };
	int failed;

	make_loop = loop_new;
	failed = cmocka_run_group_tests_name("ppoll", tests, NULL, NULL);
	make_loop = loop_new_ring;
	if (!have_ring()) {
		print_message("no io_uring on this host: its half is skipped\n");
		return failed;
	}
	failed += cmocka_run_group_tests_name("ring", tests, NULL, NULL);
	return failed + cmocka_run_group_tests_name("operations", of_ring, NULL, NULL);
}
