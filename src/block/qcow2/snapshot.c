// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/qcow2/snapshot.h"

#include "block/qcow2/qcow2.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FIXED     40u
#define EXTRA_MAX 1024u
#define TABLE_MAX (64ull << 20)
#define WINDOW    (64u << 10)

/* The table is read through a window: entries are short, and there may be many. */
struct window {
	struct qcow2 *im;
	uint64_t at, len;
	uint8_t buf[4 * WINDOW]; /* an entry has at most 40 + 1024 + 2 × 65535 bytes */
};

/* @len bytes at @off; NULL: an error. */
static const uint8_t *look(struct window *w, uint64_t off, uint64_t len, int *error)
{
	if (off < w->at || off + len > w->at + w->len) {
		w->at = off;
		w->len = len > WINDOW ? len : WINDOW;
		*error = waitio_read(&w->im->io, off, w->buf, w->len);
		if (*error) {
			w->len = 0;
			return NULL;
		}
	}
	return w->buf + (off - w->at);
}

static char *text(const uint8_t *p, uint32_t len)
{
	char *s = malloc(len + 1u);

	if (s) {
		memcpy(s, p, len);
		s[len] = 0;
	}
	return s;
}

/* What the entry of @p->len bytes at @p->raw tells. */
static int parse(const struct qcow2 *im, struct qcow2_snapshot *s, uint32_t extra)
{
	const uint8_t *p = s->raw;
	uint32_t nid = get_be32(p + 12) >> 16, nname = get_be32(p + 12) & 0xffff;

	s->l1_off = get_be64(p);
	s->l1_size = get_be32(p + 8);
	s->seconds = get_be32(p + 16);
	s->nanoseconds = get_be32(p + 20);
	s->vm_clock = get_be64(p + 24);
	s->vm_state = extra >= 8 ? get_be64(p + FIXED) : get_be32(p + 32);
	s->disk_size = extra >= 16 ? get_be64(p + FIXED + 8) : im->h.size;
	s->id = text(p + FIXED + extra, nid);
	s->name = text(p + FIXED + extra + nid, nname);
	return s->id && s->name ? 0 : -ENOMEM;
}

static int read_entry(struct window *w, uint64_t off, struct qcow2_snapshot *s)
{
	uint32_t extra, len;
	int error = 0;
	const uint8_t *p = look(w, off, FIXED, &error);

	if (!p)
		return error;
	extra = get_be32(p + 36);
	if (extra > EXTRA_MAX)
		return -EINVAL;
	len = FIXED + extra + (get_be32(p + 12) >> 16) + (get_be32(p + 12) & 0xffff);
	s->len = (len + 7) / 8 * 8;
	p = look(w, off, s->len, &error);
	s->raw = p ? malloc(s->len) : NULL;
	if (!s->raw)
		return error ? error : -ENOMEM;
	memcpy(s->raw, p, s->len);
	return parse(w->im, s, extra);
}

static int read_all(struct window *w, struct qcow2_snapshot *list, uint32_t n)
{
	uint64_t off = w->im->h.snapshots_off, end = off + TABLE_MAX;

	for (uint32_t i = 0; i < n; i++) {
		int error = read_entry(w, off, &list[i]);

		if (error)
			return error;
		off += list[i].len;
		if (off > end || list[i].l1_size > QCOW2_MAX_L1 / 8 || in_cluster(w->im, list[i].l1_off) ||
		    list[i].l1_off > (uint64_t)INT64_MAX - QCOW2_MAX_L1)
			return -EINVAL;
	}
	return 0;
}

int qcow2_snapshots_read(struct qcow2 *im, struct qcow2_snapshot **list, struct err *err)
{
	uint32_t n = im->h.nb_snapshots;
	struct window *w;
	int error = -ENOMEM;

	*list = NULL;
	if (!n)
		return 0;
	w = calloc(1, sizeof(*w));
	*list = calloc(n, sizeof(**list));
	if (w && *list) {
		w->im = im;
		error = read_all(w, *list, n);
	}
	free(w);
	if (!error)
		return 0;
	qcow2_snapshots_free(*list, n);
	*list = NULL;
	if (error == -EINVAL)
		return err_set(err, error, "%s: not a sound QCOW2 image: the snapshot table makes no sense",
		               im->blk.name);
	return err_sys(err, error, "%s: snapshot table", im->blk.name);
}

void qcow2_snapshots_free(struct qcow2_snapshot *list, uint32_t n)
{
	for (uint32_t i = 0; list && i < n; i++) {
		free(list[i].id);
		free(list[i].name);
		free(list[i].raw);
	}
	free(list);
}
