// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Which frames of a guest may leave: rules as they are written, packets of
 * every kind and cut at every byte, fragments, and the host's loopback in all
 * its disguises; and what those that may not are told.
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

/* Refusals. */

static const uint8_t gateway_mac[6] = { 0x52, 0x55, 10, 0, 2, 2 };

/* What the sender of @f is told. A reply is checked in all that is the same for every kind; 0: nothing. */
static size_t refuse(uint8_t *f, size_t len, uint8_t *out)
{
	uint8_t *in = malloc(len ? len : 1), dst[16], gateway[16];
	size_t n, ip;
	bool six;

	assert_non_null(in);
	if (len >= 6 && f[0] == 0xff)
		memcpy(f, gateway_mac, 6);
	memcpy(in, f, len);
	n = egress_refusal(in, len, out);
	free(in);
	if (!n)
		return 0;
	six = pkt_get16(f + 12) == 0x86dd;
	ip = six ? 40 : 20;
	assert_memory_equal(out, f + 6, 6);
	assert_memory_equal(out + 6, f, 6);
	assert_memory_equal(out + 12, f + 12, 2);
	assert_true(n <= EGRESS_MAX_REFUSAL && n == PKT_ETH + pkt_get16(out + (six ? 18 : 16)) + (six ? ip : 0));
	if (!six)
		assert_true(out[14] == 0x45 && pkt_sum(out + 14, 20, 0) == 0xffff && out[22]);
	else
		assert_true(out[14] == 0x60 && out[21]);
	/* From whom, to whom, and the sum of what is in it. */
	inet_pton(six ? AF_INET6 : AF_INET, six ? "fd00::2" : "10.0.2.2", gateway);
	memcpy(dst, f + (six ? 38 : 30), six ? 16 : 4);
	assert_memory_equal(out + (six ? 22 : 26), out[six ? 20 : 23] == 6 ? dst : gateway, six ? 16 : 4);
	assert_memory_equal(out + (six ? 38 : 30), f + (six ? 22 : 26), six ? 16 : 4);
	if (out[six ? 20 : 23] == 1)
		assert_int_equal(pkt_sum(out + PKT_IP4, n - PKT_IP4, 0), 0xffff);
	else
		assert_int_equal(pkt_sum(out + PKT_ETH + ip, n - PKT_ETH - ip,
		                         pkt_sum(out + (six ? 22 : 26), six ? 32 : 8,
		                                 (uint32_t)(out[six ? 20 : 23] + n - PKT_ETH - ip))),
		                 0xffff);
	return n;
}

static uint32_t get32(const uint8_t *p)
{
	return pkt_get16(p) << 16 | pkt_get16(p + 2);
}

/* RFC 793, 3.4: a reset that the sender must take for one of its connection; and none for a reset. */
static void test_reset(void **state)
{
	uint8_t f[PKT_MAX], out[EGRESS_MAX_REFUSAL];

	for (unsigned six = 0; six < 2; six++) {
		for (unsigned flags = 0; flags < 64; flags++) {
			size_t len = six ? pkt_tcp6(f, "2001:db8::1", 4000, 443, 0xfffffffe, 77, flags)
			                 : pkt_tcp4(f, "1.2.3.4", 4000, 443, 0xfffffffe, 77, flags);
			size_t n = refuse(f, len, out), l4 = six ? PKT_IP6 : PKT_IP4;
			const uint8_t *t = out + l4;

			assert_int_equal(n, flags & 4 ? 0 : l4 + 20);
			if (!n)
				continue;
			assert_true(pkt_get16(t) == 443 && pkt_get16(t + 2) == 4000 && t[12] == 0x50);
			assert_int_equal(t[13], flags & ACK ? 4 : 4 | ACK);
			assert_int_equal(get32(t + 4), flags & ACK ? 77 : 0);
			if (!(flags & ACK))
				assert_int_equal(get32(t + 8), 0xfffffffe + (flags & 1) + (flags >> 1 & 1));
		}
	}
	/* With options and data: what was sent counts. */
	memset(pkt_ip4(f, NULL, "1.2.3.4", 6, 24 + 10), 7, 34);
	pkt_put16(f + PKT_IP4 + 4, 0);
	pkt_put16(f + PKT_IP4 + 6, 1000);
	f[PKT_IP4 + 12] = 6 << 4;
	f[PKT_IP4 + 13] = SYN;
	assert_int_equal(refuse(f, PKT_IP4 + 34, out), PKT_IP4 + 20);
	assert_int_equal(get32(out + PKT_IP4 + 8), 1000 + 1 + 10);
}

