/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MACHINE_NET_H
#define MACHINE_NET_H

#include "machine/config.h"

/* The machine's network, over all its boots. Main loop. */
struct machine_net {
	struct nic *nic; /* NULL: none */
	/* For people: "10.0.2.15", "tap0", "none". */
	char address[64];
};

/* What has passed, for `kvm list --json`: docs/control.md. */
struct net_status {
	const char *name; /* of the device, NULL: there is none */
	bool up;          /* the cable is plugged in */
	bool vhost;       /* the host's kernel moves frames, and these are not counted */
	uint64_t rx, rx_filtered, rx_dropped, rx_bad;
	uint64_t tx, tx_dropped, tx_bad;
};

/*
 * Opens what @cfg asks for. What nobody has asked for may be missing, which is
 * told. Signals are blocked by now, for threads begin here.
 */
int machine_net_open(const struct config *cfg, struct machine_net *out, struct err *err);
void machine_net_close(struct machine_net *n); /* no device is attached; safe on a closed one */

/* The orders of our init for it, to be appended to the others; "" where the guest has to see for itself. */
void machine_net_orders(const struct config *cfg, char *buf, size_t len);

#endif
