/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef GUEST_INIT_BLKID_H
#define GUEST_INIT_BLKID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Whose file system is this? Superblocks and partition tables, read through a
 * function so that a test can offer any bytes. The bytes are not trusted.
 */
struct blk_reader {
	/* Reads exactly @len bytes at @off: 0, or -errno (also past the end). */
	int (*read)(struct blk_reader *r, uint64_t off, void *buf, size_t len);
};

struct blkid {
	const char *type; /* the name mount(2) knows, or "swap", "crypto_LUKS", "LVM2_member"; NULL: unknown */
	char uuid[37];    /* as blkid(8) prints it; "" where there is none */
	char label[257];
};

struct partid {
	char uuid[37];
	char name[36 * 3 + 1]; /* UTF-8; GPT only */
	uint64_t start, len;   /* bytes; of a logical partition (5 and up in an MBR) 0 */
};

/* Returns whether anything is known; @out is filled in every case. */
bool blkid_probe(struct blk_reader *r, struct blkid *out);

/* Partition @nr (from 1) of the disk with @sector bytes per logical block. */
bool partid_probe(struct blk_reader *r, unsigned sector, unsigned nr, struct partid *out);

#endif
