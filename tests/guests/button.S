/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "guest.h"
	.code32
/* The power button: an interrupt on GSI 9, a bit in the event register that reading clears. Then powers off. */
	.globl guest
guest:
	mov $0x31, %eax
	mov $9, %ecx
	mov $pressed, %edx
	call irq_route
	IN(PM + 3)
	EQB($0, %al)
	SAY("ready\n")
1:	sti
	hlt
	jmp 1b

pressed:
	IN(PM + 3)
	EQB($1, %al)
	IN(PM + 3)
	EQB($0, %al)
	SAY("pressed\n")
	OUT(PM, PM_S5)
	EXIT(FAILED)
