/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BLOCK_QCOW2_QCOW2_H
#define BLOCK_QCOW2_QCOW2_H

#include "block/block_impl.h"
#include "block/qcow2/clusterset.h"
#include "block/qcow2/header.h"
#include "block/qcow2/refs.h"
#include "block/qcow2/waitio.h"

#include <pthread.h>
#include <stdatomic.h>

/*
 * An open QCOW2 image: what its files share. Who does what:
 *	open.c      opening and closing
 *	backing.c   the image below
 *	map.c       guest offset → host extent: L1, slices of L2 tables in memory
 *	io.c        requests, their children, what is posted between loops; reads
 *	write.c     writes: in place, or into new clusters
 *	zero.c      write-zeroes and discards
 *	inflate.c   compressed clusters
 *	worker.c    the metadata thread: what must wait for I/O before a write can go on
 *	commit.c    metadata to the file, in an order that a crash cannot harm
 *	refs.c      refcounts: get, set, find free clusters, write
 *
 * Field tags: [c] constant once open, [m] under @lock, [a] atomic, [w] the
 * metadata thread only (before it starts and after it has ended: whoever opens
 * or closes).
 */

#define SLICE_ENTRIES_MAX 512u
#define SLICES_CAP        (64u << 20) /* bytes of L2 kept in memory */

#define L1_BAD            (1ull << 1) /* in memory, a bit that is reserved: points where it must not; -EIO */

/* A part of an L2 table. */
struct slice {
	_Atomic uint64_t tag; /* [a] guest slice number + 1; 0: being taken for another */
	atomic_bool hot;      /* [a] looked at since the clock's hand passed */
	unsigned pins;        /* [m] not to be taken: new clusters on their way to it, or being written back */
	bool dirty;           /* [m] on the list */
	struct slice *next;   /* [m] dirty */
	uint64_t busy[SLICE_ENTRIES_MAX / 64]; /* [m] its new cluster is being written; meanwhile the old one is read */
	_Atomic uint64_t bad[SLICE_ENTRIES_MAX / 64]; /* [a] points where it must not; -EIO */
	_Atomic uint64_t entry[];                     /* [a] as on the disk */
};

/* The slices of one L2 table; NULL: not in memory. */
struct table {
	_Atomic(struct slice *) slice[1];
};

/* Clusters to allocate from; their refcounts are 1 in memory already. */
struct arena {
	uint64_t host, n; /* byte offset, clusters left */
	bool fresh;       /* never written: reads as zeroes */
};

/* Host clusters that the L2 tables do not name any more. */
struct unlinked {
	uint64_t host, len; /* len: bytes; of compressed data not whole clusters */
	bool punch;         /* its space may go back to the file system */
	bool table;         /* it was an L2 table */
};
struct unlinked_list {
	struct unlinked *item;
	size_t n, cap;
};

struct qcow2_queue;
struct request;
struct alloc;
struct load;
struct inflater;

/* Something that ends on another loop, or is told to it. */
struct post {
	void (*cb)(struct post *p);
	struct qcow2_queue *queue;
	struct post *next;
};

struct qcow2 {
	struct blk blk;
	struct blk *file;      /* [c] */
	struct blk *backing;   /* [c] or NULL */
	struct qcow2_header h; /* [c] but for reftable_* and autoclear, which are [w] */
	bool discards;         /* [c] discards reach the file */
	uint64_t cluster_size; /* [c] */
	unsigned cluster_bits; /* [c] */
	unsigned slice_bits;   /* [c] log2 of the entries of a slice */
	unsigned table_bits;   /* [c] log2 of the slices of an L2 table */
	uint64_t backing_size; /* [c] bytes that come from below where nothing is allocated */

	pthread_mutex_t lock;
	struct qcow2_queue *queues; /* [m] */

