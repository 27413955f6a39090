// SPDX-License-Identifier: GPL-2.0-or-later
#include "base/loop.h"
#include "console/con.h"
#include "console/con_impl.h"
#include "console/escape.h"
#include "console/stdio.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cmocka.h>

/*
 * How it works
 *
 * The console owns descriptors 0 and 1, and the log 2: every test puts its
 * own pipes, files or terminals there, and the teardown puts the old ones back
 * before cmocka prints. The test's thread is the loop's; readers, writers and
 * the device's vCPU are threads that never assert, but leave their result to
 * be looked at after they are joined. Whether something spins is seen by
 * counting the loop's calls of ppoll(2) between ticks of a timer.
 */

#define MIB 1048576u

static struct {
	int saved[3];
	struct loop *loop;
	struct con *con;
	unsigned ended; /* the end hook's calls */
} t;

static atomic_uint turns;

/* The loop's, counted. */
int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
	struct timespec left, *tsp = NULL;

	atomic_fetch_add(&turns, 1);
	if (timeout) {
		left = *timeout;
		tsp = &left;
	}
	return (int)syscall(SYS_ppoll, fds, n, tsp, mask, (size_t)8);
}

static void on_end(void *opaque)
{
	t.ended++;
	loop_quit(t.loop);
}

static void put_fd(int fd, int as)
{
	assert_int_equal(dup2(fd, as), as);
	close(fd);
}

static void new_con(void)
{
	struct stdio_config sc = {
		.loop = t.loop, .in = 0, .out = 1, .terminal = isatty(0), .hooks = { .end = on_end }
	};
	struct err err = { .msg = "" };

	assert_int_equal(stdio_new(&sc, &t.con, &err), 0);
}

static int setup(void **state)
{
	struct err err;

	for (int i = 0; i < 3; i++)
		t.saved[i] = fcntl(i, F_DUPFD_CLOEXEC, 10);
	put_fd(open("/dev/null", O_RDONLY), 0);
	put_fd(open("/dev/null", O_WRONLY), 1);
	put_fd(memfd_create("stderr", MFD_CLOEXEC), 2);
	t.con = NULL;
	t.ended = 0;
	return loop_new(&t.loop, &err);
}

static void free_con(void)
{
	stdio_free(t.con);
	t.con = NULL;
}

static int teardown(void **state)
{
	free_con();
	loop_free(t.loop);
	for (int i = 0; i < 3; i++) {
		fflush(NULL);
		dup2(t.saved[i], i);
		close(t.saved[i]);
	}
	return 0;
}

static void run(void)
{
	assert_int_equal(loop_run(t.loop), 0);
}

/* What log_line() said so far. */
static const char *said(void)
{
	static char buf[4096];
	ssize_t n = pread(2, buf, sizeof(buf) - 1, 0);

	buf[n > 0 ? n : 0] = '\0';
	return buf;
}

static unsigned times_said(const char *what)
{
	unsigned n = 0;

	for (const char *p = said(); (p = strstr(p, what)); p++)
		n++;
	return n;
}

static unsigned long dropped_said(void)
{
	const char *p = strstr(said(), " bytes of console output were dropped");

	if (!p)
		return 0;
	while (p > said() && p[-1] >= '0' && p[-1] <= '9')
		p--;
	return strtoul(p, NULL, 10);
}

static uint8_t *pattern(size_t n)
{
	uint8_t *p = malloc(n);
	uint32_t x = 2463534242u;

	assert_non_null(p);
	for (size_t i = 0; i < n; i++) {
		x ^= x << 13;
		x ^= x >> 17;
		x ^= x << 5;
		p[i] = (uint8_t)x;
	}
	return p;
}

static void on_drained(void *opaque)
{
	++*(unsigned *)opaque;
	loop_quit(t.loop);
}

static void drain(void)
{
	unsigned done = 0;

	stdio_drain(t.con, on_drained, &done);
	assert_int_equal(done, 0); /* never from inside */
	run();
	assert_int_equal(done, 1);
}

/* Runs the loop for @n ticks and returns how often it turned. */
struct ticker {
	struct loop_timer timer;
	unsigned left;
};

static void on_tick(struct loop_timer *timer)
{
	struct ticker *k = (struct ticker *)timer;

	if (k->left--)
		loop_timer_set(t.loop, timer, 1000000);
	else
		loop_quit(t.loop);
}

static unsigned run_ticks(unsigned n)
{
	struct ticker k = { .timer.cb = on_tick, .left = n };

	atomic_store(&turns, 0);
	loop_timer_set(t.loop, &k.timer, 0);
	run();
	return atomic_load(&turns);
}

/* An idle loop turns once a tick; an event or two may come in between. */
static void assert_idle(void)
{
	run_ticks(3);
	assert_in_range(run_ticks(20), 0, 30);
}

/*
 * Somebody who reads what the console writes. Gated: only from reader_go() on.
 */
struct reader {
	int fd;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool gated;
	size_t step, n, max;
	uint8_t *buf;
};

