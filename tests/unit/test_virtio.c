// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The virtio core with an echo device: what a chain brings goes back in its
 * writable part. It answers at once, or later and asynchronously, on one loop
 * or on several. Registers are driven in every order; no reset, pause or
 * broken ring loses or repeats a chain.
 */
#include "fakedrv_dev.h"

#include <errno.h>
#include <linux/virtio_config.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#define LEN(a)        (sizeof(a) / sizeof(*(a)))
#define BANK          (16ull << 20)
#define QUEUES        3
#define QUEUE_SIZE    256
#define PIECES        4
#define SLOT          16u
#define CONFIG        12u
#define ECHO_FEATURES (1ull << 3 | 1ull << 23)
#define BIT(n)        (1ull << (n))

#define ACK           VIRTIO_CONFIG_S_ACKNOWLEDGE
#define DRIVER        VIRTIO_CONFIG_S_DRIVER
#define OK            VIRTIO_CONFIG_S_DRIVER_OK
#define FEATURES_OK   VIRTIO_CONFIG_S_FEATURES_OK
#define NEEDS_RESET   VIRTIO_CONFIG_S_NEEDS_RESET
#define FAILED        VIRTIO_CONFIG_S_FAILED
#define V1            BIT(VIRTIO_F_VERSION_1)
#define RING_RESET    BIT(40)

/* The device. */

enum how {
	AT_ONCE, /* virtio_serve() */
	HOLD,    /* until the test says so: release() */
	LATER,   /* in a later turn of the home loop */
};

struct echo_queue {
	struct echo *e;
	unsigned index;
	struct loop_task later;
	struct chain held[QUEUE_SIZE];
	struct iovec iov[QUEUE_SIZE][PIECES];
	unsigned nheld;
	bool stopping, pausing;
	atomic_uint served, starts, stops;
	atomic_bool inside; /* of on_later() */
};

struct echo {
	struct virtio_dev dev;
	_Atomic enum how how;
	struct echo_queue q[QUEUES];
	unsigned config_writes, config_off, config_size;
	uint64_t config_val;
};

static struct echo *of_dev(struct virtio_dev *d)
{
	return (struct echo *)((char *)d - offsetof(struct echo, dev));
}

static void answer(struct virtio_dev *d, unsigned q, struct chain *c)
{
	uint8_t buf[SLOT];
	size_t n = chain_get(c, buf, sizeof(buf));

	virtq_push(d->queue[q].ring, c, (uint32_t)chain_put(c, buf, n));
	atomic_fetch_add(&of_dev(d)->q[q].served, 1);
}

/* On the home loop: everything held goes back, and then the queue may stop. */
static void release(struct echo_queue *q)
{
	struct virtio_dev *d = &q->e->dev;

	while (q->nheld)
		answer(d, q->index, &q->held[--q->nheld]);
	virtio_flush(d, q->index);
	if (q->pausing) {
		q->pausing = false;
		virtio_queue_paused(d, q->index);
	}
	if (q->stopping) {
		q->stopping = false;
		virtio_queue_stopped(d, q->index);
	}
}

/* It takes its time to return, also after the queue has stopped. */
static void on_later(struct loop_task *t)
{
	struct echo_queue *q = (struct echo_queue *)((char *)t - offsetof(struct echo_queue, later));

	atomic_store(&q->inside, true);
	release(q);
	for (unsigned i = 0; i < 20; i++)
		sched_yield();
	atomic_store(&q->inside, false);
}

static void take_all(struct echo_queue *q)
{
	struct virtio_dev *d = &q->e->dev;

	do {
		if (!d->queue[q->index].ring || d->queue[q->index].broken)
			return;
		virtq_disarm(d->queue[q->index].ring);
		while (q->nheld < QUEUE_SIZE &&
		       virtio_pop(d, q->index, &q->held[q->nheld], q->iov[q->nheld], PIECES) == 1)
			q->nheld++;
	} while (q->nheld < QUEUE_SIZE && virtq_rearm(d->queue[q->index].ring));
}

static void echo_kick(struct virtio_dev *d, unsigned index)
{
	struct echo_queue *q = &of_dev(d)->q[index];
	struct iovec iov[PIECES];

	assert_true(loop_here(d->queue[index].home));
	q->pausing = false;
	if (q->e->how == AT_ONCE) {
		virtio_serve(d, index, iov, PIECES, answer);
		return;
	}
	take_all(q);
	if (q->e->how == LATER)
		loop_post(d->queue[index].home, &q->later);
}

static void echo_start(struct virtio_dev *d, unsigned index)
{
	assert_non_null(d->queue[index].ring);
	assert_int_equal(virtq_inflight(d->queue[index].ring), 0);
	atomic_fetch_add(&of_dev(d)->q[index].starts, 1);
}

static void echo_pause(struct virtio_dev *d, unsigned index)
{
	struct echo_queue *q = &of_dev(d)->q[index];

	assert_true(loop_here(d->queue[index].home));
	q->pausing = q->nheld;
	if (!q->pausing)
		virtio_queue_paused(d, index);
}

static void echo_stop(struct virtio_dev *d, unsigned index)
{
	struct echo_queue *q = &of_dev(d)->q[index];

	assert_true(loop_here(d->queue[index].home));
	atomic_fetch_add(&q->stops, 1);
	if (q->nheld)
		q->stopping = true;
	else
		virtio_queue_stopped(d, index);
}

static void echo_config(struct virtio_dev *d, unsigned off, unsigned size, uint64_t val)
{
	struct echo *e = of_dev(d);

	e->config_writes++;
	e->config_off = off;
	e->config_size = size;
	e->config_val = val;
}

static const struct virtio_class echo_class = {
	.name = "echo",
	.id = 42,
	.features = ECHO_FEATURES,
	.config_len = CONFIG,
	.queue_start = echo_start,
	.kick = echo_kick,
	.queue_pause = echo_pause,
	.queue_stop = echo_stop,
	.config_write = echo_config,
};

struct fixture {
	struct fakemem mem;
	struct loop *loop;
	struct echo e;
	struct virtio_dev *d;
	struct fakedev drv;
	uint64_t buf[QUEUES]; /* two SLOTs for each token */
	uint32_t sent[QUEUES], got[QUEUES];
};

