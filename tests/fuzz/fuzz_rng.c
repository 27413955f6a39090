// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * libFuzzer target: the bytes are a hostile driver of virtio-rng: its rings,
 * registers and kicks in any order. Afterwards a good driver gets random bytes.
 */
#include "device.h"
#include "virtio/rng.h"

static void ask(struct fuzz *f)
{
	struct fake_seg seg = { 0x100, 32, true };
	struct fake_used u;

	CHECK(fakeq_add(&f->drv.q[0], &seg, 1, 0) >= 0);
	fakedev_publish(&f->drv, 0);
	CHECK(fakedev_get(&f->drv, 0, &u) && u.len == 32);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz f = { .data = data, .left = size, .mem = fuzz_memory() };
	struct rng *rng;
	struct err err;

	CHECK(!loop_new(&f.loop, &err) && !rng_new(&f.mem->gmem, f.loop, &rng, &err));
	f.d = rng_dev(rng);
	fuzz_device(&f);
	ask(&f);
	fakedev_exit(&f.drv);
	rng_free(rng);
	loop_free(f.loop);
	return 0;
}
