// SPDX-License-Identifier: GPL-2.0-or-later
#include "base/err.h"
#include "base/log.h"
#include "base/opt.h"
#include "cmd/cmd.h"
#include "cmd/command.h"
#include "cmd/disk_opt.h"
#include "cmd/share.h"
#include "machine/session.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB              (1ull << 20)
#define DEFAULT_MEM      (1024 * MIB)
#define DEFAULT_GRACE_NS 30000000000ull
#define CMDLINE_LEN      65536

const char run_help[] =
        "With -- COMMAND the machine is there for that command: its standard input, output and error\n"
        "are ours, and so is its status. Without IMAGE, DIR, -i and root= the root is the host's own,\n"
        "and what the guest writes stays in its memory. DIR is a root, too.\n"
        "\n"
        "  -k, --kernel FILE     bzImage, ELF vmlinux or PVH image (default: the one in this build\n"
        "                        tree, the running one, or the newest in /boot)\n"
        "  -i, --initrd FILE     initial RAM disk (default: made on the fly, with the modules it takes)\n"
        "      --modules DIR     where the kernel's modules are (default: looked for around the kernel)\n"
        "  -p, --params STRING   kernel parameters, after ours\n"
        "  -d, --disk FILE[,OPTS]\n"
        "                        a disk: an image or a block device; the same as IMAGE. OPTS: ro; cow: writes\n"
        "                        stay in memory; format=raw|qcow2; cache=writeback|writethrough|none|unsafe;\n"
        "                        queues=N; discard=on|off; on-error=report|stop; serial=S; blocksize=512|4096\n"
        "  -d, --disk DIR[,OPTS] a directory as root: ro; cow: writes stay in the guest's memory; map=HOW\n"
        "      --fault diskN:SPEC  faults of a disk to order, for tests, such as eio@7\n"
        "      --9p DIR,TAG[,ro][,map=none|squash|mapped]\n"
        "                        a directory for the guest to mount: mount -t 9p TAG ...\n"
        "      --rw              what is written to the host's root is written there\n"
        "      --rwdir DIR       only what is written below DIR is (may be given again)\n"
        "      --env N[=VALUE]   a variable for COMMAND; without VALUE, as it is here\n"
        "  -m, --mem SIZE        memory: MiB, or with K, M, G, T (default 1G, at most half the host's)\n"
        "  -c, --cpus N          virtual CPUs (default 1, at most 254)\n"
        "  -n, --net SPEC        none; user[,OPTION...]: out through this host's connections (default);\n"
        "                        tap[,OPTION...]: an interface of this host; virtio: tap where allowed,\n"
        "                        else user; passt[,OPTION...]. The options are in the man page\n"
        "      --pcap FILE       write what passes on the network to FILE, for tcpdump and wireshark\n"
        "      --vsock CID       AF_VSOCK sockets between the guest, as CID (3 or more), and the host, which is 2\n"
        "      --console TYPE    serial: ttyS0 (default); virtio: hvc0, with what ttyS0 says\n"
        "      --name NAME       the machine's name (default vm-PID)\n"
        "      --no-reboot       a reset by the guest ends the machine\n"
        "      --timeout S       end after S seconds, with status 252\n"
        "      --grace S         how long a guest may take to switch off when asked to (default 30)\n"
        "      --unpack HOW      who unpacks a bzImage's kernel: auto: we, once (default); off: the guest\n"
        "      --hugepages       memory from the host's reserved huge pages\n"
        "      --log FILE        append our messages to FILE, too\n"
        "      --status-file F   write why it ended to F, as JSON: {\"reason\": ..., \"code\": ...}\n"
        "  -v, --verbose         say more\n"
        "\n"
        "On a terminal: ^A x ends the machine, ^A ^A sends ^A, ^A h helps.\n"
        "Exit status: 0 the guest switched itself off, 1 host or set-up error, 2 usage,\n"
        "128+n ended by signal n, 250 guest panic, 251 triple fault or KVM error, 252 time-out.\n"
        "With COMMAND: its own; 253 the guest never got to it, 254 host or set-up error.\n";

