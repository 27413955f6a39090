// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Nothing leads out of the share: not symlinks, not "..", not what somebody on
 * the host renames meanwhile. Outside is a canary that must stay as it is.
 */
#include "p9fix.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cmocka.h>

#define ROOT   0u
#define RDWR   (P9_DOTL_CREATE | 2u)
#define ROUNDS 500

static struct p9fix *setup(void)
{
	struct p9fix *f = p9fix_new(NULL, P9_MAP_NONE, false);

	assert_int_equal(mkdirat(f->topfd, "outside", 0755), 0);
	p9fix_put(f, "outside/secret", "CANARY");
	assert_int_equal(mkdirat(f->dirfd, "dir", 0755), 0);
	p9fix_put(f, "share/dir/secret", "inside");
	assert_int_equal(p9c_start(&f->c, 8192, ROOT, geteuid()), 0);
	return f;
}

/* Its names, and its file's content, mode and times, are as they were. */
struct canary {
	struct stat dir, file;
};

static struct canary look(struct p9fix *f)
{
	struct canary c;

	memset(&c, 0, sizeof(c));
	assert_int_equal(fstatat(f->topfd, "outside", &c.dir, 0), 0);
	assert_int_equal(fstatat(f->topfd, "outside/secret", &c.file, 0), 0);
	memset(&c.dir.st_atim, 0, sizeof(c.dir.st_atim));
	memset(&c.file.st_atim, 0, sizeof(c.file.st_atim));
	return c;
}

static void test_symlinks(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	struct canary before, after;

	assert_int_equal(symlinkat("../outside", f->dirfd, "link"), 0);
	assert_int_equal(symlinkat("/", f->dirfd, "slash"), 0);
	assert_int_equal(symlinkat("../outside/secret", f->dirfd, "file"), 0);
	before = look(f);
	assert_int_equal(p9c_walk(c, ROOT, 1, "link/secret"), -ENOENT);
	assert_int_equal(p9c_walk(c, ROOT, 1, "slash/etc"), -ENOENT);
	assert_int_equal(p9c_walk(c, ROOT, 1, "link"), 0);
	assert_int_equal(p9c_walk(c, 1, 2, "secret"), -ENOTDIR);
	assert_int_equal(p9c_walk(c, 1, 2, ".."), -ENOTDIR);
	assert_int_equal(p9c_open(c, 1, 0), -ELOOP);
	assert_int_equal(p9c_create(c, 1, 2, "new", RDWR, 0644), -ENOTDIR);
	assert_int_equal(p9c_create(c, ROOT, 2, "file", RDWR | P9_DOTL_TRUNC, 0644), -ELOOP);
	assert_int_equal(p9c_call(c, P9_TMKDIR, "usuu", 1u, "new", 0755u, 0u), -ENOTDIR);
	assert_int_equal(p9c_call(c, P9_TUNLINKAT, "usu", 1u, "secret", 0u), -ENOTDIR);
	assert_int_equal(p9c_call(c, P9_TRENAMEAT, "usus", ROOT, "dir", 1u, "dir"), -ENOTDIR);
	assert_int_equal(p9c_walk(c, ROOT, 3, "file"), 0);
	assert_int_not_equal(p9c_call(c, P9_TSETATTR, "uuuuuqqqqq", 3u, P9_SET_MODE, 0777u, 0u, 0u, (uint64_t)0,
	                              (uint64_t)0, (uint64_t)0, (uint64_t)0, (uint64_t)0),
	                     0);
	after = look(f);
	assert_memory_equal(&before, &after, sizeof(before));
	p9fix_free(f);
}

