// SPDX-License-Identifier: GPL-2.0-or-later
/* The value of -n: what is taken, what is refused and how that reads, and the addresses that machines get. */
#include "machine/net_spec.h"

#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define LEN(a) (sizeof(a) / sizeof(*(a)))

static struct net_config good(const char *spec)
{
	struct net_config c;
	struct err err;

	if (net_config_parse(spec, &c, &err))
		fail_msg("'%s': %s", spec, err.msg);
	assert_true(c.chosen);
	return c;
}

static void test_kinds(void **state)
{
	struct net_config c;

	net_config_default(&c);
	assert_true(c.kind == NET_USER && !c.chosen && c.user.mtu == 65520);
	assert_int_equal(good("none").kind, NET_NONE);
	assert_int_equal(good("user").kind, NET_USER);
	assert_true(good("tap").kind == NET_TAP && !good("tap").fallback);
	assert_int_equal(good("passt,hostfwd=tcp:1-2,hostlo=on,mtu=1500").kind, NET_PASST);
	assert_true(good("virtio").kind == NET_TAP && good("virtio").fallback);
}

/* Addresses of both families, and what is taken where one is not given. */
static void test_forward6(void **state)
{
	struct net_config c = good("user,hostfwd=tcp:[::]:80-:8080,hostfwd=udp:53-[fd00::15]:5353,hostfwd=tcp:[2001:"
	                           "db8::1]:1-[fd00::16]:2");
	const struct user_forward *f = c.user.forward;
	struct in6_addr a;

	assert_int_equal(c.user.nforwards, 3);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(f[i].family, AF_INET6);
	assert_memory_equal(&f[0].host, &in6addr_any, 16);
	assert_memory_equal(&f[0].guest, &in6addr_any, 16);
	assert_true(f[0].host_port == 80 && f[0].guest_port == 8080);
	assert_memory_equal(&f[1].host, &in6addr_loopback, 16);
	inet_pton(AF_INET6, "fd00::15", &a);
	assert_memory_equal(&f[1].guest, &a, 16);
	inet_pton(AF_INET6, "2001:db8::1", &a);
	assert_memory_equal(&f[2].host, &a, 16);
	assert_true(f[2].host_port == 1 && f[2].guest_port == 2);
}

static void test_user(void **state)
{
	struct net_config c = good(
	        "user,hostfwd=tcp:2222-22,hostfwd=udp:0.0.0.0:53-10.0.2.16:5353,mtu=1400,hostname=a.b,"
	        "hostlo=on,dns=192.0.2.1,allow=10.0.0.0/8:443,allow=[2001:db8::]/32:*,mac=02:00:00:01:fF:03");
	struct in_addr guest;

	inet_pton(AF_INET, "10.0.2.16", &guest);
	assert_int_equal(c.user.nforwards, 2);
	assert_true(!c.user.forward[0].udp && c.user.forward[0].host.in4.s_addr == htonl(INADDR_LOOPBACK));
	assert_true(c.user.forward[0].host_port == 2222 && c.user.forward[0].guest_port == 22);
	assert_int_equal(c.user.forward[0].guest.in4.s_addr, 0);
	assert_true(c.user.forward[1].udp && c.user.forward[1].host.in4.s_addr == 0);
	assert_true(c.user.forward[1].guest.in4.s_addr == guest.s_addr && c.user.forward[1].guest_port == 5353);
	assert_true(c.user.mtu == 1400 && c.user.egress.hostlo && c.user.egress.listed && c.user.egress.nrules == 2);
	assert_string_equal(c.user.hostname, "a.b");
	assert_string_equal(c.user.dns, "192.0.2.1");
	assert_true(c.has_mac && !memcmp(c.mac, "\2\0\0\1\xff\3", 6));
	c = good("user,restrict");
	assert_true(c.user.restricted && !c.user.egress.hostlo && !c.user.egress.listed);
	assert_false(good("user,hostlo=off").user.egress.hostlo);
}

static void test_tap(void **state)
{
	struct net_config c = good("tap,if=vm0,bridge=br0,script=/etc/up,downscript=/etc/down,queues=4,mtu=9000");

	assert_string_equal(c.tap.ifname, "vm0");
	assert_string_equal(c.tap.bridge, "br0");
	assert_string_equal(c.tap.script, "/etc/up");
	assert_string_equal(c.tap.downscript, "/etc/down");
	assert_true(c.tap.queues == 4 && c.tap.mtu == 9000 && c.tap.fd == -1);
	assert_int_equal(good("tap,fd=7").tap.fd, 7);
	assert_int_equal(good("tap").tap.vhost, TAP_VHOST_AUTO);
	assert_int_equal(good("tap,vhost=on").tap.vhost, TAP_VHOST_ON);
	assert_int_equal(good("tap,vhost=off").tap.vhost, TAP_VHOST_OFF);
	assert_true(good("virtio,mac=06:00:00:00:00:01").has_mac);
}

