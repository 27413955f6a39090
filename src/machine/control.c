// SPDX-License-Identifier: GPL-2.0-or-later
#include "machine/control.h"

#include "base/bytes.h"
#include "base/container_of.h"
#include "base/loop.h"
#include "machine/rundir.h"

#include <assert.h>
#include <errno.h>
#include <json-c/json.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/*
 * How it works
 *
 * A client is a connection, the bytes of a line that is not complete yet, the
 * replies that its socket did not take yet, and the requests that are answered
 * later. A line is parsed when it is complete, and every complete line is
 * served before more is read.
 *
 * What a client can do to us is bounded. One turn of the loop reads at most
 * READ_LEN bytes of it, so a flood costs the others some milliseconds. A line
 * that is too long or is no JSON object ends the connection. While replies
 * wait for the client to read, none of its requests is read or served; if it
 * reads nothing for STUCK_NS, it is dropped. One client too many drops the one
 * that has been silent for longest, those that wait for an answer last: so a
 * crowd of idle ones cannot keep `kvm stop` out, which says what it wants
 * before it has been let in.
 *
 * A machine that was stopped (SIGSTOP) finds requests whose senders have long
 * given up, or done something else. So a request may say until when it is
 * meant; the clock is CLOCK_MONOTONIC, which is the same for both ends.
 *
 * Closing a socket with unread input would take the last reply from a client
 * that is still writing. So what it has sent is read away first, up to a bound.
 */

#define READ_LEN        1024
#define ACCEPTS         64 /* in one turn */
#define PENDING_MAX     16
#define ID_MAX          256
#define DEPTH_MAX       8
#define OUT_MAX         65536
#define DISCARD_MAX     (1u << 20)
#define STUCK_NS        2000000000ull
#define ACCEPT_AGAIN_NS 1000000000ull

/* A request that is answered later. */
struct pending {
	struct pending *next;
	const struct verb *verb;
	struct json_object *id; /* NULL: none was given */
};

struct client {
	struct control *c;
	struct client *next;
	struct loop_fd fd;
	uint64_t seen; /* when it was last heard of, in calls of touch() */
	struct bytes in, out;
	int given; /* a descriptor that it has sent with what it says, for the next request that wants one; or -1 */
	struct pending *pending;
	unsigned npending;
	bool ended; /* it sends no more; it stays for what is pending */
	bool stuck; /* @out was there at the last tick, too */
};

struct control {
	struct control_config cc;
	struct rundir dir;
	struct rundir_claim claim;
	struct loop_fd listener;
	struct loop_timer accept_again, tick;
	struct client *clients;
	unsigned nclients;
	uint64_t calls;
	int *given; /* of the client that is served now */
};

/* Clients. */

static void touch(struct client *cl)
{
	cl->seen = ++cl->c->calls;
}

static void drop_pending(struct pending *p)
{
	json_object_put(p->id);
	free(p);
}

static void discard_input(int fd)
{
	char buf[4096];

	for (unsigned n = 0; n < DISCARD_MAX; n += sizeof(buf))
		if (recv(fd, buf, sizeof(buf), 0) <= 0)
			break;
}

static void client_free(struct client *cl)
{
	struct client **p;

	for (p = &cl->c->clients; *p != cl; p = &(*p)->next)
		;
	*p = cl->next;
	cl->c->nclients--;
	loop_fd_del(cl->c->cc.loop, &cl->fd);
	discard_input(cl->fd.fd);
	close(cl->fd.fd);
	if (cl->given >= 0)
		close(cl->given);
	for (struct pending *q; (q = cl->pending);) {
		cl->pending = q->next;
		drop_pending(q);
	}
	free(cl->in.p);
	free(cl->out.p);
	free(cl);
}

/* Sends what waits. 0 or -errno: the client is gone. */
static int flush(struct client *cl)
{
	size_t before = cl->out.len;
	int error = bytes_send(&cl->out, cl->fd.fd);

	if (error)
		return error;
	if (cl->out.len < before)
		cl->stuck = false;
	cl->fd.events = cl->out.len ? POLLOUT : cl->ended ? 0 : POLLIN;
	if (cl->out.len && !cl->c->tick.armed)
		loop_timer_set(cl->c->cc.loop, &cl->c->tick, STUCK_NS);
	return 0;
}

