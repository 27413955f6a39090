// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/block_impl.h"

#include "base/container_of.h"
#include "base/iov.h"
#include "block/engine.h"
#include "block/fault.h"
#include "block/guard.h"
#include "block/host_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * How it works
 *
 * The bottom of every image: requests become jobs of the engine on a
 * descriptor. With cache=none there are two descriptors of the same file. What
 * O_DIRECT forbids because of the memory is copied to memory that it likes. What
 * it forbids because of offset or length goes through the page cache by the
 * other descriptor, where the kernel merges it with what is around it; it keeps
 * the two coherent, page by page.
 *
 * Flushes are grouped. @dirty says that something was finished since the last
 * fdatasync began; a flush that finds it false and no fdatasync at work is free.
 * At most one fdatasync is at work. Flushes that come meanwhile wait, whatever
 * queue they come from, and the next one serves all of them; it runs on the
 * queue of the first of them, which has its flush in flight for that long. A
 * durable write (BLK_FUA, cache=writethrough) is a write, then such a flush.
 *
 * Once an fdatasync has failed nobody knows what is on the disk, and the kernel
 * tells only once: every later flush fails too.
 */

#define BOUNCE_ALIGN 4096u

struct flusher {
	pthread_mutex_t lock;
	struct blk_req *waiting, **waiting_end; /* [m] for an fdatasync that has not begun */
	struct blk_req *served;                 /* [m] by the one at work */
	struct file_queue *leader;              /* [l] of the one at work */
	bool busy;                              /* [m] one is at work, or its leader is asked to start it */
	int failed;                             /* [m] 0 or the -errno that all flushes end in */
	atomic_bool dirty;
	struct blk_job job;
};

struct file {
	struct blk blk;
	struct host_file host;
	enum blk_file_use use;
	bool write_through, unsafe, no_discard;
	atomic_bool no_zero_range; /* the file system cannot; zeroes are written */
	struct engine *engine;
	struct fault *fault; /* NULL: none was ordered */
	struct guard guard;
	struct flusher flush;
};

/* A queue's own. */
struct file_queue {
	struct file *file;
	struct blk_queue *q;
	struct engine_queue *engine;
	struct host_fds fds;   /* the file's own for the first queue */
	struct loop_task lead; /* start the next fdatasync */
};

static struct file_queue *queue_of(struct blk_req *r)
{
	return r->queue->priv;
}

/* Jobs. */

static bool offsets_aligned(const struct file *f, const struct blk_job *j)
{
	return !((j->off | j->left) & (f->blk.info.align - 1));
}

static bool memory_aligned(const struct file *f, const struct blk_job *j)
{
	uintptr_t mem = 0;

	for (unsigned i = 0; i < j->niov; i++)
		mem |= (uintptr_t)j->iov[i].iov_base | j->iov[i].iov_len;
	return !(mem & (f->blk.info.mem_align - 1));
}

static void start_job(struct file_queue *fq, struct blk_job *j)
{
	if (fq->file->fault && !fq->q->blocks)
		fault_start(fq->file->fault, fq->engine, j);
	else
		engine_start(fq->engine, j);
}

static struct blk_req *req_of(struct blk_job *j)
{
	return container_of(j, struct blk_req, job);
}

static void on_read(struct blk_job *j, int error);
static void on_written(struct blk_job *j, int error);

static void on_bounced(struct blk_job *j, int error)
{
	struct blk_req *r = req_of(j);
	uint64_t moved = j->off - r->off;

	if (r->op == BLK_READ) {
		j->iov = r->iov;
		j->niov = r->niov;
		iov_put(j->iov, j->niov, 0, r->priv, moved);
		iov_skip(&j->iov, &j->niov, moved);
	}
	free(r->priv);
	if (r->op == BLK_READ)
		on_read(j, error);
	else
		on_written(j, error);
}

/* False: no memory. */
static bool bounce(struct blk_req *r)
{
	struct blk_job *j = &r->job;

	r->priv = aligned_alloc(BOUNCE_ALIGN, j->left + (-j->left & (BOUNCE_ALIGN - 1)));
	if (!r->priv)
		return false;
	if (r->op == BLK_WRITE)
		iov_get(j->iov, j->niov, 0, r->priv, j->left);
	j->one = (struct iovec){ .iov_base = r->priv, .iov_len = j->left };
	j->iov = &j->one;
	j->niov = 1;
	j->done = on_bounced;
	return true;
}

