// SPDX-License-Identifier: GPL-2.0-or-later
#include "machine/session.h"

#include "base/clock.h"
#include "base/container_of.h"
#include "base/log.h"
#include "base/loop.h"
#include "console/con.h"
#include "console/mute.h"
#include "console/sink.h"
#include "console/stdio.h"
#include "machine/channel.h"
#include "machine/control.h"
#include "machine/disks.h"
#include "machine/exec.h"
#include "machine/initrd.h"
#include "machine/machine.h"
#include "machine/net.h"
#include "machine/signals.h"
#include "machine/unpack_kernel.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/*
 * How it works
 *
 * The session owns what lives longer than one boot: the main loop, signals,
 * timers, the console, the opened kernel. It builds a machine, turns the loop
 * until something ends the boot, stops the machine, and either builds the
 * next one or decides how the session ends. At the end the loop turns once
 * more until the console's reader has everything; whatever would have ended
 * the machine then ends this wait.
 *
 * What is asked for through the control socket comes as calls on the loop, so
 * it finds a machine that runs, is paused, or has just ended. @paused is the
 * user's will and outlives a boot: a reset that comes while the machine is
 * being paused, or a reboot of a paused one, makes one that is paused. A polite
 * stop is what SIGTERM is, a forced one what a second SIGTERM is.
 *
 * A machine may be there for one command of the user's. Then standard input
 * and output are the command's, and the guest's console is not shown. The
 * command is a session of the channel like any other, with both of its ends in
 * this process. Its status is the end that counts, unless the guest was ended
 * before it was told.
 *
 * A kernel that panics tells so by pvpanic. Mostly its message is on the
 * console by then; from an NMI it is printed only afterwards. So the guest goes
 * on until the message is there, it resets, or PANIC_NS have passed.
 */

#define TAIL_LEN   65536
#define SHOWN_LEN  4096
#define DRAIN_NS   500000000ull
#define PANIC_NS   1000000000ull
#define PANIC_TEXT "Kernel panic - not syncing"

struct session {
	const struct config *cfg;
	struct loop *loop;
	struct arch_image *image;
	struct initramfs *initramfs; /* ours, where the user has given no initrd; or NULL */
	struct con *con;             /* the guest's console: standard input and output, or nobody's (@mute) */
	bool mute;
	struct disks *disks;
	struct con *sink; /* where ttyS0 writes to when hvc0 has the console, or NULL */
	struct machine_net net;
	struct machine *m;

	struct loop_fd signals;
	struct loop_timer timeout, grace;
	int stop_signal; /* the button was pressed for this one, 0: none yet */
	bool suspended;  /* paused for as long as we are stopped (SIGTSTP) */

	struct channel *channel; /* to our init, or NULL: the user has given an initrd */
	struct exec *exec;       /* the machine's command, or NULL */
	bool begun;              /* the guest has got to it */
	int status;              /* its own, -1: not told */
	unsigned draining;       /* who is waited for in drain() */

	/* The last disk that failed and waits: written by any thread before the task is posted. */
	struct loop_task disk_task;
	_Atomic unsigned failed_disk;
	_Atomic int disk_error;

	struct control *control; /* NULL: there is no socket */
	uint64_t started;        /* CLOCK_MONOTONIC, ns */
	unsigned boots;
	bool paused;

	/* The event of this boot: written by any thread before it is posted, once a boot. */
	struct loop_task event_task;
	enum machine_event event;
	unsigned event_code;

	_Atomic bool panicked; /* pvpanic has told, this boot */
	struct loop_task panic_task;
	struct loop_timer panic_timer;
	char *panic; /* the kernel's last words, or NULL */
	bool over;   /* @end is decided */
	struct session_end end;
};

static struct session *of_signals(struct loop_fd *f)
{
	return container_of(f, struct session, signals);
}

const char *end_reason_name(enum end_reason reason)
{
	static const char *const name[] = {
		[END_POWEROFF] = "poweroff",
		[END_RESET] = "reset",
		[END_EXIT] = "exit",
		[END_PANIC] = "panic",
		[END_TRIPLE_FAULT] = "triple-fault",
		[END_INTERNAL_ERROR] = "internal-error",
		[END_TIMEOUT] = "timeout",
		[END_SIGNAL] = "signal",
		[END_KEY] = "key",
		[END_COMMAND] = "command",
		[END_NO_COMMAND] = "no-command",
		[END_ERROR] = "error",
	};

	return name[reason];
}

