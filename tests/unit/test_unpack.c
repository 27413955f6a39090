// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Decompression, against the programs that compress: every format is known by
 * its first bytes and gives what went in; cut anywhere, damaged, too long or
 * not as long as it should be it is refused, and nothing leaks (the sanitizers
 * look at that).
 */
#include "base/unpack.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LEN(a)   (sizeof(a) / sizeof(*(a)))
#define TEXT_LEN 300000u
#define NAME     "a kernel"

static const struct format {
	enum unpack_format format;
	const char *program, *command;
	bool built;
	bool checked; /* damage is always seen */
} formats[] = {
	{ UNPACK_GZIP, "gzip", "gzip -c", true, true },
#ifdef HAVE_LZMA
	{ UNPACK_XZ, "xz", "xz --check=crc32 -c", true, true },
	{ UNPACK_LZMA, "xz", "xz --format=lzma -c", true, false },
#else
	{ UNPACK_XZ, "xz", "xz --check=crc32 -c", false, true },
	{ UNPACK_LZMA, "xz", "xz --format=lzma -c", false, false },
#endif
#ifdef HAVE_ZSTD
	{ UNPACK_ZSTD, "zstd", "zstd -q -c", true, true },
#else
	{ UNPACK_ZSTD, "zstd", "zstd -q -c", false, true },
#endif
#ifdef HAVE_LZ4
	{ UNPACK_LZ4, "lz4", "lz4 -q -l -c", true, false },
#else
	{ UNPACK_LZ4, "lz4", "lz4 -q -l -c", false, false },
#endif
#ifdef HAVE_BZIP2
	{ UNPACK_BZIP2, "bzip2", "bzip2 -c", true, true },
#else
	{ UNPACK_BZIP2, "bzip2", "bzip2 -c", false, true },
#endif
};

static uint8_t text[TEXT_LEN]; /* half of it noise, half of it zeros */

static int make_text(void **state)
{
	srandom(7);
	for (unsigned i = 0; i < TEXT_LEN / 2; i++)
		text[i] = (uint8_t)("kernel"[i % 6] ^ (random() & 7));
	return 0;
}

static bool sh(const char *command)
{
	return system(command) == 0;
}

/* @size bytes of the text, compressed; the caller frees them. */
static uint8_t *pack(const struct format *f, size_t size, size_t *len)
{
	char file[] = "/tmp/kvm-unpack.XXXXXX", command[200];
	uint8_t *data = malloc(2 * TEXT_LEN);
	int fd = mkstemp(file);
	FILE *to, *from;

	assert_true(fd >= 0);
	snprintf(command, sizeof(command), "%s >%s", f->command, file);
	to = popen(command, "w");
	assert_non_null(to);
	assert_int_equal(fwrite(text, 1, size, to), size);
	assert_int_equal(pclose(to), 0);
	from = fdopen(fd, "r");
	*len = fread(data, 1, 2 * TEXT_LEN, from);
	fclose(from);
	remove(file);
	return data;
}

/* Exactly @len bytes on the heap, so that a read beyond them is seen. */
static int unpack_bytes(enum unpack_format f, const uint8_t *data, size_t len, uint64_t expect, uint8_t **out,
                        uint64_t *size)
{
	uint8_t *copy = malloc(len ? len : 1);
	struct unpack_source src = { .name = NAME, .format = f, .data = copy, .len = len, .expect = expect };
	struct err err = { "" };
	int error;

	memcpy(copy, data, len);
	*out = NULL;
	error = unpack(&src, out, size, &err);
	free(copy);
	if (error) {
		assert_null(*out);
		assert_non_null(strstr(err.msg, NAME));
		assert_null(strchr(err.msg, '\n'));
	}
	return error;
}

static void gives(const struct format *f, const uint8_t *data, size_t len, uint64_t expect, size_t size)
{
	uint64_t out_size;
	uint8_t *out;

	assert_int_equal(unpack_bytes(f->format, data, len, expect, &out, &out_size), 0);
	assert_int_equal(out_size, size);
	assert_memory_equal(out, text, size);
	free(out);
}

