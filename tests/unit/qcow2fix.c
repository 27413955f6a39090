// SPDX-License-Identifier: GPL-2.0-or-later
#include "qcow2fix.h"

#include "base/container_of.h"
#include "block/qcow2/check.h"
#include "block/qcow2/qcow2.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define NEED FIX_NEED

void sector_fill(uint8_t *buf, uint32_t id)
{
	uint32_t w[SECTOR / 4];

	for (unsigned i = 0; i < SECTOR / 4; i++)
		w[i] = id ? id * 2654435761u + i * (id | 1) : 0;
	memcpy(buf, w, SECTOR);
}

bool sector_is(const uint8_t *buf, uint32_t id)
{
	uint8_t want[SECTOR];

	sector_fill(want, id);
	return !memcmp(buf, want, SECTOR);
}

void fix_backing(char path[64], uint64_t sectors)
{
	uint8_t buf[SECTOR];
	int fd;

	strcpy(path, "/tmp/kvm-backing-XXXXXX");
	fd = mkstemp(path);
	NEED(fd >= 0);
	for (uint64_t i = 0; i < sectors; i++) {
		sector_fill(buf, OF_BACKING | (uint32_t)i);
		NEED(write(fd, buf, SECTOR) == SECTOR);
	}
	close(fd);
}

int fix_image_open(struct logblk *file, bool read_only, struct blk **out, struct err *err)
{
	return qcow2_open(&file->blk, &(struct blk_options){ .read_only = read_only }, out, err);
}

void fix_create(struct fix *f, const struct qcow2_create *c)
{
	struct err err;

	f->file = logblk_new("/tmp/kvm-test.qcow2");
	if (qcow2_create(&f->file->blk, c, &err)) {
		fprintf(stderr, "%s\n", err.msg);
		abort();
	}
	f->nsectors = c->size / SECTOR;
	f->cluster = 1u << c->cluster_bits;
	f->sector = calloc(f->nsectors, sizeof(*f->sector));
	atomic_store(&f->next_id, 1);
	NEED(f->sector);
}

void fix_leak(struct fix *f, uint64_t clusters)
{
	struct blk *b;
	struct qcow2 *im;
	struct err err;
	uint64_t c, n;

	NEED(!fix_image_open(logblk_copy(f->file), false, &b, &err));
	im = qcow2_image(b);
	for (uint64_t left = clusters; left; left -= n)
		NEED(!qcow2_refs_take(im, 1, left, &c, &n));
	NEED(!qcow2_refs_write(im));
	logblk_set(f->file, ((struct logblk *)im->file)->mem, blk_size(im->file));
	NEED(!blk_truncate(&f->file->blk, (c + n) << im->cluster_bits));
	blk_close(b);
}

void fix_open(struct fix *f)
{
	struct err err;

	if (fix_image_open(f->file, false, &f->b, &err)) {
		fprintf(stderr, "%s\n", err.msg);
		abort();
	}
}

struct logblk *fix_close(struct fix *f)
{
	struct logblk *copy;
	struct err err;
	struct qcow2 *im = (struct qcow2 *)f->b;

	/* What closing does is to be seen, and the file goes with it: so the file is kept back. */
	NEED(!qcow2_worker_stop(im));
	copy = logblk_copy(f->file);
	copy->keep = false;
	blk_close(f->b);
	f->b = NULL;
	f->file = copy;
	(void)err;
	return copy;
}

void fix_free(struct fix *f)
{
	if (f->b)
		blk_close(f->b);
	else
		blk_close(&f->file->blk);
	for (uint64_t i = 0; i < f->nsectors; i++)
		free(f->sector[i].event);
	free(f->sector);
	free(f->flush);
}

/* Running. */

struct runner;

struct slot {
	struct blk_req req;
	struct runner *r;
	struct iovec iov[5];
	uint8_t *buf;
	uint64_t first, n; /* sectors */
	uint32_t id;       /* of the first sector written */
	size_t flush;      /* index */
	bool busy;
};

