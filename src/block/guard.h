/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BLOCK_GUARD_H
#define BLOCK_GUARD_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/*
 * Keeps the guest from making a raw disk look like an image of another format:
 * the next time it is opened it would be taken for one, and a backing file
 * named in it would show the guest any file of the host. @head is what the
 * first bytes will be when all writes are done, so that a magic is noticed also
 * when it comes in parts.
 */
#define GUARD_LEN 512

struct guard {
	pthread_mutex_t lock;
	uint8_t head[GUARD_LEN]; /* [m]; filled in before there are queues */
};

void guard_init(struct guard *g);
void guard_exit(struct guard *g);

/*
 * The first @n bytes of @iov are to be written at @off, within the head. Copies
 * them to @copy, and that is to be written: the guest may change its memory
 * after we have looked. -EIO: it must not be written. Any thread.
 */
int guard_write(struct guard *g, uint64_t off, const struct iovec *iov, unsigned niov, uint8_t *copy, size_t n);
/* The same for zeroes; any @off. */
int guard_zero(struct guard *g, uint64_t off, uint64_t len);

#endif
