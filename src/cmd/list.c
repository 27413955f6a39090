// SPDX-License-Identifier: GPL-2.0-or-later
#include "cmd/client.h"
#include "cmd/cmd.h"

#include <errno.h>
#include <getopt.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATIENCE_MS 2000 /* for all of them together */

const char list_help[] =
        "  --json  an array of objects: name, pid, state, uptime (s), boots, cpus, mem (bytes),\n"
        "          address, kernel, net (packets that passed, were dropped, were bad)\n"
        "\n"
        "STATE is running, paused, stopping (it was asked to switch itself off), ended (its console's\n"
        "reader has yet to read the rest) or wedged: it did not answer within 2 s (--json says \"why\").\n";

/* What is known of a machine that does not answer. */
static struct json_object *wedged(const struct client *c)
{
	struct json_object *o = json_object_new_object();
	char why[128];

	json_object_object_add(o, "name", json_object_new_string(c->name));
	json_object_object_add(o, "pid", json_object_new_int(c->pid));
	json_object_object_add(o, "state", json_object_new_string("wedged"));
	json_object_object_add(o, "why", json_object_new_string(client_excuse(c, why, sizeof(why))));
	return o;
}

/* NULL: it ended while we looked. */
static struct json_object *status_of(struct client *c, uint64_t deadline)
{
	struct json_object *o = NULL;
	int error = c->fd < 0 ? -ETIMEDOUT : client_greeting(c, deadline);

	if (!error)
		o = client_recv(c, deadline);
	if (!o)
		return c->ended ? NULL : wedged(c);
	json_object_object_del(o, "ok");
	return o;
}

/* Asks all before it listens to the first, so that they are waited for together. */
static struct json_object *gather(struct err *err)
{
	struct json_object *list = json_object_new_array();
	uint64_t deadline = now_ms() + PATIENCE_MS;
	struct client *all;
	int n = client_open_all(&all, err);

	for (int i = 0; i < n; i++)
		if (all[i].fd >= 0)
			client_send(&all[i], "status", NULL, deadline);
	for (int i = 0; i < n; i++) {
		struct json_object *o = status_of(&all[i], deadline);

		if (o)
			json_object_array_add(list, o);
		client_close(&all[i]);
	}
	if (n < 0) {
		json_object_put(list);
		return NULL;
	}
	free(all);
	return list;
}

/* "17s", "12m", "3h05m", "9d04h" */
static void print_uptime(double s)
{
	unsigned long t = (unsigned long)s;
	char buf[32];

	if (t < 60)
		snprintf(buf, sizeof(buf), "%lus", t);
	else if (t < 3600)
		snprintf(buf, sizeof(buf), "%lum", t / 60);
	else if (t < 86400)
		snprintf(buf, sizeof(buf), "%luh%02lum", t / 3600, t / 60 % 60);
	else
		snprintf(buf, sizeof(buf), "%lud%02luh", t / 86400, t / 3600 % 24);
	printf("%7s", buf);
}

static const char *string_at(struct json_object *o, const char *key)
{
	const char *s = json_object_get_string(json_object_object_get(o, key));

	return s ? s : "";
}

/* A path may have any bytes; they must not drive our terminal. */
static void print_plain(const char *s)
{
	for (; *s; s++)
		putchar((unsigned char)*s < ' ' || *s == 127 ? '?' : *s);
}

static void print_row(struct json_object *o)
{
	printf("%-16s %7d %-8s ", string_at(o, "name"), json_object_get_int(json_object_object_get(o, "pid")),
	       string_at(o, "state"));
	if (json_object_object_get_ex(o, "why", NULL)) {
		printf("(%s)\n", string_at(o, "why"));
		return;
	}
	print_uptime(json_object_get_double(json_object_object_get(o, "uptime")));
	printf(" %4d %6lldM %-15s ", json_object_get_int(json_object_object_get(o, "cpus")),
	       (long long)json_object_get_int64(json_object_object_get(o, "mem")) >> 20, string_at(o, "address"));
	print_plain(string_at(o, "kernel"));
	putchar('\n');
}

static void print_table(struct json_object *list)
{
	printf("%-16s %7s %-8s %7s %4s %7s %-15s %s\n", "NAME", "PID", "STATE", "UPTIME", "CPUS", "MEM", "ADDRESS",
	       "KERNEL");
	for (size_t i = 0; i < json_object_array_length(list); i++)
		print_row(json_object_array_get_idx(list, i));
}

int cmd_list(int argc, char **argv)
{
	static const struct option options[] = { { "json", no_argument, NULL, 'j' }, { 0 } };
	struct cmd_options o = { .options = options, .shorts = "" };
	struct json_object *list;
	struct err err;
	int status = cmd_parse(argc, argv, &o);

	if (status)
		return status < 0 ? 0 : status;
	list = gather(&err);
	if (!list)
		return cmd_fail(&err);
	if (o.given['j'])
		printf("%s\n",
		       json_object_to_json_string_ext(list, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_NOSLASHESCAPE));
	else
		print_table(list);
	json_object_put(list);
	return 0;
}
