// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * virtio-console between a fake guest and fake consoles: bytes are exact in
 * both directions at any chunking, the guest is held back while nobody reads,
 * the multiport handshake copes with any driver, and a hostile ring costs the
 * guest its device until the next reset, nothing else.
 */
#include "console/sink.h"
#include "fakecon.h"
#include "fakedrv_dev.h"
#include "fakedrv_hostile.h"
#include "virtio/console.h"

#include <linux/virtio_config.h>
#include <linux/virtio_console.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define LEN(a)      (sizeof(a) / sizeof(*(a)))
#define BANK        (16ull << 20)
#define PORTS       3
#define QUEUES      (2 * PORTS + 2)
#define CTRL_RX     2
#define CTRL_TX     3
#define MODES       8
#define MIB         (1u << 20)
#define CHUNK       4096u /* space that the device asks for at once */
#define NEEDS_RESET VIRTIO_CONFIG_S_NEEDS_RESET
#define MULTIPORT   (1ull << VIRTIO_CONSOLE_F_MULTIPORT)
#define RING_RESET  (1ull << 40)

/* The loop's clock is ours: it stands still until a test moves it. */
static uint64_t skipped_ns;

int clock_gettime(clockid_t id, struct timespec *ts)
{
	ts->tv_sec = (time_t)(1000 + skipped_ns / 1000000000);
	ts->tv_nsec = (long)(skipped_ns % 1000000000);
	return 0;
}

struct fixture {
	struct fakemem mem;
	struct loop *loop;
	struct fakecon con[PORTS];
	struct vconsole *v;
	struct virtio_dev *d;
	struct fakedev drv;
	uint64_t buf, ctrl; /* guest memory: 2 MiB for data, a page for control messages */
	uint64_t seed;
};

static unsigned rx_queue(unsigned port)
{
	return port ? 2 * port + 2 : 0;
}

static unsigned tx_queue(unsigned port)
{
	return rx_queue(port) + 1;
}

static unsigned rnd(struct fixture *f, unsigned below)
{
	f->seed = f->seed * 6364136223846793005 + 1442695040888963407;
	return (unsigned)(f->seed >> 33) % below;
}

static struct fixture *setup(void)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct vconsole_port ports[PORTS] = { { NULL, true, NULL },
		                              { "org.example.agent", false, NULL },
		                              { "tty", true, NULL } };
	struct err err;

	assert_non_null(f);
	fakemem_init(&f->mem, BANK, 1);
	f->buf = fakemem_alloc(&f->mem, 2 * MIB, 4096);
	f->ctrl = fakemem_alloc(&f->mem, 128 * 64, 4096);
	assert_int_equal(loop_new(&f->loop, &err), 0);
	for (unsigned i = 0; i < PORTS; i++) {
		fakecon_init(&f->con[i], f->loop);
		ports[i].con = &f->con[i].con;
	}
	assert_int_equal(vconsole_new(ports, PORTS, &f->mem.gmem, f->loop, &f->v, &err), 0);
	f->d = vconsole_dev(f->v);
	fakedev_init(&f->drv, f->d, &f->mem, f->loop);
	return f;
}

static void free_cons(struct fixture *f)
{
	for (unsigned i = 0; i < PORTS; i++)
		fakecon_exit(&f->con[i]);
	loop_free(f->loop);
	fakemem_free(&f->mem);
	free(f);
}

static void teardown(struct fixture *f)
{
	fakedev_exit(&f->drv);
	vconsole_free(f->v);
	free_cons(f);
}

static uint64_t features(unsigned mode)
{
	return (mode & FAKE_PACKED ? 1ull << VIRTIO_F_RING_PACKED : 0) |
	       (mode & FAKE_EVENT_IDX ? 1ull << VIRTIO_RING_F_EVENT_IDX : 0) |
	       (mode & FAKE_INDIRECT ? 1ull << VIRTIO_RING_F_INDIRECT_DESC : 0) | MULTIPORT | RING_RESET;
}

static void start(struct fixture *f, unsigned mode)
{
	fakedev_start(&f->drv, features(mode), 0);
}

static void turn(struct fixture *f)
{
	fakedev_turn(&f->drv);
}

static uint8_t *at(struct fixture *f, uint64_t gpa)
{
	return fakemem_ptr(&f->mem, gpa, 1);
}

static uint8_t *bytes(unsigned n)
{
	uint8_t *p = malloc(n);
	uint64_t x = n;

	assert_non_null(p);
	for (unsigned i = 0; i < n; i++) {
		x = x * 6364136223846793005 + 1442695040888963407;
		p[i] = (uint8_t)(x >> 56);
	}
	return p;
}

