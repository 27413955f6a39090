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

int guard_write(struct guard *g, uint64_t off, const struct iovec *iov, unsigned niov, uint8_t *copy, size_t n)
{
	uint8_t head[GUARD_LEN];
	int error = 0;

	assert(off + n <= GUARD_LEN);
	n = iov_get(iov, niov, 0, copy, n);
	pthread_mutex_lock(&g->lock);
	memcpy(head, g->head, GUARD_LEN);
	memcpy(head + off, copy, n);
	if (blk_probe(head, GUARD_LEN))
		error = -EIO;
	else
		memcpy(g->head, head, GUARD_LEN);
	pthread_mutex_unlock(&g->lock);
	return error;
}

void guard_zero(struct guard *g, uint64_t off, uint64_t len)
{
	if (off >= GUARD_LEN)
		return;
	pthread_mutex_lock(&g->lock);
	memset(g->head + off, 0, len < GUARD_LEN - off ? len : GUARD_LEN - off);
	pthread_mutex_unlock(&g->lock);
}
