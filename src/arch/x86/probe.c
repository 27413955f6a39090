// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * How it works: some hosts offer /dev/kvm without hardware virtualization
 * below it; there KVM interprets whatever a guest runs at CPL 0, and knows too
 * few instructions for Linux. No capability tells, so a guest tries: 16 pages
 * of RAM, one vCPU put straight into long mode, and a few of the instructions
 * that Linux cannot do without and the interpreter does not know. A guest that
 * gets through them writes to PORT_DONE, whose device kicks the vCPU out.
 * Anything unexpected in the guest ends in UD2, and as its IDT has a gate for
 * INT3 only, in a triple fault.
 *
 * A guest that neither ends nor fails is kicked by a watchdog thread.
 */
#include "arch/x86/probe.h"

#include "arch/x86/cpuid.h"
#include "kvm/vcpu.h"
#include "kvm/vm.h"

#include <cpuid.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PORT_DONE   0xf4
#define DEADLINE_S  10
#define CPUID_SLOTS 256

/* Guest memory, mapped one to one. */
#define PAGE       0x1000u
#define RAM_LEN    (16 * PAGE)
#define GDT_ADDR   0x1000u
#define IDT_ADDR   0x2000u
#define PML4_ADDR  0x3000u
#define PDPT_ADDR  0x4000u
#define PD_ADDR    0x5000u
#define CODE_ADDR  0x6000u
#define INT3_ADDR  0x7000u
#define DATA_ADDR  0x8000u /* zeroes: CMPXCHG16B's operand, then XRSTOR's area */
#define XSAVE_ADDR 0x9000u
#define STACK_TOP  RAM_LEN
/* Pages that KVM needs for itself on old Intel processors, above all RAM. */
#define IDENTITY_ADDR    0xfffbc000u
#define TSS_ADDR         0xfffbd000u

#define PTE_PRESENT_RW   0x3u
#define PTE_LARGE        0x80u

#define SEL_CODE         0x08
#define SEL_DATA         0x10
#define DESC_CODE        0x00af9b000000ffffull /* flat, 64-bit, accessed */
#define DESC_DATA        0x00cf93000000ffffull
#define GATE_INTR        0x8e00ull /* present, DPL 0, 64-bit interrupt gate */
#define VECTOR_BP        3
#define VECTORS          (VECTOR_BP + 1)

#define CR0_LONG         0x80010033ull /* PG WP NE ET MP PE */
#define CR4_LONG         0x00000620ull /* OSXMMEXCPT OSFXSR PAE */
#define CR4_XSAVE        0x00040000ull
#define EFER_LONG        0x500ull /* LMA LME */
#define RFLAGS_ONE       0x2ull

#define CPUID1_ECX_VMX   (1u << 5)
#define CPUID1_ECX_CX16  (1u << 13)
#define CPUID1_ECX_XSAVE (1u << 26)
#define CPUID81_ECX_SVM  (1u << 2)

/* Swaps [DATA_ADDR] from 0 to RCX:RBX and checks that it did. RDI stays DATA_ADDR. */
static const uint8_t code_cmpxchg16b[] = {
	0x31, 0xc0,                   /* xor eax, eax */
	0x31, 0xd2,                   /* xor edx, edx */
	0xbb, 0x01, 0x00, 0x00, 0x00, /* mov ebx, 1 */
	0xb9, 0x02, 0x00, 0x00, 0x00, /* mov ecx, 2 */
	0xf0, 0x48, 0x0f, 0xc7, 0x0f, /* lock cmpxchg16b [rdi] */
	0x75, 0x06,                   /* jne fail */
	0x48, 0x39, 0x4f, 0x08,       /* cmp [rdi + 8], rcx */
	0x74, 0x02,                   /* je end */
	0x0f, 0x0b,                   /* fail: ud2 */
};

/* The handler counts in R8D. */
static const uint8_t code_int3[] = {
	0xcc,                   /* int3 */
	0x41, 0x83, 0xf8, 0x01, /* cmp r8d, 1 */
	0x74, 0x02,             /* je end */
	0x0f, 0x0b,             /* ud2 */
};

static const uint8_t code_int3_handler[] = {
	0x41, 0xff, 0xc0, /* inc r8d */
	0x48, 0xcf,       /* iretq */
};

