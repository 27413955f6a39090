/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef TESTS_FAKECON_H
#define TESTS_FAKECON_H

#include "base/loop.h"
#include "console/con_impl.h"

#include <stdbool.h>

/*
 * A console without a host: it keeps what it is sent, as far as the test gave
 * it space, and types what the test gave it to type whenever its device has
 * room. Like the real ones it calls its device from the loop only.
 */
struct fakecon {
	struct con con; /* for the device */
	struct loop *loop;
	struct loop_task feed, spacious;
	uint8_t *out; /* kept */
	size_t nout, out_size;
	size_t space;     /* how much more it keeps; SIZE_MAX: any amount, and nothing is stored */
	uint64_t sent;    /* all that came */
	uint64_t dropped; /* of it, beyond the space */
	bool crowded;     /* somebody asked for more space than there was */
	const uint8_t *in;
	size_t nin;     /* not yet typed */
	size_t most;    /* bytes handed over at once, 0: any number */
	unsigned asked; /* how often room() was called */
};

void fakecon_init(struct fakecon *c, struct loop *loop);
void fakecon_exit(struct fakecon *c);

/* @n bytes of space more; spacious() follows if the device waits for it. */
void fakecon_give(struct fakecon *c, size_t n);
/* Types @n bytes, which stay in place until they are read, in addition to none that still wait. */
void fakecon_type(struct fakecon *c, const uint8_t *buf, size_t n);

#endif
