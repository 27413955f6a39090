/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "guest.h"
	.code32
/* Exits with the status that "code=" names. */
	.globl guest
guest:
	SAY("exits\n")
	mov $name, %esi
	call param
	CHECK(nc)
	jmp exit
name:	.asciz "code="