enum {
	OPT_9P = 256,
	OPT_FS,
	OPT_VSOCK,
	OPT_CONSOLE,
	OPT_NAME,
	OPT_NO_REBOOT,
	OPT_TIMEOUT,
	OPT_GRACE,
	OPT_MODULES,
	OPT_UNPACK,
	OPT_HUGEPAGES,
	OPT_LOG,
	OPT_STATUS,
	OPT_SANDBOX,
	OPT_TRACE,
	OPT_PCAP,
	OPT_FAULT,
	OPT_RW,
	OPT_RWDIR,
	OPT_ENV,
};

static const struct option options[] = {
	{ "kernel", required_argument, NULL, 'k' },
	{ "initrd", required_argument, NULL, 'i' },
	{ "params", required_argument, NULL, 'p' },
	{ "mem", required_argument, NULL, 'm' },
	{ "cpus", required_argument, NULL, 'c' },
	{ "disk", required_argument, NULL, 'd' },
	{ "net", required_argument, NULL, 'n' },
	{ "verbose", no_argument, NULL, 'v' },
	{ "help", no_argument, NULL, 'h' },
	{ "9p", required_argument, NULL, OPT_9P },
	{ "fs", required_argument, NULL, OPT_FS },
	{ "vsock", required_argument, NULL, OPT_VSOCK },
	{ "console", required_argument, NULL, OPT_CONSOLE },
	{ "name", required_argument, NULL, OPT_NAME },
	{ "no-reboot", no_argument, NULL, OPT_NO_REBOOT },
	{ "timeout", required_argument, NULL, OPT_TIMEOUT },
	{ "grace", required_argument, NULL, OPT_GRACE },
	{ "modules", required_argument, NULL, OPT_MODULES },
	{ "unpack", required_argument, NULL, OPT_UNPACK },
	{ "hugepages", no_argument, NULL, OPT_HUGEPAGES },
	{ "log", required_argument, NULL, OPT_LOG },
	{ "status-file", required_argument, NULL, OPT_STATUS },
	{ "sandbox", required_argument, NULL, OPT_SANDBOX },
	{ "trace", required_argument, NULL, OPT_TRACE },
	{ "pcap", required_argument, NULL, OPT_PCAP },
	{ "fault", required_argument, NULL, OPT_FAULT },
	{ "rw", no_argument, NULL, OPT_RW },
	{ "rwdir", required_argument, NULL, OPT_RWDIR },
	{ "env", required_argument, NULL, OPT_ENV },
	{ NULL, 0, NULL, 0 },
};

/* Options whose part is not built yet: they must not be taken for a mistake, nor silently ignored. */
static const struct {
	int opt;
	const char *name, *with;
} to_come[] = {
	{ OPT_FS, "--fs", "virtio-fs" },
	{ OPT_SANDBOX, "--sandbox", "the sandbox" },
	{ OPT_TRACE, "--trace", "tracing" },
};

struct args {
	struct config cfg;
	const char *params, *status_file;
	const char *image;
	char *fault;
	bool has_mem, has_dir, rw, logs;
	struct command_args command;
};

static int check_name(const char *s)
{
	size_t n = strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");

	if (!n || n > 64 || s[n])
		return cmd_usage("run", "--name: '%s' is not a name: 1 to 64 of A-Z a-z 0-9 . _ -", s);
	return 0;
}

static int not_yet(int opt)
{
	for (unsigned i = 0; i < sizeof(to_come) / sizeof(to_come[0]); i++)
		if (to_come[i].opt == opt)
			return cmd_usage("run", "%s comes with %s, which is not built yet", to_come[i].name,
			                 to_come[i].with);
	return EXIT_USAGE; /* getopt has told why */
}

