// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The UART against its data sheet, against what Linux' 8250 driver asks of it
 * when it probes, and against itself: whatever happens, the interrupt line is
 * what the registers imply. The console is a fake that takes the uart's lock
 * again from inside every call, so one made under the lock hangs the test.
 */
#include "dev/uart.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RBR, IER, IIR, LCR, MCR, LSR, MSR, SCR, THR = 0, DLL = 0, DLM = 1, FCR = 2 };

#define DTR  0x01
#define RTS  0x02
#define OUT1 0x04
#define OUT2 0x08
#define LOOP 0x10
#define OPEN (DTR | RTS | OUT2) /* as a driver leaves MCR */

struct con {
	struct con_client client;
	bool attached;
	uint8_t sent[4096];
	size_t sent_n;
	unsigned more;
};

struct fixture {
	struct con con;
	struct irq irq;
	bool level;
	unsigned changes, repeats; /* calls of irq_set(), and those that changed nothing */
	struct uart *u;
};

void con_attach(struct con *con, const struct con_client *client)
{
	con->attached = client;
	if (client)
		con->client = *client;
}

void con_send(struct con *con, const uint8_t *buf, size_t n)
{
	con->client.room(con->client.dev);
	for (size_t i = 0; i < n; i++)
		con->sent[con->sent_n++ % sizeof(con->sent)] = buf[i];
}

void con_more(struct con *con)
{
	con->client.room(con->client.dev);
	con->more++;
}

static void fake_set(struct irq *irq, bool level)
{
	struct fixture *f = irq->opaque;

	f->repeats += level == f->level;
	f->level = level;
	f->changes++;
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct err err;

	f->irq = (struct irq){ .set = fake_set, .opaque = f, .line = 4 };
	assert_int_equal(uart_new("com1", &f->irq, &f->con, &f->u, &err), 0);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	uart_free(f->u);
	assert_false(f->con.attached);
	assert_int_equal(f->repeats, 0);
	free(f);
	return 0;
}

static size_t room(struct fixture *f)
{
	return f->con.client.room(f->con.client.dev);
}

static void recv_bytes(struct fixture *f, const char *bytes, size_t n)
{
	f->con.client.recv(f->con.client.dev, (const uint8_t *)bytes, n);
}

static uint8_t get(struct fixture *f, unsigned off)
{
	return uart_read(f->u, off);
}

static void put(struct fixture *f, unsigned off, uint8_t val)
{
	uart_write(f->u, off, val);
}

static void reset_values(void **state)
{
	static const struct {
		unsigned off;
		uint8_t val;
	} t[] = {
		{ RBR, 0 },    { IER, 0 },    { IIR, 0x01 }, { LCR, 0 },  { MCR, 0 },
		{ LSR, 0x60 }, { MSR, 0xb0 }, { SCR, 0 },    { 8, 0xff }, { 4000, 0xff },
	};
	struct fixture *f = *state;

	for (size_t i = 0; i < sizeof(t) / sizeof(*t); i++)
		assert_int_equal(get(f, t[i].off), t[i].val);
	assert_int_equal(f->changes, 0);
	assert_true(f->con.attached);
}

static void writable_bits(void **state)
{
	static const struct {
		unsigned off;
		uint8_t mask;
	} t[] = { { IER, 0x0f }, { LCR, 0x7f }, { MCR, 0x1f }, { SCR, 0xff } };
	struct fixture *f = *state;

	for (size_t i = 0; i < sizeof(t) / sizeof(*t); i++) {
		for (unsigned v = 0; v < 256; v++) {
			put(f, t[i].off, v & (t[i].off == LCR ? 0x7f : 0xff));
			assert_int_equal(get(f, t[i].off), v & t[i].mask);
		}
		put(f, t[i].off, 0);
	}
	put(f, LSR, 0xff);
	put(f, MSR, 0xff);
	put(f, 8, 0xff);
	assert_int_equal(get(f, LSR), 0x60);
	assert_int_equal(get(f, MSR) & 0xf0, 0xb0);
}

static void divisor_latch(void **state)
{
	struct fixture *f = *state;

	put(f, IER, 0x05);
	put(f, LCR, 0x83);
	assert_int_equal(get(f, DLL) | get(f, DLM) << 8, 12);
	put(f, DLL, 0x34);
	put(f, DLM, 0x12);
	assert_int_equal(get(f, DLL), 0x34);
	assert_int_equal(get(f, DLM), 0x12);
	put(f, LCR, 0x03);
	assert_int_equal(get(f, IER), 0x05);
	assert_int_equal(get(f, RBR), 0);
	assert_int_equal(f->con.sent_n, 0);
}

