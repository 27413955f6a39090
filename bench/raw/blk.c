// SPDX-License-Identifier: GPL-2.0-or-later
#include "raw.h"

#include <linux/virtio_blk.h>
#include <linux/virtio_ids.h>

/*
 * Requests to a disk: n=COUNT of those of 4 KiB, fewer of the larger ones, queues=N, irq=1 with interrupts.
 * fresh=1: writes only, each kind where nobody has written before. write=0: reads only.
 * The offsets of a kind come in no order that a host reads ahead in, and none comes twice before all have come.
 */

#define QUEUES  2
#define DEPTH   32
#define SLOTS   (QUEUES * DEPTH)
#define BIGGEST (1u << 20)
#define REGIONS 8
#define STRIDE  40503 /* odd: comes by every one of a power of two of blocks */
#define SECTOR  512

struct kind {
	const char *name;
	uint32_t type, size;
	unsigned depth;
	unsigned share;            /* one in so many of n requests */
	bool in_order, sync;       /* sync: a flush after each write, counted as a request */
	unsigned region, nregions; /* eighths of the disk, of a fresh one */
};

static const struct kind reads[] = {
	{ "blk_read_4k_d1", VIRTIO_BLK_T_IN, 4096, 1, 1, false, false, 0, REGIONS },
	{ "blk_read_4k_d32", VIRTIO_BLK_T_IN, 4096, 32, 1, false, false, 0, REGIONS },
	{ "blk_read_64k_d32", VIRTIO_BLK_T_IN, 65536, 32, 4, false, false, 0, REGIONS },
	{ "blk_read_1m_d32", VIRTIO_BLK_T_IN, BIGGEST, 32, 32, true, false, 0, REGIONS },
};
static const struct kind writes[] = {
	{ "blk_write_4k_d1", VIRTIO_BLK_T_OUT, 4096, 1, 1, false, false, 0, 1 },
	{ "blk_write_4k_d32", VIRTIO_BLK_T_OUT, 4096, 32, 1, false, false, 1, 1 },
	{ "blk_write_64k_d32", VIRTIO_BLK_T_OUT, 65536, 32, 4, false, false, 2, 1 },
	{ "blk_write_128k_d32", VIRTIO_BLK_T_OUT, 131072, 32, 4, true, false, 3, 2 },
	{ "blk_write_1m_d32", VIRTIO_BLK_T_OUT, BIGGEST, 32, 64, true, false, 7, 1 },
	{ "blk_fsync_4k_d1", VIRTIO_BLK_T_OUT, 4096, 1, 8, false, true, 5, 1 },
	{ "blk_fsync_4k_d8", VIRTIO_BLK_T_OUT, 4096, 8, 8, false, true, 6, 1 },
};

struct request {
	struct virtio_blk_outhdr hdr;
	volatile uint8_t status;
	bool written; /* a flush comes next */
	uint8_t *data;
};

static struct request request[SLOTS];
static const struct kind *kind;
static uint64_t base, blocks, done; /* of the kind: first sector, blocks, how many have been begun */

static void check(unsigned slot)
{
	if (request[slot].status)
		fail("%s: status %u at sector %u", kind->name, (uint64_t)request[slot].status,
		     (uint64_t)request[slot].hdr.sector);
}

static void add_flush(struct vq *q, struct request *r, unsigned slot)
{
	struct seg s[2] = { { &r->hdr, sizeof(r->hdr) }, { (void *)&r->status, 1 } };

	r->hdr = (struct virtio_blk_outhdr){ .type = VIRTIO_BLK_T_FLUSH };
	if (!vq_add(q, s, 1, 1, slot))
		fail("the queue is too small");
}

static void add(struct vq *q, unsigned slot)
{
	struct request *r = &request[slot];
	struct seg s[3] = { { &r->hdr, sizeof(r->hdr) }, { r->data, kind->size }, { (void *)&r->status, 1 } };
	uint64_t block = (kind->in_order ? done : done * STRIDE) & (blocks - 1);
	unsigned out = kind->type == VIRTIO_BLK_T_OUT ? 2 : 1;

	check(slot);
	r->status = 0xff;
	r->written = kind->sync && !r->written;
	if (kind->sync && !r->written) {
		add_flush(q, r, slot);
		return;
	}
	done++;
	r->hdr = (struct virtio_blk_outhdr){ .type = kind->type, .sector = base + block * (kind->size / SECTOR) };
	if (!vq_add(q, s, out, 3 - out, slot))
		fail("the queue is too small");
}

static void run(const struct kind *k, struct vq *q, unsigned nq, uint64_t sectors, uint64_t n)
{
	bool fresh = param("fresh", 0);

	kind = k;
	done = 0;
	base = fresh ? sectors / REGIONS * k->region : 0;
	blocks = (fresh ? sectors / REGIONS * k->nregions : sectors) / (k->size / SECTOR);
	for (unsigned i = 0; i < SLOTS; i++)
		request[i].written = false;
	measure_all(k->name, q, nq, k->depth, n / k->share, add);
	for (unsigned i = 0; i < nq * k->depth; i++)
		check(i);
}

int main(void)
{
	static struct vdev d;
	static struct vq q[QUEUES];
	const volatile struct virtio_blk_config *config;
	unsigned nq = (unsigned)param("queues", 1);
	uint64_t n = param("n", 4000), sectors;
	uint8_t *data;

	data = alloc((size_t)SLOTS * BIGGEST, 2 << 20); /* in the host's huge pages, as a kernel's is */
	for (unsigned i = 0; i < SLOTS; i++) {
		request[i].data = data + i * BIGGEST;
		for (unsigned k = 0; k < BIGGEST; k++)
			request[i].data[k] = 0xa5;
	}
	vdev_init(&d, VIRTIO_ID_BLOCK, 0, 1ull << VIRTIO_BLK_F_FLUSH | 1ull << VIRTIO_BLK_F_MQ);
	for (unsigned i = 0; i < nq; i++)
		vq_init(&d, &q[i], i, VQ_MAX, param("irq", 0));
	vdev_ready(&d);
	config = (const volatile void *)d.config;
	sectors = config->capacity;
	if (nq > QUEUES || sectors & (sectors - 1))
		fail("not more than %u queues, and a disk of a power of two", (uint64_t)QUEUES);
	measure_idle();
	for (unsigned i = 0; !param("fresh", 0) && i < sizeof(reads) / sizeof(reads[0]); i++)
		run(&reads[i], q, nq, sectors, n);
	for (unsigned i = 0; param("write", 1) && i < sizeof(writes) / sizeof(writes[0]); i++)
		run(&writes[i], q, nq, sectors, n);
	return 0;
}
