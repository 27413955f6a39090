// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * fsdiff SEED COUNT A B: COUNT random file operations, each in directory A and
 *     in directory B; every result must be the same, errno and data included,
 *     and so must the trees be at the end. Prints the first difference; exit
 *     status 1.
 * fsdiff tree A: prints what is below A, one line for each name.
 *
 * How it works
 *
 * An operation is a function of a side (a directory, and the files opened
 * there) and of arguments that were drawn once. What it returns is its result,
 * and whatever it tells beyond that is added up in @sum. Names are few, so that
 * operations meet.
 *
 * Not compared is what file systems are free in: times, inode numbers, link
 * counts and sizes of directories, the order of entries.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define NSLOTS   8
#define MAX_OFF  100000
#define MAX_DATA 9000
#define PATH_LEN 64

struct side {
	int root;
	int fd[NSLOTS]; /* -1: none */
	bool regular[NSLOTS];
	uint64_t sum;
};

struct args {
	char path[PATH_LEN], path2[PATH_LEN];
	unsigned slot;
	int flags;
	mode_t mode;
	uid_t uid;
	gid_t gid;
	off_t off;
	size_t len;
	int whence;
	unsigned char fill;
};

static uint64_t state;

static uint64_t draw(uint64_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % below;
}

static void add(struct side *s, const void *data, size_t len)
{
	const unsigned char *p = data;

	while (len--)
		s->sum = (s->sum ^ *p++) * 0x100000001b3ull;
}

static void add_stat(struct side *s, const struct stat *st)
{
	bool dir = S_ISDIR(st->st_mode);
	uint64_t v[] = { st->st_mode, dir ? 0 : st->st_nlink,          st->st_uid,
		         st->st_gid,  dir ? 0 : (uint64_t)st->st_size, st->st_rdev };

	add(s, v, sizeof(v));
}

/* The operations. */

static long do_mkdir(struct side *s, const struct args *a)
{
	return mkdirat(s->root, a->path, a->mode);
}

static long do_rmdir(struct side *s, const struct args *a)
{
	return unlinkat(s->root, a->path, AT_REMOVEDIR);
}

static long do_unlink(struct side *s, const struct args *a)
{
	return unlinkat(s->root, a->path, 0);
}

static long do_rename(struct side *s, const struct args *a)
{
	return renameat(s->root, a->path, s->root, a->path2);
}

static long do_link(struct side *s, const struct args *a)
{
	return linkat(s->root, a->path, s->root, a->path2, 0);
}

static long do_symlink(struct side *s, const struct args *a)
{
	return symlinkat(a->path2, s->root, a->path);
}

static long do_readlink(struct side *s, const struct args *a)
{
	char buf[PATH_LEN];
	ssize_t n = readlinkat(s->root, a->path, buf, sizeof(buf));

	if (n > 0)
		add(s, buf, (size_t)n);
	return n;
}

static long do_mkfifo(struct side *s, const struct args *a)
{
	return mknodat(s->root, a->path, S_IFIFO | (a->mode & 0777), 0);
}

/* A FIFO is not kept open: Linux's 9p client knows nothing of its file any more once it has no name. */
static long do_open(struct side *s, const struct args *a)
{
	struct stat st;
	int fd = openat(s->root, a->path, a->flags | O_NONBLOCK, a->mode);

	if (fd < 0)
		return fd;
	if (fstat(fd, &st) || S_ISFIFO(st.st_mode))
		return close(fd);
	fcntl(fd, F_SETFL, a->flags & O_APPEND); /* not O_NONBLOCK: to that client it means that a read may be short */
	if (s->fd[a->slot] >= 0)
		close(s->fd[a->slot]);
	s->fd[a->slot] = fd;
	s->regular[a->slot] = S_ISREG(st.st_mode);
	return 0;
}

static long do_close(struct side *s, const struct args *a)
{
	int fd = s->fd[a->slot];

	s->fd[a->slot] = -1;
	return close(fd);
}

/* A descriptor of a regular file, or one that is none. */
static int file_of(const struct side *s, const struct args *a)
{
	return s->regular[a->slot] ? s->fd[a->slot] : -1;
}