static void make_device(struct fixture *f, unsigned nqueues)
{
	struct virtio_init init = { .class = &echo_class,
		                    .name = "echo",
		                    .mem = &f->mem.gmem,
		                    .nqueues = nqueues,
		                    .queue_size = QUEUE_SIZE,
		                    .loop = f->loop };
	struct err err;

	assert_int_equal(loop_new(&f->loop, &err), 0);
	init.loop = f->loop;
	assert_int_equal(virtio_dev_init(&f->e.dev, &init, &err), 0);
	for (unsigned i = 0; i < nqueues; i++) {
		f->e.q[i].e = &f->e;
		f->e.q[i].index = i;
		f->e.q[i].later.cb = on_later;
		f->buf[i] = fakemem_alloc(&f->mem, 2ull * SLOT * QUEUE_SIZE, SLOT);
	}
	f->d = &f->e.dev;
	fakedev_init(&f->drv, f->d, &f->mem, f->loop);
}

static struct fixture *setup(void)
{
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	fakemem_init(&f->mem, BANK, 1);
	make_device(f, QUEUES);
	return f;
}

static void teardown(struct fixture *f)
{
	fakedev_exit(&f->drv);
	virtio_dev_exit(f->d);
	loop_free(f->loop);
	fakemem_free(&f->mem);
	free(f);
}

/* The driver. */

static bool add_echo(struct fixture *f, unsigned q)
{
	uint32_t token = f->sent[q];
	uint64_t at = f->buf[q] + 2ull * SLOT * (token % QUEUE_SIZE);
	struct fake_seg seg[2] = { { at, sizeof(token), false }, { at + SLOT, SLOT, true } };

	if (token - f->got[q] >= QUEUE_SIZE || fakeq_add(&f->drv.q[q], seg, 2, token) < 0)
		return false;
	memcpy(fakemem_ptr(&f->mem, at, sizeof(token)), &token, sizeof(token));
	f->sent[q]++;
	return true;
}

static void check_echo(struct fixture *f, unsigned q, const struct fake_used *u)
{
	uint64_t at = f->buf[q] + 2ull * SLOT * (u->token % QUEUE_SIZE) + SLOT;
	uint32_t back;

	memcpy(&back, fakemem_ptr(&f->mem, at, sizeof(back)), sizeof(back));
	if (u->len != sizeof(back) || back != u->token)
		abort(); /* also on threads where cmocka cannot fail */
	f->got[q]++;
}

static void collect(struct fixture *f, unsigned q)
{
	struct fake_used u;

	while (fakeq_get(&f->drv.q[q], &u))
		check_echo(f, q, &u);
}

/* @n chains there and back. */
static void talk(struct fixture *f, unsigned q, unsigned n)
{
	struct fake_used u;

	while (n--) {
		assert_true(add_echo(f, q));
		fakedev_publish(&f->drv, q);
		assert_true(fakedev_get(&f->drv, q, &u));
		check_echo(f, q, &u);
	}
}

/* The rings of a reset device are gone with what was in them. */
static void forget(struct fixture *f, unsigned q)
{
	f->sent[q] = f->got[q] = 0;
}

static void reset(struct fixture *f)
{
	assert_true(fakedev_reset(&f->drv));
	for (unsigned i = 0; i < QUEUES; i++)
		forget(f, i);
}

static void start(struct fixture *f, uint64_t features)
{
	fakedev_start(&f->drv, features, 0);
	for (unsigned i = 0; i < QUEUES; i++)
		forget(f, i);
}

static void set_status(struct fixture *f, unsigned bits)
{
	virtio_reg_set_status(f->d, (uint8_t)bits);
}

static uint64_t reg(struct fixture *f, unsigned q, enum virtio_queue_reg r)
{
	return virtio_reg_queue(f->d, q, r);
}

static void set_reg(struct fixture *f, unsigned q, enum virtio_queue_reg r, uint64_t val)
{
	virtio_reg_set_queue(f->d, q, r, 0, r < VQ_DESC ? 16 : 64, val);
}

static void check_clear(struct fixture *f)
{
	assert_int_equal(virtio_reg_status(f->d), 0);
	assert_int_equal(virtio_reg_driver_features(f->d, 0), 0);
	assert_int_equal(virtio_reg_driver_features(f->d, 1), 0);
	for (unsigned q = 0; q < QUEUES; q++) {
		assert_int_equal(reg(f, q, VQ_SIZE), QUEUE_SIZE);
		assert_int_equal(reg(f, q, VQ_ENABLE), 0);
		assert_int_equal(reg(f, q, VQ_RESET), 0);
		assert_int_equal(reg(f, q, VQ_DESC), 0);
		assert_int_equal(reg(f, q, VQ_DRIVER), 0);
		assert_int_equal(reg(f, q, VQ_DEVICE), 0);
	}
}

/* All that a driver can choose for a ring. */
static const uint64_t modes[] = {
	0,
	BIT(VIRTIO_F_RING_PACKED),
	BIT(VIRTIO_RING_F_EVENT_IDX),
	BIT(VIRTIO_F_RING_PACKED) | BIT(VIRTIO_RING_F_EVENT_IDX),
	BIT(VIRTIO_RING_F_INDIRECT_DESC),
	BIT(VIRTIO_F_RING_PACKED) | BIT(VIRTIO_RING_F_EVENT_IDX) | BIT(VIRTIO_RING_F_INDIRECT_DESC),
};

/* Features. */

static void test_features(void **state)
{
	struct fixture *f = setup();
	uint64_t offered = virtio_reg_features(f->d, 0) | (uint64_t)virtio_reg_features(f->d, 1) << 32;

	assert_true(offered == (ECHO_FEATURES | V1 | RING_RESET | BIT(VIRTIO_F_RING_PACKED) |
	                        BIT(VIRTIO_RING_F_EVENT_IDX) | BIT(VIRTIO_RING_F_INDIRECT_DESC)));
	for (unsigned select = 2; select < 70; select++) {
		assert_int_equal(virtio_reg_features(f->d, select), 0);
		virtio_reg_set_features(f->d, select, ~0u);
		assert_int_equal(virtio_reg_driver_features(f->d, select), 0);
	}
	virtio_reg_set_features(f->d, UINT32_MAX, ~0u);
	check_clear(f);
	assert_true(fakedev_negotiate(&f->drv, V1));
	assert_false(fakedev_negotiate(&f->drv, 0));
	assert_false(fakedev_negotiate(&f->drv, offered & ~V1));
	for (unsigned bit = 0; bit < 64; bit++) {
		assert_int_equal(fakedev_negotiate(&f->drv, V1 | BIT(bit)), offered >> bit & 1);
		assert_int_equal(virtio_has(f->d, bit), 1);
		assert_int_equal(fakedev_negotiate(&f->drv, offered ^ BIT(bit)),
		                 offered >> bit & 1 && bit != VIRTIO_F_VERSION_1);
	}
	teardown(f);
}

