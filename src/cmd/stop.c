// SPDX-License-Identifier: GPL-2.0-or-later
#include "base/log.h"
#include "base/opt.h"
#include "cmd/client.h"
#include "cmd/cmd.h"

#include <errno.h>
#include <getopt.h>
#include <json-c/json.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * How it works
 *
 * Every machine is asked at once, then each is waited for in turn: first for
 * its last word on the socket, then for its process to be gone, so that its
 * name and its files are free when we return. What takes longer than TELL_MS
 * is told, once, with what it waits for.
 *
 * A machine that does not even greet within GREET_MS will not take the request
 * later either. With --force it is killed. The process is named
 * by a descriptor that was opened while its socket was alive; so is what would
 * be killed.
 */

#define GREET_MS  2000 /* for all of them together */
#define TELL_MS   1500
#define FORCE_MS  2000 /* for a forced stop, before it becomes a kill */
#define GONE_MS   2500
#define MARGIN_MS 3000

const char stop_help[] =
        "Presses the power button, and waits until the machine is gone. A guest that has not switched\n"
        "itself off after the machine's --grace is ended.\n"
        "\n"
        "  -a, --all        all machines\n"
        "  -f, --force      end it at once; kill it, if it does not answer\n"
        "  -t, --timeout S  do not wait longer than that (status 1); 0: only ask\n"
        "\n"
        "NAME may be left out where only one machine runs (see `kvm list`).\n";

/* What the user wants. */
struct how {
	bool all, force;
	bool only_ask;
	uint64_t timeout; /* ms, 0: as long as the machine's own patience */
};

struct stop {
	struct client c;
	struct json_object *progress; /* what it last said that it waits for */
	uint64_t grace_end;           /* ms, 0: it waits without an end */
};

static void kill_it(const struct stop *s)
{
	log_line("%s (pid %d) does not answer: killed", s->c.name, (int)s->c.pid);
	if (s->c.pidfd >= 0)
		syscall(SYS_pidfd_send_signal, s->c.pidfd, SIGKILL, NULL, 0);
	else if (s->c.pid > 0)
		kill(s->c.pid, SIGKILL);
}

/* It has said goodbye: now its process must end, too. */
static int wait_gone(struct stop *s)
{
	char why[128];

	if (client_gone(&s->c, now_ms() + GONE_MS))
		return 0;
	log_line("%s has ended, but its process (pid %d) is still there: %s", s->c.name, (int)s->c.pid,
	         client_excuse(&s->c, why, sizeof(why)));
	return EXIT_HOST;
}

static int kill_and_wait(struct stop *s)
{
	kill_it(s);
	return wait_gone(s);
}

static int not_asked(struct stop *s, bool force)
{
	char why[128];

	if (s->c.ended)
		return wait_gone(s);
	if (force)
		return kill_and_wait(s);
	log_line("%s (pid %d) does not answer: %s (kvm stop --force kills it)", s->c.name, (int)s->c.pid,
	         client_excuse(&s->c, why, sizeof(why)));
	return EXIT_HOST;
}

/* Waits for a line with "ok", or the end of the connection. True: it came. What comes before is kept. */
static bool last_word(struct stop *s, uint64_t deadline)
{
	struct json_object *o;

	while ((o = client_recv(&s->c, deadline)) && !json_object_object_get_ex(o, "ok", NULL)) {
		double grace = json_object_get_double(json_object_object_get(o, "grace"));

		json_object_put(s->progress);
		s->progress = o;
		s->grace_end = grace > 0 ? now_ms() + (uint64_t)(grace * 1000) : 0;
	}
	json_object_put(o);
	return o || s->c.ended;
}

static void tell(const struct stop *s)
{
	const char *what = json_object_get_string(json_object_object_get(s->progress, "waiting"));
	uint64_t now = now_ms();

	if (!what)
		what = "it has been asked";
	if (s->grace_end > now)
		log_line("%s: %s; it has %.0f s for that (kvm stop --force ends it now)", s->c.name, what,
		         (double)(s->grace_end - now) / 1000);
	else
		log_line("%s: %s (kvm stop --force ends it now)", s->c.name, what);
}

