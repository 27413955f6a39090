// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * How it works
 *
 * The chip is its registers, the receive FIFO and one bit `thre`: "the
 * transmitter has run empty since the guest last looked". Every access, from
 * either side, changes these under the lock and then lets irq_update() bring
 * the interrupt line to what they imply, so the line can never be stale and
 * there is no path on which an interrupt could be forgotten.
 *
 * Transmitter: con_send() takes every byte at once, so THR is always empty.
 * The THRE interrupt is pending from enabling it or writing THR until IIR
 * names it. A THR write, which on the chip clears it until the byte has gone,
 * therefore leaves it set. Where it was set already the line makes no pulse:
 * the driver has yet to serve the interrupt it got.
 *
 * Receiver: no time passes on this line, so the character timeout of the FIFO
 * is reported as soon as data sits below the trigger level. A byte that finds
 * no place is an overrun: the FIFO keeps what it has, the single buffer of the
 * 16450 mode takes the new byte. The console asks uart_room() first and only
 * overruns us where the guest made room smaller in between.
 *
 * Flow control: the console's bytes wait on the host until the guest raises
 * RTS, as behind a modem cable. Linux probes its ports with RTS low, empties
 * their FIFOs more than once and raises RTS when a program has opened the port
 * and the FIFO is set up; so input that was there before boot is not lost, and
 * `stty crtscts` works. A simple driver that has never heard of RTS shows
 * itself by polling LSR for data many times with no other access in between,
 * and from then on receives.
 *
 * OUT2 gates the interrupt line, as on a PC. Linux probes with interrupts
 * enabled in IER and OUT2 low, and COM1/COM3 and COM2/COM4 share a line: a port
 * nobody has opened must not hold it. In loopback the register bit counts, not
 * the pin, so that drivers can test their interrupt.
 *
 * Line settings (divisor, length, parity) are kept and have no effect. Parity
 * and framing errors do not occur. A break does (uart_break()): it is a null
 * byte in the FIFO with a mark, which LSR shows as BI while that byte is the
 * next one to be read, once. The ring has two places more than the chip, for a
 * break and the byte after it: as if they had come a little later, once there
 * was room.
 *
 * The lock is a leaf: under it only irq_set() is called, which keeps level
 * changes in order. con_send() and con_more() are called without it, for the
 * console may hold its own lock while it asks for room.
 */
#include "dev/uart.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

/* Offsets. THR, FCR are the write side of RBR, IIR; DLL, DLM show with LCR_DLAB. */
enum { RBR, IER, IIR, LCR, MCR, LSR, MSR, SCR, THR = RBR, DLL = RBR, DLM = IER, FCR = IIR };

#define IER_RX    0x01 /* ERBFI: received data */
#define IER_THRE  0x02 /* ETBEI: transmitter holding register empty */
#define IER_LINE  0x04 /* ELSI: receiver line status */
#define IER_MODEM 0x08 /* EDSSI: modem status */
#define IER_MASK  0x0f

/* What IIR names, the most urgent first. */
#define IIR_LINE      0x06
#define IIR_RX        0x04
#define IIR_TIMEOUT   0x0c
#define IIR_THRE      0x02
#define IIR_MODEM     0x00
#define IIR_NONE      0x01
#define IIR_FIFO      0xc0

#define FCR_ENABLE    0x01
#define FCR_CLEAR_RX  0x02

#define LCR_DLAB      0x80

#define MCR_DTR       0x01
#define MCR_RTS       0x02
#define MCR_OUT1      0x04
#define MCR_OUT2      0x08
#define MCR_LOOP      0x10
#define MCR_MASK      0x1f

#define LSR_DR        0x01
#define LSR_OE        0x02
#define LSR_BI        0x10
#define LSR_THRE      0x20
#define LSR_TEMT      0x40
#define LSR_FIFO_ERR  0x80 /* a marked byte is somewhere in the FIFO */

#define MSR_CTS       0x10
#define MSR_DSR       0x20
#define MSR_RI        0x40
#define MSR_DCD       0x80
#define MSR_LINES     0xf0
#define MSR_DELTAS    0x0f

#define FIFO_LEN      16
#define RING_LEN      (FIFO_LEN + 2)
#define POLLS_TO_OPEN 16
#define DIVISOR_9600  12 /* a PC's habit, and Linux' probe_baud() divides by it */

struct uart {
	struct irq irq;  /* [c] constant after uart_new() */
	struct con *con; /* [c] NULL: nothing is plugged in */

	pthread_mutex_t lock;
	uint8_t ier, lcr, mcr, scr; /* [l] under the lock, like all below */
	uint8_t dll, dlm;           /* [l] */
	uint8_t fcr;                /* [l] enable and trigger bits */
	uint8_t overrun;            /* [l] LSR_OE or 0 */
	uint8_t msr;                /* [l] input lines and their deltas */
	bool thre;                  /* [l] transmitter empty, not yet told by IIR */
	bool level;                 /* [l] what the line was last set to */
	bool polled;                /* [l] the driver polls and ignores RTS */
	uint8_t polls;              /* [l] reads of LSR in a row that found no data */
	uint8_t rx[RING_LEN];       /* [l] a ring of rx_n bytes from rx_head */
	unsigned rx_head, rx_n;     /* [l] */
	int brk;                    /* [l] the index of a break in rx, -1: none */
};