static void *reader_main(void *opaque)
{
	struct reader *r = opaque;
	ssize_t n;

	pthread_mutex_lock(&r->lock);
	while (r->gated)
		pthread_cond_wait(&r->cond, &r->lock);
	pthread_mutex_unlock(&r->lock);
	while (r->n < r->max &&
	       (n = read(r->fd, r->buf + r->n, r->step < r->max - r->n ? r->step : r->max - r->n)) > 0) {
		pthread_mutex_lock(&r->lock);
		r->n += (size_t)n;
		pthread_cond_signal(&r->cond);
		pthread_mutex_unlock(&r->lock);
	}
	return NULL;
}

static void reader_new(struct reader *r, int fd, size_t step, bool gated)
{
	*r = (struct reader){ .fd = fd, .step = step, .gated = gated, .max = 2 * MIB, .buf = malloc(2 * MIB) };
	pthread_mutex_init(&r->lock, NULL);
	pthread_cond_init(&r->cond, NULL);
	pthread_create(&r->thread, NULL, reader_main, r);
}

static void reader_go(struct reader *r)
{
	pthread_mutex_lock(&r->lock);
	r->gated = false;
	pthread_cond_signal(&r->cond);
	pthread_mutex_unlock(&r->lock);
}

static void reader_await(struct reader *r, size_t n)
{
	pthread_mutex_lock(&r->lock);
	while (r->n < n)
		pthread_cond_wait(&r->cond, &r->lock);
	pthread_mutex_unlock(&r->lock);
}

/* The console is gone and with it the last writer: all that was written has been read after this. */
static void reader_join(struct reader *r)
{
	put_fd(open("/dev/null", O_WRONLY), 1);
	pthread_join(r->thread, NULL);
	close(r->fd);
}

static void stdout_pipe(int *rd)
{
	int p[2];

	assert_int_equal(pipe2(p, O_CLOEXEC), 0);
	put_fd(p[1], 1);
	*rd = p[0];
}

/* A reader that keeps up misses nothing: never more than half a ring under way. */
static void out_keeps_up(void **state)
{
	uint8_t *data = pattern(MIB);
	struct reader r;
	size_t n;
	int rd;

	stdout_pipe(&rd);
	new_con();
	reader_new(&r, rd, 1000, false);
	for (size_t at = 0; at < MIB; at += n) {
		n = 1 + at % 7001;
		n = n < MIB - at ? n : MIB - at;
		con_send(t.con, data + at, n);
		if (at + n > 32768)
			reader_await(&r, at + n - 32768);
	}
	drain();
	free_con();
	reader_join(&r);
	assert_int_equal(r.n, MIB);
	assert_memory_equal(r.buf, data, MIB);
	assert_string_equal(said(), "");
	free(r.buf);
	free(data);
}

static void assert_tail(const uint8_t *data, size_t n)
{
	char *tail = malloc(2 * CON_TAIL);
	size_t have = con_tail(t.con, tail, 2 * CON_TAIL);

	assert_int_equal(have, n < CON_TAIL ? n : CON_TAIL);
	assert_memory_equal(tail, data + n - have, have);
	assert_int_equal(con_tail(t.con, tail, 5), 5);
	assert_memory_equal(tail, data + n - 5, 5);
	free(tail);
}

/* A slow one misses something, but all is accounted for, and the tail has the end. */
static void out_slow(void **state)
{
	uint8_t *data = pattern(MIB);
	struct reader r;
	int rd;

	stdout_pipe(&rd);
	new_con();
	reader_new(&r, rd, 512, true);
	for (size_t at = 0; at < MIB; at += 1024)
		con_send(t.con, data + at, 1024);
	assert_tail(data, MIB);
	reader_go(&r);
	drain();
	free_con();
	reader_join(&r);
	assert_in_range(r.n, 65536, MIB - 1);
	assert_memory_equal(r.buf, data, 65536);
	assert_int_equal(r.n + dropped_said(), MIB);
	assert_int_equal(times_said("dropped"), 1);
	free(r.buf);
	free(data);
}

/* With a reader in the midst of it, which bytes are dropped is anybody's guess, but not how many. */
static void out_racing(void **state)
{
	uint8_t *data = pattern(MIB);
	struct reader r;
	int rd;

	stdout_pipe(&rd);
	new_con();
	reader_new(&r, rd, 100, false);
	for (size_t at = 0; at < MIB; at += 64)
		con_send(t.con, data + at, 64);
	drain();
	free_con();
	reader_join(&r);
	assert_int_equal(r.n + dropped_said(), MIB);
	free(r.buf);
	free(data);
}

static size_t send_line(void)
{
	con_send(t.con, (const uint8_t *)"0123456789abcde\n", 16);
	return 16;
}

/* Sends until the pipe is full and the ring behind it, too. Returns how much. */
static size_t fill_pipe(void)
{
	static const uint8_t more[65536];
	struct pollfd p = { .fd = 1, .events = POLLOUT };
	size_t n = 0;

	while (poll(&p, 1, 0) == 1) {
		n += send_line();
		sched_yield();
	}
	con_send(t.con, more, sizeof(more));
	return n + sizeof(more);
}

