/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "guest.h"
	.code32
/*
 * The memory map: entries ascend and are disjoint, RAM sums up to "kib=", the
 * first and last words of every RAM range are memory of their own, and behind
 * the ranges there is nothing.
 *
 * All of it stays 32-bit code, but under long mode's page tables, which reach
 * everywhere: the first 2 MiB, where we are, are mapped one to one; the next
 * 2 MiB are a window that map() moves to wherever it is asked. (Some hosts
 * have no PAE mode.)
 */
#define WINDOW	   0x200000
#define GAP	   (0x100000 - 0x9fc00) /* EBDA to 1 MiB is no RAM to the guest */
#define MAX_PROBES 32

	.macro each_probe
	xor %ebp, %ebp
7:	cmp nprobes, %ebp
	jae 8f
	mov probes(, %ebp, 8), %eax
	mov probes + 4(, %ebp, 8), %edx
	call map
	.endm
	.macro next_probe
	inc %ebp
	jmp 7b
8:
	.endm

	.globl guest
guest:
	call paging
	mov start_info, %ebx
	EQ($1, 4(%ebx)) /* version */
	mov SI_MEMMAP(%ebx), %esi
	mov SI_MEMMAP_N(%ebx), %ecx
	call walk
	call check_sum

	/* All are written before the first is read: no two are the same memory. */
	each_probe
	mov (%eax), %edx
	mov %edx, old(, %ebp, 4)
	lea 0x5a5a0001(%ebp), %edx
	mov %edx, (%eax)
	next_probe
	each_probe
	lea 0x5a5a0001(%ebp), %edx
	cmp %edx, (%eax)
	CHECK(e)
	next_probe
	each_probe
	mov old(, %ebp, 4), %edx
	mov %edx, (%eax)
	next_probe

	xor %edx, %edx
	mov low_end, %eax
	cmp $0xc0000000, %eax /* PCI's memory begins here, and the first BAR */
	je 2f
	call hole
2:	mov $0xd0000000, %eax
	call hole
	mov $0xdffffffc, %eax
	call hole
	mov $0xe0100000, %eax /* behind ECAM */
	call hole
	mov $0xfeb00000, %eax
	call hole
	mov $0xfffffffc, %eax
	call hole
	mov end, %eax
	mov end + 4, %edx
	test %edx, %edx
	jnz 1f
	mov $1, %edx
	xor %eax, %eax
1:	call hole

	mov nprobes, %eax
	call decimal
	SAY(" words probed\n")
	EXIT(0)

/* The %ecx entries at %esi. */
walk:
	SAY("memory map:\n")
1:	mov 4(%esi), %eax
	call hex
	mov (%esi), %eax
	call hex
	mov 12(%esi), %eax
	call hex
	mov 8(%esi), %eax
	call hex
	mov 16(%esi), %eax
	call hex
	SAY("\n")

	mov (%esi), %eax
	mov 4(%esi), %edx
	cmp end, %eax
	mov %edx, %edi
	sbb end + 4, %edi
	CHECK(ae) /* ascending, disjoint */
	mov %eax, %edi
	mov %edx, %ebp
	add 8(%esi), %edi
	adc 12(%esi), %ebp
	CHECK(nc)
	mov %edi, end
	mov %ebp, end + 4
	cmpl $1, 16(%esi)
	jne 3f

	call probe
	mov 8(%esi), %eax
	mov 12(%esi), %edx
	add %eax, sum64
	adc %edx, sum64 + 4
	mov %edi, %eax
	mov %ebp, %edx
	sub $4, %eax
	sbb $0, %edx
	call probe
	test %ebp, %ebp
	jnz 3f
	mov %edi, low_end
3:	add $24, %esi
	dec %ecx
	jnz 1b
	/* The last entry may be below the end of what is no RAM, such as ECAM. */
	ret

/* %edx:%eax */
probe:
	push %ecx
	mov nprobes, %ecx
	cmp $MAX_PROBES, %ecx
	CHECK(b)
	mov %eax, probes(, %ecx, 8)
	mov %edx, probes + 4(, %ecx, 8)
	incl nprobes
	pop %ecx
	ret

check_sum:
	mov $name, %esi
	call param
	CHECK(nc)
	mov $1024, %ecx
	mul %ecx
	sub $GAP, %eax
	sbb $0, %edx
	EQ(sum64, %eax)
	EQ(sum64 + 4, %edx)
	ret

/* Nothing is at %edx:%eax: it reads as ones whatever was written. */
hole:
	push %edx
	call map
	mov $0x12345678, %edx
	EQ($-1, (%eax))
	mov %edx, (%eax)
	EQ($-1, (%eax))
	EQB($-1, 1(%eax))
	pop %edx
	ret

/* The address %edx:%eax, as one of ours in %eax. */
map:
	push %eax
	and $~0x1fffff, %eax
	or $0x83, %eax /* present, writable, large */
	mov %eax, pd + 8
	mov %edx, pd + 12
	mov %cr3, %eax
	mov %eax, %cr3
	pop %eax
	and $0x1fffff, %eax
	add $WINDOW, %eax
	ret

paging:
	mov %cr4, %eax
	or $0x20, %eax /* PAE */
	mov %eax, %cr4
	movl $pdpt + 3, pml4
	movl $pd + 3, pdpt
	movl $0x83, pd
	mov $pml4, %eax
	mov %eax, %cr3
	mov $0xc0000080, %ecx /* EFER */
	rdmsr
	or $0x100, %eax /* LME */
	wrmsr
	mov %cr0, %eax
	or $0x80000000, %eax
	mov %eax, %cr0
	jmp 1f
1:	ret

	.section .rodata
name:	.asciz "kib="
	.bss
	.balign 4096
pd:	.skip 4096
pdpt:	.skip 4096
pml4:	.skip 4096
end:	.skip 8 /* of the entry before */
sum64:	.skip 8
low_end: .skip 4
nprobes: .skip 4
probes:	.skip 8 * MAX_PROBES
old:	.skip 4 * MAX_PROBES
