// SPDX-License-Identifier: GPL-2.0-or-later
#include "p9fix.h"
#include "base/clock.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

unsigned p9fix_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static void start(struct p9fix *f, enum p9_map map, bool ro)
{
	char dir[128];
	struct p9_export ex = { .dir = dir, .ro = ro, .map = map };
	struct err err;

	snprintf(dir, sizeof(dir), "%s/share", f->top);
	f->fds = p9fix_fds();
	assert_int_equal(loop_new(&f->loop, &err), 0);
	if (p9_new(&ex, f->loop, &f->p9, &err))
		fail_msg("%s", err.msg);
	p9c_init(&f->c, f->p9, f->loop);
}

void p9fix_stop(struct p9fix *f)
{
	p9_free(f->p9);
	p9c_exit(&f->c);
	loop_free(f->loop);
}

/* Files on slow file systems are closed by workers, which nobody waits for. */
void p9fix_wait_fds(unsigned n)
{
	uint64_t end = clock_ns() + 30000000000u;

	while (p9fix_fds() != n && clock_ns() < end)
		sched_yield();
	assert_int_equal(p9fix_fds(), n);
}

struct p9fix *p9fix_new(const char *dir, enum p9_map map, bool ro)
{
	struct p9fix *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	snprintf(f->top, sizeof(f->top), "%s/p9-XXXXXX", dir ? dir : "/tmp");
	assert_non_null(mkdtemp(f->top));
	f->topfd = open(f->top, O_PATH | O_DIRECTORY | O_CLOEXEC);
	assert_true(f->topfd >= 0 && !mkdirat(f->topfd, "share", 0755));
	f->dirfd = openat(f->topfd, "share", O_PATH | O_DIRECTORY | O_CLOEXEC);
	assert_true(f->dirfd >= 0);
	start(f, map, ro);
	return f;
}

void p9fix_again(struct p9fix *f, enum p9_map map, bool ro)
{
	p9fix_stop(f);
	p9fix_wait_fds(f->fds);
	start(f, map, ro);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

void p9fix_free(struct p9fix *f)
{
	p9fix_stop(f);
	p9fix_end(f);
}

void p9fix_end(struct p9fix *f)
{
	p9fix_wait_fds(f->fds);
	close(f->dirfd);
	close(f->topfd);
	assert_int_equal(nftw(f->top, remove_one, 32, FTW_DEPTH | FTW_PHYS), 0);
	free(f);
}

void p9fix_put(struct p9fix *f, const char *name, const char *text)
{
	int fd = openat(f->topfd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}
