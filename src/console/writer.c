// SPDX-License-Identifier: GPL-2.0-or-later
#include "console/writer.h"

#include "base/evt.h"
#include "console/terminal.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/*
 * How it works
 *
 * writer_put() copies into a ring of 64 KiB under a leaf lock and drops what
 * does not fit. One thread takes it from there with blocking write(2):
 * O_NONBLOCK would be seen by every process that shares the open file. A chunk
 * stays in the ring until it is written, so the thread copies nothing, and an
 * empty ring starts again at its beginning, so that a quiet guest touches one
 * page of it.
 *
 * The thread is woken for a whole line, for 256 bytes, or by the first byte
 * after a silence; anything else waits for up to 2 ms to be written together.
 * A guest that writes byte by byte thus costs one wake-up per line.
 *
 * The thread has all signals blocked, so that neither SIGPIPE nor SIGTTOU (a
 * background job on a terminal with tostop) ends or stops the process,
 * whatever the dispositions are.
 *
 * It ends by a flag. As it may be inside write(2) for ever, or just on its way
 * into it, writer_free() sends it a signal that does nothing but interrupt,
 * again and again until it says that it has seen the flag.
 */

#define OUT_SIZE      WRITER_SIZE
#define OUT_CHUNK     4096u /* also the most that a reader's progress lags behind in the ring */
#define OUT_BATCH     256u
#define OUT_LINGER_NS 2000000u
#define WRITER_STACK  65536u

/* Interrupts the writer; the vCPUs' kick is SIGRTMIN. */
#define WRITER_SIGNAL (SIGRTMIN + 1)

struct writer {
	int fd;               /* [c] */
	pthread_t thread;     /* [c] */
	int event;            /* [c] tells the owner to call writer_check() */
	pthread_mutex_t lock; /* a leaf */
	pthread_cond_t wake;  /* for the thread */
	pthread_cond_t end;   /* @ended */

	/* [m] */
	size_t start, len; /* what the ring holds, the chunk being written included */
	uint64_t dropped;
	int error;     /* of the write that failed; from then on all is discarded */
	bool asleep;   /* the writer waits for any byte at all */
	bool hurry;    /* what is there is to be written now */
	bool draining; /* the loop wants to know when the ring is empty */
	bool crowded;  /* the loop wants to know when the ring is half empty */
	bool quit, ended;

	uint8_t ring[OUT_SIZE]; /* [m], except the chunk being written */
};

static struct timespec in_ns(long ns)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	ts.tv_nsec += ns;
	if (ts.tv_nsec >= 1000000000) {
		ts.tv_nsec -= 1000000000;
		ts.tv_sec++;
	}
	return ts;
}

/* Waits until there is a hurry, at most 2 ms. */
static void writer_linger(struct writer *o)
{
	struct timespec until = in_ns(OUT_LINGER_NS);
	int error = 0;

	while (!error && !o->hurry && !o->quit)
		error = pthread_cond_timedwait(&o->wake, &o->lock, &until);
}

static void writer_sleep(struct writer *o)
{
	o->asleep = true;
	while (!o->len && !o->quit)
		pthread_cond_wait(&o->wake, &o->lock);
	o->asleep = false;
}

/* Lingering comes first: in a burst, one byte by one, no byte has to wake us. */
static void writer_wait(struct writer *o)
{
	writer_linger(o);
	if (o->len)
		return;
	writer_sleep(o);
	writer_linger(o);
}

/* Returns what was written, 0 after a signal, or -errno. */
static ssize_t write_some(int fd, const uint8_t *buf, size_t n)
{
	struct pollfd p = { .fd = fd, .events = POLLOUT };
	ssize_t w = write(fd, buf, n);

	if (w >= 0)
		return w;
	if (errno == EAGAIN)
		poll(&p, 1, -1); /* another process made it nonblocking */
	else if (errno != EINTR)
		return -errno;
	return 0;
}

/* Accounts for @w of @n bytes written. */
static void writer_wrote(struct writer *o, ssize_t w, size_t n)
{
	if (w < 0) {
		o->error = (int)-w;
		o->len = 0;
	} else {
		o->start = (o->start + (size_t)w) % OUT_SIZE;
		o->len -= (size_t)w;
		if ((size_t)w < n)
			o->hurry = true;
	}
	if (!o->len)
		o->start = 0;
	if (o->error || (!o->len && o->draining) || (o->len <= OUT_SIZE / 2 && o->crowded))
		evt_signal(o->event);
}

static void writer_write(struct writer *o)
{
	size_t n = o->len < OUT_CHUNK ? o->len : OUT_CHUNK;
	const uint8_t *chunk = o->ring + o->start;
	ssize_t w;

	if (n > OUT_SIZE - o->start)
		n = OUT_SIZE - o->start;
	o->hurry = o->len > n; /* the rest follows at once */
	pthread_mutex_unlock(&o->lock);
	w = write_some(o->fd, chunk, n);
	pthread_mutex_lock(&o->lock);
	writer_wrote(o, w, n);
}

