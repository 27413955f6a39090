// SPDX-License-Identifier: GPL-2.0-or-later
#include "cmd/cmd.h"

#include "arch/arch.h"

int cmd_doctor(int argc, char **argv)
{
	return 0;
}
