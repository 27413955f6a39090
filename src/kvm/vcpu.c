// SPDX-License-Identifier: GPL-2.0-or-later
#include "kvm/vcpu.h"
#include "kvm/vm_impl.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

/*
 * How it works
 *
 * A vCPU is a descriptor and a page shared with KVM. vcpu_run() enters the
 * guest again and again; an exit is an access to a port or to device memory,
 * which goes to a bus, or a reason to return.
 *
 * Kicking must not be lost, whether the thread is in the guest, on its way in
 * or in a device. So a kick sets @kicked, then immediate_exit in the shared
 * page, then sends a signal: inside the guest the signal ends KVM_RUN; from
 * anywhere else the next KVM_RUN ends at once by itself. KVM completes an
 * access (a read's result) at that entry, so after a kick the state is whole.
 */

#define MSR_IA32_TSC 0x10

struct vcpu {
	struct vm *vm;       /* [c] */
	unsigned index;      /* [c] */
	int fd;              /* [c] */
	struct kvm_run *run; /* vCPU thread, except immediate_exit */
	atomic_bool kicked;
	pthread_mutex_t lock;
	bool running;     /* [m] @thread is inside vcpu_run() */
	pthread_t thread; /* [m] */
};

static void on_kick(int sig)
{
}

void vcpu_kick_init(void)
{
	struct sigaction sa = { .sa_handler = on_kick };
	int r = sigaction(SIGRTMIN, &sa, NULL);

	assert(r == 0);
	(void)r;
}

int vcpu_new(struct vm *vm, unsigned index, struct vcpu **out, struct err *err)
{
	struct vcpu *v = calloc(1, sizeof(*v));

	if (!v)
		return err_set(err, -ENOMEM, "out of memory");
	v->vm = vm;
	v->index = index;
	pthread_mutex_init(&v->lock, NULL);
	v->run = MAP_FAILED;
	v->fd = ioctl(vm->fd, KVM_CREATE_VCPU, (unsigned long)index);
	if (v->fd >= 0)
		v->run = mmap(NULL, vm->run_len, PROT_READ | PROT_WRITE, MAP_SHARED, v->fd, 0);
	if (v->run == MAP_FAILED) {
		int error = err_sys(err, -errno, "cannot create vCPU %u", index);

		vcpu_free(v);
		return error;
	}
	*out = v;
	return 0;
}

void vcpu_free(struct vcpu *v)
{
	if (!v)
		return;
	if (v->run != MAP_FAILED)
		munmap(v->run, v->vm->run_len);
	if (v->fd >= 0)
		close(v->fd);
	pthread_mutex_destroy(&v->lock);
	free(v);
}

unsigned vcpu_index(const struct vcpu *v)
{
	return v->index;
}

/* IN and OUT, also REP INS and REP OUTS: @count accesses of @size bytes, data behind struct kvm_run. */
static void do_port(struct vcpu *v)
{
	const struct kvm_run *run = v->run;
	uint8_t *p = (uint8_t *)run + run->io.data_offset;
	unsigned size = run->io.size;

	for (uint32_t i = 0; i < run->io.count; i++, p += size) {
		uint64_t val = 0;

		if (run->io.direction == KVM_EXIT_IO_OUT) {
			memcpy(&val, p, size);
			bus_write(v->vm->ports, run->io.port, size, val);
		} else {
			val = bus_read(v->vm->ports, run->io.port, size);
			memcpy(p, &val, size);
		}
	}
}

/* KVM hands over 1 to 8 bytes; what is no power of two (a page-crossing access) goes byte by byte. */
static void do_mmio(struct vcpu *v)
{
	struct kvm_run *run = v->run;
	unsigned len = run->mmio.len, step = len & (len - 1) ? 1 : len;

	for (unsigned i = 0; i < len; i += step) {
		uint64_t val = 0;

		if (run->mmio.is_write) {
			memcpy(&val, run->mmio.data + i, step);
			bus_write(v->vm->mmio, run->mmio.phys_addr + i, step, val);
		} else {
			val = bus_read(v->vm->mmio, run->mmio.phys_addr + i, step);
			memcpy(run->mmio.data + i, &val, step);
		}
	}
}

/* True: enter the guest again. */
static bool handle_exit(struct vcpu *v, enum vcpu_exit *why, struct err *err)
{
	switch (v->run->exit_reason) {
	case KVM_EXIT_IO: do_port(v); return true;
	case KVM_EXIT_MMIO: do_mmio(v); return true;
	case KVM_EXIT_INTR:
	case KVM_EXIT_IRQ_WINDOW_OPEN: return true;
	case KVM_EXIT_SHUTDOWN: *why = VCPU_SHUTDOWN; return false;
	case KVM_EXIT_INTERNAL_ERROR: *why = VCPU_INTERNAL; return false;
	case KVM_EXIT_FAIL_ENTRY:
		*why = VCPU_ERROR;
		err_set(err, -EIO, "the processor refused to enter the guest (hardware reason 0x%llx)",
		        (unsigned long long)v->run->fail_entry.hardware_entry_failure_reason);
		return false;
	default:
		*why = VCPU_ERROR;
		err_set(err, -EIO, "unknown KVM exit %u", v->run->exit_reason);
		return false;
	}
}

static void set_running(struct vcpu *v, bool on)
{
	pthread_mutex_lock(&v->lock);
	v->running = on;
	v->thread = pthread_self();
	pthread_mutex_unlock(&v->lock);
}

