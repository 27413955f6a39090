// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * tap interfaces in a network namespace of the test's own: frames both ways,
 * queues, bridges, scripts, what is undone at the end; and an interface that
 * goes down or away under us.
 */
#include "net/tap.h"
#include "packet.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <linux/if_tun.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

struct side {
	struct nic *nic;
	struct loop *loop;
	struct loop_timer patience;
	bool late;
	unsigned reads, writes, links;
	uint8_t buf[NIC_HDR + 2048];
	ssize_t len;
	unsigned pair;
};

static struct tap_config config(const char *name)
{
	struct tap_config c = { .fd = -1, .queues = 1 };

	strcpy(c.ifname, name);
	return c;
}

static bool exists(const char *name)
{
	return if_nametoindex(name);
}

static int run(const char *fmt, ...)
{
	char cmd[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(cmd, sizeof(cmd), fmt, ap);
	va_end(ap);
	return system(cmd);
}

static void on_readable(void *dev, unsigned pair)
{
	struct side *s = dev;
	struct iovec iov = { s->buf, sizeof(s->buf) };

	s->reads++;
	s->len = nic_recv(s->nic, pair, &iov, 1);
	s->pair = pair;
	/* Only what the test has sent: the host's kernel says things of its own. */
	if (s->len > 0 && !memcmp(s->buf + NIC_HDR + 12, "\x88\xb5", 2))
		loop_quit(s->loop);
}

static void on_link(void *dev)
{
	struct side *s = dev;

	s->links++;
	loop_quit(s->loop);
}

static void on_writable(void *dev, unsigned pair)
{
	struct side *s = dev;

	s->writes++;
	s->pair = pair;
	nic_poll(s->nic, pair, 0);
	loop_quit(s->loop);
}

/* The interface's buffer is full for a moment. */
ssize_t __real_writev(int fd, const struct iovec *iov, int n);
ssize_t __wrap_writev(int fd, const struct iovec *iov, int n);
static bool full;

ssize_t __wrap_writev(int fd, const struct iovec *iov, int n)
{
	if (!full)
		return __real_writev(fd, iov, n);
	errno = EAGAIN;
	return -1;
}

static void on_late(struct loop_timer *t)
{
	struct side *s = (struct side *)((char *)t - offsetof(struct side, patience));

	s->late = true;
	loop_quit(s->loop);
}

static void turn(struct side *s)
{
	loop_timer_set(s->loop, &s->patience, 20000000000ull);
	assert_int_equal(loop_run(s->loop), 0);
	loop_timer_del(s->loop, &s->patience);
	assert_false(s->late);
}

static struct side *open_side(const struct tap_config *cfg)
{
	struct side *s = calloc(1, sizeof(*s));
	struct nic_client client = { .readable = on_readable, .writable = on_writable, .link = on_link, .dev = s };
	struct err err;

	assert_non_null(s);
	s->patience.cb = on_late;
	if (tap_new(cfg, &s->nic, &err))
		fail_msg("%s", err.msg);
	assert_int_equal(loop_new(&s->loop, &err), 0);
	nic_attach(s->nic, &client, s->loop);
	return s;
}

static void close_side(struct side *s)
{
	nic_attach(s->nic, NULL, NULL);
	nic_free(s->nic);
	loop_free(s->loop);
	free(s);
}

/* A socket that sees frames of type 0x88b5 (IEEE: for experiments) on the interface. */
static int packet_socket(const char *name)
{
	struct sockaddr_ll sa = { .sll_family = AF_PACKET,
		                  .sll_protocol = htons(0x88b5),
		                  .sll_ifindex = (int)if_nametoindex(name) };
	int fd = socket(AF_PACKET, SOCK_RAW, htons(0x88b5));

	assert_true(fd >= 0 && !bind(fd, (struct sockaddr *)&sa, sizeof(sa)));
	return fd;
}

static void make_frame(uint8_t *f, unsigned len, unsigned k)
{
	memset(f, (int)k, len);
	memset(f, 0xff, 6);
	memset(f + 6, 2, 6);
	pkt_put16(f + 12, 0x88b5);
}

static int send_one(struct side *s, unsigned pair, unsigned len, unsigned k)
{
	static uint8_t f[NIC_HDR + 65536];
	struct iovec iov[2] = { { f, NIC_HDR }, { f + NIC_HDR, len } };

	make_frame(f + NIC_HDR, len, k);
	return nic_send(s->nic, pair, iov, 2);
}

static void check_out(struct side *s, unsigned pair, int host, unsigned len, unsigned k)
{
	uint8_t got[2048], want[2048];
	struct pollfd p = { .fd = host, .events = POLLIN };

	assert_int_equal(send_one(s, pair, len, k), 0);
	assert_int_equal(poll(&p, 1, 20000), 1);
	make_frame(want, len, k);
	assert_int_equal(recv(host, got, sizeof(got), 0), len);
	assert_memory_equal(got, want, len);
}

static void check_in(struct side *s, int host, unsigned len, unsigned k)
{
	uint8_t f[2048];

	make_frame(f, len, k);
	assert_int_equal(send(host, f, len, 0), len);
	nic_poll(s->nic, 0, POLLIN);
	turn(s);
	nic_poll(s->nic, 0, 0);
	assert_int_equal(s->len, NIC_HDR + len);
	assert_memory_equal(s->buf + NIC_HDR, f, len);
}

static void test_frames(void **state)
{
	struct tap_config cfg = config("");
	struct side *s;
	int host;

	cfg.mtu = 1400;
	s = open_side(&cfg);
	assert_true(s->nic->up && s->nic->mtu == 1400 && s->nic->max_pairs == 1);
	assert_int_equal(s->nic->offloads & NIC_CSUM, NIC_CSUM);
	assert_true(exists(tap_name(s->nic)));
	host = packet_socket(tap_name(s->nic));
	for (unsigned len = 60; len <= 1414; len += 27) {
		check_out(s, 0, host, len, len);
		check_in(s, host, len, len);
	}
	assert_int_equal(send_one(s, 0, 10, 1), -EINVAL); /* no frame */
	close(host);
	close_side(s);
	assert_false(exists("tap0"));
}

/* What is there already stays, what we make goes. */
static void test_own_and_foreign(void **state)
{
	struct tap_config cfg = config("mine");
	struct side *s;
	struct nic *nic;
	struct err err;

	close_side(open_side(&cfg));
	assert_false(exists("mine"));
	assert_int_equal(run("ip tuntap add theirs mode tap && ip link add br9 type bridge"), 0);
	cfg = config("theirs");
	strcpy(cfg.bridge, "br9");
	s = open_side(&cfg);
	assert_int_equal(run("test -e /sys/class/net/theirs/brport || ip -d link show theirs | grep -q 'master br9'"),
	                 0);
	assert_int_equal(tap_new(&cfg, &nic, &err), -EBUSY);
	assert_non_null(strstr(err.msg, "theirs is in use"));
	close_side(s);
	assert_true(exists("theirs"));
	assert_int_not_equal(run("ip -d link show theirs | grep -q 'master br9'"), 0);
	cfg.queues = 2;
	assert_int_equal(tap_new(&cfg, &nic, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "multi_queue"));
	cfg = config("lo");
	assert_int_equal(tap_new(&cfg, &nic, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "lo is neither a tap nor a macvtap"));
	cfg = config("mine");
	strcpy(cfg.bridge, "no-bridge");
	assert_int_equal(tap_new(&cfg, &nic, &err), -ENODEV);
	assert_non_null(strstr(err.msg, "no bridge no-bridge"));
	assert_false(exists("mine"));
	assert_int_equal(run("ip link del theirs && ip link del br9"), 0);
}

/* Two on a bridge see each other. */
static void test_bridge(void **state)
{
	struct tap_config a = config("one"), b = config("two");
	struct side *one, *two;
	uint8_t f[100];

	assert_int_equal(run("ip link add br9 type bridge && ip link set br9 up"), 0);
	strcpy(a.bridge, "br9");
	strcpy(b.bridge, "br9");
	one = open_side(&a);
	two = open_side(&b);
	assert_int_equal(send_one(one, 0, 100, 7), 0);
	make_frame(f, 100, 7);
	nic_poll(two->nic, 0, POLLIN);
	turn(two);
	assert_int_equal(two->len, NIC_HDR + 100);
	assert_memory_equal(two->buf + NIC_HDR, f, 100);
	close_side(one);
	close_side(two);
	assert_int_equal(run("ip link del br9"), 0);
}

static void test_queues(void **state)
{
	struct tap_config cfg = config("mq");
	struct side *s;
	int host;

	cfg.queues = 4;
	s = open_side(&cfg);
	assert_int_equal(s->nic->max_pairs, 4);
	host = packet_socket("mq");
	for (unsigned round = 0; round < 3; round++) {
		static const unsigned pairs[] = { 4, 1, 3 };

		assert_int_equal(nic_set_pairs(s->nic, pairs[round]), 0);
		for (unsigned i = 0; i < 4; i++)
			check_out(s, i, host, 100, i);
	}
	/* Any may be used to send, and is told when it may again. */
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(nic_set_pairs(s->nic, 1 + i % 2), 0);
		full = true;
		assert_int_equal(send_one(s, i, 100, 1), -EAGAIN);
		full = false;
		nic_poll(s->nic, i, POLLOUT);
		turn(s);
		assert_true(s->writes == i + 1 && s->pair == i);
		check_out(s, i, host, 100, i);
	}
	/* A detached queue neither gets frames nor wakes anybody. */
	assert_int_equal(nic_set_pairs(s->nic, 1), 0);
	nic_poll(s->nic, 3, POLLIN);
	s->reads = 0;
	for (unsigned k = 0; k < 20; k++) {
		check_in(s, host, 100, k);
		assert_int_equal(s->pair, 0);
	}
	close(host);
	close_side(s);
}

