// SPDX-License-Identifier: GPL-2.0-or-later
#include "fs/p9_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * How it works
 *
 * A place is a descriptor, never a path: what it is open on stays the same
 * whatever is renamed or replaced. From there one component at a time is
 * opened, O_PATH and not following a symlink: a name without '/' that is not
 * ".." leads to something in that directory or mounted on it. So from the root
 * down nothing leads out.
 *
 * ".." is the one way up, and asking the host for it would follow a directory
 * that was moved out of the share. Instead the kernel is asked where the place
 * is (the link in /proc/self/fd, which follows renames), and if that is below
 * where the root is, its parent is walked to anew from the root. What the
 * kernel said may be out of date by then: the walk finds something else in the
 * share, or nothing. It serves Tremove and Trename, too, which have to find the
 * name by which a file is to be removed; they check that the name leads to the
 * file. Linux sends none of these three unless it has to.
 *
 * On the loop a mount is not entered, as even to look at a dead one would hang;
 * a worker does that, and learns whether the file system is a slow one.
 */

static int open_place(int dirfd, const char *name, uint64_t resolve)
{
	struct open_how how = {
		.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | resolve,
	};
	long fd = syscall(SYS_openat2, dirfd, name, &how, sizeof(how));

	return fd < 0 ? -errno : (int)fd;
}

int walk_one(struct op *op, struct file *dir, const char *name, struct file **out, struct statx *st)
{
	struct host *h = op->host;
	int error, fd;

	if (dir->type != S_IFDIR)
		return -ENOTDIR;
	fd = open_place(dir->fd, name, op->nowait ? RESOLVE_NO_XDEV : 0);
	if (fd == -EXDEV && op->nowait)
		op->again = true;
	if (fd == -EXDEV)
		return -ENOENT; /* moved out of the directory under our eyes */
	if (fd < 0)
		return fd;
	error = file_stat(fd, st);
	if (error) {
		close(fd);
		return error;
	}
	return file_new(h, fd, st, op->nowait ? false : host_is_slow(h, fd), out);
}

static bool same_file(const struct file *a, const struct file *b)
{
	return a->dev == b->dev && a->ino == b->ino;
}

static int read_place(const struct file *f, char path[PATH_MAX])
{
	char name[PROC_FD_SIZE];
	ssize_t n = readlinkat(f->host->fds, fd_name(f->fd, name), path, PATH_MAX - 1);

	if (n < 0)
		return -errno;
	path[n] = '\0';
	return 0;
}

/* The way from the root to @f, a place in @path; NULL and *@error where there is none. */
static char *way_down(struct op *op, struct file *f, char path[PATH_MAX], int *error)
{
	char top[PATH_MAX];
	size_t n;

	*error = read_place(op->root, top);
	if (!*error)
		*error = read_place(f, path);
	if (*error)
		return NULL;
	n = strcmp(top, "/") ? strlen(top) : 0;
	*error = -ENOENT;
	return !strncmp(path, top, n) && path[n] == '/' && path[n + 1] ? path + n + 1 : NULL;
}

int walk_parent(struct op *op, struct file *f, struct file **dir, char name[NAME_SIZE])
{
	struct file *at = file_get(op->root);
	char path[PATH_MAX], *s, *slash;
	struct statx st;
	int error;

	s = way_down(op, f, path, &error);
	if (s)
		error = 0;
	for (; !error && (slash = strchr(s, '/')); s = slash + 1) {
		struct file *next;

		*slash = '\0';
		error = walk_one(op, at, s, &next, &st);
		if (!error) {
			file_put(at);
			at = next;
		}
	}
	if (!error && strlen(s) >= NAME_SIZE)
		error = -ENOENT; /* the kernel has put something behind the name: it is removed */
	if (error) {
		file_put(at);
		return error;
	}
	memcpy(name, s, strlen(s) + 1);
	*dir = at;
	return 0;
}

/* The root's parent is the root. */
static int walk_up(struct op *op, struct file *f, struct file **out, struct statx *st)
{
	char name[NAME_SIZE];
	int error = 0;

	if (f->type != S_IFDIR)
		return -ENOTDIR;
	if (same_file(f, op->root))
		*out = file_get(op->root);
	else
		error = walk_parent(op, f, out, name);
	if (error)
		return error;
	error = file_stat((*out)->fd, st);
	if (error)
		file_put(*out);
	return error;
}

static int walk_step(struct op *op, struct file *at, const char *name, struct file **out, struct statx *st)
{
	int error = strcmp(name, "..") ? walk_one(op, at, name, out, st) : walk_up(op, at, out, st);

	if (!error)
		id_show(op->host, (*out)->fd, st);
	return error;
}

int walk_check(struct op *op)
{
	if (op->newfid == op->fid->num ? op->open != NULL : fid_find(op->host->p9, op->newfid) != NULL)
		return -EBADF;
	if (op->ns)
		return 0;
	op->made = file_get(op->file); /* a copy */
	return 1;
}

/* As far as it goes: if not even the first step, that is an error. */
int walk_work(struct op *op)
{
	struct file *at = file_get(op->file);
	int error = 0;

	op->nqid = 0;
	while (op->nqid < op->ns) {
		struct file *next;

		error = walk_step(op, at, op->s[op->nqid], &next, &op->st);
		if (error)
			break;
		file_put(at);
		at = next;
		qid_make(op->host, &op->st, &op->qid[op->nqid++]);
	}
	if (error)
		file_put(at);
	else
		op->made = at;
	return op->nqid && !op->again ? 0 : error;
}

/* The fid to walk from becomes the new one. */
static int move_fid(struct op *op)
{
	struct fid *f = op->fid;

	if (f->gone || f->open || f->xattr)
		return -EBADF;
	file_put(f->file);
	f->file = file_get(op->made);
	return 0;
}

int walk_finish(struct op *op, struct wire *w)
{
	struct fid *f;
	int error = 0;

	wire_put_u16(w, (uint16_t)op->nqid);
	for (unsigned i = 0; i < op->nqid; i++)
		wire_put_qid(w, &op->qid[i]);
	if (w->bad)
		return -EMSGSIZE;
	if (op->made)
		error = op->newfid == op->fid->num ? move_fid(op)
		                                   : fid_add(op->host->p9, op->newfid, op->made, op->uid, &f);
	return error;
}
