// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/qcow2/edit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * A longer disk: an L1 table that is large enough, the zeroes that the image
 * below would show through, then the header. A shorter one: what lies past the
 * end is given back, then the header. The header's fields lie in one sector.
 */

int qcow2_write_header(struct qcow2 *im, uint64_t at, const void *raw, size_t len)
{
	int error = waitio_write(&im->io, at, raw, len);

	if (!error)
		error = waitio_flush(&im->io);
	im->unsure |= !!error;
	return error;
}

int qcow2_write_l1_fields(struct qcow2 *im, uint64_t size, uint32_t l1_size, uint64_t l1_off)
{
	uint8_t raw[24] = { 0 }; /* size, no encryption, L1 size and offset */

	put_be64(raw, size);
	put_be32(raw + (QCOW2_AT_L1_SIZE - QCOW2_AT_SIZE), l1_size);
	put_be64(raw + (QCOW2_AT_L1_OFFSET - QCOW2_AT_SIZE), l1_off);
	return qcow2_write_header(im, QCOW2_AT_SIZE, raw, sizeof(raw));
}

/* A copy of the L1 table with room for @n entries, durable, and its refcounts too. */
static int copy_l1(struct qcow2 *im, uint32_t n, uint64_t *off)
{
	uint64_t want = (n * 8ull + im->cluster_size - 1) >> im->cluster_bits, c, got;
	uint8_t *raw = calloc(want, im->cluster_size);
	int error = raw ? qcow2_refs_take(im, want, want, &c, &got) : -ENOMEM;

	for (uint32_t i = 0; !error && i < im->h.l1_size; i++)
		put_be64(raw + i * 8ul, atomic_load(&im->l1[i]) & ~L1_BAD);
	if (!error) {
		*off = c << im->cluster_bits;
		error = waitio_write(&im->io, *off, raw, want << im->cluster_bits);
	}
	if (!error)
		error = qcow2_refs_write(im);
	free(raw);
	return error ? error : waitio_flush(&im->io);
}

/* The arrays of the map that go with it. */
static int grow_map(struct qcow2 *im, uint32_t n)
{
	_Atomic uint64_t *l1 = calloc(n, sizeof(*l1));
	_Atomic(struct table *) *table = calloc(n, sizeof(*table));

	if (!l1 || !table) {
		free((void *)l1);
		free((void *)table);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < im->h.l1_size; i++) {
		atomic_store(&l1[i], atomic_load(&im->l1[i]));
		atomic_store(&table[i], atomic_load(&im->table[i]));
	}
	free((void *)im->l1);
	free((void *)im->table);
	im->l1 = l1;
	im->table = table;
	return 0;
}

static int grow_l1(struct qcow2 *im, uint64_t size)
{
	uint64_t n = qcow2_l1_needed(size, im->cluster_bits), old_off = im->h.l1_off, off;
	uint64_t first = cluster_of(im, old_off), last = cluster_of(im, old_off + im->h.l1_size * 8ull - 1);
	int error;

	if (n <= im->h.l1_size)
		return 0;
	if (n * 8 > QCOW2_MAX_L1)
		return -EFBIG;
	error = copy_l1(im, (uint32_t)n, &off);
	if (!error)
		error = grow_map(im, (uint32_t)n);
	if (!error)
		error = qcow2_write_l1_fields(im, im->h.size, (uint32_t)n, off);
	if (error)
		return error;
	for (uint64_t c = first; im->h.l1_size && c <= last; c++) {
		qcow2_metadata_del(im, c);
		(void)!qcow2_refs_drop(im, c); /* should it fail, a cluster is leaked */
	}
	im->h.l1_size = (uint32_t)n;
	im->h.l1_off = off;
	for (uint64_t at = off; at < off + n * 8; at += im->cluster_size)
		error = error ? error : qcow2_metadata_add(im, cluster_of(im, at), 0);
	return error;
}

/* [@from, @to) reads as zeroes, durably, whatever is below. Data past the end may be left of a longer disk. */
static int make_zero(struct qcow2 *im, uint64_t from, uint64_t to)
{
	int error = from < to ? blk_do(&im->blk, BLK_WRITE_ZEROES, BLK_MAY_UNMAP, from, NULL, to - from) : 0;

	return error ? error : blk_do(&im->blk, BLK_FLUSH, 0, 0, NULL, 0);
}

static int grow(struct qcow2 *im, uint64_t size)
{
	uint64_t old = im->h.size, below = im->backing ? blk_size(im->backing) : 0;
	uint64_t end = (old + im->cluster_size - 1) & ~(im->cluster_size - 1);
	int error = grow_l1(im, size);

	if (error)
		return error;
	im->h.size = size;
	atomic_store(&im->blk.size, size);
	im->backing_size = below < size ? below : size;
	if (end > size)
		end = size;
	return make_zero(im, old, end > im->backing_size ? end : im->backing_size);
}

/* Up to the end of the last cluster zeroes, so that the disk may grow again; the clusters past it go. */
static int cut(struct qcow2 *im, uint64_t size)
{
	uint64_t end = (size + im->cluster_size - 1) & ~(im->cluster_size - 1);
	int error;

	if (end > im->h.size)
		end = im->h.size;
	error = make_zero(im, size, end);
	if (!error && end < im->h.size)
		error = blk_do(&im->blk, BLK_DISCARD, 0, end, NULL, im->h.size - end);
	return error ? error : blk_do(&im->blk, BLK_FLUSH, 0, 0, NULL, 0);
}

int qcow2_resize(struct qcow2 *im, uint64_t size, struct err *err)
{
	int error;

	if (size > INT64_MAX || size % 512)
		return err_set(err, -EINVAL, "%s: a disk's size is a multiple of 512 bytes", im->blk.name);
	if (im->h.nb_snapshots)
		return err_set(err, -ENOTSUP, "%s: has snapshots, which remember the size: delete them first",
		               im->blk.name);
	error = size > im->h.size ? grow(im, size) : cut(im, size);
	if (!error)
		error = qcow2_worker_stop(im);
	if (!error)
		error = qcow2_write_l1_fields(im, size, im->h.l1_size, im->h.l1_off);
	if (!error)
		error = qcow2_refs_write(im); /* an old L1 table's */
	if (error == -EFBIG)
		return err_set(err, error, "%s: too large a disk for clusters of %llu bytes", im->blk.name,
		               (unsigned long long)im->cluster_size);
	return error ? err_sys(err, error, "%s: resize", im->blk.name) : 0;
}
