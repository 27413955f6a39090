/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "guest.h"
	.code32
/*
 * The four UARTs: registers, loopback, FIFO, and an interrupt that arrives.
 * %ebp is the base port of the one at hand. Nothing but COM1's own tests may
 * print in between, so each says its name when it is done.
 */
#define THR 0
#define IER 1
#define IIR 2
#define LCR 3
#define MCR 4
#define LSR 5
#define MSR 6
#define SCR 7
	.macro put reg, val
	lea \reg(%ebp), %edx
	movb \val, %al
	outb %al, %dx
	.endm
	.macro get reg
	lea \reg(%ebp), %edx
	inb %dx, %al
	.endm
	.macro expect reg, val
	get \reg
	cmpb \val, %al
	.endm

	.globl guest
guest:
	xor %edi, %edi
1:	movzwl ports(, %edi, 2), %ebp
	call registers
	call fifo
	call loopback
	call modem
	call interrupts
	put IER, $0
	put MCR, $0
	SAY("COM")
	lea 1(%edi), %eax
	call decimal
	SAY(" ok\n")
	inc %edi
	cmp $4, %edi
	jne 1b
	EXIT(0)

registers:
	put LCR, $3
	expect LCR, $3; CHECK(e)
	expect LSR, $0x60; CHECK(e)
	put SCR, $0x5a
	expect SCR, $0x5a; CHECK(e)
	put SCR, $0xa5
	expect SCR, $0xa5; CHECK(e)
	put IER, $0xff
	expect IER, $0x0f; CHECK(e)
	put IER, $5
	put LCR, $0x83
	put THR, $0x34
	put IER, $0x12
	expect THR, $0x34; CHECK(e)
	expect IER, $0x12; CHECK(e)
	put THR, $1
	put IER, $0
	put LCR, $3
	expect IER, $5; CHECK(e)
	put IER, $0
	/* All at once, as a wide access. */
	lea LCR(%ebp), %edx
	in %dx, %ax
	EQB($3, %al)
	ret

fifo:
	put IIR, $0
	expect IIR, $0x01; CHECK(e)
	put IIR, $1
	expect IIR, $0xc1; CHECK(e)
	put IIR, $7
	expect IIR, $0xc1; CHECK(e)
	ret

/* 16 bytes go round; the 17th is an overrun. */
loopback:
	put MCR, $0x10
	xor %ecx, %ecx
1:	lea 0xf0(%ecx), %ebx
	put THR, %bl
	inc %ecx
	cmp $16, %ecx
	jne 1b
	expect LSR, $0x61; CHECK(e)
	put THR, $0
	expect LSR, $0x63; CHECK(e)
	expect LSR, $0x61; CHECK(e)
	xor %ecx, %ecx
2:	lea 0xf0(%ecx), %ebx
	expect THR, %bl; CHECK(e)
	inc %ecx
	cmp $16, %ecx
	jne 2b
	expect LSR, $0x60; CHECK(e)
	ret

/* In loopback DTR, RTS, OUT1, OUT2 come back as DSR, CTS, RI, DCD. */
modem:
	put MCR, $0x10
	get MSR
	expect MSR, $0; CHECK(e)
	put MCR, $0x11
	expect MSR, $0x22; CHECK(e)
	put MCR, $0x12
	expect MSR, $0x13; CHECK(e)
	put MCR, $0x14
	expect MSR, $0x41; CHECK(e)
	put MCR, $0x18
	expect MSR, $0x8c; CHECK(e)
	put MCR, $0x0b
	expect MCR, $0x0b; CHECK(e)
	get MSR
	/* Out of it there is a terminal behind COM1, and nothing behind the others. */
	get MSR
	cmp $COM1, %ebp
	jne 1f
	sub $0xb0, %al
1:	EQB($0, %al)
	ret

/* THRE: on enabling, and again for each byte; not while OUT2 is off. */
interrupts:
	movzbl irqs(%edi), %ecx
	lea 0x30(%ecx), %eax
	mov $handler, %edx
	call irq_route
	movl $0, count
	put MCR, $0x0b
	put IER, $2
	mov $1, %ebx
	call wait_for
	put THR, $'.'
	inc %ebx
	call wait_for
	put THR, $'.'
	inc %ebx
	call wait_for

	put MCR, $0x03
	put THR, $'.'
	mov $50, %ecx
1:	sti
	nop
	get LSR /* lets the host look, where it interprets */
	cli
	loop 1b
	EQ(%ebx, count)
	put MCR, $0x0b /* it was only held back */
	inc %ebx
	call wait_for
	put IER, $0
	expect IIR, $0xc1; CHECK(e)
	ret

wait_for:
	cmp %ebx, count
	jae 1f
	sti
	hlt
	cli
	jmp wait_for
1:	CHECK(e)
	EQB($0xc2, last)
	ret

handler:
	push %eax
	push %edx
	get IIR
	mov %al, last
	incl count
	pop %edx
	pop %eax
	RETURN_FROM_IRQ

	.section .rodata
ports:	.word 0x3f8, 0x2f8, 0x3e8, 0x2e8
irqs:	.byte 4, 3, 4, 3
	.bss
	.balign 4
count:	.skip 4
last:	.skip 1