/* After FEATURES_OK they stand; after a refusal the driver may try again. */
static void test_late_features(void **state)
{
	struct fixture *f = setup();

	assert_true(fakedev_negotiate(&f->drv, V1 | BIT(3)));
	virtio_reg_set_features(f->d, 0, ~0u);
	virtio_reg_set_features(f->d, 1, 0);
	assert_int_equal(virtio_reg_driver_features(f->d, 0), BIT(3));
	assert_int_equal(virtio_reg_driver_features(f->d, 1), V1 >> 32);
	set_status(f, ACK | DRIVER | FEATURES_OK | OK);
	virtio_reg_set_features(f->d, 0, 0);
	assert_int_equal(virtio_reg_driver_features(f->d, 0), BIT(3));
	reset(f);
	check_clear(f);

	set_status(f, ACK | DRIVER);
	virtio_reg_set_features(f->d, 0, 0xffffffff);
	set_status(f, ACK | DRIVER | FEATURES_OK);
	assert_int_equal(virtio_reg_status(f->d), ACK | DRIVER);
	virtio_reg_set_features(f->d, 0, 0);
	virtio_reg_set_features(f->d, 1, V1 >> 32);
	set_status(f, ACK | DRIVER | FEATURES_OK);
	assert_int_equal(virtio_reg_status(f->d), ACK | DRIVER | FEATURES_OK);
	teardown(f);
}

/* Status. */

/* What the status is after @val, by the specification. */
static uint8_t next_status(uint8_t now, uint8_t val, bool features_fine)
{
	uint8_t new;

	if (!val)
		return 0;
	new = now | (val & ~NEEDS_RESET);
	if (!features_fine)
		new &= (uint8_t)~FEATURES_OK;
	if (!(new &FEATURES_OK))
		new &= (uint8_t)~OK;
	return new;
}

/* Every sequence of four writes from these, with features that the device takes and with others. */
static void test_status_orders(void **state)
{
	static const uint8_t vals[] = { 0, ACK, DRIVER, FEATURES_OK, OK, 0xf, 0xb, FAILED, NEEDS_RESET, 0xff };
	struct fixture *f = setup();
	unsigned total = LEN(vals) * LEN(vals) * LEN(vals) * LEN(vals);

	for (unsigned n = 0; n < 2 * total; n++) {
		bool fine = n & 1;
		uint8_t want = 0;

		for (unsigned i = 0, rest = n / 2; i < 4; i++, rest /= LEN(vals)) {
			uint8_t val = vals[rest % LEN(vals)];

			if (!want)
				virtio_reg_set_features(f->d, 1, fine ? V1 >> 32 : 0);
			set_status(f, val);
			want = next_status(want, val, fine);
			assert_int_equal(virtio_reg_status(f->d), want);
		}
		set_status(f, 0);
		check_clear(f);
	}
	assert_int_equal(f->e.q[0].starts, 0);
	assert_int_equal(f->drv.config_irqs, 0);
	teardown(f);
}

static void test_kick_before_driver_ok(void **state)
{
	for (unsigned m = 0; m < LEN(modes); m++) {
		struct fixture *f = setup();
		struct fake_used u;

		fakedev_kick(&f->drv, 0);
		assert_true(fakedev_negotiate(&f->drv, modes[m] | V1));
		fakedev_queue(&f->drv, 0, 8);
		fakedev_kick(&f->drv, 0);
		assert_true(add_echo(f, 0));
		fakeq_expose(&f->drv.q[0]);
		for (unsigned i = 0; i < 5; i++)
			fakedev_kick(&f->drv, 0);
		virtio_again(f->d, 1);
		fakedev_turn(&f->drv);
		assert_false(fakeq_has_used(&f->drv.q[0]));
		assert_int_equal(f->e.q[0].starts, 0);
		set_status(f, ACK | DRIVER | FEATURES_OK | OK);
		assert_true(fakedev_get(&f->drv, 0, &u)); /* without another kick */
		check_echo(f, 0, &u);
		talk(f, 0, 20);
		assert_int_equal(f->e.q[1].starts, 0);
		teardown(f);
	}
}

/* Queue registers. */

static void test_no_such_queue(void **state)
{
	struct fixture *f = setup();

	assert_true(fakedev_negotiate(&f->drv, V1 | RING_RESET));
	for (unsigned q = QUEUES; q <= 0x10000; q++)
		for (enum virtio_queue_reg r = VQ_SIZE; r <= VQ_DEVICE; r++) {
			set_reg(f, q, r, 1);
			assert_int_equal(reg(f, q, r), 0);
		}
	set_reg(f, UINT32_MAX, VQ_ENABLE, 1);
	assert_int_equal(reg(f, UINT32_MAX, VQ_SIZE), 0);
	fakedev_turn(&f->drv);
	reset(f);
	check_clear(f);
	teardown(f);
}

static void test_sizes(void **state)
{
	struct fixture *f = setup();

	for (unsigned m = 0; m < 2; m++)
		for (unsigned size = 1; size <= QUEUE_SIZE; size += size < 20 ? 1 : 59) {
			bool packed = m, possible = packed || !(size & (size - 1));
			unsigned irqs = f->drv.config_irqs;

			reset(f);
			assert_true(fakedev_negotiate(&f->drv, V1 | modes[m]));
			fakedev_queue(&f->drv, 1, (uint16_t)size);
			set_reg(f, 1, VQ_SIZE, 4);
			assert_int_equal(reg(f, 1, VQ_SIZE), size);
			set_status(f, ACK | DRIVER | FEATURES_OK | OK);
			fakedev_turn(&f->drv);
			assert_int_equal(!(virtio_reg_status(f->d) & NEEDS_RESET), possible);
			assert_int_equal(f->drv.config_irqs - irqs, !possible);
			forget(f, 1);
			if (possible && size > 1)
				talk(f, 1, 3 * size);
		}
	teardown(f);
}

static void test_impossible_sizes(void **state)
{
	static const uint64_t bad[] = { 0, QUEUE_SIZE + 1, 0x8000, 0xffff };
	struct fixture *f = setup();

	assert_true(fakedev_negotiate(&f->drv, V1));
	for (unsigned i = 0; i < LEN(bad); i++) {
		set_reg(f, 0, VQ_SIZE, 16);
		set_reg(f, 0, VQ_SIZE, bad[i]);
		assert_int_equal(reg(f, 0, VQ_SIZE), 16);
	}
	teardown(f);
}

