// SPDX-License-Identifier: GPL-2.0-or-later
#include "fs/p9_impl.h"

#include "base/container_of.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * How it works
 *
 * The session: messages in, replies out (the steps of an operation are in
 * p9_impl.h). p9_msgs[] is the protocol. What is answered at once is the return
 * value of p9_submit(). The rest is in one of two lists: @ops, with a worker,
 * or @ready, to be told by the loop's next turn; so nobody is called back from
 * inside p9_submit(), also when a flush ends another request.
 *
 * A flush that finds its request with a worker forgets it and is done: the
 * client may use the fid numbers of the request again, so what comes of it is
 * thrown away. On the host it may have happened or may yet happen, as with a
 * system call that is killed.
 */

/* Tversion: a new session. */
static int version_check(struct op *op)
{
	struct p9 *p = op->host->p9;

	p9_forget_ops(p, -1, true);
	op->later = p->ready; /* after those that it ended */
	fid_clunk_all(p);
	p->msize = 0;
	if (op->u[0] < P9_MIN_MSIZE)
		return -EMSGSIZE;
	if (op->u[0] > P9_MAX_MSIZE)
		op->u[0] = P9_MAX_MSIZE;
	if (!strcmp(op->s[0], "9P2000.L"))
		p->msize = (uint32_t)op->u[0];
	return 1;
}

static int version_finish(struct op *op, struct wire *w)
{
	wire_put_u32(w, (uint32_t)op->u[0]);
	wire_put_str(w, op->host->p9->msize ? "9P2000.L" : "unknown");
	return 0;
}

/* The user's name and the tree's are ignored: there is one tree, and numbers are what counts. */
static int attach_check(struct op *op)
{
	struct p9 *p = op->host->p9;

	if (op->u[0] != P9_NOFID || fid_find(p, op->newfid))
		return -EBADF;
	op->file = file_get(p->root);
	op->uid = (uid_t)op->u[1];
	return 0;
}

static int attach_work(struct op *op)
{
	int error = id_stat(op->host, op->file->fd, &op->st);

	qid_make(op->host, &op->st, &op->qid[0]);
	return error;
}

static int attach_finish(struct op *op, struct wire *w)
{
	struct fid *f;
	int error = fid_add(op->host->p9, op->newfid, op->file, op->uid, &f);

	wire_put_qid(w, &op->qid[0]);
	return error;
}

static int flush_check(struct op *op)
{
	p9_forget_ops(op->host->p9, (int)op->u[0], true);
	op->later = op->host->p9->ready; /* after the one that it ended */
	return 1;
}

/* A value that was written to the fid is set now; the fid is gone whatever comes of it. */
static int clunk_check(struct op *op)
{
	struct p9 *p = op->host->p9;
	struct fid *f = op->fid;

	if (f->xattr && f->xattr->writing) {
		op->xattr = f->xattr;
		f->xattr = NULL;
		p->nxattrs--;
	}
	fid_clunk(p, f);
	return op->xattr ? 0 : 1;
}

#define CHANGES MSG_CHANGES
#define WAITS   MSG_WAITS
#define EARLY   MSG_EARLY
#define VALUE   MSG_VALUE

