// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/qcow2/io.h"

#include "base/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>

/*
 * How it works
 *
 * The metadata thread, one per image that is written to, started by the first
 * request that needs it. It does in turn, each with blocking I/O:
 *
 *	prepare  what a parked request needs before it can go on: the header
 *	         without autoclear bits, an L2 table of its own, clusters
 *	refill   the second arena, so that requests need not wait for the first to
 *	         be empty; arenas double in size as they are used up
 *	commit   for all flushes that wait: one commit serves those that came
 *	         before it began. Also when it is overdue
 *	reap     clusters that a commit has unlinked, as soon as nobody can be
 *	         using them: their space goes back to the host also when
 *	         nothing more is asked of the image
 *
 * It alone changes the L1 table, refcounts and the length of the file, so none
 * of these needs a lock. It is the only one that waits for a disk, and nobody
 * waits for it but by being parked.
 */

#define COMMIT_AFTER   5000000000ull /* ns after the first change that no flush asked for */
#define REAP_AFTER     200000000ull  /* ns until it is looked again whether clusters are free by now */
#define DIRTY_MAX      (16u << 20)   /* bytes of dirty slices that are not waited with */
#define ARENA_FIRST    (1ull << 20)  /* bytes */
#define ARENA_MAX      (64ull << 20)
#define ARENA_CLUSTERS 8ull /* at least */

int qcow2_metadata_add(struct qcow2 *im, uint64_t cluster, uint64_t before)
{
	int fresh;

	pthread_mutex_lock(&im->lock);
	fresh = clusterset_add(&im->metadata, cluster);
	if (fresh > 0 && cluster << im->cluster_bits < before)
		qcow2_map_ban(im, cluster);
	pthread_mutex_unlock(&im->lock);
	return fresh < 0 ? fresh : 0;
}

void qcow2_metadata_del(struct qcow2 *im, uint64_t cluster)
{
	pthread_mutex_lock(&im->lock);
	clusterset_del(&im->metadata, cluster);
	pthread_mutex_unlock(&im->lock);
}

/* Preparing. */

/* Bits that promise something about data which we do not keep up are cleared before the first write. */
static int activate(struct qcow2 *im)
{
	static const uint8_t none[8];
	int error;

	if (!atomic_load(&im->needs_activation))
		return 0;
	error = waitio_write(&im->io, QCOW2_AT_AUTOCLEAR, none, sizeof(none));
	if (!error)
		error = waitio_flush(&im->io);
	if (!error) {
		im->h.autoclear = 0;
		atomic_store(&im->needs_activation, false);
	}
	return error;
}

/* The contents of a new table at @to: the old one's, or zeroes. */
static int fill_table(struct qcow2 *im, uint64_t from, uint64_t to)
{
	uint8_t *raw;
	int error;

	if (!from)
		return waitio_write(&im->io, to, qcow2_zeroes, im->cluster_size);
	raw = malloc(im->cluster_size);
	if (!raw)
		return -ENOMEM;
	error = waitio_read(&im->io, from, raw, im->cluster_size);
	if (!error)
		error = waitio_write(&im->io, to, raw, im->cluster_size);
	free(raw);
	return error;
}

static int l1_set(struct qcow2 *im, uint64_t i, uint64_t cluster)
{
	uint64_t *list = realloc(im->l1_dirty, (im->nl1_dirty + 1) * sizeof(*list));
	uint64_t old = atomic_load(&im->l1[i]) & QCOW2_OFFSET;

	if (!list)
		return -ENOMEM;
	im->l1_dirty = list;
	list[im->nl1_dirty++] = i;
	pthread_mutex_lock(&im->lock);
	atomic_store_explicit(&im->l1[i], cluster << im->cluster_bits | QCOW2_COPIED, memory_order_release);
	if (old)
		qcow2_unlink(im, (struct unlinked){ .host = old, .len = im->cluster_size, .table = true });
	pthread_mutex_unlock(&im->lock);
	return 0;
}

/* An L2 table for L1 entry @i that is the active image's alone. */
static int table_own(struct qcow2 *im, uint64_t i)
{
	uint64_t l1 = atomic_load(&im->l1[i]), before = atomic_load(&im->host_end), c, n;
	int error;

	if (l1 & L1_BAD)
		return -EIO;
	if (l1 & QCOW2_COPIED && l1 & QCOW2_OFFSET)
		return 0;
	error = qcow2_refs_take(im, 1, 1, &c, &n);
	if (error)
		return error;
	error = qcow2_metadata_add(im, c, before);
	if (!error)
		error = fill_table(im, l1 & QCOW2_OFFSET, c << im->cluster_bits);
	if (!error)
		error = l1_set(im, i, c);
	if (error) {
		qcow2_metadata_del(im, c);
		(void)!qcow2_refs_drop(im, c); /* should that fail too, it is leaked */
	}
	return error;
}

