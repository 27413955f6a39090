// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/block_impl.h"

#include "base/container_of.h"
#include "base/iov.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/*
 * How it works
 *
 * A disk whose writes stay in memory. The memory is one anonymous mapping as
 * large as the disk: it costs address space, and memory only for pages that
 * were written. No huge pages, or one sector would cost two megabytes. A bitmap,
 * mapped the same way, says which sectors are in memory; the others are read
 * from the image below. Bits are set after the bytes are there and never
 * cleared: a discarded sector is in memory, as zeroes, in a page that is given
 * back to the host.
 *
 * So writes, and reads of what is in memory, are done at once and take no lock,
 * whatever loop they are on. A read of anything else reads it all from below,
 * with a request of its own, and then puts over it what memory has.
 */

#define SECTOR   512u
#define PER_WORD 64u
#define WORD_LEN sizeof(uint64_t)

struct cow {
	struct blk blk;
	struct blk *below;
	uint8_t *mem;           /* of the whole disk */
	_Atomic uint64_t *bits; /* one for each sector */
	size_t mem_len, bits_len;
	uint64_t page;
};

/* A read of the image below; kept for the next one. */
struct cow_read {
	struct blk_req req;
	struct blk_req *parent;
	struct cow_read *next;
	struct iovec iov[BLK_MAX_IOV];
};

struct cow_queue {
	struct cow *cow;
	struct blk_queue *below;
	struct cow_read *free;
};

static struct cow *cow_of(struct blk *b)
{
	return container_of(b, struct cow, blk);
}

/* Sectors. */

/* The bits of word @word that are within sectors [@from, @end). */
static uint64_t mask(uint64_t word, uint64_t from, uint64_t end)
{
	uint64_t first = word * PER_WORD, m = ~0ull;

	if (from > first)
		m &= ~0ull << (from - first);
	if (end < first + PER_WORD)
		m &= ~0ull >> (first + PER_WORD - end);
	return m;
}

static void set_in_memory(struct cow *c, uint64_t off, uint64_t len)
{
	uint64_t from = off / SECTOR, end = (off + len) / SECTOR;

	for (uint64_t w = from / PER_WORD; w * PER_WORD < end; w++)
		atomic_fetch_or_explicit(&c->bits[w], mask(w, from, end), memory_order_release);
}

static bool all_in_memory(struct cow *c, uint64_t off, uint64_t len)
{
	uint64_t from = off / SECTOR, end = (off + len) / SECTOR;

	for (uint64_t w = from / PER_WORD; w * PER_WORD < end; w++)
		if (mask(w, from, end) & ~atomic_load_explicit(&c->bits[w], memory_order_acquire))
			return false;
	return true;
}

static bool in_memory(struct cow *c, uint64_t sector)
{
	return atomic_load_explicit(&c->bits[sector / PER_WORD], memory_order_acquire) >> sector % PER_WORD & 1;
}

/* Puts the sectors that memory has over what was read from below. */
static void put_over(struct cow *c, const struct blk_req *r)
{
	uint64_t end = (r->off + r->len) / SECTOR;

	for (uint64_t s = r->off / SECTOR, n; s < end; s += n) {
		bool has = in_memory(c, s);

		for (n = 1; s + n < end && in_memory(c, s + n) == has; n++)
			;
		if (has)
			iov_put(r->iov, r->niov, s * SECTOR - r->off, c->mem + s * SECTOR, n * SECTOR);
	}
}

/* Requests. */

static void on_read(struct blk_req *r, int error)
{
	struct cow_read *cr = container_of(r, struct cow_read, req);
	struct cow_queue *cq = cr->parent->queue->priv;

	if (!error)
		put_over(cq->cow, cr->parent);
	cr->next = cq->free;
	cq->free = cr;
	blk_req_end(cr->parent, error);
}

static void read_below(struct cow_queue *cq, struct blk_req *r)
{
	struct cow_read *cr = cq->free;

	if (cr)
		cq->free = cr->next;
	else
		cr = malloc(sizeof(*cr));
	if (!cr) {
		blk_req_end(r, -ENOMEM);
		return;
	}
	cr->parent = r;
	cr->req = (struct blk_req){ .op = BLK_READ, .off = r->off, .len = r->len, .done = on_read };
	cr->req.iov = cr->iov; /* ours is needed afterwards */
	cr->req.niov = r->niov;
	memcpy(cr->iov, r->iov, r->niov * sizeof(r->iov[0]));
	blk_submit(cq->below, &cr->req);
}

