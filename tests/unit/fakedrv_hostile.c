// SPDX-License-Identifier: GPL-2.0-or-later
#include "fakedrv_hostile.h"

#include <string.h>

#define LAST     (FAKE_HOSTILE_SIZE - 1)
#define TABLE    (q->table_gpa)
#define BUF      0x1000u /* some RAM */
#define R        0u
#define W        VRING_DESC_F_WRITE
#define NEXT     VRING_DESC_F_NEXT
#define INDIRECT VRING_DESC_F_INDIRECT
#define P_AVAIL  (1u << VRING_PACKED_DESC_F_AVAIL)
#define P_USED   (1u << VRING_PACKED_DESC_F_USED)

/* The first address beyond RAM. */
static uint64_t end(const struct fakeq *q)
{
	const struct gmem_bank *b = &q->mem->gmem.bank[q->mem->gmem.nbanks - 1];

	return b->gpa + b->len;
}

/* Entry @i, raw: @other is next or id. Packed ones are available on the first lap. */
static void put(struct fakeq *q, unsigned i, uint64_t addr, uint64_t len, unsigned flags, unsigned other)
{
	if (q->cfg.packed)
		q->ring[i] = (struct vring_packed_desc){ addr, (uint32_t)len, (uint16_t)other,
			                                 (uint16_t)(flags ^ P_AVAIL) };
	else
		q->desc[i] = (struct vring_desc){ addr, (uint32_t)len, (uint16_t)flags, (uint16_t)other };
}

/* Split: offers @head, raw. */
static void offer(struct fakeq *q, unsigned head)
{
	if (q->cfg.packed)
		return;
	q->avail->ring[q->avail->idx % q->cfg.size] = (uint16_t)head;
	q->avail->idx++;
}

struct raw {
	uint64_t addr, len;
	unsigned flags;
};

static void chain(struct fakeq *q, const struct raw *r, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		put(q, i, r[i].addr, r[i].len, r[i].flags | (i + 1 < n ? NEXT : 0), q->cfg.packed ? 0 : i + 1);
	offer(q, 0);
}

/* One entry that points to a table of @n. */
static void indirect(struct fakeq *q, const struct raw *r, unsigned n)
{
	struct raw head = { TABLE, n * 16ull, INDIRECT };

	for (unsigned i = 0; i < n; i++)
		if (q->cfg.packed)
			q->table.packed[i] = (struct vring_packed_desc){ r[i].addr, (uint32_t)r[i].len, 0,
				                                         (uint16_t)r[i].flags };
		else
			q->table.split[i] = (struct vring_desc){ r[i].addr, (uint32_t)r[i].len,
				                                 (uint16_t)(r[i].flags | (i + 1 < n ? NEXT : 0)),
				                                 (uint16_t)(i + 1) };
	chain(q, &head, 1);
}

#define CHAIN(...) \
	chain(q, (const struct raw[]){ __VA_ARGS__ }, sizeof((struct raw[]){ __VA_ARGS__ }) / sizeof(struct raw))
#define INDIR(...) \
	indirect(q, (const struct raw[]){ __VA_ARGS__ }, sizeof((struct raw[]){ __VA_ARGS__ }) / sizeof(struct raw))

static void outside(struct fakeq *q)
{
	CHAIN({ end(q), 1, W });
}

static void last_byte(struct fakeq *q)
{
	CHAIN({ BUF, 1, R }, { end(q) - 16, 17, W });
}

static void wraps(struct fakeq *q)
{
	CHAIN({ ~0ull - 7, 16, R });
}

static void wraps_into_ram(struct fakeq *q)
{
	CHAIN({ 0 - 0x1000ull, 0x6000, W });
}

static void huge(struct fakeq *q)
{
	CHAIN({ 0, 0xffffffff, W });
}

static void sign(struct fakeq *q)
{
	CHAIN({ 1ull << 63, 0x80000000, R });
}

static void order(struct fakeq *q)
{
	CHAIN({ BUF, 1, R }, { BUF, 1, W }, { BUF, 1, R });
}

static void order_nested(struct fakeq *q)
{
	INDIR({ BUF, 1, W }, { BUF, 1, R });
}

static void outside_nested(struct fakeq *q)
{
	INDIR({ BUF, 1, W }, { end(q) - 3, 4, W });
}

static void not_negotiated(struct fakeq *q)
{
	CHAIN({ TABLE, 16, INDIRECT });
}

static void table_empty(struct fakeq *q)
{
	CHAIN({ TABLE, 0, INDIRECT });
}

static void table_odd(struct fakeq *q)
{
	CHAIN({ TABLE, 17, INDIRECT });
}

static void table_long(struct fakeq *q)
{
	CHAIN({ 0, 16 * (VIRTQ_MAX_SIZE + 1), INDIRECT });
}

static void table_longest(struct fakeq *q)
{
	CHAIN({ 0, 0xfffffff0, INDIRECT });
}

static void table_outside(struct fakeq *q)
{
	CHAIN({ end(q), 16, INDIRECT });
}

static void table_wraps(struct fakeq *q)
{
	CHAIN({ 0 - 16ull, 32, INDIRECT });
}

static void table_next(struct fakeq *q)
{
	CHAIN({ TABLE, 16, INDIRECT }, { BUF, 1, R });
}

static void nested(struct fakeq *q)
{
	INDIR({ BUF, 1, R }, { TABLE, 16, INDIRECT });
}

static void head(struct fakeq *q)
{
	offer(q, q->cfg.size);
}

static void head_max(struct fakeq *q)
{
	offer(q, 0xffff);
}

static void jump(struct fakeq *q)
{
	q->avail->idx = (uint16_t)(q->cfg.size + 1);
}

