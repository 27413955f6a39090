// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/guard.h"

#include "base/iov.h"
#include "block/block_impl.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

void guard_init(struct guard *g)
{
	pthread_mutex_init(&g->lock, NULL);
}

void guard_exit(struct guard *g)
{
	pthread_mutex_destroy(&g->lock);
}

/* The head with @n bytes of @src put in, unless that is a magic. */
static int change(struct guard *g, uint64_t off, const uint8_t *src, size_t n)
{
	uint8_t head[GUARD_LEN];
	int error = 0;

	assert(off + n <= GUARD_LEN);
	pthread_mutex_lock(&g->lock);
	memcpy(head, g->head, GUARD_LEN);
	memcpy(head + off, src, n);
	if (blk_probe(head, GUARD_LEN))
		error = -EIO;
	else
		memcpy(g->head, head, GUARD_LEN);
	pthread_mutex_unlock(&g->lock);
	return error;
}

int guard_write(struct guard *g, uint64_t off, const struct iovec *iov, unsigned niov, uint8_t *copy, size_t n)
{
	iov_get(iov, niov, 0, copy, n);
	return change(g, off, copy, n);
}

int guard_zero(struct guard *g, uint64_t off, uint64_t len)
{
	static const uint8_t zeroes[GUARD_LEN];

	if (off >= GUARD_LEN)
		return 0;
	return change(g, off, zeroes, len < GUARD_LEN - off ? len : GUARD_LEN - off);
}
