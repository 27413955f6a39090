// SPDX-License-Identifier: GPL-2.0-or-later
#include "guest/init/init.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/klog.h>
#include <sys/reboot.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/*
 * How it works
 *
 * kill(-1) reaches everything but init and kernel threads. Orphans come to
 * init when their parents end, so once waitpid() says that there are no
 * children nobody is left. A process that hangs in the kernel cannot be
 * killed: the wait is bounded.
 */
#define PATIENCE_MS 2000

static bool wait_all(int64_t deadline)
{
	sigset_t chld;

	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	for (;;) {
		pid_t pid = waitpid(-1, NULL, WNOHANG);
		int64_t left = deadline - now_ms();
		struct timespec ts = { .tv_sec = left / 1000, .tv_nsec = left % 1000 * 1000000 };

		if (pid < 0 && errno == ECHILD)
			return true;
		if (pid > 0)
			continue;
		if (left <= 0)
			return false;
		sigtimedwait(&chld, NULL, &ts);
	}
}

void end_processes(void)
{
	kill(-1, SIGTERM);
	kill(-1, SIGCONT);
	if (wait_all(now_ms() + PATIENCE_MS))
		return;
	kill(-1, SIGKILL);
	if (!wait_all(now_ms() + PATIENCE_MS))
		say("a process cannot be killed: it hangs in the kernel");
}

/*
 * The kernel's own words: the line with the count "[#1]", which every
 * architecture's die() prints, and the place ("RIP:", "pc :").
 */
static void quote_oops(void)
{
	int fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC), left = 2;
	bool seen = false;
	char rec[8192];
	ssize_t n;

	/* EPIPE: records were overwritten meanwhile, go on with what is there. */
	while (fd >= 0 && left && ((n = read(fd, rec, sizeof(rec) - 1)) > 0 || (n < 0 && errno == EPIPE))) {
		char *text;

		if (n < 0)
			continue;
		rec[n] = '\0';
		text = strchr(rec, ';');
		if (!text)
			continue;
		text[strcspn(text, "\n")] = '\0';
		seen |= strstr(text, "[#") != NULL;
		if (!seen || !(strstr(text, "[#") || strstr(text, "RIP:") || strstr(text, "pc :")))
			continue;
		say("  %s", text + 1);
		left--;
	}
	if (fd >= 0)
		close(fd);
}

void report_oops(void)
{
	enum { TAINT_DIE = 1 << 7, SYSLOG_CONSOLE_LEVEL = 8 };
	char buf[32];

	if (read_file("/proc/sys/kernel/tainted", buf, sizeof(buf)) <= 0 || !(strtoul(buf, NULL, 10) & TAINT_DIE))
		return;
	/* An oops opens the console to messages of every level, ours for the log among them. */
	klogctl(SYSLOG_CONSOLE_LEVEL, NULL, 7);
	say("the kernel has oopsed while this ran; the whole report is in its log:");
	quote_oops();
}

void machine_end(bool again)
{
	sync();
	unmount_all();
	console_drain();
	reboot(again ? RB_AUTOBOOT : RB_POWER_OFF);
	/* Only without the capability, or in a container: nothing is left to do. */
	for (;;)
		pause();
}
