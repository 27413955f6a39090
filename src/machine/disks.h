/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MACHINE_DISKS_H
#define MACHINE_DISKS_H

#include "base/err.h"
#include "machine/config.h"

/* The images of a machine's disks, open over all its boots. */
struct disks;

int disks_open(const struct config *cfg, struct disks **out, struct err *err);
void disks_close(struct disks *d); /* no device is on them any more. NULL is fine */
struct blk *disks_image(struct disks *d, unsigned i);

#endif