	/* The map. */
	_Atomic uint64_t *l1;           /* [a] as on the disk, or L1_BAD; changed by [w] */
	_Atomic(struct table *) *table; /* [a] */
	struct slice **slices;          /* [m] all of them */
	unsigned slices_max;            /* [c] more only while all are in use or dirty */
	unsigned nslices, hand;         /* [m] */
	struct slice *dirty;            /* [m] */
	unsigned ndirty;                /* [m] */
	struct load *loads;             /* [m] slices on their way */
	struct clusterset metadata;     /* [m] where guest data must not be */
	_Atomic uint64_t host_end;      /* [a] bytes: entries point below it. Never goes back */

	/* Allocation. */
	struct arena arena, spare; /* [m] */
	struct alloc *allocs;      /* [m] in flight */
	struct unlinked_list gone; /* [m] since the last commit */
	bool ordered;              /* [m] some data must be durable before the entries that name it */
	uint64_t lost;             /* [m] clusters leaked for want of memory */

	/* The metadata thread. */
	pthread_cond_t more;
	pthread_t thread;
	bool running, quit, refill, overfull;         /* [m] */
	bool unsure;                                  /* [w] of tools: the header may name old tables or new ones */
	bool failed;                                  /* [m] the last commit did */
	bool committing;                              /* [m] between taking what is dirty and its being durable */
	atomic_bool needs_activation;                 /* [a] nothing may be written before the header has been */
	struct request *to_prepare, **to_prepare_end; /* [m] */
	struct request *to_commit, **to_commit_end;   /* [m] */
	uint64_t dirty_since;                         /* [m] ns; 0: clean */
	struct waitio io;                             /* [w] */
	struct qcow2_refs refs;                       /* [w] */
	uint64_t *l1_dirty;                           /* [w] indices of entries that are not in the file yet */
	size_t nl1_dirty;                             /* [w] */
	struct unlinked_list
	        limbo[2];        /* [w] durably unlinked: [0] until older requests have ended, [1] not yet asked */
	uint64_t arena_clusters; /* [w] of the next arena */
	uint64_t first_end;      /* [c] bytes: the file's length when it was opened */
	atomic_uint phase;       /* [a] requests count themselves in the queue's active[phase & 1] */

	struct inflater *inflater; /* [c] made when first needed, under the lock */
};

static inline struct qcow2 *qcow2_of(struct blk *b)
{
	return (struct qcow2 *)b;
}

/* open.c */
int qcow2_open(struct blk *file, const struct blk_options *opt, struct blk **out, struct err *err);
/* For tools: as it is, also if it is marked dirty or corrupt, and without the image below. Not for reading data. */
int qcow2_open_as_is(struct blk *file, const struct blk_options *opt, struct blk **out, struct err *err);
struct qcow2 *qcow2_image(struct blk *b); /* NULL: @b is none */

/* backing.c: opens what @im->h names; leaves backing NULL where there is none. */
int qcow2_backing_open(struct qcow2 *im, const struct blk_options *opt, struct err *err);

/* map.c */

enum extent_kind {
	EXTENT_MISS, /* not in memory */
	EXTENT_BAD,
	EXTENT_HOLE, /* not allocated */
	EXTENT_ZERO,
	EXTENT_DATA,
	EXTENT_COMPRESSED, /* one cluster, or a part of it */
};

struct extent {
	enum extent_kind kind;
	bool in_place; /* data: may be overwritten */
	uint64_t host; /* data: byte offset; compressed: the entry */
	uint64_t len;
};

static inline uint64_t cluster_of(const struct qcow2 *im, uint64_t off)
{
	return off >> im->cluster_bits;
}

static inline uint64_t in_cluster(const struct qcow2 *im, uint64_t off)
{
	return off & (im->cluster_size - 1);
}

static inline unsigned slice_entries(const struct qcow2 *im)
{
	return 1u << im->slice_bits;
}

static inline uint64_t slice_of(const struct qcow2 *im, uint64_t off)
{
	return cluster_of(im, off) >> im->slice_bits;
}

