// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/image.h"

#include "block/qcow2/edit.h"
#include "block/qcow2/snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK (2u << 20) /* bytes that a conversion reads at once: a whole number of clusters of any size */

/* Files. */

static int file_open(const char *path, bool write, struct blk **out, struct err *err)
{
	struct blk_options opt = { .read_only = !write };
	int error = blk_file_open(path, &opt, out, err);

	if (!error)
		error = blk_file_use(*out, BLK_FILE_GROWS, err);
	return error;
}

/* An empty file at @path; *@made: there was none. */
static int file_make(const char *path, struct blk **out, bool *made, struct err *err)
{
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644), error;

	*made = fd >= 0;
	if (fd < 0 && errno != EEXIST)
		return err_sys(err, -errno, "%s", path);
	if (fd >= 0)
		close(fd);
	error = file_open(path, true, out, err);
	if (error)
		return error;
	error = blk_truncate(*out, 0); /* only now: it is locked, so nobody uses it */
	return error ? err_sys(err, error, "%s: truncate", path) : 0;
}

/* The format that @path shows, where none is asked for. */
static int find_format(const char *path, enum blk_format *format, struct err *err)
{
	const struct blk_format_entry *e;
	uint8_t head[512];
	struct blk *file = NULL;
	size_t n;
	int error = 0;

	if (*format != BLK_GUESS)
		return 0;
	error = file_open(path, false, &file, err);
	if (!error) {
		n = blk_size(file) < sizeof(head) ? blk_size(file) : sizeof(head);
		error = blk_do(file, BLK_READ, 0, 0, head, n);
		if (error)
			err_sys(err, error, "%s: read", path);
		e = error ? NULL : blk_probe(head, n);
		*format = e && e->format == BLK_QCOW2 ? BLK_QCOW2 : BLK_RAW;
	}
	blk_close(file);
	return error;
}

/* The QCOW2 image @path as it is. */
static int open_as_is(const char *path, bool write, struct blk **out, struct err *err)
{
	struct blk_options opt = { .read_only = !write };
	struct blk *file = NULL;
	int error = file_open(path, write, &file, err);

	if (!error)
		error = qcow2_open_as_is(file, &opt, out, err);
	if (error)
		blk_close(file);
	return error;
}

/* Create. */

/* The image below, whose name counts from the new one's directory. */
static int open_backing(const char *path, const struct qcow2_create *q, struct blk **out, struct err *err)
{
	struct blk_options opt = { .format = strcmp(q->backing_format, "raw") ? BLK_QCOW2 : BLK_RAW,
		                   .read_only = true };
	const char *slash = strrchr(path, '/');
	char full[4096];
	int n = *q->backing == '/' || !slash
	                ? snprintf(full, sizeof(full), "%s", q->backing)
	                : snprintf(full, sizeof(full), "%.*s/%s", (int)(slash - path), path, q->backing);

	if (n >= (int)sizeof(full))
		return err_set(err, -ENAMETOOLONG, "%s: the path of its backing file is too long", path);
	return blk_open(full, &opt, out, err);
}

static int create_on(struct blk *file, const struct image_create *c, uint64_t size, struct err *err)
{
	struct qcow2_create q = c->qcow2;
	int error;

	q.size = size;
	if (c->format == BLK_QCOW2)
		return qcow2_create(file, &q, err);
	error = blk_truncate(file, size);
	return error ? err_sys(err, error, "%s: truncate", blk_name(file)) : 0;
}

/* @made: nothing was there before; nor is it after an error. */
static int create(const char *path, const struct image_create *c, bool *made, struct err *err)
{
	struct blk *file = NULL, *below = NULL;
	uint64_t size = c->size;
	int error = 0;

	*made = false;

	/* It is there, and what it is said to be, before anything is overwritten; and locked, with all that is below
	   it, so that none of that is what is overwritten. */
	if (c->qcow2.backing)
		error = open_backing(path, &c->qcow2, &below, err);
	if (!error && size == UINT64_MAX)
		size = blk_size(below);
	if (!error)
		error = file_make(path, &file, made, err);
	if (!error)
		error = create_on(file, c, (size + 511) & ~511ull, err);
	blk_close(file);
	blk_close(below);
	if (error && *made)
		unlink(path);
	*made &= !error;
	return error;
}

int image_create(const char *path, const struct image_create *c, struct err *err)
{
	bool made;

	return create(path, c, &made, err);
}

/* Info. */

