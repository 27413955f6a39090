// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Documentation/driver-api/early-userspace/buffer-format.rst: an entry is
 * "070701" and 13 fields of 8 hex digits, the name with its NUL, and the data;
 * name and data are each followed by zeros up to a multiple of four.
 */
#include "guest/newc.h"

#include <assert.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define HEADER_LEN (6 + 13 * 8)

struct entry {
	const char *name;
	unsigned mode;
	uint64_t size;
	unsigned nlink, major, minor;
};

/* The next @len bytes of the archive, or NULL. */
static uint8_t *take(struct newc *w, uint64_t len)
{
	uint8_t *p = w->buf ? w->buf + w->pos : NULL;

	assert(!w->buf || len <= w->len - w->pos);
	w->pos += len;
	return p;
}

static void put(struct newc *w, const void *data, uint64_t len)
{
	uint8_t *p = take(w, len);

	if (p)
		memcpy(p, data, len);
}

static void pad(struct newc *w)
{
	put(w, "\0\0\0", -w->pos & 3);
}

static uint8_t *put_entry(struct newc *w, const struct entry *e)
{
	size_t name_len = strlen(e->name) + 1;
	char head[HEADER_LEN + 1];
	uint8_t *data;
	int n;

	assert(e->size <= UINT32_MAX);
	n = snprintf(head, sizeof(head), "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X", w->ino++,
	             e->mode, 0, 0, e->nlink, 0, (unsigned)e->size, 0, 0, e->major, e->minor, (unsigned)name_len, 0);
	assert(n == HEADER_LEN);
	(void)n;
	put(w, head, HEADER_LEN);
	put(w, e->name, name_len);
	pad(w);
	data = take(w, e->size);
	pad(w);
	return data;
}

void newc_init(struct newc *w, uint8_t *buf, uint64_t len)
{
	*w = (struct newc){ .buf = buf, .len = len, .ino = 1 };
}

void newc_dir(struct newc *w, const char *name, unsigned mode)
{
	put_entry(w, &(struct entry){ .name = name, .mode = S_IFDIR | mode, .nlink = 2 });
}

void newc_symlink(struct newc *w, const char *name, const char *target)
{
	struct entry e = { .name = name, .mode = S_IFLNK | 0777, .size = strlen(target), .nlink = 1 };
	uint8_t *p = put_entry(w, &e);

	if (p)
		memcpy(p, target, e.size);
}

void newc_chardev(struct newc *w, const char *name, unsigned mode, unsigned major, unsigned minor)
{
	put_entry(w,
	          &(struct entry){ .name = name, .mode = S_IFCHR | mode, .nlink = 1, .major = major, .minor = minor });
}

uint8_t *newc_file(struct newc *w, const char *name, unsigned mode, uint64_t size)
{
	return put_entry(w, &(struct entry){ .name = name, .mode = S_IFREG | mode, .size = size, .nlink = 1 });
}

void newc_end(struct newc *w)
{
	w->ino = 0;
	put_entry(w, &(struct entry){ .name = "TRAILER!!!", .nlink = 1 });
}
