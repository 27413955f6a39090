/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef ARCH_X86_MEMMAP_H
#define ARCH_X86_MEMMAP_H

#include "bus/gmem.h"

#include <stdint.h>

/* Where everything is in guest-physical memory. */

/* Low RAM. Nothing below 0x500 is ours: a real-mode IVT and BIOS data area may be looked for there. */
#define MM_GDT          0x1000ull  /* boot-time GDT */
#define MM_PVH_INFO     0x2000ull  /* hvm_start_info, module list, memory map (8 KiB) */
#define MM_PAGE_TABLES  0x8000ull  /* PML4, PDPT, 4 PDs: identity map of 4 GiB (24 KiB) */
#define MM_BOOT_PARAMS  0x10000ull /* the "zero page" (4 KiB) */
#define MM_CMDLINE      0x20000ull /* kernel command line (64 KiB at most) */
#define MM_CMDLINE_MAX  0x10000ull
#define MM_EBDA         0x9fc00ull  /* end of conventional memory */
#define MM_BIOS_TABLES  0xe0000ull  /* RSDP, ACPI tables; reserved to 1 MiB */
#define MM_MPTABLE      0xf8000ull  /* MP floating pointer and table, inside 0xf0000-0xfffff where it is looked for */
#define MM_RESET_VECTOR 0xffff0ull  /* F000:FFF0, where a kernel jumps that resets through the BIOS */
#define MM_HIGH_LOAD    0x100000ull /* first byte for a kernel */

/* The hole below 4 GiB. */
#define MM_LOW_RAM_END  0xc0000000ull /* 3 GiB */
#define MM_PCI_MMIO     0xc0000000ull
#define MM_PCI_MMIO_LEN 0x20000000ull
#define MM_ECAM         0xe0000000ull /* bus 0 only: 1 MiB */
#define MM_ECAM_LEN     0x00100000ull
#define MM_IOAPIC       0xfec00000ull
#define MM_LAPIC        0xfee00000ull
#define MM_KVM_IDENTITY 0xfeffc000ull  /* one page for KVM on old Intel */
#define MM_KVM_TSS      0xfeffd000ull  /* three pages, the same */
#define MM_HIGH_RAM     0x100000000ull /* 4 GiB */

/* Ports and interrupts (ISA: edge, active high). */
#define PORT_RTC        0x70
#define PORT_I8042      0x60 /* 0x60 and 0x64 */
#define PORT_DEBUG_EXIT 0xf4
#define PORT_PM         0x600 /* dev/pm.h */
#define GSI_PM          9
#define GSI_PCI_FIRST   16 /* pins A-D of slot s: 16 + (s + pin) % 8, level */
#define GSI_PCI_COUNT   8

/* COM1-4; 1 and 3, 2 and 4 share a line as on every PC. */
#define UART_COUNT 4
#define UART_LEN   8
#define UART_PORTS                         \
	{                                  \
		0x3f8, 0x2f8, 0x3e8, 0x2e8 \
	}
#define UART_IRQS          \
	{                  \
		4, 3, 4, 3 \
	}

/* e820 types */
#define E820_RAM      1
#define E820_RESERVED 2

struct e820_entry {
	uint64_t addr, len;
	uint32_t type;
};
#define E820_MAX 8

/* Fills in the banks' addresses for @bytes of RAM (a multiple of 4096). */
void memmap_banks(uint64_t bytes, struct gmem *mem);

/* The memory map a guest is told, in ascending order; returns the number of entries. */
unsigned memmap_e820(const struct gmem *mem, struct e820_entry e[E820_MAX]);

#endif
