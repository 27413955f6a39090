// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The runtime directory and the control socket, from the other end of the
 * socket: the loop runs in a thread of its own, with a fake session behind it.
 */
#include "machine/control.h"

#include "base/loop.h"
#include "machine/rundir.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define GREETING "{\"kvm\":1,\"name\":\"web\",\"pid\":"

struct fixture {
	char *top; /* $XDG_RUNTIME_DIR */
	struct loop *loop;
	struct control *control;
	pthread_t thread;
	unsigned nmis;
	char key;
	bool forced;
};

/* The fake session. */

static void op_status(void *opaque, struct control_status *out)
{
	*out = (struct control_status){ .state = "running", .uptime = 12345678901ull, .boots = 2 };
	out->net = (struct net_status){ .name = "net0",
		                        .up = true,
		                        .rx = 1,
		                        .rx_filtered = 2,
		                        .rx_dropped = 3,
		                        .rx_bad = 4,
		                        .tx = 1ull << 40,
		                        .tx_dropped = 6,
		                        .tx_bad = 7 };
}

static int op_stop(void *opaque, bool force, struct control_wait *wait, struct err *err)
{
	struct fixture *f = opaque;

	f->forced = force;
	wait->what = "the \"guest\"";
	wait->grace = 30000000000ull;
	return CONTROL_LATER;
}

static int op_fail(void *opaque, struct err *err)
{
	return err_set(err, -EBUSY, "not\nnow");
}

static int op_reboot(void *opaque, struct err *err)
{
	return CONTROL_LATER;
}

static int op_nmi(void *opaque, struct err *err)
{
	struct fixture *f = opaque;

	f->nmis++;
	return 0;
}

static int op_sysrq(void *opaque, char key, struct err *err)
{
	struct fixture *f = opaque;

	f->key = key;
	return 0;
}

/* Says what it was sent into the socket that came along. */
static int op_exec(void *opaque, int fd, struct err *err)
{
	ssize_t n = write(fd, "here", 4);

	close(fd);
	return n == 4 ? 0 : err_set(err, -EIO, "not a socket");
}

static const struct control_ops ops = { op_status, op_stop, op_fail, op_nmi, op_reboot, op_nmi, op_sysrq, op_exec };

/* The runtime directory alone. */

static int make_top(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	char top[] = "/tmp/test_control.XXXXXX";

	if (!mkdtemp(top))
		return -1;
	f->top = strdup(top);
	setenv("XDG_RUNTIME_DIR", top, 1);
	*state = f;
	return 0;
}

static int remove_top(void **state)
{
	struct fixture *f = *state;
	char *command;
	int r = asprintf(&command, "rm -rf %s", f->top) < 0 || system(command);

	free(command);
	free(f->top);
	free(f);
	return r;
}

static char *in_top(const struct fixture *f, const char *name)
{
	static char path[300];

	snprintf(path, sizeof(path), "%s/%s", f->top, name);
	return path;
}

static void names(void **state)
{
	static const char *const good[] = { "a", ".", "A-z_0.9", "vm-1" };
	static const char *const bad[] = { "", "a/b", "a b", "\n", "\xc3\xa4" };
	char name[RUNDIR_NAME_MAX + 2];

	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++)
		assert_true(rundir_name_ok(good[i]));
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		assert_false(rundir_name_ok(bad[i]));
	memset(name, 'x', sizeof(name));
	name[RUNDIR_NAME_MAX + 1] = '\0';
	assert_false(rundir_name_ok(name));
	name[RUNDIR_NAME_MAX] = '\0';
	assert_true(rundir_name_ok(name));
}

static void is_private(void **state)
{
	struct fixture *f = *state;
	struct rundir d;
	struct stat st;
	struct err err;
	mode_t mask;

	assert_int_equal(rundir_open(&d, false, &err), -ENOENT);
	assert_int_not_equal(stat(in_top(f, "kvm"), &st), 0);
	mask = umask(0);
	assert_int_equal(rundir_open(&d, true, &err), 0);
	umask(mask);
	rundir_close(&d);
	assert_int_equal(stat(in_top(f, "kvm"), &st), 0);
	assert_int_equal(st.st_mode, S_IFDIR | 0700);
	assert_int_equal(rundir_open(&d, false, &err), 0);
	rundir_close(&d);
	rundir_close(&d);
}

