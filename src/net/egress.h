/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef NET_EGRESS_H
#define NET_EGRESS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Which frames of a guest may go on to libslirp. Nothing to the host's own
 * loopback, ever; and if there is a list, only what opens connections to what
 * is on it. Plain functions of a frame: nothing is remembered.
 */
#define EGRESS_MAX_RULES 64

struct egress_rule {
	int family;       /* AF_INET, AF_INET6 */
	uint8_t addr[16]; /* the first 4 or 16 bytes */
	unsigned prefix;  /* bits */
	uint16_t port;    /* 0: any */
};

struct egress {
	bool listed; /* there is a list, maybe an empty one */
	bool relay;  /* libslirp's DNS relay may be used */
	bool hostlo; /* libslirp's gateway address is the host's loopback */
	unsigned nrules;
	struct egress_rule rule[EGRESS_MAX_RULES];
};

/* "CIDR:PORT": 10.0.0.0/8:443, 1.2.3.4:53, [2001:db8::]/32:443; PORT may be *. 0 or -EINVAL with a text. */
int egress_parse_rule(const char *s, struct egress_rule *out, struct err *err);

/* An Ethernet frame of @len bytes, which nobody else changes. */
bool egress_allows(const struct egress *e, const uint8_t *frame, size_t len);

/*
 * What a guest is told of a frame that was refused, so that it need not wait:
 * for TCP a reset as if from the other side, else ICMP's "administratively
 * prohibited" from the gateway. Its length, a whole frame, in @out; 0: nothing
 * is said, for what is no packet, came for many, is an error itself, or is a
 * fragment but not the first.
 */
#define EGRESS_MAX_REFUSAL (14 + 1280)
size_t egress_refusal(const uint8_t *frame, size_t len, uint8_t out[EGRESS_MAX_REFUSAL]);

#endif
