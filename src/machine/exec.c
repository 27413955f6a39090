// SPDX-License-Identifier: GPL-2.0-or-later
#include "machine/exec.h"

#include "base/bytes.h"
#include "base/container_of.h"
#include "base/loop.h"
#include "console/con.h"
#include "console/stdio.h"
#include "guest/frames.h"

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/*
 * How it works
 *
 * Two consoles: one on descriptors 0 and 1, one on 2. Each is a client of ours
 * as a device's would be: input is asked for while the guest has given credit,
 * output is given to a writer, and the guest gets credit for as much as the
 * writer has written. So nothing is dropped and nothing waits here but what is
 * within a window.
 *
 * The last frame is the status. Then the writers finish, and only then the
 * command has ended for our owner.
 */

struct stream {
	struct exec *x;
	unsigned nr;
	struct con *con;
	uint32_t granted; /* what the guest may still send */
	bool unread;
};

struct exec {
	struct loop *loop;
	struct exec_ops ops;
	struct loop_fd fd;
	struct bytes in, out;
	bool terminal;
	uint32_t credit; /* of input */
	struct stream stream[3];
	unsigned draining;
	int status; /* -1: not told yet */
	bool over;
};

/* To the guest. */

static void over(struct exec *x, int status)
{
	if (x->over)
		return;
	x->over = true;
	x->fd.events = 0;
	x->ops.ended(x->ops.opaque, status);
}

static void flush(struct exec *x)
{
	if (bytes_send(&x->out, x->fd.fd))
		bytes_cut(&x->out, x->out.len); /* what was received is still to be read; then it ends */
	if (!x->over)
		x->fd.events = (short)(POLLIN | (x->out.len ? POLLOUT : 0));
}

static void send_frame(struct exec *x, enum frame_type type, unsigned stream, const void *payload, size_t len)
{
	struct frame f = { .type = (uint8_t)type, .stream = (uint8_t)stream, .len = (uint32_t)len };

	if (bytes_add(&x->out, &f, sizeof(f)) || bytes_add(&x->out, payload, len))
		over(x, -1);
	flush(x);
}

static void send_value(struct exec *x, enum frame_type type, unsigned stream, uint32_t value)
{
	send_frame(x, type, stream, &value, sizeof(value));
}

/* Gives credit for what has been written, but not byte by byte. */
static void grant(struct stream *s)
{
	uint32_t space = s->unread ? 0 : (uint32_t)con_space(s->con, FRAME_WINDOW);

	if (space < s->granted + FRAME_WINDOW / 4)
		return;
	send_value(s->x, FRAME_CREDIT, s->nr, space - s->granted);
	s->granted = space;
}

/* The consoles' client. */

static size_t stream_room(void *dev)
{
	const struct stream *s = dev;

	return s->nr == 1 && s->x->status < 0 && s->x->out.len < FRAME_WINDOW ? s->x->credit : 0;
}

static void stream_recv(void *dev, const uint8_t *buf, size_t n)
{
	struct exec *x = ((struct stream *)dev)->x;

	x->credit -= (uint32_t)n;
	while (n) {
		size_t part = n < FRAME_DATA_MAX ? n : FRAME_DATA_MAX;

		send_frame(x, FRAME_DATA, 0, buf, part);
		buf += part;
		n -= part;
	}
}

static void stream_ended(void *dev)
{
	struct stream *s = dev;

	if (s->nr == 1)
		send_frame(s->x, FRAME_END, 0, NULL, 0);
}

static void stream_spacious(void *dev)
{
	grant(dev);
}

static void stream_unread(void *dev)
{
	struct stream *s = dev;

	s->unread = true;
	send_frame(s->x, FRAME_END, s->nr, NULL, 0);
}

static void on_drained(void *opaque)
{
	struct exec *x = opaque;

	if (--x->draining == 0)
		over(x, x->status);
}

/* From the guest. */

static void finish(struct exec *x, int status)
{
	if (x->status >= 0)
		return;
	x->status = status;
	for (unsigned i = 1; i < 3; i++)
		x->draining += x->stream[i].con != NULL;
	for (unsigned i = 1; i < 3; i++)
		if (x->stream[i].con)
			stdio_drain(x->stream[i].con, on_drained, x);
}

static uint32_t value_of(const struct frame *f, const char *payload)
{
	uint32_t v = 0;

	memcpy(&v, payload, f->len < sizeof(v) ? f->len : sizeof(v));
	return v;
}

static void take_data(struct stream *s, const char *buf, uint32_t n)
{
	if (!s->con)
		return;
	con_send(s->con, (const uint8_t *)buf, n); /* a guest that sends more than its credit loses it */
	s->granted -= n < s->granted ? n : s->granted;
	grant(s);
}

static void take_frame(struct exec *x, const struct frame *f, const char *payload)
{
	struct stream *s = f->stream == 1 || f->stream == 2 ? &x->stream[f->stream] : NULL;

	switch (f->type) {
	case FRAME_STARTED:
		stdio_start(x->stream[1].con);
		x->ops.started(x->ops.opaque);
		break;
	case FRAME_DATA:
		if (s)
			take_data(s, payload, f->len);
		break;
	case FRAME_CREDIT:
		x->credit += value_of(f, payload);
		con_more(x->stream[1].con);
		break;
	case FRAME_EXIT: finish(x, (int)(value_of(f, payload) & 255)); break;
	default: break;
	}
}

