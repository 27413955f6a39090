/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef TESTS_FAKEDRV_HOSTILE_H
#define TESTS_FAKEDRV_HOSTILE_H

#include "fakedrv.h"

/*
 * What a hostile driver may write into a ring, for tests of whole devices: each
 * makes the next chain that the device pops an impossible one. The ring has
 * at least FAKE_HOSTILE_SIZE entries and nothing was ever offered in it.
 * (test_virtq.c has more, some of which need the device's help.)
 */
#define FAKE_HOSTILE_SIZE 16

struct fake_hostile {
	const char *name;
	unsigned where;
	void (*corrupt)(struct fakeq *q);
};

extern const struct fake_hostile fake_hostile[];
extern const unsigned fake_hostile_count;

/* Is this something to do to @q, as negotiated? */
bool fake_hostile_fits(const struct fake_hostile *h, const struct fakeq *q);

/* Odd, but no fault: offers one chain of the @n pieces in consecutive entries; a length of 0 is taken as it is. */
void fake_raw_chain(struct fakeq *q, const struct fake_seg *seg, unsigned n);

/* One more than fits: the ring is full of chains on their way, and the next is one of those. */
void fake_one_too_many(struct fakeq *q);

#endif
