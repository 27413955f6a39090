// SPDX-License-Identifier: GPL-2.0-or-later
#include "fakedrv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/*
 * How it works
 *
 * Written from the driver's side of virtio 1.2, 2.7 and 2.8, without a look at
 * virtq.c and without its helpers, so that a misunderstanding there is not
 * repeated here. Descriptors come from a stack of free ones: after a few
 * rounds of out-of-order completion a chain's descriptors lie anywhere. What
 * the driver needs later it keeps in its own memory.
 */

#define PAGE     4096u
#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "fakedrv: the device broke a rule: %s\n", #x), abort()))
#define NEED(x)  ((x) ? (void)0 : (fprintf(stderr, "fakedrv: misused: %s\n", #x), abort()))

#define AVAIL    (1u << VRING_PACKED_DESC_F_AVAIL)
#define USED     (1u << VRING_PACKED_DESC_F_USED)

/* Memory. */

void fakemem_init(struct fakemem *m, uint64_t bank_len, unsigned nbanks)
{
	NEED(nbanks >= 1 && nbanks <= GMEM_MAX_BANKS && bank_len % PAGE == 0);
	*m = (struct fakemem){ .gmem.nbanks = nbanks, .top = PAGE };
	for (unsigned i = 0; i < nbanks; i++) {
		uint8_t *p = mmap(NULL, bank_len + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		NEED(p != MAP_FAILED);
		NEED(!mprotect(p + PAGE, bank_len, PROT_READ | PROT_WRITE));
		m->gmem.bank[i] = (struct gmem_bank){ .gpa = i * bank_len, .len = bank_len, .hva = p + PAGE };
	}
}

void fakemem_free(struct fakemem *m)
{
	for (unsigned i = 0; i < m->gmem.nbanks; i++)
		munmap(m->gmem.bank[i].hva - PAGE, m->gmem.bank[i].len + 2 * PAGE);
	m->gmem.nbanks = 0;
}

void *fakemem_ptr(const struct fakemem *m, uint64_t gpa, uint64_t len)
{
	for (unsigned i = 0; i < m->gmem.nbanks; i++) {
		const struct gmem_bank *b = &m->gmem.bank[i];

		if (gpa >= b->gpa && gpa < b->gpa + b->len && len <= b->gpa + b->len - gpa)
			return b->hva + (gpa - b->gpa);
	}
	NEED(!"an address outside RAM");
	return NULL;
}

uint64_t fakemem_alloc(struct fakemem *m, uint64_t len, uint64_t align)
{
	uint64_t at = (m->top + align - 1) / align * align;

	m->top = at + len;
	memset(fakemem_ptr(m, at, len), 0, len);
	return at;
}

bool fakemem_has(const struct fakemem *m, const void *p, uint64_t len)
{
	uintptr_t at = (uintptr_t)p;

	for (unsigned i = 0; i < m->gmem.nbanks; i++) {
		uintptr_t base = (uintptr_t)m->gmem.bank[i].hva;
		uint64_t size = m->gmem.bank[i].len;

		if (at >= base && at - base <= size && len <= size - (at - base))
			return true;
	}
	return false;
}

/* Guest memory that the device looks at, too. */

static uint16_t get16(const void *p)
{
	return __atomic_load_n((const uint16_t *)p, __ATOMIC_RELAXED);
}

static void set16(void *p, unsigned val)
{
	__atomic_store_n((uint16_t *)p, (uint16_t)val, __ATOMIC_RELAXED);
}

static uint16_t *used_event(const struct fakeq *q)
{
	return &q->avail->ring[q->cfg.size];
}

static const uint16_t *avail_event(const struct fakeq *q)
{
	return (const uint16_t *)(const void *)&q->used->ring[q->cfg.size];
}

/* Has an index that moved from @old to @new passed @event? */
static bool passed(uint16_t event, uint16_t new, uint16_t old)
{
	return (uint16_t)(event - old) < (uint16_t)(new - old);
}

/* Rings. */

static uint64_t driver_len(const struct virtq_config *cfg)
{
	return cfg->packed ? 4 : 6 + 2ull * cfg->size;
}

static uint64_t device_len(const struct virtq_config *cfg)
{
	return cfg->packed ? 4 : 6 + 8ull * cfg->size;
}

void fakeq_init(struct fakeq *q, struct fakemem *m, uint16_t size, unsigned flags)
{
	struct virtq_config *cfg = &q->cfg;
	uint64_t tables = (uint64_t)size * FAKE_MAX_SEGS * sizeof(struct vring_desc);

	NEED(size >= 1 && size <= VIRTQ_MAX_SIZE);
	*q = (struct fakeq){ .mem = m, .nfree = size, .room = size, .avail_wrap = true, .used_wrap = true };
	*cfg = (struct virtq_config){ .size = size,
		                      .packed = flags & FAKE_PACKED,
		                      .event_idx = flags & FAKE_EVENT_IDX,
		                      .indirect = flags & FAKE_INDIRECT };
	cfg->desc = fakemem_alloc(m, 16ull * size, 16);
	cfg->driver = fakemem_alloc(m, driver_len(cfg), cfg->packed ? 4 : 2);
	cfg->device = fakemem_alloc(m, device_len(cfg), 4);
	q->table_gpa = fakemem_alloc(m, tables, 16);
	q->table.split = fakemem_ptr(m, q->table_gpa, tables);
	q->desc = fakemem_ptr(m, cfg->desc, 16ull * size);
	q->ring = (void *)q->desc;
	q->avail = fakemem_ptr(m, cfg->driver, driver_len(cfg));
	q->driver = (void *)q->avail;
	q->used = fakemem_ptr(m, cfg->device, device_len(cfg));
	q->device = (void *)q->used;
	q->use_indirect = cfg->indirect;
	for (unsigned i = 0; i < size; i++)
		q->free[i] = (uint16_t)(size - 1 - i);
}

static void remember(struct fakeq *q, uint16_t id, const struct fake_seg *seg, unsigned n, unsigned ndesc,
                     uint64_t token)
{
	struct fake_req *r = &q->req[id];

	*r = (struct fake_req){ .live = true, .ndesc = (uint16_t)ndesc, .token = token };
	for (unsigned i = 0; i < n; i++)
		r->in_len += seg[i].write ? seg[i].len : 0;
	q->live++;
}

/* The head's table in guest memory, filled with @seg; its address. */
static uint64_t fill_table(struct fakeq *q, uint16_t id, const struct fake_seg *seg, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		uint16_t flags = seg[i].write ? VRING_DESC_F_WRITE : 0;

		if (q->cfg.packed)
			q->table.packed[id * FAKE_MAX_SEGS + i] = (struct vring_packed_desc){ seg[i].addr, seg[i].len,
				                                                              0, flags };
		else
			q->table.split[id * FAKE_MAX_SEGS + i] = (struct vring_desc){
				seg[i].addr, seg[i].len, (uint16_t)(flags | (i + 1 < n ? VRING_DESC_F_NEXT : 0)),
				(uint16_t)(i + 1)
			};
	}
	return q->table_gpa + id * FAKE_MAX_SEGS * 16ull;
}

