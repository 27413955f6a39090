/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BLOCK_QCOW2_SNAPSHOT_H
#define BLOCK_QCOW2_SNAPSHOT_H

#include "base/err.h"

#include <stdint.h>

struct qcow2;

/* An internal snapshot, as its entry in the snapshot table tells. */
struct qcow2_snapshot {
	uint64_t l1_off;
	uint32_t l1_size; /* entries */
	uint32_t seconds, nanoseconds;
	uint64_t vm_clock, vm_state, disk_size;
	char *id, *name;
	uint8_t *raw; /* the entry itself */
	uint32_t len; /* with its padding */
};

/* Reads the table that the header names. The list is qcow2_snapshots_free()'s. */
int qcow2_snapshots_read(struct qcow2 *im, struct qcow2_snapshot **list, struct err *err);
void qcow2_snapshots_free(struct qcow2_snapshot *list, uint32_t n);

#endif