static long tell_read(struct side *s, const unsigned char *buf, ssize_t n)
{
	if (n > 0)
		add(s, buf, (size_t)n);
	return n;
}

static long do_read(struct side *s, const struct args *a)
{
	unsigned char buf[MAX_DATA];

	return tell_read(s, buf, read(file_of(s, a), buf, a->len));
}

static long do_pread(struct side *s, const struct args *a)
{
	unsigned char buf[MAX_DATA];

	return tell_read(s, buf, pread(file_of(s, a), buf, a->len, a->off));
}

static void fill_with(unsigned char *buf, const struct args *a)
{
	for (size_t i = 0; i < a->len; i++)
		buf[i] = (unsigned char)(a->fill + i);
}

static long do_write(struct side *s, const struct args *a)
{
	unsigned char buf[MAX_DATA];

	fill_with(buf, a);
	return write(file_of(s, a), buf, a->len);
}

static long do_pwrite(struct side *s, const struct args *a)
{
	unsigned char buf[MAX_DATA];

	fill_with(buf, a);
	return pwrite(file_of(s, a), buf, a->len, a->off);
}

static long do_lseek(struct side *s, const struct args *a)
{
	return lseek(file_of(s, a), a->whence == SEEK_SET ? a->off : a->off - MAX_OFF / 2, a->whence);
}

static long do_ftruncate(struct side *s, const struct args *a)
{
	return ftruncate(file_of(s, a), a->off);
}