static void refuses(const char *text)
{
	struct rundir d;
	struct err err;

	for (unsigned make = 0; make < 2; make++) {
		assert_true(rundir_open(&d, make, &err) < 0);
		assert_non_null(strstr(err.msg, text));
		assert_int_equal(d.fd, -1);
	}
}

static void refused(void **state)
{
	struct fixture *f = *state;
	char *path = in_top(f, "kvm");

	assert_int_equal(symlink("/tmp", path), 0);
	refuses("is no directory");
	unlink(path);
	close(open(path, O_CREAT | O_WRONLY, 0600));
	refuses("is no directory");
	unlink(path);
	mkdir(path, 0700);
	chmod(path, 0750);
	refuses("is open to others (mode 750)");
	chmod(path, 0701);
	refuses("is open to others");
	chmod(path, 0700);
	if (geteuid())
		return;
	assert_int_equal(chown(path, 1, 1), 0);
	refuses("belongs to uid 1, not to you");
	/* Nor does root use the directory of the user it was. */
	assert_int_equal(chown(f->top, 1, 1), 0);
	struct rundir d;
	struct err err;

	if (!rundir_open(&d, false, &err)) {
		assert_string_equal(d.path, "/run/kvm");
		rundir_close(&d);
	}
}

static void claims(void **state)
{
	struct fixture *f = *state;
	struct rundir_claim c, second;
	struct rundir d;
	struct err err;
	char **list, pid[32];

	assert_int_equal(rundir_open(&d, true, &err), 0);
	assert_int_equal(rundir_claim(&d, "web", &c, &err), 0);
	assert_int_equal(rundir_claim(&d, "web", &second, &err), -EEXIST);
	snprintf(pid, sizeof(pid), "(pid %d)", (int)getpid());
	assert_non_null(strstr(err.msg, "web is running already"));
	assert_non_null(strstr(err.msg, pid));
	rundir_sweep(&d, "web"); /* it lives */
	assert_int_equal(rundir_claim(&d, "a", &second, &err), 0);
	close(open(in_top(f, "kvm/no name.sock"), O_CREAT | O_WRONLY, 0600));
	close(open(in_top(f, "kvm/other"), O_CREAT | O_WRONLY, 0600));
	assert_int_equal(rundir_names(&d, &list, &err), 2);
	assert_string_equal(list[0], "a");
	assert_string_equal(list[1], "web");
	free(list[0]);
	free(list[1]);
	free(list);
	rundir_release(&d, "a", &second);
	rundir_release(&d, "web", &c);
	assert_int_equal(access(in_top(f, "kvm/web.sock"), F_OK), -1);
	assert_int_equal(access(in_top(f, "kvm/a.sock"), F_OK), -1);
	rundir_close(&d);
}

/* What a killed machine leaves is in nobody's way, and what somebody else made meanwhile is not removed. */
static void stale(void **state)
{
	struct fixture *f = *state;
	struct rundir_claim c, other;
	struct rundir d;
	struct err err;
	pid_t pid;

	assert_int_equal(rundir_open(&d, true, &err), 0);
	assert_int_equal(rundir_claim(&d, "web", &c, &err), 0);
	close(c.fd);
	assert_int_equal(access(in_top(f, "kvm/web.sock"), F_OK), 0);
	assert_int_equal(rundir_connect(&d, "web", &pid), -ECONNREFUSED);
	assert_int_equal(rundir_connect(&d, "none", &pid), -ENOENT);
	assert_int_equal(rundir_claim(&d, "web", &c, &err), 0);
	unlink(in_top(f, "kvm/web.sock")); /* by hand */
	assert_int_equal(rundir_claim(&d, "web", &other, &err), 0);
	rundir_release(&d, "web", &c);
	assert_int_equal(access(in_top(f, "kvm/web.sock"), F_OK), 0);
	close(other.fd);
	rundir_sweep(&d, "web");
	assert_int_equal(access(in_top(f, "kvm/web.sock"), F_OK), -1);
	rundir_close(&d);
}

