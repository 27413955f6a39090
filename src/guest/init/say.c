// SPDX-License-Identifier: GPL-2.0-or-later
#include "guest/init/init.h"

#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

/*
 * How it works
 *
 * A message goes to the console as a plain line and to the kernel log, there
 * at level 7 (debug) so that the kernel does not print it on the console a
 * second time. Without a console the log gets it at level 3 (error): any
 * console the kernel has will then show it.
 *
 * Descriptors 0, 1 and 2 are /dev/console, not the terminal behind it: they
 * survive a hangup of that terminal.
 */
static bool have_console;

void console_open(void)
{
	int fd = open("/dev/console", O_RDWR | O_NOCTTY | O_CLOEXEC);

	have_console = fd >= 0;
	if (fd < 0)
		fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return;
	for (int i = 0; i < 3; i++)
		if (fd != i)
			dup2(fd, i);
	if (fd > 2)
		close(fd);
	else
		fcntl(fd, F_SETFD, 0);
}

/* The name in the last console=NAME[,OPTIONS]. */
static void last_console(const char *cmdline, char *name, size_t len)
{
	static const char key[] = "console=";

	*name = '\0';
	for (const char *p = cmdline; (p = strstr(p, key));) {
		bool word = p == cmdline || p[-1] == ' ';

		p += sizeof(key) - 1;
		if (word)
			snprintf(name, len, "%.*s", (int)strcspn(p, ", \n"), p);
	}
}

static bool is_active(int fd, const char *name)
{
	char active[256];
	ssize_t n = pread(fd, active, sizeof(active) - 1, 0);

	active[n > 0 ? n : 0] = '\0';
	for (char *p = active; (p = strstr(p, name)); p++)
		if ((p == active || p[-1] == ' ') && strchr(" \n", p[strlen(name)]))
			return true;
	return false;
}

/* The kernel notifies whoever polls the file "active" when a console registers. */
void console_wait(const char *cmdline)
{
	int64_t deadline = now_ms() + 1000, left;
	struct pollfd p = { .events = POLLPRI };
	char name[32];

	last_console(cmdline, name, sizeof(name));
	if (strncmp(name, "hvc", 3))
		return;
	p.fd = open("/sys/class/tty/console/active", O_RDONLY | O_CLOEXEC);
	while (p.fd >= 0 && !is_active(p.fd, name) && (left = deadline - now_ms()) > 0)
		poll(&p, 1, (int)left);
	if (p.fd >= 0)
		close(p.fd);
}

static void write_all(int fd, const char *p, size_t len)
{
	while (len) {
		ssize_t n = write(fd, p, len);

		if (n <= 0)
			return;
		p += n;
		len -= (size_t)n;
	}
}

void say(const char *fmt, ...)
{
	char line[1024] = "<7>kvm-init: ";
	const size_t level = 3, head = strlen(line);
	size_t len;
	va_list ap;
	int fd;

	va_start(ap, fmt);
	vsnprintf(line + head, sizeof(line) - head - 1, fmt, ap);
	va_end(ap);
	len = strlen(line);
	line[len++] = '\n';
	line[1] = have_console ? '7' : '3';
	write_all(2, line + level, len - level);
	fd = open("/dev/kmsg", O_WRONLY | O_NOCTTY | O_CLOEXEC);
	if (fd >= 0) {
		write_all(fd, line, len);
		close(fd);
	}
}

void console_drain(void)
{
	tcdrain(2);
}
