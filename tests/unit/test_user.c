// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The user-mode network: the queue of frames under it, which name server the
 * guest is told of, and libslirp itself, driven by frames made by hand: who
 * gets through to this host, and who does not.
 */
#include "base/loop.h"
#include "net/dns.h"
#include "net/frames.h"
#include "net/user.h"
#include "packet.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/virtio_net.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define LEN(a) (sizeof(a) / sizeof(*(a)))

/* The queue. */

static bool put(struct frames *f, unsigned k, size_t len, int fd)
{
	static uint8_t buf[4096];
	struct iovec iov[2] = { { buf, len / 2 + 1 }, { buf + len / 2 + 1, len + 12 - (len / 2 + 1) } };

	for (size_t i = 0; i < len; i++)
		buf[12 + i] = (uint8_t)(k + i);
	return frames_put(f, iov, 2, 12, fd);
}

static void check(struct frames *f, unsigned k, size_t len)
{
	const uint8_t *p;

	assert_int_equal(frames_peek(f, &p), len);
	for (size_t i = 0; i < len; i++)
		assert_int_equal(p[i], (uint8_t)(k + i));
	frames_drop(f);
}

static bool signalled(int fd)
{
	uint64_t n;

	return read(fd, &n, sizeof(n)) == sizeof(n);
}

/* In and out at random, through thousands of laps: nothing is lost, and who waits is told, once. */
static void test_frames(void **state)
{
	for (unsigned size = 4096; size <= 16384; size += 4096) {
		int fd = eventfd(0, EFD_NONBLOCK);
		unsigned in = 0, out = 0, seed = size;
		bool empty = true;
		struct frames *f;
		const uint8_t *p;
		struct err err;

		assert_int_equal(frames_new(size, &f, &err), 0);
		while (out < 20000) {
			unsigned puts = in;
			bool full = false;

			seed = seed * 1103515245 + 12345;
			for (unsigned n = seed >> 16 & 31; n-- && !full; in += !full)
				full = !put(f, in, 1 + in * 37 % 1500, fd);
			assert_int_equal(signalled(frames_reader_fd(f)), empty && in > puts);
			for (unsigned n = full ? in - out : seed >> 8 & 31; n-- && out < in; out++)
				check(f, out, 1 + out * 37 % 1500);
			assert_int_equal(signalled(fd), full);
			empty = out == in;
			if (empty)
				assert_int_equal(frames_peek(f, &p), 0);
			else
				empty = in == 0;
		}
		frames_free(f);
		close(fd);
	}
}

static void wait_for(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	assert_int_equal(poll(&p, 1, 20000), 1);
	assert_true(signalled(fd));
}

struct writer {
	struct frames *f;
	int fd;
};

#define THREADED 50000u

static void *write_frames(void *arg)
{
	struct writer *w = arg;

	for (unsigned k = 0; k < THREADED; k++)
		while (!put(w->f, k, 1 + k % 1400, w->fd))
			wait_for(w->fd);
	return NULL;
}

static void test_frames_threads(void **state)
{
	struct writer w = { .fd = eventfd(0, EFD_NONBLOCK) };
	pthread_t thread;
	const uint8_t *p;
	struct err err;

	assert_int_equal(frames_new(8192, &w.f, &err), 0);
	assert_int_equal(pthread_create(&thread, NULL, write_frames, &w), 0);
	for (unsigned k = 0; k < THREADED; k++) {
		while (!frames_peek(w.f, &p))
			wait_for(frames_reader_fd(w.f));
		check(w.f, k, 1 + k % 1400);
	}
	pthread_join(thread, NULL);
	frames_free(w.f);
	close(w.fd);
}

/* Name servers. */

