// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/qcow2/header.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int bad(const char *name, const char *what, struct err *err)
{
	return err_set(err, -EINVAL, "%s: not a sound QCOW2 image: %s", name, what);
}

static int refuse(const char *name, const char *what, struct err *err)
{
	return err_set(err, -ENOTSUP, "%s: the image needs %s, which kvm does not have", name, what);
}

int qcow2_header_cluster_bits(const uint8_t *p, size_t n, const char *name, unsigned *bits, struct err *err)
{
	uint32_t version;

	if (n < QCOW2_V2_HEADER || get_be32(p) != QCOW2_MAGIC)
		return bad(name, "there is no header", err);
	version = get_be32(p + 4);
	if (version != 2 && version != 3)
		return err_set(err, -ENOTSUP, "%s: QCOW2 version %u, not 2 or 3", name, version);
	*bits = get_be32(p + 20);
	if (*bits < QCOW2_MIN_CLUSTER_BITS || *bits > QCOW2_MAX_CLUSTER_BITS)
		return bad(name, "its clusters are not of 512 bytes to 2 MiB", err);
	return 0;
}

uint64_t qcow2_l1_needed(uint64_t size, unsigned cluster_bits)
{
	unsigned shift = cluster_bits + cluster_bits - 3;

	return (size >> shift) + !!(size & ((1ull << shift) - 1));
}

/* Features. */

/* The name that the image itself has for incompatible feature @bit, or "bit N". */
static void feature_name(const uint8_t *table, size_t n, unsigned bit, char name[64])
{
	snprintf(name, 64, "incompatible feature bit %u", bit);
	for (; table && n >= 48; table += 48, n -= 48) {
		if (table[0] || table[1] != bit || !table[2])
			continue;
		snprintf(name, 64, "\"%.46s\"", (const char *)table + 2);
		for (char *c = name; *c; c++)
			if ((unsigned char)*c < ' ' || (unsigned char)*c > '~')
				*c = '?';
		return;
	}
}

static int check_incompatible(const struct qcow2_header *h, const uint8_t *features, size_t n, const char *name,
                              struct err *err)
{
	uint64_t unknown = h->incompatible &
	                   ~(QCOW2_DIRTY | QCOW2_CORRUPT | QCOW2_DATA_FILE | QCOW2_COMPRESSION | QCOW2_EXTENDED_L2);
	char what[64];

	if (h->incompatible & QCOW2_DATA_FILE)
		return refuse(name, "an external data file", err);
	if (h->incompatible & QCOW2_EXTENDED_L2)
		return refuse(name, "extended L2 entries (subclusters)", err);
	if (!unknown)
		return 0;
	feature_name(features, n, (unsigned)__builtin_ctzll(unknown), what);
	return refuse(name, what, err);
}

static int check_crypt(uint32_t method, const char *name, struct err *err)
{
	switch (method) {
	case 0: return 0;
	case 1: return refuse(name, "AES encryption", err);
	case 2: return refuse(name, "LUKS encryption", err);
	default: return refuse(name, "an unknown encryption", err);
	}
}

static int parse_compression(const uint8_t *p, struct qcow2_header *h, const char *name, struct err *err)
{
	unsigned type = h->length > QCOW2_V3_HEADER ? p[QCOW2_V3_HEADER] : 0;

	if (!!(h->incompatible & QCOW2_COMPRESSION) != !!type)
		return bad(name, "its compression type and the bit that announces it differ", err);
	if (type > QCOW2_ZSTD)
		return refuse(name, "an unknown compression", err);
	h->compression = (enum qcow2_compression)type;
	return 0;
}

static int parse_v3(const uint8_t *p, size_t n, struct qcow2_header *h, const char *name, struct err *err)
{
	h->refcount_order = 4;
	h->length = QCOW2_V2_HEADER;
	if (h->version == 2)
		return 0;
	if (n < QCOW2_V3_HEADER)
		return bad(name, "the header is cut short", err);
	h->incompatible = get_be64(p + QCOW2_AT_INCOMPATIBLE);
	h->compatible = get_be64(p + 80);
	h->autoclear = get_be64(p + QCOW2_AT_AUTOCLEAR);
	h->refcount_order = get_be32(p + 96);
	h->length = get_be32(p + 100);
	if (h->refcount_order > 6)
		return bad(name, "its refcounts have more than 64 bits", err);
	if (h->length < QCOW2_V3_HEADER || h->length % 8 || h->length > n)
		return bad(name, "the header has an impossible length", err);
	return 0;
}

/* Header extensions. */

struct extensions {
	const uint8_t *features;
	size_t nfeatures;
};

static int take_extension(struct qcow2_header *h, uint32_t type, const uint8_t *p, uint32_t len, struct extensions *x,
                          const char *name, struct err *err)
{
	switch (type) {
	case QCOW2_EXT_BACKING_FORMAT:
		if (len >= sizeof(h->backing_format) || memchr(p, 0, len))
			return bad(name, "the name of its backing file's format is too long", err);
		memcpy(h->backing_format, p, len);
		h->backing_format[len] = 0;
		break;
	case QCOW2_EXT_FEATURES:
		x->features = p;
		x->nfeatures = len;
		break;
	case QCOW2_EXT_BITMAPS:
		if (len != 24)
			return bad(name, "the bitmaps extension has a wrong length", err);
		h->nb_bitmaps = get_be32(p);
		h->bitmaps_size = get_be64(p + 8);
		h->bitmaps_off = get_be64(p + 16);
		break;
	default: break; /* unknown ones are not ours to judge, and stay where they are */
	}
	return 0;
}

