// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/qcow2/io.h"

#include <errno.h>
#include <stdlib.h>

/*
 * How it works: what a crash may not break
 *
 * Metadata is changed in memory, and written here: when a guest flushes, when
 * too much of it is dirty, and some seconds after the first change. At every
 * moment, whatever part of the writes since the last barrier (a flush of the
 * file) has reached the disk, in whatever order, these hold:
 *
 *  1. Whatever the L1 or an L2 table in the file names has a refcount in the
 *     file that counts it. Too high is a leak, which a check repairs; too low
 *     would give data to two owners.
 *  2. A table that the L1 table in the file names has its contents in the file.
 *  3. Where an entry in the file names a cluster which replaced something that
 *     was not zero, or that may hold something old, its data is in the file.
 *  4. A cluster that an entry in the file names is not used for anything else.
 *
 * Up, one commit is:
 *
 *	copy of all dirty slices    entries whose data has been written: an entry is
 *	                            published only then (write.c)
 *	refcounts                   of arenas, tables, refcount blocks
 *	barrier                     if refcounts, the L1 table or im->ordered want one
 *	slices, entries of L1       from the copies: what was published since waits
 *	barrier
 *
 * New tables were written, zeroes or the old table's contents, when they were
 * made (worker.c), so before the first barrier. The first barrier is not needed
 * for clusters that were never used before and replace only zeroes: the file
 * was made longer before the refcounts of the arena were, so without their data
 * they read as zeroes still.
 *
 * Down: a cluster that an entry does not name any more is put on a list with
 * the change. The commit that takes the change takes the list; after its last
 * barrier the cluster is durably unlinked. Requests that found it in the map
 * before may still be using it: it waits until all requests that had begun by
 * then have ended (reap). Then its refcount goes down in memory, which may
 * reach the disk at any time, and at 0 it may be allocated.
 *
 * If a write or a barrier fails, what was taken is dirty again, and the list
 * goes back. Nothing is freed by a commit that failed.
 */

struct copy {
	struct slice *slice;
	uint64_t at; /* in the file */
	uint8_t *raw;
};

struct commit {
	struct copy *copies;
	unsigned n;
	struct unlinked_list gone;
};

#define RUN_MAX 256 /* slices that are written at once */

/* Lists of what was unlinked. */

void qcow2_unlink(struct qcow2 *im, struct unlinked u)
{
	struct unlinked_list *l = &im->gone;
	struct unlinked *last = l->item && l->n ? &l->item[l->n - 1] : NULL;

	if (last && last->host + last->len == u.host && !in_cluster(im, u.host) && !u.table && !last->table &&
	    last->punch == u.punch) {
		last->len += u.len;
		return;
	}
	if (!l->item || l->n == l->cap) {
		size_t cap = l->cap ? 2 * l->cap : 64;
		struct unlinked *item = realloc(l->item, cap * sizeof(*item));

		if (!item) { /* a leak, which a check repairs */
			im->lost++;
			return;
		}
		l->item = item;
		l->cap = cap;
	}
	l->item[l->n++] = u;
}

void qcow2_unlink_entry(struct qcow2 *im, uint64_t e, bool punch)
{
	struct unlinked u = { .host = e & QCOW2_OFFSET, .len = im->cluster_size, .punch = punch };

	if (e & QCOW2_COMPRESSED) {
		/* Its own range, from cluster to cluster: each has a reference of its own. */
		qcow2_compressed_range(im, e, &u.host, &u.len);
		u.len += in_cluster(im, u.host);
		u.host -= in_cluster(im, u.host);
		u.punch = false;
	}
	if (u.host)
		qcow2_unlink(im, u);
}

static void list_append(struct unlinked_list *to, struct unlinked_list *from)
{
	struct unlinked *item;

	if (!to->n) {
		free(to->item);
		*to = *from;
		*from = (struct unlinked_list){ 0 };
		return;
	}
	item = realloc(to->item, (to->n + from->n) * sizeof(*item));
	if (item) {
		to->item = item;
		for (size_t i = 0; i < from->n; i++)
			item[to->n++] = from->item[i];
		to->cap = to->n;
	} /* else a leak */
	free(from->item);
	*from = (struct unlinked_list){ 0 };
}

