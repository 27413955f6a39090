/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "guest.h"
	.code32
/* Writes "event=" to the pvpanic device, wherever it is. */
	.globl guest
guest:
	mov $ECAM, %ebx
1:	cmpl $0x00111b36, (%ebx)
	je 2f
	add $0x1000, %ebx
	cmp $ECAM + 0x100000, %ebx
	CHECK(b)
	jmp 1b
2:	mov $name, %esi
	call param
	CHECK(nc)
	mov 0x10(%ebx), %edx
	orb $2, 4(%ebx)
	SAY("writes\n")
	mov %al, (%edx)
	SAY("lives\n")
	EXIT(0)
	.section .rodata
name:	.asciz "event="
