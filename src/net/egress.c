// SPDX-License-Identifier: GPL-2.0-or-later
#include "net/egress.h"
#include "net/slirp_net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * How it works
 *
 * TCP is judged by the segment that opens a connection (SYN without ACK):
 * libslirp makes one for no other. UDP and the rest is judged packet by packet.
 *
 * Of a fragmented packet the first fragment is judged, which must have the
 * ports (and TCP's flags); the others begin 8 bytes further on at least, where
 * they cannot overwrite those, and go only to addresses that are on the list.
 * libslirp takes no IPv6 packet with an extension header, so a fragment's is
 * an unknown protocol here.
 *
 * What is refused is told in the sender's own terms (RFC 793, 3.4; RFC 1812,
 * 5.2.7; RFC 4443, 3.1), never about errors, which could go on for ever.
 */

#define ETH_LEN   14
#define TCP_FLAGS 13 /* offset of the byte */
#define TCP_FIN   1
#define TCP_SYN   2
#define TCP_RST   4
#define TCP_ACK   16

#define IP4_LEN   20
#define IP6_LEN   40
#define TCP_LEN   20
#define ICMP_LEN  8
#define IP6_MTU   1280 /* that everybody can take */

struct packet {
	int family;
	const uint8_t *ip; /* the whole of it */
	size_t total;      /* bytes of that */
	const uint8_t *src, *dst;
	unsigned proto;
	bool later;        /* a fragment, not the first */
	const uint8_t *l4; /* what follows the IP header, @len bytes */
	size_t len;
};

static uint16_t be16(const uint8_t *p)
{
	return (uint16_t)(p[0] << 8 | p[1]);
}

/* Rules. */

static int bad_rule(const char *s, struct err *err)
{
	return err_set(err, -EINVAL, "allow=%s: not ADDRESS[/BITS]:PORT, as in 10.0.0.0/8:443 or [2001:db8::]/32:*", s);
}

/* A number up to @max which ends @s. */
static bool number(const char *s, unsigned long max, unsigned *out)
{
	char *end;
	unsigned long n = strtoul(s, &end, 10);

	*out = (unsigned)n;
	return *s >= '0' && *s <= '9' && !*end && n <= max;
}

int egress_parse_rule(const char *s, struct egress_rule *out, struct err *err)
{
	char buf[128], *colon, *slash, *addr = buf;
	unsigned port = 0;

	if (snprintf(buf, sizeof(buf), "%s", s) >= (int)sizeof(buf))
		return bad_rule(s, err);
	colon = strrchr(buf, ':');
	if (!colon || (strcmp(colon + 1, "*") && (!number(colon + 1, 65535, &port) || !port)))
		return bad_rule(s, err);
	*colon = '\0';
	*out = (struct egress_rule){ .family = buf[0] == '[' ? AF_INET6 : AF_INET, .port = (uint16_t)port };
	out->prefix = out->family == AF_INET ? 32 : 128;
	slash = strchr(buf, '/');
	if (slash && !number(slash + 1, out->prefix, &out->prefix))
		return bad_rule(s, err);
	if (slash)
		*slash = '\0';
	if (out->family == AF_INET6) {
		size_t n = strlen(buf);

		if (buf[n - 1] != ']')
			return bad_rule(s, err);
		buf[n - 1] = '\0';
		addr++;
	}
	return inet_pton(out->family, addr, out->addr) == 1 ? 0 : bad_rule(s, err);
}

static bool same_prefix(const uint8_t *a, const uint8_t *b, unsigned bits)
{
	uint8_t last = (uint8_t)(0xff00 >> bits % 8);

	return !memcmp(a, b, bits / 8) && !((a[bits / 8] ^ b[bits / 8]) & last & -(bits % 8 != 0));
}