static void refuses(const struct format *f, const uint8_t *data, size_t len, uint64_t expect, int error)
{
	uint64_t size;
	uint8_t *out;

	assert_int_equal(unpack_bytes(f->format, data, len, expect, &out, &size), error);
}

/* For each format that this build has, and whose program is there. */
static void each(void (*fn)(const struct format *f))
{
	unsigned done = 0;

	for (unsigned i = 0; i < LEN(formats); i++) {
		char probe[100];

		snprintf(probe, sizeof(probe), "command -v %s >/dev/null", formats[i].program);
		if (formats[i].built && sh(probe)) {
			fn(&formats[i]);
			done++;
		} else {
			print_message("left out: %s\n", formats[i].command);
		}
	}
	assert_true(done); /* gzip is everywhere */
}

static void check_whole(const struct format *f)
{
	static const size_t size[] = { 1, 100, 65536, TEXT_LEN };

	for (unsigned i = 0; i < LEN(size); i++) {
		size_t len;
		uint8_t *data = pack(f, size[i], &len);

		assert_int_equal(unpack_format(data, len), f->format);
		gives(f, data, len, 0, size[i]);
		gives(f, data, len, size[i], size[i]);
		refuses(f, data, len, size[i] + 1, -EBADMSG);
		if (size[i] > 1)
			refuses(f, data, len, size[i] - 1, -EBADMSG);
		refuses(f, data, len, UNPACK_MAX + 1ull, -EFBIG);
		free(data);
	}
}

static void whole(void **state)
{
	each(check_whole);
}

/* Without a length that is expected an lz4 frame may end behind any of its blocks; there is one here. */
static void check_cut(const struct format *f)
{
	size_t len;
	uint8_t *data = pack(f, TEXT_LEN, &len);

	for (size_t n = 0; n < len; n += n < 64 || n + 64 > len ? 1 : len / 40)
		refuses(f, data, n, TEXT_LEN, -EBADMSG);
	free(data);
}

static void cut(void **state)
{
	each(check_cut);
}

static void check_damaged(const struct format *f)
{
	size_t len;
	uint8_t *data = pack(f, TEXT_LEN, &len), *out;

	for (size_t n = 0; n < len; n += len / 100) {
		uint64_t size;
		int error;

		data[n] ^= 0x10;
		error = unpack_bytes(f->format, data, len, TEXT_LEN, &out, &size);
		data[n] ^= 0x10;
		if (!error && f->checked && (size != TEXT_LEN || memcmp(out, text, size) != 0))
			fail_msg("%s: damage at %zu was not seen", f->command, n);
		if (error && error != -EBADMSG && error != -ENOMEM)
			fail_msg("%s: error %d", f->command, error);
		free(out);
	}
	memset(data + len / 2, 0x55, 64);
	if (f->checked)
		refuses(f, data, len, TEXT_LEN, -EBADMSG);
	free(data);
}

static void damaged(void **state)
{
	each(check_damaged);
}

static void check_longer(const struct format *f)
{
	size_t len;
	uint8_t *data = pack(f, 1000, &len);

	memcpy(data + len, "what?", 5);
	refuses(f, data, len + 5, 1000, -EBADMSG);
	free(data);
}

static void longer(void **state)
{
	each(check_longer);
}

static void unknown(void **state)
{
	static const char *const data[] = { "", "\x1f", "\x89LZO\0\r\n\x1a\n", "\177ELF" };
	static const struct format none = { .format = UNPACK_UNKNOWN };

	for (unsigned i = 0; i < LEN(data); i++)
		assert_int_equal(unpack_format((const uint8_t *)data[i], strlen(data[i])), UNPACK_UNKNOWN);
	refuses(&none, text, 100, 0, -ENOTSUP);
	for (unsigned i = 0; i < LEN(formats); i++)
		if (!formats[i].built)
			refuses(&formats[i], text, 100, 0, -ENOTSUP);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(whole),  cmocka_unit_test(cut),     cmocka_unit_test(damaged),
		cmocka_unit_test(longer), cmocka_unit_test(unknown),
	};

	return cmocka_run_group_tests(tests, make_text, NULL);
}
