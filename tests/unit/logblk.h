/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef TESTS_LOGBLK_H
#define TESTS_LOGBLK_H

#include "block/block_impl.h"

/*
 * A growing file in memory, for tests of image formats: any number of queues on
 * any loops, requests end in another turn than the one they began in, and not
 * in order. It can keep a log of what changed it and of flushes, from which the
 * states that a crash may leave are made; and it can be full, fail, or have
 * mishaps: a request ends in an error, and was done all the same, or half, or
 * not at all.
 */

#define LOGBLK_MAX (1ull << 30) /* bytes; past it -EFBIG */

enum logblk_kind { LOG_WRITE, LOG_LENGTH, LOG_FLUSH };

struct logblk_entry {
	enum logblk_kind kind;
	uint64_t off, len; /* LOG_LENGTH: len is the new one */
	uint8_t *data;     /* NULL: zeroes */
	bool fua;          /* durable when it has ended */
	size_t ended;      /* entries there were when it had ended; SIZE_MAX: it has not */
};

struct logblk {
	struct blk blk;
	uint8_t *mem;     /* LOGBLK_MAX bytes of address space */
	bool keep;        /* the log */
	atomic_bool full; /* writes and growth past @room end in -ENOSPC */
	uint64_t room;
	_Atomic int fail;        /* the error of all writes and flushes, undone; 0: none */
	atomic_uint mishaps;     /* so many of 1000 requests have one */
	_Atomic uint64_t bad_at; /* with @bad_len: writes there are done and end in -EIO */
	_Atomic uint64_t bad_len;
	atomic_bool late; /* requests end some turns later, each in its own time */
	pthread_mutex_t lock;
	/* under the lock */
	struct logblk_entry *log;
	size_t nlog;
	unsigned flushes, writes;
	unsigned rng;
};

struct logblk *logblk_new(const char *name);                       /* empty; ends with blk_close(), or its owner's */
void logblk_set(struct logblk *l, const void *data, uint64_t len); /* contents; the log is empty afterwards */
void logblk_clear_log(struct logblk *l);

/* The same contents in another one: what blk_close() of an image on @l takes away with it. */
struct logblk *logblk_copy(struct logblk *l);

/* Between files of the host; abort on errors. */
void logblk_save(const struct logblk *l, const char *path);
struct logblk *logblk_load(const char *path);

/*
 * Makes @to the file as a crash before entry @at may leave it: all that had
 * ended before the last flush which had ended began, and of the rest, sector by
 * sector, what @rng chooses. Returns the index of that flush, or 0.
 */
size_t logblk_crash(const struct logblk *l, size_t at, unsigned *rng, struct logblk *to);

unsigned rnd(unsigned *rng); /* pseudo-random, 32 bits */

#endif
