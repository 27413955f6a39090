// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/qcow2/check.h"

#include "block/qcow2/qcow2.h"
#include "block/qcow2/snapshot.h"

#include <errno.h>
#include <stdlib.h>

/*
 * How it works
 *
 * Two passes. The first goes over everything that names clusters (header,
 * tables, snapshots, bitmaps) and counts the references of each cluster, in
 * pages of counters that are made as they are needed: a sparse file may be
 * enormous. The second compares the counts with the refcounts, and the copied
 * flags of the active tables with the counts.
 *
 * A repair sets refcounts and flags to what was counted. It never changes what
 * an entry names. Refcounts go up before anything else, so a repair that is cut
 * short leaves no more than there was to be repaired. They go down only where
 * everything could be counted: what a broken table named is not given to others.
 */

#define PAGE_BITS    16
#define CLUSTERS_MAX (1ull << 32)

struct counts {
	struct qcow2 *im;
	struct qcow2_check *out;
	uint32_t **page;
	uint64_t n;   /* clusters of the file */
	uint64_t *l2; /* a cluster to read tables into */
};

static uint32_t counted(const struct counts *k, uint64_t c)
{
	const uint32_t *page = c < k->n ? k->page[c >> PAGE_BITS] : NULL;

	return page ? page[c & ((1u << PAGE_BITS) - 1)] : 0;
}

static void bad(struct counts *k)
{
	k->out->corruptions++;
	k->out->bad++;
}

/* One reference to each cluster of [@off, @off + @len). */
static int count(struct counts *k, uint64_t off, uint64_t len)
{
	uint64_t first = cluster_of(k->im, off), last = cluster_of(k->im, off + len - 1);

	if (!len)
		return 0;
	for (uint64_t c = first; c <= last; c++) {
		uint32_t **page = c < k->n ? &k->page[c >> PAGE_BITS] : NULL;

		if (!page) {
			bad(k); /* beyond the end of the file */
			break;
		}
		if (!*page)
			*page = calloc(1u << PAGE_BITS, sizeof(**page));
		if (!*page)
			return -ENOMEM;
		(*page)[c & ((1u << PAGE_BITS) - 1)]++;
	}
	return 0;
}

/* The first pass. */

static int count_entry(struct counts *k, uint64_t e, bool active)
{
	struct qcow2 *im = k->im;
	uint64_t host = e & QCOW2_OFFSET, len = im->cluster_size;

	if (e & QCOW2_COMPRESSED) {
		qcow2_compressed_range(im, e, &host, &len);
		k->out->compressed += active;
		k->out->allocated += active;
		/* The last sector is told in whole, and the file may end within it. */
		if (host < k->n << im->cluster_bits && host + len > k->n << im->cluster_bits)
			len = (k->n << im->cluster_bits) - host;
		return count(k, host, len);
	}
	if (e & QCOW2_L2_RESERVED || in_cluster(im, host) || (!host && e & QCOW2_COPIED) ||
	    (e & QCOW2_ZERO && im->h.version < 3)) {
		bad(k);
		return 0;
	}
	k->out->allocated += active && host && !(e & QCOW2_ZERO);
	return host ? count(k, host, len) : 0;
}

static int count_l2(struct counts *k, uint64_t e, bool active)
{
	struct qcow2 *im = k->im;
	uint64_t off = e & QCOW2_OFFSET;
	int error;

	if (!e)
		return 0;
	if (!off || e & QCOW2_L1_RESERVED || in_cluster(im, off) || cluster_of(im, off) >= k->n) {
		bad(k);
		return 0;
	}
	error = count(k, off, im->cluster_size);
	if (!error)
		error = waitio_read(&im->io, off, k->l2, im->cluster_size);
	for (uint64_t i = 0; i < im->cluster_size / 8 && !error; i++)
		error = k->l2[i] ? count_entry(k, get_be64((uint8_t *)&k->l2[i]), active) : 0;
	return error;
}

