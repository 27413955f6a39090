// SPDX-License-Identifier: GPL-2.0-or-later
#include "kvm/vm_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define CPUID_MAX 256

int kvm_open(struct err *err)
{
	int fd = open("/dev/kvm", O_RDWR | O_CLOEXEC), api;

	if (fd < 0 && errno == ENOENT)
		return err_set(err, -ENOENT,
		               "/dev/kvm is not there: load kvm-intel or kvm-amd, or switch "
		               "virtualization on in the firmware (or in the outer hypervisor)");
	if (fd < 0 && errno == EACCES)
		return err_set(err, -EACCES,
		               "/dev/kvm: permission denied: join its group "
		               "(sudo usermod -aG kvm $USER, then log in again)");
	if (fd < 0)
		return err_sys(err, -errno, "/dev/kvm");
	api = ioctl(fd, KVM_GET_API_VERSION, 0);
	if (api != KVM_API_VERSION) {
		close(fd);
		return err_set(err, -ENOTTY, "/dev/kvm: API version %d, need %d", api, KVM_API_VERSION);
	}
	return fd;
}

int kvm_cap(int kvm_fd, unsigned cap)
{
	int r = ioctl(kvm_fd, KVM_CHECK_EXTENSION, cap);

	return r < 0 ? 0 : r;
}

int vm_check_cap(struct vm *vm, unsigned cap)
{
	return kvm_cap(vm->fd, cap);
}

static int read_cpuid(struct vm *vm, struct err *err)
{
	vm->cpuid = calloc(1, sizeof(*vm->cpuid) + CPUID_MAX * sizeof(vm->cpuid->entries[0]));
	if (!vm->cpuid)
		return err_set(err, -ENOMEM, "out of memory");
	vm->cpuid->nent = CPUID_MAX;
	if (ioctl(vm->kvm_fd, KVM_GET_SUPPORTED_CPUID, vm->cpuid) < 0)
		return err_sys(err, -errno, "KVM_GET_SUPPORTED_CPUID");
	return 0;
}

static int add_ram(struct vm *vm, const struct gmem *mem, struct err *err)
{
	for (unsigned i = 0; i < mem->nbanks; i++) {
		struct kvm_userspace_memory_region r = {
			.slot = i,
			.guest_phys_addr = mem->bank[i].gpa,
			.memory_size = mem->bank[i].len,
			.userspace_addr = (uintptr_t)mem->bank[i].hva,
		};

		if (ioctl(vm->fd, KVM_SET_USER_MEMORY_REGION, &r) < 0)
			return err_sys(err, -errno, "KVM refuses %llu MiB of guest memory",
			               (unsigned long long)(r.memory_size >> 20));
	}
	return 0;
}

/*
 * Masks both 8259s, which KVM creates unmasked. A kernel that drives them
 * initialises them first; one that takes us for a platform without (hardware-
 * reduced ACPI) would otherwise get each ISA interrupt twice, the second time
 * through LINT0 at a vector in the exceptions' range.
 */
static int mask_pics(struct vm *vm, struct err *err)
{
	for (unsigned i = KVM_IRQCHIP_PIC_MASTER; i <= KVM_IRQCHIP_PIC_SLAVE; i++) {
		struct kvm_irqchip chip = { .chip_id = i };

		if (ioctl(vm->fd, KVM_GET_IRQCHIP, &chip) < 0)
			return err_sys(err, -errno, "KVM_GET_IRQCHIP");
		chip.chip.pic.imr = 0xff;
		if (ioctl(vm->fd, KVM_SET_IRQCHIP, &chip) < 0)
			return err_sys(err, -errno, "KVM_SET_IRQCHIP");
	}
	return 0;
}

static int create(struct vm *vm, const struct vm_config *cfg, struct err *err)
{
	int len;

	do /* it is interrupted by any signal, such as a timer's */
		vm->fd = ioctl(vm->kvm_fd, KVM_CREATE_VM, 0);
	while (vm->fd < 0 && errno == EINTR);
	if (vm->fd < 0)
		return err_sys(err, -errno, "KVM_CREATE_VM");
	len = ioctl(vm->kvm_fd, KVM_GET_VCPU_MMAP_SIZE, 0);
	if (len < (int)sizeof(struct kvm_run))
		return err_set(err, -EINVAL, "KVM_GET_VCPU_MMAP_SIZE: %d", len);
	vm->run_len = (size_t)len;
	if (ioctl(vm->fd, KVM_SET_IDENTITY_MAP_ADDR, &cfg->identity_addr) < 0)
		return err_sys(err, -errno, "KVM_SET_IDENTITY_MAP_ADDR");
	if (ioctl(vm->fd, KVM_SET_TSS_ADDR, cfg->tss_addr) < 0)
		return err_sys(err, -errno, "KVM_SET_TSS_ADDR");
	return 0;
}

/* Behind the RAM: with an irqchip there, Linux 6.18 makes each memory slot wait some 5 ms for a grace period. */
static int make_irqchip(struct vm *vm, struct err *err)
{
	if (ioctl(vm->fd, KVM_CREATE_IRQCHIP, 0) < 0)
		return err_sys(err, -errno, "KVM_CREATE_IRQCHIP");
	return mask_pics(vm, err);
}

int vm_new(const struct vm_config *cfg, struct vm **out, struct err *err)
{
	struct vm *vm = calloc(1, sizeof(*vm));
	int error;

	if (!vm)
		return err_set(err, -ENOMEM, "out of memory");
	vm->fd = -1;
	vm->ports = cfg->ports;
	vm->mmio = cfg->mmio;
	error = vm->kvm_fd = kvm_open(err);
	if (error >= 0)
		error = create(vm, cfg, err);
	if (!error)
		error = add_ram(vm, cfg->mem, err);
	if (!error)
		error = make_irqchip(vm, err);
	if (!error)
		error = read_cpuid(vm, err);
	if (!error)
		error = irq_routes_new(vm, err);
	if (error) {
		vm_free(vm);
		return error;
	}
	*out = vm;
	return 0;
}

void vm_free(struct vm *vm)
{
	if (!vm)
		return;
	if (vm->fd >= 0)
		close(vm->fd);
	if (vm->kvm_fd >= 0)
		close(vm->kvm_fd);
	irq_routes_free(vm);
	free(vm->cpuid);
	free(vm);
}

int vm_get_clock(struct vm *vm, uint64_t *ns)
{
	struct kvm_clock_data c = { 0 };

	if (ioctl(vm->fd, KVM_GET_CLOCK, &c) < 0)
		return -errno;
	*ns = c.clock;
	return 0;
}

int vm_set_clock(struct vm *vm, uint64_t ns)
{
	struct kvm_clock_data c = { .clock = ns };

	return ioctl(vm->fd, KVM_SET_CLOCK, &c) < 0 ? -errno : 0;
}

const struct kvm_cpuid2 *vm_cpuid(struct vm *vm)
{
	return vm->cpuid;
}
