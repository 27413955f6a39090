/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BLOCK_QCOW2_IO_H
#define BLOCK_QCOW2_IO_H

#include "block/qcow2/qcow2.h"

/* Requests on their way; home loop only, unless it says otherwise. */

/* A queue's own. */
struct qcow2_queue {
	struct qcow2 *im;    /* [c] */
	struct blk_queue *q; /* [c] */
	struct blk_queue *file, *backing;
	struct qcow2_queue *below; /* [c] that of @backing, if it is QCOW2 too */
	struct request *requests;  /* not in use */
	struct child *children;    /* not in use */
	struct buffer *buffers;    /* not in use, of a cluster each */
	unsigned nbuffers;
	atomic_uint active[2]; /* [a] requests by the phase in which they began */
	pthread_mutex_t lock;
	struct post *posted, **posted_end; /* under the lock */
	struct loop_task task;
	struct qcow2_queue *next; /* [m] the image's */
};

/*
 * A request: the guest's, or one of our own (to fill a new cluster). @pos bytes
 * have been started; it has ended when all are and no child is left. While it is
 * parked it counts as a child of its own.
 */
struct request {
	struct qcow2_queue *queue;
	enum blk_op op;
	unsigned flags;
	uint64_t off, len, pos;
	struct iovec *iov;
	unsigned niov;
	unsigned pending;
	unsigned phase;
	int error;
	int woken_error;                   /* set by whoever wakes it */
	void (*finish)(struct request *x); /* x->error is set; then x is gone */
	void *owner;
	struct post post;     /* wakes it */
	struct request *next; /* on one list */
};

/* A request to a blk below. */
struct child {
	struct blk_req req;
	struct request *x;
	void (*done)(struct child *c, int error);
	void *owner;
	unsigned cap;
	struct iovec *iov; /* @small or on the heap, for cap pieces */
	struct iovec small[8];
	struct child *next;
};

struct request *request_new(struct qcow2_queue *qq); /* NULL: out of memory */
void request_run(struct request *x);                 /* starts what can be started */
void request_fail(struct request *x, int error);     /* 0 is none; the first error counts */
void request_park(struct request *x);                /* until request_wake() */
void request_wake(struct request *x);                /* any thread */
void request_hold(struct request *x);
void request_drop(struct request *x); /* may finish it */

/* Tells @p->cb to the loop of @p->queue. Any thread. */
void post_to(struct post *p);

/*
 * A child of @x with room for @niov pieces of memory, all unset. NULL: out of
 * memory, and @x has failed. child_submit() holds @x until done() has returned.
 */
struct child *child_new(struct request *x, unsigned niov);
void child_submit(struct child *c, struct blk_queue *q, enum blk_op op, uint64_t off, uint64_t len);

/* The memory of @x from @from bytes on, @len bytes: into @iov; how many pieces. NULL: only how many. */
unsigned request_pieces(const struct request *x, uint64_t from, uint64_t len, struct iovec *iov);

/*
 * Memory of a cluster's size for what surrounds data. The queue keeps some:
 * given back to the C library, each would be faulted in anew. NULL: out of memory.
 */
void *buffer_get(struct qcow2_queue *qq);
void buffer_put(struct qcow2_queue *qq, void *p); /* NULL is fine */

/* @len zero bytes to write, at most ZEROES. */
#define ZEROES (2u << 20)
extern uint8_t qcow2_zeroes[ZEROES];

/* @len bytes at x->pos to allocated clusters that are the request's to overwrite. */
void request_write_in_place(struct request *x, uint64_t host, uint64_t len);

/* What the core calls. */
void qcow2_submit(struct blk_queue *q, struct blk_req *r);
int qcow2_queue_open(struct blk_queue *q, struct err *err);
void qcow2_queue_close(struct blk_queue *q);

/* One step of each kind of request, at x->pos: false: it is parked. */
bool read_step(struct request *x);
bool write_step(struct request *x, uint64_t len); /* at most @len bytes */
bool zero_step(struct request *x);                /* BLK_WRITE_ZEROES, BLK_DISCARD */

/* Does nothing allocated at @off read as zeroes for the @len bytes up to the end of its cluster? */
bool hole_is_zero(const struct qcow2 *im, uint64_t off);

/* Under the lock, where entry_of(@off) is busy: parks @x until it is not. */
void alloc_wait(struct request *x, uint64_t off);

#endif