/* Takes @o, and its id; sends it as a line. 0 or -errno: the client is to be dropped. */
static int say(struct client *cl, struct json_object *id, struct json_object *o)
{
	const char *s;
	int error;

	if (id)
		json_object_object_add(o, "id", json_object_get(id));
	s = json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE);
	error = s && cl->out.len < OUT_MAX ? bytes_add(&cl->out, s, strlen(s)) : -ENOBUFS;
	if (!error)
		error = bytes_add(&cl->out, "\n", 1);
	json_object_put(o);
	return error ? error : flush(cl);
}

static int say_error(struct client *cl, struct json_object *id, const char *text)
{
	struct json_object *o = json_object_new_object();

	json_object_object_add(o, "ok", json_object_new_boolean(false));
	json_object_object_add(o, "error", json_object_new_string(text));
	return say(cl, id, o);
}

/* The verbs. @rq is the request; what they add to @reply goes out with it, also with one that is not done yet. */

struct verb {
	const char *name;
	int (*serve)(struct control *c, struct json_object *rq, struct json_object *reply, struct err *err);
};

/* Seconds with three digits: json-c itself would print 17. */
static void add_seconds(struct json_object *o, const char *key, uint64_t ns)
{
	uint64_t ms = ns / 1000000;
	double s = (double)ms / 1000;
	char text[32];

	snprintf(text, sizeof(text), "%.3f", s);
	json_object_object_add(o, key, json_object_new_double_s(s, text));
}

static const char *text_of(struct json_object *o)
{
	const char *s = json_object_is_type(o, json_type_string) ? json_object_get_string(o) : "";

	return (size_t)json_object_get_string_len(o) == strlen(s) ? s : "";
}

static void add_string(struct json_object *o, const char *key, const char *val)
{
	json_object_object_add(o, key, json_object_new_string(val));
}

static void add_count(struct json_object *o, const char *key, uint64_t n)
{
	json_object_object_add(o, key, json_object_new_int64((int64_t)n));
}

/* An array, of which there is one at most. */
static void add_net(struct json_object *o, const struct net_status *n)
{
	struct json_object *list = json_object_new_array(), *net, *rx, *tx;

	json_object_object_add(o, "net", list);
	if (!n->name)
		return;
	net = json_object_new_object();
	rx = json_object_new_object();
	tx = json_object_new_object();
	json_object_array_add(list, net);
	add_string(net, "name", n->name);
	json_object_object_add(net, "up", json_object_new_boolean(n->up));
	json_object_object_add(net, "vhost", json_object_new_boolean(n->vhost));
	json_object_object_add(net, "rx", rx);
	add_count(rx, "packets", n->rx);
	add_count(rx, "filtered", n->rx_filtered);
	add_count(rx, "dropped", n->rx_dropped);
	add_count(rx, "bad", n->rx_bad);
	json_object_object_add(net, "tx", tx);
	add_count(tx, "packets", n->tx);
	add_count(tx, "dropped", n->tx_dropped);
	add_count(tx, "bad", n->tx_bad);
}

static int serve_status(struct control *c, struct json_object *rq, struct json_object *reply, struct err *err)
{
	struct control_status st;

	c->cc.ops->status(c->cc.opaque, &st);
	add_string(reply, "name", c->cc.name);
	json_object_object_add(reply, "pid", json_object_new_int(getpid()));
	add_string(reply, "state", st.state);
	add_seconds(reply, "uptime", st.uptime);
	json_object_object_add(reply, "boots", json_object_new_int((int)st.boots));
	json_object_object_add(reply, "cpus", json_object_new_int((int)c->cc.ncpus));
	json_object_object_add(reply, "mem", json_object_new_int64((int64_t)c->cc.mem));
	add_string(reply, "address", c->cc.address);
	add_string(reply, "kernel", c->cc.kernel);
	add_net(reply, &st.net);
	return 0;
}

static int serve_stop(struct control *c, struct json_object *rq, struct json_object *reply, struct err *err)
{
	struct control_wait w = { .what = "the machine ends" };
	struct json_object *force = json_object_object_get(rq, "force");
	int r;

	if (force && !json_object_is_type(force, json_type_boolean))
		return err_set(err, -EINVAL, "force: true or false");
	r = c->cc.ops->stop(c->cc.opaque, json_object_get_boolean(force), &w, err);
	if (r == CONTROL_LATER) {
		add_string(reply, "waiting", w.what);
		if (w.grace)
			add_seconds(reply, "grace", w.grace);
	}
	return r;
}

static int serve_pause(struct control *c, struct json_object *rq, struct json_object *reply, struct err *err)
{
	return c->cc.ops->pause(c->cc.opaque, err);
}

