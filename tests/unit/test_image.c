// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Images as a whole: what we create, resize, convert, repair and snapshot is
 * what qemu-img says it is. Skipped where that is not installed.
 */
#include "block/image.h"
#include "qcow2fix.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (1ull << 20)

static char dir[64];

static void need(int error, const struct err *err)
{
	if (error)
		fail_msg("%s (%d)", err->msg, error);
}

/* A raw file of numbered sectors with gaps. */
static void make_raw(const char *path, uint64_t sectors)
{
	FILE *out = fopen(path, "wb");
	uint8_t buf[SECTOR];
	unsigned rng = 5;

	assert_non_null(out);
	for (uint64_t i = 0; i < sectors; i++) {
		sector_fill(buf, rnd(&rng) % 3 || (i >> 9) % 3 == 1 ? 0 : (uint32_t)i + 1);
		assert_int_equal(fwrite(buf, SECTOR, 1, out), 1);
	}
	assert_int_equal(fclose(out), 0);
}

static struct image_create usual(unsigned bits)
{
	struct image_create c = { .format = BLK_QCOW2, .qcow2 = qcow2_create_default };

	c.qcow2.cluster_bits = bits;
	return c;
}

static void test_create(void **state)
{
	struct image_info info;
	struct err err;

	for (unsigned bits = 9; bits <= 21; bits += 3)
		for (unsigned order = 0; order < 7; order += 2) {
			struct image_create c = usual(bits);

			c.qcow2.refcount_order = order;
			c.size = 10 * MIB + 100;
			need(image_create("c.qcow2", &c, &err), &err);
			sh("qemu-img check -q c.qcow2 && qemu-io -c 'write -q -P 3 5M 1M' c.qcow2 >/dev/null && "
			   "qemu-img check -q c.qcow2");
			need(image_info("c.qcow2", BLK_GUESS, &info, &err), &err);
			assert_string_equal(info.format, "qcow2");
			assert_int_equal(info.size, 10 * MIB + 512);
			assert_int_equal(info.header.cluster_bits, bits);
			image_info_free(&info);
		}
	sh("rm c.qcow2");
}

static void test_create_backing(void **state)
{
	struct image_create c = usual(16);
	struct err err;

	make_raw("base.raw", 5000);
	c.size = UINT64_MAX;
	c.qcow2.backing = "base.raw";
	c.qcow2.backing_format = "raw";
	need(image_create("over.qcow2", &c, &err), &err);
	sh("qemu-img compare -q -f raw -F qcow2 base.raw over.qcow2");
	c.qcow2.backing = "nowhere.raw";
	assert_int_equal(image_create("not.qcow2", &c, &err), -ENOENT);
	assert_int_equal(access("not.qcow2", F_OK), -1);
	sh("rm base.raw over.qcow2");
}

static void convert(const char *from, const char *to, enum blk_format format, unsigned bits, bool compress,
                    enum qcow2_compression type)
{
	struct image_convert v = { .from = from, .to = to, .compress = compress, .create = usual(bits) };
	struct err err;

	v.create.format = format;
	v.create.qcow2.compression = type;
	need(image_convert(&v, &err), &err);
}

/* There and back, plain and compressed, and what comes out in the middle is sound. */
static void test_convert(void **state)
{
	static const unsigned bits[] = { 9, 12, 16, 21 };

	make_raw("src.raw", 20011);
	for (unsigned i = 0; i < 4; i++)
		for (unsigned how = 0; how < 3; how++) {
			convert("src.raw", "a.qcow2", BLK_QCOW2, bits[i], how, how == 2 ? QCOW2_ZSTD : QCOW2_ZLIB);
			sh("qemu-img check -q a.qcow2 && qemu-img compare -q -f raw -F qcow2 src.raw a.qcow2");
			convert("a.qcow2", "b.raw", BLK_RAW, 16, false, QCOW2_ZLIB);
			sh("cmp src.raw b.raw");
		}
	sh("rm src.raw a.qcow2 b.raw");
}

static void test_resize(void **state)
{
	static const uint64_t sizes[] = { 20, 700, 1, 40, 1, 2000 };
	struct image_create c = usual(12);
	struct err err;

	make_raw("base.raw", 30 * MIB / SECTOR);
	for (unsigned below = 0; below < 2; below++) {
		c.size = MIB;
		c.qcow2.backing = below ? "base.raw" : NULL;
		c.qcow2.backing_format = below ? "raw" : NULL;
		need(image_create("r.qcow2", &c, &err), &err);
		sh("qemu-io -c 'write -q -P 9 0 1M' r.qcow2 >/dev/null && cp r.qcow2 first.qcow2");
		assert_int_equal(image_resize("r.qcow2", BLK_GUESS, 4096, false, &err), -EINVAL);
		for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
			need(image_resize("r.qcow2", BLK_GUESS, sizes[i] * MIB + 1024, true, &err), &err);
			sh("qemu-img check -q r.qcow2");
			sh("qemu-io -c 'read -q -P 9 0 1M' r.qcow2");
			sh("qemu-io -c 'read -q -P 0 1M 1k' r.qcow2");
			if (sizes[i] > 30) /* nothing of what is below shows through, nor of what was there */
				sh("qemu-io -c 'read -q -P 0 1M 30M' r.qcow2 && qemu-io -c 'write -q -P 4 2M 25M' "
				   "r.qcow2 >/dev/null");
		}
	}
	sh("rm base.raw r.qcow2 first.qcow2");
}

