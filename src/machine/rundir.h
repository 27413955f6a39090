/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MACHINE_RUNDIR_H
#define MACHINE_RUNDIR_H

#include "base/err.h"

#include <stdbool.h>
#include <sys/types.h>

/*
 * The runtime directory: a private directory with a socket, NAME.sock, for
 * each running machine. Used by the machine that takes a name and by the
 * commands that look for one.
 */

#define RUNDIR_NAME_MAX 64

struct rundir {
	int fd;
	char *path;
};

/* Is @name 1 to 64 of A-Z a-z 0-9 . _ - ? */
bool rundir_name_ok(const char *name);

/*
 * $XDG_RUNTIME_DIR/kvm where that directory is ours, for root /run/kvm, else
 * /tmp/kvm-UID. Refuses what is no directory of ours alone. -ENOENT where it
 * is not there; with @make it is made instead.
 */
int rundir_open(struct rundir *d, bool make, struct err *err);
void rundir_close(struct rundir *d); /* also one that was not opened: fd -1 */

/* A name that is ours: a listening socket, nonblocking. */
struct rundir_claim {
	int fd;
	ino_t ino;
};

/* -EEXIST: a machine of that name lives. What a dead one has left is removed. */
int rundir_claim(const struct rundir *d, const char *name, struct rundir_claim *out, struct err *err);

/* Gives the name back and closes the socket. */
void rundir_release(const struct rundir *d, const char *name, struct rundir_claim *c);

/*
 * A connection to machine @name, nonblocking, and the process behind it.
 * Never waits. -ENOENT and -ECONNREFUSED: there is none; -EAGAIN: it lives,
 * but has not accepted its callers for so long that no more get in line.
 */
int rundir_connect(const struct rundir *d, const char *name, pid_t *pid);

/* Removes what a dead machine left; a live one's is not touched. */
void rundir_sweep(const struct rundir *d, const char *name);

/* The names there are, live or not, sorted: @out and each of them is freed by the caller. Count or -errno. */
int rundir_names(const struct rundir *d, char ***out, struct err *err);

#endif
