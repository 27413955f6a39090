/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef KVM_VM_H
#define KVM_VM_H

#include "base/err.h"
#include "bus/bus.h"
#include "bus/gmem.h"
#include "bus/irq.h"

#include <linux/kvm.h>

/* The only room that talks to /dev/kvm. Documentation/virt/kvm/api.rst of the kernel. */
struct vm;

/* Opens /dev/kvm: a descriptor, or -errno with a text that says what to do. */
int kvm_open(struct err *err);

/* KVM_CHECK_EXTENSION on a descriptor of kvm_open(): 0 is no. */
int kvm_cap(int kvm_fd, unsigned cap);

/*
 * A VM with its RAM (@mem must outlive it), which reaches devices on @ports
 * and @mmio. The in-kernel irqchip is there; a PIT is not.
 */
struct vm_config {
	const struct gmem *mem;
	struct bus *ports, *mmio;
	uint64_t identity_addr, tss_addr; /* pages KVM needs on some hosts */
};
int vm_new(const struct vm_config *cfg, struct vm **out, struct err *err);
void vm_free(struct vm *vm); /* NULL is fine; its vCPUs are gone */

int vm_check_cap(struct vm *vm, unsigned cap);

/* KVM_GET_SUPPORTED_CPUID; owned by the VM. */
const struct kvm_cpuid2 *vm_cpuid(struct vm *vm);

/* An interrupt line of the in-kernel irqchip (KVM_IRQ_LINE). */
void vm_irq(struct vm *vm, unsigned gsi, struct irq *out);

/* An NMI for the CPU with that APIC id, as from a server's NMI button. Any thread. 0 or -errno. */
int vm_nmi(struct vm *vm, unsigned apic_id);

/* kvmclock, in ns. While no vCPU runs. 0 or -errno. */
int vm_get_clock(struct vm *vm, uint64_t *ns);
int vm_set_clock(struct vm *vm, uint64_t ns);

/* MSIs by irqfd and doorbells by ioeventfd. */
struct evt_hub vm_evt_hub(struct vm *vm);

/*
 * No vCPU will run any more. From now on the hub takes nothing out of KVM: it
 * all goes with the VM, and one by one it costs milliseconds each.
 */
void vm_retire(struct vm *vm);

#endif
