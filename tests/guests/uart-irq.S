/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "guest.h"
	.code32
/* Receives from COM1 by interrupts, halted in between, and echoes; ends with a "q". */
	.globl guest
guest:
	mov $0x34, %eax
	mov $4, %ecx
	mov $handler, %edx
	call irq_route
	OUT(COM1 + 2, 0x87) /* trigger level 8 */
	OUT(COM1 + 1, 1)
	SAY("ready\n")
	OUT(COM1 + 4, 0x0b)
1:	sti
	hlt
	cli
	cmpb $'q', last
	jne 1b
	SAY("\nquits\n")
	EXIT(0)

handler:
	push %eax
	push %edx
	IN(COM1 + 2)
	and $0xc7, %al
	EQB($0xc4, %al) /* received data, or the character timeout */
1:	IN(COM1)
	mov %al, last
	call putc
	IN(COM1 + 5)
	test $1, %al
	jnz 1b
	pop %edx
	pop %eax
	RETURN_FROM_IRQ
	.bss
last:	.skip 1
