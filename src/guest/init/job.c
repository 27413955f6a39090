// SPDX-License-Identifier: GPL-2.0-or-later
#include "guest/init/init.h"
#include "guest/init/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

/*
 * How it works
 *
 * A command leads a session and a process group of its own. Its descriptors
 * are pipes, or the far side of a pseudo-terminal. Output is read only while
 * the host has given credit for it, so a slow reader there holds the command
 * as a full pipe would; a reader that is gone closes the pipe. Input waits in
 * a ring as large as the credit that the host begins with; credit is given
 * back as the command takes it.
 *
 * When the command has ended its pipes are read until they are empty, not
 * until they are closed: a process it has left behind must not hold its
 * status.
 */

/* What a FRAME_START asks for, its strings where they lie. */
struct order {
	struct frame_start head;
	char **argv, **env;
	char *dir;
};

/* Cuts the payload up; false: it is not what it says. The arrays are the caller's to free. */
static bool order_parse(struct order *o, char *payload, size_t len)
{
	char *p = payload + sizeof(o->head), *end = payload + len;
	uint32_t n;

	if (len < sizeof(o->head) || end[-1])
		return false;
	memcpy(&o->head, payload, sizeof(o->head));
	if (o->head.nargs > len || o->head.nenv > len)
		return false;
	o->argv = calloc(o->head.nargs + 1, sizeof(*o->argv));
	o->env = calloc(o->head.nenv + 1, sizeof(*o->env));
	if (!o->argv || !o->env)
		return false;
	for (n = 0; n < o->head.nargs && p < end; n++, p += strlen(p) + 1)
		o->argv[n] = p;
	if (n < o->head.nargs)
		return false;
	for (n = 0; n < o->head.nenv && p < end; n++, p += strlen(p) + 1)
		o->env[n] = p;
	o->dir = p;
	return n == o->head.nenv && p < end;
}

static int make_terminal(const struct frame_size *size)
{
	struct winsize w = { .ws_row = size->rows, .ws_col = size->cols };
	int unlock = 0, fd = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0 || ioctl(fd, TIOCSPTLCK, &unlock) < 0) {
		if (fd >= 0)
			close(fd);
		return -1;
	}
	ioctl(fd, TIOCSWINSZ, &w);
	return fd;
}

/* A pipe, our end (@ours: 0 reads, 1 writes) nonblocking and kept in @mine. Returns the command's end or -1. */
static int make_pipe(int ours, int *mine)
{
	int fd[2];

	if (pipe2(fd, O_CLOEXEC))
		return -1;
	*mine = fd[ours];
	fcntl(*mine, F_SETFL, O_NONBLOCK);
	return fd[!ours];
}

