/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BASE_WORKERS_H
#define BASE_WORKERS_H

#include <stdbool.h>

/* A few threads for work that would hold up a loop. They are started as they are needed and stay. Any thread. */
struct workers;

/* The caller's memory until run() is called, which may free it. */
struct work {
	void (*run)(struct work *w);
	struct work *next; /* the workers' */
};

#define WORKERS_MAX 16

struct workers *workers_new(unsigned max); /* at most @max threads, 1 to WORKERS_MAX. NULL: out of memory */
void workers_free(struct workers *ws);     /* all work has been taken; waits for it to end. NULL is fine */

/*
 * Calls w->run() on a worker, in the order in which work is given. False: there
 * is no worker, nor can one be had; nothing has been done.
 */
bool workers_give(struct workers *ws, struct work *w);

#endif
