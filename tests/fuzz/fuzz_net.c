// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * libFuzzer target: the bytes are a hostile driver of virtio-net, headers and
 * commands among them, and what happens on the network meanwhile: frames that
 * arrive, room that is made or not, a cable that is pulled. Afterwards a good
 * driver can send and receive.
 */
#include "device.h"
#include "fakenic.h"
#include "virtio/net.h"

#include <linux/virtio_net.h>
#include <string.h>

#define PAIRS 2
#define DATA  0x10000u /* guest address */

static struct fakenic nic;

static void arrive(struct fuzz *f, unsigned pair, unsigned len)
{
	static uint8_t frame[70000];
	uint64_t hdr[2] = { fuzz_take(f, 4), 0 }, to = fuzz_take(f, 1) & 3;

	memset(frame, to == 3 ? 0xff : (uint8_t)to, 6);
	if (fakenic_waiting(&nic, pair) < 100)
		fakenic_arrive(&nic, pair, hdr, frame, len);
}

/* A frame or a command, good but for what the input says. */
static void offer(struct fuzz *f, unsigned arg)
{
	unsigned q = arg & 1 ? 2 : 1 + 2 * (arg >> 1 & 1), len = (unsigned)fuzz_take(f, 2);
	uint64_t word[2] = { fuzz_take(f, 6), fuzz_take(f, 4) };
	struct fake_seg seg[2] = { { DATA, 1 + (len & 0x7fff), false }, { DATA + 0x10000, 1, true } };

	memcpy(fakemem_ptr(f->mem, DATA, 16), word, 16);
	if (!virtio_reg_queue(f->d, q, VQ_ENABLE) || !f->drv.q[q].mem)
		return;
	if (fakeq_add(&f->drv.q[q], seg, q == 2 ? 2 : 1, 0) >= 0)
		fakeq_expose(&f->drv.q[q]);
	fakedev_kick(&f->drv, q);
}

static void special(struct fuzz *f, unsigned arg)
{
	switch (arg & 3) {
	case 0: arrive(f, arg >> 3, (unsigned)fuzz_take(f, 2)); break;
	case 1:
		nic.room = (unsigned)fuzz_take(f, 1) & 7;
		fakenic_give(&nic, 0);
		break;
	case 2: offer(f, arg >> 2); break;
	default:
		fakenic_link(&nic, arg & 4);
		nic.refuse = arg & 8 ? -22 : 0;
		nic.fail_set = nic.refuse;
		while (nic.pair[0].nout > 500 || nic.pair[1].nout > 500)
			fakenic_forget(&nic);
	}
}

/* A frame each way. */
static void talk(struct fuzz *f)
{
	struct fake_seg out = { DATA, 72, false }, in = { DATA + 4096, 2048, true };
	struct fake_used u;
	uint8_t frame[60] = { 0 };

	fakenic_forget(&nic);
	nic.refuse = nic.fail_set = 0;
	nic.room = UINT32_MAX;
	fakedev_start(&f->drv, 0, 0);
	memset(fakemem_ptr(f->mem, DATA, 72), 0, 72);
	CHECK(fakeq_add(&f->drv.q[1], &out, 1, 0) >= 0 && fakeq_add(&f->drv.q[0], &in, 1, 0) >= 0);
	fakedev_publish(&f->drv, 1);
	fakedev_publish(&f->drv, 0);
	CHECK(fakedev_get(&f->drv, 1, &u) && nic.pair[0].nout == 1 && nic.pair[0].out[0].len == 72);
	fakenic_arrive(&nic, 0, NULL, frame, sizeof(frame));
	CHECK(fakedev_get(&f->drv, 0, &u) && u.len == 72);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz f = { .data = data, .left = size, .mem = fuzz_memory(), .special = special };
	struct vnet_config cfg = { .name = "net0", .nic = &nic.nic, .mac = { 2 }, .mtu = 1500 };
	struct vnet *v;
	struct err err;

	fakenic_init(&nic, PAIRS, NIC_CSUM | NIC_TSO4 | NIC_TSO6 | NIC_ECN);
	CHECK(!loop_new(&f.loop, &err) && !vnet_new(&cfg, &f.mem->gmem, f.loop, &v, &err));
	f.d = vnet_dev(v);
	fuzz_device(&f);
	talk(&f);
	fakedev_exit(&f.drv);
	vnet_free(v);
	fakenic_exit(&nic);
	loop_free(f.loop);
	return 0;
}