static void start(struct blk_req *r, enum job_kind kind, void (*done)(struct blk_job *j, int error))
{
	struct file_queue *fq = queue_of(r);
	const struct host_file *h = &fq->file->host;
	struct blk_job *j = &r->job;
	bool by_offset = kind == JOB_ALLOCATE || offsets_aligned(fq->file, j);

	j->kind = kind;
	j->done = done;
	j->fd = by_offset ? fq->fds.fd : fq->fds.cached;
	j->flags = (h->in_memory ? JOB_MEMORY : 0) | (j->fd == fq->fds.cached ? JOB_CACHED : 0);
	if (by_offset && !memory_aligned(fq->file, j) && !bounce(r))
		done(j, -ENOMEM);
	else
		start_job(fq, j);
}

/* Flushes. */

static void on_synced(struct blk_job *j, int error);

/* On the loop of @fq, which has one of those that wait in flight. */
static void begin_sync(struct file_queue *fq)
{
	struct flusher *fl = &fq->file->flush;
	struct blk_job *j = &fl->job;

	fl->leader = fq;
	pthread_mutex_lock(&fl->lock);
	assert(fl->busy && !fl->served && fl->waiting);
	fl->served = fl->waiting;
	fl->waiting = NULL;
	fl->waiting_end = &fl->waiting;
	pthread_mutex_unlock(&fl->lock);
	atomic_store(&fl->dirty, false); /* what is finished from now on may or may not be covered */
	/* Always this descriptor: one that was opened later does not hear of errors before. */
	*j = (struct blk_job){ .kind = JOB_SYNC, .fd = fq->file->host.fd, .done = on_synced };
	j->flags = fq->file->host.in_memory ? JOB_MEMORY : 0;
	start_job(fq, j);
}

static void on_lead(struct loop_task *t)
{
	begin_sync(container_of(t, struct file_queue, lead));
}

static void end_all(struct blk_req *r, const struct blk_queue *here, int error)
{
	while (r) {
		struct blk_req *next = r->next; /* whoever is told may go away */

		if (r->queue == here)
			blk_req_end(r, error);
		else
			blk_req_post(r, error);
		r = next;
	}
}

static void on_synced(struct blk_job *j, int error)
{
	struct flusher *fl = container_of(j, struct flusher, job);
	const struct blk_queue *here = fl->leader->q;
	struct blk_req *served, *free = NULL;
	struct file_queue *leader = NULL;

	pthread_mutex_lock(&fl->lock);
	fl->failed = error;
	served = fl->served;
	fl->served = NULL;
	if (error || !atomic_load(&fl->dirty)) {
		free = fl->waiting; /* what they wait for was finished before this one began, or is lost */
		fl->waiting = NULL;
		fl->waiting_end = &fl->waiting;
	}
	if (fl->waiting)
		leader = queue_of(fl->waiting);
	fl->busy = leader;
	pthread_mutex_unlock(&fl->lock);
	if (leader)
		loop_post(leader->q->loop, &leader->lead);
	end_all(served, here, error);
	end_all(free, here, error);
}

/* Ends @r once all that is finished now is durable. */
static void flush(struct blk_req *r)
{
	struct file_queue *fq = queue_of(r);
	struct flusher *fl = &fq->file->flush;
	bool lead = false, wait = false;
	int failed;

	pthread_mutex_lock(&fl->lock);
	failed = fl->failed;
	if (!failed && !fq->file->unsafe && (fl->busy || atomic_load(&fl->dirty))) {
		wait = true;
		r->next = NULL;
		*fl->waiting_end = r;
		fl->waiting_end = &r->next;
		lead = !fl->busy;
		fl->busy = true;
	}
	pthread_mutex_unlock(&fl->lock);
	if (!wait)
		blk_req_end(r, failed);
	else if (lead)
		begin_sync(fq);
}

/* Reads. */

static void on_read(struct blk_job *j, int error)
{
	struct blk_req *r = req_of(j);

	if (!error && j->left) { /* the end of the file */
		if (queue_of(r)->file->use == BLK_FILE_GROWS)
			iov_zero(j->iov, j->niov, 0, j->left);
		else
			error = -EIO; /* somebody made it shorter */
	}
	blk_req_end(r, error);
}

/* Writes of all kinds. */

static void grow(struct file *f, uint64_t end)
{
	uint64_t size = atomic_load(&f->blk.size);

	while (f->use == BLK_FILE_GROWS && size < end && !atomic_compare_exchange_weak(&f->blk.size, &size, end))
		;
}

/* The host has done it, or a part of it. */
static void written(struct blk_req *r, int error)
{
	struct file *f = queue_of(r)->file;

	if (!atomic_load(&f->flush.dirty))
		atomic_store(&f->flush.dirty, true);
	if (!error && !(r->op == BLK_DISCARD || (r->op == BLK_WRITE_ZEROES && r->job.mode & FALLOC_FL_KEEP_SIZE)))
		grow(f, r->off + r->len);
	if (!error && (f->write_through || r->flags & BLK_FUA))
		flush(r);
	else
		blk_req_end(r, error);
}

