/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BLOCK_IMAGE_H
#define BLOCK_IMAGE_H

#include "block/block.h"
#include "block/qcow2/check.h"
#include "block/qcow2/create.h"

/*
 * Image files as a whole, for `kvm disk`. All of it blocks. Every function locks
 * the file as blk_open() does, so none of them touches an image that a machine
 * uses; returns 0, or -errno with a text that names the file.
 */

struct image_create {
	enum blk_format format; /* BLK_RAW or BLK_QCOW2 */
	struct qcow2_create qcow2;
	uint64_t size; /* UINT64_MAX: the backing file's */
};

/* A file that is there is overwritten. */
int image_create(const char *path, const struct image_create *c, struct err *err);

struct image_snapshot {
	char *id, *name;
	uint64_t vm_state, vm_clock; /* bytes, ns */
	uint64_t seconds;            /* since the Epoch */
};

struct image_info {
	char format[16];
	uint64_t size, allocated; /* of the disk; of the file, in bytes that the host stores */
	uint32_t nsnapshots;      /* of QCOW2, like all that follows */
	struct image_snapshot *snapshots;
	struct qcow2_header header;
};

/* Of an image that may be marked dirty or corrupt; a machine may be using it for reading. */
int image_info(const char *path, enum blk_format format, struct image_info *out, struct err *err);
void image_info_free(struct image_info *i);

/* -EOPNOTSUPP: the format has nothing to check. */
int image_check(const char *path, enum blk_format format, bool repair, struct qcow2_check *out, struct err *err);

/* Bytes, rounded up to 512. @shrink: may get shorter, and lose what lies past the end. */
int image_resize(const char *path, enum blk_format format, uint64_t size, bool shrink, struct err *err);

enum image_snapshot_op { IMAGE_SNAPSHOT_CREATE, IMAGE_SNAPSHOT_APPLY, IMAGE_SNAPSHOT_DELETE };
int image_snapshot(const char *path, enum image_snapshot_op op, const char *name, struct err *err);

struct image_convert {
	const char *from, *to;
	enum blk_format from_format;
	struct image_create create; /* its size does not matter */
	bool compress;
	void (*progress)(uint64_t done, uint64_t all); /* or NULL */
};
int image_convert(const struct image_convert *c, struct err *err);

#endif