/* Rings that are not in RAM, or not aligned: the driver hears of it, the other queue works. */
static void test_impossible_rings(void **state)
{
	static const uint64_t bad[] = { 8, BANK, BANK - 16, 0 - 16ull, 1ull << 63 };
	struct fixture *f = setup();

	for (unsigned m = 0; m < 2; m++)
		for (unsigned i = 0; i < LEN(bad); i++) {
			reset(f);
			assert_true(fakedev_negotiate(&f->drv, V1 | RING_RESET | modes[m]));
			fakedev_queue(&f->drv, 1, 16);
			set_reg(f, 0, VQ_DESC, bad[i]);
			set_reg(f, 0, VQ_ENABLE, 1);
			set_status(f, ACK | DRIVER | FEATURES_OK | OK);
			fakedev_turn(&f->drv);
			assert_true(virtio_reg_status(f->d) & NEEDS_RESET);
			talk(f, 1, 40);
			fakedev_kick(&f->drv, 0);
			assert_true(fakedev_queue_reset(&f->drv, 0)); /* even here */
			fakedev_queue(&f->drv, 0, 16);
			fakedev_turn(&f->drv);
			talk(f, 0, 40);
		}
	teardown(f);
}

/* Halves, bytes and whole addresses. */
static void test_address_parts(void **state)
{
	struct fixture *f = setup();

	assert_true(fakedev_negotiate(&f->drv, V1));
	for (enum virtio_queue_reg r = VQ_DESC; r <= VQ_DEVICE; r++) {
		virtio_reg_set_queue(f->d, 0, r, 0, 64, 0x1122334455667788);
		assert_true(reg(f, 0, r) == 0x1122334455667788);
		virtio_reg_set_queue(f->d, 0, r, 0, 32, 0xffffffffaabbccdd);
		assert_true(reg(f, 0, r) == 0x11223344aabbccdd);
		virtio_reg_set_queue(f->d, 0, r, 32, 32, 0xffffffff00000001);
		assert_true(reg(f, 0, r) == 0x00000001aabbccdd);
		virtio_reg_set_queue(f->d, 0, r, 0, 16, 0xffff9999);
		assert_true(reg(f, 0, r) == 0x00000001aabb9999);
		virtio_reg_set_queue(f->d, 0, r, 32, 8, 0x102);
		assert_true(reg(f, 0, r) == 0x00000002aabb9999);
		virtio_reg_set_queue(f->d, 0, r, 32, 64, 0x5);
		assert_int_equal(reg(f, 0, r) >> 32, 5);
	}
	teardown(f);
}

static void test_enabled_is_fixed(void **state)
{
	struct fixture *f = setup();
	uint64_t desc;

	set_reg(f, 0, VQ_ENABLE, 1); /* before FEATURES_OK */
	set_status(f, ACK | DRIVER);
	set_reg(f, 0, VQ_ENABLE, 1);
	assert_int_equal(reg(f, 0, VQ_ENABLE), 0);
	start(f, 0);
	desc = reg(f, 0, VQ_DESC);
	for (unsigned i = 0; i < 3; i++) {
		set_reg(f, 0, VQ_DESC, 0x100);
		set_reg(f, 0, VQ_DRIVER, 0x100);
		set_reg(f, 0, VQ_DEVICE, 0x100);
		set_reg(f, 0, VQ_SIZE, 2);
		set_reg(f, 0, VQ_ENABLE, i); /* 1: a second time */
		assert_true(reg(f, 0, VQ_DESC) == desc && reg(f, 0, VQ_ENABLE) == 1);
		talk(f, 0, 100);
	}
	assert_int_equal(f->e.q[0].starts, 1);
	assert_int_equal(f->e.q[0].stops, 0);
	reset(f);
	assert_true(fakedev_negotiate(&f->drv, V1));
	set_reg(f, 0, VQ_ENABLE, 2);
	set_reg(f, 0, VQ_ENABLE, 0xffff);
	assert_int_equal(reg(f, 0, VQ_ENABLE), 0);
	teardown(f);
}

/* A queue may come later than the device. */
static void test_late_queue(void **state)
{
	struct fixture *f = setup();

	assert_true(fakedev_negotiate(&f->drv, V1));
	fakedev_queue(&f->drv, 1, 8);
	set_status(f, ACK | DRIVER | FEATURES_OK | OK);
	fakedev_turn(&f->drv);
	talk(f, 1, 20);
	fakedev_queue(&f->drv, 0, 8);
	fakedev_turn(&f->drv);
	talk(f, 0, 20);
	assert_int_equal(f->e.q[2].starts, 0);
	teardown(f);
}

/* Reset. */

/* Chains that the device keeps. */
static void keep(struct fixture *f, unsigned q, unsigned n)
{
	f->e.how = HOLD;
	for (unsigned i = 0; i < n; i++)
		assert_true(add_echo(f, q));
	fakedev_publish(&f->drv, q);
	assert_int_equal(f->e.q[q].nheld, n);
	assert_false(fakeq_has_used(&f->drv.q[q]));
}

static void let_go(struct fixture *f, unsigned q)
{
	release(&f->e.q[q]);
	f->e.how = AT_ONCE;
}

static void test_reset_in_flight(void **state)
{
	for (unsigned m = 0; m < LEN(modes); m++) {
		struct fixture *f = setup();

		for (unsigned round = 1; round < 5; round++) {
			start(f, modes[m] | RING_RESET);
			talk(f, 0, 10);
			keep(f, 0, round);
			keep(f, 2, 2 * round);
			set_status(f, 0);
			fakedev_turn(&f->drv);
			assert_int_equal(virtio_reg_status(f->d), ACK | DRIVER | FEATURES_OK | OK);
			set_status(f, ACK);
			set_status(f, FAILED);
			set_reg(f, 1, VQ_SIZE, 4);
			set_reg(f, 1, VQ_ENABLE, 1);
			set_reg(f, 0, VQ_RESET, 1);
			virtio_reg_set_features(f->d, 0, BIT(3));
			assert_int_equal(reg(f, 0, VQ_RESET), 0);
			fakedev_kick(&f->drv, 0);
			release(&f->e.q[0]);
			fakedev_turn(&f->drv);
			assert_int_equal(virtio_reg_status(f->d), ACK | DRIVER | FEATURES_OK | OK);
			set_status(f, 0); /* again */
			let_go(f, 2);
			check_clear(f);
			fakedev_turn(&f->drv);
			check_clear(f);
			for (unsigned q = 0; q < QUEUES; q++) {
				assert_int_equal(f->e.q[q].starts, round);
				assert_int_equal(f->e.q[q].stops, round);
			}
		}
		teardown(f);
	}
}

