/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef VIRTIO_NET_H
#define VIRTIO_NET_H

#include "net/nic.h"
#include "virtio/virtio.h"

/*
 * The network device (virtio 1.2, 5.1) before a back end. All queues have one
 * home loop, on which the back end calls back, too.
 */
struct vnet;

/*
 * Somebody else who moves the frames, past the nic: the kernel (vhost/net.h).
 * All on the home loop. What start() or run() return, 0 or -errno, is told.
 */
struct vnet_engine {
	uint64_t lacks; /* features it cannot do, which are then not offered */
	int (*start)(struct vnet_engine *e, struct virtio_dev *d, unsigned q, int irq_fd);
	int (*run)(struct vnet_engine *e, unsigned q, bool on);
	void (*stop)(struct vnet_engine *e, unsigned q); /* not running any more */
};

struct vnet_config {
	const char *name; /* "net0"; outlives the device */
	struct nic *nic;  /* outlives it, too */
	uint8_t mac[6];
	unsigned mtu;               /* told to the driver; 0: it has its own idea */
	struct vnet_engine *engine; /* NULL: frames go through the nic */
};

/* Frames since the device was made, and those that went nowhere, by reason; an engine's are not among them. */
struct vnet_stats {
	uint64_t rx, tx;
	uint64_t rx_lost;      /* before they came to us: the back end's queue was full */
	uint64_t rx_filtered;  /* for somebody else */
	uint64_t rx_oversized; /* longer than the driver's buffer */
	uint64_t rx_short;     /* not even an Ethernet header */
	uint64_t tx_bad_header, tx_short, tx_oversized;
	uint64_t tx_refused; /* by the back end */
};

/* @loop: home of all queues, on whatever thread; the back end is attached there. Both on the main loop. */
int vnet_new(const struct vnet_config *cfg, const struct gmem *mem, struct loop *loop, struct vnet **out,
             struct err *err);
void vnet_free(struct vnet *v); /* NULL is fine; not on a bus any more */
struct virtio_dev *vnet_dev(struct vnet *v);
/* Any thread; what is counted meanwhile may be missing. */
void vnet_stats(struct vnet *v, struct vnet_stats *out);
/* Is the cable plugged in? Any thread. */
bool vnet_up(struct vnet *v);

#endif
