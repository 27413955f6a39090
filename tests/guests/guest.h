/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef TESTS_GUESTS_GUEST_H
#define TESTS_GUESTS_GUEST_H

/*
 * What every tiny guest starts with. A guest is one .S file, entered at
 * `guest` in 32-bit protected mode without paging, interrupts off, on a stack
 * of its own; %ebx has the PVH start info, which is checked and also kept in
 * `start_info`. It ends by EXIT(status), or by what it is there to test.
 *
 * The functions are in lib.S, and the linker leaves out those that a guest
 * does not call. They take and return %eax unless they say otherwise and keep
 * every other register.
 *
 * A failed check prints "FAIL line N: A B" (%eax and %edx at that moment) and
 * exits with status FAILED.
 */

#define FAILED 99

/* Board: as in src/arch/x86/memmap.h, on purpose once more: this is what guests rely on. */
#define COM1	  0x3f8
#define DEBUG_EXIT 0xf4
#define PM	  0x600
#define PM_S5	  (5 << 2 | 0x20)
#define ECAM	  0xe0000000
#define IOAPIC	  0xfec00000
#define LAPIC	  0xfee00000
#define CODE_SEL  0x10
#define DATA_SEL  0x18

/* struct hvm_start_info, Xen's public/arch-x86/hvm/start_info.h */
#define SI_MODULES   12
#define SI_MODLIST   16
#define SI_CMDLINE   24
#define SI_RSDP	     32
#define SI_MEMMAP    40
#define SI_MEMMAP_N  48

#define EXIT(n)	 mov $(n), %eax; jmp exit
/* jCC is the condition that must hold. */
#define CHECK(cc) j##cc 99f; push $__LINE__; call fail; 99:
#define EQ(want, got) cmpl want, got; CHECK(e)
#define EQB(want, got) cmpb want, got; CHECK(e)
#define SAY(text) push $98f; call say; .pushsection .rodata; 98: .asciz text; .popsection
#define OUT(port, val) push %eax; push %edx; mov $(port), %edx; mov $(val), %al; out %al, %dx; pop %edx; pop %eax
/* Into %al, by way of %dx. */
#define IN(port) mov $(port), %edx; in %dx, %al

/* The end of an interrupt handler. IRET itself is unknown to hosts that interpret kernel code. */
#define RETURN_FROM_IRQ movl $0, LAPIC + 0xb0; pushl 8(%esp); popfl; ret $8

#endif