static void forget_said(void)
{
	assert_int_equal(ftruncate(2, 0), 0);
	assert_int_equal(lseek(2, 0, SEEK_SET), 0);
}

/* Reads what the console left in the pipe. Returns how much. */
static size_t read_rest(int rd)
{
	struct reader r;

	reader_new(&r, rd, 65536, false);
	reader_join(&r);
	free(r.buf);
	return r.n;
}

/* Nobody reads and the writer is stuck in write(2): stdio_free() returns all the same. */
static void out_stopped(void **state)
{
	size_t sent;
	int rd;

	for (int i = 0; i < 20; i++) {
		forget_said();
		stdout_pipe(&rd);
		new_con();
		sent = fill_pipe();
		free_con();
		assert_int_equal(read_rest(rd) + dropped_said(), sent);
	}
}

/* The same at any other moment of the writer's. */
static void out_stopped_anywhere(void **state)
{
	size_t sent;
	int rd;

	for (unsigned i = 0; i < 200; i++) {
		forget_said();
		stdout_pipe(&rd);
		new_con();
		for (sent = 0; sent < i * 16;)
			sent += send_line();
		free_con();
		assert_int_equal(read_rest(rd) + dropped_said(), sent);
	}
}

static void assert_discarded(const char *why)
{
	struct sigaction sa;
	uint8_t *data = pattern(MIB);

	assert_int_equal(sigaction(SIGPIPE, NULL, &sa), 0);
	assert_true(sa.sa_handler == SIG_DFL);
	new_con();
	con_send(t.con, (const uint8_t *)"hello\n", 6);
	drain();
	con_send(t.con, data, MIB);
	drain();
	assert_tail(data, MIB);
	free_con();
	assert_int_equal(times_said(why), 1);
	assert_int_equal(times_said("\n"), 1);
	free(data);
}

static void out_broken_pipe(void **state)
{
	int rd;

	stdout_pipe(&rd);
	close(rd);
	assert_discarded("standard output: Broken pipe");
}

static void out_broken_socket(void **state)
{
	int p[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, p), 0);
	put_fd(p[1], 1);
	close(p[0]);
	assert_discarded("standard output: Broken pipe");
}

static void out_full_disk(void **state)
{
	put_fd(open("/dev/full", O_WRONLY), 1);
	assert_discarded("standard output: No space left on device");
}

/* The reader goes while the writer is stuck. */
static void out_breaks_later(void **state)
{
	int rd;

	stdout_pipe(&rd);
	new_con();
	fill_pipe();
	close(rd);
	drain();
	free_con();
	assert_int_equal(times_said("Broken pipe"), 1);
}

/* Somebody else may have made the descriptor nonblocking; we never do. */
static void out_nonblocking(void **state)
{
	uint8_t *data = pattern(65536);
	struct reader r;
	int rd;

	for (int nonblock = 0; nonblock < 2; nonblock++) {
		stdout_pipe(&rd);
		fcntl(1, F_SETPIPE_SZ, 4096);
		fcntl(1, F_SETFL, nonblock ? O_NONBLOCK : 0);
		new_con();
		reader_new(&r, rd, 999, true);
		con_send(t.con, data, 65536);
		reader_go(&r);
		drain();
		assert_int_equal(fcntl(1, F_GETFL) & O_NONBLOCK, nonblock ? O_NONBLOCK : 0);
		free_con();
		reader_join(&r);
		assert_int_equal(r.n, 65536);
		assert_memory_equal(r.buf, data, 65536);
		free(r.buf);
	}
	free(data);
}

static void out_file(void **state)
{
	uint8_t *data = pattern(60000), back[60001];
	int fd = memfd_create("stdout", MFD_CLOEXEC);

	assert_int_equal(dup2(fd, 1), 1);
	new_con();
	for (size_t at = 0; at < 60000; at++)
		con_send(t.con, data + at, 1);
	drain();
	assert_int_equal(pread(fd, back, sizeof(back), 0), 60000);
	assert_memory_equal(back, data, 60000);
	close(fd);
	free(data);
}

/* One echoed byte comes by itself: no newline, no drain. */
static void out_one_byte(void **state)
{
	char c;
	int rd;

	stdout_pipe(&rd);
	new_con();
	for (int i = 0; i < 100; i++) {
		if (i % 10 == 9)
			run_ticks(5); /* most likely the writer has gone to sleep by then; it must not matter */
		con_send(t.con, (const uint8_t *)"abcdefghij" + i % 10, 1);
		assert_int_equal(read(rd, &c, 1), 1);
		assert_int_equal(c, 'a' + i % 10);
	}
	close(rd);
}

static void free_in_drained(void *opaque)
{
	free_con();
	loop_quit(t.loop);
}

static void out_free_inside(void **state)
{
	new_con();
	con_send(t.con, (const uint8_t *)"x", 1);
	stdio_drain(t.con, free_in_drained, NULL);
	run();
	assert_null(t.con);
	run_ticks(1);
}

