/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BASE_LOOP_RING_H
#define BASE_LOOP_RING_H

#include "base/loop.h"

/* The io_uring of a loop: loop.c's own. On the loop's thread, but for ring_new() and ring_free(). */

#define LOOP_MAX_FDS 1152 /* 64 disks with 16 queues each, and some */

struct loop_ring;

/* @wake: the loop's eventfd, which it watches from the first turn on. 0 or -errno: the host has none for us. */
int ring_new(int wake, struct loop_ring **out);
void ring_free(struct loop_ring *r); /* NULL is fine */

/* Around the turns: only the thread that comes first may ever come. 0 or -errno. */
int ring_enter(struct loop_ring *r);
void ring_leave(struct loop_ring *r);

/*
 * One turn: submits what was prepared, sleeps until something completes or @ns
 * have passed (UINT64_MAX: for ever), and makes the callbacks. @fds: the
 * descriptors to watch. 0 or -errno.
 */
int ring_turn(struct loop_ring *r, struct loop_fd *fds, uint64_t ns);

void ring_forget(struct loop_ring *r, struct loop_fd *f); /* no callback for it any more */
struct io_uring_sqe *ring_sqe(struct loop_ring *r);       /* for one operation, which completes once */
bool ring_idle(const struct loop_ring *r);                /* no such operation is on its way */

#endif
