// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Which frames of a guest may leave: rules as they are written, packets of
 * every kind and cut at every byte, fragments, and the host's loopback in all
 * its disguises.
 */
#include "net/egress.h"
#include "packet.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define LEN(a) (sizeof(a) / sizeof(*(a)))
#define SYN    2u
#define ACK    16u

static void add(struct egress *e, const char *rule)
{
	struct err err;

	e->listed = true;
	assert_int_equal(egress_parse_rule(rule, &e->rule[e->nrules++], &err), 0);
}

static void test_rules(void **state)
{
	static const struct {
		const char *text;
		int family;
		unsigned prefix, port;
	} good[] = {
		{ "1.2.3.4:80", AF_INET, 32, 80 },        { "10.0.0.0/8:443", AF_INET, 8, 443 },
		{ "0.0.0.0/0:*", AF_INET, 0, 0 },         { "[::1]:53", AF_INET6, 128, 53 },
		{ "[2001:db8::]/32:*", AF_INET6, 32, 0 }, { "[::]/0:65535", AF_INET6, 0, 65535 },
	};
	static const char *const bad[] = { "",
		                           ":",
		                           "1.2.3.4",
		                           "1.2.3.4:",
		                           "1.2.3.4:0",
		                           "1.2.3.4:65536",
		                           "1.2.3.4:x",
		                           "1.2.3.4/33:1",
		                           "1.2.3.4/-1:1",
		                           "1.2.3.4/:1",
		                           "1.2.3:1",
		                           "[::1:1",
		                           "::1:1",
		                           "[::1]/129:1",
		                           "[::1]:",
		                           "[]:1",
		                           "host:1",
		                           "1.2.3.4:+1",
		                           "[1.2.3.4]:1",
		                           "[::1]x:1" };
	struct egress_rule r;
	struct err err;

	for (unsigned i = 0; i < LEN(good); i++) {
		assert_int_equal(egress_parse_rule(good[i].text, &r, &err), 0);
		assert_true(r.family == good[i].family && r.prefix == good[i].prefix && r.port == good[i].port);
	}
	for (unsigned i = 0; i < LEN(bad); i++) {
		err.msg[0] = '\0';
		if (egress_parse_rule(bad[i], &r, &err) != -EINVAL || !err.msg[0])
			fail_msg("'%s' is taken for a rule", bad[i]);
	}
}

static bool udp(const struct egress *e, const char *dst, unsigned port)
{
	uint8_t f[PKT_MAX];

	return egress_allows(e, f, pkt_udp4(f, dst, 1000, port, "hi", 2));
}

static bool tcp(const struct egress *e, const char *dst, unsigned port, unsigned flags)
{
	uint8_t f[PKT_MAX];

	return egress_allows(e, f, pkt_tcp4(f, dst, 1000, port, 1, 1, flags));
}

static bool any6(const struct egress *e, const char *dst, unsigned proto, unsigned port, unsigned flags)
{
	uint8_t f[PKT_MAX], *l4 = pkt_ip6(f, NULL, dst, proto, 20);

	pkt_put16(l4 + 2, port);
	l4[13] = (uint8_t)flags;
	return egress_allows(e, f, PKT_IP6 + 20);
}

/* Without a list everything may go but to the host's loopback, under whichever name. */
static void test_open(void **state)
{
	static const char *const loop4[] = { "127.0.0.1", "127.0.0.53", "127.255.255.255", "0.0.0.0", "0.1.2.3" };
	static const char *const loop6[] = { "::1", "::", "::ffff:127.0.0.1", "::ffff:1.2.3.4", "::127.0.0.1" };
	static const char *const fine4[] = { "1.2.3.4", "10.0.2.2", "10.0.2.3", "126.255.255.255", "128.0.0.1" };
	static const char *const fine6[] = { "2001:db8::1", "fd00::2", "ff02::1", "::1:0:0:0" };
	struct egress e = { .relay = true };

	for (unsigned i = 0; i < LEN(loop4); i++)
		assert_false(udp(&e, loop4[i], 53) || tcp(&e, loop4[i], 80, SYN) || tcp(&e, loop4[i], 80, ACK));
	for (unsigned i = 0; i < LEN(loop6); i++)
		assert_false(any6(&e, loop6[i], 17, 53, 0) || any6(&e, loop6[i], 6, 80, SYN) ||
		             any6(&e, loop6[i], 58, 0, 0));
	for (unsigned i = 0; i < LEN(fine4); i++)
		assert_true(udp(&e, fine4[i], 53) && tcp(&e, fine4[i], 80, SYN));
	for (unsigned i = 0; i < LEN(fine6); i++)
		assert_true(any6(&e, fine6[i], 17, 53, 0) && any6(&e, fine6[i], 6, 80, SYN));
}

