// SPDX-License-Identifier: GPL-2.0-or-later
#include "base/loop.h"
#include "base/clock.h"
#include "base/container_of.h"
#include "base/evt.h"
#include "base/loop_ring.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/*
 * How it works
 *
 * One turn: ppoll(2) until the next timer is due, call back the descriptors
 * that are ready, run what was posted, fire the timers that are due. ppoll
 * rather than epoll: the loop has a handful of descriptors, some of them
 * regular files, which epoll refuses. With a ring, loop_ring.c does the first
 * half of the turn.
 *
 * What callbacks leave for the end of the turn (loop_later) runs before the
 * next sleep, and so does what that leaves; after LATER_ROUNDS of it the others
 * have their turn first, without a sleep in between.
 *
 * Spinning (loop_spin) saves both sides a wake-up, where the next request comes
 * soon. Where it does not, the loop spins less and less often: before one sleep of
 * 2^vain. It does not while operations of the ring are on their way, and now and
 * then has a turn with a look at the descriptors in between.
 *
 * A callback may remove any registration, also one that is ready in this very
 * turn. So each ready descriptor is looked up again by identity before it is
 * called: the poll array remembers the struct, and deleting clears its slot.
 *
 * Posting is the only thing other threads do: a locked list and an eventfd.
 * A turn runs as many tasks as there are when it starts with them, so that a
 * task which posts itself starves nobody.
 */

#define LATER_ROUNDS  16
#define SPIN_TURNS    64
#define SPIN_VAIN_MAX 10

struct loop {
	/* [l] loop thread only */
	struct loop_fd *fds;
	struct loop_timer *timers;            /* ascending by time */
	struct loop_fd *polled[LOOP_MAX_FDS]; /* this turn's; NULL once deleted */
	unsigned npolled;
	struct loop_later *later, **later_end;
	unsigned served; /* this turn's */
	uint64_t spin;   /* ns */
	bool busy;       /* the last turn has served somebody */
	bool looked;     /* a last look is due before the next sleep */
	unsigned spun;   /* turns without a look at descriptors */
	unsigned vain;   /* spins that came to nothing, less those that did not */
	unsigned skip;   /* sleeps to come without a spin */
	void (*on_served)(void *arg, unsigned n);
	void *on_served_arg;

	/* [m] under the lock */
	pthread_mutex_t lock;
	struct loop_task *tasks, **tasks_end;
	unsigned ntasks;

	/* [a] */
	atomic_bool quit;
	_Atomic(pthread_t) thread;
	atomic_bool running;

	int wake;               /* [c] eventfd */
	struct loop_ring *ring; /* [c] or NULL */
};

int loop_new(struct loop **out, struct err *err)
{
	struct loop *l = calloc(1, sizeof(*l));

	if (!l)
		return err_set(err, -ENOMEM, "out of memory");
	l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (l->wake < 0) {
		int error = -errno;

		free(l);
		return err_sys(err, error, "eventfd");
	}
	pthread_mutex_init(&l->lock, NULL);
	l->tasks_end = &l->tasks;
	l->later_end = &l->later;
	*out = l;
	return 0;
}

static bool ring_forbidden(void)
{
	const char *s = getenv("KVM_NO_URING");

	return s && !strcmp(s, "1");
}

int loop_new_ring(struct loop **out, struct err *err)
{
	int error = loop_new(out, err);

	if (!error && !ring_forbidden() && ring_new((*out)->wake, &(*out)->ring))
		(*out)->ring = NULL; /* refused: the loop does without */
	return error;
}

bool loop_has_ring(const struct loop *l)
{
	return l->ring;
}

struct io_uring_sqe *loop_sqe(struct loop *l)
{
	assert(l->ring && loop_here(l));
	return ring_sqe(l->ring);
}

void loop_free(struct loop *l)
{
	if (!l)
		return;
	assert(!l->fds && !l->timers && !l->later);
	ring_free(l->ring);
	close(l->wake);
	pthread_mutex_destroy(&l->lock);
	free(l);
}

bool loop_here(const struct loop *l)
{
	return !atomic_load(&l->running) || pthread_equal(atomic_load(&l->thread), pthread_self());
}

void loop_quit(struct loop *l)
{
	atomic_store(&l->quit, true);
	evt_signal(l->wake);
}

void loop_fd_add(struct loop *l, struct loop_fd *f)
{
	assert(loop_here(l));
	f->next = l->fds;
	l->fds = f;
}

void loop_fd_del(struct loop *l, struct loop_fd *f)
{
	struct loop_fd **p;

	assert(loop_here(l));
	for (p = &l->fds; *p; p = &(*p)->next) {
		if (*p == f) {
			*p = f->next;
			break;
		}
	}
	for (unsigned i = 0; i < l->npolled; i++)
		if (l->polled[i] == f)
			l->polled[i] = NULL;
	if (l->ring)
		ring_forget(l->ring, f);
}