static void bytes_out(void **state)
{
	struct fixture *f = *state;

	put(f, THR, 'o');
	put(f, FCR, 0x01);
	put(f, THR, 'k');
	assert_int_equal(f->con.sent_n, 2);
	assert_memory_equal(f->con.sent, "ok", 2);
	assert_int_equal(get(f, LSR), 0x60);
}

/* IIR by trigger setting and fill; a byte below the trigger is a timeout at once. */
static void triggers(void **state)
{
	static const struct {
		uint8_t fcr, level;
	} t[] = { { 0x01, 1 }, { 0x41, 4 }, { 0x81, 8 }, { 0xc1, 14 } };
	struct fixture *f = *state;

	put(f, MCR, OPEN);
	put(f, IER, 0x01);
	for (size_t i = 0; i < sizeof(t) / sizeof(*t); i++) {
		put(f, FCR, t[i].fcr | 0x02);
		assert_int_equal(get(f, IIR), 0xc1);
		for (unsigned n = 1; n <= 16; n++) {
			assert_int_equal(room(f), 17 - n);
			recv_bytes(f, "x", 1);
			assert_true(f->level);
			assert_int_equal(get(f, IIR), n >= t[i].level ? 0xc4 : 0xcc);
		}
		for (unsigned n = 16; n > 0; n--) {
			assert_int_equal(get(f, IIR), n >= t[i].level ? 0xc4 : 0xcc);
			assert_int_equal(get(f, LSR), 0x61);
			assert_int_equal(get(f, RBR), 'x');
		}
		assert_int_equal(get(f, LSR), 0x60);
		assert_false(f->level);
	}
}

static void without_fifo(void **state)
{
	struct fixture *f = *state;

	put(f, MCR, OPEN);
	put(f, IER, 0x05);
	put(f, FCR, 0xc2); /* without bit 0 nothing is programmed */
	assert_int_equal(room(f), 1);
	recv_bytes(f, "a", 1);
	assert_int_equal(room(f), 0);
	assert_int_equal(get(f, IIR), 0x04);
	recv_bytes(f, "b", 1);
	assert_int_equal(get(f, IIR), 0x06);
	assert_int_equal(get(f, LSR), 0x63);
	assert_int_equal(get(f, LSR), 0x61);
	assert_int_equal(get(f, IIR), 0x04);
	assert_int_equal(get(f, RBR), 'b'); /* the newer one stays */
	assert_int_equal(get(f, IIR), 0x01);
	assert_false(f->level);
}

static void fifo_overrun(void **state)
{
	struct fixture *f = *state;

	put(f, MCR, OPEN);
	put(f, FCR, 0x01);
	recv_bytes(f, "0123456789abcdef!?", 18);
	assert_int_equal(get(f, LSR), 0x63);
	for (unsigned i = 0; i < 16; i++)
		assert_int_equal(get(f, RBR), "0123456789abcdef"[i]);
	assert_int_equal(get(f, LSR), 0x60);
}

static void fifo_resets(void **state)
{
	static const struct {
		uint8_t before, after;
		bool cleared;
	} t[] = {
		{ 0x01, 0x01, false }, { 0x01, 0xc1, false }, { 0x01, 0x05, false }, { 0x01, 0x03, true },
		{ 0x01, 0x00, true },  { 0x00, 0x01, true },  { 0x00, 0x00, false }, { 0x00, 0x02, false },
	};
	struct fixture *f = *state;

	put(f, MCR, RTS);
	for (size_t i = 0; i < sizeof(t) / sizeof(*t); i++) {
		put(f, FCR, t[i].before);
		recv_bytes(f, "z", 1);
		assert_int_equal(get(f, LSR) & 1, 1);
		put(f, FCR, t[i].after);
		assert_int_equal(get(f, LSR) & 1, !t[i].cleared);
		assert_int_equal(get(f, IIR) >> 6, t[i].after & 1 ? 3 : 0);
		get(f, RBR);
	}
}

