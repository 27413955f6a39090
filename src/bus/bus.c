// SPDX-License-Identifier: GPL-2.0-or-later
#include "bus/bus.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/*
 * How it works
 *
 * A sorted array of windows, found by binary search. Windows come and go
 * while vCPUs run (a guest moves a BAR), so a lookup copies its window under
 * a read lock and calls the device without it: a device may itself add or
 * remove windows from inside an access.
 */

#define BUS_MAX_WINDOWS 512

struct bus {
	pthread_rwlock_t lock;
	unsigned n;
	struct window w[BUS_MAX_WINDOWS]; /* ascending by base, disjoint */
};

int bus_new(struct bus **out, struct err *err)
{
	struct bus *b = calloc(1, sizeof(*b));

	if (!b)
		return err_set(err, -ENOMEM, "out of memory");
	pthread_rwlock_init(&b->lock, NULL);
	*out = b;
	return 0;
}

void bus_free(struct bus *b)
{
	if (!b)
		return;
	pthread_rwlock_destroy(&b->lock);
	free(b);
}

/* Index of the first window that ends above @addr. */
static unsigned find(const struct bus *b, uint64_t addr)
{
	unsigned lo = 0, hi = b->n;

	while (lo < hi) {
		unsigned mid = lo + (hi - lo) / 2;

		if (b->w[mid].base + (b->w[mid].len - 1) < addr)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static int insert(struct bus *b, const struct window *w)
{
	unsigned i = find(b, w->base);

	if (i < b->n && b->w[i].base <= w->base + (w->len - 1))
		return -EEXIST;
	if (b->n == BUS_MAX_WINDOWS)
		return -ENOSPC;
	memmove(&b->w[i + 1], &b->w[i], (b->n - i) * sizeof(b->w[0]));
	b->w[i] = *w;
	b->n++;
	return 0;
}

int bus_add(struct bus *b, const struct window *w)
{
	int error;

	if (!w->len || w->base + (w->len - 1) < w->base)
		return -EINVAL;
	pthread_rwlock_wrlock(&b->lock);
	error = insert(b, w);
	pthread_rwlock_unlock(&b->lock);
	return error;
}

void bus_del(struct bus *b, uint64_t base)
{
	unsigned i;

	pthread_rwlock_wrlock(&b->lock);
	i = find(b, base);
	if (i < b->n && b->w[i].base == base) {
		b->n--;
		memmove(&b->w[i], &b->w[i + 1], (b->n - i) * sizeof(b->w[0]));
	}
	pthread_rwlock_unlock(&b->lock);
}

/* The window that holds all of [@addr, @addr + @size). */
static bool lookup(struct bus *b, uint64_t addr, unsigned size, struct window *out)
{
	bool hit = false;
	unsigned i;

	pthread_rwlock_rdlock(&b->lock);
	i = find(b, addr);
	if (i < b->n && b->w[i].base <= addr && size <= b->w[i].len - (addr - b->w[i].base)) {
		*out = b->w[i];
		hit = true;
	}
	pthread_rwlock_unlock(&b->lock);
	return hit;
}

static uint64_t size_mask(unsigned size)
{
	return size >= 8 ? ~0ull : (1ull << (size * 8)) - 1;
}

uint64_t bus_read(struct bus *b, uint64_t addr, unsigned size)
{
	struct window w;

	if (!lookup(b, addr, size, &w))
		return size_mask(size);
	return w.ops->read(w.dev, addr - w.base, size) & size_mask(size);
}

void bus_write(struct bus *b, uint64_t addr, unsigned size, uint64_t val)
{
	struct window w;

	if (lookup(b, addr, size, &w))
		w.ops->write(w.dev, addr - w.base, size, val & size_mask(size));
}
