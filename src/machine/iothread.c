// SPDX-License-Identifier: GPL-2.0-or-later
#include "machine/iothread.h"

#include "base/log.h"
#include "base/loop.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct iothread {
	struct loop *loop;
	pthread_t thread;
	bool running;
};

static void *thread_main(void *arg)
{
	struct iothread *t = arg;
	int error = loop_run(t->loop);

	if (error)
		log_line("an I/O thread waits for events no more: %s", strerror(-error));
	return NULL;
}

int iothread_new(const char *name, struct iothread **out, struct err *err)
{
	struct iothread *t = calloc(1, sizeof(*t));
	char shown[16];
	int error;

	if (!t)
		return err_set(err, -ENOMEM, "out of memory");
	error = loop_new(&t->loop, err);
	if (!error) {
		error = -pthread_create(&t->thread, NULL, thread_main, t);
		t->running = !error;
		if (error)
			err_sys(err, error, "cannot start a thread");
	}
	if (error) {
		iothread_free(t);
		return error;
	}
	strncpy(shown, name, sizeof(shown) - 1);
	shown[sizeof(shown) - 1] = '\0';
	pthread_setname_np(t->thread, shown);
	*out = t;
	return 0;
}

void iothread_stop(struct iothread *t)
{
	if (!t || !t->running)
		return;
	loop_quit(t->loop);
	pthread_join(t->thread, NULL);
	t->running = false;
}

void iothread_free(struct iothread *t)
{
	if (!t)
		return;
	iothread_stop(t);
	loop_free(t->loop);
	free(t);
}

struct loop *iothread_loop(struct iothread *t)
{
	return t->loop;
}
