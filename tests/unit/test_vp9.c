// SPDX-License-Identifier: GPL-2.0-or-later
/* The 9P device: messages there and back, and one that is with a worker when the device is reset. */
#include "fakedrv_dev.h"
#include "p9client.h"
#include "virtio/p9.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define ROOM 4096

struct fixture {
	struct fakemem mem;
	struct loop *loop;
	struct vp9 *v;
	struct fakedev drv;
	uint64_t gpa; /* of the message, and ROOM bytes behind it of the reply */
	uint8_t *p;
};

static void setup(struct fixture *f)
{
	struct p9_export ex = { .dir = "/" };
	struct err err;

	fakemem_init(&f->mem, 8 << 20, 1);
	f->gpa = fakemem_alloc(&f->mem, P9C_MAX + ROOM, 4096);
	f->p = fakemem_ptr(&f->mem, f->gpa, P9C_MAX + ROOM);
	assert_int_equal(loop_new(&f->loop, &err), 0);
	assert_int_equal(vp9_new(&ex, "tag", &f->mem.gmem, f->loop, &f->v, &err), 0);
	fakedev_init(&f->drv, vp9_dev(f->v), &f->mem, f->loop);
	fakedev_start(&f->drv, 0, 0);
}

static void offer(struct fixture *f, size_t n)
{
	struct fake_seg seg[2] = { { f->gpa, (uint32_t)n, false }, { f->gpa + P9C_MAX, ROOM, true } };

	assert_true(fakeq_add(&f->drv.q[0], seg, 2, 1) >= 0);
	fakeq_expose(&f->drv.q[0]);
}

/* The @n bytes of the message are answered, by this type. */
static void ask(struct fixture *f, size_t n, uint8_t type)
{
	struct fake_used u;

	offer(f, n);
	fakedev_kick(&f->drv, 0);
	assert_true(fakedev_get(&f->drv, 0, &u) && u.len > 4);
	assert_int_equal(f->p[P9C_MAX + 4], type);
}

/* File 1 is the directory, opened. */
static void open_root(struct fixture *f)
{
	ask(f, p9c_build(f->p, P9_TVERSION, P9_NOTAG, "us", ROOM, "9P2000.L"), P9_TVERSION + 1);
	ask(f, p9c_build(f->p, P9_TATTACH, 1, "uussu", 0u, ~0u, "u", "", 0u), P9_TATTACH + 1);
	ask(f, p9c_build(f->p, P9_TWALK, 1, "uuh", 0u, 1u, 0), P9_TWALK + 1);
	ask(f, p9c_build(f->p, P9_TLOPEN, 1, "uu", 1u, 0u), P9_TLOPEN + 1);
}

/* A worker's message, and a reset in the same turn of the loop, behind it. */
static void give_and_reset(struct fixture *f)
{
	offer(f, p9c_build(f->p, P9_TFSYNC, 1, "uu", 1u, 0u));
	virtio_again(f->drv.d, 0);
	virtio_reg_set_status(f->drv.d, 0);
}

static void test_reset(void **state)
{
	struct fixture f;

	setup(&f);
	for (unsigned i = 0; i < 50; i++) {
		open_root(&f);
		give_and_reset(&f);
		while (virtio_reg_status(f.drv.d))
			fakedev_turn(&f.drv);
		fakedev_start(&f.drv, 0, 0);
	}
	fakedev_exit(&f.drv);
	vp9_free(f.v);
	loop_free(f.loop);
	fakemem_free(&f.mem);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_reset) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
