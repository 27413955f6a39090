// SPDX-License-Identifier: GPL-2.0-or-later
/* Reading directories over 9p. */
#include "p9fix.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define ROOT  0u
#define MANY  20000u
#define LONG  250
#define MSIZE 4096u

struct entry {
	struct qid qid;
	uint64_t cookie;
	uint8_t type;
	char name[256];
};

/* Reads from @off; the number of entries, or -errno. */
static int list(struct p9c *c, uint32_t fid, uint64_t off, uint32_t count, struct entry *e, unsigned max)
{
	int error = p9c_call(c, P9_TREADDIR, "uqu", fid, off, count);
	unsigned n = 0;
	uint32_t size;

	if (error)
		return error;
	size = wire_u32(&c->r);
	assert_int_equal(size, c->r.left);
	while (c->r.left) {
		assert_true(n < max);
		memset(&e[n], 0, sizeof(*e));
		e[n].qid = p9c_qid(c);
		e[n].cookie = wire_u64(&c->r);
		e[n].type = wire_u8(&c->r);
		assert_true(wire_str(&c->r, e[n].name, sizeof(e[n].name)) > 0);
		n++;
	}
	return (int)n;
}

static struct p9fix *setup(const char *dir)
{
	struct p9fix *f = p9fix_new(dir, P9_MAP_NONE, false);

	assert_int_equal(p9c_start(&f->c, MSIZE, ROOT, 0), 0);
	assert_int_equal(p9c_walk(&f->c, ROOT, 1, ""), 0);
	assert_int_equal(p9c_open(&f->c, 1, P9_DOTL_DIRECTORY), 0);
	return f;
}

static const struct entry *find(const struct entry *e, int n, const char *name)
{
	for (int i = 0; i < n; i++)
		if (!strcmp(e[i].name, name))
			return &e[i];
	fail_msg("no %s", name);
	return NULL;
}

static void test_entries(void **state)
{
	struct p9fix *f = setup(NULL);
	struct p9c *c = &f->c;
	struct entry e[16], again[16];
	struct p9c_attr a;
	int n;

	assert_int_equal(mkdirat(f->dirfd, "dir", 0755), 0);
	assert_int_equal(symlinkat("x", f->dirfd, "link"), 0);
	assert_int_equal(mkfifoat(f->dirfd, "fifo", 0600), 0);
	p9fix_put(f, "share/file", "x");
	n = list(c, 1, 0, MSIZE, e, 16);
	assert_int_equal(n, 6);
	assert_int_equal(p9c_getattr(c, ROOT, &a), 0);
	assert_true(find(e, n, ".")->qid.path == a.qid.path && find(e, n, ".")->qid.type == P9_QTDIR);
	assert_true(find(e, n, "..")->qid.path == a.qid.path); /* nothing is above */
	assert_int_equal(find(e, n, "dir")->type, DT_DIR);
	assert_int_equal(find(e, n, "dir")->qid.type, P9_QTDIR);
	assert_int_equal(find(e, n, "link")->type, DT_LNK);
	assert_int_equal(find(e, n, "link")->qid.type, P9_QTSYMLINK);
	assert_int_equal(find(e, n, "fifo")->type, DT_FIFO);
	assert_int_equal(find(e, n, "file")->type, DT_REG);
	for (int i = 0; i < n; i++) {
		assert_int_equal(p9c_walk(c, ROOT, 2, e[i].name), 0);
		assert_int_equal(p9c_getattr(c, 2, &a), 0);
		assert_true(a.qid.path == e[i].qid.path && a.qid.type == e[i].qid.type);
		assert_int_equal(p9c_clunk(c, 2), 0);
	}
	assert_int_equal(list(c, 1, e[n - 1].cookie, MSIZE, again, 16), 0);
	/* From any cookie, in any order. */
	for (int i = n - 1; i >= 0; i--) {
		assert_int_equal(list(c, 1, e[i].cookie, MSIZE, again, 16), n - 1 - i);
		assert_memory_equal(again, e + i + 1, (size_t)(n - 1 - i) * sizeof(*e));
	}
	assert_int_equal(list(c, 1, 0, MSIZE, again, 16), n);
	/* Not even one fits. */
	assert_int_equal(list(c, 1, 0, 24, again, 16), -EINVAL);
	assert_int_equal(list(c, 1, 1ull << 63, MSIZE, again, 16), -EINVAL);
	assert_int_equal(list(c, ROOT, 0, MSIZE, again, 16), -EBADF);
	assert_int_equal(p9c_walk(c, ROOT, 3, "file"), 0);
	assert_int_equal(p9c_open(c, 3, 0), 0);
	assert_int_equal(list(c, 3, 0, MSIZE, again, 16), -ENOTDIR);
	p9fix_free(f);
}

static void long_name(char *name, unsigned i)
{
	memset(name, 'n', LONG);
	snprintf(name, 8, "%06u", i);
	name[6] = 'n';
	name[LONG] = '\0';
}

static void touch(struct p9fix *f, unsigned i)
{
	char name[LONG + 1];
	int fd;

	long_name(name, i);
	fd = openat(f->dirfd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	assert_true(fd >= 0);
	close(fd);
}

static void gone(struct p9fix *f, unsigned i)
{
	char name[LONG + 1];

	long_name(name, i);
	assert_int_equal(unlinkat(f->dirfd, name, 0), 0);
}

/*
 * While the directory is read, every tenth file goes and others come. All that
 * were there from beginning to end are seen, and no name twice.
 */
static void many(const char *dir)
{
	struct p9fix *f = setup(dir);
	uint8_t *seen = calloc(1, 3 * MANY);
	struct entry e[32];
	uint64_t off = 0;
	unsigned made = MANY, removed = 0, rounds = 0;
	int n;

	assert_non_null(seen);
	for (unsigned i = 0; i < MANY; i++)
		touch(f, i);
	while ((n = list(&f->c, 1, off, MSIZE, e, 32))) {
		assert_true(n > 0);
		for (int i = 0; i < n; i++) {
			unsigned k = (unsigned)strtoul(e[i].name, NULL, 10);

			if (e[i].name[0] != '.')
				assert_int_equal(seen[k]++, 0);
		}
		off = e[n - 1].cookie;
		if (++rounds % 2 && removed < MANY)
			gone(f, removed), removed += 10;
		if (made < 2 * MANY)
			touch(f, made++);
		if (rounds % 7 == 0) /* another position in between */
			assert_true(list(&f->c, 1, 0, MSIZE, e, 32) > 0);
	}
	for (unsigned i = 0; i < MANY; i++)
		if (!seen[i] && (i % 10 || i >= removed))
			fail_msg("%u is missing", i);
	free(seen);
	p9fix_free(f);
}

static void test_many(void **state)
{
	many(NULL);
}

static void test_many_tmpfs(void **state)
{
	if (access("/dev/shm", W_OK)) {
		print_message("no /dev/shm\n");
		skip();
	}
	many("/dev/shm");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_entries),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_many_tmpfs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
