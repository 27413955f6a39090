/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef VIRTIO_VIRTQ_H
#define VIRTIO_VIRTQ_H

#include "bus/gmem.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/*
 * Virtqueues, split and packed (virtio 1.2, 2.7 and 2.8), as a device uses
 * them. This is the only file that reads or writes a ring and the only one
 * with memory barriers against the guest. Each descriptor is read once, then
 * checked: order (readable before writable), bounds, loops, indirection, total
 * length. A device sees a chain: two lists of host memory.
 *
 * Everything here runs on the queue's home loop.
 */

#define VIRTQ_MAX_SIZE 1024 /* entries of a ring, also the longest chain */

struct virtq_config {
	uint16_t size;                 /* entries: 1 to VIRTQ_MAX_SIZE, for split rings a power of two */
	uint64_t desc, driver, device; /* guest-physical addresses of the three areas */
	bool packed;                   /* VIRTIO_F_RING_PACKED */
	bool event_idx;                /* VIRTIO_F_EVENT_IDX */
	bool indirect;                 /* VIRTIO_F_INDIRECT_DESC */
};

struct virtq; /* allocated by virtq_new(); a few hundred bytes */

/* Where a cursor is: virtq.c's own. */
struct chain_at {
	unsigned piece; /* of its kind */
	size_t off;
};

/* A request of the driver. The memory is the guest's: it may change at any time. */
struct chain {
	uint16_t id;              /* buffer id, below the ring's size; no two chains in flight share one */
	uint16_t ndesc;           /* ring entries it occupies: descriptors if packed, else 1 (of the avail ring) */
	unsigned nout, nin;       /* pieces: iov[0 … nout) to read, iov[nout … nout + nin) to write; maybe none */
	struct iovec *iov;        /* the device's, given to virtq_pop() */
	uint64_t out_len, in_len; /* bytes of either kind */
	uint64_t out_pos, in_pos; /* cursors of chain_get() and chain_put(): how many of them are done */
	struct chain_at out_at, in_at;
};

/*
 * Checks size and alignment (-EINVAL) and that the areas lie in @mem (-EFAULT),
 * which outlives the queue, and begins at the rings' start, kicks wanted. -ENOMEM.
 */
int virtq_new(const struct gmem *mem, const struct virtq_config *cfg, struct virtq **out);
void virtq_free(struct virtq *q); /* NULL is fine */

/*
 * Takes the next chain: 1, or 0 when there is none, or -EINVAL when the driver
 * did something impossible: the queue is then broken, this and every later
 * call returns -EINVAL and virtq_why() tells. @iov and @max_iov are the
 * caller's; a chain with more pieces is such an error. After an error @c and
 * @iov hold garbage.
 */
int virtq_pop(struct virtq *q, struct chain *c, struct iovec *iov, unsigned max_iov);
const char *virtq_why(const struct virtq *q); /* a phrase for "the driver's fault: …"; NULL: not broken */

/* Copies at most @n bytes at the cursor and moves it; returns how many. */
size_t chain_get(struct chain *c, void *buf, size_t n);       /* driver → device */
size_t chain_put(struct chain *c, const void *buf, size_t n); /* device → driver */

/*
 * Gives a chain back, the first @written bytes (at most in_len) of its writable
 * part filled. In any order. Seen by the driver at virtq_flush(). Of @c only
 * id, ndesc and in_len matter.
 */
void virtq_push(struct virtq *q, const struct chain *c, uint32_t written);

/*
 * Puts back the chain that was popped last, and then the one before it, and so
 * on; others may have been pushed meanwhile. It is popped, read and checked
 * again. virtq_rearm() does not count it as news.
 */
void virtq_unpop(struct virtq *q, const struct chain *c);

/* Chains pushed since the last flush. */
unsigned virtq_answers(const struct virtq *q);

/* Publishes what was pushed; true: the driver wants an interrupt for it. */
bool virtq_flush(struct virtq *q);

/*
 * Asks the driver not to kick, and to kick at the next chain that was never
 * popped. virtq_rearm() returns true when such a chain is there already and no
 * kick may come: go on popping. Thus: do { disarm, pop all } while (rearm). Not
 * more than a hint to the driver: kicks may come at any time.
 */
void virtq_disarm(struct virtq *q);
bool virtq_rearm(struct virtq *q);

/* Is there a chain that was never popped? A look, which promises no kick. */
bool virtq_unseen(struct virtq *q);

/* Chains popped and not yet pushed. */
unsigned virtq_inflight(const struct virtq *q);

#endif
