// SPDX-License-Identifier: GPL-2.0-or-later
/* Values of options: what is taken, what is refused, and that the refusal shows what was given. */
#include "base/opt.h"

#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define LEN(a) (sizeof(a) / sizeof(*(a)))
#define MIB    (1ull << 20)
#define GIB    (1ull << 30)

static void assert_told(const struct err *err, const char *what, const char *given)
{
	assert_int_equal(strncmp(err->msg, what, strlen(what)), 0);
	assert_non_null(strstr(err->msg, given));
	assert_null(strchr(err->msg, '\n'));
}

static void sizes(void **state)
{
	static const struct {
		const char *s;
		uint64_t unit, bytes;
	} t[] = {
		{ "0", MIB, 0 },
		{ "1", MIB, MIB },
		{ "1", 1, 1 },
		{ "0080", MIB, 80 * MIB },
		{ "4096", MIB, 4 * GIB },
		{ "64k", MIB, 65536 },
		{ "64K", MIB, 65536 },
		{ "3m", 1, 3 * MIB },
		{ "3M", 512, 3 * MIB },
		{ "6g", MIB, 6 * GIB },
		{ "6G", MIB, 6 * GIB },
		{ "2t", MIB, 2048 * GIB },
		{ "2T", MIB, 2048 * GIB },
		{ "17592186044415", MIB, UINT64_MAX - (MIB - 1) },
		{ "16777215T", MIB, 16777215ull << 40 },
		{ "18446744073709551615", 1, UINT64_MAX },
	};

	for (size_t i = 0; i < LEN(t); i++) {
		struct err err;
		uint64_t v = 0;

		assert_int_equal(opt_size("-m", t[i].s, t[i].unit, &v, &err), 0);
		assert_int_equal(v, t[i].bytes);
	}
}

static void bad_sizes(void **state)
{
	static const struct {
		const char *s;
		int error;
	} t[] = {
		{ "", -EINVAL },
		{ " ", -EINVAL },
		{ "M", -EINVAL },
		{ "-1", -EINVAL },
		{ "+1", -EINVAL },
		{ " 1", -EINVAL },
		{ "1 ", -EINVAL },
		{ "1 M", -EINVAL },
		{ "1.5G", -EINVAL },
		{ "0x10", -EINVAL },
		{ "1MB", -EINVAL },
		{ "1MiB", -EINVAL },
		{ "1P", -EINVAL },
		{ "1E", -EINVAL },
		{ "1\vM", -EINVAL },
		{ "1+", -EINVAL },
		{ "1-", -EINVAL },
		{ "1\xcb", -EINVAL },
		{ "1\xeb", -EINVAL },
		{ "1`", -EINVAL },
		{ "one", -EINVAL },
		{ "17592186044416", -ERANGE },
		{ "16777216T", -ERANGE },
		{ "18446744073709551615", -ERANGE },
		{ "18446744073709551616", -ERANGE },
		{ "99999999999999999999999999", -ERANGE },
		{ "99999999999999999999999999K", -ERANGE },
	};

	for (size_t i = 0; i < LEN(t); i++) {
		struct err err = { "" };
		uint64_t v;

		assert_int_equal(opt_size("-m", t[i].s, MIB, &v, &err), t[i].error);
		assert_told(&err, "-m: ", t[i].s);
	}
}

static void numbers(void **state)
{
	static const struct {
		const char *s;
		unsigned min, max, val;
	} t[] = {
		{ "1", 1, 254, 1 },
		{ "254", 1, 254, 254 },
		{ "0", 0, 0, 0 },
		{ "007", 1, 254, 7 },
		{ "00000000000000000000000000000000001", 1, 254, 1 },
		{ "4294967295", 0, UINT_MAX, UINT_MAX },
	};

	for (size_t i = 0; i < LEN(t); i++) {
		struct err err;
		unsigned v = ~t[i].val;

		assert_int_equal(opt_uint("-c", t[i].s, t[i].min, t[i].max, &v, &err), 0);
		assert_int_equal(v, t[i].val);
	}
}

