/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "guest.h"
	.code32
/*
 * Ways down. Reads a byte from COM1, exactly one (RTS goes off before it is
 * taken, so that none is lost with the FIFO), and does what it says:
 * k 8042, c 0xcf9, a ACPI's reset register, t triple fault, q power off.
 */
	.globl guest
guest:
	OUT(COM1 + 4, 0x03)
1:	IN(COM1 + 5)
	test $1, %al
	jz 1b
	OUT(COM1 + 4, 0)
	IN(COM1)
	call putc
	mov $reset_8042, %ebx
	cmp $'k', %al
	je 2f
	mov $reset_cf9, %ebx
	cmp $'c', %al
	je 2f
	mov $reset_acpi, %ebx
	cmp $'a', %al
	je 2f
	mov $triple_fault, %ebx
	cmp $'t', %al
	je 2f
	mov $poweroff, %ebx
	cmp $'q', %al
	CHECK(e)
2:	call *%ebx
	SAY(" still here\n")
	EXIT(FAILED)

reset_8042:
	OUT(0x64, 0xfe)
	ret

reset_cf9:
	OUT(0xcf9, 2)
	OUT(0xcf9, 6)
	ret

reset_acpi:
	mov $0x50434146, %eax /* "FACP" */
	call acpi_table
	test %eax, %eax
	CHECK(nz)
	testl $1 << 10, 112(%eax) /* RESET_REG_SUP */
	CHECK(nz)
	EQB($1, 116(%eax)) /* a port */
	mov 120(%eax), %edx
	EQ($PM + 2, %edx)
	movb 128(%eax), %al
	out %al, %dx
	ret

poweroff:
	OUT(PM, PM_S5)
	ret

triple_fault:
	lidt none
	ud2

	.section .rodata
none:	.word 0
	.long 0