/* The first decision counts. */
static void decide(struct session *s, enum end_reason reason, int code)
{
	if (!s->over)
		s->end = (struct session_end){ reason, code };
	s->over = true;
}

/* From a callback of the loop: a later one only ends the wait for the console's reader. */
static void end(struct session *s, enum end_reason reason, int code)
{
	decide(s, reason, code);
	loop_quit(s->loop);
}

/* Pausing. */

static void resume(struct session *s)
{
	s->paused = false;
	machine_resume(s->m);
}

/* Signals and timers. */

static void press_button(struct session *s, int sig)
{
	if (s->over || !s->m || s->stop_signal) {
		end(s, END_SIGNAL, sig);
		return;
	}
	s->stop_signal = sig;
	resume(s); /* or it would never notice */
	log_verbose("%s: pressing the power button", strsignal(sig));
	machine_power_button(s->m);
	if (s->channel)
		channel_poweroff(s->channel);
	loop_timer_set(s->loop, &s->grace, s->cfg->grace);
}

/* A command gets our signals, once it is there; until then they end us. */
static void take_signal(struct session *s, int sig)
{
	if (s->exec && s->begun && s->m && !s->over)
		exec_signal(s->exec, sig);
	else if (s->exec || sig == SIGQUIT)
		end(s, END_SIGNAL, sig);
	else
		press_button(s, sig);
}

static void give_terminal_back(struct session *s)
{
	if (!s->mute)
		stdio_suspend(s->con);
	if (s->exec)
		exec_suspend(s->exec);
}

/* With the guest paused, so that it does not miss the time. */
static void suspend(struct session *s)
{
	struct err dull;

	s->suspended = s->m && !s->over && !s->paused && !machine_pause(s->m, &dull);
	give_terminal_back(s);
	raise(SIGSTOP);
}

static void unsuspend(struct session *s)
{
	if (s->suspended && s->m && !s->paused)
		machine_resume(s->m);
	s->suspended = false;
	if (!s->mute)
		stdio_resume(s->con);
	if (s->exec)
		exec_resume(s->exec);
}

/* hvc0 has the size of our terminal. */
static void resize(struct session *s)
{
	struct winsize w;

	if (s->exec)
		exec_resize(s->exec);
	else if (s->m && s->sink && !ioctl(STDIN_FILENO, TIOCGWINSZ, &w))
		machine_resize(s->m, w.ws_col, w.ws_row);
}

static void on_signal(struct loop_fd *f, short revents)
{
	struct session *s = of_signals(f);
	struct signalfd_siginfo si;

	if (read(f->fd, &si, sizeof(si)) != sizeof(si))
		return;
	switch (si.ssi_signo) {
	case SIGTSTP: suspend(s); break;
	case SIGCONT: unsuspend(s); break;
	case SIGWINCH: resize(s); break;
	default: take_signal(s, (int)si.ssi_signo); break;
	}
}

static void on_timeout(struct loop_timer *t)
{
	end(container_of(t, struct session, timeout), END_TIMEOUT, 0);
}

static void on_grace(struct loop_timer *t)
{
	struct session *s = container_of(t, struct session, grace);

	log_line("the guest did not switch itself off within %g s of the power button", (double)s->cfg->grace / 1e9);
	end(s, END_SIGNAL, s->stop_signal);
}

static void on_end_key(void *opaque)
{
	end(opaque, END_KEY, 0);
}

/* The control socket. */

static void ctl_status(void *opaque, struct control_status *out)
{
	const struct session *s = opaque;

	*out = (struct control_status){ .uptime = clock_ns() - s->started, .boots = s->boots };
	if (s->m)
		machine_net_status(s->m, &out->net);
	if (s->over || !s->m)
		out->state = "ended";
	else if (s->stop_signal)
		out->state = "stopping";
	else
		out->state = s->paused ? "paused" : "running";
}

/* 0: there is a machine to do something with. */
static int check_alive(const struct session *s, struct err *err)
{
	return s->over || !s->m ? err_set(err, -ESHUTDOWN, "the machine has ended") : 0;
}

