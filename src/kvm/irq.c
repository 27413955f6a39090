// SPDX-License-Identifier: GPL-2.0-or-later
#include "kvm/vm_impl.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

/*
 * How it works
 *
 * KVM knows interrupts by GSI. 0-23 are the pins of the irqchip; every MSI
 * gets one of the numbers behind. An eventfd is bound to a GSI (irqfd), and a
 * table says where each GSI leads. KVM only takes the whole table, so we keep
 * it, pins included, and hand it over at each change; an MSI that is not
 * routed yet has no entry, and its eventfd then does nothing.
 */

#define PINS      24
#define PIC_PINS  16
#define PIC_HALF  8
#define MAX_MSIS  2048
#define MAX_TABLE (PINS + PIC_PINS + MAX_MSIS)

/* Intel's SDM, volume 3, "Message Signalled Interrupts" */
#define MSI_ADDRESS    0xfee00000u
#define MSI_DEST_SHIFT 12
#define MSI_NMI        (4u << 8) /* delivery mode */

struct irq_routes {
	pthread_mutex_t lock;
	bool used[MAX_MSIS], routed[MAX_MSIS];
	struct kvm_irq_routing_msi msi[MAX_MSIS];
	union {
		struct kvm_irq_routing table;
		uint8_t room[sizeof(struct kvm_irq_routing) + MAX_TABLE * sizeof(struct kvm_irq_routing_entry)];
	};
};

static void add_entry(struct irq_routes *r, const struct kvm_irq_routing_entry *e)
{
	r->table.entries[r->table.nr++] = *e;
}

static void add_pin(struct irq_routes *r, unsigned gsi, unsigned chip, unsigned pin)
{
	struct kvm_irq_routing_entry e = { .gsi = gsi, .type = KVM_IRQ_ROUTING_IRQCHIP };

	e.u.irqchip.irqchip = chip;
	e.u.irqchip.pin = pin;
	add_entry(r, &e);
}

static int set_table(struct vm *vm)
{
	struct irq_routes *r = vm->routes;

	r->table = (struct kvm_irq_routing){ 0 };
	for (unsigned i = 0; i < PINS; i++)
		add_pin(r, i, KVM_IRQCHIP_IOAPIC, i);
	for (unsigned i = 0; i < PIC_PINS; i++)
		add_pin(r, i, i < PIC_HALF ? KVM_IRQCHIP_PIC_MASTER : KVM_IRQCHIP_PIC_SLAVE, i % PIC_HALF);
	for (unsigned i = 0; i < MAX_MSIS; i++) {
		struct kvm_irq_routing_entry e = { .gsi = PINS + i, .type = KVM_IRQ_ROUTING_MSI, .u.msi = r->msi[i] };

		if (r->routed[i])
			add_entry(r, &e);
	}
	return ioctl(vm->fd, KVM_SET_GSI_ROUTING, &r->table) < 0 ? -errno : 0;
}

static int irqfd(struct vm *vm, int msi, int fd, bool on)
{
	struct kvm_irqfd i = { .fd = (uint32_t)fd,
		               .gsi = PINS + (uint32_t)msi,
		               .flags = on ? 0 : KVM_IRQFD_FLAG_DEASSIGN };

	return ioctl(vm->fd, KVM_IRQFD, &i) < 0 ? -errno : 0;
}

static int take_number(struct irq_routes *r)
{
	for (int i = 0; i < MAX_MSIS; i++) {
		if (!r->used[i]) {
			r->used[i] = true;
			return i;
		}
	}
	return -ENOSPC;
}

static int msi_new(void *opaque, int fd)
{
	struct vm *vm = opaque;
	struct irq_routes *r = vm->routes;
	int msi, error;

	pthread_mutex_lock(&r->lock);
	msi = take_number(r);
	error = msi < 0 ? msi : irqfd(vm, msi, fd, true);
	if (error && msi >= 0)
		r->used[msi] = false;
	pthread_mutex_unlock(&r->lock);
	return error ? error : msi;
}

static int msi_route(void *opaque, int msi, uint64_t addr, uint32_t data)
{
	struct vm *vm = opaque;
	struct irq_routes *r = vm->routes;
	int error;

	pthread_mutex_lock(&r->lock);
	r->msi[msi] = (struct kvm_irq_routing_msi){ .address_lo = (uint32_t)addr,
		                                    .address_hi = (uint32_t)(addr >> 32),
		                                    .data = data };
	r->routed[msi] = true;
	error = set_table(vm);
	pthread_mutex_unlock(&r->lock);
	return error;
}

static void msi_free(void *opaque, int msi, int fd)
{
	struct vm *vm = opaque;
	struct irq_routes *r = vm->routes;

	if (vm->retired)
		return;
	pthread_mutex_lock(&r->lock);
	(void)irqfd(vm, msi, fd, false);       /* it was there */
	r->used[msi] = r->routed[msi] = false; /* the entry goes with the next change */
	pthread_mutex_unlock(&r->lock);
}

static int ioeventfd(struct vm *vm, uint64_t addr, int fd, uint32_t flags)
{
	/* Length 0: a write of any size, which KVM need not even decode. */
	struct kvm_ioeventfd k = { .addr = addr, .len = 0, .fd = fd, .flags = flags };

	return ioctl(vm->fd, KVM_IOEVENTFD, &k) < 0 ? -errno : 0;
}

static int kick_add(void *opaque, uint64_t addr, int fd)
{
	return ioeventfd(opaque, addr, fd, 0);
}

static void kick_del(void *opaque, uint64_t addr, int fd)
{
	const struct vm *vm = opaque;

	if (!vm->retired)
		(void)ioeventfd(opaque, addr, fd, KVM_IOEVENTFD_FLAG_DEASSIGN); /* it was there */
}

struct evt_hub vm_evt_hub(struct vm *vm)
{
	static const struct evt_hub_ops ops = { msi_new, msi_route, msi_free, kick_add, kick_del };

	return (struct evt_hub){ .ops = &ops, .opaque = vm };
}

void vm_retire(struct vm *vm)
{
	vm->retired = true;
}

int irq_routes_new(struct vm *vm, struct err *err)
{
	vm->routes = calloc(1, sizeof(*vm->routes));
	if (!vm->routes)
		return err_set(err, -ENOMEM, "out of memory");
	pthread_mutex_init(&vm->routes->lock, NULL);
	return 0;
}

void irq_routes_free(struct vm *vm)
{
	if (vm->routes)
		pthread_mutex_destroy(&vm->routes->lock);
	free(vm->routes);
}

static void line_set(struct irq *irq, bool level)
{
	const struct vm *vm = irq->opaque;
	struct kvm_irq_level l = { .irq = irq->line, .level = level };
	int r = ioctl(vm->fd, KVM_IRQ_LINE, &l);

	assert(r == 0); /* a line of the irqchip we made */
	(void)r;
}

/* As an MSI: KVM_NMI is a vCPU's ioctl, and would wait until that leaves the guest. */
int vm_nmi(struct vm *vm, unsigned apic_id)
{
	struct kvm_msi msi = { .address_lo = MSI_ADDRESS | apic_id << MSI_DEST_SHIFT, .data = MSI_NMI };
	int r = ioctl(vm->fd, KVM_SIGNAL_MSI, &msi);

	if (r < 0)
		return -errno;
	return r ? 0 : -EAGAIN; /* the guest has its APIC off */
}

void vm_irq(struct vm *vm, unsigned gsi, struct irq *out)
{
	*out = (struct irq){ .set = line_set, .opaque = vm, .line = gsi };
}
