// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/qcow2/qcow2.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * How it works
 *
 * The refcount table is in memory whole; of the blocks as many as fit into
 * BLOCKS_CAP bytes, the least recently used clean one making room. Changes stay
 * in memory until refs_write(). A count that grows must be durable before
 * anything refers to the cluster, one that shrinks only after nothing does any
 * more: the caller's business (commit.c).
 *
 * A block that is missing is made in the first cluster that it counts itself,
 * so nothing else must change with it: the block is written, a flush, then the
 * table's entry. When the table is full, one of twice the size is made right
 * after all clusters it counts, with the blocks that count them: blocks and
 * table are written, a flush, then the header, a flush. A crash between leaves
 * the old table and clusters past the end that nobody names. If the header's
 * write fails, it may name either: it is written again before anything else is,
 * and until that succeeds nothing else is, nor is the old table free.
 *
 * An entry of the table that cannot be right (REFS_BAD) makes its range of
 * clusters neither free nor freed.
 */

#define BLOCKS_CAP (4u << 20)
#define BLOCKS_MIN 8u
#define REFS_BAD   (1ull << 0) /* in memory, a bit that is reserved */
#define RESERVED   511ull

struct refblock {
	uint64_t index, used;
	bool dirty;
	bool unlinked; /* the table in the file does not name it yet */
	struct refblock *next;
	uint8_t data[];
};

/* Counts of any width. */

static uint64_t count_get(const struct qcow2 *im, const struct refblock *b, uint64_t i)
{
	unsigned order = im->h.refcount_order, bits = 1u << order;
	const uint8_t *p = b->data + (i << order) / 8;

	switch (order) {
	case 6: return get_be64(p);
	case 5: return get_be32(p);
	case 4: return (uint64_t)p[0] << 8 | p[1];
	default: return *p >> (i * bits % 8) & ((1u << bits) - 1);
	}
}

static void count_set(const struct qcow2 *im, struct refblock *b, uint64_t i, uint64_t v)
{
	unsigned order = im->h.refcount_order, bits = 1u << order, shift = (unsigned)(i * bits % 8);
	uint8_t *p = b->data + (i << order) / 8;

	switch (order) {
	case 6: put_be64(p, v); break;
	case 5: put_be32(p, (uint32_t)v); break;
	case 4:
		p[0] = (uint8_t)(v >> 8);
		p[1] = (uint8_t)v;
		break;
	default: *p = (uint8_t)((*p & ~(((1u << bits) - 1) << shift)) | (unsigned)v << shift); break;
	}
}

static uint64_t count_max(const struct qcow2 *im)
{
	return im->h.refcount_order == 6 ? UINT64_MAX : (1ull << (1u << im->h.refcount_order)) - 1;
}

static uint64_t per_block(const struct qcow2 *im)
{
	return 1ull << im->refs.bits;
}

bool qcow2_refs_bad(const struct qcow2 *im, uint64_t index)
{
	return im->refs.table[index] & RESERVED;
}

/* Blocks in memory. */

static void make_room(struct qcow2 *im)
{
	struct qcow2_refs *r = &im->refs;
	uint64_t cap = BLOCKS_CAP >> im->cluster_bits;
	struct refblock **p, **oldest = NULL, *b;

	if (r->nloaded < (cap > BLOCKS_MIN ? cap : BLOCKS_MIN))
		return;
	for (p = &r->loaded; *p; p = &(*p)->next)
		if (!(*p)->dirty && !(*p)->unlinked && (!oldest || (*p)->used < (*oldest)->used))
			oldest = p;
	if (!oldest)
		return;
	b = *oldest;
	*oldest = b->next;
	r->block[b->index] = NULL;
	r->nloaded--;
	free(b);
}

static struct refblock *block_new(struct qcow2 *im, uint64_t index)
{
	struct refblock *b = calloc(1, sizeof(*b) + im->cluster_size);

	if (b) {
		b->index = index;
		b->used = ++im->refs.clock;
	}
	return b;
}

static void block_insert(struct qcow2 *im, struct refblock *b)
{
	b->next = im->refs.loaded;
	im->refs.loaded = b;
	im->refs.block[b->index] = b;
	im->refs.nloaded++;
}

