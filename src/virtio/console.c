// SPDX-License-Identifier: GPL-2.0-or-later
#include "virtio/console.h"

#include "base/container_of.h"

#include <errno.h>
#include <linux/virtio_console.h>
#include <linux/virtio_ids.h>
#include <stdlib.h>
#include <string.h>

/*
 * How it works
 *
 * Input. A port's console asks for room before it reads its source. Room is
 * the buffer the guest has posted: one chain is popped and held as @rx until
 * bytes come, and only while there is none do we ask the driver for kicks.
 *
 * Output. A chain is sent when its console has space for it. Where there is
 * none it is held as @tx, and the guest waits for its buffer: that is flow
 * control, and a flood arrives whole at a reader who reads. But Linux spins
 * while hvc0 waits, so a reader who stands still for PATIENCE loses the rest:
 * until there is space again the port then sends without asking, and the
 * console drops. A plain stream waits for ever.
 *
 * Control messages to the guest are not queued: each port has a set of things
 * to tell (TELL_), told as the guest posts buffers.
 */

#define QUEUE_SIZE  128
#define MAX_PIECES  64
#define PATIENCE_NS 1000000000ull
#define TURN_BYTES  (256u << 10) /* sent before others on the loop have their turn */
#define CTRL_RX     2
#define CTRL_TX     3

/* Open before the name, by which it is found: Linux's driver reads an unopened port as ended. */
enum { TELL_ADD = 1, TELL_CONSOLE = 2, TELL_OPEN = 4, TELL_NAME = 8, TELL_SIZE = 16 };

/* All on the loop. */
struct port {
	struct vconsole *v;
	unsigned id;
	struct vconsole_port cfg;
	unsigned tell;
	bool impatient; /* sends without asking for space */
	struct loop_timer patience;
	bool has_rx, has_tx;
	struct chain rx, tx;
	struct iovec rx_iov[MAX_PIECES], tx_iov[MAX_PIECES];
};

struct vconsole {
	struct virtio_dev dev;
	struct loop *loop;
	unsigned nports;
	struct port port[];
};

static struct vconsole *of_dev(struct virtio_dev *d)
{
	return container_of(d, struct vconsole, dev);
}

/* Queues of a port: those of port 0 come before the control queues. */
static unsigned rx_queue(unsigned port)
{
	return port ? 2 * port + 2 : 0;
}

static unsigned tx_queue(unsigned port)
{
	return rx_queue(port) + 1;
}

static struct virtq *ring(struct vconsole *v, unsigned q)
{
	return v->dev.queue[q].broken ? NULL : v->dev.queue[q].ring;
}

/* Input. */

/* Holds a chain with room in it, if the guest has posted one. */
static bool take_rx(struct port *p)
{
	struct virtio_dev *d = &p->v->dev;
	unsigned q = rx_queue(p->id), empty = 0;
	struct virtq *r = ring(p->v, q);

	if (!r || d->paused)
		return false;
	while (!p->has_rx && empty < QUEUE_SIZE) {
		int got = virtio_pop(d, q, &p->rx, p->rx_iov, MAX_PIECES);

		if (got < 0 || (got == 0 && !virtq_rearm(r)))
			break;
		p->has_rx = got && p->rx.in_len;
		if (got && !p->has_rx) {
			virtq_push(r, &p->rx, 0);
			empty++;
		}
	}
	if (empty)
		virtio_flush(d, q);
	if (empty == QUEUE_SIZE)
		virtio_again(d, q); /* others have their turn */
	if (p->has_rx)
		virtq_disarm(r);
	return p->has_rx;
}

static size_t port_room(void *dev)
{
	struct port *p = dev;

	return take_rx(p) ? p->rx.in_len : 0;
}

static void port_recv(void *dev, const uint8_t *buf, size_t n)
{
	struct port *p = dev;
	unsigned q = rx_queue(p->id);

	while (n && take_rx(p)) {
		size_t put = chain_put(&p->rx, buf, n);

		p->has_rx = false;
		virtq_push(ring(p->v, q), &p->rx, (uint32_t)put);
		buf += put;
		n -= put;
	}
	virtio_flush(&p->v->dev, q);
}

/* Output. */

/* Sends as much of the held chain as its console keeps, and @budget allows; true: all of it. */
static bool send_some(struct port *p, size_t *budget)
{
	struct chain *c = &p->tx;
	uint8_t buf[4096];

	while (c->out_pos < c->out_len) {
		size_t want = c->out_len - c->out_pos < sizeof(buf) ? c->out_len - c->out_pos : sizeof(buf);

		if (!*budget || (con_space(p->cfg.con, want) < want && !p->impatient))
			return false;
		want = chain_get(c, buf, want);
		con_send(p->cfg.con, buf, want);
		*budget -= want < *budget ? want : *budget;
	}
	return true;
}

/* Holds the next chain to send, if the guest has offered one. */
static bool take_tx(struct port *p, struct virtq *r)
{
	while (!p->has_tx) {
		int got = virtio_pop(&p->v->dev, tx_queue(p->id), &p->tx, p->tx_iov, MAX_PIECES);

		if (got < 0 || (got == 0 && !virtq_rearm(r)))
			return false;
		p->has_tx = got;
	}
	virtq_disarm(r);
	return true;
}

