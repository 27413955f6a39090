// SPDX-License-Identifier: GPL-2.0-or-later
#include "cmd/cmd.h"

#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int cmd_fail(const struct err *err)
{
	const char *p = err->msg, *end;

	for (; (end = strchr(p, '\n')); p = end + 1)
		log_line("%.*s", (int)(end - p), p);
	log_line("%s", p);
	return EXIT_HOST;
}

int cmd_usage(const char *command, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	log_line("%s (see `kvm help%s%s`)", text, command ? " " : "", command ? command : "");
	return EXIT_USAGE;
}

int cmd_version(int argc, char **argv)
{
	/* What a build may leave out (meson_options.txt). */
	static const char *const parts[] = {
#ifdef HAVE_BZIP2
		"bzip2",
#endif
#ifdef HAVE_KMOD
		"libkmod",
#endif
#ifdef HAVE_LZ4
		"lz4",
#endif
#ifdef HAVE_LZMA
		"lzma",
#endif
#ifdef HAVE_ZSTD
		"zstd",
#endif
#ifdef HAVE_SLIRP
		"libslirp",
#endif
		NULL
	};
	struct cmd_options o = { .max_args = 0 };
	int status = cmd_parse(argc, argv, &o);

	if (status)
		return status < 0 ? 0 : status;
	printf("kvm %s\nwith:", KVM_VERSION);
	for (unsigned i = 0; parts[i]; i++)
		printf(" %s", parts[i]);
	printf("%s\n", parts[0] ? "" : " nothing optional");
	return 0;
}

static int help_all(void)
{
	printf("kvm: runs Linux guests on Linux's KVM\n\n");
	for (const struct command *c = commands; c->name; c++)
		printf("  kvm %-8s %-42s %s\n", c->name, c->args, c->summary);
	printf("\n`kvm help COMMAND` tells more, `man kvm` everything.\n");
	return 0;
}

int cmd_help(int argc, char **argv)
{
	if (argc < 2)
		return help_all();
	for (const struct command *c = commands; c->name; c++) {
		if (strcmp(c->name, argv[1]))
			continue;
		printf("kvm %s%s%s: %s\n", c->name, c->args[0] ? " " : "", c->args, c->summary);
		if (c->help)
			printf("\n%s", c->help);
		return 0;
	}
	return cmd_usage(NULL, "there is no command '%s'", argv[1]);
}