static int take_log(const char *path)
{
	int error = log_open(path);
	struct err err;

	if (!error)
		return 0;
	err_sys(&err, error, "log %s", path);
	return cmd_fail(&err);
}

/* An image, or a directory as root: FILE[,OPTIONS]. */
static int take_disk(struct args *a, char *val)
{
	size_t n = strcspn(val, ",");
	char *path = strndup(val, n);
	struct stat st;
	bool dir = path && !stat(path, &st) && S_ISDIR(st.st_mode);

	free(path);
	if (!dir)
		return disk_opt(&a->cfg, val);
	if (a->has_dir)
		return cmd_usage("run", "one directory as root, not also '%s'", val);
	a->has_dir = true;
	return share_root(&a->cfg, val);
}

static int take_vsock(struct config *c, const char *val, struct err *err)
{
	unsigned cid;
	int error = opt_uint("--vsock", val, 0, CONFIG_MAX_CID, &cid, err);

	if (error)
		return error;
	if (cid < CONFIG_MIN_CID)
		return err_set(err, -ERANGE, "--vsock: %u is reserved (2 is the host): a guest's CID is 3 or more",
		               cid);
	c->vsock = cid;
	return 0;
}

/* Options that take a value to be checked. Returns 0 or an exit status. */
static int take_value(struct args *a, int opt, char *val)
{
	struct config *c = &a->cfg;
	struct err err;
	int error = 0;

	switch (opt) {
	case 'm':
		error = opt_size("-m", val, MIB, &c->mem, &err);
		a->has_mem = true;
		break;
	case 'c': error = opt_uint("-c", val, 1, 254, &c->ncpus, &err); break;
	case OPT_TIMEOUT: error = opt_seconds("--timeout", val, &c->timeout, &err); break;
	case OPT_GRACE: error = opt_seconds("--grace", val, &c->grace, &err); break;
	case OPT_VSOCK: error = take_vsock(c, val, &err); break;
	case 'n': error = net_config_parse(val, &c->net, &err); break;
	case OPT_CONSOLE:
		if (strcmp(val, "serial") && strcmp(val, "virtio"))
			return cmd_usage("run", "--console: '%s' is neither serial nor virtio", val);
		c->virtio_console = !strcmp(val, "virtio");
		break;
	case OPT_UNPACK:
		if (strcmp(val, "auto") && strcmp(val, "off"))
			return cmd_usage("run", "--unpack: '%s' is neither auto nor off", val);
		c->unpack = !strcmp(val, "auto");
		break;
	case OPT_NAME:
		if (check_name(val))
			return EXIT_USAGE;
		snprintf(c->name, sizeof(c->name), "%s", val);
		c->named = true;
		break;
	case OPT_LOG: a->logs = true; return take_log(val);
	case 'd': return take_disk(a, val);
	case OPT_FAULT: a->fault = val; break;
	case OPT_9P: return share_9p(c, val);
	case OPT_RWDIR: return share_rwdir(c, val);
	case OPT_ENV: return command_env("run", &a->command, val);
	default: return not_yet(opt);
	}
	return error ? cmd_usage("run", "%s", err.msg) : 0;
}

static int take_option(struct args *a, int opt, char *val)
{
	switch (opt) {
	case 'k': a->cfg.kernel = val; return 0;
	case 'i': a->cfg.initrd = val; return 0;
	case 'p': a->params = val; return 0;
	case 'v':
		log_set_verbose(true);
		a->cfg.verbose = true;
		return 0;
	case OPT_RW: a->rw = true; return 0;
	case OPT_NO_REBOOT: a->cfg.no_reboot = true; return 0;
	case OPT_HUGEPAGES: a->cfg.hugepages = true; return 0;
	case OPT_STATUS: a->status_file = val; return 0;
	case OPT_PCAP: a->cfg.pcap = val; return 0;
	case OPT_MODULES: a->cfg.modules_dir = val; return 0;
	default: return take_value(a, opt, val);
	}
}

