// SPDX-License-Identifier: GPL-2.0-or-later
#include "machine/signals.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

int signals_take(struct loop *l, struct loop_fd *f, void (*cb)(struct loop_fd *f, short revents), struct err *err)
{
	static const int own[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH };
	sigset_t set;

	sigemptyset(&set);
	for (unsigned i = 0; i < sizeof(own) / sizeof(own[0]); i++)
		sigaddset(&set, own[i]);
	pthread_sigmask(SIG_BLOCK, &set, NULL); /* every thread inherits it */
	*f = (struct loop_fd){ .fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), .events = POLLIN, .cb = cb };
	if (f->fd < 0)
		return err_sys(err, -errno, "signalfd");
	loop_fd_add(l, f);
	return 0;
}

void signals_leave(struct loop *l, struct loop_fd *f)
{
	if (f->fd < 0)
		return;
	loop_fd_del(l, f);
	close(f->fd);
	f->fd = -1;
}
