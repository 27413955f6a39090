/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef VHOST_VHOST_H
#define VHOST_VHOST_H

#include "base/err.h"
#include "virtio/virtio.h"

/*
 * What the kernel's vhost devices have in common: each open /dev/vhost-* is an
 * owner of the guest's memory and of some rings. How rings begin to run is up
 * to the kind of device.
 */

/* A ring of an open device: the @vring-th there. All on the home loop of its queue. */
struct vhost_ring {
	int fd; /* of the device */
	unsigned vring;
	struct virtio_dev *dev;
	unsigned queue; /* of @dev */
	struct loop_fd broken;
	bool on; /* has been started */
};

/* An ioctl: 0 or -errno. */
int vhost_call(int fd, unsigned long request, const void *arg);

/*
 * Opens /dev/@name ("vhost-net") and gives it the guest's memory; @features is
 * what the kernel knows. 0 and a descriptor in *@fd, which is the caller's, or
 * a negative errno with a text that names the device and the remedy, in which
 * @module is what modprobe takes.
 */
int vhost_open(const char *name, const char *module, const struct gmem *mem, int *fd, uint64_t *features,
               struct err *err);

/* Of the features of rings that we offer, those that the kernel does not know. */
uint64_t vhost_lacks(uint64_t features);

/* A ring that is not started, and what that takes: 0 or -errno; vhost_ring_exit() in either case. */
int vhost_ring_init(struct vhost_ring *r, int fd, unsigned vring);
void vhost_ring_exit(struct vhost_ring *r); /* not started */

/*
 * Gives the kernel queue @q of @d, whose ring is there, with the features that
 * the driver took as far as it knows them (@features). It signals @irq_fd for
 * an interrupt. 0 or -errno; to be stopped after success only. A ring that the
 * kernel finds impossible is the guest's fault, and told.
 */
int vhost_ring_start(struct vhost_ring *r, struct virtio_dev *d, unsigned q, uint64_t features, int irq_fd);
void vhost_ring_stop(struct vhost_ring *r); /* does not run; nothing to do where it was not started */

/* For requests that take a descriptor for a ring. */
int vhost_ring_file(const struct vhost_ring *r, unsigned long request, int fd);

#endif