/* "Administratively prohibited", with the packet that it is about, as much as may be. */
static void test_prohibited(void **state)
{
	uint8_t f[PKT_MAX], out[EGRESS_MAX_REFUSAL], data[1500] = { 1, 2, 3 };

	for (size_t n = 0; n <= 1500; n += 50) {
		size_t len = pkt_udp4(f, "1.2.3.4", 5, 6, data, n), got = refuse(f, len, out);
		size_t quoted = 28 + n < 548 ? 28 + n : 548;

		assert_int_equal(got, PKT_IP4 + 8 + quoted);
		assert_true(out[23] == 1 && out[PKT_IP4] == 3 && out[PKT_IP4 + 1] == 13 && !get32(out + PKT_IP4 + 4));
		assert_memory_equal(out + PKT_IP4 + 8, f + PKT_ETH, quoted);
		memcpy(pkt_ip6(f, NULL, "2001:db8::1", 17, 8 + n), f + PKT_IP4, 8);
		got = refuse(f, PKT_IP6 + 8 + n, out);
		quoted = 48 + n < 1232 ? 48 + n : 1232;
		assert_int_equal(got, PKT_IP6 + 8 + quoted);
		assert_true(out[20] == 58 && out[PKT_IP6] == 1 && out[PKT_IP6 + 1] == 1 && !get32(out + PKT_IP6 + 4));
		assert_memory_equal(out + PKT_IP6 + 8, f + PKT_ETH, quoted);
	}
}

/* RFC 1122, 3.2.2: nothing is said about errors, later fragments, what came for many or from nobody. */
static void test_unsaid(void **state)
{
	static const char *const many4[] = { "224.0.0.1", "239.255.255.250", "255.255.255.255" };
	static const uint8_t questions4[] = { 8, 13, 15, 17 };
	uint8_t f[PKT_MAX], out[EGRESS_MAX_REFUSAL], broadcast[6];

	for (unsigned i = 0; i < LEN(many4); i++)
		assert_int_equal(refuse(f, pkt_udp4(f, many4[i], 1, 2, "", 0), out), 0);
	pkt_ip6(f, NULL, "ff02::16", 0, 16);
	assert_int_equal(refuse(f, PKT_IP6 + 16, out), 0);
	pkt_ip4(f, "0.0.0.0", "1.2.3.4", 17, 8);
	assert_int_equal(refuse(f, PKT_IP4 + 8, out), 0);
	pkt_ip6(f, "::", "2001:db8::1", 17, 8);
	assert_int_equal(refuse(f, PKT_IP6 + 8, out), 0);
	memset(broadcast, 0xff, sizeof(broadcast));
	pkt_udp4(f, "1.2.3.4", 1, 2, "", 0);
	memcpy(f, broadcast, 6);
	assert_int_equal(egress_refusal(f, PKT_IP4 + 8, out), 0);
	for (unsigned type = 0; type < 13; type++) {
		pkt_ip4(f, NULL, "1.2.3.4", 1, 8)[0] = (uint8_t)type;
		assert_int_equal(!!refuse(f, PKT_IP4 + 8, out), type == 8);
	}
	for (unsigned i = 0; i < LEN(questions4); i++) {
		pkt_ip4(f, NULL, "1.2.3.4", 1, 8)[0] = questions4[i];
		assert_true(refuse(f, PKT_IP4 + 8, out));
	}
	for (unsigned type = 0; type < 256; type++) {
		pkt_ip6(f, NULL, "2001:db8::1", 58, 8)[0] = (uint8_t)type;
		assert_int_equal(!!refuse(f, PKT_IP6 + 8, out), type >= 128);
	}
	for (unsigned off = 0; off < 0x2000; off += off < 4 ? 1 : 1001) {
		pkt_ip4(f, NULL, "1.2.3.4", 17, 8);
		pkt_put16(f + 20, 0x2000 | off);
		assert_int_equal(!!refuse(f, PKT_IP4 + 8, out), !off);
		pkt_put16(pkt_ip6(f, NULL, "2001:db8::1", 44, 16) + 2, off << 3 | 1);
		assert_int_equal(!!refuse(f, PKT_IP6 + 16, out), !off);
	}
}

/* Cut anywhere: no byte outside the frame is read, and half a header of TCP gets no answer. */
static void test_refusal_cut(void **state)
{
	uint8_t f[PKT_MAX], out[EGRESS_MAX_REFUSAL];

	for (unsigned six = 0; six < 2; six++) {
		size_t len = six ? pkt_tcp6(f, "2001:db8::1", 1, 2, 3, 4, SYN)
		                 : pkt_tcp4(f, "1.2.3.4", 1, 2, 3, 4, SYN);

		for (size_t n = 0; n <= len; n++)
			assert_int_equal(!!refuse(f, n, out), n == len);
		for (unsigned n = 0; n <= 20; n++) { /* the packet itself says that it is short */
			pkt_put16(f + (six ? 18 : 16), six ? n : 20 + n);
			assert_int_equal(!!refuse(f, len, out), n == 20);
		}
	}
	for (unsigned type = 0; type < 65536; type += 1)
		if (type != 0x800 && type != 0x86dd) {
			pkt_udp4(f, "1.2.3.4", 1, 2, "", 0);
			pkt_put16(f + 12, type);
			assert_int_equal(egress_refusal(f, PKT_IP4 + 8, out), 0);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rules),       cmocka_unit_test(test_open),
		cmocka_unit_test(test_list),        cmocka_unit_test(test_services),
		cmocka_unit_test(test_fragments),   cmocka_unit_test(test_cut),
		cmocka_unit_test(test_ethertypes),  cmocka_unit_test(test_reset),
		cmocka_unit_test(test_prohibited),  cmocka_unit_test(test_unsaid),
		cmocka_unit_test(test_refusal_cut),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
