// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * virtio-blk under good drivers and hostile ones: on an image in memory, which
 * can be slow and fail, and on real files with queues on threads of their own.
 */
#include "base/loop_thread.h"
#include "blkfix.h"
#include "block/merge.h"
#include "fakeblk.h"
#include "fakedrv_dev.h"
#include "fakedrv_hostile.h"
#include "virtio/blk.h"

#include <errno.h>
#include <linux/virtio_blk.h>
#include <linux/virtio_config.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LEN(a)      (sizeof(a) / sizeof(*(a)))
#define BANK        (16ull << 20)
#define MODES       8
#define SIZE        (2ull << 20) /* of the disk */
#define SECTORS     (SIZE / 512)
#define NEEDS_RESET VIRTIO_CONFIG_S_NEEDS_RESET
#define F(bit)      (1ull << VIRTIO_BLK_F_##bit)
#define ALL         (F(FLUSH) | F(CONFIG_WCE) | F(DISCARD) | F(WRITE_ZEROES))
#define NO_STATUS   0xee
#define WCE         offsetof(struct virtio_blk_config, wce)

struct fixture {
	struct fakemem mem;
	struct loop *loop;
	struct fakeblk image;
	struct vblk *v;
	struct virtio_dev *d;
	struct fakedev drv;
	uint64_t buf; /* 4 MiB */
	uint8_t *p;
	unsigned failed;
};

static void on_failed(void *arg, int error)
{
	struct fixture *f = arg;

	assert_true(error < 0);
	f->failed++;
}

static struct fixture *setup_with(bool read_only, bool writeback, bool stop)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct vblk_config cfg = { .name = "disk0", .serial = "a serial number that is too long", .nqueues = 2 };
	struct err err;

	assert_non_null(f);
	fakemem_init(&f->mem, BANK, 1);
	f->buf = fakemem_alloc(&f->mem, 4 << 20, 4096);
	f->p = fakemem_ptr(&f->mem, f->buf, 4 << 20);
	assert_int_equal(loop_new(&f->loop, &err), 0);
	fakeblk_init(&f->image, SIZE);
	f->image.blk.info.read_only = read_only;
	f->image.blk.info.writeback = writeback;
	cfg.image = &f->image.blk;
	cfg.loops = &f->loop;
	cfg.nloops = 1;
	cfg.block = 512;
	cfg.failed = stop ? on_failed : NULL;
	cfg.arg = f;
	assert_int_equal(vblk_new(&cfg, &f->mem.gmem, &f->v, &err), 0);
	f->d = vblk_dev(f->v);
	fakedev_init(&f->drv, f->d, &f->mem, f->loop);
	return f;
}

static struct fixture *setup(void)
{
	return setup_with(false, true, false);
}

static void teardown(struct fixture *f)
{
	fakedev_exit(&f->drv);
	vblk_free(f->v);
	fakeblk_exit(&f->image);
	loop_free(f->loop);
	fakemem_free(&f->mem);
	free(f);
}

static uint64_t features(unsigned mode)
{
	return (mode & FAKE_PACKED ? 1ull << VIRTIO_F_RING_PACKED : 0) |
	       (mode & FAKE_EVENT_IDX ? 1ull << VIRTIO_RING_F_EVENT_IDX : 0) |
	       (mode & FAKE_INDIRECT ? 1ull << VIRTIO_RING_F_INDIRECT_DESC : 0);
}

/* Requests: at @at in the fixture's buffer are header, data and status, one after another. */

static uint64_t gpa(const struct fixture *f, const void *p)
{
	return f->buf + (uint64_t)((const uint8_t *)p - f->p);
}

/* The pieces of a request: header and status apart, the data in @cuts pieces. */
static unsigned pieces(struct fixture *f, uint8_t *at, unsigned type, uint64_t sector, uint32_t len, bool in,
                       unsigned cuts, struct fake_seg *seg)
{
	struct virtio_blk_outhdr h = { .type = type, .sector = sector };
	uint32_t done = 0;
	unsigned n = 0;

	memcpy(at, &h, sizeof(h));
	at[sizeof(h) + len] = NO_STATUS;
	seg[n++] = (struct fake_seg){ gpa(f, at), sizeof(h), false };
	for (unsigned i = 0; len && i < cuts; i++) {
		uint32_t part = i + 1 < cuts ? len / cuts : len - done;

		seg[n++] = (struct fake_seg){ gpa(f, at + sizeof(h) + done), part, in };
		done += part;
	}
	seg[n++] = (struct fake_seg){ gpa(f, at + sizeof(h) + len), 1, true };
	return n;
}

static uint8_t *data_of(uint8_t *at)
{
	return at + sizeof(struct virtio_blk_outhdr);
}

/* One request on queue 0, until it is answered; its status. */
static int request(struct fixture *f, unsigned type, uint64_t sector, uint32_t len, bool in, unsigned cuts)
{
	struct fake_seg seg[20];
	unsigned n = pieces(f, f->p, type, sector, len, in, cuts, seg);
	struct fake_used u;

	assert_true(fakeq_add(&f->drv.q[0], seg, n, 7) >= 0);
	fakedev_publish(&f->drv, 0);
	assert_true(fakedev_get(&f->drv, 0, &u) && u.token == 7);
	assert_int_equal(u.len, 1 + (in ? len : 0));
	return data_of(f->p)[len];
}

static int ranges(struct fixture *f, unsigned type, const struct virtio_blk_discard_write_zeroes *r, unsigned n)
{
	memcpy(data_of(f->p), r, n * sizeof(*r));
	return request(f, type, 0, n * (uint32_t)sizeof(*r), false, 1);
}

static void test_config(void **state)
{
	struct fixture *f = setup();
	struct virtio_blk_config c;
	uint64_t offered = virtio_reg_features(f->d, 0);

	for (unsigned i = 0; i < sizeof(c); i++)
		((uint8_t *)&c)[i] = (uint8_t)virtio_reg_config(f->d, i, 1);
	assert_int_equal(c.capacity, SECTORS);
	assert_int_equal(c.blk_size, 512);
	assert_int_equal(c.num_queues, 2);
	assert_int_equal(c.wce, 1);
	assert_true(c.seg_max >= 100 && c.max_discard_seg >= 1 && c.max_write_zeroes_seg >= 1);
	assert_int_equal(offered & (ALL | F(RO) | F(MQ) | F(SEG_MAX) | F(BLK_SIZE) | F(TOPOLOGY)),
	                 ALL | F(MQ) | F(SEG_MAX) | F(BLK_SIZE) | F(TOPOLOGY));
	teardown(f);
	f = setup_with(true, true, false);
	assert_int_equal(virtio_reg_features(f->d, 0) & (ALL | F(RO)), F(RO));
	teardown(f);
	f = setup_with(false, false, false); /* no cache: none is announced */
	assert_int_equal(virtio_reg_features(f->d, 0) & (ALL | F(RO)), F(DISCARD) | F(WRITE_ZEROES));
	teardown(f);
}

