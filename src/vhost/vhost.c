// SPDX-License-Identifier: GPL-2.0-or-later
#include "vhost/vhost.h"

#include "base/container_of.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/vhost.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ring.h>
#include <poll.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

/*
 * How it works
 *
 * The kernel gets the guest's memory once, and for each ring its place, the
 * eventfd that the guest kicks and the one that interrupts it. A ring that it
 * finds impossible makes it signal @broken.
 */

int vhost_call(int fd, unsigned long request, const void *arg)
{
	return ioctl(fd, request, arg) < 0 ? -errno : 0;
}

int vhost_ring_file(const struct vhost_ring *r, unsigned long request, int fd)
{
	struct vhost_vring_file f = { .index = r->vring, .fd = fd };

	return vhost_call(r->fd, request, &f);
}

static int set_state(const struct vhost_ring *r, unsigned long request, unsigned num)
{
	struct vhost_vring_state s = { .index = r->vring, .num = num };

	return vhost_call(r->fd, request, &s);
}

/* The areas lie in RAM: the core has made a virtq of them. */
static int set_addresses(const struct vhost_ring *r, const struct virtq_config *c)
{
	const struct gmem *mem = r->dev->mem;
	struct vhost_vring_addr a = {
		.index = r->vring,
		.desc_user_addr = (uintptr_t)gmem_ptr(mem, c->desc, 16ull * c->size),
		.avail_user_addr = (uintptr_t)gmem_ptr(mem, c->driver, 4 + 2ull * c->size),
		.used_user_addr = (uintptr_t)gmem_ptr(mem, c->device, 4 + 8ull * c->size),
	};

	return vhost_call(r->fd, VHOST_SET_VRING_ADDR, &a);
}

static void on_broken(struct loop_fd *f, short revents)
{
	struct vhost_ring *r = container_of(f, struct vhost_ring, broken);
	uint64_t count;

	if (read(f->fd, &count, sizeof(count)) == sizeof(count))
		virtio_broken(r->dev, "queue %u: the host's kernel finds its ring impossible", r->queue);
}

int vhost_ring_init(struct vhost_ring *r, int fd, unsigned vring)
{
	*r = (struct vhost_ring){ .fd = fd, .vring = vring };
	r->broken = (struct loop_fd){ .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .events = POLLIN, .cb = on_broken };
	return r->broken.fd < 0 ? -errno : 0;
}

void vhost_ring_exit(struct vhost_ring *r)
{
	if (r->broken.fd >= 0)
		close(r->broken.fd);
	r->broken.fd = -1;
}

int vhost_ring_start(struct vhost_ring *r, struct virtio_dev *d, unsigned q, uint64_t features, int irq_fd)
{
	const struct virtq_config *c = &d->queue[q].cfg;
	int error;

	features &= atomic_load(&d->features);
	error = vhost_call(r->fd, VHOST_SET_FEATURES, &features);
	r->dev = d;
	r->queue = q;
	if (!error)
		error = set_state(r, VHOST_SET_VRING_NUM, c->size);
	if (!error)
		error = set_state(r, VHOST_SET_VRING_BASE, 0);
	if (!error)
		error = set_addresses(r, c);
	if (!error)
		error = vhost_ring_file(r, VHOST_SET_VRING_ERR, r->broken.fd);
	if (!error)
		error = vhost_ring_file(r, VHOST_SET_VRING_CALL, irq_fd);
	if (!error)
		error = vhost_ring_file(r, VHOST_SET_VRING_KICK, d->queue[q].kick_fd);
	if (error)
		return error;
	loop_fd_add(d->queue[q].home, &r->broken);
	r->on = true;
	return 0;
}

void vhost_ring_stop(struct vhost_ring *r)
{
	if (!r->on)
		return;
	r->on = false;
	loop_fd_del(r->dev->queue[r->queue].home, &r->broken);
	(void)vhost_ring_file(r, VHOST_SET_VRING_KICK, VHOST_FILE_UNBIND); /* unbinding does not fail */
	(void)vhost_ring_file(r, VHOST_SET_VRING_CALL, VHOST_FILE_UNBIND);
}

static int set_memory(int fd, const struct gmem *mem)
{
	union {
		struct vhost_memory table;
		uint8_t room[sizeof(struct vhost_memory) + GMEM_MAX_BANKS * sizeof(struct vhost_memory_region)];
	} m = { .table = { .nregions = mem->nbanks } };

	for (unsigned i = 0; i < mem->nbanks; i++)
		m.table.regions[i] = (struct vhost_memory_region){ .guest_phys_addr = mem->bank[i].gpa,
			                                           .memory_size = mem->bank[i].len,
			                                           .userspace_addr = (uintptr_t)mem->bank[i].hva };
	return vhost_call(fd, VHOST_SET_MEM_TABLE, &m);
}

static int open_device(const char *name, const char *module, int *fd, struct err *err)
{
	char path[64];
	int error;

	snprintf(path, sizeof(path), "/dev/%s", name);
	*fd = open(path, O_RDWR | O_CLOEXEC);
	if (*fd >= 0)
		return 0;
	error = -errno;
	if (error == -EACCES || error == -EPERM)
		return err_set(err, error, "%s: %s may not be opened: see its mode and owner", name, path);
	if (error == -ENOENT || error == -ENODEV || error == -ENXIO)
		return err_set(err, error, "%s: this host has no %s: modprobe %s", name, path, module);
	return err_sys(err, error, "%s: %s", name, path);
}

int vhost_open(const char *name, const char *module, const struct gmem *mem, int *fd, uint64_t *features,
               struct err *err)
{
	int error = open_device(name, module, fd, err);

	if (error)
		return error;
	error = vhost_call(*fd, VHOST_SET_OWNER, NULL);
	if (!error)
		error = vhost_call(*fd, VHOST_GET_FEATURES, features);
	if (!error)
		error = set_memory(*fd, mem);
	if (!error)
		return 0;
	close(*fd);
	*fd = -1;
	return err_sys(err, error, "%s", name);
}

uint64_t vhost_lacks(uint64_t features)
{
	return (1ull << VIRTIO_F_RING_PACKED | 1ull << VIRTIO_RING_F_EVENT_IDX | 1ull << VIRTIO_RING_F_INDIRECT_DESC) &
	       ~features;
}
