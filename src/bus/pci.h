/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BUS_PCI_H
#define BUS_PCI_H

#include "bus/bus.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * One PCI Express root bus (bus 0) without bridges: config space, reached
 * through ECAM on the memory bus (a board may add other ways by
 * pci_cfg_read/write), and memory BARs that move on the memory bus as the
 * guest programs them. PCI Local Bus 3.0 chapter 6; PCIe 5.0 7.2.2.
 */
#define PCI_CFG_SIZE     4096
#define PCI_MAX_BARS     6
#define PCI_ECAM_BUS_LEN (256ull * PCI_CFG_SIZE) /* ECAM bytes of one bus */

struct pci_bar {
	uint32_t len;              /* bytes, a power of two from 16; 0: no such BAR */
	const struct bus_ops *ops; /* accesses relative to the BAR */
	const char *name;
};

/*
 * A function. The device fills in the upper part and clears the rest, then
 * pci_add() takes it into the bus; it must outlive the bus. cfg is
 * little-endian config space, wmask holds a one for each bit the guest may
 * write; a device that wants capabilities adds them after pci_add().
 */
struct pci_func {
	const char *name;
	uint16_t vendor, device, subvendor, subdevice;
	uint32_t class_rev; /* class << 8 | revision */
	uint8_t pin;        /* INTA 1 … INTD 4, 0: none */
	struct pci_bar bar[PCI_MAX_BARS];
	void *dev; /* for the BARs' ops and the hook below */
	/* Told after the guest wrote config space, without a lock; may be NULL. */
	void (*cfg_written)(void *dev, unsigned off, unsigned size);
	/* Told before the guest reads config space, without a lock; may be NULL. */
	void (*cfg_reading)(void *dev, unsigned off, unsigned size);
	/* BAR @bar is now at @base on the memory bus, 0: nowhere. Under the bus's lock; may be NULL. */
	void (*bar_mapped)(void *dev, unsigned bar, uint32_t base);

	struct pci_bus *bus;                            /* [c] */
	unsigned caps_end;                              /* [c] */
	uint8_t devfn;                                  /* [c] */
	uint8_t cfg[PCI_CFG_SIZE], wmask[PCI_CFG_SIZE]; /* [m] the bus's lock */
	uint32_t mapped[PCI_MAX_BARS];                  /* [m] base on the memory bus, 0: not mapped */
};

struct pci_bus;

/*
 * BARs get their first addresses from [mmio_base, mmio_base + mmio_len), and
 * the guest cannot map one outside it. A host bridge is there as 00:00.0.
 * @mem must outlive the bus.
 */
int pci_new(struct bus *mem, uint64_t ecam_base, uint32_t mmio_base, uint32_t mmio_len, struct pci_bus **out,
            struct err *err);
void pci_free(struct pci_bus *b); /* NULL is fine */

/* Adds @f at @devfn (slot << 3 | function): -EEXIST when taken, -ENOSPC when its BARs do not fit. */
int pci_add(struct pci_bus *b, struct pci_func *f, uint8_t devfn, struct err *err);

/*
 * The device's own view of its config space: @size bytes at @off. pci_poke()
 * changes any bit and triggers nothing. Any thread.
 */
uint32_t pci_peek(const struct pci_func *f, unsigned off, unsigned size);
void pci_poke(struct pci_func *f, unsigned off, unsigned size, uint32_t val);

/*
 * Adds a capability of @len bytes, whose id is body[0] and whose link is
 * filled in; @wmask (or NULL) says which bits the guest may write. Returns its offset. Before anything
 * runs; asserts that there is room.
 */
unsigned pci_add_cap(struct pci_func *f, const uint8_t *body, const uint8_t *wmask, unsigned len);

/* Takes @f off its bus; it need not be on one. vCPUs are stopped. */
void pci_del(struct pci_func *f);

/* Config accesses; also what ECAM and the ports end in. Any thread. */
uint32_t pci_cfg_read(struct pci_bus *b, uint8_t devfn, unsigned off, unsigned size);
void pci_cfg_write(struct pci_bus *b, uint8_t devfn, unsigned off, unsigned size, uint32_t val);

#endif
