/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "guest.h"
	.code32
/* What the boot protocol hands over: the command line, the initrd with its size, a checksum and its last word. */
	.globl guest
guest:
	mov start_info, %ebx
	SAY("cmdline [")
	mov SI_CMDLINE(%ebx), %esi
	EQ($0, SI_CMDLINE + 4(%ebx))
	call puts
	SAY("]\n")
	cmpl $0, SI_MODULES(%ebx)
	jne 1f
	SAY("no initrd\n")
	EXIT(0)
1:	EQ($1, SI_MODULES(%ebx))
	mov SI_MODLIST(%ebx), %edi
	mov (%edi), %esi
	EQ($0, 4(%edi))
	test $0xfff, %esi
	CHECK(z)
	mov 8(%edi), %ecx
	SAY("initrd")
	mov %esi, %eax
	call hex
	mov %ecx, %eax
	call hex
	xor %edx, %edx
2:	rol $1, %edx
	lodsb
	xor %al, %dl
	loop 2b
	mov %edx, %eax
	call hex
	mov -4(%esi), %eax
	call hex
	SAY("\n")
	EXIT(0)
