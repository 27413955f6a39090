// SPDX-License-Identifier: GPL-2.0-or-later
#include "console/con.h"

#include "console/con_impl.h"
#include "console/stdio.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * How it works
 *
 * Every byte sent goes two ways: into the tail, and to the back end. The tail
 * is a ring that never fills: byte number i of the stream lies at i % CON_TAIL,
 * so one counter says all there is to know. It keeps what a slow reader
 * missed, too; a panic is most likely to be there.
 *
 * The tail is plain malloc()ed memory and is never read where it was not
 * written, so a quiet guest pays for the pages it wrote and no others.
 */

int con_init(struct con *con, const struct con_ops *ops)
{
	*con = (struct con){ .ops = ops, .tail = malloc(CON_TAIL) };
	if (!con->tail)
		return -ENOMEM;
	pthread_mutex_init(&con->lock, NULL);
	return 0;
}

void con_destroy(struct con *con)
{
	pthread_mutex_destroy(&con->lock);
	free(con->tail);
}

void con_attach(struct con *con, const struct con_client *client)
{
	con->client = client ? *client : (struct con_client){ 0 };
	con->ops->attached(con);
}

size_t con_room(const struct con *con)
{
	return con->client.room ? con->client.room(con->client.dev) : 0;
}

void con_recv(struct con *con, const uint8_t *buf, size_t n)
{
	con->client.recv(con->client.dev, buf, n);
}

static void tail_put(struct con *con, const uint8_t *buf, size_t n)
{
	pthread_mutex_lock(&con->lock);
	if (n > CON_TAIL) {
		con->sent += n - CON_TAIL;
		buf += n - CON_TAIL;
		n = CON_TAIL;
	}
	while (n) {
		size_t at = con->sent % CON_TAIL, part = CON_TAIL - at < n ? CON_TAIL - at : n;

		memcpy(con->tail + at, buf, part);
		con->sent += part;
		buf += part;
		n -= part;
	}
	pthread_mutex_unlock(&con->lock);
}

void con_send(struct con *con, const uint8_t *buf, size_t n)
{
	if (con->tail)
		tail_put(con, buf, n);
	con->ops->send(con, buf, n);
}

size_t con_space(struct con *con, size_t want)
{
	return con->ops->space(con, want);
}

void con_more(struct con *con)
{
	con->ops->more(con);
}

size_t con_tail(struct con *con, char *buf, size_t n)
{
	uint64_t from;

	if (!con->tail)
		return 0;
	pthread_mutex_lock(&con->lock);
	if (n > CON_TAIL)
		n = CON_TAIL;
	if (n > con->sent)
		n = con->sent;
	from = con->sent - n;
	for (size_t i = 0; i < n; i++)
		buf[i] = (char)con->tail[(from + i) % CON_TAIL];
	pthread_mutex_unlock(&con->lock);
	return n;
}

void con_tail_clear(struct con *con)
{
	if (!con->tail)
		return;
	pthread_mutex_lock(&con->lock);
	con->sent = 0;
	pthread_mutex_unlock(&con->lock);
}