static void out_free_undrained(void **state)
{
	unsigned done = 0;

	new_con();
	stdio_drain(t.con, on_drained, &done);
	con_more(t.con);
	free_con();
	run_ticks(1);
	assert_int_equal(done, 0);
}

static void tail(void **state)
{
	uint8_t *data = pattern(3 * CON_TAIL);
	char c;

	new_con();
	assert_int_equal(con_tail(t.con, &c, 1), 0);
	con_send(t.con, data, 100);
	assert_tail(data, 100);
	con_send(t.con, data + 100, CON_TAIL - 100);
	assert_tail(data, CON_TAIL);
	con_send(t.con, data + CON_TAIL, 7);
	assert_tail(data, CON_TAIL + 7);
	con_send(t.con, data + CON_TAIL + 7, 2 * CON_TAIL - 7);
	assert_tail(data, 3 * CON_TAIL);
	con_tail_clear(t.con);
	assert_int_equal(con_tail(t.con, &c, 1), 0);
	con_send(t.con, data, 3 * CON_TAIL);
	assert_tail(data, 3 * CON_TAIL);
	free(data);
}

/*
 * A device: a FIFO, and a vCPU thread that empties it by random pieces.
 */
struct fake_dev {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	size_t size, fill; /* of the FIFO */
	size_t n, stop;    /* received; the loop ends at @stop */
	bool overrun;
	bool quit;
	uint8_t *buf;
	pthread_t vcpu;
};

static size_t dev_room(void *dev)
{
	struct fake_dev *d = dev;
	size_t room;

	pthread_mutex_lock(&d->lock);
	room = d->size > d->fill ? d->size - d->fill : 0;
	pthread_mutex_unlock(&d->lock);
	return room;
}

static void dev_recv(void *dev, const uint8_t *buf, size_t n)
{
	struct fake_dev *d = dev;

	pthread_mutex_lock(&d->lock);
	d->overrun |= n > d->size - d->fill || !n;
	memcpy(d->buf + d->n, buf, n);
	d->n += n;
	d->fill += n;
	if (d->n >= d->stop)
		loop_quit(t.loop);
	pthread_cond_signal(&d->cond);
	pthread_mutex_unlock(&d->lock);
}

static void dev_new(struct fake_dev *d, size_t size, size_t stop)
{
	struct con_client client = { .room = dev_room, .recv = dev_recv, .dev = d };

	*d = (struct fake_dev){ .size = size, .stop = stop, .buf = malloc(2 * MIB) };
	pthread_mutex_init(&d->lock, NULL);
	pthread_cond_init(&d->cond, NULL);
	con_attach(t.con, &client);
}

static void dev_more(struct fake_dev *d, size_t size)
{
	pthread_mutex_lock(&d->lock);
	d->size = size;
	d->fill = 0;
	pthread_mutex_unlock(&d->lock);
	con_more(t.con);
}

static void *dev_vcpu(void *opaque)
{
	struct fake_dev *d = opaque;
	unsigned seed = 1;

	pthread_mutex_lock(&d->lock);
	while (!d->quit) {
		while (!d->fill && !d->quit)
			pthread_cond_wait(&d->cond, &d->lock);
		d->fill -= d->fill ? 1 + (size_t)rand_r(&seed) % d->fill : 0;
		pthread_mutex_unlock(&d->lock);
		con_more(t.con);
		pthread_mutex_lock(&d->lock);
	}
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

static void dev_join(struct fake_dev *d)
{
	pthread_mutex_lock(&d->lock);
	d->quit = true;
	pthread_cond_signal(&d->cond);
	pthread_mutex_unlock(&d->lock);
	pthread_join(d->vcpu, NULL);
}

static void dev_free(struct fake_dev *d)
{
	con_attach(t.con, NULL);
	assert_false(d->overrun);
	free(d->buf);
}

/* Somebody who types. */
struct typist {
	int fd;
	const uint8_t *data;
	size_t n;
	pthread_t thread;
};

static void *typist_main(void *opaque)
{
	struct typist *y = opaque;
	size_t at = 0;
	ssize_t n;

	while (at < y->n && (n = write(y->fd, y->data + at, y->n - at)) > 0)
		at += (size_t)n;
	return NULL;
}

static void typist_new(struct typist *y, int fd, const void *data, size_t n)
{
	*y = (struct typist){ .fd = fd, .data = data, .n = n };
	pthread_create(&y->thread, NULL, typist_main, y);
}

static void stdin_pipe(int *wr)
{
	int p[2];

	assert_int_equal(pipe2(p, O_CLOEXEC), 0);
	put_fd(p[0], 0);
	*wr = p[1];
}

/* @n bytes through @wr into a device of random room arrive as they are. */
static void assert_exact(int wr, const uint8_t *data, size_t n)
{
	struct fake_dev d;
	struct typist y;

	new_con();
	dev_new(&d, 137, n);
	stdio_start(t.con);
	typist_new(&y, wr, data, n);
	pthread_create(&d.vcpu, NULL, dev_vcpu, &d);
	run();
	dev_join(&d);
	pthread_join(y.thread, NULL);
	assert_int_equal(d.n, n);
	assert_memory_equal(d.buf, data, n);
	assert_int_equal(t.ended, 0);
	dev_free(&d);
}

static void in_pipe(void **state)
{
	uint8_t *data = pattern(MIB);
	int wr;

	memcpy(data, "\001x", 2); /* no escape key in a pipe */
	stdin_pipe(&wr);
	assert_exact(wr, data, MIB);
	close(wr);
	free(data);
}

static void in_socket(void **state)
{
	uint8_t *data = pattern(MIB);
	int p[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, p), 0);
	put_fd(p[0], 0);
	assert_exact(p[1], data, MIB);
	close(p[1]);
	free(data);
}

