// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/qcow2/io.h"

#include "base/container_of.h"
#include "base/iov.h"
#include "base/workers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * How it works
 *
 * A read of a compressed cluster looks into the cache first. Else the sectors
 * are read by a child, and a helper thread inflates them, copies what the
 * request wants, leaves the cluster in the cache and posts the job back to its
 * loop. A helper looks into the cache again before it begins: several reads of
 * one cluster come together often.
 *
 * The cache's key is the L2 entry itself. We never write compressed clusters, so
 * an entry means the same bytes for as long as the image is open.
 */

#define THREADS     4
#define CACHE_BYTES (4u << 20)
#define CACHE_MAX   64u

struct cached {
	uint64_t entry; /* 0: empty */
	uint64_t used;
	uint8_t *data;
};

struct job {
	struct post post;
	struct request *x;
	uint64_t entry, from, at, len;
	uint8_t *in;
	uint64_t in_len;
	int error;
	struct work work;
};

struct inflater {
	enum qcow2_compression type; /* [c] */
	uint64_t cluster_size;       /* [c] */
	struct workers *helpers;     /* [c] */
	unsigned ncached;            /* [c] */
	pthread_mutex_t lock;
	/* [m] under its lock */
	uint64_t clock;
	struct cached cached[CACHE_MAX];
};

/* Under the lock: copies from the cache; false: it is not there. */
static bool copy_cached(struct inflater *f, const struct job *j)
{
	for (unsigned i = 0; i < f->ncached; i++) {
		struct cached *c = &f->cached[i];

		if (c->entry != j->entry)
			continue;
		c->used = ++f->clock;
		iov_put(j->x->iov, j->x->niov, j->at, c->data + j->from, j->len);
		return true;
	}
	return false;
}

/* Under the lock: keeps @data instead of the cluster that was longest not asked for. */
static void keep(struct inflater *f, uint64_t entry, uint8_t *data)
{
	struct cached *c = &f->cached[0];

	for (unsigned i = 1; i < f->ncached; i++)
		if (f->cached[i].used < c->used || f->cached[i].entry == entry)
			c = &f->cached[i];
	free(c->data);
	*c = (struct cached){ .entry = entry, .used = ++f->clock, .data = data };
}

/* Helpers. */

static int inflate_job(struct inflater *f, struct job *j)
{
	uint8_t *out = malloc(f->cluster_size);
	int error;

	if (!out)
		return -ENOMEM;
	error = qcow2_inflate_cluster(f->type, j->in, j->in_len, out, f->cluster_size);
	if (error) {
		free(out);
		return error;
	}
	iov_put(j->x->iov, j->x->niov, j->at, out + j->from, j->len);
	pthread_mutex_lock(&f->lock);
	keep(f, j->entry, out);
	pthread_mutex_unlock(&f->lock);
	return 0;
}

static void carry_out(struct inflater *f, struct job *j)
{
	bool cached;

	pthread_mutex_lock(&f->lock);
	cached = copy_cached(f, j);
	pthread_mutex_unlock(&f->lock);
	j->error = cached ? 0 : inflate_job(f, j);
	post_to(&j->post);
}

static void on_helper(struct work *w)
{
	struct job *j = container_of(w, struct job, work);

	carry_out(j->x->queue->im->inflater, j);
}

/* Jobs. */

static void job_end(struct job *j, int error)
{
	struct request *x = j->x;

	free(j->in);
	free(j);
	request_fail(x, error);
	request_drop(x);
}

static void on_inflated(struct post *p)
{
	struct job *j = container_of(p, struct job, post);

	job_end(j, j->error);
}

static void on_read(struct child *c, int error)
{
	struct job *j = c->owner;

	if (error)
		job_end(j, error);
	else if (!workers_give(c->x->queue->im->inflater->helpers, &j->work))
		on_helper(&j->work); /* a host without a thread to spare: slowly, then */
}

static struct inflater *inflater_new(const struct qcow2 *im)
{
	struct inflater *f = calloc(1, sizeof(*f));
	uint64_t n = CACHE_BYTES >> im->cluster_bits;

	if (f)
		f->helpers = workers_new(THREADS);
	if (!f || !f->helpers) {
		free(f);
		return NULL;
	}
	f->type = im->h.compression;
	f->cluster_size = im->cluster_size;
	f->ncached = n < CACHE_MAX ? (unsigned)n : CACHE_MAX;
	pthread_mutex_init(&f->lock, NULL);
	return f;
}

static struct inflater *inflater_get(struct qcow2 *im)
{
	struct inflater *f;

	pthread_mutex_lock(&im->lock);
	if (!im->inflater)
		im->inflater = inflater_new(im);
	f = im->inflater;
	pthread_mutex_unlock(&im->lock);
	return f;
}

static struct job *job_new(struct request *x, uint64_t len)
{
	struct job *j = calloc(1, sizeof(*j));

	if (!j)
		return NULL;
	if (posix_memalign((void **)&j->in, 4096, len)) {
		free(j);
		return NULL;
	}
	j->in_len = len;
	j->x = x;
	j->work.run = on_helper;
	j->post = (struct post){ .cb = on_inflated, .queue = x->queue };
	return j;
}

static void job_start(struct job *j, uint64_t host)
{
	struct child *c = child_new(j->x, 1);

	request_hold(j->x);
	if (!c) {
		job_end(j, -ENOMEM);
		return;
	}
	c->iov[0] = (struct iovec){ j->in, j->in_len };
	c->done = on_read;
	c->owner = j;
	child_submit(c, j->x->queue->file, BLK_READ, host, j->in_len);
}

void qcow2_inflate(struct request *x, uint64_t entry, uint64_t from, uint64_t at, uint64_t len)
{
	struct inflater *f = inflater_get(x->queue->im);
	struct job ask = { .x = x, .entry = entry, .from = from, .at = at, .len = len }, *j;
	uint64_t host, n;
	bool cached;

	if (!f) {
		request_fail(x, -ENOMEM);
		return;
	}
	pthread_mutex_lock(&f->lock);
	cached = copy_cached(f, &ask);
	pthread_mutex_unlock(&f->lock);
	if (cached)
		return;
	qcow2_compressed_range(x->queue->im, entry, &host, &n);
	j = job_new(x, n);
	if (!j) {
		request_fail(x, -ENOMEM);
		return;
	}
	j->entry = entry;
	j->from = from;
	j->at = at;
	j->len = len;
	job_start(j, host);
}

void qcow2_inflater_free(struct inflater *f)
{
	if (!f)
		return;
	workers_free(f->helpers);
	for (unsigned i = 0; i < f->ncached; i++)
		free(f->cached[i].data);
	pthread_mutex_destroy(&f->lock);
	free(f);
}
