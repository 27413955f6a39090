/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BUS_IRQ_H
#define BUS_IRQ_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Interrupts and kicks as devices see them. The kvm room makes the real ones;
 * unit tests make their own.
 */

/* An interrupt line. @set may be called from any thread and never blocks. */
struct irq {
	void (*set)(struct irq *irq, bool level);
	void *opaque;
	unsigned line; /* GSI */
};

static inline void irq_set(struct irq *irq, bool level)
{
	irq->set(irq, level);
}

/*
 * Message-signalled interrupts and doorbells, through descriptors: the data
 * path writes to an eventfd, or reads from one, and calls nobody.
 */
struct evt_hub {
	const struct evt_hub_ops *ops;
	void *opaque;
};

struct evt_hub_ops {
	/* A new MSI: each write to eventfd @fd raises it. Returns its number (>= 0) or -errno. Not routed yet. */
	int (*msi_new)(void *opaque, int fd);
	/* Where it goes from now on. 0 or -errno. */
	int (*msi_route)(void *opaque, int msi, uint64_t addr, uint32_t data);
	void (*msi_free)(void *opaque, int msi, int fd);
	/* Guest writes to memory address @addr, of any size, signal eventfd @fd instead of arriving on the bus. */
	int (*kick_add)(void *opaque, uint64_t addr, int fd);
	void (*kick_del)(void *opaque, uint64_t addr, int fd);
};

#endif