/* Makes it zeroes, and gives whole pages back. */
static int zero(struct cow *c, uint64_t off, uint64_t len)
{
	uint64_t end = off + len, first = off + (-off & (c->page - 1)), last = end & ~(c->page - 1);

	if (first >= last) {
		memset(c->mem + off, 0, len);
	} else {
		memset(c->mem + off, 0, first - off);
		memset(c->mem + last, 0, end - last);
		if (madvise(c->mem + first, last - first, MADV_DONTNEED))
			return -errno;
	}
	set_in_memory(c, off, len);
	return 0;
}

static void cow_submit(struct blk_queue *q, struct blk_req *r)
{
	struct cow_queue *cq = q->priv;
	struct cow *c = cq->cow;
	int error = 0;

	switch (r->op) {
	case BLK_READ:
		if (!all_in_memory(c, r->off, r->len)) {
			read_below(cq, r);
			return;
		}
		iov_put(r->iov, r->niov, 0, c->mem + r->off, r->len);
		break;
	case BLK_WRITE:
		iov_get(r->iov, r->niov, 0, c->mem + r->off, r->len);
		set_in_memory(c, r->off, r->len);
		break;
	case BLK_DISCARD:
	case BLK_WRITE_ZEROES: error = zero(c, r->off, r->len); break;
	case BLK_FLUSH: break;
	}
	blk_req_end(r, error);
}

/* Life. */

static int cow_queue_open(struct blk_queue *q, struct err *err)
{
	struct cow_queue *cq = calloc(1, sizeof(*cq));
	int error;

	if (!cq)
		return err_set(err, -ENOMEM, "out of memory");
	cq->cow = cow_of(q->blk);
	q->priv = cq;
	error = blk_queue_below(q, cq->cow->below, &cq->below, err);
	if (error)
		free(cq);
	return error;
}

static void cow_queue_close(struct blk_queue *q)
{
	struct cow_queue *cq = q->priv;

	for (struct cow_read *cr = cq->free, *next; cr; cr = next) {
		next = cr->next;
		free(cr);
	}
	blk_queue_close(cq->below);
	free(cq);
}

static void unmap(struct cow *c)
{
	if (c->mem)
		munmap(c->mem, c->mem_len);
	if (c->bits)
		munmap(c->bits, c->bits_len);
	blk_exit(&c->blk);
	free(c);
}

static void cow_close(struct blk *b)
{
	blk_close(cow_of(b)->below);
	unmap(cow_of(b));
}

static const struct blk_ops cow_ops = {
	.format = "cow",
	.queue_open = cow_queue_open,
	.queue_close = cow_queue_close,
	.submit = cow_submit,
	.close = cow_close,
};

static void *map(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	(void)madvise(p, len, MADV_NOHUGEPAGE); /* a kernel without huge pages does not know the word */
	(void)madvise(p, len, MADV_DONTDUMP);
	return p;
}

static int map_all(struct cow *c, struct err *err)
{
	uint64_t size = blk_size(c->below);

	c->page = (uint64_t)sysconf(_SC_PAGESIZE);
	c->mem_len = size + 1; /* a mapping has at least a page */
	c->bits_len = (size / SECTOR / PER_WORD + 1) * WORD_LEN;
	c->mem = map(c->mem_len);
	c->bits = map(c->bits_len);
	if (!c->mem || !c->bits)
		return err_set(err, -ENOMEM, "%s: cow: no %llu MiB of address space for it", blk_name(c->below),
		               (unsigned long long)(size >> 20));
	return 0;
}

int blk_cow_open(struct blk *below, struct blk **out, struct err *err)
{
	struct cow *c = calloc(1, sizeof(*c));
	int error;

	if (!c)
		return err_set(err, -ENOMEM, "out of memory");
	c->below = below;
	error = blk_init(&c->blk, &cow_ops, blk_name(below), err);
	if (!error)
		error = map_all(c, err);
	if (error) {
		unmap(c);
		return error;
	}
	c->blk.info.can_discard = c->blk.info.can_zero = true;
	c->blk.info.granule = c->blk.info.align = SECTOR;
	c->blk.info.block = blk_info(below)->block;
	atomic_store(&c->blk.size, blk_size(below) & ~(uint64_t)(SECTOR - 1));
	*out = &c->blk;
	return 0;
}
