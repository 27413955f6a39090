/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef VIRTIO_RNG_H
#define VIRTIO_RNG_H

#include "virtio/virtio.h"

/* The entropy device (virtio 1.2, 5.4), fed by the host's getrandom(2). */
struct rng;

int rng_new(const struct gmem *mem, struct loop *loop, struct rng **out, struct err *err);
void rng_free(struct rng *r); /* NULL is fine; not on a bus any more */
struct virtio_dev *rng_dev(struct rng *r);

#endif
