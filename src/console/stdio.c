// SPDX-License-Identifier: GPL-2.0-or-later
#include "console/stdio.h"

#include "base/container_of.h"
#include "base/evt.h"
#include "base/log.h"
#include "base/loop.h"
#include "console/con_impl.h"
#include "console/escape.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

/*
 * How it works
 *
 * Output. con_send() copies into a ring of 64 KiB under a leaf lock and drops
 * what does not fit. One thread, the writer, takes it from there with blocking
 * write(2): O_NONBLOCK would be seen by every process that shares the open
 * file. A chunk stays in the ring until it is written, so the writer copies
 * nothing, and an empty ring starts again at its beginning, so that a quiet
 * guest touches one page of it.
 *
 * The writer is woken for a whole line, for 256 bytes, or by the first byte
 * after a silence; anything else waits for up to 2 ms to be written together.
 * A guest that writes byte by byte thus costs one wake-up per line.
 *
 * A failed write means that nobody reads any more: the VM lives, its output
 * goes to the tail only. The writer has all signals blocked, so that neither
 * SIGPIPE nor SIGTTOU (a background job on a terminal with tostop) ends or
 * stops the process, whatever the dispositions are.
 *
 * The writer ends by a flag. As it may be inside write(2) for ever, or just on
 * its way into it, stdio_free() sends it a signal that does nothing but
 * interrupt, again and again until the writer says that it has seen the flag.
 *
 * Input. Descriptor 0 is polled only while the device has room, and read for
 * at most that, so a flood stays where it comes from. A terminal is the
 * exception: there up to IN_SIZE bytes are read ahead, or else ^A x would not
 * be seen once a hung guest has left 16 typed bytes in its FIFO. Only a
 * terminal has the escape key.
 *
 * con_more() must be cheap, since a UART calls it for every byte the guest
 * takes. So @starved is set before the device is asked for its room; whoever
 * makes room afterwards sees it. This needs the room to change under a lock
 * that room() takes too, or to be a seq_cst atomic.
 *
 * The terminal is raw only while we are in its foreground. Nobody tells a
 * running background job that it was brought to the foreground (the shell's
 * `fg` sends SIGCONT only to stopped ones), so meanwhile a timer looks. A
 * terminal without job control for us (not our controlling terminal: `su -c`,
 * a test's pty) has no foreground and counts as ours.
 *
 * Other threads reach the loop through an eventfd rather than loop_post(): a
 * posted task cannot be taken back, and stdio_free() may come at any time.
 *
 * Not done: another process reading the same descriptor 0 may take a byte
 * between poll and read, and the loop waits for the next one.
 */

#define OUT_SIZE           65536u
#define OUT_CHUNK          4096u /* also the most that a reader's progress lags behind in the ring */
#define OUT_BATCH          256u
#define OUT_LINGER_NS      2000000u
#define IN_SIZE            4096u
#define FOREGROUND_POLL_NS 500000000u
#define WRITER_STACK       65536u

/* Interrupts the writer; the vCPUs' kick is SIGRTMIN. */
#define WRITER_SIGNAL (SIGRTMIN + 1)

