// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/qcow2/check.h"
#include "block/qcow2/edit.h"
#include "block/qcow2/snapshot.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/*
 * How it works
 *
 * Each change is: refcounts up and durable, new tables beside the old ones and
 * durable, one write to the header, a flush. What the old tables counted, and
 * copied flags that could be set again, are left to a repair (check.c) after the
 * image was opened anew, which is exactly what a crash after the header needs.
 * Before the header nothing counts yet, so a crash leaks at most.
 *
 *	create  everything that the active L1 table reaches gets one more reference
 *	        and loses its copied flags; a copy of the L1 table is the snapshot's
 *	apply   the same for what the snapshot reaches; a copy of its L1 table
 *	        becomes the active one
 *	delete  only the snapshot table changes
 */

/* References. */

static int raise_range(struct qcow2 *im, uint64_t off, uint64_t len)
{
	int error = 0;

	for (uint64_t c = cluster_of(im, off); !error && c <= cluster_of(im, off + len - 1); c++) {
		uint64_t n;

		error = qcow2_refs_get(im, c, &n);
		if (!error)
			error = n ? qcow2_refs_set(im, c, n + 1) : -EIO; /* 0: the image is corrupt */
	}
	return error;
}

static int raise_entry(struct qcow2 *im, uint64_t e)
{
	uint64_t host = e & QCOW2_OFFSET, len = im->cluster_size;

	if (e & QCOW2_COMPRESSED)
		qcow2_compressed_range(im, e, &host, &len);
	else if (e & QCOW2_L2_RESERVED || in_cluster(im, host))
		return -EIO;
	return host ? raise_range(im, host, len) : 0;
}

/* One more reference for L2 table @off and all that it names. With @clear its copied flags go. */
static int raise_l2(struct qcow2 *im, uint64_t off, bool clear)
{
	uint8_t *raw = malloc(im->cluster_size);
	int error = raw ? waitio_read(&im->io, off, raw, im->cluster_size) : -ENOMEM;

	for (uint64_t i = 0; !error && i < im->cluster_size / 8; i++) {
		uint64_t e = get_be64(raw + i * 8);

		if (clear) { /* the second time, when the refcounts are durable */
			if (!(e & QCOW2_COMPRESSED))
				put_be64(raw + i * 8, e & ~QCOW2_COPIED);
			continue;
		}
		error = e ? raise_entry(im, e) : 0;
	}
	if (!error && clear)
		error = waitio_write(&im->io, off, raw, im->cluster_size);
	free(raw);
	return error ? error : clear ? 0 : raise_range(im, off, im->cluster_size);
}

static int each_l2(struct qcow2 *im, const uint64_t *l1, uint64_t n, bool clear)
{
	int error = 0;

	for (uint64_t i = 0; i < n && !error; i++) {
		uint64_t off = l1[i] & QCOW2_OFFSET;

		if (l1[i] && (!off || l1[i] & QCOW2_L1_RESERVED || in_cluster(im, off)))
			return -EIO;
		error = off ? raise_l2(im, off, clear) : 0;
	}
	return error;
}

static int sync_refs(struct qcow2 *im)
{
	int error = qcow2_refs_write(im);

	return error ? error : waitio_flush(&im->io);
}

/* L1 tables. */

static uint64_t *l1_read(struct qcow2 *im, uint64_t off, uint64_t n, int *error)
{
	uint64_t *l1 = calloc(n + 1, sizeof(*l1));

	*error = l1 ? waitio_read(&im->io, off, l1, n * 8) : -ENOMEM;
	if (*error) {
		free(l1);
		return NULL;
	}
	for (uint64_t i = 0; i < n; i++)
		l1[i] = get_be64((uint8_t *)&l1[i]);
	return l1;
}

/* Writes @n entries without copied flags to new clusters, or in place if *@off is not 0. */
static int l1_write(struct qcow2 *im, const uint64_t *l1, uint64_t n, uint64_t *off)
{
	uint64_t want = (n * 8 + im->cluster_size - 1) >> im->cluster_bits, c, got;
	uint8_t *raw = calloc(want + !want, im->cluster_size);
	int error = raw ? 0 : -ENOMEM;

	for (uint64_t i = 0; !error && i < n; i++)
		put_be64(raw + i * 8, l1[i] & ~QCOW2_COPIED);
	if (!error && *off) {
		error = waitio_write(&im->io, *off, raw, n * 8);
	} else if (!error) {
		error = qcow2_refs_take(im, want + !want, want + !want, &c, &got);
		*off = c << im->cluster_bits;
		if (!error)
			error = waitio_write(&im->io, *off, raw, (want + !want) << im->cluster_bits);
	}
	free(raw);
	return error;
}