static int ctl_stop(void *opaque, bool force, struct control_wait *wait, struct err *err)
{
	struct session *s = opaque;

	if (force) {
		end(s, END_SIGNAL, SIGTERM);
	} else if (s->over || !s->m) {
		wait->what = "it has ended, but the reader of its console has yet to read its last output";
	} else {
		uint64_t now = clock_ns();

		if (!s->stop_signal)
			press_button(s, SIGTERM);
		wait->what = "the guest has been asked to switch itself off";
		wait->grace = s->grace.armed && s->grace.at > now ? s->grace.at - now : 0;
	}
	return CONTROL_LATER;
}

static int ctl_pause(void *opaque, struct err *err)
{
	struct session *s = opaque;
	int error = check_alive(s, err);

	if (!error && s->stop_signal)
		error = err_set(err, -EBUSY, "the machine is being stopped");
	if (!error)
		error = machine_pause(s->m, err);
	s->paused |= !error;
	return error;
}

static int ctl_resume(void *opaque, struct err *err)
{
	struct session *s = opaque;
	int error = check_alive(s, err);

	if (!error)
		resume(s);
	return error;
}

static int ctl_reboot(void *opaque, struct err *err)
{
	struct session *s = opaque;
	int error = check_alive(s, err);

	if (!error && s->cfg->no_reboot)
		error = err_set(err, -EPERM, "it was started with --no-reboot: a reset would end it");
	if (error)
		return error;
	machine_reset(s->m);
	return CONTROL_LATER;
}

static int ctl_nmi(void *opaque, struct err *err)
{
	struct session *s = opaque;
	int error = check_alive(s, err);

	return error ? error : machine_nmi(s->m, err);
}

static int ctl_sysrq(void *opaque, char key, struct err *err)
{
	struct session *s = opaque;
	int error = check_alive(s, err);

	return error ? error : machine_sysrq(s->m, key, err);
}

static int ctl_exec(void *opaque, int fd, struct err *err)
{
	struct session *s = opaque;
	int error = check_alive(s, err);

	if (!error && !s->channel)
		error = err_set(err, -ENOTSUP, "its initrd is not ours (-i): nobody in it takes commands");
	if (!error && s->paused)
		error = err_set(err, -EBUSY, "it is paused");
	if (!error)
		return channel_attach(s->channel, fd, false, err);
	close(fd);
	return error;
}

/* A machine that nobody has named runs without a socket where it cannot have one. */
static int open_control(struct session *s, struct err *err)
{
	static const struct control_ops ops = { ctl_status, ctl_stop, ctl_pause, ctl_resume,
		                                ctl_reboot, ctl_nmi,  ctl_sysrq, ctl_exec };
	struct control_config cc = { .loop = s->loop,
		                     .ops = &ops,
		                     .opaque = s,
		                     .name = s->cfg->name,
		                     .kernel = s->cfg->kernel,
		                     .address = s->net.address,
		                     .ncpus = s->cfg->ncpus,
		                     .mem = s->cfg->mem };
	int error = control_new(&cc, &s->control, err);

	if (error && !s->cfg->named) {
		log_line("no control socket: %s", err->msg);
		return 0;
	}
	return error;
}

/* One boot. */

static void on_event_task(struct loop_task *t)
{
	struct session *s = container_of(t, struct session, event_task);

	loop_quit(s->loop);
}

static void on_event(void *opaque, enum machine_event ev, unsigned code)
{
	struct session *s = opaque;

	s->event = ev;
	s->event_code = code;
	loop_post(s->loop, &s->event_task);
}

/* The guest's last "Kernel panic" line, without its time stamp; NULL: there is none. The caller frees it. */
static char *find_panic(struct session *s)
{
	char *tail = malloc(TAIL_LEN + 1), *p, *at = NULL;
	size_t n;

	if (!tail)
		return NULL;
	n = con_tail(s->con, tail, TAIL_LEN);
	for (size_t i = 0; i < n; i++)
		if (!tail[i])
			tail[i] = ' ';
	tail[n] = '\0';
	for (p = tail; (p = strstr(p, PANIC_TEXT)); p++)
		at = p;
	p = at ? strndup(at, strcspn(at, "\r\n")) : NULL;
	free(tail);
	return p;
}

static void on_panic_timer(struct loop_timer *t)
{
	loop_quit(container_of(t, struct session, panic_timer)->loop);
}

