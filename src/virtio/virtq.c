// SPDX-License-Identifier: GPL-2.0-or-later
#include "virtio/virtq.h"

#include <assert.h>
#include <errno.h>
#include <linux/virtio_ring.h>
#include <stdlib.h>
#include <string.h>

/*
 * How it works
 *
 * A queue is two counters that run freely, in ring entries: @next, how many
 * were popped, and @used, how many were pushed. Everything between them is in
 * flight, so next - used never exceeds the ring. In a split ring an entry is
 * one of the avail or used ring, that is a chain; in a packed ring it is a
 * descriptor, and the places in the ring (struct pos) are kept beside the
 * counters because the size need not be a power of two.
 *
 * The driver is not trusted. Whatever lies in guest memory is loaded once into
 * a local, then judged; a pointer is made only by gmem_ptr(). The device gets
 * pieces that lie in guest RAM, readable ones before writable ones, at most
 * max_iov of them, from a walk of at most VIRTQ_MAX_SIZE descriptors. What the
 * device keeps (id, ndesc) is checked against @busy, so a chain is in flight
 * once. The first violation is the last: @why is set and nothing is popped any
 * more; chains in flight can still be pushed.
 *
 * virtq_unpop() moves @next back, and @seen remembers how far it had been: the
 * next kick, and the true of virtq_rearm(), are for chains beyond @seen. What
 * was seen may not vanish, or a device that waits for a second buffer could be
 * made to pop and put back the first one for ever.
 *
 * A piece of length zero is skipped, its address unseen. The specification
 * does not forbid it, vhost takes it, and Linux's virtio_net has sent one
 * (an RSS command without a key) for which QEMU breaks the device.
 *
 * Barriers. Three pairs, each told where it stands:
 *   pop    acquire load of avail idx or of the head's flags, before anything that they announce
 *   flush  release store of used idx or of the first used descriptor's flags, after what they announce
 *   flush, rearm  a full fence between our store and the load of what the driver stored
 *          before its own full fence and its load: at least one side sees the other's store
 *
 * Not here: VIRTIO_F_IN_ORDER, NOTIFICATION_DATA, big-endian (legacy) rings.
 */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "rings are little-endian and read in place");

#define CHAIN_MAX_BYTES (1ull << 32) /* 2.7.5.2, and the used length has 32 bits */

/* One descriptor of any table, as copied from guest memory. */
union desc {
	uint64_t word[2];
	struct vring_desc split;
	struct vring_packed_desc packed; /* addr and len are where they are in a split one */
};

_Static_assert(sizeof(union desc) == 16, "a descriptor has 16 bytes");

/* A place in a packed ring, with the value its wrap counter has there. */
struct pos {
	uint16_t i;
	bool wrap;
};

struct virtq {
	const struct gmem *mem; /* [c] */
	struct virtq_config cfg;
	const char *why; /* what the driver did; NULL: nothing wrong yet */

	/* The three areas; the split or the packed names. [c] */
	union {
		struct vring_desc *table;
		struct vring_packed_desc *ring;
	};
	union {
		struct vring_avail *avail;
		uint32_t *driver_event; /* struct vring_packed_desc_event */
	};
	union {
		struct vring_used *used_ring;
		uint32_t *device_event;
	};

	uint64_t next;      /* entries popped */
	uint64_t used;      /* entries pushed */
	uint64_t seen;      /* at least: entries ever popped, also if they were put back (virtq_unpop()) */
	unsigned unpushed;  /* chains popped and not pushed */
	unsigned unflushed; /* entries pushed and not flushed */
	unsigned answers;   /* chains pushed and not flushed */
	bool silent;        /* the driver was told not to kick */

	uint16_t avail_idx; /* split: the driver's idx when it was last loaded; entries up to it are ours to read */

	struct pos next_pos, used_pos; /* packed: places of @next and @used */
	uint16_t *first_flags; /* packed: of the first descriptor pushed since the flush, held back until then */
	uint16_t first_value;

	uint64_t busy[VIRTQ_MAX_SIZE / 64]; /* ids in flight */
};

/*
 * A full barrier: stores before it are seen by the guest before loads after it
 * are done. Not __atomic_thread_fence(), which gcc refuses under
 * -fsanitize=thread; the ordering that tsan must know about is in the acquire
 * and release accesses.
 */
static inline void fence_full(void)
{
	__sync_synchronize();
}

