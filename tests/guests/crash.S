/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "guest.h"
	.code32
/* Jumps where there is no memory: KVM cannot go on. */
	.globl guest
guest:
	SAY("jumps\n")
	mov $0xd0000000, %eax
	jmp *%eax
