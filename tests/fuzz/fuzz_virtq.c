// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * libFuzzer target: the bytes are a hostile driver and a device. They choose
 * the ring, scribble on guest memory and call the device's side of virtq.h in
 * any order. Every chain lies in guest RAM; what the device must be able to
 * rely on holds; a device that empties the ring comes to an end.
 *
 * clang -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -std=gnu11 -Isrc -Itests/unit tests/fuzz/fuzz_virtq.c \
 *     tests/unit/fakedrv.c src/virtio/virtq.c src/bus/gmem.c src/base/err.c
 */
#include "fakedrv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s\n", #x), abort()))
#define BANK     (64u << 10)
#define MAX_SIZE 64
#define MAX_IOV  40

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct fakemem mem;

struct fuzz {
	const uint8_t *data;
	size_t left;
	struct virtq_config cfg;
	struct virtq *q;
	struct iovec iov[MAX_IOV];
	struct chain held[MAX_SIZE]; /* in flight, in the order of popping */
	unsigned nheld;
};

static uint64_t take(struct fuzz *f, unsigned n)
{
	uint64_t val = 0;

	n = n < f->left ? n : (unsigned)f->left;
	memcpy(&val, f->data, n);
	f->data += n;
	f->left -= n;
	return val;
}

static void open_queue(struct fuzz *f)
{
	unsigned mode = (unsigned)take(f, 1);
	struct virtq_config *c = &f->cfg;

	*c = (struct virtq_config){
		.size = 1 + take(f, 1) % MAX_SIZE, .desc = 0x1000, .driver = 0x3000, .device = 0x4000
	};
	c->packed = mode & FAKE_PACKED;
	c->event_idx = mode & FAKE_EVENT_IDX;
	c->indirect = mode & FAKE_INDIRECT;
	if (mode & 0x80) /* anywhere, also one over the other */
		c->desc = take(f, 3), c->driver = take(f, 3), c->device = take(f, 3);
	for (unsigned i = 0; i < mem.gmem.nbanks; i++)
		memset(mem.gmem.bank[i].hva, 0, BANK);
}

/* An address that often is good for something. */
static uint64_t take_addr(struct fuzz *f)
{
	unsigned kind = (unsigned)take(f, 1);

	if (kind < 0xe0)
		return (uint64_t)kind << 8;
	return kind < 0xf0 ? take(f, 3) : take(f, 8);
}

static void poke(uint64_t gpa, const void *val, unsigned n)
{
	gpa %= 2 * BANK - n;
	for (unsigned i = 0; i < n; i++)
		*(uint8_t *)fakemem_ptr(&mem, gpa + i, 1) = ((const uint8_t *)val)[i];
}

/* Entry @i of the table at @table; 16-bit fields as the layout has them. */
static void poke_desc(struct fuzz *f, uint64_t table, unsigned i)
{
	union {
		struct vring_desc split;
		struct vring_packed_desc packed;
	} d = { .split = { .addr = take_addr(f) } };
	uint16_t flags = (uint16_t)(take(f, 1) | take(f, 1) << 15), other = (uint16_t)take(f, 1);

	d.split.len = (uint32_t)take(f, 1 + i % 4);
	if (f->cfg.packed)
		d.packed.id = other, d.packed.flags = flags;
	else
		d.split.next = other, d.split.flags = flags;
	poke(table + 16ull * i, &d, 16);
}

static void offer(struct fuzz *f)
{
	uint16_t idx, head = (uint16_t)take(f, 1);

	if (f->cfg.packed || f->cfg.driver + 4 + 2ull * f->cfg.size > BANK)
		return;
	memcpy(&idx, fakemem_ptr(&mem, f->cfg.driver + 2, 2), 2);
	poke(f->cfg.driver + 4 + 2ull * (idx % f->cfg.size), &head, 2);
	idx++;
	poke(f->cfg.driver + 2, &idx, 2);
}

