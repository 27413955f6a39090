/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BASE_LOOP_THREAD_H
#define BASE_LOOP_THREAD_H

#include "base/loop.h"

/*
 * A loop on a thread of its own, with a ring where there is one: the home of a
 * data path. Its manner towards the vCPUs depends on what loop_served() says.
 */
struct loop_thread;

/* @name: of the thread, at most 15 characters; copied. The loop runs when this returns. */
int loop_thread_new(const char *name, struct loop_thread **out, struct err *err);
/* Ends it and waits for that: the loop belongs to the caller's thread from then on. NULL is fine. */
void loop_thread_stop(struct loop_thread *t);
/* Stops it if need be. Nothing is registered on the loop any more. NULL is fine. */
void loop_thread_free(struct loop_thread *t);

struct loop *loop_thread_loop(struct loop_thread *t);

/* Of a new thread, which a loop's own may have started: what manner that has at the moment is not for this one. */
void loop_thread_left(void);

#endif
