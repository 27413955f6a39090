/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "guest.h"

	.code32

/* A function of its own section, so that the linker can leave it out. */
	.macro function name
	.section .text.\name, "ax"
	.globl \name
\name:
	.endm

	.section .note.pvh, "a", @note
	.long 4, 4, 18 /* XEN_ELFNOTE_PHYS32_ENTRY */
	.asciz "Xen"
	.long _start

	.bss
	.balign 16
	.skip 4096
stack:

	function _start
	mov $stack, %esp
	mov %ebx, start_info
	EQ($0x336ec578, (%ebx))
	call guest
	EXIT(0)

	.section .data.start_info, "aw"
	.globl start_info
start_info:
	.long 0

	function exit
	out %al, $DEBUG_EXIT
1:	cli
	hlt
	jmp 1b

/* Stack: line number. */
	function fail
	OUT(COM1 + 3, 3) /* whatever was being done to it */
	OUT(COM1 + 4, 3)
	push %eax
	SAY("FAIL line ")
	mov 8(%esp), %eax
	call decimal
	SAY(":")
	pop %eax
	call hex
	mov %edx, %eax
	call hex
	SAY("\n")
	EXIT(FAILED)

/* Stack: address of the text, which it takes away. */
	function say
	push %esi
	mov 8(%esp), %esi
	call puts
	pop %esi
	ret $4

/* The text at %esi. */
	function puts
	push %eax
	push %esi
1:	lodsb
	test %al, %al
	jz 2f
	call putc
	jmp 1b
2:	pop %esi
	pop %eax
	ret

/* %al */
	function putc
	push %edx
	mov $COM1, %edx
	out %al, %dx
	pop %edx
	ret

/* A blank, and %eax as eight digits. */
	function hex
	push %eax
	push %ecx
	push %eax
	mov $' ', %al
	call putc
	pop %eax
	mov $8, %ecx
1:	rol $4, %eax
	push %eax
	and $15, %al
	add $'0', %al
	cmp $'9', %al
	jbe 2f
	add $('a' - '0' - 10), %al
2:	call putc
	pop %eax
	loop 1b
	pop %ecx
	pop %eax
	ret

	function decimal
	push %eax
	push %ecx
	push %edx
	mov $10, %ecx
	xor %edx, %edx
	div %ecx
	test %eax, %eax
	jz 1f
	call decimal
1:	lea '0'(%edx), %eax
	call putc
	pop %edx
	pop %ecx
	pop %eax
	ret

/*
 * The number behind the first "NAME=" on the command line. %esi: "NAME=".
 * Without one 0, and carry.
 */
	function param
	push %esi
	push %edi
	push %ebx
	mov start_info, %ebx
	mov SI_CMDLINE(%ebx), %edi
1:	xor %ecx, %ecx
2:	mov (%esi, %ecx), %al
	test %al, %al
	jz 3f
	cmp (%edi, %ecx), %al
	lea 1(%ecx), %ecx
	je 2b
	cmpb $1, (%edi) /* carry: this is the end */
	inc %edi
	jnc 1b
	xor %eax, %eax
	stc
	jmp 6f
3:	add %ecx, %edi
	xor %eax, %eax
4:	movzbl (%edi), %ecx
	sub $'0', %ecx
	cmp $9, %ecx
	ja 5f
	imul $10, %eax
	add %ecx, %eax
	inc %edi
	jmp 4b
5:	clc
6:	pop %ebx
	pop %edi
	pop %esi
	ret

/* The ACPI table whose signature is %eax, checked; 0: none. */
	function acpi_table
	push %ebx
	push %ecx
	push %edx
	push %esi
	push %edi
	mov %eax, %edi
	mov start_info, %ebx
	mov SI_RSDP(%ebx), %ebx
	EQ($0x20445352 /* "RSD " */, (%ebx))
	EQ($0x20525450 /* "PTR " */, 4(%ebx))
	mov $36, %ecx
	call sum
	mov 24(%ebx), %ebx /* XSDT */
	EQ($0x54445358, (%ebx))
	mov 4(%ebx), %ecx
	call sum
	mov %ebx, %esi
	add %ebx, %ecx
	add $36, %esi
1:	xor %eax, %eax
	cmp %ecx, %esi
	jae 2f
	mov (%esi), %eax
	EQ($0, 4(%esi)) /* below 4 GiB */
	add $8, %esi
	cmp %edi, (%eax)
	jne 1b
	mov %eax, %ebx
	mov 4(%ebx), %ecx
	call sum
	mov %ebx, %eax
2:	pop %edi
	pop %esi
	pop %edx
	pop %ecx
	pop %ebx
	ret

/* The %ecx bytes at %ebx must sum up to 0. */
	function sum
	push %eax
	push %ecx
	xor %eax, %eax
1:	add -1(%ebx, %ecx), %al
	loop 1b
	CHECK(e)
	pop %ecx
	pop %eax
	ret

/*
 * Interrupts: an IDT whose gate %eax leads to %edx, local APIC on, %ecx's pin
 * of the I/O APIC (edge, high) to that vector on this CPU.
 */
	function irq_route
	push %eax
	push %ecx
	push %edx
	push %ebx
	mov %dx, idt(, %eax, 8)
	movw $CODE_SEL, idt + 2(, %eax, 8)
	movw $0x8e00, idt + 4(, %eax, 8)
	shr $16, %edx
	mov %dx, idt + 6(, %eax, 8)
	lidt idtr
	mov $IOAPIC, %edx
	lea 0x10(, %ecx, 2), %ebx
	mov %ebx, (%edx)
	mov %eax, 0x10(%edx)
	inc %ebx
	mov %ebx, (%edx)
	mov LAPIC + 0x20, %eax
	and $0xff000000, %eax
	mov %eax, 0x10(%edx)
	movl $0x1ff, LAPIC + 0xf0
	movl $0, LAPIC + 0x80
	pop %ebx
	pop %edx
	pop %ecx
	pop %eax
	ret

	.section .data.idtr, "aw"
	.balign 4
	.word 0
idtr:	.word 8 * 256 - 1
	.long idt
	.section .bss.idt, "aw", @nobits
	.balign 8
idt:	.skip 8 * 256
