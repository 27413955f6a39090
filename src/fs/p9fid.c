// SPDX-License-Identifier: GPL-2.0-or-later
#include "fs/p9_impl.h"

#include <errno.h>
#include <stdlib.h>

/*
 * How it works
 *
 * Fids are in a hash table by number, which doubles when it is full. An
 * operation holds on to those it works on; one that is clunked meanwhile is
 * marked as gone and goes with the last operation.
 */

static struct fid **bucket(struct p9 *p, uint32_t num)
{
	return &p->fids[num * 2654435761u >> 7 & (p->nbuckets - 1)];
}

struct fid *fid_find(struct p9 *p, uint32_t num)
{
	struct fid *f = p->nbuckets ? *bucket(p, num) : NULL;

	while (f && f->num != num)
		f = f->next;
	return f;
}

static int grow(struct p9 *p)
{
	struct fid **old = p->fids, **table;
	unsigned n = p->nbuckets;

	table = calloc(n ? 2 * n : 64, sizeof(struct fid *));
	if (!table)
		return -ENOMEM;
	p->fids = table;
	p->nbuckets = n ? 2 * n : 64;
	while (n--) {
		struct fid *f, *next;

		for (f = old[n]; f; f = next) {
			struct fid **b = bucket(p, f->num);

			next = f->next;
			f->next = *b;
			*b = f;
		}
	}
	free((void *)old);
	return 0;
}

int fid_add(struct p9 *p, uint32_t num, struct file *file, uid_t uid, struct fid **out)
{
	struct fid *f, **b;

	if (num == P9_NOFID || fid_find(p, num))
		return -EBADF;
	if (p->nfids >= P9_MAX_FIDS)
		return -EMFILE;
	if (p->nfids >= p->nbuckets && grow(p) && !p->nbuckets)
		return -ENOMEM; /* else the table is just slower */
	f = calloc(1, sizeof(*f));
	if (!f)
		return -ENOMEM;
	b = bucket(p, num);
	*f = (struct fid){ .num = num, .next = *b, .refs = 1, .file = file_get(file), .uid = uid };
	*b = f;
	p->nfids++;
	*out = f;
	return 0;
}

void fid_get(struct fid *f)
{
	f->refs++;
}

void fid_put(struct p9 *p, struct fid *f)
{
	if (!f || --f->refs)
		return;
	lock_unlink_all(p, f);
	if (f->xattr) {
		xattr_free(f->xattr);
		p->nxattrs--;
	}
	file_put(f->open);
	file_put(f->file);
	free(f);
}

void fid_clunk(struct p9 *p, struct fid *f)
{
	struct fid **b = bucket(p, f->num);

	while (*b != f)
		b = &(*b)->next;
	*b = f->next;
	p->nfids--;
	f->gone = true;
	lock_unlink_all(p, f);
	fid_put(p, f);
}

void fid_clunk_all(struct p9 *p)
{
	for (unsigned i = 0; i < p->nbuckets; i++)
		while (p->fids[i])
			fid_clunk(p, p->fids[i]);
}
