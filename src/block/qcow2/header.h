/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BLOCK_QCOW2_HEADER_H
#define BLOCK_QCOW2_HEADER_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the QCOW2 specification (versions 2 and 3) puts into an image. Pure: bytes in, numbers out. */

#define QCOW2_MAGIC            0x514649fbu
#define QCOW2_MIN_CLUSTER_BITS 9
#define QCOW2_MAX_CLUSTER_BITS 21
#define QCOW2_V2_HEADER        72
#define QCOW2_V3_HEADER        104
#define QCOW2_MAX_L1           (32ull << 20) /* bytes */
#define QCOW2_MAX_REFTABLE     (8ull << 20)  /* bytes */
#define QCOW2_MAX_SNAPSHOTS    65536u
#define QCOW2_MAX_NAME         1023u

/* Fields that are written alone. */
#define QCOW2_AT_SIZE            24
#define QCOW2_AT_L1_SIZE         36
#define QCOW2_AT_L1_OFFSET       40
#define QCOW2_AT_REFTABLE        48 /* offset, clusters */
#define QCOW2_AT_NB_SNAPSHOTS    60 /* number, offset */
#define QCOW2_AT_INCOMPATIBLE    72
#define QCOW2_AT_AUTOCLEAR       88

#define QCOW2_DIRTY              (1ull << 0)
#define QCOW2_CORRUPT            (1ull << 1)
#define QCOW2_DATA_FILE          (1ull << 2)
#define QCOW2_COMPRESSION        (1ull << 3)
#define QCOW2_EXTENDED_L2        (1ull << 4)
#define QCOW2_LAZY_REFCOUNTS     (1ull << 0) /* compatible */

#define QCOW2_EXT_END            0x00000000u
#define QCOW2_EXT_BACKING_FORMAT 0xe2792acau
#define QCOW2_EXT_FEATURES       0x6803f857u
#define QCOW2_EXT_BITMAPS        0x23852875u

/* Entries of L1, L2 and refcount tables. */
#define QCOW2_COPIED      (1ull << 63)
#define QCOW2_COMPRESSED  (1ull << 62)
#define QCOW2_ZERO        (1ull << 0)
#define QCOW2_OFFSET      0x00fffffffffffe00ull
#define QCOW2_L1_RESERVED (~(QCOW2_COPIED | QCOW2_OFFSET))
#define QCOW2_L2_RESERVED (~(QCOW2_COPIED | QCOW2_COMPRESSED | QCOW2_OFFSET | QCOW2_ZERO))

enum qcow2_compression { QCOW2_ZLIB, QCOW2_ZSTD };

struct qcow2_header {
	uint32_t version;
	unsigned cluster_bits, refcount_order;
	uint64_t size; /* of the virtual disk, bytes */
	uint32_t l1_size;
	uint64_t l1_off;
	uint64_t reftable_off;
	uint32_t reftable_clusters;
	uint32_t nb_snapshots;
	uint64_t snapshots_off;
	uint64_t incompatible, compatible, autoclear;
	uint32_t length;
	enum qcow2_compression compression;
	uint64_t bitmaps_off, bitmaps_size; /* the bitmap directory; 0: none */
	uint32_t nb_bitmaps;
	char backing[QCOW2_MAX_NAME + 1]; /* "": none */
	char backing_format[16];          /* "": not recorded */
};

/*
 * The cluster size that the first bytes of an image tell, in bits, so that the
 * caller knows how much to read. 0 or -errno.
 */
int qcow2_header_cluster_bits(const uint8_t *p, size_t n, const char *name, unsigned *bits, struct err *err);

/*
 * Reads and judges the header in the @n bytes at the beginning of the image
 * @name, which are the first cluster or as much of it as there is. Whatever
 * passes can be relied upon: sizes and offsets are in their limits and aligned,
 * no sum of them overflows, and nothing the image needs is unknown to us.
 * -ENOTSUP: it needs what we do not have, which the text names; else -EINVAL.
 */
int qcow2_header_parse(const uint8_t *p, size_t n, const char *name, struct qcow2_header *h, struct err *err);

static inline uint64_t qcow2_cluster_size(const struct qcow2_header *h)
{
	return 1ull << h->cluster_bits;
}

/* L1 entries that a disk of @size bytes needs. */
uint64_t qcow2_l1_needed(uint64_t size, unsigned cluster_bits);

/* Big-endian numbers at any address. */
static inline uint32_t get_be32(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline uint64_t get_be64(const uint8_t *p)
{
	return (uint64_t)get_be32(p) << 32 | get_be32(p + 4);
}

static inline void put_be32(uint8_t *p, uint32_t v)
{
	p[0] = (uint8_t)(v >> 24);
	p[1] = (uint8_t)(v >> 16);
	p[2] = (uint8_t)(v >> 8);
	p[3] = (uint8_t)v;
}

static inline void put_be64(uint8_t *p, uint64_t v)
{
	put_be32(p, (uint32_t)(v >> 32));
	put_be32(p + 4, (uint32_t)v);
}

#endif