/* One queue is reset while its neighbour works; it comes back with every size. */
static void test_queue_reset(void **state)
{
	for (unsigned m = 0; m < LEN(modes); m++) {
		struct fixture *f = setup();

		start(f, modes[m] | RING_RESET);
		for (unsigned size = 4; size <= QUEUE_SIZE; size *= 2) {
			keep(f, 0, 2);
			set_reg(f, 0, VQ_RESET, 1);
			fakedev_turn(&f->drv);
			f->e.how = AT_ONCE;
			for (unsigned i = 0; i < 3; i++) {
				assert_int_equal(reg(f, 0, VQ_RESET), 1);
				assert_int_equal(reg(f, 0, VQ_ENABLE), 0);
				set_reg(f, 0, VQ_SIZE, 4);
				set_reg(f, 0, VQ_ENABLE, 1);
				set_reg(f, 0, VQ_RESET, 1);
				talk(f, 1, 10);
			}
			let_go(f, 0);
			assert_int_equal(reg(f, 0, VQ_RESET), 0);
			assert_int_equal(reg(f, 0, VQ_ENABLE), 0);
			assert_int_equal(reg(f, 0, VQ_SIZE), QUEUE_SIZE);
			assert_int_equal(reg(f, 0, VQ_DESC), 0);
			assert_int_equal(virtio_reg_status(f->d), ACK | DRIVER | FEATURES_OK | OK);
			fakedev_queue(&f->drv, 0, (uint16_t)size);
			fakedev_turn(&f->drv);
			forget(f, 0);
			talk(f, 0, 2 * size);
			talk(f, 1, 10);
		}
		assert_int_equal(f->e.q[1].starts, 1);
		teardown(f);
	}
}

static void test_queue_reset_ignored(void **state)
{
	struct fixture *f = setup();

	start(f, 0); /* not negotiated */
	set_reg(f, 0, VQ_RESET, 1);
	assert_int_equal(reg(f, 0, VQ_RESET), 0);
	talk(f, 0, 10);
	reset(f);
	assert_true(fakedev_negotiate(&f->drv, V1 | RING_RESET));
	set_reg(f, 0, VQ_SIZE, 8);
	set_reg(f, 0, VQ_RESET, 1); /* not enabled: nothing to reset */
	assert_int_equal(reg(f, 0, VQ_RESET), 0);
	fakedev_queue(&f->drv, 0, 8);
	set_reg(f, 0, VQ_RESET, 1); /* enabled, not running: at once */
	assert_int_equal(reg(f, 0, VQ_RESET), 0);
	assert_int_equal(reg(f, 0, VQ_ENABLE), 0);
	start(f, RING_RESET);
	set_reg(f, 0, VQ_RESET, 0);
	set_reg(f, 0, VQ_RESET, 2);
	set_reg(f, 0, VQ_RESET, 0xffff);
	assert_int_equal(reg(f, 0, VQ_RESET), 0);
	talk(f, 0, 10);
	assert_int_equal(f->e.q[0].stops, 1); /* that of reset() */
	teardown(f);
}

/* In either order. */
static void test_reset_during_queue_reset(void **state)
{
	struct fixture *f = setup();

	for (unsigned round = 0; round < 2; round++) {
		start(f, RING_RESET);
		keep(f, 0, 3);
		keep(f, 1, 3);
		set_reg(f, 0, VQ_RESET, 1);
		if (round)
			fakedev_turn(&f->drv);
		set_status(f, 0);
		fakedev_turn(&f->drv);
		assert_true(virtio_reg_status(f->d) & OK);
		release(&f->e.q[round]);
		assert_true(virtio_reg_status(f->d) & OK);
		let_go(f, !round);
		check_clear(f);
	}
	start(f, 0);
	talk(f, 0, 10);
	talk(f, 1, 10);
	teardown(f);
}

/* The home loop has not even heard of the queue yet. */
static void test_reset_before_start(void **state)
{
	struct fixture *f = setup();

	for (unsigned stop = 0; stop < 3; stop++) {
		assert_true(fakedev_negotiate(&f->drv, V1 | RING_RESET));
		fakedev_queue(&f->drv, 0, 8);
		set_status(f, ACK | DRIVER | FEATURES_OK | OK);
		if (stop == 0)
			virtio_dev_stop(f->d);
		else if (stop == 1)
			set_status(f, 0);
		else
			set_reg(f, 0, VQ_RESET, 1);
		if (stop < 2)
			check_clear(f);
		fakedev_turn(&f->drv);
		assert_int_equal(f->e.q[0].starts, 0);
	}
	teardown(f);
}

static void test_dev_stop(void **state)
{
	struct fixture *f = setup();

	virtio_dev_stop(f->d);
	set_status(f, ACK | DRIVER);
	virtio_dev_stop(f->d);
	check_clear(f);
	start(f, RING_RESET);
	talk(f, 0, 10);
	fakedev_pause(&f->drv);
	virtio_dev_stop(f->d);
	check_clear(f);
	virtio_resume(f->d);
	start(f, 0);
	talk(f, 0, 10);
	teardown(f);
}

/* Pause. */

static void test_pause(void **state)
{
	for (unsigned m = 0; m < LEN(modes); m++) {
		struct fixture *f = setup();

		start(f, modes[m] | RING_RESET);
		for (unsigned round = 0; round < 10; round++) {
			unsigned served = f->e.q[0].served;

			fakedev_pause(&f->drv);
			assert_true(add_echo(f, 0));
			fakedev_publish(&f->drv, 0);
			fakedev_kick(&f->drv, 0);
			virtio_again(f->d, 0);
			fakedev_turn(&f->drv);
			assert_int_equal(f->e.q[0].served, served);
			virtio_resume(f->d);
			fakedev_turn(&f->drv);
			assert_int_equal(f->e.q[0].served, served + 1);
			collect(f, 0);
			talk(f, 0, 3);
		}
		fakedev_pause(&f->drv);
		assert_true(fakedev_queue_reset(&f->drv, 0));
		fakedev_queue(&f->drv, 0, 8);
		forget(f, 0);
		assert_true(add_echo(f, 0));
		fakedev_publish(&f->drv, 0);
		fakedev_kick(&f->drv, 0);
		assert_false(fakeq_has_used(&f->drv.q[0])); /* started, but at rest */
		virtio_resume(f->d);
		fakedev_turn(&f->drv);
		collect(f, 0);
		assert_int_equal(f->got[0], 1);
		teardown(f);
	}
}