struct runner {
	struct fix *f;
	const struct fix_mix *m;
	unsigned index, rng, left, inflight;
	struct loop *loop;
	struct blk_queue *q;
	struct slot *slot;
	pthread_t thread;
	struct loop_task go;
};

static size_t log_now(struct fix *f)
{
	size_t n;

	pthread_mutex_lock(&f->file->lock);
	n = f->file->nlog;
	pthread_mutex_unlock(&f->file->lock);
	return n;
}

static void event_add(struct fix *f, struct sector *s, uint32_t id)
{
	if (!f->history)
		return;
	s->event = realloc(s->event, (s->nevents + 1) * sizeof(*s->event));
	NEED(s->event);
	s->event[s->nevents++] =
	        (struct sector_event){ .id = id, .began = log_now(f), .durable = SIZE_MAX, .ended = SIZE_MAX };
}

void fix_begin_history(struct fix *f)
{
	f->history = true;
	pthread_mutex_init(&f->lock, NULL);
	for (uint64_t i = 0; i < f->nsectors; i++) {
		event_add(f, &f->sector[i], f->sector[i].id);
		f->sector[i].event[0].began = f->sector[i].event[0].durable = 0;
		f->sector[i].event[0].ended = 0;
	}
}

static bool overlaps(const struct runner *r, uint64_t first, uint64_t n)
{
	for (unsigned i = 0; i < r->m->depth; i++)
		if (r->slot[i].busy && r->slot[i].req.op != BLK_FLUSH && first < r->slot[i].first + r->slot[i].n &&
		    r->slot[i].first < first + n)
			return true;
	return false;
}

/* With several threads each has every so-many-th stripe of three sectors. */
static void choose(struct runner *r, uint64_t *first, uint64_t *n)
{
	unsigned threads = r->m->threads;
	uint64_t total = r->f->nsectors, stripe;

	if (threads == 1) {
		*first = rnd(&r->rng) % 4 ? rnd(&r->rng) % total : rnd(&r->rng) % (total < 64 ? total : 64);
		*n = 1 + rnd(&r->rng) % r->m->max_sectors;
		if (*n > total - *first)
			*n = total - *first;
		return;
	}
	stripe = rnd(&r->rng) % (total / (3 * threads)) * threads + r->index;
	*first = stripe * 3 + rnd(&r->rng) % 3;
	*n = 1 + rnd(&r->rng) % (3 - *first % 3);
}

static void fill_iov(struct slot *s, unsigned *rng)
{
	uint64_t len = s->n * SECTOR, at = 0;
	unsigned n = 1 + rnd(rng) % 5;

	for (unsigned i = 0; i < n; i++) {
		uint64_t k = i + 1 < n ? (len / n) & ~(rnd(rng) % 2 ? 511ull : 3ull) : len - at;

		s->iov[i] = (struct iovec){ s->buf + at, k };
		at += k;
	}
	s->req.iov = s->iov;
	s->req.niov = n;
	for (unsigned i = 0; i < s->req.niov;) { /* pieces of length 0 are nobody's */
		if (s->iov[i].iov_len) {
			i++;
			continue;
		}
		memmove(&s->iov[i], &s->iov[i + 1], (s->req.niov - i - 1) * sizeof(s->iov[0]));
		s->req.niov--;
	}
}

static void set_model(struct slot *s, bool zero)
{
	struct fix *f = s->r->f;

	s->id = zero ? 0 : atomic_fetch_add(&f->next_id, (uint32_t)s->n);
	for (uint64_t i = 0; i < s->n; i++) {
		struct sector *k = &f->sector[s->first + i];

		k->id = zero ? 0 : s->id + (uint32_t)i;
		event_add(f, k, k->id);
		if (!zero)
			sector_fill(s->buf + i * SECTOR, k->id);
	}
}

