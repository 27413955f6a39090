/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef CONSOLE_CON_H
#define CONSOLE_CON_H

#include <stddef.h>
#include <stdint.h>

/*
 * A console: a stream of bytes in both directions between one guest device
 * and something on the host. This is what a device sees; console/stdio.h and
 * its like are what the machine sees.
 *
 * Out: con_send() never blocks. 64 KiB are kept for a slow reader; what does
 * not fit is dropped and counted.
 * In: a console reads from its source only while the device has room, so
 * nothing is buffered in between. Only a terminal is read ahead by up to
 * 4 KiB, so that its escape key works while the guest is deaf.
 */
struct con;

struct con_client {
	/* How many bytes recv() would take now; if the guest makes it less meanwhile, recv() copes. On its loop. */
	size_t (*room)(void *dev);
	/* Hands over @n <= room() bytes. On the console's loop. */
	void (*recv)(void *dev, const uint8_t *buf, size_t n);
	/* There is space again, after con_space() had said less than was wanted. May be NULL. On the console's loop. */
	void (*spacious)(void *dev);
	/* Its source has ended: nothing more comes. May be NULL. On the console's loop. */
	void (*ended)(void *dev);
	/* Nobody reads what is sent any more. NULL: the console tells the user. On the console's loop. */
	void (*unread)(void *dev);
	void *dev;
};

/*
 * Attaches the one client, which is copied, or NULL to detach: after this no
 * callback runs. Neither does one before this returns. On the console's loop.
 */
void con_attach(struct con *con, const struct con_client *client);

/* Takes @n bytes from the guest. Any thread. */
void con_send(struct con *con, const uint8_t *buf, size_t n);

/*
 * How many of @want bytes con_send() would keep now; if fewer, spacious()
 * comes when half of the buffer is free. For a device that can make the guest
 * wait. Any thread.
 */
size_t con_space(struct con *con, size_t want);

/*
 * The device has room again; that room was made under a lock which room()
 * takes too. Cheap when nothing waits for it. Any thread.
 */
void con_more(struct con *con);

/* The last bytes sent, at most @n and at most 64 KiB, oldest first; returns how many. Any thread. */
size_t con_tail(struct con *con, char *buf, size_t n);

/* Forgets the tail (a new boot begins). */
void con_tail_clear(struct con *con);

#endif
