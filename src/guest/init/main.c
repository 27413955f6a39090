// SPDX-License-Identifier: GPL-2.0-or-later
#include "guest/init/init.h"
#include "guest/init/plan.h"
#include "guest/init/serve.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * How it works
 *
 * PID 1 of a guest's initramfs. It reads the plan whole (docs/init.md) and
 * carries it out in fixed stages: modules, host name, network, root, further
 * mounts, and last the program that is the guest's purpose. That is either the
 * real init, which takes over this process, or a command or shell, after which
 * the machine powers off.
 *
 * When something essential fails, the reason has been said, and give_up()
 * ends the machine in the way the host can tell from success.
 */
#define PORT_WAIT_MS 10000

static void give_up(const struct plan *p) __attribute__((noreturn));

static void give_up(const struct plan *p)
{
	bool quiet = p->then == THEN_RUN || p->then == THEN_SERVE || p->then == THEN_POWEROFF || p->then == THEN_REBOOT;

	say("giving up: %s",
	    quiet ? "the command was not run; powering off" : "the guest cannot start; the kernel will panic");
	if (quiet)
		machine_end(false);
	sync();
	console_drain();
	_exit(1); /* "Attempted to kill init" */
}

static void plan_read(struct plan *p)
{
	char *orders = slurp(ORDERS_FILE), *cmdline;

	if (!orders && errno != ENOENT)
		say("%s: %s", ORDERS_FILE, strerror(errno));
	plan_init(p);
	if (orders)
		plan_orders(p, orders);
	cmdline = slurp("/proc/cmdline");
	if (cmdline)
		plan_cmdline(p, cmdline);
	if (p->then == THEN_UNSET)
		p->then = p->root.source ? THEN_SWITCH_ROOT : THEN_SHELL;
}

/* The modules may have brought the console. */
static void console_late(const struct plan *p)
{
	char *cmdline = p->nmodules ? slurp("/proc/cmdline") : NULL;

	if (!cmdline)
		return;
	console_wait(cmdline);
	console_open();
	free(cmdline);
}

/* The kernel gives PID 1 HOME, TERM and the parameters it does not know. */
static void environment(const struct plan *p)
{
	setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", 0);
	for (unsigned i = 0; i < p->nenvs; i++)
		putenv(p->env[i]);
}

static void run(const struct plan *p)
{
	static char *shell[] = { "/bin/sh", NULL };
	bool is_shell = p->then == THEN_SHELL, again = p->reboot;
	char **argv = is_shell ? shell : word_split(p->command);
	int status;

	if (!argv || !argv[0])
		give_up(p);
	if (is_shell && access(argv[0], X_OK)) {
		say("%s: %s: nothing to run (neither %s nor root= says what to do)", argv[0], strerror(errno),
		    ORDERS_FILE);
		give_up(p);
	}
	switch (run_command(argv, is_shell, &status)) {
	case RUN_ENDED: break;
	case RUN_POWEROFF: again = false; break;
	case RUN_REBOOT: again = true; break;
	}
	end_processes();
	report_oops();
	sync();
	say("exit %d", status);
	machine_end(again);
}

/* The machine is there for a command of the host's. */
static void serve_main(const struct plan *p) __attribute__((noreturn));

static void serve_main(const struct plan *p)
{
	int fd = port_open(now_ms() + PORT_WAIT_MS), status;
	enum serve_end end;

	if (fd < 0) {
		say("the host's port for commands is not there: are virtio_pci and virtio_console among the modules?");
		give_up(p);
	}
	end = serve(fd, &status);
	end_processes();
	report_oops();
	sync();
	unmount_all();
	if (status >= 0)
		serve_exit(fd, status);
	machine_end(end == SERVE_REBOOT);
}

/* Beside what else this machine does; in a process of its own, since this one may become another program. */
static void serve_beside(void)
{
	int fd, status;

	if (fork())
		return;
	setsid();
	fd = port_open(-1);
	while (serve(fd, &status) == SERVE_POWEROFF)
		kill(1, SIGPWR);
	_exit(0);
}

static void finish(const struct plan *p, char **argv)
{
	if (p->serve && p->then != THEN_SERVE)
		serve_beside();
	switch (p->then) {
	case THEN_SERVE: serve_main(p);
	case THEN_POWEROFF: machine_end(false);
	case THEN_REBOOT: machine_end(true);
	case THEN_SWITCH_ROOT:
		if (!p->root.source) {
			say("nothing to switch to: neither the orders nor root= names a root");
		} else {
			getty_without_udev();
			root_exec(p->init, argv);
		}
		break;
	default: run(p);
	}
}

int main(int argc, char **argv)
{
	static struct plan plan;
	sigset_t all;

	(void)argc;
	if (getpid() != 1) {
		fprintf(stderr, "kvm-init: this is the first program of a virtual machine that kvm starts\n");
		return 1;
	}
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	mount_basics();
	plan_read(&plan);
	modules_load(&plan);
	console_late(&plan);
	if (plan.hostname)
		sethostname(plan.hostname, strlen(plan.hostname));
	net_setup(&plan);
	if (plan.root.source && (root_mount(&plan) || root_switch()))
		give_up(&plan);
	if (mount_extra(&plan))
		give_up(&plan);
	net_resolver(&plan);
	environment(&plan);
	finish(&plan, argv);
	give_up(&plan);
}
