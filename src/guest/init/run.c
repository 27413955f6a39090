// SPDX-License-Identifier: GPL-2.0-or-later
#include "guest/init/init.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/reboot.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

/*
 * How it works
 *
 * Init itself leads the session that owns the console's terminal, and the
 * command is its foreground process group. Were the command the leader, the
 * terminal would be hung up when it ends, and what it wrote last would be
 * thrown away. The price: ^Z can stop the command though no shell is there to
 * continue it, so init does that at once.
 *
 * Every signal is blocked in init; one sigwaitinfo() is the only place where
 * it sleeps. Ctrl-Alt-Del arrives as SIGINT.
 */

/* The terminal behind /dev/console, which cannot be a controlling one itself; -1: none. */
static int open_terminal(void)
{
	char active[256], path[300], *last;
	int fd;

	if (read_file("/sys/class/tty/console/active", active, sizeof(active)) <= 0)
		return -1;
	active[strcspn(active, "\n")] = '\0';
	last = strrchr(active, ' ');
	snprintf(path, sizeof(path), "/dev/%s", last ? last + 1 : active);
	fd = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (fd >= 0 && !isatty(fd)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

static void take_terminal(int tty)
{
	setsid();
	if (tty >= 0)
		ioctl(tty, TIOCSCTTY, 1);
}

/* In the child, with all signals still blocked: no SIGTTOU. */
static void become(char **argv, int tty)
{
	sigset_t none;
	int err;

	setpgid(0, 0);
	if (tty >= 0) {
		tcsetpgrp(tty, getpid());
		for (int i = 0; i < 3; i++)
			dup2(tty, i);
	}
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	execvp(argv[0], argv);
	err = errno;
	say("%s: %s", argv[0], strerror(err));
	_exit(err == ENOENT || err == ENOTDIR ? 127 : 126);
}

/* Collects every child that has ended. True when @pid was among them. */
static bool reap(pid_t pid, int *status)
{
	bool ended = false;
	pid_t child;
	int st;

	while ((child = waitpid(-1, &st, WNOHANG | WUNTRACED)) > 0) {
		if (child != pid)
			continue;
		if (WIFSTOPPED(st)) {
			kill(-pid, SIGCONT);
			continue;
		}
		*status = WIFSIGNALED(st) ? 128 + WTERMSIG(st) : WEXITSTATUS(st);
		ended = true;
	}
	return ended;
}

static enum run_end supervise(pid_t pid, bool shell, int *status)
{
	sigset_t all;

	sigfillset(&all);
	*status = 128 + SIGTERM;
	for (;;) {
		switch (sigwaitinfo(&all, NULL)) {
		case SIGCHLD:
			if (reap(pid, status))
				return RUN_ENDED;
			break;
		case SIGUSR1: /* busybox halt */
		case SIGUSR2: /* busybox poweroff */
		case SIGPWR: return RUN_POWEROFF;
		case SIGTERM: /* busybox reboot */
			if (shell)
				return RUN_REBOOT;
			kill(-pid, SIGTERM);
			break;
		case SIGINT: kill(-pid, SIGINT); break;
		case SIGHUP: kill(-pid, SIGHUP); break;
		case SIGQUIT: kill(-pid, SIGQUIT); break;
		default: break;
		}
	}
}

enum run_end run_command(char **argv, bool shell, int *status)
{
	int tty = open_terminal();
	struct termios before;
	bool saved = tty >= 0 && !tcgetattr(tty, &before);
	enum run_end end;
	pid_t pid;

	take_terminal(tty);
	reboot(RB_DISABLE_CAD);
	pid = fork();
	if (!pid)
		become(argv, tty);
	if (pid < 0) {
		say("cannot start %s: %s", argv[0], strerror(errno));
		*status = 126;
		end = RUN_ENDED;
	} else {
		setpgid(pid, pid); /* whoever comes first */
		end = supervise(pid, shell, status);
	}
	if (saved)
		tcsetattr(tty, TCSADRAIN, &before);
	if (tty >= 0)
		close(tty);
	return end;
}