static int copy_snapshots(struct qcow2 *im, struct image_info *out, struct err *err)
{
	struct qcow2_snapshot *list;
	int error = qcow2_snapshots_read(im, &list, err);
	uint32_t n = im->h.nb_snapshots;

	if (error || !n)
		return error;
	out->snapshots = calloc(n, sizeof(*out->snapshots));
	for (uint32_t i = 0; out->snapshots && i < n; i++) {
		struct image_snapshot *s = &out->snapshots[i];

		*s = (struct image_snapshot){ .id = list[i].id,
			                      .name = list[i].name,
			                      .vm_state = list[i].vm_state,
			                      .vm_clock = list[i].vm_clock,
			                      .seconds = list[i].seconds };
		list[i].id = list[i].name = NULL;
		out->nsnapshots++;
	}
	qcow2_snapshots_free(list, n);
	return out->snapshots ? 0 : err_set(err, -ENOMEM, "out of memory");
}

int image_info(const char *path, enum blk_format format, struct image_info *out, struct err *err)
{
	struct blk *b = NULL;
	struct stat st;
	int error = find_format(path, &format, err);

	*out = (struct image_info){ 0 };
	if (!error)
		error = format == BLK_QCOW2 ? open_as_is(path, false, &b, err) : file_open(path, false, &b, err);
	if (error)
		return error;
	snprintf(out->format, sizeof(out->format), "%s", format == BLK_QCOW2 ? "qcow2" : "raw");
	out->size = blk_size(b);
	out->allocated = stat(path, &st) ? 0 : (uint64_t)st.st_blocks * 512;
	if (format == BLK_QCOW2) {
		out->header = qcow2_image(b)->h;
		error = copy_snapshots(qcow2_image(b), out, err);
	}
	blk_close(b);
	if (error)
		image_info_free(out);
	return error;
}

void image_info_free(struct image_info *i)
{
	for (uint32_t k = 0; k < i->nsnapshots; k++) {
		free(i->snapshots[k].id);
		free(i->snapshots[k].name);
	}
	free(i->snapshots);
	*i = (struct image_info){ 0 };
}

/* Check, resize, snapshots. */

int image_check(const char *path, enum blk_format format, bool repair, struct qcow2_check *out, struct err *err)
{
	struct blk *b;
	int error = find_format(path, &format, err);

	if (error)
		return error;
	if (format != BLK_QCOW2)
		return err_set(err, -EOPNOTSUPP, "%s: a raw image has nothing to check", path);
	error = open_as_is(path, repair, &b, err);
	if (error)
		return error;
	error = repair ? qcow2_repair(qcow2_image(b), out, err) : qcow2_check(qcow2_image(b), 0, out, err);
	blk_close(b);
	return error;
}

static int resize_on(struct blk *b, uint64_t size, bool shrink, struct err *err)
{
	int error;

	if (size < blk_size(b) && !shrink)
		return err_set(err, -EINVAL, "%s: is longer than that: --shrink takes what lies past the new end away",
		               blk_name(b));
	if (qcow2_image(b))
		return qcow2_resize(qcow2_image(b), size, err);
	error = blk_truncate(b, size);
	return error ? err_sys(err, error, "%s: truncate", blk_name(b)) : 0;
}

int image_resize(const char *path, enum blk_format format, uint64_t size, bool shrink, struct err *err)
{
	struct blk_options opt = { .format = BLK_QCOW2 };
	struct blk *b = NULL;
	int error = size > INT64_MAX - 511 ? err_set(err, -EFBIG, "%s: too large a size", path)
	                                   : find_format(path, &format, err);

	if (!error)
		error = format == BLK_QCOW2 ? blk_open(path, &opt, &b, err) : file_open(path, true, &b, err);
	if (!error)
		error = resize_on(b, (size + 511) & ~511ull, shrink, err);
	blk_close(b);
	return error;
}

/* What a dirty image needs first, and every image after its snapshots have changed. */
static int repair(const char *path, struct err *err)
{
	struct qcow2_check result;
	struct blk *b;
	int error = open_as_is(path, true, &b, err);

	if (error)
		return error;
	error = qcow2_repair(qcow2_image(b), &result, err);
	if (!error && result.bad)
		error = err_set(err, -EUCLEAN, "%s: is corrupt: see `kvm disk check`", path);
	blk_close(b);
	return error;
}

