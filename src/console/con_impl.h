/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef CONSOLE_CON_IMPL_H
#define CONSOLE_CON_IMPL_H

#include "console/con.h"

#include <pthread.h>

/*
 * The author's side of a console: what stdio.c and its like fill in. con.c
 * keeps the tail and the client, so that every back end keeps them alike.
 */

#define CON_TAIL 65536u

struct con_ops {
	/* con->client has changed. On the loop. */
	void (*attached)(struct con *con);
	/* As con_send(). Any thread; the device may hold its own lock, so this calls nothing of the device. */
	void (*send)(struct con *con, const uint8_t *buf, size_t n);
	/* As con_space(). Any thread; the device may hold its own lock. */
	size_t (*space)(struct con *con, size_t want);
	/* As con_more(). Any thread; the same holds. */
	void (*more)(struct con *con);
};

struct con {
	const struct con_ops *ops; /* [c] */
	uint8_t *tail;             /* [c] CON_TAIL bytes, [m] inside; NULL: none is kept */
	struct con_client client;  /* [l] room is NULL when there is none */
	pthread_mutex_t lock;      /* a leaf */
	uint64_t sent;             /* [m] bytes since the tail was cleared; its last CON_TAIL are in the tail */
};

/* Returns 0 or -ENOMEM. */
int con_init(struct con *con, const struct con_ops *ops);
void con_destroy(struct con *con);

/* The client's room, 0 without a client. On the loop. */
size_t con_room(const struct con *con);

/* Hands over @n <= con_room() bytes. On the loop. */
void con_recv(struct con *con, const uint8_t *buf, size_t n);

#endif
