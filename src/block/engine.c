// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/engine.h"

#include "base/container_of.h"
#include "base/iov.h"
#include "block/block_impl.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

/*
 * How it works
 *
 * step() makes the next system call of a job, advance() books its result and
 * tells whether the job is through.
 *
 * The pool is for loops without a ring: at most POOL_THREADS, started as they
 * are needed, which take jobs in the order they came. A job that is through
 * goes onto a list of its queue, and a posted task tells its owner on the loop.
 * Threads end when the image is closed; that is only done with no job left.
 */

#define POOL_THREADS 16
#define ZERO_CHUNK   (1u << 20)

struct engine {
	pthread_mutex_t lock;
	pthread_cond_t more;
	/* [m] */
	struct blk_job *jobs, **jobs_end;
	unsigned njobs, nidle, nthreads;
	bool quit;
	pthread_t thread[POOL_THREADS];
};

struct engine_queue {
	struct engine *engine; /* [c] */
	struct blk_queue *q;   /* [c] */
	pthread_mutex_t lock;
	struct blk_job *through, **through_end; /* [m] done() is due */
	struct loop_task task;
};

/* Of all images; never written to, so no memory either. */
static uint8_t zeroes[ZERO_CHUNK] __attribute__((aligned(4096)));

static void start_zero(struct blk_job *j)
{
	j->one = (struct iovec){ .iov_base = zeroes, .iov_len = j->left < ZERO_CHUNK ? j->left : ZERO_CHUNK };
	j->iov = &j->one;
	j->niov = 1;
}

/* Page by page where there are pages: O_DIRECT has no smaller halves. */
static size_t half_of(size_t n)
{
	return n > 4096 ? (n / 2 + 4095) / 4096 * 4096 : (n + 1) / 2;
}

/* One system call; bytes or -errno. */
static ssize_t step(struct blk_job *j)
{
	struct iovec half;
	const struct iovec *iov = j->iov;
	unsigned niov = j->niov;
	ssize_t n = 0;

	if (j->flags & JOB_CUT && niov) {
		half = (struct iovec){ .iov_base = iov->iov_base, .iov_len = half_of(iov->iov_len) };
		iov = &half;
		niov = 1;
	}
	switch ((enum job_kind)j->kind) {
	case JOB_READ: n = preadv(j->fd, iov, (int)niov, (off_t)j->off); break;
	case JOB_WRITE:
	case JOB_ZERO: n = pwritev(j->fd, iov, (int)niov, (off_t)j->off); break;
	case JOB_ALLOCATE: n = fallocate(j->fd, j->mode, (off_t)j->off, (off_t)j->left); break;
	case JOB_SYNC: n = fdatasync(j->fd); break;
	}
	return n < 0 ? -errno : n;
}

static bool transfers(const struct blk_job *j)
{
	return j->kind == JOB_READ || j->kind == JOB_WRITE || j->kind == JOB_ZERO;
}

/* Books the result of a step: true when the job is through. */
static bool advance(struct blk_job *j, ssize_t n)
{
	if (n == -EINTR || n == -EAGAIN)
		return false;
	j->error = n < 0 ? (int)n : 0;
	if (n < 0 || !transfers(j))
		return true;
	if (!n && j->kind != JOB_READ)
		j->error = -EIO; /* the host took nothing and gave no reason */
	if (!n)
		return true;
	j->flags &= ~JOB_CUT;
	j->off += (size_t)n;
	j->left -= (size_t)n;
	iov_skip(&j->iov, &j->niov, (size_t)n);
	if (j->kind == JOB_ZERO && j->left && !j->niov)
		start_zero(j);
	return !j->left;
}

static void carry_out(struct blk_job *j)
{
	while (!advance(j, step(j)))
		;
}

/* The pool. */

static void push(struct blk_job ***end, struct blk_job *j)
{
	j->next = NULL;
	**end = j;
	*end = &j->next;
}

static void tell_through(struct engine_queue *eq, struct blk_job *j)
{
	bool first;

	pthread_mutex_lock(&eq->lock);
	first = !eq->through;
	push(&eq->through_end, j);
	if (first)
		loop_post(eq->q->loop, &eq->task); /* under the lock: once it is seen, the queue may be closed */
	pthread_mutex_unlock(&eq->lock);
}

