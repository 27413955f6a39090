/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef DEV_PVPANIC_H
#define DEV_PVPANIC_H

#include "base/err.h"
#include "bus/event.h"
#include "bus/pci.h"

/*
 * The pvpanic PCI device (1b36:0011, QEMU's docs/specs/pvpanic): BAR 0 is one
 * byte, read: the events it knows, write: bit 0 the guest has panicked, bit 1
 * it has panicked and its crash kernel takes over (nothing to do for us).
 */
struct pvpanic;

/* @events is copied. */
int pvpanic_new(const struct guest_events *events, struct pvpanic **out, struct err *err);
void pvpanic_free(struct pvpanic *p); /* NULL is fine */
struct pci_func *pvpanic_pci(struct pvpanic *p);

#endif