static int serve_resume(struct control *c, struct json_object *rq, struct json_object *reply, struct err *err)
{
	return c->cc.ops->resume(c->cc.opaque, err);
}

static int serve_reboot(struct control *c, struct json_object *rq, struct json_object *reply, struct err *err)
{
	return c->cc.ops->reboot(c->cc.opaque, err);
}

static int serve_nmi(struct control *c, struct json_object *rq, struct json_object *reply, struct err *err)
{
	return c->cc.ops->nmi(c->cc.opaque, err);
}

static int serve_sysrq(struct control *c, struct json_object *rq, struct json_object *reply, struct err *err)
{
	const char *s = text_of(json_object_object_get(rq, "key"));

	if (strlen(s) != 1 || s[0] <= ' ' || s[0] > '~')
		return err_set(err, -EINVAL, "key: one character");
	return c->cc.ops->sysrq(c->cc.opaque, s[0], err);
}

/* The session of a command: a socket, sent along with the request, on which the rest is said (docs/channel.md). */
static int serve_exec(struct control *c, struct json_object *rq, struct json_object *reply, struct err *err)
{
	int fd = *c->given;

	*c->given = -1;
	if (fd < 0)
		return err_set(err, -EINVAL, "exec: a socket is to be sent along (SCM_RIGHTS)");
	return c->cc.ops->exec(c->cc.opaque, fd, err);
}

static const struct verb verbs[] = {
	{ "status", serve_status }, { "stop", serve_stop }, { "pause", serve_pause }, { "resume", serve_resume },
	{ "reboot", serve_reboot }, { "nmi", serve_nmi },   { "sysrq", serve_sysrq }, { "exec", serve_exec },
};

