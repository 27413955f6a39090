// SPDX-License-Identifier: GPL-2.0-or-later
#include "vhost/vsock.h"

#include "base/container_of.h"
#include "vhost/vhost.h"
#include "virtio/away.h"

#include <endian.h>
#include <errno.h>
#include <linux/vhost.h>
#include <linux/virtio_ids.h>
#include <linux/virtio_vsock.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * How it works
 *
 * The kernel has both rings that data passes on, and runs them together: from
 * when both are there and shall run until one shall not. The event queue stays
 * here, and nothing ever happens on it: it tells of migrations.
 *
 * The context is ours while the device is open. A boot opens it anew, which
 * ends the connections of the one before.
 */

#define VSOCK_RX         0
#define VSOCK_TX         1
#define VSOCK_DATA       2 /* queues that the kernel works on */
#define VSOCK_QUEUES     3
#define VSOCK_QUEUE_SIZE 128

#ifndef VIRTIO_VSOCK_F_SEQPACKET
#define VIRTIO_VSOCK_F_SEQPACKET 1
#endif

struct vsock {
	struct virtio_dev dev;
	int fd;
	uint64_t features; /* [c] of the kernel */
	struct vhost_ring ring[VSOCK_DATA];
	struct virtio_away irq[VSOCK_DATA];
	bool wanted[VSOCK_DATA]; /* [l] the ring shall run */
	bool running;            /* [l] */
};

static struct vsock *of_dev(struct virtio_dev *d)
{
	return container_of(d, struct vsock, dev);
}

static void run(struct virtio_dev *d, unsigned q, bool on)
{
	struct vsock *v = of_dev(d);
	int both, error;

	v->wanted[q] = on;
	both = v->wanted[VSOCK_RX] && v->wanted[VSOCK_TX];
	if (both == v->running)
		return;
	v->running = both;
	error = vhost_call(v->fd, VHOST_VSOCK_SET_RUNNING, &both);
	if (error)
		virtio_broken(d, "the host's kernel does not take it (%s)", strerror(-error));
	for (unsigned i = 0; both && i < VSOCK_DATA; i++)
		virtio_again(d, i); /* the kernel forgets kicks that come before */
}

static void start(struct virtio_dev *d, unsigned q)
{
	struct vsock *v = of_dev(d);
	int fd, error;

	if (q >= VSOCK_DATA)
		return;
	fd = virtio_away_irq(&v->irq[q], d, q);
	error = fd < 0 ? fd : vhost_ring_start(&v->ring[q], d, q, v->features, fd);
	d->queue[q].away = !error;
	if (!error)
		return;
	virtio_away_end(&v->irq[q]);
	virtio_broken(d, "queue %u: the host's kernel does not take it (%s)", q, strerror(-error));
}

/* Of what is on the event queue, and what a broken device is asked for, nothing comes. */
static void kick(struct virtio_dev *d, unsigned q)
{
}

static void stop(struct virtio_dev *d, unsigned q)
{
	struct vsock *v = of_dev(d);

	if (q < VSOCK_DATA) {
		vhost_ring_stop(&v->ring[q]);
		virtio_away_end(&v->irq[q]);
	}
	virtio_queue_stopped(d, q);
}

static const struct virtio_class vsock_class = {
	.name = "vsock",
	.id = VIRTIO_ID_VSOCK,
	.config_len = sizeof(struct virtio_vsock_config),
	.queue_start = start,
	.kick = kick,
	.queue_stop = stop,
	.queue_run = run,
};

/* What the driver reads: what the kernel can do, and who the guest is. */
static void describe(struct vsock *v, uint32_t cid)
{
	struct virtio_vsock_config c = { .guest_cid = htole64(cid) };

	memcpy(v->dev.config, &c, sizeof(c));
	v->dev.offered |= v->features & 1ull << VIRTIO_VSOCK_F_SEQPACKET;
	v->dev.offered &= ~vhost_lacks(v->features);
}

static int take_cid(const struct vsock *v, uint32_t cid, struct err *err)
{
	uint64_t wide = cid;
	int error = vhost_call(v->fd, VHOST_VSOCK_SET_GUEST_CID, &wide);

	if (error == -EADDRINUSE)
		return err_set(err, error, "--vsock %u: somebody on this host has that CID: choose another", cid);
	return error ? err_sys(err, error, "--vsock %u", cid) : 0;
}

static int build(struct vsock *v, uint32_t cid, const struct gmem *mem, struct loop *loop, struct err *err)
{
	struct virtio_init init = { .class = &vsock_class,
		                    .name = "vsock",
		                    .mem = mem,
		                    .nqueues = VSOCK_QUEUES,
		                    .queue_size = VSOCK_QUEUE_SIZE,
		                    .loop = loop };
	int error = vhost_open("vhost-vsock", "vhost_vsock", mem, &v->fd, &v->features, err);

	if (!error)
		error = take_cid(v, cid, err);
	for (unsigned i = 0; !error && i < VSOCK_DATA; i++) {
		error = vhost_ring_init(&v->ring[i], v->fd, i);
		if (error)
			err_sys(err, error, "vhost-vsock");
	}
	if (!error)
		error = virtio_dev_init(&v->dev, &init, err);
	if (!error)
		describe(v, cid);
	return error;
}

int vsock_new(uint32_t cid, const struct gmem *mem, struct loop *loop, struct vsock **out, struct err *err)
{
	struct vsock *v = calloc(1, sizeof(*v));
	int error;

	if (!v)
		return err_set(err, -ENOMEM, "out of memory");
	v->fd = v->ring[VSOCK_RX].broken.fd = v->ring[VSOCK_TX].broken.fd = -1;
	error = build(v, cid, mem, loop, err);
	if (error)
		vsock_free(v);
	else
		*out = v;
	return error;
}

void vsock_free(struct vsock *v)
{
	if (!v)
		return;
	virtio_dev_exit(&v->dev);
	for (unsigned i = 0; i < VSOCK_DATA; i++)
		vhost_ring_exit(&v->ring[i]);
	if (v->fd >= 0)
		close(v->fd);
	free(v);
}

struct virtio_dev *vsock_dev(struct vsock *v)
{
	return &v->dev;
}
