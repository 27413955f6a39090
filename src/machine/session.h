/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MACHINE_SESSION_H
#define MACHINE_SESSION_H

#include "base/err.h"
#include "machine/config.h"

/* A virtual machine from its start to its end, over all its reboots. */

enum end_reason {
	END_POWEROFF,
	END_RESET, /* with no_reboot */
	END_EXIT,  /* debug exit port; @code is what the guest wrote */
	END_PANIC,
	END_TRIPLE_FAULT,
	END_INTERNAL_ERROR, /* KVM or the processor gave up on a vCPU */
	END_TIMEOUT,
	END_SIGNAL,     /* @code is its number */
	END_KEY,        /* ^A x */
	END_COMMAND,    /* the command has ended; @code is its status */
	END_NO_COMMAND, /* the guest ended before it got to the command */
	END_ERROR,      /* a host error at a reboot; never comes out of session_run() */
};

struct session_end {
	enum end_reason reason;
	int code;
};

/* "poweroff", "panic", …: as the status file has it. */
const char *end_reason_name(enum end_reason reason);

/*
 * Runs a VM as @cfg says until it ends. While it runs it owns SIGINT, SIGTERM,
 * SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH and file descriptors 0, 1 and 2. Ends that are
 * neither the guest's own wish nor the user's are told on stderr.
 * Returns 0 with @end filled in, or -errno with a text (of one or more lines)
 * when it could not be set up. Once per process, on the main thread.
 */
int session_run(const struct config *cfg, struct session_end *end, struct err *err);

#endif
