// SPDX-License-Identifier: GPL-2.0-or-later
#include "fakecon.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEED(x) ((x) ? (void)0 : (fprintf(stderr, "fakecon: %s\n", #x), abort()))

static struct fakecon *of_con(struct con *con)
{
	return (struct fakecon *)((char *)con - offsetof(struct fakecon, con));
}

static void keep(struct fakecon *c, const uint8_t *buf, size_t n)
{
	if (c->nout + n > c->out_size) {
		c->out_size = 2 * (c->nout + n);
		c->out = realloc(c->out, c->out_size);
		NEED(c->out);
	}
	memcpy(c->out + c->nout, buf, n);
	c->nout += n;
}

static void con_out(struct con *con, const uint8_t *buf, size_t n)
{
	struct fakecon *c = of_con(con);

	c->sent += n;
	if (c->space == SIZE_MAX)
		return;
	if (n > c->space) {
		c->dropped += n - c->space;
		n = c->space;
	}
	if (n)
		keep(c, buf, n);
	c->space -= n;
}

static size_t con_has_space(struct con *con, size_t want)
{
	struct fakecon *c = of_con(con);

	if (c->space >= want)
		return want;
	c->crowded = true;
	return c->space;
}

static void con_wants_more(struct con *con)
{
	struct fakecon *c = of_con(con);

	loop_post(c->loop, &c->feed);
}

static void on_feed(struct loop_task *t)
{
	struct fakecon *c = (struct fakecon *)((char *)t - offsetof(struct fakecon, feed));
	size_t n;

	while (c->nin) {
		c->asked++;
		n = con_room(&c->con);
		if (!n)
			break;
		n = n < c->nin ? n : c->nin;
		n = c->most && c->most < n ? c->most : n;
		con_recv(&c->con, c->in, n);
		c->in += n;
		c->nin -= n;
	}
}

static void on_spacious(struct loop_task *t)
{
	struct fakecon *c = (struct fakecon *)((char *)t - offsetof(struct fakecon, spacious));

	if (c->con.client.spacious)
		c->con.client.spacious(c->con.client.dev);
}

void fakecon_init(struct fakecon *c, struct loop *loop)
{
	static const struct con_ops ops = { con_wants_more, con_out, con_has_space, con_wants_more };

	*c = (struct fakecon){ .loop = loop, .feed.cb = on_feed, .spacious.cb = on_spacious };
	NEED(!con_init(&c->con, &ops));
}

void fakecon_exit(struct fakecon *c)
{
	NEED(!c->con.client.room); /* detached */
	loop_task_del(c->loop, &c->feed);
	loop_task_del(c->loop, &c->spacious);
	con_destroy(&c->con);
	free(c->out);
}

void fakecon_give(struct fakecon *c, size_t n)
{
	c->space = n > SIZE_MAX - c->space ? SIZE_MAX : c->space + n;
	if (c->crowded)
		loop_post(c->loop, &c->spacious);
	c->crowded = false;
}

void fakecon_type(struct fakecon *c, const uint8_t *buf, size_t n)
{
	NEED(!c->nin);
	c->in = buf;
	c->nin = n;
	loop_post(c->loop, &c->feed);
}
