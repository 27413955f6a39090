// SPDX-License-Identifier: GPL-2.0-or-later
#include "fs/p9_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * How it works
 *
 * An opened file is another descriptor beside the place. Only regular files and
 * directories are opened, which is known from the place itself: what is opened
 * is that and nothing that came there meanwhile. FIFOs, sockets and devices are
 * the business of the guest's kernel.
 *
 * Reading and writing on the loop goes straight between the file and the
 * client's memory, with RWF_NOWAIT: EAGAIN means that the disk is needed, and a
 * worker does it with a buffer of its own. Not every file system knows it
 * (EOPNOTSUPP: tmpfs reads, ext4 writes). As those that get here are local, and
 * what they wait for then is memory or a journal, the plain call is made: a
 * worker for each write would cost more than that. O_SYNC writes are a worker's.
 */

static int host_flags(uint32_t f, int *out)
{
	static const struct {
		uint32_t wire;
		int host;
	} map[] = {
		{ P9_DOTL_TRUNC, O_TRUNC }, { P9_DOTL_APPEND, O_APPEND },       { P9_DOTL_DSYNC, O_DSYNC },
		{ P9_DOTL_SYNC, O_SYNC },   { P9_DOTL_DIRECTORY, O_DIRECTORY },
	};

	/*
	 * Not here: O_DIRECT, which wants memory and lengths aligned, and means
	 * the guest's cache; O_NONBLOCK, O_ASYNC and O_NOCTTY, of no meaning for
	 * files; O_CLOEXEC, O_NOATIME and O_NOFOLLOW, which we always do.
	 */
	*out = (int)(f & P9_DOTL_ACCMODE);
	if (*out == O_ACCMODE)
		return -EINVAL;
	for (unsigned i = 0; i < sizeof(map) / sizeof(map[0]); i++)
		if (f & map[i].wire)
			*out |= map[i].host;
	return 0;
}

static bool changes(uint32_t flags)
{
	return (flags & P9_DOTL_ACCMODE) || (flags & P9_DOTL_TRUNC);
}

/* Opens a place. What a lease would keep waiting is done by a worker. */
static int open_place(struct op *op, struct file *place, int flags, struct file **out, struct statx *st)
{
	int error, fd;

	flags |= O_NOCTTY | (op->nowait ? O_NONBLOCK : 0);
	fd = file_reopen(op->host, place->fd, flags | O_NOATIME);
	if (fd == -EPERM) /* the file is not ours */
		fd = file_reopen(op->host, place->fd, flags);
	if (fd == -EWOULDBLOCK && op->nowait)
		op->again = true;
	if (fd < 0)
		return fd;
	error = id_stat(op->host, fd, st);
	if (error) {
		close(fd);
		return error;
	}
	error = file_new(op->host, fd, st, place->slow, out);
	if (!error)
		(*out)->flags = (unsigned)flags;
	return error;
}

static int may_open(struct op *op, struct file *place)
{
	mode_t type = place->type;
	struct statx st;

	if (op->host->map == P9_MAP_MAPPED) {
		int error = id_stat(op->host, place->fd, &st);

		if (error)
			return error;
		type = st.stx_mode & S_IFMT;
	}
	if (type == S_IFREG || type == S_IFDIR)
		return 0;
	return type == S_IFLNK ? -ELOOP : -ENXIO;
}

/* P9_DOTL_CREATE is without meaning here: the file is there. */
int lopen_check(struct op *op)
{
	if (op->open)
		return -EBUSY;
	return op->host->ro && changes((uint32_t)op->u[0]) ? -EROFS : 0;
}

int lopen_work(struct op *op)
{
	int flags, error = host_flags((uint32_t)op->u[0], &flags);

	if (!error)
		error = may_open(op, op->file);
	if (!error)
		error = open_place(op, op->file, flags, &op->made_open, &op->st);
	if (!error)
		qid_make(op->host, &op->st, &op->qid[0]);
	return error;
}

