/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef TESTS_BLKFIX_H
#define TESTS_BLKFIX_H

#include "block/block.h"

#include <stdbool.h>
#include <stdint.h>

/* Images for unit tests: files that go away by themselves, and requests that are waited for. Misuse aborts. */

#define BLKFIX_PATH 64

/* A sparse file of @size bytes, filled with pattern(@seed) if that is not 0. Ends with blkfix_rm(). */
void blkfix_make(char path[BLKFIX_PATH], uint64_t size, unsigned seed);
void blkfix_rm(const char *path);

/* Pseudo-random bytes that depend on @seed and the place @off. */
void blkfix_fill(uint8_t *buf, size_t n, uint64_t off, unsigned seed);
bool blkfix_is(const uint8_t *buf, size_t n, uint64_t off, unsigned seed);

/* Bytes of the file itself. */
void blkfix_pread(const char *path, void *buf, size_t n, uint64_t off);
uint64_t blkfix_length(const char *path);
uint64_t blkfix_allocated(const char *path); /* bytes */

/* Opens; aborts with the error's text if that fails. */
struct blk *blkfix_open(const char *path, const struct blk_options *opt);

/* An image with a queue on a loop. */
struct blkfix {
	char path[BLKFIX_PATH];
	struct loop *loop;
	struct blk *b;
	struct blk_queue *q;
};

enum blkfix_loop { BLKFIX_POLL, BLKFIX_RING }; /* requests by the thread pool, or by io_uring */

/* The file @f->path. */
void blkfix_start(struct blkfix *f, const struct blk_options *opt, enum blkfix_loop kind);
void blkfix_stop(struct blkfix *f); /* the file stays */
bool blkfix_has_ring(void);         /* does this host have io_uring for us? */

/* Runs the queue's loop until the request is done; its error. */
int blkfix_io(struct blk_queue *q, enum blk_op op, unsigned flags, uint64_t off, void *buf, uint64_t len);
int blkfix_iov(struct blk_queue *q, enum blk_op op, uint64_t off, const struct iovec *iov, unsigned niov);
/* Runs @loop until nothing is in flight in @q. */
void blkfix_drain(struct blk_queue *q, struct loop *loop);

#endif