/* The guest's side of data. */

/* Offers a chain of [@gpa, @gpa + @len) in @pieces. */
static bool offer(struct fixture *f, unsigned q, uint64_t gpa, unsigned len, unsigned pieces, bool write)
{
	struct fake_seg seg[8];

	for (unsigned i = 0, done = 0; i < pieces; i++) {
		unsigned n = i + 1 < pieces ? len / pieces : len - done;

		seg[i] = (struct fake_seg){ gpa + done, n, write };
		done += n;
	}
	return fakeq_add(&f->drv.q[q], seg, pieces, gpa) >= 0;
}

/* Says @n bytes at @buf on a port, in one chain; they lie at the start of the data buffer. */
static void say(struct fixture *f, unsigned port, const void *buf, unsigned n)
{
	memcpy(at(f, f->buf), buf, n);
	assert_true(offer(f, tx_queue(port), f->buf, n, 1, false));
	fakedev_publish(&f->drv, tx_queue(port));
}

static bool taken(struct fixture *f, unsigned q)
{
	struct fake_used u;

	turn(f);
	return fakeq_get(&f->drv.q[q], &u);
}

/* The guest's side of control. */

static void post_control(struct fixture *f, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		uint64_t gpa = f->ctrl + 64 * i;

		assert_true(offer(f, CTRL_RX, gpa, 64, 1, true));
	}
	fakedev_publish(&f->drv, CTRL_RX);
}

static void control_bytes(struct fixture *f, const void *buf, unsigned n)
{
	uint64_t gpa = f->buf + MIB;

	memcpy(at(f, gpa), buf, n);
	assert_true(offer(f, CTRL_TX, gpa, n, n > 1 ? 2 : 1, false));
	fakedev_publish(&f->drv, CTRL_TX);
	assert_true(taken(f, CTRL_TX));
}

static void control(struct fixture *f, uint32_t id, uint16_t event, uint16_t value)
{
	struct virtio_console_control c = { id, event, value };

	control_bytes(f, &c, sizeof(c));
}

/* The next message to the guest; false: none. */
static bool message(struct fixture *f, struct virtio_console_control *c, char *payload)
{
	struct fake_used u;

	turn(f);
	if (!fakeq_get(&f->drv.q[CTRL_RX], &u))
		return false;
	assert_in_range(u.len, sizeof(*c), 64);
	memcpy(c, at(f, u.token), sizeof(*c));
	memcpy(payload, at(f, u.token + sizeof(*c)), u.len - sizeof(*c));
	payload[u.len - sizeof(*c)] = '\0';
	return true;
}

static void expect(struct fixture *f, unsigned id, unsigned event, unsigned value, const char *payload, unsigned len)
{
	struct virtio_console_control c;
	char got[64];

	if (!message(f, &c, got))
		fail_msg("no message %u for port %u", event, id);
	assert_int_equal(c.event, event);
	assert_int_equal(c.id, id);
	assert_int_equal(c.value, value);
	assert_memory_equal(got, payload, len + 1);
}

static void expect_none(struct fixture *f)
{
	struct virtio_console_control c;
	char got[64];

	assert_false(message(f, &c, got));
}

/* Handshake. */

static void expect_ready(struct fixture *f, unsigned port)
{
	static const char *const names[PORTS] = { NULL, "org.example.agent", "tty" };

	if (port != 1)
		expect(f, port, VIRTIO_CONSOLE_CONSOLE_PORT, 1, "", 0);
	expect(f, port, VIRTIO_CONSOLE_PORT_OPEN, 1, "", 0);
	if (names[port])
		expect(f, port, VIRTIO_CONSOLE_PORT_NAME, 1, names[port], (unsigned)strlen(names[port]));
	if (port != 1)
		expect(f, port, VIRTIO_CONSOLE_RESIZE, 0, "\120\0\31\0", 4);
}

static void handshake(struct fixture *f)
{
	control(f, 0, VIRTIO_CONSOLE_DEVICE_READY, 1);
	for (unsigned i = 0; i < PORTS; i++)
		expect(f, i, VIRTIO_CONSOLE_PORT_ADD, 1, "", 0);
	expect_none(f);
	for (unsigned i = 0; i < PORTS; i++) {
		control(f, i, VIRTIO_CONSOLE_PORT_READY, 1);
		expect_ready(f, i);
		control(f, i, VIRTIO_CONSOLE_PORT_OPEN, 1);
	}
	expect_none(f);
}

static void test_handshake(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();

		vconsole_resize(f->v, 80, 25);
		assert_int_equal(virtio_reg_config(f->d, 4, 4), PORTS);
		for (unsigned round = 0; round < 3; round++) {
			start(f, mode);
			post_control(f, 40);
			handshake(f);
		}
		teardown(f);
	}
}