static void on_through(struct loop_task *t)
{
	struct engine_queue *eq = container_of(t, struct engine_queue, task);
	struct blk_job *j;

	pthread_mutex_lock(&eq->lock);
	j = eq->through;
	eq->through = NULL;
	eq->through_end = &eq->through;
	pthread_mutex_unlock(&eq->lock);
	while (j) {
		struct blk_job *next = j->next;

		j->done(j, j->error);
		j = next;
	}
}

/* Under the lock. Waits for a job; NULL: the end. */
static struct blk_job *take_job(struct engine *e)
{
	struct blk_job *j;

	e->nidle++;
	while (!e->jobs && !e->quit)
		pthread_cond_wait(&e->more, &e->lock);
	e->nidle--;
	j = e->jobs;
	if (j) {
		e->njobs--;
		e->jobs = j->next;
		if (!e->jobs)
			e->jobs_end = &e->jobs;
	}
	return j;
}

static void *pool_thread(void *arg)
{
	struct engine *e = arg;
	struct blk_job *j;

	pthread_mutex_lock(&e->lock);
	while ((j = take_job(e))) {
		pthread_mutex_unlock(&e->lock);
		carry_out(j);
		tell_through(j->owner, j);
		pthread_mutex_lock(&e->lock);
	}
	pthread_mutex_unlock(&e->lock);
	return NULL;
}

/* Under the lock. Signals are for other threads. */
static void add_thread(struct engine *e)
{
	sigset_t all, old;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	if (!pthread_create(&e->thread[e->nthreads], NULL, pool_thread, e))
		e->nthreads++;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* False: there is no thread, nor can one be had. */
static bool pool_start(struct engine *e, struct blk_job *j)
{
	bool ok;

	pthread_mutex_lock(&e->lock);
	if (e->njobs >= e->nidle && e->nthreads < POOL_THREADS)
		add_thread(e);
	ok = e->nthreads;
	if (ok) {
		e->njobs++;
		push(&e->jobs_end, j);
		pthread_cond_signal(&e->more);
	}
	pthread_mutex_unlock(&e->lock);
	return ok;
}

void engine_start(struct engine_queue *eq, struct blk_job *j)
{
	j->owner = eq;
	j->error = 0;
	if (j->kind == JOB_ZERO)
		start_zero(j);
	if (eq->q->blocks) {
		carry_out(j);
		j->done(j, j->error);
	} else if (!pool_start(eq->engine, j)) {
		carry_out(j); /* a host without a thread to spare: slowly, then */
		tell_through(eq, j);
	}
}

int engine_new(struct engine **out, struct err *err)
{
	struct engine *e = calloc(1, sizeof(*e));

	if (!e)
		return err_set(err, -ENOMEM, "out of memory");
	pthread_mutex_init(&e->lock, NULL);
	pthread_cond_init(&e->more, NULL);
	e->jobs_end = &e->jobs;
	*out = e;
	return 0;
}

void engine_free(struct engine *e)
{
	if (!e)
		return;
	pthread_mutex_lock(&e->lock);
	assert(!e->jobs);
	e->quit = true;
	pthread_cond_broadcast(&e->more);
	pthread_mutex_unlock(&e->lock);
	for (unsigned i = 0; i < e->nthreads; i++)
		pthread_join(e->thread[i], NULL);
	pthread_cond_destroy(&e->more);
	pthread_mutex_destroy(&e->lock);
	free(e);
}

int engine_queue_open(struct engine *e, struct blk_queue *q, struct engine_queue **out, struct err *err)
{
	struct engine_queue *eq = calloc(1, sizeof(*eq));

	if (!eq)
		return err_set(err, -ENOMEM, "out of memory");
	eq->engine = e;
	eq->q = q;
	eq->through_end = &eq->through;
	eq->task.cb = on_through;
	pthread_mutex_init(&eq->lock, NULL);
	*out = eq;
	return 0;
}

void engine_queue_close(struct engine_queue *eq)
{
	if (!eq)
		return;
	loop_task_del(eq->q->loop, &eq->task);
	pthread_mutex_destroy(&eq->lock);
	free(eq);
}
