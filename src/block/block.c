// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/block_impl.h"

#include "base/container_of.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * How it works
 *
 * What all layers have in common: a request is checked and counted, handed to
 * the layer, and told to its owner when the layer says that it has ended. That
 * telling is left for the end of the loop's turn, so done() never runs inside
 * blk_submit(), however fast the layer was, and whoever submits from done()
 * builds no stack. Requests that end on another thread come by a locked list
 * and a posted task.
 */

int blk_init(struct blk *b, const struct blk_ops *ops, const char *name, struct err *err)
{
	b->ops = ops;
	b->info = (struct blk_info){ .format = ops->format, .granule = 1, .block = 512, .align = 1, .mem_align = 1 };
	pthread_mutex_init(&b->lock, NULL);
	b->name = strdup(name);
	return b->name ? 0 : err_set(err, -ENOMEM, "out of memory");
}

void blk_exit(struct blk *b)
{
	assert(!b->listeners);
	pthread_mutex_destroy(&b->lock);
	free(b->name);
}

void blk_close(struct blk *b)
{
	if (!b)
		return;
	assert(!atomic_load(&b->nqueues));
	b->ops->close(b);
}

const struct blk_info *blk_info(const struct blk *b)
{
	return &b->info;
}

const char *blk_name(const struct blk *b)
{
	return b->name;
}

uint64_t blk_size(const struct blk *b)
{
	return atomic_load_explicit(&b->size, memory_order_relaxed);
}

void blk_listen(struct blk *b, struct blk_listener *l)
{
	pthread_mutex_lock(&b->lock);
	l->next = b->listeners;
	b->listeners = l;
	pthread_mutex_unlock(&b->lock);
}

void blk_unlisten(struct blk *b, struct blk_listener *l)
{
	struct blk_listener **p;

	pthread_mutex_lock(&b->lock);
	for (p = &b->listeners; *p != l; p = &(*p)->next)
		;
	*p = l->next;
	pthread_mutex_unlock(&b->lock);
}

void blk_resized(struct blk *b, uint64_t size)
{
	atomic_store(&b->size, size);
	pthread_mutex_lock(&b->lock);
	for (struct blk_listener *l = b->listeners; l; l = l->next)
		l->resized(l);
	pthread_mutex_unlock(&b->lock);
}

int blk_truncate(struct blk *b, uint64_t size)
{
	return b->ops->truncate ? b->ops->truncate(b, size) : -EOPNOTSUPP;
}

/* Ends. */

static void push(struct blk_req ***end, struct blk_req *r)
{
	r->next = NULL;
	**end = r;
	*end = &r->next;
}

void blk_req_end(struct blk_req *r, int error)
{
	struct blk_queue *q = r->queue;

	assert(loop_here(q->loop) && error <= 0);
	r->error = error;
	push(&q->ended_end, r);
	loop_later(q->loop, &q->later);
}

void blk_req_post(struct blk_req *r, int error)
{
	struct blk_queue *q = r->queue;
	bool first;

	r->error = error;
	pthread_mutex_lock(&q->lock);
	first = !q->posted;
	push(&q->posted_end, r);
	if (first)
		loop_post(q->loop, &q->task); /* under the lock: once it is seen, the queue may be closed */
	pthread_mutex_unlock(&q->lock);
}

static void on_posted(struct loop_task *t)
{
	struct blk_queue *q = container_of(t, struct blk_queue, task);
	struct blk_req *r;

	pthread_mutex_lock(&q->lock);
	r = q->posted;
	q->posted = NULL;
	q->posted_end = &q->posted;
	pthread_mutex_unlock(&q->lock);
	while (r) {
		struct blk_req *next = r->next;

		blk_req_end(r, r->error);
		r = next;
	}
}

static void tell_idle(struct blk_queue *q)
{
	void (*idle)(void *arg) = q->idle;

	if (!idle || q->inflight)
		return;
	q->idle = NULL;
	idle(q->idle_arg);
}

static void on_later(struct loop_later *t)
{
	struct blk_queue *q = container_of(t, struct blk_queue, later);
	struct blk_req *r = q->ended;

	q->ended = NULL;
	q->ended_end = &q->ended;
	while (r) {
		struct blk_req *next = r->next;

		q->inflight--;
		r->done(r, r->error);
		r = next;
	}
	tell_idle(q);
}

