// SPDX-License-Identifier: GPL-2.0-or-later
#include "device.h"

#include <linux/virtio_config.h>
#include <string.h>

#define TABLES 0x4000u /* indirect ones, of the hostile driver */
#define BUF    0x8000u /* data */

uint64_t fuzz_take(struct fuzz *f, unsigned n)
{
	uint64_t val = 0;

	n = n < f->left ? n : (unsigned)f->left;
	memcpy(&val, f->data, n);
	f->data += n;
	f->left -= n;
	return val;
}

struct fakemem *fuzz_memory(void)
{
	static struct fakemem mem;

	if (!mem.gmem.nbanks)
		fakemem_init(&mem, FUZZ_BANK, 1);
	memset(fakemem_ptr(&mem, 0, FUZZ_RINGS), 0, FUZZ_RINGS);
	mem.top = FUZZ_RINGS;
	return &mem;
}

void fuzz_poke(struct fuzz *f, uint64_t gpa, const void *val, unsigned n)
{
	memcpy(fakemem_ptr(f->mem, gpa % (FUZZ_BANK - n), n), val, n);
	f->dirty = true;
}

/* An address that often is good for something. */
static uint64_t take_addr(struct fuzz *f)
{
	unsigned kind = (unsigned)fuzz_take(f, 1);

	if (kind < 0xe0)
		return (uint64_t)kind << 8;
	return kind < 0xf0 ? fuzz_take(f, 3) : fuzz_take(f, 8);
}

void fuzz_poke_desc(struct fuzz *f, uint64_t table, unsigned i)
{
	union {
		struct vring_desc split;
		struct vring_packed_desc packed;
	} d = { .split = { .addr = take_addr(f) } };
	uint16_t flags = (uint16_t)(fuzz_take(f, 1) | fuzz_take(f, 1) << 15), other = (uint16_t)fuzz_take(f, 1);

	d.split.len = (uint32_t)fuzz_take(f, 1 + i % 4);
	if (f->packed)
		d.packed.id = other, d.packed.flags = flags & 7 ? flags : (uint16_t)(flags | 1 << 7);
	else
		d.split.next = other, d.split.flags = flags;
	fuzz_poke(f, table + 16ull * i, &d, 16);
}

void fuzz_offer(struct fuzz *f, uint64_t avail, unsigned size)
{
	uint16_t idx, head = (uint16_t)fuzz_take(f, 1);

	if (f->packed)
		return;
	memcpy(&idx, fakemem_ptr(f->mem, avail + 2, 2), 2);
	fuzz_poke(f, avail + 4 + 2ull * (idx % size), &head, 2);
	idx++;
	fuzz_poke(f, avail + 2, &idx, 2);
}

/* Brings the device up as a driver does, with features and sizes from the input. */
static void bring_up(struct fuzz *f)
{
	unsigned mode = (unsigned)fuzz_take(f, 1);
	uint64_t features = fuzz_take(f, 1) | (mode >> 6 & 3ull) << 28 | 1ull << 40 | 1ull << VIRTIO_F_VERSION_1;

	f->packed = mode & 8;
	features |= f->packed ? 1ull << VIRTIO_F_RING_PACKED : 0;
	CHECK(fakedev_negotiate(&f->drv, features & f->d->offered));
	for (unsigned q = 0; q < f->d->nqueues; q++)
		fakedev_queue(&f->drv, q, mode & 7 ? 1u << (mode & 7) >> 1 : 0);
	virtio_reg_set_status(f->d, 0xf);
	fakedev_turn(&f->drv);
	f->dirty = false;
}

/* A chain as a good driver makes it, with data from the input: a few bytes, or a message that the console may know. */
static void good_chain(struct fuzz *f, unsigned q, unsigned arg)
{
	unsigned len = (unsigned)fuzz_take(f, 1), at = BUF + 256 * arg;
	uint64_t data = arg & 1 ? fuzz_take(f, 4) & 0x0001000f00000001 : fuzz_take(f, 8);
	struct fake_seg seg[3] = { { at, 8, q % 2 == 0 }, { at + 8, len, q % 2 == 0 }, { at, 200, true } };
	struct fakeq *r = &f->drv.q[q];

	if (arg & 1)
		data = (data & 1) | (len & 15ull) << 32 | 1ull << 48;
	memcpy(fakemem_ptr(f->mem, at, 8), &data, 8);
	if (len > 128) /* more than a console keeps */
		seg[1].len = (len & 15) << 12;
	if (!seg[1].len)
		seg[1].len = 1;
	if (virtio_reg_queue(f->d, q, VQ_ENABLE) && fakeq_add(r, seg, 1 + arg % 3, 0) >= 0)
		fakeq_expose(r);
	if (arg & 8)
		fakedev_kick(&f->drv, q);
}