/* Reaping. */

/* Punches a hole for clusters whose refcount is 0. Best effort: the space is only not given back. */
static void punch(struct qcow2 *im, uint64_t host, uint64_t len)
{
	if (im->discards)
		(void)!waitio_do(&im->io, BLK_DISCARD, 0, host, NULL, 0, len);
}

/* One reference less of each cluster. */
static void release(struct qcow2 *im, const struct unlinked *u)
{
	uint64_t first = cluster_of(im, u->host), last = cluster_of(im, u->host + u->len - 1), run = 0;

	for (uint64_t c = first; c <= last; c++) {
		uint64_t count = 1;

		if (u->table)
			qcow2_metadata_del(im, c);
		if (!qcow2_refs_drop(im, c) && !qcow2_refs_get(im, c, &count) && !count && u->punch) {
			run++;
			continue;
		}
		if (u->table && count && qcow2_metadata_add(im, c, c << im->cluster_bits))
			im->lost++; /* a snapshot's table that is not guarded any more */
		if (run)
			punch(im, (c - run) << im->cluster_bits, run << im->cluster_bits);
		run = 0;
	}
	if (run)
		punch(im, (last + 1 - run) << im->cluster_bits, run << im->cluster_bits);
}

static void release_all(struct qcow2 *im, struct unlinked_list *l)
{
	for (size_t i = 0; i < l->n; i++)
		release(im, &l->item[i]);
	free(l->item);
	*l = (struct unlinked_list){ 0 };
}

/* Have all requests ended that began before the phase was last turned? */
static bool phase_over(struct qcow2 *im)
{
	unsigned old = (atomic_load(&im->phase) - 1) & 1, n = 0;

	pthread_mutex_lock(&im->lock);
	for (struct qcow2_queue *qq = im->queues; qq; qq = qq->next)
		n += atomic_load(&qq->active[old]);
	pthread_mutex_unlock(&im->lock);
	return !n;
}

void qcow2_reap(struct qcow2 *im)
{
	if (im->limbo[0].n) {
		if (!phase_over(im))
			return;
		release_all(im, &im->limbo[0]);
	}
	if (im->limbo[1].n) {
		list_append(&im->limbo[0], &im->limbo[1]);
		atomic_fetch_add(&im->phase, 1);
	}
}

/* Committing. */

/* Takes what is dirty; the slices stay in memory until commit_end(). */
static int commit_take(struct qcow2 *im, struct commit *c)
{
	struct slice *s;
	int error = 0;

	pthread_mutex_lock(&im->lock);
	c->copies = calloc(im->ndirty, sizeof(*c->copies));
	if (im->ndirty && !c->copies) {
		error = -ENOMEM;
	} else {
		while ((s = im->dirty)) {
			im->dirty = s->next;
			s->dirty = false;
			s->pins++;
			c->copies[c->n++].slice = s;
		}
		im->ndirty = 0;
		im->dirty_since = 0;
		im->overfull = false;
		im->committing = true;
		c->gone = im->gone;
		im->gone = (struct unlinked_list){ 0 };
	}
	pthread_mutex_unlock(&im->lock);
	return error;
}

/* Under the lock, so that no entry is copied whose alloc has not said yet whether it is ordered. */
static void copy_entries(struct qcow2 *im, struct copy *c)
{
	pthread_mutex_lock(&im->lock);
	for (unsigned i = 0; i < slice_entries(im); i++)
		put_be64(c->raw + 8ul * i, slice_entry(c->slice, i));
	pthread_mutex_unlock(&im->lock);
}

