/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef NET_PASST_H
#define NET_PASST_H

#include "net/nic.h"
#include "net/user.h"

/*
 * A network like -n user whose other side is another program, passt(1),
 * through a stream socket. It is started with the machine and ends with it.
 */

/* Of @cfg forwards, mtu and egress.hostlo count. -ENOENT: it is not installed. Signals are blocked. */
int passt_new(const struct user_config *cfg, struct nic **out, struct err *err);

/* The same with the socket @fd, ours from now on, to one who speaks as passt does. */
int passt_from_fd(int fd, unsigned mtu, struct nic **out, struct err *err);

#endif