static void on_panic_task(struct loop_task *t)
{
	struct session *s = container_of(t, struct session, panic_task);
	char *text = find_panic(s);

	loop_timer_set(s->loop, &s->panic_timer, text ? 0 : PANIC_NS);
	free(text);
}

static void on_panic(void *opaque)
{
	struct session *s = opaque;

	s->panicked = true;
	loop_post(s->loop, &s->panic_task);
}

/* What the event that stopped the boot means for the session. */
static void judge(struct session *s)
{
	s->panic = find_panic(s);
	if (s->panicked) {
		decide(s, END_PANIC, 0);
		return;
	}
	switch (s->event) {
	case MACHINE_POWEROFF: decide(s, END_POWEROFF, 0); break;
	case MACHINE_EXIT: decide(s, END_EXIT, (int)s->event_code); break;
	case MACHINE_CPU_ERROR: decide(s, END_INTERNAL_ERROR, 0); break;
	case MACHINE_TRIPLE_FAULT: decide(s, s->panic ? END_PANIC : END_TRIPLE_FAULT, 0); break; /* reboot=t */
	case MACHINE_RESET:
		if (s->event_code == MACHINE_RESET_ASKED)
			break;
		if (s->panic)
			decide(s, END_PANIC, 0);
		else if (s->cfg->no_reboot)
			decide(s, END_RESET, 0);
		break;
	}
}

/* The last lines of a console that was not shown. */
static void show_console(struct session *s)
{
	char tail[SHOWN_LEN + 1], *save = NULL;
	size_t n = s->mute ? con_tail(s->con, tail, SHOWN_LEN) : 0;

	tail[n] = '\0';
	for (char *line = strtok_r(tail, "\r\n", &save); line; line = strtok_r(NULL, "\r\n", &save))
		if (line != tail || n < SHOWN_LEN) /* or it may be half a line */
			log_line("| %s", line);
}

/* Says why, where that is neither the guest's own wish nor the user's. The machine is stopped. */
static void tell(struct session *s)
{
	const char *why = machine_cpu_error(s->m);

	give_terminal_back(s);
	switch (s->end.reason) {
	case END_NO_COMMAND:
		log_line("the guest ended before it got to the command");
		show_console(s);
		break;
	case END_PANIC:
		show_console(s);
		log_line("the guest's kernel panicked: %s",
		         s->panic ? s->panic : "it says so, but not on this console why");
		break;
	case END_TRIPLE_FAULT:
		show_console(s);
		log_line("triple fault of vCPU %u", s->event_code);
		machine_dump(s->m, s->event_code, stderr);
		break;
	case END_INTERNAL_ERROR:
		log_line("KVM gave up on vCPU %u: %s", s->event_code, why[0] ? why : "internal error");
		machine_dump(s->m, s->event_code, stderr);
		break;
	case END_TIMEOUT: log_line("timed out after %g s", (double)s->cfg->timeout / 1e9); break;
	default: break;
	}
}

static void on_drained(void *opaque)
{
	struct session *s = opaque;

	if (--s->draining == 0)
		loop_quit(s->loop);
}

/* What has become of the command, now that everything that the guest said is heard. */
static void judge_command(struct session *s)
{
	bool own = s->end.reason == END_POWEROFF || s->end.reason == END_RESET;

	if (own && s->status >= 0)
		s->end = (struct session_end){ END_COMMAND, s->status };
	else if (own && s->stop_signal)
		s->end = (struct session_end){ END_SIGNAL, s->stop_signal }; /* no success of the command's */
	else if (own && !s->begun)
		s->end.reason = END_NO_COMMAND;
}

/*
 * Waits for the readers of the console and of the command's output: for ever
 * when the guest ended by itself (a signal or the time-out still ends us), only
 * a moment when we ended it.
 */
static int drain(struct session *s, struct err *err)
{
	bool ours = s->end.reason == END_ERROR || s->end.reason == END_TIMEOUT || s->end.reason == END_SIGNAL ||
	            s->end.reason == END_KEY;
	int error = 0;

	loop_timer_del(s->loop, &s->grace);
	if (ours)
		loop_timer_set(s->loop, &s->timeout, DRAIN_NS);
	s->draining = !s->mute + (s->exec && s->status < 0);
	if (s->channel)
		channel_end(s->channel); /* the command's end is told, or it never is */
	if (!s->mute)
		stdio_drain(s->con, on_drained, s);
	if (s->draining)
		error = loop_run(s->loop);
	if (s->exec)
		judge_command(s);
	return error ? err_sys(err, error, "waiting for events") : 0;
}