/* XCR0 = x87 and SSE; loads their initial state from [RSI]. */
static const uint8_t code_xrstor[] = {
	0x31, 0xc9,                   /* xor ecx, ecx */
	0x31, 0xd2,                   /* xor edx, edx */
	0xb8, 0x03, 0x00, 0x00, 0x00, /* mov eax, 3 */
	0x0f, 0x01, 0xd1,             /* xsetbv */
	0x0f, 0xae, 0x2e,             /* xrstor [rsi] */
};

static const uint8_t code_done[] = {
	0xe6, PORT_DONE, /* out PORT_DONE, al */
	0xeb, 0xfe,      /* jmp $ */
};

struct probe {
	struct gmem mem;
	struct bus *ports, *mmio;
	struct vm *vm;
	struct vcpu *vcpu;
	struct kvm_cpuid2 *cpuid;
	bool cx16, xsave; /* the guest has these */
	bool done;        /* vCPU thread */

	pthread_t watchdog;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool ended; /* [m] */
};

bool probe_has_virt(void)
{
	uint32_t eax, ebx, ecx, edx;

	if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & CPUID1_ECX_VMX))
		return true;
	return __get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx) && (ecx & CPUID81_ECX_SVM);
}

static void done_write(void *dev, uint64_t off, unsigned size, uint64_t val)
{
	struct probe *p = dev;

	p->done = true;
	vcpu_kick(p->vcpu);
}

static uint64_t done_read(void *dev, uint64_t off, unsigned size)
{
	return ~0ull;
}

static const struct bus_ops done_ops = { .read = done_read, .write = done_write };

static int make_vm(struct probe *p, struct err *err)
{
	struct window done = { .name = "probe", .base = PORT_DONE, .len = 1, .ops = &done_ops, .dev = p };
	struct vm_config cfg = { .mem = &p->mem, .identity_addr = IDENTITY_ADDR, .tss_addr = TSS_ADDR };
	int error;

	p->mem = (struct gmem){ .nbanks = 1, .bank = { { .gpa = 0, .len = RAM_LEN } } };
	error = gmem_map(&p->mem, false, err);
	if (!error)
		error = bus_new(&p->ports, err);
	if (!error)
		error = bus_new(&p->mmio, err);
	if (!error)
		error = bus_add(p->ports, &done);
	if (error)
		return error;
	cfg.ports = p->ports;
	cfg.mmio = p->mmio;
	error = vm_new(&cfg, &p->vm, err);
	return error ? error : vcpu_new(p->vm, 0, &p->vcpu, err);
}

static void note_features(struct probe *p)
{
	for (unsigned i = 0; i < p->cpuid->nent; i++) {
		if (p->cpuid->entries[i].function == 1) {
			p->cx16 = p->cpuid->entries[i].ecx & CPUID1_ECX_CX16;
			p->xsave = p->cpuid->entries[i].ecx & CPUID1_ECX_XSAVE;
		}
	}
}

static int set_cpuid(struct probe *p, const struct cpuid_config *host, struct err *err)
{
	int error;

	p->cpuid = calloc(1, sizeof(*p->cpuid) + CPUID_SLOTS * sizeof(p->cpuid->entries[0]));
	if (!p->cpuid)
		return err_set(err, -ENOMEM, "out of memory");
	p->cpuid->nent = CPUID_SLOTS;
	error = cpuid_build(vm_cpuid(p->vm), host, 0, p->cpuid);
	if (!error)
		error = vcpu_set_cpuid(p->vcpu, p->cpuid);
	if (error)
		return err_sys(err, error, "probe guest: cannot set CPUID");
	note_features(p);
	return 0;
}

static void put64(struct probe *p, uint64_t gpa, uint64_t val)
{
	memcpy(gmem_ptr(&p->mem, gpa, sizeof(val)), &val, sizeof(val));
}

static uint64_t put_code(struct probe *p, uint64_t gpa, const uint8_t *code, size_t len)
{
	memcpy(gmem_ptr(&p->mem, gpa, len), code, len);
	return gpa + len;
}