/* The block that counts @cluster; NULL: there is none. */
static int block_load(struct qcow2 *im, uint64_t cluster, struct refblock **out)
{
	struct qcow2_refs *r = &im->refs;
	uint64_t index = cluster >> r->bits;
	struct refblock *b;
	int error;

	*out = NULL;
	if (index >= r->n || !r->table[index])
		return 0;
	if (qcow2_refs_bad(im, index))
		return -EIO;
	*out = r->block[index];
	if (*out) {
		(*out)->used = ++r->clock;
		return 0;
	}
	make_room(im);
	b = block_new(im, index);
	if (!b)
		return -ENOMEM;
	error = waitio_read(&im->io, r->table[index], b->data, im->cluster_size);
	if (error) {
		free(b);
		return error;
	}
	block_insert(im, b);
	*out = b;
	return 0;
}

static void block_count(struct qcow2 *im, struct refblock *b, uint64_t cluster, uint64_t count)
{
	count_set(im, b, cluster & (per_block(im) - 1), count);
	b->dirty = true;
	im->refs.dirty = true;
}

/* Growing. */

static bool is_metadata(struct qcow2 *im, uint64_t cluster)
{
	bool is;

	pthread_mutex_lock(&im->lock);
	is = clusterset_has(&im->metadata, cluster);
	pthread_mutex_unlock(&im->lock);
	return is;
}

/* Nothing below host_end is given out twice; what has been given out is below it. */
static void raise_end(struct qcow2 *im, uint64_t cluster_end)
{
	if (cluster_end << im->cluster_bits > atomic_load(&im->host_end))
		atomic_store(&im->host_end, cluster_end << im->cluster_bits);
}

static uint64_t clusters_max(const struct qcow2 *im)
{
	return 1ull << (56 - im->cluster_bits);
}

/* A block for the clusters of @index, in the first of them that is no metadata. */
static int block_make(struct qcow2 *im, uint64_t index)
{
	struct refblock *b = block_new(im, index);
	uint64_t first = index << im->refs.bits, c = first;
	int error;

	if (!b)
		return -ENOMEM;
	while (c < first + per_block(im) && is_metadata(im, c))
		c++;
	error = c == first + per_block(im) ? -EIO : qcow2_metadata_add(im, c, atomic_load(&im->host_end));
	if (error) {
		free(b);
		return error;
	}
	raise_end(im, c + 1);
	make_room(im);
	b->unlinked = true;
	block_insert(im, b);
	im->refs.table[index] = c << im->cluster_bits;
	block_count(im, b, c, 1);
	return 0;
}

/* A larger table that is being made: @nblocks blocks, then @clusters of table, from cluster @at on. */
struct growth {
	uint64_t at, nblocks, clusters, n;
	uint64_t *table;
	struct refblock **block, *blocks;
};

static void growth_free(struct growth *g)
{
	struct refblock *next;

	for (struct refblock *b = g->blocks; b; b = next) {
		next = b->next;
		free(b);
	}
	free(g->table);
	free(g->block);
}

static int growth_plan(struct qcow2 *im, struct growth *g)
{
	uint64_t old = im->refs.n;

	g->at = old << im->refs.bits;
	g->clusters = im->h.reftable_clusters;
	do {
		g->clusters *= 2;
		g->nblocks = 1;
		while (g->nblocks << im->refs.bits < g->nblocks + g->clusters)
			g->nblocks++;
		g->n = g->clusters << im->cluster_bits >> 3;
	} while (g->n < old + g->nblocks);
	if (g->clusters << im->cluster_bits > QCOW2_MAX_REFTABLE || g->at + g->nblocks + g->clusters > clusters_max(im))
		return -EFBIG;
	for (uint64_t c = g->at; c < g->at + g->nblocks + g->clusters; c++)
		if (is_metadata(im, c))
			return -EIO;
	g->table = calloc(g->n, sizeof(*g->table));
	g->block = calloc(g->n, sizeof(struct refblock *));
	if (!g->table || !g->block)
		return -ENOMEM;
	memcpy(g->table, im->refs.table, old * sizeof(*g->table));
	memcpy(g->block, im->refs.block, old * sizeof(struct refblock *));
	return 0;
}

static int growth_blocks(struct qcow2 *im, struct growth *g)
{
	uint64_t left = g->nblocks + g->clusters;

	for (uint64_t i = 0; i < g->nblocks; i++) {
		struct refblock *b = block_new(im, im->refs.n + i);
		int error;

		if (!b)
			return -ENOMEM;
		b->next = g->blocks;
		g->blocks = b;
		for (uint64_t k = 0; k < per_block(im) && left; k++, left--)
			count_set(im, b, k, 1);
		g->table[b->index] = (g->at + i) << im->cluster_bits;
		error = waitio_write(&im->io, g->table[b->index], b->data, im->cluster_size);
		if (error)
			return error;
	}
	return 0;
}

