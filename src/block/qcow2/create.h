/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BLOCK_QCOW2_CREATE_H
#define BLOCK_QCOW2_CREATE_H

#include "block/block.h"
#include "block/qcow2/header.h"

struct qcow2_create {
	uint64_t size;
	unsigned version;        /* 2 or 3 */
	unsigned cluster_bits;   /* 9 to 21 */
	unsigned refcount_order; /* 0 to 6; version 2: 4 */
	bool lazy_refcounts;
	enum qcow2_compression compression;
	const char *backing, *backing_format; /* as they are to be recorded; or NULL */
};

/* What is usual: version 3, clusters of 64 KiB, refcounts of 16 bits, zlib. */
extern const struct qcow2_create qcow2_create_default;

/* Makes an empty image of @file, a blk that grows and has length 0. Blocking. */
int qcow2_create(struct blk *file, const struct qcow2_create *c, struct err *err);

#endif
