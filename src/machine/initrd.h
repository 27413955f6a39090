/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MACHINE_INITRD_H
#define MACHINE_INITRD_H

#include "arch/arch.h"
#include "base/err.h"
#include "guest/initramfs.h"
#include "machine/config.h"
#include "machine/root.h"

/*
 * The initrd for a user who names none: our init and the modules that the
 * devices of @cfg and @root need, given to @im. @root is what was found on the disks. @out (NULL when @im is no Linux
 * kernel) is the caller's and must outlive every boot of @im.
 */
int initrd_make(const struct config *cfg, const struct root *root, struct arch_image *im, struct initramfs **out,
                struct err *err);

#endif
