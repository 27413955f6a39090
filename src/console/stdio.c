// SPDX-License-Identifier: GPL-2.0-or-later
#include "console/stdio.h"

#include "base/container_of.h"
#include "base/evt.h"
#include "base/log.h"
#include "base/loop.h"
#include "console/con_impl.h"
#include "console/escape.h"
#include "console/terminal.h"
#include "console/writer.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/*
 * How it works
 *
 * Output goes to a writer (console/writer.h). A failed write means that nobody
 * reads any more: the VM lives, its output goes to the tail only, and a client
 * that wants to know is told.
 *
 * Input. The descriptor is polled only while the device has room, and read for
 * at most that, so a flood stays where it comes from. A terminal is the
 * exception: there up to IN_SIZE bytes are read ahead, or else ^A x would not
 * be seen once a hung guest has left 16 typed bytes in its FIFO. Only a
 * terminal has the escape key.
 *
 * con_more() must be cheap, since a UART calls it for every byte the guest
 * takes. So @starved is set before the device is asked for its room; whoever
 * makes room afterwards sees it. This needs the room to change under a lock
 * that room() takes too, or to be a seq_cst atomic.
 *
 * The terminal is raw only while we are in its foreground. Nobody tells a
 * running background job that it was brought to the foreground (the shell's
 * `fg` sends SIGCONT only to stopped ones), so meanwhile a timer looks. A
 * terminal without job control for us (not our controlling terminal: `su -c`,
 * a test's pty) has no foreground and counts as ours.
 *
 * Other threads reach the loop through an eventfd rather than loop_post(): a
 * posted task cannot be taken back, and stdio_free() may come at any time.
 *
 * Not done: another process reading the same descriptor 0 may take a byte
 * between poll and read, and the loop waits for the next one.
 */

#define IN_SIZE            4096u
#define FOREGROUND_POLL_NS 500000000u

/* [l], except @starved */
struct input {
	struct loop_fd fd;
	struct escape escape;
	bool tty;
	bool started;
	bool ours; /* not a terminal, or one that we are in the foreground of */
	bool ended, end_told;
	atomic_bool starved; /* con_more() shall wake the loop */
	size_t len;
	uint8_t buf[IN_SIZE]; /* read, not yet taken */
};

struct stdio {
	struct con con;
	struct loop *loop;        /* [c] */
	struct stdio_hooks hooks; /* [c] */
	struct writer *out;       /* [c] */
	struct input in;
	struct loop_fd event;          /* [l] */
	struct loop_timer foreground;  /* [l] */
	void (*drained)(void *opaque); /* [l] */
	void *drained_opaque;          /* [l] */
	bool told;                     /* [l] that nobody reads */
};

static void stdio_send(struct con *con, const uint8_t *buf, size_t n)
{
	writer_put(container_of(con, struct stdio, con)->out, buf, n);
}

static size_t stdio_space(struct con *con, size_t want)
{
	return writer_space(container_of(con, struct stdio, con)->out, want);
}

static void tell_unread(struct stdio *s, int error)
{
	const struct con_client *c = &s->con.client;

	if (!error || s->told)
		return;
	s->told = true;
	if (c->unread)
		c->unread(c->dev);
	else
		log_line("standard output: %s: console output is discarded from now on", strerror(error));
}

/* Tells once that nobody reads; calls back when there is space again, and once all is written. */
static void output_check(struct stdio *s)
{
	struct writer_news news;

	writer_check(s->out, &news);
	if (news.spacious && s->con.client.spacious)
		s->con.client.spacious(s->con.client.dev);
	tell_unread(s, news.error);
	if (news.drained)
		s->drained(s->drained_opaque); /* may free @s */
}

/* How much to read now. */
static size_t input_want(struct stdio *s)
{
	struct input *in = &s->in;
	size_t room;

	if (!in->started || !in->ours || in->ended)
		return 0;
	if (in->tty)
		return IN_SIZE - in->len - in->escape.held; /* a ^A held back may come out of it */
	room = con_room(&s->con);
	if (room > IN_SIZE)
		room = IN_SIZE;
	return room > in->len ? room - in->len : 0;
}

static void input_deliver(struct stdio *s)
{
	struct input *in = &s->in;
	uint8_t buf[IN_SIZE];
	size_t n;

	while (in->started && in->len && (n = con_room(&s->con))) {
		if (n > in->len)
			n = in->len;
		/* Out of the buffer first: recv() may come back to us. */
		memcpy(buf, in->buf, n);
		in->len -= n;
		memmove(in->buf, in->buf + n, in->len);
		con_recv(&s->con, buf, n);
	}
}

/* No more comes: tells who wants to know, once. */
static void input_end(struct stdio *s)
{
	const struct con_client *c = &s->con.client;

	if (!c->ended || s->in.end_told)
		return;
	s->in.end_told = true;
	c->ended(c->dev);
}

/* Hands over what the device takes, then polls if more is wanted, or waits for con_more(). */
static void input_pump(struct stdio *s)
{
	struct input *in = &s->in;
	bool want;

	assert(loop_here(s->loop));
	atomic_store(&in->starved, true); /* before room() is asked */
	input_deliver(s);
	if (in->started && in->ended && !in->len)
		input_end(s);
	want = input_want(s) > 0;
	if (want && !in->len)
		atomic_store(&in->starved, false);
	in->fd.events = want ? POLLIN : 0;
}

/* Later, from the loop: the device may be half built yet. */
static void stdio_attached(struct con *con)
{
	evt_signal(container_of(con, struct stdio, con)->event.fd);
}

static void stdio_more(struct con *con)
{
	struct stdio *s = container_of(con, struct stdio, con);

	if (atomic_load(&s->in.starved) && atomic_exchange(&s->in.starved, false))
		evt_signal(s->event.fd);
}

static void print_help(void)
{
	log_line("^A x  end the VM");
	log_line("^A ^A  send ^A to the guest");
	log_line("^A h  this help");
}

/* Takes @n bytes read. Returns whether the user wants an end. */
static bool input_feed(struct input *in, const uint8_t *buf, size_t n)
{
	bool end = false;

	for (size_t i = 0; i < n; i++) {
		uint8_t out[2] = { buf[i] };
		size_t nout = 1;
		enum escape_action action = in->tty ? escape_feed(&in->escape, buf[i], out, &nout) : ESCAPE_NONE;

		assert(in->len + nout <= IN_SIZE);
		memcpy(in->buf + in->len, out, nout);
		in->len += nout;
		end |= action == ESCAPE_END;
		if (action == ESCAPE_HELP)
			print_help();
	}
	return end;
}

/* The terminal becomes raw, or it is watched until we are in its foreground. */
static void input_acquire(struct stdio *s)
{
	s->in.ours = !s->in.tty || terminal_is_ours();
	if (!s->in.ours) {
		terminal_restore();
		loop_timer_set(s->loop, &s->foreground, FOREGROUND_POLL_NS);
	} else if (s->in.tty) {
		terminal_make_raw();
	}
	input_pump(s);
}

/* Nothing was read: a passing matter, the terminal is somebody else's now, or this is the end. */
static void input_none(struct stdio *s, int error)
{
	if (error == EINTR || error == EAGAIN)
		return;
	if (error == EIO && s->in.tty && !terminal_is_ours()) {
		input_acquire(s);
		return;
	}
	s->in.ended = true;
}

static void input_ready(struct loop_fd *f, short revents)
{
	struct stdio *s = container_of(f, struct stdio, in.fd);
	uint8_t buf[IN_SIZE];
	bool end = false;
	size_t want;
	ssize_t n;

	if (s->in.tty && !terminal_is_ours()) {
		input_acquire(s); /* reading would stop us by SIGTTIN */
		return;
	}
	want = input_want(s);
	if (want) {
		n = read(f->fd, buf, want);
		if (n > 0)
			end = input_feed(&s->in, buf, (size_t)n);
		else
			input_none(s, n < 0 ? errno : 0);
	}
	input_pump(s);
	if (end)
		s->hooks.end(s->hooks.opaque); /* may free @s */
}

static void foreground_tick(struct loop_timer *t)
{
	input_acquire(container_of(t, struct stdio, foreground));
}

static void event_ready(struct loop_fd *f, short revents)
{
	struct stdio *s = container_of(f, struct stdio, event);
	uint64_t count;
	ssize_t n = read(f->fd, &count, sizeof(count));

	(void)n; /* nonblocking; empty is as good */
	input_pump(s);
	output_check(s);
}

static const struct con_ops stdio_ops = {
	.attached = stdio_attached,
	.send = stdio_send,
	.space = stdio_space,
	.more = stdio_more,
};

static void stdio_init(struct stdio *s, const struct stdio_config *cfg, int event)
{
	s->loop = cfg->loop;
	s->hooks = cfg->hooks;
	s->in.tty = cfg->terminal;
	s->in.ended = cfg->in < 0;
	s->in.fd = (struct loop_fd){ .fd = cfg->in, .cb = input_ready };
	s->event = (struct loop_fd){ .fd = event, .events = POLLIN, .cb = event_ready };
	s->foreground.cb = foreground_tick;
	loop_fd_add(s->loop, &s->event);
	if (cfg->in >= 0)
		loop_fd_add(s->loop, &s->in.fd);
}

int stdio_new(const struct stdio_config *cfg, struct con **out, struct err *err)
{
	struct stdio *s = calloc(1, sizeof(*s));
	int event, error;

	assert(!cfg->terminal || cfg->in == STDIN_FILENO);
	if (!s || con_init(&s->con, &stdio_ops) < 0) {
		free(s);
		return err_set(err, -ENOMEM, "console: out of memory");
	}
	event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	error = event < 0 ? -errno : writer_new(cfg->out, event, &s->out);
	if (error) {
		if (event >= 0)
			close(event);
		con_destroy(&s->con);
		free(s);
		return err_sys(err, error, "console");
	}
	stdio_init(s, cfg, event);
	*out = &s->con;
	return 0;
}

void stdio_start(struct con *con)
{
	struct stdio *s = container_of(con, struct stdio, con);

	s->in.started = true;
	input_acquire(s);
}

void stdio_suspend(struct con *con)
{
	struct stdio *s = container_of(con, struct stdio, con);

	if (!s->in.tty)
		return;
	loop_timer_del(s->loop, &s->foreground);
	s->in.ours = false;
	terminal_restore();
	input_pump(s);
}

void stdio_resume(struct con *con)
{
	struct stdio *s = container_of(con, struct stdio, con);

	if (s->in.started)
		input_acquire(s);
}

void stdio_drain(struct con *con, void (*done)(void *opaque), void *opaque)
{
	struct stdio *s = container_of(con, struct stdio, con);

	assert(loop_here(s->loop));
	s->drained = done;
	s->drained_opaque = opaque;
	writer_drain(s->out);
}

void stdio_free(struct con *con)
{
	struct stdio *s;
	uint64_t lost;
	int error;

	if (!con)
		return;
	s = container_of(con, struct stdio, con);
	assert(loop_here(s->loop));
	lost = writer_free(s->out, &error);
	if (s->in.tty)
		terminal_unguard();
	loop_timer_del(s->loop, &s->foreground);
	if (s->in.fd.fd >= 0)
		loop_fd_del(s->loop, &s->in.fd);
	loop_fd_del(s->loop, &s->event);
	close(s->event.fd);
	tell_unread(s, error);
	if (lost)
		log_line("%llu bytes of console output were dropped: the reader was too slow",
		         (unsigned long long)lost);
	con_destroy(&s->con);
	free(s);
}