/* Split rings. */

static uint16_t split_place(struct fakeq *q, const struct fake_seg *seg, unsigned n, unsigned flags)
{
	uint16_t head = q->free[q->nfree - 1];

	for (unsigned i = 0; i < n; i++) {
		uint16_t at = q->free[--q->nfree];
		bool more = i + 1 < n;

		q->next[at] = q->nfree ? q->free[q->nfree - 1] : 0;
		q->desc[at] = (struct vring_desc){ seg[i].addr, seg[i].len,
			                           (uint16_t)(flags | (seg[i].write ? VRING_DESC_F_WRITE : 0) |
			                                      (more ? VRING_DESC_F_NEXT : 0)),
			                           more ? q->next[at] : 0 };
	}
	return head;
}

static int split_add(struct fakeq *q, const struct fake_seg *seg, unsigned n, uint64_t token, bool indirect)
{
	unsigned ndesc = indirect ? 1 : n;
	uint16_t head;

	if (ndesc > q->nfree)
		return -ENOSPC;
	head = q->free[q->nfree - 1];
	if (indirect) {
		struct fake_seg table = { fill_table(q, head, seg, n), n * 16, false };

		split_place(q, &table, 1, VRING_DESC_F_INDIRECT);
	} else {
		split_place(q, seg, n, 0);
	}
	set16(&q->avail->ring[(uint16_t)(q->avail_idx + q->unpublished) % q->cfg.size], head);
	q->unpublished++;
	remember(q, head, seg, n, ndesc, token);
	return head;
}

static void split_free(struct fakeq *q, uint16_t head, unsigned ndesc)
{
	for (unsigned at = head; ndesc--; at = q->next[at])
		q->free[q->nfree++] = (uint16_t)at;
}

