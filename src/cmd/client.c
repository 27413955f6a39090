// SPDX-License-Identifier: GPL-2.0-or-later
#include "cmd/client.h"

#include "base/clock.h"
#include "base/log.h"
#include "cmd/cmd.h"

#include <assert.h>
#include <errno.h>
#include <json-c/json.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_LEN 1000000
#define NAMES_LEN    512
#define CONNECT_MS   1000 /* for all machines together */

uint64_t now_ms(void)
{
	return clock_ns() / 1000000;
}

/* Polls until @deadline, once where that has passed. */
static bool wait_for(int fd, uint64_t deadline)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int n;

	do {
		uint64_t now = now_ms();

		n = poll(&p, 1, deadline > now ? (int)(deadline - now) : 0);
	} while (n < 0 && errno == EINTR);
	return n > 0;
}

int client_open(const struct rundir *d, const char *name, struct client *c)
{
	int fd;

	*c = (struct client){ .fd = -1, .pidfd = -1 };
	snprintf(c->name, sizeof(c->name), "%s", name);
	fd = rundir_connect(d, name, &c->pid);
	if (fd == -EAGAIN)
		return 0;
	if (fd < 0)
		return fd == -ECONNREFUSED ? -ENOENT : fd;
	c->fd = fd;
	if (c->pid > 0)
		c->pidfd = (int)syscall(SYS_pidfd_open, c->pid, 0);
	return 0;
}

void client_close(struct client *c)
{
	if (c->fd >= 0)
		close(c->fd);
	if (c->pidfd >= 0)
		close(c->pidfd);
	free(c->buf);
	*c = (struct client){ .fd = -1, .pidfd = -1 };
}

static struct json_object *take_line(struct client *c)
{
	char *end = c->len ? memchr(c->buf, '\n', c->len) : NULL;
	struct json_object *o;

	if (!end)
		return NULL;
	*end = '\0';
	o = json_tokener_parse(c->buf);
	c->len -= (size_t)(end + 1 - c->buf);
	memmove(c->buf, end + 1, c->len);
	if (!o)
		c->ended = true; /* no machine of ours says this */
	return o;
}

/* Reads what there is. */
static void fill(struct client *c)
{
	char part[4096], *more;
	ssize_t n = recv(c->fd, part, sizeof(part), MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	more = n > 0 && c->len < LINE_MAX_LEN ? realloc(c->buf, c->len + (size_t)n) : NULL;
	if (!more) {
		c->ended = true;
		return;
	}
	memcpy(more + c->len, part, (size_t)n);
	c->buf = more;
	c->len += (size_t)n;
}

struct json_object *client_recv(struct client *c, uint64_t deadline)
{
	struct json_object *o;

	while (!(o = take_line(c)) && !c->ended && c->fd >= 0) {
		if (!wait_for(c->fd, deadline))
			return NULL;
		fill(c);
	}
	return o;
}

void client_send(struct client *c, const char *verb, struct json_object *more, uint64_t deadline)
{
	struct json_object *o = more ? more : json_object_new_object();
	const char *s;
	char *line;
	int n;

	json_object_object_add(o, "do", json_object_new_string(verb));
	json_object_object_add(o, "until", json_object_new_double((double)deadline / 1000));
	s = json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN);
	n = s ? asprintf(&line, "%s\n", s) : -1;
	if (n >= 0) {
		/* A line this short fits into a fresh socket. Where not, no reply comes, and that is told. */
		ssize_t sent = send(c->fd, line, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);

		(void)sent;
		free(line);
	}
	json_object_put(o);
}

int client_greeting(struct client *c, uint64_t deadline)
{
	struct json_object *o = client_recv(c, deadline);
	int version = json_object_get_int(json_object_object_get(o, "kvm"));

	if (!o)
		return c->ended ? -EPIPE : -ETIMEDOUT;
	json_object_put(o);
	return version == 1 ? 0 : -EPROTO;
}

bool client_gone(struct client *c, uint64_t deadline)
{
	if (c->pidfd >= 0)
		return wait_for(c->pidfd, deadline);
	while (c->pid > 0 && !kill(c->pid, 0) && now_ms() < deadline)
		usleep(10000);
	return c->pid <= 0 || (kill(c->pid, 0) && errno == ESRCH);
}

