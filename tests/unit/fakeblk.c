// SPDX-License-Identifier: GPL-2.0-or-later
#include "fakeblk.h"

#include "base/container_of.h"
#include "base/iov.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEED(x) ((x) ? (void)0 : (fprintf(stderr, "fakeblk: %s\n", #x), abort()))

static int error_of(const struct fakeblk *f, const struct blk_req *r)
{
	if (f->nbad && r->op != BLK_FLUSH && r->off < f->bad + f->nbad && r->off + r->len > f->bad)
		return -EIO;
	return f->error;
}

static void finish(struct fakeblk *f, struct blk_req *r)
{
	int error = error_of(f, r);

	if (!error && r->op == BLK_READ)
		NEED(iov_put(r->iov, r->niov, 0, f->mem + r->off, r->len) == r->len);
	else if (!error && r->op == BLK_WRITE)
		NEED(iov_get(r->iov, r->niov, 0, f->mem + r->off, r->len) == r->len);
	else if (!error && r->op != BLK_FLUSH)
		memset(f->mem + r->off, 0, r->len);
	for (unsigned i = 0; i < r->niov; i++)
		r->iov[i] = (struct iovec){ .iov_base = (void *)1, .iov_len = 1 }; /* garbage, as announced */
	blk_req_end(r, error);
}

static void fake_submit(struct blk_queue *q, struct blk_req *r)
{
	struct fakeblk *f = container_of(q->blk, struct fakeblk, blk);

	if (r->op == BLK_READ || r->op == BLK_WRITE)
		NEED(iov_len(r->iov, r->niov) == r->len);
	else
		NEED(r->op == BLK_FLUSH || r->len);
	if (f->nlog < FAKEBLK_LOG) {
		f->log[f->nlog].op = r->op;
		f->log[f->nlog].flags = r->op == BLK_FLUSH ? 0 : r->flags;
		f->log[f->nlog].off = r->off;
		f->log[f->nlog].len = r->len;
	}
	f->nlog++;
	if (!f->hold && !f->late) {
		finish(f, r);
		return;
	}
	if (f->late)
		loop_post(q->loop, &f->task);
	r->next = f->held;
	f->held = r;
	f->nheld++;
}

void fakeblk_release(struct fakeblk *f)
{
	struct blk_req *r = f->held, *next;

	f->held = NULL;
	f->nheld = 0;
	for (; r; r = next) {
		next = r->next;
		finish(f, r);
	}
}

static void on_late(struct loop_task *t)
{
	fakeblk_release(container_of(t, struct fakeblk, task));
}

static const struct blk_ops fake_ops = { .format = "fake", .submit = fake_submit };

void fakeblk_init(struct fakeblk *f, uint64_t size)
{
	struct err err;

	memset(f, 0, sizeof(*f));
	NEED(!blk_init(&f->blk, &fake_ops, "fake", &err));
	f->blk.info.writeback = f->blk.info.can_discard = f->blk.info.can_zero = true;
	f->task.cb = on_late;
	f->mem = calloc(1, size);
	NEED(f->mem);
	atomic_store(&f->blk.size, size);
}

void fakeblk_exit(struct fakeblk *f)
{
	NEED(!atomic_load(&f->blk.nqueues) && !f->nheld);
	blk_exit(&f->blk);
	free(f->mem);
}
