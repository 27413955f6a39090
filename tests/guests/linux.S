/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A guest in Linux's clothes (Documentation/arch/x86/boot.rst): built with
 * PROTOCOL, XLOADFLAGS and SETUP_SECTS it is a bzImage, with ELF a vmlinux
 * without a note. Says by which entry it came, checks what it was given (an
 * initrd ends in "END!"), and prints its command line. A failed check exits
 * with FAILED, its line being in %ebx. It has no version, so kvm does not take it for Linux.
 */
#define COM1	   0x3f8
#define DEBUG_EXIT 0xf4
#define FAILED	   99
#define CHECK(cc)  j##cc 99f; mov $__LINE__, %ebx; jmp fail; 99:

#ifndef ELF
/* The setup part. SETUP_SECTS 0 means 4. */
	.section .setup, "ax"
	.org 0x1f1
	.byte SETUP_SECTS
	.word 0				/* root_flags */
	.long syssize
	.word 0, 0, 0
	.word 0xaa55
	.byte 0xeb, header_end - 0x202
	.ascii "HdrS"
	.word PROTOCOL
	.org 0x211
	.byte 1				/* loadflags: LOADED_HIGH */
	.org 0x214
	.long 0x100000			/* code32_start */
	.org 0x22c
	.long 0x7fffffff		/* initrd_addr_max */
	.long 0x200000			/* kernel_alignment */
	.byte 0				/* relocatable_kernel */
	.byte 21			/* min_alignment */
	.word XLOADFLAGS
	.long 255			/* cmdline_size */
	.org 0x258
	.quad 0x100000			/* pref_address */
	.long 0x40000			/* init_size */
	.long 0
	.org 0x268
header_end:
#if SETUP_SECTS == 0
	.org 5 * 512
#else
	.org (SETUP_SECTS + 1) * 512
#endif
#endif

	.section .payload, "ax"
	.globl payload
payload:
#ifndef ELF
	.code32
	mov %cr0, %eax
	bt $31, %eax
	CHECK(nc)
	mov %cs, %eax
	cmp $0x10, %ax
	CHECK(e)
	mov %ds, %eax
	cmp $0x18, %ax
	CHECK(e)
	lea entry32, %edi
	jmp say32
fail:
	mov $FAILED, %al
	out %al, $DEBUG_EXIT
	hlt
say32:
	mov (%edi), %al
	test %al, %al
	jz 1f
	mov $COM1, %edx
	out %al, %dx
	inc %edi
	jmp say32
1:	cmpl $0x53726448, 0x202(%esi)
	CHECK(e)
	cmpb $3, 0x1e8(%esi) /* e820 entries */
	CHECK(ae)
	cmpb $0xff, 0x210(%esi) /* type_of_loader */
	CHECK(e)
	cmpl $payload, 0x214(%esi)
	CHECK(e)
	mov 0x70(%esi), %eax /* acpi_rsdp_addr */
	cmpl $0x20445352, (%eax)
	CHECK(e)
	mov 0x218(%esi), %eax /* ramdisk_image, ramdisk_size */
	mov 0x21c(%esi), %ecx
	test %ecx, %ecx
	jz 1f
	cmpl $0x21444e45, -4(%eax, %ecx)
	CHECK(e)
1:	mov 0x228(%esi), %esi
2:	lodsb
	test %al, %al
	jz 3f
	mov $COM1, %edx
	out %al, %dx
	jmp 2b
3:	mov $'\n', %al
	out %al, %dx
	mov $0, %al
	out %al, $DEBUG_EXIT
	hlt
entry32: .asciz "32-bit entry: "
	.org payload + 0x200
#endif

	.code64
	.globl entry64
entry64:
	mov %cr0, %rax
	bt $31, %eax
	CHECK(c)
	mov $0xc0000080, %ecx /* EFER */
	rdmsr
	bt $10, %eax /* LMA */
	CHECK(c)
	mov %cs, %eax
	cmp $0x10, %ax
	CHECK(e)
	lea text64(%rip), %rdi
1:	mov (%rdi), %al
	test %al, %al
	jz 2f
	mov $COM1, %edx
	out %al, %dx
	inc %rdi
	jmp 1b
2:	cmpl $0x53726448, 0x202(%rsi)
	CHECK(e)
	cmpb $3, 0x1e8(%rsi)
	CHECK(ae)
	cmpb $0xff, 0x210(%rsi)
	CHECK(e)
	mov 0x70(%rsi), %rax
	mov $0x2052545020445352, %rcx /* "RSD PTR " */
	cmp %rcx, (%rax)
	CHECK(e)
	/* The one-to-one map covers 4 GiB. */
	mov $0xfee00020, %eax
	mov (%rax), %eax
	shr $24, %eax
	CHECK(z)
	mov 0x218(%rsi), %eax
	mov 0x21c(%rsi), %ecx
	test %ecx, %ecx
	jz 1f
	cmpl $0x21444e45, -4(%rax, %rcx)
	CHECK(e)
1:	mov 0x228(%rsi), %esi
3:	lodsb
	test %al, %al
	jz 4f
	mov $COM1, %edx
	out %al, %dx
	jmp 3b
4:	mov $'\n', %al
	out %al, %dx
	mov $0, %al
	out %al, $DEBUG_EXIT
	hlt
text64:	.asciz "64-bit entry: "
#ifdef ELF
fail:
	mov $FAILED, %al
	out %al, $DEBUG_EXIT
	hlt
#else
	/* Large enough that a file of 4096 bytes is truncated. */
	.org payload + 8192 - 5
	.byte 1, 2, 3, 4, 5
#endif
