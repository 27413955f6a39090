/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BLOCK_FAULT_H
#define BLOCK_FAULT_H

#include "block/engine.h"

/*
 * Faults to order, between an image and the engine: what a host's disk does to
 * us on a bad day. A specification is a list of KIND@N[+][:OP][=MS] with commas:
 *
 *   KIND   eio, enospc   the operation fails and does nothing
 *          short         its first transfer is cut short; it goes on after that
 *          slow          it begins MS milliseconds late (5)
 *   N      which one it happens to, counted from 1; with + all from there on
 *   OP     only operations of this kind count: read, write, flush (all)
 *
 * Only what comes through the queues of a loop counts, not what opening and
 * closing do. A device makes one operation of requests that follow each other
 * (block/merge.h) and tries them apart if that fails: a fault that happens once
 * may then be none for the guest.
 *
 * "eio@3:flush,slow@1+:write=20": the third fdatasync fails, and every write is
 * late by 20 ms. Zeroes and discards are writes. Flushes are counted below
 * their grouping: these are the host's, not the guest's.
 */
struct fault;

/* 0, or -EINVAL with a text. */
int fault_new(const char *spec, struct fault **out, struct err *err);
void fault_free(struct fault *f); /* NULL is fine */

/* engine_start(), or what was ordered instead; not on a queue that blocks. */
void fault_start(struct fault *f, struct engine_queue *q, struct blk_job *j);

#endif
