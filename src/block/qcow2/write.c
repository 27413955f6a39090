// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/qcow2/io.h"

#include "base/container_of.h"
#include "base/iov.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * How it works
 *
 * Where the map says "data, copied", a write goes to the file as it is, without
 * a lock. Everything else is an alloc: a run of guest clusters of one slice
 * gets a run of host clusters. Under the lock their entries are marked busy and
 * the slice is pinned; the entries go on saying what they said, for readers.
 * Then, without the lock:
 *
 *	fill    what the first and the last cluster have around the data is read
 *	        from wherever it is now; not where it is zero
 *	write   one vectored write: fill, data, fill. Fresh clusters read as zeroes
 *	        already, so there zeroes are left out
 *	publish under the lock: the entries, with release, the slice is dirty, what
 *	        they named before has lost a reference, waiting requests go on
 *
 * A second request that meets a busy cluster waits; all others go their way.
 * A write that fails leaves the entries as they were, and the new clusters go
 * the way of all clusters that nobody names.
 *
 * A cluster that is preallocated (zero flag and an offset of its own) is filled
 * the same way, in its own place.
 *
 * im->ordered: the data must be durable before the entries that name it. Not
 * needed where a crash in between would show zeroes in place of what was zero
 * before: in fresh clusters that replace nothing.
 */

#define AS_ONE_MAX 16384u /* bytes of data between what is read */

struct fill {
	uint64_t len;
	bool read;    /* from the old place; else zeroes */
	uint8_t *mem; /* if it is read */
	/* Of the read, which uses it up: the whole cluster, where head and tail are read as one, with the head's. */
	struct iovec iov;
};

struct alloc {
	struct request *x;
	struct slice *slice;
	unsigned index, n; /* entries */
	uint64_t off;      /* guest, of the first cluster */
	uint64_t host;
	bool fresh, own;   /* own: the host cluster was theirs before */
	uint64_t pos, len; /* the data: of the request */
	struct fill head, tail;
	bool as_one;       /* head and tail, with what is between them, are one read */
	uint8_t *gathered; /* data that came in too many pieces */
	unsigned reading;
	int error;
	struct request *waiters;
	struct alloc *next;
};

void alloc_wait(struct request *x, uint64_t off)
{
	struct qcow2 *im = x->queue->im;
	struct alloc *a = im->allocs;

	while (cluster_of(im, off) - cluster_of(im, a->off) >= a->n)
		a = a->next;
	request_park(x);
	x->next = a->waiters;
	a->waiters = x;
}

/* The end. */

/* Under the lock. */
static void publish_entry(struct alloc *a, unsigned i)
{
	struct qcow2 *im = a->x->queue->im;
	struct slice *s = a->slice;
	enum extent_kind kind = slice_kind(s, a->index + i);
	uint64_t old = slice_entry(s, a->index + i), host = a->host + ((uint64_t)i << im->cluster_bits);

	if (!a->fresh || !(kind == EXTENT_ZERO || (kind == EXTENT_HOLE && hole_is_zero(im, a->off))))
		im->ordered = true;
	atomic_store_explicit(&s->entry[a->index + i], host | QCOW2_COPIED, memory_order_release);
	if (!a->own && kind != EXTENT_BAD)
		qcow2_unlink_entry(im, old, false);
}

/* Under the lock: an old entry may have been marked bad meanwhile, the new one is sound. */
static void publish(struct alloc *a)
{
	for (unsigned i = 0; i < a->n; i++) {
		unsigned k = a->index + i;

		publish_entry(a, i);
		atomic_fetch_and_explicit(&a->slice->bad[k / 64], ~(1ull << k % 64), memory_order_release);
	}
	qcow2_map_dirty(a->x->queue->im, a->slice);
}

