// SPDX-License-Identifier: GPL-2.0-or-later
/* The 9p server under messages that no good client sends. */
#include "fs/p9_impl.h"
#include "p9fix.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#define ROOT 0u
#define RDWR (P9_DOTL_CREATE | 2u)

/* A session with the fids that the messages below use: 1 a file, 2 the same opened, 3 a directory opened, 4 a value. */
static void begin(struct p9fix *f, bool again)
{
	struct p9c *c = &f->c;

	if (again)
		p9_reset(f->p9);
	c->room = 8192;
	p9fix_put(f, "share/file", "content");
	assert_int_equal(p9c_start(c, 8192, ROOT, geteuid()), 0);
	assert_int_equal(p9c_walk(c, ROOT, 1, "file"), 0);
	assert_int_equal(p9c_walk(c, ROOT, 2, "file"), 0);
	assert_int_equal(p9c_open(c, 2, 2), 0);
	assert_int_equal(p9c_walk(c, ROOT, 3, ""), 0);
	assert_int_equal(p9c_open(c, 3, 0), 0);
	assert_int_equal(p9c_walk(c, ROOT, 4, "file"), 0);
	assert_int_equal(p9c_call(c, P9_TXATTRCREATE, "usqu", 4u, "user.a", (uint64_t)10, 0u), 0);
}

static struct p9fix *setup(void)
{
	struct p9fix *f = p9fix_new(NULL, P9_MAP_NONE, false);

	begin(f, false);
	return f;
}

/* It still serves. */
static void check_alive(struct p9fix *f)
{
	char buf[16];

	begin(f, true);
	assert_int_equal(p9c_read(&f->c, 2, 0, buf, 16), 7);
	assert_memory_equal(buf, "content", 7);
}

#define ONE ((uint64_t)1)

/* A good message of each type. */
static size_t good(uint8_t *m, unsigned i)
{
	switch (i) {
	case 0: return p9c_build(m, P9_TSTATFS, 1, "u", 1u);
	case 1: return p9c_build(m, P9_TLOPEN, 1, "uu", 1u, 2u);
	case 2: return p9c_build(m, P9_TLCREATE, 1, "usuuu", ROOT, "new", RDWR, 0644u, 0u);
	case 3: return p9c_build(m, P9_TSYMLINK, 1, "ussu", ROOT, "link", "target", 0u);
	case 4: return p9c_build(m, P9_TMKNOD, 1, "usuuuu", ROOT, "fifo", 0010644u, 0u, 0u, 0u);
	case 5: return p9c_build(m, P9_TRENAME, 1, "uus", 1u, ROOT, "file");
	case 6: return p9c_build(m, P9_TREADLINK, 1, "u", 1u);
	case 7: return p9c_build(m, P9_TGETATTR, 1, "uq", 1u, (uint64_t)0x3fff);
	case 8: return p9c_build(m, P9_TSETATTR, 1, "uuuuuqqqqq", 1u, 1u, 0644u, 0u, 0u, ONE, ONE, ONE, ONE, ONE);
	case 9: return p9c_build(m, P9_TXATTRWALK, 1, "uus", 1u, 9u, "");
	case 10: return p9c_build(m, P9_TXATTRCREATE, 1, "usqu", 1u, "user.b", ONE, 0u);
	case 11: return p9c_build(m, P9_TREADDIR, 1, "uqu", 3u, (uint64_t)0, 4096u);
	case 12: return p9c_build(m, P9_TFSYNC, 1, "uu", 2u, 1u);
	case 13: return p9c_build(m, P9_TLOCK, 1, "ubuqqus", 2u, 1u, 0u, ONE, ONE, 7u, "client");
	case 14: return p9c_build(m, P9_TGETLOCK, 1, "ubqqus", 2u, 1u, ONE, ONE, 7u, "client");
	case 15: return p9c_build(m, P9_TLINK, 1, "uus", ROOT, 1u, "hard");
	case 16: return p9c_build(m, P9_TMKDIR, 1, "usuu", ROOT, "dir", 0755u, 0u);
	case 17: return p9c_build(m, P9_TRENAMEAT, 1, "usus", ROOT, "file", ROOT, "file");
	case 18: return p9c_build(m, P9_TUNLINKAT, 1, "usu", ROOT, "none", 0u);
	case 19: return p9c_build(m, P9_TVERSION, 1, "us", 8192u, "9P2000.L");
	case 20: return p9c_build(m, P9_TAUTH, 1, "ussu", 9u, "user", "tree", 0u);
	case 21: return p9c_build(m, P9_TATTACH, 1, "uussu", 9u, P9_NOFID, "user", "tree", 0u);
	case 22: return p9c_build(m, P9_TFLUSH, 1, "h", 9u);
	case 23: return p9c_build(m, P9_TWALK, 1, "uuhsss", 3u, 9u, 3u, "..", ".", "file");
	case 24: return p9c_build(m, P9_TREAD, 1, "uqu", 2u, (uint64_t)0, 100u);
	case 25: return p9c_build(m, P9_TWRITE, 1, "uqud", 2u, (uint64_t)0, 7u, "content", (size_t)7);
	case 26: return p9c_build(m, P9_TWRITE, 1, "uqud", 4u, (uint64_t)0, 7u, "content", (size_t)7);
	case 27: return p9c_build(m, P9_TCLUNK, 1, "u", 1u);
	case 28: return p9c_build(m, P9_TCLUNK, 1, "u", 4u);
	case 29: return p9c_build(m, P9_TREMOVE, 1, "u", 1u);
	default: return 0;
	}
}

