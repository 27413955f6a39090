/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef ARCH_X86_VCPU_STATE_H
#define ARCH_X86_VCPU_STATE_H

#include "arch/x86/cpuid.h"
#include "arch/x86/kernel.h"
#include "base/err.h"
#include "kvm/vcpu.h"

/* Gives a fresh vCPU its CPUID, MSRs and local APIC; @k: it is the first one and starts there, NULL: it waits for SIPI.
 */
int vcpu_state_init(struct vm *vm, struct vcpu *v, const struct cpuid_config *cfg, const struct kernel *k,
                    struct err *err);

#endif