/* What is back. As long as the driver was good, the device has to be, too. */
static void collect(struct fuzz *f)
{
	struct fake_used u;

	for (unsigned q = 0; !f->dirty && q < f->d->nqueues; q++)
		while (fakeq_get(&f->drv.q[q], &u))
			;
	if (!f->dirty)
		CHECK(!(virtio_reg_status(f->d) & VIRTIO_CONFIG_S_NEEDS_RESET));
}

static void registers(struct fuzz *f, unsigned q, unsigned arg)
{
	enum virtio_queue_reg r = VQ_SIZE + fuzz_take(f, 1) % (VQ_DEVICE + 1);

	switch (arg % 4) {
	case 0: virtio_reg_set_queue(f->d, q, r, arg & 4 ? 32 : 0, arg & 8 ? 64 : 16, fuzz_take(f, 8)); break;
	case 1: virtio_reg_set_features(f->d, arg / 4, (uint32_t)fuzz_take(f, 4)); break;
	case 2: virtio_reg_set_config(f->d, (unsigned)fuzz_take(f, 1 + arg / 4), 1u << arg % 4, fuzz_take(f, 8)); break;
	default:
		(void)virtio_reg_config(f->d, (unsigned)fuzz_take(f, 1 + arg / 4), 1u << q % 4);
		(void)virtio_reg_queue(f->d, (unsigned)fuzz_take(f, 2), r);
		(void)virtio_reg_config_generation(f->d);
	}
}

static void set_paused(struct fuzz *f, bool on)
{
	/* With requests in flight on the only loop it does not come to rest. */
	f->paused = on && !virtio_pause(f->d, 0);
	if (!f->paused)
		virtio_resume(f->d);
}

/* One queue is reset, and perhaps comes back with another size. */
static void reset_queue(struct fuzz *f, unsigned q, unsigned arg)
{
	fakedev_turn(&f->drv); /* a device reset may be on its way */
	if (!virtio_has(f->d, 40) || !virtio_reg_queue(f->d, q, VQ_ENABLE))
		return;
	CHECK(fakedev_queue_reset(&f->drv, q));
	if (arg & 1)
		fakedev_queue(&f->drv, q, 1u << arg % 7);
	else
		f->dirty = true; /* its ring is still there for collect() */
	fakedev_turn(&f->drv);
}

static void break_rules(struct fuzz *f, unsigned q, unsigned op, unsigned arg)
{
	const struct virtq_config *ring = &f->drv.q[q].cfg;
	uint64_t word;

	switch (op) {
	case 0: fuzz_poke_desc(f, ring->desc, arg % ring->size); break;
	case 1: fuzz_poke_desc(f, TABLES + 0x100u * arg, (unsigned)fuzz_take(f, 1)); break;
	case 2:
		word = fuzz_take(f, 8);
		fuzz_poke(f, fuzz_take(f, 3), &word, 1 + arg % 8);
		break;
	case 3:
		word = fuzz_take(f, 4);
		fuzz_poke(f, ring->driver, &word, 4);
		break;
	case 4: fuzz_offer(f, ring->driver, ring->size); break;
	case 5:
		f->dirty = true;
		registers(f, arg & 1 ? q : (unsigned)fuzz_take(f, 2), arg);
		break;
	default: f->dirty = true; virtio_reg_set_status(f->d, (uint8_t)fuzz_take(f, 1));
	}
}

static void step(struct fuzz *f)
{
	unsigned op = (unsigned)fuzz_take(f, 1), arg = op >> 4, q = (unsigned)fuzz_take(f, 1) % f->d->nqueues;

	switch (op & 15) {
	case 7: fakedev_kick(&f->drv, q); break;
	case 8:
	case 9:
	case 10: good_chain(f, q, arg); break;
	case 11: set_paused(f, arg & 1); break;
	case 12: reset_queue(f, q, arg); break;
	case 13:
		if (arg & 1)
			bring_up(f);
		else
			virtio_again(f->d, q);
		break;
	case 14:
		fakedev_turn(&f->drv);
		collect(f);
		break;
	case 15:
		if (f->special)
			f->special(f, arg);
		break;
	default: break_rules(f, q, op & 15, arg);
	}
}

void fuzz_device(struct fuzz *f)
{
	fakedev_init(&f->drv, f->d, f->mem, f->loop);
	bring_up(f);
	while (f->left)
		step(f);
	set_paused(f, false);
	fakedev_start(&f->drv, 0, 0);
}
