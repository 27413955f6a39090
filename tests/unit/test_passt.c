// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The stream to passt: frames that arrive in pieces or many at once, a peer
 * that does not read, one that speaks nonsense or goes away; and passt itself,
 * where it is installed.
 */
#include "net/passt.h"
#include "packet.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define FRAMES 400u

struct side {
	struct nic *nic;
	struct loop *loop;
	struct loop_timer patience;
	bool late;
	int peer;
	unsigned got, want, links, writable;
	unsigned (*len_of)(unsigned k);
	uint8_t buf[NIC_HDR + NIC_MAX_FRAME];
	ssize_t len;
};

static unsigned len_of(unsigned k)
{
	return k % 50 ? 60 + k * 13 % 1400 : NIC_MAX_FRAME - k;
}

static void make(uint8_t *p, unsigned k)
{
	for (unsigned i = 0; i < len_of(k); i++)
		p[i] = (uint8_t)(k + i);
}

/* One frame a turn: what is left in the buffer must bring us back. */
static void on_readable(void *dev, unsigned pair)
{
	static const uint8_t zero[NIC_HDR];
	static uint8_t want[NIC_MAX_FRAME];
	struct side *s = dev;
	struct iovec iov[3] = { { s->buf, 7 }, { s->buf + 7, 100 }, { s->buf + 107, sizeof(s->buf) - 107 } };

	s->len = nic_recv(s->nic, 0, iov, 3);
	if (s->len < 0) {
		assert_int_equal(s->len, -EAGAIN);
		return;
	}
	if (s->len_of) {
		make(want, s->got);
		assert_int_equal(s->len, NIC_HDR + len_of(s->got));
		assert_memory_equal(s->buf, zero, NIC_HDR);
		assert_memory_equal(s->buf + NIC_HDR, want, len_of(s->got));
	}
	if (++s->got == s->want)
		loop_quit(s->loop);
}

static void on_writable(void *dev, unsigned pair)
{
	struct side *s = dev;

	s->writable++;
	loop_quit(s->loop);
}

static void on_link(void *dev)
{
	struct side *s = dev;

	s->links++;
	loop_quit(s->loop);
}

static void on_late(struct loop_timer *t)
{
	struct side *s = (struct side *)((char *)t - offsetof(struct side, patience));

	s->late = true;
	loop_quit(s->loop);
}

static void turn(struct side *s, short events)
{
	loop_timer_set(s->loop, &s->patience, 20000000000ull);
	nic_poll(s->nic, 0, events);
	assert_int_equal(loop_run(s->loop), 0);
	nic_poll(s->nic, 0, 0);
	loop_timer_del(s->loop, &s->patience);
	assert_false(s->late);
}

static struct side *start(struct nic *nic)
{
	struct side *s = calloc(1, sizeof(*s));
	struct nic_client client = { on_readable, on_writable, on_link, s };
	struct err err;

	assert_non_null(s);
	s->nic = nic;
	s->patience.cb = on_late;
	s->peer = -1;
	assert_int_equal(loop_new(&s->loop, &err), 0);
	nic_attach(nic, &client, s->loop);
	return s;
}

static struct side *setup(void)
{
	int fds[2];
	struct nic *nic;
	struct side *s;
	struct err err;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	assert_int_equal(passt_from_fd(fds[0], 1500, &nic, &err), 0);
	s = start(nic);
	s->peer = fds[1];
	return s;
}

static void teardown(struct side *s)
{
	nic_attach(s->nic, NULL, NULL);
	nic_free(s->nic);
	loop_free(s->loop);
	if (s->peer >= 0)
		close(s->peer);
	free(s);
}

/* All frames as a stream; returns its length. */
static size_t stream(uint8_t *p, unsigned n)
{
	size_t at = 0;

	for (unsigned k = 0; k < n; k++) {
		uint32_t be = htonl(len_of(k));

		memcpy(p + at, &be, 4);
		make(p + at + 4, k);
		at += 4 + len_of(k);
	}
	return at;
}

static void test_in(void **state)
{
	static const size_t chunks[] = { 1, 3, 1000, 70000, 200000 };
	static uint8_t bytes[FRAMES * 3000];

	for (unsigned c = 0; c < sizeof(chunks) / sizeof(chunks[0]); c++) {
		unsigned frames = chunks[c] < 100 ? 40 : FRAMES;
		size_t n = stream(bytes, frames), at = 0;
		struct side *s = setup();
		unsigned whole = 0;
		size_t edge = 0; /* of the frames that the peer has sent whole */

		s->len_of = len_of;
		while (at < n) {
			ssize_t sent = send(s->peer, bytes + at, chunks[c] < n - at ? chunks[c] : n - at, MSG_DONTWAIT);

			at += sent > 0 ? (size_t)sent : 0;
			for (; whole < frames && edge + 4 + len_of(whole) <= at; whole++)
				edge += 4 + len_of(whole);
			s->want = whole;
			if (s->got < whole)
				turn(s, POLLIN);
			else if (sent < 0)
				on_readable(s, 0); /* makes room */
		}
		assert_int_equal(s->got, frames);
		teardown(s);
	}
}