/* What is in flight on our own loop cannot end while we wait; given up and tried again, it does no harm. */
static void test_pause_given_up(void **state)
{
	for (unsigned m = 0; m < LEN(modes); m++) {
		struct fixture *f = setup();

		start(f, modes[m] | RING_RESET);
		f->e.how = HOLD;
		assert_true(add_echo(f, 0));
		fakedev_publish(&f->drv, 0);
		for (unsigned i = 0; i < 3; i++) {
			assert_int_equal(virtio_pause(f->d, 0), -EBUSY);
			virtio_resume(f->d);
			fakedev_turn(&f->drv);
		}
		assert_int_equal(virtio_pause(f->d, 0), -EBUSY);
		release(&f->e.q[0]);
		assert_int_equal(virtio_pause(f->d, 0), 0);
		virtio_resume(f->d);
		collect(f, 0);
		assert_true(add_echo(f, 0));
		fakedev_publish(&f->drv, 0);
		assert_int_equal(virtio_pause(f->d, 0), -EBUSY);
		virtio_reg_set_status(f->d, 0);
		fakedev_turn(&f->drv);
		assert_int_equal(virtio_pause(f->d, 0), -EBUSY); /* stopping is not at rest either */
		release(&f->e.q[0]);
		assert_int_equal(virtio_pause(f->d, 0), 0);
		virtio_resume(f->d);
		teardown(f);
	}
}

/* Broken drivers. */

static void break_ring(struct fixture *f, unsigned q)
{
	struct fakeq *r = &f->drv.q[q];

	if (r->cfg.packed)
		r->ring[r->avail_idx].flags = r->avail_wrap ? 1 << 7 | VRING_DESC_F_INDIRECT
		                                            : 1 << 15 | VRING_DESC_F_INDIRECT;
	else
		r->avail->idx = (uint16_t)(r->avail_idx + r->cfg.size + 1);
	fakedev_kick(&f->drv, q);
}

static void test_needs_reset_once(void **state)
{
	for (unsigned m = 0; m < LEN(modes); m++) {
		struct fixture *f = setup();

		for (unsigned round = 1; round < 4; round++) {
			start(f, modes[m]);
			talk(f, 0, 10);
			break_ring(f, 0);
			assert_int_equal(f->drv.config_irqs, round);
			assert_int_equal(virtio_reg_status(f->d), ACK | DRIVER | FEATURES_OK | OK | NEEDS_RESET);
			for (unsigned i = 0; i < 5; i++)
				fakedev_kick(&f->drv, 0);
			talk(f, 1, 10);
			break_ring(f, 1);
			fakedev_pause(&f->drv);
			virtio_resume(f->d);
			fakedev_kick(&f->drv, 1);
			virtio_broken(f->d, "it does not %s", "stop");
			set_status(f, 0xff & ~NEEDS_RESET);
			assert_true(virtio_reg_status(f->d) & NEEDS_RESET);
			assert_int_equal(f->drv.config_irqs, round);
			reset(f);
			check_clear(f);
		}
		start(f, modes[m]);
		talk(f, 0, 10);
		talk(f, 1, 10);
		teardown(f);
	}
}

/* Broken with chains in flight: they still come home. */
static void test_broken_in_flight(void **state)
{
	struct fixture *f = setup();

	for (unsigned m = 0; m < 2; m++) {
		start(f, modes[m]);
		keep(f, 0, 5);
		break_ring(f, 0);
		assert_true(virtio_reg_status(f->d) & NEEDS_RESET);
		set_status(f, 0);
		fakedev_turn(&f->drv);
		assert_true(virtio_reg_status(f->d) & NEEDS_RESET);
		let_go(f, 0);
		check_clear(f);
	}
	start(f, 0);
	talk(f, 0, 10);
	teardown(f);
}

static void test_broken_before_driver_ok(void **state)
{
	struct fixture *f = setup();

	assert_true(fakedev_negotiate(&f->drv, V1));
	virtio_broken(f->d, "early");
	assert_int_equal(virtio_reg_status(f->d), ACK | DRIVER | FEATURES_OK | NEEDS_RESET);
	assert_int_equal(f->drv.config_irqs, 0); /* 4.2 of 2.1.2: no notification before DRIVER_OK */
	teardown(f);
}

/* Fairness: how many chains are served before another task on the loop has its turn. */

struct watch {
	struct loop_task task;
	struct fixture *f;
	unsigned seen;
};

static void on_watch(struct loop_task *t)
{
	struct watch *w = (struct watch *)t;

	w->seen = w->f->e.q[0].served;
	loop_quit(w->f->loop);
}

static void test_budget(void **state)
{
	for (unsigned m = 0; m < LEN(modes); m++) {
		struct fixture *f = setup();
		struct watch w = { .task.cb = on_watch, .f = f };

		start(f, modes[m] | BIT(VIRTIO_RING_F_INDIRECT_DESC));
		while (add_echo(f, 0))
			;
		assert_int_equal(f->sent[0], QUEUE_SIZE);
		fakeq_expose(&f->drv.q[0]);
		virtio_again(f->d, 0);
		for (unsigned turn = 1; turn <= 2; turn++) {
			loop_post(f->loop, &w.task);
			assert_int_equal(loop_run(f->loop), 0);
			assert_int_equal(w.seen, turn * QUEUE_SIZE / 2);
		}
		fakedev_turn(&f->drv);
		collect(f, 0);
		talk(f, 0, 300);
		teardown(f);
	}
}

/* A driver on another processor, which makes one more available as soon as one is used. */
static struct fixture *one_by_one;
static const struct virtio_transport_ops *quiet;

static void one_more(struct virtio_dev *d, unsigned q)
{
	struct fixture *f = one_by_one;

	quiet->queue_irq(d, q);
	collect(f, q);
	(void)fakeq_arm(&f->drv.q[q], 0);
	if (f->sent[q] < 20 * QUEUE_SIZE) {
		assert_true(add_echo(f, q));
		fakeq_expose(&f->drv.q[q]);
	}
}

