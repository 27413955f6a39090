/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef GUEST_FILE_H
#define GUEST_FILE_H

#include "base/err.h"

#include <stdint.h>

#define FILE_MAX (1u << 30) /* nothing that belongs into an initramfs is larger */

/* Bytes of the regular file @path: none and more than FILE_MAX are errors (-EINVAL, -EFBIG). */
int file_size(const char *path, uint64_t *size, struct err *err);

/* Reads the whole file, which must have exactly @size bytes (-ESTALE), to @to. */
int file_read(const char *path, uint8_t *to, uint64_t size, struct err *err);

/* Reads the whole file into memory that the caller frees. */
int file_load(const char *path, uint8_t **data, uint64_t *size, struct err *err);

#endif
