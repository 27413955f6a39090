// SPDX-License-Identifier: GPL-2.0-or-later
#include "machine/root.h"

#include "base/container_of.h"
#include "guest/init/blkid.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PARTITIONS 128

/* A part of a disk, as the reader of superblocks wants it. */
struct part {
	struct blk_reader reader;
	struct blk *disk;
	uint64_t start, len;
};

/* Whole sectors, through memory of our own: the image may want neither less nor other. */
static int read_part(struct blk_reader *r, uint64_t off, void *buf, size_t len)
{
	const struct part *p = container_of(r, struct part, reader);
	uint64_t first = off & ~511ull, end = (off + len + 511) & ~511ull;
	void *mem;
	int error;

	if (off > p->len || len > p->len - off || end > p->len)
		return -EINVAL;
	mem = aligned_alloc(4096, (end - first + 4095) & ~4095ull);
	if (!mem)
		return -ENOMEM;
	error = blk_do(p->disk, BLK_READ, 0, p->start + first, mem, end - first);
	if (!error)
		memcpy(buf, (uint8_t *)mem + (off - first), len);
	free(mem);
	return error;
}

static struct part whole(struct blk *disk)
{
	return (struct part){ .reader.read = read_part, .disk = disk, .len = blk_size(disk) };
}

/* Partition @nr; false: there is none. */
static bool partition(struct part *disk, unsigned nr, struct part *out)
{
	struct partid id;

	if (!partid_probe(&disk->reader, 512, nr, &id) && !id.len)
		return false;
	if (!id.len || id.start > disk->len || id.len > disk->len - id.start)
		return false;
	*out = (struct part){ .reader.read = read_part, .disk = disk->disk, .start = id.start, .len = id.len };
	return true;
}

/* What a Linux may have as its root; not a boot partition, swap or something encrypted. */
static bool is_root_type(const char *type)
{
	static const char *const types[] = { "ext4", "ext3", "ext2", "xfs", "btrfs", "f2fs", "erofs", "squashfs" };

	for (unsigned i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (!strcmp(types[i], type))
			return true;
	return false;
}

static void add_type(struct root *r, const char *type)
{
	for (unsigned i = 0; i < ROOT_TYPES - 1; i++) {
		if (r->types[i] && strcmp(r->types[i], type))
			continue;
		r->types[i] = type;
		return;
	}
}

void root_look(struct blk *disk, struct root *r)
{
	struct part all = whole(disk), p;
	struct blkid id;

	if (blkid_probe(&all.reader, &id) && is_root_type(id.type))
		add_type(r, id.type);
	for (unsigned nr = 1; nr <= MAX_PARTITIONS; nr++)
		if (partition(&all, nr, &p) && blkid_probe(&p.reader, &id) && is_root_type(id.type))
			add_type(r, id.type);
}

static void list(char *text, size_t len, unsigned nr, const char *type)
{
	size_t n = strlen(text);

	snprintf(text + n, len - n, "%svda%u (%s)", n ? ", " : "", nr, type ? type : "unknown");
}

int root_find(struct blk *disk, struct root *r, struct err *err)
{
	struct part all = whole(disk), p;
	char text[512] = "";
	unsigned found = 0;
	struct blkid id;

	if (blkid_probe(&all.reader, &id)) {
		if (!is_root_type(id.type))
			return err_set(err, -ENOENT,
			               "%s: no root: it holds %s; say which with -p root=", blk_name(disk), id.type);
		snprintf(r->source, sizeof(r->source), "/dev/vda");
		r->type = id.type;
		return 0;
	}
	for (unsigned nr = 1; nr <= MAX_PARTITIONS; nr++) {
		if (!partition(&all, nr, &p))
			continue;
		blkid_probe(&p.reader, &id);
		list(text, sizeof(text), nr, id.type);
		if (!id.type || !is_root_type(id.type))
			continue;
		found++;
		snprintf(r->source, sizeof(r->source), "/dev/vda%u", nr);
		r->type = id.type;
	}
	if (found == 1)
		return 0;
	return err_set(err, -ENOENT,
	               text[0] ? "%s: which is the root? %s: say -p root=/dev/vdaN"
	                       : "%s: no root: neither a file system nor partitions are on it%s; an initrd (-i) "
	                         "or -p root= says what to do",
	               blk_name(disk), text);
}
