/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef NET_USER_H
#define NET_USER_H

#include "base/err.h"
#include "net/dns.h"
#include "net/egress.h"
#include "net/nic.h"

#include <netinet/in.h>

/*
 * A network of the guest's own, with DHCP, a DNS relay and a way out through
 * ordinary sockets of this process (libslirp): no privileges needed.
 */
#define USER_MAX_FORWARDS 64
#define USER_MTU          65520 /* the most that libslirp takes */
#define USER_MIN_MTU      68

union user_address {
	struct in_addr in4;
	struct in6_addr in6;
};

struct user_forward {
	bool udp;
	int family; /* AF_INET, AF_INET6: of both addresses */
	/* guest 0: the address that DHCP gives out, or that of IPv6 which the guest is seen to have. */
	union user_address host, guest;
	uint16_t host_port, guest_port;
};

struct user_config {
	unsigned nforwards;
	struct user_forward forward[USER_MAX_FORWARDS];
	bool restricted; /* nothing gets out but answers to forwards */
	struct egress egress;
	unsigned mtu;
	char dns[46]; /* the guest's name server, "": ours, or the host's */
	char hostname[65];
};

/* Is libslirp built in? */
bool user_built_in(void);

/* The name server that the guest is to be told of; addr "": none. */
void user_dns(const struct user_config *cfg, struct dns_choice *out);

/* Begins to listen for the forwards, too. Signals that a thread must not get are blocked. */
int user_new(const struct user_config *cfg, struct nic **out, struct err *err);

#endif
