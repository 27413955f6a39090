// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The 9p server where the host makes it wait: every file system is slow, and a
 * gate in the workers' way can be closed.
 */
#include "fs/p9_impl.h"
#include "p9fix.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define ROOT    0u
#define RDWR    (P9_DOTL_CREATE | 2u)
#define WORKERS 64 /* the most there are */

struct gate {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned hold; /* how many of those that come are held */
	unsigned held;
	bool open;
};

static struct loop *turned;
static struct gate gate = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static void pass(void *arg)
{
	struct gate *g = arg;

	pthread_mutex_lock(&g->lock);
	if (g->hold) {
		g->hold--;
		g->held++;
		pthread_cond_broadcast(&g->changed);
		while (!g->open)
			pthread_cond_wait(&g->changed, &g->lock);
		g->held--;
		pthread_cond_broadcast(&g->changed);
	}
	pthread_mutex_unlock(&g->lock);
}

/* The next @n that come are held. */
static void gate_hold(unsigned n)
{
	pthread_mutex_lock(&gate.lock);
	gate.hold = n;
	gate.open = false;
	pthread_mutex_unlock(&gate.lock);
}

/* Until @n are held. */
static void gate_wait(unsigned n)
{
	pthread_mutex_lock(&gate.lock);
	while (gate.held != n)
		pthread_cond_wait(&gate.changed, &gate.lock);
	pthread_mutex_unlock(&gate.lock);
}

static void gate_open(void)
{
	pthread_mutex_lock(&gate.lock);
	gate.hold = 0;
	gate.open = true;
	pthread_cond_broadcast(&gate.changed);
	pthread_mutex_unlock(&gate.lock);
}

static struct p9fix *setup(void)
{
	struct p9fix *f = p9fix_new(NULL, P9_MAP_NONE, false);

	gate_open();
	p9_set_hook(f->p9, pass, &gate);
	assert_int_equal(p9c_start(&f->c, 65536, ROOT, geteuid()), 0);
	p9fix_put(f, "share/file", "content");
	assert_int_equal(p9c_walk(&f->c, ROOT, 1, "file"), 0);
	assert_int_equal(p9c_open(&f->c, 1, 2), 0);
	return f;
}

/* The same as without workers. */
static void test_all(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	struct p9c_attr a;
	char buf[64];

	assert_int_equal(p9c_call(c, P9_TMKDIR, "usuu", ROOT, "dir", 0755u, 0u), 0);
	assert_int_equal(p9c_walk(c, ROOT, 2, "dir"), 0);
	assert_int_equal(p9c_create(c, 2, 3, "new", RDWR, 0644), 0);
	assert_int_equal(p9c_write(c, 3, 3, "hello", 5), 5);
	assert_int_equal(p9c_read(c, 3, 0, buf, 64), 8);
	assert_memory_equal(buf, "\0\0\0hello", 8);
	assert_int_equal(p9c_getattr(c, 3, &a), 0);
	assert_int_equal(a.size, 8);
	assert_int_equal(p9c_walk(c, 2, 4, "../dir/../file"), 0);
	assert_int_equal(p9c_walk(c, 2, 5, "none"), -ENOENT);
	assert_int_equal(p9c_call(c, P9_TRENAMEAT, "usus", 2u, "new", ROOT, "moved"), 0);
	assert_int_equal(p9c_call(c, P9_TRENAME, "uus", 3u, 2u, "back"), 0);
	assert_int_equal(p9c_walk(c, 2, 6, ""), 0);
	assert_int_equal(p9c_open(c, 6, 0), 0);
	assert_int_equal(p9c_call(c, P9_TREADDIR, "uqu", 6u, (uint64_t)0, 4000u), 0);
	assert_int_equal(wire_u32(&c->r), 3 * 24 + 1 + 2 + 4);
	assert_int_equal(p9c_setxattr(c, 1, "user.a", "v", 1, 0), 0);
	assert_int_equal(p9c_getxattr(c, 1, "user.a", buf, 64), 1);
	assert_int_equal(p9c_call(c, P9_TLOCK, "ubuqqus", 1u, 1u, 0u, (uint64_t)0, (uint64_t)0, 5u, "g"), 0);
	assert_int_equal(wire_u8(&c->r), P9_LOCK_SUCCESS);
	assert_int_equal(p9c_call(c, P9_TSYMLINK, "ussu", ROOT, "l", "t", 0u), 0);
	assert_int_equal(p9c_call(c, P9_TLINK, "uus", ROOT, 1u, "h"), 0);
	assert_int_equal(p9c_call(c, P9_TSTATFS, "u", ROOT), 0);
	assert_int_equal(p9c_call(c, P9_TFSYNC, "uu", 1u, 1u), 0);
	assert_int_equal(p9c_call(c, P9_TUNLINKAT, "usu", ROOT, "h", 0u), 0);
	assert_int_equal(p9c_call(c, P9_TREMOVE, "u", 3u), 0);
	assert_int_equal(p9c_write(c, 1, 7, "!", 1), 1);
	assert_int_equal(p9c_read(c, 1, 0, buf, 64), 8);
	assert_memory_equal(buf, "content!", 8);
	p9fix_free(f);
}