/* The messages wait for buffers, and each of them takes one. */
static void test_slow_handshake(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();

		vconsole_resize(f->v, 80, 25);
		start(f, mode);
		control(f, 0, VIRTIO_CONSOLE_DEVICE_READY, 1);
		control(f, 2, VIRTIO_CONSOLE_PORT_READY, 1);
		expect_none(f);
		for (unsigned i = 0; i < PORTS; i++) {
			post_control(f, 1);
			expect(f, i, VIRTIO_CONSOLE_PORT_ADD, 1, "", 0);
			expect_none(f);
		}
		post_control(f, 1);
		expect(f, 2, VIRTIO_CONSOLE_CONSOLE_PORT, 1, "", 0);
		post_control(f, 4);
		expect(f, 2, VIRTIO_CONSOLE_PORT_OPEN, 1, "", 0);
		expect(f, 2, VIRTIO_CONSOLE_PORT_NAME, 1, "tty", 3);
		expect(f, 2, VIRTIO_CONSOLE_RESIZE, 0, "\120\0\31\0", 4);
		expect_none(f);
		vconsole_resize(f->v, 0x1234, 0x5678); /* while the guest runs: at once, and in config space */
		expect(f, 0, VIRTIO_CONSOLE_RESIZE, 0, "\x34\x12\x78\x56", 4);
		assert_int_equal(virtio_reg_config(f->d, 0, 4), 0x56781234);
		assert_int_equal(f->drv.config_irqs, 1);
		teardown(f);
	}
}

/* A buffer too small for the message, or none at all, gets what fits. */
static void test_short_control_buffers(void **state)
{
	for (unsigned len = 1; len < 12; len++) {
		struct fixture *f = setup();
		struct fake_used u;

		start(f, 0);
		for (unsigned i = 0; i < 3; i++)
			assert_true(offer(f, CTRL_RX, f->ctrl, len, 1, true));
		assert_true(offer(f, CTRL_RX, f->ctrl, len, 1, false)); /* not even writable */
		fakedev_publish(&f->drv, CTRL_RX);
		control(f, 1, VIRTIO_CONSOLE_PORT_READY, 1); /* open and name */
		assert_true(fakedev_get(&f->drv, CTRL_RX, &u));
		assert_int_equal(u.len, len < 8 ? len : 8);
		assert_true(fakedev_get(&f->drv, CTRL_RX, &u));
		assert_int_equal(u.len, len);
		assert_int_equal(virtio_reg_status(f->d), 0xf);
		teardown(f);
	}
}

static void test_garbage_control(void **state)
{
	struct fixture *f = setup();
	uint8_t junk[256];

	vconsole_resize(f->v, 80, 25);
	for (unsigned mode = 0; mode < MODES; mode++) {
		start(f, mode);
		post_control(f, 40);
		for (unsigned i = 0; i < sizeof(junk); i++)
			junk[i] = (uint8_t)rnd(f, 256);
		for (unsigned n = 1; n < 8; n++)
			control_bytes(f, junk, n);
		for (unsigned event = 4; event < 0x10000; event += event < 20 ? 1 : 997)
			control(f, rnd(f, PORTS), (uint16_t)event, 1);
		for (unsigned event = 0; event < 10; event++) {
			control(f, PORTS, (uint16_t)event, (uint16_t)(event != VIRTIO_CONSOLE_DEVICE_READY));
			control(f, 0x7fffffff, (uint16_t)event, (uint16_t)(event != VIRTIO_CONSOLE_DEVICE_READY));
			control(f, 0xffffffff, (uint16_t)event, (uint16_t)(event != VIRTIO_CONSOLE_DEVICE_READY));
		}
		control(f, 0, VIRTIO_CONSOLE_DEVICE_READY, 0);
		control(f, 0, VIRTIO_CONSOLE_PORT_READY, 0);
		assert_true(offer(f, CTRL_TX, f->buf, 8, 1, true)); /* nothing to read in it */
		fakedev_publish(&f->drv, CTRL_TX);
		assert_true(taken(f, CTRL_TX));
		expect_none(f);
		assert_int_equal(virtio_reg_status(f->d), 0xf);
		handshake(f);
		for (unsigned i = 0; i < 200; i++) { /* longer than it need be, and anything */
			junk[0] = (uint8_t)rnd(f, PORTS + 1);
			junk[1] = junk[2] = junk[3] = 0;
			control_bytes(f, junk, 8 + rnd(f, 200));
		}
		assert_int_equal(virtio_reg_status(f->d), 0xf);
	}
	teardown(f);
}

