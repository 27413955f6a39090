/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef CONSOLE_WRITER_H
#define CONSOLE_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Writes to a file descriptor of any kind from a thread of its own, so that
 * nobody else ever waits for its reader.
 */
struct writer;

#define WRITER_SIZE 65536u /* bytes kept for a slow reader */

/* @fd stays the caller's. @event, an eventfd, is signalled when writer_check() has news. 0 or -errno. */
int writer_new(int fd, int event, struct writer **out);

/* Takes @n bytes; what does not fit is dropped and counted. Any thread. */
void writer_put(struct writer *w, const uint8_t *buf, size_t n);

/* How many of @want bytes fit now; if fewer, news come when half of the buffer is free. Any thread. */
size_t writer_space(struct writer *w, size_t want);

struct writer_news {
	int error;     /* errno of the write that failed: nobody reads any more, all is discarded; 0: none */
	bool drained;  /* after writer_drain(): all is written. Told once */
	bool spacious; /* after writer_space() said less than was wanted. Told once */
};
void writer_check(struct writer *w, struct writer_news *news);

/* Asks for news when all is written, or the reader is gone. */
void writer_drain(struct writer *w);

/*
 * Ends the thread, even one that waits for its reader. Returns how many bytes
 * were dropped or not written yet; @error as in writer_check().
 */
uint64_t writer_free(struct writer *w, int *error);

#endif