static int broken(struct virtq *q, const char *why)
{
	q->why = why;
	return -EINVAL;
}

/*
 * Copies a descriptor, each word loaded once (volatile): whatever is checked
 * afterwards is what is used. An indirect table may have any alignment. The
 * guest may be writing to it right now, which is what the checks are for, so
 * tsan is told to look away.
 */
__attribute__((no_sanitize("thread"))) static inline union desc desc_load(const void *p)
{
	typedef uint64_t __attribute__((aligned(1), may_alias)) word;
	const volatile word *w = p;

	return (union desc){ .word = { w[0], w[1] } };
}

static inline bool id_busy(const struct virtq *q, uint16_t id)
{
	return q->busy[id / 64] >> id % 64 & 1;
}

static inline void id_flip(struct virtq *q, uint16_t id)
{
	q->busy[id / 64] ^= 1ull << id % 64;
}

/* Chains. */

static inline int chain_add(struct virtq *q, struct chain *c, unsigned max_iov, const union desc *d, bool write)
{
	unsigned n = c->nout + c->nin;
	uint32_t len = d->split.len;
	void *p;

	if (!len)
		return 0;
	if (n == max_iov)
		return broken(q, "a chain has more pieces than the device takes");
	p = gmem_ptr(q->mem, d->split.addr, len);
	if (!p)
		return broken(q, "a descriptor's buffer is not in RAM");
	c->iov[n] = (struct iovec){ p, len };
	if (write) {
		c->nin++;
		c->in_len += len;
	} else if (c->nin) {
		return broken(q, "a readable descriptor follows a writable one");
	} else {
		c->nout++;
		c->out_len += len;
	}
	return 0;
}

/* The host address of the table that @d points to, with @n entries; or NULL: broken. */
static const union desc *indirect_table(struct virtq *q, const union desc *d, unsigned *n)
{
	uint32_t len = d->split.len;
	const union desc *table = NULL;

	*n = len / sizeof(*table);
	if (!q->cfg.indirect)
		broken(q, "an indirect descriptor without VIRTIO_F_INDIRECT_DESC");
	else if (!len || len % sizeof(*table) || *n > VIRTQ_MAX_SIZE)
		broken(q, "an indirect table has a wrong length");
	else if (!(table = gmem_ptr(q->mem, d->split.addr, len)))
		broken(q, "an indirect table is not in RAM");
	return table;
}

/* Moves @at by at most *@n bytes within one piece; where it was, and in *@n how far. NULL: at the end. */
static void *chain_step(const struct iovec *iov, unsigned npieces, struct chain_at *at, size_t *n)
{
	const struct iovec *v = &iov[at->piece];
	uint8_t *p;

	if (at->piece == npieces)
		return NULL;
	p = (uint8_t *)v->iov_base + at->off;
	if (*n < v->iov_len - at->off) {
		at->off += *n;
	} else {
		*n = v->iov_len - at->off;
		at->piece++;
		at->off = 0;
	}
	return p;
}

size_t chain_get(struct chain *c, void *buf, size_t n)
{
	size_t done = 0, len = n;
	const void *p;

	while (len && (p = chain_step(c->iov, c->nout, &c->out_at, &len))) {
		memcpy((uint8_t *)buf + done, p, len);
		done += len;
		len = n - done;
	}
	c->out_pos += done;
	return done;
}

size_t chain_put(struct chain *c, const void *buf, size_t n)
{
	size_t done = 0, len = n;
	void *p;

	while (len && (p = chain_step(c->iov + c->nout, c->nin, &c->in_at, &len))) {
		memcpy(p, (const uint8_t *)buf + done, len);
		done += len;
		len = n - done;
	}
	c->in_pos += done;
	return done;
}

/* Split rings. */

/*
 * Walks the chain from entry @i of the main table. The walk ends after as many
 * steps as the table has entries, so a cycle is found when it has gone round.
 */