/* A new driver hears nothing that its predecessor asked for. */
static void test_new_driver(void **state)
{
	struct fixture *f = setup();

	vconsole_resize(f->v, 80, 25);
	for (unsigned round = 0; round < 2; round++) {
		start(f, 0);
		control(f, 0, VIRTIO_CONSOLE_DEVICE_READY, 1);
		control(f, 1, VIRTIO_CONSOLE_PORT_READY, 1);
		if (round) {
			assert_true(fakedev_queue_reset(&f->drv, CTRL_RX));
			fakedev_queue(&f->drv, CTRL_RX, 64);
		} else {
			start(f, 0);
		}
		turn(f);
		post_control(f, 30);
		expect_none(f);
		handshake(f);
	}
	teardown(f);
}

/* Without MULTIPORT there is port 0 and no control queue. */
static void test_single_port(void **state)
{
	struct fixture *f = setup();
	struct fake_used u;

	assert_true(fakedev_negotiate(&f->drv, 1ull << VIRTIO_F_VERSION_1));
	fakedev_queue(&f->drv, 0, 0);
	fakedev_queue(&f->drv, 1, 0);
	virtio_reg_set_status(f->d, 0xf);
	turn(f);
	fakecon_give(&f->con[0], MIB);
	say(f, 0, "hello", 5);
	assert_true(taken(f, 1));
	assert_memory_equal(f->con[0].out, "hello", 5);
	vconsole_resize(f->v, 100, 50);
	assert_int_equal(f->drv.config_irqs, 1);
	assert_true(offer(f, 0, f->buf, 100, 1, true));
	fakedev_publish(&f->drv, 0);
	fakecon_type(&f->con[0], (const uint8_t *)"typed", 5);
	assert_true(fakedev_get(&f->drv, 0, &u));
	assert_int_equal(u.len, 5);
	assert_memory_equal(at(f, f->buf), "typed", 5);
	teardown(f);
}

/* Input. */

/* Takes what the device has filled, in order, and compares it with the source. */
static unsigned read_input(struct fixture *f, unsigned q, const uint8_t *source, unsigned got)
{
	struct fake_used u;

	while (fakeq_get(&f->drv.q[q], &u)) {
		assert_true(u.len > 0);
		assert_memory_equal(at(f, u.token), source + got, u.len);
		got += u.len;
	}
	return got;
}

static void test_input_exact(void **state)
{
	uint8_t *source = bytes(MIB);

	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();
		unsigned port = mode % PORTS, q = rx_queue(port), got = 0, slot = 0;

		start(f, mode);
		f->con[port].most = mode & 1 ? 1000 : 0;
		fakecon_type(&f->con[port], source, MIB);
		while (got < MIB) {
			for (unsigned n = 1 + rnd(f, 30); n; n--, slot++) {
				unsigned len = 1 + rnd(f, rnd(f, 4) ? 64 : 8000);

				if (!offer(f, q, f->buf + 8192ull * (slot % 200), len, len > 8 ? 1 + rnd(f, 8) : 1,
				           true))
					break;
			}
			fakedev_publish(&f->drv, q);
			got = read_input(f, q, source, got);
		}
		assert_int_equal(f->con[port].nin, 0);
		teardown(f);
	}
	free(source);
}

/* Not a byte is read from the source that the guest has no room for. */
static void test_input_asks_first(void **state)
{
	static const uint8_t text[] = "0123456789abcdefghijklmnopqrstuvwxyz";

	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();
		struct fake_used u;

		fakecon_type(&f->con[1], text, 36);
		turn(f);
		assert_int_equal(f->con[1].nin, 36);
		start(f, mode);
		assert_int_equal(f->con[1].nin, 36);
		for (unsigned i = 1; i <= 8; i++) {
			unsigned before = (unsigned)f->con[1].nin;

			assert_true(offer(f, rx_queue(1), f->buf, i, 1, true));
			fakedev_publish(&f->drv, rx_queue(1));
			assert_int_equal(f->con[1].nin, before - i);
			assert_true(fakedev_get(&f->drv, rx_queue(1), &u));
			assert_int_equal(u.len, i);
			assert_memory_equal(at(f, f->buf), text + 36 - before, i);
		}
		assert_int_equal(f->con[0].asked + f->con[2].asked, 0);
		teardown(f);
	}
}

