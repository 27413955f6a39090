// SPDX-License-Identifier: GPL-2.0-or-later
#include "vhost/net.h"

#include "base/container_of.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/vhost.h>
#include <linux/virtio_config.h>
#include <linux/virtio_net.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

/*
 * How it works
 *
 * An open /dev/vhost-net is a kernel thread for one queue pair: vring 0
 * receives, vring 1 sends. It gets the guest's memory once, and for each ring
 * its place, the eventfd that the guest kicks and the one that interrupts it.
 * A ring runs while it has a back end, the tap's descriptor; where it stands in
 * the ring the kernel remembers meanwhile, so a pause is no more than taking
 * that away.
 *
 * A ring that the kernel finds impossible makes it signal @broken.
 */

struct vhost_ring {
	struct pair *pair;
	unsigned queue; /* of the device */
	struct virtio_dev *dev;
	struct loop_fd broken;
	bool on; /* has been started */
};

struct pair {
	struct vhost_net *vhost;
	int fd, tap;
	struct vhost_ring ring[2];
};

struct vhost_net {
	struct vnet_engine engine;
	const struct gmem *mem;
	struct loop *loop;
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

static int call(int fd, unsigned long request, const void *arg)
{
	return ioctl(fd, request, arg) < 0 ? -errno : 0;
}

static int set_file(const struct vhost_ring *r, unsigned long request, int fd)
{
	struct vhost_vring_file f = { .index = r->queue % 2, .fd = fd };

	return call(r->pair->fd, request, &f);
}

static int set_state(const struct vhost_ring *r, unsigned long request, unsigned num)
{
	struct vhost_vring_state s = { .index = r->queue % 2, .num = num };

	return call(r->pair->fd, request, &s);
}

/* The areas lie in RAM: the core has made a virtq of them. */
static int set_addresses(const struct vhost_ring *r, const struct virtq_config *c)
{
	const struct gmem *mem = r->pair->vhost->mem;
	struct vhost_vring_addr a = {
		.index = r->queue % 2,
		.desc_user_addr = (uintptr_t)gmem_ptr(mem, c->desc, 16ull * c->size),
		.avail_user_addr = (uintptr_t)gmem_ptr(mem, c->driver, 4 + 2ull * c->size),
		.used_user_addr = (uintptr_t)gmem_ptr(mem, c->device, 4 + 8ull * c->size),
	};

	return call(r->pair->fd, VHOST_SET_VRING_ADDR, &a);
}

static void on_broken(struct loop_fd *f, short revents)
{
	struct vhost_ring *r = container_of(f, struct vhost_ring, broken);
	uint64_t count;

	if (read(f->fd, &count, sizeof(count)) == sizeof(count))
		virtio_broken(r->dev, "queue %u: the host's kernel finds its ring impossible", r->queue);
}

static int vhost_start(struct vnet_engine *e, struct virtio_dev *d, unsigned q, int irq_fd)
{
	struct vhost_ring *r = vring(e, q);
	const struct virtq_config *c = &d->queue[q].cfg;
	uint64_t features = atomic_load(&d->features) & of_engine(e)->features;
	int error = call(r->pair->fd, VHOST_SET_FEATURES, &features);

	r->dev = d;
	if (!error)
		error = set_state(r, VHOST_SET_VRING_NUM, c->size);
	if (!error)
		error = set_state(r, VHOST_SET_VRING_BASE, 0);
	if (!error)
		error = set_addresses(r, c);
	if (!error)
		error = set_file(r, VHOST_SET_VRING_ERR, r->broken.fd);
	if (!error)
		error = set_file(r, VHOST_SET_VRING_CALL, irq_fd);
	if (!error)
		error = set_file(r, VHOST_SET_VRING_KICK, d->queue[q].kick_fd);
	if (error)
		return error;
	loop_fd_add(r->pair->vhost->loop, &r->broken);
	r->on = true;
	return 0;
}

static int vhost_run(struct vnet_engine *e, unsigned q, bool on)
{
	const struct vhost_ring *r = vring(e, q);

	return set_file(r, VHOST_NET_SET_BACKEND, on ? r->pair->tap : VHOST_FILE_UNBIND);
}

static void vhost_stop(struct vnet_engine *e, unsigned q)
{
	struct vhost_ring *r = vring(e, q);

	if (!r->on)
		return;
	r->on = false;
	loop_fd_del(r->pair->vhost->loop, &r->broken);
	(void)set_file(r, VHOST_SET_VRING_KICK, VHOST_FILE_UNBIND); /* unbinding does not fail */
	(void)set_file(r, VHOST_SET_VRING_CALL, VHOST_FILE_UNBIND);
}

static int set_memory(const struct pair *p)
{
	const struct gmem *mem = p->vhost->mem;
	union {
		struct vhost_memory table;
		uint8_t room[sizeof(struct vhost_memory) + GMEM_MAX_BANKS * sizeof(struct vhost_memory_region)];
	} m = { .table = { .nregions = mem->nbanks } };

	for (unsigned i = 0; i < mem->nbanks; i++)
		m.table.regions[i] = (struct vhost_memory_region){ .guest_phys_addr = mem->bank[i].gpa,
			                                           .memory_size = mem->bank[i].len,
			                                           .userspace_addr = (uintptr_t)mem->bank[i].hva };
	return call(p->fd, VHOST_SET_MEM_TABLE, &m);
}

static int open_device(struct pair *p, struct err *err)
{
	int error;

	p->fd = open("/dev/vhost-net", O_RDWR | O_CLOEXEC);
	if (p->fd >= 0)
		return 0;
	error = -errno;
	if (error == -EACCES || error == -EPERM)
		return err_set(err, error, "vhost-net: /dev/vhost-net may not be opened: see its mode and owner");
	if (error == -ENOENT || error == -ENODEV || error == -ENXIO)
		return err_set(err, error, "vhost-net: this host has none: modprobe vhost_net");
	return err_sys(err, error, "vhost-net: /dev/vhost-net");
}

static int make_pair(struct vhost_net *v, unsigned i, int tap, struct err *err)
{
	struct pair *p = &v->pair[i];
	int error = open_device(p, err);

	p->vhost = v;
	p->tap = tap;
	if (error)
		return error;
	error = call(p->fd, VHOST_SET_OWNER, NULL);
	if (!error)
		error = call(p->fd, VHOST_GET_FEATURES, &v->features);
	if (!error)
		error = set_memory(p);
	for (unsigned j = 0; !error && j < 2; j++) {
		struct vhost_ring *r = &p->ring[j];

		*r = (struct vhost_ring){ .pair = p, .queue = 2 * i + j };
		r->broken = (struct loop_fd){ .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
			                      .events = POLLIN,
			                      .cb = on_broken };
		error = r->broken.fd < 0 ? -errno : 0;
	}
	return error ? err_sys(err, error, "vhost-net") : 0;
}

void vhost_net_free(struct vnet_engine *e)
{
	struct vhost_net *v;

	if (!e)
		return;
	v = of_engine(e);
	for (unsigned i = 0; i < v->npairs; i++) {
		const struct pair *p = &v->pair[i];

		for (unsigned j = 0; j < 2; j++)
			if (p->ring[j].broken.fd >= 0)
				close(p->ring[j].broken.fd);
		if (p->fd >= 0)
			close(p->fd);
	}
	free(v);
}

int vhost_net_new(const struct gmem *mem, struct loop *loop, const int *tap, unsigned npairs, struct vnet_engine **out,
                  struct err *err)
{
	struct vhost_net *v = calloc(1, sizeof(*v) + npairs * sizeof(v->pair[0]));
	int error = 0;

	if (!v)
		return err_set(err, -ENOMEM, "out of memory");
	*v = (struct vhost_net){ .mem = mem, .loop = loop };
	for (unsigned i = 0; !error && i < npairs; i++) {
		v->pair[i].fd = v->pair[i].ring[0].broken.fd = v->pair[i].ring[1].broken.fd = -1;
		v->npairs = i + 1;
		error = make_pair(v, i, tap[i], err);
	}
	if (error) {
		vhost_net_free(&v->engine);
		return error;
	}
	v->engine.start = vhost_start;
	v->engine.run = vhost_run;
	v->engine.stop = vhost_stop;
	v->engine.lacks = (1ull << VIRTIO_F_RING_PACKED | 1ull << VIRTIO_NET_F_MRG_RXBUF) & ~v->features;
	*out = &v->engine;
	return 0;
}