/* A host that writes 4096 bytes at once, for a guest that takes sectors for 512 or for 4096. */
static void test_topology(void **state)
{
	for (uint32_t block = 512; block <= 4096; block *= 8) {
		struct vblk_config cfg = { .name = "disk0", .nqueues = 1, .nloops = 1, .block = block };
		struct virtio_blk_config c;
		struct fakemem mem;
		struct fakeblk image;
		struct loop *loop;
		struct vblk *v;
		struct err err;

		fakemem_init(&mem, BANK, 1);
		fakeblk_init(&image, SIZE);
		image.blk.info.block = 4096;
		assert_int_equal(loop_new(&loop, &err), 0);
		cfg.image = &image.blk;
		cfg.loops = &loop;
		assert_int_equal(vblk_new(&cfg, &mem.gmem, &v, &err), 0);
		for (unsigned i = 0; i < sizeof(c); i++)
			((uint8_t *)&c)[i] = (uint8_t)virtio_reg_config(vblk_dev(v), i, 1);
		assert_int_equal(c.blk_size, block);
		assert_int_equal(c.capacity, SECTORS);
		assert_int_equal(block << c.physical_block_exp, 4096);
		assert_int_equal(c.min_io_size * block, 4096);
		assert_int_equal(c.discard_sector_alignment, 8);
		assert_int_equal(virtio_reg_features(vblk_dev(v), 0) & F(MQ), 0);
		vblk_free(v);
		loop_free(loop);
		fakeblk_exit(&image);
		fakemem_free(&mem);
	}
}

static void test_resize(void **state)
{
	struct fixture *f = setup();
	unsigned irqs;

	fakedev_start(&f->drv, ALL, 0);
	irqs = f->drv.config_irqs;
	blk_resized(&f->image.blk, SIZE / 2);
	assert_int_equal(f->drv.config_irqs, irqs + 1);
	assert_int_equal(virtio_reg_config(f->d, 0, 8), SECTORS / 2);
	assert_int_equal(request(f, VIRTIO_BLK_T_IN, SECTORS / 2, 512, true, 1), VIRTIO_BLK_S_IOERR);
	assert_int_equal(request(f, VIRTIO_BLK_T_IN, SECTORS / 2 - 1, 512, true, 1), VIRTIO_BLK_S_OK);
	blk_resized(&f->image.blk, SIZE);
	assert_int_equal(request(f, VIRTIO_BLK_T_IN, SECTORS / 2, 512, true, 1), VIRTIO_BLK_S_OK);
	teardown(f);
}

/* Reads and writes of all lengths, cut in all ways; nothing but their sectors changes. */
static void test_read_write(void **state)
{
	static uint8_t model[SIZE];

	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();
		unsigned seed = 1 + mode;

		memset(model, 0, SIZE);
		fakedev_start(&f->drv, features(mode) | ALL, 0);
		for (unsigned i = 0; i < 300; i++) {
			uint32_t n = 1 + (uint32_t)rand_r(&seed) % 64;
			uint64_t at = (uint64_t)rand_r(&seed) % (SECTORS - n);
			unsigned cuts = 1 + (unsigned)rand_r(&seed) % 16;

			if (rand_r(&seed) & 1) {
				blkfix_fill(data_of(f->p), n * 512, i, seed);
				memcpy(model + at * 512, data_of(f->p), n * 512);
				assert_int_equal(request(f, VIRTIO_BLK_T_OUT, at, n * 512, false, cuts), 0);
			} else {
				memset(data_of(f->p), 0xaa, n * 512);
				assert_int_equal(request(f, VIRTIO_BLK_T_IN, at, n * 512, true, cuts), 0);
				assert_memory_equal(data_of(f->p), model + at * 512, n * 512);
			}
		}
		assert_memory_equal(f->image.mem, model, SIZE);
		assert_false(virtio_reg_status(f->d) & NEEDS_RESET);
		teardown(f);
	}
}

/* Header and status may be in one piece with the data, or in several (2.7.4.2). */
static void test_framing(void **state)
{
	struct fixture *f = setup();
	struct fake_used u;
	struct fake_seg one[20];
	unsigned n = 0;

	fakedev_start(&f->drv, ALL, 0);
	(void)pieces(f, f->p, VIRTIO_BLK_T_OUT, 3, 512, false, 1, one);
	memset(data_of(f->p), 'w', 512);
	one[0] = (struct fake_seg){ f->buf, 16 + 512, false };
	one[1] = (struct fake_seg){ f->buf + 16 + 512, 1, true };
	assert_true(fakeq_add(&f->drv.q[0], one, 2, 1) >= 0);
	fakedev_publish(&f->drv, 0);
	assert_true(fakedev_get(&f->drv, 0, &u) && u.len == 1);
	assert_int_equal(f->p[16 + 512], VIRTIO_BLK_S_OK);

	(void)pieces(f, f->p, VIRTIO_BLK_T_IN, 3, 512, true, 1, one);
	memset(data_of(f->p), 0, 512);
	for (; n < 4; n++)
		one[n] = (struct fake_seg){ f->buf + n * 4, 4, false };
	one[n++] = (struct fake_seg){ f->buf + 16, 513, true };
	assert_true(fakeq_add(&f->drv.q[0], one, n, 2) >= 0);
	fakedev_publish(&f->drv, 0);
	assert_true(fakedev_get(&f->drv, 0, &u) && u.len == 513);
	assert_int_equal(f->p[16 + 512], VIRTIO_BLK_S_OK);
	for (unsigned i = 0; i < 512; i++)
		assert_int_equal(data_of(f->p)[i], 'w');
	teardown(f);
}

static void test_id(void **state)
{
	struct fixture *f = setup();

	fakedev_start(&f->drv, ALL, 0);
	memset(data_of(f->p), 0, 30);
	assert_int_equal(request(f, VIRTIO_BLK_T_GET_ID, 0, 20, true, 2), 0);
	assert_memory_equal(data_of(f->p), "a serial number that", 20);
	memset(data_of(f->p), 0, 30);
	assert_int_equal(request(f, VIRTIO_BLK_T_GET_ID, 0, 5, true, 1), 0);
	assert_memory_equal(data_of(f->p), "a ser\0", 6);
	memset(data_of(f->p), 0, 30);
	assert_int_equal(request(f, VIRTIO_BLK_T_GET_ID, 0, 25, true, 1), 0);
	assert_memory_equal(data_of(f->p), "a serial number that\0", 21);
	teardown(f);
}