/* May sector @s hold @buf, with all durable that had ended before @flush by the clock, or was by itself? */
static bool allowed(const struct sector *s, const uint8_t *buf, size_t flush, size_t at)
{
	unsigned first = 0;

	for (unsigned i = 0; i < s->nevents; i++)
		if (s->event[i].ended < flush || s->event[i].durable <= at)
			first = i;
	for (unsigned i = first; i < s->nevents; i++)
		if (s->event[i].began <= at && sector_is(buf, s->event[i].id))
			return true;
	return false;
}

/* The same without a crash: with a history, what failed may have been done or not, until something succeeds. */
static bool right(const struct fix *f, uint64_t i, const uint8_t *buf)
{
	const struct sector *s = &f->sector[i];

	return f->history ? allowed(s, buf, SIZE_MAX, SIZE_MAX - 1) : sector_is(buf, s->id);
}

static void runner_more(struct runner *r);

static void read_back(struct slot *s)
{
	for (uint64_t i = 0; i < s->n; i++)
		if (!right(s->r->f, s->first + i, s->buf + i * SECTOR)) {
			fprintf(stderr, "seed %u: sector %llu is not %x but %02x%02x%02x%02x\n", s->r->m->seed,
			        (unsigned long long)(s->first + i), s->r->f->sector[s->first + i].id,
			        s->buf[i * SECTOR], s->buf[i * SECTOR + 1], s->buf[i * SECTOR + 2],
			        s->buf[i * SECTOR + 3]);
			abort();
		}
}

static void note_end(struct slot *s)
{
	struct fix *f = s->r->f;
	size_t now;

	if (!f->history || s->req.op == BLK_READ)
		return;
	now = log_now(f);
	if (s->req.op == BLK_FLUSH) {
		pthread_mutex_lock(&f->lock);
		f->flush[s->flush].ended = now;
		pthread_mutex_unlock(&f->lock);
		return;
	}
	for (uint64_t i = 0; i < s->n; i++) {
		struct sector *k = &f->sector[s->first + i];

		k->event[k->nevents - 1].ended = atomic_fetch_add(&f->clock, 1) + 1;
		if (s->req.flags & BLK_FUA && s->req.op != BLK_DISCARD)
			k->event[k->nevents - 1].durable = now;
	}
}

static void on_done(struct blk_req *req, int error)
{
	struct slot *s = container_of(req, struct slot, req);

	if (error) {
		if (!s->r->f->may_fail)
			fprintf(stderr, "op %d: %s\n", req->op, strerror(-error));
		NEED(s->r->f->may_fail);
		atomic_fetch_add(&s->r->f->failed, 1);
	} else {
		if (req->op == BLK_READ && (s->r->f->history || !s->r->f->may_fail))
			read_back(s);
		note_end(s);
	}
	s->busy = false;
	s->r->inflight--;
	runner_more(s->r);
}

static void slot_flush(struct slot *s)
{
	struct fix *f = s->r->f;

	s->req.op = BLK_FLUSH;
	if (!f->history)
		return;
	pthread_mutex_lock(&f->lock);
	f->flush = realloc(f->flush, (f->nflushes + 1) * sizeof(*f->flush));
	NEED(f->flush);
	s->flush = f->nflushes;
	f->flush[f->nflushes++] = (struct fix_flush){ .began = atomic_fetch_add(&f->clock, 1), .ended = SIZE_MAX };
	pthread_mutex_unlock(&f->lock);
}

/* Whole clusters only, which then read as zeroes. */
static bool slot_discard(struct slot *s)
{
	uint64_t per = s->r->f->cluster / SECTOR, first = s->first - s->first % per, n = (s->n + per - 1) / per * per;

	if (n > s->r->f->nsectors - first)
		n = s->r->f->nsectors - first;
	if (!s->r->f->discards || s->r->m->threads > 1 || overlaps(s->r, first, n))
		return false;
	s->first = first;
	s->n = n;
	return true;
}