static void test_refused(void **state)
{
	static const char *const bad[][2] = {
		{ "", "none of none, user" },
		{ "slirp", "'slirp'" },
		{ "none,mtu=1", "there is no option 'mtu'" },
		{ "user,", "there is no option ''" },
		{ "user,queues=2", "no option 'queues'" },
		{ "user,mtu", "mtu needs a value" },
		{ "user,restrict=on", "restrict takes no value" },
		{ "user,mtu=67", "between 68 and 65520" },
		{ "user,mtu=65521", "between 68 and 65520" },
		{ "user,hostlo=yes", "neither on nor off" },
		{ "user,mac=02:00:00:00:00", "not of the form" },
		{ "user,mac=02:00:00:00:00:0g", "not of the form" },
		{ "user,mac=02:00:00:00:00:001", "not of the form" },
		{ "user,mac=01:00:00:00:00:01", "multicast" },
		{ "user,dns=example.org", "not an address" },
		{ "user,dns=127.0.0.53", "without dns=" },
		{ "user,dns=::1", "without dns=" },
		{ "user,allow=10.0.0.0/8", "allow=10.0.0.0/8: not" },
		{ "user,restrict,allow=10.0.0.0/8:1", "restrict allows nothing" },
		{ "user,hostname=", "empty or too long" },
		{ "user,hostfwd=2222-22", "hostfwd=2222-22: not" },
		{ "user,hostfwd=sctp:2222-22", "not tcp|udp" },
		{ "user,hostfwd=tcp:2222", "not tcp|udp" },
		{ "user,hostfwd=tcp:0-22", "not tcp|udp" },
		{ "user,hostfwd=tcp:65536-22", "not tcp|udp" },
		{ "user,hostfwd=tcp:22-", "not tcp|udp" },
		{ "user,hostfwd=tcp:-22", "not tcp|udp" },
		{ "user,hostfwd=tcp:host:22-22", "not tcp|udp" },
		{ "user,hostfwd=tcp:22-10.0.2:22", "not tcp|udp" },
		{ "user,hostfwd=tcp:22x-22", "not tcp|udp" },
		{ "tap,if=a-name-that-is-too-long", "empty or too long" },
		{ "tap,queues=0", "between 1 and 16" },
		{ "tap,queues=17", "between 1 and 16" },
		{ "tap,vhost=yes", "none of auto" },
		{ "tap,fd=2", "between 3" },
		{ "tap,fd=5,if=tap0", "fd= is an interface as it is" },
		{ "tap,fd=5,queues=2", "fd= is an interface as it is" },
		{ "passt,restrict", "no option 'restrict'" },
		{ "user,hostfwd=tcp:::1:22-22", "IPv6 as in [::1]:80" },
		{ "user,hostfwd=tcp:[::1:22-22", "not tcp|udp" },
		{ "user,hostfwd=tcp:[]:22-22", "not tcp|udp" },
		{ "user,hostfwd=tcp:[1.2.3.4]:22-22", "not tcp|udp" },
		{ "user,hostfwd=tcp:[::1]-22", "not tcp|udp" },
		{ "user,hostfwd=tcp:[::1]:22-10.0.2.15:22", "between IPv4 and IPv6" },
		{ "user,hostfwd=tcp:0.0.0.0:22-[fd00::15]:22", "between IPv4 and IPv6" },
		{ "passt,hostfwd=tcp:[::1]:1-2", "IPv4 only" },
		{ "passt,hostfwd=tcp:1-10.0.2.9:2", "by a port alone" },
		{ "virtio,if=tap0", "no option 'if'" },
	};

	for (unsigned i = 0; i < LEN(bad); i++) {
		struct net_config c;
		struct err err;
		int error = net_config_parse(bad[i][0], &c, &err);

		if ((error != -EINVAL && error != -ERANGE) || !strstr(err.msg, bad[i][1]))
			fail_msg("'%s': %d, %s", bad[i][0], error, error ? err.msg : "");
	}
}

/* As many as fit, and one more. */
static void test_many(void **state)
{
	static const char *const option[] = { ",hostfwd=tcp:1000-22", ",allow=1.2.3.4:5" };

	for (unsigned i = 0; i < LEN(option); i++) {
		static char spec[4096];
		struct net_config c;
		struct err err;

		strcpy(spec, "user");
		for (unsigned n = 0; n < 64; n++)
			strcat(spec, option[i]);
		good(spec);
		strcat(spec, option[i]);
		assert_int_equal(net_config_parse(spec, &c, &err), -ERANGE);
	}
}

static void test_mac(void **state)
{
	struct net_config c = good("user"), given = good("user,mac=52:54:00:12:34:56");
	static const uint8_t own[6] = { 2, 3, 4, 5, 6, 7 };
	uint8_t seen[1000][6], again[6];
	char name[32];

	for (unsigned i = 0; i < LEN(seen); i++) {
		snprintf(name, sizeof(name), "vm-%u", i);
		net_config_mac(&c, NULL, name, seen[i]);
		assert_int_equal(seen[i][0] & 3, 2); /* locally administered, unicast */
		net_config_mac(&c, NULL, name, again);
		assert_memory_equal(again, seen[i], 6);
		for (unsigned j = 0; j < i; j++)
			assert_memory_not_equal(seen[i], seen[j], 6);
		net_config_mac(&given, i % 2 ? own : NULL, name, again);
		assert_memory_equal(again, "\x52\x54\0\x12\x34\x56", 6);
		net_config_mac(&c, own, name, again);
		assert_memory_equal(again, own, 6);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kinds), cmocka_unit_test(test_user),    cmocka_unit_test(test_forward6),
		cmocka_unit_test(test_tap),   cmocka_unit_test(test_refused), cmocka_unit_test(test_many),
		cmocka_unit_test(test_mac),
	};

	/* Without libslirp there is nothing to say about its options. */
	return user_built_in() ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}