/* Arenas. */

static uint64_t arena_clusters(uint64_t bytes, const struct qcow2 *im)
{
	uint64_t n = bytes >> im->cluster_bits;

	return n > ARENA_CLUSTERS ? n : ARENA_CLUSTERS;
}

/* The file reaches to @end; what is new in it reads as zeroes. */
static int file_reach(struct qcow2 *im, uint64_t end)
{
	int error = end > blk_size(im->file) ? blk_truncate(im->file, end) : 0;

	return error == -EOPNOTSUPP ? -ENOSPC : error; /* a block device */
}

static int arena_make(struct qcow2 *im, struct arena *a)
{
	uint64_t length = blk_size(im->file), c, n, end;
	int error;

	if (!im->arena_clusters)
		im->arena_clusters = arena_clusters(ARENA_FIRST, im);
	error = qcow2_refs_take(im, 1, im->arena_clusters, &c, &n);
	if (error)
		return error;
	end = (c + n) << im->cluster_bits;
	*a = (struct arena){ .host = c << im->cluster_bits, .n = n, .fresh = c << im->cluster_bits >= length };
	error = file_reach(im, end);
	for (uint64_t i = 0; error && i < n; i++)
		(void)!qcow2_refs_drop(im, c + i);
	if (!error && 2 * im->arena_clusters <= arena_clusters(ARENA_MAX, im))
		im->arena_clusters *= 2;
	return error;
}

static int refill(struct qcow2 *im)
{
	struct arena a;
	bool full;
	int error;

	pthread_mutex_lock(&im->lock);
	im->refill = false;
	full = im->spare.n;
	pthread_mutex_unlock(&im->lock);
	if (full)
		return 0;
	qcow2_reap(im);
	error = arena_make(im, &a);
	if (error)
		return error;
	pthread_mutex_lock(&im->lock);
	im->spare = a;
	pthread_mutex_unlock(&im->lock);
	return 0;
}

static bool arena_empty(struct qcow2 *im)
{
	bool empty;

	pthread_mutex_lock(&im->lock);
	empty = !im->arena.n && !im->spare.n;
	pthread_mutex_unlock(&im->lock);
	return empty;
}

static int prepare(struct qcow2 *im, const struct request *x)
{
	int error = activate(im);

	if (!error)
		error = table_own(im, l1_index(im, x->off + x->pos));
	if (!error && x->op != BLK_DISCARD && arena_empty(im))
		error = refill(im);
	return error;
}

/* The thread. */

static void append(struct request ***end, struct request *x)
{
	x->next = NULL;
	**end = x;
	*end = &x->next;
}

static struct request *take(struct request **list, struct request ***end)
{
	struct request *x = *list;

	*list = NULL;
	*end = list;
	return x;
}

bool qcow2_is_dirty(struct qcow2 *im)
{
	return im->ndirty || im->committing;
}

static uint64_t slices_dirty_max(const struct qcow2 *im)
{
	return DIRTY_MAX >> 3 >> im->slice_bits;
}

/* Under the lock. */
static bool commit_due(struct qcow2 *im)
{
	if (im->to_commit || (!im->failed && (im->overfull || im->ndirty > slices_dirty_max(im))))
		return true; /* after one that failed: when a flush asks, or when it is time again */
	return im->dirty_since && clock_ns() >= im->dirty_since + COMMIT_AFTER;
}

static bool in_limbo(const struct qcow2 *im)
{
	return im->limbo[0].n || im->limbo[1].n;
}

/* Under the lock: until there is something to do, or @at if that is not 0. */
static void wait_for_work(struct qcow2 *im, uint64_t at)
{
	while (!im->quit && !im->to_prepare && !im->refill && !commit_due(im) && !(at && clock_ns() >= at)) {
		uint64_t due = im->dirty_since ? im->dirty_since + COMMIT_AFTER : 0;
		uint64_t until = at && (!due || at < due) ? at : due;
		struct timespec ts = { .tv_sec = (time_t)(until / 1000000000u),
			               .tv_nsec = (long)(until % 1000000000u) };

		if (until)
			pthread_cond_timedwait(&im->more, &im->lock, &ts);
		else
			pthread_cond_wait(&im->more, &im->lock);
	}
}

