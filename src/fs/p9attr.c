// SPDX-License-Identifier: GPL-2.0-or-later
#include "fs/p9_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Attributes of a place: they are asked and set through its descriptor, never by a name. */

int getattr_work(struct op *op)
{
	int error = id_stat(op->host, op->file->fd, &op->st);

	if (!error)
		qid_make(op->host, &op->st, &op->qid[0]);
	return error;
}

static void put_time(struct wire *w, const struct statx_timestamp *t)
{
	wire_put_u64(w, (uint64_t)t->tv_sec);
	wire_put_u64(w, t->tv_nsec);
}

/* Generation and data version: the host tells neither without opening the file. */
int getattr_finish(struct op *op, struct wire *w)
{
	const struct statx *st = &op->st;
	bool btime = (op->u[0] & P9_STATS_BTIME) && (st->stx_mask & STATX_BTIME);

	wire_put_u64(w, P9_STATS_BASIC | (btime ? P9_STATS_BTIME : 0));
	wire_put_qid(w, &op->qid[0]);
	wire_put_u32(w, st->stx_mode);
	wire_put_u32(w, st->stx_uid);
	wire_put_u32(w, st->stx_gid);
	wire_put_u64(w, st->stx_nlink);
	wire_put_u64(w, makedev(st->stx_rdev_major, st->stx_rdev_minor));
	wire_put_u64(w, st->stx_size);
	wire_put_u64(w, st->stx_blksize);
	wire_put_u64(w, st->stx_blocks);
	put_time(w, &st->stx_atime);
	put_time(w, &st->stx_mtime);
	put_time(w, &st->stx_ctime);
	put_time(w, btime ? &st->stx_btime : &(struct statx_timestamp){ 0 });
	wire_put_u64(w, 0);
	wire_put_u64(w, 0);
	return 0;
}

/* The fields of Tsetattr in op->u */
enum { VALID, MODE, UID, GID, SIZE, ATIME, ATIME_NS, MTIME, MTIME_NS };

int setattr_check(struct op *op)
{
	uint64_t v = op->u[VALID];

	if (((v & P9_SET_UID) && op->u[UID] == (uid_t)-1) || ((v & P9_SET_GID) && op->u[GID] == (gid_t)-1))
		return -EINVAL; /* to the host it means: leave it */
	if ((v & P9_SET_SIZE) && op->u[SIZE] > INT64_MAX)
		return -EFBIG;
	if (((v & P9_SET_ATIME_SET) && op->u[ATIME_NS] >= 1000000000) ||
	    ((v & P9_SET_MTIME_SET) && op->u[MTIME_NS] >= 1000000000))
		return -EINVAL;
	return 0;
}

/*
 * Through the opened file where that may write: its rights are from when it was
 * opened. Else by a worker, as truncate(2) waits for who has a lease.
 */
static int set_size(struct op *op)
{
	const struct file *open = op->open;
	char path[PROC_FD_SIZE];
	off_t size = (off_t)op->u[SIZE];
	int r;

	if (op->file->type != S_IFREG)
		return op->file->type == S_IFDIR ? -EISDIR : -EINVAL;
	if (open && (open->flags & O_ACCMODE) != O_RDONLY) {
		r = ftruncate(open->fd, size);
	} else if (op->nowait) {
		op->again = true;
		return -EAGAIN;
	} else {
		r = truncate(proc_fd(op->file->fd, path), size);
	}
	return r ? -errno : 0;
}

static struct timespec time_of(const struct op *op, uint32_t which, uint32_t set, unsigned field)
{
	if (!(op->u[VALID] & which))
		return (struct timespec){ .tv_nsec = UTIME_OMIT };
	if (!(op->u[VALID] & set))
		return (struct timespec){ .tv_nsec = UTIME_NOW };
	return (struct timespec){ .tv_sec = (time_t)op->u[field], .tv_nsec = (long)op->u[field + 1] };
}

