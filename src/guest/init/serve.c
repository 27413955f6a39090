// SPDX-License-Identifier: GPL-2.0-or-later
#include "guest/init/serve.h"

#include "base/bytes.h"
#include "guest/init/init.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

/*
 * How it works
 *
 * One loop around poll(): the port, the signals, and the streams of every
 * command. What goes to the host waits in a queue; while that is long no
 * command's output is read, so it stays as short as one turn makes it. What
 * comes from the host is collected until a frame is whole; the host is trusted.
 *
 * Every child that ends is collected here, orphans too if this is PID 1.
 */
#define QUEUE_LIMIT 65536u

static struct {
	struct bytes in, out;
	struct job *jobs;
	bool lost; /* the port has failed: nobody is there any more */
} serving;

/* To the host. */

void send_frame(enum frame_type type, unsigned session, unsigned stream, const void *payload, size_t len)
{
	struct frame f = {
		.type = (uint8_t)type, .stream = (uint8_t)stream, .session = (uint16_t)session, .len = (uint32_t)len
	};

	if (bytes_add(&serving.out, &f, sizeof(f)) || bytes_add(&serving.out, payload, len)) {
		say("out of memory: the host's commands are lost");
		serving.lost = true;
	}
}

void send_value(enum frame_type type, unsigned session, unsigned stream, uint32_t value)
{
	send_frame(type, session, stream, &value, sizeof(value));
}

bool send_crowded(void)
{
	return serving.out.len >= QUEUE_LIMIT;
}

static void flush(int fd)
{
	while (serving.out.len && !serving.lost) {
		ssize_t n = write(fd, serving.out.p, serving.out.len);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n < 0)
			serving.lost = true;
		else
			bytes_cut(&serving.out, (size_t)n);
	}
}

/* From the host. */

static struct job *find_job(unsigned session)
{
	struct job *j = serving.jobs;

	while (j && j->session != session)
		j = j->next;
	return j;
}

static void start(const struct frame *f, const uint8_t *payload)
{
	struct job *j = find_job(f->session) ? NULL : job_start(f->session, payload, f->len);

	if (!j) {
		send_value(FRAME_EXIT, f->session, 0, 126);
		return;
	}
	j->next = serving.jobs;
	serving.jobs = j;
}

static uint32_t value_of(const struct frame *f, const uint8_t *payload)
{
	uint32_t v = 0;

	memcpy(&v, payload, f->len < sizeof(v) ? f->len : sizeof(v));
	return v;
}

static void size(struct job *j, const struct frame *f, const uint8_t *payload)
{
	struct frame_size s;

	if (f->len < sizeof(s))
		return;
	memcpy(&s, payload, sizeof(s));
	job_size(j, &s);
}

/* True: the machine is to be switched off. */
static bool take_frame(const struct frame *f, const void *payload)
{
	struct job *j = find_job(f->session);

	if (f->type == FRAME_POWEROFF)
		return true;
	if (f->type == FRAME_START)
		start(f, payload);
	if (!j)
		return false; /* it has just ended, and the host will hear of it */
	switch (f->type) {
	case FRAME_DATA: job_input(j, payload, f->len); break;
	case FRAME_END:
		if (f->stream)
			job_unread(j, f->stream);
		else
			job_input_end(j);
		break;
	case FRAME_CREDIT: job_credit(j, f->stream, value_of(f, payload)); break;
	case FRAME_SIGNAL: job_signal(j, (int)value_of(f, payload)); break;
	case FRAME_SIZE: size(j, f, payload); break;
	default: break;
	}
	return false;
}

/* Every whole frame that is there. True: power off. */
static bool take_frames(void)
{
	struct bytes *b = &serving.in;
	size_t at = 0;
	bool off = false;

	for (;;) {
		struct frame f;

		if (b->len - at < sizeof(f))
			break;
		memcpy(&f, b->p + at, sizeof(f));
		if (b->len - at < sizeof(f) + f.len)
			break;
		off |= take_frame(&f, b->p + at + sizeof(f));
		at += sizeof(f) + f.len;
	}
	bytes_cut(b, at);
	return off;
}

static bool receive(int fd)
{
	struct bytes *b = &serving.in;
	ssize_t n;

	while (!bytes_reserve(b, FRAME_DATA_MAX)) {
		n = read(fd, b->p + b->len, b->size - b->len);
		if (n <= 0) {
			serving.lost = n < 0 && errno != EAGAIN && errno != EINTR;
			break;
		}
		b->len += (size_t)n;
		if (take_frames())
			return true;
	}
	return false;
}

/* Children and signals. */

