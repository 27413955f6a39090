// SPDX-License-Identifier: GPL-2.0-or-later
#include "console/sink.h"

#include "console/con_impl.h"

#include <errno.h>
#include <stdlib.h>

/* The tail is kept by the console that the output goes to, for all of its writers together. */
struct sink {
	struct con con;
	struct con *to;
};

static void sink_attached(struct con *con)
{
}

static void sink_send(struct con *con, const uint8_t *buf, size_t n)
{
	con_send(((struct sink *)con)->to, buf, n);
}

static size_t sink_space(struct con *con, size_t want)
{
	return want; /* a client here is not told of space again, so it drops, like any UART */
}

static void sink_more(struct con *con)
{
}

int sink_new(struct con *to, struct con **out, struct err *err)
{
	static const struct con_ops ops = { sink_attached, sink_send, sink_space, sink_more };
	struct sink *s = calloc(1, sizeof(*s));

	if (!s)
		return err_set(err, -ENOMEM, "out of memory");
	s->con.ops = &ops;
	s->to = to;
	*out = &s->con;
	return 0;
}

void sink_free(struct con *con)
{
	free(con);
}
