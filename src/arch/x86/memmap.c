// SPDX-License-Identifier: GPL-2.0-or-later
#include "arch/x86/memmap.h"

void memmap_banks(uint64_t bytes, struct gmem *mem)
{
	uint64_t low = bytes < MM_LOW_RAM_END ? bytes : MM_LOW_RAM_END;

	*mem = (struct gmem){ .nbanks = 1 };
	mem->bank[0] = (struct gmem_bank){ .gpa = 0, .len = low };
	if (bytes > low) {
		mem->bank[1] = (struct gmem_bank){ .gpa = MM_HIGH_RAM, .len = bytes - low };
		mem->nbanks = 2;
	}
}

unsigned memmap_e820(const struct gmem *mem, struct e820_entry e[E820_MAX])
{
	unsigned n = 0;

	e[n++] = (struct e820_entry){ 0, MM_EBDA, E820_RAM };
	e[n++] = (struct e820_entry){ MM_EBDA, 0xa0000 - MM_EBDA, E820_RESERVED };
	e[n++] = (struct e820_entry){ MM_BIOS_TABLES, MM_HIGH_LOAD - MM_BIOS_TABLES, E820_RESERVED };
	e[n++] = (struct e820_entry){ MM_HIGH_LOAD, mem->bank[0].len - MM_HIGH_LOAD, E820_RAM };
	/* Linux uses ECAM only where the memory map reserves it. */
	e[n++] = (struct e820_entry){ MM_ECAM, MM_ECAM_LEN, E820_RESERVED };
	if (mem->nbanks > 1)
		e[n++] = (struct e820_entry){ mem->bank[1].gpa, mem->bank[1].len, E820_RAM };
	return n;
}