/* The state letter of /proc/PID/stat, 0: there is no such process. */
static char process_state(pid_t pid)
{
	char path[64], line[512], *end;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	f = fopen(path, "re");
	line[0] = '\0';
	if (f) {
		if (!fgets(line, sizeof(line), f))
			line[0] = '\0';
		fclose(f);
	}
	end = strrchr(line, ')');
	return end && end[1] == ' ' ? end[2] : 0;
}

const char *client_excuse(const struct client *c, char *buf, size_t len)
{
	switch (process_state(c->pid)) {
	case 'T': snprintf(buf, len, "its process is stopped; kill -CONT %d lets it go on", (int)c->pid); break;
	case 't': snprintf(buf, len, "a debugger holds its process"); break;
	case 'D': snprintf(buf, len, "its process waits for the host's disk or network"); break;
	case 'Z':
	case 'X':
	case 0: snprintf(buf, len, "its process is ending"); break;
	default: snprintf(buf, len, "its process is busy"); break;
	}
	return buf;
}

static int add(struct client **all, int n, const struct client *c)
{
	struct client *more = reallocarray(*all, (size_t)n + 1, sizeof(*more));

	if (!more)
		return -ENOMEM;
	*all = more;
	more[n] = *c;
	return 0;
}

/* A flood of callers may leave no place in the line for a moment, a wedged machine for good. */
static int open_patiently(const struct rundir *d, const char *name, struct client *c, uint64_t deadline)
{
	int error;

	while (!(error = client_open(d, name, c)) && c->fd < 0 && now_ms() < deadline)
		usleep(1000);
	return error;
}

static int open_each(const struct rundir *d, char **names, int n, struct client **out, struct err *err)
{
	uint64_t deadline = now_ms() + CONNECT_MS;
	int live = 0;

	for (int i = 0; i < n; i++) {
		struct client c;
		int error = open_patiently(d, names[i], &c, deadline);

		if (error == -ENOENT) {
			rundir_sweep(d, names[i]);
			continue;
		}
		if (!error)
			error = add(out, live, &c);
		if (error) {
			client_close(&c);
			for (int k = 0; k < live; k++)
				client_close(&(*out)[k]);
			free(*out);
			*out = NULL;
			return err_sys(err, error, "%s", names[i]);
		}
		live++;
	}
	return live;
}

int client_open_all(struct client **out, struct err *err)
{
	struct rundir d;
	char **names;
	int n = rundir_open(&d, false, err), live;

	*out = NULL;
	if (n == -ENOENT)
		return 0;
	if (n)
		return n;
	live = n = rundir_names(&d, &names, err);
	if (n >= 0)
		live = open_each(&d, names, n, out, err);
	for (int i = 0; i < n; i++)
		free(names[i]);
	if (n >= 0)
		free(names);
	rundir_close(&d);
	return live;
}

static void list_names(const struct client *c, int n, char *buf, size_t len)
{
	size_t at = 0;

	buf[0] = '\0';
	for (int i = 0; i < n && at + RUNDIR_NAME_MAX + 8 < len; i++)
		at += (size_t)snprintf(buf + at, len - at, "%s%s", i ? ", " : "", c[i].name);
	if (at + RUNDIR_NAME_MAX + 8 >= len)
		snprintf(buf + at, len - at, ", ...");
}

/* Which of the @n it is, or -1 after having said why, with the exit status. */
static int choose(const char *command, const char *name, const struct client *c, int n, int *status)
{
	char names[NAMES_LEN];

	list_names(c, n, names, sizeof(names));
	if (!name && n == 1)
		return 0;
	for (int i = 0; name && i < n; i++)
		if (!strcmp(c[i].name, name))
			return i;
	*status = EXIT_HOST;
	if (!n && name)
		log_line("there is no machine '%s': none is running", name);
	else if (!n)
		log_line("no machine is running");
	else if (name)
		log_line("there is no machine '%s', but: %s", name, names);
	else
		*status = cmd_usage(command, "which one? There are %s", names);
	return -1;
}

int client_pick(const char *command, const char *name, struct client *out)
{
	struct client *all = NULL;
	struct err err;
	int n = client_open_all(&all, &err), i, status = 0;

	if (n < 0)
		return cmd_fail(&err);
	assert(!n || all);
	i = choose(command, name, all, n, &status);
	for (int k = 0; k < n; k++) {
		if (k == i)
			*out = all[k];
		else
			client_close(&all[k]);
	}
	free(all);
	return status;
}
