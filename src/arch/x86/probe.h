/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef ARCH_X86_PROBE_H
#define ARCH_X86_PROBE_H

#include "base/err.h"

#include <stdbool.h>

/* Does this host's CPUID show VMX or SVM? Then guest kernel code runs on the processor itself. */
bool probe_has_virt(void);

/*
 * Runs a guest of a few dozen instructions in long mode at CPL 0 (lock
 * cmpxchg16b, int3 through an IDT, xrstor) on a VM of its own.
 * Takes milliseconds, 10 s at the very most. Calls vcpu_kick_init(), so do not run it beside a machine.
 * Returns 1 when it reached its end, 0 when KVM gave up on it (such a host
 * only interprets guest kernel code and cannot run Linux), or -errno.
 */
int probe_run(struct err *err);

#endif