/* The snapshot table. */

static int table_switch(struct qcow2 *im, uint32_t n, uint64_t off)
{
	uint8_t raw[12];
	int error;

	put_be32(raw, n);
	put_be64(raw + 4, n ? off : 0);
	error = qcow2_write_header(im, QCOW2_AT_NB_SNAPSHOTS, raw, sizeof(raw));
	if (!error) {
		im->h.nb_snapshots = n;
		im->h.snapshots_off = n ? off : 0;
	}
	return error;
}

/* A new table of @n entries, durable, then the header. */
static int table_write(struct qcow2 *im, const struct qcow2_snapshot *list, uint32_t n)
{
	uint64_t len = 0, want, c = 0, got;
	uint8_t *raw, *p;
	int error = 0;

	for (uint32_t i = 0; i < n; i++)
		len += list[i].len;
	want = (len + im->cluster_size - 1) >> im->cluster_bits;
	raw = p = calloc(want + 1, im->cluster_size);
	if (!raw)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; p += list[i++].len)
		memcpy(p, list[i].raw, list[i].len);
	if (n)
		error = qcow2_refs_take(im, want, want, &c, &got);
	if (!error && n)
		error = waitio_write(&im->io, c << im->cluster_bits, raw, want << im->cluster_bits);
	free(raw);
	if (!error)
		error = sync_refs(im);
	return error ? error : table_switch(im, n, c << im->cluster_bits);
}

/* The entry that @name, or else the id, means; -1: none. */
static int64_t find(const struct qcow2_snapshot *list, uint32_t n, const char *name)
{
	for (uint32_t i = 0; i < n; i++)
		if (!strcmp(list[i].name, name))
			return i;
	for (uint32_t i = 0; i < n; i++)
		if (!strcmp(list[i].id, name))
			return i;
	return -1;
}

static int none(const struct qcow2 *im, const char *name, struct err *err)
{
	return err_set(err, -ENOENT, "%s: there is no snapshot '%.200s'", im->blk.name, name);
}

/* Create. */

static unsigned long next_id(const struct qcow2_snapshot *list, uint32_t n)
{
	unsigned long most = 0;

	for (uint32_t i = 0; i < n; i++) {
		unsigned long id = strtoul(list[i].id, NULL, 10);

		if (id > most)
			most = id;
	}
	return most + 1;
}

static int entry_make(struct qcow2 *im, struct qcow2_snapshot *s, unsigned long id, const char *name, uint64_t l1_off)
{
	size_t nname = strlen(name), at = 64;
	struct timespec now;
	char text[24];
	int nid = snprintf(text, sizeof(text), "%lu", id);

	clock_gettime(CLOCK_REALTIME, &now);
	s->len = (uint32_t)((at + (size_t)nid + nname + 7) / 8 * 8);
	s->raw = calloc(1, s->len);
	if (!s->raw)
		return -ENOMEM;
	put_be64(s->raw, l1_off);
	put_be32(s->raw + 8, im->h.l1_size);
	put_be32(s->raw + 12, (uint32_t)nid << 16 | (uint32_t)nname);
	put_be32(s->raw + 16, (uint32_t)now.tv_sec);
	put_be32(s->raw + 20, (uint32_t)now.tv_nsec);
	put_be32(s->raw + 36, 24); /* extra data: VM state, disk size, instruction count */
	put_be64(s->raw + 48, im->h.size);
	put_be64(s->raw + 56, UINT64_MAX);
	memcpy(s->raw + at, text, (size_t)nid);
	memcpy(s->raw + at + nid, name, nname);
	return 0;
}

static int create(struct qcow2 *im, struct qcow2_snapshot *list, const char *name)
{
	uint32_t n = im->h.nb_snapshots;
	uint64_t off = 0, own = im->h.l1_off;
	int error;
	uint64_t *l1 = l1_read(im, im->h.l1_off, im->h.l1_size, &error);

	if (!error)
		error = each_l2(im, l1, im->h.l1_size, false);
	if (!error)
		error = sync_refs(im);
	if (!error)
		error = each_l2(im, l1, im->h.l1_size, true);
	if (!error)
		error = l1_write(im, l1, im->h.l1_size, &own);
	if (!error)
		error = l1_write(im, l1, im->h.l1_size, &off);
	free(l1);
	if (!error)
		error = entry_make(im, &list[n], next_id(list, n), name, off);
	return error ? error : table_write(im, list, n + 1);
}