static int split_walk(struct virtq *q, struct chain *c, unsigned max_iov, unsigned i)
{
	const union desc *table = (const union desc *)q->table;
	unsigned n = q->cfg.size, left = n;
	bool nested = false;

	while (left--) {
		union desc d = desc_load(&table[i]);
		uint16_t flags = d.split.flags;
		int error;

		if (flags & VRING_DESC_F_INDIRECT) {
			/* Also after direct ones (2.7.5.3.2); its WRITE flag means nothing. */
			if (nested)
				return broken(q, "an indirect descriptor in an indirect table");
			if (flags & VRING_DESC_F_NEXT)
				return broken(q, "an indirect descriptor with a next one");
			table = indirect_table(q, &d, &n);
			if (!table)
				return -EINVAL;
			nested = true;
			left = n;
			i = 0;
			continue;
		}
		error = chain_add(q, c, max_iov, &d, flags & VRING_DESC_F_WRITE);
		if (error || !(flags & VRING_DESC_F_NEXT))
			return error;
		i = d.split.next;
		if (i >= n)
			return broken(q, "a descriptor's next one is outside the table");
	}
	return broken(q, "a descriptor chain has a loop");
}

/* Loads the driver's index. 1: there are entries to pop, 0: none. */
static int split_load(struct virtq *q)
{
	uint16_t next = (uint16_t)q->next;
	/* Acquire: the entries, descriptors and buffers that this index announces are read after it. */
	uint16_t idx = __atomic_load_n(&q->avail->idx, __ATOMIC_ACQUIRE);
	uint16_t n = (uint16_t)(idx - next);

	if (n > q->cfg.size)
		return broken(q, "the avail index moved by more than the ring's size");
	if (n < (uint16_t)(q->avail_idx - next))
		return broken(q, "the avail index moved backwards");
	q->avail_idx = idx;
	return n > 0;
}

static int split_pop(struct virtq *q, struct chain *c, unsigned max_iov)
{
	int r = 1;

	if (q->avail_idx == (uint16_t)q->next) /* those that we knew of are used up */
		r = split_load(q);
	if (r <= 0)
		return r;
	c->id = __atomic_load_n(&q->avail->ring[q->next & (q->cfg.size - 1u)], __ATOMIC_RELAXED);
	if (c->id >= q->cfg.size)
		return broken(q, "the avail ring names a descriptor outside the table");
	if (id_busy(q, c->id))
		return broken(q, "a descriptor was made available twice");
	c->ndesc = 1;
	r = split_walk(q, c, max_iov, c->id);
	return r ? r : 1;
}

static void split_push(struct virtq *q, const struct chain *c, uint32_t written)
{
	vring_used_elem_t *e = &q->used_ring->ring[q->used & (q->cfg.size - 1u)];

	/* Relaxed: nobody looks before virtq_flush() has moved used idx over it. */
	__atomic_store_n(&e->id, c->id, __ATOMIC_RELAXED);
	__atomic_store_n(&e->len, written, __ATOMIC_RELAXED);
}

static bool split_flush(struct virtq *q)
{
	uint16_t old = (uint16_t)(q->used - q->unflushed), event;

	/* Release: the entries and the data we wrote are there before the index that announces them. */
	__atomic_store_n(&q->used_ring->idx, (uint16_t)q->used, __ATOMIC_RELEASE);
	/*
	 * The driver stores used_event (or clears NO_INTERRUPT), fences, and
	 * looks at used idx again before it sleeps. Without our fence the load
	 * below could be done before the store above is seen: each side would
	 * miss the other and the interrupt would be lost.
	 */
	fence_full();
	if (!q->cfg.event_idx)
		return !(__atomic_load_n(&q->avail->flags, __ATOMIC_RELAXED) & VRING_AVAIL_F_NO_INTERRUPT);
	event = __atomic_load_n(&q->avail->ring[q->cfg.size], __ATOMIC_RELAXED);
	return vring_need_event(event, (uint16_t)q->used, old);
}

/* Tells the driver whether to kick. With EVENT_IDX there is no "no": avail_event stays behind, which comes to that. */
static void split_want_kick(struct virtq *q, bool want)
{
	if (!q->cfg.event_idx)
		__atomic_store_n(&q->used_ring->flags, want ? 0 : VRING_USED_F_NO_NOTIFY, __ATOMIC_RELAXED);
	else if (want)
		__atomic_store_n((uint16_t *)(void *)&q->used_ring->ring[q->cfg.size], (uint16_t)q->seen,
		                 __ATOMIC_RELAXED);
}

static bool split_unseen(struct virtq *q)
{
	return split_load(q) < 0 || q->avail_idx != (uint16_t)q->seen;
}

/* Packed rings. */