/* Queues. */

static int queue_open(struct blk *b, struct loop *loop, bool blocks, struct blk_queue **out, struct err *err)
{
	struct blk_queue *q = calloc(1, sizeof(*q));
	int error;

	if (!q)
		return err_set(err, -ENOMEM, "out of memory");
	q->blk = b;
	q->loop = loop;
	q->blocks = blocks;
	q->ended_end = &q->ended;
	q->posted_end = &q->posted;
	q->later.cb = on_later;
	q->task.cb = on_posted;
	pthread_mutex_init(&q->lock, NULL);
	error = b->ops->queue_open ? b->ops->queue_open(q, err) : 0;
	if (error) {
		pthread_mutex_destroy(&q->lock);
		free(q);
		return error;
	}
	atomic_fetch_add(&b->nqueues, 1);
	*out = q;
	return 0;
}

int blk_queue_open(struct blk *b, struct loop *loop, struct blk_queue **out, struct err *err)
{
	return queue_open(b, loop, false, out, err);
}

int blk_queue_below(struct blk_queue *q, struct blk *below, struct blk_queue **out, struct err *err)
{
	return queue_open(below, q->loop, q->blocks, out, err);
}

void blk_queue_close(struct blk_queue *q)
{
	if (!q)
		return;
	assert(loop_here(q->loop) && !q->inflight);
	loop_later_del(q->loop, &q->later);
	loop_task_del(q->loop, &q->task);
	if (q->blk->ops->queue_close)
		q->blk->ops->queue_close(q);
	atomic_fetch_sub(&q->blk->nqueues, 1);
	pthread_mutex_destroy(&q->lock);
	free(q);
}

unsigned blk_queue_inflight(const struct blk_queue *q)
{
	return q->inflight;
}

void blk_queue_when_idle(struct blk_queue *q, void (*idle)(void *arg), void *arg)
{
	assert(loop_here(q->loop) && (!idle || !q->idle));
	q->idle = idle;
	q->idle_arg = arg;
	loop_later(q->loop, &q->later);
}

/* Requests. */

static int check_range(const struct blk *b, const struct blk_req *r)
{
	uint64_t end;

	if (__builtin_add_overflow(r->off, r->len, &end) || end > INT64_MAX)
		return -EINVAL;
	if (end > blk_size(b) && !b->grows)
		return -EINVAL;
	return (r->off | r->len) & (b->info.granule - 1) ? -EINVAL : 0;
}

static int check(const struct blk *b, const struct blk_req *r)
{
	if (r->op == BLK_FLUSH)
		return 0;
	if (r->op != BLK_READ && b->info.read_only)
		return -EROFS;
	if (r->op == BLK_DISCARD && !b->info.can_discard)
		return -EOPNOTSUPP;
	return check_range(b, r);
}

void blk_submit(struct blk_queue *q, struct blk_req *r)
{
	int error = check(q->blk, r);

	assert(loop_here(q->loop) && r->niov <= BLK_MAX_IOV);
	r->queue = q;
	r->stage = 0;
	q->inflight++;
	if (error || (r->op != BLK_FLUSH && !r->len))
		blk_req_end(r, error);
	else
		q->blk->ops->submit(q, r);
}

/* One request that is waited for: a loop of its own, which runs until it has ended. */

struct waited {
	struct blk_req req;
	struct loop *loop;
	int error;
};

static void on_waited(struct blk_req *r, int error)
{
	struct waited *w = container_of(r, struct waited, req);

	w->error = error;
	loop_quit(w->loop);
}

int blk_do(struct blk *b, enum blk_op op, unsigned flags, uint64_t off, void *buf, uint64_t len)
{
	struct iovec iov = { .iov_base = buf, .iov_len = len };
	struct waited w = {
		.req = { .op = op, .flags = flags, .off = off, .len = len, .iov = &iov, .niov = 1, .done = on_waited }
	};
	struct blk_queue *q = NULL;
	struct err err;
	int error = loop_new(&w.loop, &err);

	if (error)
		return error;
	error = queue_open(b, w.loop, true, &q, &err);
	if (q) {
		blk_submit(q, &w.req);
		error = loop_run(w.loop);
	}
	if (!error)
		error = w.error;
	blk_queue_close(q);
	loop_free(w.loop);
	return error;
}
