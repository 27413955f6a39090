// SPDX-License-Identifier: GPL-2.0-or-later
#include "base/loop_ring.h"

#include "base/container_of.h"

#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * How it works
 *
 * A turn is one io_uring_enter(2): it submits all that was prepared since the
 * last, and sleeps until something completes. Whatever completes carries a
 * struct loop_io, whose callback is made.
 *
 * Descriptors are watched by polls in the same ring. A poll belongs to a watch,
 * not to the struct loop_fd, which may go away while the kernel still has the
 * poll: the watch then has no owner, and is free once the poll has come back.
 * An ordinary poll is over when it fires and is made anew in the next turn, so
 * that a descriptor which is still ready fires again. That of a counter (an
 * eventfd that nobody needs to read) stays: each signal completes it once more,
 * which costs neither a read nor a new poll.
 *
 * The kernel refuses rings of one kind or another: the newest way of setting
 * one up (work is done when we ask for it, on our thread) is tried first. Since
 * only one thread may use such a ring, it sleeps until ring_enter().
 */

#define SQ_ENTRIES 256
#define CQ_ENTRIES 2048

struct loop_watch {
	struct loop_io io, back; /* the poll, and what takes it back */
	struct loop_ring *ring;
	struct loop_fd *f; /* NULL: nobody's */
	short events;      /* of the poll in flight; 0: there is none */
	bool leaving;      /* it has been asked to come back, and the answer is on its way */
};

struct loop_ring {
	struct io_uring u;
	unsigned nops;      /* ring_sqe()'s that have not completed */
	bool enabled, more; /* @more: what completes now will do so again */
	struct loop_fd wake;
	struct loop_watch watch[LOOP_MAX_FDS + 1];
};

static struct io_uring_sqe *get_sqe(struct loop_ring *r)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&r->u);

	while (!sqe) { /* full: these go out now */
		int n = io_uring_submit(&r->u);

		assert(n > 0 || n == -EINTR || n == -EAGAIN || n == -EBUSY);
		(void)n;
		sqe = io_uring_get_sqe(&r->u);
	}
	return sqe;
}

struct io_uring_sqe *ring_sqe(struct loop_ring *r)
{
	r->nops++;
	return get_sqe(r);
}

bool ring_idle(const struct loop_ring *r)
{
	return !r->nops;
}

/* Watches. */

static void on_poll(struct loop_io *io, int res)
{
	struct loop_watch *w = container_of(io, struct loop_watch, io);
	struct loop_fd *f = w->f;

	if (!w->ring->more)
		w->events = 0;
	if (f && res > 0 && f->events)
		f->cb(f, (short)res);
}

static void on_back(struct loop_io *io, int res);

static void take_back(struct loop_watch *w)
{
	struct io_uring_sqe *sqe;

	if (!w->events || w->leaving)
		return;
	w->leaving = true;
	sqe = ring_sqe(w->ring);
	io_uring_prep_poll_remove(sqe, (uintptr_t)&w->io);
	io_uring_sqe_set_data(sqe, &w->back);
}

/* A poll that is just firing does not come back (-EALREADY), and one that stays then goes on. */
static void on_back(struct loop_io *io, int res)
{
	struct loop_watch *w = container_of(io, struct loop_watch, back);

	w->leaving = false;
	if (res == -EALREADY && (!w->f || w->f->events != w->events))
		take_back(w);
}

static struct loop_watch *new_watch(struct loop_ring *r, struct loop_fd *f)
{
	for (unsigned i = 0; i < LOOP_MAX_FDS + 1; i++) {
		struct loop_watch *w = &r->watch[i];

		if (!w->f && !w->events && !w->leaving) {
			*w = (struct loop_watch){ .io.cb = on_poll, .back.cb = on_back, .ring = r, .f = f };
			f->watch = w;
			return w;
		}
	}
	return NULL; /* some are on their way back: next turn */
}

/* Has the kernel look for what @f wants now. */
static void watch_fd(struct loop_ring *r, struct loop_fd *f)
{
	struct loop_watch *w = f->watch;
	struct io_uring_sqe *sqe;

	if (!w)
		w = new_watch(r, f);
	if (!w || w->leaving || w->events == f->events)
		return;
	if (w->events) {
		take_back(w);
		return;
	}
	sqe = get_sqe(r);
	if (f->counter)
		io_uring_prep_poll_multishot(sqe, f->fd, (unsigned)f->events);
	else
		io_uring_prep_poll_add(sqe, f->fd, (unsigned)f->events);
	io_uring_sqe_set_data(sqe, &w->io);
	w->events = f->events;
}