static const struct verb *find_verb(struct json_object *rq)
{
	const char *name = text_of(json_object_object_get(rq, "do"));

	for (unsigned i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
		if (!strcmp(verbs[i].name, name))
			return &verbs[i];
	return NULL;
}

/* Requests. */

static bool id_ok(struct json_object *id)
{
	switch (json_object_get_type(id)) {
	case json_type_null: /* also: there is none */
	case json_type_boolean:
	case json_type_int:
	case json_type_double: return true;
	case json_type_string: return json_object_get_string_len(id) <= ID_MAX;
	default: return false;
	}
}

static bool too_late(struct json_object *until)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return until && json_object_get_double(until) < (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* It is answered later; until then @progress, if it says anything. Takes @progress. */
static int serve_later(struct client *cl, const struct verb *v, struct json_object *id, struct json_object *progress)
{
	struct pending *p = calloc(1, sizeof(*p));

	if (!p) {
		json_object_put(progress);
		return -ENOMEM;
	}
	p->verb = v;
	p->id = json_object_get(id);
	p->next = cl->pending;
	cl->pending = p;
	cl->npending++;
	if (json_object_object_length(progress))
		return say(cl, id, progress);
	json_object_put(progress);
	return 0;
}

/* 0 or -errno: the client is to be dropped. */
static int serve(struct client *cl, struct json_object *rq)
{
	struct json_object *id = json_object_object_get(rq, "id"), *reply;
	const struct verb *v = find_verb(rq);
	struct err err;
	int r;

	if (!id_ok(id))
		return say_error(cl, NULL, "id: a number or a short string");
	if (!v)
		return say_error(cl, id, "do: status, stop, pause, resume, reboot, nmi, sysrq or exec");
	if (too_late(json_object_object_get(rq, "until")))
		return say_error(cl, id, "too late");
	if (cl->npending == PENDING_MAX)
		return say_error(cl, id, "too many requests of this connection are not done yet");
	reply = json_object_new_object();
	cl->c->given = &cl->given;
	r = v->serve(cl->c, rq, reply, &err);
	if (r < 0) {
		json_object_put(reply);
		return say_error(cl, id, err.msg);
	}
	if (r == CONTROL_LATER)
		return serve_later(cl, v, id, reply);
	json_object_object_add(reply, "ok", json_object_new_boolean(true));
	return say(cl, id, reply);
}

static struct json_object *parse(const char *line, size_t len)
{
	struct json_tokener *t = json_tokener_new_ex(DEPTH_MAX);
	struct json_object *o;

	if (!t)
		return NULL;
	json_tokener_set_flags(t, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
	o = json_tokener_parse_ex(t, line, (int)len);
	if (json_tokener_get_error(t) != json_tokener_success || json_tokener_get_parse_end(t) != len ||
	    !json_object_is_type(o, json_type_object)) {
		json_object_put(o);
		o = NULL;
	}
	json_tokener_free(t);
	return o;
}

/* One line without its newline. 0 or -errno: the client is to be dropped. */
static int take_line(struct client *cl, const char *line, size_t len)
{
	struct json_object *rq;
	int error;

	if (len && line[len - 1] == '\r')
		len--;
	if (!len)
		return 0;
	rq = parse(line, len);
	if (!rq) {
		(void)say_error(cl, NULL, "a request is one line with one JSON object");
		return -EPROTO;
	}
	error = serve(cl, rq);
	json_object_put(rq);
	return error;
}

/* Serves the complete lines, as long as the client reads the replies. 0 or -errno: it is to be dropped. */
static int take_lines(struct client *cl)
{
	struct bytes *b = &cl->in;
	char *end;
	int error = 0;

	while (!error && !cl->out.len && b->len && (end = memchr(b->p, '\n', b->len))) {
		size_t n = (size_t)(end - b->p);

		error = n < CONTROL_LINE_MAX ? take_line(cl, b->p, n) : -E2BIG;
		bytes_cut(b, n + 1);
	}
	if (!error && !cl->out.len && b->len >= CONTROL_LINE_MAX)
		error = -E2BIG;
	if (error == -E2BIG)
		(void)say_error(cl, NULL, "the line is too long");
	return error;
}

/* The descriptor that came along, if one did; there is room for no more than one. */
static void take_descriptor(struct client *cl, struct msghdr *msg)
{
	struct cmsghdr *h = CMSG_FIRSTHDR(msg);

	if (!h || h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS || h->cmsg_len != CMSG_LEN(sizeof(int)))
		return;
	if (cl->given >= 0)
		close(cl->given);
	memcpy(&cl->given, CMSG_DATA(h), sizeof(int));
}

/* 0 or -errno: the client is gone. */
static int receive(struct client *cl)
{
	char buf[READ_LEN], space[CMSG_SPACE(sizeof(int))];
	struct iovec iov = { buf, sizeof(buf) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space) };
	ssize_t n = recvmsg(cl->fd.fd, &msg, MSG_CMSG_CLOEXEC);

	if (n == 0 && cl->pending) {
		cl->ended = true;
		cl->fd.events = 0;
		return 0;
	}
	if (n == 0)
		return -EPIPE;
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	take_descriptor(cl, &msg);
	touch(cl);
	return bytes_add(&cl->in, buf, (size_t)n);
}

static void on_client(struct loop_fd *f, short revents)
{
	struct client *cl = container_of(f, struct client, fd);
	int error = cl->out.len ? flush(cl) : receive(cl);

	if (!error)
		error = take_lines(cl);
	if (error)
		client_free(cl);
}

/* Connections. */

/* The one to go when there are too many. */
static struct client *least_missed(struct control *c)
{
	struct client *least = c->clients;

	for (struct client *cl = c->clients; cl; cl = cl->next)
		if (!cl->pending == !least->pending ? cl->seen < least->seen : !cl->pending)
			least = cl;
	return least;
}

static bool may_talk(int fd)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);

	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) && (cred.uid == geteuid() || cred.uid == 0);
}

static int greet(struct client *cl)
{
	struct json_object *o = json_object_new_object();

	json_object_object_add(o, "kvm", json_object_new_int(CONTROL_VERSION));
	add_string(o, "name", cl->c->cc.name);
	json_object_object_add(o, "pid", json_object_new_int(getpid()));
	return say(cl, NULL, o);
}

static void limit_clients(struct control *c)
{
	struct client *cl;

	if (c->nclients <= CONTROL_CLIENTS_MAX)
		return;
	cl = least_missed(c);
	(void)say_error(cl, NULL, "too many connections: this one was silent for longest");
	client_free(cl);
}

/* What it has said by now is served at once: garbage takes nobody's place, and a crowd nobody's turn. */
static void client_new(struct control *c, int fd)
{
	struct client *cl = may_talk(fd) ? calloc(1, sizeof(*cl)) : NULL;
	int error;

	if (!cl) {
		close(fd);
		return;
	}
	cl->c = c;
	cl->given = -1;
	cl->fd = (struct loop_fd){ .fd = fd, .events = POLLIN, .cb = on_client };
	touch(cl);
	cl->next = c->clients;
	c->clients = cl;
	c->nclients++;
	loop_fd_add(c->cc.loop, &cl->fd);
	error = greet(cl);
	if (!error)
		error = receive(cl);
	if (!error)
		error = take_lines(cl);
	if (error)
		client_free(cl);
	else
		limit_clients(c);
}