static void test_list(void **state)
{
	struct egress e = { 0 };

	add(&e, "10.1.0.0/16:443");
	add(&e, "192.0.2.7:*");
	add(&e, "[2001:db8::]/33:443");
	assert_true(tcp(&e, "10.1.255.255", 443, SYN) && udp(&e, "10.1.0.1", 443));
	assert_false(tcp(&e, "10.2.0.0", 443, SYN) || tcp(&e, "10.1.0.1", 444, SYN) || udp(&e, "10.1.0.1", 53));
	assert_true(tcp(&e, "192.0.2.7", 1, SYN) && udp(&e, "192.0.2.7", 65535));
	assert_false(tcp(&e, "192.0.2.6", 1, SYN) || udp(&e, "192.0.2.7", 0));
	assert_true(any6(&e, "2001:db8:7fff::1", 6, 443, SYN) && any6(&e, "2001:db8::1", 17, 443, 0));
	assert_false(any6(&e, "2001:db8:8000::1", 6, 443, SYN) || any6(&e, "2001:db8::1", 6, 80, SYN));
	/* What opens no connection is nobody's way out. */
	assert_true(tcp(&e, "10.2.0.0", 443, ACK) && tcp(&e, "10.2.0.0", 443, SYN | ACK) && tcp(&e, "1.1.1.1", 1, 4));
	assert_true(any6(&e, "2001:db9::1", 6, 80, ACK));
	/* Other protocols. */
	for (unsigned proto = 0; proto < 256; proto++)
		if (proto != 6 && proto != 17 && proto != 58)
			assert_false(any6(&e, "2001:db8::1", proto, 443, SYN));
	assert_false(any6(&e, "2001:db8::1", 58, 0, 0));
	assert_true(any6(&e, "fd00::2", 58, 0, 0) && any6(&e, "fe80::2", 58, 0, 0) && any6(&e, "ff02::2", 58, 0, 0));
	e.nrules = 0; /* an empty list allows nothing */
	assert_false(tcp(&e, "10.1.0.1", 443, SYN) || udp(&e, "10.1.0.1", 443));
}

/* The network's own servers. */
static void test_services(void **state)
{
	struct egress e = { .listed = true };

	assert_true(udp(&e, "255.255.255.255", 67) && udp(&e, "10.0.2.2", 67) && any6(&e, "ff02::1:2", 17, 547, 0));
	assert_false(udp(&e, "1.2.3.4", 67) || udp(&e, "255.255.255.255", 68) || any6(&e, "2001::1", 17, 547, 0));
	assert_false(udp(&e, "10.0.2.3", 53) || tcp(&e, "10.0.2.3", 53, SYN) || any6(&e, "fd00::3", 17, 53, 0));
	e.relay = true;
	assert_true(udp(&e, "10.0.2.3", 53) && tcp(&e, "10.0.2.3", 53, SYN) && any6(&e, "fd00::3", 17, 53, 0));
	assert_false(udp(&e, "10.0.2.3", 54));
	/* The gateway is the host's loopback with hostlo, and then needs a rule like any other. */
	assert_true(tcp(&e, "10.0.2.2", 22, SYN));
	e.hostlo = true;
	assert_false(tcp(&e, "10.0.2.2", 22, SYN) || any6(&e, "fd00::2", 6, 22, SYN));
	assert_true(tcp(&e, "10.0.2.2", 22, SYN | ACK));
	add(&e, "10.0.2.2:22");
	assert_true(tcp(&e, "10.0.2.2", 22, SYN) && !tcp(&e, "10.0.2.2", 23, SYN));
}

static bool fragment(const struct egress *e, const char *dst, unsigned off, size_t n, unsigned port)
{
	uint8_t f[PKT_MAX], *l4 = pkt_ip4(f, NULL, dst, 6, n);

	if (n >= 4)
		pkt_put16(l4 + 2, port);
	if (n > 13)
		l4[13] = SYN;
	pkt_put16(f + 20, off);
	return egress_allows(e, f, PKT_IP4 + n);
}

static void test_fragments(void **state)
{
	const unsigned more = 0x2000;
	struct egress e = { 0 };

	add(&e, "10.1.0.0/16:443");
	assert_true(fragment(&e, "10.1.0.1", more, 24, 443));
	assert_false(fragment(&e, "10.1.0.1", more, 24, 80));
	assert_false(fragment(&e, "10.1.0.1", more, 8, 443)); /* the flags are in the next one */
	assert_true(fragment(&e, "10.1.0.1", more | 1, 24, 80) && fragment(&e, "10.1.0.1", 3, 24, 80));
	assert_false(fragment(&e, "10.2.0.1", 3, 24, 443));
}

/* Cut anywhere, with lengths that lie: no byte outside the frame is read (the sanitizer sees it), nothing slips by. */
static void test_cut(void **state)
{
	struct egress open = { 0 }, none = { .listed = true };

	for (unsigned six = 0; six < 2; six++) {
		uint8_t whole[PKT_MAX];
		size_t len = PKT_IP4 + 20;

		if (six)
			pkt_ip6(whole, NULL, "2001:db8::1", 6, 20)[13] = SYN, len = PKT_IP6 + 20;
		else
			pkt_tcp4(whole, "1.2.3.4", 1, 2, 3, 4, SYN);
		for (size_t n = 0; n <= len; n++) {
			uint8_t *f = malloc(n ? n : 1);

			assert_non_null(f);
			memcpy(f, whole, n);
			assert_int_equal(egress_allows(&open, f, n), n == len);
			assert_false(egress_allows(&none, f, n));
			free(f);
		}
		for (unsigned ihl = 0; ihl < 16 && !six; ihl++) {
			whole[14] = (uint8_t)(0x40 | ihl);
			assert_int_equal(egress_allows(&open, whole, len), ihl >= 5 && ihl * 4 <= 40);
		}
	}
}

static void test_ethertypes(void **state)
{
	struct egress none = { .listed = true };
	uint8_t f[60] = { 0 };

	for (unsigned type = 0; type < 65536; type++) {
		pkt_put16(f + 12, type);
		assert_int_equal(egress_allows(&none, f, sizeof(f)), type == 0x806);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rules),      cmocka_unit_test(test_open),      cmocka_unit_test(test_list),
		cmocka_unit_test(test_services),   cmocka_unit_test(test_fragments), cmocka_unit_test(test_cut),
		cmocka_unit_test(test_ethertypes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