/* Under the lock. */
static void mark_busy(struct alloc *a, bool busy)
{
	for (unsigned i = a->index; i < a->index + a->n; i++) {
		uint64_t bit = 1ull << i % 64;

		a->slice->busy[i / 64] = busy ? a->slice->busy[i / 64] | bit : a->slice->busy[i / 64] & ~bit;
	}
	a->slice->pins += busy ? 1 : -1u;
}

/* Under the lock. */
static void take_back(struct alloc *a)
{
	struct qcow2 *im = a->x->queue->im;

	if (!a->own)
		qcow2_unlink(im, (struct unlinked){ .host = a->host, .len = (uint64_t)a->n << im->cluster_bits });
}

static void alloc_end(struct alloc *a, int error)
{
	struct qcow2 *im = a->x->queue->im;
	struct request *x = a->x, *w, *next;
	struct alloc **p;

	pthread_mutex_lock(&im->lock);
	if (error)
		take_back(a);
	else
		publish(a);
	mark_busy(a, false);
	for (p = &im->allocs; *p != a; p = &(*p)->next)
		;
	*p = a->next;
	pthread_mutex_unlock(&im->lock);
	for (w = a->waiters; w; w = next) {
		next = w->next;
		request_wake(w);
	}
	buffer_put(x->queue, a->head.mem);
	if (!a->as_one)
		buffer_put(x->queue, a->tail.mem);
	free(a->gathered);
	free(a);
	request_fail(x, error);
	request_drop(x);
}

/* The write. */

static void on_written(struct child *c, int error)
{
	alloc_end(c->owner, error);
}

/* Is this fill written? Zeroes are not, where the cluster is fresh. */
static bool wanted(const struct alloc *a, const struct fill *f)
{
	return f->len && (f->read || !a->fresh);
}

static void add_fill(struct child *c, unsigned *n, const struct fill *f)
{
	c->iov[(*n)++] = (struct iovec){ f->read ? f->mem : qcow2_zeroes, f->len };
}

static void alloc_write(struct alloc *a)
{
	bool head = wanted(a, &a->head), tail = wanted(a, &a->tail);
	unsigned n = request_pieces(a->x, a->pos, a->len, NULL), at = 0;
	bool gather = n > BLK_MAX_IOV - 2;
	struct child *c = child_new(a->x, 2 + (gather ? 1 : n));
	uint64_t len = a->len + (head ? a->head.len : 0) + (tail ? a->tail.len : 0);

	if (!c) {
		alloc_end(a, -ENOMEM);
		return;
	}
	if (head)
		add_fill(c, &at, &a->head);
	if (gather) {
		iov_get(a->x->iov, a->x->niov, a->pos, a->gathered, a->len);
		c->iov[at++] = (struct iovec){ a->gathered, a->len };
	} else {
		at += request_pieces(a->x, a->pos, a->len, c->iov + at);
	}
	if (tail)
		add_fill(c, &at, &a->tail);
	c->req.niov = at;
	c->req.flags = a->x->flags & BLK_FUA;
	c->done = on_written;
	c->owner = a;
	child_submit(c, a->x->queue->file, BLK_WRITE, a->host + (head ? 0 : a->head.len), len);
}

/* The fill. */

static void on_filled(struct request *r)
{
	struct alloc *a = r->owner;

	if (!a->error)
		a->error = r->error;
	if (--a->reading)
		return;
	if (a->error)
		alloc_end(a, a->error);
	else
		alloc_write(a);
}

/* Reads @n bytes at guest offset @off into the memory of @f; the disk may end within them. */
static void fill_start(struct alloc *a, struct fill *f, uint64_t off, uint64_t n)
{
	struct qcow2 *im = a->x->queue->im;
	uint64_t size = blk_size(&im->blk), len = off >= size ? 0 : size - off;
	struct request *r = request_new(a->x->queue);

	if (len > n)
		len = n;
	memset(f->mem + len, 0, n - len);
	f->iov = (struct iovec){ f->mem, len };
	a->reading++;
	if (!r) {
		struct request none = { .owner = a, .error = -ENOMEM };

		on_filled(&none);
		return;
	}
	r->op = BLK_READ;
	r->off = off;
	r->len = len;
	r->iov = &f->iov;
	r->niov = 1;
	r->finish = on_filled;
	r->owner = a;
	request_run(r);
}