/* What the image is asked for when the driver knows of a cache, of its switch, or of neither (5.2.6.2). */
static void test_write_cache(void **state)
{
	static const struct {
		uint64_t features;
		int wce; /* -1: not written */
		unsigned flags;
	} cases[] = {
		{ F(FLUSH), -1, 0 },
		{ 0, -1, BLK_FUA },
		{ F(CONFIG_WCE), 1, BLK_FUA },
		{ F(FLUSH) | F(CONFIG_WCE), -1, 0 },
		{ F(FLUSH) | F(CONFIG_WCE), 1, 0 },
		{ F(FLUSH) | F(CONFIG_WCE), 0, BLK_FUA },
		{ F(FLUSH), 0, 0 }, /* the switch is not theirs */
	};

	for (unsigned i = 0; i < LEN(cases); i++) {
		struct fixture *f = setup();
		struct virtio_blk_discard_write_zeroes z = { .sector = 1, .num_sectors = 1 };

		for (unsigned again = 0; again < 2; again++) { /* what one driver has set is not the next one's */
			fakedev_start(&f->drv, cases[i].features | F(WRITE_ZEROES), 0);
			assert_int_equal(virtio_reg_config(f->d, WCE, 1), !!(cases[i].features & F(FLUSH)));
			virtio_reg_set_config(f->d, WCE, 1, !(cases[i].features & F(FLUSH)));
		}
		fakedev_start(&f->drv, cases[i].features | F(WRITE_ZEROES), 0);
		if (cases[i].wce >= 0)
			virtio_reg_set_config(f->d, WCE, 1, (unsigned)cases[i].wce);
		assert_int_equal(request(f, VIRTIO_BLK_T_OUT, 0, 512, false, 1), 0);
		assert_int_equal(ranges(f, VIRTIO_BLK_T_WRITE_ZEROES, &z, 1), 0);
		assert_int_equal(request(f, VIRTIO_BLK_T_IN, 0, 512, true, 1), 0);
		assert_int_equal(request(f, VIRTIO_BLK_T_FLUSH, 0, 0, false, 0), 0);
		assert_true(f->image.log[0].op == BLK_WRITE && f->image.log[0].flags == cases[i].flags);
		assert_true(f->image.log[1].op == BLK_WRITE_ZEROES && f->image.log[1].flags == cases[i].flags);
		assert_true(f->image.log[2].op == BLK_READ && f->image.log[2].flags == 0);
		assert_true(f->image.log[3].op == BLK_FLUSH);
		teardown(f);
	}
}

static void test_ranges(void **state)
{
	static const struct virtio_blk_discard_write_zeroes many[] = { { .sector = 8, .num_sectors = 2 },
		                                                       { .sector = 0, .num_sectors = 1, .flags = 1 },
		                                                       { .sector = SECTORS - 1, .num_sectors = 1 } };
	struct fixture *f = setup();

	fakedev_start(&f->drv, ALL, 0);
	memset(f->image.mem, 'x', SIZE);
	assert_int_equal(ranges(f, VIRTIO_BLK_T_WRITE_ZEROES, many, 3), 0);
	assert_int_equal(f->image.nlog, 3);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(f->image.log[i].op, BLK_WRITE_ZEROES);
		assert_int_equal(f->image.log[i].flags, many[i].flags ? BLK_MAY_UNMAP : 0);
		assert_int_equal(f->image.log[i].off, many[i].sector * 512);
		assert_int_equal(f->image.log[i].len, many[i].num_sectors * 512);
	}
	assert_int_equal(f->image.mem[8 * 512], 0);
	assert_int_equal(f->image.mem[10 * 512], 'x');
	assert_int_equal(ranges(f, VIRTIO_BLK_T_DISCARD, &many[0], 1), 0);
	assert_int_equal(f->image.log[3].op, BLK_DISCARD);
	teardown(f);
}

/* What a driver can get wrong within a proper chain: told so, and nothing happens. */
static void test_bad_requests(void **state)
{
	static const struct {
		unsigned type;
		uint64_t sector;
		uint32_t len;
		bool in;
		int status;
	} bad[] = {
		{ VIRTIO_BLK_T_IN, SECTORS, 512, true, VIRTIO_BLK_S_IOERR },
		{ VIRTIO_BLK_T_IN, SECTORS - 1, 1024, true, VIRTIO_BLK_S_IOERR },
		{ VIRTIO_BLK_T_IN, UINT64_MAX, 512, true, VIRTIO_BLK_S_IOERR },
		{ VIRTIO_BLK_T_IN, UINT64_MAX / 512, 512, true, VIRTIO_BLK_S_IOERR },
		{ VIRTIO_BLK_T_IN, 1ull << 55, 512, true, VIRTIO_BLK_S_IOERR },
		{ VIRTIO_BLK_T_IN, 0, 511, true, VIRTIO_BLK_S_IOERR },
		{ VIRTIO_BLK_T_IN, 0, 513, true, VIRTIO_BLK_S_IOERR },
		{ VIRTIO_BLK_T_OUT, SECTORS, 512, false, VIRTIO_BLK_S_IOERR },
		{ VIRTIO_BLK_T_OUT, 0, 100, false, VIRTIO_BLK_S_IOERR },
		{ VIRTIO_BLK_T_OUT, UINT64_MAX, 1024, false, VIRTIO_BLK_S_IOERR },
		{ VIRTIO_BLK_T_DISCARD, 0, 0, false, VIRTIO_BLK_S_IOERR },
		{ VIRTIO_BLK_T_DISCARD, 0, 15, false, VIRTIO_BLK_S_IOERR },
		{ VIRTIO_BLK_T_WRITE_ZEROES, 0, 16 * 17, false, VIRTIO_BLK_S_IOERR },
		{ VIRTIO_BLK_T_SECURE_ERASE, 0, 16, false, VIRTIO_BLK_S_UNSUPP },
		{ 2, 0, 512, true, VIRTIO_BLK_S_UNSUPP },
		{ 0x80000000, 0, 512, false, VIRTIO_BLK_S_UNSUPP },
		{ UINT32_MAX, 0, 0, false, VIRTIO_BLK_S_UNSUPP },
	};
	static const struct {
		struct virtio_blk_discard_write_zeroes r;
		int zeroes, discard;
	} bad_range[] = {
		{ { .sector = SECTORS, .num_sectors = 1 }, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_IOERR },
		{ { .sector = SECTORS - 1, .num_sectors = 2 }, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_IOERR },
		{ { .sector = UINT64_MAX, .num_sectors = 2 }, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_IOERR },
		{ { .sector = 0, .num_sectors = UINT32_MAX }, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_IOERR },
		{ { .sector = 0, .num_sectors = 1, .flags = 2 }, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_S_UNSUPP },
		{ { .sector = 0, .num_sectors = 1, .flags = 1 }, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP },
	};
	struct fixture *f = setup();

	fakedev_start(&f->drv, ALL, 0);
	for (unsigned i = 0; i < LEN(bad); i++) {
		memset(f->p, 0, 4096);
		assert_int_equal(request(f, bad[i].type, bad[i].sector, bad[i].len, bad[i].in, 1), bad[i].status);
		assert_int_equal(f->image.nlog, 0);
	}
	for (unsigned i = 0; i < LEN(bad_range); i++) {
		assert_int_equal(ranges(f, VIRTIO_BLK_T_DISCARD, &bad_range[i].r, 1), bad_range[i].discard);
		assert_int_equal(f->image.nlog, 0);
		assert_int_equal(ranges(f, VIRTIO_BLK_T_WRITE_ZEROES, &bad_range[i].r, 1), bad_range[i].zeroes);
		f->image.nlog = 0;
	}
	fakedev_start(&f->drv, F(FLUSH), 0); /* not negotiated */
	assert_int_equal(ranges(f, VIRTIO_BLK_T_DISCARD, &(struct virtio_blk_discard_write_zeroes){ 0 }, 1),
	                 VIRTIO_BLK_S_UNSUPP);
	assert_false(virtio_reg_status(f->d) & NEEDS_RESET);
	teardown(f);
}

