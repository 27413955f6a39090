/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The static init (src/guest/init), as bytes of this program. INIT_PATH comes from meson.build. */
	.section .rodata
	.globl guest_init_start, guest_init_end
	.balign 16
guest_init_start:
	.incbin INIT_PATH
guest_init_end:
	.section .note.GNU-stack, "", @progbits
