// SPDX-License-Identifier: GPL-2.0-or-later
#include "base/err.h"
#include "cmd/cmd.h"
#include "machine/host.h"

#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *level_name(enum host_level level)
{
	static const char *const name[] = { [HOST_OK] = "ok", [HOST_WARN] = "warn", [HOST_FAIL] = "fail" };

	return name[level];
}

static void examine_kernel(struct host_report *r)
{
	static const char name[] = "kernel to boot";
	struct err err;
	char *path = find_kernel(&err);

	if (!path)
		host_add(r, HOST_WARN, name,
		         "name one with -k FILE, or install one (Debian: apt-get install linux-image-amd64)",
		         "none in this build tree or in /boot");
	else if (access(path, R_OK))
		host_add(r, HOST_WARN, name, "sudo chmod +r it, or name another with -k FILE", "%s: %s", path,
		         strerror(errno));
	else
		host_add(r, HOST_OK, name, NULL, "%s", path);
	free(path);
}

/* One line: will a Linux guest run here, and if not, why? */
static void verdict(const struct host_report *r, char *buf, size_t len)
{
	const struct host_check *c = host_obstacle(r);

	if (c)
		snprintf(buf, len, "a Linux guest will not run here: %s: %s", c->name, c->found);
	else
		snprintf(buf, len, "a Linux guest will run here");
}

static void print_text(const struct host_report *r, const char *last)
{
	int width = 0;

	for (unsigned i = 0; i < r->n; i++)
		if ((int)strlen(r->check[i].name) > width)
			width = (int)strlen(r->check[i].name);
	for (unsigned i = 0; i < r->n; i++) {
		const struct host_check *c = &r->check[i];

		printf("%-4s  %-*s  %s%s%s\n", level_name(c->level), width, c->name, c->found, c->remedy[0] ? ": " : "",
		       c->remedy);
	}
	printf("%s\n", last);
}

static void print_string(const char *key, const char *s)
{
	printf("\"%s\": \"", key);
	for (; *s; s++) {
		if (*s == '"' || *s == '\\')
			printf("\\%c", *s);
		else if ((unsigned char)*s < ' ')
			printf("\\u%04x", (unsigned)*s);
		else
			putchar(*s);
	}
	putchar('"');
}

static void print_json(const struct host_report *r, const char *last)
{
	printf("{\"linux\": %s, ", host_obstacle(r) ? "false" : "true");
	print_string("verdict", last);
	printf(", \"checks\": [");
	for (unsigned i = 0; i < r->n; i++) {
		const struct host_check *c = &r->check[i];

		printf("%s\n  {", i ? "," : "");
		print_string("name", c->name);
		printf(", ");
		print_string("level", level_name(c->level));
		printf(", ");
		print_string("found", c->found);
		printf(", ");
		print_string("remedy", c->remedy);
		putchar('}');
	}
	printf("\n]}\n");
}

/* Returns 0, or an exit status: -1 means that all is done. */
static int parse(int argc, char **argv, bool *json)
{
	static const struct option options[] = {
		{ "json", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	int opt;

	optind = 0;
	opterr = 0;
	while ((opt = getopt_long(argc, argv, "+h", options, NULL)) != -1) {
		if (opt == 'h')
			return cmd_help(2, (char *[]){ "help", "doctor", NULL }) ? EXIT_USAGE : -1;
		if (opt != 'j')
			return cmd_usage("doctor", "%s is not an option", argv[optind - 1]);
		*json = true;
	}
	if (optind < argc)
		return cmd_usage("doctor", "takes no arguments, such as '%s'", argv[optind]);
	return 0;
}

int cmd_doctor(int argc, char **argv)
{
	static struct host_report report;
	char last[512];
	bool json = false;
	int status = parse(argc, argv, &json);

	if (status)
		return status < 0 ? 0 : status;
	host_examine(&report);
	examine_kernel(&report);
	verdict(&report, last, sizeof(last));
	if (json)
		print_json(&report, last);
	else
		print_text(&report, last);
	return host_obstacle(&report) ? EXIT_HOST : 0;
}
