/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the files of virtio-net share, and nobody else. */
#ifndef VIRTIO_NET_IMPL_H
#define VIRTIO_NET_IMPL_H

#include "virtio/away.h"
#include "virtio/net.h"
#include "virtio/net_filter.h"

#include <linux/virtio_net.h>

#define NET_QUEUE_SIZE 256
#define NET_PIECES     NET_QUEUE_SIZE /* of a chain */
#define NET_RX_HELD    64             /* receive buffers in hand */
#define NET_RX_IOV     1024
#define NET_HEAD       (NIC_HDR + NET_FILTER_HEAD) /* what we look at of a frame */
#define NET_LONGEST    (NIC_HDR + NIC_MAX_FRAME)
#define NET_TURN       64 /* frames, before others on the loop have their turn */

#define NET_BIT(f)     (1ull << VIRTIO_NET_F_##f)

_Static_assert(sizeof(struct virtio_net_hdr_v1) == NIC_HDR, "the header of a frame is virtio-net's");

/* Receiving: chains in hand, oldest first, their pieces one after another in @iov. */
struct net_rx {
	unsigned first, n; /* of @held */
	unsigned iov_end;  /* of @iov, what is used */
	size_t room;       /* bytes of all of them */
	struct chain held[NET_RX_HELD];
	struct iovec iov[NET_RX_IOV];
	/* A frame that is longer than what was in hand; len 0: there is none. */
	size_t len;      /* with its header */
	unsigned direct; /* chains that have their part of it */
	uint8_t head[NET_HEAD];
	uint8_t *spill; /* what did not fit: NET_LONGEST bytes */
};

/* Sending: one chain in hand, made up to be sent. */
struct net_tx {
	bool held;
	struct chain chain;
	struct virtio_net_hdr_v1 hdr;
	struct iovec iov[NET_PIECES + 1], *vec; /* @vec, @nvec: the header as we checked it, then the frame */
	unsigned nvec;
};

/* A queue that the engine works on. */
struct net_away {
	struct virtio_away irq;
	bool wanted; /* it shall run, if its pair is in use */
	bool running;
};

/* What is counted, in the order of struct vnet_stats. */
enum net_counter {
	NET_RX,
	NET_TX,
	NET_RX_LOST, /* the nic's */
	NET_RX_FILTERED,
	NET_RX_OVERSIZED,
	NET_RX_SHORT,
	NET_TX_BAD_HEADER,
	NET_TX_SHORT,
	NET_TX_OVERSIZED,
	NET_TX_REFUSED,
	NET_COUNTERS,
};

_Static_assert(NET_COUNTERS == sizeof(struct vnet_stats) / sizeof(uint64_t), "a counter for each");

struct net_pair {
	struct vnet *v;
	unsigned index;
	struct net_away away[2]; /* receiving, sending */
	short polled;            /* as the back end was told */
	struct net_rx rx;
	struct net_tx tx;
	atomic_ullong count[NET_COUNTERS]; /* written by the home loop, read by any thread */
};

struct vnet {
	struct virtio_dev dev;
	struct nic *nic;
	struct vnet_engine *engine;
	uint8_t mac[6];
	/* On the loop. */
	struct net_filter filter;
	unsigned pairs;     /* in use for receiving */
	unsigned live;      /* queues that are on */
	unsigned max_pairs; /* [c] */
	struct net_pair pair[];
};

/* One more: only the home loop counts. */
static inline void net_count(struct net_pair *p, enum net_counter which)
{
	atomic_store_explicit(&p->count[which], atomic_load_explicit(&p->count[which], memory_order_relaxed) + 1,
	                      memory_order_relaxed);
}

static inline unsigned net_rx_queue(const struct net_pair *p)
{
	return 2 * p->index;
}

static inline unsigned net_tx_queue(const struct net_pair *p)
{
	return 2 * p->index + 1;
}

/* The ring of queue @q if it is good for anything now: there, not broken, not paused. */
static inline struct virtq *net_ring(struct vnet *v, unsigned q)
{
	const struct virtio_queue *vq = &v->dev.queue[q];

	return vq->listening ? vq->ring : NULL;
}

/* Asks the back end to call, or no longer to call, for @event of @p. */
void net_poll(struct net_pair *p, short event, bool on);

/* Moves frames until there are none, no buffers, or others have their turn. */
void net_rx_pump(struct net_pair *p);
void net_tx_pump(struct net_pair *p);
/* Chains in hand go back into the ring. */
void net_rx_stop(struct net_pair *p);
void net_tx_stop(struct net_pair *p);

/* The engine's queues. True: it works on @q now. */
bool net_engine_start(struct vnet *v, unsigned q);
void net_engine_run(struct vnet *v, unsigned q, bool on);
void net_engine_stop(struct vnet *v, unsigned q);
void net_engine_update(struct vnet *v); /* v->pairs has changed */

/* The control queue. */
void net_control_kick(struct vnet *v, unsigned q);
/* As after a reset; the driver's features are known. */
void net_control_start(struct vnet *v);

#endif
