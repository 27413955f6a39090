// SPDX-License-Identifier: GPL-2.0-or-later
#include "guest/initramfs_unpack.h"
#include "base/unpack.h"
#include "guest/file.h"

#include <stdlib.h>
#include <string.h>

/* What a module's name says of how it is compressed. */
static const struct suffix {
	const char *text;
	enum unpack_format format;
} suffixes[] = { { ".gz", UNPACK_GZIP }, { ".xz", UNPACK_XZ }, { ".zst", UNPACK_ZSTD } };

static const struct suffix *find_suffix(const char *path)
{
	size_t len = strlen(path);

	for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
		size_t n = strlen(suffixes[i].text);

		if (len > n && !strcmp(path + len - n, suffixes[i].text))
			return &suffixes[i];
	}
	return NULL;
}

size_t unpack_stem(const char *path)
{
	const struct suffix *s = find_suffix(path);

	return strlen(path) - (s ? strlen(s->text) : 0);
}

bool unpack_wanted(const char *path)
{
	return find_suffix(path) != NULL;
}

int unpack_file(const char *path, uint8_t **data, uint64_t *size, struct err *err)
{
	const struct suffix *s = find_suffix(path);
	struct unpack_source src = { .name = path, .format = s ? s->format : UNPACK_UNKNOWN };
	uint8_t *in;
	uint64_t len;
	int error = file_load(path, &in, &len, err);

	if (error)
		return error;
	src.data = in;
	src.len = len;
	error = unpack(&src, data, size, err);
	free(in);
	return error;
}
