/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef NET_DNS_H
#define NET_DNS_H

#include <stdbool.h>

/*
 * Which name server a guest behind libslirp should be told of. Its relay
 * serves both families, but each only where the host's /etc/resolv.conf names
 * a server of that family, and it reads no other file.
 */
struct dns_choice {
	char addr[46]; /* "": there is none */
	bool relay;    /* it is one of libslirp's own addresses */
};

/* @root: "" on the host; tests have files of their own below it. */
void dns_choose(const char *root, struct dns_choice *out);

#endif
