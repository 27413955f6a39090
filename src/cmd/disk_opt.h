/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef CMD_DISK_OPT_H
#define CMD_DISK_OPT_H

#include "machine/config.h"

/* -d FILE[,OPTIONS], into the next disk of @c; cuts @spec up. 0 or an exit status, having said why. */
int disk_opt(struct config *c, char *spec);

/* --fault=diskN:SPEC, once all disks are known. */
int disk_fault(struct config *c, char *spec);

#endif
