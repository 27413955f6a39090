/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BLOCK_BLOCK_H
#define BLOCK_BLOCK_H

#include "base/err.h"
#include "base/loop.h"
#include "base/workers.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

/*
 * Disk images, as their users see them. A struct blk is an open image; it may
 * stand on others (a QCOW2 image on its file, a copy-on-write disk on an image
 * that is only read). A struct blk_queue is its end on one loop: what is
 * submitted there finishes there, on that loop, later, and exactly once.
 *
 * Threads: a blk is opened and closed on any thread, while it has no queues.
 * Everything about a queue and its requests happens on the queue's loop. One
 * blk may have many queues, on many loops or on one.
 *
 * Order: requests run in any order, also those of one queue; where two overlap
 * and one of them writes, the caller waits for the first. BLK_FLUSH makes
 * durable what was finished (its done() called) before the flush was submitted,
 * through any queue of the blk; nothing else.
 */
struct blk;
struct blk_queue;
struct blk_req;
struct engine_queue;

/* Opening. */

enum blk_format {
	BLK_GUESS, /* by the magic; without one it is raw, and may not be made to look like another (-EIO) */
	BLK_RAW,
	BLK_QCOW2,
};

enum blk_cache {
	BLK_WRITEBACK,    /* the host's page cache; durable after a flush */
	BLK_WRITETHROUGH, /* the same; a write is durable when it is done */
	BLK_DIRECT,       /* past the page cache (O_DIRECT); durable after a flush. cache=none */
	BLK_UNSAFE,       /* a flush does nothing: the image is lost if the host goes down */
};

struct blk_options {
	enum blk_format format;
	enum blk_cache cache;
	bool read_only;
	bool no_discard;   /* nothing is given back to the host: no BLK_DISCARD, and BLK_MAY_UNMAP counts for nothing */
	bool cow;          /* writes stay in memory and are lost at blk_close(); the image is only read */
	const char *fault; /* faults to inject (block/fault.h), or NULL */
};

/*
 * Opens the image file or block device @path, and locks it against other
 * programs as QEMU's tools do: any number may read, or one may write. The text
 * of an error names the file, and who holds it where that can be found out.
 */
int blk_open(const char *path, const struct blk_options *opt, struct blk **out, struct err *err);

/* Every queue is closed. NULL is fine. What was not flushed may or may not be there later. */
void blk_close(struct blk *b);

/* What an image is like. Constant, but for the size. */
struct blk_info {
	const char *format; /* "raw" */
	bool read_only;     /* writes, discards and zeroes end in -EROFS */
	bool writeback;     /* false: a write is durable when it is done, as far as it ever will be */
	bool can_discard;   /* else BLK_DISCARD ends in -EOPNOTSUPP */
	bool can_zero;      /* BLK_WRITE_ZEROES costs less than writing zeroes */
	uint32_t granule;   /* offsets and lengths of requests are multiples of it: 1 or 512, else -EINVAL */
	uint32_t block;     /* bytes that the host's device writes at once: 512 or 4096, for the guest to know */
	uint32_t align;     /* offsets, lengths: multiples of it do without a copy. Not less than granule */
	uint32_t mem_align; /* likewise the address and length of each piece of memory */
};

const struct blk_info *blk_info(const struct blk *b);
const char *blk_name(const struct blk *b); /* its path, for messages */

/*
 * Bytes. A raw file whose length is no multiple of 512 counts as rounded up:
 * what lies past its end reads as zeroes, and only zeroes can be written there
 * (-ENOSPC). A raw file never grows. Any thread.
 */
uint64_t blk_size(const struct blk *b);

/* Called, on the thread that did it, after the size has changed; not any more after blk_unlisten(). Any thread. */
struct blk_listener {
	void (*resized)(struct blk_listener *l);
	struct blk_listener *next;
};
void blk_listen(struct blk *b, struct blk_listener *l);
void blk_unlisten(struct blk *b, struct blk_listener *l);

/* Requests. */

enum blk_op { BLK_READ, BLK_WRITE, BLK_FLUSH, BLK_DISCARD, BLK_WRITE_ZEROES };

#define BLK_MAY_UNMAP 1u /* BLK_WRITE_ZEROES: may leave a hole */
#define BLK_FUA       2u /* BLK_WRITE, _ZEROES: durable when done */

#define BLK_MAX_IOV   1024

/* What an engine or a layer keeps in a request on its way: theirs alone. */
struct blk_job {
	int kind, fd, mode, error;
	unsigned niov, flags;
	uint64_t off, left;
	struct iovec *iov, one;
	struct engine_queue *owner;
	void (*done)(struct blk_job *j, int error);
	struct blk_job *next;
	struct loop_io io;
	struct work work;
};

/* The caller's memory, from before blk_submit() until done() is called, which may submit it again or free it. */
struct blk_req {
	/* [caller] constant on its way; of a flush only op and done matter */
	enum blk_op op;
	unsigned flags;
	uint64_t off, len;
	struct iovec
	        *iov;  /* reads and writes: len bytes in all. The array is the blk's until done() and is garbage then */
	unsigned niov; /* at most BLK_MAX_IOV */
	void (*done)(struct blk_req *r, int error); /* 0 or -errno; after an error any part may have been done */

	/* [blk] */
	struct blk_queue *queue;
	struct blk_req *next;
	int error;
	unsigned stage;
	void *priv;
	struct blk_job job;
};

/*
 * A queue on @loop, whose thread calls this, or which does not run yet. A loop
 * with a ring (loop_new_ring()) submits through it; on another loop the image's
 * thread pool does the work.
 */
int blk_queue_open(struct blk *b, struct loop *loop, struct blk_queue **out, struct err *err);
void blk_queue_close(struct blk_queue *q); /* nothing is in flight. NULL is fine */

/*
 * Starts @r; submit as many as there are, they go out together when the loop
 * goes to sleep at the latest. done() is never called from inside. Errors: -EIO
 * and whatever the host says; -EINVAL, not within [0, size) or not in granules;
 * -EROFS; -ENOSPC; -EOPNOTSUPP. After a failed flush no later one succeeds
 * until the image is opened anew: what was written before may be lost.
 */
void blk_submit(struct blk_queue *q, struct blk_req *r);

/* Requests submitted, done() not yet called. */
unsigned blk_queue_inflight(const struct blk_queue *q);

/*
 * Calls @idle once, later, on the loop, when nothing is in flight. For a reset
 * or a pause: stop submitting, then wait for it. One at a time; NULL: never mind.
 */
void blk_queue_when_idle(struct blk_queue *q, void (*idle)(void *arg), void *arg);

/*
 * One request, blocking, without a queue: for opening, closing and tools, where
 * no loop waits. @buf is not used by flushes, discards and zeroes. Any thread.
 */
int blk_do(struct blk *b, enum blk_op op, unsigned flags, uint64_t off, void *buf, uint64_t len);

#endif