void loop_timer_del(struct loop *l, struct loop_timer *t)
{
	struct loop_timer **p;

	assert(loop_here(l));
	if (!t->armed)
		return;
	for (p = &l->timers; *p != t; p = &(*p)->next)
		;
	*p = t->next;
	t->armed = false;
}

void loop_timer_set(struct loop *l, struct loop_timer *t, uint64_t ns)
{
	struct loop_timer **p;

	loop_timer_del(l, t);
	if (__builtin_add_overflow(clock_ns(), ns, &t->at))
		t->at = UINT64_MAX;
	t->armed = true;
	for (p = &l->timers; *p && (*p)->at <= t->at; p = &(*p)->next)
		;
	t->next = *p;
	*p = t;
}

void loop_later(struct loop *l, struct loop_later *t)
{
	assert(loop_here(l));
	if (t->queued)
		return;
	t->queued = true;
	t->next = NULL;
	*l->later_end = t;
	l->later_end = &t->next;
}

void loop_later_del(struct loop *l, struct loop_later *t)
{
	struct loop_later **p;

	assert(loop_here(l));
	if (!t->queued)
		return;
	for (p = &l->later; *p != t; p = &(*p)->next)
		;
	*p = t->next;
	if (!*p)
		l->later_end = p;
	t->queued = false;
}

static void run_later(struct loop *l)
{
	struct loop_later mark = { .queued = false };

	for (unsigned i = 0; l->later && i < LATER_ROUNDS; i++) {
		loop_later(l, &mark);
		while (l->later != &mark) {
			struct loop_later *t = l->later;

			loop_later_del(l, t);
			t->cb(t);
		}
		loop_later_del(l, &mark);
	}
}

void loop_served(struct loop *l, unsigned n)
{
	assert(loop_here(l));
	l->served += n;
}

void loop_spin(struct loop *l, uint64_t ns)
{
	l->spin = ns;
}

bool loop_looks(struct loop *l)
{
	if (l->ring && l->spin && !l->skip)
		l->looked = true; /* a last look is due */
	return l->looked;
}

void loop_on_served(struct loop *l, void (*cb)(void *arg, unsigned n), void *arg)
{
	l->on_served = cb;
	l->on_served_arg = arg;
}

void loop_post(struct loop *l, struct loop_task *t)
{
	bool first;

	pthread_mutex_lock(&l->lock);
	first = !l->tasks;
	if (!t->posted) {
		t->posted = true;
		t->next = NULL;
		*l->tasks_end = t;
		l->tasks_end = &t->next;
		l->ntasks++;
	}
	pthread_mutex_unlock(&l->lock);
	if (first)
		evt_signal(l->wake);
}

void loop_task_del(struct loop *l, struct loop_task *t)
{
	struct loop_task **p;

	assert(loop_here(l));
	pthread_mutex_lock(&l->lock);
	for (p = &l->tasks; *p && *p != t; p = &(*p)->next)
		;
	if (*p) {
		*p = t->next;
		if (!*p)
			l->tasks_end = p;
		l->ntasks--;
	}
	t->posted = false;
	pthread_mutex_unlock(&l->lock);
}

struct call {
	struct loop_task task;
	void (*fn)(void *arg);
	void *arg;
	sem_t done;
};

static void on_call(struct loop_task *t)
{
	struct call *c = container_of(t, struct call, task);

	c->fn(c->arg);
	sem_post(&c->done);
}

void loop_call(struct loop *l, void (*fn)(void *arg), void *arg)
{
	struct call c = { .task.cb = on_call, .fn = fn, .arg = arg };

	if (loop_here(l)) {
		fn(arg);
		return;
	}
	sem_init(&c.done, 0, 0);
	loop_post(l, &c.task);
	while (sem_wait(&c.done) && errno == EINTR)
		;
	sem_destroy(&c.done);
}

static struct loop_task *task_pop(struct loop *l)
{
	struct loop_task *t;

	pthread_mutex_lock(&l->lock);
	t = l->tasks;
	if (t) {
		l->tasks = t->next;
		if (!l->tasks)
			l->tasks_end = &l->tasks;
		l->ntasks--;
		t->posted = false; /* before it runs: it may be posted again meanwhile */
	}
	pthread_mutex_unlock(&l->lock);
	return t;
}

static unsigned task_count(struct loop *l)
{
	unsigned n;

	pthread_mutex_lock(&l->lock);
	n = l->ntasks;
	pthread_mutex_unlock(&l->lock);
	return n;
}

static void run_tasks(struct loop *l)
{
	struct loop_task *t;

	for (unsigned n = task_count(l); n && (t = task_pop(l)); n--) /* a callback may take others back */
		t->cb(t);
	if (task_count(l))
		evt_signal(l->wake); /* for the next turn: posting to a list that is not empty wakes nobody */
}

static void run_timers(struct loop *l)
{
	uint64_t now = l->timers ? clock_ns() : 0;

	while (l->timers && l->timers->at <= now) {
		struct loop_timer *t = l->timers;

		l->timers = t->next;
		t->armed = false;
		t->cb(t);
	}
}