static int wait_forced(struct stop *s)
{
	if (!last_word(s, now_ms() + FORCE_MS) || !client_gone(&s->c, now_ms() + GONE_MS))
		return kill_and_wait(s);
	return 0;
}

static uint64_t min(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static int wait_polite(struct stop *s, const struct how *how, uint64_t start)
{
	uint64_t deadline = how->timeout ? start + how->timeout : UINT64_MAX;

	if (!last_word(s, min(deadline, start + TELL_MS))) {
		tell(s);
		if (!how->timeout && s->grace_end)
			deadline = s->grace_end + MARGIN_MS;
		if (!last_word(s, deadline))
			return EXIT_HOST;
	}
	return wait_gone(s);
}

static void ask(struct stop *s, bool force, uint64_t deadline)
{
	struct json_object *more = json_object_new_object();

	json_object_object_add(more, "force", json_object_new_boolean(force));
	client_send(&s->c, "stop", more, deadline);
}

static int wait_one(struct stop *s, const struct how *how, uint64_t start)
{
	if (client_greeting(&s->c, start + GREET_MS))
		return not_asked(s, how->force);
	if (how->only_ask)
		return last_word(s, start + TELL_MS) || s->progress ? 0 : not_asked(s, false);
	return how->force ? wait_forced(s) : wait_polite(s, how, start);
}

static int stop(struct stop *s, int n, const struct how *how)
{
	uint64_t start = now_ms();
	int status = 0;

	for (int i = 0; i < n; i++)
		ask(&s[i], how->force, start + GREET_MS);
	for (int i = 0; i < n; i++)
		if (wait_one(&s[i], how, start))
			status = EXIT_HOST;
	return status;
}

/* The machines meant, into @s, which has room for all that are named. Count, or -1 with the exit status. */
static int pick(const struct cmd_options *o, struct stop *s, int *status)
{
	int n = 0;

	do {
		*status = client_pick("stop", o->nargs ? o->args[n] : NULL, &s[n].c);
		if (*status)
			break;
		n++;
	} while (n < o->nargs);
	if (!*status)
		return n;
	while (n)
		client_close(&s[--n].c);
	return -1;
}

static int pick_all(struct stop **out, int *status)
{
	struct client *all;
	struct err err;
	int n = client_open_all(&all, &err);
	struct stop *s = n < 0 ? NULL : calloc((size_t)n + 1, sizeof(*s));

	for (int i = 0; s && i < n; i++)
		s[i].c = all[i];
	if (n >= 0)
		free(all);
	*out = s;
	*status = n < 0 ? cmd_fail(&err) : 0;
	return n;
}

static int take_options(const struct cmd_options *o, struct how *how)
{
	struct err err;
	uint64_t ns;

	*how = (struct how){ .all = o->given['a'], .force = o->given['f'] };
	if (how->all && o->nargs)
		return cmd_usage("stop", "--all, or names, not both");
	if (!o->value['t'])
		return 0;
	if (how->force)
		return cmd_usage("stop", "--force does not wait: no --timeout");
	if (opt_seconds("--timeout", o->value['t'], &ns, &err))
		return cmd_usage("stop", "%s", err.msg);
	how->timeout = ns / 1000000;
	how->only_ask = !how->timeout;
	return 0;
}

int cmd_stop(int argc, char **argv)
{
	static const struct option options[] = { { "all", no_argument, NULL, 'a' },
		                                 { "force", no_argument, NULL, 'f' },
		                                 { "timeout", required_argument, NULL, 't' },
		                                 { 0 } };
	struct cmd_options o = { .options = options, .shorts = "aft:", .max_args = argc };
	struct stop *s = NULL;
	struct how how;
	int status = cmd_parse(argc, argv, &o), n;

	if (!status)
		status = take_options(&o, &how);
	if (status)
		return status < 0 ? 0 : status;
	if (how.all) {
		n = pick_all(&s, &status);
	} else {
		s = calloc((size_t)argc, sizeof(*s));
		n = s ? pick(&o, s, &status) : 0;
	}
	if (n > 0)
		status = stop(s, n, &how);
	for (int i = 0; i < n; i++) {
		json_object_put(s[i].progress);
		client_close(&s[i].c);
	}
	free(s);
	return status;
}
