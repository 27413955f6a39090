/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "guest.h"
	.code32
/* What CPUID says of every guest: that it is one, under KVM, with an APIC, long mode and room for its memory. */
	.globl guest
guest:
	xor %eax, %eax
	cpuid
	cmp $1, %eax
	CHECK(ae)
	mov $1, %eax
	cpuid
	bt $31, %ecx /* hypervisor */
	CHECK(c)
	bt $9, %edx /* APIC */
	CHECK(c)
	bt $27, %ecx /* OSXSAVE: only when CR4 says so */
	CHECK(nc)
	mov $0x40000000, %eax
	cpuid
	EQ($0x4b4d564b, %ebx) /* "KVMKVMKVM" */
	EQ($0x564b4d56, %ecx)
	EQ($0x4d, %edx)
	cmp $0x40000001, %eax
	CHECK(ae)
	mov $0x80000000, %eax
	cpuid
	cmp $0x80000008, %eax
	CHECK(ae)
	mov $0x80000001, %eax
	cpuid
	bt $29, %edx
	CHECK(c)
	mov $0x80000008, %eax
	cpuid
	cmp $36, %al /* physical address bits */
	CHECK(ae)
	SAY("under KVM\n")
	EXIT(0)