/* Every source at once; serving the reported one uncovers the next. */
static void priorities(void **state)
{
	struct fixture *f = *state;

	put(f, MCR, LOOP | OUT2);
	put(f, MCR, LOOP | OUT2 | RTS); /* DCTS */
	put(f, THR, 'a');
	put(f, THR, 'b'); /* overrun */
	put(f, IER, 0x0f);
	assert_int_equal(get(f, IIR), 0x06);
	get(f, LSR);
	assert_int_equal(get(f, IIR), 0x04);
	get(f, RBR);
	assert_int_equal(get(f, IIR), 0x02);
	assert_int_equal(get(f, IIR), 0x00);
	assert_true(f->level);
	get(f, MSR);
	assert_int_equal(get(f, IIR), 0x01);
	assert_false(f->level);
	assert_int_equal(f->changes, 2);
}

/* No source is reported, nor raises the line, without its bit in IER. */
static void masks(void **state)
{
	static const uint8_t iir[] = { 0x04, 0x02, 0x06, 0x00 };
	struct fixture *f = *state;

	put(f, MCR, LOOP | OUT2);
	put(f, MCR, LOOP | OUT2 | RTS);
	put(f, THR, 'a');
	put(f, THR, 'b');
	for (unsigned bit = 0; bit < 4; bit++) {
		put(f, IER, 0);
		assert_int_equal(get(f, IIR), 0x01);
		assert_false(f->level);
		put(f, IER, 1 << bit);
		assert_true(f->level);
		assert_int_equal(get(f, IIR), iir[bit]);
	}
}

static void thre(void **state)
{
	struct fixture *f = *state;

	put(f, MCR, OPEN);
	put(f, IER, 0x02); /* enabling finds it empty */
	assert_true(f->level);
	assert_int_equal(get(f, IIR), 0x02);
	assert_false(f->level);
	assert_int_equal(get(f, IIR), 0x01);
	put(f, IER, 0x02); /* no change, no interrupt */
	assert_int_equal(get(f, IIR), 0x01);
	put(f, IER, 0x00);
	put(f, IER, 0x03);
	assert_int_equal(get(f, IIR), 0x02);

	put(f, THR, 'x'); /* gone at once */
	assert_true(f->level);
	put(f, THR, 'y');
	assert_int_equal(get(f, IIR), 0x02);
	assert_int_equal(get(f, IIR), 0x01);

	put(f, THR, 'z'); /* reported as received data: stays pending */
	recv_bytes(f, "r", 1);
	assert_int_equal(get(f, IIR), 0x04);
	get(f, RBR);
	assert_int_equal(get(f, IIR), 0x02);
	assert_false(f->level);
}

static void loop_modem(void **state)
{
	static const struct {
		uint8_t mcr, msr;
	} t[] = {
		{ LOOP, 0x00 },        { LOOP | RTS, 0x11 },  { LOOP | DTR, 0x23 },  { LOOP | OUT1, 0x42 },
		{ LOOP | OUT2, 0x8c }, { LOOP | 0x0a, 0x91 }, { LOOP | 0x0f, 0xf2 }, { LOOP, 0x0f },
	};
	struct fixture *f = *state;

	put(f, MCR, LOOP);
	assert_int_equal(get(f, MSR), 0x0b); /* the ready terminal has gone */
	for (size_t i = 0; i < sizeof(t) / sizeof(*t); i++) {
		put(f, MCR, t[i].mcr);
		assert_int_equal(get(f, MSR), t[i].msr);
		assert_int_equal(get(f, MSR), t[i].msr & 0xf0);
	}
	put(f, MCR, RTS | DTR);
	assert_int_equal(get(f, MSR), 0xbb);
	put(f, MCR, OUT1 | OUT2); /* outputs only */
	assert_int_equal(get(f, MSR), 0xb0);
}

static void loop_data(void **state)
{
	struct fixture *f = *state;

	put(f, FCR, 0x01);
	put(f, MCR, LOOP | RTS);
	assert_int_equal(room(f), 0);
	recv_bytes(f, "lost", 4);
	assert_int_equal(get(f, LSR), 0x60);
	for (unsigned i = 0; i < 20; i++)
		put(f, THR, i);
	assert_int_equal(get(f, LSR), 0x63);
	for (unsigned i = 0; i < 16; i++)
		assert_int_equal(get(f, RBR), i);
	assert_int_equal(get(f, LSR), 0x60);
	assert_int_equal(f->con.sent_n, 0);
	put(f, MCR, RTS);
	assert_int_equal(room(f), 16);
}

static void out2_gates(void **state)
{
	struct fixture *f = *state;

	put(f, IER, 0x02);
	assert_false(f->level);
	put(f, MCR, OUT2);
	assert_true(f->level);
	put(f, MCR, OUT2 | LOOP);
	assert_true(f->level);
	put(f, MCR, 0);
	assert_false(f->level);
	assert_int_equal(get(f, IIR), 0x02); /* only the line is gated */
}

