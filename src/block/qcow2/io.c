// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/qcow2/io.h"

#include "base/container_of.h"
#include "base/iov.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/*
 * How it works
 *
 * A request goes over its range in steps. A step starts what one extent needs
 * (a child: a request to the file or the image below), and the request ends
 * when it has gone over all of it and its children have ended. A step that
 * cannot go on parks the request: on a slice that is being read, on a cluster
 * that is being written, or with the metadata thread. Whoever it waits for
 * posts it back to its loop, where the step is tried again from the beginning;
 * nothing that was seen before parking is relied upon after it.
 *
 * A read that finds nothing allocated looks into the maps of the images below by
 * itself, and its child goes to the file of the one that has the data. So a
 * chain costs a look per layer. Only where a map is not in memory, or the data
 * are compressed, does the child go to the image below.
 *
 * Requests and children come from lists of the queue and go back there, so
 * a queue that has been busy once allocates no more.
 *
 * Every request of a guest counts itself in active[phase & 1] of its queue
 * while it lasts. The metadata thread turns the phase to learn when all requests
 * have ended that may still use a host cluster which is not in the map any
 * more. A request that counted itself in a phase which was just over counts anew.
 */

uint8_t qcow2_zeroes[ZEROES] __attribute__((aligned(4096))); /* never written to */

/* Requests. */

struct request *request_new(struct qcow2_queue *qq)
{
	struct request *x = qq->requests;

	if (x)
		qq->requests = x->next;
	else
		x = malloc(sizeof(*x));
	if (x)
		*x = (struct request){ .queue = qq };
	return x;
}

static void request_free(struct request *x)
{
	x->next = x->queue->requests;
	x->queue->requests = x;
}

void request_fail(struct request *x, int error)
{
	if (!x->error)
		x->error = error;
}

void request_hold(struct request *x)
{
	x->pending++;
}

static void flush_below(struct request *x)
{
	struct child *c = child_new(x, 0);

	if (c)
		child_submit(c, x->queue->file, BLK_FLUSH, 0, 0);
}

/* What is written must be durable: with the metadata thread, if there is metadata to write. */
static void make_durable(struct request *x)
{
	struct qcow2 *im = x->queue->im;
	bool dirty;

	x->flags &= ~BLK_FUA;
	pthread_mutex_lock(&im->lock);
	dirty = qcow2_is_dirty(im);
	pthread_mutex_unlock(&im->lock);
	request_hold(x);
	if (dirty)
		qcow2_commit(x);
	else if (x->op == BLK_FLUSH)
		flush_below(x); /* a write's children were durable when they ended */
	request_drop(x);
}

void request_drop(struct request *x)
{
	assert(x->pending);
	if (--x->pending)
		return;
	if (x->flags & BLK_FUA && !x->error) {
		make_durable(x);
		return;
	}
	x->finish(x);
	request_free(x);
}

static bool step(struct request *x)
{
	switch (x->op) {
	case BLK_READ: return read_step(x);
	case BLK_WRITE: return write_step(x, x->len - x->pos);
	case BLK_DISCARD:
	case BLK_WRITE_ZEROES: return zero_step(x);
	case BLK_FLUSH: break;
	}
	return false;
}

void request_run(struct request *x)
{
	request_hold(x);
	while (!x->error && x->pos < x->len && step(x))
		;
	request_drop(x);
}

static void on_woken(struct post *p)
{
	struct request *x = container_of(p, struct request, post);

	request_fail(x, x->woken_error);
	request_run(x);
	request_drop(x);
}

void request_park(struct request *x)
{
	request_hold(x);
	x->woken_error = 0;
	x->post = (struct post){ .cb = on_woken, .queue = x->queue };
}

void request_wake(struct request *x)
{
	post_to(&x->post);
}

unsigned request_pieces(const struct request *x, uint64_t from, uint64_t len, struct iovec *iov)
{
	unsigned n = 0;
	size_t k;

	for (unsigned i = 0; len; i++, len -= k, n++) {
		struct iovec v = { qcow2_zeroes, ZEROES };

		if (x->op != BLK_WRITE_ZEROES) {
			while (from >= x->iov[i].iov_len)
				from -= x->iov[i++].iov_len;
			v = (struct iovec){ (char *)x->iov[i].iov_base + from, x->iov[i].iov_len - from };
			from = 0;
		}
		k = v.iov_len < len ? v.iov_len : (size_t)len;
		if (iov)
			iov[n] = (struct iovec){ v.iov_base, k };
	}
	return n;
}

/* Posts. */

static void on_posted(struct loop_task *t)
{
	struct qcow2_queue *qq = container_of(t, struct qcow2_queue, task);
	struct post *p, *next;

	pthread_mutex_lock(&qq->lock);
	p = qq->posted;
	qq->posted = NULL;
	qq->posted_end = &qq->posted;
	pthread_mutex_unlock(&qq->lock);
	for (; p; p = next) {
		next = p->next;
		p->cb(p);
	}
}

