/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef ARCH_X86_ACPI_H
#define ARCH_X86_ACPI_H

#include <stddef.h>
#include <stdint.h>

/*
 * Builds the ACPI tables (ACPI 6.4) of our board, see memmap.h: RSDP (first,
 * at @gpa itself), XSDT, FADT (hardware-reduced; no VGA, no 8042; sleep,
 * reset registers at PORT_PM), MADT, MCFG and a DSDT with the PCI root bridge
 * (_CRS, _PRT), COM1-4, RTC, a generic event device, the power button and _S5.
 * @gpa is where @buf will be in the guest (16-byte aligned).
 * Returns the bytes used, or -ENOSPC when they do not fit into @len.
 * APIC ID of CPU i is i; @ncpus is 1 to 254.
 */
long acpi_build(unsigned ncpus, uint64_t gpa, void *buf, size_t len);

#endif