/* Bytes wait on the host until RTS; then con_more() fetches them, and after each read that makes room. */
static void flow_control(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(room(f), 0);
	put(f, FCR, 0x01);
	assert_int_equal(f->con.more, 0);
	put(f, MCR, RTS);
	assert_int_equal(f->con.more, 1);
	assert_int_equal(room(f), 16);
	recv_bytes(f, "abcdefghijklmnop", 16);
	assert_int_equal(room(f), 0);
	get(f, LSR);
	get(f, IIR);
	assert_int_equal(f->con.more, 1);
	get(f, RBR);
	assert_int_equal(f->con.more, 2);
	put(f, MCR, 0);
	assert_int_equal(room(f), 0);
	get(f, RBR);
	assert_int_equal(f->con.more, 2);
	put(f, FCR, 0x03);
	assert_int_equal(f->con.more, 2);
	put(f, MCR, RTS);
	assert_int_equal(f->con.more, 3);
	recv_bytes(f, "q", 1);
	put(f, FCR, 0x03);
	assert_int_equal(f->con.more, 4);
}

/* A break is a null byte and BI while that is the next byte, once; the line interrupt stands for it. */
static void break_and_key(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(uart_break(f->u, 'h'), -ENOTCONN); /* nobody listens */
	put(f, FCR, 0x01);
	put(f, MCR, OPEN);
	put(f, IER, 0x05);
	recv_bytes(f, "a", 1);
	assert_int_equal(uart_break(f->u, 'h'), 0);
	assert_int_equal(room(f), 13);
	recv_bytes(f, "b", 1);
	assert_int_equal(get(f, IIR), 0xc4);
	assert_int_equal(get(f, LSR), 0xe1); /* it is somewhere in the FIFO */
	assert_int_equal(get(f, RBR), 'a');
	assert_int_equal(get(f, IIR), 0xc6);
	assert_int_equal(get(f, LSR), 0xf1);
	assert_int_equal(get(f, LSR), 0x61);
	assert_int_equal(get(f, IIR), 0xc4);
	assert_int_equal(get(f, RBR), 0);
	assert_int_equal(get(f, RBR), 'h');
	assert_int_equal(get(f, LSR), 0x61);
	assert_int_equal(get(f, RBR), 'b');
	assert_int_equal(get(f, LSR), 0x60);
	assert_false(f->level);
}

/* It finds room where the console does not; nothing that waits is lost, nor is there an overrun. */
static void break_when_full(void **state)
{
	struct fixture *f = *state;
	static const char want[] = "0123456789abcdef\0s";

	put(f, FCR, 0x01);
	put(f, MCR, OPEN);
	recv_bytes(f, want, 16);
	assert_int_equal(uart_break(f->u, 's'), 0);
	assert_int_equal(uart_break(f->u, 't'), -EBUSY);
	assert_int_equal(room(f), 0);
	for (unsigned i = 0; i < 18; i++) {
		assert_int_equal(get(f, LSR), i < 16 ? 0xe1 : i == 16 ? 0xf1 : 0x61);
		assert_int_equal(get(f, RBR), want[i]);
		assert_int_equal(room(f), i < 2 ? 0 : i - 1);
	}
	assert_int_equal(f->con.more, 1 + 16);
	assert_int_equal(get(f, LSR), 0x60);

	put(f, FCR, 0x00); /* a single buffer */
	recv_bytes(f, "x", 1);
	assert_int_equal(uart_break(f->u, 's'), 0);
	assert_int_equal(get(f, RBR), 'x');
	assert_int_equal(get(f, LSR), 0x71);
	assert_int_equal(get(f, RBR), 0);
	assert_int_equal(get(f, RBR), 's');
	assert_int_equal(get(f, LSR), 0x60);
}

/* It goes with the FIFO's other bytes, and with a byte that is read unseen; the next one is as the first. */
static void break_forgotten(void **state)
{
	struct fixture *f = *state;

	put(f, FCR, 0x01);
	put(f, MCR, OPEN);
	assert_int_equal(uart_break(f->u, 'h'), 0);
	put(f, FCR, 0x03);
	assert_int_equal(get(f, LSR), 0x60);
	recv_bytes(f, "ab", 2);
	assert_int_equal(get(f, LSR), 0x61);
	get(f, RBR);
	get(f, RBR);
	assert_int_equal(uart_break(f->u, 'h'), 0);
	get(f, RBR);
	assert_int_equal(get(f, LSR), 0x61);
	assert_int_equal(uart_break(f->u, 'h'), 0);
	assert_int_equal(get(f, LSR), 0xe1);
	get(f, RBR);
	assert_int_equal(get(f, LSR), 0xf1);
	put(f, MCR, LOOP | OPEN);
	assert_int_equal(uart_break(f->u, 'h'), -ENOTCONN);
}