/* on-error=stop: the guest sees nothing of it. What was meanwhile tried again or paused makes no difference. */
static void on_disk_task(struct loop_task *t)
{
	struct session *s = container_of(t, struct session, disk_task);
	unsigned i = s->failed_disk;
	struct err err;

	if (s->over || !s->m || s->paused)
		return;
	if (machine_pause(s->m, &err)) {
		log_line("disk%u: %s: the machine cannot be paused: %s", i, strerror(s->disk_error), err.msg);
		return;
	}
	s->paused = true;
	log_line("disk%u (%s): %s: the machine is paused; `kvm resume %s` tries again", i, s->cfg->disk[i].path,
	         strerror(s->disk_error), s->cfg->name);
}

static void on_disk_failed(void *opaque, unsigned i, int error)
{
	struct session *s = opaque;

	s->failed_disk = i;
	s->disk_error = -error;
	loop_post(s->loop, &s->disk_task);
}

static void on_command_started(void *opaque)
{
	((struct session *)opaque)->begun = true;
}

static void on_command_ended(void *opaque, int status)
{
	struct session *s = opaque;

	s->status = status;
	if (s->over)
		on_drained(s);
	else if (status >= 0)
		end(s, END_COMMAND, status);
}

/* Builds the machine and lets it run, or not if it is to be paused. */
static int start(struct session *s, struct err *err)
{
	struct machine_parts parts = {
		.image = s->image,
		.loop = s->loop,
		.com = { s->sink ? s->sink : s->con }, /* the others are unplugged */
		.hvc = s->sink ? s->con : NULL,
		.channel = s->channel ? channel_con(s->channel) : NULL,
		.disks = s->disks,
		.disk_failed = on_disk_failed,
		.nic = s->net.nic,
		.event = on_event,
		.panic = on_panic,
		.opaque = s,
	};
	int error;

	con_tail_clear(s->con);
	s->event_task = (struct loop_task){ .cb = on_event_task };
	s->panic_task = (struct loop_task){ .cb = on_panic_task };
	s->disk_task = (struct loop_task){ .cb = on_disk_task };
	s->panicked = false;
	error = machine_new(s->cfg, &parts, &s->m, err);
	if (!error && s->paused)
		error = machine_pause(s->m, err);
	if (!error)
		resize(s);
	if (!error)
		error = machine_start(s->m, err);
	if (error)
		return error;
	s->boots++;
	if (s->stop_signal)
		machine_power_button(s->m); /* the boot that was asked is gone */
	control_booted(s->control);
	return 0;
}

static int boot(struct session *s, struct err *err)
{
	int error = start(s, err);

	if (error) {
		struct err dull;

		decide(s, END_ERROR, 0);
		(void)drain(s, &dull); /* what an earlier boot has said; @err is the news */
		return error;
	}
	if (!s->mute)
		stdio_start(s->con);
	error = loop_run(s->loop);
	if (error)
		return err_sys(err, error, "waiting for events");
	machine_stop(s->m);
	loop_task_del(s->loop, &s->event_task); /* an event that came too late */
	loop_task_del(s->loop, &s->panic_task);
	loop_task_del(s->loop, &s->disk_task);
	loop_timer_del(s->loop, &s->panic_timer);
	if (!s->over)
		judge(s);
	if (s->over)
		error = drain(s, err);
	if (s->over && !error)
		tell(s);
	return error;
}

static int boots(struct session *s, struct err *err)
{
	int error;

	for (;;) {
		error = boot(s, err);
		machine_free(s->m);
		s->m = NULL;
		if (error || s->over)
			return error;
		log_verbose("the guest resets");
	}
}

/* Before and after. */

static int check_host(struct session *s, struct err *err)
{
	int can;

	if (!arch_image_is_linux(s->image))
		return 0;
	can = arch_can_run_linux(err);
	if (can)
		return can < 0 ? can : 0;
	return err_set(err, -ENODEV,
	               "this host's /dev/kvm only interprets guest kernel code: it cannot run a Linux guest\n"
	               "see `kvm doctor`; a host with VT-x or AMD-V can, also inside an emulated machine");
}