static void alloc_fill(struct alloc *a)
{
	a->reading = 1; /* this function's own */
	if (a->as_one)
		fill_start(a, &a->head, a->off, a->x->queue->im->cluster_size);
	else if (a->head.read)
		fill_start(a, &a->head, a->off, a->head.len);
	if (a->tail.read && !a->as_one)
		fill_start(a, &a->tail, a->x->off + a->pos + a->len, a->tail.len);
	on_filled(&(struct request){ .owner = a });
}

static bool fill_memory(struct alloc *a, struct fill *f)
{
	if (f->read)
		f->mem = buffer_get(a->x->queue);
	return !f->read || f->mem;
}

/* For what is read, and for data in more pieces than a child may have. */
static bool alloc_memory(struct alloc *a)
{
	if (request_pieces(a->x, a->pos, a->len, NULL) > BLK_MAX_IOV - 2) {
		a->gathered = malloc(a->len);
		if (!a->gathered)
			return false;
	}
	if (!fill_memory(a, &a->head))
		return false;
	/* One read of a little more is cheaper than two. */
	a->as_one = a->n == 1 && a->head.read && a->tail.read && a->len <= AS_ONE_MAX;
	if (!a->as_one)
		return fill_memory(a, &a->tail);
	a->tail.mem = a->head.mem + a->head.len + a->len;
	return true;
}

/* The beginning. */

/* Under the lock: does the cluster need a place to be written to, and has none of its own? */
static bool needs_cluster(const struct slice *s, unsigned i)
{
	enum extent_kind kind = slice_kind(s, i);
	uint64_t e = slice_entry(s, i);

	return !slice_busy(s, i) && kind != EXTENT_BAD &&
	       !(e & QCOW2_COPIED && (kind == EXTENT_DATA || (kind == EXTENT_ZERO && e & QCOW2_OFFSET)));
}

/* Under the lock: up to @want clusters in a row; how many. 0: the metadata thread must get some. */
static unsigned arena_take(struct qcow2 *im, struct alloc *a, unsigned want)
{
	if (!im->arena.n) {
		im->arena = im->spare;
		im->spare.n = 0;
	}
	if (want > im->arena.n)
		want = (unsigned)im->arena.n;
	a->host = im->arena.host;
	a->fresh = im->arena.fresh;
	a->n = want;
	im->arena.host += (uint64_t)want << im->cluster_bits;
	im->arena.n -= want;
	if (!im->spare.n && want) {
		im->refill = true;
		qcow2_wake_worker(im);
	}
	return want;
}

/* Under the lock: is there something to be read around the data in the cluster at @off? */
static bool fill_reads(const struct alloc *a, uint64_t off)
{
	enum extent_kind kind = slice_kind(a->slice, entry_of(a->x->queue->im, off));

	return kind == EXTENT_DATA || kind == EXTENT_COMPRESSED ||
	       (kind == EXTENT_HOLE && !hole_is_zero(a->x->queue->im, off));
}

/* The data's place in the run, and what is around it. Under the lock. */
static void measure(struct alloc *a, uint64_t len)
{
	struct qcow2 *im = a->x->queue->im;
	uint64_t in = a->x->off + a->pos - a->off, all = (uint64_t)a->n << im->cluster_bits;
	uint64_t last = a->off + all - im->cluster_size;

	a->len = len < all - in ? len : all - in;
	a->head.len = in;
	a->tail.len = all - in - a->len;
	a->head.read = in && fill_reads(a, a->off);
	a->tail.read = a->tail.len && fill_reads(a, last);
}