void ring_forget(struct loop_ring *r, struct loop_fd *f)
{
	struct loop_watch *w = f->watch;

	if (!w)
		return;
	f->watch = NULL;
	w->f = NULL;
	take_back(w);
}

/* Turns. */

/* Submits and, unless @ns is 0, sleeps. */
static int wait(struct loop_ring *r, uint64_t ns)
{
	struct __kernel_timespec ts = { .tv_sec = (long long)(ns / 1000000000u),
		                        .tv_nsec = (long long)(ns % 1000000000u) };
	struct io_uring_cqe *cqe;
	int n;

	if (ns)
		n = io_uring_submit_and_wait_timeout(&r->u, &cqe, 1, ns == UINT64_MAX ? NULL : &ts, NULL);
	else
		n = io_uring_submit_and_get_events(&r->u);
	/* Short of memory, or full of completions: these are taken now, and then it goes on. */
	return n >= 0 || n == -ETIME || n == -EINTR || n == -EAGAIN || n == -EBUSY ? 0 : n;
}

static void reap(struct loop_ring *r)
{
	unsigned left = io_uring_cq_ready(&r->u);
	struct io_uring_cqe *cqe;

	while (left-- && !io_uring_peek_cqe(&r->u, &cqe)) {
		struct loop_io *io = io_uring_cqe_get_data(cqe);
		int res = cqe->res;

		r->more = cqe->flags & IORING_CQE_F_MORE;
		io_uring_cqe_seen(&r->u, cqe);
		if (io->cb != on_poll)
			r->nops--;
		io->cb(io, res);
	}
}

int ring_turn(struct loop_ring *r, struct loop_fd *fds, uint64_t ns)
{
	int error;

	watch_fd(r, &r->wake);
	for (struct loop_fd *f = fds; f; f = f->next)
		watch_fd(r, f);
	error = wait(r, ns);
	if (!error)
		reap(r);
	return error;
}

/* liburing 2.3 declares a function for this, and does not export it. */
static int enable(struct loop_ring *r)
{
	if (syscall(__NR_io_uring_register, r->u.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0) < 0)
		return -errno;
	r->enabled = true;
	return 0;
}

int ring_enter(struct loop_ring *r)
{
	int error = r->enabled ? 0 : enable(r);

	if (error)
		return error;
	(void)io_uring_register_ring_fd(&r->u); /* makes each call a little cheaper, where there is room */
	return 0;
}

void ring_leave(struct loop_ring *r)
{
	(void)io_uring_unregister_ring_fd(
	        &r->u); /* it is known by a number of this thread, who may not be the one to free it */
}

/* Life. */

static void on_wake(struct loop_fd *f, short revents)
{
}

static int setup(struct io_uring *u)
{
	static const unsigned ways[] = {
		IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SUBMIT_ALL,
		IORING_SETUP_COOP_TASKRUN | IORING_SETUP_SUBMIT_ALL,
		0,
	};
	int error = -EINVAL;

	for (unsigned i = 0; error == -EINVAL && i < sizeof(ways) / sizeof(ways[0]); i++) {
		struct io_uring_params p = { .flags = ways[i] | IORING_SETUP_CQSIZE | IORING_SETUP_R_DISABLED };

		p.cq_entries = CQ_ENTRIES;
		error = io_uring_queue_init_params(SQ_ENTRIES, u, &p);
	}
	return error;
}

int ring_new(int wake, struct loop_ring **out)
{
	struct loop_ring *r = calloc(1, sizeof(*r));
	int error;

	if (!r)
		return -ENOMEM;
	error = setup(&r->u);
	if (!error && !(r->u.features & IORING_FEAT_RSRC_TAGS)) { /* Linux 5.13: so are polls that stay */
		io_uring_queue_exit(&r->u);
		error = -ENOSYS;
	}
	if (error) {
		free(r);
		return error;
	}
	r->wake = (struct loop_fd){ .fd = wake, .events = POLLIN, .counter = true, .cb = on_wake };
	*out = r;
	return 0;
}

void ring_free(struct loop_ring *r)
{
	if (!r)
		return;
	io_uring_queue_exit(&r->u);
	free(r);
}