static void on_written(struct blk_job *j, int error)
{
	written(req_of(j), error);
}

/* Where the bytes of the host end for @r. */
static uint64_t end_of(const struct file *f, const struct blk_req *r)
{
	uint64_t end = r->off + r->len;

	if (f->use == BLK_FILE_GROWS || end <= f->host.size)
		return end;
	return f->host.size > r->off ? f->host.size : r->off;
}

/* Bytes 0 to 511 of a guarded file are written from a copy, which was looked at; then comes the rest. */
static void on_head_written(struct blk_job *j, int error)
{
	struct blk_req *r = req_of(j);

	free(r->priv);
	j->left = end_of(queue_of(r)->file, r) - j->off;
	j->iov = r->iov;
	j->niov = r->niov;
	iov_skip(&j->iov, &j->niov, j->off - r->off);
	if (error || !j->left)
		written(r, error);
	else
		start(r, JOB_WRITE, on_written);
}

static void write_guarded(struct blk_req *r)
{
	struct file *f = queue_of(r)->file;
	size_t n = r->job.left < GUARD_LEN - r->off ? r->job.left : GUARD_LEN - r->off;
	int error;

	r->priv = aligned_alloc(BOUNCE_ALIGN, BOUNCE_ALIGN);
	error = r->priv ? guard_write(&f->guard, r->off, r->iov, r->niov, r->priv, n) : -ENOMEM;
	if (error) {
		free(r->priv);
		blk_req_end(r, error);
		return;
	}
	r->job.one = (struct iovec){ .iov_base = r->priv, .iov_len = n };
	r->job.iov = &r->job.one;
	r->job.niov = 1;
	r->job.left = n;
	start(r, JOB_WRITE, on_head_written);
}

static void on_zeroed(struct blk_job *j, int error)
{
	struct blk_req *r = req_of(j);
	struct file *f = queue_of(r)->file;

	if (error != -EOPNOTSUPP || r->op == BLK_DISCARD) {
		written(r, error);
		return;
	}
	if (!(j->mode & FALLOC_FL_PUNCH_HOLE))
		atomic_store(&f->no_zero_range, true);
	j->mode = 0;
	start(r, JOB_ZERO, on_written);
}

/* To whole sectors of the device. */
static void shrink(struct blk_job *j, uint32_t sector)
{
	uint64_t end = (j->off + j->left) & ~(uint64_t)(sector - 1);

	j->off += -j->off & (sector - 1);
	j->left = end > j->off ? end - j->off : 0;
}

static void zero(struct blk_req *r)
{
	struct file *f = queue_of(r)->file;
	bool hole = r->op == BLK_DISCARD || (r->flags & BLK_MAY_UNMAP && !f->no_discard);

	if (f->use == BLK_FILE_GUARDED && guard_zero(&f->guard, r->off, r->len)) {
		blk_req_end(r, -EIO);
		return;
	}
	r->job.niov = 0;
	if (hole)
		r->job.mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
	else
		r->job.mode = FALLOC_FL_ZERO_RANGE | (f->use == BLK_FILE_GROWS ? 0 : FALLOC_FL_KEEP_SIZE);
	if (r->op == BLK_DISCARD)
		shrink(&r->job, f->host.sector);
	if (!r->job.left)
		blk_req_end(r, 0);
	else if ((hole || !atomic_load(&f->no_zero_range)) && !((r->job.off | r->job.left) & (f->host.sector - 1)))
		start(r, JOB_ALLOCATE, on_zeroed);
	else
		start(r, JOB_ZERO, on_written);
}

/*
 * Cuts the job of a request down to the bytes that there are, in a file whose
 * length is no multiple of 512: what lies past them is zero. 0 or -ENOSPC.
 */
static int clip(const struct file *f, struct blk_req *r)
{
	struct blk_job *j = &r->job;
	uint64_t n = end_of(f, r) - r->off, past = r->len - n;

	if (!past)
		return 0;
	if (r->op == BLK_WRITE && !iov_is_zero(r->iov, r->niov, n, past))
		return -ENOSPC;
	if (r->op == BLK_READ)
		iov_zero(r->iov, r->niov, n, past);
	if (r->op == BLK_READ || r->op == BLK_WRITE)
		iov_trim(j->iov, &j->niov, n);
	j->left = n;
	return 0;
}

static void start_kind(struct file *f, struct blk_req *r)
{
	if (r->op == BLK_READ)
		start(r, JOB_READ, on_read);
	else if (r->op != BLK_WRITE)
		zero(r);
	else if (f->use == BLK_FILE_GUARDED && r->off < GUARD_LEN)
		write_guarded(r);
	else
		start(r, JOB_WRITE, on_written);
}

