/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "guest.h"
	.code32
/*
 * PCI bus 0, through the ports and through ECAM: both show the same functions
 * and registers, what is not there reads as ones, and pvpanic's BAR can be
 * sized, moved and switched off. %edi is a function's number << 8.
 */
#define CF8	 0xcf8
#define CFC	 0xcfc
#define PVPANIC	 0x00111b36
#define BAR_LEN	 16
#define ELSEWHERE 0xd0000040

	.globl guest
guest:
	mov $0x4746434d, %eax /* "MCFG" */
	call acpi_table
	test %eax, %eax
	CHECK(nz)
	EQ($60, 4(%eax)) /* one range */
	EQ($ECAM, 44(%eax))
	EQ($0, 48(%eax))
	EQ($0, 52(%eax)) /* segment 0, bus 0 alone */
	xor %edi, %edi
1:	call compare
	add $0x100, %edi
	cmp $0x10000, %edi
	jne 1b
	EQ($1, bridges)
	call other_buses
	mov pvpanic, %edi
	test %edi, %edi
	CHECK(nz)
	call narrow
	call bar
	EXIT(0)

/* Register %ecx of the function, as a dword in %eax. */
by_ports:
	mov $CF8, %edx
	lea 0x80000000(%edi, %ecx), %eax
	out %eax, %dx
	mov $CFC, %edx
	in %dx, %eax
	ret

by_ecam:
	mov %edi, %eax
	shl $4, %eax
	mov ECAM(%eax, %ecx), %eax
	ret

write:
	push %edx
	mov %edi, %edx
	shl $4, %edx
	mov %eax, ECAM(%edx, %ecx)
	pop %edx
	ret

compare:
	xor %ecx, %ecx
	call by_ports
	mov %eax, %esi
	cmp $-1, %eax
	jne 1f
	call by_ecam
	EQ($-1, %eax)
	ret
1:	call by_ports
	mov %eax, %ebx
	call by_ecam
	EQ(%ebx, %eax)
	add $4, %ecx
	cmp $256, %ecx
	jne 1b

	cmp $PVPANIC, %esi
	jne 2f
	mov %edi, pvpanic
2:	mov $8, %ecx
	call by_ecam
	shr $16, %eax
	cmp $0x0600, %eax
	jne 3f
	incl bridges
3:	SAY("function")
	mov %edi, %eax
	call hex
	mov %esi, %eax
	call hex
	SAY("\n")
	ret

other_buses:
	mov $0x10000, %edi
	xor %ecx, %ecx
	call by_ports
	EQ($-1, %eax)
	mov $0xff0000, %edi
	call by_ports
	EQ($-1, %eax)
	EQ($-1, ECAM + 0x100000)
	/* Not enabled. */
	mov $CF8, %edx
	xor %eax, %eax
	out %eax, %dx
	mov $CFC, %edx
	in %dx, %eax
	EQ($-1, %eax)
	ret

/* Bytes and words; the address register reads back, as a dword only. */
narrow:
	xor %ecx, %ecx
	call by_ports
	mov $CFC + 1, %edx
	in %dx, %al
	EQB($0x1b, %al)
	mov $CFC + 2, %edx
	in %dx, %ax
	cmp $0x0011, %ax
	CHECK(e)
	mov $CF8, %edx
	in %dx, %eax
	mov %eax, %ebx
	lea 0x80000000(%edi), %edx
	EQ(%edx, %ebx)
	mov $CF8, %edx
	mov $0x55, %al
	out %al, %dx
	in %dx, %eax
	EQ(%ebx, %eax)
	mov %edi, %ebx
	shl $4, %ebx
	EQB($0x1b, ECAM + 1(%ebx))
	cmpw $0x0011, ECAM + 2(%ebx)
	CHECK(e)
	/* Identity is not to be written. */
	movl $0, ECAM(%ebx)
	EQ($PVPANIC, ECAM(%ebx))
	/* The end of extended config space. */
	EQ($0, ECAM + 0xffc(%ebx))
	ret

/* The events that pvpanic knows, %ebx its BAR: present, or nothing there. */
	.macro present
	EQB($3, (%ebx))
	.endm
	.macro absent
	EQB($-1, (%ebx))
	.endm

bar:
	mov $4, %ecx
	call by_ecam
	or $2, %eax /* memory decoding */
	call write
	mov $0x10, %ecx
	call by_ecam
	mov %eax, %ebx
	test $0xf, %al /* memory, 32 bits */
	CHECK(z)
	present
	mov $-1, %eax
	call write
	call by_ecam
	EQ($-BAR_LEN, %eax)
	mov %ebx, %eax
	call write
	present

	mov $ELSEWHERE, %eax
	call write
	absent
	mov $ELSEWHERE, %ebx
	present
	mov $4, %ecx
	call by_ecam
	and $~2, %eax
	call write
	absent
	or $2, %eax
	call write
	present

	/* Over RAM, over the local APIC, or outside the bridge's window: it is not mapped. */
	mov $0x10, %ecx
	mov $0x100000, %eax
	mov (%eax), %edx
	call write
	EQ(%edx, 0x100000)
	mov $LAPIC, %eax
	call write
	absent
	mov LAPIC + 0x20, %eax
	EQ($0, %eax)
	mov $0xf0000000, %eax
	call write
	EQB($-1, (%eax))
	mov %ebx, %eax
	call write
	present
	SAY("bar ok\n")
	ret

	.bss
	.balign 4
bridges: .skip 4
pvpanic: .skip 4
