// SPDX-License-Identifier: GPL-2.0-or-later
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LINE_MAX_LEN   2048
#define GUEST_BUGS_MAX 10

/* One log per process: it ends in file descriptor 2, which is one per process too. */
static bool verbose;         /* constant after start */
static int log_fd = -1;      /* constant after start */
static atomic_bool raw_mode; /* the terminal wants "\r\n" */
static atomic_uint guest_bugs;

static void write_all(int fd, const char *buf, size_t n)
{
	while (n) {
		ssize_t w = write(fd, buf, n);

		if (w < 0 && errno == EINTR)
			continue;
		if (w <= 0)
			return; /* nobody left to tell */
		buf += w;
		n -= (size_t)w;
	}
}

static void vlog(const char *prefix, const char *fmt, va_list ap)
{
	char line[LINE_MAX_LEN];
	size_t n;

	n = (size_t)snprintf(line, sizeof(line), "kvm: %s", prefix);
	if (n < sizeof(line) - 3)
		vsnprintf(line + n, sizeof(line) - 3 - n, fmt, ap);
	n = strlen(line);
	if (log_fd >= 0) {
		line[n] = '\n';
		write_all(log_fd, line, n + 1);
	}
	if (atomic_load(&raw_mode))
		line[n++] = '\r';
	line[n++] = '\n';
	write_all(STDERR_FILENO, line, n);
}

void log_line(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vlog("", fmt, ap);
	va_end(ap);
}

void log_verbose(const char *fmt, ...)
{
	va_list ap;

	if (!verbose)
		return;
	va_start(ap, fmt);
	vlog("", fmt, ap);
	va_end(ap);
}

void log_set_verbose(bool on)
{
	verbose = on;
}

void log_set_raw(bool on)
{
	atomic_store(&raw_mode, on);
}

void log_raw(const void *buf, size_t n)
{
	if (log_fd >= 0)
		write_all(log_fd, buf, n);
}

int log_open(const char *path)
{
	log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0666);
	return log_fd < 0 ? -errno : 0;
}

void guest_bug(const char *name, const char *fmt, ...)
{
	unsigned n = atomic_fetch_add(&guest_bugs, 1);
	char prefix[64];
	va_list ap;

	if (n >= GUEST_BUGS_MAX) {
		atomic_store(&guest_bugs, GUEST_BUGS_MAX + 1); /* or it would wrap one day */
		if (n == GUEST_BUGS_MAX)
			log_line("the guest goes on doing wrong: no more is said of it");
		return;
	}
	snprintf(prefix, sizeof(prefix), "guest bug: %s: ", name);
	va_start(ap, fmt);
	vlog(prefix, fmt, ap);
	va_end(ap);
}