int image_snapshot(const char *path, enum image_snapshot_op op, const char *name, struct err *err)
{
	struct blk *b;
	int error = repair(path, err);

	if (!error)
		error = open_as_is(path, true, &b, err);
	if (error)
		return error;
	switch (op) {
	case IMAGE_SNAPSHOT_CREATE: error = qcow2_snapshot_create(qcow2_image(b), name, err); break;
	case IMAGE_SNAPSHOT_APPLY: error = qcow2_snapshot_apply(qcow2_image(b), name, err); break;
	case IMAGE_SNAPSHOT_DELETE: error = qcow2_snapshot_delete(qcow2_image(b), name, err); break;
	}
	blk_close(b);
	return error ? error : repair(path, err);
}

/* Convert. */

struct conversion {
	const struct image_convert *c;
	struct blk *from, *to;
	struct qcow2_writer *writer; /* NULL: raw */
	bool made;                   /* the new file was not there before */
	uint64_t unit;               /* bytes that are left out if they are zero */
	uint8_t *buf;                /* CHUNK */
};

static bool is_zero(const uint8_t *p, size_t n)
{
	return !n || (!p[0] && !memcmp(p, p + 1, n - 1));
}

static int put_chunk(struct conversion *v, uint64_t off, uint64_t len)
{
	int error = 0;

	memset(v->buf + len, 0, CHUNK - len); /* the last cluster is longer than the disk */
	for (uint64_t at = 0; at < len && !error; at += v->unit) {
		uint64_t n = len - at < v->unit ? len - at : v->unit;

		if (is_zero(v->buf + at, n))
			continue;
		error = v->writer ? qcow2_writer_put(v->writer, (off + at) / v->unit, v->buf + at)
		                  : blk_do(v->to, BLK_WRITE, 0, off + at, v->buf + at, n);
	}
	return error;
}

/* Bytes from @off on that need not be looked at, as they are zero. */
static uint64_t hole(const struct conversion *v, uint64_t off)
{
	struct qcow2 *im = qcow2_image(v->from);
	uint64_t covers;

	if (!im || off < im->backing_size || atomic_load(&im->l1[l1_index(im, off)]))
		return 0;
	covers = 1ull << (im->cluster_bits + im->slice_bits + im->table_bits);
	return covers - (off & (covers - 1));
}

static int copy(struct conversion *v, struct err *err)
{
	uint64_t size = blk_size(v->from), len;

	for (uint64_t off = 0; off < size; off += len) {
		int error;

		if (v->c->progress)
			v->c->progress(off, size);
		len = hole(v, off) / CHUNK * CHUNK;
		if (len)
			continue;
		len = size - off < CHUNK ? size - off : CHUNK;
		error = blk_do(v->from, BLK_READ, 0, off, v->buf, len);
		if (error)
			return err_sys(err, error, "%s: read", v->c->from);
		error = put_chunk(v, off, len);
		if (error)
			return err_sys(err, error, "%s: write", v->c->to);
	}
	if (v->c->progress)
		v->c->progress(size, size);
	return 0;
}

/* Makes the new image and opens it. */
static int target(struct conversion *v, struct err *err)
{
	struct image_create new = v->c->create;
	struct blk_options opt = { .format = new.format };
	int error;

	new.size = blk_size(v->from);
	new.qcow2.backing = new.qcow2.backing_format = NULL;
	error = create(v->c->to, &new, &v->made, err);
	if (!error)
		error = blk_open(v->c->to, &opt, &v->to, err);
	v->unit = 65536;
	if (error || new.format != BLK_QCOW2)
		return error;
	v->unit = qcow2_image(v->to)->cluster_size;
	return qcow2_writer_new(qcow2_image(v->to), v->c->compress, &v->writer, err);
}

static int finish(struct conversion *v, int error, struct err *err)
{
	int end = 0;

	if (v->writer)
		end = qcow2_writer_end(v->writer, error);
	else if (!error)
		end = blk_do(v->to, BLK_FLUSH, 0, 0, NULL, 0);
	return error || !end ? error : err_sys(err, end, "%s: write", v->c->to);
}

int image_convert(const struct image_convert *c, struct err *err)
{
	struct blk_options opt = { .format = c->from_format, .read_only = true };
	struct conversion v = { .c = c, .buf = malloc(CHUNK) };
	int error = v.buf ? blk_open(c->from, &opt, &v.from, err) : err_set(err, -ENOMEM, "out of memory");

	if (!error)
		error = target(&v, err);
	if (!error)
		error = finish(&v, copy(&v, err), err);
	if (error && v.made)
		unlink(c->to); /* half a disk under its name would pass for a whole one */
	blk_close(v.to);
	blk_close(v.from);
	free(v.buf);
	return error;
}