static void bad_numbers(void **state)
{
	static const struct {
		const char *s;
		unsigned min, max;
		int error;
	} t[] = {
		{ "", 0, 9, -EINVAL },
		{ " 1", 0, 9, -EINVAL },
		{ "1 ", 0, 9, -EINVAL },
		{ "-1", 0, UINT_MAX, -EINVAL },
		{ "+1", 0, 9, -EINVAL },
		{ "1.0", 0, 9, -EINVAL },
		{ "0x1", 0, 9, -EINVAL },
		{ "1k", 0, 9999, -EINVAL },
		{ "0", 1, 254, -ERANGE },
		{ "255", 1, 254, -ERANGE },
		{ "4294967296", 0, UINT_MAX, -ERANGE },
		{ "4294967297", 1, 254, -ERANGE },
		{ "18446744073709551616", 0, UINT_MAX, -ERANGE },
		{ "18446744073709551617", 1, 254, -ERANGE },
		{ "99999999999999999999999999", 0, UINT_MAX, -ERANGE },
	};

	for (size_t i = 0; i < LEN(t); i++) {
		struct err err = { "" };
		unsigned v = 77;

		assert_int_equal(opt_uint("-c", t[i].s, t[i].min, t[i].max, &v, &err), t[i].error);
		assert_int_equal(v, 77);
		assert_told(&err, "-c: ", t[i].s);
	}
}

static void seconds(void **state)
{
	static const struct {
		const char *s;
		uint64_t ns;
	} t[] = {
		{ "0", 0 },           { "1", 1000000000 },   { "0.5", 500000000 },
		{ ".25", 250000000 }, { "2.", 2000000000 },  { "0030", 30000000000 },
		{ "0.000000001", 1 }, { "0.0000000001", 0 }, { "315360000", 315360000000000000 },
	};

	for (size_t i = 0; i < LEN(t); i++) {
		struct err err;
		uint64_t ns = 77;

		assert_int_equal(opt_seconds("--timeout", t[i].s, &ns, &err), 0);
		assert_int_equal(ns, t[i].ns);
	}
}

/* Too small for a double is nothing, not too long. */
static void tiny_seconds(void **state)
{
	char s[500] = "0.";
	struct err err;
	uint64_t ns = 77;

	memset(s + 2, '0', 400);
	s[402] = '1';
	assert_int_equal(opt_seconds("--timeout", s, &ns, &err), 0);
	assert_int_equal(ns, 0);
}

static void bad_seconds(void **state)
{
	static const struct {
		const char *s;
		int error;
	} t[] = {
		{ "", -EINVAL },
		{ ".", -EINVAL },
		{ "..", -EINVAL },
		{ "1.2.3", -EINVAL },
		{ "-1", -EINVAL },
		{ "+1", -EINVAL },
		{ " 1", -EINVAL },
		{ "1 ", -EINVAL },
		{ "1s", -EINVAL },
		{ "1e3", -EINVAL },
		{ "0x1", -EINVAL },
		{ "inf", -EINVAL },
		{ "nan", -EINVAL },
		{ "1,5", -EINVAL },
		{ "315360001", -ERANGE },
		{ "18446744073.7", -ERANGE },
		{ "99999999999999999999999999", -ERANGE },
	};

	for (size_t i = 0; i < LEN(t); i++) {
		struct err err = { "" };
		uint64_t ns = 77;

		assert_int_equal(opt_seconds("--timeout", t[i].s, &ns, &err), t[i].error);
		assert_int_equal(ns, 77);
		assert_told(&err, "--timeout: ", t[i].s);
	}
}

static void endless_seconds(void **state)
{
	char s[500] = "";
	struct err err;
	uint64_t ns;

	memset(s, '9', sizeof(s) - 1);
	assert_int_equal(opt_seconds("--timeout", s, &ns, &err), -ERANGE);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes),       cmocka_unit_test(bad_sizes),       cmocka_unit_test(numbers),
		cmocka_unit_test(bad_numbers), cmocka_unit_test(seconds),         cmocka_unit_test(tiny_seconds),
		cmocka_unit_test(bad_seconds), cmocka_unit_test(endless_seconds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
