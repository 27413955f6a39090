// SPDX-License-Identifier: GPL-2.0-or-later
/* Lists of memory, against the same bytes in one piece. */
#include "base/iov.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX 20

static uint8_t mem[4096], flat[4096], other[4096];

/* Some pieces of @mem one behind the other, empty ones among them; returns their bytes. */
static size_t make(struct iovec *iov, unsigned *n, unsigned *seed)
{
	size_t len = 0;

	*n = (unsigned)rand_r(seed) % MAX;
	for (unsigned i = 0; i < *n; i++) {
		size_t k = rand_r(seed) % 4 ? (size_t)rand_r(seed) % 150 : 0;

		iov[i] = (struct iovec){ .iov_base = mem + len, .iov_len = k };
		len += k;
	}
	for (size_t i = 0; i < sizeof(mem); i++)
		flat[i] = mem[i] = (uint8_t)rand_r(seed);
	return len;
}

static void test_get_put(void **state)
{
	unsigned seed = 1, n;
	struct iovec iov[MAX];

	for (unsigned round = 0; round < 2000; round++) {
		size_t len = make(iov, &n, &seed), from = (size_t)rand_r(&seed) % 500,
		       ask = (size_t)rand_r(&seed) % 1000;
		size_t want = from > len ? 0 : ask < len - from ? ask : len - from;

		assert_int_equal(iov_len(iov, n), len);
		memset(other, 0, sizeof(other));
		assert_int_equal(iov_get(iov, n, from, other, ask), want);
		assert_memory_equal(other, flat + from, want);
		assert_true(!want || other[want] == 0);
		memset(other, 'x', sizeof(other));
		assert_int_equal(iov_put(iov, n, from, other, ask), want);
		memset(flat + from, 'x', want);
		assert_memory_equal(mem, flat, sizeof(mem));
	}
}

static void test_zero(void **state)
{
	unsigned seed = 2, n;
	struct iovec iov[MAX];

	for (unsigned round = 0; round < 2000; round++) {
		size_t len = make(iov, &n, &seed), from = (size_t)rand_r(&seed) % 500,
		       ask = (size_t)rand_r(&seed) % 1000;
		size_t want = from > len ? 0 : ask < len - from ? ask : len - from;

		iov_zero(iov, n, from, ask);
		memset(flat + from, 0, want);
		assert_memory_equal(mem, flat, sizeof(mem));
		assert_true(iov_is_zero(iov, n, from, ask));
		if (!want)
			continue;
		mem[from + (size_t)rand_r(&seed) % want] = 1;
		assert_false(iov_is_zero(iov, n, from, ask));
	}
}

static void test_cut(void **state)
{
	unsigned seed = 3, n;
	struct iovec iov[MAX];

	for (unsigned round = 0; round < 2000; round++) {
		size_t len = make(iov, &n, &seed), skip = (size_t)rand_r(&seed) % (len + 1),
		       keep = (size_t)rand_r(&seed) % 500;
		size_t want = keep < len - skip ? keep : len - skip;
		struct iovec *at = iov;

		iov_skip(&at, &n, skip);
		assert_int_equal(iov_len(at, n), len - skip);
		iov_trim(at, &n, keep);
		assert_int_equal(iov_len(at, n), want);
		assert_int_equal(iov_get(at, n, 0, other, sizeof(other)), want);
		assert_memory_equal(other, flat + skip, want);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_get_put),
		cmocka_unit_test(test_zero),
		cmocka_unit_test(test_cut),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
