/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "guest.h"
	.code32
/* Powers off as ACPI says: sleep type from \_S5 in the DSDT, register from the FADT. */
	.globl guest
guest:
	mov $0x50434146, %eax /* "FACP" */
	call acpi_table
	test %eax, %eax
	CHECK(nz)
	mov %eax, %ebx
	testl $1 << 20, 112(%ebx) /* HW_REDUCED */
	CHECK(nz)
	EQB($1, 244(%ebx)) /* the sleep control register is a port */
	EQB($8, 245(%ebx))
	mov 248(%ebx), %edx
	mov 140(%ebx), %ebx /* X_DSDT */
	EQ($0x54445344 /* "DSDT" */, (%ebx))
	mov 4(%ebx), %ecx
	call sum
	sub $8, %ecx
1:	cmpl $0x5f35535f /* "_S5_" */, (%ebx)
	je 2f
	inc %ebx
	loop 1b
	CHECK(e)
2:	EQB($0x12, 4(%ebx)) /* a package */
	EQB($0x0a, 7(%ebx)) /* of bytes */
	movzbl 8(%ebx), %eax
	push %edx
	SAY("S5 is")
	call hex
	mov %edx, %eax
	call hex
	SAY("\n")
	movzbl 8(%ebx), %eax
	pop %edx
	shl $2, %eax

	out %al, %dx /* without SLP_EN nothing happens */
	SAY("bye\n")
	or $0x20, %al
	out %al, %dx
	SAY("still here\n")
	EXIT(FAILED)
