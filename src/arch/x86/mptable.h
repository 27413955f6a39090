/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef ARCH_X86_MPTABLE_H
#define ARCH_X86_MPTABLE_H

#include <stddef.h>
#include <stdint.h>

/*
 * Builds Intel's MultiProcessor Specification 1.4 tables for kernels run with
 * acpi=off: the floating pointer at @gpa, the configuration table behind it
 * with every CPU, the ISA and PCI buses, the I/O APIC, the ISA interrupts one
 * to one, the PCI interrupts as in memmap.h, and the local interrupts.
 * Returns the bytes used, or -ENOSPC when they do not fit into @len.
 */
long mptable_build(unsigned ncpus, uint64_t gpa, void *buf, size_t len);

#endif
