/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BLOCK_ENGINE_H
#define BLOCK_ENGINE_H

#include "block/block.h"

/*
 * The only place that does I/O on images. A job is one operation on a file
 * descriptor, carried to its end: short transfers are continued, interrupted
 * and refused-for-now ones repeated. How it runs depends on job and queue: by
 * a plain system call where that is soon over or blocking is fine, through the
 * loop's ring, or on a thread of the engine's pool.
 */
struct engine; /* of one image: its threads */
struct engine_queue;

enum job_kind {
	JOB_READ,     /* to iov, at off, left bytes; ended early by the end of the file: left tells how much */
	JOB_WRITE,    /* likewise from iov */
	JOB_ZERO,     /* writes zeroes */
	JOB_ALLOCATE, /* fallocate(2): mode, off, left */
	JOB_SYNC,     /* fdatasync(2) */
};

#define JOB_CUT    1u /* the first transfer is half of what was asked (fault injection) */
#define JOB_CACHED 2u /* @fd goes through the page cache */
#define JOB_MEMORY 4u /* @fd is on a file system that has no disk below it */

int engine_new(struct engine **out, struct err *err);
void engine_free(struct engine *e); /* NULL is fine; no queues */

int engine_queue_open(struct engine *e, struct blk_queue *q, struct engine_queue **out, struct err *err);
void engine_queue_close(struct engine_queue *q); /* no jobs. NULL is fine */

struct blk_queue *engine_queue_blk(const struct engine_queue *q);

/*
 * Starts @j: kind, fd, and what the kind needs are set. j->done(j, 0 or -errno)
 * is called on the queue's loop, where that was quick even before this returns. j->off and j->left have moved on by
 * what was transferred, and the iov array is garbage.
 */
void engine_start(struct engine_queue *q, struct blk_job *j);

#endif
