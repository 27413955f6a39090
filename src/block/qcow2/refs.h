/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BLOCK_QCOW2_REFS_H
#define BLOCK_QCOW2_REFS_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * Refcounts of host clusters: the refcount table in memory, refcount blocks
 * read when they are needed. Blocking; one thread at a time.
 */
struct qcow2;
struct refblock;

struct qcow2_refs {
	uint64_t *table;         /* as on the disk, or with REFS_BAD; as many as fit into the table's clusters */
	struct refblock **block; /* in memory */
	uint64_t n;              /* of both */
	unsigned bits;           /* log2 of refcounts per block */
	struct refblock *loaded; /* all that are in memory */
	unsigned nloaded;
	uint64_t clock;
	uint64_t hint; /* no cluster below it is free */
	bool dirty;    /* there are blocks to write */
	bool unsynced; /* there were, and no barrier since (commit.c) */
	/* The table that the header may still name; 0 clusters: it names the one in memory. */
	uint64_t old_off, old_clusters;
};

/* Reads the table. */
int qcow2_refs_open(struct qcow2 *im, struct err *err);
void qcow2_refs_close(struct qcow2 *im);
bool qcow2_refs_bad(const struct qcow2 *im, uint64_t index); /* the table's entry cannot be right */

/* 0 where there is no block. -EIO: the block is bad. */
int qcow2_refs_get(struct qcow2 *im, uint64_t cluster, uint64_t *count);
/* There is a block, or one is made where a free cluster is. -EIO, -ENOSPC, -ENOMEM, -ERANGE: more than the width holds.
 */
int qcow2_refs_set(struct qcow2 *im, uint64_t cluster, uint64_t count);

/*
 * Takes up to @want free clusters in a row, at least @min, refcount 1 each;
 * none of them holds metadata. -EFBIG: @min is more than a block counts. Refcount blocks and a larger table are made as
 * needed.
 */
int qcow2_refs_take(struct qcow2 *im, uint64_t min, uint64_t want, uint64_t *cluster, uint64_t *n);
/* One reference less. A refcount that is 0 already, or that cannot be read, is left alone: the image is corrupt there.
 */
int qcow2_refs_drop(struct qcow2 *im, uint64_t cluster);

/* Writes what is dirty: afterwards a flush makes it durable. */
int qcow2_refs_write(struct qcow2 *im);

#endif
