/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef CONSOLE_STDIO_H
#define CONSOLE_STDIO_H

#include "base/err.h"
#include "console/con.h"

#include <stdbool.h>

struct loop;

/* What the user asks of us from the keyboard, behind the escape key (^A). On the loop. */
struct stdio_hooks {
	void (*end)(void *opaque); /* ^A x */
	void *opaque;
};

struct stdio_config {
	struct loop *loop;
	int in, out;   /* file descriptors; @in -1: no input */
	bool terminal; /* @in, which is 0, is a terminal: raw mode and the escape key. One such console per process */
	struct stdio_hooks hooks;
};

/*
 * A console on file descriptors of any kind: terminal, file, pipe, socket or
 * /dev/null. Output is written by a thread of its own with plain write(2), so
 * neither a vCPU nor the loop ever waits for a reader. The terminal stays as
 * it is until stdio_start().
 */
int stdio_new(const struct stdio_config *cfg, struct con **out, struct err *err);

/*
 * Terminal to raw mode (only while we are in its foreground; a terminal that
 * is not ours yet becomes raw, and is read, soon after it is), input on.
 * Restored by stdio_free(), at exit, and on fatal signals. Other signals'
 * dispositions, SIGPIPE's too, stay as they are and do not matter here.
 */
void stdio_start(struct con *con);

/* Called by the owner of the signals, on the loop. */
void stdio_suspend(struct con *con); /* SIGTSTP: give the terminal back, before we stop */
void stdio_resume(struct con *con);  /* SIGCONT */

/*
 * Calls @done on the loop once all output is written or its reader is gone.
 * stdio_free() may be called before that: what is left is then lost.
 */
void stdio_drain(struct con *con, void (*done)(void *opaque), void *opaque);
void stdio_free(struct con *con); /* NULL is fine */

#endif
