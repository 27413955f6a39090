// SPDX-License-Identifier: GPL-2.0-or-later
#include "virtio/net_impl.h"

#include "base/container_of.h"

#include <errno.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ids.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

/*
 * How it works
 *
 * Queues come in pairs, one to receive and one to send, and behind them is the
 * control queue: behind the first pair if the driver does not know of more.
 * Receiving is in net_rx.c, sending in net_tx.c, the control queue's commands
 * in net_control.c; what the driver wants to see of the traffic is in
 * net_filter.c. This file is the device around them. Where there is an engine
 * (net_engine.c) it takes the place of receiving and sending.
 *
 * Which offloads are offered is up to the back end. Segmentation of UDP is
 * not: Linux has dropped it and brought it back in another form.
 */

/* Whatever the back end is. */
#define FEATURES                                                                                     \
	(NET_BIT(MAC) | NET_BIT(STATUS) | NET_BIT(MRG_RXBUF) | NET_BIT(CTRL_VQ) | NET_BIT(CTRL_RX) | \
	 NET_BIT(CTRL_RX_EXTRA) | NET_BIT(CTRL_VLAN) | NET_BIT(CTRL_MAC_ADDR) | NET_BIT(GUEST_ANNOUNCE))

static const struct {
	unsigned offload;
	uint64_t features;
} offers[] = {
	{ NIC_CSUM, NET_BIT(CSUM) | NET_BIT(GUEST_CSUM) | NET_BIT(CTRL_GUEST_OFFLOADS) },
	{ NIC_VALID, NET_BIT(GUEST_CSUM) }, /* nothing is left undone, but need not be looked at (DATA_VALID) */
	{ NIC_TSO4, NET_BIT(HOST_TSO4) | NET_BIT(GUEST_TSO4) },
	{ NIC_TSO6, NET_BIT(HOST_TSO6) | NET_BIT(GUEST_TSO6) },
	{ NIC_ECN, NET_BIT(HOST_ECN) | NET_BIT(GUEST_ECN) },
};

static struct vnet *of_dev(struct virtio_dev *d)
{
	return container_of(d, struct vnet, dev);
}

static unsigned control_queue(struct vnet *v)
{
	return virtio_has(&v->dev, VIRTIO_NET_F_MQ) ? 2 * v->max_pairs : 2;
}

/* Does queue @q belong to a pair? Else it is the control queue, or none that this driver knows. */
static bool in_pair(struct vnet *v, unsigned q)
{
	return q < control_queue(v);
}

void net_poll(struct net_pair *p, short event, bool on)
{
	short want = on ? p->polled | event : (short)(p->polled & ~event);

	if (want == p->polled)
		return;
	p->polled = want;
	nic_poll(p->v->nic, p->index, want);
}

/* The back end's calls. */

static void on_readable(void *dev, unsigned pair)
{
	net_rx_pump(&((struct vnet *)dev)->pair[pair]);
}

static void on_writable(void *dev, unsigned pair)
{
	net_tx_pump(&((struct vnet *)dev)->pair[pair]);
}

/* When the cable is plugged in again, the neighbours may have forgotten us. */
static void on_link(void *dev)
{
	struct vnet *v = dev;
	uint16_t status = v->nic->up ? VIRTIO_NET_S_LINK_UP : 0;

	if (status && virtio_has(&v->dev, VIRTIO_NET_F_GUEST_ANNOUNCE))
		status |= VIRTIO_NET_S_ANNOUNCE;
	virtio_set_config(&v->dev, offsetof(struct virtio_net_config, status), &status, sizeof(status));
}

/* The class. */

static void vnet_start(struct virtio_dev *d, unsigned q)
{
	struct vnet *v = of_dev(d);

	if (!v->live++) /* not when one queue is reset by itself */
		net_control_start(v);
	if (v->engine && in_pair(v, q))
		d->queue[q].away = net_engine_start(v, q);
}

static void vnet_kick(struct virtio_dev *d, unsigned q)
{
	struct vnet *v = of_dev(d);

	if (in_pair(v, q) && q % 2)
		net_tx_pump(&v->pair[q / 2]);
	else if (in_pair(v, q))
		net_rx_pump(&v->pair[q / 2]);
	else if (q == control_queue(v))
		net_control_kick(v, q);
}

static void vnet_stop(struct virtio_dev *d, unsigned q)
{
	struct vnet *v = of_dev(d);

	if (d->queue[q].away)
		net_engine_stop(v, q);
	else if (in_pair(v, q) && q % 2)
		net_tx_stop(&v->pair[q / 2]);
	else if (in_pair(v, q))
		net_rx_stop(&v->pair[q / 2]);
	v->live--;
	virtio_queue_stopped(d, q);
}

static void vnet_run(struct virtio_dev *d, unsigned q, bool on)
{
	net_engine_run(of_dev(d), q, on);
}