static bool split_get(struct fakeq *q, struct fake_used *u)
{
	uint16_t idx = __atomic_load_n(&q->used->idx, __ATOMIC_ACQUIRE);
	const struct vring_used_elem *e = &q->used->ring[q->used_idx % q->cfg.size];
	uint32_t id;

	CHECK((uint16_t)(idx - q->used_idx) <= q->live);
	if (idx == q->used_idx)
		return false;
	id = __atomic_load_n(&e->id, __ATOMIC_RELAXED);
	CHECK(id < q->cfg.size);
	u->id = (uint16_t)id;
	u->len = __atomic_load_n(&e->len, __ATOMIC_RELAXED);
	q->used_idx++;
	return true;
}

/* Packed rings. */

static unsigned packed_avail_bits(bool wrap)
{
	return wrap ? AVAIL : USED;
}

static void packed_put(struct fakeq *q, const struct fake_seg *s, uint16_t id, unsigned flags, bool first)
{
	struct vring_packed_desc *d = &q->ring[q->avail_idx];

	flags |= packed_avail_bits(q->avail_wrap) | (s->write ? VRING_DESC_F_WRITE : 0);
	d->addr = s->addr;
	__atomic_store_n(&d->len, s->len, __ATOMIC_RELAXED);
	set16(&d->id, id);
	if (first && !q->unpublished) {
		q->first_flags = &d->flags;
		q->first_val = (uint16_t)flags;
	} else {
		set16(&d->flags, flags);
	}
	if (++q->avail_idx == q->cfg.size) {
		q->avail_idx = 0;
		q->avail_wrap = !q->avail_wrap;
	}
}

static int packed_add(struct fakeq *q, const struct fake_seg *seg, unsigned n, uint64_t token, bool indirect)
{
	unsigned ndesc = indirect ? 1 : n;
	uint16_t id;

	if (ndesc > q->room || !q->nfree)
		return -ENOSPC;
	id = q->free[--q->nfree];
	if (indirect) {
		struct fake_seg table = { fill_table(q, id, seg, n), n * 16, false };

		packed_put(q, &table, id, VRING_DESC_F_INDIRECT, true);
	} else {
		/* The id counts in the last descriptor only (2.8.6); nobody shall look for it elsewhere. */
		for (unsigned i = 0; i < n; i++)
			packed_put(q, &seg[i], i + 1 < n ? 0xdead : id, i + 1 < n ? VRING_DESC_F_NEXT : 0, i == 0);
	}
	q->room -= ndesc;
	q->unpublished += ndesc;
	remember(q, id, seg, n, ndesc, token);
	return id;
}

static bool packed_has_used(const struct fakeq *q)
{
	uint16_t flags = __atomic_load_n(&q->ring[q->used_idx].flags, __ATOMIC_ACQUIRE);

	return !!(flags & USED) == q->used_wrap && !!(flags & AVAIL) == q->used_wrap;
}

static bool packed_get(struct fakeq *q, struct fake_used *u)
{
	const struct vring_packed_desc *d = &q->ring[q->used_idx];

	if (!q->live || !packed_has_used(q))
		return false;
	u->id = get16(&d->id);
	CHECK(u->id < q->cfg.size && q->req[u->id].live);
	u->len = __atomic_load_n(&d->len, __ATOMIC_RELAXED);
	CHECK(!!(get16(&d->flags) & VRING_DESC_F_WRITE) == !!u->len);
	q->used_idx = (uint16_t)(q->used_idx + q->req[u->id].ndesc);
	if (q->used_idx >= q->cfg.size) {
		q->used_idx = (uint16_t)(q->used_idx - q->cfg.size);
		q->used_wrap = !q->used_wrap;
	}
	return true;
}

static void packed_free(struct fakeq *q, uint16_t id, unsigned ndesc)
{
	q->free[q->nfree++] = id;
	q->room += ndesc;
}

/* Both. */

int fakeq_add(struct fakeq *q, const struct fake_seg *seg, unsigned n, uint64_t token)
{
	bool indirect = q->use_indirect && n > 1;

	NEED(n >= 1 && (!indirect || n <= FAKE_MAX_SEGS));
	return q->cfg.packed ? packed_add(q, seg, n, token, indirect) : split_add(q, seg, n, token, indirect);
}