static void test_snapshots(void **state)
{
	struct err err;
	struct image_info info;
	static const char *const options[] = { "cluster_size=4k", "compat=0.10", "cluster_size=512,refcount_bits=4" };

	for (unsigned i = 0; i < 3; i++) {
		make_raw("src.raw", 8000);
		sh("qemu-img convert -c -f raw -O qcow2 -o %s src.raw s.qcow2", options[i]);
		need(image_snapshot("s.qcow2", IMAGE_SNAPSHOT_CREATE, "one", &err), &err);
		sh("qemu-img check -q s.qcow2 && qemu-io -c 'write -q -P 7 0 1M' s.qcow2 >/dev/null && qemu-img check "
		   "-q s.qcow2");
		assert_int_equal(image_snapshot("s.qcow2", IMAGE_SNAPSHOT_CREATE, "one", &err), -EEXIST);
		need(image_snapshot("s.qcow2", IMAGE_SNAPSHOT_CREATE, "two", &err), &err);
		sh("qemu-img check -q s.qcow2 && qemu-img convert -l snapshot.name=one -O raw s.qcow2 one.raw && cmp "
		   "one.raw src.raw");
		sh("qemu-io -c 'write -q -P 8 512k 1M' s.qcow2 >/dev/null");
		need(image_info("s.qcow2", BLK_GUESS, &info, &err), &err);
		assert_int_equal(info.nsnapshots, 2);
		assert_string_equal(info.snapshots[1].name, "two");
		image_info_free(&info);
		need(image_snapshot("s.qcow2", IMAGE_SNAPSHOT_APPLY, "one", &err), &err);
		sh("qemu-img check -q s.qcow2 && qemu-img compare -q -f raw -F qcow2 src.raw s.qcow2");
		need(image_snapshot("s.qcow2", IMAGE_SNAPSHOT_DELETE, "one", &err), &err);
		sh("qemu-img check -q s.qcow2 && qemu-img compare -q -f raw -F qcow2 src.raw s.qcow2");
		need(image_snapshot("s.qcow2", IMAGE_SNAPSHOT_APPLY, "two", &err), &err);
		sh("qemu-img check -q s.qcow2 && qemu-io -c 'read -q -P 7 0 1M' s.qcow2");
		need(image_snapshot("s.qcow2", IMAGE_SNAPSHOT_DELETE, "two", &err), &err);
		sh("qemu-img check -q s.qcow2 && qemu-io -c 'read -q -P 7 0 1M' s.qcow2");
		assert_int_equal(image_snapshot("s.qcow2", IMAGE_SNAPSHOT_DELETE, "two", &err), -ENOENT);
	}
	sh("qemu-img create -q -f qcow2 -o refcount_bits=1 s.qcow2 1M && qemu-io -c 'write -q 0 64k' s.qcow2 "
	   ">/dev/null");
	assert_int_equal(image_snapshot("s.qcow2", IMAGE_SNAPSHOT_CREATE, "one", &err), -ERANGE);
	assert_non_null(strstr(err.msg, "1 bits"));
	sh("qemu-img check -q s.qcow2 && rm src.raw one.raw s.qcow2");
}

/* The byte at @off of @path. */
static void poke(const char *path, uint64_t off, uint8_t value)
{
	FILE *f = fopen(path, "r+b");

	assert_non_null(f);
	assert_int_equal(fseek(f, (long)off, SEEK_SET), 0);
	assert_int_equal(fputc(value, f), value);
	assert_int_equal(fclose(f), 0);
}

