/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef GUEST_INITRAMFS_UNPACK_H
#define GUEST_INITRAMFS_UNPACK_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of @path without what says that it is compressed: ".gz", ".xz", ".zst". */
size_t unpack_stem(const char *path);

/* Whether the name says that the file is compressed. */
bool unpack_wanted(const char *path);

/*
 * Decompresses the file @path into memory that the caller frees. -ENOTSUP when
 * this program cannot (built without the library), -EBADMSG for bad data.
 */
int unpack_file(const char *path, uint8_t **data, uint64_t *size, struct err *err);

#endif
