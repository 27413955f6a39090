/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef CMD_DISK_H
#define CMD_DISK_H

#include "block/block.h"

/* What the files of `kvm disk` share. */

struct cmd_options;
struct json_object;

/* The value of -f and the like, NULL: not given, which leaves @out. 0 or an exit status, having said why. */
int disk_take_format(const char *s, enum blk_format *out);

/* As an object, or its members as lines; gives @o back. */
void disk_print_object(struct json_object *o, bool json);

/* kvm disk bench: disk_bench.c */
int disk_bench(struct cmd_options *o);

#endif
