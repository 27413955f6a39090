// SPDX-License-Identifier: GPL-2.0-or-later
#include "raw.h"

#include <linux/virtio_ids.h>

/* Frames sent to a tap interface: n=COUNT of each size, irq=1 with interrupts. */

#define DEPTH 64
#define HDR   12

static uint8_t *buf;
static uint32_t size;

static void add(struct vq *q, unsigned slot)
{
	uint8_t *p = buf + slot * 65664;
	struct seg s[2] = { { p, HDR }, { p + HDR, size } };

	vq_add(q, s, 2, 0, slot);
}

/* Broadcasts of a type that nobody on the host listens to (0x88b5: for experiments). */
static void fill(uint8_t *frame)
{
	for (unsigned i = 0; i < 6; i++) {
		frame[i] = 0xff;
		frame[6 + i] = 2;
	}
	frame[12] = 0x88;
	frame[13] = 0xb5;
}

int main(void)
{
	static struct vdev d;
	static struct vq rx, tx;
	uint64_t n = param("n", 10000);

	buf = alloc((size_t)DEPTH * 65664, 4096);
	for (unsigned i = 0; i < DEPTH; i++)
		fill(buf + i * 65664 + HDR);
	vdev_init(&d, VIRTIO_ID_NET, 0, 0);
	vq_init(&d, &rx, 0, 4, false);
	vq_init(&d, &tx, 1, 256, param("irq", 0));
	vdev_ready(&d);
	measure_idle();
	size = 64;
	measure("net_64_d1", &tx, 1, n, add);
	measure("net_64_d64", &tx, DEPTH, n, add);
	size = 1514;
	measure("net_1514_d1", &tx, 1, n, add);
	measure("net_1514_d64", &tx, DEPTH, n, add);
	size = 65534;
	measure("net_64k_d64", &tx, DEPTH, n, add);
	return 0;
}
