/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BUS_BUS_H
#define BUS_BUS_H

#include "base/err.h"

#include <stdint.h>

/*
 * What a vCPU can address besides RAM: windows on a bus (one bus for memory,
 * one for x86 ports). Every access is one call on the vCPU's own thread; a
 * device guards itself with its own leaf lock and never blocks.
 */
struct bus_ops {
	/*
	 * @off is relative to the window, @size is 1, 2, 4 or 8 and the whole
	 * access lies inside the window. Devices answer any size: what they
	 * do not know reads as all ones and is ignored when written.
	 */
	uint64_t (*read)(void *dev, uint64_t off, unsigned size);
	void (*write)(void *dev, uint64_t off, unsigned size, uint64_t val);
};

struct window {
	const char *name;
	uint64_t base, len;
	const struct bus_ops *ops;
	void *dev;
};

struct bus;

int bus_new(struct bus **out, struct err *err);
void bus_free(struct bus *b); /* NULL is fine */

/*
 * Adds a copy of @w. -EEXIST where it overlaps another window, -ENOSPC when
 * the bus is full, -EINVAL for an empty or wrapping one. Any thread.
 */
int bus_add(struct bus *b, const struct window *w) __attribute__((warn_unused_result));

/* Removes the window that begins at @base. A call under way on another vCPU may still arrive. Any thread. */
void bus_del(struct bus *b, uint64_t base);

/* An access. No window: all ones (cut to @size), or nothing. Any thread. */
uint64_t bus_read(struct bus *b, uint64_t addr, unsigned size);
void bus_write(struct bus *b, uint64_t addr, unsigned size, uint64_t val);

#endif