/* Fills in the poll array: slot 0 is the eventfd. Returns the number of slots. */
static unsigned collect(struct loop *l, struct pollfd *pfd)
{
	l->npolled = 1;
	l->polled[0] = NULL;
	pfd[0] = (struct pollfd){ .fd = l->wake, .events = POLLIN };
	for (struct loop_fd *f = l->fds; f; f = f->next) {
		if (!f->events)
			continue;
		assert(l->npolled < LOOP_MAX_FDS);
		pfd[l->npolled] = (struct pollfd){ .fd = f->fd, .events = f->events };
		l->polled[l->npolled++] = f;
	}
	return l->npolled;
}

/* How long this turn may sleep: ns, UINT64_MAX for ever. */
static uint64_t patience(const struct loop *l)
{
	uint64_t now;

	if (l->later)
		return 0;
	if (!l->timers)
		return UINT64_MAX;
	now = clock_ns();
	return l->timers->at > now ? l->timers->at - now : 0;
}

static int wait_ready(struct loop *l, struct pollfd *pfd, unsigned n)
{
	uint64_t ns = patience(l);
	struct timespec ts = { .tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u) };

	if (ppoll(pfd, n, ns == UINT64_MAX ? NULL : &ts, NULL) < 0) {
		if (errno != EINTR)
			return -errno;
		for (unsigned i = 0; i < n; i++)
			pfd[i].revents = 0;
	}
	return 0;
}

/* Nonblocking; empty is as good. */
static void reset_counter(int fd)
{
	uint64_t count;
	ssize_t r = read(fd, &count, sizeof(count));

	(void)r;
}

static void dispatch(struct loop *l, const struct pollfd *pfd, unsigned n)
{
	if (pfd[0].revents)
		reset_counter(l->wake);
	for (unsigned i = 1; i < n; i++) {
		struct loop_fd *f = l->polled[i];

		if (!f || !f->events || !pfd[i].revents)
			continue;
		if (f->counter)
			reset_counter(f->fd);
		f->cb(f, pfd[i].revents);
	}
	l->npolled = 0;
}

static int poll_turn(struct loop *l)
{
	struct pollfd pfd[LOOP_MAX_FDS];
	unsigned n = collect(l, pfd);
	int error = wait_ready(l, pfd, n);

	if (!error)
		dispatch(l, pfd, n);
	return error;
}

/* Calls back one that is ready, and the next time others before it; false: none is. */
static bool call_ready(struct loop *l)
{
	struct loop_fd **p = &l->fds, *f;

	while ((f = *p) && (!f->ready || !f->events || !f->ready(f, false)))
		p = &f->next;
	if (!f)
		return false;
	*p = f->next;
	while (*p)
		p = &(*p)->next;
	*p = f;
	f->next = NULL;
	f->cb(f, f->events);
	return true;
}

/* True: somebody was ready, and has been called. */
static bool spin(struct loop *l)
{
	uint64_t end;

	if (l->skip) {
		l->skip--;
		return false;
	}
	l->looked = true;
	end = clock_ns() + l->spin;
	do {
		for (unsigned i = 0; i < 16; i++) {
			if (call_ready(l)) {
				l->vain /= 2;
				return true;
			}
			__builtin_ia32_pause();
		}
	} while (clock_ns() < end);
	if (l->vain < SPIN_VAIN_MAX)
		l->vain++;
	l->skip = (1u << l->vain) - 1;
	return false;
}

/* After spins: from now on descriptors tell. Who is ready now is called in the next turn. */
static void look_last(struct loop *l)
{
	for (struct loop_fd *f = l->fds; f; f = f->next)
		if (f->ready && f->events && f->ready(f, true))
			evt_signal(f->fd);
	l->looked = false;
}

/* Spins, or sleeps until something is to be done. */
static int await(struct loop *l)
{
	if (!l->ring)
		return poll_turn(l);
	if (l->spin && l->busy && !l->later && l->spun < SPIN_TURNS && ring_idle(l->ring) && spin(l)) {
		l->spun++;
		return 0;
	}
	l->spun = 0;
	if (l->looked)
		look_last(l);
	return ring_turn(l->ring, l->fds, patience(l));
}

static int loop_turn(struct loop *l)
{
	int error = await(l);

	if (error)
		return error;
	run_tasks(l);
	run_timers(l);
	run_later(l);
	l->busy = l->served;
	if (l->served && l->on_served)
		l->on_served(l->on_served_arg, l->served);
	l->served = 0;
	return 0;
}

int loop_run(struct loop *l)
{
	int error = l->ring ? ring_enter(l->ring) : 0;

	if (error)
		return error;
	atomic_store(&l->thread, pthread_self());
	atomic_store(&l->running, true);
	while (!error && !atomic_load(&l->quit))
		error = loop_turn(l);
	atomic_store(&l->quit, false);
	atomic_store(&l->running, false);
	if (l->ring)
		ring_leave(l->ring);
	return error;
}