static void back(struct fakeq *q)
{
	q->avail->idx = 0xffff;
}

static void next(struct fakeq *q)
{
	put(q, 3, BUF, 1, NEXT, q->cfg.size);
	offer(q, 3);
}

static void next_max(struct fakeq *q)
{
	put(q, 3, BUF, 1, NEXT | W, 0xffff);
	offer(q, 3);
}

static void next_nested(struct fakeq *q)
{
	INDIR({ BUF, 1, R }, { BUF, 1, R });
	q->table.split[1].flags |= NEXT;
}

static void loop_one(struct fakeq *q)
{
	put(q, 0, BUF, 1, NEXT, 0);
	offer(q, 0);
}

static void loop_empty(struct fakeq *q)
{
	put(q, 0, BUF, 0, NEXT | W, 0);
	offer(q, 0);
}

static void loop_all(struct fakeq *q)
{
	for (unsigned i = 0; i <= LAST; i++)
		put(q, i, BUF, 1, W | NEXT, (i + 5) % FAKE_HOSTILE_SIZE);
	offer(q, 9);
}

static void loop_nested(struct fakeq *q)
{
	INDIR({ BUF, 1, R }, { BUF, 1, R });
	q->table.split[1].flags |= NEXT;
	q->table.split[1].next = 0;
}

static void id(struct fakeq *q)
{
	put(q, 0, BUF, 1, W, q->cfg.size);
}

static void id_of_last(struct fakeq *q)
{
	put(q, 1, BUF, 1, R, 0xffff);
	put(q, 0, BUF, 1, R | NEXT, 3);
}

static void not_available(struct fakeq *q)
{
	put(q, 0, BUF, 1, R | NEXT, 5);
}

static void used_follower(struct fakeq *q)
{
	put(q, 1, BUF, 1, R | P_USED, 5);
	put(q, 0, BUF, 1, R | NEXT, 5);
}

static void around(struct fakeq *q)
{
	for (unsigned i = q->cfg.size; i--;)
		put(q, i, BUF, 1, W | NEXT, 5);
}

static void indirect_follower(struct fakeq *q)
{
	put(q, 1, TABLE, 16, INDIRECT, 5);
	put(q, 0, BUF, 1, R | NEXT, 5);
}

enum { SPLIT = 1, PACKED = 2, EITHER = 3, IND = 4, NO_IND = 8 };

const struct fake_hostile fake_hostile[] = {
	{ "address outside RAM", EITHER, outside },
	{ "one byte beyond RAM", EITHER, last_byte },
	{ "address wraps", EITHER, wraps },
	{ "address wraps into RAM", EITHER, wraps_into_ram },
	{ "length 2^32 - 1", EITHER, huge },
	{ "address 2^63, length 2^31", EITHER, sign },
	{ "readable after writable", EITHER, order },
	{ "readable after writable, indirect", EITHER | IND, order_nested },
	{ "address outside RAM, indirect", EITHER | IND, outside_nested },
	{ "indirect, not negotiated", EITHER | NO_IND, not_negotiated },
	{ "empty table", EITHER | IND, table_empty },
	{ "table of 17 bytes", EITHER | IND, table_odd },
	{ "table of 1025 entries", EITHER | IND, table_long },
	{ "table of 2^32 - 16 bytes", EITHER | IND, table_longest },
	{ "table outside RAM", EITHER | IND, table_outside },
	{ "table address wraps", EITHER | IND, table_wraps },
	{ "indirect with next", EITHER | IND, table_next },
	{ "indirect in indirect", SPLIT | IND, nested },
	{ "head outside the table", SPLIT, head },
	{ "head 65535", SPLIT, head_max },
	{ "avail index jumps", SPLIT, jump },
	{ "avail index goes back", SPLIT, back },
	{ "next outside the table", SPLIT, next },
	{ "next 65535", SPLIT, next_max },
	{ "next outside the indirect table", SPLIT | IND, next_nested },
	{ "loop of one", SPLIT, loop_one },
	{ "loop of one, without length", SPLIT, loop_empty },
	{ "loop of all", SPLIT, loop_all },
	{ "loop in an indirect table", SPLIT | IND, loop_nested },
	{ "id outside the ring", PACKED, id },
	{ "id 65535 in the last of two", PACKED, id_of_last },
	{ "chain into the unavailable", PACKED, not_available },
	{ "chain into the used", PACKED, used_follower },
	{ "chain around the ring", PACKED, around },
	{ "indirect as second", PACKED, indirect_follower },
};

const unsigned fake_hostile_count = sizeof(fake_hostile) / sizeof(fake_hostile[0]);

bool fake_hostile_fits(const struct fake_hostile *h, const struct fakeq *q)
{
	return h->where & (q->cfg.packed ? PACKED : SPLIT) && !(h->where & (q->cfg.indirect ? NO_IND : IND));
}

void fake_raw_chain(struct fakeq *q, const struct fake_seg *seg, unsigned n)
{
	for (unsigned i = n; i--;) /* a packed head last: it announces the others */
		put(q, i, seg[i].addr, seg[i].len, (seg[i].write ? W : 0) | (i + 1 < n ? NEXT : 0),
		    q->cfg.packed ? 0 : i + 1);
	offer(q, 0);
}

void fake_one_too_many(struct fakeq *q)
{
	if (!q->cfg.packed) {
		__atomic_store_n(&q->avail->idx, (uint16_t)(q->avail->idx + 1), __ATOMIC_RELEASE);
		return;
	}
	for (unsigned i = 0; i < q->cfg.size; i++) /* as it looks in the next lap */
		q->ring[i].flags = 1 << VRING_PACKED_DESC_F_USED;
}