static void file_submit(struct blk_queue *q, struct blk_req *r)
{
	struct file_queue *fq = q->priv;
	int error;

	if (r->op == BLK_FLUSH) {
		flush(r);
		return;
	}
	r->job.off = r->off;
	r->job.left = r->len;
	r->job.iov = r->iov;
	r->job.niov = r->niov;
	error = clip(fq->file, r);
	if (error || !r->job.left)
		blk_req_end(r, error);
	else
		start_kind(fq->file, r);
}

/* Life. */

static int file_queue_open(struct blk_queue *q, struct err *err)
{
	struct file *f = container_of(q->blk, struct file, blk);
	struct file_queue *fq = calloc(1, sizeof(*fq));
	int error;

	if (!fq)
		return err_set(err, -ENOMEM, "out of memory");
	fq->file = f;
	fq->q = q;
	fq->lead.cb = on_lead;
	q->priv = fq;
	error = engine_queue_open(f->engine, q, &fq->engine, err);
	if (error) {
		free(fq);
		return error;
	}
	fq->fds = (struct host_fds){ .fd = f->host.fd, .cached = f->host.cached };
	if (atomic_load(&q->blk->nqueues) && !q->blocks)
		host_file_again(&f->host, &fq->fds);
	return 0;
}

static void file_queue_close(struct blk_queue *q)
{
	struct file_queue *fq = q->priv;

	loop_task_del(q->loop, &fq->lead);
	engine_queue_close(fq->engine);
	host_file_again_close(&fq->file->host, &fq->fds);
	free(fq);
}

static int file_truncate(struct blk *b, uint64_t size)
{
	struct file *f = container_of(b, struct file, blk);

	if (f->use != BLK_FILE_GROWS || f->host.is_device)
		return -EOPNOTSUPP;
	if (ftruncate(f->host.cached, (off_t)size))
		return -errno;
	atomic_store(&f->flush.dirty, true);
	blk_resized(b, size);
	return 0;
}

static void file_close(struct blk *b)
{
	struct file *f = container_of(b, struct file, blk);

	engine_free(f->engine);
	fault_free(f->fault);
	host_file_close(&f->host);
	guard_exit(&f->guard);
	pthread_mutex_destroy(&f->flush.lock);
	blk_exit(b);
	free(f);
}

static const struct blk_ops file_ops = {
	.format = "raw",
	.queue_open = file_queue_open,
	.queue_close = file_queue_close,
	.submit = file_submit,
	.truncate = file_truncate,
	.close = file_close,
};

static void fill_info(struct file *f, const struct blk_options *opt)
{
	struct blk_info *i = &f->blk.info;

	i->read_only = opt->read_only;
	i->writeback = opt->cache != BLK_WRITETHROUGH;
	i->can_discard = f->host.can_discard && !opt->no_discard;
	i->can_zero = !f->host.in_memory;
	i->block = f->host.block;
	i->align = f->host.align;
	i->mem_align = f->host.mem_align;
	f->write_through = opt->cache == BLK_WRITETHROUGH;
	f->unsafe = opt->cache == BLK_UNSAFE;
	f->no_discard = opt->no_discard;
}

int blk_file_open(const char *path, const struct blk_options *opt, struct blk **out, struct err *err)
{
	struct file *f = calloc(1, sizeof(*f));
	int error;

	if (!f)
		return err_set(err, -ENOMEM, "out of memory");
	f->host.fd = f->host.cached = -1;
	f->flush.waiting_end = &f->flush.waiting;
	pthread_mutex_init(&f->flush.lock, NULL);
	guard_init(&f->guard);
	error = blk_init(&f->blk, &file_ops, path, err);
	if (!error)
		error = host_file_open(&f->host, path, !opt->read_only, opt->cache == BLK_DIRECT, err);
	if (!error)
		error = engine_new(&f->engine, err);
	if (!error && opt->fault)
		error = fault_new(opt->fault, &f->fault, err);
	if (error) {
		file_close(&f->blk);
		return error;
	}
	fill_info(f, opt);
	*out = &f->blk;
	return blk_file_use(&f->blk, BLK_FILE_FIXED, err);
}

int blk_file_use(struct blk *b, enum blk_file_use use, struct err *err)
{
	struct file *f = container_of(b, struct file, blk);
	uint64_t size = f->host.size;
	int error = 0;

	assert(b->ops == &file_ops && !atomic_load(&b->nqueues));
	if (use != BLK_FILE_GROWS)
		size = size + (-size & 511);
	f->use = BLK_FILE_FIXED;
	b->grows = use == BLK_FILE_GROWS;
	atomic_store(&b->size, size);
	if (use == BLK_FILE_GUARDED && size)
		error = blk_do(b, BLK_READ, 0, 0, f->guard.head, GUARD_LEN);
	f->use = use;
	return error ? err_sys(err, error, "%s: read", b->name) : 0;
}