/* What the device has no room for stays in the pipe. */
static void in_flood(void **state)
{
	uint8_t *data = pattern(60000);
	struct fake_dev d;
	int wr, left;

	stdin_pipe(&wr);
	assert_int_equal(write(wr, data, 60000), 60000);
	new_con();
	dev_new(&d, 16, 16);
	stdio_start(t.con);
	run();
	assert_idle();
	assert_int_equal(d.n, 16);
	assert_int_equal(ioctl(wr, FIONREAD, &left), 0);
	assert_int_equal(left, 60000 - 16);
	d.stop = 17;
	dev_more(&d, 1);
	run();
	assert_idle();
	assert_int_equal(d.n, 17);
	assert_memory_equal(d.buf, data, 17);
	dev_free(&d);
	close(wr);
	free(data);
}

/* A writer that is gone (POLLHUP) while there is no room must not make the loop spin, nor the end. */
static void in_end(void **state)
{
	struct fake_dev d;
	int wr;

	stdin_pipe(&wr);
	assert_int_equal(write(wr, "hello", 5), 5);
	close(wr);
	new_con();
	dev_new(&d, 0, 5);
	stdio_start(t.con);
	assert_idle();
	dev_more(&d, 100);
	run();
	assert_memory_equal(d.buf, "hello", 5);
	assert_idle();
	dev_more(&d, 100);
	assert_idle();
	assert_int_equal(d.n, 5);
	dev_free(&d);
}

static void in_file(void **state)
{
	uint8_t *data = pattern(100000);
	int fd = memfd_create("stdin", MFD_CLOEXEC);
	struct fake_dev d;

	assert_int_equal(write(fd, data, 100000), 100000);
	assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
	put_fd(fd, 0);
	new_con();
	dev_new(&d, 137, 100000);
	stdio_start(t.con);
	pthread_create(&d.vcpu, NULL, dev_vcpu, &d);
	run();
	dev_join(&d);
	assert_idle();
	assert_int_equal(d.n, 100000);
	assert_memory_equal(d.buf, data, 100000);
	dev_free(&d);
	free(data);
}

static void assert_nothing_read(const char *path)
{
	struct fake_dev d;

	put_fd(open(path, O_RDONLY), 0);
	new_con();
	dev_new(&d, 16, 1);
	stdio_start(t.con);
	assert_idle();
	assert_int_equal(d.n, 0);
	assert_string_equal(said(), "");
	dev_free(&d);
	free_con();
}

static void in_nothing(void **state)
{
	assert_nothing_read("/dev/null");
	assert_nothing_read("/tmp");
}

static void in_detached(void **state)
{
	struct fake_dev d;
	int wr, left;

	stdin_pipe(&wr);
	new_con();
	dev_new(&d, 16, 3);
	stdio_start(t.con);
	assert_int_equal(write(wr, "abc", 3), 3);
	run();
	con_attach(t.con, NULL);
	assert_int_equal(write(wr, "def", 3), 3);
	assert_idle();
	assert_int_equal(ioctl(wr, FIONREAD, &left), 0);
	assert_int_equal(left, 3);
	free(d.buf);
	dev_new(&d, 16, 3);
	run();
	assert_memory_equal(d.buf, "def", 3);
	dev_free(&d);
	close(wr);
}

static void escape_table(void **state)
{
	static const struct {
		const char *in, *out, *actions;
	} rows[] = {
		{ "hello", "hello", "" },       { "\001x", "", "e" },
		{ "\001h", "", "h" },           { "\001?", "", "h" },
		{ "\001\001", "\001", "" },     { "\001", "", "" },
		{ "\001l", "\001l", "" },       { "\001X", "\001X", "" },
		{ "\001\001x", "\001x", "" },   { "\001\001\001x", "\001", "e" },
		{ "ab\001xcd", "abcd", "e" },   { "\001h\001h\001xx", "x", "hhe" },
		{ "\001\377", "\001\377", "" }, { "xh?", "xh?", "" },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char out[32] = "", actions[32] = "";
		size_t n, nout = 0, nact = 0;
		struct escape e = { 0 };

		for (const char *p = rows[i].in; *p; p++) {
			enum escape_action a = escape_feed(&e, (uint8_t)*p, (uint8_t *)out + nout, &n);

			nout += n;
			if (a != ESCAPE_NONE)
				actions[nact++] = a == ESCAPE_END ? 'e' : 'h';
		}
		out[nout] = '\0';
		assert_string_equal(out, rows[i].out);
		assert_string_equal(actions, rows[i].actions);
	}
}

