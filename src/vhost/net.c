// SPDX-License-Identifier: GPL-2.0-or-later
#include "vhost/net.h"

#include "base/container_of.h"
#include "vhost/vhost.h"

#include <errno.h>
#include <linux/vhost.h>
#include <linux/virtio_net.h>
#include <stdlib.h>
#include <unistd.h>

/*
 * How it works
 *
 * An open /dev/vhost-net is a kernel thread for one queue pair: vring 0
 * receives, vring 1 sends. A ring runs while it has a back end, the tap's
 * descriptor; where it stands in the ring the kernel remembers meanwhile, so a
 * pause is no more than taking that away.
 */

struct pair {
	int fd, tap;
	struct vhost_ring ring[2];
};

struct vhost_net {
	struct vnet_engine engine;
	uint64_t features; /* of the kernel */
	unsigned npairs;
	struct pair pair[];
};

static struct vhost_net *of_engine(struct vnet_engine *e)
{
	return container_of(e, struct vhost_net, engine);
}

static struct vhost_ring *vring(struct vnet_engine *e, unsigned q)
{
	return &of_engine(e)->pair[q / 2].ring[q % 2];
}

static int vhost_start(struct vnet_engine *e, struct virtio_dev *d, unsigned q, int irq_fd)
{
	return vhost_ring_start(vring(e, q), d, q, of_engine(e)->features, irq_fd);
}

static int vhost_run(struct vnet_engine *e, unsigned q, bool on)
{
	int tap = of_engine(e)->pair[q / 2].tap;

	return vhost_ring_file(vring(e, q), VHOST_NET_SET_BACKEND, on ? tap : VHOST_FILE_UNBIND);
}

static void vhost_stop(struct vnet_engine *e, unsigned q)
{
	vhost_ring_stop(vring(e, q));
}

static int make_pair(struct vhost_net *v, unsigned i, const struct gmem *mem, int tap, struct err *err)
{
	struct pair *p = &v->pair[i];
	int error = vhost_open("vhost-net", "vhost_net", mem, &p->fd, &v->features, err);

	p->tap = tap;
	if (error)
		return error;
	for (unsigned j = 0; !error && j < 2; j++)
		error = vhost_ring_init(&p->ring[j], p->fd, j);
	return error ? err_sys(err, error, "vhost-net") : 0;
}

void vhost_net_free(struct vnet_engine *e)
{
	struct vhost_net *v;

	if (!e)
		return;
	v = of_engine(e);
	for (unsigned i = 0; i < v->npairs; i++) {
		struct pair *p = &v->pair[i];

		vhost_ring_exit(&p->ring[0]);
		vhost_ring_exit(&p->ring[1]);
		if (p->fd >= 0)
			close(p->fd);
	}
	free(v);
}

int vhost_net_new(const struct gmem *mem, const int *tap, unsigned npairs, struct vnet_engine **out, struct err *err)
{
	struct vhost_net *v = calloc(1, sizeof(*v) + npairs * sizeof(v->pair[0]));
	int error = 0;

	if (!v)
		return err_set(err, -ENOMEM, "out of memory");
	for (unsigned i = 0; !error && i < npairs; i++) {
		v->pair[i].fd = v->pair[i].ring[0].broken.fd = v->pair[i].ring[1].broken.fd = -1;
		v->npairs = i + 1;
		error = make_pair(v, i, mem, tap[i], err);
	}
	if (error) {
		vhost_net_free(&v->engine);
		return error;
	}
	v->engine.start = vhost_start;
	v->engine.run = vhost_run;
	v->engine.stop = vhost_stop;
	v->engine.lacks = vhost_lacks(v->features) | (1ull << VIRTIO_NET_F_MRG_RXBUF & ~v->features);
	*out = &v->engine;
	return 0;
}
