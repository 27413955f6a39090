/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MACHINE_UNPACK_KERNEL_H
#define MACHINE_UNPACK_KERNEL_H

#include "arch/arch.h"

/*
 * Spares the guest the unpacking of its own kernel: where the kernel file
 * @path, opened as @im, has it in compressed form, it is unpacked here, or was
 * before. Where anything is in the way, the file is booted as it is, and why is
 * told only with -v.
 */
void unpack_kernel(struct arch_image *im, const char *path);

#endif