const struct msg p9_msgs[P9_NMSGS] = {
	[P9_TSTATFS] = { "f", 0, 60, NULL, statfs_work, statfs_finish },
	[P9_TLOPEN] = { "fu", 0, 17, lopen_check, lopen_work, lopen_finish },
	[P9_TLCREATE] = { "fnuuu", CHANGES, 17, lcreate_check, lcreate_work, lopen_finish },
	[P9_TSYMLINK] = { "fnsu", CHANGES, 13, make_check, symlink_work, make_finish },
	[P9_TMKNOD] = { "fnuuuu", CHANGES, 13, make_check, mknod_work, make_finish },
	[P9_TRENAME] = { "fgn", CHANGES, 0, rename_check, rename_work, NULL },
	[P9_TREADLINK] = { "f", 0, 2, NULL, readlink_work, readlink_finish },
	[P9_TGETATTR] = { "fq", 0, 153, NULL, getattr_work, getattr_finish },
	[P9_TSETATTR] = { "fuuuuqqqqq", CHANGES, 0, setattr_check, setattr_work, NULL },
	[P9_TXATTRWALK] = { "fNs", 0, 8, xattrwalk_check, xattrwalk_work, xattrwalk_finish },
	[P9_TXATTRCREATE] = { "fsqu", CHANGES, 0, xattrcreate_check, NULL, NULL },
	[P9_TREADDIR] = { "fqu", 0, 4, readdir_check, readdir_work, readdir_finish },
	[P9_TFSYNC] = { "fo", WAITS, 0, fsync_check, fsync_work, NULL },
	[P9_TLOCK] = { "fbuqqus", 0, 1, lock_check, lock_work, lock_finish },
	[P9_TGETLOCK] = { "fbqqus", 0, 23, getlock_check, getlock_work, getlock_finish },
	[P9_TLINK] = { "fgn", CHANGES, 0, make_check, link_work, NULL },
	[P9_TMKDIR] = { "fnuu", CHANGES, 13, make_check, mkdir_work, make_finish },
	[P9_TRENAMEAT] = { "fngn", CHANGES, 0, renameat_check, renameat_work, NULL },
	[P9_TUNLINKAT] = { "fnu", CHANGES, 0, unlinkat_check, unlinkat_work, NULL },
	[P9_TVERSION] = { "us", EARLY, 6, version_check, NULL, version_finish },
	[P9_TATTACH] = { "Nuxxu", 0, 13, attach_check, attach_work, attach_finish },
	[P9_TFLUSH] = { "h", EARLY, 0, flush_check, NULL, NULL },
	[P9_TWALK] = { "fNw", 0, 2, walk_check, walk_work, walk_finish },
	[P9_TREAD] = { "fqu", VALUE, 4, read_check, read_work, read_finish },
	[P9_TWRITE] = { "fqud", CHANGES | VALUE, 4, write_check, write_work, write_finish },
	[P9_TCLUNK] = { "f", VALUE, 0, clunk_check, xattr_set, NULL },
	[P9_TREMOVE] = { "f", 0, 0, remove_check, remove_work, NULL },
};

void op_free(struct op *op)
{
	struct host *h = op->host;

	assert(!op->fid && !op->fid2);
	file_put(op->root);
	file_put(op->file);
	file_put(op->file2);
	file_put(op->open);
	file_put(op->made);
	file_put(op->made_open);
	xattr_free(op->xattr);
	free(op->buf);
	free(op);
	host_put(h);
}

static void drop_fids(struct op *op)
{
	fid_put(op->host->p9, op->fid);
	fid_put(op->host->p9, op->fid2);
	op->fid = op->fid2 = NULL;
}

static struct op *op_new(struct p9 *p, struct p9_req *r, const struct msg *msg)
{
	size_t text = 0;
	struct op *op;

	for (const char *f = msg->format; *f; f++)
		text += *f == 'n' ? NAME_SIZE : *f == 's' ? STRING_SIZE : *f == 'w' ? P9_MAX_WALK * NAME_SIZE : 0;
	op = malloc(sizeof(*op) + text);
	if (!op)
		return NULL;
	memset(op, 0, sizeof(*op));
	op->host = host_get(p->host);
	op->msg = msg;
	op->req = r;
	op->root = file_get(p->root);
	op->uid = P9_NONUNAME;
	return op;
}

/* Reading a message. */