static long do_truncate(struct side *s, const struct args *a)
{
	char path[PATH_LEN + 32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", s->root, a->path);
	return truncate(path, a->off);
}

static long do_fstat(struct side *s, const struct args *a)
{
	struct stat st;
	int r = fstat(s->fd[a->slot], &st);

	if (!r)
		add_stat(s, &st);
	return r;
}

static long do_stat(struct side *s, const struct args *a)
{
	struct stat st;
	int r = fstatat(s->root, a->path, &st, a->whence == SEEK_SET ? AT_SYMLINK_NOFOLLOW : 0);

	if (!r)
		add_stat(s, &st);
	return r;
}

static long do_access(struct side *s, const struct args *a)
{
	return faccessat(s->root, a->path, (int)(a->mode & 7), 0);
}

static long do_chmod(struct side *s, const struct args *a)
{
	return fchmodat(s->root, a->path, a->mode, 0);
}

static long do_fchmod(struct side *s, const struct args *a)
{
	return fchmod(s->fd[a->slot], a->mode);
}

static long do_chown(struct side *s, const struct args *a)
{
	return fchownat(s->root, a->path, a->uid, a->gid, AT_SYMLINK_NOFOLLOW);
}

/* These times are exact, as nothing else has come between; whole seconds, as Linux's 9p client sets no others. */
static long do_utimens(struct side *s, const struct args *a)
{
	struct timespec ts[2] = { { a->off * 1000, 0 }, { a->off * 2000, 0 } };
	struct stat st;
	int r = utimensat(s->root, a->path, ts, AT_SYMLINK_NOFOLLOW);

	if (!r)
		r = fstatat(s->root, a->path, &st, AT_SYMLINK_NOFOLLOW);
	if (!r) {
		add(s, &st.st_atim, sizeof(st.st_atim));
		add(s, &st.st_mtim, sizeof(st.st_mtim));
	}
	return r;
}

static long do_fsync(struct side *s, const struct args *a)
{
	return a->len % 2 ? fsync(file_of(s, a)) : fdatasync(file_of(s, a));
}

static long do_map(struct side *s, const struct args *a)
{
	struct stat st;
	int fd = file_of(s, a);
	void *p;

	if (fd < 0 || fstat(fd, &st) || !st.st_size)
		return 0;
	p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (p == MAP_FAILED)
		return -1;
	add(s, p, (size_t)st.st_size);
	return munmap(p, (size_t)st.st_size);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names in a directory, sorted, each behind its type; -1 if it is none. The caller frees them. */
static int list(int at, const char *path, char *names[], int max)
{
	int n = 0, fd = openat(at, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;

	if (!d)
		return -1;
	while (n < max && (e = readdir(d))) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		if (asprintf(&names[n++], "%c%s", "?fc?d?b?-?l?s"[e->d_type % 13], e -> d_name) < 0)
			abort();
	}
	closedir(d);
	qsort(names, (size_t)n, sizeof(*names), by_name);
	return n;
}

static long do_readdir(struct side *s, const struct args *a)
{
	char *names[64];
	int n = list(s->root, a->path, names, 64);

	for (int i = 0; i < n; i++) {
		add(s, names[i], strlen(names[i]));
		free(names[i]);
	}
	return n;
}

static const struct {
	const char *name;
	unsigned weight;
	long (*run)(struct side *s, const struct args *a);
} ops[] = {
	{ "mkdir", 8, do_mkdir },         { "rmdir", 3, do_rmdir },       { "unlink", 6, do_unlink },
	{ "rename", 8, do_rename },       { "link", 4, do_link },         { "symlink", 3, do_symlink },
	{ "readlink", 2, do_readlink },   { "mkfifo", 1, do_mkfifo },     { "open", 20, do_open },
	{ "close", 3, do_close },         { "read", 5, do_read },         { "pread", 8, do_pread },
	{ "write", 8, do_write },         { "pwrite", 10, do_pwrite },    { "lseek", 4, do_lseek },
	{ "ftruncate", 4, do_ftruncate }, { "truncate", 3, do_truncate }, { "fstat", 5, do_fstat },
	{ "stat", 8, do_stat },           { "access", 2, do_access },     { "chmod", 4, do_chmod },
	{ "fchmod", 2, do_fchmod },       { "chown", 4, do_chown },       { "utimens", 3, do_utimens },
	{ "fsync", 1, do_fsync },         { "map", 2, do_map },           { "readdir", 4, do_readdir },
};
#define NOPS (sizeof(ops) / sizeof(ops[0]))

/* Drawing. */

static size_t draw_op(void)
{
	uint64_t all = 0, n;
	size_t i;

	for (i = 0; i < NOPS; i++)
		all += ops[i].weight;
	n = draw(all);
	for (i = 0; n >= ops[i].weight; i++)
		n -= ops[i].weight;
	return i;
}

static void draw_path(char path[PATH_LEN])
{
	uint64_t depth = 1 + draw(3);
	size_t len = 0;

	while (depth--)
		len += (size_t)sprintf(path + len, "%c%s", (int)('a' + draw(4)), depth ? "/" : "");
}

static int draw_flags(void)
{
	static const int more[] = { O_TRUNC, O_APPEND, O_NOFOLLOW, O_EXCL };
	int flags = (int[]){ O_RDONLY, O_WRONLY, O_RDWR, O_RDWR }[draw(4)];

	if (draw(8) == 0)
		return flags | O_DIRECTORY;
	if (draw(2))
		flags |= O_CREAT;
	for (size_t i = 0; i < 4; i++)
		if (!draw(6) && (more[i] != O_EXCL || (flags & O_CREAT)))
			flags |= more[i];
	return flags;
}

static void draw_args(struct args *a)
{
	static const uid_t ids[] = { 0, 1, 1000, (uid_t)-1 };

	draw_path(a->path);
	draw_path(a->path2);
	a->slot = (unsigned)draw(NSLOTS);
	a->flags = draw_flags();
	a->mode = draw(4) ? 0755 : (mode_t)draw(010000);
	a->uid = ids[draw(4)];
	a->gid = ids[draw(4)];
	a->off = (off_t)draw(MAX_OFF);
	a->len = (size_t)draw(MAX_DATA);
	a->whence = (int)draw(3); /* SEEK_SET, SEEK_CUR, SEEK_END */
	a->fill = (unsigned char)draw(256);
}

/* The trees. */

static uint64_t print_file(FILE *out, int at, const char *name)
{
	unsigned char buf[65536];
	struct side s = { .sum = 1 };
	int fd = openat(at, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
	ssize_t n;

	while ((n = read(fd, buf, sizeof(buf))) > 0)
		add(&s, buf, (size_t)n);
	if (fd < 0 || n < 0)
		fprintf(out, "unreadable (%s): ", strerror(errno));
	if (fd >= 0)
		close(fd);
	return s.sum;
}

static void print_tree(FILE *out, int at, const char *path)
{
	char *names[64], below[PATH_LEN * 2], target[PATH_LEN] = "";
	int n = list(at, path, names, 64);
	struct stat st;
	uint64_t sum = 0;

	if (fstatat(at, path, &st, AT_SYMLINK_NOFOLLOW)) {
		fprintf(out, "%s: %s\n", path, strerror(errno));
		return;
	}
	if (S_ISREG(st.st_mode))
		sum = print_file(out, at, path);
	if (S_ISLNK(st.st_mode) && readlinkat(at, path, target, sizeof(target) - 1) < 0)
		strcpy(target, "unreadable");
	fprintf(out, "%s %o %u:%u", path, st.st_mode, st.st_uid, st.st_gid);
	if (!S_ISDIR(st.st_mode))
		fprintf(out, " %lu links, %ld bytes, %016lx %s", st.st_nlink, st.st_size, sum, target);
	fputs("\n", out);
	for (int i = 0; i < n; i++) {
		snprintf(below, sizeof(below), "%s/%s", path, names[i] + 1);
		print_tree(out, at, below);
		free(names[i]);
	}
}

static char *tree(int at)
{
	char *text;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	if (!out)
		abort();
	print_tree(out, at, ".");
	fclose(out);
	return text;
}

/* Both. */

static void open_side(struct side *s, const char *dir)
{
	s->root = open(dir, O_RDONLY | O_DIRECTORY);
	if (s->root < 0) {
		perror(dir);
		exit(2);
	}
	for (int i = 0; i < NSLOTS; i++)
		s->fd[i] = -1;
}

static long run(struct side *s, size_t op, const struct args *a, int *error)
{
	long r;

	errno = 0;
	r = ops[op].run(s, a);
	*error = r < 0 ? errno : 0;
	return r;
}

static bool step(struct side s[2], unsigned i)
{
	size_t op = draw_op();
	struct args a;
	long r[2];
	int e[2];

	draw_args(&a);
	for (int k = 0; k < 2; k++)
		r[k] = run(&s[k], op, &a, &e[k]);
	if (r[0] == r[1] && e[0] == e[1] && s[0].sum == s[1].sum)
		return true;
	printf("%u: %s %s %s slot %u flags %o mode %o ids %d:%d offset %ld length %zu whence %d:\n"
	       "  %ld (%s) and %ld (%s), data %016lx and %016lx\n",
	       i, ops[op].name, a.path, a.path2, a.slot, (unsigned)a.flags, a.mode, (int)a.uid, (int)a.gid, a.off,
	       a.len, a.whence, r[0], strerror(e[0]), r[1], strerror(e[1]), s[0].sum, s[1].sum);
	return false;
}

static bool same_trees(const struct side s[2])
{
	char *t[2] = { tree(s[0].root), tree(s[1].root) };
	bool same = !strcmp(t[0], t[1]);

	if (!same)
		printf("the trees differ:\n%s---\n%s", t[0], t[1]);
	free(t[0]);
	free(t[1]);
	return same;
}

int main(int argc, char **argv)
{
	struct side s[2] = { { .sum = 1 }, { .sum = 1 } };
	unsigned count;

	umask(022);
	if (argc == 3 && !strcmp(argv[1], "tree")) {
		char *text;

		open_side(&s[0], argv[2]);
		text = tree(s[0].root);
		fputs(text, stdout);
		free(text);
		return 0;
	}
	if (argc != 5)
		return 2;
	state = strtoull(argv[1], NULL, 0) * 0x9e3779b97f4a7c15ull | 1;
	count = (unsigned)strtoul(argv[2], NULL, 0);
	open_side(&s[0], argv[3]);
	open_side(&s[1], argv[4]);
	for (unsigned i = 0; i < count; i++)
		if (!step(s, i))
			return 1;
	return same_trees(s) ? 0 : 1;
}
