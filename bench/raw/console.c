// SPDX-License-Identifier: GPL-2.0-or-later
#include "raw.h"

#include <linux/virtio_ids.h>

/* Output to the first port: n=COUNT of each kind of chunk, irq=1 with interrupts. */

#define DEPTH    16
#define TRANSMIT 1   /* queue of port 0 */
#define BYTE     '#' /* in no line of results */

static uint8_t *buf;
static uint32_t size;

static void add(struct vq *q, unsigned slot)
{
	struct seg s = { buf, size };

	vq_add(q, &s, 1, 0, slot);
}

int main(void)
{
	static const struct {
		const char *name;
		uint32_t size;
		unsigned depth;
	} kinds[] = {
		{ "console_64_d1", 64, 1 },        { "console_64_d16", 64, DEPTH }, { "console_1k_d1", 1024, 1 },
		{ "console_1k_d16", 1024, DEPTH }, { "console_4k_d1", 4096, 1 },    { "console_4k_d16", 4096, DEPTH },
	};
	static struct vdev d;
	static struct vq rx, tx;
	uint64_t n = param("n", 10000);

	buf = alloc(4096, 4096);
	for (unsigned i = 0; i < 4096; i++)
		buf[i] = BYTE;
	vdev_init(&d, VIRTIO_ID_CONSOLE, 0, 0);
	vq_init(&d, &rx, 0, DEPTH, false);
	vq_init(&d, &tx, TRANSMIT, DEPTH, param("irq", 0));
	vdev_ready(&d);
	measure_idle();
	for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		size = kinds[i].size;
		measure(kinds[i].name, &tx, kinds[i].depth, n, add);
	}
	return 0;
}