static void slot_start(struct slot *s)
{
	struct runner *r = s->r;
	unsigned what = rnd(&r->rng) % 100;

	s->req.flags = rnd(&r->rng) % 16 ? 0 : BLK_FUA;
	if (what < 4) {
		slot_flush(s);
	} else if (what < 34) {
		s->req.op = BLK_READ;
	} else if (what < 40 && slot_discard(s)) {
		s->req.op = BLK_DISCARD;
		set_model(s, true);
	} else if (what < 50) {
		s->req.op = BLK_WRITE_ZEROES;
		s->req.flags |= rnd(&r->rng) % 2 ? BLK_MAY_UNMAP : 0;
		set_model(s, true);
	} else {
		s->req.op = BLK_WRITE;
		set_model(s, false);
	}
	if (s->req.op == BLK_READ)
		s->req.flags = 0;
	fill_iov(s, &r->rng);
	s->req.off = s->first * SECTOR;
	s->req.len = s->n * SECTOR;
	s->req.done = on_done;
	s->busy = true;
	r->inflight++;
	blk_submit(r->q, &s->req);
}

static void runner_more(struct runner *r)
{
	for (unsigned i = 0; i < r->m->depth && r->left; i++) {
		struct slot *s = &r->slot[i];

		if (s->busy)
			continue;
		choose(r, &s->first, &s->n);
		if (overlaps(r, s->first, s->n))
			continue;
		r->left--;
		slot_start(s);
	}
	if (!r->left && !r->inflight)
		loop_quit(r->loop);
	else if (!r->inflight)
		loop_post(r->loop, &r->go); /* all choices overlapped: choose anew */
}

static void on_go(struct loop_task *t)
{
	runner_more(container_of(t, struct runner, go));
}

static void *runner_main(void *arg)
{
	struct runner *r = arg;
	struct err err;

	NEED(!(r->m->ring ? loop_new_ring : loop_new)(&r->loop, &err) &&
	     !blk_queue_open(r->f->b, r->loop, &r->q, &err));
	r->slot = calloc(r->m->depth, sizeof(*r->slot));
	NEED(r->slot);
	for (unsigned i = 0; i < r->m->depth; i++) {
		r->slot[i].r = r;
		r->slot[i].buf = malloc((r->m->max_sectors + 8ul) * SECTOR);
		NEED(r->slot[i].buf);
	}
	r->go.cb = on_go;
	loop_post(r->loop, &r->go);
	NEED(!loop_run(r->loop));
	for (unsigned i = 0; i < r->m->depth; i++)
		free(r->slot[i].buf);
	free(r->slot);
	blk_queue_close(r->q);
	loop_free(r->loop);
	return NULL;
}

void fix_run(struct fix *f, const struct fix_mix *m)
{
	struct runner r[8] = { 0 };

	NEED(m->threads >= 1 && m->threads <= 8);
	for (unsigned i = 0; i < m->threads; i++) {
		r[i] = (struct runner){ .f = f, .m = m, .index = i, .rng = m->seed * 31 + i, .left = m->n };
		NEED(!pthread_create(&r[i].thread, NULL, runner_main, &r[i]));
	}
	for (unsigned i = 0; i < m->threads; i++)
		pthread_join(r[i].thread, NULL);
}

static void complain(const struct sector *s, uint64_t i, const uint8_t *buf, size_t flush, size_t at)
{
	fprintf(stderr, "a crash at %zu, flush %zu: sector %llu holds %02x%02x%02x%02x\n", at, flush,
	        (unsigned long long)i, buf[0], buf[1], buf[2], buf[3]);
	for (unsigned k = 0; k < s->nevents; k++)
		fprintf(stderr, "  id %x%s: began at %zu, ended by %zd, durable at %zd\n", s->event[k].id,
		        sector_is(buf, s->event[k].id) ? " (this)" : "", s->event[k].began, s->event[k].ended,
		        s->event[k].durable);
}