/* @port 0: whichever. */
static bool on_list(const struct egress *e, const struct packet *p, uint16_t port)
{
	for (unsigned i = 0; i < e->nrules; i++) {
		const struct egress_rule *r = &e->rule[i];

		if (r->family == p->family && same_prefix(r->addr, p->dst, r->prefix) &&
		    (!r->port || !port || r->port == port))
			return true;
	}
	return false;
}

/* Addresses. */

static bool is_address(const struct packet *p, const char *text4, const char *text6)
{
	uint8_t a[16] = { 0 };

	inet_pton(p->family, p->family == AF_INET ? text4 : text6, a);
	return !memcmp(p->dst, a, p->family == AF_INET ? 4 : 16);
}

/* Linux connects 0.0.0.0 and :: to itself, too; the first 96 bits zero or ::ffff: are IPv4 in disguise. */
static bool is_loopback(const struct packet *p)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff }, zero[12] = { 0 };

	if (p->family == AF_INET)
		return p->dst[0] == 127 || p->dst[0] == 0;
	return !memcmp(p->dst, mapped, 12) || !memcmp(p->dst, zero, 12);
}

/* Neighbours and routers: multicast, link-local, libslirp's own prefix. */
static bool is_near6(const struct packet *p)
{
	uint8_t net[16];

	inet_pton(AF_INET6, SLIRP_NET6, net);
	return p->dst[0] == 0xff || (p->dst[0] == 0xfe && (p->dst[1] & 0xc0) == 0x80) ||
	       same_prefix(p->dst, net, SLIRP_LEN6);
}

/* Judging. */

/* libslirp's own DHCP servers. */
static bool is_dhcp(const struct packet *p, uint16_t port)
{
	if (p->family == AF_INET)
		return port == 67 && (is_address(p, SLIRP_HOST4, "") || is_address(p, "255.255.255.255", ""));
	return port == 547 && is_address(p, "", "ff02::1:2");
}

static bool may_open(const struct egress *e, const struct packet *p, uint16_t port)
{
	if (is_address(p, SLIRP_DNS4, SLIRP_DNS6))
		return e->relay && port == 53;
	/* Refused by libslirp, unless it is the answer to a connection that came from this host. */
	if (!e->hostlo && is_address(p, SLIRP_HOST4, SLIRP_HOST6))
		return true;
	return on_list(e, p, port);
}

static bool allows_tcp(const struct egress *e, const struct packet *p)
{
	if (p->len <= TCP_FLAGS)
		return false;
	if ((p->l4[TCP_FLAGS] & (TCP_SYN | TCP_ACK)) != TCP_SYN)
		return true;
	return may_open(e, p, be16(p->l4 + 2));
}

static bool allows_udp(const struct egress *e, const struct packet *p)
{
	uint16_t port = p->len >= 4 ? be16(p->l4 + 2) : 0;

	return port && (is_dhcp(p, port) || may_open(e, p, port));
}

static bool allows_packet(const struct egress *e, const struct packet *p)
{
	if (is_loopback(p))
		return false;
	if (!e->listed)
		return true;
	if (p->later)
		return on_list(e, p, 0);
	switch (p->proto) {
	case IPPROTO_TCP: return allows_tcp(e, p);
	case IPPROTO_UDP: return allows_udp(e, p);
	case IPPROTO_ICMP: return p->family == AF_INET && is_address(p, SLIRP_HOST4, "");
	case IPPROTO_ICMPV6: return p->family == AF_INET6 && is_near6(p);
	default: return false;
	}
}

static bool parse4(struct packet *p, const uint8_t *ip, size_t len)
{
	size_t hlen = len >= 20 ? 4u * (ip[0] & 15) : 0, total;

	if (hlen < 20 || ip[0] >> 4 != 4)
		return false;
	total = be16(ip + 2);
	if (total < hlen || total > len)
		return false;
	*p = (struct packet){ .family = AF_INET,
		              .ip = ip,
		              .total = total,
		              .src = ip + 12,
		              .dst = ip + 16,
		              .proto = ip[9],
		              .later = be16(ip + 6) & 0x1fff,
		              .l4 = ip + hlen,
		              .len = total - hlen };
	return true;
}