static void *writer_main(void *opaque)
{
	struct writer *o = opaque;

	pthread_mutex_lock(&o->lock);
	while (!o->quit) {
		writer_wait(o);
		if (o->len && !o->quit)
			writer_write(o);
	}
	o->ended = true;
	pthread_cond_signal(&o->end);
	pthread_mutex_unlock(&o->lock);
	return NULL;
}

static void on_writer_signal(int sig)
{
}

/* All signals blocked but ours and those that a fault raises. */
static void writer_sigmask(sigset_t *set)
{
	sigfillset(set);
	sigdelset(set, WRITER_SIGNAL);
	for (size_t i = 0; i < N_FATAL_SIGNALS; i++)
		sigdelset(set, fatal_signals[i]);
}

/* Returns 0 or -errno. */
static int writer_start(struct writer *o)
{
	struct sigaction sa = { .sa_handler = on_writer_signal }; /* no SA_RESTART: it shall interrupt */
	sigset_t mask, old;
	pthread_attr_t attr;
	int error;

	sigaction(WRITER_SIGNAL, &sa, NULL);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, WRITER_STACK);
	writer_sigmask(&mask);
	pthread_sigmask(SIG_SETMASK, &mask, &old); /* inherited: there is no moment without it */
	error = pthread_create(&o->thread, &attr, writer_main, o);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	return -error;
}

static void writer_stop(struct writer *o)
{
	pthread_mutex_lock(&o->lock);
	o->quit = true;
	pthread_cond_signal(&o->wake);
	while (!o->ended) {
		struct timespec until = in_ns(1000000);

		pthread_kill(o->thread, WRITER_SIGNAL);
		pthread_cond_timedwait(&o->end, &o->lock, &until);
	}
	pthread_mutex_unlock(&o->lock);
	pthread_join(o->thread, NULL);
}

/* Copies in what fits and returns how much. */
static size_t ring_put(struct writer *o, const uint8_t *buf, size_t n)
{
	size_t at = (o->start + o->len) % OUT_SIZE, part = OUT_SIZE - at;

	if (n > OUT_SIZE - o->len)
		n = OUT_SIZE - o->len;
	if (part > n)
		part = n;
	memcpy(o->ring + at, buf, part);
	memcpy(o->ring, buf + part, n - part);
	o->len += n;
	return n;
}

void writer_put(struct writer *o, const uint8_t *buf, size_t n)
{
	bool wake = false;

	pthread_mutex_lock(&o->lock);
	if (!o->error) {
		o->dropped += n - ring_put(o, buf, n);
		wake = o->asleep;
		o->asleep = false;
		if (!o->hurry && (o->len >= OUT_BATCH || memchr(buf, '\n', n)))
			wake = o->hurry = true;
	}
	pthread_mutex_unlock(&o->lock);
	if (wake)
		pthread_cond_signal(&o->wake);
}

size_t writer_space(struct writer *o, size_t want)
{
	size_t space;

	pthread_mutex_lock(&o->lock);
	space = o->error ? want : OUT_SIZE - o->len;
	o->crowded = space < want;
	pthread_mutex_unlock(&o->lock);
	return space < want ? space : want;
}

void writer_check(struct writer *o, struct writer_news *news)
{
	pthread_mutex_lock(&o->lock);
	news->error = o->error;
	news->drained = o->draining && !o->len;
	if (news->drained)
		o->draining = false;
	news->spacious = o->crowded && (o->error || o->len <= OUT_SIZE / 2);
	if (news->spacious)
		o->crowded = false;
	pthread_mutex_unlock(&o->lock);
}

void writer_drain(struct writer *o)
{
	pthread_mutex_lock(&o->lock);
	o->draining = true;
	o->hurry = true;
	pthread_mutex_unlock(&o->lock);
	pthread_cond_signal(&o->wake);
	evt_signal(o->event); /* the ring may be empty already */
}

static void destroy(struct writer *o)
{
	pthread_cond_destroy(&o->end);
	pthread_cond_destroy(&o->wake);
	pthread_mutex_destroy(&o->lock);
	free(o);
}

int writer_new(int fd, int event, struct writer **out)
{
	struct writer *o = calloc(1, sizeof(*o));
	pthread_condattr_t attr;
	int error;

	if (!o)
		return -ENOMEM;
	o->fd = fd;
	o->event = event;
	pthread_mutex_init(&o->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&o->wake, &attr);
	pthread_cond_init(&o->end, &attr);
	pthread_condattr_destroy(&attr);
	error = writer_start(o);
	if (error)
		destroy(o);
	else
		*out = o;
	return error;
}

uint64_t writer_free(struct writer *o, int *error)
{
	uint64_t lost;

	writer_stop(o);
	*error = o->error;
	lost = o->dropped + o->len; /* what is still in the ring is as lost as what never got there */
	destroy(o);
	return lost;
}