static int set_times(struct op *op)
{
	struct timespec ts[2] = {
		time_of(op, P9_SET_ATIME, P9_SET_ATIME_SET, ATIME),
		time_of(op, P9_SET_MTIME, P9_SET_MTIME_SET, MTIME),
	};

	return utimensat(op->file->fd, "", ts, AT_EMPTY_PATH) ? -errno : 0;
}

/*
 * The order matters: a change of size or owner takes setuid bits away, and all
 * of them set times. Where only the time of change is to be set, a change of
 * owner to nobody else does that.
 */
int setattr_work(struct op *op)
{
	uint64_t v = op->u[VALID];
	int error = 0;

	if (v & P9_SET_SIZE)
		error = set_size(op);
	if (!error && (v & (P9_SET_UID | P9_SET_GID)))
		error = id_chown(op->host, op->file->fd, v & P9_SET_UID ? (uid_t)op->u[UID] : (uid_t)-1,
		                 v & P9_SET_GID ? (gid_t)op->u[GID] : (gid_t)-1);
	if (!error && (v & P9_SET_MODE))
		error = id_chmod(op->host, op->file->fd, (mode_t)op->u[MODE]);
	if (!error && (v & (P9_SET_ATIME | P9_SET_MTIME)))
		error = set_times(op);
	if (!error && v == P9_SET_CTIME && fchownat(op->file->fd, "", (uid_t)-1, (gid_t)-1, AT_EMPTY_PATH))
		error = -errno;
	return error;
}

/* Mapped: the target is what the file contains. */
static ssize_t read_mapped(struct op *op, char *buf, size_t size)
{
	struct statx st;
	ssize_t n;
	int fd, error = id_stat(op->host, op->file->fd, &st);

	if (error)
		return error;
	if (!S_ISLNK(st.stx_mode) || op->file->type != S_IFREG)
		return -EINVAL;
	fd = file_reopen(op->host, op->file->fd, O_RDONLY | O_NONBLOCK);
	if (fd < 0)
		return fd;
	n = pread(fd, buf, size, 0);
	n = n < 0 ? -errno : n;
	close(fd);
	return n;
}

int readlink_work(struct op *op)
{
	char *buf = malloc(PATH_MAX);
	ssize_t n;

	free(op->buf);
	op->buf = buf;
	if (!buf)
		return -ENOMEM;
	if (op->host->map == P9_MAP_MAPPED && op->file->type != S_IFLNK) {
		n = read_mapped(op, buf, PATH_MAX - 1);
	} else {
		n = readlinkat(op->file->fd, "", buf, PATH_MAX - 1);
		n = n < 0 ? -errno : n;
	}
	if (n < 0)
		return n == -ENOENT ? -EINVAL : (int)n; /* ENOENT: an empty path on what is no symlink */
	buf[n] = '\0';
	return 0;
}

int readlink_finish(struct op *op, struct wire *w)
{
	wire_put_str(w, op->buf);
	return 0;
}

int statfs_work(struct op *op)
{
	op->buf = malloc(sizeof(struct statfs));
	if (!op->buf)
		return -ENOMEM;
	return fstatfs(op->file->fd, op->buf) ? -errno : 0;
}

int statfs_finish(struct op *op, struct wire *w)
{
	const struct statfs *s = op->buf;

	wire_put_u32(w, (uint32_t)s->f_type);
	wire_put_u32(w, (uint32_t)s->f_bsize);
	wire_put_u64(w, s->f_blocks);
	wire_put_u64(w, s->f_bfree);
	wire_put_u64(w, s->f_bavail);
	wire_put_u64(w, s->f_files);
	wire_put_u64(w, s->f_ffree);
	wire_put_u64(w, (uint32_t)s->f_fsid.__val[0] | (uint64_t)(uint32_t)s->f_fsid.__val[1] << 32);
	wire_put_u32(w, (uint32_t)s->f_namelen);
	return 0;
}