static int count_l1(struct counts *k, uint64_t off, uint64_t n, bool active)
{
	uint8_t *raw = malloc(n * 8 + 1);
	int error = raw ? waitio_read(&k->im->io, off, raw, n * 8) : -ENOMEM;

	if (!error)
		error = count(k, off, n * 8);
	for (uint64_t i = 0; i < n && !error; i++)
		error = count_l2(k, get_be64(raw + i * 8), active);
	free(raw);
	return error;
}

static int count_snapshots(struct counts *k, struct err *err)
{
	uint32_t n = k->im->h.nb_snapshots;
	struct qcow2_snapshot *list;
	uint64_t len = 0;
	int error = qcow2_snapshots_read(k->im, &list, err);

	for (uint32_t i = 0; i < n && !error; i++) {
		len += list[i].len;
		error = count_l1(k, list[i].l1_off, list[i].l1_size, false);
	}
	if (!error)
		error = count(k, k->im->h.snapshots_off, len);
	qcow2_snapshots_free(list, n);
	return error;
}

/* A bitmap's table, and what it names. */
static int count_bitmap(struct counts *k, uint64_t off, uint64_t n)
{
	uint8_t *raw;
	int error;

	if (n > QCOW2_MAX_L1 / 8 || in_cluster(k->im, off)) {
		bad(k);
		return 0;
	}
	raw = malloc(n * 8 + 1);
	error = raw ? waitio_read(&k->im->io, off, raw, n * 8) : -ENOMEM;
	if (!error)
		error = count(k, off, n * 8);
	for (uint64_t i = 0; i < n && !error; i++) {
		uint64_t data = get_be64(raw + i * 8) & QCOW2_OFFSET;

		error = data ? count(k, data, k->im->cluster_size) : 0;
	}
	free(raw);
	return error;
}

static int count_bitmaps(struct counts *k)
{
	const struct qcow2_header *h = &k->im->h;
	uint64_t size = h->bitmaps_size, at = 0, len;
	uint8_t *raw;
	int error;

	if (!h->nb_bitmaps)
		return 0;
	if (size > QCOW2_MAX_L1 || in_cluster(k->im, h->bitmaps_off) || h->bitmaps_off > INT64_MAX - size) {
		bad(k);
		return 0;
	}
	raw = malloc(size + 1);
	error = raw ? waitio_read(&k->im->io, h->bitmaps_off, raw, size) : -ENOMEM;
	if (!error)
		error = count(k, h->bitmaps_off, size);
	while (!error && at + 24 <= size) {
		error = count_bitmap(k, get_be64(raw + at), get_be32(raw + at + 8));
		len = 24ull + (get_be32(raw + at + 16) & 0xffff) + get_be32(raw + at + 20);
		at += (len + 7) / 8 * 8;
	}
	free(raw);
	return error;
}

static int count_refs(struct counts *k)
{
	struct qcow2 *im = k->im;
	int error = count(k, im->h.reftable_off, (uint64_t)im->h.reftable_clusters << im->cluster_bits);

	for (uint64_t i = 0; i < im->refs.n && !error; i++) {
		uint64_t off = im->refs.table[i];

		if (qcow2_refs_bad(im, i))
			k->out->corruptions++; /* a repair makes a new block */
		else if (off)
			error = count(k, off, im->cluster_size);
	}
	return error;
}

static int count_all(struct counts *k, struct err *err)
{
	struct qcow2 *im = k->im;
	int error = count(k, 0, 1);

	if (!error)
		error = count_l1(k, im->h.l1_off, im->h.l1_size, true);
	if (!error)
		error = count_snapshots(k, err);
	if (!error)
		error = count_bitmaps(k);
	return error ? error : count_refs(k);
}

/* The second pass. */

static int repair_cluster(struct counts *k, uint64_t c, uint64_t was, uint64_t is)
{
	int error = qcow2_refs_set(k->im, c, is);

	if (!error && was != is)
		k->out->fixed++;
	return error;
}