/* Without room for a status, or with half a header: given back, and the next one is served. */
static void test_bad_framing(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();
		const struct fake_seg no_status = { f->buf, 16, false };
		const struct fake_seg half[] = { { f->buf, 15, false }, { f->buf + 600, 513, true } };
		const struct fake_seg no_header = { f->buf + 600, 513, true };
		struct fake_used u;

		fakedev_start(&f->drv, features(mode) | ALL, 0);
		memset(f->p, 0, 4096);
		assert_true(fakeq_add(&f->drv.q[0], &no_status, 1, 0) >= 0);
		fakedev_publish(&f->drv, 0);
		assert_true(fakedev_get(&f->drv, 0, &u) && u.len == 0);
		assert_true(fakeq_add(&f->drv.q[0], half, 2, 0) >= 0);
		fakedev_publish(&f->drv, 0);
		assert_true(fakedev_get(&f->drv, 0, &u));
		assert_int_equal(f->p[600 + 512], VIRTIO_BLK_S_IOERR);
		f->p[600 + 512] = NO_STATUS;
		assert_true(fakeq_add(&f->drv.q[0], &no_header, 1, 0) >= 0);
		fakedev_publish(&f->drv, 0);
		assert_true(fakedev_get(&f->drv, 0, &u));
		assert_int_equal(f->p[600 + 512], VIRTIO_BLK_S_IOERR);
		assert_int_equal(request(f, VIRTIO_BLK_T_IN, 0, 512, true, 1), 0);
		teardown(f);
	}
}

static void test_read_only(void **state)
{
	struct fixture *f = setup_with(true, true, false);
	struct virtio_blk_discard_write_zeroes z = { .num_sectors = 1 };

	fakedev_start(&f->drv, F(RO), 0);
	assert_int_equal(request(f, VIRTIO_BLK_T_OUT, 0, 512, false, 1), VIRTIO_BLK_S_IOERR);
	assert_int_equal(ranges(f, VIRTIO_BLK_T_WRITE_ZEROES, &z, 1), VIRTIO_BLK_S_UNSUPP);
	assert_int_equal(f->image.nlog, 0);
	assert_int_equal(request(f, VIRTIO_BLK_T_IN, 0, 512, true, 1), 0);
	teardown(f);
}

static void test_errors(void **state)
{
	static const struct {
		int error, status;
	} errors[] = { { -EIO, VIRTIO_BLK_S_IOERR },
		       { -ENOSPC, VIRTIO_BLK_S_IOERR },
		       { -EOPNOTSUPP, VIRTIO_BLK_S_UNSUPP } };
	struct fixture *f = setup();

	fakedev_start(&f->drv, ALL, 0);
	for (unsigned i = 0; i < LEN(errors); i++) {
		f->image.error = errors[i].error;
		assert_int_equal(request(f, VIRTIO_BLK_T_OUT, 0, 512, false, 1), errors[i].status);
		assert_int_equal(request(f, VIRTIO_BLK_T_IN, 0, 512, true, 1), errors[i].status);
		assert_int_equal(request(f, VIRTIO_BLK_T_FLUSH, 0, 0, false, 0), errors[i].status);
	}
	f->image.error = 0;
	assert_int_equal(request(f, VIRTIO_BLK_T_IN, 0, 512, true, 1), 0);
	teardown(f);
}

#define BATCH 16 /* of those that end at once, so many are told together */

#define APART 2 /* sectors from one request to the next in fill_queue(): none follows another */

/* A queue full of requests; answered in the opposite order, together. */
static unsigned fill_queue(struct fixture *f, unsigned q)
{
	struct fake_seg seg[20];
	unsigned n = 0, k;

	for (;; n++) {
		uint8_t *at = f->p + n * 1024;

		k = pieces(f, at, VIRTIO_BLK_T_OUT, n * APART, 512, false, 1, seg);
		memset(data_of(at), (int)n + 1, 512);
		if (fakeq_add(&f->drv.q[q], seg, k, n) < 0)
			return n;
	}
}

static void test_many(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();

		fakedev_start(&f->drv, features(mode) | ALL, 0);
		for (unsigned round = 0; round < 20; round++) {
			unsigned n = fill_queue(f, 0), irqs = f->drv.queue_irqs[0];
			struct fake_used u;

			f->image.hold = round & 1;
			fakeq_arm(&f->drv.q[0], 0);
			fakedev_publish(&f->drv, 0);
			assert_int_equal(f->image.nheld, f->image.hold ? n : 0);
			fakeblk_release(&f->image);
			for (unsigned i = 0; i < n; i++) {
				assert_true(fakedev_get(&f->drv, 0, &u) && u.len == 1);
				assert_int_equal(f->p[u.token * 1024 + 16 + 512], VIRTIO_BLK_S_OK);
				assert_int_equal(f->image.mem[u.token * APART * 512], (u.token + 1) & 0xff);
			}
			irqs = f->drv.queue_irqs[0] - irqs;
			assert_in_range(irqs, 1, f->image.hold ? 1 : (n + BATCH - 1) / BATCH);
		}
		teardown(f);
	}
}

/* Requests that follow each other. Each is of @n sectors, in memory at slot_of() its number. */

#define SLOT_LEN (128u << 10)
#define MAX_REQS 24u
#define OUT      VIRTIO_BLK_T_OUT
#define IN       VIRTIO_BLK_T_IN
#define FLUSH    VIRTIO_BLK_T_FLUSH

struct wanted {
	unsigned type;
	uint64_t sector;
	uint32_t n;
};

static uint8_t *slot_of(struct fixture *f, unsigned i)
{
	return f->p + (size_t)i * SLOT_LEN;
}

/* What the disk has at first, and what request @i writes. */
static uint8_t old_byte(uint64_t sector)
{
	return (uint8_t)(sector * 7 + 1);
}

static uint8_t new_byte(unsigned i)
{
	return (uint8_t)(0x80 + i);
}

static void add_all(struct fixture *f, const struct wanted *w, unsigned n, unsigned cuts)
{
	struct fake_seg seg[20];

	assert_true(n <= MAX_REQS);
	for (uint64_t s = 0; s < SECTORS; s++)
		memset(f->image.mem + s * 512, old_byte(s), 512);
	for (unsigned i = 0; i < n; i++) {
		uint32_t len = w[i].n * 512;
		unsigned k = pieces(f, slot_of(f, i), w[i].type, w[i].sector, len, w[i].type == IN, cuts, seg);

		memset(data_of(slot_of(f, i)), w[i].type == OUT ? new_byte(i) : 0xcc, len);
		assert_true(fakeq_add(&f->drv.q[0], seg, k, i) >= 0);
	}
	f->image.nlog = 0;
	fakedev_publish(&f->drv, 0);
}

