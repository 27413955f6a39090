// SPDX-License-Identifier: GPL-2.0-or-later
#include "fakehub.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define NEED(x) ((x) ? (void)0 : (fprintf(stderr, "fakehub: %s\n", #x), abort()))

static bool fails(int *countdown)
{
	if (*countdown < 0)
		return false;
	if (*countdown == 0)
		return true;
	(*countdown)--;
	return false;
}

static int msi_new(void *opaque, int fd)
{
	struct fakehub *h = opaque;
	int i = 0;

	atomic_fetch_add(&h->news, 1);
	if (fails(&h->fail_new))
		return -ENOSPC;
	while (i < FAKEHUB_MAX && h->msi[i].fd >= 0)
		i++;
	NEED(i < FAKEHUB_MAX && fd >= 0);
	h->msi[i].fd = fd;
	h->msi[i].routed = false;
	h->msis++;
	return i;
}

static int msi_route(void *opaque, int msi, uint64_t addr, uint32_t data)
{
	struct fakehub *h = opaque;

	NEED(msi >= 0 && msi < FAKEHUB_MAX && h->msi[msi].fd >= 0);
	atomic_fetch_add(&h->routes, 1);
	if (fails(&h->fail_route))
		return -EINVAL;
	h->msi[msi].routed = true;
	h->msi[msi].addr = addr;
	h->msi[msi].data = data;
	return 0;
}

static void msi_free(void *opaque, int msi, int fd)
{
	struct fakehub *h = opaque;

	NEED(msi >= 0 && msi < FAKEHUB_MAX && h->msi[msi].fd == fd);
	atomic_fetch_add(&h->frees, 1);
	h->msi[msi].fd = -1;
	h->msis--;
}

static int find_kick(const struct fakehub *h, uint64_t addr)
{
	for (int i = 0; i < FAKEHUB_MAX; i++)
		if (h->kick[i].addr == addr)
			return i;
	return -1;
}

static int kick_add(void *opaque, uint64_t addr, int fd)
{
	struct fakehub *h = opaque;
	int i;

	NEED(addr && fd >= 0 && find_kick(h, addr) < 0);
	atomic_fetch_add(&h->kick_adds, 1);
	if (fails(&h->fail_kick))
		return -ENOSPC;
	i = find_kick(h, 0);
	NEED(i >= 0);
	h->kick[i].addr = addr;
	h->kick[i].fd = fd;
	h->kicks++;
	return 0;
}

static void kick_del(void *opaque, uint64_t addr, int fd)
{
	struct fakehub *h = opaque;
	int i = find_kick(h, addr);

	NEED(addr && i >= 0 && h->kick[i].fd == fd);
	atomic_fetch_add(&h->kick_dels, 1);
	h->kick[i].addr = 0;
	h->kicks--;
}

void fakehub_init(struct fakehub *h)
{
	static const struct evt_hub_ops ops = { msi_new, msi_route, msi_free, kick_add, kick_del };

	*h = (struct fakehub){ .hub = { &ops, h }, .fail_new = -1, .fail_route = -1, .fail_kick = -1 };
	for (unsigned i = 0; i < FAKEHUB_MAX; i++)
		h->msi[i].fd = -1;
}

void fakehub_exit(struct fakehub *h)
{
	NEED(!h->msis && !h->kicks);
}

/* @any: whatever its data. */
static unsigned take(struct fakehub *h, uint32_t data, bool any)
{
	unsigned n = 0;
	uint64_t count;

	for (unsigned i = 0; i < FAKEHUB_MAX; i++) {
		if (h->msi[i].fd < 0 || (!any && !(h->msi[i].routed && h->msi[i].data == data)))
			continue;
		if (read(h->msi[i].fd, &count, sizeof(count)) == sizeof(count))
			n += (unsigned)count;
	}
	return n;
}

unsigned fakehub_take(struct fakehub *h, uint32_t data)
{
	return take(h, data, false);
}

unsigned fakehub_take_all(struct fakehub *h)
{
	return take(h, 0, true);
}

bool fakehub_ring(struct fakehub *h, uint64_t addr)
{
	int i = find_kick(h, addr);
	uint64_t one = 1;

	if (i < 0)
		return false;
	NEED(write(h->kick[i].fd, &one, sizeof(one)) == sizeof(one));
	return true;
}