/* A terminal: the master's descriptor, and the slave's, both ours to close. */
static void pty_new(int *master, int *slave)
{
	*master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
	assert_true(*master >= 0);
	assert_int_equal(grantpt(*master), 0);
	assert_int_equal(unlockpt(*master), 0);
	*slave = open(ptsname(*master), O_RDWR | O_NOCTTY | O_CLOEXEC);
	assert_true(*slave >= 0);
}

static void assert_same(int slave, const struct termios *want)
{
	struct termios is;

	assert_int_equal(tcgetattr(slave, &is), 0);
	assert_int_equal(is.c_iflag, want->c_iflag);
	assert_int_equal(is.c_oflag, want->c_oflag);
	assert_int_equal(is.c_cflag, want->c_cflag);
	assert_int_equal(is.c_lflag, want->c_lflag);
	assert_memory_equal(is.c_cc, want->c_cc, sizeof(is.c_cc));
}

static void assert_raw(int slave)
{
	struct termios is;

	assert_int_equal(tcgetattr(slave, &is), 0);
	assert_int_equal(is.c_lflag & (ICANON | ECHO | ISIG), 0);
	assert_int_equal(is.c_oflag & OPOST, 0);
}

/* The terminal on descriptor 0 is not the controlling one here, which counts as ours. */
static void tty_keys(void **state)
{
	static const char in[] = "ab\001\001c\001h\001lq\003\032\r\001x";
	static const char out[] = "ab\001c\001lq\003\032\r";
	struct fake_dev d;
	int master, slave;

	pty_new(&master, &slave);
	put_fd(slave, 0);
	new_con();
	dev_new(&d, 100, 1000);
	stdio_start(t.con);
	assert_int_equal(write(master, in, sizeof(in) - 1), sizeof(in) - 1);
	run();
	assert_int_equal(t.ended, 1);
	assert_int_equal(d.n, sizeof(out) - 1);
	assert_memory_equal(d.buf, out, d.n);
	assert_int_equal(times_said("^A x"), 1);
	assert_non_null(strstr(said(), "\r\n"));
	dev_free(&d);
	close(master);
}

/* A hung guest with a full FIFO can be left, and what was typed before stays for it. */
static void tty_deaf_guest(void **state)
{
	struct fake_dev d;
	int master, slave;

	pty_new(&master, &slave);
	put_fd(slave, 0);
	new_con();
	dev_new(&d, 0, 6);
	stdio_start(t.con);
	assert_int_equal(write(master, "hello?\001x", 8), 8);
	run();
	assert_int_equal(t.ended, 1);
	assert_int_equal(d.n, 0);
	dev_more(&d, 4);
	assert_idle();
	assert_int_equal(d.n, 4);
	dev_more(&d, 4);
	run();
	assert_memory_equal(d.buf, "hello?", 6);
	dev_free(&d);
	close(master);
}

/* But not without bound: the terminal itself makes the typist wait. */
static void tty_flood(void **state)
{
	uint8_t *data = malloc(10000);
	struct fake_dev d;
	int master, slave, left;

	memset(data, 'a', 10000);
	pty_new(&master, &slave);
	assert_int_equal(dup2(slave, 0), 0);
	new_con();
	dev_new(&d, 0, 10000);
	stdio_start(t.con);
	fcntl(master, F_SETFL, O_NONBLOCK);
	do {
		run_ticks(2);
	} while (write(master, data, 100) > 0);
	assert_idle();
	assert_int_equal(ioctl(slave, FIONREAD, &left), 0);
	assert_true(left > 0);
	dev_free(&d);
	close(master);
	close(slave);
	free(data);
}

/* The last place of the read-ahead is for the ^A held back. */
static void tty_brim(void **state)
{
	static const char *const typed[] = { "\001", "b", "c" };
	uint8_t data[4098];
	struct fake_dev d;
	int master, slave;

	memset(data, 'a', 4095);
	memcpy(data + 4095, "\001bc", 3);
	pty_new(&master, &slave);
	put_fd(slave, 0);
	new_con();
	dev_new(&d, 0, 4098);
	stdio_start(t.con);
	assert_int_equal(write(master, data, 4095), 4095);
	for (size_t i = 0; i < 3; i++) {
		run_ticks(5);
		assert_int_equal(write(master, typed[i], 1), 1);
	}
	run_ticks(5);
	dev_more(&d, 5000);
	run();
	assert_memory_equal(d.buf, data, 4098);
	dev_free(&d);
	close(master);
}