/* All are answered, the one numbered @bad (-1: none) with an error; what they moved is right. */
static void collect_all(struct fixture *f, const struct wanted *w, unsigned n, int bad)
{
	struct fake_used u;

	for (unsigned i = 0; i < n; i++) {
		assert_true(fakedev_get(&f->drv, 0, &u));
		assert_int_equal(u.len, 1 + (w[u.token].type == IN ? w[u.token].n * 512 : 0));
	}
	for (unsigned i = 0; i < n; i++) {
		const uint8_t *data = data_of(slot_of(f, i));
		bool ok = (int)i != bad;

		assert_int_equal(data[w[i].n * 512], ok ? VIRTIO_BLK_S_OK : VIRTIO_BLK_S_IOERR);
		for (uint64_t s = 0; s < w[i].n; s++) {
			const uint8_t *disk = f->image.mem + (w[i].sector + s) * 512;

			if (w[i].type == OUT)
				assert_int_equal(disk[511], ok ? new_byte(i) : old_byte(w[i].sector + s));
			else
				assert_int_equal(data[s * 512 + 511], ok ? disk[511] : 0xcc);
		}
	}
	assert_false(fakeq_has_used(&f->drv.q[0]));
}

static void check_log(struct fixture *f, const struct wanted *w, unsigned n)
{
	static const enum blk_op ops[] = { [IN] = BLK_READ, [OUT] = BLK_WRITE, [FLUSH] = BLK_FLUSH };

	assert_int_equal(f->image.nlog, n);
	for (unsigned i = 0; i < n; i++) {
		assert_int_equal(f->image.log[i].op, ops[w[i].type]);
		assert_int_equal(f->image.log[i].off, w[i].sector * 512);
		assert_int_equal(f->image.log[i].len, w[i].n * 512);
	}
}

#define REQS 6

static const struct merging {
	struct wanted asked[REQS], seen[REQS]; /* ended by one of no sectors that is no flush */
} merging[] = {
	{ { { OUT, 8, 8 }, { OUT, 16, 8 }, { OUT, 24, 8 } }, { { OUT, 8, 24 } } },
	{ { { IN, 0, 1 }, { IN, 1, 100 }, { IN, 101, 3 }, { IN, 104, 60 } }, { { IN, 0, 164 } } },
	{ { { OUT, 0, 8 }, { OUT, 16, 8 }, { OUT, 24, 8 }, { OUT, 33, 8 } },
	  { { OUT, 0, 8 }, { OUT, 16, 16 }, { OUT, 33, 8 } } },
	{ { { OUT, 16, 8 }, { OUT, 8, 8 }, { OUT, 0, 8 } }, { { OUT, 16, 8 }, { OUT, 8, 8 }, { OUT, 0, 8 } } },
	{ { { IN, 8, 8 }, { IN, 8, 8 }, { IN, 12, 8 } }, { { IN, 8, 8 }, { IN, 8, 8 }, { IN, 12, 8 } } },
	{ { { OUT, 0, 8 }, { IN, 8, 8 }, { IN, 16, 8 }, { OUT, 24, 8 }, { OUT, 32, 8 } },
	  { { OUT, 0, 8 }, { IN, 8, 16 }, { OUT, 24, 16 } } },
	{ { { OUT, 0, 8 }, { OUT, 8, 8 }, { FLUSH, 0, 0 }, { OUT, 16, 8 }, { OUT, 24, 8 } },
	  { { OUT, 0, 16 }, { FLUSH, 0, 0 }, { OUT, 16, 16 } } },
	{ { { OUT, SECTORS - 8, 8 }, { OUT, 0, 8 } }, { { OUT, SECTORS - 8, 8 }, { OUT, 0, 8 } } },
};

static unsigned count(const struct wanted *w)
{
	unsigned n = 0;

	while (n < REQS && (w[n].n || w[n].type == FLUSH))
		n++;
	return n;
}

static void test_merge(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();

		fakedev_start(&f->drv, features(mode) | ALL, 0);
		for (unsigned i = 0; i < LEN(merging); i++) {
			const struct merging *m = &merging[i];

			add_all(f, m->asked, count(m->asked), 1 + i % 2);
			collect_all(f, m->asked, count(m->asked), -1);
			check_log(f, m->seen, count(m->seen));
		}
		teardown(f);
	}
}

/* No more than the image takes in pieces and bytes; a queue full of them. */
static void test_merge_limits(void **state)
{
	struct fixture *f = setup();
	struct wanted w[MAX_REQS];
	struct fake_used u;
	uint64_t total = 0;
	unsigned n = 0;

	fakedev_start(&f->drv, features(FAKE_INDIRECT) | ALL, 0);
	for (unsigned i = 0; i < MAX_REQS; i++)
		w[i] = (struct wanted){ OUT, i * 16ull, 16 };
	add_all(f, w, 20, 16);
	collect_all(f, w, 20, -1);
	check_log(f, (const struct wanted[]){ { OUT, 0, 256 }, { OUT, 256, 64 } }, 2);
	for (unsigned i = 0; i < 17; i++)
		w[i] = (struct wanted){ IN, i * 240ull, 240 };
	add_all(f, w, 17, 2);
	collect_all(f, w, 17, -1);
	assert_int_equal(f->image.nlog, 3);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(f->image.log[i].off, total);
		assert_true(f->image.log[i].len <= BLK_MERGE_LEN);
		total += f->image.log[i].len;
	}
	assert_int_equal(total, 17 * 240 * 512);

	f->image.nlog = 0;
	for (;; n++) {
		struct fake_seg seg[20];
		unsigned k = pieces(f, f->p + n * 1024, OUT, n, 512, false, 1, seg);

		if (fakeq_add(&f->drv.q[0], seg, k, n) < 0)
			break;
	}
	assert_int_equal(n, 256);
	fakedev_publish(&f->drv, 0);
	for (unsigned i = 0; i < n; i++)
		assert_true(fakedev_get(&f->drv, 0, &u) && f->p[u.token * 1024 + 16 + 512] == VIRTIO_BLK_S_OK);
	check_log(f, (const struct wanted[]){ { OUT, 0, 256 } }, 1);
	teardown(f);
}

/* One of several fails: the others do not. */
static void test_merge_errors(void **state)
{
	for (unsigned type = IN; type <= OUT; type++)
		for (int bad = 0; bad < 5; bad++) {
			static const uint32_t sizes[] = { 8, 1, 40, 16, 3 };
			struct fixture *f = setup();
			struct wanted w[5];
			uint64_t at = 100;

			fakedev_start(&f->drv, ALL, 0);
			for (unsigned i = 0; i < 5; at += sizes[i++])
				w[i] = (struct wanted){ type, at, sizes[i] };
			f->image.bad = w[bad].sector * 512;
			f->image.nbad = w[bad].n * 512;
			add_all(f, w, 5, 1);
			collect_all(f, w, 5, bad);
			assert_int_equal(f->image.nlog, 6);
			assert_int_equal(f->image.log[0].len, (at - 100) * 512);
			teardown(f);
		}
}

/* on-error=stop: the one that fails is kept. */
static void test_merge_stop(void **state)
{
	static const struct wanted w[] = { { OUT, 0, 8 }, { OUT, 8, 8 }, { OUT, 16, 8 } };
	struct fixture *f = setup_with(false, true, true);

	fakedev_start(&f->drv, ALL, 0);
	f->image.bad = 10 * 512ull;
	f->image.nbad = 1;
	add_all(f, w, LEN(w), 1);
	fakedev_turn(&f->drv);
	assert_int_equal(f->failed, 1);
	assert_int_equal(f->image.mem[16 * 512], new_byte(2));
	fakedev_pause(&f->drv);
	f->image.nbad = 0;
	virtio_resume(f->d);
	collect_all(f, w, LEN(w), -1);
	assert_int_equal(f->failed, 1);
	teardown(f);
}