static void set_size(uint8_t *m, size_t n)
{
	for (unsigned i = 0; i < 4; i++)
		m[i] = (uint8_t)(n >> 8 * i);
}

/* Sends it as it is: -EINVAL, or the outcome. What was made on the way does not matter. */
static int send_raw(struct p9fix *f, const uint8_t *m, size_t n)
{
	struct p9c_req *r;
	int len = p9c_submit(&f->c, &r, m, n);

	if (len < 0) {
		assert_int_equal(len, -EINVAL);
		p9c_free(r);
		return len;
	}
	return p9c_wait(r);
}

/* Cut at every length, with the size it has then and with the one it had. */
static void test_truncated(void **state)
{
	struct p9fix *f = setup();
	uint8_t *m = malloc(P9C_MAX);
	unsigned cut = 0;
	size_t n;

	for (unsigned i = 0; (n = good(m, i)); i++) {
		for (size_t k = 0; k < n; k++) {
			int error;

			good(m, i);
			assert_int_equal(send_raw(f, m, k), -EINVAL);
			set_size(m, k);
			error = send_raw(f, m, k);
			if (error == 0)
				assert_true(m[4] == P9_TFSYNC && k == 11); /* its last number may be missing */
			cut++;
		}
		check_alive(f);
	}
	print_message("%u messages cut\n", cut);
	free(m);
	p9fix_free(f);
}

/* Every size of room for the reply: an answer that fits, or none at all. */
static void test_room(void **state)
{
	struct p9fix *f = setup();
	uint8_t *m = malloc(P9C_MAX);
	size_t n;

	for (unsigned i = 0; (n = good(m, i)); i++) {
		for (uint32_t room = 0; room < 200; room++) {
			int error;

			begin(f, true);
			f->c.room = room;
			error = send_raw(f, m, n);
			if (room < P9_ERROR_SIZE)
				assert_int_equal(error, -EINVAL);
		}
		check_alive(f);
	}
	free(m);
	p9fix_free(f);
}

