// SPDX-License-Identifier: GPL-2.0-or-later
#include "base/container_of.h"
#include "base/log.h"
#include "base/loop.h"
#include "machine/exec.h"
#include "machine/signals.h"

#include <errno.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

/*
 * A command in a machine of another process. Signals go to it once it runs;
 * until then, and when there is no answer, they end us. It is hung up when our
 * end of the socket closes.
 */

#define PATIENCE_NS 10000000000ull

struct remote {
	struct loop *loop;
	struct exec *exec;
	struct loop_fd signals;
	struct loop_timer patience;
	bool begun, silent;
	int signal, status;
};

static void on_started(void *opaque)
{
	struct remote *r = opaque;

	r->begun = true;
	loop_timer_del(r->loop, &r->patience);
}

static void on_ended(void *opaque, int status)
{
	struct remote *r = opaque;

	r->status = status;
	loop_quit(r->loop);
}

static void on_escape(void *opaque)
{
	struct remote *r = opaque;

	r->signal = SIGHUP;
	loop_quit(r->loop);
}

static void on_patience(struct loop_timer *t)
{
	struct remote *r = container_of(t, struct remote, patience);

	r->silent = true;
	loop_quit(r->loop);
}

static void on_signal(struct loop_fd *f, short revents)
{
	struct remote *r = container_of(f, struct remote, signals);
	struct signalfd_siginfo si;

	if (read(f->fd, &si, sizeof(si)) != sizeof(si))
		return;
	switch (si.ssi_signo) {
	case SIGTSTP:
		exec_suspend(r->exec);
		raise(SIGSTOP);
		break;
	case SIGCONT: exec_resume(r->exec); break;
	case SIGWINCH: exec_resize(r->exec); break;
	default:
		if (r->begun) {
			exec_signal(r->exec, (int)si.ssi_signo);
			break;
		}
		r->signal = (int)si.ssi_signo;
		loop_quit(r->loop);
	}
}

static int conclude(const struct remote *r, int *status, struct err *err)
{
	if (r->silent)
		return err_set(err, -ETIMEDOUT, "the guest does not answer: it is still booting, or its init has gone");
	if (r->signal)
		*status = 128 + r->signal;
	else if (r->status >= 0)
		*status = r->status;
	else
		return err_set(err, -EPIPE, "the machine ended before the command did");
	return 0;
}

int exec_run(int fd, const struct guest_command *cmd, int *status, struct err *err)
{
	struct remote r = { .status = -1, .signals.fd = -1, .patience.cb = on_patience };
	struct exec_ops ops = { .started = on_started, .ended = on_ended, .escape = on_escape, .opaque = &r };
	int error = loop_new(&r.loop, err);

	if (error) {
		close(fd);
		return error;
	}
	error = signals_take(r.loop, &r.signals, on_signal, err);
	if (error)
		close(fd);
	else
		error = exec_new(r.loop, fd, cmd, &ops, &r.exec, err);
	if (!error) {
		loop_timer_set(r.loop, &r.patience, PATIENCE_NS);
		error = loop_run(r.loop);
		error = error ? err_sys(err, error, "waiting for events") : conclude(&r, status, err);
	}
	exec_free(r.exec);
	loop_timer_del(r.loop, &r.patience);
	signals_leave(r.loop, &r.signals);
	loop_free(r.loop);
	return error;
}