static void check_chain(const struct fuzz *f, const struct chain *c)
{
	uint64_t out = 0, in = 0;

	CHECK(c->id < f->cfg.size && c->ndesc >= 1 && c->ndesc <= f->cfg.size && c->nout + c->nin <= MAX_IOV);
	for (unsigned i = 0; i < c->nout + c->nin; i++) {
		CHECK(c->iov[i].iov_len && fakemem_has(&mem, c->iov[i].iov_base, c->iov[i].iov_len));
		*(i < c->nout ? &out : &in) += c->iov[i].iov_len;
	}
	CHECK(out == c->out_len && in == c->in_len);
	for (unsigned i = 0; i < f->nheld; i++)
		CHECK(f->held[i].id != c->id);
}

static bool pop(struct fuzz *f)
{
	struct chain *c = &f->held[f->nheld], extra;
	int r = virtq_pop(f->q, f->nheld < f->cfg.size ? c : &extra, f->iov, MAX_IOV);

	CHECK(r == 0 || r == 1 || r == -EINVAL);
	CHECK((r < 0) == (virtq_why(f->q) != NULL));
	if (r != 1)
		return false;
	CHECK(f->nheld < f->cfg.size);
	check_chain(f, c);
	f->nheld++;
	return true;
}

/* Moves data, as a device would: this may well rewrite the rings. */
static void use(struct fuzz *f)
{
	struct chain *c = &f->held[f->nheld - 1];
	uint8_t buf[64];

	memset(buf, (int)take(f, 1), sizeof(buf));
	CHECK(chain_get(c, buf, 33) <= 33 && c->out_pos <= c->out_len);
	CHECK(chain_put(c, buf, sizeof(buf)) <= sizeof(buf) && c->in_pos <= c->in_len);
}

static void push(struct fuzz *f, unsigned i)
{
	struct chain c = f->held[i];
	uint32_t written = (uint32_t)take(f, 1);

	virtq_push(f->q, &c, written < c.in_len ? written : (uint32_t)c.in_len);
	f->nheld--;
	memmove(&f->held[i], &f->held[i + 1], (f->nheld - i) * sizeof(c));
}

static void unpop(struct fuzz *f)
{
	virtq_unpop(f->q, &f->held[--f->nheld]);
}

/* Waits for more than there is: takes all, puts all back. Nobody writes meanwhile, so this must not go on for ever. */
static void wait_for_more(struct fuzz *f)
{
	unsigned turns = 0, before = f->nheld;

	do {
		CHECK(turns++ <= MAX_SIZE + 1);
		virtq_disarm(f->q);
		while (pop(f))
			;
		while (f->nheld > before)
			unpop(f);
	} while (virtq_rearm(f->q));
}

static void step(struct fuzz *f)
{
	unsigned op = (unsigned)take(f, 1), arg = op >> 4;
	uint64_t word, top = f->nheld;

	switch (op & 15) {
	case 0: poke_desc(f, f->cfg.desc, arg); break;
	case 1: poke_desc(f, f->cfg.desc, (unsigned)take(f, 1) % MAX_SIZE); break;
	case 2: poke_desc(f, 0x5000 + 0x100u * arg, (unsigned)take(f, 1)); break;
	case 3:
		word = take(f, 8);
		poke(take(f, 3), &word, 1 + arg % 8);
		break;
	case 4:
		word = take(f, 4);
		poke(f->cfg.driver, &word, 4); /* avail flags and idx, driver event */
		break;
	case 5:
	case 6: offer(f); break;
	case 7: virtq_disarm(f->q); break;
	case 8: virtq_rearm(f->q); break;
	case 9: virtq_flush(f->q); break;
	case 10: wait_for_more(f); break;
	case 11:
		if (top)
			unpop(f);
		break;
	case 12:
		if (top)
			push(f, arg % f->nheld);
		break;
	default:
		if (pop(f) && arg & 1)
			use(f);
	}
	CHECK(virtq_inflight(f->q) == f->nheld);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz f = { .data = data, .left = size };

	if (!mem.gmem.nbanks)
		fakemem_init(&mem, BANK, 2);
	open_queue(&f);
	if (virtq_new(&mem.gmem, &f.cfg, &f.q))
		return 0;
	while (f.left)
		step(&f);
	virtq_free(f.q);
	return 0;
}