static int growth_table(struct qcow2 *im, const struct growth *g)
{
	uint64_t off = (g->at + g->nblocks) << im->cluster_bits, bytes = g->n * 8;
	uint8_t *raw = malloc(bytes);
	int error;

	if (!raw)
		return -ENOMEM;
	for (uint64_t i = 0; i < g->n; i++)
		put_be64(raw + i * 8, g->table[i] & ~REFS_BAD);
	error = waitio_write(&im->io, off, raw, bytes);
	free(raw);
	return error ? error : waitio_flush(&im->io);
}

/* The larger table counts from now on, here; in the file once it is settled. */
static void growth_adopt(struct qcow2 *im, struct growth *g)
{
	struct refblock *next;

	free(im->refs.table);
	free(im->refs.block);
	im->refs.table = g->table;
	im->refs.block = g->block;
	im->refs.n = g->n;
	im->refs.old_off = im->h.reftable_off;
	im->refs.old_clusters = im->h.reftable_clusters;
	im->h.reftable_off = (g->at + g->nblocks) << im->cluster_bits;
	im->h.reftable_clusters = (uint32_t)g->clusters;
	for (struct refblock *b = g->blocks; b; b = next) {
		next = b->next;
		block_insert(im, b);
	}
}

/* The header names the table, durably; the clusters of the one before are free. */
static int table_settle(struct qcow2 *im)
{
	uint64_t c = cluster_of(im, im->refs.old_off), end = c + im->refs.old_clusters;
	uint8_t where[12];
	int error;

	if (!im->refs.old_clusters)
		return 0;
	put_be64(where, im->h.reftable_off);
	put_be32(where + 8, im->h.reftable_clusters);
	error = waitio_write(&im->io, QCOW2_AT_REFTABLE, where, sizeof(where));
	if (!error)
		error = waitio_flush(&im->io);
	if (error)
		return error;
	im->refs.old_clusters = 0;
	for (; c < end; c++) {
		qcow2_metadata_del(im, c);
		(void)!qcow2_refs_drop(im, c); /* should it fail, a cluster is leaked */
	}
	return 0;
}

static int table_grow(struct qcow2 *im)
{
	struct growth g = { 0 };
	uint64_t end = atomic_load(&im->host_end), c, last;
	int error = qcow2_refs_write(im); /* what the table does not name yet is named by the old one first */

	if (!error)
		error = growth_plan(im, &g);
	last = g.at + g.nblocks + g.clusters;
	for (c = g.at; !error && c < last; c++)
		error = qcow2_metadata_add(im, c, end);
	if (!error)
		error = growth_blocks(im, &g);
	if (!error)
		error = growth_table(im, &g);
	if (!error) {
		raise_end(im, last);
		growth_adopt(im, &g);
		return table_settle(im);
	}
	while (c > g.at)
		qcow2_metadata_del(im, --c);
	growth_free(&g);
	return error;
}

/* There is a block for @cluster afterwards. */
static int block_need(struct qcow2 *im, uint64_t cluster, struct refblock **b)
{
	int error = 0;

	while (!error && cluster >> im->refs.bits >= im->refs.n)
		error = table_grow(im);
	if (!error)
		error = block_load(im, cluster, b);
	if (!error && !*b) {
		error = block_make(im, cluster >> im->refs.bits);
		if (!error)
			error = block_load(im, cluster, b);
		assert(error || *b); /* it is there now */
	}
	return error;
}

/* Users. */

int qcow2_refs_get(struct qcow2 *im, uint64_t cluster, uint64_t *count)
{
	struct refblock *b;
	int error = block_load(im, cluster, &b);

	if (!error)
		*count = b ? count_get(im, b, cluster & (per_block(im) - 1)) : 0;
	return error;
}

int qcow2_refs_set(struct qcow2 *im, uint64_t cluster, uint64_t count)
{
	struct refblock *b;
	int error = count > count_max(im) ? -ERANGE : block_need(im, cluster, &b);

	if (error)
		return error;
	block_count(im, b, cluster, count);
	if (!count && cluster < im->refs.hint)
		im->refs.hint = cluster;
	return 0;
}

/* The first run of at least @min free clusters from *@c on, within @b; up to @want. 0: none, and *@c is past the block.
 */
static uint64_t find_run(struct qcow2 *im, const struct refblock *b, uint64_t *c, uint64_t min, uint64_t want)
{
	uint64_t end = (b->index + 1) << im->refs.bits, n = 0;

	for (uint64_t at = *c; at < end; at++) {
		if (count_get(im, b, at & (per_block(im) - 1)) || is_metadata(im, at)) {
			if (n >= min)
				break;
			n = 0;
			continue;
		}
		if (!n++)
			*c = at;
		if (n == want)
			break;
	}
	if (n >= min)
		return n;
	*c = end;
	return 0;
}

