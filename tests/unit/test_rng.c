// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * virtio-rng under a good driver and under hostile ones: whatever was in the
 * ring, the device says so, and after a reset it works again.
 */
#include "fakedrv_dev.h"
#include "fakedrv_hostile.h"
#include "virtio/rng.h"

#include <linux/virtio_config.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BANK        (8ull << 20)
#define MODES       8
#define PIECES      16   /* the most that the device takes */
#define MOST        4096 /* bytes of an answer */
#define NEEDS_RESET VIRTIO_CONFIG_S_NEEDS_RESET

struct fixture {
	struct fakemem mem;
	struct loop *loop;
	struct rng *rng;
	struct virtio_dev *d;
	struct fakedev drv;
	uint64_t buf; /* 1 MiB */
	uint8_t *p;
};

static struct fixture *setup(void)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct err err;

	assert_non_null(f);
	fakemem_init(&f->mem, BANK, 1);
	f->buf = fakemem_alloc(&f->mem, 1 << 20, 4096);
	f->p = fakemem_ptr(&f->mem, f->buf, 1 << 20);
	assert_int_equal(loop_new(&f->loop, &err), 0);
	assert_int_equal(rng_new(&f->mem.gmem, f->loop, &f->rng, &err), 0);
	f->d = rng_dev(f->rng);
	fakedev_init(&f->drv, f->d, &f->mem, f->loop);
	return f;
}

static void teardown(struct fixture *f)
{
	fakedev_exit(&f->drv);
	rng_free(f->rng);
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

/* A request of @n bytes in @pieces; the bytes around it stay as they are. */
static void ask(struct fixture *f, unsigned n, unsigned pieces)
{
	unsigned want = n < MOST ? n : MOST, zeros = 0;
	struct fake_seg seg[PIECES];
	struct fake_used u;

	memset(f->p, 0, n + 2);
	for (unsigned i = 0, at = 0; i < pieces; i++) {
		unsigned len = i + 1 < pieces ? n / pieces : n - at;

		seg[i] = (struct fake_seg){ f->buf + 1 + at, len, true };
		at += len;
	}
	assert_true(fakeq_add(&f->drv.q[0], seg, pieces, n) >= 0);
	fakedev_publish(&f->drv, 0);
	assert_true(fakedev_get(&f->drv, 0, &u));
	assert_true(u.token == n && u.len == want);
	for (unsigned i = 1; i <= want; i++)
		zeros += !f->p[i];
	assert_true(want < 16 || zeros < want / 4);
	assert_int_equal(f->p[0], 0);
	assert_int_equal(f->p[want + 1], 0);
}

static void test_good(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();
		uint8_t first[64];

		fakedev_start(&f->drv, features(mode), 0);
		ask(f, 64, 1);
		memcpy(first, f->p + 1, 64);
		ask(f, 64, 1);
		assert_memory_not_equal(f->p + 1, first, 64);
		for (unsigned n = PIECES; n < 100000; n += n / 3)
			ask(f, n, 1 + n % PIECES);
		for (unsigned n = MOST - 2; n < MOST + 3; n++)
			ask(f, n, 2);
		teardown(f);
	}
}

/* Many at once: each is answered, with one interrupt at least and no more than there are. */
static void test_many(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();

		fakedev_start(&f->drv, features(mode), 0);
		for (unsigned round = 0; round < 50; round++) {
			unsigned n = 0, irqs = f->drv.queue_irqs[0];
			struct fake_used u;

			fakeq_arm(&f->drv.q[0], 0);
			while (fakeq_add(&f->drv.q[0], &(struct fake_seg){ f->buf + n * 64, 64, true }, 1, n) >= 0)
				n++;
			fakedev_publish(&f->drv, 0);
			assert_int_equal(n, 64);
			while (n--)
				assert_true(fakedev_get(&f->drv, 0, &u) && u.len == 64);
			assert_in_range(f->drv.queue_irqs[0] - irqs, 1, 64);
		}
		teardown(f);
	}
}

/* No room at all: an answer of no bytes. */
static void test_no_room(void **state)
{
	static const struct fake_seg none[] = { { 0x1000, 0, true }, { 0, 0, false } };
	static const struct fake_seg readable[] = { { 0x1000, 100, false } };

	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();
		struct fake_used u;

		fakedev_start(&f->drv, features(mode), 0);
		assert_true(fakeq_add(&f->drv.q[0], readable, 1, 0) >= 0);
		fakedev_publish(&f->drv, 0);
		assert_true(fakedev_get(&f->drv, 0, &u) && u.len == 0);
		f->drv.q[0].use_indirect = false;
		assert_true(fakeq_add(&f->drv.q[0], none, 1, 0) >= 0);
		fakedev_publish(&f->drv, 0);
		assert_true(fakedev_get(&f->drv, 0, &u) && u.len == 0);
		ask(f, 100, 1);
		assert_false(virtio_reg_status(f->d) & NEEDS_RESET);
		teardown(f);
	}
}

