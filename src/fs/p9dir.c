// SPDX-License-Identifier: GPL-2.0-or-later
#include "fs/p9_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * How it works
 *
 * A directory is read with getdents64 into a buffer that belongs to the opened
 * file. The cookie of an entry is the host's own (d_off), so it means the same
 * for as long as the host's does. A client that reads on where it stopped gets
 * the rest of the buffer; any other cookie, and 0, seeks.
 *
 * Entries are told by what getdents says: type and inode number, on the
 * directory's own file system. For a directory something is mounted on that is
 * the number of what is covered, as readdir(3) has it on the host as well.
 * It is nobody else's (what is covered cannot be reached), and to look at the
 * mount instead would let one dead mount hang the listing of the directory it
 * is in. Only a file of unknown type is looked at, and not across a mount.
 */

#define DIRBUF     16384
#define ENTRY_SIZE 24 /* without the name */

struct dirbuf {
	size_t len, pos;
	uint64_t next; /* the cookie of what is at @pos */
	char data[DIRBUF] __attribute__((aligned(8)));
};

static struct dirbuf *dirbuf_new(struct host *h)
{
	struct dirbuf *d = NULL;

	if (atomic_fetch_add(&h->ndirs, 1) < P9_MAX_DIRS)
		d = malloc(sizeof(*d));
	if (d)
		d->len = d->pos = d->next = 0;
	else
		atomic_fetch_sub(&h->ndirs, 1);
	return d;
}

void dirbuf_free(struct host *h, struct dirbuf *d)
{
	if (!d)
		return;
	free(d);
	atomic_fetch_sub(&h->ndirs, 1);
}

int readdir_check(struct op *op)
{
	if (!op->open)
		return -EBADF;
	return op->open->type == S_IFDIR ? 0 : -ENOTDIR;
}

static int seek(struct file *f, struct dirbuf *d, uint64_t off)
{
	if (off && off == d->next)
		return 0;
	if (off > INT64_MAX || lseek(f->fd, (off_t)off, SEEK_SET) < 0)
		return -EINVAL;
	d->len = d->pos = 0;
	d->next = off;
	return 0;
}

/* The entry at the buffer's position; NULL at the end, or with *@error. */
static struct dirent64 *entry(struct file *f, struct dirbuf *d, int *error)
{
	ssize_t n;

	*error = 0;
	if (d->pos == d->len) {
		n = getdents64(f->fd, d->data, sizeof(d->data));
		if (n < 0)
			*error = -errno;
		if (n <= 0)
			return NULL;
		d->pos = 0;
		d->len = (size_t)n;
	}
	return (struct dirent64 *)(void *)(d->data + d->pos);
}

/* For file systems whose getdents does not tell. */
static mode_t look(struct op *op, const char *name)
{
	bool nowait = op->nowait;
	struct file *place;
	struct statx st;
	mode_t type = 0;

	op->nowait = true; /* not into a mount, also by a worker */
	if (!walk_one(op, op->open, name, &place, &st)) {
		type = place->type;
		file_put(place);
	}
	op->nowait = nowait;
	op->again = false;
	return type;
}

static void entry_qid(struct op *op, const struct dirent64 *e, struct qid *q, uint8_t *type)
{
	struct host *h = op->host;
	mode_t mode = DTTOIF(e->d_type);
	ino_t ino = e->d_ino;

	if (e->d_type == DT_UNKNOWN)
		mode = look(op, e->d_name);
	mode = id_type_at(h, op->open->fd, e->d_name, mode);
	if (!strcmp(e->d_name, "..") && op->open->dev == h->dev && op->open->ino == h->ino)
		ino = h->ino; /* what is above the root is no business of the client's */
	*q = (struct qid){ .type = qid_type(mode), .path = qid_path(&h->qids, op->open->dev, ino) };
	*type = (uint8_t)IFTODT(mode);
}

/* At most @room bytes of entries, to op->buf. */
static int fill(struct op *op, struct dirbuf *d, size_t room)
{
	struct iovec iov = { op->buf, room };
	const struct dirent64 *e;
	struct wire w;
	struct qid q;
	uint8_t type;
	int error;

	wire_init(&w, &iov, 1);
	while ((e = entry(op->open, d, &error)) && ENTRY_SIZE + strlen(e->d_name) <= w.left) {
		entry_qid(op, e, &q, &type);
		wire_put_qid(&w, &q);
		wire_put_u64(&w, (uint64_t)e->d_off);
		wire_put_u8(&w, type);
		wire_put_str(&w, e->d_name);
		d->pos += e->d_reclen;
		d->next = (uint64_t)e->d_off;
	}
	op->count = room - w.left;
	if (op->count)
		return 0;           /* an error comes again */
	return e ? -EINVAL : error; /* nothing would mean the end */
}

int readdir_work(struct op *op)
{
	size_t room = op->room - P9_IO_HEADER;
	struct file *f = op->open;
	int error = 0;

	if (room > op->u[1])
		room = op->u[1];
	op->buf = malloc(room ? room : 1);
	if (!op->buf)
		return -ENOMEM;
	pthread_mutex_lock(&f->lock);
	if (!f->dir)
		f->dir = dirbuf_new(op->host);
	if (!f->dir)
		error = -EMFILE;
	if (!error)
		error = seek(f, f->dir, op->u[0]);
	if (!error)
		error = fill(op, f->dir, room);
	pthread_mutex_unlock(&f->lock);
	return error;
}

int readdir_finish(struct op *op, struct wire *w)
{
	wire_put_u32(w, (uint32_t)op->count);
	wire_put(w, op->buf, op->count);
	return 0;
}
