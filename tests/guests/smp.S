/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "guest.h"
	.code32
/*
 * Every processor: as many as "cpus=" says, each once in the MADT and once in
 * the MP table under the same id. Each is started by INIT-SIPI-SIPI, counts
 * itself and finds its id in CPUID and in its local APIC. With "fault=" the
 * one of that id ends in a triple fault instead, with "reset=" it resets, and
 * with "exit=" it exits with status 7; we wait for nothing then.
 */
#define TRAMPOLINE 0x6000
#define ICR	   (LAPIC + 0x300)
#define INIT	   0x4500
#define SIPI	   (0x4600 | TRAMPOLINE >> 12)

	.globl guest
guest:
	call read_madt
	call read_mptable
	mov $name, %esi
	call param
	CHECK(nc)
	EQ(ncpus, %eax)

	mov $id_here, %ebp
	jmp read_id
id_here:
	mov %eax, self
	EQB($1, in_madt(%eax))
	movb $1, ran(%eax)

	mov $fault_name, %esi
	call param
	mov %eax, fault
	mov $reset_name, %esi
	call param
	mov %eax, reset
	mov $exit_name, %esi
	call param
	mov %eax, exits
	movl $0x1ff, LAPIC + 0xf0
	mov $trampoline, %esi
	mov $TRAMPOLINE, %edi
	mov $trampoline_end - trampoline, %ecx
	rep movsb
	mov $INIT, %edi
	call send
	mov $SIPI, %edi
	call send
	call send

1:	pause
	mov started, %eax
	inc %eax
	cmp ncpus, %eax
	jne 1b

	/* Nobody twice, nobody whom the tables do not name. */
	xor %ecx, %ecx
2:	movzbl ran(%ecx), %eax
	movzbl in_madt(%ecx), %edx
	EQ(%edx, %eax)
	inc %cl
	jnz 2b
	mov started, %eax
	inc %eax
	EQ(ncpus, %eax)
	call decimal
	SAY(" cpus\n")
	EXIT(0)

/* To all the others: command %edi. */
send:
	xor %ecx, %ecx
1:	cmpb $0, in_madt(%ecx)
	je 3f
	cmp self, %ecx
	je 3f
	mov %ecx, %eax
	shl $24, %eax
	mov %eax, ICR + 0x10
	mov %edi, ICR
2:	testl $0x1000, ICR /* delivery */
	jnz 2b
3:	inc %cl
	jnz 1b
	ret

/* Counts and marks the processors. */
read_madt:
	mov $0x43495041, %eax /* "APIC" */
	call acpi_table
	test %eax, %eax
	CHECK(nz)
	EQ($LAPIC, 36(%eax))
	mov %eax, %ebx
	mov 4(%ebx), %ecx
	add %ebx, %ecx
	add $44, %ebx
1:	cmp %ecx, %ebx
	jae 3f
	cmpb $1, (%ebx)
	jne 2f
	EQ($IOAPIC, 4(%ebx))
	incl nioapics
2:	cmpb $0, (%ebx)
	jne 4f
	movzbl 3(%ebx), %eax
	testb $1, 4(%ebx)
	CHECK(nz)
	EQB($0, in_madt(%eax))
	incb in_madt(%eax)
	incl ncpus
4:	movzbl 1(%ebx), %eax
	test %eax, %eax
	CHECK(nz)
	add %eax, %ebx
	jmp 1b
3:	CHECK(e)
	EQ($1, nioapics)
	ret

/* The same processors, no other. */
read_mptable:
	mov $0xf0000, %ebx
1:	cmpl $0x5f504d5f /* "_MP_" */, (%ebx)
	je 2f
	add $16, %ebx
	cmp $0x100000, %ebx
	CHECK(b)
	jmp 1b
2:	mov $16, %ecx
	call sum
	EQB($0, 11(%ebx)) /* a table, not a default configuration */
	mov 4(%ebx), %ebx
	EQ($0x504d4350 /* "PCMP" */, (%ebx))
	movzwl 4(%ebx), %ecx
	call sum
	EQ($LAPIC, 36(%ebx))
	movzwl 34(%ebx), %ecx /* entries */
	add $44, %ebx
	mov ncpus, %edi
3:	mov $8, %edx
	cmpb $0, (%ebx)
	jne 4f
	mov $20, %edx
	movzbl 1(%ebx), %eax
	EQB($1, in_madt(%eax))
	EQB($0, in_mptable(%eax))
	incb in_mptable(%eax)
	testb $1, 3(%ebx)
	CHECK(nz)
	dec %edi
4:	add %edx, %ebx
	dec %ecx
	jnz 3b
	EQ($0, %edi)
	ret

/*
 * The id of the processor that runs this, in %eax, then to %ebp. Without a
 * stack. CPUID and the local APIC must agree, else FAIL by way of an id that
 * no table has.
 */
read_id:
	mov $0xb, %eax
	xor %ecx, %ecx
	cpuid
	mov %edx, %esi
	test %ebx, %ebx
	mov $1, %eax
	jnz 1f
	xor %esi, %esi
	dec %esi /* no leaf 0xb */
1:	cpuid
	shr $24, %ebx
	cmp $-1, %esi
	je 2f
	cmp %esi, %ebx
	jne 3f
2:	mov LAPIC + 0x20, %eax
	shr $24, %eax
	cmp %eax, %ebx
	jne 3f
	jmp *%ebp
3:	mov $255, %eax
	jmp *%ebp

ap:
	mov $DATA_SEL, %eax
	mov %eax, %ds
	mov %eax, %es
	mov $1f, %ebp
	jmp read_id
1:	test %eax, %eax
	jz 3f
	cmp fault, %eax
	je 3f
	cmp reset, %eax
	je 4f
	cmp exits, %eax
	je 5f
	lock incb ran(%eax)
	lock incl started
2:	cli
	hlt
	jmp 2b
3:	lidt none
	ud2
4:	mov $0xcf9, %edx
	mov $6, %al
	out %al, %dx
	jmp 2b
5:	mov $7, %al
	out %al, $DEBUG_EXIT
	jmp 2b

	.code16
trampoline:
	cli
	xor %ax, %ax
	mov %ax, %ds
	lgdtl TRAMPOLINE + (gdtr - trampoline)
	mov %cr0, %eax
	or $1, %al
	mov %eax, %cr0
	ljmpl $CODE_SEL, $ap
	.balign 4
gdtr:	.word 0xfff
	.long 0x1000
trampoline_end:

	.section .rodata
name:	.asciz "cpus="
fault_name: .asciz "fault="
reset_name: .asciz "reset="
exit_name: .asciz "exit="
none:	.skip 6
	.bss
	.balign 4
fault:	.skip 4
reset:	.skip 4
exits:	.skip 4
ncpus:	.skip 4
nioapics: .skip 4
self:	.skip 4
started: .skip 4
in_madt: .skip 256
in_mptable: .skip 256
ran:	.skip 256
