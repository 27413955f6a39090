// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/qcow2/io.h"

#include "base/container_of.h"

#include <errno.h>
#include <stdlib.h>

/*
 * How it works
 *
 * L1 is in memory. L2 tables are there in slices of up to 512 entries (4 KiB),
 * read when first needed; a table of pointers per L2 table leads to them.
 *
 * A look-up takes no lock: L1 entry, table, slice, entries, each loaded with
 * acquire. A slice may be taken for another place meanwhile (it is memory that
 * is used again, never freed), so its tag is compared after the entries have
 * been read: whoever takes a slice clears the tag before he changes an entry.
 * What was read of a slice that kept its tag was true at some time during the
 * look-up, which is all that an unordered request can ask for.
 *
 * Everything that changes a slice happens under the lock. Slices that are
 * pinned or dirty stay; of the others the clock's hand takes one that nobody
 * looked at lately, once there are SLICES_CAP bytes of them. A miss parks its
 * request on the load, which is an ordinary child of the first request that
 * needed the slice; others go on.
 *
 * Entries are judged when they come into memory: what points to metadata, past
 * the end or between clusters is marked bad, and then nothing is read or written
 * through it. When a cluster becomes metadata later, entries that are
 * in memory are looked through (qcow2_map_ban()); new ones are judged against
 * it anyway.
 */

/* A slice on its way. */
struct load {
	uint64_t off;   /* guest offset of its beginning */
	uint64_t table; /* host offset of the L2 table */
	struct request *waiters;
	struct load *next;
	uint8_t *raw;
};

static size_t slice_bytes(const struct qcow2 *im)
{
	return (size_t)8 << im->slice_bits;
}

/* Look-up. */

enum extent_kind qcow2_entry_kind(uint64_t e)
{
	if (e & QCOW2_COMPRESSED)
		return EXTENT_COMPRESSED;
	if (e & QCOW2_ZERO)
		return EXTENT_ZERO;
	return e & QCOW2_OFFSET ? EXTENT_DATA : EXTENT_HOLE;
}

enum extent_kind slice_kind(const struct slice *s, unsigned i)
{
	if (atomic_load_explicit(&s->bad[i / 64], memory_order_acquire) >> i % 64 & 1)
		return EXTENT_BAD;
	return qcow2_entry_kind(slice_entry(s, i));
}

static struct extent cluster_extent(const struct qcow2 *im, const struct slice *s, uint64_t off)
{
	unsigned i = entry_of(im, off);
	uint64_t e = slice_entry(s, i);
	struct extent x = { .kind = qcow2_entry_kind(e), .len = im->cluster_size - in_cluster(im, off) };

	if (atomic_load_explicit(&s->bad[i / 64], memory_order_acquire) >> i % 64 & 1)
		x.kind = EXTENT_BAD;
	if (x.kind == EXTENT_DATA) {
		x.host = (e & QCOW2_OFFSET) + in_cluster(im, off);
		x.in_place = e & QCOW2_COPIED;
	} else if (x.kind == EXTENT_COMPRESSED) {
		x.host = e & ~QCOW2_COPIED;
	}
	return x;
}

/* Is @y, which follows @x in the guest's view, the same kind of thing, and next to it in the file? */
static bool follows(const struct extent *x, const struct extent *y)
{
	if (x->kind != y->kind)
		return false;
	if (x->kind == EXTENT_DATA)
		return x->in_place == y->in_place && x->host + x->len == y->host;
	return x->kind == EXTENT_HOLE || x->kind == EXTENT_ZERO;
}

static struct slice *look_up(struct qcow2 *im, uint64_t off)
{
	struct table *t = atomic_load_explicit(&im->table[l1_index(im, off)], memory_order_acquire);
	uint64_t i = slice_of(im, off) & ((1ull << im->table_bits) - 1);

	return t ? atomic_load_explicit(&t->slice[i], memory_order_acquire) : NULL;
}

/* The extent at @off, within one slice, or within an L2 table that is not there. */
static struct extent slice_extent(struct qcow2 *im, uint64_t off, uint64_t max)
{
	uint64_t l1 = atomic_load_explicit(&im->l1[l1_index(im, off)], memory_order_acquire);
	uint64_t covers = 1ull << (im->cluster_bits + im->slice_bits + im->table_bits);
	struct extent x = { .kind = EXTENT_MISS };
	struct slice *s;
	unsigned i = entry_of(im, off);

	if (l1 & L1_BAD || !(l1 & QCOW2_OFFSET))
		return (struct extent){ .kind = l1 & L1_BAD ? EXTENT_BAD : EXTENT_HOLE,
			                .len = covers - (off & (covers - 1)) };
	s = look_up(im, off);
	if (!s)
		return x;
	x = cluster_extent(im, s, off);
	while (++i < slice_entries(im) && x.len < max) {
		struct extent y = cluster_extent(im, s, off + x.len);

		if (!follows(&x, &y))
			break;
		x.len += y.len;
	}
	if (atomic_load_explicit(&s->tag, memory_order_relaxed) != slice_of(im, off) + 1)
		return (struct extent){ .kind = EXTENT_MISS };
	if (!atomic_load_explicit(&s->hot, memory_order_relaxed))
		atomic_store_explicit(&s->hot, true, memory_order_relaxed);
	return x;
}

