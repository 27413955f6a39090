// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/bench.h"

#include "base/clock.h"
#include "base/container_of.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/*
 * How it works
 *
 * Each queue has a thread with a loop of its own. When all are ready they start
 * together; each makes its share of the requests, every nth of the whole
 * sequence. A slot is a request with its memory: when it has ended it is
 * submitted again, as the next one. With a flush interval no slot goes on past
 * the end of a batch; the last to end there is submitted as the flush.
 */

#define FILL 0xa5 /* of what is written: not zeroes, which some store in less */

struct slot {
	struct blk_req req;
	struct iovec iov;
	struct worker *w;
	void *buf;
};

struct run {
	const struct bench *b;
	struct blk *image;
	pthread_mutex_t gate; /* held until all threads are there, which @ready counts */
	pthread_barrier_t ready;
	atomic_bool failed; /* somebody could not be set up, or a request failed: no more are made */
};

struct worker {
	struct run *run;
	pthread_t thread;
	struct loop *loop;
	struct loop_task begin;
	struct blk_queue *q;
	struct slot *slot;
	uint64_t next, left;      /* request's number, requests to be made */
	uint64_t batch;           /* writes that may be made before the next flush */
	unsigned inflight, idle;  /* idle: slots */
	struct slot **idle_slots; /* depth of them */
	uint64_t flushes, seed, end_ns;
	struct err err;
	int error;
};

static uint64_t random_number(struct worker *w)
{
	w->seed ^= w->seed << 13;
	w->seed ^= w->seed >> 7;
	w->seed ^= w->seed << 17;
	return w->seed;
}

static uint64_t next_off(struct worker *w)
{
	const struct bench *b = w->run->b;
	uint64_t size = blk_size(w->run->image), n = w->next, off;

	w->next += b->queues;
	if (b->random)
		return b->off + random_number(w) % ((size - b->off - b->size) / b->step + 1) * b->step;
	off = (uint64_t)((b->off + (unsigned __int128)n * b->step) % size);
	return off <= size - b->size ? off : 0;
}

static void start(struct slot *s)
{
	struct worker *w = s->w;
	const struct bench *b = w->run->b;

	s->iov = (struct iovec){ .iov_base = s->buf, .iov_len = b->size };
	s->req.op = b->write ? BLK_WRITE : BLK_READ;
	s->req.iov = &s->iov;
	s->req.niov = 1;
	s->req.off = next_off(w);
	s->req.len = b->size;
	w->left--;
	w->batch--;
	w->inflight++;
	blk_submit(w->q, &s->req);
}

static void start_flush(struct worker *w)
{
	struct slot *s = w->idle_slots[--w->idle];

	s->req.op = BLK_FLUSH;
	w->batch = w->run->b->flush_interval;
	w->flushes++;
	w->inflight++;
	blk_submit(w->q, &s->req);
}

/* While a flush is on its way nothing else is. */
static void go_on(struct worker *w)
{
	if (atomic_load_explicit(&w->run->failed, memory_order_relaxed))
		w->left = 0;
	else if (!w->batch && !w->inflight)
		start_flush(w);
	else
		while (w->left && w->batch && w->idle)
			start(w->idle_slots[--w->idle]);
	if (!w->inflight)
		loop_quit(w->loop);
}

static void on_done(struct blk_req *r, int error)
{
	struct slot *s = container_of(r, struct slot, req);
	struct worker *w = s->w;

	w->inflight--;
	w->idle_slots[w->idle++] = s;
	if (error) {
		w->error = error;
		atomic_store(&w->run->failed, true);
	}
	go_on(w);
}

/* Threads. */

static int make_slots(struct worker *w)
{
	const struct bench *b = w->run->b;

	w->slot = calloc(b->depth, sizeof(*w->slot));
	w->idle_slots = calloc(b->depth, sizeof(struct slot *));
	if (!w->slot || !w->idle_slots)
		return err_set(&w->err, -ENOMEM, "out of memory");
	for (; w->idle < b->depth; w->idle++) {
		struct slot *s = &w->slot[w->idle];

		if (posix_memalign(&s->buf, 4096, b->size)) {
			s->buf = NULL;
			return err_set(&w->err, -ENOMEM, "out of memory");
		}
		memset(s->buf, FILL, b->size);
		s->w = w;
		s->req.done = on_done;
		w->idle_slots[w->idle] = s;
	}
	return 0;
}

static void free_slots(struct worker *w)
{
	for (unsigned i = 0; w->slot && i < w->run->b->depth; i++)
		free(w->slot[i].buf);
	free(w->slot);
	free(w->idle_slots);
}

