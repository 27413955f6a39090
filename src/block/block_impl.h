/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BLOCK_BLOCK_IMPL_H
#define BLOCK_BLOCK_IMPL_H

#include "block/block.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

/*
 * For the authors of layers. A layer is a constant table of functions, a struct
 * that begins with struct blk, and for each queue what it likes to keep there.
 * It does I/O by submitting requests of its own to queues of the blks below it,
 * which it opens with blk_queue_below() on the same loop.
 *
 * The core (block.c) counts what is in flight, checks range, granule and
 * permission before submit() sees a request, and calls done(). So a layer never
 * calls done() itself: it says blk_req_end(), also from inside submit().
 */

struct blk_ops {
	const char *format;
	/* Each queue: may set q->priv; opens its queues below. 0 or -errno. May be NULL. */
	int (*queue_open)(struct blk_queue *q, struct err *err);
	void (*queue_close)(struct blk_queue *q); /* nothing is in flight; may be NULL */
	/*
	 * On the queue's loop: sees to it that blk_req_end() is called once. Does
	 * not block. priv, stage, error, next and job of @r are the layer's.
	 */
	void (*submit)(struct blk_queue *q, struct blk_req *r);
	/* The bytes of a blk that blk_truncate() is asked for; NULL: -EOPNOTSUPP. Any thread. */
	int (*truncate)(struct blk *b, uint64_t size);
	/* No queue is left: writes back what is to be written back (blk_do()), closes what is below, frees @b. */
	void (*close)(struct blk *b);
};

struct blk {
	const struct blk_ops *ops; /* [c] */
	char *name;                /* [c] owned; freed by blk_exit() */
	struct blk_info info;      /* [c] */
	bool grows;                /* [c] requests past the end are let through */
	_Atomic uint64_t size;     /* [a] the layer's; bytes */
	atomic_uint nqueues;       /* [a] */
	pthread_mutex_t lock;
	struct blk_listener *listeners; /* [m] */
};

struct blk_queue {
	struct blk *blk;   /* [c] */
	struct loop *loop; /* [c] */
	bool blocks;       /* [c] of blk_do(): nobody minds if submit() blocks */
	void *priv;        /* [c] the layer's */

	/* [l] */
	unsigned inflight;
	struct blk_req *ended, **ended_end; /* done() is due at the end of this turn */
	struct loop_later later;
	void (*idle)(void *arg);
	void *idle_arg;

	/* [m] under the lock: ended by other threads */
	pthread_mutex_t lock;
	struct blk_req *posted, **posted_end;
	struct loop_task task;
};

/* Fills in @b, but for info (zeroes, granule 1, block 512, align 1) and size. 0 or -ENOMEM. */
int blk_init(struct blk *b, const struct blk_ops *ops, const char *name, struct err *err);
void blk_exit(struct blk *b); /* the end of close(): before the layer frees the struct around it */

/* The request is finished: done() is called soon. On the queue's loop, then from any thread. */
void blk_req_end(struct blk_req *r, int error);
void blk_req_post(struct blk_req *r, int error);

/* A queue of @below for the layer that has @q: same loop, same manners. */
int blk_queue_below(struct blk_queue *q, struct blk *below, struct blk_queue **out, struct err *err);

/* The layer's size has changed: tells the listeners. */
void blk_resized(struct blk *b, uint64_t size);

/* Makes a blk that grows shorter or longer; what is new reads as zeroes. Blocking; 0 or -errno. */
int blk_truncate(struct blk *b, uint64_t size);

/*
 * The file or block device itself, for formats to stand on: bytes as they are,
 * locked. Of @opt format and cow do not matter here. Formats open their data
 * file with it and, read-only, raw backing files.
 */
int blk_file_open(const char *path, const struct blk_options *opt, struct blk **out, struct err *err);

enum blk_file_use {
	BLK_FILE_FIXED,   /* what it is at first: a length rounded up to 512 bytes, which stays */
	BLK_FILE_GUARDED, /* the same; a write that would put an image's magic at its beginning ends in -EIO */
	BLK_FILE_GROWS,   /* exact length; a write past the end makes it longer, a read there gives zeroes */
};
/* Before there are queues. Reads the first 512 bytes for BLK_FILE_GUARDED. */
int blk_file_use(struct blk *file, enum blk_file_use use, struct err *err);

/* Copy-on-write in memory above @below, which is owned by *@out if that is made. */
int blk_cow_open(struct blk *below, struct blk **out, struct err *err);

/* The image formats that there are, or will be; ends with a NULL name. */
struct blk_format_entry {
	const char *name;
	enum blk_format format; /* what -d format= calls it; BLK_GUESS: cannot be asked for */
	unsigned at;            /* of the magic, within the first 512 bytes */
	const char *magic;
	unsigned magic_len;
	/*
	 * Makes the format's blk on @file, which grows unless read-only. It is
	 * owned by *@out if that is made. NULL: not built in.
	 */
	int (*open)(struct blk *file, const struct blk_options *opt, struct blk **out, struct err *err);
};
extern const struct blk_format_entry blk_formats[];

/* The format that the first @n bytes of a file show, or NULL: raw. */
const struct blk_format_entry *blk_probe(const uint8_t *head, size_t n);

#endif