/* The words up to "--". Returns 0, an exit status, or -1 when all is done; @rest is the index of what follows "--". */
static int parse(int argc, char **argv, struct args *a, int *rest)
{
	int opt, status = 0;

	optind = 0;
	opterr = 0;
	for (;;) {
		while (!status && (opt = getopt_long(argc, argv, "+:k:i:p:m:c:d:n:vh", options, NULL)) != -1) {
			if (opt == '?' || opt == ':')
				return cmd_usage("run", "%s %s", argv[optind - 1],
				                 opt == ':' ? "needs a value" : "is not an option");
			if (opt == 'h') {
				cmd_help(2, (char *[]){ "help", "run", NULL });
				return -1;
			}
			status = take_option(a, opt, optarg);
		}
		*rest = optind;
		if (status || optind >= argc || !strcmp(argv[optind - 1], "--"))
			return status;
		if (a->image)
			return cmd_usage("run", "one image or directory, not also '%s'", argv[optind]);
		a->image = argv[optind];
		status = take_disk(a, argv[optind++]);
	}
}

/* 1 GiB, but at most half of the host's. */
static uint64_t default_mem(void)
{
	uint64_t half = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 2;

	return half < DEFAULT_MEM ? half & ~(2 * MIB - 1) : DEFAULT_MEM;
}

/* Does @params have the kernel parameter @name (with its "=", if it has a value), before a "--"? */
static bool has_param(const char *params, const char *name)
{
	size_t len = strlen(name);

	for (const char *p = params; *p;) {
		size_t n = strcspn(p, " ");

		if (n == 2 && !strncmp(p, "--", 2))
			return false;
		if (!strncmp(p, name, len) && (name[len - 1] == '=' || n == len))
			return true;
		p += n + strspn(p + n, " ");
	}
	return false;
}

/*
 * Ours, then the user's: so theirs win, and ours stand before a "--".
 * pci=noearly: on some AMD processors Linux otherwise searches 256 PCI buses
 * for an AGP bridge, twice, which is most of a small guest's exits.
 */
static char *make_cmdline(const struct args *a)
{
	const char *user = a->params ? a->params : "";
	bool command = a->cfg.command, shown = a->cfg.verbose || a->logs;
	char *s;

	if (asprintf(&s, "console=ttyS0%s pci=noearly%s%s%s%s%s", a->cfg.virtio_console ? " console=hvc0" : "",
	             has_param(user, "panic=") ? "" : " panic=-1",
	             command && !has_param(user, "oops=") ? " oops=panic" : "", command && !shown ? " quiet" : "",
	             user[0] ? " " : "", user) < 0)
		return NULL;
	return s;
}

static int exit_status(const struct session_end *e)
{
	switch (e->reason) {
	case END_POWEROFF:
	case END_RESET:
	case END_KEY: return 0;
	case END_COMMAND:
	case END_EXIT: return e->code;
	case END_NO_COMMAND: return EXIT_NO_COMMAND;
	case END_PANIC: return EXIT_PANIC;
	case END_TRIPLE_FAULT:
	case END_INTERNAL_ERROR: return EXIT_CRASH;
	case END_TIMEOUT: return EXIT_TIMED_OUT;
	case END_SIGNAL: return EXIT_BY_SIGNAL + e->code;
	case END_ERROR: return EXIT_HOST;
	}
	abort();
}

static int say_status(const char *path, const char *reason, int code)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666), error = 0;

	if (fd < 0)
		return -errno; /* ENXIO: a FIFO that nobody reads */
	if (dprintf(fd, "{\"reason\": \"%s\", \"code\": %d}\n", reason, code) < 0)
		error = -errno;
	if (close(fd) && !error)
		error = -errno;
	return error;
}

