/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MACHINE_SIGNALS_H
#define MACHINE_SIGNALS_H

#include "base/err.h"
#include "base/loop.h"

/*
 * SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT and SIGWINCH come as reads
 * of struct signalfd_siginfo from @f from now on, on @l; they are blocked for
 * this thread and for those that it makes. Sets @f->fd, -1 after an error.
 */
int signals_take(struct loop *l, struct loop_fd *f, void (*cb)(struct loop_fd *f, short revents), struct err *err);
void signals_leave(struct loop *l, struct loop_fd *f); /* they stay blocked. @f->fd -1 is fine */

#endif
