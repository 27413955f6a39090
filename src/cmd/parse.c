// SPDX-License-Identifier: GPL-2.0-or-later
#include "cmd/cmd.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>

static int take_args(int argc, char **argv, struct cmd_options *o)
{
	o->args = argv + optind;
	o->nargs = argc - optind;
	if (o->nargs < o->min_args)
		return cmd_usage(argv[0], "something is missing");
	if (o->nargs > o->max_args)
		return cmd_usage(argv[0], "takes no argument such as '%s'", o->args[o->max_args]);
	return 0;
}

int cmd_parse(int argc, char **argv, struct cmd_options *o)
{
	static const struct option none[] = { { 0 } };
	char shorts[32];
	int opt;

	snprintf(shorts, sizeof(shorts), ":h%s", o->shorts ? o->shorts : "");
	optind = 0;
	opterr = 0;
	while ((opt = getopt_long(argc, argv, shorts, o->options ? o->options : none, NULL)) != -1) {
		if (opt == '?' && !strcmp(argv[optind - 1], "--help"))
			opt = 'h';
		if (opt == 'h')
			return cmd_help(2, (char *[]){ "help", argv[0], NULL }) ? EXIT_USAGE : -1;
		if (opt == '?' || opt == ':')
			return cmd_usage(argv[0], "%s %s", argv[optind - 1],
			                 opt == ':' ? "needs a value" : "is not an option");
		o->given[opt] = true;
		o->value[opt] = optarg;
	}
	return take_args(argc, argv, o);
}

char *cmd_cut(char *spec)
{
	char *comma = strchr(spec, ',');

	if (!comma)
		return spec + strlen(spec);
	*comma = '\0';
	return comma + 1;
}

int cmd_flush(void)
{
	struct err err;

	if (!fflush(stdout) && !ferror(stdout))
		return 0;
	err_sys(&err, -errno, "standard output");
	return cmd_fail(&err);
}