/* Longer than a socket's address. */
static void long_path(void **state)
{
	struct fixture *f = *state;
	struct rundir_claim c, second;
	char name[RUNDIR_NAME_MAX + 1], path[300];
	struct rundir d;
	struct err err;
	pid_t pid;
	int fd;

	snprintf(path, sizeof(path), "%s/%0150d", f->top, 0);
	mkdir(path, 0700);
	setenv("XDG_RUNTIME_DIR", path, 1);
	memset(name, 'n', RUNDIR_NAME_MAX);
	name[RUNDIR_NAME_MAX] = '\0';
	assert_int_equal(rundir_open(&d, true, &err), 0);
	assert_int_equal(rundir_claim(&d, name, &c, &err), 0);
	assert_int_equal(rundir_claim(&d, name, &second, &err), -EEXIST);
	fd = rundir_connect(&d, name, &pid);
	assert_true(fd >= 0);
	assert_int_equal(pid, getpid());
	close(fd);
	rundir_release(&d, name, &c);
	assert_int_equal(rundir_connect(&d, name, &pid), -ENOENT);
	rundir_close(&d);
}

/* Many start at once: one of them gets the name. */
static void race(void **state)
{
	struct rundir_claim c;
	struct rundir d;
	struct err err;
	int won = 0, status;

	assert_int_equal(rundir_open(&d, true, &err), 0);
	for (unsigned round = 0; round < 50; round++) {
		int hold[2];

		assert_int_equal(pipe(hold), 0);
		for (unsigned i = 0; i < 4; i++) {
			char byte;

			if (fork())
				continue;
			close(hold[1]);
			rundir_close(&d);
			if (rundir_open(&d, true, &err) || rundir_claim(&d, "one", &c, &err))
				_exit(1);
			_exit(read(hold[0], &byte, 1) == 0 ? 0 : 2); /* alive until all have tried; as if killed */
		}
		for (unsigned i = 0; i < 3; i++) {
			assert_true(wait(&status) > 0);
			assert_int_equal(WEXITSTATUS(status), 1);
		}
		close(hold[1]);
		close(hold[0]);
		assert_true(wait(&status) > 0);
		won += WEXITSTATUS(status) == 0;
	}
	assert_int_equal(won, 50);
	rundir_close(&d);
}

/* The socket. */

static void *turn(void *arg)
{
	struct fixture *f = arg;
	int error = loop_run(f->loop);

	assert_int_equal(error, 0);
	return NULL;
}

static int start(void **state)
{
	struct control_config cc = { .ops = &ops,
		                     .name = "web",
		                     .kernel = "/boot/\"k\"",
		                     .address = "10.0.2.15",
		                     .ncpus = 3,
		                     .mem = 1ull << 33 };
	struct fixture *f;
	struct err err;

	if (make_top(state))
		return -1;
	f = *state;
	signal(SIGPIPE, SIG_IGN);
	cc.opaque = f;
	if (loop_new(&f->loop, &err))
		return -1;
	cc.loop = f->loop;
	if (control_new(&cc, &f->control, &err))
		return -1;
	return pthread_create(&f->thread, NULL, turn, f);
}

static void stop_loop(struct fixture *f)
{
	if (!f->loop)
		return;
	loop_quit(f->loop);
	pthread_join(f->thread, NULL);
	control_free(f->control, "poweroff");
	loop_free(f->loop);
	f->loop = NULL;
}

static int finish(void **state)
{
	struct fixture *f = *state;

	stop_loop(f);
	assert_int_equal(access(in_top(f, "kvm/web.sock"), F_OK), -1);
	return remove_top(state);
}

