// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * libFuzzer target: the bytes are a hostile driver of virtio-blk and an image
 * that fails, is slow, or changes its size meanwhile. The image aborts if it is
 * asked for anything outside itself. Afterwards a good driver writes and reads.
 */
#include "device.h"
#include "fakeblk.h"
#include "virtio/blk.h"

#include <errno.h>
#include <linux/virtio_blk.h>
#include <string.h>

#define SIZE (64u << 10)
#define AT   0x20000u /* where requests are made */

static struct fakeblk image;
static unsigned failed;

static void on_failed(void *arg, int error)
{
	failed++;
}

/* A request that may well be a good one; its parts are where the input says. */
static void request(struct fuzz *f, unsigned q, uint32_t type, uint64_t sector, unsigned shape)
{
	struct virtio_blk_outhdr h = { .type = type, .sector = sector };
	uint32_t len = (shape & 7) * 256, at = AT + (shape >> 3) * 0x1000;
	bool in = type == VIRTIO_BLK_T_IN || type == VIRTIO_BLK_T_GET_ID;
	struct fake_seg seg[] = { { at, 16, false },
		                  { at + 16, len / 2, in },
		                  { at + 16 + len / 2, len / 2, in },
		                  { at + 16 + len, 1, true } };
	unsigned n = len ? 4 : 2;

	memcpy(fakemem_ptr(f->mem, at, 16), &h, 16);
	if (!len)
		seg[1] = seg[3];
	if (virtio_reg_queue(f->d, q, VQ_ENABLE) && fakeq_add(&f->drv.q[q], seg, n, 0) >= 0)
		fakeq_expose(&f->drv.q[q]);
}

static void special(struct fuzz *f, unsigned arg)
{
	static const int errors[] = { 0, -EIO, -ENOSPC, -EOPNOTSUPP };
	unsigned n = (unsigned)fuzz_take(f, 1);

	switch (arg & 3) {
	case 0: image.error = errors[n & 3]; break;
	case 1: image.late = n & 1; break;
	case 2:
		if (!image.nheld) /* no image shrinks under a request */
			blk_resized(&image.blk, n * SIZE / 255 / 512 * 512);
		break;
	default:
		request(f, n & 1, (uint32_t)fuzz_take(f, 1), fuzz_take(f, 1 + (n & 4)), (uint32_t)fuzz_take(f, 1) & 63);
	}
	if (arg & 4)
		fakedev_kick(&f->drv, n & 1);
}

/* What a good driver writes it reads again. */
static void good(struct fuzz *f)
{
	uint8_t *p = fakemem_ptr(f->mem, AT, 1024);
	struct fake_used u;

	image.error = 0;
	blk_resized(&image.blk, SIZE);
	for (unsigned i = 0; i < 2; i++) {
		request(f, 0, i ? VIRTIO_BLK_T_IN : VIRTIO_BLK_T_OUT, 5, 2);
		memset(p + 16, i ? 0 : 'g', 512);
		fakedev_kick(&f->drv, 0);
		CHECK(fakedev_get(&f->drv, 0, &u) && p[16 + 512] == VIRTIO_BLK_S_OK && p[16] == 'g' &&
		      p[16 + 511] == 'g');
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz f = { .data = data, .left = size, .mem = fuzz_memory(), .special = special };
	struct vblk_config cfg = { .name = "disk0", .serial = "fuzz", .nqueues = 2, .nloops = 1, .block = 512 };
	struct vblk *v;
	struct err err;

	CHECK(!loop_new(&f.loop, &err));
	fakeblk_init(&image, SIZE);
	cfg.image = &image.blk;
	cfg.loops = &f.loop;
	cfg.failed = size & 1 ? on_failed : NULL;
	CHECK(!vblk_new(&cfg, &f.mem->gmem, &v, &err));
	f.d = vblk_dev(v);
	fuzz_device(&f);
	good(&f);
	fakedev_exit(&f.drv);
	vblk_free(v);
	fakeblk_exit(&image);
	loop_free(f.loop);
	return 0;
}
