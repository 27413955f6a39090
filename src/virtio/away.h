/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef VIRTIO_AWAY_H
#define VIRTIO_AWAY_H

#include "virtio/virtio.h"

/*
 * The interrupt of a queue that somebody else works on, the kernel: it leaves
 * through the transport's eventfd. Without MSI-X there is none: then one of
 * ours is signalled, and the queue's home loop raises the interrupt. Home loop.
 */
struct virtio_away {
	struct virtio_dev *dev;
	unsigned queue;
	struct loop_fd irq; /* ours; fd -1: it is the transport's */
};

/* The descriptor to be signalled, good until virtio_away_end(), or -EMFILE. */
int virtio_away_irq(struct virtio_away *a, struct virtio_dev *d, unsigned q);
/* Nobody signals it any more. Safe after a failure of the above, too. */
void virtio_away_end(struct virtio_away *a);

#endif