void post_to(struct post *p)
{
	struct qcow2_queue *qq = p->queue;
	bool first;

	p->next = NULL;
	pthread_mutex_lock(&qq->lock);
	first = !qq->posted;
	*qq->posted_end = p;
	qq->posted_end = &p->next;
	if (first)
		loop_post(qq->q->loop, &qq->task); /* under the lock: once it is seen, the queue may be closed */
	pthread_mutex_unlock(&qq->lock);
}

/* Children. */

static bool child_room(struct child *c, unsigned niov)
{
	struct iovec *iov;

	if (niov <= c->cap)
		return true;
	iov = realloc(c->iov == c->small ? NULL : c->iov, niov * sizeof(*iov));
	if (!iov)
		return false;
	c->iov = iov;
	c->cap = niov;
	return true;
}

static void child_free(struct qcow2_queue *qq, struct child *c)
{
	c->next = qq->children;
	qq->children = c;
}

struct child *child_new(struct request *x, unsigned niov)
{
	struct qcow2_queue *qq = x->queue;
	struct child *c = qq->children;

	if (c) {
		qq->children = c->next;
	} else {
		c = malloc(sizeof(*c));
		if (c) {
			c->iov = c->small;
			c->cap = sizeof(c->small) / sizeof(c->small[0]);
		}
	}
	if (c && child_room(c, niov)) {
		c->x = x;
		c->done = NULL;
		c->req.flags = 0;
		c->req.iov = c->iov;
		c->req.niov = niov;
		return c;
	}
	if (c)
		child_free(qq, c);
	request_fail(x, -ENOMEM);
	return NULL;
}

static void on_child(struct blk_req *r, int error)
{
	struct child *c = container_of(r, struct child, req);
	struct request *x = c->x;

	if (c->done)
		c->done(c, error);
	else
		request_fail(x, error);
	child_free(x->queue, c);
	request_drop(x);
}

void child_submit(struct child *c, struct blk_queue *q, enum blk_op op, uint64_t off, uint64_t len)
{
	request_hold(c->x);
	c->req.op = op;
	c->req.off = off;
	c->req.len = len;
	c->req.done = on_child;
	blk_submit(q, &c->req);
}

/* Buffers. */

#define BUFFERS_BYTES (4u << 20) /* that a queue keeps */

struct buffer {
	struct buffer *next;
};

void *buffer_get(struct qcow2_queue *qq)
{
	struct buffer *b = qq->buffers;
	void *p;

	if (!b)
		return posix_memalign(&p, 4096, qq->im->cluster_size) ? NULL : p;
	qq->buffers = b->next;
	qq->nbuffers--;
	return b;
}

void buffer_put(struct qcow2_queue *qq, void *p)
{
	struct buffer *b = p;

	if (!b)
		return;
	if (qq->nbuffers >= BUFFERS_BYTES >> qq->im->cluster_bits) {
		free(b);
		return;
	}
	b->next = qq->buffers;
	qq->buffers = b;
	qq->nbuffers++;
}

/* Reads. */

bool hole_is_zero(const struct qcow2 *im, uint64_t off)
{
	return off - in_cluster(im, off) >= im->backing_size;
}

/* A child for @len bytes at x->pos; the caller's own array, if there is one, where that is all there is. */
static void transfer(struct request *x, struct blk_queue *q, enum blk_op op, uint64_t off, uint64_t len)
{
	bool all = len == x->len && x->iov;
	unsigned n = all ? 0 : request_pieces(x, x->pos, len, NULL);
	struct child *c = child_new(x, n);

	if (!c)
		return;
	if (all) {
		c->req.iov = x->iov;
		c->req.niov = x->niov;
	} else {
		request_pieces(x, x->pos, len, c->iov);
	}
	if (op == BLK_WRITE)
		c->req.flags = x->flags & BLK_FUA;
	child_submit(c, q, op, off, len);
}

/* @len bytes at @off that the image of @qq does not have. */
static void read_below(struct request *x, struct qcow2_queue *qq, uint64_t off, uint64_t len)
{
	struct qcow2 *im = qq->im;
	uint64_t n = off < im->backing_size ? im->backing_size - off : 0;

	if (n > len)
		n = len;
	if (n < len)
		iov_zero(x->iov, x->niov, x->pos + n, len - n);
	if (n)
		transfer(x, qq->backing, BLK_READ, off, n);
}

/*
 * Down a chain of QCOW2 images to the one that has what is at @off, as far as
 * its maps are in memory; @qq is that one's queue then. Images below are only
 * read, so nothing there is unlinked while the request lasts.
 */
static struct extent walk_down(struct qcow2_queue **qq, uint64_t off, struct extent e)
{
	while (e.kind == EXTENT_HOLE && (*qq)->below && off < (*qq)->im->backing_size) {
		uint64_t n = (*qq)->im->backing_size - off;
		struct extent below = qcow2_map_extent((*qq)->below->im, off, n < e.len ? n : e.len);

		if (below.kind != EXTENT_HOLE && below.kind != EXTENT_ZERO && below.kind != EXTENT_DATA)
			break; /* it takes more than a look: a request of that image's own */
		e = below;
		*qq = (*qq)->below;
	}
	return e;
}

