/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef ARCH_X86_BOOT_H
#define ARCH_X86_BOOT_H

#include "arch/x86/kernel.h"
#include "base/err.h"
#include "bus/gmem.h"

#include <linux/kvm.h>

/* An initrd: a file, or made by @write as arch_initrd has it; neither (fd -1): none. */
struct initrd {
	const char *path; /* for messages */
	int fd;
	uint64_t size;
	int (*write)(void *opaque, uint8_t *to, struct err *err);
	void *opaque;
};

/*
 * Puts kernel, initrd, command line and what the kernel's boot protocol wants
 * to know into RAM. @rsdp is the guest-physical address of ACPI's RSDP.
 */
int boot_load(const struct kernel *k, const struct initrd *initrd, const char *cmdline, uint64_t rsdp,
              const struct gmem *mem, struct err *err);

/* The registers of the first CPU at the kernel's entry; @sregs holds a CPU's after reset. */
void boot_regs(const struct kernel *k, struct kvm_regs *regs, struct kvm_sregs *sregs);

/* Where an initrd of @size bytes goes: page-aligned, as high as kernel and low RAM allow; 0: nowhere. */
uint64_t boot_initrd_addr(const struct kernel *k, uint64_t size, uint64_t low_ram);

#endif
