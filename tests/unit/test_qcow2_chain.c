// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Chains of backing files: where names count from, loops, depth, formats that
 * are not recorded; and disks of 60 TiB.
 */
#include "block/image.h"
#include "block/qcow2/qcow2.h"
#include "qcow2fix.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (1ull << 20)

static char dir[64];

static void need(int error, const struct err *err)
{
	if (error)
		fail_msg("%s (%d)", err->msg, error);
}

/* Without a look at what is below, which need not be there. */
static void create_on(const char *path, const char *backing, const char *format)
{
	struct image_create c = { .format = BLK_RAW, .size = 0 };
	struct qcow2_create q = qcow2_create_default;
	struct blk *file;
	struct err err;

	q.size = 4 * MIB;
	q.backing = backing;
	q.backing_format = format;
	need(image_create(path, &c, &err), &err);
	need(blk_file_open(path, &(struct blk_options){ 0 }, &file, &err), &err);
	need(blk_file_use(file, BLK_FILE_GROWS, &err), &err);
	need(qcow2_create(file, &q, &err), &err);
	blk_close(file);
}

static int open_image(const char *path, struct blk **b, struct err *err)
{
	return blk_open(path, &(struct blk_options){ .read_only = true }, b, err);
}

static void expect(const char *path, uint64_t off, uint8_t byte)
{
	uint8_t buf[512];
	struct blk *b;
	struct err err;

	need(open_image(path, &b, &err), &err);
	assert_int_equal(blk_do(b, BLK_READ, 0, off, buf, sizeof(buf)), 0);
	for (unsigned i = 0; i < sizeof(buf); i++)
		assert_int_equal(buf[i], byte);
	blk_close(b);
}

static void write_byte(const char *path, uint64_t off, uint8_t byte)
{
	uint8_t buf[512];
	struct blk *b;
	struct err err;

	memset(buf, byte, sizeof(buf));
	need(blk_open(path, &(struct blk_options){ 0 }, &b, &err), &err);
	assert_int_equal(blk_do(b, BLK_WRITE, 0, off, buf, sizeof(buf)), 0);
	blk_close(b);
}

static void raw(const char *path, uint64_t size)
{
	struct image_create c = { .format = BLK_RAW, .size = size };
	struct err err;

	need(image_create(path, &c, &err), &err);
}

static void test_depth(void **state)
{
	raw("0", 4 * MIB);
	write_byte("0", 0, 77);
	for (unsigned i = 1; i <= 40; i++) {
		char name[16], below[16];

		snprintf(name, sizeof(name), "%u", i);
		snprintf(below, sizeof(below), "%u", i - 1);
		create_on(name, below, i == 1 ? "raw" : "qcow2");
		write_byte(name, i * 65536 + 512, (uint8_t)i);
	}
	expect("40", 0, 77);
	for (unsigned i = 1; i <= 40; i++)
		expect("40", i * 65536 + 512, (uint8_t)i);
	sh("rm *");
}

/* What a disk of 4 MiB must say; and layers that say it together. */
static uint8_t model[4 * MIB];

/* Pieces of data and of zeroes all over the image. */
static void scribble(const char *path, uint8_t byte)
{
	static uint8_t buf[160 << 10];
	struct blk *b;
	struct err err;

	need(blk_open(path, &(struct blk_options){ 0 }, &b, &err), &err);
	for (unsigned i = 0; i < 24; i++) {
		uint64_t len = 512 * (1 + (uint64_t)rand() % (sizeof(buf) / 512));
		uint64_t off = 512 * ((uint64_t)rand() % ((blk_size(b) - len) / 512));
		bool zero = i % 4 == 3;

		memset(buf, byte, len);
		assert_int_equal(blk_do(b, zero ? BLK_WRITE_ZEROES : BLK_WRITE, BLK_MAY_UNMAP, off, buf, len), 0);
		memset(model + off, zero ? 0 : byte, len);
	}
	blk_close(b);
}

static void expect_model(struct blk *b, unsigned times)
{
	static uint8_t buf[sizeof(model)];

	for (unsigned i = 0; i < times; i++) {
		uint64_t len = 1 + (uint64_t)rand() % (i % 2 ? sizeof(buf) : 70000);
		uint64_t off = (uint64_t)rand() % (sizeof(model) - len + 1);

		assert_int_equal(blk_do(b, BLK_READ, 0, off, buf, len), 0);
		assert_memory_equal(buf, model + off, len);
	}
}

static void shorten(const char *path, uint64_t size)
{
	struct err err;

	need(image_resize(path, BLK_QCOW2, size, true, &err), &err);
	memset(model + size, 0, sizeof(model) - size); /* also where a layer below says something else */
}

