/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "guest.h"
	.code32
/* Ports that nobody has read as ones at every width; some that somebody has; string instructions. */
	.globl guest
guest:
	mov $nobody, %esi
1:	lodsw
	movzwl %ax, %edx
	test %edx, %edx
	jz 2f
	xor %eax, %eax
	in %dx, %al
	EQ($0xff, %eax)
	xor %eax, %eax
	in %dx, %ax
	EQ($0xffff, %eax)
	in %dx, %eax
	EQ($-1, %eax)
	xor %eax, %eax
	out %al, %dx
	out %ax, %dx
	out %eax, %dx
	in %dx, %al
	EQB($0xff, %al)
	jmp 1b
2:
	IN(0x64) /* no keyboard: the output buffer never empties, nothing is in the way of a write */
	and $3, %al
	EQB($1, %al)
	IN(0x70)
	EQB($0xff, %al)
	IN(PM + 1)
	EQB($0, %al)

	mov $text, %esi
	mov $text_end - text, %ecx
	mov $COM1, %edx
	rep outsb
	mov $buf, %edi
	mov $3, %ecx
	mov $COM1 + 7, %edx
	mov $0x69, %al
	out %al, %dx
	rep insb
	EQ($0x00696969, buf)
	EXIT(0)

	.section .rodata
nobody:	.word 0x100, 0x80, 0x2e0, 0x5f0, 0x604, 0x1000, 0xcf0, 0xd00, 0xfff0, 0
text:	.ascii "in one go\n"
text_end:
	.bss
	.balign 4
buf:	.skip 4