static void on_connection(struct loop_fd *f, short revents)
{
	struct control *c = container_of(f, struct control, listener);

	for (unsigned i = 0; i < ACCEPTS; i++) {
		int fd = accept4(f->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd >= 0) {
			client_new(c, fd);
		} else if (errno != EINTR && errno != ECONNABORTED) {
			if (errno != EAGAIN) { /* out of descriptors, say: not again at once */
				f->events = 0;
				loop_timer_set(c->cc.loop, &c->accept_again, ACCEPT_AGAIN_NS);
			}
			return;
		}
	}
}

static void on_accept_again(struct loop_timer *t)
{
	container_of(t, struct control, accept_again)->listener.events = POLLIN;
}

/* Who has let replies lie for a whole tick is dropped. */
static void on_tick(struct loop_timer *t)
{
	struct control *c = container_of(t, struct control, tick);
	bool waits = false;

	for (struct client *cl = c->clients, *next; cl; cl = next) {
		next = cl->next;
		if (!cl->out.len)
			continue;
		if (cl->stuck) {
			client_free(cl);
			continue;
		}
		cl->stuck = waits = true;
	}
	if (waits)
		loop_timer_set(c->cc.loop, t, STUCK_NS);
}

/* The end of what is pending. */

struct finish {
	int (*serve)(struct control *, struct json_object *, struct json_object *, struct err *); /* NULL: all verbs */
	void (*fill)(struct json_object *reply, const struct pending *p, const char *arg);
	const char *arg;
};

/* 0 or -errno: the client is to be dropped. */
static int finish_client(struct client *cl, const struct finish *f)
{
	struct pending **at = &cl->pending, *p;
	int error = 0;

	while (!error && (p = *at)) {
		struct json_object *reply;

		if (f->serve && p->verb->serve != f->serve) {
			at = &p->next;
			continue;
		}
		*at = p->next;
		cl->npending--;
		reply = json_object_new_object();
		f->fill(reply, p, f->arg);
		error = say(cl, p->id, reply);
		drop_pending(p);
	}
	return error ? error : cl->ended && !cl->pending && !cl->out.len ? -EPIPE : 0;
}

static void finish(struct control *c, const struct finish *f)
{
	for (struct client *cl = c->clients, *next; cl; cl = next) {
		next = cl->next;
		if (finish_client(cl, f))
			client_free(cl);
	}
}

static void fill_booted(struct json_object *reply, const struct pending *p, const char *arg)
{
	json_object_object_add(reply, "ok", json_object_new_boolean(true));
}

static void fill_ended(struct json_object *reply, const struct pending *p, const char *reason)
{
	bool ok = p->verb->serve == serve_stop;

	json_object_object_add(reply, "ok", json_object_new_boolean(ok));
	if (!ok)
		add_string(reply, "error", "the machine has ended");
	add_string(reply, "end", reason);
}

void control_booted(struct control *c)
{
	if (c)
		finish(c, &(struct finish){ .serve = serve_reboot, .fill = fill_booted });
}

/* Beginning and end. */

int control_new(const struct control_config *cc, struct control **out, struct err *err)
{
	struct control *c = calloc(1, sizeof(*c));
	int error;

	if (!c)
		return err_set(err, -ENOMEM, "out of memory");
	c->cc = *cc;
	error = rundir_open(&c->dir, true, err);
	if (!error)
		error = rundir_claim(&c->dir, cc->name, &c->claim, err);
	if (error) {
		rundir_close(&c->dir);
		free(c);
		return error;
	}
	c->listener = (struct loop_fd){ .fd = c->claim.fd, .events = POLLIN, .cb = on_connection };
	c->accept_again.cb = on_accept_again;
	c->tick.cb = on_tick;
	loop_fd_add(cc->loop, &c->listener);
	*out = c;
	return 0;
}

void control_free(struct control *c, const char *reason)
{
	if (!c)
		return;
	finish(c, &(struct finish){ .fill = fill_ended, .arg = reason });
	while (c->clients)
		client_free(c->clients); /* NOLINT(clang-analyzer-unix.Malloc): it takes itself off the list */
	loop_timer_del(c->cc.loop, &c->accept_again);
	loop_timer_del(c->cc.loop, &c->tick);
	loop_fd_del(c->cc.loop, &c->listener);
	rundir_release(&c->dir, c->cc.name, &c->claim);
	rundir_close(&c->dir);
	free(c);
}
