/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef VIRTIO_BLK_H
#define VIRTIO_BLK_H

#include "block/block.h"
#include "virtio/virtio.h"

/*
 * The block device (virtio 1.2, 5.2): a disk of the guest on an image. Each of
 * its queues lives on a loop and has its own end of the image there, so queues
 * on different loops share nothing on the way of a request.
 */
struct vblk;

#define VBLK_MAX_QUEUES 16

struct vblk_config {
	const char *name;          /* for messages: "disk0"; outlives the device */
	const char *serial;        /* the first 20 bytes of it; NULL: none. /dev/disk/by-id in a guest */
	struct blk *image;         /* outlives the device */
	unsigned nqueues;          /* 1 to VBLK_MAX_QUEUES */
	struct loop *const *loops; /* homes of the queues, in turn: not the loop that stops or frees the device */
	unsigned nloops;
	uint32_t block; /* what the guest takes for a sector: 512 or 4096 */
	/*
	 * on-error=stop: a request has failed with @error (-errno) and is kept, to
	 * be tried again after virtio_resume(). Called on a home loop, for every
	 * such request: have the machine paused. NULL: the guest is told.
	 */
	void (*failed)(void *arg, int error);
	void *arg;
};

int vblk_new(const struct vblk_config *cfg, const struct gmem *mem, struct vblk **out, struct err *err);
void vblk_free(struct vblk *v); /* NULL is fine; not on a bus any more */
struct virtio_dev *vblk_dev(struct vblk *v);

#endif
