/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "guest.h"
	.code32
/* What a panicking Linux with panic=-1 looks like. */
	.globl guest
guest:
	SAY("[    0.123456] Kernel panic - not syncing: test\r\n[    0.2] Rebooting...\r\n")
	OUT(0xcf9, 6)
	EXIT(FAILED)
