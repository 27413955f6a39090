/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef TESTS_PACKET_H
#define TESTS_PACKET_H

#include <arpa/inet.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Ethernet frames with IP packets in them, made by hand for tests of the network. */

#define PKT_ETH   14
#define PKT_IP4   (PKT_ETH + 20)
#define PKT_IP6   (PKT_ETH + 40)
#define PKT_MAX   2048
#define PKT_GUEST ((const uint8_t[6]){ 2, 0, 0, 0, 0, 1 })

static inline void pkt_put16(uint8_t *p, unsigned v)
{
	p[0] = (uint8_t)(v >> 8);
	p[1] = (uint8_t)v;
}

static inline unsigned pkt_get16(const uint8_t *p)
{
	return (unsigned)p[0] << 8 | p[1];
}

/* The sum of RFC 1071, to be complemented. */
static inline uint32_t pkt_sum(const uint8_t *p, size_t n, uint32_t sum)
{
	for (size_t i = 0; i < n; i++)
		sum += i % 2 ? p[i] : (uint32_t)p[i] << 8;
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Headers of a packet with @n bytes behind them; returns where those go. @src NULL: 10.0.2.15. */
static inline uint8_t *pkt_ip4(uint8_t *f, const char *src, const char *dst, unsigned proto, size_t n)
{
	memset(f, 0, PKT_IP4 + n);
	memset(f, 0xff, 6);
	memcpy(f + 6, PKT_GUEST, 6);
	pkt_put16(f + 12, 0x800);
	f[14] = 0x45;
	pkt_put16(f + 16, (unsigned)(20 + n));
	f[22] = 64;
	f[23] = (uint8_t)proto;
	inet_pton(AF_INET, src ? src : "10.0.2.15", f + 26);
	inet_pton(AF_INET, dst, f + 30);
	pkt_put16(f + 24, ~pkt_sum(f + 14, 20, 0));
	return f + PKT_IP4;
}

static inline uint8_t *pkt_ip6(uint8_t *f, const char *src, const char *dst, unsigned proto, size_t n)
{
	memset(f, 0, PKT_IP6 + n);
	memset(f, 0xff, 6);
	memcpy(f + 6, PKT_GUEST, 6);
	pkt_put16(f + 12, 0x86dd);
	f[14] = 0x60;
	pkt_put16(f + 18, (unsigned)n);
	f[20] = (uint8_t)proto;
	f[21] = 64;
	inet_pton(AF_INET6, src ? src : "fd00::15", f + 22);
	inet_pton(AF_INET6, dst, f + 38);
	return f + PKT_IP6;
}

/* UDP over IPv4, without a checksum; returns the frame's length. */
static inline size_t pkt_udp4(uint8_t *f, const char *dst, unsigned sport, unsigned dport, const void *data, size_t n)
{
	uint8_t *u = pkt_ip4(f, NULL, dst, 17, 8 + n);

	pkt_put16(u, sport);
	pkt_put16(u + 2, dport);
	pkt_put16(u + 4, (unsigned)(8 + n));
	if (n)
		memcpy(u + 8, data, n);
	return PKT_IP4 + 8 + n;
}

/* A TCP header over IPv4 with its checksum. */
static inline size_t pkt_tcp4(uint8_t *f, const char *dst, unsigned sport, unsigned dport, uint32_t seq, uint32_t ack,
                              unsigned flags)
{
	uint8_t *t = pkt_ip4(f, NULL, dst, 6, 20);

	pkt_put16(t, sport);
	pkt_put16(t + 2, dport);
	pkt_put16(t + 4, seq >> 16);
	pkt_put16(t + 6, seq & 0xffff);
	pkt_put16(t + 8, ack >> 16);
	pkt_put16(t + 10, ack & 0xffff);
	t[12] = 5 << 4;
	t[13] = (uint8_t)flags;
	pkt_put16(t + 14, 8192);
	pkt_put16(t + 16, ~pkt_sum(t, 20, pkt_sum(f + 26, 8, 6 + 20)));
	return PKT_IP4 + 20;
}

/* The same over IPv6. */
static inline size_t pkt_tcp6(uint8_t *f, const char *dst, unsigned sport, unsigned dport, uint32_t seq, uint32_t ack,
                              unsigned flags)
{
	uint8_t *t = pkt_ip6(f, NULL, dst, 6, 20);

	pkt_put16(t, sport);
	pkt_put16(t + 2, dport);
	pkt_put16(t + 4, seq >> 16);
	pkt_put16(t + 6, seq & 0xffff);
	pkt_put16(t + 8, ack >> 16);
	pkt_put16(t + 10, ack & 0xffff);
	t[12] = 5 << 4;
	t[13] = (uint8_t)flags;
	pkt_put16(t + 14, 8192);
	pkt_put16(t + 16, ~pkt_sum(t, 20, pkt_sum(f + 22, 32, 6 + 20)));
	return PKT_IP6 + 20;
}

#endif
