/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef NET_TAP_H
#define NET_TAP_H

#include "base/err.h"
#include "net/nic.h"

#include <net/if.h>

/*
 * A tap interface of the host: Linux's driver for Ethernet frames from a
 * program. Making one needs CAP_NET_ADMIN; one that somebody has made for us
 * (`ip tuntap add … user`) or handed over as a descriptor does not.
 *
 * Or a macvtap (also an ipvtap): one on top of another interface, whose frames
 * for its own address, and for all, it brings. Somebody makes it; the program
 * that it is for opens its own device, /dev/tapN, N the interface's number.
 */
struct tap_config {
	char ifname[IFNAMSIZ]; /* "": the kernel finds one */
	char bridge[IFNAMSIZ]; /* the interface joins it, "": none */
	char script[256];      /* run with the interface's name when it is up, "": none */
	char downscript[256];  /* and when we are done with it */
	int fd;                /* an open interface, ours from now on; -1: none */
	unsigned queues;       /* pairs */
	enum { TAP_VHOST_AUTO, TAP_VHOST_ON, TAP_VHOST_OFF } vhost; /* for who makes the device */
	unsigned mtu;                                               /* of an interface that we make; 0: as it is */
};

/*
 * Opens or makes the interface, and brings it up. What was made goes away with
 * the result, and nothing else does. -EPERM, -EACCES, -ENOENT: not allowed, or
 * not there; the text says what helps. Never while another thread may change
 * the network namespace.
 */
int tap_new(const struct tap_config *cfg, struct nic **out, struct err *err);

/* The name of the interface of a nic that is a tap. */
const char *tap_name(const struct nic *n);

#endif
