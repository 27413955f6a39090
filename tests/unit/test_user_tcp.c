// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The user-mode network with a real guest's protocols: in a network namespace
 * of its own the host's kernel is the guest, at the other end of a tap
 * interface whose frames a thread carries to libslirp and back.
 */
#include "base/loop_thread.h"
#include "net/tap.h"
#include "net/user.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB     (1u << 20)
#define GATEWAY "10.0.2.2"

/* One end of the carrier: the frame in hand goes to the other one. */
struct end {
	struct nic *nic, *to;
	struct end *other;
	uint8_t frame[NIC_HDR + NIC_MAX_FRAME];
	size_t len;
	bool full; /* @to has no room for it */
};

struct carrier {
	struct loop_thread *thread;
	struct end user, tap;
};

static int host_ns, guest_ns; /* -1: there are none for us */

/* The carrier. */

static void set_polls(struct end *e)
{
	nic_poll(e->nic, 0, (short)((e->full ? 0 : POLLIN) | (e->other->full ? POLLOUT : 0)));
	nic_poll(e->to, 0, (short)((e->other->full ? 0 : POLLIN) | (e->full ? POLLOUT : 0)));
}

static void carry(struct end *e)
{
	for (unsigned i = 0; i < 64; i++) {
		struct iovec in = { e->frame, sizeof(e->frame) }, out = { e->frame, e->len };

		if (!e->full) {
			ssize_t n = nic_recv(e->nic, 0, &in, 1);

			if (n < 0)
				break;
			out.iov_len = e->len = (size_t)n;
		}
		e->full = nic_send(e->to, 0, &out, 1) == -EAGAIN;
		if (e->full)
			break;
	}
	set_polls(e);
}

static void on_readable(void *dev, unsigned pair)
{
	carry(dev);
}

static void on_writable(void *dev, unsigned pair)
{
	carry(((struct end *)dev)->other);
}

static void on_link(void *dev)
{
}

static void do_start(void *arg)
{
	struct carrier *c = arg;
	struct nic_client user = { on_readable, on_writable, on_link, &c->user };
	struct nic_client tap = { on_readable, on_writable, on_link, &c->tap };

	nic_attach(c->user.nic, &user, loop_thread_loop(c->thread));
	nic_attach(c->tap.nic, &tap, loop_thread_loop(c->thread));
	set_polls(&c->user);
}

static void do_stop(void *arg)
{
	struct carrier *c = arg;

	nic_attach(c->user.nic, NULL, NULL);
	nic_attach(c->tap.nic, NULL, NULL);
}

/* The two hosts. */

static void enter(int ns)
{
	assert_int_equal(setns(ns, CLONE_NEWNET), 0);
}

static int run(const char *cmd)
{
	return system(cmd);
}

/* An interface g0 in the guest's namespace, and its descriptor. */
static int open_tap(void)
{
	struct ifreq r = { .ifr_name = "g0", .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR };
	int fd;

	enter(guest_ns);
	fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0 && !ioctl(fd, TUNSETIFF, &r));
	assert_int_equal(run("ip link set g0 mtu 65520 up && ip addr add 10.0.2.15/24 dev g0 && "
	                     "ip route add default via 10.0.2.2"),
	                 0);
	(void)run("ip addr add fd00::15/64 dev g0 nodad && ip -6 route replace default via fd00::2 dev g0");
	enter(host_ns);
	return fd;
}

static struct carrier *start(const struct user_config *cfg)
{
	struct tap_config tap = { .fd = open_tap(), .queues = 1 };
	struct carrier *c = calloc(1, sizeof(*c));
	struct err err;

	assert_non_null(c);
	if (user_new(cfg, &c->user.nic, &err) || tap_new(&tap, &c->tap.nic, &err) ||
	    loop_thread_new("carrier", &c->thread, &err))
		fail_msg("%s", err.msg);
	c->user.to = c->tap.nic;
	c->tap.to = c->user.nic;
	c->user.other = &c->tap;
	c->tap.other = &c->user;
	loop_call(loop_thread_loop(c->thread), do_start, c);
	return c;
}

static void stop(struct carrier *c)
{
	loop_call(loop_thread_loop(c->thread), do_stop, c);
	loop_thread_free(c->thread);
	nic_free(c->user.nic);
	nic_free(c->tap.nic);
	free(c);
}

static struct user_config config(void)
{
	return (struct user_config){ .mtu = USER_MTU, .egress = { .relay = true, .hostlo = true } };
}