static int dial(void)
{
	struct timeval patience = { .tv_sec = 20 };
	struct rundir d;
	struct err err;
	pid_t pid;
	int fd;

	assert_int_equal(rundir_open(&d, false, &err), 0);
	fd = rundir_connect(&d, "web", &pid);
	assert_true(fd >= 0);
	rundir_close(&d);
	fcntl(fd, F_SETFL, 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	return fd;
}

static void say(int fd, const char *s)
{
	assert_int_equal(send(fd, s, strlen(s), MSG_NOSIGNAL), strlen(s));
}

/* The next line; "" at the end. */
static const char *hear(int fd)
{
	static char line[8192];
	size_t n = 0;

	while (n < sizeof(line) - 1) {
		ssize_t r = recv(fd, line + n, 1, 0);

		assert_true(r >= 0 || errno == ECONNRESET);
		if (r <= 0 || line[n] == '\n')
			break;
		n++;
	}
	line[n] = '\0';
	return line;
}

static void hears(int fd, const char *want)
{
	assert_string_equal(hear(fd), want);
}

static int greeted(void)
{
	int fd = dial();

	assert_memory_equal(hear(fd), GREETING, strlen(GREETING));
	return fd;
}

#define OK(id)     "{\"ok\":true,\"id\":" id "}"
#define ERROR(msg) "{\"ok\":false,\"error\":\"" msg "\"}"
#define NMI        "{\"do\":\"nmi\",\"id\":1}\n"
#define NO_JSON    "a request is one line with one JSON object"

static void replies(void **state)
{
	struct fixture *f = *state;
	int fd = greeted();
	char want[600];

	say(fd, "{\"do\":\"status\"}\n");
	snprintf(want, sizeof(want),
	         "{\"name\":\"web\",\"pid\":%d,\"state\":\"running\",\"uptime\":12.345,\"boots\":2,\"cpus\":3,"
	         "\"mem\":8589934592,\"address\":\"10.0.2.15\",\"kernel\":\"/boot/\\\"k\\\"\","
	         "\"net\":[{\"name\":\"net0\",\"up\":true,\"vhost\":false,"
	         "\"rx\":{\"packets\":1,\"filtered\":2,\"dropped\":3,\"bad\":4},"
	         "\"tx\":{\"packets\":1099511627776,\"dropped\":6,\"bad\":7}}],\"ok\":true}",
	         (int)getpid());
	hears(fd, want);
	say(fd, "\n\r\n {\"id\":\"x\\n\", \"do\":\"nmi\", \"more\":[1]}\r\n");
	hears(fd, OK("\"x\\n\""));
	say(fd, "{\"do\":\"nmi\",\"id\":null}\n");
	hears(fd, "{\"ok\":true}");
	say(fd, "{\"do\":\"nmi\",\"id\":-1.5}\n");
	hears(fd, OK("-1.5"));
	say(fd, "{\"do\":\"pause\",\"id\":7}\n");
	hears(fd, "{\"ok\":false,\"error\":\"not\\nnow\",\"id\":7}");
	say(fd, "{\"do\":\"sysrq\",\"key\":\"h\"}\n");
	hears(fd, "{\"ok\":true}");
	assert_int_equal(f->key, 'h');
	assert_int_equal(f->nmis, 3);
	close(fd);
}

/* Whoever has given up, is not obeyed. */
static void until(void **state)
{
	struct fixture *f = *state;
	struct timespec now;
	char rq[100];
	int fd = greeted();

	say(fd, "{\"do\":\"nmi\",\"until\":0}\n");
	hears(fd, ERROR("too late"));
	clock_gettime(CLOCK_MONOTONIC, &now);
	for (int k = -1; k <= 1; k += 2) {
		snprintf(rq, sizeof(rq), "{\"do\":\"nmi\",\"until\":%.3f}\n", (double)now.tv_sec + 50 * k);
		say(fd, rq);
		hears(fd, k < 0 ? ERROR("too late") : "{\"ok\":true}");
	}
	assert_int_equal(f->nmis, 1);
	close(fd);
}

/* Mistakes in a request: an error, and the connection goes on. */
static void mistakes(void **state)
{
	static const struct {
		const char *rq, *reply;
	} t[] = {
		{ "{}\n", ERROR("do: status, stop, pause, resume, reboot, nmi, sysrq or exec") },
		{ "{\"do\":1}\n", ERROR("do: status, stop, pause, resume, reboot, nmi, sysrq or exec") },
		{ "{\"do\":\"stop\\u0000\"}\n", ERROR("do: status, stop, pause, resume, reboot, nmi, sysrq or exec") },
		{ "{\"do\":\"nmi\",\"id\":[]}\n", ERROR("id: a number or a short string") },
		{ "{\"do\":\"nmi\",\"id\":{}}\n", ERROR("id: a number or a short string") },
		{ "{\"do\":\"stop\",\"force\":1}\n", ERROR("force: true or false") },
		{ "{\"do\":\"sysrq\"}\n", ERROR("key: one character") },
		{ "{\"do\":\"sysrq\",\"key\":\"ab\"}\n", ERROR("key: one character") },
		{ "{\"do\":\"sysrq\",\"key\":\"\\n\"}\n", ERROR("key: one character") },
		{ "{\"do\":\"sysrq\",\"key\":\"\xc3\xa4\"}\n", ERROR("key: one character") },
	};
	struct fixture *f = *state;
	int fd = greeted();

	for (size_t i = 0; i < sizeof(t) / sizeof(*t); i++) {
		say(fd, t[i].rq);
		hears(fd, t[i].reply);
	}
	say(fd, NMI);
	hears(fd, OK("1"));
	assert_int_equal(f->nmis, 1);
	assert_int_equal(f->key, 0);
	close(fd);
}

/* Garbage: one error, then the end; what follows it is not looked at. */
static void garbage(void **state)
{
	static const char *const t[] = {
		"nonsense",
		"\"nmi\"",
		"[]",
		"1",
		"null",
		"{\"do\":\"nmi\"",
		"{\"do\":\"nmi\"} x",
		"{'do':'nmi'}",
		"{\"do\":\"nmi\",}",
		"{\"do\":\"nmi\"}{\"do\":\"nmi\"}",
		"{\"do\":\"nmi\",\"x\":\"\xff\"}",
		"{\"do\":\"nmi\",\"x\":[[[[[[[[[]]]]]]]]]}",
		"GET / HTTP/1.1",
		"\x16\x03\x01",
	};
	struct fixture *f = *state;

	for (size_t i = 0; i < sizeof(t) / sizeof(*t); i++) {
		int fd = greeted();

		say(fd, t[i]);
		say(fd, "\n" NMI);
		hears(fd, ERROR(NO_JSON));
		hears(fd, "");
		close(fd);
	}
	int fd = greeted();

	assert_int_equal(send(fd, "{\"do\":\"nmi\0\"}\n", 14, MSG_NOSIGNAL), 14);
	hears(fd, ERROR(NO_JSON));
	close(fd);
	assert_int_equal(f->nmis, 0);
}

/* A line of @n bytes with its newline, which asks for an NMI. The caller frees it. */
static char *long_line(size_t n)
{
	char *s = malloc(n + 1);
	int at = sprintf(s, "{\"do\":\"nmi\",\"id\":1,\"x\":\"");

	memset(s + at, 'x', n - (size_t)at);
	memcpy(s + n - 3, "\"}\n", 4);
	return s;
}

static void long_lines(void **state)
{
	struct fixture *f = *state;
	char *fits = long_line(CONTROL_LINE_MAX), *longer = long_line(CONTROL_LINE_MAX + 1);
	int fd = greeted();

	say(fd, fits);
	say(fd, fits);
	hears(fd, OK("1"));
	hears(fd, OK("1"));
	say(fd, longer);
	hears(fd, ERROR("the line is too long"));
	hears(fd, "");
	close(fd);
	fd = greeted();
	longer[CONTROL_LINE_MAX] = '\0'; /* and never a newline */
	say(fd, longer);
	hears(fd, ERROR("the line is too long"));
	hears(fd, "");
	close(fd);
	assert_int_equal(f->nmis, 2);
	free(fits);
	free(longer);
}

static void pieces(void **state)
{
	struct fixture *f = *state;
	int fd = greeted(), other = greeted();

	for (const char *p = NMI NMI; *p; p++) {
		assert_int_equal(send(fd, p, 1, MSG_NOSIGNAL), 1);
		if (p[1] == 'n') { /* others are served meanwhile */
			say(other, NMI);
			hears(other, OK("1"));
		}
	}
	hears(fd, OK("1"));
	hears(fd, OK("1"));
	say(fd, "{\"do\":\"sysrq\",\"key\":\"c\"}"); /* no newline: not a request */
	close(fd);
	say(other, NMI);
	hears(other, OK("1"));
	assert_int_equal(f->key, 0);
	close(other);
}

/* The one that has been silent for longest goes; who waits for something goes last. */
static void too_many(void **state)
{
	int fd[CONTROL_CLIENTS_MAX], more;

	for (unsigned i = 0; i < CONTROL_CLIENTS_MAX; i++)
		fd[i] = greeted();
	say(fd[0], "{\"do\":\"stop\",\"force\":false}\n");
	hears(fd[0], "{\"waiting\":\"the \\\"guest\\\"\",\"grace\":30.000}");
	say(fd[1], NMI);
	hears(fd[1], OK("1"));
	for (unsigned i = 2; i < CONTROL_CLIENTS_MAX; i++) {
		more = greeted();
		hears(fd[i], ERROR("too many connections: this one was silent for longest"));
		hears(fd[i], "");
		close(fd[i]);
		fd[i] = more;
	}
	for (unsigned i = 1; i < CONTROL_CLIENTS_MAX; i++) {
		say(fd[i], NMI);
		hears(fd[i], OK("1"));
		close(fd[i]);
	}
	stop_loop(*state);
	hears(fd[0], "{\"ok\":true,\"end\":\"poweroff\"}");
	hears(fd[0], "");
	close(fd[0]);
}

struct booted {
	struct loop_task task;
	struct fixture *f;
};

static void post_booted(struct loop_task *t)
{
	control_booted(((struct booted *)t)->f->control);
}

static void later(void **state)
{
	struct fixture *f = *state;
	struct booted booted = { .task.cb = post_booted, .f = f };
	int fd = greeted(), half = greeted();

	say(half, "{\"do\":\"stop\",\"force\":true,\"id\":9}\n");
	shutdown(half, SHUT_WR);
	hears(half, "{\"waiting\":\"the \\\"guest\\\"\",\"grace\":30.000,\"id\":9}");
	assert_true(f->forced);
	say(fd, "{\"do\":\"reboot\",\"id\":\"r\"}\n" NMI);
	hears(fd, OK("1")); /* an answer that is not ready keeps no other */
	loop_post(f->loop, &booted.task);
	hears(fd, OK("\"r\""));
	for (unsigned i = 0; i < 16; i++)
		say(fd, "{\"do\":\"reboot\"}\n");
	say(fd, NMI);
	hears(fd, "{\"ok\":false,\"error\":\"too many requests of this connection are not done yet\",\"id\":1}");
	stop_loop(f);
	hears(half, "{\"ok\":true,\"end\":\"poweroff\",\"id\":9}");
	hears(half, "");
	for (unsigned i = 0; i < 16; i++)
		hears(fd, "{\"ok\":false,\"error\":\"the machine has ended\",\"end\":\"poweroff\"}");
	hears(fd, "");
	close(fd);
	close(half);
}

/* Clients that only write, as fast as they can: they stall, then they are dropped, and others are served. */
static void floods(void **state)
{
	int flood[4], other = greeted();
	size_t sent = 0, at[4] = { 0 };
	const size_t len = 100 * strlen(NMI);
	char buf[100 * sizeof(NMI)];
	unsigned dropped = 0;

	for (size_t i = 0; i < len; i += strlen(NMI))
		memcpy(buf + i, NMI, strlen(NMI));
	for (unsigned i = 0; i < 4; i++) {
		flood[i] = greeted();
		fcntl(flood[i], F_SETFL, O_NONBLOCK);
	}
	for (unsigned turns = 0; turns < 3000 && dropped < 4; turns++) {
		struct pollfd idle = { .fd = -1 };

		dropped = 0;
		for (unsigned i = 0; i < 4; i++) {
			ssize_t n = send(flood[i], buf + at[i], len - at[i], MSG_NOSIGNAL);

			at[i] = n > 0 ? (at[i] + (size_t)n) % len : at[i];
			sent += n > 0 ? (size_t)n : 0;
			dropped += n < 0 && errno != EAGAIN;
		}
		say(other, NMI);
		hears(other, OK("1"));
		poll(&idle, 1, 3);
	}
	assert_int_equal(dropped, 4);
	assert_true(sent < 16u << 20);
	for (unsigned i = 0; i < 4; i++)
		close(flood[i]);
	close(other);
}

static void duplicate(void **state)
{
	struct fixture *f = *state;
	struct control_config cc = { .loop = f->loop, .ops = &ops, .name = "web", .kernel = "k", .address = "none" };
	struct control *second = NULL;
	struct err err;
	int fd;

	assert_int_equal(control_new(&cc, &second, &err), -EEXIST);
	assert_null(second);
	fd = greeted();
	say(fd, NMI);
	hears(fd, OK("1"));
	close(fd);
	control_free(NULL, "");
}

#define DIR_TEST(name) cmocka_unit_test_setup_teardown(name, make_top, remove_top)
#define TEST(name)     cmocka_unit_test_setup_teardown(name, start, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names),
		DIR_TEST(is_private),
		DIR_TEST(refused),
		DIR_TEST(claims),
		DIR_TEST(stale),
		DIR_TEST(long_path),
		DIR_TEST(race),
		TEST(replies),
		TEST(until),
		TEST(mistakes),
		TEST(garbage),
		TEST(long_lines),
		TEST(pieces),
		TEST(too_many),
		TEST(later),
		TEST(floods),
		TEST(duplicate),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