/* Down, up, and deleted: the guest's cable follows, nothing spins, nothing fails. */
static void test_trouble(void **state)
{
	struct tap_config cfg = config("shaky");
	struct side *s = open_side(&cfg);
	int host;

	nic_poll(s->nic, 0, POLLIN);
	assert_int_equal(run("ip link set shaky down"), 0);
	turn(s);
	assert_false(s->nic->up);
	assert_int_equal(send_one(s, 0, 100, 1), 0);
	assert_int_equal(run("ip link set shaky up"), 0);
	while (!s->nic->up)
		turn(s);
	nic_poll(s->nic, 0, 0);
	host = packet_socket("shaky");
	check_out(s, 0, host, 100, 2);
	check_in(s, host, 100, 3);
	nic_poll(s->nic, 0, POLLIN);
	assert_int_equal(run("ip link del shaky"), 0);
	s->reads = 0;
	while (s->nic->up)
		turn(s);
	assert_in_range(s->reads, 0, 10);
	assert_int_equal(send_one(s, 0, 100, 1), 0);
	close(host);
	close_side(s);
}

/* More frames than the interface queues: they wait in the kernel, and only the newest are lost there. */
static void test_burst(void **state)
{
	struct tap_config cfg = config("burst");
	struct side *s = open_side(&cfg);
	int host = packet_socket("burst");
	uint8_t f[100];

	for (unsigned k = 0; k < 2000; k++) {
		make_frame(f, sizeof(f), k);
		if (send(host, f, sizeof(f), 0) < 0)
			assert_int_equal(errno, ENOBUFS);
	}
	nic_poll(s->nic, 0, POLLIN);
	for (unsigned k = 0; k < 200; k++) {
		turn(s);
		assert_int_equal(s->buf[NIC_HDR + 20], (uint8_t)k);
	}
	close(host);
	close_side(s);
}

