// SPDX-License-Identifier: GPL-2.0-or-later
#include "cmd/command.h"

#include "cmd/cmd.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_passed(const char *env)
{
	static const char *const names[] = { "TERM=", "LANG=", "LC_", "TZ=", "COLUMNS=", "LINES=", "HOME=" };

	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strncmp(env, names[i], strlen(names[i])))
			return true;
	return false;
}

/* A later one of the same name wins, in the guest. */
static bool add(struct command_args *a, char *env)
{
	if (a->nenvs == COMMAND_ENVS)
		return false;
	a->env[a->nenvs++] = env;
	return true;
}

void command_init(struct command_args *a, char **argv)
{
	for (char **e = environ; *e; e++)
		if (is_passed(*e))
			(void)add(a, *e);
	a->dir = getcwd(NULL, 0);
	a->cmd = (struct guest_command){ .argv = argv, .env = a->env, .dir = a->dir ? a->dir : "/" };
}

int command_env(const char *command, struct command_args *a, char *env)
{
	size_t n = strcspn(env, "=");

	if (!n)
		return cmd_usage(command, "--env: '%s': NAME or NAME=VALUE", env);
	if (!env[n]) {
		for (char **e = environ; *e; e++)
			if (!strncmp(*e, env, n) && (*e)[n] == '=')
				env = *e;
		if (!strchr(env, '='))
			return 0; /* not set here: not there either */
	}
	return add(a, env) ? 0 : cmd_usage(command, "--env: too many variables");
}