/* Compares clusters [@c, @end); with @up those that are too low, else those too high. @missing: there is no block. */
static int compare(struct counts *k, uint64_t c, uint64_t end, bool missing, bool up, int repair)
{
	for (; c < end; c++) {
		uint64_t is = counted(k, c), was = 0;
		int error;

		if (missing && !k->page[c >> PAGE_BITS]) { /* nothing is either */
			c |= (1u << PAGE_BITS) - 1;
			continue;
		}
		error = qcow2_refs_get(k->im, c, &was);
		if (error)
			return error;
		if (up ? was >= is : was <= is || (!is && clusterset_has(&k->im->metadata, c)))
			continue; /* what a repair made anew was not there to be counted */
		k->out->corruptions += up;
		k->out->leaks += !up;
		error = repair ? repair_cluster(k, c, was, is) : 0;
		if (error)
			return error;
	}
	return 0;
}

/* Clusters that are in use may not become refcount blocks while these are made. */
static int reserve(struct counts *k, uint64_t c, uint64_t end, struct clusterset *added)
{
	for (; c < end && c < k->n; c++) {
		int r = counted(k, c) ? clusterset_add(&k->im->metadata, c) : 0;

		if (r > 0)
			r = clusterset_add(added, c);
		if (r < 0)
			return r;
	}
	return 0;
}

static int compare_block(struct counts *k, uint64_t i, bool up, int repair)
{
	struct qcow2 *im = k->im;
	uint64_t per = 1ull << im->refs.bits, c = i * per, end = c + per;
	bool missing = i >= im->refs.n || !im->refs.table[i] || qcow2_refs_bad(im, i);
	struct clusterset added = { 0 };
	int error = 0;

	if (missing && repair && i < im->refs.n)
		im->refs.table[i] = 0;
	if (missing && end > k->n)
		end = k->n;
	if (missing && repair)
		error = reserve(k, c, end, &added);
	if (!error && !(missing && !repair && i < im->refs.n && im->refs.table[i]))
		error = compare(k, c, end, missing, up, repair);
	for (size_t s = 0; s < added.nslots; s++)
		clusterset_del(&im->metadata, added.slot[s]);
	clusterset_free(&added);
	return error;
}

static int compare_all(struct counts *k, bool up, int repair)
{
	uint64_t blocks = (k->n + (1ull << k->im->refs.bits) - 1) >> k->im->refs.bits;
	int error = 0;

	for (uint64_t i = 0; !error && (i < k->im->refs.n || i < blocks); i++) {
		bool missing = i >= k->im->refs.n || !k->im->refs.table[i];

		if (i < blocks || !missing)
			error = compare_block(k, i, up, repair);
	}
	return error;
}

/* Copied flags. */

/* What the flag of an entry that names @off should be. */
static uint64_t flagged(const struct counts *k, uint64_t e, uint64_t off)
{
	return counted(k, cluster_of(k->im, off)) == 1 ? e | QCOW2_COPIED : e & ~QCOW2_COPIED;
}

static int flags_entry(struct counts *k, uint64_t off, uint64_t e, uint64_t names, int repair)
{
	uint8_t raw[8];
	int error = 0;

	if (flagged(k, e, names) == e)
		return 0;
	k->out->corruptions++;
	put_be64(raw, flagged(k, e, names));
	if (repair)
		error = waitio_write(&k->im->io, off, raw, sizeof(raw));
	k->out->fixed += repair && !error;
	return error;
}

static int flags_l2(struct counts *k, uint64_t table, int repair)
{
	struct qcow2 *im = k->im;
	int error = waitio_read(&im->io, table, k->l2, im->cluster_size);

	for (uint64_t i = 0; i < im->cluster_size / 8 && !error; i++) {
		uint64_t e = get_be64((uint8_t *)&k->l2[i]), off = e & QCOW2_OFFSET;

		if (!off || e & (QCOW2_COMPRESSED | QCOW2_L2_RESERVED) || in_cluster(im, off))
			continue;
		error = flags_entry(k, table + i * 8, e, off, repair);
	}
	return error;
}

