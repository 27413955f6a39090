// SPDX-License-Identifier: GPL-2.0-or-later
#include "console/terminal.h"

#include "base/log.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

/*
 * The settings must be given back by atexit() and in a fatal signal's handler,
 * which have no argument: hence a variable of the file.
 */
static struct {
	struct termios cooked;                  /* constant while @raw */
	struct termios raw_mode;                /* the same */
	atomic_bool raw;                        /* @cooked is to be given back */
	pid_t owner;                            /* a forked child's exit() is none of the terminal's business */
	bool guarded;                           /* the handlers are in place */
	struct sigaction next[N_FATAL_SIGNALS]; /* the fatal signals' actions before ours */
} terminal;

const int fatal_signals[N_FATAL_SIGNALS] = { SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL };

/* From the background this stops us by SIGTTOU, unless it is blocked. Async-signal-safe. */
static void terminal_set(const struct termios *t)
{
	sigset_t ttou, old;

	sigemptyset(&ttou);
	sigaddset(&ttou, SIGTTOU);
	pthread_sigmask(SIG_BLOCK, &ttou, &old);
	/* Not TCSADRAIN: a terminal that was stopped by ^S or has no reader would never drain. */
	while (tcsetattr(STDIN_FILENO, TCSANOW, t) < 0 && errno == EINTR)
		;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

bool terminal_is_ours(void)
{
	pid_t pgrp = tcgetpgrp(STDIN_FILENO);

	return pgrp < 0 || pgrp == getpgrp();
}

/* Nobody has changed the settings since terminal_make_raw(). */
static bool terminal_is_as_left(void)
{
	const struct termios *left = &terminal.raw_mode;
	struct termios now;

	return tcgetattr(STDIN_FILENO, &now) == 0 && now.c_iflag == left->c_iflag && now.c_oflag == left->c_oflag &&
	       now.c_lflag == left->c_lflag;
}

/*
 * Async-signal-safe; does something only once. From the background (we were
 * stopped by SIGSTOP, say) the terminal is touched only if no shell has
 * already set it up for itself.
 */
void terminal_restore(void)
{
	if (getpid() != terminal.owner || !atomic_exchange(&terminal.raw, false))
		return;
	if (terminal_is_ours() || terminal_is_as_left())
		terminal_set(&terminal.cooked);
	log_set_raw(false);
}

/* Gives the terminal back, then lets the signal do what it would have done. */
static void on_fatal(int sig)
{
	terminal_restore();
	for (size_t i = 0; i < N_FATAL_SIGNALS; i++)
		if (fatal_signals[i] == sig)
			sigaction(sig, &terminal.next[i], NULL);
	raise(sig); /* blocked here: it comes when we return */
}

static void terminal_guard(void)
{
	struct sigaction sa = { .sa_handler = on_fatal, .sa_flags = SA_ONSTACK };
	static bool at_exit;

	if (terminal.guarded)
		return;
	terminal.guarded = true;
	terminal.owner = getpid();
	for (size_t i = 0; i < N_FATAL_SIGNALS; i++)
		sigaction(fatal_signals[i], &sa, &terminal.next[i]);
	if (!at_exit)
		at_exit = atexit(terminal_restore) == 0;
}

void terminal_unguard(void)
{
	terminal_restore();
	if (!terminal.guarded)
		return;
	terminal.guarded = false;
	for (size_t i = 0; i < N_FATAL_SIGNALS; i++)
		sigaction(fatal_signals[i], &terminal.next[i], NULL);
}

/* Output is raw too: the guest sends its own carriage returns, and a full-screen program no others. */
void terminal_make_raw(void)
{
	struct termios *raw = &terminal.raw_mode;

	terminal_guard();
	if (!atomic_load(&terminal.raw)) {
		if (tcgetattr(STDIN_FILENO, &terminal.cooked) < 0)
			return;
		*raw = terminal.cooked;
		cfmakeraw(raw);
		raw->c_cc[VMIN] = 1;
		raw->c_cc[VTIME] = 0;
		atomic_store(&terminal.raw, true);
	}
	terminal_set(raw);
	log_set_raw(true);
}