/* @n is at most the ring's size. */
static inline struct pos pos_add(const struct virtq *q, struct pos p, unsigned n)
{
	unsigned i = p.i + n, size = q->cfg.size;

	return i < size ? (struct pos){ (uint16_t)i, p.wrap } : (struct pos){ (uint16_t)(i - size), !p.wrap };
}

static inline struct pos pos_sub(const struct virtq *q, struct pos p, unsigned n)
{
	unsigned size = q->cfg.size;

	return n <= p.i ? (struct pos){ (uint16_t)(p.i - n), p.wrap }
	                : (struct pos){ (uint16_t)(p.i + size - n), !p.wrap };
}

static inline bool packed_is_avail(uint16_t flags, bool wrap)
{
	bool avail = flags >> VRING_PACKED_DESC_F_AVAIL & 1, used = flags >> VRING_PACKED_DESC_F_USED & 1;

	return avail == wrap && used != wrap;
}

/* Acquire: the rest of a chain is read after the flags which announce it. */
static inline uint16_t packed_flags(const struct virtq *q, struct pos p)
{
	return __atomic_load_n(&q->ring[p.i].flags, __ATOMIC_ACQUIRE);
}

/* The entries of an indirect table are all used, in order; only WRITE means something in them (2.8.7). */
static int packed_indirect(struct virtq *q, struct chain *c, unsigned max_iov, const union desc *head)
{
	const union desc *table;
	unsigned n;
	int error = 0;

	if (head->packed.flags & VRING_DESC_F_NEXT)
		return broken(q, "an indirect descriptor with a next one");
	table = indirect_table(q, head, &n);
	if (!table)
		return -EINVAL;
	for (unsigned i = 0; i < n && !error; i++) {
		union desc d = desc_load(&table[i]);

		error = chain_add(q, c, max_iov, &d, d.packed.flags & VRING_DESC_F_WRITE);
	}
	return error;
}

/* Walks the chain that begins with @d at @next_pos, leaving the last descriptor in @d; the buffer id is there. */
static int packed_walk(struct virtq *q, struct chain *c, unsigned max_iov, union desc *d)
{
	/* Entries in flight are ours: a chain that reached them would have us overwrite what the driver waits for. */
	unsigned room = q->cfg.size - (unsigned)(q->next - q->used);
	struct pos p = q->next_pos;

	for (;;) {
		int error;

		if (c->ndesc == room)
			return broken(q, "a descriptor chain is longer than the ring's free part");
		c->ndesc++;
		error = chain_add(q, c, max_iov, d, d->packed.flags & VRING_DESC_F_WRITE);
		if (error || !(d->packed.flags & VRING_DESC_F_NEXT))
			return error;
		p = pos_add(q, p, 1);
		*d = desc_load(&q->ring[p.i]); /* ordered by the head's acquire load */
		if (!packed_is_avail(d->packed.flags, p.wrap))
			return broken(q, "a chain goes on in a descriptor that is not available");
		if (d->packed.flags & VRING_DESC_F_INDIRECT)
			return broken(q, "an indirect descriptor within a chain");
	}
}

static int packed_pop(struct virtq *q, struct chain *c, unsigned max_iov)
{
	uint16_t flags = packed_flags(q, q->next_pos);
	union desc d;
	int error;

	if (!packed_is_avail(flags, q->next_pos.wrap))
		return q->next < q->seen ? broken(q, "a chain was taken back") : 0;
	d = desc_load(&q->ring[q->next_pos.i]);
	d.packed.flags = flags; /* what was judged, not what came with the copy */
	if (flags & VRING_DESC_F_INDIRECT) {
		c->ndesc = 1;
		error = q->next - q->used == q->cfg.size ? broken(q, "more descriptors than the ring has")
		                                         : packed_indirect(q, c, max_iov, &d);
	} else {
		error = packed_walk(q, c, max_iov, &d);
	}
	if (error)
		return error;
	c->id = d.packed.id;
	if (c->id >= q->cfg.size)
		return broken(q, "a buffer id is not below the ring's size");
	if (id_busy(q, c->id))
		return broken(q, "a buffer id was made available twice");
	return 1;
}

/*
 * The used descriptor goes to the next used place, whatever chain was there;
 * the places that the chain occupied beyond it are skipped. The driver looks at
 * one place, the first since the flush: its flags are held back, so the others
 * may be written now.
 */