static socklen_t address(struct sockaddr_storage *sa, const char *text, unsigned port)
{
	struct sockaddr_in *sin = (struct sockaddr_in *)sa;
	struct sockaddr_in6 *sin6 = (struct sockaddr_in6 *)sa;

	memset(sa, 0, sizeof(*sa));
	if (inet_pton(AF_INET, text, &sin->sin_addr) == 1) {
		sin->sin_family = AF_INET;
		sin->sin_port = htons((uint16_t)port);
		return sizeof(*sin);
	}
	assert_int_equal(inet_pton(AF_INET6, text, &sin6->sin6_addr), 1);
	sin6->sin6_family = AF_INET6;
	sin6->sin6_port = htons((uint16_t)port);
	return sizeof(*sin6);
}

/* One that belongs to the host @ns, and does not hang for ever. */
static int make_socket(int ns, const char *text, int type)
{
	struct timeval patience = { .tv_sec = 60 };
	int fd;

	enter(ns);
	fd = socket(strchr(text, ':') ? AF_INET6 : AF_INET, type | SOCK_CLOEXEC, 0);
	enter(host_ns);
	assert_true(fd >= 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	return fd;
}

/* Listens on @text of @ns; *@port 0: any. */
static int listener(int ns, const char *text, unsigned *port)
{
	int fd = make_socket(ns, text, SOCK_STREAM);
	struct sockaddr_storage sa;
	socklen_t len = address(&sa, text, *port);

	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int)), 0);
	assert_true(!bind(fd, (struct sockaddr *)&sa, len) && !listen(fd, 16));
	assert_int_equal(getsockname(fd, (struct sockaddr *)&sa, &len), 0);
	*port = ntohs(((struct sockaddr_in *)&sa)->sin_port);
	return fd;
}

static int connect_to(int ns, const char *text, unsigned port, int type, int *error)
{
	int fd = make_socket(ns, text, type);
	struct sockaddr_storage sa;
	socklen_t len = address(&sa, text, port);

	*error = connect(fd, (struct sockaddr *)&sa, len) ? errno : 0;
	return fd;
}

/* Data. */

static uint8_t byte_at(size_t i)
{
	return (uint8_t)(i * 31 + (i >> 8) * 7 + (i >> 16));
}

struct sending {
	int fd;
	size_t n;
};

static void *send_all(void *arg)
{
	const struct sending *s = arg;
	static __thread uint8_t buf[65536];

	for (size_t at = 0; at < s->n;) {
		size_t part = s->n - at < sizeof(buf) ? s->n - at : sizeof(buf);
		ssize_t n;

		for (size_t i = 0; i < part; i++)
			buf[i] = byte_at(at + i);
		n = send(s->fd, buf, part, MSG_NOSIGNAL);
		if (n <= 0)
			return (void *)1;
		at += (size_t)n;
	}
	shutdown(s->fd, SHUT_WR);
	return NULL;
}

/* Until the other side has ended: how many bytes came, if each was right. */
static size_t receive_all(int fd)
{
	static uint8_t buf[65536];
	size_t at = 0;
	ssize_t n;

	while ((n = recv(fd, buf, sizeof(buf), 0)) > 0)
		for (ssize_t i = 0; i < n; i++, at++)
			if (buf[i] != byte_at(at))
				fail_msg("byte %zu is wrong", at);
	assert_int_equal(n, 0);
	return at;
}

/* @from sends @n bytes and no more after that: they arrive at @to, and so does the end. */
static void move(int from, int to, size_t n)
{
	struct sending s = { from, n };
	pthread_t thread;
	void *failed;

	assert_int_equal(pthread_create(&thread, NULL, send_all, &s), 0);
	assert_int_equal(receive_all(to), n);
	pthread_join(thread, &failed);
	assert_null(failed);
}

/* Tests. */

static void exchange(int a, int b)
{
	char buf[8];

	assert_int_equal(send(a, "to", 2, 0), 2);
	assert_int_equal(recv(b, buf, sizeof(buf), 0), 2);
	assert_int_equal(send(b, "fro", 3, 0), 3);
	assert_int_equal(recv(a, buf, sizeof(buf), 0), 3);
	assert_memory_equal(buf, "fro", 3);
}

static unsigned descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* Hundreds, one after another. Those that the host ends first are kept for a while (TIME-WAIT), then all are gone. */
static void test_short_connections(void **state)
{
	struct user_config cfg = config();
	struct carrier *c = start(&cfg);
	unsigned port = 0, before = 0;
	int s = listener(host_ns, "127.0.0.1", &port), error;

	for (unsigned i = 0; i < 500; i++) {
		int guest = connect_to(guest_ns, GATEWAY, port, SOCK_STREAM, &error), host = accept(s, NULL, NULL);

		assert_true(!error && host >= 0);
		exchange(guest, host);
		close(i % 2 ? guest : host);
		close(i % 2 ? host : guest);
		if (i == 9)
			before = descriptors();
	}
	for (unsigned n = 0; descriptors() > before; n++) { /* which nobody announces */
		assert_true(n < 600);
		usleep(100000);
	}
	close(s);
	stop(c);
}

