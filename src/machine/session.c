// SPDX-License-Identifier: GPL-2.0-or-later
#include "machine/session.h"

#include "base/clock.h"
#include "base/container_of.h"
#include "base/log.h"
#include "base/loop.h"
#include "console/con.h"
#include "console/sink.h"
#include "console/stdio.h"
#include "machine/control.h"
#include "machine/initrd.h"
#include "machine/machine.h"
#include "machine/net.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
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
 * A kernel that panics tells so by pvpanic. Mostly its message is on the
 * console by then; from an NMI it is printed only afterwards. So the guest goes
 * on until the message is there, it resets, or PANIC_NS have passed.
 */

#define TAIL_LEN   65536
#define DRAIN_NS   500000000ull
#define PANIC_NS   1000000000ull
#define PANIC_TEXT "Kernel panic - not syncing"

struct session {
	const struct config *cfg;
	struct loop *loop;
	struct arch_image *image;
	struct initramfs *initramfs; /* ours, where the user has given no initrd; or NULL */
	struct con *con;
	struct con *sink; /* where ttyS0 writes to when hvc0 has the console, or NULL */
	struct machine_net net;
	struct machine *m;

	struct loop_fd signals;
	struct loop_timer timeout, grace;
	int stop_signal; /* the button was pressed for this one, 0: none yet */
	bool suspended;  /* paused for as long as we are stopped (SIGTSTP) */

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
	loop_timer_set(s->loop, &s->grace, s->cfg->grace);
}

/* With the guest paused, so that it does not miss the time. */
static void suspend(struct session *s)
{
	struct err dull;

	s->suspended = s->m && !s->over && !s->paused && !machine_pause(s->m, &dull);
	stdio_suspend(s->con);
	raise(SIGSTOP);
}

static void unsuspend(struct session *s)
{
	if (s->suspended && s->m && !s->paused)
		machine_resume(s->m);
	s->suspended = false;
	stdio_resume(s->con);
}

/* hvc0 has the size of our terminal. */
static void resize(struct session *s)
{
	struct winsize w;

	if (s->m && s->sink && !ioctl(STDIN_FILENO, TIOCGWINSZ, &w))
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
	case SIGQUIT: end(s, END_SIGNAL, SIGQUIT); break;
	default: press_button(s, (int)si.ssi_signo); break;
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

static int take_signals(struct session *s, struct err *err)
{
	static const int own[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH };
	sigset_t set;

	sigemptyset(&set);
	for (unsigned i = 0; i < sizeof(own) / sizeof(own[0]); i++)
		sigaddset(&set, own[i]);
	pthread_sigmask(SIG_BLOCK, &set, NULL); /* every thread inherits it */
	s->signals = (struct loop_fd){ .fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK),
		                       .events = POLLIN,
		                       .cb = on_signal };
	if (s->signals.fd < 0)
		return err_sys(err, -errno, "signalfd");
	loop_fd_add(s->loop, &s->signals);
	return 0;
}

/* The control socket. */

static void ctl_status(void *opaque, struct control_status *out)
{
	const struct session *s = opaque;

	out->uptime = clock_ns() - s->started;
	out->boots = s->boots;
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

/* A machine that nobody has named runs without a socket where it cannot have one. */
static int open_control(struct session *s, struct err *err)
{
	static const struct control_ops ops = { ctl_status, ctl_stop, ctl_pause, ctl_resume,
		                                ctl_reboot, ctl_nmi,  ctl_sysrq };
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

/* Says why, where that is neither the guest's own wish nor the user's. The machine is stopped. */
static void tell(struct session *s)
{
	const char *why = machine_cpu_error(s->m);

	stdio_suspend(s->con);
	switch (s->end.reason) {
	case END_PANIC:
		log_line("the guest's kernel panicked: %s",
		         s->panic ? s->panic : "it says so, but not on this console why");
		break;
	case END_TRIPLE_FAULT:
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

	loop_quit(s->loop);
}

/*
 * Waits for the console's reader: for ever when the guest ended by itself
 * (a signal or the time-out still ends us), only a moment when we ended it.
 */
static int drain(struct session *s, struct err *err)
{
	bool ours = s->end.reason == END_ERROR || s->end.reason == END_TIMEOUT || s->end.reason == END_SIGNAL ||
	            s->end.reason == END_KEY;
	int error;

	loop_timer_del(s->loop, &s->grace);
	if (ours)
		loop_timer_set(s->loop, &s->timeout, DRAIN_NS);
	stdio_drain(s->con, on_drained, s);
	error = loop_run(s->loop);
	return error ? err_sys(err, error, "waiting for events") : 0;
}

/* Builds the machine and lets it run, or not if it is to be paused. */
static int start(struct session *s, struct err *err)
{
	struct machine_parts parts = {
		.image = s->image,
		.loop = s->loop,
		.com = { s->sink ? s->sink : s->con }, /* the others are unplugged */
		.hvc = s->sink ? s->con : NULL,
		.nic = s->net.nic,
		.event = on_event,
		.panic = on_panic,
		.opaque = s,
	};
	int error;

	con_tail_clear(s->con);
	s->event_task = (struct loop_task){ .cb = on_event_task };
	s->panic_task = (struct loop_task){ .cb = on_panic_task };
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
	stdio_start(s->con);
	error = loop_run(s->loop);
	if (error)
		return err_sys(err, error, "waiting for events");
	machine_stop(s->m);
	loop_task_del(s->loop, &s->event_task); /* an event that came too late */
	loop_task_del(s->loop, &s->panic_task);
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

static int open_all(struct session *s, struct err *err)
{
	struct arch_image_config ic = { .kernel = s->cfg->kernel,
		                        .initrd = s->cfg->initrd,
		                        .cmdline = s->cfg->cmdline };
	struct stdio_hooks hooks = { .end = on_end_key, .opaque = s };
	int error = arch_image_open(&ic, &s->image, err);

	if (!error)
		error = check_host(s, err);
	if (!error && !s->cfg->initrd)
		error = initrd_make(s->cfg, s->image, &s->initramfs, err);
	if (!error)
		error = loop_new(&s->loop, err);
	if (!error)
		error = take_signals(s, err);
	if (!error)
		error = machine_net_open(s->cfg, &s->net, err);
	if (!error)
		error = open_control(s, err);
	if (!error)
		error = stdio_new(s->loop, &hooks, &s->con, err);
	if (!error && s->cfg->virtio_console)
		error = sink_new(s->con, &s->sink, err);
	return error;
}

static void close_all(struct session *s)
{
	sink_free(s->sink);
	stdio_free(s->con);
	control_free(s->control, end_reason_name(s->over ? s->end.reason : END_ERROR));
	machine_net_close(&s->net);
	if (s->loop) {
		loop_timer_del(s->loop, &s->timeout);
		loop_timer_del(s->loop, &s->grace);
		loop_fd_del(s->loop, &s->signals);
	}
	if (s->signals.fd >= 0)
		close(s->signals.fd);
	loop_free(s->loop);
	arch_image_free(s->image);
	initramfs_free(s->initramfs);
	free(s->panic);
}

int session_run(const struct config *cfg, struct session_end *out, struct err *err)
{
	struct session s = { .cfg = cfg,
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
