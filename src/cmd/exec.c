// SPDX-License-Identifier: GPL-2.0-or-later
#include "machine/exec.h"
#include "base/err.h"
#include "base/log.h"
#include "cmd/client.h"
#include "cmd/cmd.h"
#include "cmd/command.h"

#include <errno.h>
#include <getopt.h>
#include <json-c/json.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ANSWER_MS 5000

const char exec_help[] = "NAME is a machine whose initrd is our own (not -i); it may be left out where only one runs.\n"
                         "Standard input, output and error are the command's, a terminal if ours are. Signals are\n"
                         "passed on.\n"
                         "\n"
                         "      --env NAME[=VALUE]  a variable for the command; without a value, as it is here\n"
                         "\n"
                         "Exit status: the command's own, 128+n for signal n; 254 when it could not be run.\n";

const char shell_help[] = "As `kvm exec NAME -- SHELL`, with the root's own login shell. ^A x hangs up.\n";

/* The other end of a socket of ours, along with the request. 0 or an exit status. */
static int ask(struct client *c, int fd)
{
	static char line[] = "{\"do\":\"exec\"}\n";
	char space[CMSG_SPACE(sizeof(int))] = "";
	struct iovec iov = { line, sizeof(line) - 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space) };
	struct cmsghdr *h = CMSG_FIRSTHDR(&msg);
	struct json_object *reply;
	struct err err;
	int status = 0;

	*h = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
	memcpy(CMSG_DATA(h), &fd, sizeof(int));
	if (sendmsg(c->fd, &msg, MSG_NOSIGNAL) < 0) {
		err_sys(&err, -errno, "%s", c->name);
		return cmd_fail(&err);
	}
	reply = client_recv(c, now_ms() + ANSWER_MS);
	if (!json_object_get_boolean(json_object_object_get(reply, "ok"))) {
		const char *why = json_object_get_string(json_object_object_get(reply, "error"));
		char buf[256];

		err_set(&err, -EIO, "%s: %s", c->name, why ? why : client_excuse(c, buf, sizeof(buf)));
		status = cmd_fail(&err);
	}
	json_object_put(reply);
	return status;
}

static int run(struct client *c, const struct guest_command *cmd)
{
	struct err err;
	int fd[2], status = 0;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd)) {
		err_sys(&err, -errno, "socketpair");
		cmd_fail(&err);
		return EXIT_SETUP;
	}
	status = ask(c, fd[1]);
	close(fd[1]);
	if (status) {
		close(fd[0]);
		return EXIT_SETUP;
	}
	if (exec_run(fd[0], cmd, &status, &err)) {
		cmd_fail(&err);
		return EXIT_SETUP;
	}
	return status;
}

/* In the machine @name, or the only one. */
static int run_in(const char *verb, const char *name, const struct guest_command *cmd)
{
	struct client c;
	struct err err;
	int status = client_pick(verb, name, &c);

	if (status)
		return EXIT_SETUP;
	if (c.fd < 0 || client_greeting(&c, now_ms() + ANSWER_MS)) {
		char buf[256];

		err_set(&err, -EIO, "%s: %s", c.name, client_excuse(&c, buf, sizeof(buf)));
		cmd_fail(&err);
		status = EXIT_SETUP;
	} else {
		status = run(&c, cmd);
	}
	client_close(&c);
	return status;
}

int cmd_exec(int argc, char **argv)
{
	static const struct option options[] = { { "env", required_argument, NULL, 'e' },
		                                 { "help", no_argument, NULL, 'h' },
		                                 { NULL, 0, NULL, 0 } };
	static struct command_args a; /* the process's own */
	const char *name = NULL;
	int opt, status;

	command_init(&a, NULL);
	optind = 0;
	opterr = 0;
	for (;;) {
		while ((opt = getopt_long(argc, argv, "+:h", options, NULL)) != -1) {
			if (opt == 'h')
				return cmd_help(2, (char *[]){ "help", "exec", NULL });
			if (opt != 'e')
				return cmd_usage("exec", "%s %s", argv[optind - 1],
				                 opt == ':' ? "needs a value" : "is not an option");
			status = command_env("exec", &a, optarg);
			if (status)
				return status;
		}
		if (optind >= argc || !strcmp(argv[optind - 1], "--"))
			break;
		if (name)
			return cmd_usage("exec", "one machine, not also '%s'; a command comes after --", argv[optind]);
		name = argv[optind++];
	}
	if (optind >= argc)
		return cmd_usage("exec", "which command? It comes after --");
	a.cmd.argv = argv + optind;
	return run_in("exec", name, &a.cmd);
}

int cmd_shell(int argc, char **argv)
{
	static char *none[] = { NULL };
	struct cmd_options o = { .max_args = 1 };
	static struct command_args a; /* the process's own */
	int status = cmd_parse(argc, argv, &o);

	if (status)
		return status < 0 ? 0 : status;
	command_init(&a, none);
	return run_in("shell", o.nargs ? o.args[0] : NULL, &a.cmd);
}
