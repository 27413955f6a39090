// SPDX-License-Identifier: GPL-2.0-or-later
/* The channel of commands (machine/channel.h): a guest's device on one side, clients' sockets on the other. */
#include "base/bytes.h"
#include "base/loop.h"
#include "console/con.h"
#include "guest/frames.h"
#include "machine/channel.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

struct fixture {
	struct loop *loop;
	struct channel *ch;
	struct loop_timer stop;
	size_t room;        /* of the guest's buffers */
	struct bytes guest; /* what it got */
	unsigned spacious;
};

static size_t room(void *dev)
{
	return ((struct fixture *)dev)->room;
}

static void recv_guest(void *dev, const uint8_t *buf, size_t n)
{
	struct fixture *f = dev;

	assert_true(n <= f->room);
	f->room -= n;
	assert_int_equal(bytes_add(&f->guest, buf, n), 0);
}

static void spacious(void *dev)
{
	((struct fixture *)dev)->spacious++;
}

static void on_stop(struct loop_timer *t)
{
	struct fixture *f = (struct fixture *)((char *)t - offsetof(struct fixture, stop));

	loop_quit(f->loop);
}

/* Everything that is ready happens; the timer comes after it. */
static void turn(struct fixture *f)
{
	for (unsigned i = 0; i < 8; i++) {
		loop_timer_set(f->loop, &f->stop, 0);
		assert_int_equal(loop_run(f->loop), 0);
	}
}

static void attach(struct fixture *f)
{
	struct con_client c = { .room = room, .recv = recv_guest, .spacious = spacious, .dev = f };

	con_attach(channel_con(f->ch), &c);
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct err err;

	f->room = SIZE_MAX / 2;
	f->stop.cb = on_stop;
	assert_int_equal(loop_new(&f->loop, &err), 0);
	assert_int_equal(channel_new(f->loop, &f->ch, &err), 0);
	attach(f);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	con_attach(channel_con(f->ch), NULL);
	channel_free(f->ch);
	loop_timer_del(f->loop, &f->stop);
	loop_free(f->loop);
	free(f->guest.p);
	free(f);
	return 0;
}

static size_t put(uint8_t *to, enum frame_type type, unsigned session, unsigned stream, const void *p, uint32_t len)
{
	struct frame h = { .type = (uint8_t)type, .stream = (uint8_t)stream, .session = (uint16_t)session, .len = len };

	memcpy(to, &h, sizeof(h));
	if (len)
		memcpy(to + sizeof(h), p, len);
	return sizeof(h) + len;
}

static void guest_says(struct fixture *f, enum frame_type type, unsigned session, unsigned stream, const void *p,
                       uint32_t len)
{
	uint8_t *buf = malloc(sizeof(struct frame) + len);

	con_send(channel_con(f->ch), buf, put(buf, type, session, stream, p, len));
	free(buf);
	turn(f);
}

static void hello(struct fixture *f)
{
	const uint32_t version = FRAME_VERSION;

	guest_says(f, FRAME_HELLO, 0, 0, &version, sizeof(version));
}

