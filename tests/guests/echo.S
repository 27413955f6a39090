/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "guest.h"
	.code32
/* Echoes "bytes=" bytes of COM1 between brackets, by polling. */
	.globl guest
guest:
	mov $name, %esi
	call param
	CHECK(nc)
	mov %eax, %ecx
	OUT(COM1 + 2, 0x07)
	SAY("[")
1:	IN(COM1 + 5)
	test $2, %al /* overrun */
	CHECK(z)
	test $1, %al
	jz 1b
	IN(COM1)
	call putc
	loop 1b
	SAY("]")
	EXIT(0)
	.section .rodata
name:	.asciz "bytes="
