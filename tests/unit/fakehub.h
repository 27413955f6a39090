/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef TESTS_FAKEHUB_H
#define TESTS_FAKEHUB_H

#include "bus/irq.h"

#include <stdatomic.h>

/*
 * Interrupts and kicks without KVM. An interrupt stays in its eventfd until the
 * test takes it; everything asked of the hub is counted, can be made to fail,
 * and must make sense: what is freed exists, and two doorbells do not share an
 * address. Misuse aborts.
 */
#define FAKEHUB_MAX 512

struct fakehub {
	struct evt_hub hub; /* for the device */
	struct {
		int fd; /* -1: free */
		bool routed;
		uint64_t addr;
		uint32_t data;
	} msi[FAKEHUB_MAX];
	struct {
		int fd;
		uint64_t addr; /* 0: free */
	} kick[FAKEHUB_MAX];
	atomic_uint news, routes, frees, kick_adds, kick_dels;
	unsigned msis, kicks;                /* there now */
	int fail_new, fail_route, fail_kick; /* -1: never; else so many succeed first */
};

void fakehub_init(struct fakehub *h);
void fakehub_exit(struct fakehub *h); /* aborts if anything is left */

/* Interrupts since the last call that would have been sent with @data, or all of them. */
unsigned fakehub_take(struct fakehub *h, uint32_t data);
unsigned fakehub_take_all(struct fakehub *h);

/* A guest's write to @addr: false if no doorbell is there. */
bool fakehub_ring(struct fakehub *h, uint64_t addr);

#endif