static void write_file(const char *root, const char *path, const char *text)
{
	char name[256];
	FILE *f;

	snprintf(name, sizeof(name), "%s%s", root, path);
	for (char *p = strchr(name + 6, '/'); p; p = strchr(p + 1, '/')) {
		*p = '\0';
		mkdir(name, 0755);
		*p = '/';
	}
	f = fopen(name, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static void test_dns(void **state)
{
	static const char stub[] = "# made by a program\nnameserver 127.0.0.53\noptions edns0\n";
	static const char resolved[] = "/run/systemd/resolve/resolv.conf";
	static const struct {
		const char *etc, *path, *other, *addr;
		bool relay;
	} t[] = {
		{ stub, NULL, NULL, "10.0.2.3", true },
		{ "nameserver 9.9.9.9\n", NULL, NULL, "10.0.2.3", true },
		{ "nameserver 2620:fe::fe\nnameserver fe80::1%eth0\n", NULL, NULL, "fd00::3", true },
		{ "nameserver 2620:fe::fe\nnameserver\t9.9.9.9\n", NULL, NULL, "10.0.2.3", true },
		{ "", NULL, NULL, "", false },
		{ NULL, NULL, NULL, "", false },
		{ "nameserver nonsense\nnameserver\n#nameserver 1.1.1.1\n", NULL, NULL, "", false },
		{ "", resolved, "nameserver 192.168.7.1\n", "192.168.7.1", false },
		{ NULL, resolved, "nameserver 127.0.0.1\nnameserver fe80::1%2\nnameserver 2620:fe::fe\n", "2620:fe::fe",
		  false },
		{ NULL, "/run/NetworkManager/resolv.conf", "nameserver 192.168.7.2", "192.168.7.2", false },
		{ stub, resolved, "nameserver 192.168.7.1\n", "10.0.2.3", true },
	};

	for (unsigned i = 0; i < LEN(t); i++) {
		char root[] = "/tmp/kvm-dns-XXXXXX", cmd[64];
		struct dns_choice c;

		assert_non_null(mkdtemp(root));
		if (t[i].etc)
			write_file(root, "/etc/resolv.conf", t[i].etc);
		if (t[i].path)
			write_file(root, t[i].path, t[i].other);
		dns_choose(root, &c);
		assert_string_equal(c.addr, t[i].addr);
		if (c.addr[0])
			assert_int_equal(c.relay, t[i].relay);
		snprintf(cmd, sizeof(cmd), "rm -rf %s", root);
		assert_int_equal(system(cmd), 0);
	}
}

/* The whole of it: a guest made by hand. */

struct guest {
	struct nic *nic;
	struct loop *loop;
	struct loop_timer patience;
	bool late, (*is_it)(struct guest *g);
	uint8_t frame[NIC_HDR + NIC_MAX_FRAME]; /* the last one received, from its Ethernet header on */
	size_t len;
	uint8_t flags; /* that the header is to have */
};

static void on_frame(void *dev, unsigned pair)
{
	struct guest *g = dev;
	uint8_t hdr[NIC_HDR];
	struct iovec iov[2] = { { hdr, sizeof(hdr) }, { g->frame, sizeof(g->frame) } };
	ssize_t n = nic_recv(g->nic, 0, iov, 2);

	if (n < 0)
		return;
	for (unsigned i = 0; i < sizeof(hdr); i++)
		assert_int_equal(hdr[i], i ? 0 : g->flags);
	g->len = (size_t)n - sizeof(hdr);
	if (g->is_it(g))
		loop_quit(g->loop);
}

static void on_late(struct loop_timer *t)
{
	struct guest *g = (struct guest *)((char *)t - offsetof(struct guest, patience));

	g->late = true;
	loop_quit(g->loop);
}

/* Lets frames come until one is what @is_it wants: it is then in g->frame. */
static void wait_frame(struct guest *g, bool (*is_it)(struct guest *g))
{
	g->is_it = is_it;
	loop_timer_set(g->loop, &g->patience, 20000000000ull);
	nic_poll(g->nic, 0, POLLIN);
	assert_int_equal(loop_run(g->loop), 0);
	nic_poll(g->nic, 0, 0);
	loop_timer_del(g->loop, &g->patience);
	assert_false(g->late);
}

static void send_frame(struct guest *g, const uint8_t *frame, size_t len)
{
	static const uint8_t hdr[NIC_HDR];
	struct iovec iov[2] = { { (void *)(uintptr_t)hdr, sizeof(hdr) }, { (void *)(uintptr_t)frame, len } };

	assert_int_equal(nic_send(g->nic, 0, iov, 2), 0);
}

static bool is_dhcp_offer(struct guest *g)
{
	return g->len > PKT_IP4 + 240 && g->frame[23] == 17 && pkt_get16(g->frame + PKT_IP4 + 2) == 68;
}

/* A DHCP message of type @type, as a client that wants an address sends it. */
static void send_dhcp(struct guest *g, unsigned type)
{
	uint8_t f[PKT_MAX], m[300] = { 1, 1, 6, 0 };

	memcpy(m + 28, PKT_GUEST, 6);
	memcpy(m + 236, (uint8_t[]){ 99, 130, 83, 99, 53, 1, (uint8_t)type, 55, 2, 3, 6, 255 }, 12);
	pkt_udp4(f, "255.255.255.255", 68, 67, m, sizeof(m));
	inet_pton(AF_INET, "0.0.0.0", f + 26);
	pkt_put16(f + 24, 0);
	pkt_put16(f + 24, ~pkt_sum(f + 14, 20, 0));
	send_frame(g, f, PKT_IP4 + 8 + sizeof(m));
}

/* The value of option @code in the answer that was received, or NULL. */
static const uint8_t *dhcp_option(struct guest *g, unsigned code)
{
	for (size_t i = PKT_IP4 + 8 + 240; i + 1 < g->len && g->frame[i] != 255; i += 2u + g->frame[i + 1])
		if (g->frame[i] == code)
			return g->frame + i + 2;
	return NULL;
}

/* Tells libslirp who has 10.0.2.15. */
static void send_arp(struct guest *g)
{
	uint8_t f[42] = { 255, 255, 255, 255, 255, 255, 2, 0,  0, 0, 0,  1, 8, 6, 0, 1, 8, 0,  6, 4, 0,
		          2,   2,   0,   0,   0,   0,   1, 10, 0, 2, 15, 2, 0, 0, 0, 0, 1, 10, 0, 2, 15 };

	send_frame(g, f, sizeof(f));
}

static struct guest *guest_new(const struct user_config *cfg)
{
	struct guest *g = calloc(1, sizeof(*g));
	struct nic_client client = { .readable = on_frame, .dev = g };
	struct err err;

	assert_non_null(g);
	g->patience.cb = on_late;
	assert_int_equal(loop_new(&g->loop, &err), 0);
	if (user_new(cfg, &g->nic, &err))
		fail_msg("%s", err.msg);
	nic_attach(g->nic, &client, g->loop);
	send_arp(g);
	return g;
}

static void guest_free(struct guest *g)
{
	nic_attach(g->nic, NULL, NULL);
	nic_free(g->nic);
	loop_free(g->loop);
	free(g);
}

static struct user_config config(void)
{
	return (struct user_config){ .mtu = 1500, .egress.relay = true };
}

static struct in_addr loopback(void)
{
	return (struct in_addr){ htonl(INADDR_LOOPBACK) };
}

/* A socket of this host on a free port of 127.0.0.1. */
static int host_socket(int type, unsigned *port)
{
	int fd = socket(AF_INET, type | SOCK_NONBLOCK, 0);
	struct sockaddr_in sa = { .sin_family = AF_INET, .sin_addr = loopback() };
	socklen_t len = sizeof(sa);

	assert_true(fd >= 0 && !bind(fd, (struct sockaddr *)&sa, len));
	assert_int_equal(getsockname(fd, (struct sockaddr *)&sa, &len), 0);
	*port = ntohs(sa.sin_port);
	return fd;
}

static bool is_pong(struct guest *g)
{
	return g->frame[23] == 1 && g->frame[PKT_IP4] == 0 && pkt_get16(g->frame + 12) == 0x800;
}

/* The gateway answers: all that was sent before has been dealt with. */
static void ping(struct guest *g)
{
	uint8_t f[PKT_MAX], *icmp = pkt_ip4(f, NULL, "10.0.2.2", 1, 16);

	icmp[0] = 8;
	pkt_put16(icmp + 2, ~pkt_sum(icmp, 16, 0));
	send_frame(g, f, PKT_IP4 + 16);
	wait_frame(g, is_pong);
}

static void test_dhcp(void **state)
{
	struct user_config cfg = config();

	for (unsigned given = 0; given < 2; given++) {
		struct guest *g;
		uint8_t want[4];

		if (given)
			strcpy(cfg.dns, "192.0.2.53");
		g = guest_new(&cfg);
		send_dhcp(g, 1);
		wait_frame(g, is_dhcp_offer);
		inet_pton(AF_INET, "10.0.2.15", want);
		assert_memory_equal(g->frame + PKT_IP4 + 8 + 16, want, 4);
		inet_pton(AF_INET, "10.0.2.2", want);
		assert_non_null(dhcp_option(g, 3));
		assert_memory_equal(dhcp_option(g, 3), want, 4);
		if (given) {
			inet_pton(AF_INET, "192.0.2.53", want);
			assert_non_null(dhcp_option(g, 6));
			assert_memory_equal(dhcp_option(g, 6), want, 4);
			assert_int_equal(pkt_get16(g->frame + PKT_IP4 + 6), 0);
		}
		guest_free(g);
	}
}

/* Does a datagram that the guest sends to @addr reach @port of this host? */
static bool reaches(const struct user_config *cfg, const char *addr, int fd, unsigned port)
{
	struct guest *g = guest_new(cfg);
	uint8_t f[PKT_MAX], buf[16];
	ssize_t n;

	send_frame(g, f, pkt_udp4(f, addr, 4000, port, "knock", 5));
	ping(g);
	n = recv(fd, buf, sizeof(buf), 0);
	guest_free(g);
	assert_true(n == 5 || (n < 0 && errno == EAGAIN));
	return n == 5;
}

static void test_hostlo(void **state)
{
	struct user_config cfg = config();
	unsigned port;
	int fd = host_socket(SOCK_DGRAM, &port);
	char rule[32];
	struct err err;

	assert_false(reaches(&cfg, "10.0.2.2", fd, port) || reaches(&cfg, "127.0.0.1", fd, port));
	cfg.egress.hostlo = true;
	assert_true(reaches(&cfg, "10.0.2.2", fd, port));
	assert_false(reaches(&cfg, "127.0.0.1", fd, port));
	cfg.egress.listed = true;
	assert_false(reaches(&cfg, "10.0.2.2", fd, port));
	snprintf(rule, sizeof(rule), "10.0.2.2:%u", port);
	cfg.egress.nrules = 1;
	assert_int_equal(egress_parse_rule(rule, &cfg.egress.rule[0], &err), 0);
	assert_true(reaches(&cfg, "10.0.2.2", fd, port));
	cfg.restricted = true;
	cfg.egress.listed = false;
	assert_false(reaches(&cfg, "10.0.2.2", fd, port));
	close(fd);
}

static bool is_answer(struct guest *g)
{
	return g->frame[23] == 17 && g->len >= PKT_IP4 + 8 + 6 && !memcmp(g->frame + PKT_IP4 + 8, "answer", 6);
}

static void test_udp_both_ways(void **state)
{
	struct user_config cfg = config();
	unsigned port;
	int fd = host_socket(SOCK_DGRAM, &port);
	struct sockaddr_in from;
	struct pollfd p = { .fd = fd, .events = POLLIN };
	socklen_t len = sizeof(from);
	uint8_t f[PKT_MAX], buf[16];
	struct guest *g;

	cfg.egress.hostlo = true;
	g = guest_new(&cfg);
	send_frame(g, f, pkt_udp4(f, "10.0.2.2", 4000, port, "question", 8));
	assert_int_equal(poll(&p, 1, 20000), 1);
	assert_int_equal(recvfrom(fd, buf, sizeof(buf), 0, (struct sockaddr *)&from, &len), 8);
	assert_memory_equal(buf, "question", 8);
	assert_int_equal(sendto(fd, "answer", 6, 0, (struct sockaddr *)&from, len), 6);
	wait_frame(g, is_answer);
	assert_int_equal(pkt_get16(g->frame + PKT_IP4), port);
	assert_int_equal(pkt_get16(g->frame + PKT_IP4 + 2), 4000);
	guest_free(g);
	close(fd);
}

static bool is_refusal(struct guest *g)
{
	if (g->frame[23] == 1)
		return g->frame[PKT_IP4] == 3; /* unreachable */
	return g->frame[23] == 6 && g->frame[PKT_IP4 + 13] & 4;
}

/* A port where nobody listens, and the host's own loopback, refuse at once. */
static void test_tcp_refused(void **state)
{
	struct user_config cfg = config();
	unsigned port;
	int fd = host_socket(SOCK_STREAM, &port); /* does not listen */
	uint8_t f[PKT_MAX];

	for (unsigned lo = 0; lo < 2; lo++) {
		struct guest *g;

		cfg.egress.hostlo = lo;
		g = guest_new(&cfg);
		send_frame(g, f, pkt_tcp4(f, "10.0.2.2", 5000, port, 1, 0, 2));
		wait_frame(g, is_refusal);
		guest_free(g);
	}
	close(fd);
}

static bool is_reset(struct guest *g)
{
	return g->frame[23] == 6 && g->frame[PKT_IP4 + 13] == 20;
}

static bool is_prohibited(struct guest *g)
{
	return g->frame[23] == 1 && g->frame[PKT_IP4] == 3 && g->frame[PKT_IP4 + 1] == 13;
}

/* What is not on the list is refused at once, by us. */
static void test_prohibited(void **state)
{
	static const uint8_t gateway[6] = { 0x52, 0x55, 10, 0, 2, 2 };
	struct user_config cfg = config();
	struct guest *g;
	uint8_t f[PKT_MAX];
	size_t len;

	cfg.egress.listed = true;
	g = guest_new(&cfg);
	len = pkt_tcp4(f, "192.0.2.1", 5000, 80, 1, 0, 2);
	memcpy(f, gateway, sizeof(gateway));
	send_frame(g, f, len);
	wait_frame(g, is_reset);
	assert_memory_equal(g->frame, PKT_GUEST, 6);
	len = pkt_udp4(f, "192.0.2.1", 5000, 53, "ask", 3);
	memcpy(f, gateway, sizeof(gateway));
	send_frame(g, f, len);
	wait_frame(g, is_prohibited);
	guest_free(g);
}

static bool is_syn(struct guest *g)
{
	return g->frame[23] == 6 && (g->frame[PKT_IP4 + 13] & 18) == 2;
}

/* A driver that takes our word for checksums gets it. */
static void test_valid(void **state)
{
	struct user_config cfg = config();
	struct guest *g = guest_new(&cfg);

	ping(g);
	assert_int_equal(nic_set_offloads(g->nic, NIC_CSUM), 0);
	g->flags = VIRTIO_NET_HDR_F_DATA_VALID;
	ping(g);
	assert_int_equal(nic_set_offloads(g->nic, 0), 0);
	g->flags = 0;
	ping(g);
	guest_free(g);
}

static bool is_datagram(struct guest *g)
{
	return g->frame[23] == 17 && pkt_get16(g->frame + PKT_IP4 + 2) == 53;
}

/*
 * The largest segment that a SYN at @tcp asks for, which is also the largest that libslirp sends. A window of 64 KiB
 * holds three, so that it never waits for room that Linux does not tell of.
 */
static void check_mss(const uint8_t *tcp)
{
	assert_true(tcp[12] >> 4 > 5 && tcp[20] == 2 && tcp[21] == 4);
	assert_in_range(pkt_get16(tcp + 22), 16384, (USER_MTU - 60) / 3);
}

/* Forwards: what comes to a port of this host comes to the guest's, also while nothing else may pass. */
static void test_forward(void **state)
{
	struct user_config cfg = config();
	struct sockaddr_in sa = { .sin_family = AF_INET, .sin_addr = loopback() };
	unsigned tcp_port, udp_port;
	int tcp = host_socket(SOCK_STREAM, &tcp_port), udp = host_socket(SOCK_DGRAM, &udp_port), fd;
	struct guest *g;
	uint8_t f[PKT_MAX];
	uint32_t seq;
	struct pollfd p = { .events = POLLOUT };

	close(tcp);
	close(udp);
	cfg.mtu = USER_MTU;
	cfg.restricted = true;
	cfg.nforwards = 2;
	cfg.forward[0] = (struct user_forward){
		.family = AF_INET, .host.in4 = loopback(), .host_port = (uint16_t)tcp_port, .guest_port = 22
	};
	cfg.forward[1] = (struct user_forward){ .udp = true,
		                                .family = AF_INET,
		                                .host.in4 = loopback(),
		                                .host_port = (uint16_t)udp_port,
		                                .guest_port = 53 };
	g = guest_new(&cfg);
	udp = socket(AF_INET, SOCK_DGRAM, 0);
	sa.sin_port = htons((uint16_t)udp_port);
	assert_int_equal(sendto(udp, "ask", 3, 0, (struct sockaddr *)&sa, sizeof(sa)), 3);
	wait_frame(g, is_datagram);
	assert_memory_equal(g->frame + PKT_IP4 + 8, "ask", 3);

	fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	sa.sin_port = htons((uint16_t)tcp_port);
	assert_true(fd >= 0 && (!connect(fd, (struct sockaddr *)&sa, sizeof(sa)) || errno == EINPROGRESS));
	wait_frame(g, is_syn);
	assert_int_equal(pkt_get16(g->frame + PKT_IP4 + 2), 22);
	check_mss(g->frame + PKT_IP4);
	memcpy(&seq, g->frame + PKT_IP4 + 4, 4);
	send_frame(g, f, pkt_tcp4(f, "10.0.2.2", 22, pkt_get16(g->frame + PKT_IP4), 0, ntohl(seq) + 1, 20));
	p.fd = fd;
	p.events = POLLIN | POLLHUP;
	assert_int_equal(poll(&p, 1, 20000), 1);
	assert_true(recv(fd, f, 1, 0) <= 0);
	close(fd);
	close(udp);
	guest_free(g);
}

static bool is_ip6(struct guest *g, unsigned proto)
{
	return pkt_get16(g->frame + 12) == 0x86dd && g->frame[20] == proto;
}

static bool is_syn6(struct guest *g)
{
	return is_ip6(g, 6) && (g->frame[PKT_IP6 + 13] & 18) == 2;
}

static bool is_datagram6(struct guest *g)
{
	return is_ip6(g, 17) && pkt_get16(g->frame + PKT_IP6 + 2) == 53;
}

/* Tells libslirp who has fd00::15, by asking who has fd00::2. */
static void solicit(struct guest *g)
{
	uint8_t f[PKT_MAX], *icmp = pkt_ip6(f, NULL, "ff02::1:ff00:2", 58, 32);

	f[21] = 255;
	icmp[0] = 135;
	inet_pton(AF_INET6, "fd00::2", icmp + 8);
	icmp[24] = icmp[25] = 1;
	memcpy(icmp + 26, PKT_GUEST, 6);
	pkt_put16(icmp + 2, ~pkt_sum(icmp, 32, pkt_sum(f + 22, 32, 58 + 32)));
	send_frame(g, f, PKT_IP6 + 32);
}

static bool is_advertisement(struct guest *g)
{
	return is_ip6(g, 58) && g->frame[PKT_IP6] == 136;
}

static bool has_ip6(void)
{
	struct sockaddr_in6 sa = { .sin6_family = AF_INET6, .sin6_addr = in6addr_loopback };
	int fd = socket(AF_INET6, SOCK_DGRAM, 0);
	bool has = fd >= 0 && !bind(fd, (struct sockaddr *)&sa, sizeof(sa));

	if (fd >= 0)
		close(fd);
	return has;
}

/* Two forwards from ports of ::1: to the guest wherever it is, and to an address; the same ports of IPv4 lead
 * elsewhere. */
static void test_forward6(void **state)
{
	struct user_config cfg = config();
	struct sockaddr_in6 sa = { .sin6_family = AF_INET6, .sin6_addr = in6addr_loopback };
	unsigned tcp_port, udp_port;
	int tcp = host_socket(SOCK_STREAM, &tcp_port), udp = host_socket(SOCK_DGRAM, &udp_port), fd;
	char host[INET6_ADDRSTRLEN];
	struct guest *g;
	uint8_t f[PKT_MAX];
	uint32_t seq;
	struct pollfd p = { .events = POLLIN | POLLHUP };

	if (!has_ip6()) {
		print_message("no IPv6 on this host\n");
		skip();
	}
	cfg.mtu = USER_MTU;
	cfg.nforwards = 2;
	cfg.forward[0] = (struct user_forward){
		.family = AF_INET6, .host.in6 = in6addr_any, .host_port = (uint16_t)tcp_port, .guest_port = 22
	};
	cfg.forward[1] = (struct user_forward){ .udp = true,
		                                .family = AF_INET6,
		                                .host.in6 = in6addr_loopback,
		                                .host_port = (uint16_t)udp_port,
		                                .guest_port = 53 };
	inet_pton(AF_INET6, "fd00::15", &cfg.forward[1].guest);
	g = guest_new(&cfg);
	solicit(g);
	wait_frame(g, is_advertisement);
	close(tcp); /* they were no obstacle */
	close(udp);
	udp = socket(AF_INET6, SOCK_DGRAM, 0);
	sa.sin6_port = htons((uint16_t)udp_port);
	assert_int_equal(sendto(udp, "ask", 3, 0, (struct sockaddr *)&sa, sizeof(sa)), 3);
	wait_frame(g, is_datagram6);
	assert_memory_equal(g->frame + 38, &cfg.forward[1].guest, 16);
	assert_memory_equal(g->frame + PKT_IP6 + 8, "ask", 3);

	fd = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0);
	sa.sin6_port = htons((uint16_t)tcp_port);
	assert_true(fd >= 0 && (!connect(fd, (struct sockaddr *)&sa, sizeof(sa)) || errno == EINPROGRESS));
	wait_frame(g, is_syn6);
	assert_int_equal(pkt_get16(g->frame + PKT_IP6 + 2), 22);
	check_mss(g->frame + PKT_IP6);
	assert_memory_equal(g->frame + 38, &cfg.forward[1].guest, 16);
	memcpy(&seq, g->frame + PKT_IP6 + 4, 4);
	inet_ntop(AF_INET6, g->frame + 22, host, sizeof(host));
	send_frame(g, f, pkt_tcp6(f, host, 22, pkt_get16(g->frame + PKT_IP6), 0, ntohl(seq) + 1, 20));
	p.fd = fd;
	assert_int_equal(poll(&p, 1, 20000), 1);
	assert_true(recv(fd, f, 1, 0) <= 0);
	close(fd);
	close(udp);
	guest_free(g);
}

static void test_forward_taken(void **state)
{
	struct user_config cfg = config();
	unsigned port;
	int fd = host_socket(SOCK_STREAM, &port);
	struct nic *nic;
	struct err err;

	assert_int_equal(listen(fd, 1), 0);
	cfg.nforwards = 1;
	cfg.forward[0] = (struct user_forward){
		.family = AF_INET, .host.in4 = loopback(), .host_port = (uint16_t)port, .guest_port = 22
	};
	assert_true(user_new(&cfg, &nic, &err) < 0);
	assert_non_null(strstr(err.msg, "hostfwd: cannot listen on 127.0.0.1:"));
	close(fd);
}

static void on_room(void *dev, unsigned pair)
{
	loop_quit(((struct guest *)dev)->loop);
}

/* More than the queue holds: EAGAIN, and a word when there is room. */
static void test_full(void **state)
{
	struct user_config cfg = config();
	struct nic_client client = { .readable = on_frame, .writable = on_room };
	static uint8_t f[NIC_HDR + 60000];
	struct guest *g;
	unsigned full = 0;

	g = guest_new(&cfg);
	client.dev = g;
	nic_attach(g->nic, NULL, NULL);
	nic_attach(g->nic, &client, g->loop);
	for (unsigned i = 0; i < 20000 && full < 3; i++) {
		struct iovec iov = { f, sizeof(f) };
		int error = nic_send(g->nic, 0, &iov, 1);

		if (!error)
			continue;
		assert_int_equal(error, -EAGAIN);
		full++;
		loop_timer_set(g->loop, &g->patience, 20000000000ull);
		nic_poll(g->nic, 0, POLLOUT);
		assert_int_equal(loop_run(g->loop), 0);
		nic_poll(g->nic, 0, 0);
		loop_timer_del(g->loop, &g->patience);
		assert_false(g->late);
	}
	assert_int_equal(full, 3);
	ping(g);
	guest_free(g);
}

int main(void)
{
	const struct CMUnitTest plain[] = {
		cmocka_unit_test(test_frames),
		cmocka_unit_test(test_frames_threads),
		cmocka_unit_test(test_dns),
	};
	const struct CMUnitTest slirp[] = {
		cmocka_unit_test(test_dhcp),          cmocka_unit_test(test_hostlo),
		cmocka_unit_test(test_udp_both_ways), cmocka_unit_test(test_tcp_refused),
		cmocka_unit_test(test_prohibited),    cmocka_unit_test(test_forward),
		cmocka_unit_test(test_forward6),      cmocka_unit_test(test_forward_taken),
		cmocka_unit_test(test_full),          cmocka_unit_test(test_valid),
	};
	int failed = cmocka_run_group_tests(plain, NULL, NULL);

	return user_built_in() ? failed + cmocka_run_group_tests(slirp, NULL, NULL) : failed;
}
