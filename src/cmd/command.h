/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef CMD_COMMAND_H
#define CMD_COMMAND_H

#include "machine/exec.h"

#define COMMAND_ENVS 256

/* What a command line says of a command that is to run in a guest. */
struct command_args {
	struct guest_command cmd;
	char *env[COMMAND_ENVS + 1];
	unsigned nenvs;
	char *dir;
};

/*
 * @argv as it is, the environment that goes with the user's terminal and
 * language (TERM, LANG, LC_*, TZ, COLUMNS, LINES, HOME) and the current directory.
 */
void command_init(struct command_args *a, char **argv);

/* --env NAME[=VALUE]: without a value ours. 0 or an exit status after having said why. */
int command_env(const char *command, struct command_args *a, char *env);

#endif
