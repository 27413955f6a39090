/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef NET_FRAMES_H
#define NET_FRAMES_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/*
 * A bounded queue of frames from one thread to another. Each has an eventfd:
 * the reader's is signalled when frames have come to an empty queue, the
 * writer's when there is room again after there was none.
 */
struct frames;

int frames_new(size_t bytes, struct frames **out, struct err *err);
void frames_free(struct frames *f); /* NULL is fine */
int frames_reader_fd(const struct frames *f);

/* The writer's side: all of @iov but its first @skip bytes. False: there is no room now; then @fd, the writer's
 * eventfd, is signalled when there is. */
bool frames_put(struct frames *f, const struct iovec *iov, unsigned niov, size_t skip, int fd);
/* Is it half full? Then @fd is signalled when it is not. */
bool frames_crowded(struct frames *f, int fd);

/*
 * The reader's side: the oldest frame, which stays in place until
 * frames_drop(), or 0: there is none, and the reader's eventfd will be signalled.
 */
size_t frames_peek(struct frames *f, const uint8_t **p);
void frames_drop(struct frames *f);

#endif