bool read_step(struct request *x)
{
	struct qcow2_queue *qq = x->queue;
	uint64_t off = x->off + x->pos;
	struct extent e = qcow2_map_extent(qq->im, off, x->len - x->pos);

	if (e.kind == EXTENT_HOLE)
		e = walk_down(&qq, off, e);
	switch (e.kind) {
	case EXTENT_MISS: qcow2_map_load(x, off); return false;
	case EXTENT_BAD: request_fail(x, -EIO); break;
	case EXTENT_HOLE: read_below(x, qq, off, e.len); break;
	case EXTENT_ZERO: iov_zero(x->iov, x->niov, x->pos, e.len); break;
	case EXTENT_DATA: transfer(x, qq->file, BLK_READ, e.host, e.len); break;
	case EXTENT_COMPRESSED: qcow2_inflate(x, e.host, in_cluster(qq->im, off), x->pos, e.len); break;
	}
	x->pos += e.len;
	return true;
}

void request_write_in_place(struct request *x, uint64_t host, uint64_t len)
{
	transfer(x, x->queue->file, BLK_WRITE, host, len);
}

/* The guest's requests. */

static void end_guest(struct request *x)
{
	atomic_fetch_sub(&x->queue->active[x->phase & 1], 1);
	blk_req_end(x->owner, x->error);
}

static void begin_phase(struct request *x)
{
	struct qcow2 *im = x->queue->im;

	for (;;) {
		x->phase = atomic_load(&im->phase);
		atomic_fetch_add(&x->queue->active[x->phase & 1], 1);
		if (atomic_load(&im->phase) == x->phase)
			return;
		atomic_fetch_sub(&x->queue->active[x->phase & 1], 1);
	}
}

static bool durable_when_done(const struct qcow2 *im, const struct blk_req *r)
{
	return r->op == BLK_FLUSH ||
	       ((r->op == BLK_WRITE || r->op == BLK_WRITE_ZEROES) && (r->flags & BLK_FUA || !im->blk.info.writeback));
}

void qcow2_submit(struct blk_queue *q, struct blk_req *r)
{
	struct request *x = request_new(q->priv);

	if (!x) {
		blk_req_end(r, -ENOMEM);
		return;
	}
	x->op = r->op;
	x->flags = r->flags & ~BLK_FUA;
	if (durable_when_done(qcow2_of(q->blk), r))
		x->flags |= BLK_FUA;
	if (r->op != BLK_FLUSH) {
		x->off = r->off;
		x->len = r->len;
	}
	if (r->op == BLK_READ || r->op == BLK_WRITE) {
		x->iov = r->iov;
		x->niov = r->niov;
	}
	x->finish = end_guest;
	x->owner = r;
	begin_phase(x);
	request_run(x);
}

/* Queues. */

int qcow2_queue_open(struct blk_queue *q, struct err *err)
{
	struct qcow2 *im = qcow2_of(q->blk);
	struct qcow2_queue *qq = calloc(1, sizeof(*qq));
	int error;

	if (!qq)
		return err_set(err, -ENOMEM, "out of memory");
	qq->im = im;
	qq->q = q;
	qq->posted_end = &qq->posted;
	qq->task.cb = on_posted;
	error = blk_queue_below(q, im->file, &qq->file, err);
	if (!error && im->backing)
		error = blk_queue_below(q, im->backing, &qq->backing, err);
	if (!error && im->backing && qcow2_image(im->backing))
		qq->below = qq->backing->priv;
	if (error) {
		blk_queue_close(qq->file);
		free(qq);
		return error;
	}
	pthread_mutex_init(&qq->lock, NULL);
	q->priv = qq;
	pthread_mutex_lock(&im->lock);
	qq->next = im->queues;
	im->queues = qq;
	pthread_mutex_unlock(&im->lock);
	return 0;
}

static void free_lists(struct qcow2_queue *qq)
{
	for (struct request *x = qq->requests, *next; x; x = next) {
		next = x->next;
		free(x);
	}
	for (struct child *c = qq->children, *next; c; c = next) {
		next = c->next;
		if (c->iov != c->small)
			free(c->iov);
		free(c);
	}
	for (struct buffer *b = qq->buffers, *next; b; b = next) {
		next = b->next;
		free(b);
	}
}

void qcow2_queue_close(struct blk_queue *q)
{
	struct qcow2_queue *qq = q->priv, **p;
	struct qcow2 *im = qq->im;

	pthread_mutex_lock(&im->lock);
	for (p = &im->queues; *p != qq; p = &(*p)->next)
		;
	*p = qq->next;
	pthread_mutex_unlock(&im->lock);
	loop_task_del(q->loop, &qq->task);
	blk_queue_close(qq->file);
	blk_queue_close(qq->backing);
	pthread_mutex_destroy(&qq->lock);
	free_lists(qq);
	free(qq);
}
