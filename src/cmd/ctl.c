// SPDX-License-Identifier: GPL-2.0-or-later
#include "base/log.h"
#include "cmd/client.h"
#include "cmd/cmd.h"

#include <errno.h>
#include <getopt.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATIENCE_MS 4000

const char ctl_help[] = "NAME may be left out where only one machine runs (see `kvm list`).\n";

const char sysrq_help[] =
        "KEY is one character: h lists them, on the guest's console. It goes to ttyS0, after a break, so\n"
        "something in the guest must have that port open. Which keys do something is the guest's\n"
        "kernel.sysrq; the kernel parameter sysrq_always_enabled allows all of them.\n"
        "NAME may be left out where only one machine runs.\n";

/* Prints why, where @error or a reply of "ok": false says so. Takes @reply. Returns the exit status. */
static int judge(struct client *c, int error, struct json_object *reply)
{
	const char *text = json_object_get_string(json_object_object_get(reply, "error"));
	char why[128];
	int status = EXIT_HOST;

	if (json_object_get_boolean(json_object_object_get(reply, "ok")))
		status = 0;
	else if (reply)
		log_line("%s: %s", c->name, text ? text : "it refused, but did not say why");
	else if (error == -EPROTO)
		log_line("%s (pid %d): it is of another version of kvm", c->name, (int)c->pid);
	else if (c->ended)
		log_line("%s: it has ended", c->name);
	else
		log_line("%s (pid %d) does not answer: %s", c->name, (int)c->pid, client_excuse(c, why, sizeof(why)));
	json_object_put(reply);
	return status;
}

/* Takes @more. */
static int ask(struct client *c, const char *verb, struct json_object *more)
{
	uint64_t deadline = now_ms() + PATIENCE_MS;
	struct json_object *reply = NULL;
	int error;

	client_send(c, verb, more, deadline - PATIENCE_MS / 2);
	error = client_greeting(c, deadline - PATIENCE_MS / 2);
	if (!error)
		reply = client_recv(c, deadline);
	return judge(c, error, reply);
}

static int pick_and_ask(const char *command, const char *name, struct json_object *more)
{
	struct client c;
	int status = client_pick(command, name, &c);

	if (status) {
		json_object_put(more);
		return status;
	}
	status = ask(&c, command, more);
	client_close(&c);
	return status;
}

/* pause, resume, reboot, nmi: the command's name is the verb. */
int cmd_ctl(int argc, char **argv)
{
	struct cmd_options o = { .max_args = 1 };
	int status = cmd_parse(argc, argv, &o);

	if (status)
		return status < 0 ? 0 : status;
	return pick_and_ask(argv[0], o.nargs ? o.args[0] : NULL, NULL);
}

int cmd_sysrq(int argc, char **argv)
{
	struct cmd_options o = { .min_args = 1, .max_args = 2 };
	struct json_object *more;
	const char *key;
	int status = cmd_parse(argc, argv, &o);

	if (status)
		return status < 0 ? 0 : status;
	key = o.args[o.nargs - 1];
	if (strlen(key) != 1)
		return cmd_usage("sysrq", "'%s' is not a key: one character, such as h for help", key);
	more = json_object_new_object();
	json_object_object_add(more, "key", json_object_new_string(key));
	return pick_and_ask("sysrq", o.nargs == 2 ? o.args[0] : NULL, more);
}