/* The guest's; where standard input and output are a command's, it is shown on standard error if at all. */
static int open_console(struct session *s, struct err *err)
{
	bool command = s->cfg->command;
	struct stdio_config sc = { .loop = s->loop,
		                   .in = command ? -1 : STDIN_FILENO,
		                   .out = command ? STDERR_FILENO : STDOUT_FILENO,
		                   .terminal = !command && isatty(STDIN_FILENO),
		                   .hooks = { .end = on_end_key, .opaque = s } };

	s->mute = command && !s->cfg->verbose;
	return s->mute ? mute_new(&s->con, err) : stdio_new(&sc, &s->con, err);
}

/* The command's two ends. */
static int open_command(struct session *s, struct err *err)
{
	struct exec_ops ops = {
		.started = on_command_started, .ended = on_command_ended, .escape = on_end_key, .opaque = s
	};
	int fd[2], error;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd))
		return err_sys(err, -errno, "socketpair");
	error = channel_attach(s->channel, fd[0], true, err);
	if (error) {
		close(fd[1]);
		return error;
	}
	return exec_new(s->loop, fd[1], s->cfg->command, &ops, &s->exec, err);
}

/* Our init, and the way to it, where the user gives none. */
static int open_guest(struct session *s, struct err *err)
{
	struct root root = { .type = NULL };
	int error = 0;

	if (s->cfg->initrd || !arch_image_is_linux(s->image))
		return s->cfg->command
		               ? err_set(err, -EINVAL, "a command wants our own init: no -i, and a Linux kernel")
		               : 0;
	for (unsigned i = 0; i < s->cfg->ndisks; i++)
		root_look(disks_image(s->disks, i), &root);
	if (s->cfg->disk_root)
		error = root_find(disks_image(s->disks, 0), &root, err);
	if (!error)
		error = initrd_make(s->cfg, &root, s->image, &s->initramfs, err);
	return error ? error : channel_new(s->loop, &s->channel, err);
}

static int open_all(struct session *s, struct err *err)
{
	struct arch_image_config ic = { .kernel = s->cfg->kernel,
		                        .initrd = s->cfg->initrd,
		                        .cmdline = s->cfg->cmdline };
	int error = arch_image_open(&ic, &s->image, err);

	if (!error)
		error = check_host(s, err);
	if (!error && s->cfg->unpack)
		unpack_kernel(s->image, s->cfg->kernel);
	if (!error)
		error = loop_new(&s->loop, err);
	if (!error && s->cfg->ndisks)
		error = disks_open(s->cfg, &s->disks, err);
	if (!error)
		error = open_guest(s, err);
	if (!error)
		error = signals_take(s->loop, &s->signals, on_signal, err);
	if (!error)
		error = machine_net_open(s->cfg, &s->net, err);
	if (!error)
		error = open_control(s, err);
	if (!error)
		error = open_console(s, err);
	if (!error && s->cfg->virtio_console)
		error = sink_new(s->con, &s->sink, err);
	if (!error && s->cfg->command)
		error = open_command(s, err);
	return error;
}

static void close_all(struct session *s)
{
	exec_free(s->exec);
	channel_free(s->channel);
	sink_free(s->sink);
	if (s->mute)
		mute_free(s->con);
	else
		stdio_free(s->con);
	control_free(s->control, end_reason_name(s->over ? s->end.reason : END_ERROR));
	machine_net_close(&s->net);
	if (s->loop) {
		loop_timer_del(s->loop, &s->timeout);
		loop_timer_del(s->loop, &s->grace);
		signals_leave(s->loop, &s->signals);
	}
	loop_free(s->loop);
	disks_close(s->disks);
	arch_image_free(s->image);
	initramfs_free(s->initramfs);
	free(s->panic);
}

int session_run(const struct config *cfg, struct session_end *out, struct err *err)
{
	struct session s = { .cfg = cfg,
		             .status = -1,
		             .signals.fd = -1,
		             .timeout.cb = on_timeout,
		             .grace.cb = on_grace,
		             .panic_timer.cb = on_panic_timer };
	int error;

	s.started = clock_ns();
	vcpu_kick_init();
	error = open_all(&s, err);
	if (!error && cfg->timeout)
		loop_timer_set(s.loop, &s.timeout, cfg->timeout);
	if (!error)
		error = boots(&s, err);
	close_all(&s);
	*out = s.end;
	return error;
}