int qcow2_refs_take(struct qcow2 *im, uint64_t min, uint64_t want, uint64_t *cluster, uint64_t *n)
{
	struct refblock *b;
	uint64_t c = im->refs.hint;
	int error;

	if (min > per_block(im)) /* a run lies within one block */
		return -EFBIG;
	for (;;) {
		if (c >= clusters_max(im))
			return -EFBIG;
		error = block_need(im, c, &b);
		if (error == -EIO && c >> im->refs.bits < im->refs.n && qcow2_refs_bad(im, c >> im->refs.bits)) {
			c = ((c >> im->refs.bits) + 1) << im->refs.bits;
			continue;
		}
		if (error)
			return error;
		*n = find_run(im, b, &c, min, want);
		if (*n)
			break;
	}
	for (uint64_t i = c; i < c + *n; i++)
		block_count(im, b, i, 1);
	if (min == 1)
		im->refs.hint = c + *n;
	raise_end(im, c + *n);
	*cluster = c;
	return 0;
}

int qcow2_refs_drop(struct qcow2 *im, uint64_t cluster)
{
	uint64_t count;
	int error;

	if (is_metadata(im, cluster))
		return -EIO;
	error = qcow2_refs_get(im, cluster, &count);
	if (error)
		return error;
	return count ? qcow2_refs_set(im, cluster, count - 1) : -EIO;
}

/* Writing. */

static int write_blocks(struct qcow2 *im, bool *unlinked)
{
	for (struct refblock *b = im->refs.loaded; b; b = b->next) {
		int error = 0;

		if (b->dirty)
			error = waitio_write(&im->io, im->refs.table[b->index], b->data, im->cluster_size);
		if (error)
			return error;
		b->dirty = false;
		*unlinked |= b->unlinked;
	}
	return 0;
}

static int link_blocks(struct qcow2 *im)
{
	int error = waitio_flush(&im->io);

	for (struct refblock *b = im->refs.loaded; b && !error; b = b->next) {
		uint8_t raw[8];

		if (!b->unlinked)
			continue;
		put_be64(raw, im->refs.table[b->index]);
		error = waitio_write(&im->io, im->h.reftable_off + b->index * 8, raw, sizeof(raw));
		if (!error)
			b->unlinked = false;
	}
	return error;
}

int qcow2_refs_write(struct qcow2 *im)
{
	bool unlinked = false;
	int error = table_settle(im);

	if (error || !im->refs.dirty)
		return error;
	im->refs.unsynced = true;
	error = write_blocks(im, &unlinked);
	if (!error && unlinked)
		error = link_blocks(im);
	if (!error)
		im->refs.dirty = false;
	return error;
}

/* Opening. */

/* Blocks are metadata; one that is something else as well is not used. */
static int judge_blocks(struct qcow2 *im)
{
	uint64_t end = atomic_load(&im->host_end);

	for (uint64_t i = 0; i < im->refs.n; i++) {
		uint64_t off = im->refs.table[i];
		int fresh = 0;

		if (!off)
			continue;
		if (!in_cluster(im, off) && off < end)
			fresh = clusterset_add(&im->metadata, cluster_of(im, off));
		if (fresh < 0)
			return fresh;
		if (!fresh)
			im->refs.table[i] |= REFS_BAD;
	}
	return 0;
}

int qcow2_refs_open(struct qcow2 *im, struct err *err)
{
	struct qcow2_refs *r = &im->refs;
	uint64_t bytes = (uint64_t)im->h.reftable_clusters << im->cluster_bits;
	uint8_t *raw = malloc(bytes);
	int error = -ENOMEM;

	r->n = bytes / 8;
	r->bits = im->cluster_bits + 3 - im->h.refcount_order;
	r->table = calloc(r->n, sizeof(*r->table));
	r->block = calloc(r->n, sizeof(struct refblock *));
	if (raw && r->table && r->block)
		error = waitio_read(&im->io, im->h.reftable_off, raw, bytes);
	for (uint64_t i = 0; !error && i < r->n; i++)
		r->table[i] = get_be64(raw + i * 8);
	free(raw);
	if (!error)
		error = judge_blocks(im);
	return error ? err_sys(err, error, "%s: refcount table", im->blk.name) : 0;
}

void qcow2_refs_close(struct qcow2 *im)
{
	struct refblock *next;

	for (struct refblock *b = im->refs.loaded; b; b = next) {
		next = b->next;
		free(b);
	}
	free(im->refs.table);
	free(im->refs.block);
}