/* Under the lock: host clusters for up to @want entries, of which the first is neither busy nor ours to write. */
static bool reserve(struct alloc *a, unsigned want)
{
	struct qcow2 *im = a->x->queue->im;
	unsigned n = 1;

	if (!needs_cluster(a->slice, a->index)) { /* preallocated */
		a->host = slice_entry(a->slice, a->index) & QCOW2_OFFSET;
		a->own = true;
		a->n = 1;
		return true;
	}
	while (n < want && needs_cluster(a->slice, a->index + n))
		n++;
	return arena_take(im, a, n);
}

/* Under the lock. False: the metadata thread is asked for clusters. */
static bool alloc_begin(struct alloc *a, uint64_t len)
{
	struct qcow2 *im = a->x->queue->im;
	uint64_t at = a->x->off + a->pos, clusters = cluster_of(im, at + len - 1) - cluster_of(im, at) + 1;
	unsigned left = slice_entries(im) - a->index;

	if (!reserve(a, clusters < left ? (unsigned)clusters : left))
		return false;
	measure(a, len);
	mark_busy(a, true);
	a->next = im->allocs;
	im->allocs = a;
	return true;
}

static void alloc_start(struct alloc *a)
{
	struct request *x = a->x;

	request_hold(x);
	x->pos += a->len;
	if (alloc_memory(a))
		alloc_fill(a);
	else
		alloc_end(a, -ENOMEM);
}

enum readiness { READY, AGAIN, PARKED, NO_SLICE, NOT_WRITABLE };

/* Under the lock: can the cluster at @off be given a place? */
static enum readiness ready(struct request *x, uint64_t off, struct slice **s)
{
	struct qcow2 *im = x->queue->im;
	unsigned i = entry_of(im, off);
	enum extent_kind kind;

	if (!(atomic_load(&im->l1[l1_index(im, off)]) & QCOW2_COPIED))
		return NOT_WRITABLE;
	*s = qcow2_map_slice(im, off);
	if (!*s)
		return NO_SLICE;
	if (slice_busy(*s, i)) {
		alloc_wait(x, off);
		return PARKED;
	}
	kind = slice_kind(*s, i);
	if (kind == EXTENT_BAD || (kind == EXTENT_DATA && slice_entry(*s, i) & QCOW2_COPIED))
		return AGAIN; /* it changed since we looked */
	return READY;
}

static bool alloc_step(struct request *x, uint64_t len)
{
	struct qcow2 *im = x->queue->im;
	uint64_t off = x->off + x->pos;
	struct alloc *a = calloc(1, sizeof(*a));
	enum readiness r;

	if (!a) {
		request_fail(x, -ENOMEM);
		return true;
	}
	*a = (struct alloc){ .x = x, .index = entry_of(im, off), .off = off - in_cluster(im, off), .pos = x->pos };
	pthread_mutex_lock(&im->lock);
	r = ready(x, off, &a->slice);
	if (r == READY && !alloc_begin(a, len))
		r = NOT_WRITABLE;
	pthread_mutex_unlock(&im->lock);
	if (r == READY) {
		alloc_start(a);
		return true;
	}
	free(a);
	if (r == NO_SLICE)
		qcow2_map_load(x, off);
	else if (r == NOT_WRITABLE)
		qcow2_prepare(x);
	return r == AGAIN;
}

bool write_step(struct request *x, uint64_t len)
{
	struct qcow2 *im = x->queue->im;
	uint64_t off = x->off + x->pos;
	struct extent e;

	if (atomic_load_explicit(&im->needs_activation, memory_order_relaxed)) {
		qcow2_prepare(x);
		return false;
	}
	e = qcow2_map_extent(im, off, len);
	if (e.kind == EXTENT_MISS) {
		qcow2_map_load(x, off);
		return false;
	}
	if (e.kind == EXTENT_BAD) {
		request_fail(x, -EIO);
		return true;
	}
	if (e.kind != EXTENT_DATA || !e.in_place)
		return alloc_step(x, len);
	request_write_in_place(x, e.host, e.len);
	x->pos += e.len;
	return true;
}