static void load_guest(struct probe *p)
{
	uint64_t at = CODE_ADDR;

	put64(p, GDT_ADDR + SEL_CODE, DESC_CODE);
	put64(p, GDT_ADDR + SEL_DATA, DESC_DATA);
	put64(p, IDT_ADDR + 16 * VECTOR_BP, GATE_INTR << 32 | (uint64_t)SEL_CODE << 16 | INT3_ADDR);
	put64(p, PML4_ADDR, PDPT_ADDR | PTE_PRESENT_RW);
	put64(p, PDPT_ADDR, PD_ADDR | PTE_PRESENT_RW);
	put64(p, PD_ADDR, PTE_LARGE | PTE_PRESENT_RW);

	if (p->cx16)
		at = put_code(p, at, code_cmpxchg16b, sizeof(code_cmpxchg16b));
	at = put_code(p, at, code_int3, sizeof(code_int3));
	if (p->xsave)
		at = put_code(p, at, code_xrstor, sizeof(code_xrstor));
	put_code(p, at, code_done, sizeof(code_done));
	put_code(p, INT3_ADDR, code_int3_handler, sizeof(code_int3_handler));
}

static struct kvm_segment segment(uint16_t selector, uint8_t type, bool code)
{
	return (struct kvm_segment){
		.limit = 0xffffffff,
		.selector = selector,
		.type = type,
		.present = 1,
		.s = 1,
		.l = code,
		.db = !code,
		.g = 1,
	};
}

static int set_state(struct probe *p)
{
	struct kvm_regs regs = {
		.rip = CODE_ADDR, .rsp = STACK_TOP, .rdi = DATA_ADDR, .rsi = XSAVE_ADDR, .rflags = RFLAGS_ONE
	};
	struct kvm_sregs s;
	int error = vcpu_get_sregs(p->vcpu, &s);

	if (error)
		return error;
	s.cs = segment(SEL_CODE, 0xb, true);
	s.ds = s.es = s.fs = s.gs = s.ss = segment(SEL_DATA, 0x3, false);
	s.gdt = (struct kvm_dtable){ .base = GDT_ADDR, .limit = SEL_DATA + 7 };
	s.idt = (struct kvm_dtable){ .base = IDT_ADDR, .limit = 16 * VECTORS - 1 };
	s.cr0 = CR0_LONG;
	s.cr3 = PML4_ADDR;
	s.cr4 = CR4_LONG | (p->xsave ? CR4_XSAVE : 0);
	s.efer = EFER_LONG;
	error = vcpu_set_sregs(p->vcpu, &s);
	return error ? error : vcpu_set_regs(p->vcpu, &regs);
}

static void *watchdog(void *arg)
{
	struct probe *p = arg;
	struct timespec at;
	int timed_out = 0;

	clock_gettime(CLOCK_MONOTONIC, &at);
	at.tv_sec += DEADLINE_S;
	pthread_mutex_lock(&p->lock);
	while (!p->ended && !timed_out)
		timed_out = pthread_cond_clockwait(&p->cond, &p->lock, CLOCK_MONOTONIC, &at);
	if (!p->ended)
		vcpu_kick(p->vcpu);
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

static enum vcpu_exit run_watched(struct probe *p, struct err *err)
{
	enum vcpu_exit why;
	int error = pthread_create(&p->watchdog, NULL, watchdog, p);

	if (error) {
		err_sys(err, -error, "probe guest: cannot start a thread");
		return VCPU_ERROR;
	}
	why = vcpu_run(p->vcpu, err);
	pthread_mutex_lock(&p->lock);
	p->ended = true;
	pthread_cond_signal(&p->cond);
	pthread_mutex_unlock(&p->lock);
	pthread_join(p->watchdog, NULL);
	return why;
}

static int run(struct probe *p, struct err *err)
{
	switch (run_watched(p, err)) {
	case VCPU_KICKED:
		if (p->done)
			return 1;
		return err_set(err, -ETIMEDOUT, "the probe guest did not end within %d s", DEADLINE_S);
	case VCPU_SHUTDOWN:
	case VCPU_INTERNAL: return 0;
	case VCPU_ERROR: break;
	}
	return -EIO;
}

static void probe_free(struct probe *p)
{
	vcpu_free(p->vcpu);
	vm_free(p->vm);
	bus_free(p->mmio);
	bus_free(p->ports);
	gmem_unmap(&p->mem);
	free(p->cpuid);
}

int probe_run(struct err *err)
{
	struct probe p = { .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER };
	struct cpuid_config host = { .ncpus = 1 };
	int r;

	vcpu_kick_init();
	cpuid_host(&host); /* before the VM is there */
	r = make_vm(&p, err);
	if (!r)
		r = set_cpuid(&p, &host, err);
	if (!r) {
		load_guest(&p);
		r = set_state(&p);
		if (r)
			err_sys(err, r, "probe guest: cannot set registers");
	}
	if (!r)
		r = run(&p, err);
	probe_free(&p);
	return r;
}