static unsigned rx_capacity(const struct uart *u)
{
	return u->fcr & FCR_ENABLE ? FIFO_LEN : 1;
}

static unsigned rx_trigger(const struct uart *u)
{
	static const uint8_t level[] = { 1, 4, 8, 14 };

	return u->fcr & FCR_ENABLE ? level[u->fcr >> 6] : 1;
}

static void rx_clear(struct uart *u)
{
	u->rx_head = 0;
	u->rx_n = 0;
	u->brk = -1;
}

static unsigned rx_end(const struct uart *u)
{
	return (u->rx_head + u->rx_n) % RING_LEN;
}

static void rx_put(struct uart *u, uint8_t byte)
{
	if (u->rx_n >= rx_capacity(u)) {
		u->overrun = LSR_OE;
		if (!(u->fcr & FCR_ENABLE) && u->rx_n == 1 && u->brk < 0)
			u->rx[u->rx_head] = byte;
		return;
	}
	u->rx[rx_end(u)] = byte;
	u->rx_n++;
}

/* The break that LSR shows now: its byte is the next to be read. */
static uint8_t rx_break(const struct uart *u)
{
	return u->rx_n && u->brk == (int)u->rx_head ? LSR_BI : 0;
}

static uint8_t rx_get(struct uart *u)
{
	uint8_t byte;

	if (!u->rx_n)
		return 0;
	byte = u->rx[u->rx_head];
	if (rx_break(u))
		u->brk = -1; /* LSR was not asked */
	u->rx_head = (u->rx_head + 1) % RING_LEN;
	u->rx_n--;
	return byte;
}

static bool rx_open(const struct uart *u)
{
	return !(u->mcr & MCR_LOOP) && (u->mcr & MCR_RTS || u->polled);
}

/* How many of the console's bytes we would take. */
static unsigned rx_room(const struct uart *u)
{
	unsigned n = rx_capacity(u);

	return rx_open(u) && n > u->rx_n ? n - u->rx_n : 0;
}

static uint8_t irq_source(const struct uart *u)
{
	if (u->ier & IER_LINE && (u->overrun || rx_break(u)))
		return IIR_LINE;
	if (u->ier & IER_RX && u->rx_n)
		return u->rx_n >= rx_trigger(u) ? IIR_RX : IIR_TIMEOUT;
	if (u->ier & IER_THRE && u->thre)
		return IIR_THRE;
	if (u->ier & IER_MODEM && u->msr & MSR_DELTAS)
		return IIR_MODEM;
	return IIR_NONE;
}

static void irq_update(struct uart *u)
{
	bool level = u->mcr & MCR_OUT2 && irq_source(u) != IIR_NONE;

	if (level == u->level)
		return;
	u->level = level;
	irq_set(&u->irq, level);
}

/* The modem's outputs as the chip sees them: a ready terminal, or in loopback our own MCR (8.6.7). */
static uint8_t modem_lines(const struct uart *u)
{
	uint8_t lines = 0;

	if (!(u->mcr & MCR_LOOP))
		return u->con ? MSR_CTS | MSR_DSR | MSR_DCD : 0;
	if (u->mcr & MCR_RTS)
		lines |= MSR_CTS;
	if (u->mcr & MCR_DTR)
		lines |= MSR_DSR;
	if (u->mcr & MCR_OUT1)
		lines |= MSR_RI;
	if (u->mcr & MCR_OUT2)
		lines |= MSR_DCD;
	return lines;
}

/* Each delta bit sits four below its line. RI counts only when it ends. */
static void modem_update(struct uart *u)
{
	uint8_t was = u->msr & MSR_LINES, now = modem_lines(u);
	uint8_t changed = ((was ^ now) & ~MSR_RI) | (was & ~now & MSR_RI);

	u->msr = now | (u->msr & MSR_DELTAS) | changed >> 4;
}

static uint8_t read_iir(struct uart *u)
{
	uint8_t source = irq_source(u);

	if (source == IIR_THRE)
		u->thre = false;
	return source | (u->fcr & FCR_ENABLE ? IIR_FIFO : 0);
}

static uint8_t read_lsr(struct uart *u)
{
	uint8_t lsr = LSR_THRE | LSR_TEMT | u->overrun | rx_break(u);

	if (u->brk >= 0 && u->fcr & FCR_ENABLE)
		lsr |= LSR_FIFO_ERR;
	if (rx_break(u))
		u->brk = -1;
	u->overrun = 0;
	if (u->rx_n)
		lsr |= LSR_DR;
	else if (u->polls < POLLS_TO_OPEN)
		u->polls++;
	if (u->polls == POLLS_TO_OPEN)
		u->polled = true;
	return lsr;
}

static uint8_t read_msr(struct uart *u)
{
	uint8_t msr = u->msr;

	u->msr &= MSR_LINES;
	return msr;
}