/* Buffers without room are given back at once; a flood of them does not keep the loop. */
static void test_input_no_room(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();
		unsigned q = rx_queue(0);
		struct fake_used u;

		start(f, mode);
		fakecon_type(&f->con[0], (const uint8_t *)"abc", 3);
		for (unsigned round = 0; round < 3; round++) {
			unsigned n = 0, back = 0;

			while (offer(f, q, f->buf, 100, 1, false))
				n++;
			fakedev_publish(&f->drv, q);
			while (back < n) {
				assert_true(fakedev_get(&f->drv, q, &u));
				assert_int_equal(u.len, 0);
				back++;
			}
		}
		assert_int_equal(f->con[0].nin, 3);
		assert_true(offer(f, q, f->buf, 100, 1, true));
		fakedev_publish(&f->drv, q);
		assert_true(fakedev_get(&f->drv, q, &u));
		assert_int_equal(u.len, 3);
		teardown(f);
	}
}

/* Output. */

static void test_output_exact(void **state)
{
	uint8_t *source = bytes(MIB);

	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();
		unsigned port = mode % PORTS, q = tx_queue(port), sent = 0;
		struct fakecon *c = &f->con[port];
		struct fake_used u;

		memcpy(at(f, f->buf), source, MIB);
		start(f, mode);
		while (c->nout < MIB) {
			for (unsigned n = 1 + rnd(f, 30); n && sent < MIB; n--) {
				unsigned len = 1 + rnd(f, rnd(f, 4) ? 64 : 20000);

				len = len < MIB - sent ? len : MIB - sent;
				if (!offer(f, q, f->buf + sent, len, len > 8 ? 1 + rnd(f, 8) : 1, false))
					break;
				sent += len;
			}
			fakedev_publish(&f->drv, q);
			fakecon_give(c, 1 + rnd(f, 30000));
			turn(f);
			while (fakeq_get(&f->drv.q[q], &u))
				assert_int_equal(u.len, 0);
		}
		turn(f);
		while (fakeq_get(&f->drv.q[q], &u))
			;
		assert_int_equal(f->drv.q[q].live, 0);
		assert_int_equal(c->dropped, 0);
		assert_int_equal(c->nout, MIB);
		assert_memory_equal(c->out, source, MIB);
		teardown(f);
	}
	free(source);
}

/* A full console holds the chain; the other ports go on. */
static void test_output_waits(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();
		struct fakecon *c = &f->con[0];

		start(f, mode);
		fakecon_give(&f->con[1], MIB);
		say(f, 0, "held", 4);
		assert_false(taken(f, tx_queue(0)));
		for (unsigned i = 0; i < 50; i++) {
			say(f, 1, "x", 1);
			assert_true(taken(f, tx_queue(1)));
			assert_false(taken(f, tx_queue(0)));
		}
		memcpy(at(f, f->buf), "held", 4);
		fakecon_give(c, 3); /* not enough */
		assert_false(taken(f, tx_queue(0)));
		fakecon_give(c, 1);
		assert_true(taken(f, tx_queue(0)));
		assert_int_equal(c->nout, 4);
		assert_memory_equal(c->out, "held", 4);
		assert_int_equal(c->dropped, 0);
		teardown(f);
	}
}

static void test_patience(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();
		struct fakecon *c = &f->con[0];

		start(f, mode);
		say(f, 0, "lost", 4);
		skipped_ns += 900000000; /* not a whole second */
		assert_false(taken(f, tx_queue(0)));
		fakecon_give(c, 4);
		assert_true(taken(f, tx_queue(0))); /* a reader who reads has all the time he wants */
		say(f, 0, "gone", 4);
		skipped_ns += 900000000;
		assert_false(taken(f, tx_queue(0)));
		skipped_ns += 200000000;
		assert_true(taken(f, tx_queue(0)));
		for (unsigned i = 0; i < 10; i++) { /* and from now on without waiting */
			say(f, 0, "more", 4);
			assert_true(taken(f, tx_queue(0)));
		}
		assert_int_equal(c->dropped, 44);
		fakecon_give(c, 6);
		turn(f);
		say(f, 0, "seen", 4);
		assert_true(taken(f, tx_queue(0)));
		say(f, 0, "waits", 5); /* patience is new */
		assert_false(taken(f, tx_queue(0)));
		assert_int_equal(c->dropped, 44);
		assert_memory_equal(c->out, "lostseen", 8);
		skipped_ns += 2000000000;
		assert_true(taken(f, tx_queue(0)));
		teardown(f);
	}
}