/* What is read through layers of all sorts, with maps that are not in memory at first, and then are. */
static void layers(bool compressed)
{
	struct image_convert c = { .from = "base", .to = "0", .compress = true, .from_format = BLK_RAW };
	struct blk *b;
	struct err err;

	memset(model, 0, sizeof(model));
	raw("base", 2 * MIB - 512);
	scribble("base", 0xff);
	c.create = (struct image_create){ .format = BLK_QCOW2, .qcow2 = qcow2_create_default };
	if (compressed)
		need(image_convert(&c, &err), &err);
	create_on("1", compressed ? "0" : "base", compressed ? "qcow2" : "raw");
	create_on("2", "1", "qcow2");
	create_on("3", "2", "qcow2");
	create_on("4", "3", "qcow2");
	scribble("1", 1);
	shorten("2", 3 * MIB);
	scribble("2", 2);
	scribble("3", 3);
	need(open_image("4", &b, &err), &err);
	expect_model(b, 200);
	blk_close(b);
	scribble("4", 4); /* which fills clusters up with what is below */
	need(open_image("4", &b, &err), &err);
	expect_model(b, 200);
	blk_close(b);
	sh("rm *");
}

static void test_layers(void **state)
{
	layers(false);
	layers(true);
}

static void refused(const char *path, int error, const char *says)
{
	struct blk *b;
	struct err err = { .msg = "" };
	int got = open_image(path, &b, &err);

	if (got != error || !strstr(err.msg, says))
		fail_msg("%s: %d, %s", path, got, err.msg);
}

static void test_loops(void **state)
{
	create_on("a", "b", "qcow2");
	create_on("b", "c", "qcow2");
	create_on("c", "a", "qcow2");
	refused("a", -ELOOP, "comes back to");
	create_on("self", "self", "qcow2");
	refused("self", -ELOOP, "comes back to");
	assert_int_equal(symlink("s", "link"), 0);
	create_on("s", "link", "qcow2");
	refused("s", -ELOOP, "comes back to");
	sh("rm *");
}

/* From the image's own directory, whatever name it was opened by. */
static void test_places(void **state)
{
	assert_int_equal(mkdir("images", 0700) | mkdir("links", 0700), 0);
	raw("images/base.raw", MIB);
	write_byte("images/base.raw", 512, 5);
	create_on("images/top.qcow2", "base.raw", "raw");
	assert_int_equal(symlink("../images/top.qcow2", "links/disk"), 0);
	expect("images/top.qcow2", 512, 5);
	expect("links/disk", 512, 5);
	expect("images/top.qcow2", MIB, 0); /* past the end of what is below */
	create_on("images/missing", "nowhere", "raw");
	refused("images/missing", -ENOENT, "backing file");
	create_on("images/url", "nbd://host/export", "raw");
	refused("images/url", -ENOTSUP, "not a file's name");
	create_on("images/vmdk", "base.raw", "vmdk");
	refused("images/vmdk", -ENOTSUP, "vmdk");
	sh("rm -r images links");
}

/* Not recorded: raw by the magic, or QCOW2 that stands on nothing itself. */
static void test_guessed(void **state)
{
	raw("base.raw", MIB);
	create_on("plain", NULL, NULL);
	write_byte("plain", 0, 3);
	create_on("on-plain", "plain", NULL);
	expect("on-plain", 0, 3);
	create_on("on-raw", "base.raw", NULL);
	expect("on-raw", 0, 0);
	create_on("on-on-raw", "on-raw", NULL);
	refused("on-on-raw", -EPERM, "not recorded");
	sh("rm *");
}

static void test_60_tib(void **state)
{
	struct image_create c = { .format = BLK_QCOW2, .qcow2 = qcow2_create_default, .size = 60ull << 40 };
	struct qcow2_check r;
	struct err err;

	need(image_create("big", &c, &err), &err);
	for (unsigned i = 0; i < 60; i += 7)
		write_byte("big", ((uint64_t)(i + 1) << 40) - 512, (uint8_t)(i + 1));
	for (unsigned i = 0; i < 60; i += 7)
		expect("big", ((uint64_t)(i + 1) << 40) - 512, (uint8_t)(i + 1));
	expect("big", 59ull << 40, 0);
	need(image_check("big", BLK_GUESS, false, &r, &err), &err);
	assert_true(!r.corruptions && !r.leaks && r.allocated == 9);
	if (have_qemu_img())
		sh("qemu-img check -q big");
	sh("rm big");
}

static int go(void **state)
{
	strcpy(dir, "/tmp/kvm-chain-XXXXXX");
	return mkdtemp(dir) ? chdir(dir) : -1;
}

static int end(void **state)
{
	return chdir("/") || rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_depth),   cmocka_unit_test(test_loops),  cmocka_unit_test(test_places),
		cmocka_unit_test(test_guessed), cmocka_unit_test(test_60_tib), cmocka_unit_test(test_layers),
	};

	return cmocka_run_group_tests(tests, go, end);
}
