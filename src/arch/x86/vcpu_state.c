// SPDX-License-Identifier: GPL-2.0-or-later
#include "arch/x86/vcpu_state.h"
#include "arch/arch.h"
#include "arch/x86/boot.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CPUID_MAX         256

#define MSR_MTRR_DEF_TYPE 0x2ff
#define MTRR_ENABLE_WB    (1u << 11 | 6)
#define MSR_MISC_ENABLE   0x1a0
#define MISC_FAST_STRING  1u

/* Local APIC registers (Intel SDM volume 3, 11.4.1). */
#define APIC_LVT0        0x350
#define APIC_LVT1        0x360
#define APIC_MODE_NMI    0x400
#define APIC_MODE_EXTINT 0x700

static int set_cpuid(struct vm *vm, struct vcpu *v, const struct cpuid_config *cfg, struct err *err)
{
	struct kvm_cpuid2 *c = calloc(1, sizeof(*c) + CPUID_MAX * sizeof(c->entries[0]));
	int error;

	if (!c)
		return err_set(err, -ENOMEM, "out of memory");
	c->nent = CPUID_MAX;
	error = cpuid_build(vm_cpuid(vm), cfg, vcpu_index(v), c);
	if (!error)
		error = vcpu_set_cpuid(v, c);
	free(c);
	if (error)
		return err_sys(err, error, "vCPU %u: KVM refuses its CPUID", vcpu_index(v));
	return 0;
}

/* What firmware leaves behind. A host may lack either one; a guest can live without. */
static void set_msrs(struct vcpu *v)
{
	(void)vcpu_set_msr(v, MSR_MTRR_DEF_TYPE, MTRR_ENABLE_WB);
	(void)vcpu_set_msr(v, MSR_MISC_ENABLE, MISC_FAST_STRING);
}

static void set_lvt(struct kvm_lapic_state *l, unsigned reg, uint32_t val)
{
	memcpy(&l->regs[reg], &val, sizeof(val));
}

/* Virtual wire mode: LINT0 of the first CPU takes the 8259's interrupts, LINT1 is NMI everywhere. */
static int set_lapic(struct vcpu *v, struct err *err)
{
	struct kvm_lapic_state l;
	int error = vcpu_get_lapic(v, &l);

	if (!error) {
		if (vcpu_index(v) == 0)
			set_lvt(&l, APIC_LVT0, APIC_MODE_EXTINT);
		set_lvt(&l, APIC_LVT1, APIC_MODE_NMI);
		error = vcpu_set_lapic(v, &l);
	}
	if (error)
		return err_sys(err, error, "vCPU %u: local APIC", vcpu_index(v));
	return 0;
}

static int set_entry(struct vcpu *v, const struct kernel *k, struct err *err)
{
	struct kvm_sregs sregs;
	struct kvm_regs regs;
	int error = vcpu_get_sregs(v, &sregs);

	if (!error) {
		boot_regs(k, &regs, &sregs);
		error = vcpu_set_sregs(v, &sregs);
	}
	if (!error)
		error = vcpu_set_regs(v, &regs);
	if (error)
		return err_sys(err, error, "vCPU %u: KVM refuses its registers", vcpu_index(v));
	return 0;
}

int vcpu_state_init(struct vm *vm, struct vcpu *v, const struct cpuid_config *cfg, const struct kernel *k,
                    struct err *err)
{
	int error = set_cpuid(vm, v, cfg, err);

	if (error)
		return error;
	set_msrs(v);
	error = set_lapic(v, err);
	if (!error && k)
		error = set_entry(v, k, err);
	return error;
}

static void dump_segment(FILE *to, const char *name, const struct kvm_segment *s)
{
	fprintf(to, "  %s %04x base %016llx limit %08x type %x dpl %u%s%s%s\n", name, s->selector,
	        (unsigned long long)s->base, s->limit, s->type, s->dpl, s->present ? "" : " absent", s->l ? " 64" : "",
	        s->db ? " 32" : "");
}

static void dump_regs(FILE *to, const struct kvm_regs *r)
{
	const struct {
		const char *name;
		uint64_t val;
	} reg[] = {
		{ "rax", r->rax }, { "rbx", r->rbx }, { "rcx", r->rcx },    { "rdx", r->rdx }, { "rsi", r->rsi },
		{ "rdi", r->rdi }, { "rbp", r->rbp }, { "rsp", r->rsp },    { "r8 ", r->r8 },  { "r9 ", r->r9 },
		{ "r10", r->r10 }, { "r11", r->r11 }, { "r12", r->r12 },    { "r13", r->r13 }, { "r14", r->r14 },
		{ "r15", r->r15 }, { "rip", r->rip }, { "flg", r->rflags },
	};

	for (unsigned i = 0; i < sizeof(reg) / sizeof(reg[0]); i++)
		fprintf(to, "%s%s %016llx%s", i % 3 ? " " : "  ", reg[i].name, (unsigned long long)reg[i].val,
		        i % 3 == 2 ? "\n" : "");
}

static void dump_sregs(FILE *to, const struct kvm_sregs *s)
{
	dump_segment(to, "cs", &s->cs);
	dump_segment(to, "ss", &s->ss);
	dump_segment(to, "ds", &s->ds);
	dump_segment(to, "es", &s->es);
	dump_segment(to, "fs", &s->fs);
	dump_segment(to, "gs", &s->gs);
	dump_segment(to, "tr", &s->tr);
	fprintf(to, "  cr0 %08llx cr2 %016llx cr3 %08llx cr4 %08llx efer %llx\n", (unsigned long long)s->cr0,
	        (unsigned long long)s->cr2, (unsigned long long)s->cr3, (unsigned long long)s->cr4,
	        (unsigned long long)s->efer);
	fprintf(to, "  gdt %016llx/%x idt %016llx/%x\n", (unsigned long long)s->gdt.base, s->gdt.limit,
	        (unsigned long long)s->idt.base, s->idt.limit);
}

/* 16 bytes before the instruction pointer and 32 from it on, as far as they are mapped. */
static void dump_code(struct vcpu *v, const struct gmem *mem, uint64_t addr, FILE *to)
{
	fprintf(to, "  code at rip - 16:");
	for (int i = -16; i < 32; i++) {
		uint64_t gpa;
		const uint8_t *p = NULL;

		if (!vcpu_translate(v, addr + (uint64_t)i, &gpa))
			p = gmem_ptr(mem, gpa, 1);
		if (p)
			fprintf(to, i ? " %02x" : " <%02x>", *p);
		else
			fprintf(to, i ? " ??" : " <?\?>");
	}
	fprintf(to, "\n");
}

void arch_cpu_dump(struct vcpu *v, const struct gmem *mem, FILE *to)
{
	struct vcpu_suberror sub;
	struct kvm_sregs sregs;
	struct kvm_regs regs;
	int error = vcpu_get_regs(v, &regs);

	if (!error)
		error = vcpu_get_sregs(v, &sregs);
	fprintf(to, "  vCPU %u%s%s\n", vcpu_index(v), error ? ": " : "", error ? strerror(-error) : "");
	vcpu_suberror(v, &sub);
	for (unsigned i = 0; i < sub.ndata; i++)
		fprintf(to, "  KVM data[%u] %016llx\n", i, (unsigned long long)sub.data[i]);
	if (error)
		return;
	dump_regs(to, &regs);
	dump_sregs(to, &sregs);
	dump_code(v, mem, sregs.cs.base + regs.rip, to);
}