static void set_up(struct worker *w)
{
	w->error = make_slots(w);
	if (!w->error)
		w->error = loop_new_ring(&w->loop, &w->err);
	if (!w->error)
		w->error = blk_queue_open(w->run->image, w->loop, &w->q, &w->err);
	if (w->error)
		atomic_store(&w->run->failed, true);
}

static void on_begin(struct loop_task *t)
{
	go_on(container_of(t, struct worker, begin));
}

static void *work(void *arg)
{
	struct worker *w = arg;
	struct run *run = w->run;
	int error = 0;

	pthread_mutex_lock(&run->gate);
	pthread_mutex_unlock(&run->gate);
	set_up(w);
	pthread_barrier_wait(&run->ready);
	pthread_barrier_wait(&run->ready); /* the clock has been read */
	if (!atomic_load(&run->failed)) {
		w->begin.cb = on_begin;
		loop_post(w->loop, &w->begin); /* a loop that does not run yet holds some hundreds of requests only */
		error = loop_run(w->loop);
	}
	if (error)
		w->error = error;
	w->end_ns = clock_ns();
	blk_queue_close(w->q);
	loop_free(w->loop);
	free_slots(w);
	return NULL;
}

static uint64_t cpu_ns(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000000ull +
	       (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1000ull;
}

/* What of it does not fit, or NULL. */
static const char *misfit(const struct blk *image, const struct bench *b)
{
	uint64_t size = blk_size(image);

	if (!b->size || b->size > size || b->off > size - b->size)
		return "the disk is too small for such a request";
	if ((b->size | b->off | b->step) & (blk_info(image)->granule - 1))
		return "offset, size and step must be multiples of 512";
	if (b->write && blk_info(image)->read_only)
		return "it is read-only";
	return NULL;
}

/* How many threads there are then. */
static unsigned start_threads(struct run *run, struct worker *w)
{
	const struct bench *b = run->b;
	unsigned i;

	for (i = 0; i < b->queues; i++) {
		w[i] = (struct worker){ .run = run, .next = i, .seed = 0x9e3779b97f4a7c15ull * (i + 1) };
		w[i].left = b->count / b->queues + (i < b->count % b->queues);
		w[i].batch = b->flush_interval ? b->flush_interval : UINT64_MAX;
		if (pthread_create(&w[i].thread, NULL, work, &w[i]))
			break;
	}
	return i;
}

static void measure(struct run *run, struct worker *w, unsigned n, struct bench_result *out)
{
	uint64_t start, cpu;

	pthread_barrier_wait(&run->ready);
	start = clock_ns();
	cpu = cpu_ns();
	pthread_barrier_wait(&run->ready);
	for (unsigned i = 0; i < n; i++) {
		pthread_join(w[i].thread, NULL);
		out->flushes += w[i].flushes;
		if (w[i].end_ns - start > out->ns)
			out->ns = w[i].end_ns - start;
	}
	out->cpu_ns = cpu_ns() - cpu;
}

/* The first worker's that has one. */
static int take_error(struct run *run, const struct worker *w, unsigned n, struct err *err)
{
	const char *name = blk_name(run->image);

	for (unsigned i = 0; i < n; i++)
		if (w[i].error)
			return err_set(err, w[i].error, "%s: %s", name,
			               w[i].err.msg[0] ? w[i].err.msg : strerror(-w[i].error));
	return n < run->b->queues ? err_set(err, -EAGAIN, "%s: no more threads to be had", name) : 0;
}

int bench_run(struct blk *image, const struct bench *b, struct bench_result *out, struct err *err)
{
	struct run run = { .b = b, .image = image };
	struct worker *w;
	const char *why = misfit(image, b);
	unsigned n;
	int error;

	*out = (struct bench_result){ 0 };
	if (why)
		return err_set(err, -EINVAL, "%s: %s", blk_name(image), why);
	w = calloc(b->queues, sizeof(*w));
	if (!w)
		return err_set(err, -ENOMEM, "out of memory");
	pthread_mutex_init(&run.gate, NULL);
	pthread_mutex_lock(&run.gate);
	n = start_threads(&run, w);
	pthread_barrier_init(&run.ready, NULL, n + 1);
	atomic_store(&run.failed, n < b->queues);
	pthread_mutex_unlock(&run.gate);
	measure(&run, w, n, out);
	error = take_error(&run, w, n, err);
	pthread_barrier_destroy(&run.ready);
	pthread_mutex_destroy(&run.gate);
	free(w);
	return error;
}
