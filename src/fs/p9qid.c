// SPDX-License-Identifier: GPL-2.0-or-later
#include "fs/p9_impl.h"

#include <stdlib.h>
#include <sys/sysmacros.h>

/*
 * How it works
 *
 * The client takes a qid's path for an inode number. On the file system of the
 * root it is the inode number itself. Numbers that begin with FOREIGN are for
 * files of other file systems below the root: twelve bits for which, in the
 * order they are met, and the inode number. Where that does not fit (or begins
 * with FOREIGN itself), the file gets the next number of its own, which begins
 * with twelve ones; a table remembers it for as long as the server lives.
 *
 * The table has an end, as the client decides what it looks at: beyond MAX_BIG
 * files two may share a number, by a hash.
 */

#define FOREIGN   (0xfull << 60)
#define DEV_SHIFT 48
#define MAX_DEVS  4095u
#define OWN       (FOREIGN | (uint64_t)MAX_DEVS << DEV_SHIFT)
#define INO_MASK  ((1ull << DEV_SHIFT) - 1)
#define BUCKETS   4096u
#define MAX_BIG   (1u << 20)

struct qid_big {
	dev_t dev;
	ino_t ino;
	uint64_t path;
	struct qid_big *next;
};

void qids_init(struct qids *q, dev_t root)
{
	q->root = root;
	pthread_mutex_init(&q->lock, NULL);
}

void qids_exit(struct qids *q)
{
	for (unsigned i = 0; q->big && i < BUCKETS; i++) {
		struct qid_big *b, *next;

		for (b = q->big[i]; b; b = next) {
			next = b->next;
			free(b);
		}
	}
	free((void *)q->big);
	free(q->devs);
}

static uint64_t mix(uint64_t x)
{
	x ^= x >> 32;
	x *= 0x9e3779b97f4a7c15ull;
	x ^= x >> 29;
	x *= 0xd6e8feb86659fd93ull;
	return x ^ x >> 32;
}

/* The index of a device, MAX_DEVS if there is none to give it. */
static unsigned dev_index(struct qids *q, dev_t dev)
{
	dev_t *devs;

	for (unsigned i = 0; i < q->ndevs; i++)
		if (q->devs[i] == dev)
			return i;
	devs = q->ndevs < MAX_DEVS ? realloc(q->devs, (q->ndevs + 1) * sizeof(*devs)) : NULL;
	if (!devs)
		return MAX_DEVS;
	q->devs = devs;
	devs[q->ndevs] = dev;
	return q->ndevs++;
}

static uint64_t big_path(struct qids *q, dev_t dev, ino_t ino)
{
	uint64_t hash = mix(mix(dev) + ino);
	struct qid_big *b, **head;

	if (!q->big)
		q->big = calloc(BUCKETS, sizeof(struct qid_big *));
	if (!q->big)
		return OWN | (hash & INO_MASK);
	head = &q->big[hash % BUCKETS];
	for (b = *head; b; b = b->next)
		if (b->dev == dev && b->ino == ino)
			return b->path;
	b = q->nbig < MAX_BIG ? malloc(sizeof(*b)) : NULL;
	if (!b)
		return OWN | (hash & INO_MASK);
	*b = (struct qid_big){ .dev = dev, .ino = ino, .path = OWN | q->nbig++, .next = *head };
	*head = b;
	return b->path;
}

uint64_t qid_path(struct qids *q, dev_t dev, ino_t ino)
{
	unsigned i = MAX_DEVS;
	uint64_t path;

	if (dev == q->root && (ino & FOREIGN) != FOREIGN)
		return ino;
	pthread_mutex_lock(&q->lock);
	if (dev != q->root && !(ino & ~INO_MASK))
		i = dev_index(q, dev);
	path = i < MAX_DEVS ? FOREIGN | (uint64_t)i << DEV_SHIFT | ino : big_path(q, dev, ino);
	pthread_mutex_unlock(&q->lock);
	return path;
}

uint8_t qid_type(mode_t mode)
{
	return S_ISDIR(mode) ? P9_QTDIR : S_ISLNK(mode) ? P9_QTSYMLINK : P9_QTFILE;
}

static uint64_t ns(const struct statx_timestamp *t)
{
	return (uint64_t)t->tv_sec * 1000000000u + t->tv_nsec;
}

/* The version is never 0, by which Linux would know a file that it may not cache. */
void qid_make(struct host *h, const struct statx *st, struct qid *q)
{
	uint64_t v = mix(mix(mix(ns(&st->stx_ctime)) + ns(&st->stx_mtime)) + st->stx_size);

	q->type = qid_type(st->stx_mode);
	q->version = (uint32_t)v ? (uint32_t)v : 1;
	q->path = qid_path(&h->qids, makedev(st->stx_dev_major, st->stx_dev_minor), st->stx_ino);
}
