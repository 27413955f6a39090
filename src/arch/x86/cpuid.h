/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef ARCH_X86_CPUID_H
#define ARCH_X86_CPUID_H

#include "base/err.h"

#include <linux/kvm.h>
#include <stdbool.h>
#include <stdint.h>

/* What the guest's CPUs shall be, and what this host can do beyond KVM_GET_SUPPORTED_CPUID. */
struct cpuid_config {
	unsigned ncpus;    /* 1 to 254: one package, ncpus cores, one thread each */
	bool tsc_deadline; /* KVM_CAP_TSC_DEADLINE_TIMER */
	uint64_t xcr0;     /* XCR0 bits the guest may use (AMX only after ARCH_REQ_XCOMP_GUEST_PERM) */
	uint32_t tsc_khz;  /* 0: unknown */
	uint32_t bus_khz;  /* APIC timer frequency for leaf 0x15-less kernels, 0: unknown */
	uint32_t host_cache[8]
	                   [4]; /* the host's own leaf 4 (Intel) or 0x8000001d (AMD) subleaves, eax first; eax 0 ends */
	uint32_t host_id[4][4]; /* the host's own 0x80000002 to 0x80000005: brand string, AMD's L1 caches and TLBs */
};

/*
 * Writes the leaves of vCPU @index into @out (capacity @out->nent entries on
 * entry) from @supported, KVM's list. Pure: no system calls, testable with
 * made-up lists. Does: APIC id and topology (1, 4, 0xb, 0x1f, 0x80000008,
 * 0x8000001d, 0x8000001e), hypervisor bit and KVM's leaves 0x4000000x,
 * TSC_DEADLINE, XSAVE leaf 0xd and every feature whose XCR0 bits are missing
 * (AVX, AVX-512, AMX, PKU, MPX … masked together with them), nothing that
 * needs a device we have not (PMU kept as KVM gives it).
 * Returns 0, or -ENOSPC.
 */
int cpuid_build(const struct kvm_cpuid2 *supported, const struct cpuid_config *cfg, unsigned index,
                struct kvm_cpuid2 *out);

/*
 * Fills in @cfg->xcr0 (asking for AMX permission where the host has it),
 * host_cache and host_id from this host. Before the first vm_new() of the process: KVM
 * leaves AMX out of its list until it has been asked for, and refuses to be
 * asked once a vCPU exists.
 */
void cpuid_host(struct cpuid_config *cfg);

#endif
