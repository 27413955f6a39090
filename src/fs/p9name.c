// SPDX-License-Identifier: GPL-2.0-or-later
#include "fs/p9_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/*
 * Making, linking, renaming and removing names. Each names one component in a
 * directory that is held open, and none of these calls follows a symlink there.
 */

int name_check(const char *name, int what)
{
	return !strcmp(name, ".") || !strcmp(name, "..") ? what : 0;
}

int make_check(struct op *op)
{
	return name_check(op->s[0], -EEXIST);
}

/* Looks at what was just made, and makes it the client's; where that fails it is removed again. */
static int made(struct op *op, mode_t mode, uint64_t gid, dev_t rdev)
{
	int error = walk_one(op, op->file, op->s[0], &op->made, &op->st);

	op->again = false;
	if (!error)
		error = id_made(op, op->file, op->made->fd, &op->st, mode, (gid_t)gid, rdev);
	if (error)
		unlinkat(op->file->fd, op->s[0], S_ISDIR(mode) ? AT_REMOVEDIR : 0);
	else
		qid_make(op->host, &op->st, &op->qid[0]);
	return error;
}

/* Mapped: what is not a directory is a file, of @len bytes. */
static int make_file(struct op *op, const char *text, size_t len)
{
	int error = 0, fd = openat(op->file->fd, op->s[0], O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);

	if (fd < 0)
		return -errno;
	if (len) {
		ssize_t n = write(fd, text, len);

		if (n != (ssize_t)len)
			error = n < 0 ? -errno : -ENOSPC;
	}
	close(fd);
	if (error)
		unlinkat(op->file->fd, op->s[0], 0);
	return error;
}

int symlink_work(struct op *op)
{
	const char *name = op->s[0], *target = op->s[1];
	int error = 0;

	if (op->host->map == P9_MAP_MAPPED)
		error = *target ? make_file(op, target, strlen(target)) : -ENOENT;
	else if (symlinkat(target, op->file->fd, name))
		error = -errno;
	return error ? error : made(op, S_IFLNK | 0777, op->u[0], 0);
}

int mknod_work(struct op *op)
{
	mode_t mode = (mode_t)op->u[0];
	dev_t rdev = makedev((unsigned)op->u[1], (unsigned)op->u[2]);
	int error = 0;

	if (!(mode & S_IFMT))
		mode |= S_IFREG;
	if (S_ISDIR(mode) || S_ISLNK(mode) || mode > 0177777)
		return -EINVAL;
	if (op->host->map == P9_MAP_MAPPED)
		error = make_file(op, NULL, 0);
	else if (mknodat(op->file->fd, op->s[0], mode, rdev))
		error = -errno;
	return error ? error : made(op, mode, op->u[3], rdev);
}

int mkdir_work(struct op *op)
{
	mode_t mode = S_IFDIR | ((mode_t)op->u[0] & 07777);

	if (mkdirat(op->file->fd, op->s[0], id_create_mode(op->host, mode)))
		return -errno;
	return made(op, mode, op->u[1], 0);
}

int make_finish(struct op *op, struct wire *w)
{
	wire_put_qid(w, &op->qid[0]);
	return 0;
}

/* The way by /proc, as AT_EMPTY_PATH is for the privileged only. */
int link_work(struct op *op)
{
	char name[PROC_FD_SIZE];

	return linkat(op->host->fds, fd_name(op->file2->fd, name), op->file->fd, op->s[0], AT_SYMLINK_FOLLOW) ? -errno
	                                                                                                      : 0;
}

int rename_check(struct op *op)
{
	return name_check(op->s[0], -EBUSY);
}

int renameat_check(struct op *op)
{
	int error = name_check(op->s[0], -EBUSY);

	return error ? error : name_check(op->s[1], -EBUSY);
}

int renameat_work(struct op *op)
{
	return renameat(op->file->fd, op->s[0], op->file2->fd, op->s[1]) ? -errno : 0;
}

/* Finds the name of the file that the fid is at. -EBUSY: it is the root. */
static int find_name(struct op *op, struct file **dir, char name[NAME_SIZE])
{
	struct file *f;
	struct statx st;
	bool same;
	int error;

	if (op->file->dev == op->host->dev && op->file->ino == op->host->ino)
		return -EBUSY;
	error = walk_parent(op, op->file, dir, name);
	if (error)
		return error;
	error = walk_one(op, *dir, name, &f, &st);
	if (!error) {
		same = f->dev == op->file->dev && f->ino == op->file->ino;
		file_put(f);
		error = same ? 0 : -ENOENT;
	}
	if (error)
		file_put(*dir);
	return error;
}

int rename_work(struct op *op)
{
	char name[NAME_SIZE];
	struct file *dir;
	int error = find_name(op, &dir, name);

	if (error)
		return error;
	if (renameat(dir->fd, name, op->file2->fd, op->s[0]))
		error = -errno;
	file_put(dir);
	return error;
}

int unlinkat_check(struct op *op)
{
	int error = name_check(op->s[0], strcmp(op->s[0], ".") ? -ENOTEMPTY : -EINVAL);

	return !error && (op->u[0] & ~(uint64_t)P9_DOTL_AT_REMOVEDIR) ? -EINVAL : error;
}

int unlinkat_work(struct op *op)
{
	return unlinkat(op->file->fd, op->s[0], op->u[0] ? AT_REMOVEDIR : 0) ? -errno : 0;
}

/* The fid is gone also if the file stays. */
int remove_check(struct op *op)
{
	fid_clunk(op->host->p9, op->fid);
	return op->host->ro ? -EROFS : 0;
}

int remove_work(struct op *op)
{
	char name[NAME_SIZE];
	struct file *dir;
	int error = find_name(op, &dir, name);

	if (error)
		return error;
	if (unlinkat(dir->fd, name, op->file->type == S_IFDIR ? AT_REMOVEDIR : 0))
		error = -errno;
	file_put(dir);
	return error;
}