static int parse_extensions(const uint8_t *p, size_t end, struct qcow2_header *h, struct extensions *x,
                            const char *name, struct err *err)
{
	size_t at = h->length;

	while (at + 8 <= end) {
		uint32_t type = get_be32(p + at), len = get_be32(p + at + 4);
		int error;

		if (type == QCOW2_EXT_END)
			return 0;
		at += 8;
		if (len > end - at)
			return bad(name, "a header extension is too long", err);
		error = take_extension(h, type, p + at, len, x, name, err);
		if (error)
			return error;
		at += ((size_t)len + 7) / 8 * 8;
	}
	return 0;
}

/* The name of the backing file; extensions end before it. */
static int parse_backing(const uint8_t *p, size_t n, struct qcow2_header *h, size_t *end, const char *name,
                         struct err *err)
{
	uint64_t off = get_be64(p + 8);
	uint32_t len = get_be32(p + 16);

	*end = n;
	if (!off)
		return 0;
	if (len > QCOW2_MAX_NAME || off < h->length || off > n || len > n - off)
		return bad(name, "the name of its backing file is not in the first cluster", err);
	if (memchr(p + off, 0, len))
		return bad(name, "the name of its backing file has a zero byte", err);
	memcpy(h->backing, p + off, len);
	*end = (size_t)off;
	return 0;
}

/* Places and sizes. */

static bool placed(const struct qcow2_header *h, uint64_t off, uint64_t len)
{
	uint64_t mask = qcow2_cluster_size(h) - 1;

	return !(off & mask) && off > mask && off <= INT64_MAX - len;
}

static int check_places(const struct qcow2_header *h, const char *name, struct err *err)
{
	uint64_t l1 = (uint64_t)h->l1_size * 8, reftable = (uint64_t)h->reftable_clusters << h->cluster_bits;

	if (h->size > INT64_MAX)
		return bad(name, "the disk is too large", err);
	if (l1 > QCOW2_MAX_L1)
		return bad(name, "the L1 table is larger than 32 MiB", err);
	if (qcow2_l1_needed(h->size, h->cluster_bits) > h->l1_size)
		return bad(name, "the L1 table is too small for the disk", err);
	if (h->l1_size && !placed(h, h->l1_off, l1))
		return bad(name, "the L1 table is in an impossible place", err);
	if (!reftable)
		return bad(name, "there is no refcount table", err);
	if (reftable > QCOW2_MAX_REFTABLE)
		return bad(name, "the refcount table is larger than 8 MiB", err);
	if (!placed(h, h->reftable_off, reftable))
		return bad(name, "the refcount table is in an impossible place", err);
	if (h->nb_snapshots > QCOW2_MAX_SNAPSHOTS)
		return bad(name, "it has more than 65536 snapshots", err);
	if (h->nb_snapshots && !placed(h, h->snapshots_off, 0))
		return bad(name, "the snapshot table is in an impossible place", err);
	return 0;
}

static void parse_v2(const uint8_t *p, struct qcow2_header *h)
{
	h->version = get_be32(p + 4);
	h->size = get_be64(p + QCOW2_AT_SIZE);
	h->l1_size = get_be32(p + QCOW2_AT_L1_SIZE);
	h->l1_off = get_be64(p + QCOW2_AT_L1_OFFSET);
	h->reftable_off = get_be64(p + QCOW2_AT_REFTABLE);
	h->reftable_clusters = get_be32(p + 56);
	h->nb_snapshots = get_be32(p + QCOW2_AT_NB_SNAPSHOTS);
	h->snapshots_off = get_be64(p + 64);
}

int qcow2_header_parse(const uint8_t *p, size_t n, const char *name, struct qcow2_header *h, struct err *err)
{
	struct extensions x = { 0 };
	size_t end;
	int error;

	memset(h, 0, sizeof(*h));
	error = qcow2_header_cluster_bits(p, n, name, &h->cluster_bits, err);
	if (error)
		return error;
	if (n > qcow2_cluster_size(h))
		n = qcow2_cluster_size(h);
	parse_v2(p, h);
	error = parse_v3(p, n, h, name, err);
	if (!error)
		error = parse_backing(p, n, h, &end, name, err);
	if (!error)
		error = parse_extensions(p, end, h, &x, name, err);
	/* What it needs is told before what is wrong with it: an unknown feature may have made it look wrong. */
	if (!error)
		error = check_incompatible(h, x.features, x.nfeatures, name, err);
	if (!error)
		error = check_crypt(get_be32(p + 32), name, err);
	if (!error)
		error = parse_compression(p, h, name, err);
	return error ? error : check_places(h, name, err);
}