/* The second fid of a message is a directory or a file to link; of both only the place counts. */
static int get_fid(struct op *op, uint32_t num, bool second)
{
	struct fid *f = fid_find(op->host->p9, num);

	if (!f || (f->xattr && !(op->msg->flags & MSG_VALUE)))
		return -EBADF;
	fid_get(f);
	if (second) {
		op->fid2 = f;
		op->file2 = file_get(f->file);
		return 0;
	}
	op->fid = f;
	op->file = file_get(f->file);
	op->open = file_get(f->open);
	op->uid = f->uid;
	return 0;
}

/* A string of less than @size bytes to the end of the op's text. */
static int get_string(struct op *op, struct wire *w, size_t size)
{
	char *s = op->ns ? op->s[op->ns - 1] + strlen(op->s[op->ns - 1]) + 1 : op->text;

	op->s[op->ns++] = s;
	return wire_str(w, s, size);
}

static int get_name(struct op *op, struct wire *w)
{
	int len = get_string(op, w, NAME_SIZE);

	if (len < 0)
		return len;
	return !len || strchr(op->s[op->ns - 1], '/') ? -ENOENT : 0;
}

static int get_names(struct op *op, struct wire *w)
{
	unsigned n = wire_u16(w);
	int error = n > P9_MAX_WALK ? -EINVAL : 0;

	while (n-- && !error)
		error = get_name(op, w);
	return error;
}

static int get_ignored(struct wire *w)
{
	wire_skip(w, wire_u16(w));
	return 0;
}

static int get_field(struct op *op, struct wire *w, char kind, unsigned *nu)
{
	switch (kind) {
	case 'f': return get_fid(op, wire_u32(w), false);
	case 'g': return get_fid(op, wire_u32(w), true);
	case 'N': op->newfid = wire_u32(w); return 0;
	case 'b': op->u[(*nu)++] = wire_u8(w); return 0;
	case 'h': op->u[(*nu)++] = wire_u16(w); return 0;
	case 'u': op->u[(*nu)++] = wire_u32(w); return 0;
	case 'q': op->u[(*nu)++] = wire_u64(w); return 0;
	case 'o': op->u[(*nu)++] = w->left ? wire_u32(w) : 0; return 0;
	case 'n': return get_name(op, w);
	case 's': return get_string(op, w, STRING_SIZE);
	case 'w': return get_names(op, w);
	case 'd': op->data = *w; return 0;
	default: assert(kind == 'x'); return get_ignored(w);
	}
}

static int parse(struct op *op, struct wire *w)
{
	unsigned nu = 0;
	int error = 0;

	for (const char *f = op->msg->format; *f && error >= 0; f++)
		error = get_field(op, w, *f, &nu);
	if (w->bad)
		return -EINVAL;
	return error < 0 ? error : 0;
}

/* Replies. */

static uint32_t reply_error(const struct p9_req *r, uint16_t tag, int error)
{
	struct wire w;

	assert(error < 0);
	wire_init(&w, r->in, r->nin);
	wire_put_u32(&w, P9_ERROR_SIZE);
	wire_put_u8(&w, P9_RLERROR);
	wire_put_u16(&w, tag);
	wire_put_u32(&w, (uint32_t)-error);
	return P9_ERROR_SIZE;
}

static uint32_t reply(struct op *op, int error)
{
	struct p9_req *r = op->req;
	struct wire w;
	uint32_t len;

	wire_init(&w, r->in, r->nin);
	wire_limit(&w, op->room);
	wire_skip(&w, P9_HEADER);
	if (!error && op->msg->finish)
		error = op->msg->finish(op, &w);
	if (!error && w.bad)
		error = -EMSGSIZE;
	if (error)
		return reply_error(r, op->tag, error);
	len = (uint32_t)(op->room - w.left);
	wire_init(&w, r->in, r->nin);
	wire_put_u32(&w, len);
	wire_put_u8(&w, (uint8_t)(op->msg - p9_msgs + 1));
	wire_put_u16(&w, op->tag);
	return len;
}