/* The request is over before the flush, and what it would have done to the session is not done. */
static void test_flush(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	struct p9c_req *walk, *flush;
	struct p9c_attr a, root;
	uint16_t tag;

	gate_hold(1);
	walk = p9c_send(c, P9_TWALK, "uuhs", ROOT, 5u, 1u, "file");
	tag = walk->tag;
	gate_wait(1);
	assert_false(walk->done);
	flush = p9c_send(c, P9_TFLUSH, "h", tag);
	assert_false(flush->done || walk->done); /* nobody is called back from inside */
	assert_int_equal(p9c_wait(flush), 0);
	assert_true(walk->done);
	assert_int_equal(p9c_wait(walk), -ECANCELED);
	/* The number is free again, and stays what it is made now. */
	assert_int_equal(p9c_call(c, P9_TATTACH, "uussu", 5u, P9_NOFID, "", "", 0u), 0);
	gate_open();
	gate_wait(0);
	assert_int_equal(p9c_getattr(c, ROOT, &root), 0);
	assert_int_equal(p9c_getattr(c, 5, &a), 0);
	assert_true(a.qid.path == root.qid.path);
	/* One that is not there any more. */
	assert_int_equal(p9c_call(c, P9_TFLUSH, "h", tag), 0);
	assert_int_equal(p9c_call(c, P9_TFLUSH, "h", 1u), 0);
	p9fix_free(f);
}

/* All workers hang: others wait their turn, and can be taken back from the queue. */
static void test_crowd(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	struct p9c_req *r[WORKERS + 8];

	gate_hold(WORKERS);
	for (unsigned i = 0; i < WORKERS + 8; i++)
		r[i] = p9c_send(c, P9_TREAD, "uqu", 1u, (uint64_t)0, 100u);
	gate_wait(WORKERS);
	for (unsigned i = WORKERS; i < WORKERS + 4; i++) {
		assert_int_equal(p9c_call(c, P9_TFLUSH, "h", (unsigned)r[i]->tag), 0);
		assert_int_equal(p9c_wait(r[i]), -ECANCELED);
	}
	for (unsigned i = 0; i < WORKERS; i++)
		assert_false(r[i]->done);
	gate_open();
	for (unsigned i = 0; i < WORKERS + 8; i++)
		if (i < WORKERS || i >= WORKERS + 4) {
			assert_int_equal(p9c_wait(r[i]), 0);
			assert_int_equal(wire_u32(&c->r), 7);
		}
	p9fix_free(f);
}

