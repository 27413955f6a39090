/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BLOCK_QCOW2_EDIT_H
#define BLOCK_QCOW2_EDIT_H

#include "block/qcow2/qcow2.h"

/*
 * What changes an image as a whole. It is open for writing and nobody uses it:
 * no request was ever submitted. Blocking; 0 or -errno with a text. A crash at
 * any moment leaves it as it was or as it was to be, and at worst leaky.
 */

/* @len bytes of the header at @at, durable. Should it fail, im->unsure is set. */
int qcow2_write_header(struct qcow2 *im, uint64_t at, const void *raw, size_t len);

/* The header's size and L1 table, in one write to one sector, durable. */
int qcow2_write_l1_fields(struct qcow2 *im, uint64_t size, uint32_t l1_size, uint64_t l1_off);

/* A new size of the disk, in bytes, a multiple of 512. Shorter: what lies past it is lost. */
int qcow2_resize(struct qcow2 *im, uint64_t size, struct err *err);

/* Internal snapshots, by name or id. Afterwards the image is to be closed, opened as it is, and repaired. */
int qcow2_snapshot_create(struct qcow2 *im, const char *name, struct err *err);
int qcow2_snapshot_apply(struct qcow2 *im, const char *name, struct err *err);
int qcow2_snapshot_delete(struct qcow2 *im, const char *name, struct err *err);

/*
 * Fills an empty image with clusters in ascending order, compressed where that
 * is asked for and makes them smaller. Nothing counts before writer_end().
 */
struct qcow2_writer;
int qcow2_writer_new(struct qcow2 *im, bool compress, struct qcow2_writer **out, struct err *err);
/* @data: a whole cluster. What it reads as zero need not be put. 0 or -errno. */
int qcow2_writer_put(struct qcow2_writer *w, uint64_t cluster, const uint8_t *data);
/* Writes the tables; frees @w, also if it fails. @error: what went wrong before; then nothing is written. */
int qcow2_writer_end(struct qcow2_writer *w, int error);

#endif
