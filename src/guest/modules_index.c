// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Depmod's index files, checked
 *
 * A modules.*.bin is a trie: a header (magic, version, root), then nodes. A
 * reference to a node is its offset, with three bits on top that say which
 * parts the node has: a prefix (a string), children (first and last character,
 * a reference for each), values (a count; for each a priority and a string).
 * Integers are 32 bits, big-endian. libkmod follows all that unchecked, in
 * memory that is mapped: a file cut short by a full disk would kill us.
 *
 * depmod writes children before their parents, so a reference that does not
 * point backwards is damage; that excludes cycles. Each node takes part in the
 * trie once, so as many visits as the file has bytes are more than enough.
 */
#include "guest/file.h"
#include "guest/modules_impl.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define INDEX_MAGIC  0xb007f457u
#define INDEX_MAJOR  2u
#define NODE_PREFIX  0x80000000u
#define NODE_VALUES  0x40000000u
#define NODE_CHILDS  0x20000000u
#define NODE_OFFSET  0x0fffffffu
#define HEADER_BYTES 12
#define MAX_DEPTH    1024 /* longer than any alias */

struct cursor {
	const uint8_t *p, *end;
	bool bad;
};

struct index {
	const uint8_t *data;
	uint64_t size;
	uint64_t visits; /* left */
};

static const uint8_t *take(struct cursor *c, uint64_t len)
{
	const uint8_t *p = c->p;

	if (c->bad || len > (uint64_t)(c->end - c->p)) {
		c->bad = true;
		return NULL;
	}
	c->p += len;
	return p;
}

static uint32_t take_u32(struct cursor *c)
{
	const uint8_t *p = take(c, 4);

	return p ? (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3] : 0;
}

static void skip_string(struct cursor *c)
{
	const uint8_t *nul = c->bad ? NULL : memchr(c->p, 0, (size_t)(c->end - c->p));

	if (nul)
		c->p = nul + 1;
	else
		c->bad = true;
}

static void skip_values(struct cursor *c)
{
	uint32_t n = take_u32(c);

	while (n-- && !c->bad) {
		take(c, 4);
		skip_string(c);
	}
}

static bool check_node(struct index *x, uint32_t ref, uint64_t below, unsigned depth);

static bool check_children(struct index *x, struct cursor *c, uint64_t below, unsigned depth)
{
	const uint8_t *range = take(c, 2);

	if (!range || range[0] > range[1] || range[1] > 127)
		return false;
	for (unsigned ch = range[0]; ch <= range[1]; ch++) {
		uint32_t ref = take_u32(c);

		if ((ref & NODE_OFFSET) && !check_node(x, ref, below, depth + 1))
			return false;
	}
	return !c->bad;
}

static bool check_node(struct index *x, uint32_t ref, uint64_t below, unsigned depth)
{
	uint64_t off = ref & NODE_OFFSET;
	struct cursor c = { .p = x->data + off, .end = x->data + x->size };

	if (off < HEADER_BYTES || off >= below || depth > MAX_DEPTH || !x->visits--)
		return false;
	if (ref & NODE_PREFIX)
		skip_string(&c);
	if ((ref & NODE_CHILDS) && !check_children(x, &c, off, depth))
		return false;
	if (ref & NODE_VALUES)
		skip_values(&c);
	return !c.bad;
}

static bool check_data(const uint8_t *data, uint64_t size)
{
	struct index x = { .data = data, .size = size, .visits = size };
	struct cursor c = { .p = data, .end = data + size };
	uint32_t magic = take_u32(&c), version = take_u32(&c), root = take_u32(&c);

	if (c.bad || magic != INDEX_MAGIC || version >> 16 != INDEX_MAJOR)
		return false;
	return !(root & NODE_OFFSET) || check_node(&x, root, size, 0);
}

static int check_file(const char *path, struct err *err)
{
	uint8_t *data;
	uint64_t size;
	int error = file_load(path, &data, &size, err);
	bool ok;

	if (error)
		return error;
	ok = check_data(data, size);
	free(data);
	return ok ? 0 : err_set(err, -EBADMSG, "%s: damaged; depmod makes it anew", path);
}

int modules_index_check(const char *dir, struct err *err)
{
	static const struct {
		const char *name;
		bool builtin; /* missing (older depmods) or empty (no modules.builtin) means that nothing is built in */
	} files[] = {
		{ "modules.dep.bin", false },
		{ "modules.alias.bin", false },
		{ "modules.builtin.bin", true },
		{ "modules.builtin.alias.bin", true },
	};

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		struct stat st;
		char *path;
		int error = 0;

		if (asprintf(&path, "%s/%s", dir, files[i].name) < 0)
			return err_sys(err, -ENOMEM, "%s", dir);
		if (stat(path, &st) < 0)
			error = files[i].builtin ? 0 : modules_dir_remedy(dir, MODULES_UNINDEXED, err);
		else if (st.st_size || !files[i].builtin)
			error = check_file(path, err);
		free(path);
		if (error)
			return error;
	}
	return 0;
}