/* A pause between two batches of a run: what was taken is done before it is at rest. */
static void test_merge_pause(void **state)
{
	struct fixture *f = setup();
	struct fake_used u;

	fakedev_start(&f->drv, features(FAKE_INDIRECT) | ALL, 0);
	for (unsigned i = 0; i < BATCH + 1; i++) {
		struct fake_seg seg[20];
		unsigned k = pieces(f, f->p + i * 1024, OUT, i, 512, false, 1, seg);

		assert_true(fakeq_add(&f->drv.q[0], seg, k, i) >= 0);
	}
	fakeq_expose(&f->drv.q[0]);
	f->d->class->kick(f->d, 0); /* and nothing else of this turn */
	assert_int_equal(f->image.nlog, 0);
	assert_int_equal(virtio_pause(f->d, 0), -EBUSY);
	check_log(f, (const struct wanted[]){ { OUT, 0, BATCH } }, 1);
	fakedev_turn(&f->drv);
	fakedev_pause(&f->drv);
	assert_int_equal(f->image.nlog, 1);
	virtio_resume(f->d);
	for (unsigned i = 0; i < BATCH + 1; i++)
		assert_true(fakedev_get(&f->drv, 0, &u) && f->p[u.token * 1024 + 16 + 512] == VIRTIO_BLK_S_OK);
	teardown(f);
}

/* More runs than can be made one; a reset waits for them. */
static void test_merge_in_flight(void **state)
{
	struct fixture *f = setup();
	struct wanted w[MAX_REQS];

	fakedev_start(&f->drv, features(FAKE_INDIRECT) | ALL, 0);
	for (unsigned i = 0; i < MAX_REQS; i++)
		w[i] = (struct wanted){ OUT, i / 2 * 8ull + i % 2, 1 };
	f->image.hold = true;
	add_all(f, w, MAX_REQS, 1);
	assert_int_equal(f->image.nheld, MAX_REQS / 2);
	for (unsigned i = 0; i < MAX_REQS; i++) {
		struct fake_seg seg[20];
		unsigned k = pieces(f, slot_of(f, i) + 1024, OUT, 1024 + w[i].sector, 512, false, 1, seg);

		assert_true(fakeq_add(&f->drv.q[0], seg, k, i) >= 0);
	}
	fakedev_publish(&f->drv, 0);
	assert_int_equal(f->image.nlog, 16 + 2 * (MAX_REQS - 16)); /* 16 can be on their way */
	virtio_reg_set_status(f->d, 0);
	for (unsigned i = 0; i < 10; i++)
		fakedev_turn(&f->drv);
	assert_int_not_equal(virtio_reg_status(f->d), 0);
	fakeblk_release(&f->image);
	assert_true(fakedev_reset(&f->drv));
	for (unsigned i = 0; i < MAX_REQS; i++)
		assert_int_equal(slot_of(f, i)[16 + 512], VIRTIO_BLK_S_OK);
	f->image.hold = false;
	fakedev_start(&f->drv, features(FAKE_INDIRECT) | ALL, 0);
	add_all(f, w, MAX_REQS, 1);
	collect_all(f, w, MAX_REQS, -1);
	assert_int_equal(f->image.nlog, MAX_REQS / 2);
	teardown(f);
}

/* A reset waits for what the image still has; the driver sees it unfinished until then. */
static void test_reset_in_flight(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();
		struct fake_used u;
		unsigned n;

		fakedev_start(&f->drv, features(mode) | ALL, 0);
		f->image.hold = true;
		n = fill_queue(f, 0);
		fakedev_publish(&f->drv, 0);
		assert_int_equal(f->image.nheld, n);
		virtio_reg_set_status(f->d, 0);
		for (unsigned i = 0; i < 10; i++)
			fakedev_turn(&f->drv);
		assert_int_not_equal(virtio_reg_status(f->d), 0);
		fakeblk_release(&f->image);
		assert_true(fakedev_reset(&f->drv));
		f->image.hold = false;
		fakedev_start(&f->drv, features(mode) | ALL, 0);
		assert_int_equal(request(f, VIRTIO_BLK_T_IN, 0, 512, true, 1), 0);

		/* One queue; the other is not disturbed. */
		fakedev_start(&f->drv, features(mode) | ALL | 1ull << 40, 0);
		f->image.hold = true;
		n = fill_queue(f, 1);
		fakedev_publish(&f->drv, 1);
		virtio_reg_set_queue(f->d, 1, VQ_RESET, 0, 16, 1);
		fakedev_turn(&f->drv);
		assert_int_equal(virtio_reg_queue(f->d, 1, VQ_RESET), 1);
		f->image.hold = false;
		assert_int_equal(request(f, VIRTIO_BLK_T_FLUSH, 0, 0, false, 0), 0);
		fakeblk_release(&f->image);
		assert_true(fakedev_queue_reset(&f->drv, 1));
		fakedev_queue(&f->drv, 1, 0);
		fakedev_turn(&f->drv);
		(void)fill_queue(f, 1);
		fakedev_publish(&f->drv, 1);
		assert_true(fakedev_get(&f->drv, 1, &u));
		teardown(f);
	}
}

/* on-error=stop: kept, tried again when the machine goes on, given back as failed by a reset. */
static void test_stop_on_error(void **state)
{
	struct fixture *f = setup_with(false, true, true);
	struct fake_used u;
	struct fake_seg seg[20];
	unsigned n;

	fakedev_start(&f->drv, ALL, 0);
	f->image.error = -ENOSPC;
	n = fill_queue(f, 0);
	fakedev_publish(&f->drv, 0);
	assert_int_equal(f->failed, n);
	assert_false(fakeq_has_used(&f->drv.q[0]));
	fakedev_pause(&f->drv);
	virtio_resume(f->d); /* still no space */
	fakedev_turn(&f->drv);
	assert_int_equal(f->failed, 2 * n);
	assert_false(fakeq_has_used(&f->drv.q[0]));
	fakedev_pause(&f->drv);
	f->image.error = 0;
	virtio_resume(f->d);
	for (unsigned i = 0; i < n; i++) {
		assert_true(fakedev_get(&f->drv, 0, &u));
		assert_int_equal(f->p[u.token * 1024 + 16 + 512], VIRTIO_BLK_S_OK);
		assert_int_equal(f->image.mem[u.token * APART * 512], (u.token + 1) & 0xff);
	}
	f->image.error = -EOPNOTSUPP; /* the driver's business */
	n = pieces(f, f->p, VIRTIO_BLK_T_OUT, 0, 512, false, 1, seg);
	assert_true(fakeq_add(&f->drv.q[0], seg, n, 7) >= 0);
	fakedev_publish(&f->drv, 0);
	assert_true(fakedev_get(&f->drv, 0, &u));
	assert_int_equal(data_of(f->p)[512], VIRTIO_BLK_S_UNSUPP);
	f->image.error = -EIO;
	(void)fill_queue(f, 0);
	fakedev_publish(&f->drv, 0);
	assert_true(fakedev_reset(&f->drv));
	assert_int_equal(f->p[16 + 512], VIRTIO_BLK_S_IOERR);
	teardown(f);
}