/* A directory that was moved out while a fid is there: what is above it is not reached. */
static void test_moved_out(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	struct p9c_attr a, root;

	assert_int_equal(mkdirat(f->dirfd, "dir/sub", 0755), 0);
	assert_int_equal(p9c_walk(c, ROOT, 1, "dir"), 0);
	assert_int_equal(p9c_walk(c, ROOT, 2, "dir/sub"), 0);
	assert_int_equal(renameat(f->dirfd, "dir", f->topfd, "outside/dir"), 0);
	assert_int_equal(p9c_walk(c, 1, 3, ".."), -ENOENT);
	assert_int_equal(p9c_walk(c, 2, 3, ".."), -ENOENT);
	assert_int_equal(p9c_walk(c, 2, 3, "../.."), -ENOENT);
	assert_int_equal(p9c_call(c, P9_TRENAME, "uus", 1u, ROOT, "dir"), -ENOENT);
	assert_int_equal(p9c_call(c, P9_TREMOVE, "u", 2u), -ENOENT);
	/* Back, by another name. */
	assert_int_equal(renameat(f->topfd, "outside/dir", f->dirfd, "back"), 0);
	assert_int_equal(p9c_walk(c, 1, 3, ".."), 0);
	assert_int_equal(p9c_getattr(c, 3, &a), 0);
	assert_int_equal(p9c_getattr(c, ROOT, &root), 0);
	assert_true(a.qid.path == root.qid.path);
	/* The share itself may move, too. */
	assert_int_equal(renameat(f->topfd, "share", f->topfd, "outside/share"), 0);
	assert_int_equal(p9c_walk(c, 1, 4, "../../../back/secret"), 0);
	assert_int_equal(renameat(f->topfd, "outside/share", f->topfd, "share"), 0);
	p9fix_free(f);
}

struct racer {
	struct p9fix *f;
	pthread_t thread;
	atomic_bool stop;
	bool moves; /* the directory in and out; else a symlink to outside in its place and back */
	unsigned turns;
};

static void *race(void *arg)
{
	struct racer *r = arg;
	struct p9fix *f = r->f;

	while (!atomic_load(&r->stop)) {
		if (r->moves) {
			renameat(f->dirfd, "dir", f->topfd, "outside/sub/dir");
			renameat(f->topfd, "outside/sub/dir", f->dirfd, "dir");
		} else {
			renameat2(f->dirfd, "dir", f->dirfd, "link", RENAME_EXCHANGE);
		}
		r->turns++;
		sched_yield();
	}
	return NULL;
}

static void race_start(struct racer *r)
{
	assert_int_equal(pthread_create(&r->thread, NULL, race, r), 0);
}

static void race_stop(struct racer *r)
{
	atomic_store(&r->stop, true);
	pthread_join(r->thread, NULL);
}

/* What a client may do below "dir". Some of it fails; none of it reaches the canary. Returns whether it got to a file.
 */
static bool poke(struct p9c *c, unsigned i)
{
	char buf[16] = "";
	int n;
	bool got = false;

	if (!p9c_walk(c, ROOT, 1, "dir/secret")) {
		got = true;
		assert_int_equal(p9c_open(c, 1, 2), 0);
		n = p9c_read(c, 1, 0, buf, sizeof(buf));
		assert_true(n == 6 && !memcmp(buf, "inside", 6));
		assert_int_equal(p9c_write(c, 1, 0, "inside", 6), 6);
		assert_int_equal(p9c_call(c, P9_TSETATTR, "uuuuuqqqqq", 1u, P9_SET_MODE, 0600 + i % 8, 0u, 0u,
		                          (uint64_t)0, (uint64_t)0, (uint64_t)0, (uint64_t)0, (uint64_t)0),
		                 0);
		p9c_clunk(c, 1);
	}
	if (!p9c_walk(c, ROOT, 2, "dir")) {
		if (!p9c_create(c, 2, 3, "new", RDWR, 0644))
			p9c_call(c, P9_TREMOVE, "u", 3u);
		p9c_call(c, P9_TMKDIR, "usuu", 2u, "d", 0755u, 0u);
		p9c_call(c, P9_TRENAMEAT, "usus", 2u, "d", 2u, "e");
		p9c_call(c, P9_TUNLINKAT, "usu", 2u, "e", P9_DOTL_AT_REMOVEDIR);
		p9c_call(c, P9_TUNLINKAT, "usu", 2u, "new", 0u);
		p9c_clunk(c, 2);
	}
	return got;
}