/* A guest's gigabytes are sent a bit at a time, so that others on the loop have their turn. */
static void test_output_in_turns(void **state)
{
	struct fixture *f = setup();
	struct fakecon *c = &f->con[0];
	struct fake_seg seg[8];

	start(f, FAKE_INDIRECT);
	fakecon_give(c, SIZE_MAX);
	for (unsigned i = 0; i < LEN(seg); i++)
		seg[i] = (struct fake_seg){ 0, (uint32_t)BANK, false };
	assert_true(fakeq_add(&f->drv.q[1], seg, LEN(seg), 0) >= 0);
	fakeq_expose(&f->drv.q[1]);
	virtio_again(f->d, 1);
	for (unsigned i = 1; c->sent < LEN(seg) * BANK; i++) {
		turn(f);
		assert_in_range(c->sent, 1, i * MIB);
	}
	assert_true(taken(f, 1));
	say(f, 0, "x", 1);
	assert_true(taken(f, 1));
	assert_true(c->sent == LEN(seg) * BANK + 1);
	teardown(f);
}

/* A full ring, again and again. */
static void test_output_many(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();
		unsigned sent = 0, n;

		start(f, mode);
		fakecon_give(&f->con[1], MIB);
		for (unsigned round = 0; round < 10; round++) {
			for (n = 0; offer(f, tx_queue(1), f->buf + sent, 1, 1, false); n++)
				*at(f, f->buf + sent) = (uint8_t)sent, sent++;
			assert_int_equal(n, 128);
			fakedev_publish(&f->drv, tx_queue(1));
			while (n--)
				assert_true(taken(f, tx_queue(1)));
		}
		assert_memory_equal(f->con[1].out, at(f, f->buf), sent);
		teardown(f);
	}
}

/* Held chains, when things end. */

/* Both a transmit and a receive chain of port @port are with the device. */
static void hold(struct fixture *f, unsigned port)
{
	f->con[port].space = 0;
	say(f, port, "held", 4);
	assert_true(offer(f, rx_queue(port), f->buf + 4096, 100, 1, true));
	fakedev_publish(&f->drv, rx_queue(port));
	fakecon_type(&f->con[port], (const uint8_t *)"", 0);
	turn(f);
	assert_int_equal(con_room(&f->con[port].con), 100);
	assert_false(taken(f, tx_queue(port)));
	assert_int_equal(virtq_inflight(f->d->queue[rx_queue(port)].ring), 1);
	assert_int_equal(virtq_inflight(f->d->queue[tx_queue(port)].ring), 1);
}

static void talk(struct fixture *f, unsigned port)
{
	struct fakecon *c = &f->con[port];
	struct fake_used u;

	c->nout = 0;
	fakecon_give(c, 4);
	turn(f);
	c->nout = 0;
	c->space = 4;
	say(f, port, "well", 4);
	assert_true(taken(f, tx_queue(port)));
	assert_memory_equal(c->out, "well", 4);
	fakecon_type(c, (const uint8_t *)"fine", 4);
	turn(f);
	if (!fakeq_has_used(&f->drv.q[rx_queue(port)])) {
		assert_true(offer(f, rx_queue(port), f->buf + 4096, 100, 1, true));
		fakedev_publish(&f->drv, rx_queue(port));
	}
	assert_true(fakedev_get(&f->drv, rx_queue(port), &u));
	assert_int_equal(u.len, 4);
	assert_memory_equal(at(f, u.token), "fine", 4);
}

static void test_held_at_reset(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();

		for (unsigned port = 0; port < PORTS; port++) {
			start(f, mode);
			hold(f, port);
			start(f, mode);
			assert_int_equal(con_room(&f->con[port].con), 0);
			talk(f, port);
			hold(f, port);
			virtio_dev_stop(f->d);
			assert_int_equal(virtio_reg_status(f->d), 0);
			start(f, mode);
			skipped_ns += 5000000000; /* nobody's patience is left over */
			turn(f);
			talk(f, port);
		}
		teardown(f);
	}
}

static void test_held_at_queue_reset(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();

		start(f, mode);
		for (unsigned port = 0; port < PORTS; port++) {
			hold(f, port);
			assert_true(fakedev_queue_reset(&f->drv, tx_queue(port)));
			fakedev_queue(&f->drv, tx_queue(port), 16);
			turn(f);
			talk(f, port);
			hold(f, port);
			assert_true(fakedev_queue_reset(&f->drv, rx_queue(port)));
			fakedev_queue(&f->drv, rx_queue(port), 32);
			turn(f);
			fakecon_give(&f->con[port], 4);
			assert_true(taken(f, tx_queue(port)));
			talk(f, port);
		}
		teardown(f);
	}
}