/* A pause waits for what the image still has; how long, is the caller's. */
static void test_pause_in_flight(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();
		struct fake_used u;
		unsigned n;

		fakedev_start(&f->drv, features(mode) | ALL, 0);
		f->image.hold = true;
		n = fill_queue(f, 0);
		fakedev_publish(&f->drv, 0);
		for (unsigned i = 0; i < 3; i++) {
			assert_int_equal(virtio_pause(f->d, 0), -EBUSY); /* the image's loop is ours */
			virtio_resume(f->d);
		}
		assert_int_equal(virtio_pause(f->d, 0), -EBUSY);
		f->image.hold = false;
		fakeblk_release(&f->image);
		fakedev_turn(&f->drv);
		fakedev_pause(&f->drv);
		for (unsigned i = 0; i < n; i++)
			assert_true(fakedev_get(&f->drv, 0, &u));
		(void)fill_queue(f, 0);
		fakeq_expose(&f->drv.q[0]);
		fakedev_kick(&f->drv, 0);
		assert_false(fakeq_has_used(&f->drv.q[0]));
		virtio_resume(f->d);
		for (unsigned i = 0; i < n; i++)
			assert_true(fakedev_get(&f->drv, 0, &u));
		/* A reset, while a pause is waited for. */
		f->image.hold = true;
		(void)fill_queue(f, 1);
		fakedev_publish(&f->drv, 1);
		assert_int_equal(virtio_pause(f->d, 0), -EBUSY);
		virtio_reg_set_status(f->d, 0);
		fakedev_turn(&f->drv);
		fakeblk_release(&f->image);
		assert_true(fakedev_reset(&f->drv));
		virtio_resume(f->d);
		teardown(f);
	}
}

static void check_broken(struct fixture *f, const char *name, unsigned irqs)
{
	if (!(virtio_reg_status(f->d) & NEEDS_RESET) || f->drv.config_irqs != irqs + 1)
		fail_msg("%s: the driver is not told", name);
	for (unsigned i = 0; i < 3; i++)
		fakedev_kick(&f->drv, 0);
	assert_int_equal(f->drv.config_irqs, irqs + 1);
}

/* Broken with requests in flight, too. */
static void test_hostile(void **state)
{
	struct fixture *f = setup();
	unsigned n = 0;

	for (unsigned mode = 0; mode < MODES; mode++)
		for (unsigned i = 0; i < fake_hostile_count; i++) {
			unsigned irqs = f->drv.config_irqs;

			fakedev_start(&f->drv, features(mode) | ALL, FAKE_HOSTILE_SIZE);
			if (!fake_hostile_fits(&fake_hostile[i], &f->drv.q[0]))
				continue;
			f->image.hold = true;
			(void)fill_queue(f, 1);
			fakedev_publish(&f->drv, 1);
			fake_hostile[i].corrupt(&f->drv.q[0]);
			fakedev_kick(&f->drv, 0);
			check_broken(f, fake_hostile[i].name, irqs);
			fakeblk_release(&f->image);
			f->image.hold = false;
			fakedev_start(&f->drv, features(mode ^ (i & 1)) | ALL, 0);
			assert_int_equal(request(f, VIRTIO_BLK_T_IN, 0, 512, true, 3), 0);
			n++;
		}
	print_message("%u hostile drivers\n", n);
	teardown(f);
}

/* Real files and threads. */

struct threads {
	struct fakemem mem;
	char path[BLKFIX_PATH];
	struct blk *image;
	struct loop_thread *thread[2];
	struct vblk *v;
	struct fakedev drv;
	uint8_t *p;
	uint64_t buf;
};

#define NQUEUES 4
#define DEPTH   16
#define ROUNDS  200
#define SHARE   (SIZE / NQUEUES / 512) /* sectors of each queue */

static void threads_setup(struct threads *t, const struct blk_options *opt)
{
	struct vblk_config cfg = { .name = "disk0", .nqueues = NQUEUES, .nloops = 2, .block = 512 };
	struct loop *loops[2];
	struct err err;

	fakemem_init(&t->mem, BANK, 1);
	t->buf = fakemem_alloc(&t->mem, 8 << 20, 4096);
	t->p = fakemem_ptr(&t->mem, t->buf, 8 << 20);
	blkfix_make(t->path, SIZE, 0);
	t->image = blkfix_open(t->path, opt);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(loop_thread_new("io", &t->thread[i], &err), 0);
		loops[i] = loop_thread_loop(t->thread[i]);
	}
	cfg.image = t->image;
	cfg.loops = loops;
	assert_int_equal(vblk_new(&cfg, &t->mem.gmem, &t->v, &err), 0);
	fakedev_init(&t->drv, vblk_dev(t->v), &t->mem, NULL);
}

static void threads_teardown(struct threads *t)
{
	fakedev_exit(&t->drv);
	vblk_free(t->v);
	for (unsigned i = 0; i < 2; i++)
		loop_thread_free(t->thread[i]);
	blk_close(t->image);
	blkfix_rm(t->path);
	fakemem_free(&t->mem);
}

struct driver {
	struct threads *t;
	unsigned q;
	pthread_t thread;
	uint8_t model[SIZE / NQUEUES];
};

/* Requests of one sector each, at sectors that differ. */
static void batch(struct driver *d, unsigned round, unsigned type)
{
	struct threads *t = d->t;
	uint64_t base = d->q * DEPTH * 1024;

	for (unsigned i = 0; i < DEPTH; i++) {
		uint64_t at = base + i * 1024, sector = (round * 7 + i * 13) % SHARE;
		struct virtio_blk_outhdr h = { .type = type, .sector = d->q * SHARE + sector };
		const struct fake_seg seg[] = { { t->buf + at, 16, false },
			                        { t->buf + at + 16, 512, type == VIRTIO_BLK_T_IN },
			                        { t->buf + at + 16 + 512, 1, true } };

		memcpy(t->p + at, &h, sizeof(h));
		t->p[at + 16 + 512] = NO_STATUS;
		if (type == VIRTIO_BLK_T_OUT) {
			memset(t->p + at + 16, (int)(round + i), 512);
			memset(d->model + sector * 512, (int)(round + i), 512);
		}
		if (fakeq_add(&t->drv.q[d->q], seg, 3, i) < 0)
			abort();
	}
}

static void collect(struct driver *d, unsigned round, bool in)
{
	struct threads *t = d->t;
	struct fake_used u;

	fakedev_publish(&t->drv, d->q);
	for (unsigned i = 0; i < DEPTH; i++) {
		uint8_t *at;

		if (!fakedev_get(&t->drv, d->q, &u))
			abort();
		at = t->p + d->q * DEPTH * 1024 + u.token * 1024;
		if (at[16 + 512] != VIRTIO_BLK_S_OK)
			abort();
		if (in && memcmp(at + 16, d->model + (round * 7 + u.token * 13) % SHARE * 512, 512))
			abort();
	}
}

