// SPDX-License-Identifier: GPL-2.0-or-later
#include "logblk.h"

#include "base/container_of.h"
#include "base/iov.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define NEED(x) ((x) ? (void)0 : (fprintf(stderr, "logblk: %s:%d: %s\n", __FILE__, __LINE__, #x), abort()))

struct log_queue {
	struct logblk *l;
	struct blk_queue *q;
	struct blk_req *held; /* last in, first out */
	struct loop_task task;
};

unsigned rnd(unsigned *rng)
{
	*rng = *rng * 1664525u + 1013904223u;
	return *rng >> 8 ^ *rng << 16;
}

/* Under the lock. Returns the index of the entry, or SIZE_MAX: no log is kept. */
static size_t log_add(struct logblk *l, enum logblk_kind kind, uint64_t off, uint64_t len, const uint8_t *data)
{
	struct logblk_entry *e;

	if (!l->keep)
		return SIZE_MAX;
	if (!(l->nlog & (l->nlog - 1)))
		l->log = realloc(l->log, (l->nlog ? 2 * l->nlog : 1) * sizeof(*l->log));
	NEED(l->log);
	e = &l->log[l->nlog];
	*e = (struct logblk_entry){ .kind = kind, .off = off, .len = len, .ended = SIZE_MAX };
	if (data) {
		e->data = malloc(len + !len);
		NEED(e->data);
		memcpy(e->data, data, len);
	}
	return l->nlog++;
}

/* Under the lock. */
static int do_write(struct logblk *l, struct blk_req *r, uint64_t len)
{
	uint64_t end = r->off + len, size = atomic_load(&l->blk.size);

	if (atomic_load(&l->full) && end > l->room)
		return -ENOSPC;
	if (end > LOGBLK_MAX)
		return -EFBIG;
	if (r->op == BLK_WRITE)
		iov_get(r->iov, r->niov, 0, l->mem + r->off, len);
	else
		memset(l->mem + r->off, 0, len);
	l->writes++;
	if (end > size)
		atomic_store(&l->blk.size, end);
	r->stage = (unsigned)log_add(l, LOG_WRITE, r->off, len, r->op == BLK_WRITE ? l->mem + r->off : NULL);
	if (l->keep)
		l->log[r->stage].fua = r->flags & BLK_FUA;
	return 0;
}

static int do_read(struct logblk *l, const struct blk_req *r)
{
	uint64_t len = r->off >= LOGBLK_MAX ? 0 : LOGBLK_MAX - r->off;

	if (len > r->len)
		len = r->len;
	iov_put(r->iov, r->niov, 0, l->mem + r->off, len);
	iov_zero(r->iov, r->niov, len, r->len - len);
	return 0;
}

static int carry_out(struct logblk *l, struct blk_req *r, uint64_t len)
{
	int error = atomic_load(&l->fail);

	switch (r->op) {
	case BLK_READ: return do_read(l, r);
	case BLK_WRITE: return error ? error : do_write(l, r, len);
	case BLK_DISCARD:
		if (r->off >= atomic_load(&l->blk.size))
			return 0;
		if (r->off + len > atomic_load(&l->blk.size))
			len = atomic_load(&l->blk.size) - r->off;
		return error ? error : do_write(l, r, len);
	case BLK_WRITE_ZEROES: return error ? error : do_write(l, r, len);
	case BLK_FLUSH:
		l->flushes++;
		r->stage = (unsigned)log_add(l, LOG_FLUSH, 0, 0, NULL);
		return error;
	}
	return 0;
}

/* Under the lock: 0: nothing goes wrong. A read's memory is not what it was, either. */
static int mishap(struct logblk *l, struct blk_req *r)
{
	uint64_t at = atomic_load(&l->bad_at), len = atomic_load(&l->bad_len);

	if (r->op == BLK_WRITE && r->off < at + len && at < r->off + r->len) {
		(void)!carry_out(l, r, r->len);
		return -EIO;
	}
	if (rnd(&l->rng) % 1000 >= atomic_load(&l->mishaps))
		return 0;
	switch (rnd(&l->rng) % 3) {
	case 0: break;
	case 1: (void)!carry_out(l, r, r->len / 2 & ~511ull); break;
	case 2: (void)!carry_out(l, r, r->len); break;
	}
	return rnd(&l->rng) % 2 ? -EIO : -ENOSPC;
}

/* It ends in a later turn. */
static void hold(struct log_queue *lq, struct blk_req *r)
{
	r->next = lq->held;
	lq->held = r;
	loop_post(lq->q->loop, &lq->task);
}

static bool is_late(struct logblk *l)
{
	bool late;

	pthread_mutex_lock(&l->lock);
	late = atomic_load(&l->late) && rnd(&l->rng) % 4;
	pthread_mutex_unlock(&l->lock);
	return late;
}

static void on_task(struct loop_task *t)
{
	struct log_queue *lq = container_of(t, struct log_queue, task);
	struct blk_req *r = lq->held, *next;

	lq->held = NULL;
	for (; r; r = next) {
		next = r->next;
		if (is_late(lq->l)) {
			hold(lq, r);
			continue;
		}
		pthread_mutex_lock(&lq->l->lock);
		if (r->op != BLK_READ && lq->l->keep && !r->error && r->stage < lq->l->nlog)
			lq->l->log[r->stage].ended = lq->l->nlog;
		pthread_mutex_unlock(&lq->l->lock);
		blk_req_end(r, r->error);
	}
}

static void log_submit(struct blk_queue *q, struct blk_req *r)
{
	struct log_queue *lq = q->priv;

	pthread_mutex_lock(&lq->l->lock);
	r->error = mishap(lq->l, r);
	if (!r->error)
		r->error = carry_out(lq->l, r, r->len);
	pthread_mutex_unlock(&lq->l->lock);
	hold(lq, r);
}

