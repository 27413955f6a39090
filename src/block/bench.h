/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BLOCK_BENCH_H
#define BLOCK_BENCH_H

#include "block/block.h"

/* A closed loop of requests to an image, as a device would make them, for `kvm disk bench`. */

#define BENCH_MAX_QUEUES 16u
#define BENCH_MAX_DEPTH  1024u

struct bench {
	unsigned queues, depth;  /* loops with a thread each; requests in flight in each */
	uint64_t count;          /* requests in all */
	uint64_t size;           /* bytes of each */
	uint64_t off, step;      /* bytes: of the first, and from one to the next; behind the end it starts anew at 0 */
	bool write, random;      /* random: anywhere between off and the end, in multiples of step from off */
	uint64_t flush_interval; /* writes in a queue, after which it waits for all and flushes; 0: never */
};

struct bench_result {
	uint64_t ns;      /* from the first request to the last's end */
	uint64_t cpu_ns;  /* of all threads, the kernel's for us included, in that time */
	uint64_t flushes; /* which are not counted as requests */
};

/*
 * Does it, and blocks. @image has no queues. The first error ends it: -EINVAL
 * where @b does not fit the image, -ENOMEM, or what a request ended in; the
 * text names the image.
 */
int bench_run(struct blk *image, const struct bench *b, struct bench_result *out, struct err *err);

#endif