/* Refcounts that are wrong both ways, and not there at all; flags; the marks. */
static void test_repair(void **state)
{
	struct qcow2_check r;
	struct err err;

	sh("qemu-img create -q -f qcow2 k.qcow2 64M && qemu-io -c 'write -q -P 1 0 4M' k.qcow2 >/dev/null && cp "
	   "k.qcow2 sound.qcow2");
	need(image_check("k.qcow2", BLK_GUESS, false, &r, &err), &err);
	assert_true(!r.corruptions && !r.leaks && r.allocated == 64);
	for (unsigned how = 0; how < 4; how++) {
		sh("cp sound.qcow2 k.qcow2");
		switch (how) {
		case 0: poke("k.qcow2", 2 * 65536 + 2 * 30 + 1, 0); break; /* too low */
		case 1: poke("k.qcow2", 2 * 65536 + 2 * 30 + 1, 9); break; /* too high: and then a flag is wrong */
		case 2: poke("k.qcow2", 65536 + 5, 0); break;              /* no block at all */
		case 3: poke("k.qcow2", 4 * 65536 + 8 * 3, 0); break;      /* a flag */
		}
		poke("k.qcow2", 79, how & 1 ? 3 : 2); /* marked corrupt, and dirty */
		need(image_check("k.qcow2", BLK_GUESS, false, &r, &err), &err);
		assert_true(r.corruptions + r.leaks && !r.fixed && !r.bad);
		need(image_check("k.qcow2", BLK_GUESS, true, &r, &err), &err);
		assert_true(r.fixed);
		need(image_check("k.qcow2", BLK_GUESS, false, &r, &err), &err);
		assert_true(!r.corruptions && !r.leaks);
		sh("qemu-img check -q k.qcow2 && qemu-io -c 'read -q -P 1 0 4M' k.qcow2");
	}
	sh("rm k.qcow2 sound.qcow2");
}

/* What a broken L1 entry named may still be found by who mends it: a repair gives none of it to others. */
static void test_repair_keeps(void **state)
{
	struct qcow2_check r;
	struct err err;

	sh("qemu-img create -q -f qcow2 k.qcow2 64M && qemu-io -c 'write -q -P 1 0 4M' k.qcow2 >/dev/null");
	poke("k.qcow2", 3 * 65536 + 7, 1); /* a bit that is reserved */
	need(image_check("k.qcow2", BLK_GUESS, true, &r, &err), &err);
	assert_true(r.bad && r.leaks);
	poke("k.qcow2", 3 * 65536 + 7, 0);
	sh("qemu-img check -q k.qcow2 && qemu-io -c 'read -q -P 1 0 4M' k.qcow2 && rm k.qcow2");
}

/* Some tools make a disk shorter by its size alone. */
static void test_resize_tail(void **state)
{
	struct err err;

	sh("qemu-img create -q -f qcow2 k.qcow2 1M && qemu-io -c 'write -q -P 1 0 1M' k.qcow2 >/dev/null && "
	   "qemu-img resize -q --shrink k.qcow2 100k");
	need(image_resize("k.qcow2", BLK_GUESS, 110 << 10, false, &err), &err);
	need(image_resize("k.qcow2", BLK_GUESS, MIB, false, &err), &err);
	sh("qemu-io -c 'read -q -P 1 0 100k' -c 'read -q -P 0 100k 924k' k.qcow2 && qemu-img check -q k.qcow2 && rm "
	   "k.qcow2");
}

/* No room: what was not there before is not there after, and what was is there, for its owner to see. */
static void test_convert_full(void **state)
{
	static const enum blk_format formats[] = { BLK_RAW, BLK_QCOW2 };
	struct rlimit was, small;
	struct err err;

	make_raw("src.raw", 20011);
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
	small = was;
	small.rlim_cur = 2 * MIB;
	for (unsigned i = 0; i < 4; i++) {
		struct image_convert v = { .from = "src.raw", .to = "out", .create = usual(16) };

		v.create.format = formats[i / 2];
		if (i % 2)
			sh("echo >out");
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
		assert_int_equal(image_convert(&v, &err), -EFBIG);
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
		assert_non_null(strstr(err.msg, "out: "));
		assert_int_equal(access("out", F_OK), i % 2 ? 0 : -1);
		if (i % 2)
			sh("rm out");
	}
	/* Onto itself, or what it stands on: refused, and nothing is touched. */
	sh("cp src.raw was.raw && qemu-img create -q -f qcow2 -F raw -b src.raw over.qcow2");
	for (unsigned i = 0; i < 2; i++) {
		struct image_convert v = { .from = i ? "over.qcow2" : "src.raw", .to = "src.raw", .create = usual(16) };

		assert_int_equal(image_convert(&v, &err), -EBUSY);
		assert_non_null(strstr(err.msg, "src.raw: in use by this command itself"));
	}
	sh("cmp src.raw was.raw && rm src.raw was.raw over.qcow2");
}

static int go(void **state)
{
	strcpy(dir, "/tmp/kvm-image-XXXXXX");
	return mkdtemp(dir) ? chdir(dir) : -1;
}

static int end(void **state)
{
	return chdir("/") || rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_create),       cmocka_unit_test(test_create_backing),
		cmocka_unit_test(test_convert),      cmocka_unit_test(test_resize),
		cmocka_unit_test(test_snapshots),    cmocka_unit_test(test_repair),
		cmocka_unit_test(test_repair_keeps), cmocka_unit_test(test_resize_tail),
		cmocka_unit_test(test_convert_full),
	};

	if (!have_qemu_img())
		return 77;
	return cmocka_run_group_tests(tests, go, end);
}