/* Works on the transmit queue until it is empty, the console is full, or others on the loop have their turn. */
static void pump_tx(struct port *p)
{
	struct vconsole *v = p->v;
	unsigned q = tx_queue(p->id), n = 0;
	size_t budget = TURN_BYTES; /* a chain may have 4 GiB */
	struct virtq *r;

	while ((r = ring(v, q)) && !v->dev.paused) {
		if (n++ == QUEUE_SIZE) {
			virtio_again(&v->dev, q);
			break;
		}
		if (!take_tx(p, r))
			break;
		if (!send_some(p, &budget)) {
			if (!budget)
				virtio_again(&v->dev, q);
			else if (p->cfg.tty && !p->patience.armed)
				loop_timer_set(v->loop, &p->patience, PATIENCE_NS);
			break;
		}
		p->has_tx = false;
		virtq_push(r, &p->tx, 0);
	}
	virtio_flush(&v->dev, q);
}

static void port_spacious(void *dev)
{
	struct port *p = dev;

	p->impatient = false;
	loop_timer_del(p->v->loop, &p->patience);
	pump_tx(p);
}

static void on_impatient(struct loop_timer *t)
{
	struct port *p = container_of(t, struct port, patience);

	p->impatient = true;
	pump_tx(p);
}

/* Control. */

static struct virtio_console_control message(const struct port *p, uint16_t event, uint16_t value)
{
	return (struct virtio_console_control){ .id = p->id, .event = event, .value = value };
}

/* The next thing to tell about @p, with its payload; returns the message's length. */
static size_t next_message(struct port *p, uint8_t *buf, size_t len)
{
	struct virtio_console_control c;
	const void *payload = NULL;
	size_t n = 0;
	uint16_t size[2]; /* cols, rows: the order of struct virtio_console_resize in Linux's driver */
	unsigned what = p->tell & -p->tell;

	p->tell &= ~what;
	switch (what) {
	case TELL_ADD: c = message(p, VIRTIO_CONSOLE_PORT_ADD, 1); break;
	case TELL_CONSOLE: c = message(p, VIRTIO_CONSOLE_CONSOLE_PORT, 1); break;
	case TELL_NAME:
		c = message(p, VIRTIO_CONSOLE_PORT_NAME, 1);
		payload = p->cfg.name;
		n = strlen(p->cfg.name);
		break;
	case TELL_OPEN: c = message(p, VIRTIO_CONSOLE_PORT_OPEN, 1); break;
	default:
		c = message(p, VIRTIO_CONSOLE_RESIZE, 0);
		pthread_mutex_lock(&p->v->dev.lock);
		memcpy(size, p->v->dev.config, sizeof(size));
		pthread_mutex_unlock(&p->v->dev.lock);
		payload = size;
		n = sizeof(size);
		break;
	}
	if (n > len - sizeof(c))
		n = len - sizeof(c);
	memcpy(buf, &c, sizeof(c));
	if (n)
		memcpy(buf + sizeof(c), payload, n);
	return sizeof(c) + n;
}

static struct port *port_to_tell(struct vconsole *v)
{
	for (unsigned i = 0; i < v->nports; i++)
		if (v->port[i].tell)
			return &v->port[i];
	return NULL;
}

/* Tells the guest what it has not been told yet, as far as it has posted buffers. */
static void pump_control(struct vconsole *v)
{
	struct iovec iov[MAX_PIECES];
	uint8_t buf[256];
	struct port *p;
	struct chain c;

	while ((p = port_to_tell(v)) && ring(v, CTRL_RX) && !v->dev.paused) {
		int got = virtio_pop(&v->dev, CTRL_RX, &c, iov, MAX_PIECES);
		size_t n;

		if (got < 0 || (got == 0 && !virtq_rearm(ring(v, CTRL_RX))))
			break;
		if (!got)
			continue;
		n = next_message(p, buf, sizeof(buf));
		virtq_push(ring(v, CTRL_RX), &c, (uint32_t)chain_put(&c, buf, n));
	}
	virtio_flush(&v->dev, CTRL_RX);
}

static void port_ready(struct port *p)
{
	p->tell |= TELL_OPEN;
	if (p->cfg.tty)
		p->tell |= TELL_CONSOLE | TELL_SIZE;
	if (p->cfg.name)
		p->tell |= TELL_NAME;
}

static void on_control(struct vconsole *v, const struct virtio_console_control *c)
{
	switch (c->event) {
	case VIRTIO_CONSOLE_DEVICE_READY:
		for (unsigned i = 0; c->value && i < v->nports; i++)
			v->port[i].tell |= TELL_ADD;
		break;
	case VIRTIO_CONSOLE_PORT_READY:
		if (c->value && c->id < v->nports)
			port_ready(&v->port[c->id]);
		break;
	default: break; /* PORT_OPEN: whether somebody listens is the guest's business */
	}
}

