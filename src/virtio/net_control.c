// SPDX-License-Identifier: GPL-2.0-or-later
#include "virtio/net_impl.h"

#include "base/container_of.h"

#include <linux/virtio_config.h>
#include <stddef.h>
#include <string.h>

/*
 * Commands of the driver (virtio 1.2, 5.1.6.5): a class and a command, data,
 * and a byte for the answer. Data is copied before it is looked at. None of
 * them takes time, so each is answered at once.
 */
#define CTRL_PIECES 64
#define CTRL_MAX    8192 /* bytes of a command: a thousand addresses */

static const struct {
	unsigned feature, offload;
} offload_of[] = {
	{ VIRTIO_NET_F_GUEST_CSUM, NIC_CSUM },
	{ VIRTIO_NET_F_GUEST_TSO4, NIC_TSO4 },
	{ VIRTIO_NET_F_GUEST_TSO6, NIC_TSO6 },
	{ VIRTIO_NET_F_GUEST_ECN, NIC_ECN },
};

/* The back end's flags for the feature bits @bits; the others need the checksum (5.1.3.1). */
static unsigned offloads(uint64_t bits)
{
	unsigned flags = 0;

	for (unsigned i = 0; i < sizeof(offload_of) / sizeof(offload_of[0]); i++)
		if (bits >> offload_of[i].feature & 1)
			flags |= offload_of[i].offload;
	return flags & NIC_CSUM ? flags : 0;
}

static uint64_t offload_bits(struct vnet *v)
{
	uint64_t bits = 0;

	for (unsigned i = 0; i < sizeof(offload_of) / sizeof(offload_of[0]); i++)
		if (virtio_has(&v->dev, offload_of[i].feature))
			bits |= 1ull << offload_of[i].feature;
	return bits;
}

static bool set_offloads(struct vnet *v, uint8_t cmd, const uint8_t *data, size_t n)
{
	uint64_t bits;

	if (cmd != VIRTIO_NET_CTRL_GUEST_OFFLOADS_SET || n != sizeof(bits) ||
	    !virtio_has(&v->dev, VIRTIO_NET_F_CTRL_GUEST_OFFLOADS))
		return false;
	memcpy(&bits, data, sizeof(bits));
	return !(bits & ~offload_bits(v)) && !nic_set_offloads(v->nic, offloads(bits));
}

static void use_pairs(struct vnet *v, unsigned pairs)
{
	v->pairs = pairs;
	net_engine_update(v);
	for (unsigned i = 0; i < v->max_pairs; i++)
		net_rx_pump(&v->pair[i]);
}

static bool set_pairs(struct vnet *v, uint8_t cmd, const uint8_t *data, size_t n)
{
	uint16_t pairs;

	if (cmd != VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET || n != sizeof(pairs) || !virtio_has(&v->dev, VIRTIO_NET_F_MQ))
		return false;
	memcpy(&pairs, data, sizeof(pairs));
	if (!pairs || pairs > v->max_pairs)
		return false;
	if (pairs < v->pairs)
		use_pairs(v, pairs); /* before the back end closes the others */
	if (nic_set_pairs(v->nic, pairs))
		return false;
	use_pairs(v, pairs);
	return true;
}

/* The driver has told its neighbours. */
static bool announced(struct vnet *v, uint8_t cmd)
{
	struct virtio_dev *d = &v->dev;

	if (cmd != VIRTIO_NET_CTRL_ANNOUNCE_ACK || !virtio_has(d, VIRTIO_NET_F_GUEST_ANNOUNCE))
		return false;
	pthread_mutex_lock(&d->lock);
	d->config[offsetof(struct virtio_net_config, status)] &= (uint8_t)~VIRTIO_NET_S_ANNOUNCE;
	pthread_mutex_unlock(&d->lock);
	return true;
}

static bool command(struct vnet *v, uint8_t class, uint8_t cmd, const uint8_t *data, size_t n)
{
	switch (class) {
	case VIRTIO_NET_CTRL_ANNOUNCE: return announced(v, cmd);
	case VIRTIO_NET_CTRL_MQ: return set_pairs(v, cmd, data, n);
	case VIRTIO_NET_CTRL_GUEST_OFFLOADS: return set_offloads(v, cmd, data, n);
	default: return net_filter_command(&v->filter, class, cmd, data, n);
	}
}

static void serve(struct virtio_dev *d, unsigned q, struct chain *c)
{
	struct vnet *v = container_of(d, struct vnet, dev);
	struct virtio_net_ctrl_hdr hdr;
	uint8_t data[CTRL_MAX], ack = VIRTIO_NET_ERR;

	if (chain_get(c, &hdr, sizeof(hdr)) == sizeof(hdr) && c->out_len - sizeof(hdr) <= sizeof(data)) {
		size_t n = chain_get(c, data, sizeof(data));

		if (command(v, hdr.class, hdr.cmd, data, n))
			ack = VIRTIO_NET_OK;
	}
	virtq_push(d->queue[q].ring, c, (uint32_t)chain_put(c, &ack, 1));
}

void net_control_kick(struct vnet *v, unsigned q)
{
	struct iovec iov[CTRL_PIECES];

	virtio_serve(&v->dev, q, iov, CTRL_PIECES, serve);
}

/* What the back end refuses now it has offered before: it is broken, and then drops frames. */
void net_control_start(struct vnet *v)
{
	net_filter_init(&v->filter, v->mac, virtio_has(&v->dev, VIRTIO_NET_F_CTRL_VLAN));
	v->pairs = 1;
	(void)nic_set_pairs(v->nic, 1);
	(void)nic_set_offloads(v->nic, offloads(offload_bits(v)));
}
