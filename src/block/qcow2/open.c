// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/qcow2/check.h"
#include "block/qcow2/io.h"
#include "block/qcow2/snapshot.h"

#include "base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Opening an image: whatever is wrong with its header and tables is found here, or marked. */

/* The first cluster, whose size is told by its beginning. */
static int read_header(struct qcow2 *im, struct err *err)
{
	uint64_t size = blk_size(im->file), n;
	uint8_t head[512] = { 0 }, *buf;
	unsigned bits;
	int error = waitio_read(&im->io, 0, head, size < sizeof(head) ? size : sizeof(head));

	if (error)
		return err_sys(err, error, "%s: read", im->blk.name);
	error = qcow2_header_cluster_bits(head, size < sizeof(head) ? size : sizeof(head), im->blk.name, &bits, err);
	if (error)
		return error;
	n = size < 1ull << bits ? size : 1ull << bits;
	buf = malloc(n);
	if (!buf)
		return err_set(err, -ENOMEM, "out of memory");
	error = waitio_read(&im->io, 0, buf, n);
	error = error ? err_sys(err, error, "%s: read", im->blk.name)
	              : qcow2_header_parse(buf, n, im->blk.name, &im->h, err);
	free(buf);
	return error;
}

static int check_state(struct qcow2 *im, bool as_is, struct err *err)
{
	if (!as_is && im->h.incompatible & QCOW2_CORRUPT && !im->blk.info.read_only)
		return err_set(err, -EROFS,
		               "%s: the image is marked corrupt: open it with ,ro or repair it with "
		               "`kvm disk check --repair %s`",
		               im->blk.name, im->blk.name);
	return qcow2_compression_load(im->h.compression, err);
}

static void lay_out(struct qcow2 *im)
{
	unsigned l2_bits = im->h.cluster_bits - 3;

	im->cluster_bits = im->h.cluster_bits;
	im->cluster_size = qcow2_cluster_size(&im->h);
	im->slice_bits = 1u << l2_bits < SLICE_ENTRIES_MAX ? l2_bits : (unsigned)__builtin_ctz(SLICE_ENTRIES_MAX);
	im->table_bits = l2_bits - im->slice_bits;
	im->slices_max = SLICES_CAP >> 3 >> im->slice_bits;
	if (im->blk.info.align > im->cluster_size)
		im->blk.info.align = (uint32_t)im->cluster_size; /* in the file, things are no better aligned */
	im->first_end = blk_size(im->file);
	atomic_store(&im->host_end, (im->first_end + im->cluster_size - 1) & ~(im->cluster_size - 1));
}

/* Clusters of what the header and the snapshots name; what overlaps there cannot be used at all. */
static int claim(struct qcow2 *im, uint64_t off, uint64_t len, const char *what, struct err *err)
{
	for (uint64_t at = off; at < off + len; at += im->cluster_size) {
		int fresh = at < im->cluster_size ? 0 : clusterset_add(&im->metadata, cluster_of(im, at));

		if (fresh < 0)
			return err_set(err, fresh, "out of memory");
		if (!fresh)
			return err_set(err, -EINVAL, "%s: not a sound QCOW2 image: the %s lies over other tables",
			               im->blk.name, what);
	}
	return 0;
}

static int claim_snapshots(struct qcow2 *im, struct err *err)
{
	struct qcow2_snapshot *list;
	uint64_t len = 0;
	int error = qcow2_snapshots_read(im, &list, err);

	for (uint32_t i = 0; !error && i < im->h.nb_snapshots; i++) {
		len += list[i].len;
		error = claim(im, list[i].l1_off, list[i].l1_size * 8ull, "L1 table of a snapshot", err);
	}
	if (!error && im->h.nb_snapshots)
		error = claim(im, im->h.snapshots_off, len, "snapshot table", err);
	qcow2_snapshots_free(list, im->h.nb_snapshots);
	return error;
}

static int claim_tables(struct qcow2 *im, struct err *err)
{
	int error = claim(im, im->h.l1_off, im->h.l1_size * 8ull, "L1 table", err);

	if (!error)
		error = claim(im, im->h.reftable_off, (uint64_t)im->h.reftable_clusters << im->cluster_bits,
		              "refcount table", err);
	return error ? error : claim_snapshots(im, err);
}

/* An L2 table that cannot be one, or is something else as well, is not read, nor written. */
static int judge_l1(struct qcow2 *im, uint64_t e, uint64_t *out)
{
	uint64_t off = e & QCOW2_OFFSET;
	int fresh = 0;

	if (off && !(e & QCOW2_L1_RESERVED) && !in_cluster(im, off) && off < atomic_load(&im->host_end))
		fresh = clusterset_add(&im->metadata, cluster_of(im, off));
	*out = e && fresh <= 0 ? e | L1_BAD : e;
	return fresh < 0 ? fresh : 0;
}