static uint8_t read_reg(struct uart *u, unsigned off)
{
	bool dlab = u->lcr & LCR_DLAB;

	if (off != LSR)
		u->polls = 0;
	switch (off) {
	case RBR: return dlab ? u->dll : rx_get(u);
	case IER: return dlab ? u->dlm : u->ier;
	case IIR: return read_iir(u);
	case LCR: return u->lcr;
	case MCR: return u->mcr;
	case LSR: return read_lsr(u);
	case MSR: return read_msr(u);
	case SCR: return u->scr;
	default: return 0xff;
	}
}

static void write_ier(struct uart *u, uint8_t val)
{
	if (val & ~u->ier & IER_THRE)
		u->thre = true;
	u->ier = val & IER_MASK;
}

/* 8.6.4: bit 0 comes first; without it the others are not programmed, and a change of it empties the FIFO. */
static void write_fcr(struct uart *u, uint8_t val)
{
	bool enable = val & FCR_ENABLE;

	if (enable != (u->fcr & FCR_ENABLE) || (enable && val & FCR_CLEAR_RX))
		rx_clear(u);
	u->fcr = enable ? val & (FCR_ENABLE | 0xc0) : 0;
}

static void write_mcr(struct uart *u, uint8_t val)
{
	u->mcr = val & MCR_MASK;
	u->polled = false;
	modem_update(u);
}

/* Returns whether the byte goes out to the console. */
static bool write_thr(struct uart *u, uint8_t val)
{
	u->thre = true;
	if (!(u->mcr & MCR_LOOP))
		return true;
	rx_put(u, val);
	return false;
}

/* Returns whether @val is a byte for the console. */
static bool write_reg(struct uart *u, unsigned off, uint8_t val)
{
	bool dlab = u->lcr & LCR_DLAB;

	u->polls = 0;
	if (off == THR && !dlab)
		return write_thr(u, val);
	if (off == IER && !dlab)
		write_ier(u, val);
	else if (off == DLL)
		u->dll = val;
	else if (off == DLM)
		u->dlm = val;
	else if (off == FCR)
		write_fcr(u, val);
	else if (off == LCR)
		u->lcr = val;
	else if (off == MCR)
		write_mcr(u, val);
	else if (off == SCR)
		u->scr = val;
	return false;
}

uint8_t uart_read(struct uart *u, unsigned off)
{
	unsigned room;
	uint8_t val;
	bool more;

	pthread_mutex_lock(&u->lock);
	room = rx_room(u);
	val = read_reg(u, off);
	irq_update(u);
	more = rx_room(u) > room;
	pthread_mutex_unlock(&u->lock);
	if (more && u->con)
		con_more(u->con);
	return val;
}

void uart_write(struct uart *u, unsigned off, uint8_t val)
{
	unsigned room;
	bool send, more;

	pthread_mutex_lock(&u->lock);
	room = rx_room(u);
	send = write_reg(u, off, val);
	irq_update(u);
	more = rx_room(u) > room;
	pthread_mutex_unlock(&u->lock);
	if (send && u->con)
		con_send(u->con, &val, 1);
	if (more && u->con)
		con_more(u->con);
}

static size_t uart_room(void *dev)
{
	struct uart *u = dev;
	size_t room;

	pthread_mutex_lock(&u->lock);
	room = rx_room(u);
	pthread_mutex_unlock(&u->lock);
	return room;
}

/* In loopback the line is cut (8.6.7): what the console sent on old advice is lost. */
static void uart_recv(void *dev, const uint8_t *buf, size_t n)
{
	struct uart *u = dev;

	pthread_mutex_lock(&u->lock);
	for (size_t i = 0; i < n && !(u->mcr & MCR_LOOP); i++)
		rx_put(u, buf[i]);
	irq_update(u);
	pthread_mutex_unlock(&u->lock);
}

int uart_break(struct uart *u, uint8_t then)
{
	int error = 0;

	pthread_mutex_lock(&u->lock);
	if (!rx_open(u)) {
		error = -ENOTCONN;
	} else if (u->rx_n > RING_LEN - 2 || u->brk >= 0) {
		error = -EBUSY;
	} else {
		u->brk = (int)rx_end(u);
		u->rx[rx_end(u)] = 0;
		u->rx_n++;
		u->rx[rx_end(u)] = then;
		u->rx_n++;
		irq_update(u);
	}
	pthread_mutex_unlock(&u->lock);
	return error;
}

int uart_new(const char *name, const struct irq *irq, struct con *con, struct uart **out, struct err *err)
{
	struct uart *u = calloc(1, sizeof(*u));

	if (!u)
		return err_set(err, -ENOMEM, "%s: out of memory", name);
	u->irq = *irq;
	u->con = con;
	u->brk = -1;
	u->dll = DIVISOR_9600;
	u->msr = modem_lines(u);
	pthread_mutex_init(&u->lock, NULL);
	if (con) {
		struct con_client client = { .room = uart_room, .recv = uart_recv, .dev = u };

		con_attach(con, &client);
	}
	*out = u;
	return 0;
}

void uart_free(struct uart *u)
{
	if (!u)
		return;
	if (u->con)
		con_attach(u->con, NULL);
	pthread_mutex_destroy(&u->lock);
	free(u);
}
