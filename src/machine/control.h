/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MACHINE_CONTROL_H
#define MACHINE_CONTROL_H

#include "base/err.h"
#include "machine/net.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * The control socket of a running machine: docs/control.md is its protocol.
 * This turns requests into calls of the session and its answers into replies.
 * On the main loop, all of it.
 */

#define CONTROL_VERSION     1
#define CONTROL_LINE_MAX    65536 /* bytes of a request, its newline included */
#define CONTROL_CLIENTS_MAX 16

struct loop;
struct control;

struct control_status {
	const char *state;
	uint64_t uptime; /* ns */
	unsigned boots;  /* 1: it has not been rebooted */
	struct net_status net;
};

/* What an operation is waiting for, where it is not done at once. */
struct control_wait {
	const char *what; /* for people */
	uint64_t grace;   /* ns until it is done by force, 0: it never is */
};

/*
 * The session's side. Each returns 0: done; CONTROL_LATER: control_booted() or
 * control_free() tells; or -errno with a text.
 */
#define CONTROL_LATER 1
struct control_ops {
	void (*status)(void *opaque, struct control_status *out);
	int (*stop)(void *opaque, bool force, struct control_wait *wait, struct err *err);
	int (*pause)(void *opaque, struct err *err);
	int (*resume)(void *opaque, struct err *err);
	int (*reboot)(void *opaque, struct err *err);
	int (*nmi)(void *opaque, struct err *err);
	int (*sysrq)(void *opaque, char key, struct err *err);
	int (*exec)(void *opaque, int fd, struct err *err); /* takes the socket @fd, whatever happens */
};

struct control_config {
	struct loop *loop;
	const struct control_ops *ops;
	void *opaque;
	/* For `status`. Strings outlive the socket. */
	const char *name, *kernel, *address;
	unsigned ncpus;
	uint64_t mem;
};

/* Takes the name and listens. -EEXIST: a machine of that name runs. */
int control_new(const struct control_config *cc, struct control **out, struct err *err);

/* The next boot has begun: whoever asked for it is told. */
void control_booted(struct control *c);

/* The machine has ended by @reason: whoever waits for that is told; gives the name back. NULL is fine. */
void control_free(struct control *c, const char *reason);

#endif
