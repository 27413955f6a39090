/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef TESTS_FAKEBLK_H
#define TESTS_FAKEBLK_H

#include "block/block_impl.h"

/*
 * An image in plain memory, for tests of what stands on images: it can keep
 * requests until told to go on, fail them, and remembers what it was asked. One
 * loop only.
 */
#define FAKEBLK_LOG 64

struct fakeblk {
	struct blk blk;
	uint8_t *mem;
	bool hold; /* requests wait for fakeblk_release() */
	bool late; /* they are done in a later turn of the loop */
	struct loop_task task;
	int error;            /* what all end in, undone */
	uint64_t bad, nbad;   /* so many bytes from there on: requests that touch them end in -EIO, undone */
	struct blk_req *held; /* last in, first out */
	unsigned nheld;
	struct {
		enum blk_op op;
		unsigned flags;
		uint64_t off, len;
	} log[FAKEBLK_LOG]; /* the first ones since nlog was 0 */
	unsigned nlog;
};

/* Filled with zeroes, writeback, discards and zeroes, granule 1. */
void fakeblk_init(struct fakeblk *f, uint64_t size);
void fakeblk_exit(struct fakeblk *f);    /* instead of blk_close() */
void fakeblk_release(struct fakeblk *f); /* everything held is done, the last first */

#endif