static void wake_all(struct request *x, int error)
{
	for (struct request *next; x; x = next) {
		next = x->next;
		x->woken_error = error;
		request_wake(x);
	}
}

static void work(struct qcow2 *im, struct request *to_prepare, struct request *to_commit, bool fill, bool due)
{
	for (struct request *x = to_prepare, *next; x; x = next) {
		next = x->next;
		x->woken_error = prepare(im, x);
		request_wake(x);
	}
	if (fill)
		(void)!refill(im); /* told to the request that finds no clusters */
	if (due)
		wake_all(to_commit, qcow2_commit_now(im)); /* an overdue one that fails is told by the next flush */
}

static void *metadata_thread(void *arg)
{
	struct qcow2 *im = arg;

	pthread_mutex_lock(&im->lock);
	for (;;) {
		struct request *to_prepare, *to_commit;
		bool fill, due;

		wait_for_work(im, in_limbo(im) ? clock_ns() + REAP_AFTER : 0);
		if (im->quit)
			break;
		due = commit_due(im);
		fill = im->refill;
		to_prepare = take(&im->to_prepare, &im->to_prepare_end);
		to_commit = take(&im->to_commit, &im->to_commit_end);
		pthread_mutex_unlock(&im->lock);
		work(im, to_prepare, to_commit, fill, due);
		qcow2_reap(im);
		pthread_mutex_lock(&im->lock);
	}
	pthread_mutex_unlock(&im->lock);
	return NULL;
}

/* Under the lock. Signals are for other threads. */
static int start(struct qcow2 *im)
{
	sigset_t all, old;
	int error;

	if (im->running)
		return 0;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	error = -pthread_create(&im->thread, NULL, metadata_thread, im);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	im->running = !error;
	return error;
}

void qcow2_wake_worker(struct qcow2 *im)
{
	if (im->ndirty && !im->dirty_since)
		im->dirty_since = clock_ns();
	if (!start(im)) /* else a flush tries again, or closing writes back */
		pthread_cond_signal(&im->more);
}

static void hand_over(struct request *x, struct request ***end)
{
	struct qcow2 *im = x->queue->im;
	int error;

	request_park(x);
	pthread_mutex_lock(&im->lock);
	error = start(im);
	if (!error) {
		append(end, x);
		pthread_cond_signal(&im->more);
	}
	pthread_mutex_unlock(&im->lock);
	if (error) {
		x->woken_error = error;
		request_wake(x);
	}
}

void qcow2_prepare(struct request *x)
{
	hand_over(x, &x->queue->im->to_prepare_end);
}

void qcow2_commit(struct request *x)
{
	hand_over(x, &x->queue->im->to_commit_end);
}

/* The end. */

static void arena_return(struct qcow2 *im, struct arena *a)
{
	for (; a->n; a->n--, a->host += im->cluster_size)
		(void)!qcow2_refs_drop(im, cluster_of(im, a->host)); /* should it fail, it is leaked */
}

/* What we made the file longer by and did not use. */
static int shrink(struct qcow2 *im)
{
	uint64_t first = cluster_of(im, im->first_end + im->cluster_size - 1), count;
	uint64_t c = cluster_of(im, blk_size(im->file) + im->cluster_size - 1), last = c;
	int error = 0;

	while (c > first && !(error = qcow2_refs_get(im, c - 1, &count)) && !count)
		c--;
	return error || c == last ? error : blk_truncate(im->file, c << im->cluster_bits);
}

static int write_back(struct qcow2 *im)
{
	int error = qcow2_commit_now(im);

	if (error)
		return error;
	while (in_limbo(im))
		qcow2_reap(im); /* no request is left */
	arena_return(im, &im->arena);
	arena_return(im, &im->spare);
	error = shrink(im);
	if (!error)
		error = qcow2_refs_write(im);
	return error ? error : waitio_flush(&im->io);
}

int qcow2_worker_stop(struct qcow2 *im)
{
	bool ran = im->running;

	if (ran) {
		pthread_mutex_lock(&im->lock);
		im->quit = true;
		pthread_cond_signal(&im->more);
		pthread_mutex_unlock(&im->lock);
		pthread_join(im->thread, NULL);
		im->running = false;
	}
	return ran || im->ndirty ? write_back(im) : 0;
}