static void serve_control(struct virtio_dev *d, unsigned q, struct chain *c)
{
	struct virtio_console_control msg;

	if (chain_get(c, &msg, sizeof(msg)) == sizeof(msg))
		on_control(of_dev(d), &msg);
	virtq_push(d->queue[q].ring, c, 0);
}

/* The class. */

static struct port *port_of_queue(struct vconsole *v, unsigned q)
{
	return &v->port[q < CTRL_RX ? 0 : q / 2 - 1];
}

static void vconsole_kick(struct virtio_dev *d, unsigned q)
{
	struct vconsole *v = of_dev(d);
	struct iovec iov[MAX_PIECES];

	if (q == CTRL_TX)
		virtio_serve(d, q, iov, MAX_PIECES, serve_control);
	if (q == CTRL_RX || q == CTRL_TX)
		pump_control(v);
	else if (q % 2)
		pump_tx(port_of_queue(v, q));
	else
		con_more(port_of_queue(v, q)->cfg.con);
}

static void vconsole_start(struct virtio_dev *d, unsigned q)
{
	struct vconsole *v = of_dev(d);

	for (unsigned i = 0; q == CTRL_RX && i < v->nports; i++)
		v->port[i].tell = 0; /* a new driver asks anew */
}

/* Held chains go back into the ring: nothing of them has been used, or the rest is lost with the driver. */
static void vconsole_stop(struct virtio_dev *d, unsigned q)
{
	struct vconsole *v = of_dev(d);
	struct port *p = port_of_queue(v, q);

	if (q == rx_queue(p->id) && p->has_rx) {
		p->has_rx = false;
		virtq_unpop(d->queue[q].ring, &p->rx);
	}
	if (q == tx_queue(p->id)) {
		loop_timer_del(v->loop, &p->patience);
		if (p->has_tx)
			virtq_unpop(d->queue[q].ring, &p->tx);
		p->has_tx = false;
	}
	virtio_queue_stopped(d, q);
}

static void vconsole_config_write(struct virtio_dev *d, unsigned off, unsigned size, uint64_t val)
{
	uint8_t byte = (uint8_t)val;

	if (off == offsetof(struct virtio_console_config, emerg_wr))
		con_send(of_dev(d)->port[0].cfg.con, &byte, 1);
}

static const struct virtio_class vconsole_class = {
	.name = "console",
	.id = VIRTIO_ID_CONSOLE,
	.features = 1ull << VIRTIO_CONSOLE_F_SIZE | 1ull << VIRTIO_CONSOLE_F_MULTIPORT |
	            1ull << VIRTIO_CONSOLE_F_EMERG_WRITE,
	.config_len = sizeof(struct virtio_console_config),
	.queue_start = vconsole_start,
	.kick = vconsole_kick,
	.queue_stop = vconsole_stop,
	.config_write = vconsole_config_write,
};

static void attach(struct vconsole *v)
{
	for (unsigned i = 0; i < v->nports; i++) {
		struct con_client client = {
			.room = port_room, .recv = port_recv, .spacious = port_spacious, .dev = &v->port[i]
		};

		con_attach(v->port[i].cfg.con, &client);
	}
}

int vconsole_new(const struct vconsole_port *ports, unsigned nports, const struct gmem *mem, struct loop *loop,
                 struct vconsole **out, struct err *err)
{
	struct virtio_init init = { .class = &vconsole_class,
		                    .name = "console",
		                    .mem = mem,
		                    .nqueues = 2 * nports + 2,
		                    .queue_size = QUEUE_SIZE,
		                    .loop = loop };
	struct virtio_console_config config = { .max_nr_ports = nports };
	struct vconsole *v = calloc(1, sizeof(*v) + nports * sizeof(v->port[0]));
	int error;

	if (!v)
		return err_set(err, -ENOMEM, "out of memory");
	v->loop = loop;
	error = virtio_dev_init(&v->dev, &init, err);
	if (error) {
		vconsole_free(v);
		return error;
	}
	v->nports = nports;
	for (unsigned i = 0; i < nports; i++) {
		v->port[i].v = v;
		v->port[i].id = i;
		v->port[i].cfg = ports[i];
		v->port[i].patience.cb = on_impatient;
	}
	memcpy(v->dev.config, &config, sizeof(config));
	attach(v);
	*out = v;
	return 0;
}

void vconsole_free(struct vconsole *v)
{
	if (!v)
		return;
	for (unsigned i = 0; i < v->nports; i++)
		con_attach(v->port[i].cfg.con, NULL);
	virtio_dev_exit(&v->dev);
	free(v);
}

struct virtio_dev *vconsole_dev(struct vconsole *v)
{
	return &v->dev;
}

void vconsole_settle(struct vconsole *v)
{
	for (unsigned i = 0; i < v->nports; i++)
		pump_tx(&v->port[i]);
}

void vconsole_resize(struct vconsole *v, uint16_t cols, uint16_t rows)
{
	uint16_t size[2] = { cols, rows };

	virtio_set_config(&v->dev, offsetof(struct virtio_console_config, cols), size, sizeof(size));
	if (v->port[0].cfg.tty)
		v->port[0].tell |= TELL_SIZE;
	pump_control(v);
}