static void tty_paste(void **state)
{
	uint8_t *data = pattern(10000);
	int master, slave;

	for (size_t i = 0; i < 10000; i++)
		data[i] = data[i] == 1 ? 2 : data[i];
	pty_new(&master, &slave);
	put_fd(slave, 0);
	assert_exact(master, data, 10000);
	close(master);
	free(data);
}

static void tty_hangup(void **state)
{
	struct fake_dev d;
	int master, slave;

	pty_new(&master, &slave);
	put_fd(slave, 0);
	new_con();
	dev_new(&d, 16, 1);
	stdio_start(t.con);
	close(master);
	assert_idle();
	assert_int_equal(d.n, 0);
	dev_free(&d);
}

static void tty_raw_output(void **state)
{
	char back[6];
	int master, slave;

	pty_new(&master, &slave);
	assert_int_equal(dup2(slave, 0), 0);
	put_fd(slave, 1);
	new_con();
	stdio_start(t.con);
	con_send(t.con, (const uint8_t *)"a\nb\r\nc", 6);
	for (size_t n = 0; n < 6; n++)
		assert_int_equal(read(master, back + n, 1), 1);
	assert_memory_equal(back, "a\nb\r\nc", 6);
	free_con();
	close(master);
}

static void tty_only_stdout(void **state)
{
	struct termios before;
	int master, slave;

	pty_new(&master, &slave);
	assert_int_equal(dup2(slave, 1), 1);
	assert_int_equal(tcgetattr(slave, &before), 0);
	new_con();
	stdio_start(t.con);
	assert_same(slave, &before);
	stdio_suspend(t.con);
	stdio_resume(t.con);
	assert_same(slave, &before);
	close(master);
	close(slave);
}

/*
 * A child whose controlling terminal is a pty does one command after the
 * other and answers each, while the parent looks at the terminal.
 */
struct child {
	pid_t pid;
	int cmd, ack;
	int master, slave;
	struct termios before;
};

static void child_foreground(pid_t pgrp)
{
	sigset_t ttou;

	sigemptyset(&ttou);
	sigaddset(&ttou, SIGTTOU);
	sigprocmask(SIG_BLOCK, &ttou, NULL);
	tcsetpgrp(0, pgrp);
	sigprocmask(SIG_UNBLOCK, &ttou, NULL);
}

/* Somebody else takes the foreground of the terminal and ends with us. */
static void child_background(void)
{
	pid_t us = getpid(), pid = fork();

	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != us)
			_exit(0); /* we ended before that: no signal would come */
		setpgid(0, 0);
		for (;;)
			pause();
	}
	setpgid(pid, pid);
	child_foreground(pid);
}

static void child_fork_exit(void)
{
	pid_t pid = fork();

	if (!pid)
		exit(0);
	waitpid(pid, NULL, 0);
}

static void child_do(char cmd, struct fake_dev *d)
{
	switch (cmd) {
	case 'n':
		new_con();
		dev_new(d, 16, 1);
		break;
	case 's': stdio_start(t.con); break;
	case 'z': stdio_suspend(t.con); break;
	case 'c': stdio_resume(t.con); break;
	case 'f': free_con(); break;
	case 'b': child_background(); break;
	case 'F': child_foreground(getpgrp()); break;
	case 'k': child_fork_exit(); break;
	case 'i': run_ticks(20); break;
	case 'l': run(); break;
	case '0':
		d->fill = 0;
		d->n = 0;
		break;
	case 'e': exit(7);
	case 'a': abort();
	case 'v': raise(SIGSEGV); break;
	case 'u': raise(SIGBUS); break;
	case 'p': raise(SIGFPE); break;
	case 'm': raise(SIGILL); break;
	}
}

static void child_main(const struct child *c, int cmd, int ack)
{
	static const int fatal[] = { SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL };
	struct rlimit no_core = { 0 };
	struct fake_dev d;
	char ch, n;

	for (size_t i = 0; i < sizeof(fatal) / sizeof(fatal[0]); i++)
		signal(fatal[i], SIG_DFL); /* not cmocka's */
	setrlimit(RLIMIT_CORE, &no_core);
	setsid();
	ioctl(c->slave, TIOCSCTTY, 0);
	dup2(c->slave, 0);
	close(c->slave);
	close(c->master);
	while (read(cmd, &ch, 1) == 1) {
		child_do(ch, &d);
		n = ch == 'l' || ch == 'i' ? (char)d.n : 0;
		if (write(ack, &n, 1) != 1)
			break;
	}
	_exit(9);
}

static void child_new(struct child *c)
{
	int cmd[2], ack[2];

	pty_new(&c->master, &c->slave);
	assert_int_equal(tcgetattr(c->slave, &c->before), 0);
	assert_int_equal(pipe2(cmd, O_CLOEXEC), 0);
	assert_int_equal(pipe2(ack, O_CLOEXEC), 0);
	c->pid = fork();
	assert_true(c->pid >= 0);
	if (!c->pid) {
		close(cmd[1]);
		close(ack[0]);
		child_main(c, cmd[0], ack[1]);
	}
	close(cmd[0]);
	close(ack[1]);
	c->cmd = cmd[1];
	c->ack = ack[0];
}