/* After Tlcreate the fid is the new file, no longer the directory. */
int lopen_finish(struct op *op, struct wire *w)
{
	struct fid *f = op->fid;

	if (f->gone || f->open || f->xattr)
		return -EBADF;
	if (op->made) {
		file_put(f->file);
		f->file = file_get(op->made);
	}
	f->open = file_get(op->made_open);
	wire_put_qid(w, &op->qid[0]);
	wire_put_u32(w, 0); /* iounit: what fits a message */
	return 0;
}

int lcreate_check(struct op *op)
{
	if (op->open)
		return -EBUSY;
	return name_check(op->s[0], -EEXIST);
}

/* Makes the file and its place. @fd stays the caller's. */
static int create_new(struct op *op, int flags, int *fd)
{
	mode_t mode = S_IFREG | ((mode_t)op->u[1] & 07777);
	struct open_how how = {
		.flags = (uint64_t)flags | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY,
		.mode = id_create_mode(op->host, mode),
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS,
	};
	int error, place;

	*fd = (int)syscall(SYS_openat2, op->file->fd, op->s[0], &how, sizeof(how));
	if (*fd < 0)
		return -errno;
	error = file_stat(*fd, &op->st);
	if (!error)
		error = id_made(op, op->file, *fd, &op->st, mode, (gid_t)op->u[2], 0);
	if (error)
		return error;
	place = file_reopen(op->host, *fd, O_PATH);
	return place < 0 ? place : file_new(op->host, place, &op->st, op->file->slow, &op->made);
}

static int create(struct op *op, int flags)
{
	int fd, error = create_new(op, flags, &fd);

	if (!error) {
		error = file_new(op->host, fd, &op->st, op->file->slow, &op->made_open);
		fd = -1;
		if (!error)
			op->made_open->flags = (unsigned)flags;
	}
	if (error && error != -EEXIST) {
		if (fd >= 0)
			close(fd);
		if (op->made || fd >= 0)
			unlinkat(op->file->fd, op->s[0], 0); /* half made is not made; the error is told */
	}
	return error;
}

/* The name is there: opens what it leads to, as Tlopen would. */
static int open_existing(struct op *op, int flags)
{
	int error = walk_one(op, op->file, op->s[0], &op->made, &op->st);

	if (!error)
		error = may_open(op, op->made);
	if (!error && op->made->type == S_IFDIR)
		error = -EISDIR;
	if (!error)
		error = open_place(op, op->made, flags, &op->made_open, &op->st);
	if (error) {
		file_put(op->made);
		op->made = NULL;
	}
	return error;
}

/* Again where a file vanishes between the two steps; not for ever. */
int lcreate_work(struct op *op)
{
	uint32_t wire_flags = (uint32_t)op->u[0];
	int flags, error = host_flags(wire_flags & ~P9_DOTL_DIRECTORY, &flags);

	if (error)
		return error;
	for (unsigned tries = 0; tries < 8; tries++) {
		error = create(op, flags);
		if (error != -EEXIST || (wire_flags & P9_DOTL_EXCL))
			break;
		error = open_existing(op, flags);
		if (error != -ENOENT)
			break;
	}
	if (!error)
		qid_make(op->host, &op->st, &op->qid[0]);
	return error;
}

/* How much of @count fits the reply. */
static size_t fits(const struct op *op, uint64_t count)
{
	size_t room = op->room - P9_IO_HEADER;

	return count < room ? (size_t)count : room;
}

int read_check(struct op *op)
{
	if (op->fid->xattr)
		return op->fid->xattr->writing ? -EBADF : 1;
	if (!op->open)
		return -EBADF;
	return op->open->type == S_IFDIR ? -EISDIR : 0;
}

/*
 * One transfer on the loop. -EAGAIN: it would wait.
 */
