// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/qcow2/io.h"

#include <errno.h>

/*
 * Write-zeroes and discards. Whole clusters change their entries, under the
 * lock, and what these named goes the way of all that nobody names. What would
 * then read as something else than zero (there is an image below) gets the zero
 * flag. Parts of clusters, and clusters of version 2 that would need the flag,
 * are written; a discard leaves those alone.
 */

/* Only BLK_DISCARD may leave things as they are. */
static bool must(const struct request *x)
{
	return x->op == BLK_WRITE_ZEROES;
}

/* Do host clusters go? */
static bool gives_back(const struct request *x)
{
	return x->op == BLK_DISCARD || (x->flags & BLK_MAY_UNMAP && x->queue->im->discards);
}

/* What the entry becomes, of a cluster that need not be written. */
static uint64_t zero_entry(const struct request *x, uint64_t e, uint64_t off)
{
	const struct qcow2 *im = x->queue->im;
	enum extent_kind kind = qcow2_entry_kind(e);
	bool kept = e & QCOW2_OFFSET && e & QCOW2_COPIED && (kind == EXTENT_DATA || kind == EXTENT_ZERO);

	if (kept && !gives_back(x) && im->h.version >= 3)
		return e | QCOW2_ZERO;
	if (kind == EXTENT_ZERO && !(e & QCOW2_OFFSET))
		return e;
	return hole_is_zero(im, off) ? 0 : QCOW2_ZERO;
}

/* Under the lock. False: nothing was changed, and its end is to be awaited or is bad. */
static bool zero_cluster(struct request *x, struct slice *s, uint64_t off)
{
	struct qcow2 *im = x->queue->im;
	unsigned i = entry_of(im, off);
	uint64_t old = slice_entry(s, i), new = zero_entry(x, old, off);

	if (slice_busy(s, i) || slice_kind(s, i) == EXTENT_BAD)
		return false;
	if (new == old)
		return true;
	atomic_store_explicit(&s->entry[i], new, memory_order_release);
	if (!(new &QCOW2_OFFSET))
		qcow2_unlink_entry(im, old, gives_back(x));
	qcow2_map_dirty(im, s);
	return true;
}

enum outcome { DONE, PARKED, NO_SLICE, NOT_WRITABLE, BAD };

/* Under the lock: as many clusters as can be, at x->pos; *@done bytes. */
static enum outcome zero_clusters(struct request *x, uint64_t max, uint64_t *done)
{
	struct qcow2 *im = x->queue->im;
	uint64_t off = x->off + x->pos;
	struct slice *s;

	if (!(atomic_load(&im->l1[l1_index(im, off)]) & QCOW2_COPIED))
		return NOT_WRITABLE;
	s = qcow2_map_slice(im, off);
	if (!s)
		return NO_SLICE;
	while (*done < max && slice_of(im, off + *done) == slice_of(im, off) && zero_cluster(x, s, off + *done))
		*done += im->cluster_size;
	if (*done)
		return DONE;
	if (!slice_busy(s, entry_of(im, off)))
		return BAD;
	alloc_wait(x, off);
	return PARKED;
}

/* @len bytes from the beginning of a cluster to the end of one, or of the disk. */
static bool whole_step(struct request *x, uint64_t len)
{
	struct qcow2 *im = x->queue->im;
	uint64_t done = 0;
	enum outcome o;

	pthread_mutex_lock(&im->lock);
	o = zero_clusters(x, len, &done);
	pthread_mutex_unlock(&im->lock);
	switch (o) {
	case DONE: x->pos += done < len ? done : len; return true;
	case BAD: request_fail(x, -EIO); return true;
	case PARKED: break;
	case NO_SLICE: qcow2_map_load(x, x->off + x->pos); break;
	case NOT_WRITABLE: qcow2_prepare(x); break;
	}
	return false;
}

/* @len bytes that may not change entries: up to the end of a cluster, or clusters of version 2. */
static bool written_step(struct request *x, uint64_t len)
{
	if (must(x))
		return write_step(x, len);
	x->pos += len;
	return true;
}

bool zero_step(struct request *x)
{
	struct qcow2 *im = x->queue->im;
	uint64_t off = x->off + x->pos, left = x->len - x->pos, in = in_cluster(im, off), part;
	struct extent e = qcow2_map_extent(im, off, left);

	if (e.kind == EXTENT_MISS) {
		qcow2_map_load(x, off);
		return false;
	}
	if (e.kind == EXTENT_BAD) {
		request_fail(x, -EIO);
		return true;
	}
	if (e.kind == EXTENT_HOLE && hole_is_zero(im, off)) {
		x->pos += e.len;
		return true;
	}
	if (atomic_load_explicit(&im->needs_activation, memory_order_relaxed)) {
		qcow2_prepare(x);
		return false;
	}
	part = left < im->cluster_size - in ? left : im->cluster_size - in;
	if (in || (part < im->cluster_size && off + part < blk_size(&im->blk))) {
		if (e.kind != EXTENT_ZERO)
			return written_step(x, part);
		x->pos += part;
		return true;
	}
	if (im->h.version < 3 && !hole_is_zero(im, off))
		return written_step(x, part);
	/* A part of a cluster at the end of the range is the next step's, unless the disk ends there. */
	return whole_step(x, off + left == blk_size(&im->blk) ? left : left - in_cluster(im, off + left));
}