static void test_held_at_pause(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();
		struct fakecon *c = &f->con[2];

		start(f, mode);
		hold(f, 2);
		fakedev_pause(&f->drv);
		fakecon_give(c, 4);
		fakecon_type(c, (const uint8_t *)"typed", 5);
		skipped_ns += 500000000;
		turn(f);
		assert_int_equal(c->nout, 0);
		assert_int_equal(c->nin, 5);
		assert_int_equal(con_room(&c->con), 0);
		vconsole_resize(f->v, 1, 1);
		virtio_resume(f->d);
		turn(f);
		assert_memory_equal(c->out, "held", 4);
		assert_int_equal(c->nin, 0);
		assert_true(taken(f, tx_queue(2)));
		assert_true(taken(f, rx_queue(2)));
		talk(f, 2);
		teardown(f);
	}
}

/* The device goes with chains in its hands and a timer running. */
static void test_held_at_free(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();

		start(f, mode);
		hold(f, 0);
		hold(f, 1);
		fakecon_give(&f->con[0], 4); /* spacious() is on its way */
		vconsole_free(f->v);
		free(f->drv.q);
		f->drv.loop = f->loop;
		turn(f);
		assert_int_equal(f->con[0].nout, 0);
		free_cons(f);
	}
}

/* Config space. */

static void test_emergency(void **state)
{
	struct fixture *f = setup();
	struct fakecon *c = &f->con[0];

	fakecon_give(c, 100);
	virtio_reg_set_config(f->d, 8, 4, 'a'); /* no driver yet */
	virtio_reg_set_config(f->d, 8, 1, 'b');
	virtio_reg_set_config(f->d, 8, 2, 0x7700 | 'c');
	start(f, 0);
	virtio_reg_set_config(f->d, 8, 4, 0x55667700 | 'd');
	assert_int_equal(c->nout, 4);
	assert_memory_equal(c->out, "abcd", 4);
	for (unsigned size = 1; size <= 8; size *= 2)
		for (unsigned off = 0; off < 32; off++)
			if (off != 8)
				virtio_reg_set_config(f->d, off, size, 'x');
	virtio_reg_set_config(f->d, 8, 8, 'x'); /* beyond the end */
	assert_int_equal(c->nout, 4);
	assert_int_equal(virtio_reg_config(f->d, 8, 4), 0);
	teardown(f);
}

/* Hostile drivers. */

/* Makes the device look into queue @q. */
static void provoke(struct fixture *f, unsigned q)
{
	struct virtio_console_control c = { 0, VIRTIO_CONSOLE_DEVICE_READY, 1 };

	if (q == CTRL_RX) {
		memcpy(at(f, f->buf), &c, sizeof(c));
		assert_true(offer(f, CTRL_TX, f->buf, sizeof(c), 1, false));
		fakedev_publish(&f->drv, CTRL_TX);
	}
	for (unsigned i = 0; i < PORTS; i++)
		if (q == rx_queue(i))
			fakecon_type(&f->con[i], (const uint8_t *)"text", 4);
	fakedev_kick(&f->drv, q);
	turn(f);
}

static void hostile(struct fixture *f, const struct fake_hostile *h, unsigned q, unsigned mode)
{
	unsigned irqs = f->drv.config_irqs;

	h->corrupt(&f->drv.q[q]);
	provoke(f, q);
	if (!(virtio_reg_status(f->d) & NEEDS_RESET) || f->drv.config_irqs != irqs + 1)
		fail_msg("%s, queue %u, mode %u: the driver is not told", h->name, q, mode);
	for (unsigned i = 0; i < QUEUES; i++)
		fakedev_kick(&f->drv, i);
	for (unsigned i = 0; i < PORTS; i++)
		f->con[i].nin = 0;
	if (q != 0 && q != 1)
		talk(f, 0); /* the other ports live on */
	assert_int_equal(f->drv.config_irqs, irqs + 1);
}

static void test_hostile(void **state)
{
	struct fixture *f = setup();
	unsigned n = 0;

	for (unsigned mode = 0; mode < MODES; mode++)
		for (unsigned i = 0; i < fake_hostile_count; i++)
			for (unsigned q = 0; q < 6; q++) {
				fakedev_start(&f->drv, features(mode), FAKE_HOSTILE_SIZE);
				if (!fake_hostile_fits(&fake_hostile[i], &f->drv.q[q]))
					continue;
				hostile(f, &fake_hostile[i], q, mode);
				start(f, mode ^ (n & 1));
				talk(f, n % PORTS);
				n++;
			}
	print_message("%u hostile drivers\n", n);
	teardown(f);
}

