// SPDX-License-Identifier: GPL-2.0-or-later
#include "blkfix.h"

#include "base/container_of.h"
#include "base/iov.h"
#include "block/block_impl.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NEED(x) ((x) ? (void)0 : (fprintf(stderr, "blkfix: %s:%d: %s\n", __FILE__, __LINE__, #x), abort()))

void blkfix_fill(uint8_t *buf, size_t n, uint64_t off, unsigned seed)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t x = (off + i) * 0x9e3779b97f4a7c15ull + seed * 0xbf58476d1ce4e5b9ull;

		buf[i] = (uint8_t)((x ^ x >> 29) * 0x94d049bb133111ebull >> 56);
	}
}

bool blkfix_is(const uint8_t *buf, size_t n, uint64_t off, unsigned seed)
{
	for (size_t i = 0; i < n; i++) {
		uint8_t want = 0;

		if (seed)
			blkfix_fill(&want, 1, off + i, seed);
		if (buf[i] != want)
			return false;
	}
	return true;
}

void blkfix_make(char path[BLKFIX_PATH], uint64_t size, unsigned seed)
{
	const char *dir = getenv("BLKFIX_DIR"); /* to try another file system */
	uint8_t buf[4096];
	int fd;

	NEED(snprintf(path, BLKFIX_PATH, "%s/kvm-blk-XXXXXX", dir ? dir : "/tmp") < BLKFIX_PATH);
	fd = mkstemp(path);
	NEED(fd >= 0 && !ftruncate(fd, (off_t)size));
	for (uint64_t off = 0; seed && off < size; off += sizeof(buf)) {
		size_t n = size - off < sizeof(buf) ? size - off : sizeof(buf);

		blkfix_fill(buf, n, off, seed);
		NEED(pwrite(fd, buf, n, (off_t)off) == (ssize_t)n);
	}
	close(fd);
}

void blkfix_rm(const char *path)
{
	NEED(!unlink(path));
}

void blkfix_pread(const char *path, void *buf, size_t n, uint64_t off)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	NEED(fd >= 0 && pread(fd, buf, n, (off_t)off) == (ssize_t)n);
	close(fd);
}

static struct stat status(const char *path)
{
	struct stat st;

	NEED(!stat(path, &st));
	return st;
}

uint64_t blkfix_length(const char *path)
{
	return (uint64_t)status(path).st_size;
}

uint64_t blkfix_allocated(const char *path)
{
	return (uint64_t)status(path).st_blocks * 512;
}

struct blk *blkfix_open(const char *path, const struct blk_options *opt)
{
	struct err err = { .msg = "no text" };
	struct blk *b = NULL;
	int error = blk_open(path, opt, &b, &err);

	if (error)
		fprintf(stderr, "blkfix: %s (%d)\n", err.msg, error);
	NEED(!error && b);
	return b;
}

void blkfix_start(struct blkfix *f, const struct blk_options *opt, enum blkfix_loop kind)
{
	struct err err;

	f->b = blkfix_open(f->path, opt);
	NEED(!(kind == BLKFIX_RING ? loop_new_ring : loop_new)(&f->loop, &err));
	NEED(!blk_queue_open(f->b, f->loop, &f->q, &err));
}

void blkfix_stop(struct blkfix *f)
{
	blk_queue_close(f->q);
	blk_close(f->b);
	loop_free(f->loop);
}

bool blkfix_has_ring(void)
{
	struct loop *l;
	struct err err;
	bool has;

	NEED(!loop_new_ring(&l, &err));
	has = loop_has_ring(l);
	loop_free(l);
	return has;
}

struct waited {
	struct blk_req req;
	struct loop *loop;
	int error;
	bool submitting;
};

static void on_done(struct blk_req *r, int error)
{
	struct waited *w = container_of(r, struct waited, req);

	NEED(!w->submitting && w->error == 1 && error <= 0);
	w->error = error;
	loop_quit(w->loop);
}

static int wait_for(struct blk_queue *q, struct waited *w)
{
	w->req.done = on_done;
	w->loop = q->loop;
	w->error = 1;
	w->submitting = true;
	blk_submit(q, &w->req);
	w->submitting = false;
	NEED(!loop_run(w->loop));
	NEED(w->error <= 0);
	return w->error;
}

int blkfix_io(struct blk_queue *q, enum blk_op op, unsigned flags, uint64_t off, void *buf, uint64_t len)
{
	struct iovec iov = { .iov_base = buf, .iov_len = len };
	struct waited w = { .req = { .op = op, .flags = flags, .off = off, .len = len, .iov = &iov, .niov = 1 } };

	return wait_for(q, &w);
}

int blkfix_iov(struct blk_queue *q, enum blk_op op, uint64_t off, const struct iovec *iov, unsigned niov)
{
	struct iovec copy[BLK_MAX_IOV];
	struct waited w = { .req = { .op = op, .off = off, .len = iov_len(iov, niov), .iov = copy, .niov = niov } };

	memcpy(copy, iov, niov * sizeof(*iov));
	return wait_for(q, &w);
}

static void on_idle(void *arg)
{
	loop_quit(arg);
}

void blkfix_drain(struct blk_queue *q, struct loop *loop)
{
	blk_queue_when_idle(q, on_idle, loop);
	NEED(!loop_run(loop));
	NEED(!blk_queue_inflight(q));
}
