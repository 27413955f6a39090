/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BLOCK_MERGE_H
#define BLOCK_MERGE_H

#include "block/block.h"

/*
 * Makes one request for the image of those that follow each other: reads or
 * writes with the same flags, each of which begins where the one before it
 * ends. For a device that takes several requests at a time; on its queue's loop.
 * If the one fails, its parts are tried again one by one, and each is told its own end.
 */
struct blk_merge;

/* Most bytes and pieces of memory of what is made. */
#define BLK_MERGE_LEN (1u << 20)
#define BLK_MERGE_IOV 256

struct blk_merge *blk_merge_new(void);    /* NULL: no memory */
void blk_merge_free(struct blk_merge *m); /* nothing added is in flight. NULL is fine */

/*
 * As blk_submit(), of a read or a write; but it may wait for what comes next,
 * until blk_merge_end(). It counts as in flight in @q only after that. All that is added at a
 * time is for the same @q.
 */
void blk_merge_add(struct blk_merge *m, struct blk_queue *q, struct blk_req *r);

/* There is no more to come for now: what waits is submitted. */
void blk_merge_end(struct blk_merge *m);

/* More may come soon, in the same turn of the loop: a request that waits alone is submitted, several wait on. */
void blk_merge_soon(struct blk_merge *m);

#endif