static void packed_push(struct virtq *q, const struct chain *c, uint32_t written)
{
	struct vring_packed_desc *d = &q->ring[q->used_pos.i];
	uint16_t flags = written ? VRING_DESC_F_WRITE : 0;

	if (q->used_pos.wrap)
		flags |= 1 << VRING_PACKED_DESC_F_AVAIL | 1 << VRING_PACKED_DESC_F_USED;
	__atomic_store_n(&d->id, c->id, __ATOMIC_RELAXED);
	__atomic_store_n(&d->len, written, __ATOMIC_RELAXED);
	if (q->unflushed) {
		__atomic_store_n(&d->flags, flags, __ATOMIC_RELAXED);
	} else {
		q->first_flags = &d->flags;
		q->first_value = flags;
	}
	q->used_pos = pos_add(q, q->used_pos, c->ndesc);
}

/* One load of the whole structure, so that offset and flags belong together. */
static inline struct vring_packed_desc_event event_load(const uint32_t *p)
{
	uint32_t v = __atomic_load_n(p, __ATOMIC_RELAXED);

	return (struct vring_packed_desc_event){ .off_wrap = (uint16_t)v, .flags = (uint16_t)(v >> 16) };
}

static bool packed_flush(struct virtq *q)
{
	struct vring_packed_desc_event e;
	uint16_t new = q->used_pos.i, event;

	/* Release: all used descriptors and the data we wrote are there before the flags that announce the first. */
	__atomic_store_n(q->first_flags, q->first_value, __ATOMIC_RELEASE);
	fence_full(); /* as in split_flush() */
	e = event_load(q->driver_event);
	if ((e.flags & 3) == VRING_PACKED_EVENT_FLAG_DISABLE)
		return false;
	/* Value 3 is reserved, DESC needs EVENT_IDX; a needless interrupt is the safe answer. */
	if ((e.flags & 3) != VRING_PACKED_EVENT_FLAG_DESC || !q->cfg.event_idx)
		return true;
	/* Places on this lap count from 0, on the lap before it from -size. */
	event = e.off_wrap & 0x7fff;
	if (e.off_wrap >> VRING_PACKED_EVENT_F_WRAP_CTR != q->used_pos.wrap)
		event = (uint16_t)(event - q->cfg.size);
	return vring_need_event(event, new, (uint16_t)(new - q->unflushed));
}

/* The place of @seen, which is not behind @next. */
static struct pos packed_seen_pos(const struct virtq *q)
{
	return pos_add(q, q->next_pos, (unsigned)(q->seen - q->next));
}

static void packed_want_kick(struct virtq *q, bool want)
{
	uint32_t v = VRING_PACKED_EVENT_FLAG_DISABLE << 16;

	if (want && q->cfg.event_idx) {
		struct pos p = packed_seen_pos(q);

		v = VRING_PACKED_EVENT_FLAG_DESC << 16 | (uint32_t)p.wrap << VRING_PACKED_EVENT_F_WRAP_CTR | p.i;
	} else if (want) {
		v = VRING_PACKED_EVENT_FLAG_ENABLE << 16;
	}
	__atomic_store_n(q->device_event, v, __ATOMIC_RELAXED);
}

static bool packed_unseen(const struct virtq *q)
{
	struct pos p = packed_seen_pos(q);

	return packed_is_avail(packed_flags(q, p), p.wrap);
}

/* Both kinds. */

/* An area of @len bytes at @gpa, aligned to @align; NULL and *@error. */
static void *area(const struct gmem *mem, uint64_t gpa, uint64_t len, uint64_t align, int *error)
{
	void *p = gmem_ptr(mem, gpa, len);

	if (gpa % align)
		*error = -EINVAL;
	else if (!p)
		*error = -EFAULT;
	return p;
}

static int split_areas(struct virtq *q)
{
	const struct virtq_config *cfg = &q->cfg;
	uint64_t event = cfg->event_idx ? 2 : 0;
	int error = 0;

	if (cfg->size & (cfg->size - 1))
		return -EINVAL;
	q->table = area(q->mem, cfg->desc, 16ull * cfg->size, 16, &error);
	q->avail = area(q->mem, cfg->driver, 4 + 2ull * cfg->size + event, 2, &error);
	q->used_ring = area(q->mem, cfg->device, 4 + 8ull * cfg->size + event, 4, &error);
	return error;
}

