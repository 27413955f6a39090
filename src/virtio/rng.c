// SPDX-License-Identifier: GPL-2.0-or-later
#include "virtio/rng.h"

#include <errno.h>
#include <linux/virtio_ids.h>
#include <stdlib.h>
#include <sys/random.h>

/*
 * A request is a chain to write random bytes into. It gets at most RNG_MAX of
 * them (the specification allows fewer than asked for), so that a guest cannot
 * keep the loop busy with gigabytes.
 */
#define RNG_MAX    4096
#define RNG_PIECES 16

struct rng {
	struct virtio_dev dev;
};

static void fill(struct virtio_dev *d, unsigned q, struct chain *c)
{
	uint8_t buf[RNG_MAX];
	size_t n = c->in_len < RNG_MAX ? c->in_len : RNG_MAX;
	ssize_t got = getrandom(buf, n, 0); /* the host is up: it does not block, and 256 bytes are never cut short */

	virtq_push(d->queue[q].ring, c, got > 0 ? (uint32_t)chain_put(c, buf, (size_t)got) : 0);
}

static void rng_kick(struct virtio_dev *d, unsigned q)
{
	struct iovec iov[RNG_PIECES];

	virtio_serve(d, q, iov, RNG_PIECES, fill);
}

static const struct virtio_class rng_class = {
	.name = "rng",
	.id = VIRTIO_ID_RNG,
	.kick = rng_kick,
};

int rng_new(const struct gmem *mem, struct loop *loop, struct rng **out, struct err *err)
{
	struct virtio_init init = {
		.class = &rng_class, .name = "rng", .mem = mem, .nqueues = 1, .queue_size = 64, .loop = loop
	};
	struct rng *r = calloc(1, sizeof(*r));
	int error;

	if (!r)
		return err_set(err, -ENOMEM, "out of memory");
	error = virtio_dev_init(&r->dev, &init, err);
	if (error)
		rng_free(r);
	else
		*out = r;
	return error;
}

void rng_free(struct rng *r)
{
	if (!r)
		return;
	virtio_dev_exit(&r->dev);
	free(r);
}

struct virtio_dev *rng_dev(struct rng *r)
{
	return &r->dev;
}