/* A fid goes while something is done with it. */
static void test_clunk(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	struct p9c_req *read, *open, *walk;

	assert_int_equal(p9c_walk(c, ROOT, 2, "file"), 0);
	gate_hold(3);
	read = p9c_send(c, P9_TREAD, "uqu", 1u, (uint64_t)0, 100u);
	open = p9c_send(c, P9_TLOPEN, "uu", 2u, 0u);
	walk = p9c_send(c, P9_TWALK, "uuhs", ROOT, 7u, 1u, "file");
	gate_wait(3);
	assert_int_equal(p9c_clunk(c, 1), 0);
	assert_int_equal(p9c_clunk(c, 2), 0);
	assert_int_equal(p9c_call(c, P9_TATTACH, "uussu", 7u, P9_NOFID, "", "", 0u), 0);
	gate_open();
	assert_int_equal(p9c_wait(read), 0);
	assert_int_equal(p9c_wait(open), -EBADF);
	assert_int_equal(p9c_wait(walk), -EBADF); /* the number was taken meanwhile */
	p9fix_free(f);
}

/* Twice the same tag: both are answered, and one flush ends both. */
static void test_tags(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	uint8_t *msg = malloc(P9C_MAX);
	size_t n = p9c_build(msg, P9_TREAD, 3, "uqu", 1u, (uint64_t)0, 10u);
	struct p9c_req *a, *b;

	for (unsigned flush = 0; flush < 2; flush++) {
		gate_hold(2);
		assert_int_equal(p9c_submit(c, &a, msg, n), 0);
		assert_int_equal(p9c_submit(c, &b, msg, n), 0);
		gate_wait(2);
		if (flush)
			assert_int_equal(p9c_call(c, P9_TFLUSH, "h", 3u), 0);
		gate_open();
		assert_int_equal(p9c_wait(a), flush ? -ECANCELED : 0);
		assert_int_equal(p9c_wait(b), flush ? -ECANCELED : 0);
	}
	free(msg);
	p9fix_free(f);
}

/* A new version ends what is under way. */
static void test_version(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	struct p9c_req *r[5];

	gate_hold(5);
	for (unsigned i = 0; i < 5; i++)
		r[i] = p9c_send(c, P9_TWALK, "uuhs", ROOT, 10u + i, 1u, "file");
	gate_wait(5);
	assert_int_equal(p9c_start(c, 8192, ROOT, 0), 0);
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(p9c_wait(r[i]), -ECANCELED);
	gate_open();
	assert_int_equal(p9c_walk(c, ROOT, 10, "file"), 0);
	p9fix_free(f);
}

static void test_reset(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	struct p9c_req *hung, *queued, *flushed, *flush;

	gate_hold(2);
	hung = p9c_send(c, P9_TWALK, "uuhs", ROOT, 10u, 1u, "file");
	flushed = p9c_send(c, P9_TREAD, "uqu", 1u, (uint64_t)0, 10u);
	gate_wait(2);
	flush = p9c_send(c, P9_TFLUSH, "h", (unsigned)flushed->tag);
	queued = p9c_send(c, P9_TFSYNC, "uu", 1u, 0u);
	p9_reset(f->p9);
	assert_int_equal(p9c_start(c, 8192, ROOT, 0), 0);
	assert_int_equal(p9c_walk(c, ROOT, 10, ""), 0);
	gate_open();
	gate_wait(0);
	for (unsigned i = 0; i < 10; i++) /* turns of the loop, in which late ones come back */
		assert_int_equal(p9c_getattr(c, 10, &(struct p9c_attr){ 0 }), 0);
	assert_false(hung->done || queued->done || flushed->done || flush->done);
	p9c_free(hung);
	p9c_free(queued);
	p9c_free(flushed);
	p9c_free(flush);
	p9fix_free(f);
}

static void on_turned(struct loop_task *t)
{
	(void)t;
	loop_quit(turned);
}

static void turn(struct loop *l)
{
	struct loop_task t = { .cb = on_turned };

	turned = l;
	loop_post(l, &t);
	assert_int_equal(loop_run(l), 0);
}

