/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MACHINE_CHANNEL_H
#define MACHINE_CHANNEL_H

#include "base/err.h"

#include <stdbool.h>

struct loop;
struct con;

/*
 * The host's end of the port on which our init takes commands (docs/channel.md):
 * joins any number of sockets, each with one session, to the one port. It
 * outlives boots; a session does not. Main loop, all of it.
 */
struct channel;

int channel_new(struct loop *loop, struct channel **out, struct err *err);
void channel_free(struct channel *c); /* no device is attached any more. NULL is fine */

/* For the device: the console behind the port. */
struct con *channel_con(struct channel *c);

/*
 * Takes a stream socket, on which a client speaks frames, from FRAME_START on;
 * it is closed when the session is over, or can never begin. @main: the one
 * command that the machine is for. -EMFILE: too many sessions.
 */
int channel_attach(struct channel *c, int fd, bool main, struct err *err);

/* There will be no more boot: every session is over, with what the guest has said by now. */
void channel_end(struct channel *c);

/* Asks init to end what runs and to power off, if it listens. */
void channel_poweroff(struct channel *c);

#endif