/* Returns what the child answered, or -1: it has ended. */
static int child_tell(struct child *c, char ch)
{
	char n;

	assert_int_equal(write(c->cmd, &ch, 1), 1);
	return read(c->ack, &n, 1) == 1 ? n : -1;
}

static int child_end(struct child *c)
{
	int status;

	close(c->cmd);
	assert_int_equal(waitpid(c->pid, &status, 0), c->pid);
	close(c->ack);
	close(c->master);
	close(c->slave);
	return status;
}

/* Does each command; 'R' means the terminal is raw now, 'C' it is as it was before. */
static void child_script(struct child *c, const char *script)
{
	for (; *script; script++) {
		if (*script == 'R')
			assert_raw(c->slave);
		else if (*script == 'C')
			assert_same(c->slave, &c->before);
		else
			child_tell(c, *script);
	}
}

static void tty_life(void **state)
{
	static const char *const scripts[] = {
		"nCsRfC",    "nsRzCcRfC", "nzCsRcRzCzCcRsRzCfC", "nsRfCnsRzCfC", "nsRkRfC",
		"nbsCFcRfC", "nbsCfC",    "nsRzCbcCFcRfC",       "nzcCfC",
	};

	for (size_t i = 0; i < sizeof(scripts) / sizeof(scripts[0]); i++) {
		struct child c;

		child_new(&c);
		child_script(&c, scripts[i]);
		assert_int_equal(WEXITSTATUS(child_end(&c)), 9);
	}
}

static void tty_ends(void **state)
{
	static const struct {
		char cmd;
		int sig, code;
	} rows[] = {
		{ 'e', 0, 7 },      { 'a', SIGABRT, 0 }, { 'v', SIGSEGV, 0 },
		{ 'u', SIGBUS, 0 }, { 'p', SIGFPE, 0 },  { 'm', SIGILL, 0 },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct child c;
		int status;

		child_new(&c);
		child_script(&c, "nsR");
		assert_int_equal(child_tell(&c, rows[i].cmd), -1);
		assert_same(c.slave, &c.before);
		status = child_end(&c);
		assert_int_equal(WIFSIGNALED(status) ? WTERMSIG(status) : 0, rows[i].sig);
		assert_int_equal(WIFSIGNALED(status) ? 0 : WEXITSTATUS(status), rows[i].code);
	}
}

/* A background job neither reads nor stops; it notices by itself that it was brought to the foreground. */
static void tty_background(void **state)
{
	struct child c;

	child_new(&c);
	child_script(&c, "nbsC");
	assert_int_equal(write(c.master, "y\n", 2), 2);
	assert_int_equal(child_tell(&c, 'i'), 0);
	child_script(&c, "F");
	assert_int_equal(child_tell(&c, 'l'), 2);
	child_script(&c, "R0");
	/* And to the background again, behind its back: it gives the terminal back once it notices. */
	child_script(&c, "b");
	assert_int_equal(write(c.master, "z\n", 2), 2);
	assert_int_equal(child_tell(&c, 'i'), 0);
	child_script(&c, "CF");
	assert_int_equal(child_tell(&c, 'l'), 2);
	child_script(&c, "RfC");
	assert_int_equal(WEXITSTATUS(child_end(&c)), 9);
}

/* Stopped by SIGSTOP, so that it could give nothing back; then the shell's settings are the shell's business. */
static void tty_shell_took_it(void **state)
{
	struct termios shell;
	struct child c;

	child_new(&c);
	shell = c.before;
	shell.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
	child_script(&c, "nsRb");
	assert_int_equal(tcsetattr(c.slave, TCSANOW, &shell), 0);
	child_script(&c, "f");
	assert_same(c.slave, &shell);
	assert_int_equal(WEXITSTATUS(child_end(&c)), 9);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(out_keeps_up),
		TEST(out_slow),
		TEST(out_racing),
		TEST(out_stopped),
		TEST(out_stopped_anywhere),
		TEST(out_broken_pipe),
		TEST(out_broken_socket),
		TEST(out_full_disk),
		TEST(out_breaks_later),
		TEST(out_nonblocking),
		TEST(out_file),
		TEST(out_one_byte),
		TEST(out_free_inside),
		TEST(out_free_undrained),
		TEST(tail),
		TEST(in_pipe),
		TEST(in_socket),
		TEST(in_flood),
		TEST(in_end),
		TEST(in_file),
		TEST(in_nothing),
		TEST(in_detached),
		cmocka_unit_test(escape_table),
		TEST(tty_keys),
		TEST(tty_deaf_guest),
		TEST(tty_flood),
		TEST(tty_brim),
		TEST(tty_paste),
		TEST(tty_hangup),
		TEST(tty_raw_output),
		TEST(tty_only_stdout),
		TEST(tty_life),
		TEST(tty_ends),
		TEST(tty_background),
		TEST(tty_shell_took_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
