/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BASE_BYTES_H
#define BASE_BYTES_H

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* A queue of bytes that grows; empty is all zero and owns no memory. */
struct bytes {
	char *p;
	size_t len, size;
};

/* Room for @n bytes at p + len. 0 or -ENOMEM. */
static inline int bytes_reserve(struct bytes *b, size_t n)
{
	size_t size = (b->len + n) * 2;
	char *more;

	if (b->len + n <= b->size)
		return 0;
	more = realloc(b->p, size);
	if (!more)
		return -ENOMEM;
	b->p = more;
	b->size = size;
	return 0;
}

static inline int bytes_add(struct bytes *b, const void *p, size_t n)
{
	int error = bytes_reserve(b, n);

	if (error || !n)
		return error;
	memcpy(b->p + b->len, p, n);
	b->len += n;
	return 0;
}

/* Takes the first @n bytes away. */
static inline void bytes_cut(struct bytes *b, size_t n)
{
	b->len -= n;
	if (b->len) {
		memmove(b->p, b->p + n, b->len);
		return;
	}
	free(b->p);
	*b = (struct bytes){ 0 };
}

/* Sends what the socket @fd takes now. 0, or -errno: its other end is gone. */
static inline int bytes_send(struct bytes *b, int fd)
{
	while (b->len) {
		ssize_t n = send(fd, b->p, b->len, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EAGAIN)
			break;
		if (n < 0 && errno != EINTR)
			return -errno;
		if (n > 0)
			bytes_cut(b, (size_t)n);
	}
	return 0;
}

#endif