static void ready_add(struct p9 *p, struct p9_req *r, uint32_t len)
{
	r->len = len;
	r->next = NULL;
	*p->ready_end = r;
	p->ready_end = &r->next;
	loop_post(p->loop, &p->host->task);
}

static struct p9_req *ready_pop(struct p9 *p)
{
	struct p9_req *r = p->ready;

	if (r) {
		p->ready = r->next;
		if (!p->ready)
			p->ready_end = &p->ready;
	}
	return r;
}

/* Operations with a worker. */

static void run_op(struct job *j)
{
	struct op *op = container_of(j, struct op, job);

	if (op->host->hook)
		op->host->hook(op->host->hook_arg);
	op->error = op->msg->work(op);
	pool_done(op);
}

static int hand_over(struct p9 *p, struct op *op)
{
	int error = p->nops < P9_MAX_OPS ? 0 : -ENOMEM;

	if (!error && op->data.iov)
		error = write_keep(op);
	if (error)
		return error;
	op->nowait = op->again = false;
	op->job.run = run_op;
	op->pprev = &p->ops;
	op->next = p->ops;
	if (op->next)
		op->next->pprev = &op->next;
	p->ops = op;
	p->nops++;
	pool_push(p->host, &op->job);
	return 0;
}

static void unlink_op(struct p9 *p, struct op *op)
{
	*op->pprev = op->next;
	if (op->next)
		op->next->pprev = op->pprev;
	p->nops--;
}

void p9_forget_ops(struct p9 *p, int tag, bool tell)
{
	struct op *op, *next;

	for (op = p->ops; op; op = next) {
		struct p9_req *r = op->req;

		next = op->next;
		if (tag >= 0 && op->tag != tag)
			continue;
		unlink_op(p, op);
		drop_fids(op);
		op->req = NULL;
		if (pool_cancel(p->host, &op->job))
			op_free(op);
		if (tell)
			ready_add(p, r, 0);
	}
}

static void complete(struct p9 *p, struct op *op)
{
	struct p9_req *r = op->req;
	uint32_t len;

	if (!r) {
		op_free(op);
		return;
	}
	unlink_op(p, op);
	len = reply(op, op->error);
	drop_fids(op);
	op_free(op);
	r->done(r, len);
}

/* Whoever is called back may free the server. */
static void on_task(struct loop_task *t)
{
	struct host *h = host_get(container_of(t, struct host, task));
	struct p9_req *r;
	struct op *op;

	while (h->p9 && !h->p9->held && (op = pool_reap(h)))
		complete(h->p9, op);
	while (h->p9 && !h->p9->held && (r = ready_pop(h->p9)))
		r->done(r, r->len);
	host_put(h);
}

/* Requests. */

static bool is_slow(const struct file *f)
{
	return f && f->slow;
}

/* Does it on the loop, or hands it over. 1: it is with a worker. */
static int do_work(struct p9 *p, struct op *op)
{
	int error;

	if (!(op->msg->flags & MSG_WAITS) && !is_slow(op->file) && !is_slow(op->file2)) {
		op->nowait = true;
		error = op->msg->work(op);
		if (!op->again)
			return error;
	}
	error = hand_over(p, op);
	return error ? error : 1;
}

static int start(struct p9 *p, struct op *op, struct wire *w)
{
	int error;

	if (!p->msize && !(op->msg->flags & MSG_EARLY))
		return -EPROTO;
	error = parse(op, w);
	if (error)
		return error;
	if (op->room < P9_HEADER + op->msg->reply)
		return -EMSGSIZE;
	if ((op->msg->flags & MSG_CHANGES) && p->host->ro)
		return -EROFS;
	error = op->msg->check ? op->msg->check(op) : 0;
	if (error)
		return error < 0 ? error : 0;
	return op->msg->work ? do_work(p, op) : 0;
}