static void test_fd(void **state)
{
	struct ifreq r = { .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR };
	struct tap_config cfg = config("");
	struct side *s;
	struct nic *nic;
	struct err err;
	int host;

	cfg.fd = open("/dev/null", O_RDWR);
	assert_int_equal(tap_new(&cfg, &nic, &err), -EBADF);
	close(cfg.fd);
	strcpy(r.ifr_name, "given");
	cfg.fd = open("/dev/net/tun", O_RDWR);
	assert_int_equal(ioctl(cfg.fd, TUNSETIFF, &r), 0);
	assert_int_equal(run("ip link set given up"), 0);
	s = open_side(&cfg);
	assert_string_equal(tap_name(s->nic), "given");
	host = packet_socket("given");
	check_out(s, 0, host, 100, 1);
	check_in(s, host, 100, 2);
	close(host);
	close_side(s);
	r.ifr_flags = IFF_TAP | IFF_NO_PI;
	cfg.fd = open("/dev/net/tun", O_RDWR);
	assert_int_equal(ioctl(cfg.fd, TUNSETIFF, &r), 0);
	assert_int_equal(tap_new(&cfg, &nic, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "IFF_VNET_HDR"));
	close(cfg.fd);
}

/* Of another network namespace than ours, where another interface has the name. */
static void test_namesake(void **state)
{
	struct ifreq r = { .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR };
	struct tap_config cfg = config("");
	int here = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
	struct side *s;

	assert_true(here >= 0);
	assert_int_equal(unshare(CLONE_NEWNET), 0);
	strcpy(r.ifr_name, "namesake");
	cfg.fd = open("/dev/net/tun", O_RDWR);
	assert_int_equal(ioctl(cfg.fd, TUNSETIFF, &r), 0);
	assert_int_equal(setns(here, CLONE_NEWNET), 0);
	assert_int_equal(run("ip tuntap add namesake mode tap"), 0);
	s = open_side(&cfg);
	assert_true(s->nic->up); /* ours is down */
	close_side(s);
	assert_int_equal(run("ip link del namesake"), 0);
	close(here);
}