static const struct virtio_class vnet_class = {
	.name = "net",
	.id = VIRTIO_ID_NET,
	.features = FEATURES,
	.config_len = offsetof(struct virtio_net_config, speed),
	.queue_start = vnet_start,
	.kick = vnet_kick,
	.queue_stop = vnet_stop,
	.queue_run = vnet_run,
};

static uint64_t features(const struct vnet *v, const struct vnet_config *cfg)
{
	uint64_t f = FEATURES;

	for (unsigned i = 0; i < sizeof(offers) / sizeof(offers[0]); i++)
		if (v->nic->offloads & offers[i].offload)
			f |= offers[i].features;
	if (v->max_pairs > 1)
		f |= NET_BIT(MQ);
	if (cfg->mtu)
		f |= NET_BIT(MTU);
	return f;
}

/* What the driver reads before it takes any feature. */
static void describe(struct vnet *v, const struct vnet_config *cfg)
{
	struct virtio_net_config c = { .status = v->nic->up ? VIRTIO_NET_S_LINK_UP : 0,
		                       .max_virtqueue_pairs = (uint16_t)v->max_pairs,
		                       .mtu = (uint16_t)cfg->mtu };

	memcpy(c.mac, cfg->mac, sizeof(c.mac));
	memcpy(v->dev.config, &c, vnet_class.config_len);
	v->dev.offered |= features(v, cfg);
	if (v->engine)
		v->dev.offered &= ~v->engine->lacks;
}

static int init_pairs(struct vnet *v, struct err *err)
{
	for (unsigned i = 0; i < v->max_pairs; i++) {
		v->pair[i].v = v;
		v->pair[i].index = i;
		v->pair[i].rx.spill = malloc(NET_LONGEST); /* never touched unless it is needed */
		if (!v->pair[i].rx.spill)
			return err_set(err, -ENOMEM, "out of memory");
	}
	return 0;
}

struct attachment {
	struct nic *nic;
	const struct nic_client *client;
	struct loop *loop;
};

static void do_attach(void *arg)
{
	const struct attachment *a = arg;

	nic_attach(a->nic, a->client, a->loop);
}

/* On the loop, whosever thread that is. */
static void attach(struct vnet *v, const struct nic_client *client)
{
	struct attachment a = { v->nic, client, v->dev.queue[0].home };

	loop_call(a.loop, do_attach, &a);
}

int vnet_new(const struct vnet_config *cfg, const struct gmem *mem, struct loop *loop, struct vnet **out,
             struct err *err)
{
	struct nic_client client = { .readable = on_readable, .writable = on_writable, .link = on_link };
	unsigned pairs = cfg->nic->max_pairs;
	struct virtio_init init = { .class = &vnet_class,
		                    .name = cfg->name,
		                    .mem = mem,
		                    .nqueues = 2 * pairs + 1,
		                    .queue_size = NET_QUEUE_SIZE,
		                    .loop = loop };
	struct vnet *v = calloc(1, sizeof(*v) + pairs * sizeof(v->pair[0]));
	int error;

	if (!v)
		return err_set(err, -ENOMEM, "out of memory");
	error = virtio_dev_init(&v->dev, &init, err);
	v->max_pairs = pairs;
	if (!error)
		error = init_pairs(v, err);
	if (error) {
		vnet_free(v);
		return error;
	}
	v->nic = cfg->nic;
	v->engine = cfg->engine;
	memcpy(v->mac, cfg->mac, sizeof(v->mac));
	describe(v, cfg);
	client.dev = v;
	attach(v, &client);
	*out = v;
	return 0;
}

void vnet_free(struct vnet *v)
{
	if (!v)
		return;
	if (v->nic) {
		virtio_dev_stop(&v->dev);
		attach(v, NULL);
	}
	virtio_dev_exit(&v->dev);
	for (unsigned i = 0; i < v->max_pairs; i++)
		free(v->pair[i].rx.spill);
	free(v);
}

struct virtio_dev *vnet_dev(struct vnet *v)
{
	return &v->dev;
}

void vnet_stats(struct vnet *v, struct vnet_stats *out)
{
	uint64_t sum[NET_COUNTERS] = { [NET_RX_LOST] = v->nic->lost ? atomic_load(v->nic->lost) : 0 };

	for (unsigned i = 0; i < v->max_pairs; i++)
		for (unsigned j = 0; j < NET_COUNTERS; j++)
			sum[j] += atomic_load_explicit(&v->pair[i].count[j], memory_order_relaxed);
	memcpy(out, sum, sizeof(*out));
}

bool vnet_up(struct vnet *v)
{
	uint64_t status = virtio_reg_config(&v->dev, offsetof(struct virtio_net_config, status), 2);

	return status & VIRTIO_NET_S_LINK_UP;
}