static void take_frames(struct exec *x)
{
	size_t at = 0;

	while (x->in.len - at >= sizeof(struct frame)) {
		struct frame f;

		memcpy(&f, x->in.p + at, sizeof(f));
		if (x->in.len - at < sizeof(f) + f.len)
			break;
		take_frame(x, &f, x->in.p + at + sizeof(f));
		at += sizeof(f) + f.len;
	}
	bytes_cut(&x->in, at);
}

static void on_socket(struct loop_fd *f, short revents)
{
	struct exec *x = container_of(f, struct exec, fd);
	char buf[sizeof(struct frame) + FRAME_DATA_MAX];
	ssize_t n = recv(f->fd, buf, sizeof(buf), MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
		flush(x);
		return;
	}
	if (n <= 0 || bytes_add(&x->in, buf, (size_t)n)) {
		f->events = 0;
		if (x->status < 0)
			over(x, -1);
		return;
	}
	take_frames(x);
	flush(x);
}

/* Beginning and end. */

static struct frame_size terminal_size(void)
{
	struct winsize w = { 0 };

	ioctl(STDIN_FILENO, TIOCGWINSZ, &w);
	return (struct frame_size){ .cols = w.ws_col, .rows = w.ws_row };
}

static int send_start(struct exec *x, const struct guest_command *cmd, struct err *err)
{
	struct frame_start head = { .size = terminal_size() };
	struct bytes b = { 0 };
	int error;

	if (x->terminal)
		head.flags = FRAME_TTY | (x->stream[2].con ? 0 : FRAME_TTYERR);
	error = bytes_add(&b, &head, sizeof(head));
	for (char **s = cmd->argv; !error && *s; s++, head.nargs++)
		error = bytes_add(&b, *s, strlen(*s) + 1);
	for (char **s = cmd->env; !error && *s; s++, head.nenv++)
		error = bytes_add(&b, *s, strlen(*s) + 1);
	if (!error)
		error = bytes_add(&b, cmd->dir, strlen(cmd->dir) + 1);
	if (!error && b.len > FRAME_START_MAX)
		error = err_set(err, -E2BIG, "the command's arguments have %zu bytes, more than %u", b.len,
		                FRAME_START_MAX);
	else if (error)
		err_set(err, error, "out of memory");
	if (!error) {
		memcpy(b.p, &head, sizeof(head));
		send_frame(x, FRAME_START, 0, b.p, b.len);
	}
	free(b.p);
	return error;
}

static void on_escape(void *opaque)
{
	struct exec *x = opaque;

	x->ops.escape(x->ops.opaque);
}

static int open_stream(struct exec *x, unsigned nr, int in, struct err *err)
{
	struct stdio_config sc = { .loop = x->loop,
		                   .in = in,
		                   .out = (int)nr,
		                   .terminal = in == 0 && x->terminal,
		                   .hooks = { .end = on_escape, .opaque = x } };
	struct stream *s = &x->stream[nr];
	struct con_client client = { .room = stream_room,
		                     .recv = stream_recv,
		                     .spacious = stream_spacious,
		                     .ended = stream_ended,
		                     .unread = stream_unread,
		                     .dev = s };
	int error = stdio_new(&sc, &s->con, err);

	if (error)
		return error;
	s->x = x;
	s->nr = nr;
	s->granted = FRAME_WINDOW;
	con_attach(s->con, &client);
	return 0;
}

int exec_new(struct loop *loop, int fd, const struct guest_command *cmd, const struct exec_ops *ops, struct exec **out,
             struct err *err)
{
	struct exec *x = calloc(1, sizeof(*x));
	int error;

	if (!x) {
		close(fd);
		return err_set(err, -ENOMEM, "out of memory");
	}
	x->loop = loop;
	x->ops = *ops;
	x->status = -1;
	x->credit = FRAME_WINDOW;
	x->terminal = isatty(0) && isatty(1);
	x->fd = (struct loop_fd){ .fd = fd, .events = POLLIN, .cb = on_socket };
	loop_fd_add(loop, &x->fd);
	error = open_stream(x, 1, 0, err);
	if (!error && !(x->terminal && isatty(2)))
		error = open_stream(x, 2, -1, err);
	if (!error)
		error = send_start(x, cmd, err);
	if (error)
		exec_free(x);
	else
		*out = x;
	return error;
}

void exec_free(struct exec *x)
{
	if (!x)
		return;
	for (unsigned i = 1; i < 3; i++) {
		if (x->stream[i].con)
			con_attach(x->stream[i].con, NULL);
		stdio_free(x->stream[i].con);
	}
	loop_fd_del(x->loop, &x->fd);
	close(x->fd.fd);
	free(x->in.p);
	free(x->out.p);
	free(x);
}

void exec_signal(struct exec *x, int sig)
{
	send_value(x, FRAME_SIGNAL, 0, (uint32_t)sig);
}

void exec_resize(struct exec *x)
{
	struct frame_size size = terminal_size();

	if (x->terminal)
		send_frame(x, FRAME_SIZE, 0, &size, sizeof(size));
}

void exec_suspend(struct exec *x)
{
	stdio_suspend(x->stream[1].con);
}

void exec_resume(struct exec *x)
{
	stdio_resume(x->stream[1].con);
}