static int read_l1(struct qcow2 *im)
{
	uint64_t n = im->h.l1_size;
	uint8_t *raw = malloc(n * 8 + 1);
	int error = -ENOMEM;

	im->l1 = calloc(n + 1, sizeof(*im->l1));
	im->table = calloc(n + 1, sizeof(*im->table));
	if (raw && im->l1 && im->table)
		error = waitio_read(&im->io, im->h.l1_off, raw, n * 8);
	for (uint64_t i = 0; !error && i < n; i++) {
		uint64_t e;

		error = judge_l1(im, get_be64(raw + i * 8), &e);
		atomic_store_explicit(&im->l1[i], e, memory_order_relaxed);
	}
	free(raw);
	return error;
}

static int read_tables(struct qcow2 *im, struct err *err)
{
	int error = claim_tables(im, err);

	if (!error)
		error = qcow2_refs_open(im, err);
	if (error)
		return error;
	error = read_l1(im);
	return error ? err_sys(err, error, "%s: L1 table", im->blk.name) : 0;
}

/* After a crash with lazy refcounts they are made anew. */
static int clean_up(struct qcow2 *im, struct err *err)
{
	struct qcow2_check result;

	if (!(im->h.incompatible & QCOW2_DIRTY) || im->blk.info.read_only)
		return 0;
	log_verbose("%s: was not closed; its refcounts are made anew", im->blk.name);
	return qcow2_repair(im, &result, err);
}

static void describe(struct qcow2 *im, const struct blk_options *opt)
{
	const struct blk_info *below = blk_info(im->file);
	struct blk_info *i = &im->blk.info;

	i->read_only = below->read_only || opt->read_only;
	i->writeback = below->writeback;
	i->block = below->block;
	i->align = below->align;
	i->mem_align = below->mem_align;
	i->can_zero = true;
	i->can_discard = !i->read_only && !opt->no_discard;
	im->discards = i->can_discard && below->can_discard;
}

static void qcow2_close(struct blk *b);

static const struct blk_ops qcow2_ops = {
	.format = "qcow2",
	.queue_open = qcow2_queue_open,
	.queue_close = qcow2_queue_close,
	.submit = qcow2_submit,
	.close = qcow2_close,
};

static void image_free(struct qcow2 *im)
{
	qcow2_inflater_free(im->inflater);
	qcow2_refs_close(im);
	qcow2_map_free(im);
	waitio_close(&im->io);
	free(im->l1_dirty);
	free(im->gone.item);
	free(im->limbo[0].item);
	free(im->limbo[1].item);
	pthread_cond_destroy(&im->more);
	pthread_mutex_destroy(&im->lock);
	blk_close(im->backing);
	blk_exit(&im->blk);
	free(im);
}

static void qcow2_close(struct blk *b)
{
	struct qcow2 *im = qcow2_of(b);
	struct blk *file = im->file;
	int error = qcow2_worker_stop(im);

	if (error)
		log_line("%s: what was not flushed is lost: %s", b->name, strerror(-error));
	if (im->lost)
		log_line("%s: for want of memory some clusters were leaked; `kvm disk check --repair` finds them",
		         b->name);
	image_free(im);
	blk_close(file);
}

static struct qcow2 *image_new(struct blk *file, struct err *err)
{
	struct qcow2 *im = calloc(1, sizeof(*im));
	pthread_condattr_t attr;

	if (!im || blk_init(&im->blk, &qcow2_ops, blk_name(file), err)) {
		err_set(err, -ENOMEM, "out of memory");
		free(im);
		return NULL;
	}
	im->file = file;
	pthread_mutex_init(&im->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&im->more, &attr);
	pthread_condattr_destroy(&attr);
	im->to_prepare_end = &im->to_prepare;
	im->to_commit_end = &im->to_commit;
	return im;
}

static int image_open(struct qcow2 *im, const struct blk_options *opt, bool as_is, struct err *err)
{
	int error = waitio_open(&im->io, im->file, err);

	describe(im, opt);
	if (!error)
		error = read_header(im, err);
	if (!error)
		error = check_state(im, as_is, err);
	if (error)
		return error;
	lay_out(im);
	error = read_tables(im, err);
	if (!error && !as_is)
		error = clean_up(im, err);
	if (!error && !as_is)
		error = qcow2_backing_open(im, opt, err);
	atomic_store(&im->needs_activation, im->h.autoclear != 0);
	atomic_store(&im->blk.size, im->h.size);
	return error;
}

static int open_as(struct blk *file, const struct blk_options *opt, bool as_is, struct blk **out, struct err *err)
{
	struct qcow2 *im = image_new(file, err);
	int error;

	if (!im)
		return -ENOMEM;
	error = image_open(im, opt, as_is, err);
	if (error)
		image_free(im);
	else
		*out = &im->blk;
	return error;
}

int qcow2_open(struct blk *file, const struct blk_options *opt, struct blk **out, struct err *err)
{
	return open_as(file, opt, false, out, err);
}

int qcow2_open_as_is(struct blk *file, const struct blk_options *opt, struct blk **out, struct err *err)
{
	return open_as(file, opt, true, out, err);
}

struct qcow2 *qcow2_image(struct blk *b)
{
	return b->ops == &qcow2_ops ? qcow2_of(b) : NULL;
}
