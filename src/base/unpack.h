/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BASE_UNPACK_H
#define BASE_UNPACK_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

/* The ways in which kernels and their modules are compressed. */
enum unpack_format {
	UNPACK_UNKNOWN,
	UNPACK_GZIP,
	UNPACK_XZ,
	UNPACK_LZMA,
	UNPACK_ZSTD,
	UNPACK_LZ4, /* the legacy frame, without a mark at its end */
	UNPACK_BZIP2,
	UNPACK_FORMATS
};

#define UNPACK_MAX (1u << 30) /* bytes that come out; nothing that belongs here is larger */

/* By the first bytes of the data. */
enum unpack_format unpack_format(const uint8_t *data, size_t len);

struct unpack_source {
	const char *name; /* for messages */
	enum unpack_format format;
	const uint8_t *data; /* exactly the compressed data */
	size_t len;
	uint64_t expect; /* bytes that must come out, 0: any number */
};

/*
 * Decompresses into memory that the caller frees. -ENOTSUP when this program
 * cannot (built without the library), -ENOENT when the library is not on this
 * host, -EBADMSG for bad data, -EFBIG for more than UNPACK_MAX.
 */
int unpack(const struct unpack_source *src, uint8_t **out, uint64_t *size, struct err *err);

#endif
