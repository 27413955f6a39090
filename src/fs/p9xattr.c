// SPDX-License-Identifier: GPL-2.0-or-later
#include "fs/p9_impl.h"

#include <errno.h>
#include <linux/limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

/*
 * How it works
 *
 * A value, or the list of names, is fetched whole when the client walks to it,
 * and read from memory. One to be set is collected in memory and set when its
 * fid is clunked; unless it is complete then, nothing is set. There may be
 * P9_MAX_XATTRS of them, each of at most 64 KiB, which is Linux's own limit.
 *
 * No size and XATTR_REPLACE is how Linux says that it wants the attribute
 * removed.
 *
 * Mapped: the attributes that hold owner and mode are not there for the client.
 * Nor are ACLs, which would be for the host's owner and not for the one shown.
 */

#define HIDDEN "user.virtfs."
#define ACL    "system.posix_acl_"

void xattr_free(struct xattr *x)
{
	if (!x)
		return;
	free(x->value);
	free(x);
}

static bool is_hidden(const struct host *h, const char *name)
{
	return h->map == P9_MAP_MAPPED && !strncmp(name, HIDDEN, strlen(HIDDEN));
}

static bool is_acl(const struct host *h, const char *name)
{
	return h->map == P9_MAP_MAPPED && !strncmp(name, ACL, strlen(ACL));
}

static ssize_t fetch(const char *path, const char *name, char *buf, size_t size)
{
	ssize_t n = *name ? getxattr(path, name, buf, size) : listxattr(path, buf, size);

	return n < 0 ? -errno : n;
}

/* Takes the names out of the list that the client may not see. */
static size_t filter(const struct host *h, char *list, size_t size)
{
	size_t out = 0;

	for (size_t i = 0, n; i < size; i += n) {
		n = strlen(list + i) + 1;
		if (is_hidden(h, list + i) || is_acl(h, list + i))
			continue;
		memmove(list + out, list + i, n);
		out += n;
	}
	return out;
}

int xattrwalk_check(struct op *op)
{
	struct p9 *p = op->host->p9;

	if (fid_find(p, op->newfid))
		return -EBADF;
	if (strlen(op->s[0]) >= NAME_SIZE)
		return -ERANGE;
	return p->nxattrs < P9_MAX_XATTRS ? 0 : -EMFILE;
}

/* Gets the value into @x->value. It may grow between the two calls: then once more. */
static int get_value(struct op *op, struct xattr *x)
{
	char path[PROC_FD_SIZE];
	ssize_t n = -ERANGE;

	proc_fd(op->file->fd, path);
	for (unsigned tries = 0; tries < 8 && n == -ERANGE; tries++) {
		n = fetch(path, x->name, NULL, 0);
		if (n < 0)
			return (int)n;
		if (n > XATTR_SIZE_MAX)
			return -E2BIG;
		free(x->value);
		x->value = malloc((size_t)n + 1);
		if (!x->value)
			return -ENOMEM;
		x->value[n] = '\0';
		if (n)
			n = fetch(path, x->name, x->value, (size_t)n);
	}
	if (n < 0)
		return (int)n;
	x->size = *x->name ? (size_t)n : filter(op->host, x->value, (size_t)n);
	return 0;
}

int xattrwalk_work(struct op *op)
{
	const char *name = op->s[0];

	if (is_hidden(op->host, name))
		return -ENODATA;
	if (is_acl(op->host, name))
		return -EOPNOTSUPP;
	op->xattr = calloc(1, sizeof(*op->xattr));
	if (!op->xattr)
		return -ENOMEM;
	memcpy(op->xattr->name, name, strlen(name) + 1);
	return get_value(op, op->xattr);
}

int xattrwalk_finish(struct op *op, struct wire *w)
{
	struct p9 *p = op->host->p9;
	struct fid *f;
	int error = p->nxattrs < P9_MAX_XATTRS ? fid_add(p, op->newfid, op->file, op->uid, &f) : -EMFILE;

	if (error)
		return error;
	f->xattr = op->xattr;
	op->xattr = NULL;
	p->nxattrs++;
	wire_put_u64(w, f->xattr->size);
	return 0;
}

/* The fid no longer is at the file: it is the value. */
int xattrcreate_check(struct op *op)
{
	struct p9 *p = op->host->p9;
	const char *name = op->s[0];
	uint64_t size = op->u[0], flags = op->u[1];
	struct xattr *x;

	if (op->open || (flags & ~(uint64_t)(XATTR_CREATE | XATTR_REPLACE)))
		return -EINVAL;
	if (!*name || strlen(name) >= NAME_SIZE)
		return -ERANGE;
	if (is_hidden(op->host, name))
		return -EPERM;
	if (is_acl(op->host, name))
		return -EOPNOTSUPP;
	if (size > XATTR_SIZE_MAX)
		return -E2BIG;
	if (p->nxattrs >= P9_MAX_XATTRS)
		return -EMFILE;
	x = calloc(1, sizeof(*x));
	if (!x)
		return -ENOMEM;
	*x = (struct xattr){ .writing = true, .flags = (uint32_t)flags, .size = size, .value = calloc(1, size + 1) };
	if (!x->value) {
		free(x);
		return -ENOMEM;
	}
	memcpy(x->name, name, strlen(name) + 1);
	op->fid->xattr = x;
	p->nxattrs++;
	return 1;
}

int xattr_write(struct op *op)
{
	struct xattr *x = op->fid->xattr;
	uint64_t off = op->u[0];

	if (!x->writing)
		return -EBADF;
	if (off > x->size || op->len > x->size - off)
		return -ENOSPC;
	wire_get(&op->data, x->value + off, op->len);
	if (x->have < off + op->len)
		x->have = off + op->len;
	op->count = op->len;
	return 0;
}

void xattr_read(struct op *op, struct wire *w)
{
	const struct xattr *x = op->fid->xattr;
	uint64_t off = op->u[0] < x->size ? op->u[0] : x->size, n = x->size - off;

	if (n > op->u[1])
		n = op->u[1];
	if (n > w->left - 4)
		n = w->left - 4;
	wire_put_u32(w, (uint32_t)n);
	wire_put(w, x->value + off, n);
}

int xattr_set(struct op *op)
{
	const struct xattr *x = op->xattr;
	char path[PROC_FD_SIZE];
	int r;

	if (x->have != x->size)
		return -EINVAL;
	proc_fd(op->file->fd, path);
	if (!x->size && (x->flags & XATTR_REPLACE))
		r = removexattr(path, x->name);
	else
		r = setxattr(path, x->name, x->value, x->size, (int)x->flags);
	return r ? -errno : 0;
}
