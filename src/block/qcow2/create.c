// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/qcow2/create.h"

#include "block/qcow2/waitio.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A new image: header, refcount table, refcount blocks, L1 table, in this order. The header is written last. */

const struct qcow2_create qcow2_create_default = { .version = 3, .cluster_bits = 16, .refcount_order = 4 };

struct layout {
	uint64_t cluster, l1_size, l1_clusters, blocks, table_clusters;
	uint64_t used; /* clusters */
};

static int refuse(const char *name, const char *what, struct err *err)
{
	return err_set(err, -EINVAL, "%s: %s", name, what);
}

static int check(const struct qcow2_create *c, const char *name, struct err *err)
{
	if (c->version != 2 && c->version != 3)
		return refuse(name, "QCOW2 has versions 2 and 3 (compat=0.10 and 1.1)", err);
	if (c->cluster_bits < QCOW2_MIN_CLUSTER_BITS || c->cluster_bits > QCOW2_MAX_CLUSTER_BITS)
		return refuse(name, "the cluster size must be a power of two from 512 to 2M", err);
	if (c->refcount_order > 6)
		return refuse(name, "refcounts have 1, 2, 4, 8, 16, 32 or 64 bits", err);
	if (c->version == 2 && (c->refcount_order != 4 || c->lazy_refcounts || c->compression != QCOW2_ZLIB))
		return refuse(name, "version 2 (compat=0.10) has 16-bit refcounts, written at once, and zlib", err);
	if (c->size > INT64_MAX - 511 || qcow2_l1_needed(c->size, c->cluster_bits) * 8 > QCOW2_MAX_L1)
		return refuse(name, "the disk is too large for this cluster size", err);
	if (c->backing && strlen(c->backing) > QCOW2_MAX_NAME)
		return refuse(name, "the name of the backing file is longer than 1023 bytes", err);
	return 0;
}

static struct layout plan(const struct qcow2_create *c)
{
	struct layout l = { .cluster = 1ull << c->cluster_bits, .table_clusters = 1, .blocks = 1 };
	uint64_t per = l.cluster * 8 >> c->refcount_order;

	l.l1_size = qcow2_l1_needed(c->size, c->cluster_bits);
	l.l1_clusters = (l.l1_size * 8 + l.cluster - 1) / l.cluster;
	for (;;) {
		l.used = 1 + l.table_clusters + l.blocks + l.l1_clusters;
		if (l.blocks * per < l.used)
			l.blocks++;
		else if (l.table_clusters * l.cluster / 8 < l.blocks)
			l.table_clusters++;
		else
			return l;
	}
}

static size_t put_extension(uint8_t *p, uint32_t type, const char *text)
{
	size_t n = strlen(text);

	put_be32(p, type);
	put_be32(p + 4, (uint32_t)n);
	for (size_t i = 0; i < n; i++)
		p[8 + i] = (uint8_t)text[i]; /* without the zero byte at its end */
	return 8 + (n + 7) / 8 * 8;
}

/* False: it does not fit into the first cluster. */
static bool put_names(uint8_t *p, size_t at, const struct qcow2_create *c, uint64_t cluster)
{
	size_t n = c->backing ? strlen(c->backing) : 0, format = c->backing_format ? strlen(c->backing_format) : 0;

	if (at + 16 + format + 7 + n > cluster)
		return false;
	if (format)
		at += put_extension(p + at, QCOW2_EXT_BACKING_FORMAT, c->backing_format);
	at += 8; /* the end of extensions */
	if (n) {
		put_be64(p + 8, at);
		put_be32(p + 16, (uint32_t)n);
		memcpy(p + at, c->backing, n);
	}
	return true;
}

static bool put_header(uint8_t *p, const struct qcow2_create *c, const struct layout *l)
{
	put_be32(p, QCOW2_MAGIC);
	put_be32(p + 4, c->version);
	put_be32(p + 20, c->cluster_bits);
	put_be64(p + QCOW2_AT_SIZE, c->size);
	put_be32(p + QCOW2_AT_L1_SIZE, (uint32_t)l->l1_size);
	put_be64(p + QCOW2_AT_L1_OFFSET, (1 + l->table_clusters + l->blocks) * l->cluster);
	put_be64(p + QCOW2_AT_REFTABLE, l->cluster);
	put_be32(p + QCOW2_AT_REFTABLE + 8, (uint32_t)l->table_clusters);
	if (c->version == 2)
		return put_names(p, QCOW2_V2_HEADER, c, l->cluster);
	put_be64(p + QCOW2_AT_INCOMPATIBLE, c->compression ? QCOW2_COMPRESSION : 0);
	put_be64(p + 80, c->lazy_refcounts ? QCOW2_LAZY_REFCOUNTS : 0);
	put_be32(p + 96, c->refcount_order);
	put_be32(p + 100, QCOW2_V3_HEADER + 8);
	p[QCOW2_V3_HEADER] = (uint8_t)c->compression;
	return put_names(p, QCOW2_V3_HEADER + 8, c, l->cluster);
}

static void put_one(uint8_t *p, uint64_t i, unsigned order)
{
	unsigned bits = 1u << order;

	if (order < 3)
		p[i * bits / 8] |= (uint8_t)(1u << i * bits % 8);
	else
		p[(i + 1) * (bits / 8) - 1] = 1;
}

/* Everything but the header. */
static int write_tables(struct waitio *io, const struct qcow2_create *c, const struct layout *l, uint8_t *buf)
{
	size_t table = l->table_clusters * l->cluster, blocks = l->blocks * l->cluster;
	int error;

	for (uint64_t i = 0; i < l->blocks; i++)
		put_be64(buf + i * 8, (1 + l->table_clusters + i) * l->cluster);
	for (uint64_t i = 0; i < l->used; i++)
		put_one(buf + table, i, c->refcount_order);
	error = waitio_write(io, l->cluster, buf, table + blocks);
	memset(buf, 0, l->cluster);
	for (uint64_t i = 0; !error && i < l->l1_clusters; i++)
		error = waitio_write(io, (1 + l->table_clusters + l->blocks + i) * l->cluster, buf, l->cluster);
	return error ? error : waitio_flush(io);
}

static int write_image(struct waitio *io, const struct qcow2_create *c, const char *name, struct err *err)
{
	struct layout l = plan(c);
	uint8_t *header = calloc(1, l.cluster), *buf = calloc(l.table_clusters + l.blocks, l.cluster);
	int error = header && buf ? 0 : -ENOMEM;

	if (!error && !put_header(header, c, &l)) {
		free(header);
		free(buf);
		return refuse(name, "the name of the backing file does not fit into a cluster", err);
	}
	if (!error)
		error = write_tables(io, c, &l, buf);
	if (!error)
		error = waitio_write(io, 0, header, l.cluster);
	if (!error)
		error = waitio_flush(io);
	free(header);
	free(buf);
	return error ? err_sys(err, error, "%s: write", name) : 0;
}

int qcow2_create(struct blk *file, const struct qcow2_create *c, struct err *err)
{
	struct waitio io;
	int error = check(c, blk_name(file), err);

	if (!error)
		error = waitio_open(&io, file, err);
	if (error)
		return error;
	error = write_image(&io, c, blk_name(file), err);
	waitio_close(&io);
	return error;
}
