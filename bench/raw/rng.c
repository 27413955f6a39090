// SPDX-License-Identifier: GPL-2.0-or-later
#include "raw.h"

#include <linux/virtio_ids.h>

/* Entropy requests: n=COUNT of each kind, irq=1 with interrupts. */

#define DEPTH 32

static uint8_t *buf;
static uint32_t size;

static void add(struct vq *q, unsigned slot)
{
	struct seg s = { buf + slot * size, size };

	vq_add(q, &s, 0, 1, slot);
}

int main(void)
{
	static struct vdev d;
	static struct vq q;
	uint64_t n = param("n", 10000);

	buf = alloc((size_t)DEPTH * 4096, 4096);
	vdev_init(&d, VIRTIO_ID_RNG, 0, 0);
	vq_init(&d, &q, 0, DEPTH, param("irq", 0));
	vdev_ready(&d);
	measure_idle();
	size = 64;
	measure("rng_64_d1", &q, 1, n, add);
	measure("rng_64_d32", &q, DEPTH, n, add);
	size = 4096;
	measure("rng_4k_d1", &q, 1, n, add);
	measure("rng_4k_d32", &q, DEPTH, n, add);
	return 0;
}