struct extent qcow2_map_extent(struct qcow2 *im, uint64_t off, uint64_t max)
{
	struct extent x = slice_extent(im, off, max);

	while (x.kind != EXTENT_MISS && x.len < max) {
		struct extent y = slice_extent(im, off + x.len, max - x.len);

		if (!follows(&x, &y))
			break;
		x.len += y.len;
	}
	if (x.len > max)
		x.len = max;
	return x;
}

/* Slices. */

struct slice *qcow2_map_slice(struct qcow2 *im, uint64_t off)
{
	return look_up(im, off); /* under the lock no slice is taken */
}

void qcow2_map_dirty(struct qcow2 *im, struct slice *s)
{
	if (s->dirty)
		return;
	s->dirty = true;
	s->next = im->dirty;
	im->dirty = s;
	im->ndirty++;
	qcow2_wake_worker(im); /* it keeps the time */
}

static struct slice *slice_new(struct qcow2 *im)
{
	struct slice *s, **all = im->slices;

	if (!(im->nslices & (im->nslices - 1))) { /* full: 0, 1, 2, 4, … */
		all = realloc(all, (im->nslices ? 2ull * im->nslices : 1) * sizeof(struct slice *));
		if (!all)
			return NULL;
		im->slices = all;
	}
	s = calloc(1, sizeof(*s) + slice_bytes(im));
	if (s)
		all[im->nslices++] = s;
	return s;
}

/* The place that leads to the slice of number @n. */
static _Atomic(struct slice *) *place_of(struct qcow2 *im, uint64_t n)
{
	struct table *t = atomic_load_explicit(&im->table[n >> im->table_bits], memory_order_relaxed);

	return &t->slice[n & ((1ull << im->table_bits) - 1)];
}

/* Under the lock: a slice that can be filled, with its tag cleared; NULL: out of memory. */
static struct slice *slice_take(struct qcow2 *im)
{
	if (im->nslices < im->slices_max)
		return slice_new(im);
	for (unsigned left = 2 * im->nslices; left--; im->hand = (im->hand + 1) % im->nslices) {
		struct slice *s = im->slices[im->hand];
		uint64_t tag = atomic_load_explicit(&s->tag, memory_order_relaxed);

		if (s->pins || s->dirty)
			continue;
		if (tag && atomic_exchange_explicit(&s->hot, false, memory_order_relaxed))
			continue;
		if (tag)
			atomic_store_explicit(place_of(im, tag - 1), NULL, memory_order_relaxed);
		atomic_store_explicit(&s->tag, 0, memory_order_relaxed); /* entries are stored with release, after it */
		return s;
	}
	im->overfull = true;
	qcow2_wake_worker(im);
	return slice_new(im);
}

/* Judging. */

void qcow2_compressed_range(const struct qcow2 *im, uint64_t entry, uint64_t *host, uint64_t *len)
{
	unsigned bits = 62 - (im->cluster_bits - 8);
	uint64_t more = (entry & ~(QCOW2_COPIED | QCOW2_COMPRESSED)) >> bits;

	*host = entry & ((1ull << bits) - 1);
	*len = (more + 1) * 512 - (*host & 511);
}

static bool compressed_sound(struct qcow2 *im, uint64_t e, uint64_t end)
{
	uint64_t host, len;

	qcow2_compressed_range(im, e, &host, &len);
	/* The last sector is told in whole, and the file may end within it. */
	return host >> 56 == 0 && host >= im->cluster_size && host < end && host + len <= end + im->cluster_size;
}

static bool entry_sound(struct qcow2 *im, uint64_t e)
{
	uint64_t end = atomic_load_explicit(&im->host_end, memory_order_relaxed), host = e & QCOW2_OFFSET;

	if (e & QCOW2_COMPRESSED)
		return compressed_sound(im, e, end);
	if (e & QCOW2_L2_RESERVED || (e & QCOW2_ZERO && im->h.version < 3))
		return false;
	if (!host)
		return !(e & QCOW2_COPIED);
	return !in_cluster(im, host) && host < end && !clusterset_has(&im->metadata, cluster_of(im, host));
}

static void mark_bad(struct slice *s, unsigned i)
{
	atomic_fetch_or_explicit(&s->bad[i / 64], 1ull << i % 64, memory_order_release);
}

void qcow2_map_ban(struct qcow2 *im, uint64_t c)
{
	for (unsigned i = 0; i < im->nslices; i++) {
		struct slice *s = im->slices[i];

		for (unsigned k = 0; k < slice_entries(im); k++) {
			uint64_t e = slice_entry(s, k);

			if (!(e & QCOW2_COMPRESSED) && e & QCOW2_OFFSET && cluster_of(im, e & QCOW2_OFFSET) == c)
				mark_bad(s, k);
		}
	}
}

