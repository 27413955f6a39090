// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/qcow2/edit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * How it works
 *
 * One L2 table is kept in memory, the one that the last cluster belongs to, and
 * written when the next cluster belongs to another; so clusters come in
 * ascending order. Compressed ones are packed: @at is where the next byte goes,
 * and each host cluster that one lies in gets a reference for it. The L1 table
 * is written last, after a flush, so that before it the image is still empty.
 */
struct qcow2_writer {
	struct qcow2 *im;
	bool compress;
	uint64_t *l1;
	uint8_t *l2, *packed;
	uint64_t l1_at;   /* the entry that @l2 is for; UINT64_MAX: none yet */
	uint64_t at, end; /* where compressed data goes, up to where; both 0: nowhere yet */
	uint64_t host, n; /* clusters taken and not used yet */
};

#define TAKE (16ull << 20) /* bytes of clusters that are taken at once */

int qcow2_writer_new(struct qcow2 *im, bool compress, struct qcow2_writer **out, struct err *err)
{
	struct qcow2_writer *w = calloc(1, sizeof(*w));

	if (w) {
		w->im = im;
		w->compress = compress;
		w->l1_at = UINT64_MAX;
		w->l1 = calloc(im->h.l1_size + 1, sizeof(*w->l1));
		w->l2 = calloc(1, im->cluster_size);
		w->packed = malloc(im->cluster_size);
	}
	if (!w || !w->l1 || !w->l2 || !w->packed) {
		if (w)
			qcow2_writer_end(w, -ENOMEM);
		return err_set(err, -ENOMEM, "out of memory");
	}
	*out = w;
	return 0;
}

/* A cluster of our own: its offset. */
static int take(struct qcow2_writer *w, uint64_t *off)
{
	uint64_t want = TAKE >> w->im->cluster_bits, c;
	int error = 0;

	if (!w->n) {
		error = qcow2_refs_take(w->im, 1, want, &c, &w->n);
		w->host = c << w->im->cluster_bits;
	}
	if (error)
		return error;
	*off = w->host;
	w->host += w->im->cluster_size;
	w->n--;
	return 0;
}

static int write_l2(struct qcow2_writer *w)
{
	uint64_t off;
	int error;

	if (w->l1_at == UINT64_MAX)
		return 0;
	error = take(w, &off);
	if (!error)
		error = waitio_write(&w->im->io, off, w->l2, w->im->cluster_size);
	if (!error)
		w->l1[w->l1_at] = off | QCOW2_COPIED;
	memset(w->l2, 0, w->im->cluster_size);
	return error;
}

/* Room for @len bytes in a row; a cluster that follows the last one counts on. */
static int make_room(struct qcow2_writer *w, uint64_t len)
{
	uint64_t off;
	int error;

	if (w->end - w->at >= len)
		return 0;
	error = take(w, &off);
	if (error)
		return error;
	if (!w->end || off != w->end)
		w->at = off;
	w->end = off + w->im->cluster_size;
	return 0;
}

/* A reference for each host cluster of [@at, @at + @len); one that is new has its own already. */
static int refer(struct qcow2_writer *w, uint64_t at, uint64_t len)
{
	const struct qcow2 *im = w->im;
	int error = 0;

	for (uint64_t c = cluster_of(im, at); !error && c <= cluster_of(im, at + len - 1); c++) {
		uint64_t n;

		if (c << im->cluster_bits >= at) /* it begins here */
			continue;
		error = qcow2_refs_get(w->im, c, &n);
		if (!error)
			error = qcow2_refs_set(w->im, c, n + 1);
	}
	return error;
}

/* A cluster that has as many references as its refcount can tell is not shared further. */
static int leave_full(struct qcow2_writer *w)
{
	unsigned order = w->im->h.refcount_order;
	uint64_t n = 0;
	int error = w->at < w->end ? qcow2_refs_get(w->im, cluster_of(w->im, w->at), &n) : 0;

	if (!error && order < 6 && n == (1ull << (1u << order)) - 1)
		w->at = w->end = 0;
	return error;
}

static int put_packed(struct qcow2_writer *w, size_t len, uint64_t *entry)
{
	unsigned bits = 62 - (w->im->cluster_bits - 8);
	uint64_t at, sectors;
	int error = leave_full(w);

	if (!error)
		error = make_room(w, len);
	if (error)
		return error;
	at = w->at;
	error = refer(w, at, len);
	if (error)
		return error;
	w->at += len;
	sectors = (at + len - 1) / 512 - at / 512;
	*entry = QCOW2_COMPRESSED | sectors << bits | at;
	return waitio_write(&w->im->io, at, w->packed, len);
}

static int put_plain(struct qcow2_writer *w, const uint8_t *data, uint64_t *entry)
{
	uint64_t off = 0;
	int error = take(w, &off);

	*entry = off | QCOW2_COPIED;
	return error ? error : waitio_write(&w->im->io, off, data, w->im->cluster_size);
}

int qcow2_writer_put(struct qcow2_writer *w, uint64_t cluster, const uint8_t *data)
{
	uint64_t per = w->im->cluster_size / 8, entry = 0;
	size_t len = 0;
	int error = 0;

	if (cluster / per != w->l1_at) {
		error = write_l2(w);
		w->l1_at = cluster / per;
	}
	if (error)
		return error;
	if (w->compress)
		len = qcow2_deflate_cluster(w->im->h.compression, data, w->packed, w->im->cluster_size);
	error = len ? put_packed(w, len, &entry) : put_plain(w, data, &entry);
	put_be64(w->l2 + cluster % per * 8, entry);
	return error;
}

static int write_l1(struct qcow2_writer *w)
{
	uint64_t n = w->im->h.l1_size;
	uint8_t *raw = malloc(n * 8 + 1);
	int error = raw ? waitio_flush(&w->im->io) : -ENOMEM;

	for (uint64_t i = 0; i < n && !error; i++)
		put_be64(raw + i * 8, w->l1[i]);
	if (!error)
		error = waitio_write(&w->im->io, w->im->h.l1_off, raw, n * 8);
	free(raw);
	return error ? error : waitio_flush(&w->im->io);
}

int qcow2_writer_end(struct qcow2_writer *w, int error)
{
	if (!error)
		error = write_l2(w);
	for (; !error && w->n; w->n--, w->host += w->im->cluster_size)
		error = qcow2_refs_drop(w->im, cluster_of(w->im, w->host));
	if (!error)
		error = qcow2_refs_write(w->im);
	if (!error)
		error = write_l1(w);
	free(w->l1);
	free(w->l2);
	free(w->packed);
	free(w);
	return error;
}