static void polling_opens(void **state)
{
	struct fixture *f = *state;

	for (unsigned i = 0; i < 100; i++) { /* an early console: LSR, THR, LSR, THR */
		get(f, LSR);
		get(f, LSR);
		put(f, THR, '.');
	}
	assert_int_equal(room(f), 0);
	for (unsigned i = 0; i < 16; i++)
		get(f, LSR);
	assert_int_equal(room(f), 1);
	assert_int_equal(f->con.more, 1);
	recv_bytes(f, "k", 1);
	assert_int_equal(get(f, RBR), 'k');
	assert_int_equal(room(f), 1);
	put(f, MCR, DTR); /* it knows MCR after all */
	assert_int_equal(room(f), 0);
}

static void unplugged(void **state)
{
	struct fixture *f = *state;
	struct uart *u;
	struct err err;

	assert_int_equal(uart_new("com2", &f->irq, NULL, &u, &err), 0);
	assert_int_equal(uart_read(u, MSR), 0);
	uart_write(u, MCR, RTS);
	uart_write(u, THR, 'x');
	assert_int_equal(uart_read(u, LSR), 0x60);
	uart_free(u);
	uart_free(NULL);
}

/* What autoconfig() of Linux' 8250_port.c asks, in its order: the answer must be 16550A. */
static void linux_autoconfig(void **state)
{
	struct fixture *f = *state;
	unsigned n = 0;

	put(f, IER, 0);
	assert_int_equal(get(f, IER) & 0x0f, 0);
	put(f, IER, 0x0f);
	assert_int_equal(get(f, IER) & 0x0f, 0x0f);
	put(f, IER, 0);
	put(f, MCR, LOOP | 0x0a);
	assert_int_equal(get(f, MSR) & 0xf0, 0x90);
	put(f, MCR, 0);
	put(f, LCR, 0xbf);
	put(f, FCR, 0);
	put(f, LCR, 0);
	put(f, FCR, 0x01);
	assert_int_equal(get(f, IIR) >> 6, 3);
	put(f, LCR, 0x80);
	assert_int_not_equal(get(f, FCR), 0); /* no EFR: not a 16650 */
	put(f, LCR, 0xbf);
	assert_int_not_equal(get(f, FCR), 0);
	put(f, LCR, 0xe0);
	assert_int_equal(get(f, 2) & LOOP, 0); /* no bank 2: not National's */
	put(f, LCR, 0);
	put(f, MCR, LOOP);
	put(f, LCR, 0xe0);
	assert_int_equal(get(f, 2) & LOOP, 0);
	put(f, LCR, 0);
	put(f, MCR, 0);
	for (unsigned lcr = 0; lcr <= 0x80; lcr += 0x80) {
		put(f, LCR, lcr);
		put(f, FCR, 0x21);
		assert_int_equal(get(f, IIR) >> 5, 6); /* no 64-byte mode: not a 16750 */
		put(f, FCR, 0x01);
	}
	put(f, LCR, 0);
	put(f, IER, 0x40);
	assert_int_equal(get(f, IER), 0); /* no UUE: not an XScale */
	put(f, FCR, 0x07);
	put(f, MCR, LOOP);
	put(f, LCR, 0x03);
	for (unsigned i = 0; i < 256; i++)
		put(f, THR, i);
	while (get(f, LSR) & 1) {
		get(f, RBR);
		n++;
	}
	assert_int_equal(n, 16);
	assert_int_equal(f->changes, 0);
	assert_int_equal(f->con.more, 0); /* and nothing typed so far is lost */
}

