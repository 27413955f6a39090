// SPDX-License-Identifier: GPL-2.0-or-later
#include "p9client.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPARE 3000000000u /* a fid that no test uses */

#define CHECK(x)                                                              \
	do {                                                                  \
		if (!(x)) {                                                   \
			fprintf(stderr, "p9client.c:%d: %s\n", __LINE__, #x); \
			abort();                                              \
		}                                                             \
	} while (0)

void p9c_init(struct p9c *c, struct p9 *p9, struct loop *loop)
{
	*c = (struct p9c){ .p9 = p9, .loop = loop, .room = P9C_MAX, .seed = 1, .reply = malloc(P9C_MAX) };
	CHECK(c->reply);
}

void p9c_exit(struct p9c *c)
{
	free(c->reply);
}

static size_t build(uint8_t *buf, uint8_t type, uint16_t tag, const char *format, va_list ap)
{
	struct iovec iov = { buf, P9C_MAX };
	struct wire w;
	size_t n;

	wire_init(&w, &iov, 1);
	wire_put_u32(&w, 0);
	wire_put_u8(&w, type);
	wire_put_u16(&w, tag);
	for (; *format; format++) {
		const void *p;

		switch (*format) {
		case 'b': wire_put_u8(&w, (uint8_t)va_arg(ap, unsigned)); break;
		case 'h': wire_put_u16(&w, (uint16_t)va_arg(ap, unsigned)); break;
		case 'u': wire_put_u32(&w, va_arg(ap, unsigned)); break;
		case 'q': wire_put_u64(&w, va_arg(ap, uint64_t)); break;
		case 's': wire_put_str(&w, va_arg(ap, const char *)); break;
		default:
			CHECK(*format == 'd');
			p = va_arg(ap, const void *);
			wire_put(&w, p, va_arg(ap, size_t));
		}
	}
	CHECK(!w.bad);
	n = P9C_MAX - w.left;
	wire_init(&w, &iov, 1);
	wire_put_u32(&w, (uint32_t)n);
	return n;
}

size_t p9c_build(uint8_t *buf, uint8_t type, uint16_t tag, const char *format, ...)
{
	va_list ap;
	size_t n;

	va_start(ap, format);
	n = build(buf, type, tag, format, ap);
	va_end(ap);
	return n;
}

static unsigned roll(struct p9c *c, unsigned n)
{
	c->seed = c->seed * 1103515245u + 12345u;
	return (c->seed >> 8) % n;
}

/* Cuts @n bytes into pieces, mostly few and at the beginning, some of them empty. */
static unsigned cut(struct p9c_req *r, struct iovec *iov, size_t n)
{
	unsigned max = 1 + roll(r->c, 8), count = 0;

	do {
		size_t len = count + 1 == max ? n : roll(r->c, n < 40 ? (unsigned)n + 1 : 40);

		iov[count].iov_len = len;
		iov[count].iov_base = r->pieces[r->npieces++] = malloc(len ? len : 1);
		CHECK(iov[count].iov_base);
		memset(iov[count].iov_base, 0xdb, len);
		count++;
		n -= len;
	} while (count < max);
	return count;
}

static void on_done(struct p9_req *req, uint32_t len)
{
	struct p9c_req *r = (struct p9c_req *)req;

	CHECK(!r->done);
	r->done = true;
	r->len = len;
	loop_quit(r->c->loop);
}

int p9c_submit(struct p9c *c, struct p9c_req **out, const void *msg, size_t n)
{
	struct p9c_req *r = calloc(1, sizeof(*r));
	struct wire w;
	int len;

	CHECK(r);
	r->c = c;
	r->req = (struct p9_req){ .out = r->out, .in = r->in, .done = on_done };
	r->req.nout = cut(r, r->out, n);
	r->req.nin = cut(r, r->in, c->room);
	if (n >= P9_HEADER) {
		r->type = ((const uint8_t *)msg)[4];
		memcpy(&r->tag, (const uint8_t *)msg + 5, 2);
	}
	wire_init(&w, r->out, r->req.nout);
	wire_put(&w, msg, n);
	len = p9_submit(c->p9, &r->req);
	CHECK(!r->done && len <= (int)c->room);
	if (len) {
		r->done = true;
		r->len = len < 0 ? 0 : (uint32_t)len;
	}
	*out = r;
	return len;
}

static struct p9c_req *vsend(struct p9c *c, uint8_t type, const char *format, va_list ap)
{
	uint8_t *buf = malloc(P9C_MAX);
	struct p9c_req *r;
	size_t n;

	CHECK(buf);
	c->tag = (uint16_t)((c->tag + 1) % 60000);
	n = build(buf, type, c->tag, format, ap);
	CHECK(p9c_submit(c, &r, buf, n) >= 0);
	free(buf);
	return r;
}

struct p9c_req *p9c_send(struct p9c *c, uint8_t type, const char *format, ...)
{
	struct p9c_req *r;
	va_list ap;

	va_start(ap, format);
	r = vsend(c, type, format, ap);
	va_end(ap);
	return r;
}

void p9c_free(struct p9c_req *r)
{
	for (unsigned i = 0; i < r->npieces; i++)
		free(r->pieces[i]);
	free(r);
}

/* Reads the header of a reply: well formed, or the test ends. */
static int take(struct p9c_req *r)
{
	struct p9c *c = r->c;
	struct wire w;
	uint8_t type;

	if (!r->len)
		return -ECANCELED;
	wire_init(&w, r->in, r->req.nin);
	wire_get(&w, c->reply, r->len);
	c->iov = (struct iovec){ c->reply, r->len };
	wire_init(&c->r, &c->iov, 1);
	CHECK(wire_u32(&c->r) == r->len);
	type = wire_u8(&c->r);
	CHECK(wire_u16(&c->r) == r->tag && !c->r.bad);
	if (type == P9_RLERROR) {
		int error = (int)wire_u32(&c->r);

		CHECK(error > 0 && error < 4096 && r->len == P9_ERROR_SIZE);
		return -error;
	}
	CHECK(type == r->type + 1);
	return 0;
}

int p9c_wait(struct p9c_req *r)
{
	int error;

	while (!r->done)
		CHECK(!loop_run(r->c->loop));
	error = take(r);
	p9c_free(r);
	return error;
}

int p9c_call(struct p9c *c, uint8_t type, const char *format, ...)
{
	struct p9c_req *r;
	va_list ap;

	va_start(ap, format);
	r = vsend(c, type, format, ap);
	va_end(ap);
	return p9c_wait(r);
}

struct qid p9c_qid(struct p9c *c)
{
	struct qid q = { .type = wire_u8(&c->r) };

	q.version = wire_u32(&c->r);
	q.path = wire_u64(&c->r);
	CHECK(!c->r.bad);
	return q;
}

int p9c_start(struct p9c *c, uint32_t msize, uint32_t fid, uint32_t uid)
{
	int error = p9c_call(c, P9_TVERSION, "us", msize, "9P2000.L");

	return error ? error : p9c_call(c, P9_TATTACH, "uussu", fid, P9_NOFID, "", "", uid);
}

int p9c_walk(struct p9c *c, uint32_t fid, uint32_t newfid, const char *path)
{
	uint8_t names[8192];
	size_t len = 0;
	unsigned n = 0;
	int error;

	while (*path) {
		size_t k = strcspn(path, "/");

		CHECK(len + k + 2 <= sizeof(names));
		names[len++] = (uint8_t)k;
		names[len++] = (uint8_t)(k >> 8);
		memcpy(names + len, path, k);
		len += k;
		n++;
		path += path[k] ? k + 1 : k;
	}
	error = p9c_call(c, P9_TWALK, "uuhd", fid, newfid, n, names, len);
	if (error)
		return error;
	return wire_u16(&c->r) == n ? 0 : -ENOENT;
}

int p9c_getattr(struct p9c *c, uint32_t fid, struct p9c_attr *a)
{
	int error = p9c_call(c, P9_TGETATTR, "uq", fid, (uint64_t)0x3fff);
	uint64_t *v;

	if (error)
		return error;
	a->valid = wire_u64(&c->r);
	a->qid = p9c_qid(c);
	a->mode = wire_u32(&c->r);
	a->uid = wire_u32(&c->r);
	a->gid = wire_u32(&c->r);
	for (v = &a->nlink; v <= &a->btime_ns; v++)
		*v = wire_u64(&c->r);
	wire_skip(&c->r, 16);
	CHECK(!c->r.bad && !c->r.left);
	return 0;
}

int p9c_open(struct p9c *c, uint32_t fid, uint32_t flags)
{
	return p9c_call(c, P9_TLOPEN, "uu", fid, flags);
}

int p9c_create(struct p9c *c, uint32_t dirfid, uint32_t newfid, const char *name, uint32_t flags, uint32_t mode)
{
	int error = p9c_walk(c, dirfid, newfid, "");

	if (error)
		return error;
	error = p9c_call(c, P9_TLCREATE, "usuuu", newfid, name, flags, mode, 0u);
	if (error)
		CHECK(!p9c_clunk(c, newfid));
	return error;
}

int p9c_read(struct p9c *c, uint32_t fid, uint64_t off, void *buf, uint32_t n)
{
	int error = p9c_call(c, P9_TREAD, "uqu", fid, off, n);

	if (error)
		return error;
	error = (int)wire_u32(&c->r);
	CHECK((uint32_t)error <= n && c->r.left == (size_t)error);
	wire_get(&c->r, buf, (size_t)error);
	return error;
}

int p9c_write(struct p9c *c, uint32_t fid, uint64_t off, const void *buf, uint32_t n)
{
	int error = p9c_call(c, P9_TWRITE, "uqud", fid, off, n, buf, (size_t)n);

	return error ? error : (int)wire_u32(&c->r);
}

int p9c_clunk(struct p9c *c, uint32_t fid)
{
	return p9c_call(c, P9_TCLUNK, "u", fid);
}

int p9c_setxattr(struct p9c *c, uint32_t fid, const char *name, const void *v, uint32_t n, uint32_t flags)
{
	int error = p9c_walk(c, fid, SPARE, "");

	if (!error)
		error = p9c_call(c, P9_TXATTRCREATE, "usqu", SPARE, name, (uint64_t)n, flags);
	if (error) {
		p9c_clunk(c, SPARE);
		return error;
	}
	if (n)
		CHECK(p9c_write(c, SPARE, 0, v, n) == (int)n);
	return p9c_clunk(c, SPARE);
}

int p9c_getxattr(struct p9c *c, uint32_t fid, const char *name, void *v, uint32_t n)
{
	int error = p9c_call(c, P9_TXATTRWALK, "uus", fid, SPARE, name);

	if (error)
		return error;
	CHECK(wire_u64(&c->r) <= n);
	error = p9c_read(c, SPARE, 0, v, n);
	CHECK(!p9c_clunk(c, SPARE));
	return error;
}