struct output {
	pthread_t thread;     /* [c] */
	int event;            /* [c] how the writer reaches the loop */
	pthread_mutex_t lock; /* a leaf */
	pthread_cond_t wake;  /* for the writer */
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

/* [l], except @starved */
struct input {
	struct loop_fd fd;
	struct escape escape;
	bool tty;
	bool started;
	bool ours; /* not a terminal, or one that we are in the foreground of */
	bool ended;
	atomic_bool starved; /* con_more() shall wake the loop */
	size_t len;
	uint8_t buf[IN_SIZE]; /* read, not yet taken */
};

struct stdio {
	struct con con;
	struct loop *loop;        /* [c] */
	struct stdio_hooks hooks; /* [c] */
	struct output out;
	struct input in;
	struct loop_fd event;          /* [l] */
	struct loop_timer foreground;  /* [l] */
	void (*drained)(void *opaque); /* [l] */
	void *drained_opaque;          /* [l] */
	bool told;                     /* [l] that nobody reads */
};

/*
 * The terminal. Its settings must be given back by atexit() and in a fatal
 * signal's handler, which have no argument: hence a variable of the file.
 */
static struct {
	struct termios cooked;    /* constant while @raw */
	struct termios raw_mode;  /* the same */
	atomic_bool raw;          /* @cooked is to be given back */
	pid_t owner;              /* a forked child's exit() is none of the terminal's business */
	bool guarded;             /* the handlers are in place */
	struct sigaction next[5]; /* the fatal signals' actions before ours */
} terminal;

static const int fatal_signals[] = { SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL };

/* From the background this stops us by SIGTTOU, unless it is blocked. Async-signal-safe. */
static void terminal_set(const struct termios *t)
{
	sigset_t ttou, old;

	sigemptyset(&ttou);
	sigaddset(&ttou, SIGTTOU);
	pthread_sigmask(SIG_BLOCK, &ttou, &old);
	/* Not TCSADRAIN: a terminal that was stopped by ^S or has no reader would never drain. */
	while (tcsetattr(STDIN_FILENO, TCSANOW, t) < 0 && errno == EINTR)
		;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static bool terminal_is_ours(void)
{
	pid_t pgrp = tcgetpgrp(STDIN_FILENO);

	return pgrp < 0 || pgrp == getpgrp();
}

/* Nobody has changed the settings since terminal_make_raw(). */
static bool terminal_is_as_left(void)
{
	const struct termios *left = &terminal.raw_mode;
	struct termios now;

	return tcgetattr(STDIN_FILENO, &now) == 0 && now.c_iflag == left->c_iflag && now.c_oflag == left->c_oflag &&
	       now.c_lflag == left->c_lflag;
}

/*
 * Async-signal-safe; does something only once. From the background (we were
 * stopped by SIGSTOP, say) the terminal is touched only if no shell has
 * already set it up for itself.
 */
static void terminal_restore(void)
{
	if (getpid() != terminal.owner || !atomic_exchange(&terminal.raw, false))
		return;
	if (terminal_is_ours() || terminal_is_as_left())
		terminal_set(&terminal.cooked);
	log_set_raw(false);
}

/* Gives the terminal back, then lets the signal do what it would have done. */
static void on_fatal(int sig)
{
	terminal_restore();
	for (size_t i = 0; i < sizeof(fatal_signals) / sizeof(fatal_signals[0]); i++)
		if (fatal_signals[i] == sig)
			sigaction(sig, &terminal.next[i], NULL);
	raise(sig); /* blocked here: it comes when we return */
}

static void terminal_guard(void)
{
	struct sigaction sa = { .sa_handler = on_fatal, .sa_flags = SA_ONSTACK };
	static bool at_exit;

	if (terminal.guarded)
		return;
	terminal.guarded = true;
	terminal.owner = getpid();
	for (size_t i = 0; i < sizeof(fatal_signals) / sizeof(fatal_signals[0]); i++)
		sigaction(fatal_signals[i], &sa, &terminal.next[i]);
	if (!at_exit)
		at_exit = atexit(terminal_restore) == 0;
}

static void terminal_unguard(void)
{
	terminal_restore();
	if (!terminal.guarded)
		return;
	terminal.guarded = false;
	for (size_t i = 0; i < sizeof(fatal_signals) / sizeof(fatal_signals[0]); i++)
		sigaction(fatal_signals[i], &terminal.next[i], NULL);
}

/* Output is raw too: the guest sends its own carriage returns, and a full-screen program no others. */
static void terminal_make_raw(void)
{
	struct termios *raw = &terminal.raw_mode;

	terminal_guard();
	if (!atomic_load(&terminal.raw)) {
		if (tcgetattr(STDIN_FILENO, &terminal.cooked) < 0)
			return;
		*raw = terminal.cooked;
		cfmakeraw(raw);
		raw->c_cc[VMIN] = 1;
		raw->c_cc[VTIME] = 0;
		atomic_store(&terminal.raw, true);
	}
	terminal_set(raw);
	log_set_raw(true);
}

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
static void writer_linger(struct output *o)
{
	struct timespec until = in_ns(OUT_LINGER_NS);
	int error = 0;

	while (!error && !o->hurry && !o->quit)
		error = pthread_cond_timedwait(&o->wake, &o->lock, &until);
}

static void writer_sleep(struct output *o)
{
	o->asleep = true;
	while (!o->len && !o->quit)
		pthread_cond_wait(&o->wake, &o->lock);
	o->asleep = false;
}

/* Lingering comes first: in a burst, one byte by one, no byte has to wake us. */
static void writer_wait(struct output *o)
{
	writer_linger(o);
	if (o->len)
		return;
	writer_sleep(o);
	writer_linger(o);
}

/* Returns what was written, 0 after a signal, or -errno. */
static ssize_t write_some(const uint8_t *buf, size_t n)
{
	struct pollfd p = { .fd = STDOUT_FILENO, .events = POLLOUT };
	ssize_t w = write(STDOUT_FILENO, buf, n);

	if (w >= 0)
		return w;
	if (errno == EAGAIN)
		poll(&p, 1, -1); /* another process made it nonblocking */
	else if (errno != EINTR)
		return -errno;
	return 0;
}

/* Accounts for @w of @n bytes written. */
static void writer_wrote(struct output *o, ssize_t w, size_t n)
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

static void writer_write(struct output *o)
{
	size_t n = o->len < OUT_CHUNK ? o->len : OUT_CHUNK;
	const uint8_t *chunk = o->ring + o->start;
	ssize_t w;

	if (n > OUT_SIZE - o->start)
		n = OUT_SIZE - o->start;
	o->hurry = o->len > n; /* the rest follows at once */
	pthread_mutex_unlock(&o->lock);
	w = write_some(chunk, n);
	pthread_mutex_lock(&o->lock);
	writer_wrote(o, w, n);
}

static void *writer_main(void *opaque)
{
	struct output *o = opaque;

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

/* All signals blocked but ours and those that a fault raises: blocked ones would kill without a handler. */
static void writer_sigmask(sigset_t *set)
{
	sigfillset(set);
	sigdelset(set, WRITER_SIGNAL);
	for (size_t i = 0; i < sizeof(fatal_signals) / sizeof(fatal_signals[0]); i++)
		sigdelset(set, fatal_signals[i]);
}

/* Returns 0 or -errno. */
static int writer_start(struct output *o)
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

static void writer_stop(struct output *o)
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

static void output_init(struct output *o, int event)
{
	pthread_condattr_t attr;

	o->event = event;
	pthread_mutex_init(&o->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&o->wake, &attr);
	pthread_cond_init(&o->end, &attr);
	pthread_condattr_destroy(&attr);
}

static void output_destroy(struct output *o)
{
	pthread_cond_destroy(&o->end);
	pthread_cond_destroy(&o->wake);
	pthread_mutex_destroy(&o->lock);
}

/* Copies in what fits and returns how much. */
static size_t ring_put(struct output *o, const uint8_t *buf, size_t n)
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

static void stdio_send(struct con *con, const uint8_t *buf, size_t n)
{
	struct output *o = &container_of(con, struct stdio, con)->out;
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

static size_t stdio_space(struct con *con, size_t want)
{
	struct output *o = &container_of(con, struct stdio, con)->out;
	size_t space;

	pthread_mutex_lock(&o->lock);
	space = o->error ? want : OUT_SIZE - o->len;
	o->crowded = space < want;
	pthread_mutex_unlock(&o->lock);
	return space < want ? space : want;
}

/* Tells once that nobody reads; calls back when there is space again, and once all is written. */
static void output_check(struct stdio *s)
{
	struct output *o = &s->out;
	bool drained, spacious;
	int error;

	pthread_mutex_lock(&o->lock);
	error = o->error;
	drained = o->draining && !o->len;
	if (drained)
		o->draining = false;
	spacious = o->crowded && (error || o->len <= OUT_SIZE / 2);
	if (spacious)
		o->crowded = false;
	pthread_mutex_unlock(&o->lock);
	if (spacious && s->con.client.spacious)
		s->con.client.spacious(s->con.client.dev);
	if (error && !s->told) {
		s->told = true;
		log_line("standard output: %s: console output is discarded from now on", strerror(error));
	}
	if (drained)
		s->drained(s->drained_opaque); /* may free @s */
}

/* How much to read now. */
static size_t input_want(struct stdio *s)
{
	struct input *in = &s->in;
	size_t room;

	if (!in->started || !in->ours || in->ended)
		return 0;
	if (in->tty)
		return IN_SIZE - in->len - in->escape.held; /* a ^A held back may come out of it */
	room = con_room(&s->con);
	if (room > IN_SIZE)
		room = IN_SIZE;
	return room > in->len ? room - in->len : 0;
}

static void input_deliver(struct stdio *s)
{
	struct input *in = &s->in;
	uint8_t buf[IN_SIZE];
	size_t n;

	while (in->started && in->len && (n = con_room(&s->con))) {
		if (n > in->len)
			n = in->len;
		/* Out of the buffer first: recv() may come back to us. */
		memcpy(buf, in->buf, n);
		in->len -= n;
		memmove(in->buf, in->buf + n, in->len);
		con_recv(&s->con, buf, n);
	}
}

/* Hands over what the device takes, then polls if more is wanted, or waits for con_more(). */
static void input_pump(struct stdio *s)
{
	struct input *in = &s->in;
	bool want;

	assert(loop_here(s->loop));
	atomic_store(&in->starved, true); /* before room() is asked */
	input_deliver(s);
	want = input_want(s) > 0;
	if (want && !in->len)
		atomic_store(&in->starved, false);
	in->fd.events = want ? POLLIN : 0;
}

/* Later, from the loop: the device may be half built yet. */
static void stdio_attached(struct con *con)
{
	evt_signal(container_of(con, struct stdio, con)->out.event);
}

static void stdio_more(struct con *con)
{
	struct stdio *s = container_of(con, struct stdio, con);

	if (atomic_load(&s->in.starved) && atomic_exchange(&s->in.starved, false))
		evt_signal(s->out.event);
}

static void print_help(void)
{
	log_line("^A x  end the VM");
	log_line("^A ^A  send ^A to the guest");
	log_line("^A h  this help");
}

/* Takes @n bytes read. Returns whether the user wants an end. */
static bool input_feed(struct input *in, const uint8_t *buf, size_t n)
{
	bool end = false;

	for (size_t i = 0; i < n; i++) {
		uint8_t out[2] = { buf[i] };
		size_t nout = 1;
		enum escape_action action = in->tty ? escape_feed(&in->escape, buf[i], out, &nout) : ESCAPE_NONE;

		assert(in->len + nout <= IN_SIZE);
		memcpy(in->buf + in->len, out, nout);
		in->len += nout;
		end |= action == ESCAPE_END;
		if (action == ESCAPE_HELP)
			print_help();
	}
	return end;
}

/* The terminal becomes raw, or it is watched until we are in its foreground. */
static void input_acquire(struct stdio *s)
{
	s->in.ours = !s->in.tty || terminal_is_ours();
	if (!s->in.ours) {
		terminal_restore();
		loop_timer_set(s->loop, &s->foreground, FOREGROUND_POLL_NS);
	} else if (s->in.tty) {
		terminal_make_raw();
	}
	input_pump(s);
}

/* Nothing was read: a passing matter, the terminal is somebody else's now, or this is the end. */
static void input_none(struct stdio *s, int error)
{
	if (error == EINTR || error == EAGAIN)
		return;
	if (error == EIO && s->in.tty && !terminal_is_ours()) {
		input_acquire(s);
		return;
	}
	s->in.ended = true;
}

static void input_ready(struct loop_fd *f, short revents)
{
	struct stdio *s = container_of(f, struct stdio, in.fd);
	uint8_t buf[IN_SIZE];
	bool end = false;
	size_t want;
	ssize_t n;

	if (s->in.tty && !terminal_is_ours()) {
		input_acquire(s); /* reading would stop us by SIGTTIN */
		return;
	}
	want = input_want(s);
	if (want) {
		n = read(STDIN_FILENO, buf, want);
		if (n > 0)
			end = input_feed(&s->in, buf, (size_t)n);
		else
			input_none(s, n < 0 ? errno : 0);
	}
	input_pump(s);
	if (end)
		s->hooks.end(s->hooks.opaque); /* may free @s */
}

static void foreground_tick(struct loop_timer *t)
{
	input_acquire(container_of(t, struct stdio, foreground));
}

static void event_ready(struct loop_fd *f, short revents)
{
	struct stdio *s = container_of(f, struct stdio, event);
	uint64_t count;
	ssize_t n = read(f->fd, &count, sizeof(count));

	(void)n; /* nonblocking; empty is as good */
	input_pump(s);
	output_check(s);
}

static const struct con_ops stdio_ops = {
	.attached = stdio_attached,
	.send = stdio_send,
	.space = stdio_space,
	.more = stdio_more,
};

/* Registers all with the loop and starts the writer. */
static int stdio_init(struct stdio *s, struct loop *loop, const struct stdio_hooks *hooks, int event)
{
	s->loop = loop;
	s->hooks = *hooks;
	s->in.tty = isatty(STDIN_FILENO);
	s->in.fd = (struct loop_fd){ .fd = STDIN_FILENO, .cb = input_ready };
	s->event = (struct loop_fd){ .fd = event, .events = POLLIN, .cb = event_ready };
	s->foreground.cb = foreground_tick;
	output_init(&s->out, event);
	return writer_start(&s->out);
}

int stdio_new(struct loop *loop, const struct stdio_hooks *hooks, struct con **out, struct err *err)
{
	struct stdio *s = calloc(1, sizeof(*s));
	int event, error;

	if (!s || con_init(&s->con, &stdio_ops) < 0) {
		free(s);
		return err_set(err, -ENOMEM, "console: out of memory");
	}
	event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	error = event < 0 ? -errno : stdio_init(s, loop, hooks, event);
	if (error) {
		if (event >= 0)
			close(event);
		con_destroy(&s->con);
		free(s);
		return err_sys(err, error, "console");
	}
	loop_fd_add(loop, &s->event);
	loop_fd_add(loop, &s->in.fd);
	*out = &s->con;
	return 0;
}

void stdio_start(struct con *con)
{
	struct stdio *s = container_of(con, struct stdio, con);

	s->in.started = true;
	input_acquire(s);
}

void stdio_suspend(struct con *con)
{
	struct stdio *s = container_of(con, struct stdio, con);

	if (!s->in.tty)
		return;
	loop_timer_del(s->loop, &s->foreground);
	s->in.ours = false;
	terminal_restore();
	input_pump(s);
}

void stdio_resume(struct con *con)
{
	struct stdio *s = container_of(con, struct stdio, con);

	if (s->in.started)
		input_acquire(s);
}

void stdio_drain(struct con *con, void (*done)(void *opaque), void *opaque)
{
	struct stdio *s = container_of(con, struct stdio, con);
	struct output *o = &s->out;

	assert(loop_here(s->loop));
	s->drained = done;
	s->drained_opaque = opaque;
	pthread_mutex_lock(&o->lock);
	o->draining = true;
	o->hurry = true;
	pthread_mutex_unlock(&o->lock);
	pthread_cond_signal(&o->wake);
	evt_signal(o->event); /* the ring may be empty already */
}

/* The last words. What is still in the ring is as lost as what never got there. */
static void output_report(struct stdio *s)
{
	struct output *o = &s->out;
	uint64_t lost = o->dropped + o->len;

	o->draining = false;
	output_check(s);
	if (lost)
		log_line("%llu bytes of console output were dropped: the reader was too slow",
		         (unsigned long long)lost);
}

void stdio_free(struct con *con)
{
	struct stdio *s;

	if (!con)
		return;
	s = container_of(con, struct stdio, con);
	assert(loop_here(s->loop));
	writer_stop(&s->out);
	terminal_unguard();
	loop_timer_del(s->loop, &s->foreground);
	loop_fd_del(s->loop, &s->in.fd);
	loop_fd_del(s->loop, &s->event);
	close(s->event.fd);
	output_report(s);
	output_destroy(&s->out);
	con_destroy(&s->con);
	free(s);
}