/* The tests of serial8250_do_startup(): neither UART_BUG_THRE nor UART_BUG_TXEN. */
static void linux_startup(void **state)
{
	struct fixture *f = *state;

	put(f, FCR, 0x01);
	put(f, FCR, 0x07);
	put(f, FCR, 0x00);
	get(f, LSR);
	get(f, RBR);
	get(f, IIR);
	get(f, MSR);
	assert_int_not_equal(get(f, LSR), 0xff);
	for (unsigned i = 0; i < 2; i++) {
		put(f, IER, 0x02);
		assert_int_equal(get(f, IIR) & 1, 0);
		put(f, IER, 0);
	}
	assert_int_equal(f->changes, 0); /* before request_irq() */
	put(f, LCR, 0x03);
	put(f, MCR, OUT2);
	put(f, IER, 0x02);
	assert_int_equal(get(f, LSR) & 0x40, 0x40);
	assert_int_equal(get(f, IIR) & 1, 0);
	put(f, IER, 0);
	assert_false(f->level);
	assert_int_equal(f->con.more, 0);
	put(f, IER, 0x05);
	put(f, FCR, 0x01);
	put(f, FCR, 0x81);
	put(f, MCR, OPEN);
	assert_int_equal(room(f), 16);
}

static uint8_t enabled_by(uint8_t source)
{
	switch (source) {
	case 0x06: return 0x04;
	case 0x04:
	case 0x0c: return 0x01;
	case 0x02: return 0x02;
	default: return 0x08;
	}
}

/* The line against IIR, MCR, IER and LSR. Reading IIR may serve THRE, after which it must hold again. */
static void check_line(struct fixture *f)
{
	bool level = f->level;
	uint8_t mcr = get(f, MCR), iir = get(f, IIR), lcr = get(f, LCR), source = iir & 0x0f;

	assert_int_equal(mcr & ~0x1f, 0);
	assert_int_equal(iir & 0x30, 0);
	assert_int_equal(level, (mcr & OUT2) && !(iir & 1));
	if (iir & 1)
		return;
	if (!(lcr & 0x80))
		assert_true(get(f, IER) & enabled_by(source));
	if (source == 0x0c)
		assert_int_equal(iir & 0xc0, 0xc0);
	if (source == 0x02)
		assert_true(f->level == ((mcr & OUT2) && !(get(f, IIR) & 1)));
}

static void random_step(struct fixture *f, unsigned *seed)
{
	unsigned off = rand_r(seed) % 9, what = rand_r(seed) % 9;
	char byte = rand_r(seed);

	if (what < 3)
		get(f, off);
	else if (what < 6)
		put(f, off, off == LCR && rand_r(seed) % 2 ? 0x03 : byte);
	else if (what == 8)
		uart_break(f->u, byte);
	else if (room(f) || what == 7)
		recv_bytes(f, &byte, 1); /* also where there is no room */
	assert_in_range(room(f), 0, 16);
}

static void random_operations(void **state)
{
	struct fixture *f = *state;
	unsigned seed = 16550;

	for (unsigned i = 0; i < 300000; i++) {
		random_step(f, &seed);
		if (i % 3 == 0)
			check_line(f);
	}
}

struct feeder {
	struct fixture *f;
	unsigned n;
};

static void *feed(void *arg)
{
	struct feeder *feeder = arg;

	for (unsigned i = 0; i < feeder->n;) {
		char byte = i;

		if (!room(feeder->f))
			continue;
		recv_bytes(feeder->f, &byte, 1);
		i++;
	}
	return NULL;
}

/* A driver and a console on two threads: every byte arrives, in order. */
static void two_threads(void **state)
{
	struct fixture *f = *state;
	struct feeder feeder = { .f = f, .n = 20000 };
	pthread_t thread;

	put(f, FCR, 0x81);
	put(f, MCR, OPEN);
	put(f, IER, 0x01);
	assert_int_equal(pthread_create(&thread, NULL, feed, &feeder), 0);
	for (unsigned i = 0; i < feeder.n;) {
		put(f, SCR, i);
		if (!(get(f, LSR) & 1))
			continue;
		assert_int_equal(get(f, RBR), i & 0xff);
		i++;
	}
	pthread_join(thread, NULL);
	assert_int_equal(get(f, LSR), 0x60);
	assert_false(f->level);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(reset_values),
		TEST(writable_bits),
		TEST(divisor_latch),
		TEST(bytes_out),
		TEST(triggers),
		TEST(without_fifo),
		TEST(fifo_overrun),
		TEST(fifo_resets),
		TEST(priorities),
		TEST(masks),
		TEST(thre),
		TEST(loop_modem),
		TEST(loop_data),
		TEST(out2_gates),
		TEST(flow_control),
		TEST(break_and_key),
		TEST(break_when_full),
		TEST(break_forgotten),
		TEST(polling_opens),
		TEST(unplugged),
		TEST(linux_startup),
		TEST(linux_autoconfig),
		TEST(random_operations),
		TEST(two_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