static void test_race_symlink(void **state)
{
	struct p9fix *f = setup();
	struct racer r = { .f = f };
	struct canary before, after;
	unsigned got = 0;

	assert_int_equal(symlinkat("../outside", f->dirfd, "link"), 0);
	before = look(f);
	race_start(&r);
	for (unsigned i = 0; i < ROUNDS || !got || got == i; i++)
		got += poke(&f->c, i);
	race_stop(&r);
	after = look(f);
	assert_memory_equal(&before, &after, sizeof(before));
	print_message("%u of %u walks got there, %u swaps\n", got, ROUNDS, r.turns);
	p9fix_free(f);
}

/* Up from a directory that goes out and in: to the root, or nowhere. */
static void test_race_parent(void **state)
{
	struct p9fix *f = setup();
	struct racer r = { .f = f, .moves = true };
	struct p9c *c = &f->c;
	struct p9c_attr a, root;
	unsigned up = 0, none = 0;

	assert_int_equal(mkdirat(f->topfd, "outside/sub", 0755), 0);
	assert_int_equal(mkdirat(f->dirfd, "dir/deep", 0755), 0);
	assert_int_equal(p9c_getattr(c, ROOT, &root), 0);
	assert_int_equal(p9c_walk(c, ROOT, 1, "dir/deep"), 0);
	race_start(&r);
	for (unsigned i = 0; i < ROUNDS || !up || !none; i++) {
		int error = p9c_walk(c, 1, 2, "../..");

		assert_true(error == 0 || error == -ENOENT);
		if (error) {
			none++;
			continue;
		}
		up++;
		assert_int_equal(p9c_getattr(c, 2, &a), 0);
		assert_true(a.qid.path == root.qid.path);
		assert_int_equal(p9c_clunk(c, 2), 0);
	}
	race_stop(&r);
	assert_int_equal(faccessat(f->topfd, "outside/secret", F_OK, 0), 0);
	print_message("%u times up, %u times nowhere, %u moves\n", up, none, r.turns);
	p9fix_free(f);
}

/* What is no file is not opened on the host, also if it comes in a file's place: here a FIFO, on which one would hang.
 */
static void *race_fifo(void *arg)
{
	struct racer *r = arg;

	while (!atomic_load(&r->stop)) {
		renameat2(r->f->dirfd, "a", r->f->dirfd, "b", RENAME_EXCHANGE);
		r->turns++;
		sched_yield();
	}
	return NULL;
}

static void test_race_fifo(void **state)
{
	struct p9fix *f = setup();
	struct racer r = { .f = f };
	unsigned files = 0, fifos = 0;

	p9fix_put(f, "share/a", "x");
	assert_int_equal(mkfifoat(f->dirfd, "b", 0600), 0);
	assert_int_equal(pthread_create(&r.thread, NULL, race_fifo, &r), 0);
	for (unsigned i = 0; i < ROUNDS || !files || !fifos; i++) {
		int error;

		assert_int_equal(p9c_walk(&f->c, ROOT, 1, "a"), 0);
		error = p9c_open(&f->c, 1, i % 3);
		assert_true(error == 0 || error == -ENXIO);
		files += !error;
		fifos += error != 0;
		assert_int_equal(p9c_clunk(&f->c, 1), 0);
		error = p9c_create(&f->c, ROOT, 1, "a", RDWR, 0644);
		assert_true(error == 0 || error == -ENXIO);
		if (!error)
			assert_int_equal(p9c_clunk(&f->c, 1), 0);
	}
	race_stop(&r);
	print_message("%u files, %u FIFOs, %u swaps\n", files, fifos, r.turns);
	p9fix_free(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_symlinks),     cmocka_unit_test(test_moved_out),
		cmocka_unit_test(test_race_symlink), cmocka_unit_test(test_race_parent),
		cmocka_unit_test(test_race_fifo),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
