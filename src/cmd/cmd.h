/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef CMD_CMD_H
#define CMD_CMD_H

#include "base/err.h"

#include <stdbool.h>

/* Exit statuses, as the man page lists them. */
#define EXIT_HOST       1 /* host or set-up error */
#define EXIT_USAGE      2
#define EXIT_NO_COMMAND 253 /* with a command: the guest never got to it */
#define EXIT_SETUP      254 /* with a command: host or set-up error */
#define EXIT_PANIC      250
#define EXIT_CRASH      251 /* triple fault, KVM internal error */
#define EXIT_TIMED_OUT  252
#define EXIT_BY_SIGNAL  128 /* + number */

struct command {
	const char *name;
	int (*main)(int argc, char **argv); /* argv[0] is the command's name; returns the exit status */
	const char *args;                   /* for the list in `kvm help` */
	const char *summary;
	const char *help; /* the rest of `kvm help NAME`; may be NULL */
};

extern const struct command commands[]; /* ended by a NULL name; main.c */

int cmd_list(int argc, char **argv);
int cmd_stop(int argc, char **argv);
int cmd_ctl(int argc, char **argv); /* pause, resume, reboot, nmi */
int cmd_sysrq(int argc, char **argv);
int cmd_exec(int argc, char **argv);
int cmd_shell(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_disk(int argc, char **argv);
int cmd_version(int argc, char **argv);
int cmd_help(int argc, char **argv);

extern const char run_help[], list_help[], stop_help[], ctl_help[], sysrq_help[], exec_help[], shell_help[],
        disk_help[];

/* Prints each line of @err with our prefix; returns EXIT_HOST. */
int cmd_fail(const struct err *err);

/* The same for a mistake in the command line, with a hint at the help; returns EXIT_USAGE. */
int cmd_usage(const char *command, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Options and arguments of a simple command, which may be mixed. --help is added. */
struct option;
struct cmd_options {
	const struct option *options; /* each with a letter; NULL: none */
	const char *shorts;           /* as getopt's; NULL: none */
	int min_args, max_args;
	/* What was found: */
	bool given[128];
	const char *value[128];
	char **args;
	int nargs;
};

/* 0, or an exit status: -1 means that all is done, with status 0. */
int cmd_parse(int argc, char **argv, struct cmd_options *o);

/* Cuts @spec off at its first comma; returns what follows, "" where nothing does. */
char *cmd_cut(char *spec);

/* Has all of stdout been written? The exit status. */
int cmd_flush(void);

/*
 * The kernel to boot when the user names none: the first that exists of
 * ./arch/x86/boot/bzImage, ./vmlinux, /boot/vmlinuz-$(uname -r), the newest
 * /boot/vmlinuz-*. The caller frees it; NULL with a text that lists them.
 */
char *find_kernel(struct err *err);

#endif