static int take(struct p9 *p, struct p9_req *r, const struct msg *msg, uint16_t tag, struct wire *w)
{
	struct op *op = op_new(p, r, msg);
	uint32_t len;
	struct wire room;
	bool later;
	int error;

	if (!op)
		return (int)reply_error(r, tag, -ENOMEM);
	wire_init(&room, r->in, r->nin);
	wire_limit(&room, p->msize ? p->msize : P9_MIN_MSIZE);
	op->room = (uint32_t)room.left;
	op->tag = tag;
	error = start(p, op, w);
	if (error > 0)
		return 0;
	len = reply(op, error);
	later = op->later;
	drop_fids(op);
	op_free(op);
	if (!later)
		return (int)len;
	ready_add(p, r, len);
	return 0;
}

/*
 * The size in the message may be less than there is: clients before Linux 4.20
 * did not count the data of a write in it.
 */
int p9_submit(struct p9 *p, struct p9_req *r)
{
	struct wire w, room;
	size_t len;
	uint32_t size;
	uint8_t type;
	uint16_t tag;

	assert(r->nout <= P9_MAX_IOV && r->nin <= P9_MAX_IOV);
	wire_init(&w, r->out, r->nout);
	wire_init(&room, r->in, r->nin);
	len = w.left;
	size = wire_u32(&w);
	type = wire_u8(&w);
	tag = wire_u16(&w);
	if (w.bad || size < P9_HEADER || size > len || room.left < P9_ERROR_SIZE)
		return -EINVAL;
	if (type >= P9_NMSGS || !p9_msgs[type].format)
		return (int)reply_error(r, tag, -EOPNOTSUPP);
	return take(p, r, &p9_msgs[type], tag, &w);
}

void p9_reset(struct p9 *p)
{
	p9_forget_ops(p, -1, false);
	p->ready = NULL;
	p->ready_end = &p->ready;
	fid_clunk_all(p);
	p->msize = 0;
}

void p9_hold(struct p9 *p, bool on)
{
	p->held = on;
	if (!on)
		loop_post(p->loop, &p->host->task);
}

void p9_set_hook(struct p9 *p, void (*hook)(void *arg), void *arg)
{
	p->host->hook = hook;
	p->host->hook_arg = arg;
	p->root->slow = true;
}

/* Opens the root. */
static int open_root(struct p9 *p, const struct p9_export *ex, struct err *err)
{
	struct host *h = p->host;
	struct statx st;
	int error, fd = open(ex->dir, O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return err_sys(err, -errno, "%s", ex->dir);
	error = file_stat(fd, &st);
	if (error)
		close(fd);
	else
		error = file_new(h, fd, &st, host_is_slow(h, fd), &p->root);
	if (error)
		return err_sys(err, error, "%s", ex->dir);
	h->dev = p->root->dev;
	h->ino = p->root->ino;
	qids_init(&h->qids, h->dev);
	return 0;
}

int p9_new(const struct p9_export *ex, struct loop *loop, struct p9 **out, struct err *err)
{
	struct p9 *p = calloc(1, sizeof(*p));
	int error;

	if (!p)
		return err_set(err, -ENOMEM, "out of memory");
	error = host_new(ex, loop, &p->host, err);
	if (error) {
		free(p);
		return error;
	}
	host_prepare();
	p->loop = loop;
	p->ready_end = &p->ready;
	p->host->p9 = p;
	p->host->task.cb = on_task;
	error = open_root(p, ex, err);
	if (error)
		p9_free(p);
	else
		*out = p;
	return error;
}

void p9_free(struct p9 *p)
{
	struct host *h = p ? p->host : NULL;
	struct op *op;

	if (!p)
		return;
	p9_reset(p);
	file_put(p->root);
	pool_end(h); /* nothing is posted or done after this */
	loop_task_del(h->loop, &h->task);
	while ((op = pool_reap(h)))
		op_free(op);
	h->p9 = NULL;
	free((void *)p->fids);
	free(p);
	host_put(h);
}