static bool parse6(struct packet *p, const uint8_t *ip, size_t len)
{
	size_t payload = len >= 40 ? be16(ip + 4) : 0;

	if (len < 40 || ip[0] >> 4 != 6 || payload > len - 40)
		return false;
	*p = (struct packet){ .family = AF_INET6,
		              .ip = ip,
		              .total = 40 + payload,
		              .src = ip + 8,
		              .dst = ip + 24,
		              .proto = ip[6],
		              .l4 = ip + 40,
		              .len = payload };
	return true;
}

static bool parse(struct packet *p, const uint8_t *frame, size_t len)
{
	switch (len < ETH_LEN ? 0 : be16(frame + 12)) {
	case ETH_P_IP: return parse4(p, frame + ETH_LEN, len - ETH_LEN);
	case ETH_P_IPV6: return parse6(p, frame + ETH_LEN, len - ETH_LEN);
	default: return false;
	}
}

bool egress_allows(const struct egress *e, const uint8_t *frame, size_t len)
{
	struct packet p;

	if (len >= ETH_LEN && be16(frame + 12) == ETH_P_ARP)
		return true;
	return parse(&p, frame, len) && allows_packet(e, &p);
}

/* Refusing. */

static void put16(uint8_t *p, uint32_t v)
{
	p[0] = (uint8_t)(v >> 8);
	p[1] = (uint8_t)v;
}

static void put32(uint8_t *p, uint32_t v)
{
	put16(p, v >> 16);
	put16(p + 2, v);
}

static uint32_t be32(const uint8_t *p)
{
	return (uint32_t)be16(p) << 16 | be16(p + 2);
}