/* Loading. */

static int install(struct qcow2 *im, const struct load *l)
{
	struct slice *s = slice_take(im);
	uint64_t n = slice_of(im, l->off);

	if (!s)
		return -ENOMEM;
	for (unsigned i = 0; i < SLICE_ENTRIES_MAX / 64; i++)
		atomic_store_explicit(&s->bad[i], 0, memory_order_release);
	for (unsigned i = 0; i < slice_entries(im); i++) {
		uint64_t e = get_be64(l->raw + 8ul * i);

		if (!entry_sound(im, e))
			mark_bad(s, i);
		atomic_store_explicit(&s->entry[i], e, memory_order_release);
	}
	atomic_store_explicit(&s->hot, true, memory_order_relaxed);
	atomic_store_explicit(&s->tag, n + 1, memory_order_release);
	atomic_store_explicit(place_of(im, n), s, memory_order_release);
	return 0;
}

static void load_free(struct load *l)
{
	free(l->raw);
	free(l);
}

static void on_loaded(struct child *c, int error)
{
	struct load *l = c->owner, **p;
	struct qcow2 *im = c->x->queue->im;
	struct request *x, *next;

	pthread_mutex_lock(&im->lock);
	if (!error)
		error = install(im, l);
	for (p = &im->loads; *p != l; p = &(*p)->next)
		;
	*p = l->next;
	pthread_mutex_unlock(&im->lock);
	for (x = l->waiters; x; x = next) {
		next = x->next;
		x->woken_error = error;
		request_wake(x);
	}
	load_free(l);
}

/* Under the lock. */
static struct load *load_find(struct qcow2 *im, uint64_t n)
{
	struct load *l = im->loads;

	while (l && slice_of(im, l->off) != n)
		l = l->next;
	return l;
}

/*
 * Under the lock: a load to be started, with memory for where it goes. Should
 * the table move before it has ended, then what it reads is still right: the
 * slice is not changed before it is there, nor the old table used for anything
 * else before this request has ended.
 */
static struct load *load_new(struct qcow2 *im, uint64_t off)
{
	_Atomic(struct table *) *t = &im->table[l1_index(im, off)];
	struct load *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->off = slice_of(im, off) << im->slice_bits << im->cluster_bits;
	l->table = atomic_load_explicit(&im->l1[l1_index(im, off)], memory_order_relaxed) & QCOW2_OFFSET;
	l->raw = aligned_alloc(4096, slice_bytes(im) < 4096 ? 4096 : slice_bytes(im));
	if (!atomic_load_explicit(t, memory_order_relaxed))
		atomic_store_explicit(t, calloc(1, sizeof(struct slice *) << im->table_bits), memory_order_release);
	if (!l->raw || !atomic_load_explicit(t, memory_order_relaxed)) {
		load_free(l);
		return NULL;
	}
	l->next = im->loads;
	im->loads = l;
	return l;
}

static void load_start(struct request *x, struct load *l)
{
	struct qcow2 *im = x->queue->im;
	uint64_t i = slice_of(im, l->off) & ((1ull << im->table_bits) - 1);
	struct child *c = child_new(x, 1);

	if (!c) { /* as if it had been read, in vain */
		struct child none = { .x = x, .owner = l };

		on_loaded(&none, -ENOMEM);
		return;
	}
	c->iov[0] = (struct iovec){ l->raw, slice_bytes(im) };
	c->done = on_loaded;
	c->owner = l;
	child_submit(c, x->queue->file, BLK_READ, l->table + i * slice_bytes(im), slice_bytes(im));
}

void qcow2_map_load(struct request *x, uint64_t off)
{
	struct qcow2 *im = x->queue->im;
	struct load *l, *new = NULL;

	request_park(x);
	pthread_mutex_lock(&im->lock);
	l = qcow2_map_slice(im, off) ? NULL : load_find(im, slice_of(im, off));
	if (!l && !qcow2_map_slice(im, off)) {
		l = new = load_new(im, off);
		if (!new)
			x->woken_error = -ENOMEM;
	}
	if (l) {
		x->next = l->waiters;
		l->waiters = x;
	}
	pthread_mutex_unlock(&im->lock);
	if (!l)
		request_wake(x); /* it came meanwhile, or never will */
	else if (new)
		load_start(x, new);
}

void qcow2_map_free(struct qcow2 *im)
{
	for (uint64_t i = 0; im->table && i < im->h.l1_size; i++)
		free(atomic_load_explicit(&im->table[i], memory_order_relaxed));
	for (unsigned i = 0; i < im->nslices; i++)
		free(im->slices[i]);
	free(im->slices);
	free((void *)im->table);
	free((void *)im->l1);
	clusterset_free(&im->metadata);
}
