/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MACHINE_NET_SPEC_H
#define MACHINE_NET_SPEC_H

#include "base/err.h"
#include "net/tap.h"
#include "net/user.h"

#include <stdbool.h>
#include <stdint.h>

/* What -n asks for. */

enum net_kind {
	NET_NONE,
	NET_USER,
	NET_TAP,
	NET_PASST,
};

struct net_config {
	enum net_kind kind;
	bool chosen;   /* by the user: then it must work */
	bool fallback; /* -n virtio: user where tap is not allowed */
	bool has_mac;
	uint8_t mac[6];
	struct user_config user;
	struct tap_config tap;
};

/* What a machine has without -n: user if that is built in, else none. */
void net_config_default(struct net_config *out);

/*
 * "KIND[,OPTION…]", the value of -n, into @out. 0, or -EINVAL or -ERANGE with
 * a text that shows what was given and what is taken.
 */
int net_config_parse(const char *spec, struct net_config *out, struct err *err);

/*
 * The MAC address: the given one; or else @own, the back end's (nic.h), unless
 * that is NULL; or one that is always the same for the machine name @name, and
 * another for another.
 */
void net_config_mac(const struct net_config *c, const uint8_t *own, const char *name, uint8_t mac[6]);

#endif