/* Gigabytes in one chain, all of it the same memory: the answer is as short as ever. */
static void test_huge(void **state)
{
	struct fixture *f = setup();
	struct fake_seg seg[PIECES];
	struct fake_used u;

	fakedev_start(&f->drv, 0, 0);
	for (unsigned i = 0; i < PIECES; i++)
		seg[i] = (struct fake_seg){ f->buf, 1 << 20, true };
	for (unsigned i = 0; i < 100; i++) {
		assert_true(fakeq_add(&f->drv.q[0], seg, PIECES, 0) >= 0);
		fakedev_publish(&f->drv, 0);
		assert_true(fakedev_get(&f->drv, 0, &u) && u.len == MOST);
	}
	teardown(f);
}

static void check_broken(struct fixture *f, const char *name, unsigned irqs)
{
	if (!(virtio_reg_status(f->d) & NEEDS_RESET) || f->drv.config_irqs != irqs + 1)
		fail_msg("%s: the driver is not told", name);
	for (unsigned i = 0; i < 3; i++)
		fakedev_kick(&f->drv, 0);
	assert_int_equal(f->drv.config_irqs, irqs + 1);
}

static void test_hostile(void **state)
{
	struct fixture *f = setup();
	unsigned n = 0;

	for (unsigned mode = 0; mode < MODES; mode++)
		for (unsigned i = 0; i < fake_hostile_count; i++) {
			unsigned irqs = f->drv.config_irqs;

			fakedev_start(&f->drv, features(mode), FAKE_HOSTILE_SIZE);
			if (!fake_hostile_fits(&fake_hostile[i], &f->drv.q[0]))
				continue;
			fake_hostile[i].corrupt(&f->drv.q[0]);
			fakedev_kick(&f->drv, 0);
			check_broken(f, fake_hostile[i].name, irqs);
			fakedev_start(&f->drv, features(mode ^ (i & 1)), 0);
			ask(f, 100, 3);
			n++;
		}
	print_message("%u hostile drivers\n", n);
	teardown(f);
}

static void test_too_many_pieces(void **state)
{
	struct fixture *f = setup();

	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fake_seg seg[PIECES + 1];
		unsigned irqs = f->drv.config_irqs;

		fakedev_start(&f->drv, features(mode), 0);
		for (unsigned i = 0; i <= PIECES; i++)
			seg[i] = (struct fake_seg){ f->buf, 1, true };
		assert_true(fakeq_add(&f->drv.q[0], seg, PIECES + 1, 0) >= 0);
		fakedev_publish(&f->drv, 0);
		check_broken(f, "17 pieces", irqs);
	}
	teardown(f);
}

/* Offered and kicked before DRIVER_OK: served after it. Offered, and reset: forgotten. */
static void test_early_and_reset(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();
		struct fake_seg seg = { f->buf, 64, true };
		struct fake_used u;

		assert_true(fakedev_negotiate(&f->drv, features(mode) | 1ull << VIRTIO_F_VERSION_1));
		fakedev_queue(&f->drv, 0, 16);
		assert_true(fakeq_add(&f->drv.q[0], &seg, 1, 0) >= 0);
		fakeq_expose(&f->drv.q[0]);
		fakedev_kick(&f->drv, 0);
		assert_false(fakeq_has_used(&f->drv.q[0]));
		virtio_reg_set_status(f->d, 0xf);
		assert_true(fakedev_get(&f->drv, 0, &u) && u.len == 64);
		for (unsigned round = 0; round < 20; round++) {
			fakedev_start(&f->drv, features(mode), 16);
			memset(f->p, 0, 64);
			for (unsigned i = 0; i < 16; i++)
				assert_true(fakeq_add(&f->drv.q[0], &seg, 1, 0) >= 0);
			fakeq_expose(&f->drv.q[0]);
			virtio_again(f->d, 0);
			assert_true(fakedev_reset(&f->drv));
			fakedev_start(&f->drv, features(mode), 16);
			ask(f, 64, 1);
		}
		teardown(f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_no_room),
		cmocka_unit_test(test_huge),
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_too_many_pieces),
		cmocka_unit_test(test_early_and_reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
