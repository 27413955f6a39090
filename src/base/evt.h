/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BASE_EVT_H
#define BASE_EVT_H

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <unistd.h>

/* Signals nonblocking eventfd @fd. Any thread. */
static inline void evt_signal(int fd)
{
	uint64_t one = 1;
	ssize_t n = write(fd, &one, sizeof(one));

	assert(n == sizeof(one) || errno == EAGAIN); /* EAGAIN: signalled 2^64 - 2 times already */
	(void)n;
}

#endif