static void test_scripts(void **state)
{
	char dir[] = "/tmp/kvm-tap-XXXXXX";
	struct tap_config cfg = config("scripted");
	struct nic *nic;
	struct err err;
	struct side *s;

	assert_non_null(mkdtemp(dir));
	assert_int_equal(run("cd %s && printf '#!/bin/sh\\necho $1 > %s/up\\n' > a && printf '#!/bin/sh\\necho $1 > "
	                     "%s/down\\n' > b && "
	                     "printf '#!/bin/sh\\nexit 7\\n' > c && chmod +x a b c",
	                     dir, dir, dir),
	                 0);
	snprintf(cfg.script, sizeof(cfg.script), "%s/a", dir);
	snprintf(cfg.downscript, sizeof(cfg.downscript), "%s/b", dir);
	s = open_side(&cfg);
	assert_int_equal(run("grep -qx scripted %s/up && ! test -e %s/down", dir, dir), 0);
	close_side(s);
	assert_int_equal(run("grep -qx scripted %s/down", dir), 0);
	snprintf(cfg.script, sizeof(cfg.script), "%s/c", dir);
	assert_int_equal(run("rm %s/down", dir), 0);
	assert_int_equal(tap_new(&cfg, &nic, &err), -EIO);
	assert_non_null(strstr(err.msg, "status 7"));
	assert_int_equal(run("test -e %s/down", dir) != 0, 1);
	snprintf(cfg.script, sizeof(cfg.script), "%s/none", dir);
	assert_int_equal(tap_new(&cfg, &nic, &err), -ENOENT);
	assert_false(exists("scripted"));
	assert_int_equal(run("rm -r %s", dir), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_frames), cmocka_unit_test(test_own_and_foreign), cmocka_unit_test(test_bridge),
		cmocka_unit_test(test_queues), cmocka_unit_test(test_trouble),         cmocka_unit_test(test_burst),
		cmocka_unit_test(test_fd),     cmocka_unit_test(test_namesake),        cmocka_unit_test(test_scripts),
	};
	int fd;

	if (unshare(CLONE_NEWNET) || (fd = open("/dev/net/tun", O_RDWR)) < 0 || run("ip link set lo up 2>/dev/null")) {
		fprintf(stderr, "skipped: needs root, a network namespace, /dev/net/tun and ip(8)\n");
		return 77;
	}
	close(fd);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
