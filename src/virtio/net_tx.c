// SPDX-License-Identifier: GPL-2.0-or-later
#include "virtio/net_impl.h"

#include <errno.h>
#include <poll.h>

/*
 * How it works
 *
 * One chain at a time is in hand. Its header is copied and checked, and what is
 * sent is that copy and the guest's own pages. Where the back end cannot take
 * the frame now the chain stays in hand, and with it the guest waits, until
 * the back end is writable. What is no frame is given back and counted.
 */

/* May the driver leave this to us? Which features it took decides (5.1.6.2.1). */
static bool header_ok(struct virtio_dev *d, const struct virtio_net_hdr_v1 *h, uint64_t len)
{
	bool needs_csum = h->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM;

	if (needs_csum && (!virtio_has(d, VIRTIO_NET_F_CSUM) || (uint64_t)h->csum_start + h->csum_offset + 2 > len))
		return false;
	if (h->gso_type == VIRTIO_NET_HDR_GSO_NONE)
		return true;
	if (!needs_csum || !h->gso_size)
		return false;
	if (h->gso_type & VIRTIO_NET_HDR_GSO_ECN && !virtio_has(d, VIRTIO_NET_F_HOST_ECN))
		return false;
	switch (h->gso_type & ~VIRTIO_NET_HDR_GSO_ECN) {
	case VIRTIO_NET_HDR_GSO_TCPV4: return virtio_has(d, VIRTIO_NET_F_HOST_TSO4);
	case VIRTIO_NET_HDR_GSO_TCPV6: return virtio_has(d, VIRTIO_NET_F_HOST_TSO6);
	default: return false;
	}
}

/* The rest of the chain, behind its header, with our copy of that before it: the place in front is ours. */
static void make_up(struct net_tx *tx)
{
	struct chain *c = &tx->chain;
	struct iovec *at = c->iov + c->out_at.piece;

	if (c->out_at.off) {
		at->iov_base = (uint8_t *)at->iov_base + c->out_at.off;
		at->iov_len -= c->out_at.off;
	}
	tx->nvec = c->nout - c->out_at.piece + 1;
	tx->vec = at - 1;
	*tx->vec = (struct iovec){ &tx->hdr, sizeof(tx->hdr) };
}

/* Makes the chain in hand ready to be sent. False: it is no frame. */
static bool prepare(struct net_pair *p)
{
	struct net_tx *tx = &p->tx;
	uint64_t len = tx->chain.out_len;

	if (chain_get(&tx->chain, &tx->hdr, sizeof(tx->hdr)) < sizeof(tx->hdr) || len < NIC_HDR + 14)
		net_count(p, NET_TX_SHORT);
	else if (len > NET_LONGEST)
		net_count(p, NET_TX_OVERSIZED);
	else if (!header_ok(&p->v->dev, &tx->hdr, len - NIC_HDR))
		net_count(p, NET_TX_BAD_HEADER);
	else {
		tx->hdr.flags &= VIRTIO_NET_HDR_F_NEEDS_CSUM;
		tx->hdr.num_buffers = 0;
		make_up(tx);
		return true;
	}
	return false;
}

/* Takes the next chain; false: there is none. */
static bool take(struct net_pair *p, struct virtq *ring)
{
	int got;

	do
		got = virtio_pop(&p->v->dev, net_tx_queue(p), &p->tx.chain, p->tx.iov + 1, NET_PIECES);
	while (got == 0 && virtq_rearm(ring));
	if (got == 1)
		virtq_disarm(ring);
	return got == 1;
}

/* Sends what is in hand. False: not now. */
static bool send_held(struct net_pair *p)
{
	struct net_tx *tx = &p->tx;
	int error = nic_send(p->v->nic, p->index, tx->vec, tx->nvec);

	if (error == -EAGAIN)
		return false;
	net_count(p, error ? NET_TX_REFUSED : NET_TX);
	return true;
}

void net_tx_pump(struct net_pair *p)
{
	struct virtio_dev *d = &p->v->dev;
	unsigned q = net_tx_queue(p), budget = NET_TURN;
	struct virtq *ring;
	bool full = false;

	if (d->queue[q].away)
		return;
	while ((ring = net_ring(p->v, q)) && budget) {
		if (!p->tx.held && !take(p, ring))
			break;
		budget--;
		full = (p->tx.held || prepare(p)) && !send_held(p);
		p->tx.held = full;
		if (full)
			break;
		virtq_push(ring, &p->tx.chain, 0);
	}
	virtio_flush(d, q);
	if (!budget)
		virtio_again(d, q);
	net_poll(p, POLLOUT, full);
}

void net_tx_stop(struct net_pair *p)
{
	net_poll(p, POLLOUT, false);
	if (p->tx.held)
		virtq_unpop(p->v->dev.queue[net_tx_queue(p)].ring, &p->tx.chain);
	p->tx.held = false;
}
