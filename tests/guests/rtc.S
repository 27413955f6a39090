/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "guest.h"
	.code32
/* The clock: a plausible time in both formats, update in progress, a year's turn, and the memory behind it. */
	.globl guest
guest:
	call idle_values
	call plausible
	call binary
	call memory
	call update
	call turn
	EXIT(0)

/* Register %bl to %al. */
get:
	mov %bl, %al
	out %al, $0x70
	in $0x71, %al
	ret

/* %al to register %bl. */
put:
	push %eax
	mov %bl, %al
	out %al, $0x70
	pop %eax
	out %al, $0x71
	ret

	.macro reg n
	mov $\n, %bl
	call get
	.endm
	.macro set n, val
	mov $\n, %bl
	mov $\val, %al
	call put
	.endm

idle_values:
	reg 10
	and $0x7f, %al
	EQB($0x26, %al)
	reg 11
	EQB($0x02, %al)
	reg 13
	EQB($0x80, %al)
	ret

/* BCD digits, each register within its limits; 2024 or later. Prints them. */
plausible:
	call outside_update
	xor %edi, %edi
1:	movzbl order(%edi), %ebx
	call get
	cmp low(%edi), %al
	CHECK(ae)
	cmp high(%edi), %al
	CHECK(be)
	mov %al, %ah
	and $0x0f, %ah
	cmp $9, %ah
	CHECK(be)
	mov %al, values(%edi)
	inc %edi
	cmp $8, %edi
	jne 1b
	mov values + 6, %ax
	cmp $0x2024, %ax
	CHECK(ae)
	mov values + 4, %eax
	bswap %eax
	rol $16, %eax
	mov values + 6, %ax
	call hex
	SAY(" is the year, day and month\n")
	ret

/* Until an update is not in progress; then there are 244 us left at least. */
outside_update:
	reg 10
	test $0x80, %al
	jnz outside_update
	ret

/* The same in binary: year (which may turn in between), seconds, century. */
binary:
	set 11, 0x06
	reg 9
	movzbl values + 6, %edx
	mov %edx, %ecx
	shr $4, %ecx
	imul $6, %ecx
	sub %ecx, %edx /* BCD to binary */
	mov %al, %cl
	sub %dl, %cl
	cmp $1, %cl
	CHECK(be)
	reg 0
	cmp $59, %al
	CHECK(be)
	reg 0x32
	EQB($20, %al)
	set 11, 0x02
	reg 0x32
	EQB($0x20, %al)
	ret

/* 0x0e to 0x7f but the century, and the alarm; bit 7 of the index is something else. */
memory:
	mov $0x0e, %bl
1:	cmp $0x32, %bl
	je 2f
	mov %bl, %al
	xor $0x5a, %al
	call put
2:	inc %bl
	jns 1b
	mov $0x8e, %bl
3:	cmp $0xb2, %bl
	je 4f
	call get
	xor $0xda, %al
	EQB(%al, %bl)
4:	inc %bl
	jnz 3b
	set 1, 0x59
	set 3, 0x58
	set 5, 0x23
	reg 1
	EQB($0x59, %al)
	reg 3
	EQB($0x58, %al)
	reg 5
	EQB($0x23, %al)
	ret

/* An update comes into progress, and ends. */
update:
	reg 10
	test $0x80, %al
	jz update
	jmp outside_update

/* Set to the last second of 2099, the clock goes on, and says so. */
turn:
	set 11, 0x82
	xor %edi, %edi
1:	movzbl order(%edi), %ebx
	mov eve(%edi), %al
	call put
	inc %edi
	cmp $8, %edi
	jne 1b
	set 1, 0x00
	set 3, 0x00
	set 5, 0x00
	reg 12
	set 11, 0x02
2:	reg 12
	and $0x30, %al
	jz 2b
	EQB($0x30, %al) /* update ended, alarm at midnight */
	call outside_update
	xor %edi, %edi
	reg 0
	cmp $0x58, %al
	CHECK(b) /* a few seconds may have gone by */
	inc %edi
3:	movzbl order(%edi), %ebx
	call get
	mov morning(%edi), %dl
	EQB(%dl, %al)
	inc %edi
	cmp $8, %edi
	jne 3b
	SAY("a new year\n")
	ret

	.section .rodata
/*		second minute hour weekday day month year century */
order:	.byte	0,    2,    4,    6,    7,    8,    9,    0x32
low:	.byte	0,    0,    0,    1,    1,    1,    0,    0x20
high:	.byte	0x59, 0x59, 0x23, 7,    0x31, 0x12, 0x99, 0x20
eve:	.byte	0x59, 0x59, 0x23, 5,    0x31, 0x12, 0x99, 0x20
morning: .byte	0,    0,    0,    6,    0x01, 0x01, 0,    0x21
	.bss
values:	.skip 8