static void reap(void)
{
	pid_t pid;
	int st;

	while ((pid = waitpid(-1, &st, WNOHANG | WUNTRACED)) > 0) {
		for (struct job *j = serving.jobs; j; j = j->next) {
			if (j->pid != pid)
				continue;
			if (WIFSTOPPED(st))
				kill(-pid, SIGCONT); /* nobody else could */
			else
				job_ended(j, st);
		}
	}
}

/* Of what busybox's halt, poweroff and reboot send to PID 1. */
static bool take_signal(int fd, enum serve_end *end)
{
	struct signalfd_siginfo si;
	bool over = false;

	while (read(fd, &si, sizeof(si)) == sizeof(si)) {
		switch (si.ssi_signo) {
		case SIGCHLD: reap(); break;
		case SIGUSR1:
		case SIGUSR2:
		case SIGPWR:
			*end = SERVE_POWEROFF;
			over = true;
			break;
		case SIGTERM:
			if (getpid() != 1)
				_exit(0); /* the real init ends everything */
			*end = SERVE_REBOOT;
			over = true;
			break;
		default: break;
		}
	}
	return over;
}

/* Sends the status of what is done. True: the main command is, and its status is left to serve_exit(). */
static bool finish_jobs(int *main_status)
{
	bool over = false;

	for (struct job **p = &serving.jobs; *p;) {
		struct job *j = *p;

		if (!j->pid && j->flags & FRAME_MAIN && getpid() == 1)
			end_processes(); /* what it has left behind may hold its pipes, and write more */
		if (!job_done(j)) {
			p = &j->next;
			continue;
		}
		if (j->flags & FRAME_MAIN && getpid() == 1) {
			*main_status = j->status;
			over = true;
		} else {
			send_value(FRAME_EXIT, j->session, 0, (uint32_t)j->status);
		}
		*p = j->next;
		job_free(j);
	}
	return over;
}

/* The loop. */

static int signals_open(void)
{
	sigset_t all;

	sigfillset(&all);
	return signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK);
}

static unsigned count_jobs(void)
{
	unsigned n = 0;

	for (struct job *j = serving.jobs; j; j = j->next)
		n++;
	return n;
}

/* One turn: sleeps until something happens. True: power off. */
static bool turn(int fd, int signals, enum serve_end *end)
{
	unsigned n = 2 + JOB_FDS * count_jobs(), at = 2;
	struct pollfd *p = calloc(n, sizeof(*p));
	bool over = false;

	if (!p)
		return false;
	p[0] = (struct pollfd){ .fd = fd, .events = (short)(POLLIN | (serving.out.len ? POLLOUT : 0)) };
	p[1] = (struct pollfd){ .fd = signals, .events = POLLIN };
	for (struct job *j = serving.jobs; j; j = j->next, at += JOB_FDS)
		job_poll(j, p + at);
	if (poll(p, n, -1) > 0) {
		at = 2;
		for (struct job *j = serving.jobs; j; j = j->next, at += JOB_FDS)
			job_polled(j, p + at);
		if (p[1].revents)
			over = take_signal(signals, end);
		if (p[0].revents && receive(fd)) {
			*end = SERVE_POWEROFF;
			over = true;
		}
	}
	free(p);
	flush(fd);
	return over;
}

enum serve_end serve(int fd, int *main_status)
{
	enum serve_end end = SERVE_ENDED;
	int signals = signals_open();
	bool over = false;

	*main_status = -1;
	send_value(FRAME_HELLO, 0, 0, FRAME_VERSION);
	flush(fd);
	while (!over && !serving.lost) {
		over = turn(fd, signals, &end);
		over |= finish_jobs(main_status);
		flush(fd);
	}
	close(signals);
	return end;
}

void serve_exit(int fd, int status)
{
	struct pollfd p = { .fd = fd, .events = POLLOUT };

	send_value(FRAME_EXIT, 0, 0, (uint32_t)status);
	for (flush(fd); serving.out.len && !serving.lost; flush(fd))
		poll(&p, 1, -1);
}

/* The port. */

static int port_try(void)
{
	DIR *d = opendir("/sys/class/virtio-ports");
	char path[300], name[64];
	struct dirent *e;
	int fd = -1;

	while (d && fd < 0 && (e = readdir(d))) {
		snprintf(path, sizeof(path), "/sys/class/virtio-ports/%s/name", e->d_name);
		if (e->d_name[0] == '.' || read_file(path, name, sizeof(name)) <= 0)
			continue;
		name[strcspn(name, "\n")] = '\0';
		if (strcmp(name, FRAME_PORT))
			continue;
		snprintf(path, sizeof(path), "/dev/%s", e->d_name);
		fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	}
	if (d)
		closedir(d);
	return fd;
}

int port_open(int64_t deadline)
{
	int events = uevent_open(), fd;

	do
		fd = port_try();
	while (fd < 0 && uevent_wait(events, deadline));
	uevent_close(events);
	return fd;
}
