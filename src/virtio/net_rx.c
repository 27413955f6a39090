// SPDX-License-Identifier: GPL-2.0-or-later
#include "virtio/net_impl.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <string.h>

/*
 * How it works
 *
 * Chains are taken from the ring ahead of the frame, as many as the longest
 * frame needs, and the back end reads straight into them. Only the beginning
 * of a frame (@head) comes to us first: the header, which gets num_buffers,
 * and what the filter looks at. Chains that a frame does not need stay in hand
 * for the next one.
 *
 * Nobody tells how long the next frame is. Where the guest has posted too
 * little for it, the rest goes to @spill, and the frame waits there for more
 * chains: it is not lost, and the back end is not read meanwhile. Without
 * mergeable buffers a frame has one chain, and what is longer is dropped.
 *
 * The back end is polled while there are chains in hand and no frame waits.
 */

static bool merges(struct net_pair *p)
{
	return virtio_has(&p->v->dev, VIRTIO_NET_F_MRG_RXBUF);
}

/* Bytes of buffers to have in hand. With offloads a frame may be as long as any. */
static size_t wanted(struct net_pair *p)
{
	return merges(p) ? NET_LONGEST : 1;
}

static struct chain *held(struct net_rx *rx, unsigned i)
{
	return &rx->held[rx->first + i];
}

/* Moves what is in hand to the beginning of both arrays. */
static void compact(struct net_rx *rx)
{
	struct iovec *from = rx->n ? held(rx, 0)->iov : rx->iov;
	size_t used = rx->n ? (size_t)(rx->iov + rx->iov_end - from) : 0;

	memmove(rx->iov, from, used * sizeof(*from));
	memmove(rx->held, &rx->held[rx->first], rx->n * sizeof(rx->held[0]));
	rx->first = 0;
	rx->iov_end = (unsigned)used;
	for (unsigned i = 0; i < rx->n; i++)
		rx->held[i].iov -= from - rx->iov;
}

static bool has_place(struct net_rx *rx)
{
	if (rx->first + rx->n == NET_RX_HELD || rx->iov_end + NET_PIECES > NET_RX_IOV)
		compact(rx);
	return rx->n < NET_RX_HELD && rx->iov_end + NET_PIECES <= NET_RX_IOV;
}

/* Takes one more chain: 1; 0: there is none; negative: the ring is no good. */
static int take(struct net_pair *p, struct virtq *ring)
{
	struct net_rx *rx = &p->rx;
	unsigned q = net_rx_queue(p);
	struct chain *c = held(rx, rx->n);
	int got = virtio_pop(&p->v->dev, q, c, rx->iov + rx->iov_end, NET_PIECES);

	if (got <= 0)
		return got;
	if (c->in_len < NET_HEAD) { /* no driver has a use for such a buffer */
		virtq_push(ring, c, 0);
		return 1;
	}
	/* Of what is readable we make nothing. */
	c->iov += c->nout;
	c->nout = 0;
	rx->iov_end += (unsigned)(c->iov - (rx->iov + rx->iov_end)) + c->nin;
	rx->room += c->in_len;
	rx->n++;
	return 1;
}

/* Takes chains until @want bytes are in hand, if there are so many. True: there are some. */
static bool fill(struct net_pair *p, size_t want)
{
	unsigned q = net_rx_queue(p), n = 0;
	struct virtq *ring = net_ring(p->v, q);

	if (!ring)
		return false;
	while (p->rx.room < want && has_place(&p->rx)) {
		int got = n++ < NET_QUEUE_SIZE ? take(p, ring) : 0;

		if (got < 0)
			return false;
		if (n > NET_QUEUE_SIZE) {
			virtio_again(&p->v->dev, q); /* so many useless buffers: others have their turn */
			return p->rx.n;
		}
		if (got == 0 && !virtq_rearm(ring))
			return p->rx.n;
	}
	virtq_disarm(ring);
	return p->rx.n;
}

static void drop_first(struct net_rx *rx, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		rx->room -= held(rx, i)->in_len;
	rx->first += n;
	rx->n -= n;
	if (!rx->n)
		rx->first = rx->iov_end = 0;
}

/* Appends the pieces of @c without their first @skip bytes; returns how many. */
static unsigned add_pieces(struct iovec *to, const struct chain *c, size_t skip)
{
	unsigned n = 0;

	for (unsigned i = 0; i < c->nin; i++) {
		const struct iovec *from = &c->iov[i];
		size_t cut = skip < from->iov_len ? skip : from->iov_len;

		skip -= cut;
		if (from->iov_len > cut)
			to[n++] = (struct iovec){ (uint8_t *)from->iov_base + cut, from->iov_len - cut };
	}
	return n;
}