/* Whole, both ways, of any length; one direction ends before the other begins. */
static void test_half_close(void **state)
{
	static const size_t lens[] = { 0, 1, 1447, 65536, 3 * MIB + 1, 64 * MIB };
	static const char *const at[][2] = { { "127.0.0.1", GATEWAY }, { "::1", "fd00::2" } };
	struct user_config cfg = config();
	struct carrier *c = start(&cfg);

	for (unsigned i = 0; i < 2 * sizeof(lens) / sizeof(lens[0]); i++) {
		unsigned port = 0;
		int s = listener(host_ns, at[i % 2][0], &port), error;
		int guest = connect_to(guest_ns, at[i % 2][1], port, SOCK_STREAM, &error), host;

		assert_int_equal(error, 0);
		host = accept(s, NULL, NULL);
		assert_true(host >= 0);
		move(guest, host, lens[i / 2]);
		move(host, guest, lens[i / 2]);
		close(host);
		close(guest);
		close(s);
	}
	stop(c);
}

/* What the kernel makes of how we refuse: an error at once, each its own. */
static void test_refused(void **state)
{
	static const struct {
		const char *to;
		int type, error;
	} t[] = {
		{ "192.0.2.1", SOCK_STREAM, ECONNREFUSED },   { "192.0.2.1", SOCK_DGRAM, EHOSTUNREACH },
		{ "2001:db8::1", SOCK_STREAM, ECONNREFUSED }, { "2001:db8::1", SOCK_DGRAM, EACCES },
		{ GATEWAY, SOCK_STREAM, ECONNREFUSED }, /* on the list, but nobody listens */
	};
	struct user_config cfg = config();
	struct carrier *c;
	unsigned closed = 0;
	struct err err;
	char rule[32], byte = 0;

	close(listener(host_ns, "127.0.0.1", &closed));
	snprintf(rule, sizeof(rule), GATEWAY ":%u", closed);
	cfg.egress.listed = true;
	cfg.egress.nrules = 1;
	assert_int_equal(egress_parse_rule(rule, &cfg.egress.rule[0], &err), 0);
	c = start(&cfg);
	for (unsigned i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		int error, fd = connect_to(guest_ns, t[i].to, closed, t[i].type, &error);

		if (t[i].type == SOCK_DGRAM) {
			assert_true(!error && send(fd, &byte, 1, 0) == 1);
			error = recv(fd, &byte, 1, 0) < 0 ? errno : 0;
		}
		if (error != t[i].error)
			fail_msg("%s: %s", t[i].to, strerror(error));
		close(fd);
	}
	stop(c);
}

/* From this host to the guest, of both families. */
static void test_forwards(void **state)
{
	static const char *const host[] = { "127.0.0.1", "::1" }, *const guest[] = { "0.0.0.0", "::" };
	struct user_config cfg = config();
	struct carrier *c;

	for (unsigned i = 0; i < 2; i++) {
		struct user_forward *f = &cfg.forward[cfg.nforwards++];
		unsigned port = 0;

		close(listener(host_ns, host[i], &port));
		*f = (struct user_forward){ .family = i ? AF_INET6 : AF_INET,
			                    .host_port = (uint16_t)port,
			                    .guest_port = (uint16_t)(2000 + i) };
		inet_pton(f->family, host[i], &f->host);
	}
	inet_pton(AF_INET6, "fd00::15", &cfg.forward[1].guest);
	c = start(&cfg);
	for (unsigned i = 0; i < 2; i++) {
		unsigned port = cfg.forward[i].guest_port;
		int s = listener(guest_ns, guest[i], &port), error;
		int out = connect_to(host_ns, host[i], cfg.forward[i].host_port, SOCK_STREAM, &error), in;

		assert_int_equal(error, 0);
		in = accept(s, NULL, NULL);
		assert_true(in >= 0);
		exchange(out, in);
		move(out, in, 5 * MIB);
		move(in, out, 5 * MIB);
		close(out);
		close(in);
		close(s);
	}
	stop(c);
}

/* Two network namespaces, each with nothing in it but its loopback; false: we may not. */
static bool make_hosts(void)
{
	host_ns = guest_ns = -1;
	for (unsigned i = 0; i < 2; i++) {
		if (unshare(CLONE_NEWNET) || run("ip link set lo up"))
			return false;
		*(i ? &host_ns : &guest_ns) = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
	}
	return !access("/dev/net/tun", R_OK | W_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_short_connections),
		cmocka_unit_test(test_half_close),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_forwards),
	};

	if (!user_built_in() || !make_hosts()) {
		printf("no libslirp, no /dev/net/tun, or no network namespaces for us\n");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