static int flags_all(struct counts *k, int repair)
{
	struct qcow2 *im = k->im;
	uint8_t *raw = malloc(im->h.l1_size * 8ul + 1);
	int error = raw ? waitio_read(&im->io, im->h.l1_off, raw, im->h.l1_size * 8ul) : -ENOMEM;

	for (uint64_t i = 0; i < im->h.l1_size && !error; i++) {
		uint64_t e = get_be64(raw + i * 8), off = e & QCOW2_OFFSET;

		if (!off || atomic_load(&im->l1[i]) & L1_BAD)
			continue;
		error = flags_entry(k, im->h.l1_off + i * 8, e, off, repair);
		if (!error && repair)
			atomic_store(&im->l1[i], flagged(k, e, off));
		if (!error)
			error = flags_l2(k, off, repair);
	}
	free(raw);
	return error;
}

static int write_refs(struct counts *k, int repair)
{
	int error = repair ? qcow2_refs_write(k->im) : 0;

	return error || !repair ? error : waitio_flush(&k->im->io);
}

/* Too low first, then the flags that say "once", then too high: each step is right on what is durable before it. */
static int second_pass(struct counts *k, int repair)
{
	int error = compare_all(k, true, repair);

	if (!error)
		error = write_refs(k, repair);
	if (!error)
		error = flags_all(k, repair);
	if (!error && repair)
		error = waitio_flush(&k->im->io);
	if (!error)
		error = compare_all(k, false, repair && !k->out->bad);
	return error ? error : write_refs(k, repair);
}

static void find_end(struct counts *k)
{
	uint64_t c = k->n;

	while (c && !counted(k, c - 1))
		c -= k->page[(c - 1) >> PAGE_BITS] ? 1 : (c - 1) % (1u << PAGE_BITS) + 1;
	k->out->end = c << k->im->cluster_bits;
}

int qcow2_check(struct qcow2 *im, int repair, struct qcow2_check *out, struct err *err)
{
	struct counts k = { .im = im, .out = out, .n = cluster_of(im, atomic_load(&im->host_end)) };
	uint64_t pages = (k.n >> PAGE_BITS) + 1;
	int error;

	err_set(err, 0, "%s", "");
	*out = (struct qcow2_check){ .clusters = cluster_of(im, im->h.size + im->cluster_size - 1) };
	if (k.n > CLUSTERS_MAX)
		return err_set(err, -EFBIG, "%s: the file is too large to be checked", im->blk.name);
	k.page = calloc(pages, sizeof(*k.page));
	k.l2 = malloc(im->cluster_size);
	error = k.page && k.l2 ? count_all(&k, err) : -ENOMEM;
	if (!error)
		error = second_pass(&k, repair);
	if (error && !err->msg[0])
		err_sys(err, error, "%s: check", im->blk.name);
	if (!error)
		find_end(&k);
	for (uint64_t i = 0; k.page && i < pages; i++)
		free(k.page[i]);
	free(k.page);
	free(k.l2);
	return error;
}

int qcow2_repair(struct qcow2 *im, struct qcow2_check *out, struct err *err)
{
	uint64_t bits = im->h.incompatible & ~QCOW2_DIRTY;
	uint8_t raw[8];
	int error = qcow2_check(im, 1, out, err);

	if (!out->bad)
		bits &= ~QCOW2_CORRUPT;
	if (error || bits == im->h.incompatible)
		return error;
	put_be64(raw, bits);
	error = waitio_write(&im->io, QCOW2_AT_INCOMPATIBLE, raw, sizeof(raw));
	if (!error)
		error = waitio_flush(&im->io);
	if (error)
		return err_sys(err, error, "%s: write", im->blk.name);
	im->h.incompatible = bits;
	return 0;
}
