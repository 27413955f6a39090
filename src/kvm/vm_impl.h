/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef KVM_VM_IMPL_H
#define KVM_VM_IMPL_H

/* Inside the kvm room only: what a vCPU needs of its VM. */

#include "kvm/vm.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

struct vm {
	/* All constant after vm_new(). */
	int kvm_fd, fd;
	size_t run_len; /* bytes of struct kvm_run and what follows it */
	struct bus *ports, *mmio;
	struct kvm_cpuid2 *cpuid;
	struct irq_routes *routes; /* irq.c */
	bool retired;              /* vm_retire() */
};

int irq_routes_new(struct vm *vm, struct err *err);
void irq_routes_free(struct vm *vm); /* nothing to free is fine */

#endif
