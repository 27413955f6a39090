// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * libFuzzer target: the bytes choose an image's shape, change it anywhere, cut
 * it short, and then read, write, zero, discard, flush and check it. Whatever
 * the image is: no crash, no hang, and its header, L1 and refcount tables are
 * only ever written by the engine itself.
 */
#include "block/qcow2/check.h"
#include "block/qcow2/create.h"
#include "block/qcow2/qcow2.h"
#include "device.h"
#include "logblk.h"

#include <string.h>

#define DISK (256u << 10)

struct input {
	const uint8_t *p;
	size_t left;
};

static unsigned take(struct input *in, unsigned n)
{
	unsigned v = 0;

	for (; n && in->left; n--, in->left--)
		v = v << 8 | *in->p++;
	return v;
}

static struct logblk *make(struct input *in)
{
	static const unsigned bits[] = { 9, 10, 12, 16 };
	struct qcow2_create c = qcow2_create_default;
	struct logblk *file = logblk_new("/nonexistent/fuzz.qcow2");
	unsigned shape = take(in, 1);
	struct err err;

	c.size = DISK;
	c.cluster_bits = bits[shape & 3];
	c.version = shape & 4 ? 2 : 3;
	c.refcount_order = c.version == 2 ? 4 : (shape >> 3) % 7;
	CHECK(!qcow2_create(&file->blk, &c, &err));
	return file;
}

/* Some clusters, so that there are tables to be made wrong. */
static struct logblk *fill(struct logblk *file)
{
	struct logblk *copy;
	uint8_t buf[8192];
	struct blk *b;
	struct err err;

	memset(buf, 0x5a, sizeof(buf));
	CHECK(!qcow2_open(&file->blk, &(struct blk_options){ 0 }, &b, &err));
	for (unsigned i = 0; i < 4; i++)
		CHECK(!blk_do(b, BLK_WRITE, 0, i * 70000u / 512 * 512, buf, sizeof(buf)));
	CHECK(!qcow2_worker_stop((struct qcow2 *)b));
	copy = logblk_copy(file);
	blk_close(b);
	return copy;
}

/* Entries and fields: eight bytes at a place that is likely to mean something. */
static void change(struct input *in, struct logblk *file)
{
	unsigned n = take(in, 1) % 8;

	while (n--) {
		uint64_t size = atomic_load(&file->blk.size), at = take(in, 2), len = 1 + take(in, 1) % 8;

		if (at & 0x8000)
			at = (at & 0x7fff) * 8;
		for (; len && at < size; len--)
			file->mem[at++] = (uint8_t)take(in, 1);
	}
	if (take(in, 1) > 200)
		atomic_store(&file->blk.size, take(in, 2));
}

static void use(struct input *in, struct blk *b)
{
	static uint8_t buf[70000];
	uint64_t size = blk_size(b);

	for (unsigned n = 0; n < 16 && in->left; n++) {
		enum blk_op op = take(in, 1) % 5;
		uint64_t off = take(in, 1) * 2048, len = 1 + take(in, 2);

		if (!size)
			return;
		off = n & 1 ? size - 1 - off % size : off % size;
		if (len > size - off)
			len = size - off;
		(void)!blk_do(b, op, take(in, 1) & 3, off, buf, len);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	struct logblk *file = fill(make(&in));
	bool read_only = take(&in, 1) & 1;
	struct qcow2_check result;
	struct blk *b;
	struct err err;

	change(&in, file);
	if (qcow2_open(&file->blk, &(struct blk_options){ .read_only = read_only }, &b, &err)) {
		blk_close(&file->blk);
		return 0;
	}
	if (take(&in, 1) & 1)
		(void)!qcow2_check((struct qcow2 *)b, !read_only && take(&in, 1) & 1, &result, &err);
	use(&in, b);
	CHECK(get_be32(file->mem) == QCOW2_MAGIC &&
	      get_be64(file->mem + QCOW2_AT_L1_OFFSET) == ((struct qcow2 *)b)->h.l1_off);
	blk_close(b);
	return 0;
}
