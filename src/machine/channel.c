// SPDX-License-Identifier: GPL-2.0-or-later
#include "machine/channel.h"

#include "base/bytes.h"
#include "base/container_of.h"
#include "base/log.h"
#include "base/loop.h"
#include "console/con_impl.h"
#include "guest/frames.h"

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/*
 * How it works
 *
 * Frames from a socket get their session's number and go into one queue for
 * the guest; frames from the guest go into the queue of their session's
 * socket. The credit of the two ends bounds both. Who breaks it is held: a
 * socket is not read while the guest's queue is long, and the guest's buffers
 * are not given back while a socket's queue is.
 *
 * Nothing is read from sockets before init has said hello. A client that goes
 * away has its command hung up, and its number stays taken until the guest
 * tells that it has ended. With a boot all its sessions end.
 */

#define SESSIONS_MAX 64
#define QUEUE_MAX    (4 * FRAME_WINDOW)

struct session {
	struct channel *c;
	struct session *next;
	uint16_t id;
	bool gone;  /* its client has left: the fd is closed */
	bool over;  /* the guest is done with it: the fd is closed once all is sent */
	bool begun; /* FRAME_START went to the guest */
	struct loop_fd fd;
	struct bytes in, out; /* from the client, to it */
};

struct channel {
	struct con con;
	struct loop *loop;
	struct loop_task task; /* the guest has room */
	struct bytes in, out;  /* from the guest, to it */
	struct session *sessions;
	unsigned nsessions;
	uint16_t last_id;
	bool hello;
	bool confused; /* the guest speaks nonsense: it is not listened to any more */
	bool held;     /* the device waits for space */
};

static void session_free(struct session *s)
{
	struct channel *c = s->c;
	struct session **p;

	for (p = &c->sessions; *p != s; p = &(*p)->next)
		;
	*p = s->next;
	c->nsessions--;
	if (!s->gone) {
		loop_fd_del(c->loop, &s->fd);
		close(s->fd.fd);
	}
	free(s->in.p);
	free(s->out.p);
	free(s);
}

static struct session *find(struct channel *c, uint16_t id)
{
	struct session *s = c->sessions;

	while (s && s->id != id)
		s = s->next;
	return s;
}

/* To the guest. */

static void to_guest(struct channel *c, enum frame_type type, const struct session *s, unsigned stream,
                     const void *payload, uint32_t len)
{
	struct frame f = { .type = (uint8_t)type, .stream = (uint8_t)stream, .session = s ? s->id : 0, .len = len };

	if (bytes_add(&c->out, &f, sizeof(f)) || bytes_add(&c->out, payload, len)) {
		log_line("out of memory: commands in the guest are cut off");
		c->confused = true;
	}
}

/* Its client has left: as when a terminal is hung up. */
static void hang_up(struct session *s)
{
	const uint32_t sighup = 1;
	struct channel *c = s->c;

	loop_fd_del(c->loop, &s->fd);
	close(s->fd.fd);
	s->gone = true;
	if (!s->begun || s->over) {
		session_free(s);
		return;
	}
	for (unsigned stream = 0; stream < 3; stream++)
		to_guest(c, FRAME_END, s, stream, NULL, 0);
	to_guest(c, FRAME_SIGNAL, s, 0, &sighup, sizeof(sighup));
	loop_post(c->loop, &c->task);
}

/* A client says only what is its own business. */
static bool may_say(const struct session *s, const struct frame *f)
{
	switch (f->type) {
	case FRAME_START: return !s->begun && f->len <= FRAME_START_MAX;
	case FRAME_DATA: return f->len <= FRAME_DATA_MAX;
	case FRAME_END:
	case FRAME_CREDIT:
	case FRAME_SIGNAL:
	case FRAME_SIZE: return f->len <= sizeof(uint32_t);
	default: return false;
	}
}

