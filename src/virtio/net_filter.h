/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef VIRTIO_NET_FILTER_H
#define VIRTIO_NET_FILTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Which frames the driver wants to see: receive mode, MAC table and VLANs
 * (virtio 1.2, 5.1.6.5.1 to 5.1.6.5.3). It is plain data, kept by the device
 * and changed by what the control queue says.
 */
#define NET_FILTER_MACS  64 /* of either kind; a longer table means all of that kind */
#define NET_FILTER_VLANS 4096
#define NET_FILTER_HEAD  18 /* bytes of a frame it looks at: addresses, type, VLAN tag */

struct net_filter_table {
	bool all; /* too many to list */
	unsigned n;
	uint8_t mac[NET_FILTER_MACS][6];
};

struct net_filter {
	uint8_t mac[6]; /* the device's own */
	bool mode[6];   /* VIRTIO_NET_CTRL_RX_… */
	struct net_filter_table uni, multi;
	bool vlans; /* tagged frames are filtered at all */
	uint64_t vlan[NET_FILTER_VLANS / 64];
};

/* As after a reset: all frames, until the driver says otherwise. @vlans: it will list its VLANs. */
void net_filter_init(struct net_filter *f, const uint8_t mac[6], bool vlans);

/* @head is the frame's beginning, @n of its bytes: at least 14, and NET_FILTER_HEAD if it is so long. */
bool net_filter_accepts(const struct net_filter *f, const uint8_t *head, size_t n);

/*
 * A command's data, @n bytes, for one of the classes RX, MAC and VLAN of
 * VIRTIO_NET_CTRL_…; false: there is no such command, or that is no data for it.
 */
bool net_filter_command(struct net_filter *f, uint8_t class, uint8_t cmd, const uint8_t *data, size_t n);

#endif
