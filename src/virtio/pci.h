/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef VIRTIO_PCI_H
#define VIRTIO_PCI_H

#include "base/err.h"
#include "bus/irq.h"
#include "bus/pci.h"
#include "virtio/virtio.h"

/*
 * The virtio-over-PCI transport, modern only (virtio 1.2, 4.1), with MSI-X
 * through irqfd, INTx for drivers without, and doorbells through ioeventfd.
 */
struct virtio_pci;

/*
 * Puts @d on @bus at @devfn. @intx is copied: the line of the function's pin.
 * @d has been initialised, nothing runs yet; both outlive the result.
 */
int virtio_pci_new(struct virtio_dev *d, struct pci_bus *bus, uint8_t devfn, const struct evt_hub *hub,
                   const struct irq *intx, struct virtio_pci **out, struct err *err);

/* After virtio_dev_stop() and before virtio_dev_exit() of the device and pci_free() of the bus. NULL is fine. */
void virtio_pci_free(struct virtio_pci *p);

#endif