/*
 * Did it leave more references than there are? Then they go again: whatever
 * failed, nothing has changed. Unless it was the header: then what the old
 * tables name and what the new ones do must both stay.
 */
static int undone(struct qcow2 *im, int error, const char *what, struct err *err)
{
	struct qcow2_check result;
	struct err ignored;

	if (im->unsure)
		return err_set(err, error,
		               "%s: %s: %s; it may have happened or not: `kvm disk check --repair` makes it certain",
		               im->blk.name, what, strerror(-error));
	(void)!qcow2_repair(im, &result, &ignored);
	if (error == -ERANGE)
		return err_set(err, error, "%s: refcounts of %u bits are too narrow for a snapshot more", im->blk.name,
		               1u << im->h.refcount_order);
	return err_sys(err, error, "%s: %s", im->blk.name, what);
}

int qcow2_snapshot_create(struct qcow2 *im, const char *name, struct err *err)
{
	uint32_t n = im->h.nb_snapshots;
	struct qcow2_snapshot *list, *more;
	int error;

	if (!*name || strlen(name) > 255)
		return err_set(err, -EINVAL, "a snapshot's name has 1 to 255 bytes");
	if (n == QCOW2_MAX_SNAPSHOTS)
		return err_set(err, -EINVAL, "%s: has %u snapshots, which is the most", im->blk.name, n);
	error = qcow2_snapshots_read(im, &list, err);
	if (error)
		return error;
	more = realloc(list, (n + 1) * sizeof(*list));
	if (!more) {
		qcow2_snapshots_free(list, n);
		return err_set(err, -ENOMEM, "out of memory");
	}
	memset(&more[n], 0, sizeof(*more));
	if (find(more, n, name) >= 0)
		error = err_set(err, -EEXIST, "%s: there is a snapshot '%.200s' already", im->blk.name, name);
	else if ((error = create(im, more, name)))
		error = undone(im, error, "snapshot", err);
	qcow2_snapshots_free(more, n + 1);
	return error;
}

/* Apply, delete. */

static int apply(struct qcow2 *im, const struct qcow2_snapshot *s)
{
	uint64_t off = 0, n = s->l1_size, need = qcow2_l1_needed(s->disk_size, im->cluster_bits);
	uint64_t *l1;
	int error;

	if (s->disk_size > INT64_MAX || n < need)
		return -EINVAL;
	l1 = l1_read(im, s->l1_off, n, &error);
	if (!error)
		error = each_l2(im, l1, n, false);
	if (!error)
		error = l1_write(im, l1, n, &off);
	free(l1);
	if (!error)
		error = sync_refs(im);
	return error ? error : qcow2_write_l1_fields(im, s->disk_size, (uint32_t)n, off);
}

int qcow2_snapshot_apply(struct qcow2 *im, const char *name, struct err *err)
{
	struct qcow2_snapshot *list;
	int error = qcow2_snapshots_read(im, &list, err);
	int64_t i;

	if (error)
		return error;
	i = find(list, im->h.nb_snapshots, name);
	if (i < 0)
		error = none(im, name, err);
	else if ((error = apply(im, &list[i])))
		error = undone(im, error, "snapshot", err);
	qcow2_snapshots_free(list, im->h.nb_snapshots);
	return error;
}

int qcow2_snapshot_delete(struct qcow2 *im, const char *name, struct err *err)
{
	struct qcow2_snapshot *list, gone;
	uint32_t n = im->h.nb_snapshots;
	int error = qcow2_snapshots_read(im, &list, err);
	int64_t i;

	if (error)
		return error;
	i = find(list, n, name);
	if (i < 0) {
		error = none(im, name, err);
	} else {
		gone = list[i];
		memmove(&list[i], &list[i + 1], (n - (uint32_t)i - 1) * sizeof(*list));
		list[n - 1] = gone;
		error = table_write(im, list, n - 1);
		error = error ? undone(im, error, "snapshot", err) : 0;
	}
	qcow2_snapshots_free(list, n);
	return error;
}
