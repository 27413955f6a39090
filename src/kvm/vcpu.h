/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef KVM_VCPU_H
#define KVM_VCPU_H

#include "base/err.h"
#include "kvm/vm.h"

#include <linux/kvm.h>
#include <stdbool.h>

struct vcpu;

/*
 * One virtual CPU. Everything but vcpu_kick() belongs to its own thread, or
 * to the builder before that runs, or to whoever keeps it from running.
 */
int vcpu_new(struct vm *vm, unsigned index, struct vcpu **out, struct err *err);
void vcpu_free(struct vcpu *v); /* NULL is fine */
unsigned vcpu_index(const struct vcpu *v);

/* Why vcpu_run() came back. */
enum vcpu_exit {
	VCPU_KICKED,   /* vcpu_kick() */
	VCPU_SHUTDOWN, /* triple fault */
	VCPU_INTERNAL, /* KVM gave up: suberror in vcpu_suberror() */
	VCPU_ERROR,    /* KVM_RUN failed, or an exit we do not know: text in @err */
};

/* Once per process, before any vCPU runs: the signal that vcpu_kick() sends. */
void vcpu_kick_init(void);

/* Runs guest code on the calling thread, sending accesses to the VM's buses, until it must stop. */
enum vcpu_exit vcpu_run(struct vcpu *v, struct err *err);

/*
 * Makes vcpu_run() on the vCPU's thread return VCPU_KICKED soon, now or at
 * its next call; at most one access is finished before. Any thread.
 */
void vcpu_kick(struct vcpu *v);

/* State, as in KVM's API. Each returns 0 or -errno. */
int vcpu_set_cpuid(struct vcpu *v, const struct kvm_cpuid2 *cpuid);
int vcpu_get_regs(struct vcpu *v, struct kvm_regs *r);
int vcpu_set_regs(struct vcpu *v, const struct kvm_regs *r);
int vcpu_get_sregs(struct vcpu *v, struct kvm_sregs *s);
int vcpu_set_sregs(struct vcpu *v, const struct kvm_sregs *s);
int vcpu_get_lapic(struct vcpu *v, struct kvm_lapic_state *l);
int vcpu_set_lapic(struct vcpu *v, const struct kvm_lapic_state *l);
int vcpu_translate(struct vcpu *v, uint64_t gva, uint64_t *gpa);
/* Sets one MSR; 0, or -EINVAL where this host has it not, which a caller may tolerate. */
int vcpu_set_msr(struct vcpu *v, uint32_t msr, uint64_t val);
int vcpu_tsc_khz(struct vcpu *v); /* kHz or -errno */

/* The guest's TSC now. */
int vcpu_get_tsc(struct vcpu *v, uint64_t *tsc);
/* Moves it by @delta, modulo 2^64; exact, so that TSCs moved alike stay alike. -errno where this KVM cannot. */
int vcpu_move_tsc(struct vcpu *v, uint64_t delta);
/* It did not run for a while: its watchdogs shall know. -EINVAL where the guest does not use kvmclock. */
int vcpu_was_paused(struct vcpu *v);

struct vcpu_suberror {
	uint32_t suberror, ndata;
	uint64_t data[16];
};
/* What KVM said about VCPU_INTERNAL; empty after any other exit. */
void vcpu_suberror(const struct vcpu *v, struct vcpu_suberror *out);

#endif