static int client(struct fixture *f, bool main)
{
	struct err err;
	int fd[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
	assert_int_equal(channel_attach(f->ch, fd[0], main, &err), 0);
	return fd[1];
}

static void client_says(struct fixture *f, int fd, enum frame_type type, unsigned stream, const void *p, uint32_t len)
{
	uint8_t *buf = malloc(sizeof(struct frame) + len);
	size_t n = put(buf, type, 77, stream, p, len); /* the session's number is not the client's to choose */

	assert_int_equal(send(fd, buf, n, 0), n);
	free(buf);
	turn(f);
}

static void starts(struct fixture *f, int fd)
{
	const struct frame_start head = { .flags = FRAME_TTY | FRAME_MAIN, .nargs = 0 };

	client_says(f, fd, FRAME_START, 0, &head, sizeof(head));
}

/* The next frame that the guest got; its payload in @p. */
static struct frame guest_got(struct fixture *f, void *p, size_t len)
{
	struct frame h;

	assert_true(f->guest.len >= sizeof(h));
	memcpy(&h, f->guest.p, sizeof(h));
	assert_true(f->guest.len >= sizeof(h) + h.len);
	assert_true(h.len <= len);
	memcpy(p, f->guest.p + sizeof(h), h.len);
	bytes_cut(&f->guest, sizeof(h) + h.len);
	return h;
}

static unsigned session_of(struct fixture *f)
{
	struct frame_start head;
	struct frame h = guest_got(f, &head, sizeof(head));

	assert_int_equal(h.type, FRAME_START);
	assert_int_equal(head.flags, FRAME_TTY | (h.session ? 0 : FRAME_MAIN));
	return h.session;
}

static bool closed(int fd)
{
	char c;

	return recv(fd, &c, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
}

static void expect_frame(int fd, enum frame_type type, unsigned stream, const void *p, uint32_t len)
{
	struct frame h;
	char buf[FRAME_DATA_MAX];

	assert_int_equal(recv(fd, &h, sizeof(h), MSG_DONTWAIT), sizeof(h));
	assert_int_equal(h.type, type);
	assert_int_equal(h.stream, stream);
	assert_int_equal(h.len, len);
	if (len) {
		assert_int_equal(recv(fd, buf, len, MSG_WAITALL), len);
		assert_memory_equal(buf, p, len);
	}
}

/* Nothing is taken from a client before init has said hello; then all of it arrives. */
static void waits_for_hello(void **state)
{
	struct fixture *f = *state;
	int fd = client(f, true);

	starts(f, fd);
	assert_int_equal(f->guest.len, 0);
	hello(f);
	assert_int_equal(session_of(f), 0);
	close(fd);
	turn(f);
}

static void sessions(void **state)
{
	struct fixture *f = *state;
	int fd[3];
	unsigned id[3];
	const uint32_t status = 3;
	char buf[64];

	hello(f);
	for (unsigned i = 0; i < 3; i++) {
		fd[i] = client(f, i == 0);
		starts(f, fd[i]);
		id[i] = session_of(f);
	}
	assert_int_equal(id[0], 0);
	assert_true(id[1] && id[2] && id[1] != id[2]);
	for (unsigned i = 0; i < 3; i++) {
		struct frame h;

		client_says(f, fd[i], FRAME_DATA, 0, "in", 2);
		h = guest_got(f, buf, sizeof(buf));
		assert_int_equal(h.session, id[i]);
		assert_memory_equal(buf, "in", 2);
		guest_says(f, FRAME_DATA, id[i], 1, "out", 3);
		expect_frame(fd[i], FRAME_DATA, 1, "out", 3);
		guest_says(f, FRAME_EXIT, id[i], 0, &status, sizeof(status));
		expect_frame(fd[i], FRAME_EXIT, 0, &status, sizeof(status));
		assert_true(closed(fd[i]));
		close(fd[i]);
	}
	guest_says(f, FRAME_DATA, id[1], 1, "late", 4); /* for nobody */
}

/* Frames in pieces of every size, both ways; and a guest with little room. */
static void pieces(void **state)
{
	struct fixture *f = *state;
	uint8_t out[600], frames[3 * (sizeof(struct frame) + 200)];
	int fd = client(f, false);
	size_t n = 0;
	unsigned id;

	hello(f);
	starts(f, fd);
	id = session_of(f);
	for (unsigned i = 0; i < sizeof(out); i++)
		out[i] = (uint8_t)(i * 7);
	for (unsigned i = 0; i < 3; i++)
		n += put(frames + n, FRAME_DATA, id, 1, out + i * 200, 200);
	for (size_t part = 1; part < n; part = part * 3 + 1) {
		for (size_t at = 0; at < n; at += part)
			con_send(channel_con(f->ch), frames + at, at + part < n ? part : n - at);
		turn(f);
		for (unsigned i = 0; i < 3; i++)
			expect_frame(fd, FRAME_DATA, 1, out + i * 200, 200);
	}
	n = put(frames, FRAME_DATA, 0, 0, out, 200);
	for (size_t part = 1; part < n; part = part * 3 + 1) {
		f->room = 0;
		for (size_t at = 0; at < n; at += part) {
			assert_true(send(fd, frames + at, at + part < n ? part : n - at, 0) > 0);
			turn(f);
		}
		while (f->guest.len < n) {
			f->room = part;
			con_more(channel_con(f->ch));
			turn(f);
		}
		guest_got(f, out, sizeof(out));
		assert_int_equal(f->guest.len, 0);
	}
	f->room = SIZE_MAX / 2;
	close(fd);
	turn(f);
}

/* Its command is hung up, and its number is not given away before the guest says that it is over. */
static void client_leaves(void **state)
{
	struct fixture *f = *state;
	int fd = client(f, false), other;
	unsigned id;
	uint32_t value;

	hello(f);
	starts(f, fd);
	id = session_of(f);
	close(fd);
	turn(f);
	for (unsigned stream = 0; stream < 3; stream++) {
		struct frame h = guest_got(f, &value, sizeof(value));

		assert_true(h.type == FRAME_END && h.stream == stream && h.session == id);
	}
	assert_int_equal(guest_got(f, &value, sizeof(value)).type, FRAME_SIGNAL);
	assert_int_equal(value, 1);
	guest_says(f, FRAME_DATA, id, 1, "to nobody", 9);
	guest_says(f, FRAME_EXIT, id, 0, &value, sizeof(value));
	other = client(f, false);
	close(other); /* before it has said anything */
	turn(f);
	assert_int_equal(f->guest.len, 0);
}

/* What a client has no business to say ends it, and the guest sees none of it. */
static void rude_clients(void **state)
{
	struct fixture *f = *state;
	static const uint8_t types[] = { 0, FRAME_HELLO, FRAME_STARTED, FRAME_EXIT, FRAME_POWEROFF, 99, 255 };
	struct frame big = { .type = FRAME_DATA, .len = FRAME_DATA_MAX + 1 };
	int fd;

	hello(f);
	for (unsigned i = 0; i < sizeof(types); i++) {
		fd = client(f, true);
		client_says(f, fd, types[i], 0, NULL, 0);
		assert_true(closed(fd));
		close(fd);
	}
	for (unsigned i = 0; i < 3; i++) {
		fd = client(f, false);
		big.type = i == 0 ? FRAME_DATA : i == 1 ? FRAME_START : FRAME_CREDIT;
		big.len = i == 0 ? FRAME_DATA_MAX + 1 : i == 1 ? FRAME_START_MAX + 1 : 5;
		assert_int_equal(send(fd, &big, sizeof(big), 0), sizeof(big));
		turn(f);
		assert_true(closed(fd));
		close(fd);
	}
	fd = client(f, false);
	client_says(f, fd, FRAME_DATA, 0, "early", 5); /* before START: for nobody */
	assert_false(closed(fd));
	close(fd);
	turn(f);
	assert_int_equal(f->guest.len, 0);
}

/* A guest that sends more than it was allowed to is held, and goes on when the client has read. */
static void guest_without_credit(void **state)
{
	struct fixture *f = *state;
	static uint8_t data[FRAME_DATA_MAX];
	int fd = client(f, false);
	unsigned id, n = 0;
	struct frame h;

	hello(f);
	starts(f, fd);
	id = session_of(f);
	while (con_space(channel_con(f->ch), 4096) == 4096) {
		guest_says(f, FRAME_DATA, id, 1, data, sizeof(data));
		assert_true(++n < 1000);
	}
	assert_int_equal(con_space(channel_con(f->ch), 1), 0);
	assert_int_equal(f->spacious, 0);
	for (unsigned i = 0; i < n; i++) {
		assert_int_equal(recv(fd, &h, sizeof(h), MSG_WAITALL | MSG_DONTWAIT), sizeof(h));
		for (size_t got = 0; got < sizeof(data);) {
			ssize_t r = recv(fd, data, sizeof(data) - got, MSG_DONTWAIT);

			if (r < 0)
				turn(f);
			else
				got += (size_t)r;
		}
		turn(f);
	}
	assert_int_equal(f->spacious, 1);
	assert_int_equal(con_space(channel_con(f->ch), 4096), 4096);
	close(fd);
	turn(f);
}

/* Garbage, and frames longer than any: nobody is hurt, and a new boot is heard again. */
static void hostile_guest(void **state)
{
	struct fixture *f = *state;
	unsigned seed = 1;
	int fd = -1;

	for (unsigned round = 0; round < 200; round++) {
		uint8_t junk[300];

		con_attach(channel_con(f->ch), NULL);
		attach(f);
		if (round % 2) {
			fd = client(f, round % 4 == 1);
			hello(f);
			starts(f, fd);
		}
		for (unsigned i = 0; i < sizeof(junk); i++)
			junk[i] = (uint8_t)(rand_r(&seed) %
			                    (round % 3 ? 12 : 256)); /* mostly known types, short lengths */
		for (unsigned i = 0; i < 20; i++)
			con_send(channel_con(f->ch), junk + i, (size_t)(rand_r(&seed) % 200));
		turn(f);
		bytes_cut(&f->guest, f->guest.len);
		if (fd >= 0)
			close(fd);
		fd = -1;
	}
	con_attach(channel_con(f->ch), NULL);
	attach(f);
	turn(f);
	bytes_cut(&f->guest, f->guest.len);
	fd = client(f, false);
	hello(f);
	starts(f, fd);
	assert_true(session_of(f) > 0);
	close(fd);
	turn(f);
}

/* What the guest has said by then still arrives; who has not begun waits for the next boot. */
static void reset(void **state)
{
	struct fixture *f = *state;
	int fd = client(f, false), waiting;
	unsigned id;

	hello(f);
	starts(f, fd);
	id = session_of(f);
	guest_says(f, FRAME_DATA, id, 2, "last", 4);
	con_attach(channel_con(f->ch), NULL);
	turn(f);
	expect_frame(fd, FRAME_DATA, 2, "last", 4);
	assert_true(closed(fd));
	close(fd);
	waiting = client(f, false);
	starts(f, waiting);
	attach(f);
	turn(f);
	assert_int_equal(f->guest.len, 0);
	hello(f);
	assert_true(session_of(f) > 0);
	close(waiting);
	turn(f);
	waiting = client(f, false);
	channel_end(f->ch); /* for good: nobody waits any more */
	turn(f);
	assert_true(closed(waiting));
	close(waiting);
}

static void too_many(void **state)
{
	struct fixture *f = *state;
	struct err err = { "" };
	int fd[200][2];
	unsigned n = 0;

	for (;; n++) {
		assert_true(n < 200);
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd[n]), 0);
		if (channel_attach(f->ch, fd[n][0], false, &err) == -EMFILE)
			break;
	}
	assert_string_equal(err.msg, "too many commands run in the guest already");
	assert_true(closed(fd[n][1]));
	for (unsigned i = 0; i <= n; i++)
		close(fd[i][1]);
	turn(f);
	close(client(f, false));
	turn(f);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(waits_for_hello),      TEST(sessions),      TEST(pieces), TEST(client_leaves), TEST(rude_clients),
		TEST(guest_without_credit), TEST(hostile_guest), TEST(reset),  TEST(too_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
