/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef GUEST_INIT_BLOCKDEV_H
#define GUEST_INIT_BLOCKDEV_H

#include "guest/init/blkid.h"
#include "guest/init/source.h"

#include <stddef.h>

/* Finds the device that @s names and its path. Returns 0, or -ENOENT when it is not there (yet). */
int blockdev_find(const struct source *s, char *path, size_t len);

/* What is on the device at @path; out->type is NULL when nothing is known. */
void blockdev_probe(const char *path, struct blkid *out);

/* Says which block devices there are and what is on them. */
void blockdev_list(void);

#endif