/* Reads a frame: head, chains in hand, spill. Its length or -EAGAIN. */
static ssize_t read_frame(struct net_pair *p)
{
	struct net_rx *rx = &p->rx;
	struct iovec iov[NET_RX_IOV];
	unsigned n = 0, most = merges(p) ? rx->n : 1;

	iov[n++] = (struct iovec){ rx->head, NET_HEAD };
	for (rx->direct = 0; rx->direct < most; rx->direct++) {
		const struct chain *c = held(rx, rx->direct);

		if (n + c->nin + 1 > NET_RX_IOV)
			break;
		n += add_pieces(iov + n, c, rx->direct ? 0 : NET_HEAD);
	}
	iov[n++] = (struct iovec){ rx->spill, NET_LONGEST };
	return nic_recv(p->v->nic, p->index, iov, n);
}

/* How many chains the frame that waits takes; 0: more than there are in hand. */
static unsigned count_chains(struct net_rx *rx)
{
	size_t room = 0;

	for (unsigned i = 0; i < rx->n; i++) {
		room += held(rx, i)->in_len;
		if (room >= rx->len)
			return i + 1;
	}
	return 0;
}

/* Gives the frame that waits to the guest. False: the chains in hand are too few. */
static bool deliver(struct net_pair *p)
{
	struct net_rx *rx = &p->rx;
	unsigned n = count_chains(rx);
	struct virtq *ring = p->v->dev.queue[net_rx_queue(p)].ring;
	uint16_t buffers = (uint16_t)n;
	const uint8_t *rest = rx->spill;
	size_t left = rx->len;

	if (!n)
		return false;
	memcpy(rx->head + offsetof(struct virtio_net_hdr_v1, num_buffers), &buffers, sizeof(buffers));
	chain_put(held(rx, 0), rx->head, left < NET_HEAD ? left : NET_HEAD);
	for (unsigned i = 0; i < n; i++) {
		struct chain *c = held(rx, i);
		size_t part = left < c->in_len ? left : c->in_len;

		if (i >= rx->direct) {
			chain_put(c, rest, part);
			rest += part;
		}
		virtq_push(ring, c, (uint32_t)part);
		left -= part;
	}
	drop_first(rx, n);
	rx->len = 0;
	net_count(p, NET_RX);
	return true;
}

/* Is the frame that was read, @len bytes with its header, one for the guest? */
static bool is_wanted(struct net_pair *p, size_t len)
{
	if (len < NIC_HDR + 14) {
		net_count(p, NET_RX_SHORT);
		return false;
	}
	if (!net_filter_accepts(&p->v->filter, p->rx.head + NIC_HDR,
	                        len < NET_HEAD ? len - NIC_HDR : NET_FILTER_HEAD)) {
		net_count(p, NET_RX_FILTERED);
		return false;
	}
	/* Too long for all that a driver without mergeable buffers gives, or for all that we can hold. */
	if ((!merges(p) && len > held(&p->rx, 0)->in_len) || len > NET_LONGEST) {
		net_count(p, NET_RX_OVERSIZED);
		return false;
	}
	return true;
}

/* A frame waits and needs more chains than we can hold: the guest's buffers are tiny. */
static void drop_waiting(struct net_pair *p)
{
	net_count(p, NET_RX_OVERSIZED);
	p->rx.len = 0;
}

/* One frame, or the rest of one. False: no more now; *@poll: the back end will tell. */
static bool pump_one(struct net_pair *p, bool *poll)
{
	ssize_t got;

	*poll = false;
	if (!fill(p, p->rx.len ? p->rx.len : wanted(p)))
		return false;
	if (!p->rx.len) {
		got = read_frame(p);
		*poll = got < 0;
		if (got < 0)
			return false;
		if (!is_wanted(p, (size_t)got))
			return true;
		p->rx.len = (size_t)got;
		if (!count_chains(&p->rx))
			fill(p, p->rx.len);
	}
	if (deliver(p))
		return true;
	if (has_place(&p->rx))
		return false; /* a kick brings more */
	drop_waiting(p);
	return true;
}

void net_rx_pump(struct net_pair *p)
{
	unsigned budget = NET_TURN;
	bool poll = true; /* when the budget is used up, there may be more */

	if (p->v->dev.queue[net_rx_queue(p)].away)
		return;
	while (budget && pump_one(p, &poll))
		budget--;
	virtio_flush(&p->v->dev, net_rx_queue(p));
	net_poll(p, POLLIN, poll || !budget);
}

void net_rx_stop(struct net_pair *p)
{
	struct net_rx *rx = &p->rx;
	struct virtq *ring = p->v->dev.queue[net_rx_queue(p)].ring;

	net_poll(p, POLLIN, false);
	while (rx->n) {
		rx->n--;
		virtq_unpop(ring, held(rx, rx->n));
	}
	rx->first = rx->iov_end = 0;
	rx->room = rx->len = 0;
}
