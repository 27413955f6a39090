/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BLOCK_QCOW2_CHECK_H
#define BLOCK_QCOW2_CHECK_H

#include "base/err.h"

#include <stdint.h>

struct qcow2;

struct qcow2_check {
	uint64_t corruptions; /* what may lose data: refcounts too low, wrong flags, entries that cannot be */
	uint64_t bad;         /* of these: entries and tables that cannot be, which no repair can make right */
	uint64_t leaks;       /* clusters that are counted more often than they are named */
	uint64_t fixed;       /* of all */
	uint64_t clusters, allocated, compressed; /* of the disk: all, those with data, compressed ones among these */
	uint64_t end;                             /* of the file's used part, bytes */
};

/*
 * Counts all references to clusters and compares them with the refcounts. With
 * @repair refcounts are made right; entries that cannot be are left alone. The
 * image is open and nobody uses it yet. 0, or -errno where it could not be checked.
 */
int qcow2_check(struct qcow2 *im, int repair, struct qcow2_check *out, struct err *err);

/* The same with a repair; then clears the dirty bit and, if nothing is bad, the corrupt bit. */
int qcow2_repair(struct qcow2 *im, struct qcow2_check *out, struct err *err);

#endif