/* What a worker has done while the server is held is told afterwards; what never comes is not waited for. */
static void test_hold(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	struct p9c_req *read, *flushed, *flush;

	gate_hold(2);
	read = p9c_send(c, P9_TREAD, "uqu", 1u, (uint64_t)0, 10u);
	flushed = p9c_send(c, P9_TREAD, "uqu", 1u, (uint64_t)0, 10u);
	gate_wait(2);
	flush = p9c_send(c, P9_TFLUSH, "h", (unsigned)flushed->tag);
	p9_hold(f->p9, true);
	gate_open();
	gate_wait(0);
	for (unsigned i = 0; i < 100; i++) {
		turn(f->c.loop);
		sched_yield();
	}
	assert_false(read->done || flushed->done || flush->done);
	p9_hold(f->p9, false);
	assert_int_equal(p9c_wait(read), 0);
	assert_int_equal(p9c_wait(flush), 0);
	assert_int_equal(p9c_wait(flushed), -ECANCELED);
	gate_hold(1);
	read = p9c_send(c, P9_TREAD, "uqu", 1u, (uint64_t)0, 10u);
	gate_wait(1);
	p9_hold(f->p9, true);
	p9_reset(f->p9);
	gate_open();
	p9_hold(f->p9, false);
	assert_int_equal(p9c_start(c, 8192, ROOT, 0), 0);
	assert_false(read->done);
	p9c_free(read);
	p9fix_free(f);
}

/* The server goes, and its loop, while a worker hangs; what that holds goes with it. */
static void test_gone(void **state)
{
	for (unsigned round = 0; round < 10; round++) {
		struct p9fix *f = setup();
		struct p9c_req *hung, *write;

		gate_hold(2);
		hung = p9c_send(&f->c, P9_TLCREATE, "usuuu", ROOT, "new", RDWR, 0644u, 0u);
		write = p9c_send(&f->c, P9_TWRITE, "uqud", 1u, (uint64_t)0, 4u, "late", (size_t)4);
		gate_wait(2);
		p9fix_stop(f);
		assert_false(hung->done || write->done);
		p9c_free(hung);
		p9c_free(write);
		gate_open();
		p9fix_end(f);
	}
}

/* A file system that is not known to be local is a worker's, without any hook; one that is known is not. */
static void test_slow(void **state)
{
	static const char *const dirs[] = { "/proc/sys/kernel", "/tmp" };

	for (unsigned i = 0; i < 2; i++) {
		struct p9_export ex = { .dir = dirs[i], .ro = true };
		unsigned fds = p9fix_fds();
		struct p9c_req *r;
		struct loop *loop;
		struct p9 *p9;
		struct p9c c;
		struct err err;

		assert_int_equal(loop_new(&loop, &err), 0);
		assert_int_equal(p9_new(&ex, loop, &p9, &err), 0);
		p9c_init(&c, p9, loop);
		assert_int_equal(p9c_start(&c, 8192, ROOT, 0), 0);
		r = p9c_send(&c, P9_TGETATTR, "uq", ROOT, (uint64_t)0);
		assert_int_equal(r->done, i);
		assert_int_equal(p9c_wait(r), 0);
		p9_free(p9);
		p9c_exit(&c);
		loop_free(loop);
		p9fix_wait_fds(fds);
	}
}

/* More than the server takes at once: an error, and those that it took are answered. */
static void test_bound(void **state)
{
	const unsigned n = P9_MAX_OPS + 10;
	struct p9c_req **r = calloc(n, sizeof(*r));
	struct p9fix *f = setup();
	struct p9c *c = &f->c;

	c->room = 4096;
	gate_hold(WORKERS);
	for (unsigned i = 0; i < n; i++)
		r[i] = p9c_send(c, P9_TREAD, "uqu", 1u, (uint64_t)0, 100u);
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(r[i]->done, i >= P9_MAX_OPS);
	gate_open();
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(p9c_wait(r[i]), i < P9_MAX_OPS ? 0 : -ENOMEM);
	free(r);
	p9fix_free(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all),   cmocka_unit_test(test_flush), cmocka_unit_test(test_crowd),
		cmocka_unit_test(test_clunk), cmocka_unit_test(test_tags),  cmocka_unit_test(test_version),
		cmocka_unit_test(test_reset), cmocka_unit_test(test_hold),  cmocka_unit_test(test_gone),
		cmocka_unit_test(test_slow),  cmocka_unit_test(test_bound),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
