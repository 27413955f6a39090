/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef TESTS_FAKEDRV_DEV_H
#define TESTS_FAKEDRV_DEV_H

#include "fakedrv.h"
#include "virtio/virtio.h"

/*
 * The fake driver with a whole device: it is the transport of a virtio_dev,
 * turns its loop, and walks it through its life as a driver does. Whatever a
 * correct driver may rely on is demanded, by abort().
 */
struct fakedev {
	struct virtio_dev *d;
	struct fakemem *mem;
	struct loop *loop;                    /* home of the queues, run by nobody else; NULL: others run them */
	struct fakeq *q;                      /* one for each queue; valid after fakedev_start() */
	uint64_t ring_mem[VIRTIO_MAX_QUEUES]; /* where the queue's ring goes */
	atomic_uint queue_irqs[VIRTIO_MAX_QUEUES], config_irqs; /* interrupts so far */
};

/* Becomes the transport of @d, which is initialised and at rest. Allocates @f->q. */
void fakedev_init(struct fakedev *f, struct virtio_dev *d, struct fakemem *mem, struct loop *loop);
void fakedev_exit(struct fakedev *f); /* resets @d; before virtio_dev_exit() */

/* Reset, ACKNOWLEDGE, DRIVER, features, FEATURES_OK: false when the device refuses (bits it never offered …). */
bool fakedev_negotiate(struct fakedev *f, uint64_t features);
/* Makes a ring of @size entries (0: the most that the device takes) and enables it, as negotiated. */
void fakedev_queue(struct fakedev *f, unsigned i, uint16_t size);
/* All of it, with every queue, and DRIVER_OK: VIRTIO_F_VERSION_1 is added to @features. */
void fakedev_start(struct fakedev *f, uint64_t features, uint16_t size);

/* Publishes what was added to queue @i, kicks if that is wanted, and turns the loop. */
void fakedev_publish(struct fakedev *f, unsigned i);
void fakedev_kick(struct fakedev *f, unsigned i); /* in any case; turns the loop */
/* Waits until queue @i has a used chain: its token and length in @u. False: none came in many turns of our loop. */
bool fakedev_get(struct fakedev *f, unsigned i, struct fake_used *u);
/* Lets the loop handle everything that is ready now. */
void fakedev_turn(struct fakedev *f);

/* Write the register and wait until the device has done it; the rings are forgotten. False: it hangs. */
bool fakedev_reset(struct fakedev *f);
bool fakedev_queue_reset(struct fakedev *f, unsigned i);

void fakedev_pause(struct fakedev *f); /* virtio_pause(), which must succeed */

#endif
