// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/engine.h"

#include "base/clock.h"
#include "base/container_of.h"
#include "base/iov.h"
#include "base/workers.h"
#include "block/block_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

/*
 * How it works
 *
 * step() makes the next system call of a job, advance() books its result and
 * tells whether the job is through.
 *
 * What only copies to or from the host's page cache is done on the spot: the
 * ring would hand cached writes, and on some file systems reads, to a kernel
 * thread, which costs ten times as much as the copying. Reads are asked not to
 * wait; where the page is not there they go on like the others. Writes may have
 * to wait when the host has more dirty pages than it likes. One that took long
 * sends those of the next moments the other way, so that the loop stays awake.
 *
 * On a loop with a ring a step is an operation of the ring; it goes out when
 * the loop goes to sleep, together with all others.
 *
 * The pool is for loops without a ring: at most POOL_THREADS, started as they
 * are needed, which take jobs in the order they came. A job that is through
 * goes onto a list of its queue, and a posted task tells its owner on the loop.
 * Threads end when the image is closed; that is only done with no job left.
 */

#define POOL_THREADS 16
#define ZERO_CHUNK   (1u << 20)
#define RING_MAX     (1u << 30)
#define SPOT_MAX     (8u << 20) /* bytes of a job that is done on the spot */
#define LONG_NS      2000000u   /* a write that takes this long has waited */
#define DETOUR_NS    100000000u /* for how long others then take the other way */

struct engine {
	struct workers *pool; /* [c] */
};

struct engine_queue {
	struct engine *engine; /* [c] */
	struct blk_queue *q;   /* [c] */
	uint64_t detour;       /* [l] cached writes wait until then (clock_ns()) */
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

/* O_DIRECT has no halves of pages. */
static size_t half_of(const struct blk_job *j, size_t n)
{
	return j->flags & JOB_CACHED ? (n + 1) / 2 : (n / 2 + 4095) / 4096 * 4096;
}

/* What the next transfer is asked to move: the job's list, or half of its first piece in @cut. */
static const struct iovec *pieces(const struct blk_job *j, struct iovec *cut, unsigned *n)
{
	*n = j->niov;
	if (!(j->flags & JOB_CUT) || !j->niov || !j->iov->iov_len)
		return j->iov;
	*cut = (struct iovec){ .iov_base = j->iov->iov_base, .iov_len = half_of(j, j->iov->iov_len) };
	if (cut->iov_len >= j->iov->iov_len)
		return j->iov;
	*n = 1;
	return cut;
}

/* One system call; bytes or -errno. */
static ssize_t step(struct blk_job *j)
{
	struct iovec cut;
	unsigned niov;
	const struct iovec *iov = pieces(j, &cut, &niov);
	ssize_t n = 0;

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

/* On the spot. */

static bool read_cached(struct blk_job *j)
{
	struct iovec cut;
	unsigned niov;
	const struct iovec *iov = pieces(j, &cut, &niov);
	ssize_t n = preadv2(j->fd, iov, (int)niov, (off_t)j->off, RWF_NOWAIT);

	if (n < 0)
		n = errno == EOPNOTSUPP ? -EAGAIN : -errno;
	return advance(j, n);
}

static bool write_cached(struct engine_queue *eq, struct blk_job *j)
{
	uint64_t start = clock_ns(), end;
	bool through;

	if (start < eq->detour)
		return false;
	through = advance(j, step(j));
	end = clock_ns();
	if (end - start > LONG_NS)
		eq->detour = end + DETOUR_NS;
	return through;
}

/* True: the job is through. */
static bool do_at_once(struct engine_queue *eq, struct blk_job *j)
{
	bool spot = eq->q->blocks || (j->flags & JOB_MEMORY && j->left <= SPOT_MAX);

	if (spot)
		carry_out(j);
	if (spot || !(j->flags & JOB_CACHED) || j->left > SPOT_MAX)
		return spot;
	if (j->kind == JOB_READ)
		return read_cached(j);
	return j->kind == JOB_WRITE && write_cached(eq, j);
}

/* The ring. */

/* One piece is cheaper than a list of one. A piece may be longer than an operation can say. */
static void prepare_transfer(struct io_uring_sqe *sqe, struct blk_job *j)
{
	struct iovec cut;
	unsigned niov;
	const struct iovec *iov = pieces(j, &cut, &niov);
	unsigned len = iov->iov_len < RING_MAX ? (unsigned)iov->iov_len : RING_MAX;

	if (j->kind == JOB_READ && niov == 1)
		io_uring_prep_read(sqe, j->fd, iov->iov_base, len, j->off);
	else if (j->kind == JOB_READ)
		io_uring_prep_readv(sqe, j->fd, iov, niov, j->off);
	else if (niov == 1)
		io_uring_prep_write(sqe, j->fd, iov->iov_base, len, j->off);
	else
		io_uring_prep_writev(sqe, j->fd, iov, niov, j->off);
}

static void on_completed(struct loop_io *io, int res);

static void ring_step(struct blk_job *j)
{
	struct io_uring_sqe *sqe = loop_sqe(j->owner->q->loop);

	j->io.cb = on_completed;
	switch ((enum job_kind)j->kind) {
	case JOB_READ:
	case JOB_WRITE:
	case JOB_ZERO: prepare_transfer(sqe, j); break;
	case JOB_ALLOCATE: io_uring_prep_fallocate(sqe, j->fd, j->mode, (off_t)j->off, (off_t)j->left); break;
	case JOB_SYNC: io_uring_prep_fsync(sqe, j->fd, IORING_FSYNC_DATASYNC); break;
	}
	io_uring_sqe_set_data(sqe, &j->io);
}

static void on_completed(struct loop_io *io, int res)
{
	struct blk_job *j = container_of(io, struct blk_job, io);

	if (advance(j, res))
		j->done(j, j->error);
	else
		ring_step(j);
}

/* The pool. */

static void tell_through(struct engine_queue *eq, struct blk_job *j)
{
	bool first;

	pthread_mutex_lock(&eq->lock);
	first = !eq->through;
	j->next = NULL;
	*eq->through_end = j;
	eq->through_end = &j->next;
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

static void on_worker(struct work *w)
{
	struct blk_job *j = container_of(w, struct blk_job, work);

	carry_out(j);
	tell_through(j->owner, j);
}

void engine_start(struct engine_queue *eq, struct blk_job *j)
{
	j->owner = eq;
	j->error = 0;
	if (j->kind == JOB_ZERO)
		start_zero(j);
	if (do_at_once(eq, j)) {
		j->done(j, j->error);
	} else if (loop_has_ring(eq->q->loop)) {
		ring_step(j);
	} else {
		j->work.run = on_worker;
		if (!workers_give(eq->engine->pool, &j->work))
			on_worker(&j->work); /* a host without a thread to spare: slowly, then */
	}
}

int engine_new(struct engine **out, struct err *err)
{
	struct engine *e = calloc(1, sizeof(*e));

	if (e)
		e->pool = workers_new(POOL_THREADS);
	if (!e || !e->pool) {
		free(e);
		return err_set(err, -ENOMEM, "out of memory");
	}
	*out = e;
	return 0;
}

void engine_free(struct engine *e)
{
	if (!e)
		return;
	workers_free(e->pool);
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

struct blk_queue *engine_queue_blk(const struct engine_queue *eq)
{
	return eq->q;
}