static inline unsigned entry_of(const struct qcow2 *im, uint64_t off)
{
	return (unsigned)(cluster_of(im, off) & (slice_entries(im) - 1));
}

static inline uint64_t l1_index(const struct qcow2 *im, uint64_t off)
{
	return slice_of(im, off) >> im->table_bits;
}

/* What an entry says, and entry @i of @s, which may also be bad. */
enum extent_kind qcow2_entry_kind(uint64_t e);
enum extent_kind slice_kind(const struct slice *s, unsigned i);

static inline uint64_t slice_entry(const struct slice *s, unsigned i)
{
	return atomic_load_explicit(&s->entry[i], memory_order_acquire);
}

static inline bool slice_busy(const struct slice *s, unsigned i)
{
	return s->busy[i / 64] >> i % 64 & 1;
}

/* The longest extent at @off, up to @max bytes, that one child can serve. Any thread, no lock. */
struct extent qcow2_map_extent(struct qcow2 *im, uint64_t off, uint64_t max);

/* Under the lock: the slice with @off, if it is in memory. */
struct slice *qcow2_map_slice(struct qcow2 *im, uint64_t off);

/* Parks @x until the slice with @off is in memory; or ends it with an error. */
void qcow2_map_load(struct request *x, uint64_t off);

/* Under the lock: @s has been changed. */
void qcow2_map_dirty(struct qcow2 *im, struct slice *s);

/* Under the lock: host cluster @c has become metadata; no entry in memory may point to it any more. */
void qcow2_map_ban(struct qcow2 *im, uint64_t c);

/* The bytes of compressed data that @entry tells: where and how many, in whole sectors. */
void qcow2_compressed_range(const struct qcow2 *im, uint64_t entry, uint64_t *host, uint64_t *len);

void qcow2_map_free(struct qcow2 *im);

/* inflate.c: reads @len bytes at @from of a compressed cluster, at @at of the request. */
void qcow2_inflate(struct request *x, uint64_t entry, uint64_t from, uint64_t at, uint64_t len);
void qcow2_inflater_free(struct inflater *f); /* nothing is in flight. NULL is fine */

/* deflated.c: what @type needs is there; before the first cluster is inflated. */
int qcow2_compression_load(enum qcow2_compression type, struct err *err);
/* One cluster: @in is what the entry tells. 0, -EIO or -ENOMEM. Any thread. */
int qcow2_inflate_cluster(enum qcow2_compression type, const void *in, size_t len, void *out, size_t size);
/* The other way: bytes of @out, or 0: it does not get smaller. Both of @size bytes. */
size_t qcow2_deflate_cluster(enum qcow2_compression type, const void *in, void *out, size_t size);

/* worker.c: parks @x, of which the thread makes @x->off + @x->pos writable; or until all that is finished is durable.
 */
void qcow2_prepare(struct request *x);
void qcow2_commit(struct request *x);
bool qcow2_is_dirty(struct qcow2 *im);    /* under the lock: would a flush have metadata to write? */
void qcow2_wake_worker(struct qcow2 *im); /* under the lock */
int qcow2_worker_stop(struct qcow2 *im);  /* no queues: writes everything back, as clean as can be */

/* commit.c, on the metadata thread. */
int qcow2_commit_now(struct qcow2 *im);
void qcow2_reap(struct qcow2 *im); /* frees what no request can use any more */
/* A cluster that was free becomes metadata. @before: where host_end was before the cluster was taken. */
int qcow2_metadata_add(struct qcow2 *im, uint64_t cluster, uint64_t before);
void qcow2_metadata_del(struct qcow2 *im, uint64_t cluster);

/* Under the lock, also from elsewhere: @u has lost one reference, which the next commit makes durable. */
void qcow2_unlink(struct qcow2 *im, struct unlinked u);
/* The same for what entry @e names. */
void qcow2_unlink_entry(struct qcow2 *im, uint64_t e, bool punch);

#endif