static enum vcpu_exit run(struct vcpu *v, struct err *err)
{
	enum vcpu_exit why;

	for (;;) {
		if (ioctl(v->fd, KVM_RUN, 0) == 0) {
			if (!handle_exit(v, &why, err))
				return why;
			continue;
		}
		if (errno != EINTR && errno != EAGAIN) {
			err_sys(err, -errno, "KVM_RUN");
			return VCPU_ERROR;
		}
		/* In this order: a kick that comes in between sets both again. */
		__atomic_store_n(&v->run->immediate_exit, 0, __ATOMIC_SEQ_CST);
		if (atomic_exchange(&v->kicked, false))
			return VCPU_KICKED;
	}
}

enum vcpu_exit vcpu_run(struct vcpu *v, struct err *err)
{
	enum vcpu_exit why;

	set_running(v, true);
	why = run(v, err);
	set_running(v, false);
	return why;
}

void vcpu_kick(struct vcpu *v)
{
	atomic_store(&v->kicked, true);
	__atomic_store_n(&v->run->immediate_exit, 1, __ATOMIC_SEQ_CST);
	pthread_mutex_lock(&v->lock);
	if (v->running)
		pthread_kill(v->thread, SIGRTMIN);
	pthread_mutex_unlock(&v->lock);
}

static int vcpu_ioctl(struct vcpu *v, unsigned long request, const void *arg)
{
	return ioctl(v->fd, request, arg) < 0 ? -errno : 0;
}

int vcpu_set_cpuid(struct vcpu *v, const struct kvm_cpuid2 *cpuid)
{
	return vcpu_ioctl(v, KVM_SET_CPUID2, cpuid);
}

int vcpu_get_regs(struct vcpu *v, struct kvm_regs *r)
{
	return vcpu_ioctl(v, KVM_GET_REGS, r);
}

int vcpu_set_regs(struct vcpu *v, const struct kvm_regs *r)
{
	return vcpu_ioctl(v, KVM_SET_REGS, r);
}

int vcpu_get_sregs(struct vcpu *v, struct kvm_sregs *s)
{
	return vcpu_ioctl(v, KVM_GET_SREGS, s);
}

int vcpu_set_sregs(struct vcpu *v, const struct kvm_sregs *s)
{
	return vcpu_ioctl(v, KVM_SET_SREGS, s);
}

int vcpu_get_lapic(struct vcpu *v, struct kvm_lapic_state *l)
{
	return vcpu_ioctl(v, KVM_GET_LAPIC, l);
}

int vcpu_set_lapic(struct vcpu *v, const struct kvm_lapic_state *l)
{
	return vcpu_ioctl(v, KVM_SET_LAPIC, l);
}

int vcpu_translate(struct vcpu *v, uint64_t gva, uint64_t *gpa)
{
	struct kvm_translation t = { .linear_address = gva };
	int error = vcpu_ioctl(v, KVM_TRANSLATE, &t);

	if (error)
		return error;
	*gpa = t.physical_address;
	return t.valid ? 0 : -EFAULT;
}

/* struct kvm_msrs with room for one. */
union one_msr {
	struct kvm_msrs msrs;
	uint8_t room[sizeof(struct kvm_msrs) + sizeof(struct kvm_msr_entry)];
};

int vcpu_set_msr(struct vcpu *v, uint32_t msr, uint64_t val)
{
	union one_msr m = { .msrs.nmsrs = 1 };

	m.msrs.entries[0] = (struct kvm_msr_entry){ .index = msr, .data = val };
	/* The result is how many were set. */
	return ioctl(v->fd, KVM_SET_MSRS, &m.msrs) == 1 ? 0 : -EINVAL;
}

int vcpu_get_tsc(struct vcpu *v, uint64_t *tsc)
{
	union one_msr m = { .msrs.nmsrs = 1 };

	m.msrs.entries[0].index = MSR_IA32_TSC;
	if (ioctl(v->fd, KVM_GET_MSRS, &m.msrs) != 1)
		return -EINVAL;
	*tsc = m.msrs.entries[0].data;
	return 0;
}

int vcpu_move_tsc(struct vcpu *v, uint64_t delta)
{
	uint64_t offset = 0;
	struct kvm_device_attr attr = { .group = KVM_VCPU_TSC_CTRL,
		                        .attr = KVM_VCPU_TSC_OFFSET,
		                        .addr = (uintptr_t)&offset };
	int error = vcpu_ioctl(v, KVM_GET_DEVICE_ATTR, &attr);

	offset += delta;
	return error ? error : vcpu_ioctl(v, KVM_SET_DEVICE_ATTR, &attr);
}

int vcpu_was_paused(struct vcpu *v)
{
	return ioctl(v->fd, KVM_KVMCLOCK_CTRL, 0) < 0 ? -errno : 0;
}

int vcpu_tsc_khz(struct vcpu *v)
{
	int khz = ioctl(v->fd, KVM_GET_TSC_KHZ, 0);

	return khz < 0 ? -errno : khz;
}

void vcpu_suberror(const struct vcpu *v, struct vcpu_suberror *out)
{
	const struct kvm_run *run = v->run;

	*out = (struct vcpu_suberror){ 0 };
	if (run->exit_reason != KVM_EXIT_INTERNAL_ERROR)
		return;
	out->suberror = run->internal.suberror;
	out->ndata = run->internal.ndata < 16 ? run->internal.ndata : 16;
	memcpy(out->data, run->internal.data, out->ndata * sizeof(out->data[0]));
}