/* It has its budget, too, and then others on the loop have their turn. */
static void test_budget_of_one_by_one(void **state)
{
	for (unsigned m = 0; m < LEN(modes); m++) {
		struct fixture *f = one_by_one = setup();
		struct watch w = { .task.cb = on_watch, .f = f };
		struct virtio_transport_ops ops;

		quiet = f->d->transport;
		ops = *quiet;
		ops.queue_irq = one_more;
		f->d->transport = &ops;
		start(f, modes[m]);
		(void)fakeq_arm(&f->drv.q[0], 0);
		assert_true(add_echo(f, 0));
		fakeq_expose(&f->drv.q[0]);
		virtio_again(f->d, 0);
		loop_post(f->loop, &w.task);
		assert_int_equal(loop_run(f->loop), 0);
		assert_in_range(w.seen, 2, 2 * QUEUE_SIZE);
		f->d->transport = quiet;
		teardown(f);
	}
}

/* Config space. */

static void test_config(void **state)
{
	struct fixture *f = setup();
	uint8_t bytes[CONFIG];

	for (unsigned i = 0; i < CONFIG; i++)
		bytes[i] = (uint8_t)(0x10 + i);
	virtio_set_config(f->d, 0, bytes, CONFIG);
	assert_int_equal(f->drv.config_irqs, 0); /* nobody listens */
	for (unsigned size = 1; size <= 8; size *= 2)
		for (uint64_t off = 0; off <= UINT32_MAX; off += off < 64 ? 1 : UINT32_MAX / 50) {
			uint64_t want = 0;
			bool inside = off + size <= CONFIG;
			unsigned writes = f->e.config_writes;

			memcpy(&want, inside ? bytes + off : bytes, size);
			assert_true(virtio_reg_config(f->d, (unsigned)off, size) == (inside ? want : ~0ull));
			virtio_reg_set_config(f->d, (unsigned)off, size, 0x99);
			assert_int_equal(f->e.config_writes - writes, inside);
			if (inside)
				assert_true(f->e.config_off == off && f->e.config_size == size &&
				            f->e.config_val == 0x99);
		}
	assert_int_equal(virtio_reg_config(f->d, UINT32_MAX, 1), ~0ull);
	teardown(f);
}

static void test_config_generation(void **state)
{
	struct fixture *f = setup();
	uint8_t val = 1, gen = virtio_reg_config_generation(f->d);

	start(f, 0);
	for (unsigned i = 1; i < 600; i++) {
		val = (uint8_t)i;
		virtio_set_config(f->d, i % CONFIG, &val, 1);
		assert_int_equal(virtio_reg_config_generation(f->d), (uint8_t)(gen + i));
		assert_int_equal(virtio_reg_config(f->d, i % CONFIG, 1), val);
		assert_int_equal(f->drv.config_irqs, i);
	}
	reset(f);
	virtio_set_config(f->d, 0, &val, 1);
	assert_int_equal(f->drv.config_irqs, 599);
	teardown(f);
}

/* Several loops. */

#define LOOPS 2

struct rig {
	struct fixture *f;
	struct loop *loop[LOOPS];
	pthread_t loop_thread[LOOPS], driver[LOOPS];
	atomic_uint turns[LOOPS];
	atomic_bool stop;
};

struct rig_arg {
	struct rig *r;
	unsigned q;
};

static void *run_loop(void *loop)
{
	if (loop_run(loop))
		abort();
	return NULL;
}

/* Queue i lives on loop i; the third stays with the test. */
static void open_rig(struct rig *r)
{
	struct err err;

	*r = (struct rig){ .f = setup() };
	r->f->drv.loop = NULL;
	for (unsigned i = 0; i < LOOPS; i++) {
		assert_int_equal(loop_new(&r->loop[i], &err), 0);
		r->f->d->queue[i].home = r->loop[i];
		assert_int_equal(pthread_create(&r->loop_thread[i], NULL, run_loop, r->loop[i]), 0);
	}
}

static void stop_loops(struct rig *r)
{
	for (unsigned i = 0; i < LOOPS; i++) {
		loop_quit(r->loop[i]);
		pthread_join(r->loop_thread[i], NULL);
	}
}

/* The device may go before its loops or after them. */
static void close_rig(struct rig *r, bool device_first)
{
	struct fixture *f = r->f;

	virtio_dev_stop(f->d);
	if (device_first)
		virtio_dev_exit(f->d);
	stop_loops(r);
	if (!device_first)
		virtio_dev_exit(f->d);
	for (unsigned i = 0; i < LOOPS; i++)
		loop_free(r->loop[i]);
	loop_free(f->loop);
	free(f->drv.q);
	fakemem_free(&f->mem);
	free(f);
}

/* As a guest does: without a thought for what the machine is doing to the device. */
static void *drive(void *arg)
{
	struct rig *r = ((struct rig_arg *)arg)->r;
	unsigned q = ((struct rig_arg *)arg)->q;
	uint64_t one = 1;

	while (!atomic_load(&r->stop)) {
		unsigned batch = 1 + r->f->sent[q] % 7;

		collect(r->f, q);
		while (batch-- && add_echo(r->f, q))
			;
		if (fakeq_publish(&r->f->drv.q[q]) &&
		    write(r->f->d->queue[q].kick_fd, &one, sizeof(one)) != sizeof(one))
			abort();
		atomic_store(&r->turns[q], r->f->got[q]);
		sched_yield();
	}
	return NULL;
}

static void start_drivers(struct rig *r, struct rig_arg *arg, uint64_t features)
{
	struct fixture *f = r->f;

	atomic_store(&r->stop, false);
	assert_true(fakedev_negotiate(&f->drv, features | V1 | RING_RESET));
	for (unsigned i = 0; i < LOOPS; i++) {
		fakedev_queue(&f->drv, i, 64);
		forget(f, i);
		atomic_store(&r->turns[i], 0);
	}
	set_status(f, ACK | DRIVER | FEATURES_OK | OK);
	for (unsigned i = 0; i < LOOPS; i++) {
		arg[i] = (struct rig_arg){ r, i };
		assert_int_equal(pthread_create(&r->driver[i], NULL, drive, &arg[i]), 0);
	}
}

static void stop_drivers(struct rig *r)
{
	atomic_store(&r->stop, true);
	for (unsigned i = 0; i < LOOPS; i++)
		pthread_join(r->driver[i], NULL);
}

