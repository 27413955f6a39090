// SPDX-License-Identifier: GPL-2.0-or-later
#include "guest/init/init.h"

#include <fcntl.h>
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
