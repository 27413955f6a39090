// SPDX-License-Identifier: GPL-2.0-or-later
#include "base/workers.h"

#include "base/loop_thread.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

struct workers {
	pthread_mutex_t lock;
	pthread_cond_t more;
	unsigned max; /* [c] */
	/* [m] */
	struct work *first, **end;
	unsigned nwork, nidle, nthreads;
	bool quit;
	pthread_t thread[WORKERS_MAX];
};

/* Under the lock. Waits for work; NULL: the end. */
static struct work *take(struct workers *ws)
{
	struct work *w;

	ws->nidle++;
	while (!ws->first && !ws->quit)
		pthread_cond_wait(&ws->more, &ws->lock);
	ws->nidle--;
	w = ws->first;
	if (w) {
		ws->nwork--;
		ws->first = w->next;
		if (!ws->first)
			ws->end = &ws->first;
	}
	return w;
}

static void *worker(void *arg)
{
	struct workers *ws = arg;
	struct work *w;

	loop_thread_left();
	pthread_mutex_lock(&ws->lock);
	while ((w = take(ws))) {
		pthread_mutex_unlock(&ws->lock);
		w->run(w);
		pthread_mutex_lock(&ws->lock);
	}
	pthread_mutex_unlock(&ws->lock);
	return NULL;
}

/* Under the lock. Signals are for other threads. */
static void add_thread(struct workers *ws)
{
	sigset_t all, old;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	if (!pthread_create(&ws->thread[ws->nthreads], NULL, worker, ws))
		ws->nthreads++;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

bool workers_give(struct workers *ws, struct work *w)
{
	bool ok;

	pthread_mutex_lock(&ws->lock);
	/* One that was woken for earlier work may not have come to it yet: so count work, too. */
	if (ws->nwork >= ws->nidle && ws->nthreads < ws->max)
		add_thread(ws);
	ok = ws->nthreads;
	if (ok) {
		w->next = NULL;
		*ws->end = w;
		ws->end = &w->next;
		ws->nwork++;
		pthread_cond_signal(&ws->more);
	}
	pthread_mutex_unlock(&ws->lock);
	return ok;
}

struct workers *workers_new(unsigned max)
{
	struct workers *ws = calloc(1, sizeof(*ws));

	assert(max && max <= WORKERS_MAX);
	if (!ws)
		return NULL;
	ws->max = max;
	ws->end = &ws->first;
	pthread_mutex_init(&ws->lock, NULL);
	pthread_cond_init(&ws->more, NULL);
	return ws;
}

void workers_free(struct workers *ws)
{
	if (!ws)
		return;
	pthread_mutex_lock(&ws->lock);
	assert(!ws->first);
	ws->quit = true;
	pthread_cond_broadcast(&ws->more);
	pthread_mutex_unlock(&ws->lock);
	for (unsigned i = 0; i < ws->nthreads; i++)
		pthread_join(ws->thread[i], NULL);
	pthread_cond_destroy(&ws->more);
	pthread_mutex_destroy(&ws->lock);
	free(ws);
}
