// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/merge.h"

#include "base/container_of.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/*
 * How it works
 *
 * Only the end of what was added is looked at: a request that begins there
 * joins the run, any other ends it and begins the next. A run of one is that
 * request. A longer one is submitted as a request of ours, with a list of all
 * its parts' memory; the parts are left as they are, so that they can be
 * submitted after it has failed. Some may then be done twice, as after an error
 * any part may have been done.
 *
 * There are few of ours. While all are on their way, runs go out in parts.
 */

#define MERGED 16

struct merged {
	struct blk_req req;
	struct blk_merge *m;
	struct blk_req *parts;
	struct merged *next; /* free */
	struct iovec iov[BLK_MERGE_IOV];
};

struct blk_merge {
	struct blk_queue *q;
	struct blk_req *first, *last; /* the run; linked by next, which is nobody's before they are submitted */
	uint64_t len;
	unsigned niov;
	struct merged *free;
	struct merged merged[MERGED];
};

static void submit_parts(struct blk_queue *q, struct blk_req *r)
{
	while (r) {
		struct blk_req *next = r->next;

		blk_submit(q, r);
		r = next;
	}
}

static void on_merged(struct blk_req *r, int error)
{
	struct merged *g = container_of(r, struct merged, req);
	struct blk_req *part = g->parts;

	g->next = g->m->free;
	g->m->free = g;
	if (error) {
		submit_parts(r->queue, part);
		return;
	}
	while (part) {
		struct blk_req *next = part->next; /* whoever is told may submit it again */

		part->done(part, 0);
		part = next;
	}
}

static void submit_merged(struct blk_merge *m, struct merged *g)
{
	struct blk_req *r = &g->req;

	r->op = m->first->op;
	r->flags = m->first->flags;
	r->off = m->first->off;
	r->len = m->len;
	r->iov = g->iov;
	r->niov = 0;
	for (const struct blk_req *part = m->first; part; part = part->next) {
		memcpy(&g->iov[r->niov], part->iov, part->niov * sizeof(g->iov[0]));
		r->niov += part->niov;
	}
	g->parts = m->first;
	blk_submit(m->q, r);
}

void blk_merge_end(struct blk_merge *m)
{
	struct blk_req *first = m->first;
	struct merged *g = m->free;

	if (!first)
		return;
	if (first != m->last && g) {
		m->free = g->next;
		submit_merged(m, g);
	} else {
		submit_parts(m->q, first);
	}
	m->first = m->last = NULL;
}

void blk_merge_soon(struct blk_merge *m)
{
	if (m->first == m->last)
		blk_merge_end(m);
}

static bool follows(const struct blk_merge *m, const struct blk_req *r)
{
	const struct blk_req *last = m->last;

	return r->op == last->op && r->flags == last->flags && r->off == last->off + last->len &&
	       r->len <= BLK_MERGE_LEN - m->len && r->niov <= BLK_MERGE_IOV - m->niov;
}

void blk_merge_add(struct blk_merge *m, struct blk_queue *q, struct blk_req *r)
{
	assert(r->op == BLK_READ || r->op == BLK_WRITE);
	assert(!m->first || q == m->q);
	if (m->first && !follows(m, r))
		blk_merge_end(m);
	r->next = NULL;
	if (m->first) {
		m->last->next = r;
	} else {
		m->q = q;
		m->first = r;
		m->len = m->niov = 0;
	}
	m->last = r;
	m->len += r->len;
	m->niov += r->niov;
	if (m->len >= BLK_MERGE_LEN || m->niov >= BLK_MERGE_IOV)
		blk_merge_end(m);
}

struct blk_merge *blk_merge_new(void)
{
	struct blk_merge *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	for (unsigned i = 0; i < MERGED; i++) {
		m->merged[i].m = m;
		m->merged[i].req.done = on_merged;
		m->merged[i].next = m->free;
		m->free = &m->merged[i];
	}
	return m;
}

void blk_merge_free(struct blk_merge *m)
{
	free(m);
}