static int copy_all(struct qcow2 *im, struct commit *c)
{
	size_t bytes = (size_t)8 << im->slice_bits;

	for (unsigned i = 0; i < c->n; i++) {
		uint64_t n = atomic_load(&c->copies[i].slice->tag) - 1, in_table = n & ((1ull << im->table_bits) - 1);
		uint64_t l1 = atomic_load(&im->l1[n >> im->table_bits]);

		c->copies[i].at = (l1 & QCOW2_OFFSET) + in_table * bytes;
		if (posix_memalign((void **)&c->copies[i].raw, 4096, bytes))
			return -ENOMEM;
		copy_entries(im, &c->copies[i]);
	}
	return 0;
}

static int by_place(const void *a, const void *b)
{
	const struct copy *x = a, *y = b;

	return x->at < y->at ? -1 : x->at > y->at;
}

static int write_slices(struct qcow2 *im, struct commit *c)
{
	size_t bytes = (size_t)8 << im->slice_bits;
	struct iovec iov[RUN_MAX];
	int error = 0;

	qsort(c->copies, c->n, sizeof(*c->copies), by_place);
	for (unsigned i = 0, n; i < c->n && !error; i += n) {
		for (n = 0; i + n < c->n && n < RUN_MAX && c->copies[i + n].at == c->copies[i].at + n * bytes; n++)
			iov[n] = (struct iovec){ c->copies[i + n].raw, bytes };
		error = waitio_do(&im->io, BLK_WRITE, 0, c->copies[i].at, iov, n, n * bytes);
	}
	return error;
}

static int write_l1(struct qcow2 *im)
{
	int error = 0;

	for (size_t i = 0; i < im->nl1_dirty && !error; i++) {
		uint64_t k = im->l1_dirty[i];
		uint8_t raw[8];

		put_be64(raw, atomic_load(&im->l1[k]));
		error = waitio_write(&im->io, im->h.l1_off + k * 8, raw, sizeof(raw));
	}
	return error;
}

/* The barrier before the entries are written, if they need one. */
static int barrier(struct qcow2 *im)
{
	bool ordered;
	int error;

	pthread_mutex_lock(&im->lock);
	ordered = im->ordered;
	im->ordered = false;
	pthread_mutex_unlock(&im->lock);
	if (!im->refs.unsynced && !ordered && !im->nl1_dirty)
		return 0;
	error = waitio_flush(&im->io);
	im->refs.unsynced &= !!error;
	if (error) {
		pthread_mutex_lock(&im->lock);
		im->ordered |= ordered;
		pthread_mutex_unlock(&im->lock);
	}
	return error;
}

static int commit_write(struct qcow2 *im, struct commit *c)
{
	int error = copy_all(im, c);

	if (!error)
		error = qcow2_refs_write(im);
	if (!error)
		error = barrier(im);
	if (!error)
		error = write_slices(im, c);
	if (!error)
		error = write_l1(im);
	return error ? error : waitio_flush(&im->io);
}

/* Nothing has been made durable for certain: dirty again. The barrier before the entries may be owed still. */
static void undo(struct qcow2 *im, struct commit *c)
{
	im->ordered = true;
	for (unsigned i = 0; i < c->n; i++)
		qcow2_map_dirty(im, c->copies[i].slice);
	list_append(&c->gone, &im->gone);
	im->gone = c->gone;
}

static void commit_end(struct qcow2 *im, struct commit *c, int error)
{
	pthread_mutex_lock(&im->lock);
	im->committing = false;
	im->failed = error;
	for (unsigned i = 0; i < c->n; i++)
		c->copies[i].slice->pins--;
	if (error)
		undo(im, c);
	pthread_mutex_unlock(&im->lock);
	if (!error) {
		im->nl1_dirty = 0;
		list_append(&im->limbo[1], &c->gone);
	}
	for (unsigned i = 0; i < c->n; i++)
		free(c->copies[i].raw);
	free(c->copies);
}

int qcow2_commit_now(struct qcow2 *im)
{
	struct commit c = { 0 };
	int error = commit_take(im, &c);

	if (error) {
		free(c.copies);
		return error;
	}
	error = commit_write(im, &c);
	commit_end(im, &c, error);
	qcow2_reap(im);
	return error;
}