/* Until every driver has @n more of its chains back. */
static void wait_progress(struct rig *r, unsigned n)
{
	for (unsigned i = 0; i < LOOPS; i++) {
		unsigned from = atomic_load(&r->turns[i]);

		while (atomic_load(&r->turns[i]) - from < n)
			sched_yield();
	}
}

/* Nothing is popped while paused, and nothing answered. */
static void check_at_rest(struct rig *r)
{
	unsigned before[LOOPS];

	for (unsigned i = 0; i < LOOPS; i++)
		before[i] = r->f->e.q[i].served;
	for (unsigned n = 0; n < 20; n++)
		sched_yield();
	for (unsigned i = 0; i < LOOPS; i++) {
		assert_int_equal(r->f->e.q[i].served, before[i]);
		assert_int_equal(r->f->e.q[i].nheld, 0);
	}
}

static void test_pause_under_load(void **state)
{
	for (unsigned m = 0; m < 4; m++)
		for (enum how how = AT_ONCE; how <= LATER; how += LATER - AT_ONCE) {
			struct rig_arg arg[LOOPS];
			struct rig r;

			open_rig(&r);
			r.f->e.how = how;
			start_drivers(&r, arg, modes[m]);
			for (unsigned round = 0; round < 50; round++) {
				wait_progress(&r, 10);
				fakedev_pause(&r.f->drv);
				check_at_rest(&r);
				virtio_resume(r.f->d);
			}
			wait_progress(&r, 100);
			stop_drivers(&r);
			close_rig(&r, how == LATER);
		}
}

/* Stopped, and started again by the next driver, while the last one goes on writing. */
static void test_stop_under_load(void **state)
{
	struct rig_arg arg[LOOPS];
	struct rig r;

	open_rig(&r);
	for (unsigned round = 0; round < 60; round++) {
		r.f->e.how = round & 1 ? LATER : AT_ONCE;
		start_drivers(&r, arg, modes[round % 4]);
		wait_progress(&r, round % 3 * 20);
		if (round % 3 == 2)
			fakedev_pause(&r.f->drv);
		virtio_dev_stop(r.f->d);
		check_clear(r.f);
		for (unsigned i = 0; i < LOOPS; i++) {
			assert_false(r.f->d->queue[i].ring);
			assert_int_equal(r.f->e.q[i].nheld, 0);
			assert_false(r.f->e.q[i].inside);
		}
		stop_drivers(&r);
		virtio_resume(r.f->d);
	}
	close_rig(&r, true);
}

/* A device that completes on another thread, and is freed at the very moment: @d is not touched after that. */
static void test_exit_under_load(void **state)
{
	for (unsigned round = 0; round < 30; round++) {
		struct rig_arg arg[LOOPS];
		struct rig r;

		open_rig(&r);
		r.f->e.how = LATER;
		start_drivers(&r, arg, modes[round % 4]);
		wait_progress(&r, 1 + round);
		stop_drivers(&r);
		close_rig(&r, true);
	}
}

/* Registers from one thread, queue resets by another driver, both with traffic. */
static void test_queue_reset_under_load(void **state)
{
	struct rig r;
	struct rig_arg arg[LOOPS];

	open_rig(&r);
	r.f->e.how = LATER;
	start_drivers(&r, arg, BIT(VIRTIO_RING_F_EVENT_IDX));
	for (unsigned round = 0; round < 100; round++) {
		set_reg(r.f, 2, VQ_RESET, 1);
		set_reg(r.f, 2, VQ_SIZE, 1u << round % 8);
		set_reg(r.f, 2, VQ_ENABLE, 1); /* a ring at address 0: fine with the device */
		if (round % 10 == 0)
			wait_progress(&r, 5);
	}
	stop_drivers(&r);
	assert_int_equal(loop_here(r.f->loop), true);
	close_rig(&r, false);
}

/* Half-made. */

#define FDS 128

/* Leaves room for @n descriptors, @fill holding the others. Returns how many. */
static unsigned fill_fds(int *fill, unsigned n)
{
	unsigned got = 0;

	while ((fill[got] = dup(STDERR_FILENO)) >= 0)
		got++;
	while (n--)
		close(fill[--got]);
	return got;
}

static void test_out_of_descriptors(void **state)
{
	struct rlimit old, few;
	int fill[FDS + 1];
	struct loop *loop;
	struct err err;

	assert_int_equal(loop_new(&loop, &err), 0);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	few = old;
	few.rlim_cur = FDS;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	for (unsigned n = 0; n <= 8; n++) {
		struct virtio_init init = { &echo_class, "echo", NULL, 8, 16, loop };
		unsigned filled = fill_fds(fill, n);
		struct virtio_dev d;

		assert_int_equal(virtio_dev_init(&d, &init, &err), n < 8 ? -EMFILE : 0);
		virtio_dev_exit(&d);
		virtio_dev_exit(&d);
		while (filled--)
			close(fill[filled]);
	}
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
	loop_free(loop);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_features),
		cmocka_unit_test(test_late_features),
		cmocka_unit_test(test_status_orders),
		cmocka_unit_test(test_kick_before_driver_ok),
		cmocka_unit_test(test_no_such_queue),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_impossible_sizes),
		cmocka_unit_test(test_impossible_rings),
		cmocka_unit_test(test_address_parts),
		cmocka_unit_test(test_enabled_is_fixed),
		cmocka_unit_test(test_late_queue),
		cmocka_unit_test(test_reset_in_flight),
		cmocka_unit_test(test_queue_reset),
		cmocka_unit_test(test_queue_reset_ignored),
		cmocka_unit_test(test_reset_during_queue_reset),
		cmocka_unit_test(test_reset_before_start),
		cmocka_unit_test(test_dev_stop),
		cmocka_unit_test(test_pause),
		cmocka_unit_test(test_pause_given_up),
		cmocka_unit_test(test_needs_reset_once),
		cmocka_unit_test(test_broken_in_flight),
		cmocka_unit_test(test_broken_before_driver_ok),
		cmocka_unit_test(test_budget),
		cmocka_unit_test(test_budget_of_one_by_one),
		cmocka_unit_test(test_config),
		cmocka_unit_test(test_config_generation),
		cmocka_unit_test(test_pause_under_load),
		cmocka_unit_test(test_stop_under_load),
		cmocka_unit_test(test_exit_under_load),
		cmocka_unit_test(test_queue_reset_under_load),
		cmocka_unit_test(test_out_of_descriptors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
