// SPDX-License-Identifier: GPL-2.0-or-later
#include "raw.h"

#include "io.h"

#include <linux/pci_regs.h>

#define ADDRESS 0xcf8
#define DATA    0xcfc
/* BARs that nobody placed go here: PCI's on QEMU's q35 and pc and on kvm. */
#define FREE_WINDOW 0xd0000000u

static void select(pci_t p, unsigned off)
{
	outl(ADDRESS, 0x80000000u | (uint32_t)p << 8 | (off & 0xfc));
}

uint32_t pci_read(pci_t p, unsigned off, unsigned size)
{
	uint16_t port = (uint16_t)(DATA + (off & 3));

	select(p, off);
	return size == 1 ? inb(port) : size == 2 ? inw(port) : inl(port);
}

void pci_write(pci_t p, unsigned off, unsigned size, uint32_t val)
{
	uint16_t port = (uint16_t)(DATA + (off & 3));

	select(p, off);
	if (size == 1)
		outb(port, (uint8_t)val);
	else if (size == 2)
		outw(port, (uint16_t)val);
	else
		outl(port, val);
}

bool pci_find(uint16_t vendor, uint16_t device, unsigned nth, pci_t *out)
{
	for (unsigned p = 0; p < 256; p++) {
		uint32_t id = pci_read((pci_t)p, PCI_VENDOR_ID, 4);

		if (id == (vendor | (uint32_t)device << 16) && nth-- == 0) {
			*out = (pci_t)p;
			return true;
		}
		/* Functions 1 to 7 only where there are some. */
		if (p % 8 == 0 && (id == ~0u || !(pci_read((pci_t)p, PCI_HEADER_TYPE, 1) & 0x80)))
			p += 7;
	}
	return false;
}

unsigned pci_cap(pci_t p, uint8_t id, unsigned after)
{
	unsigned off = pci_read(p, after ? after + PCI_CAP_LIST_NEXT : PCI_CAPABILITY_LIST, 1);

	for (unsigned i = 0; off && i < 48; i++) {
		if (pci_read(p, off + PCI_CAP_LIST_ID, 1) == id)
			return off;
		off = pci_read(p, off + PCI_CAP_LIST_NEXT, 1);
	}
	return 0;
}

static uint32_t place(pci_t p, unsigned off)
{
	static uint32_t next = FREE_WINDOW;
	uint16_t command = (uint16_t)pci_read(p, PCI_COMMAND, 2);
	uint32_t size;

	pci_write(p, PCI_COMMAND, 2, command & ~PCI_COMMAND_MEMORY);
	pci_write(p, off, 4, ~0u);
	size = -(pci_read(p, off, 4) & PCI_BASE_ADDRESS_MEM_MASK);
	if (!size)
		fail("pci %x has no BAR at %x", (uint64_t)p, (uint64_t)off);
	next = (next + size - 1) & -size;
	pci_write(p, off, 4, next);
	next += size;
	return next - size;
}

volatile void *pci_bar(pci_t p, unsigned bar)
{
	unsigned off = PCI_BASE_ADDRESS_0 + 4 * bar;
	uint32_t low = pci_read(p, off, 4), high = 0, base = low & PCI_BASE_ADDRESS_MEM_MASK;
	bool wide = (low & PCI_BASE_ADDRESS_MEM_TYPE_MASK) == PCI_BASE_ADDRESS_MEM_TYPE_64;

	if (low & PCI_BASE_ADDRESS_SPACE_IO)
		fail("pci %x: BAR %u is of ports", (uint64_t)p, (uint64_t)bar);
	if (wide)
		high = pci_read(p, off + 4, 4);
	if (high || !base) {
		base = place(p, off);
		if (wide)
			pci_write(p, off + 4, 4, 0);
	}
	pci_write(p, PCI_COMMAND, 2, pci_read(p, PCI_COMMAND, 2) | PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER);
	return (volatile void *)(uintptr_t)base;
}