static int packed_areas(struct virtq *q)
{
	const struct virtq_config *cfg = &q->cfg;
	int error = 0;

	q->ring = area(q->mem, cfg->desc, 16ull * cfg->size, 16, &error);
	q->driver_event = area(q->mem, cfg->driver, 4, 4, &error);
	q->device_event = area(q->mem, cfg->device, 4, 4, &error);
	q->next_pos = q->used_pos = (struct pos){ 0, true };
	return error;
}

int virtq_new(const struct gmem *mem, const struct virtq_config *cfg, struct virtq **out)
{
	struct virtq *q;
	int error;

	if (!cfg->size || cfg->size > VIRTQ_MAX_SIZE)
		return -EINVAL;
	q = calloc(1, sizeof(*q));
	if (!q)
		return -ENOMEM;
	q->mem = mem;
	q->cfg = *cfg;
	error = cfg->packed ? packed_areas(q) : split_areas(q);
	if (error) {
		free(q);
		return error;
	}
	*out = q;
	return 0;
}

void virtq_free(struct virtq *q)
{
	free(q);
}

const char *virtq_why(const struct virtq *q)
{
	return q->why;
}

unsigned virtq_inflight(const struct virtq *q)
{
	return q->unpushed;
}

int virtq_pop(struct virtq *q, struct chain *c, struct iovec *iov, unsigned max_iov)
{
	int r;

	if (q->why)
		return -EINVAL;
	*c = (struct chain){ .iov = iov };
	r = q->cfg.packed ? packed_pop(q, c, max_iov) : split_pop(q, c, max_iov);
	if (r <= 0)
		return r;
	if (c->out_len + c->in_len > CHAIN_MAX_BYTES)
		return broken(q, "a chain has more than 4 GiB");
	id_flip(q, c->id);
	q->unpushed++;
	q->next += c->ndesc;
	if (q->cfg.packed)
		q->next_pos = pos_add(q, q->next_pos, c->ndesc);
	return 1;
}

void virtq_push(struct virtq *q, const struct chain *c, uint32_t written)
{
	assert(c->id < q->cfg.size && id_busy(q, c->id) && written <= c->in_len);
	if (q->cfg.packed)
		packed_push(q, c, written);
	else
		split_push(q, c, written);
	id_flip(q, c->id);
	q->unpushed--;
	q->used += c->ndesc;
	q->unflushed += c->ndesc;
	q->answers++;
}

static void note_seen(struct virtq *q)
{
	if (q->seen < q->next)
		q->seen = q->next;
}

/*
 * The chains that are in flight besides this one were popped before it, so the
 * used places have not reached its own: what the driver wrote there still stands.
 */
void virtq_unpop(struct virtq *q, const struct chain *c)
{
	assert(c->id < q->cfg.size && id_busy(q, c->id) && q->next - q->used >= c->ndesc);
	note_seen(q);
	id_flip(q, c->id);
	q->unpushed--;
	q->next -= c->ndesc;
	if (q->cfg.packed)
		q->next_pos = pos_sub(q, q->next_pos, c->ndesc);
}

unsigned virtq_answers(const struct virtq *q)
{
	return q->answers;
}

bool virtq_flush(struct virtq *q)
{
	bool irq;

	if (!q->unflushed)
		return false;
	irq = q->cfg.packed ? packed_flush(q) : split_flush(q);
	q->unflushed = q->answers = 0;
	return irq;
}

static void want_kick(struct virtq *q, bool want)
{
	if (q->cfg.packed)
		packed_want_kick(q, want);
	else
		split_want_kick(q, want);
	q->silent = !want;
}

void virtq_disarm(struct virtq *q)
{
	if (!q->silent)
		want_kick(q, false);
}

static bool unseen(struct virtq *q)
{
	return q->cfg.packed ? packed_unseen(q) : split_unseen(q);
}

bool virtq_unseen(struct virtq *q)
{
	if (q->why)
		return false;
	note_seen(q);
	return unseen(q);
}

bool virtq_rearm(struct virtq *q)
{
	if (q->why)
		return false;
	note_seen(q);
	want_kick(q, true);
	/*
	 * The driver makes a chain available, fences, and looks whether we want
	 * a kick. We said so above and look for chains below: with this fence
	 * one of us sees the other. Without it both may look too early, and the
	 * chain would lie there until the next kick, which may never come.
	 */
	fence_full();
	return unseen(q);
}