static int send_frame(struct side *s, unsigned k)
{
	static uint8_t f[NIC_HDR + NIC_MAX_FRAME];
	struct iovec iov[3] = { { f, 5 }, { f + 5, 50 }, { f + 55, NIC_HDR + len_of(k) - 55 } };

	make(f + NIC_HDR, k);
	return nic_send(s->nic, 0, iov, 3);
}

/* A peer that reads now and then: what it gets is the stream, and who may not send is told when he may. */
static void test_out(void **state)
{
	static uint8_t want[FRAMES * 3000], got[FRAMES * 3000];
	size_t n = stream(want, FRAMES), at = 0;
	struct side *s = setup();
	unsigned full = 0;

	for (unsigned k = 0; k < FRAMES;) {
		int error = send_frame(s, k);

		k += !error;
		if (!error)
			continue;
		assert_int_equal(error, -EAGAIN);
		full++;
		while (at < n) {
			ssize_t r = recv(s->peer, got + at, n - at, MSG_DONTWAIT);

			if (r < 0)
				break;
			at += (size_t)r;
		}
		turn(s, POLLOUT);
	}
	assert_true(full > 0 && s->writable == full);
	while (at < n) {
		ssize_t r = recv(s->peer, got + at, n - at, MSG_DONTWAIT);

		at += r > 0 ? (size_t)r : 0;
		if (r < 0)
			send_frame(s, 0); /* pushes the rest of the last one; itself it is too much */
	}
	assert_memory_equal(got, want, n);
	assert_int_equal(nic_send(s->nic, 0, &(struct iovec){ want, NIC_HDR + NIC_MAX_FRAME + 1 }, 1), -EMSGSIZE);
	teardown(s);
}

/* Nonsense, and the end: the cable is pulled, frames are lost, nothing else. */
static void test_gone(void **state)
{
	static const uint32_t nonsense[] = { 0, 0xffffffff, NIC_MAX_FRAME + 1 };

	for (unsigned i = 0; i < 4; i++) {
		struct side *s = setup();
		uint32_t be = i < 3 ? htonl(nonsense[i]) : 0;

		if (i < 3) {
			assert_int_equal(send(s->peer, &be, 4, 0), 4);
		} else {
			close(s->peer);
			s->peer = -1;
		}
		turn(s, POLLIN);
		assert_true(s->links == 1 && !s->nic->up && s->got == 0);
		for (unsigned k = 0; k < 10; k++)
			assert_int_equal(send_frame(s, k), 0);
		nic_poll(s->nic, 0, POLLIN | POLLOUT);
		on_readable(s, 0);
		assert_int_equal(s->len, -EAGAIN);
		teardown(s);
	}
}

/* The program itself tells the guest, by ARP, who its gateway is. */
static void test_passt(void **state)
{
	static uint8_t f[NIC_HDR + 42] = { [12] = 255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1, 8,  6, 0, 1,
		                           8,          0,   6,   4,   0,   1,   2, 0, 0, 0, 0, 1, 10, 0, 2, 15 };
	struct user_config cfg = { .mtu = 1500 };
	struct nic *nic;
	struct side *s;
	struct err err;

	if (system("command -v passt >/dev/null") || system("ip route 2>/dev/null | grep -q ^default"))
		skip();
	assert_int_equal(passt_new(&cfg, &nic, &err), 0);
	s = start(nic);
	inet_pton(AF_INET, "10.0.2.2", f + NIC_HDR + 38);
	assert_int_equal(nic_send(nic, 0, &(struct iovec){ f, sizeof(f) }, 1), 0);
	do {
		s->want = s->got + 1;
		turn(s, POLLIN);
		assert_true(nic->up);
	} while (pkt_get16(s->buf + NIC_HDR + 12) != 0x806);
	assert_int_equal(pkt_get16(s->buf + NIC_HDR + 20), 2);
	assert_memory_equal(s->buf + NIC_HDR + 28, f + NIC_HDR + 38, 4);
	teardown(s);
}

static void test_not_installed(void **state)
{
	struct user_config cfg = { .mtu = 1500 };
	char *path = strdup(getenv("PATH"));
	struct nic *nic;
	struct err err;

	assert_non_null(path);
	setenv("PATH", "/nowhere", 1);
	assert_int_equal(passt_new(&cfg, &nic, &err), -ENOENT);
	assert_non_null(strstr(err.msg, "install Debian's package passt"));
	setenv("PATH", path, 1);
	free(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_in),    cmocka_unit_test(test_out),           cmocka_unit_test(test_gone),
		cmocka_unit_test(test_passt), cmocka_unit_test(test_not_installed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
