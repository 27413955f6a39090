/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BASE_LOOP_H
#define BASE_LOOP_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * An event loop: file descriptors, timers and tasks posted by other threads.
 * Everything is intrusive: the caller owns the structs below, which must stay
 * in place while they are registered. Unless it says "any thread", a function
 * is called on the loop's own thread, or before loop_run().
 * A callback may add and remove anything, itself included.
 */
struct loop;

struct loop_fd {
	int fd;
	short events; /* POLLIN, POLLOUT; 0: registered but asleep */
	bool counter; /* a nonblocking eventfd that only wakes: nobody reads it but the loop, if it likes */
	void (*cb)(struct loop_fd *f, short revents);
	/*
	 * NULL, or a look that tells sooner than the descriptor would whether
	 * cb() has something to do: see loop_spin(). @last: whoever signals the
	 * descriptor must do so from now on. Before that look, he need not.
	 */
	bool (*ready)(struct loop_fd *f, bool last);
	struct loop_fd *next;
	struct loop_watch *watch; /* loop_ring.c's */
};

struct loop_timer {
	void (*cb)(struct loop_timer *t);
	uint64_t at; /* CLOCK_MONOTONIC ns */
	bool armed;
	struct loop_timer *next;
};

struct loop_later {
	void (*cb)(struct loop_later *t);
	bool queued;
	struct loop_later *next;
};

/* An operation in the loop's ring; see loop_sqe(). */
struct loop_io {
	void (*cb)(struct loop_io *io, int res);
};

struct loop_task {
	void (*cb)(struct loop_task *t);
	bool posted; /* under the loop's lock */
	struct loop_task *next;
};

int loop_new(struct loop **out, struct err *err);

/*
 * The same with an io_uring: submitting and sleeping is one system call, and
 * loop_sqe() works. Where the host has none for us, or KVM_NO_URING=1 is in the
 * environment, it is a loop as loop_new() makes it. It always runs on the same
 * thread.
 */
int loop_new_ring(struct loop **out, struct err *err);
bool loop_has_ring(const struct loop *l); /* any thread */

void loop_free(struct loop *l); /* NULL is fine; nothing may be registered any more */

/* Runs until loop_quit(); the calling thread becomes the loop's own. Returns 0 or -errno of ppoll(2) or
 * io_uring_enter(2). */
int loop_run(struct loop *l) __attribute__((warn_unused_result));
void loop_quit(struct loop *l);       /* any thread; also before loop_run(), which then returns at once */
bool loop_here(const struct loop *l); /* any thread: is this the loop's own thread (or is the loop not running)? */

void loop_fd_add(struct loop *l, struct loop_fd *f);
void loop_fd_del(struct loop *l, struct loop_fd *f); /* no callback for @f after this returns */

/* Fires once, @ns from now. Setting an armed timer moves it. */
void loop_timer_set(struct loop *l, struct loop_timer *t, uint64_t ns);
void loop_timer_del(struct loop *l, struct loop_timer *t);

/*
 * With a ring: an empty entry of its submission queue, to be prepared at once
 * and given a struct loop_io by io_uring_sqe_set_data(), which stays in place
 * until its callback. It goes out when the loop goes to sleep, or before; no
 * more than some hundreds can wait for the first loop_run(). What was submitted
 * must have completed before loop_free().
 */
struct io_uring_sqe;
struct io_uring_sqe *loop_sqe(struct loop *l);

/*
 * Runs @t->cb before this turn ends, for what is to be done once for all that
 * the turn brings. Costs next to nothing; queued twice, it runs once.
 */
void loop_later(struct loop *l, struct loop_later *t);
void loop_later_del(struct loop *l, struct loop_later *t); /* does not run after this */

/*
 * What a turn has done for others, as a number of requests that it has
 * answered: told by whoever answers them, called back at the end of each turn
 * that has answered some. The callback is set before loop_run().
 */
void loop_served(struct loop *l, unsigned n);
void loop_on_served(struct loop *l, void (*cb)(void *arg, unsigned n), void *arg);

/*
 * On a loop with a ring: before it goes to sleep after a turn that has served
 * somebody, it looks for @ns whether another descriptor is ready(), and then
 * does not sleep. 0: it does not. From callbacks, or before loop_run().
 */
void loop_spin(struct loop *l, uint64_t ns);

/* Will all that can tell be asked whether they are ready() before the loop sleeps? From a callback of one of them. */
bool loop_looks(struct loop *l);

/*
 * Runs @t->cb soon on the loop's thread. A task that is already posted stays
 * posted once. Any thread.
 */
void loop_post(struct loop *l, struct loop_task *t);

/* Takes back a task that may be posted: its callback does not run after this, unless posted again. */
void loop_task_del(struct loop *l, struct loop_task *t);

/*
 * Runs @fn on the loop's thread and waits until it has returned. Any thread;
 * not one that the loop's thread waits for.
 */
void loop_call(struct loop *l, void (*fn)(void *arg), void *arg);

#endif
