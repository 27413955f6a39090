/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MACHINE_ROOT_H
#define MACHINE_ROOT_H

#include "base/err.h"
#include "block/block.h"

/*
 * Which file systems are on the guest's disks, for our init: which one is the
 * root, and which drivers they need. What is read there is not trusted.
 */

#define ROOT_TYPES 8

struct root {
	char source[32];               /* "/dev/vda1" */
	const char *type;              /* as mount(2) has it */
	const char *types[ROOT_TYPES]; /* of every file system found, the root's too; NULL: no more */
};

/* Adds the types that are on @disk. */
void root_look(struct blk *disk, struct root *r);

/*
 * The root on @disk, which is /dev/vda: the disk itself if it holds a file
 * system, else its only partition with one of Linux. -ENOENT: neither; the text
 * lists what there is.
 */
int root_find(struct blk *disk, struct root *r, struct err *err);

#endif
