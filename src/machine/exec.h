/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MACHINE_EXEC_H
#define MACHINE_EXEC_H

#include "base/err.h"

#include <stdbool.h>

/* A command for a guest, as a user asks for it: plain data, the caller's. */
struct guest_command {
	char **argv;     /* ended by NULL; none at all: a login shell */
	char **env;      /* NAME=VALUE, ended by NULL */
	const char *dir; /* in the guest; "/" where that is not there */
};

/*
 * The user's end of a command in a guest (docs/channel.md): descriptors 0, 1
 * and 2 of this process, and a socket that leads to the guest. If 0 and 1 are
 * terminals the command has one, and ours is raw while it runs; else all three
 * are plain streams. On one loop.
 */
struct exec;
struct loop;

struct exec_ops {
	void (*started)(void *opaque); /* it runs, or the guest has said why not */
	/* All of its output is written; @status is its own. Or -1: the guest is gone, or it could not be asked. */
	void (*ended)(void *opaque, int status);
	void (*escape)(void *opaque); /* ^A x */
	void *opaque;
};

/* Takes the socket @fd. */
int exec_new(struct loop *loop, int fd, const struct guest_command *cmd, const struct exec_ops *ops, struct exec **out,
             struct err *err);
void exec_free(struct exec *x); /* the terminal is as it was. NULL is fine */

void exec_signal(struct exec *x, int sig);
void exec_resize(struct exec *x);  /* SIGWINCH came */
void exec_suspend(struct exec *x); /* before we stop, and after */
void exec_resume(struct exec *x);

/*
 * The whole life of a command whose socket is @fd: loop, signals, and in the
 * end its status in @status, 128 + n if signal n ended us first. 0 or -errno.
 */
int exec_run(int fd, const struct guest_command *cmd, int *status, struct err *err);

#endif