void fakeq_expose(struct fakeq *q)
{
	if (!q->unpublished)
		return;
	if (q->cfg.packed) {
		__atomic_store_n(q->first_flags, q->first_val, __ATOMIC_RELEASE);
	} else {
		q->avail_idx = (uint16_t)(q->avail_idx + q->unpublished);
		__atomic_store_n(&q->avail->idx, q->avail_idx, __ATOMIC_RELEASE);
	}
	q->unkicked += q->unpublished;
	q->unpublished = 0;
}

static bool packed_must_kick(const struct fakeq *q)
{
	uint32_t v = __atomic_load_n((uint32_t *)(void *)q->device, __ATOMIC_RELAXED);
	unsigned flags = v >> 16 & 3, event = v & 0x7fff;

	CHECK(flags != 3 && (flags != VRING_PACKED_EVENT_FLAG_DESC || q->cfg.event_idx));
	if (flags != VRING_PACKED_EVENT_FLAG_DESC)
		return flags == VRING_PACKED_EVENT_FLAG_ENABLE;
	CHECK(event < q->cfg.size);
	if ((v >> 15 & 1) != q->avail_wrap)
		event -= q->cfg.size;
	return passed((uint16_t)event, q->avail_idx, (uint16_t)(q->avail_idx - q->unkicked));
}

bool fakeq_must_kick(struct fakeq *q)
{
	bool kick;

	if (!q->unkicked)
		return false;
	__sync_synchronize(); /* what was exposed is seen before we ask (2.7.13.4.1) */
	if (q->cfg.packed)
		kick = packed_must_kick(q);
	else if (q->cfg.event_idx)
		kick = passed(get16(avail_event(q)), q->avail_idx, (uint16_t)(q->avail_idx - q->unkicked));
	else
		kick = !(get16(&q->used->flags) & VRING_USED_F_NO_NOTIFY);
	CHECK(q->cfg.packed || !q->cfg.event_idx || !get16(&q->used->flags)); /* 2.7.10.1 */
	q->unkicked = 0;
	return kick;
}

bool fakeq_publish(struct fakeq *q)
{
	fakeq_expose(q);
	return fakeq_must_kick(q);
}

bool fakeq_has_used(const struct fakeq *q)
{
	if (q->cfg.packed)
		return q->live && packed_has_used(q);
	return __atomic_load_n(&q->used->idx, __ATOMIC_ACQUIRE) != q->used_idx;
}

bool fakeq_get(struct fakeq *q, struct fake_used *u)
{
	struct fake_req *r;

	if (!(q->cfg.packed ? packed_get(q, u) : split_get(q, u)))
		return false;
	r = &q->req[u->id];
	CHECK(r->live);
	CHECK(u->len <= r->in_len);
	u->token = r->token;
	r->live = false;
	q->live--;
	if (q->cfg.packed)
		packed_free(q, u->id, r->ndesc);
	else
		split_free(q, u->id, r->ndesc);
	return true;
}

void fakeq_arm_store(struct fakeq *q, unsigned after)
{
	NEED(!after || (q->cfg.event_idx && after < q->cfg.size));
	if (!q->cfg.packed && !q->cfg.event_idx) {
		set16(&q->avail->flags, 0);
	} else if (!q->cfg.packed) {
		set16(used_event(q), q->used_idx + after);
	} else if (!q->cfg.event_idx) {
		set16(&q->driver->flags, VRING_PACKED_EVENT_FLAG_ENABLE);
	} else {
		unsigned at = q->used_idx + after;
		bool wrap = q->used_wrap ^ (at >= q->cfg.size);

		at -= at >= q->cfg.size ? q->cfg.size : 0;
		set16(&q->driver->off_wrap, at | (unsigned)wrap << VRING_PACKED_EVENT_F_WRAP_CTR);
		__atomic_store_n(&q->driver->flags, VRING_PACKED_EVENT_FLAG_DESC, __ATOMIC_RELEASE);
	}
}

bool fakeq_arm(struct fakeq *q, unsigned after)
{
	fakeq_arm_store(q, after);
	__sync_synchronize(); /* we are armed before we look */
	return fakeq_has_used(q);
}

void fakeq_disarm(struct fakeq *q)
{
	if (q->cfg.packed)
		set16(&q->driver->flags, VRING_PACKED_EVENT_FLAG_DISABLE);
	else if (!q->cfg.event_idx)
		set16(&q->avail->flags, VRING_AVAIL_F_NO_INTERRUPT);
}
