/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "raw.h"

/*
 * From the PVH entry (Xen's docs/misc/pvh.pandoc: 32-bit protected mode, no
 * paging, %ebx the start info) to main() at CPL 3 in long mode, where a guest
 * runs at native speed also on hosts that interpret kernel code. What runs at
 * CPL 0 is therefore short and knows common instructions only. It also asks
 * for KVM's clock, which says how fast the TSC is.
 *
 * The TSS's I/O permissions let main() use ports; IOPL 3 would do on real
 * hardware, but such hosts forget it. Every gate leads to CPL 3: an interrupt
 * changes neither privilege nor stack, and its handler is native, too.
 */

#define KERNEL_CODE	 0x08
#define USER_DATA	 0x13
#define USER_CODE	 0x1b
#define TSS		 0x20
#define MSR_EFER	 0xc0000080
#define MSR_KVM_CLOCK	 0x4b564d01 /* MSR_KVM_SYSTEM_TIME_NEW */
#define FLAGS		 0x3202	    /* IOPL 3; interrupts on, for such hosts know no STI at CPL 3 */
#define PIC1_MASK	 0x21
#define PIC2_MASK	 0xa1
#define LAPIC_EOI	 0xfee000b0

	.section .note.pvh, "a", @note
	.long 4, 4, 18 /* XEN_ELFNOTE_PHYS32_ENTRY */
	.asciz "Xen"
	.long _start

	.text
	.code32
	.globl _start
_start:
	mov %ebx, start_info
	mov $0xff, %al /* a firmware before us may have left its timer running */
	out %al, $PIC1_MASK
	out %al, $PIC2_MASK
	lgdt gdt_desc
	lidt idt_desc
	mov $pml4, %eax
	mov %eax, %cr3
	mov %cr4, %eax
	or $0x20, %eax /* PAE */
	mov %eax, %cr4
	mov $MSR_EFER, %ecx
	rdmsr
	or $0x100, %eax /* LME */
	wrmsr
	mov $MSR_KVM_CLOCK, %ecx
	mov $kvm_clock + 1, %eax
	xor %edx, %edx
	wrmsr
	mov %cr0, %eax
	or $0x80000000, %eax /* PG */
	mov %eax, %cr0
	ljmp $KERNEL_CODE, $1f

	.code64
1:	mov $TSS, %eax
	ltr %ax
	mov $stack, %esp
	push $USER_DATA
	push $stack
	push $FLAGS
	push $USER_CODE
	push $2f
	iretq
2:	call start
	ud2

/* A device's interrupt: counted, no more. */
	.set n, 0
	.rept IRQS
	.balign 8
	.globl irq_0
	.if n == 0
irq_0:
	.endif
	push $n
	jmp irq
	.set n, n + 1
	.endr
irq:	push %rax
	mov 8(%rsp), %rax
	incq irqs(, %rax, 8)
	mov $LAPIC_EOI, %eax
	movl $0, (%rax)
	pop %rax
	lea 8(%rsp), %rsp
	iretq

/* An exception ends the guest; which, and the top of its stack, are told. */
	.set n, 0
	.rept 32
	.balign 8
	.if n == 0
	.globl fault_0
fault_0:
	.endif
	push $n
	jmp 1f
	.set n, n + 1
	.endr
1:	pop %rdi
	mov %rsp, %rsi
	and $-16, %rsp
	call fault
	ud2

	.data
	.balign 8
gdt:	.quad 0
	.quad 0x00af9a000000ffff /* KERNEL_CODE */
	.quad 0x00cff2000000ffff /* USER_DATA */
	.quad 0x00affa000000ffff /* USER_CODE */
	.word tss_end - tss - 1, tss_low, 0x8900 + tss_mid, 0 /* TSS, below 16 MiB */
	.quad 0
gdt_end:
	.balign 4
	.word 0
gdt_desc: .word gdt_end - gdt - 1
	.long gdt
	.word 0
	.word 0
idt_desc: .word 256 * 16 - 1
	.long idt
	.word 0

	.balign 8
	.globl tss
tss:	.long 0
	.quad kernel_stack /* RSP0 */
	.skip 102 - 12
	.word tss_ports - tss
tss_ports: .fill 8192, 1, 0
	.byte 0xff
tss_end:

/* The first 4 GiB at their own addresses, in pages of 2 MiB, for everybody. */
	.balign 4096
pml4:	.quad pdpt + 7
	.fill 511, 8, 0
pdpt:	.quad pd + 7, pd + 0x1007, pd + 0x2007, pd + 0x3007
	.fill 508, 8, 0
	.set n, 0
pd:	.rept 2048
	.quad n << 21 | 0xe7
	.set n, n + 1
	.endr

	.bss
	.globl start_info, kvm_clock, idt, irqs
	.balign 4096
idt:	.skip 256 * 16
kvm_clock: .skip 64
irqs:	.skip 8 * IRQS
start_info: .skip 8
	.balign 16
	.skip 4096
kernel_stack:
	.skip 16384
stack:

	.section .note.GNU-stack, "", @progbits