void fix_verify(struct fix *f)
{
	uint8_t *buf = malloc(f->nsectors * SECTOR);

	NEED(buf && !blk_do(f->b, BLK_READ, 0, 0, buf, f->nsectors * SECTOR));
	for (uint64_t i = 0; i < f->nsectors; i++)
		if (!right(f, i, buf + i * SECTOR)) {
			fprintf(stderr, "sector %llu is not %x\n", (unsigned long long)i, f->sector[i].id);
			if (f->history)
				complain(&f->sector[i], i, buf + i * SECTOR, SIZE_MAX, SIZE_MAX);
			abort();
		}
	free(buf);
}

/* Crashes. */

static size_t last_flush(const struct fix *f, size_t at)
{
	size_t last = 0;

	for (size_t i = 0; i < f->nflushes; i++)
		if (f->flush[i].ended <= at && f->flush[i].began > last)
			last = f->flush[i].began;
	return last;
}

void fix_verify_crash(struct fix *f, struct logblk *file, size_t at)
{
	uint8_t *buf = malloc(f->nsectors * SECTOR);
	size_t flush = last_flush(f, at);
	struct blk *b;
	struct err err;

	fix_check(file, true);
	NEED(!fix_image_open(logblk_copy(file), true, &b, &err));
	NEED(buf && !blk_do(b, BLK_READ, 0, 0, buf, f->nsectors * SECTOR));
	for (uint64_t i = 0; i < f->nsectors; i++)
		if (!allowed(&f->sector[i], buf + i * SECTOR, flush, at)) {
			complain(&f->sector[i], i, buf + i * SECTOR, flush, at);
			abort();
		}
	blk_close(b);
	free(buf);
}

/* Checking. */

void fix_check(struct logblk *file, bool leaks)
{
	struct logblk *copy = logblk_copy(file);
	struct qcow2_check result;
	struct blk *b;
	struct err err = { .msg = "" };

	if (fix_image_open(copy, true, &b, &err) || qcow2_check((struct qcow2 *)b, 0, &result, &err)) {
		fprintf(stderr, "check: %s\n", err.msg);
		abort();
	}
	if (result.corruptions || (result.leaks && !leaks)) {
		logblk_save(file, "/tmp/kvm-test-bad.qcow2");
		fprintf(stderr, "check: %llu corruptions, %llu leaks: /tmp/kvm-test-bad.qcow2\n",
		        (unsigned long long)result.corruptions, (unsigned long long)result.leaks);
		abort();
	}
	blk_close(b);
}

static int run_shell(const char *fmt, va_list ap)
{
	char cmd[4096];
	int status;

	NEED(vsnprintf(cmd, sizeof(cmd), fmt, ap) < (int)sizeof(cmd));
	status = system(cmd); /* NOLINT(cert-env33-c) */
	NEED(status != -1 && WIFEXITED(status));
	return WEXITSTATUS(status);
}

int sh_status(const char *fmt, ...)
{
	va_list ap;
	int status;

	va_start(ap, fmt);
	status = run_shell(fmt, ap);
	va_end(ap);
	return status;
}

void sh(const char *fmt, ...)
{
	va_list ap;
	int status;

	va_start(ap, fmt);
	status = run_shell(fmt, ap);
	va_end(ap);
	if (status) {
		fprintf(stderr, "status %d: %s\n", status, fmt);
		abort();
	}
}

bool have_qemu_img(void)
{
	static int have = -1;

	if (have < 0)
		have = !sh_status("qemu-img --version >/dev/null 2>&1");
	return have;
}

bool fix_qemu_check(struct logblk *file, bool leaks)
{
	char path[64];
	int status;

	if (!have_qemu_img())
		return false;
	snprintf(path, sizeof(path), "/tmp/kvm-check-%d.qcow2", (int)getpid());
	logblk_save(file, path);
	status = sh_status("qemu-img check -f qcow2 %s >%s.log 2>&1", path, path);
	if (status && !(leaks && status == 3)) {
		sh("cat %s.log", path);
		fprintf(stderr, "qemu-img check: status %d: %s\n", status, path);
		abort();
	}
	sh("rm %s %s.log", path, path);
	return true;
}
