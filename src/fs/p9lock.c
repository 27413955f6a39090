// SPDX-License-Identifier: GPL-2.0-or-later
#include "fs/p9_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * How it works
 *
 * Record locks belong to a process of the guest: client_id and proc_id. For
 * each process and file there is one owner (struct lock) with a descriptor of
 * its own, and the host's locks are those of that open file (OFD), so those of
 * one process do not get into each other's way through whatever fids they come,
 * those of two do, and other programs on the host see them all.
 *
 * An owner lives until the last fid goes that it came by (struct lock_link);
 * then its descriptor is closed, and with it go the locks. The descriptor is
 * opened by the first lock. It is for reading and writing if the host lets us,
 * as the guest's kernel has checked by what fid a write lock may come.
 *
 * Nothing here waits: who has to is told so, and asks again.
 */

struct lock {
	struct lock *next;
	unsigned links;
	struct file *file;
	dev_t dev;
	ino_t ino;
	uint32_t proc;
	char client[];
};

struct lock_link {
	struct lock *lock;
	struct lock_link *next;
};

static struct lock *find(struct p9 *p, const struct file *f, const char *client, uint32_t proc)
{
	struct lock *l = p->locks;

	while (l && !(l->ino == f->ino && l->dev == f->dev && l->proc == proc && !strcmp(l->client, client)))
		l = l->next;
	return l;
}

static void drop(struct p9 *p, struct lock *l)
{
	struct lock **at = &p->locks;

	while (*at != l)
		at = &(*at)->next;
	*at = l->next;
	p->nlocks--;
	file_put(l->file);
	free(l);
}

void lock_unlink_all(struct p9 *p, struct fid *f)
{
	while (f->locks) {
		struct lock_link *k = f->locks;

		f->locks = k->next;
		p->nlinks--;
		if (!--k->lock->links)
			drop(p, k->lock);
		free(k);
	}
}

static int add(struct p9 *p, struct op *op, const char *client, uint32_t proc, struct lock **out)
{
	const struct file *f = op->open;
	struct statx st = { .stx_mode = (uint16_t)f->type };
	struct lock *l;
	int error;

	if (p->nlocks >= P9_MAX_LOCKS)
		return -ENOLCK;
	l = calloc(1, sizeof(*l) + strlen(client) + 1);
	if (!l)
		return -ENOMEM;
	error = file_new(op->host, -1, &st, f->slow, &l->file);
	if (error) {
		free(l);
		return error;
	}
	l->dev = f->dev;
	l->ino = f->ino;
	l->proc = proc;
	memcpy(l->client, client, strlen(client) + 1);
	l->next = p->locks;
	p->locks = l;
	p->nlocks++;
	*out = l;
	return 0;
}

static int link_to(struct p9 *p, struct fid *f, struct lock *l)
{
	struct lock_link *k = f->locks;

	while (k && k->lock != l)
		k = k->next;
	if (k)
		return 0;
	k = p->nlinks < P9_MAX_LINKS ? malloc(sizeof(*k)) : NULL;
	if (!k)
		return -ENOLCK;
	*k = (struct lock_link){ l, f->locks };
	f->locks = k;
	l->links++;
	p->nlinks++;
	return 0;
}

/* Takes the owner, making one unless @type is UNLCK: who has no locks has nothing to release. */
static int owner(struct op *op, const char *client, uint32_t proc, bool make)
{
	struct p9 *p = op->host->p9;
	struct lock *l;
	int error = 0;

	if (strlen(client) >= NAME_SIZE)
		return -EINVAL;
	l = find(p, op->open, client, proc);
	if (!l && make)
		error = add(p, op, client, proc, &l);
	if (error || !l)
		return error;
	if (make)
		error = link_to(p, op->fid, l);
	if (error && !l->links)
		drop(p, l);
	else if (!error)
		op->made = file_get(l->file);
	return error;
}

static int to_flock(uint64_t type, uint64_t start, uint64_t len, struct flock *fl)
{
	static const short types[] = { F_RDLCK, F_WRLCK, F_UNLCK };

	if (type > P9_LOCK_UNLCK || start > INT64_MAX || len > INT64_MAX)
		return -EINVAL;
	*fl = (struct flock){
		.l_type = types[type], .l_whence = SEEK_SET, .l_start = (off_t)start, .l_len = (off_t)len
	};
	return 0;
}

/* The fields of Tlock and Tgetlock in op->u */
enum { LOCK_TYPE, LOCK_FLAGS, LOCK_START, LOCK_LEN, LOCK_PROC };
enum { GET_TYPE, GET_START, GET_LEN, GET_PROC };