/* Opens the command's descriptors in @theirs. 0 or -errno. */
static int make_streams(struct job *j, const struct order *o, int theirs[3])
{
	if (o->head.flags & FRAME_TTY) {
		j->in = make_terminal(&o->head.size);
		j->out[0] = j->in < 0 ? -1 : fcntl(j->in, F_DUPFD_CLOEXEC, 3);
		theirs[0] = j->in < 0 ? -1 : ioctl(j->in, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
		theirs[1] = theirs[0] < 0 ? -1 : fcntl(theirs[0], F_DUPFD_CLOEXEC, 3);
	} else {
		theirs[0] = make_pipe(1, &j->in);
		theirs[1] = theirs[0] < 0 ? -1 : make_pipe(0, &j->out[0]);
	}
	if (theirs[1] < 0)
		return -errno;
	if (o->head.flags & FRAME_TTYERR)
		theirs[2] = fcntl(theirs[1], F_DUPFD_CLOEXEC, 3);
	else
		theirs[2] = make_pipe(0, &j->out[1]);
	return theirs[2] < 0 ? -errno : 0;
}

/* The login shell of a root that may have hardly anything. */
static void exec_shell(void)
{
	static char *const shells[] = { "/bin/bash", "/bin/sh" };
	char *own = getenv("SHELL");

	if (own)
		execl(own, "-sh", (char *)NULL);
	for (unsigned i = 0; i < sizeof(shells) / sizeof(*shells); i++)
		execl(shells[i], "-sh", (char *)NULL);
}

/* In the child. */
static void become(const struct order *o, const int theirs[3]) __attribute__((noreturn));

static void become(const struct order *o, const int theirs[3])
{
	sigset_t none;
	int error;

	setsid();
	for (int i = 0; i < 3; i++)
		dup2(theirs[i], i);
	if (o->head.flags & FRAME_TTY)
		ioctl(0, TIOCSCTTY, 0);
	for (uint32_t i = 0; i < o->head.nenv; i++)
		putenv(o->env[i]);
	if (chdir(o->dir))
		(void)!chdir("/");
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (o->head.nargs)
		execvp(o->argv[0], o->argv);
	else
		exec_shell();
	error = errno;
	dprintf(2, "kvm: %s: %s\n", o->head.nargs ? o->argv[0] : "/bin/sh", strerror(error));
	_exit(error == ENOENT || error == ENOTDIR ? 127 : 126);
}

/* It cannot be run: that is told where its own complaints would be. */
static void refuse(struct job *j, const char *why)
{
	char text[256];
	int n = snprintf(text, sizeof(text), "kvm: cannot start the command: %s\n", why);

	send_frame(FRAME_DATA, j->session, 2, text, (size_t)n);
	j->status = 126;
}

static void run(struct job *j, const struct order *o)
{
	int theirs[3] = { -1, -1, -1 };
	int error = make_streams(j, o, theirs);
	pid_t pid = error ? -1 : fork();

	if (!pid)
		become(o, theirs);
	if (pid < 0)
		refuse(j, strerror(error ? -error : errno));
	else
		j->pid = pid;
	for (int i = 0; i < 3; i++)
		if (theirs[i] >= 0)
			close(theirs[i]);
}

struct job *job_start(unsigned session, const uint8_t *payload, size_t len)
{
	struct job *j = calloc(1, sizeof(*j));
	char *copy = malloc(len + 1);
	struct order o = { 0 };

	if (!j || !copy) {
		free(copy);
		free(j);
		return NULL;
	}
	memcpy(copy, payload, len);
	j->session = session;
	j->in = j->out[0] = j->out[1] = -1;
	j->credit[0] = j->credit[1] = FRAME_WINDOW;
	if (order_parse(&o, copy, len)) {
		j->flags = o.head.flags;
		run(j, &o);
	} else {
		refuse(j, "the host's order is damaged");
	}
	send_frame(FRAME_STARTED, session, 0, NULL, 0);
	free(o.argv);
	free(o.env);
	free(copy);
	return j;
}

static void shut(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

void job_free(struct job *j)
{
	shut(&j->in);
	shut(&j->out[0]);
	shut(&j->out[1]);
	free(j);
}

/* Input. */

/* The end of input is a closed pipe; of a terminal ^D, which its line discipline makes into one. */
static void input_close(struct job *j)
{
	static const char eot = 4;

	if (j->flags & FRAME_TTY && j->in >= 0)
		(void)!write(j->in, &eot, 1);
	shut(&j->in);
}

static void input_flush(struct job *j)
{
	while (j->in >= 0 && j->in_len) {
		size_t n = sizeof(j->in_buf) - j->in_at;
		ssize_t w = write(j->in, j->in_buf + j->in_at, n < j->in_len ? n : j->in_len);

		if (w < 0 && errno == EAGAIN)
			return;
		if (w < 0) {
			shut(&j->in);
			send_frame(FRAME_END, j->session, 0, NULL, 0);
			break;
		}
		j->in_at = (j->in_at + (size_t)w) % sizeof(j->in_buf);
		j->in_len -= (size_t)w;
		send_value(FRAME_CREDIT, j->session, 0, (uint32_t)w);
	}
	if (j->in_ended)
		input_close(j);
}

void job_input(struct job *j, const uint8_t *buf, size_t len)
{
	if (j->in < 0 || len > sizeof(j->in_buf) - j->in_len)
		return; /* nobody reads it; or more than the credit */
	for (size_t i = 0; i < len; i++)
		j->in_buf[(j->in_at + j->in_len + i) % sizeof(j->in_buf)] = buf[i];
	j->in_len += len;
	input_flush(j);
}

void job_input_end(struct job *j)
{
	j->in_ended = true;
	input_flush(j);
}

/* Output. */

void job_unread(struct job *j, unsigned stream)
{
	if (stream == 1 || stream == 2)
		shut(&j->out[stream - 1]);
}

void job_credit(struct job *j, unsigned stream, uint32_t n)
{
	if (stream == 1 || stream == 2)
		j->credit[stream - 1] += n;
}

/* Sends what can be read now. True: it is empty for now, or at its end. */
static bool output_pump(struct job *j, unsigned i)
{
	static uint8_t buf[FRAME_DATA_MAX];

	while (j->out[i] >= 0 && j->credit[i] && !send_crowded()) {
		ssize_t n = read(j->out[i], buf, j->credit[i] < sizeof(buf) ? j->credit[i] : sizeof(buf));

		if (n < 0 && errno == EAGAIN)
			return true;
		if (n <= 0) { /* EIO: the far side of a terminal is closed */
			shut(&j->out[i]);
			send_frame(FRAME_END, j->session, i + 1, NULL, 0);
			break;
		}
		j->credit[i] -= (uint32_t)n;
		send_frame(FRAME_DATA, j->session, i + 1, buf, (size_t)n);
	}
	return j->out[i] < 0;
}

/* Process. */

void job_signal(struct job *j, int sig)
{
	if (j->pid)
		kill(-j->pid, sig);
}

void job_size(struct job *j, const struct frame_size *size)
{
	struct winsize w = { .ws_row = size->rows, .ws_col = size->cols };

	if (j->flags & FRAME_TTY && j->in >= 0)
		ioctl(j->in, TIOCSWINSZ, &w); /* the kernel sends SIGWINCH */
}

void job_ended(struct job *j, int wait_status)
{
	j->pid = 0;
	j->status = WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

void job_poll(const struct job *j, struct pollfd *p)
{
	p[0] = (struct pollfd){ .fd = j->in_len ? j->in : -1, .events = POLLOUT };
	for (unsigned i = 0; i < 2; i++)
		p[1 + i] = (struct pollfd){ .fd = j->credit[i] && !send_crowded() ? j->out[i] : -1, .events = POLLIN };
}

void job_polled(struct job *j, const struct pollfd *p)
{
	if (p[0].fd >= 0 && p[0].revents)
		input_flush(j);
	for (unsigned i = 0; i < 2; i++)
		if (p[1 + i].fd >= 0 && p[1 + i].revents)
			output_pump(j, i);
}

bool job_done(struct job *j)
{
	bool empty;

	if (j->pid)
		return false;
	empty = output_pump(j, 0);
	return output_pump(j, 1) && empty;
}