/* The sum of RFC 1071 over @n bytes, on top of @sum. */
static uint32_t sum16(const uint8_t *p, size_t n, uint32_t sum)
{
	for (size_t i = 0; i + 1 < n; i += 2)
		sum += be16(p + i);
	if (n % 2)
		sum += (uint32_t)p[n - 1] << 8;
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Is the sender of @p to be told, in this family of addresses, that it was refused? */
static bool may_tell4(const struct packet *p)
{
	static const uint8_t none[4] = { 0 };

	if (p->later || p->dst[0] >= 224 || !memcmp(p->src, none, sizeof(none)))
		return false;
	/* Questions of ICMP come in pairs with their answers, from 8 on; the others below 16 are errors. */
	return p->proto != IPPROTO_ICMP || (p->len && (p->l4[0] == 8 || p->l4[0] >= 13));
}

static bool may_tell6(const struct packet *p)
{
	static const uint8_t none[16] = { 0 };

	if (p->dst[0] == 0xff || !memcmp(p->src, none, sizeof(none)))
		return false;
	if (p->proto == IPPROTO_FRAGMENT)
		return p->len >= 8 && !(be16(p->l4 + 2) & 0xfff8);
	return p->proto != IPPROTO_ICMPV6 || (p->len && p->l4[0] >= 128);
}

static bool may_tell(const struct packet *p)
{
	if (p->proto == IPPROTO_TCP && (p->len < TCP_LEN || p->l4[TCP_FLAGS] & TCP_RST))
		return false;
	return p->family == AF_INET ? may_tell4(p) : may_tell6(p);
}

/* An IP header at @ip to the sender of @p, for @n bytes behind it, whose place is returned; @src: whom it is from. */
static uint8_t *put_ip(uint8_t *ip, const struct packet *p, const uint8_t *src, unsigned proto, size_t n)
{
	if (p->family == AF_INET6) {
		memset(ip, 0, IP6_LEN);
		ip[0] = 0x60;
		put16(ip + 4, (uint32_t)n);
		ip[6] = (uint8_t)proto;
		ip[7] = 64;
		memcpy(ip + 8, src, 16);
		memcpy(ip + 24, p->src, 16);
		return ip + IP6_LEN;
	}
	memset(ip, 0, IP4_LEN);
	ip[0] = 0x45;
	put16(ip + 2, (uint32_t)(IP4_LEN + n));
	ip[8] = 64;
	ip[9] = (uint8_t)proto;
	memcpy(ip + 12, src, 4);
	memcpy(ip + 16, p->src, 4);
	put16(ip + 10, ~sum16(ip, IP4_LEN, 0));
	return ip + IP4_LEN;
}

/* The sum over both addresses of @ip, @n and @proto, which TCP and ICMPv6 have in theirs. */
static uint32_t pseudo_sum(const struct packet *p, const uint8_t *ip, unsigned proto, size_t n)
{
	return p->family == AF_INET ? sum16(ip + 12, 8, (uint32_t)(proto + n))
	                            : sum16(ip + 8, 32, (uint32_t)(proto + n));
}

static size_t reset_tcp(const struct packet *p, uint8_t *ip)
{
	uint8_t flags = p->l4[TCP_FLAGS], *t = put_ip(ip, p, p->dst, IPPROTO_TCP, TCP_LEN);
	size_t hlen = (size_t)(p->l4[12] >> 4) * 4, data = p->len > hlen ? p->len - hlen : 0;

	memset(t, 0, TCP_LEN);
	memcpy(t, p->l4 + 2, 2);
	memcpy(t + 2, p->l4, 2);
	t[12] = TCP_LEN / 4 << 4;
	t[TCP_FLAGS] = TCP_RST;
	if (flags & TCP_ACK) {
		memcpy(t + 4, p->l4 + 8, 4);
	} else {
		put32(t + 8, be32(p->l4 + 4) + (uint32_t)data + !!(flags & TCP_SYN) + !!(flags & TCP_FIN));
		t[TCP_FLAGS] |= TCP_ACK;
	}
	put16(t + 16, ~sum16(t, TCP_LEN, pseudo_sum(p, ip, IPPROTO_TCP, TCP_LEN)));
	return (size_t)(t + TCP_LEN - ip);
}

/* Of the packet as much as goes into one that everybody can take. */
static size_t prohibit(const struct packet *p, uint8_t *ip)
{
	bool four = p->family == AF_INET;
	size_t room = four ? 576 - IP4_LEN - ICMP_LEN : IP6_MTU - IP6_LEN - ICMP_LEN;
	size_t quoted = p->total < room ? p->total : room, n = ICMP_LEN + quoted;
	unsigned proto = four ? IPPROTO_ICMP : IPPROTO_ICMPV6;
	uint8_t gateway[16], *icmp;

	inet_pton(p->family, four ? SLIRP_HOST4 : SLIRP_HOST6, gateway);
	icmp = put_ip(ip, p, gateway, proto, n);
	memset(icmp, 0, ICMP_LEN);
	icmp[0] = four ? 3 : 1; /* destination unreachable */
	icmp[1] = four ? 13 : 1;
	memcpy(icmp + ICMP_LEN, p->ip, quoted);
	put16(icmp + 2, ~sum16(icmp, n, four ? 0 : pseudo_sum(p, ip, proto, n)));
	return (size_t)(icmp + n - ip);
}

size_t egress_refusal(const uint8_t *frame, size_t len, uint8_t out[EGRESS_MAX_REFUSAL])
{
	struct packet p;

	if (!parse(&p, frame, len) || frame[0] & 1 || !may_tell(&p))
		return 0;
	memcpy(out, frame + 6, 6);
	memcpy(out + 6, frame, 6);
	memcpy(out + 12, frame + 12, 2);
	return ETH_LEN + (p.proto == IPPROTO_TCP ? reset_tcp(&p, out + ETH_LEN) : prohibit(&p, out + ETH_LEN));
}
