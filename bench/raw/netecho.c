// SPDX-License-Identifier: GPL-2.0-or-later
#include "raw.h"

#include <linux/virtio_ids.h>

/*
 * Frames that come back: the interface is a port of a bridge in hairpin mode,
 * which sends a broadcast out where it came from, too. What is measured is the
 * receive queue; a request is a frame sent and received. n=COUNT, irq=1 with
 * interrupts for received frames.
 */

#define DEPTH 64
#define HDR   12
#define SLOT  65664

static struct vq rx, tx;
static uint8_t *out, *in;
static uint32_t size;

static void add(struct vq *q, unsigned slot)
{
	struct seg room = { in + slot * SLOT, SLOT };
	struct seg frame = { out, HDR + size };
	uint32_t tag, len;

	while (vq_poll(&tx, &tag, &len))
		;
	vq_add(q, &room, 0, 1, slot);
	vq_kick(q); /* before there is a frame for it */
	vq_add(&tx, &frame, 1, 0, slot);
	vq_kick(&tx);
}

int main(void)
{
	static struct vdev d;
	uint64_t n = param("n", 10000);

	out = alloc(SLOT, 4096);
	in = alloc((size_t)DEPTH * SLOT, 4096);
	for (unsigned i = 0; i < 6; i++) {
		out[HDR + i] = 0xff;
		out[HDR + 6 + i] = 2;
	}
	out[HDR + 12] = 0x88; /* type 0x88b5, for experiments: nobody on the host listens */
	out[HDR + 13] = 0xb5;
	vdev_init(&d, VIRTIO_ID_NET, 0, 0);
	vq_init(&d, &rx, 0, 256, param("irq", 0));
	vq_init(&d, &tx, 1, 256, false);
	vdev_ready(&d);
	measure_idle();
	size = 64;
	measure("netecho_64_d1", &rx, 1, n, add);
	measure("netecho_64_d64", &rx, DEPTH, n, add);
	size = 1514;
	measure("netecho_1514_d64", &rx, DEPTH, n, add);
	size = 65534;
	measure("netecho_64k_d64", &rx, DEPTH, n, add);
	return 0;
}
