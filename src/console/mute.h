/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef CONSOLE_MUTE_H
#define CONSOLE_MUTE_H

#include "base/err.h"
#include "console/con.h"

/* A console that nobody looks at: what is sent goes to its tail, and to the log file if there is one. No input. */
int mute_new(struct con **out, struct err *err);
void mute_free(struct con *con);

#endif
