// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * blkbench FILE read|write DEPTH BLOCKSIZE SECONDS CACHE ENGINE - random requests on a raw image, through the block
 * room (ENGINE ring or pool) or by plain pread/pwrite on one thread (ENGINE plain, depth 1). One line: requests a
 * second, and CPU microseconds per request. CACHE is writeback or none.
 */
#include "base/clock.h"
#include "base/container_of.h"
#include "block/block.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define MAX_DEPTH 256

struct bench {
	const char *path;
	bool write, direct;
	unsigned depth, size;
	uint64_t blocks, until, done, seed;
	struct loop *loop;
	struct blk_queue *q;
};

struct slot {
	struct blk_req req;
	struct iovec iov;
	struct bench *b;
	uint8_t *buf;
};

static void die(const char *what)
{
	fprintf(stderr, "blkbench: %s\n", what);
	exit(1);
}

static uint64_t next_off(struct bench *b)
{
	b->seed = b->seed * 6364136223846793005ull + 1442695040888963407ull;
	return (b->seed >> 20) % b->blocks * b->size;
}

static void again(struct slot *s)
{
	s->iov = (struct iovec){ .iov_base = s->buf, .iov_len = s->b->size };
	s->req.off = next_off(s->b);
	blk_submit(s->b->q, &s->req);
}

static void on_done(struct blk_req *r, int error)
{
	struct slot *s = container_of(r, struct slot, req);

	if (error)
		die(strerror(-error));
	s->b->done++;
	if (clock_ns() < s->b->until)
		again(s);
	else if (!blk_queue_inflight(s->b->q))
		loop_quit(s->b->loop);
}

static void run_blk(struct bench *b, bool ring)
{
	static struct slot slot[MAX_DEPTH];
	struct blk_options opt = { .format = BLK_RAW, .cache = b->direct ? BLK_DIRECT : BLK_WRITEBACK };
	struct blk *image;
	struct err err;

	if (blk_open(b->path, &opt, &image, &err) || (ring ? loop_new_ring : loop_new)(&b->loop, &err) ||
	    blk_queue_open(image, b->loop, &b->q, &err))
		die(err.msg);
	if (ring && !loop_has_ring(b->loop))
		die("no io_uring here");
	for (unsigned i = 0; i < b->depth; i++) {
		slot[i] = (struct slot){ .b = b, .buf = aligned_alloc(4096, b->size) };
		slot[i].req = (struct blk_req){ .op = b->write ? BLK_WRITE : BLK_READ, .len = b->size, .niov = 1 };
		slot[i].req.iov = &slot[i].iov;
		slot[i].req.done = on_done;
		memset(slot[i].buf, 'x', b->size);
		again(&slot[i]);
	}
	if (loop_run(b->loop))
		die("loop");
	blk_queue_close(b->q);
	blk_close(image);
	loop_free(b->loop);
}

static void run_plain(struct bench *b)
{
	int fd = open(b->path, O_RDWR | O_CLOEXEC | (b->direct ? O_DIRECT : 0));
	void *buf = aligned_alloc(4096, b->size);

	if (fd < 0 || !buf)
		die("open");
	memset(buf, 'x', b->size);
	for (; clock_ns() < b->until; b->done++) {
		off_t at = (off_t)next_off(b);
		ssize_t n = b->write ? pwrite(fd, buf, b->size, at) : pread(fd, buf, b->size, at);

		if (n != (ssize_t)b->size)
			die("short");
	}
	close(fd);
	free(buf);
}

static double cpu(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e6 +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

int main(int argc, char **argv)
{
	struct bench b = { .seed = 1 };
	uint64_t start, ns;
	int fd;

	if (argc != 8)
		die("FILE read|write DEPTH BLOCKSIZE SECONDS writeback|none ring|pool|plain");
	b.path = argv[1];
	b.write = !strcmp(argv[2], "write");
	b.depth = (unsigned)strtoul(argv[3], NULL, 10);
	b.size = (unsigned)strtoul(argv[4], NULL, 10);
	b.direct = !strcmp(argv[6], "none");
	fd = open(b.path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || !b.depth || b.depth > MAX_DEPTH || b.size < 512)
		die("usage");
	b.blocks = (uint64_t)lseek(fd, 0, SEEK_END) / b.size;
	close(fd);
	start = clock_ns();
	b.until = start + strtoull(argv[5], NULL, 10) * 1000000000ull;
	if (!strcmp(argv[7], "plain"))
		run_plain(&b);
	else
		run_blk(&b, !strcmp(argv[7], "ring"));
	ns = clock_ns() - start;
	printf("%-5s %-9s %-5s depth %3u size %u: %9.0f/s %7.2f us CPU each\n", argv[7], argv[6], argv[2], b.depth,
	       b.size, (double)b.done * 1e9 / (double)ns, cpu() / (double)b.done);
	return 0;
}
