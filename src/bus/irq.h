/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BUS_IRQ_H
#define BUS_IRQ_H

#include <stdbool.h>

/*
 * An interrupt line. The kvm room fills in @set for a real VM; unit tests
 * count calls. @set may be called from any thread and never blocks.
 */
struct irq {
	void (*set)(struct irq *irq, bool level);
	void *opaque;
	unsigned line; /* GSI */
};

static inline void irq_set(struct irq *irq, bool level)
{
	irq->set(irq, level);
}

#endif
