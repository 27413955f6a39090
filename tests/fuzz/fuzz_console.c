// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * libFuzzer target: the bytes are a hostile driver of virtio-console and what
 * happens to the consoles behind it meanwhile: keys, readers, a resize, time.
 * Afterwards a good driver can write and read.
 */
#include "device.h"
#include "fakecon.h"
#include "virtio/console.h"

#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PORTS 2

static uint64_t skipped_s; /* the loop's clock runs ahead of the fuzzer's */
static struct fakecon con[PORTS];
static struct vconsole *vconsole;

int clock_gettime(clockid_t id, struct timespec *ts)
{
	int r = (int)syscall(SYS_clock_gettime, id, ts);

	if (id == CLOCK_MONOTONIC)
		ts->tv_sec += (time_t)skipped_s;
	return r;
}

static void special(struct fuzz *f, unsigned arg)
{
	static const uint8_t keys[8192];
	struct fakecon *c = &con[arg & 1];
	unsigned n = (unsigned)fuzz_take(f, 1);

	switch (arg >> 1 & 3) {
	case 0: fakecon_give(c, n << (n & 7)); break;
	case 1:
		if (!c->nin)
			fakecon_type(c, keys, n << (n & 4));
		break;
	case 2: vconsole_resize(vconsole, (uint16_t)n, (uint16_t)arg); break;
	default: skipped_s++; break;
	}
}

/* "ok" in both directions. */
static void talk(struct fuzz *f, struct fakecon *c)
{
	struct fake_seg out = { 0x100, 2, false }, in = { 0x200, 100, true };
	struct fake_used u;

	c->nin = 0;
	c->nout = 0;
	fakecon_give(c, 4096);
	fakedev_turn(&f->drv);
	memcpy(fakemem_ptr(f->mem, 0x100, 2), "ok", 2);
	CHECK(fakeq_add(&f->drv.q[1], &out, 1, 0) >= 0 && fakeq_add(&f->drv.q[0], &in, 1, 0) >= 0);
	fakedev_publish(&f->drv, 1);
	fakedev_publish(&f->drv, 0);
	CHECK(fakedev_get(&f->drv, 1, &u) && c->nout == 2 && !memcmp(c->out, "ok", 2));
	fakecon_type(c, (const uint8_t *)"ok", 2);
	CHECK(fakedev_get(&f->drv, 0, &u) && u.len == 2 && !memcmp(fakemem_ptr(f->mem, 0x200, 2), "ok", 2));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz f = { .data = data, .left = size, .mem = fuzz_memory(), .special = special };
	struct vconsole_port ports[PORTS] = { { NULL, true, &con[0].con }, { "port", false, &con[1].con } };
	struct err err;

	CHECK(!loop_new(&f.loop, &err));
	for (unsigned i = 0; i < PORTS; i++)
		fakecon_init(&con[i], f.loop);
	CHECK(!vconsole_new(ports, PORTS, &f.mem->gmem, f.loop, &vconsole, &err));
	f.d = vconsole_dev(vconsole);
	fuzz_device(&f);
	talk(&f, &con[0]);
	fakedev_exit(&f.drv);
	vconsole_free(vconsole);
	for (unsigned i = 0; i < PORTS; i++)
		fakecon_exit(&con[i]);
	loop_free(f.loop);
	return 0;
}
