// SPDX-License-Identifier: GPL-2.0-or-later
/* Reading and writing lists of memory, wherever they are split. */
#include "fs/p9wire.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SIZE 64

/* Two cuts in @buf, and empty pieces around them. */
static unsigned split(struct iovec *iov, uint8_t *buf, unsigned a, unsigned b)
{
	iov[0] = (struct iovec){ buf, a };
	iov[1] = (struct iovec){ NULL, 0 };
	iov[2] = (struct iovec){ buf + a, b - a };
	iov[3] = (struct iovec){ buf + b, SIZE - b };
	iov[4] = (struct iovec){ buf + SIZE, 0 };
	return 5;
}

static void put_all(struct wire *w)
{
	struct qid q = { .type = 0x80, .version = 0x01020304, .path = 0x1122334455667788 };

	wire_put_u8(w, 0xab);
	wire_put_u16(w, 0x1234);
	wire_put_u32(w, 0x89abcdef);
	wire_put_u64(w, 0x0102030405060708);
	wire_put_str(w, "name");
	wire_put_qid(w, &q);
}

static const uint8_t image[] = {
	0xab, 0x34, 0x12, 0xef, 0xcd, 0xab, 0x89, 8, 7, 6,    5,    4,    3,    2,    1,    4,    0,
	'n',  'a',  'm',  'e',  0x80, 4,    3,    2, 1, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
};

static void get_all(struct wire *w)
{
	char s[8];

	assert_int_equal(wire_u8(w), 0xab);
	assert_int_equal(wire_u16(w), 0x1234);
	assert_true(wire_u32(w) == 0x89abcdef);
	assert_true(wire_u64(w) == 0x0102030405060708);
	assert_int_equal(wire_str(w, s, sizeof(s)), 4);
	assert_string_equal(s, "name");
	wire_skip(w, P9_QID_SIZE);
	assert_false(w->bad);
}

static void test_everywhere(void **state)
{
	for (unsigned a = 0; a <= SIZE; a++)
		for (unsigned b = a; b <= SIZE; b++) {
			uint8_t buf[SIZE] = { 0 };
			struct iovec iov[5];
			struct wire w;

			wire_init(&w, iov, split(iov, buf, a, b));
			assert_int_equal(w.left, SIZE);
			put_all(&w);
			assert_false(w.bad);
			assert_int_equal(w.left, SIZE - sizeof(image));
			assert_memory_equal(buf, image, sizeof(image));
			wire_init(&w, iov, 5);
			get_all(&w);
		}
}

/* Whatever ends too early is bad, and stays so; nothing is read or written beyond it. */
static void test_short(void **state)
{
	for (size_t n = 0; n < sizeof(image); n++) {
		uint8_t *buf = malloc(n ? n : 1);
		struct iovec iov = { buf, n };
		struct wire w;
		char s[8];

		memcpy(buf, image, n);
		wire_init(&w, &iov, 1);
		wire_skip(&w, 15);
		assert_int_equal(wire_str(&w, s, sizeof(s)), n >= 21 ? 4 : -EINVAL);
		wire_skip(&w, P9_QID_SIZE);
		assert_true(w.bad);
		assert_int_equal(wire_u8(&w), 0);
		wire_init(&w, &iov, 1);
		put_all(&w);
		assert_true(w.bad);
		free(buf);
	}
}

static void test_limit(void **state)
{
	uint8_t buf[SIZE] = { 0 };
	struct iovec iov = { buf, SIZE };
	struct wire w;

	wire_init(&w, &iov, 1);
	wire_limit(&w, 3);
	wire_put_u32(&w, ~0u);
	assert_true(w.bad && w.left == 3 && !buf[0]);
	wire_init(&w, &iov, 1);
	wire_limit(&w, SIZE + 1);
	assert_int_equal(w.left, SIZE);
}

static int get_string(const void *bytes, size_t n, char *s, size_t size)
{
	struct iovec iov = { (void *)(uintptr_t)bytes, n };
	struct wire w;

	wire_init(&w, &iov, 1);
	return wire_str(&w, s, size);
}

static void test_strings(void **state)
{
	char s[4];

	assert_int_equal(get_string("\3\0abc", 5, s, 4), 3);
	assert_string_equal(s, "abc");
	assert_int_equal(get_string("\0\0", 2, s, 4), 0);
	assert_string_equal(s, "");
	assert_int_equal(get_string("\4\0abcd", 6, s, 4), -ENAMETOOLONG);
	assert_int_equal(get_string("\3\0a\0c", 5, s, 4), -EINVAL);
	assert_int_equal(get_string("\3\0ab", 4, s, 4), -EINVAL);
	assert_int_equal(get_string("\377\377ab", 4, s, 4), -EINVAL);
	assert_int_equal(get_string("\3", 1, s, 4), -EINVAL);
}

static void test_pieces(void **state)
{
	for (unsigned a = 0; a <= SIZE; a++)
		for (unsigned skip = 0; skip <= SIZE; skip += 3) {
			uint8_t buf[SIZE];
			struct iovec iov[5], out[5];
			struct wire w;
			unsigned n;
			size_t total = 0;

			wire_init(&w, iov, split(iov, buf, a / 2, a));
			wire_skip(&w, skip);
			n = wire_pieces(&w, 20, out);
			for (unsigned i = 0; i < n; i++) {
				assert_ptr_equal(out[i].iov_base, buf + skip + total);
				assert_true(out[i].iov_len > 0);
				total += out[i].iov_len;
			}
			assert_int_equal(total, SIZE - skip < 20 ? SIZE - skip : 20);
			assert_int_equal(w.left, SIZE - skip);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_everywhere), cmocka_unit_test(test_short),  cmocka_unit_test(test_limit),
		cmocka_unit_test(test_strings),    cmocka_unit_test(test_pieces),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
