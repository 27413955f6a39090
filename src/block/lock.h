/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BLOCK_LOCK_H
#define BLOCK_LOCK_H

#include "base/err.h"

#include <stdbool.h>

/*
 * Locks the image open as @fd the way QEMU and its tools do, so that each side
 * respects the other: many may read, or one may write. -EBUSY: somebody else's
 * use forbids it. The lock lasts as long as the open file description. A file
 * system without locks is used without.
 */
int image_lock(int fd, const char *path, bool write, struct err *err);

#endif