/* Into a new file first, so that nobody reads half a one; but what is no file, such as /dev/null, stays what it is. */
static int write_status(const char *path, const char *reason, int code, struct err *err)
{
	char *target = realpath(path, NULL), *tmp = NULL;
	const char *to = target ? target : path;
	struct stat st;
	int error;

	if (!stat(to, &st) && !S_ISREG(st.st_mode))
		error = say_status(to, reason, code);
	else if (asprintf(&tmp, "%s.%d", to, (int)getpid()) < 0)
		error = -ENOMEM;
	else
		error = say_status(tmp, reason, code);
	if (!error && tmp && rename(tmp, to))
		error = -errno;
	if (error && tmp)
		(void)unlink(tmp);
	if (error)
		err_sys(err, error, "status file %s", path);
	free(tmp);
	free(target);
	return error;
}

static int fail(const struct args *a, const struct err *err)
{
	int status = cmd_fail(err);

	return a->cfg.command ? EXIT_SETUP : status;
}

static int run(struct args *a)
{
	struct session_end end;
	const char *reason = "error";
	struct err err, status_err;
	char *found = NULL, *cmdline = make_cmdline(a);
	int error = 0, status;

	if (!a->cfg.kernel)
		a->cfg.kernel = found = find_kernel(&err);
	a->cfg.cmdline = cmdline;
	if (a->params && has_param(a->params, "kaslr"))
		a->cfg.unpack = false; /* it is done while the guest unpacks */
	if (!a->cfg.kernel)
		error = -ENOENT;
	else
		error = session_run(&a->cfg, &end, &err);
	if (error) {
		status = fail(a, &err);
	} else {
		status = exit_status(&end);
		reason = end_reason_name(end.reason);
	}
	if (a->status_file && write_status(a->status_file, reason, status, &status_err))
		status = fail(a, &status_err);
	free(cmdline);
	free(found);
	return status;
}

/* The root: the directory that was given, what is on the first disk, or the host's own where nothing says otherwise. */
static int choose_root(struct args *a)
{
	const char *params = a->params ? a->params : "";
	bool init = has_param(params, "init=");
	int status = 0;

	if (a->fault)
		status = disk_fault(&a->cfg, a->fault);
	if (status || a->cfg.initrd || (has_param(params, "root=") && !a->has_dir))
		return status;
	if (a->has_dir)
		init |= share_has_init(&a->cfg);
	else if (a->cfg.ndisks)
		a->cfg.disk_root = true;
	else
		status = share_host(&a->cfg, a->rw);
	if (!status && init && !a->cfg.command)
		a->cfg.switch_root = "";
	return status;
}

/* Its status is not to be taken for the command's. */
static bool has_command(char **argv)
{
	while (*argv && strcmp(*argv, "--"))
		argv++;
	return argv[0] && argv[1];
}

/* What comes behind "--". */
static void take_command(struct args *a, char **argv)
{
	a->command.cmd.argv = argv;
	a->cfg.command = &a->command.cmd;
	a->cfg.no_reboot = true;
}

int cmd_run(int argc, char **argv)
{
	/* The process's own, as what it points to is: one command is all that a process does. */
	static struct args a = { .cfg = { .ncpus = 1, .unpack = true, .grace = DEFAULT_GRACE_NS } };
	int rest = argc, status;

	net_config_default(&a.cfg.net);
	snprintf(a.cfg.name, sizeof(a.cfg.name), "vm-%d", (int)getpid());
	command_init(&a.command, NULL);
	status = parse(argc, argv, &a, &rest);
	if (!status && rest < argc)
		take_command(&a, argv + rest);
	if (!status)
		status = choose_root(&a);
	if (status)
		return status < 0 ? 0 : status == EXIT_HOST && has_command(argv) ? EXIT_SETUP : status;
	a.command.cmd.dir = share_translate(&a.cfg, a.command.cmd.dir);
	if (!a.has_mem)
		a.cfg.mem = default_mem();
	return run(&a);
}
