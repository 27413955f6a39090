/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef NET_NIC_H
#define NET_NIC_H

#include "base/loop.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

/*
 * A network back end: a way for Ethernet frames in and out of the host. A
 * guest's network device is its one client.
 *
 * Every frame has a header of NIC_HDR bytes before it, struct
 * virtio_net_hdr_v1: zeros, or what the offloads that were agreed on need. Its
 * num_buffers means nothing here. The memory of an iovec is the caller's and
 * is not used after the call; it may be the guest's, and change while it is read.
 *
 * A back end has queue pairs, each a way of its own for frames, at least one.
 * It reads nothing ahead on the device's behalf: frames stay where they are
 * until nic_recv(), so that whoever sends them is held back, not cheated.
 *
 * Threads: everything on the loop given to nic_attach(), the callbacks too. A
 * back end may have threads of its own behind that.
 */

#define NIC_HDR       12
#define NIC_MAX_FRAME (65535 + 18) /* the largest IP packet, Ethernet's header and a VLAN tag */
#define NIC_MAX_PAIRS 16

/* What the other side of a frame may leave undone, in either direction. */
enum {
	NIC_CSUM = 1, /* the checksum: NEEDS_CSUM */
	NIC_TSO4 = 2, /* cutting into segments, of TCP over IPv4 */
	NIC_TSO6 = 4,
	NIC_ECN = 8, /* of segments with CWR set */
	/* Only of a back end, which knows the checksums that it brings to be right: where NIC_CSUM is agreed on it may
	   say so. */
	NIC_VALID = 16,
};

struct nic;

/* The device's side. Level-triggered: called again as long as it is so and asked for by nic_poll(). */
struct nic_client {
	void (*readable)(void *dev, unsigned pair); /* nic_recv() may have a frame */
	void (*writable)(void *dev, unsigned pair); /* nic_send() may take one again */
	void (*link)(void *dev);                    /* nic->up has changed */
	void *dev;
};

struct nic_ops {
	void (*attach)(struct nic *n, const struct nic_client *client, struct loop *loop); /* client NULL: detach */
	int (*send)(struct nic *n, unsigned pair, const struct iovec *iov, unsigned niov);
	ssize_t (*recv)(struct nic *n, unsigned pair, const struct iovec *iov, unsigned niov);
	void (*poll)(struct nic *n, unsigned pair, short events);
	int (*set_pairs)(struct nic *n, unsigned pairs);       /* NULL: there is one */
	int (*set_offloads)(struct nic *n, unsigned offloads); /* NULL: there are none */
	void (*free)(struct nic *n);
};

/* The part that every back end has. */
struct nic {
	const struct nic_ops *ops;
	unsigned max_pairs; /* [c] */
	unsigned offloads;  /* [c] NIC_…: what it can do */
	unsigned mtu;       /* [c] of its network; 0: not known */
	bool up;            /* [l] the cable is plugged in */
	bool has_mac;       /* [c] it brings frames for this address only */
	uint8_t mac[6];
	const atomic_ullong *lost; /* [c] frames to the guest that its queue had no room for; NULL: none */
	int (*fd)(struct nic *n, unsigned pair); /* [c] a descriptor for vhost-net, or NULL: none has */
};

/*
 * Attaches the one client, which is copied, or NULL to detach: after that no
 * callback runs until the next attach. It begins with one pair in use, no
 * offloads, and nothing polled. The back end stays, over all boots of a machine.
 */
static inline void nic_attach(struct nic *n, const struct nic_client *client, struct loop *loop)
{
	n->ops->attach(n, client, loop);
}

/*
 * Sends a frame, header first, in one piece or not at all: 0; -EAGAIN: not
 * now, and writable() tells when if asked; else a negative errno: this frame
 * can never be sent. While the link is down frames are lost, as on a cable.
 */
static inline int nic_send(struct nic *n, unsigned pair, const struct iovec *iov, unsigned niov)
{
	return n->ops->send(n, pair, iov, niov);
}

/*
 * Receives the next frame, header first: its length with the header, or
 * -EAGAIN. It is cut off where @iov ends: NIC_HDR + NIC_MAX_FRAME is always enough.
 */
static inline ssize_t nic_recv(struct nic *n, unsigned pair, const struct iovec *iov, unsigned niov)
{
	return n->ops->recv(n, pair, iov, niov);
}

/* What is called back for @pair from now on: POLLIN, POLLOUT, both or 0. When 0 returns from here neither runs. */
static inline void nic_poll(struct nic *n, unsigned pair, short events)
{
	n->ops->poll(n, pair, events);
}

/* Frames arrive on the first @pairs pairs from now on, at most max_pairs; any may be used to send. 0 or -errno. */
static inline int nic_set_pairs(struct nic *n, unsigned pairs)
{
	return n->ops->set_pairs ? n->ops->set_pairs(n, pairs) : 0;
}

/* Frames received from now on may be unfinished in these ways. Sent ones may in all that it can do. 0 or -errno. */
static inline int nic_set_offloads(struct nic *n, unsigned offloads)
{
	return n->ops->set_offloads ? n->ops->set_offloads(n, offloads) : 0;
}

/* Detached; NULL is fine. */
static inline void nic_free(struct nic *n)
{
	if (n)
		n->ops->free(n);
}

#endif
