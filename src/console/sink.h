/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef CONSOLE_SINK_H
#define CONSOLE_SINK_H

#include "base/err.h"
#include "console/con.h"

/* A console whose output goes to console @to, which outlives it, and which never has input. */
int sink_new(struct con *to, struct con **out, struct err *err);
void sink_free(struct con *con); /* NULL is fine */

#endif