/* The command of another one than the machine's own may not end the machine. */
static void start(struct session *s, char *payload, uint32_t len)
{
	struct frame_start head;

	s->begun = true;
	if (len < sizeof(head))
		return;
	memcpy(&head, payload, sizeof(head));
	head.flags &= ~FRAME_MAIN;
	if (!s->id)
		head.flags |= FRAME_MAIN;
	memcpy(payload, &head, sizeof(head));
}

/* Every whole frame of the client's. 0, or -EPROTO: it speaks nonsense. */
static int take_frames(struct session *s)
{
	size_t at = 0;
	int error = 0;

	while (s->in.len - at >= sizeof(struct frame)) {
		char *p = s->in.p + at;
		struct frame f;

		memcpy(&f, p, sizeof(f));
		if (!may_say(s, &f)) {
			error = -EPROTO;
			break;
		}
		if (s->in.len - at < sizeof(f) + f.len)
			break;
		if (f.type == FRAME_START)
			start(s, p + sizeof(f), f.len);
		if (s->begun)
			to_guest(s->c, f.type, s, f.stream, p + sizeof(f), f.len);
		at += sizeof(f) + f.len;
	}
	bytes_cut(&s->in, at);
	return error;
}

static bool may_read(const struct session *s)
{
	return s->c->hello && !s->over && s->c->out.len < QUEUE_MAX;
}

static void set_events(struct session *s)
{
	s->fd.events = (short)((may_read(s) ? POLLIN : POLLRDHUP) | (s->out.len ? POLLOUT : 0));
}

/* 0, or -errno: the client is gone. */
static int receive(struct session *s)
{
	char buf[sizeof(struct frame) + FRAME_DATA_MAX];
	ssize_t n = recv(s->fd.fd, buf, sizeof(buf), MSG_DONTWAIT);
	int error;

	if (n == 0)
		return -EPIPE;
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	error = bytes_add(&s->in, buf, (size_t)n);
	return error ? error : take_frames(s);
}

/* The device may go on, once no socket's queue is long. */
static void unhold(struct channel *c)
{
	for (const struct session *s = c->sessions; s; s = s->next)
		if (s->out.len >= QUEUE_MAX)
			return;
	if (!c->held)
		return;
	c->held = false;
	if (c->con.client.spacious)
		c->con.client.spacious(c->con.client.dev);
}

/* Gives the guest what it has room for, and looks which sockets are to be read. */
static void pump(struct channel *c)
{
	size_t room;

	while (c->out.len && (room = con_room(&c->con))) {
		size_t n = room < c->out.len ? room : c->out.len;

		con_recv(&c->con, (uint8_t *)c->out.p, n);
		bytes_cut(&c->out, n);
	}
	for (struct session *s = c->sessions; s; s = s->next)
		if (!s->gone)
			set_events(s);
}

static void on_socket(struct loop_fd *f, short revents)
{
	struct session *s = container_of(f, struct session, fd);
	struct channel *c = s->c;
	int error = bytes_send(&s->out, s->fd.fd);

	if (!error && may_read(s) && revents & (POLLIN | POLLHUP | POLLERR))
		error = receive(s);
	else if (!error && revents & (POLLHUP | POLLERR | POLLRDHUP))
		error = -EPIPE;
	if (error)
		hang_up(s);
	else if (s->over && !s->out.len)
		session_free(s);
	unhold(c);
	pump(c);
}

static void on_task(struct loop_task *t)
{
	pump(container_of(t, struct channel, task));
}

/* From the guest. */

static void take_frame(struct channel *c, const struct frame *f, const char *payload)
{
	struct session *s = find(c, f->session);

	if (f->type == FRAME_HELLO) {
		c->hello = true;
		return;
	}
	if (!s || !s->begun)
		return;
	s->over |= f->type == FRAME_EXIT;
	if (s->gone) {
		if (s->over)
			session_free(s);
		return;
	}
	if (bytes_add(&s->out, f, sizeof(*f)) || bytes_add(&s->out, payload, f->len) || bytes_send(&s->out, s->fd.fd))
		hang_up(s);
	else if (s->over && !s->out.len)
		session_free(s);
}