static int log_queue_open(struct blk_queue *q, struct err *err)
{
	struct log_queue *lq = calloc(1, sizeof(*lq));

	NEED(lq);
	lq->l = (struct logblk *)q->blk;
	lq->q = q;
	lq->task.cb = on_task;
	q->priv = lq;
	return 0;
}

static void log_queue_close(struct blk_queue *q)
{
	free(q->priv);
}

static int log_truncate(struct blk *b, uint64_t size)
{
	struct logblk *l = (struct logblk *)b;
	int error = 0;

	pthread_mutex_lock(&l->lock);
	if (rnd(&l->rng) % 1000 < atomic_load(&l->mishaps)) {
		error = -ENOSPC;
	} else if (size > LOGBLK_MAX || (atomic_load(&l->full) && size > l->room)) {
		error = size > LOGBLK_MAX ? -EFBIG : -ENOSPC;
	} else {
		size_t i = log_add(l, LOG_LENGTH, 0, size, NULL);

		if (size < atomic_load(&b->size))
			memset(l->mem + size, 0, atomic_load(&b->size) - size);
		atomic_store(&b->size, size);
		if (i != SIZE_MAX)
			l->log[i].ended = i + 1;
	}
	pthread_mutex_unlock(&l->lock);
	return error;
}

static void log_close(struct blk *b)
{
	struct logblk *l = (struct logblk *)b;

	logblk_clear_log(l);
	free(l->log);
	munmap(l->mem, LOGBLK_MAX);
	pthread_mutex_destroy(&l->lock);
	blk_exit(b);
	free(l);
}

static const struct blk_ops log_ops = {
	.format = "log",
	.queue_open = log_queue_open,
	.queue_close = log_queue_close,
	.submit = log_submit,
	.truncate = log_truncate,
	.close = log_close,
};

struct logblk *logblk_new(const char *name)
{
	struct logblk *l = calloc(1, sizeof(*l));
	struct err err;

	NEED(l && !blk_init(&l->blk, &log_ops, name, &err));
	l->mem = mmap(NULL, LOGBLK_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	NEED(l->mem != MAP_FAILED);
	l->blk.grows = true;
	l->blk.info.writeback = true;
	l->blk.info.can_discard = true;
	l->blk.info.can_zero = true;
	pthread_mutex_init(&l->lock, NULL);
	return l;
}

void logblk_clear_log(struct logblk *l)
{
	for (size_t i = 0; i < l->nlog; i++)
		free(l->log[i].data);
	l->nlog = 0;
}

void logblk_set(struct logblk *l, const void *data, uint64_t len)
{
	uint64_t size = atomic_load(&l->blk.size);

	NEED(len <= LOGBLK_MAX);
	logblk_clear_log(l);
	if (size > len)
		memset(l->mem + len, 0, size - len);
	memcpy(l->mem, data, len);
	atomic_store(&l->blk.size, len);
}

struct logblk *logblk_copy(struct logblk *l)
{
	struct logblk *copy = logblk_new(l->blk.name);

	logblk_set(copy, l->mem, atomic_load(&l->blk.size));
	return copy;
}

void logblk_save(const struct logblk *l, const char *path)
{
	uint64_t size = atomic_load(&l->blk.size), done = 0;
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	NEED(fd >= 0);
	while (done < size) {
		ssize_t n = pwrite(fd, l->mem + done, size - done, (off_t)done);

		NEED(n > 0);
		done += (size_t)n;
	}
	NEED(!close(fd));
}

struct logblk *logblk_load(const char *path)
{
	struct logblk *l = logblk_new(path);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	uint64_t done = 0;
	struct stat st;

	NEED(fd >= 0 && !fstat(fd, &st) && (uint64_t)st.st_size <= LOGBLK_MAX);
	while (done < (uint64_t)st.st_size) {
		ssize_t n = pread(fd, l->mem + done, (uint64_t)st.st_size - done, (off_t)done);

		NEED(n > 0);
		done += (size_t)n;
	}
	close(fd);
	atomic_store(&l->blk.size, (uint64_t)st.st_size);
	return l;
}

/* Crashes. */

static void apply(const struct logblk_entry *e, bool certain, unsigned *rng, struct logblk *to)
{
	uint64_t size = atomic_load(&to->blk.size);
	unsigned mode = rnd(rng) % 4; /* all, none, or torn */

	if (e->kind == LOG_FLUSH || (!certain && mode == 0))
		return;
	if (e->kind == LOG_LENGTH) {
		if (e->len < size)
			memset(to->mem + e->len, 0, size - e->len);
		atomic_store(&to->blk.size, e->len);
		return;
	}
	for (uint64_t at = e->off, end = e->off + e->len, n; at < end; at += n) {
		n = 512 - at % 512 < end - at ? 512 - at % 512 : end - at;
		if (!certain && mode == 1 && rnd(rng) % 2)
			continue;
		if (e->data)
			memcpy(to->mem + at, e->data + (at - e->off), n);
		else
			memset(to->mem + at, 0, n);
		if (at + n > atomic_load(&to->blk.size))
			atomic_store(&to->blk.size, at + n);
	}
}

size_t logblk_crash(const struct logblk *l, size_t at, unsigned *rng, struct logblk *to)
{
	size_t flush = 0;

	for (size_t i = 0; i < at; i++)
		if (l->log[i].kind == LOG_FLUSH && l->log[i].ended <= at)
			flush = i;
	for (size_t i = 0; i < at; i++) {
		const struct logblk_entry *e = &l->log[i];

		apply(e, (flush && e->ended <= flush) || (e->fua && e->ended <= at), rng, to);
	}
	return flush;
}
