// SPDX-License-Identifier: GPL-2.0-or-later
#include "cmd/cmd.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

const struct command commands[] = {
	{ "run", cmd_run, "[OPTIONS] [IMAGE|DIR] [-- COMMAND [ARG...]]", "runs a virtual machine", run_help },
	{ "list", cmd_list, "[--json]", "lists the machines that run", list_help },
	{ "stop", cmd_stop, "[--force] [--timeout S] [NAME...|--all]", "asks machines to switch themselves off",
	  stop_help },
	{ "exec", cmd_exec, "[OPTIONS] [NAME] -- COMMAND [ARG...]", "runs a command in a machine", exec_help },
	{ "shell", cmd_shell, "[NAME]", "opens a shell in a machine", shell_help },
	{ "pause", cmd_ctl, "[NAME]", "stops a machine's CPUs, devices and clocks", ctl_help },
	{ "resume", cmd_ctl, "[NAME]", "lets it go on", ctl_help },
	{ "reboot", cmd_ctl, "[NAME]", "presses the reset button", ctl_help },
	{ "nmi", cmd_ctl, "[NAME]", "sends an NMI to the first CPU", ctl_help },
	{ "sysrq", cmd_sysrq, "[NAME] KEY", "sends a magic SysRq key to the guest's kernel", sysrq_help },
	{ "disk", cmd_disk, "create|info|check|convert|... IMAGE", "makes and looks after disk images", disk_help },
	{ "doctor", cmd_doctor, "[--json]", "tells what this host can do, and what to do about it", NULL },
	{ "version", cmd_version, "", "prints the version, and what is built in", NULL },
	{ "help", cmd_help, "[COMMAND]", "prints this, or how to use COMMAND", NULL },
	{ NULL, NULL, NULL, NULL, NULL },
};

/* A caller may have closed 0, 1 or 2: a file of ours must not become the guest's console by accident. */
static int hold_std_fds(void)
{
	for (int fd = 0; fd <= 2; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_WRONLY : O_RDONLY) != fd)
			return -1;
	return 0;
}

static int run_command(const char *name, int argc, char **argv)
{
	for (const struct command *c = commands; c->name; c++)
		if (!strcmp(c->name, name))
			return c->main(argc, argv);
	return cmd_usage(NULL, "there is no command '%s'", name);
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "help";
	int status;

	signal(SIGPIPE, SIG_IGN); /* a reader that goes away is an error of a write, not our end */
	if (hold_std_fds())
		return EXIT_HOST;
	if (!strcmp(name, "--help") || !strcmp(name, "-h"))
		name = "help";
	if (!strcmp(name, "--version") || !strcmp(name, "-V"))
		name = "version";
	status = run_command(name, argc - 1, argv + 1);
	/* What it has printed must have arrived, or it has failed. */
	return cmd_flush() && !status ? EXIT_HOST : status;
}