/* Odd, but no fault: pieces of no length, writable pieces to send, readable ones to fill, all of RAM. */
static void test_odd_chains(void **state)
{
	static const struct fake_seg odd[] = {
		{ 0, 0, false }, { 0x1000, 0, false }, { ~0ull, 0, true }, { 0x1000, 0, true }
	};
	static const struct fake_seg mixed[] = { { 0x1000, 10, false }, { 0x1000, 0, false }, { 0x2000, 10, true } };

	for (unsigned mode = 0; mode < MODES; mode++)
		for (unsigned q = 0; q < QUEUES; q++) {
			struct fixture *f = setup();

			start(f, mode);
			for (unsigned i = 0; i < PORTS; i++)
				fakecon_give(&f->con[i], MIB);
			fake_raw_chain(&f->drv.q[q], odd, LEN(odd));
			provoke(f, q);
			assert_int_equal(virtio_reg_status(f->d), 0xf);
			start(f, mode);
			for (unsigned i = 0; i < PORTS; i++)
				f->con[i].nin = 0;
			fake_raw_chain(&f->drv.q[q], mixed, LEN(mixed));
			provoke(f, q);
			assert_int_equal(virtio_reg_status(f->d), 0xf);
			start(f, mode);
			for (unsigned i = 0; i < PORTS; i++)
				f->con[i].nin = 0;
			talk(f, 1);
			teardown(f);
		}
}

/* Kicks of every queue before DRIVER_OK, and a reset with everything on its way. */
static void test_early_and_reset(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();

		assert_true(fakedev_negotiate(&f->drv, features(mode) | 1ull << VIRTIO_F_VERSION_1));
		fakecon_give(&f->con[0], 100);
		fakecon_type(&f->con[0], (const uint8_t *)"early", 5);
		for (unsigned q = 0; q < QUEUES; q++) {
			fakedev_queue(&f->drv, q, 16);
			assert_true(offer(f, q, f->buf, 10, 1, q % 2 == 0));
			fakeq_expose(&f->drv.q[q]);
			fakedev_kick(&f->drv, q);
			assert_false(fakeq_has_used(&f->drv.q[q]));
		}
		assert_int_equal(f->con[0].sent, 0);
		assert_int_equal(f->con[0].nin, 5);
		virtio_reg_set_status(f->d, 0xf);
		turn(f);
		turn(f);
		assert_int_equal(f->con[0].sent, 10);
		assert_int_equal(f->con[0].nin, 0);
		for (unsigned round = 0; round < 10; round++) {
			start(f, mode);
			for (unsigned q = 0; q < QUEUES; q++) {
				while (offer(f, q, f->buf, 10, 1, q % 2 == 0))
					;
				fakeq_expose(&f->drv.q[q]);
				virtio_again(f->d, q);
			}
			if (round & 1)
				turn(f);
			assert_true(fakedev_reset(&f->drv));
		}
		start(f, mode);
		talk(f, 0);
		talk(f, 2);
		teardown(f);
	}
}

/* The console that only passes on. */
static void test_sink(void **state)
{
	struct fixture *f = setup();
	struct con_client client = { 0 };
	struct con *sink;
	struct err err;
	char tail[8];

	assert_int_equal(sink_new(&f->con[0].con, &sink, &err), 0);
	con_attach(sink, &client);
	fakecon_give(&f->con[0], 3);
	con_send(sink, (const uint8_t *)"abcdef", 6);
	assert_int_equal(f->con[0].nout, 3);
	assert_int_equal(f->con[0].dropped, 3);
	assert_int_equal(con_space(sink, 12345), 12345);
	con_more(sink);
	assert_int_equal(con_tail(sink, tail, sizeof(tail)), 0);
	con_tail_clear(sink);
	assert_int_equal(con_tail(&f->con[0].con, tail, sizeof(tail)), 6);
	con_attach(sink, NULL);
	sink_free(sink);
	sink_free(NULL);
	teardown(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_handshake),
		cmocka_unit_test(test_slow_handshake),
		cmocka_unit_test(test_short_control_buffers),
		cmocka_unit_test(test_garbage_control),
		cmocka_unit_test(test_new_driver),
		cmocka_unit_test(test_single_port),
		cmocka_unit_test(test_input_exact),
		cmocka_unit_test(test_input_asks_first),
		cmocka_unit_test(test_input_no_room),
		cmocka_unit_test(test_output_exact),
		cmocka_unit_test(test_output_waits),
		cmocka_unit_test(test_patience),
		cmocka_unit_test(test_output_in_turns),
		cmocka_unit_test(test_output_many),
		cmocka_unit_test(test_held_at_reset),
		cmocka_unit_test(test_held_at_queue_reset),
		cmocka_unit_test(test_held_at_pause),
		cmocka_unit_test(test_held_at_free),
		cmocka_unit_test(test_emergency),
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_odd_chains),
		cmocka_unit_test(test_early_and_reset),
		cmocka_unit_test(test_sink),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