static void test_sizes(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	uint8_t *m = calloc(1, P9C_MAX);
	size_t n;

	n = good(m, 7);
	for (size_t size = 0; size < 7; size++) {
		set_size(m, size);
		assert_int_equal(send_raw(f, m, n), -EINVAL);
	}
	set_size(m, n + 1);
	assert_int_equal(send_raw(f, m, n), -EINVAL);
	set_size(m, ~0u);
	assert_int_equal(send_raw(f, m, n), -EINVAL);
	/* Counts beyond everything. */
	assert_int_equal(p9c_call(c, P9_TWRITE, "uqud", 2u, (uint64_t)0, 8u, "content", (size_t)7), -EINVAL);
	assert_int_equal(p9c_call(c, P9_TWRITE, "uqud", 2u, (uint64_t)0, ~0u, "content", (size_t)7), -EINVAL);
	assert_int_equal(p9c_call(c, P9_TREAD, "uqu", 2u, (uint64_t)0, ~0u), 0);
	assert_int_equal(p9c_call(c, P9_TREADDIR, "uqu", 3u, (uint64_t)0, ~0u), 0);
	assert_int_equal(p9c_call(c, P9_TXATTRCREATE, "usqu", 1u, "user.b", ~0ull, 0u), -E2BIG);
	assert_int_equal(p9c_call(c, P9_TWRITE, "uqud", 4u, ~0ull, 7u, "content", (size_t)7), -ENOSPC);
	assert_int_equal(p9c_call(c, P9_TWRITE, "uqud", 4u, (uint64_t)5, 7u, "content", (size_t)7), -ENOSPC);
	assert_int_equal(p9c_call(c, P9_TWALK, "uuh", ROOT, 9u, 65535u), -EINVAL);
	/* Strings as long as there are. */
	assert_int_equal(p9c_call(c, P9_TMKDIR, "uhduu", ROOT, 65535u, m, (size_t)65535, 0755u, 0u), -ENAMETOOLONG);
	assert_int_equal(p9c_call(c, P9_TSYMLINK, "ushdu", ROOT, "l", 65535u, m, (size_t)65535, 0u), -ENAMETOOLONG);
	memset(m, 't', 4095);
	assert_int_equal(p9c_call(c, P9_TSYMLINK, "ushdu", ROOT, "l", 4095u, m, (size_t)4095, 0u), 0);
	assert_int_equal(p9c_walk(c, ROOT, 9, "l"), 0);
	assert_int_equal(p9c_call(c, P9_TREADLINK, "u", 9u), 0);
	assert_int_equal(c->r.left, 2 + 4095);
	free(m);
	check_alive(f);
	p9fix_free(f);
}

/* Bytes of good messages changed at random, many in one session. */
static void test_garbage(void **state)
{
	struct p9fix *f = setup();
	uint8_t *m = malloc(P9C_MAX);
	unsigned seed = 1, answers = 0;

	for (unsigned i = 0; i < 20000; i++) {
		size_t n = good(m, (seed >> 8) % 30);

		for (unsigned k = seed % 4; k; k--) {
			seed = seed * 1103515245u + 12345u;
			if (n > 7)
				m[5 + (seed >> 8) % (n - 5)] = (uint8_t)(seed >> 20);
		}
		seed = seed * 1103515245u + 12345u;
		if (seed % 8 == 0)
			m[4] = (uint8_t)(seed >> 16);
		if (m[4] == P9_TVERSION || (m[4] & 1)) /* would end the session; odd ones are no requests */
			continue;
		answers += send_raw(f, m, n) != -EINVAL;
		if (i % 100 == 0)
			begin(f, true);
	}
	assert_true(answers > 1000);
	free(m);
	check_alive(f);
	p9fix_free(f);
}

/* Walks until there are no descriptors left for us; others still have some, and it goes on when one is given back. */
static void test_descriptors(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	struct rlimit old, small;
	uint32_t fid = 100;
	int error, fd;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	small = old;
	small.rlim_cur = 400;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &small), 0);
	while (!(error = p9c_walk(c, ROOT, fid, "file")))
		fid++;
	assert_int_equal(error, -EMFILE);
	assert_true(fid > 200 && fid < 300);
	fd = openat(f->dirfd, "file", O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(p9c_open(c, 100, 0), -EMFILE);
	assert_int_equal(p9c_create(c, ROOT, 98, "other", RDWR, 0644), -EMFILE);
	assert_int_equal(faccessat(f->dirfd, "other", F_OK, 0), -1); /* not half made */
	assert_int_equal(p9c_walk(c, 100, 99, ""), 0);               /* a copy takes none */
	assert_int_equal(p9c_clunk(c, 101), 0);
	assert_int_equal(p9c_open(c, 100, 0), 0);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
	check_alive(f);
	p9fix_free(f);
}