/* Whatever a guest may send: the longest frame is bounded, and strange ones are for nobody. */
static void take_guest_frames(struct channel *c)
{
	size_t at = 0;

	while (c->in.len - at >= sizeof(struct frame)) {
		struct frame f;

		memcpy(&f, c->in.p + at, sizeof(f));
		if (f.len > FRAME_DATA_MAX) {
			guest_bug("init", "a frame of %u bytes", f.len);
			c->confused = true;
			break;
		}
		if (c->in.len - at < sizeof(f) + f.len)
			break;
		take_frame(c, &f, c->in.p + at + sizeof(f));
		at += sizeof(f) + f.len;
	}
	bytes_cut(&c->in, at);
}

static void channel_send(struct con *con, const uint8_t *buf, size_t n)
{
	struct channel *c = container_of(con, struct channel, con);

	if (c->confused || bytes_add(&c->in, buf, n))
		return;
	take_guest_frames(c);
	loop_post(c->loop, &c->task); /* not from here, inside the device */
}

static size_t channel_space(struct con *con, size_t want)
{
	struct channel *c = container_of(con, struct channel, con);

	for (const struct session *s = c->sessions; s; s = s->next) {
		if (s->out.len >= QUEUE_MAX) {
			c->held = true;
			return 0;
		}
	}
	return want;
}

static void channel_more(struct con *con)
{
	struct channel *c = container_of(con, struct channel, con);

	loop_post(c->loop, &c->task);
}

static void reset(struct channel *c, bool for_good)
{
	c->hello = c->confused = c->held = false;
	bytes_cut(&c->in, c->in.len);
	bytes_cut(&c->out, c->out.len);
	for (struct session *s = c->sessions, *next; s; s = next) {
		next = s->next;
		s->over |= s->begun || for_good;
		if (s->over && (s->gone || !s->out.len))
			session_free(s);
		else
			set_events(s);
	}
}

static void channel_attached(struct con *con)
{
	reset(container_of(con, struct channel, con), false);
}

void channel_end(struct channel *c)
{
	reset(c, true);
}

/* Beginning and end. */

int channel_new(struct loop *loop, struct channel **out, struct err *err)
{
	static const struct con_ops con_ops = { channel_attached, channel_send, channel_space, channel_more };
	struct channel *c = calloc(1, sizeof(*c));

	if (!c)
		return err_set(err, -ENOMEM, "out of memory");
	c->con.ops = &con_ops; /* and no tail: con_init() is not for it */
	c->loop = loop;
	c->task.cb = on_task;
	*out = c;
	return 0;
}

void channel_free(struct channel *c)
{
	if (!c)
		return;
	while (c->sessions)
		session_free(c->sessions); /* NOLINT(clang-analyzer-unix.Malloc): it takes itself off the list */
	loop_task_del(c->loop, &c->task);
	bytes_cut(&c->in, c->in.len);
	bytes_cut(&c->out, c->out.len);
	free(c);
}

struct con *channel_con(struct channel *c)
{
	return &c->con;
}

/* Session 0 is the main one. */
static uint16_t new_id(struct channel *c)
{
	do
		c->last_id++;
	while (!c->last_id || find(c, c->last_id));
	return c->last_id;
}

int channel_attach(struct channel *c, int fd, bool main, struct err *err)
{
	struct session *s = c->nsessions < SESSIONS_MAX ? calloc(1, sizeof(*s)) : NULL;

	if (!s) {
		close(fd);
		return err_set(err, -EMFILE, "too many commands run in the guest already");
	}
	s->c = c;
	s->id = main ? 0 : new_id(c);
	s->fd = (struct loop_fd){ .fd = fd, .cb = on_socket };
	s->next = c->sessions;
	c->sessions = s;
	c->nsessions++;
	loop_fd_add(c->loop, &s->fd);
	set_events(s);
	return 0;
}

void channel_poweroff(struct channel *c)
{
	if (!c->hello)
		return;
	to_guest(c, FRAME_POWEROFF, NULL, 0, NULL, 0);
	pump(c);
}