static void flush_once(struct driver *d)
{
	struct virtio_blk_outhdr h = { .type = VIRTIO_BLK_T_FLUSH };
	uint64_t at = d->q * DEPTH * 1024;
	const struct fake_seg seg[] = { { d->t->buf + at, 16, false }, { d->t->buf + at + 16, 1, true } };
	struct fake_used u;

	memcpy(d->t->p + at, &h, sizeof(h));
	if (fakeq_add(&d->t->drv.q[d->q], seg, 2, 0) < 0)
		abort();
	fakedev_publish(&d->t->drv, d->q);
	if (!fakedev_get(&d->t->drv, d->q, &u) || d->t->p[at + 16] != VIRTIO_BLK_S_OK)
		abort();
}

static void *drive(void *arg)
{
	struct driver *d = arg;

	for (unsigned round = 0; round < ROUNDS; round++) {
		batch(d, round, VIRTIO_BLK_T_OUT);
		collect(d, round, false);
		if (round % 20 == 0)
			flush_once(d);
		batch(d, round, VIRTIO_BLK_T_IN);
		collect(d, round, true);
	}
	return NULL;
}

/* Pauses while the drivers run: what the device writes into, it leaves alone meanwhile. */
static void pause_often(struct threads *t)
{
	struct virtio_dev *d = vblk_dev(t->v);

	for (unsigned n = 0; n < 100; n++) {
		uint64_t irqs[NQUEUES];

		fakedev_pause(&t->drv);
		for (unsigned i = 0; i < NQUEUES; i++) {
			assert_false(d->queue[i].ring && virtq_inflight(d->queue[i].ring));
			irqs[i] = t->drv.queue_irqs[i];
		}
		for (unsigned i = 0; i < 50; i++)
			sched_yield();
		for (unsigned i = 0; i < NQUEUES; i++)
			assert_int_equal(t->drv.queue_irqs[i], irqs[i]);
		virtio_resume(d);
		for (unsigned i = 0; i < 20; i++)
			sched_yield();
	}
}

/* What the drivers wrote is in the file. */
static void check_file(const struct threads *t, const struct driver *d)
{
	static uint8_t file[SIZE];

	blkfix_pread(t->path, file, SIZE, 0);
	for (unsigned i = 0; i < NQUEUES; i++)
		assert_memory_equal(file + i * SIZE / NQUEUES, d[i].model, SIZE / NQUEUES);
}

static void run_queues(const struct blk_options *opt)
{
	static struct driver d[NQUEUES];
	struct threads t;

	threads_setup(&t, opt);
	fakedev_start(&t.drv, features(FAKE_EVENT_IDX) | (vblk_dev(t.v)->offered & ALL) | F(MQ), 64);
	for (unsigned i = 0; i < NQUEUES; i++) {
		d[i] = (struct driver){ .t = &t, .q = i };
		assert_int_equal(pthread_create(&d[i].thread, NULL, drive, &d[i]), 0);
	}
	pause_often(&t);
	for (unsigned i = 0; i < NQUEUES; i++)
		assert_int_equal(pthread_join(d[i].thread, NULL), 0);
	check_file(&t, d);
	threads_teardown(&t);
}

static void test_queues(void **state)
{
	run_queues(&(struct blk_options){ .format = BLK_RAW });
	run_queues(&(struct blk_options){ .cache = BLK_WRITETHROUGH });
	run_queues(&(struct blk_options){ .format = BLK_RAW, .cache = BLK_DIRECT });
}

static void test_queues_without_ring(void **state)
{
	assert_int_equal(setenv("KVM_NO_URING", "1", 1), 0);
	run_queues(&(struct blk_options){ .format = BLK_RAW });
	run_queues(&(struct blk_options){ .format = BLK_RAW, .cache = BLK_DIRECT });
	assert_int_equal(unsetenv("KVM_NO_URING"), 0);
}

/* All that a ring can have is on its way, and the driver makes one more available: that is its end, not the loop's. */
static void test_one_too_many(void **state)
{
	for (unsigned mode = FAKE_INDIRECT; mode < MODES; mode++) { /* a ring of chains, not of their pieces */
		struct fixture *f = setup();
		struct fake_seg seg[20];
		unsigned k, n = 0;

		fakedev_start(&f->drv, features(mode) | ALL, 256);
		f->image.hold = true;
		k = pieces(f, f->p, VIRTIO_BLK_T_FLUSH, 0, 0, false, 1, seg);
		while (fakeq_add(&f->drv.q[0], seg, k, n) >= 0)
			n++;
		fakedev_publish(&f->drv, 0);
		assert_int_equal(n, 256);
		assert_int_equal(f->image.nheld, 256);
		fake_one_too_many(&f->drv.q[0]);
		fakedev_kick(&f->drv, 0);
		assert_true(virtio_reg_status(f->d) & NEEDS_RESET);
		f->image.hold = false;
		fakeblk_release(&f->image);
		teardown(f);
	}
}

/* Reset with requests on their way, again and again; then it works. */
static void test_reset_storm(void **state)
{
	static struct driver d;
	struct threads t;

	threads_setup(&t, &(struct blk_options){ .format = BLK_RAW, .cache = BLK_DIRECT });
	for (unsigned i = 0; i < 100; i++) {
		fakedev_start(&t.drv, features(i % MODES) | ALL | F(MQ), 64);
		for (unsigned q = 0; q < NQUEUES; q++) {
			d = (struct driver){ .t = &t, .q = q };
			batch(&d, i, VIRTIO_BLK_T_OUT);
			fakedev_publish(&t.drv, q);
		}
		assert_true(fakedev_reset(&t.drv));
	}
	fakedev_start(&t.drv, ALL, 64);
	d = (struct driver){ .t = &t, .q = 0 };
	for (unsigned round = 0; round < 10; round++) {
		batch(&d, round, VIRTIO_BLK_T_OUT);
		collect(&d, round, false);
	}
	threads_teardown(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_config),
		cmocka_unit_test(test_topology),
		cmocka_unit_test(test_resize),
		cmocka_unit_test(test_read_write),
		cmocka_unit_test(test_framing),
		cmocka_unit_test(test_id),
		cmocka_unit_test(test_write_cache),
		cmocka_unit_test(test_ranges),
		cmocka_unit_test(test_bad_requests),
		cmocka_unit_test(test_bad_framing),
		cmocka_unit_test(test_read_only),
		cmocka_unit_test(test_errors),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_reset_in_flight),
		cmocka_unit_test(test_stop_on_error),
		cmocka_unit_test(test_pause_in_flight),
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_queues),
		cmocka_unit_test(test_queues_without_ring),
		cmocka_unit_test(test_one_too_many),
		cmocka_unit_test(test_reset_storm),
		cmocka_unit_test(test_merge),
		cmocka_unit_test(test_merge_limits),
		cmocka_unit_test(test_merge_errors),
		cmocka_unit_test(test_merge_stop),
		cmocka_unit_test(test_merge_pause),
		cmocka_unit_test(test_merge_in_flight),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
