/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MACHINE_IOTHREAD_H
#define MACHINE_IOTHREAD_H

#include "base/err.h"

struct loop;

/* A loop with a thread of its own, for queues that must not wait for the main loop, nor it for them. */
struct iothread;

int iothread_new(const char *name, struct iothread **out, struct err *err); /* at most 15 characters are shown */
/* Ends the thread; then nothing may be registered with the loop any more. NULL is fine. */
void iothread_stop(struct iothread *t);
void iothread_free(struct iothread *t);
struct loop *iothread_loop(struct iothread *t);

#endif
