/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "guest.h"
	.code32
/*
 * Writes "event=" to the pvpanic device, wherever it is. "then=": 1 says why and halts, as a kernel that
 * prints its message late; 2 halts; else it exits.
 */
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
	mov $then, %esi
	call param
	jc 4f
	cmp $1, %eax
	jne 3f
	SAY("Kernel panic - not syncing: told late\n")
3:	cli
	hlt
	jmp 3b
4:	SAY("lives\n")
	EXIT(0)
	.section .rodata
name:	.asciz "event="
then:	.asciz "then="
