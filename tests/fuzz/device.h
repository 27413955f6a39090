/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef FUZZ_DEVICE_H
#define FUZZ_DEVICE_H

#include "fakedrv_dev.h"

#include <stdio.h>
#include <stdlib.h>

/*
 * What the fuzz targets of virtio devices have in common: the input as a
 * stream of numbers, and a driver which does with a device's rings, memory and
 * registers what these say.
 */
#define CHECK(x)   ((x) ? (void)0 : (fprintf(stderr, "%s\n", #x), abort()))
#define FUZZ_BANK  (2u << 20)
#define FUZZ_RINGS 0x40000u /* guest address from which rings are allocated */

struct fuzz {
	const uint8_t *data;
	size_t left;
	struct fakemem *mem;
	struct loop *loop;
	struct virtio_dev *d;
	struct fakedev drv;
	bool packed, paused;
	bool dirty; /* the driver has broken rules: it cannot hold the device to any */
	void (*special)(struct fuzz *f, unsigned arg); /* a step that only this target knows */
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The next @n bytes, at most 8; zeros after the end. */
uint64_t fuzz_take(struct fuzz *f, unsigned n);

/* Guest memory of FUZZ_BANK bytes, cleared where the last run may have written. */
struct fakemem *fuzz_memory(void);
/* Writes @n bytes somewhere into it, whatever @gpa is. */
void fuzz_poke(struct fuzz *f, uint64_t gpa, const void *val, unsigned n);
/* A descriptor of the table at @table; the next entry of the split avail ring at @avail. */
void fuzz_poke_desc(struct fuzz *f, uint64_t table, unsigned i);
void fuzz_offer(struct fuzz *f, uint64_t avail, unsigned size);

/* Runs @f->data on @f->d, whose loop, memory and special step are filled in; then a good driver must get it going. */
void fuzz_device(struct fuzz *f);

#endif
