/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "guest.h"
	.code32
/* Does not end. "how=1": halted for ever, "how=2": spins, "how=3": prints for ever. */
	.globl guest
guest:
	SAY("ready\n")
	mov $name, %esi
	call param
	cmp $3, %eax
	je 3f
	cmp $2, %eax
	je 2f
1:	cli
	hlt
	jmp 1b
2:	pause
	jmp 2b
3:	SAY("and on and on\n")
	jmp 3b
	.section .rodata
name:	.asciz "how="
