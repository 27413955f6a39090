/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef CONSOLE_TERMINAL_H
#define CONSOLE_TERMINAL_H

#include <stdbool.h>

/*
 * The terminal on descriptor 0, and raw mode. It is given back at exit and on
 * fatal signals. One thread, but for terminal_restore().
 */

/* Are we in its foreground? A terminal without job control for us has none and counts as ours. */
bool terminal_is_ours(void);

/* From then on log lines end in "\r\n". Again after a change is fine. */
void terminal_make_raw(void);

/*
 * Gives it back, if it was made raw. From the background (we were stopped by
 * SIGSTOP, say) it is touched only if no shell has already set it up for
 * itself. Async-signal-safe.
 */
void terminal_restore(void);

/* terminal_restore(), and the fatal signals' handlers go. */
void terminal_unguard(void);

/* The signals of a fault: blocked ones would kill without a handler. */
#define N_FATAL_SIGNALS 5
extern const int fatal_signals[N_FATAL_SIGNALS];

#endif