static ssize_t transfer(struct file *f, const struct iovec *iov, unsigned n, uint64_t off, bool write)
{
	int flags = atomic_load(&f->no_nowait[write]) ? 0 : RWF_NOWAIT;
	ssize_t r;

	for (;;) {
		r = write ? pwritev2(f->fd, iov, (int)n, (off_t)off, flags)
		          : preadv2(f->fd, iov, (int)n, (off_t)off, flags);
		if (r >= 0 || errno != EOPNOTSUPP || !flags)
			return r < 0 ? -errno : r;
		atomic_store(&f->no_nowait[write], true);
		flags = 0;
	}
}

/*
 * What comes up short is at the end of the file, or where the page cache ends;
 * the next step tells which. Linux's client hands a short reply on to whoever
 * reads with O_NONBLOCK, so only the end may make one.
 */
static int read_here(struct op *op, size_t count)
{
	struct iovec iov[P9_MAX_IOV];
	struct wire w;
	ssize_t n;

	wire_init(&w, op->req->in, op->req->nin);
	wire_skip(&w, P9_IO_HEADER);
	do {
		unsigned niov = wire_pieces(&w, count - op->count, iov);

		n = transfer(op->open, iov, niov, op->u[0] + op->count, false);
		if (n > 0) {
			wire_skip(&w, (size_t)n);
			op->count += (size_t)n;
		}
	} while (n > 0 && op->count < count);
	op->again = n == -EAGAIN;
	return n < 0 && (op->again || !op->count) ? (int)n : 0;
}

int read_work(struct op *op)
{
	size_t count = fits(op, op->u[1]);
	ssize_t n;

	if (op->u[0] > INT64_MAX)
		return -EINVAL;
	if (op->nowait)
		return read_here(op, count);
	op->buf = malloc(count ? count : 1);
	if (!op->buf)
		return -ENOMEM;
	n = pread(op->open->fd, op->buf, count, (off_t)op->u[0]);
	op->count = n < 0 ? 0 : (size_t)n;
	return n < 0 ? -errno : 0;
}

int read_finish(struct op *op, struct wire *w)
{
	if (op->fid->xattr) {
		xattr_read(op, w);
		return 0;
	}
	wire_put_u32(w, (uint32_t)op->count);
	if (op->buf)
		wire_put(w, op->buf, op->count);
	else
		wire_skip(w, op->count); /* it is there */
	return 0;
}

int write_check(struct op *op)
{
	if (op->u[1] > op->data.left)
		return -EINVAL;
	op->len = op->u[1];
	if (op->fid->xattr) {
		int error = xattr_write(op);

		return error ? error : 1;
	}
	return op->open ? 0 : -EBADF;
}

int write_keep(struct op *op)
{
	op->buf = malloc(op->len ? op->len : 1);
	if (!op->buf)
		return -ENOMEM;
	wire_get(&op->data, op->buf, op->len);
	return 0;
}

static ssize_t write_here(struct op *op)
{
	struct iovec iov[P9_MAX_IOV];
	ssize_t n;

	if (op->open->flags & O_DSYNC) { /* or O_SYNC, of which it is a part */
		op->again = true;
		return -EAGAIN;
	}
	n = transfer(op->open, iov, wire_pieces(&op->data, op->len, iov), op->u[0], true);
	op->again = n == -EAGAIN;
	return n;
}

int write_work(struct op *op)
{
	ssize_t n;

	if (op->u[0] > INT64_MAX)
		return -EINVAL;
	if (op->nowait) {
		n = write_here(op);
	} else {
		n = pwrite(op->open->fd, op->buf, op->len, (off_t)op->u[0]);
		n = n < 0 ? -errno : n;
	}
	op->count = n < 0 ? 0 : (size_t)n;
	return n < 0 ? (int)n : 0;
}

int write_finish(struct op *op, struct wire *w)
{
	wire_put_u32(w, (uint32_t)op->count);
	return 0;
}

int fsync_check(struct op *op)
{
	return op->open ? 0 : -EBADF;
}

int fsync_work(struct op *op)
{
	return (op->u[0] ? fdatasync(op->open->fd) : fsync(op->open->fd)) ? -errno : 0;
}
