/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef VIRTIO_MSIX_H
#define VIRTIO_MSIX_H

#include "base/err.h"
#include "bus/irq.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * An MSI-X table with its pending bits (PCI Local Bus 3.0, 6.8.2). Any thread.
 * A vector costs the host an irqfd and a route from the moment the guest first
 * unmasks it; as long as it is masked, nothing the guest writes reaches KVM.
 */
struct msix;

#define MSIX_ENTRY_LEN 16 /* bytes of a vector in the table */

int msix_new(unsigned nvecs, const struct evt_hub *hub, struct msix **out, struct err *err);
void msix_free(struct msix *x); /* NULL is fine */

/* The enable and function-mask bits of Message Control. */
void msix_control(struct msix *x, bool enable, bool mask_all);
bool msix_enabled(const struct msix *x);

/* Raises @vec, or leaves its pending bit; a number that is none does nothing. */
void msix_raise(struct msix *x, unsigned vec);

/*
 * An eventfd that raises @vec when it is written to, by whomever, as long as
 * the MSI-X table is there. -1: there is no such vector, or no descriptor.
 */
int msix_direct(struct msix *x, unsigned vec);

/* Guest accesses to table and pending bits: @size bytes (4 or 8) at @off; others read as zero. */
uint64_t msix_table_read(struct msix *x, unsigned off, unsigned size);
void msix_table_write(struct msix *x, unsigned off, unsigned size, uint64_t val);
uint64_t msix_pba_read(struct msix *x, unsigned off, unsigned size);

#endif