static void test_bounds(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	unsigned n;
	int error;

	for (n = 0; !(error = p9c_call(c, P9_TXATTRWALK, "uus", 1u, 1000 + n, "")); n++)
		;
	assert_int_equal(error, -EMFILE);
	assert_int_equal(n, P9_MAX_XATTRS - 1); /* fid 4 is one */
	assert_int_equal(p9c_call(c, P9_TXATTRCREATE, "usqu", 1u, "user.b", ONE, 0u), -EMFILE);
	for (n = 0; n < P9_MAX_XATTRS - 1; n++)
		assert_int_equal(p9c_clunk(c, 1000 + n), 0);
	/* Owners of locks. */
	for (n = 0;; n++) {
		error = p9c_call(c, P9_TLOCK, "ubuqqus", 2u, 0u, 0u, ONE, ONE, n, "client");
		if (error)
			break;
	}
	assert_int_equal(error, -ENOLCK);
	assert_int_equal(n, P9_MAX_LOCKS);
	/* Buffers for reading directories. */
	for (n = 0;; n++) {
		assert_int_equal(p9c_walk(c, ROOT, 1000 + n, ""), 0);
		assert_int_equal(p9c_open(c, 1000 + n, 0), 0);
		error = p9c_call(c, P9_TREADDIR, "uqu", 1000 + n, (uint64_t)0, 4096u);
		if (error)
			break;
	}
	assert_int_equal(error, -EMFILE);
	assert_int_equal(n, P9_MAX_DIRS);
	check_alive(f);
	p9fix_free(f);
}

/* A limit on the size of files is an error of the client's, not a signal to us. */
static void test_file_size(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	struct rlimit old, small;

	assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
	small = old;
	small.rlim_cur = 1000;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	assert_int_equal(p9c_write(c, 2, 1000, "x", 1), -EFBIG);
	assert_int_equal(
	        p9c_call(c, P9_TSETATTR, "uuuuuqqqqq", 2u, P9_SET_SIZE, 0u, 0u, 0u, (uint64_t)1001, ONE, ONE, ONE, ONE),
	        -EFBIG);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
	check_alive(f);
	p9fix_free(f);
}

/* Numbers in no order, many of them, taken and given back. */
static void test_fids(void **state)
{
	struct p9fix *f = setup();
	struct p9c *c = &f->c;
	const uint32_t n = 5000, step = 2654435761u;

	for (uint32_t i = 1; i < n; i++)
		assert_int_equal(p9c_walk(c, 1, i * step, ""), 0);
	for (uint32_t i = 1; i < n; i++)
		assert_int_equal(p9c_walk(c, 1, i * step, ""), -EBADF);
	for (uint32_t i = 1; i < n; i += 2)
		assert_int_equal(p9c_clunk(c, i * step), 0);
	for (uint32_t i = 1; i < n; i++)
		assert_int_equal(p9c_call(c, P9_TSTATFS, "u", i * step), i % 2 ? -EBADF : 0);
	check_alive(f);
	/* As many as there may be: copies, which take no descriptors. */
	c->room = 64;
	for (uint32_t i = 0; i < P9_MAX_FIDS - 5; i++) /* begin() took five */
		assert_int_equal(p9c_walk(c, 1, 10 + i, ""), 0);
	assert_int_equal(p9c_walk(c, 1, 5, ""), -EMFILE);
	assert_int_equal(p9c_clunk(c, 10), 0);
	assert_int_equal(p9c_walk(c, 1, 5, ""), 0);
	check_alive(f);
	p9fix_free(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_truncated), cmocka_unit_test(test_room),        cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_garbage),   cmocka_unit_test(test_descriptors), cmocka_unit_test(test_bounds),
		cmocka_unit_test(test_fids),      cmocka_unit_test(test_file_size),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
