// SPDX-License-Identifier: GPL-2.0-or-later
#include "base/loop_thread.h"

#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct loop_thread {
	struct loop *loop;
	pthread_t thread;
};

static void *run(void *arg)
{
	struct loop_thread *t = arg;
	int error = loop_run(t->loop);

	if (error) /* the kernel has no memory for a wait: nobody is left to tell */
		log_line("an I/O thread has ended: %s", strerror(-error));
	return NULL;
}

int loop_thread_new(const char *name, struct loop_thread **out, struct err *err)
{
	struct loop_thread *t = calloc(1, sizeof(*t));
	sigset_t all, old;
	int error;

	if (!t)
		return err_set(err, -ENOMEM, "out of memory");
	error = loop_new_ring(&t->loop, err);
	if (error) {
		free(t);
		return error;
	}
	sigfillset(&all); /* signals are for other threads */
	pthread_sigmask(SIG_SETMASK, &all, &old);
	error = pthread_create(&t->thread, NULL, run, t);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (error) {
		loop_free(t->loop);
		free(t);
		return err_sys(err, -error, "thread for %s", name);
	}
	pthread_setname_np(t->thread, name);
	*out = t;
	return 0;
}

void loop_thread_free(struct loop_thread *t)
{
	if (!t)
		return;
	loop_quit(t->loop);
	pthread_join(t->thread, NULL);
	loop_free(t->loop);
	free(t);
}

struct loop *loop_thread_loop(struct loop_thread *t)
{
	return t->loop;
}