static int is_lockable(const struct op *op)
{
	if (!op->open)
		return -EBADF;
	return op->open->type == S_IFREG || op->open->type == S_IFDIR ? 0 : -EINVAL;
}

int lock_check(struct op *op)
{
	bool make = op->u[LOCK_TYPE] != P9_LOCK_UNLCK;
	struct flock fl;
	int error = is_lockable(op);

	if (!error)
		error = to_flock(op->u[LOCK_TYPE], op->u[LOCK_START], op->u[LOCK_LEN], &fl);
	if (!error)
		error = owner(op, op->s[0], (uint32_t)op->u[LOCK_PROC], make);
	if (error)
		return error;
	return op->made ? 0 : 1;
}

/* Opens the owner's descriptor on first use; under its lock. */
static int open_owner(struct op *op, struct file *owner)
{
	int fd;

	if (owner->fd >= 0)
		return 0;
	fd = file_reopen(op->host, op->open->fd, O_RDWR | O_NONBLOCK);
	if (fd < 0)
		fd = file_reopen(op->host, op->open->fd, O_RDONLY | O_NONBLOCK);
	if (fd < 0)
		return fd;
	owner->fd = fd;
	return 0;
}

int lock_work(struct op *op)
{
	struct file *f = op->made;
	struct flock fl;
	int error = to_flock(op->u[LOCK_TYPE], op->u[LOCK_START], op->u[LOCK_LEN], &fl);

	pthread_mutex_lock(&f->lock);
	if (!error)
		error = open_owner(op, f);
	if (!error && fcntl(f->fd, F_OFD_SETLK, &fl))
		error = -errno;
	pthread_mutex_unlock(&f->lock);
	if (error == -EAGAIN || error == -EACCES) {
		op->count = P9_LOCK_BLOCKED;
		error = 0;
	}
	return error;
}

int lock_finish(struct op *op, struct wire *w)
{
	wire_put_u8(w, (uint8_t)op->count); /* P9_LOCK_SUCCESS is 0 */
	return 0;
}

/*
 * Linux's client keeps for itself what lock it has in mind and sends UNLCK. It
 * is told of any lock there is, then, as somebody who wants to write would be.
 */
int getlock_check(struct op *op)
{
	struct flock fl;
	int error = is_lockable(op);

	if (op->u[GET_TYPE] == P9_LOCK_UNLCK)
		op->u[GET_TYPE] = P9_LOCK_WRLCK;
	if (!error)
		error = to_flock(op->u[GET_TYPE], op->u[GET_START], op->u[GET_LEN], &fl);
	return error ? error : owner(op, op->s[0], (uint32_t)op->u[GET_PROC], false);
}

/* With the owner's descriptor, whose own locks do not count, or with the fid's. */
static int ask(struct op *op, struct flock *fl)
{
	struct file *f = op->made;
	int r, fd = op->open->fd;

	if (f)
		pthread_mutex_lock(&f->lock);
	if (f && f->fd >= 0)
		fd = f->fd;
	r = fcntl(fd, F_OFD_GETLK, fl) ? -errno : 0;
	if (f)
		pthread_mutex_unlock(&f->lock);
	return r;
}

/* Who holds it is told if it is a process of the host; its number means nothing to the guest, but is not 0. */
int getlock_work(struct op *op)
{
	struct flock fl;
	int error = to_flock(op->u[GET_TYPE], op->u[GET_START], op->u[GET_LEN], &fl);

	if (!error)
		error = ask(op, &fl);
	if (error)
		return error;
	op->u[GET_TYPE] = fl.l_type == F_UNLCK ? P9_LOCK_UNLCK : fl.l_type == F_WRLCK ? P9_LOCK_WRLCK : P9_LOCK_RDLCK;
	if (fl.l_type == F_UNLCK)
		return 0;
	op->u[GET_START] = (uint64_t)fl.l_start;
	op->u[GET_LEN] = (uint64_t)fl.l_len;
	op->u[GET_PROC] = fl.l_pid > 0 ? (uint64_t)fl.l_pid : 0;
	return 0;
}

int getlock_finish(struct op *op, struct wire *w)
{
	wire_put_u8(w, (uint8_t)op->u[GET_TYPE]);
	wire_put_u64(w, op->u[GET_START]);
	wire_put_u64(w, op->u[GET_LEN]);
	wire_put_u32(w, (uint32_t)op->u[GET_PROC]);
	wire_put_str(w, op->s[0]);
	return 0;
}
