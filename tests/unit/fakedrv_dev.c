// SPDX-License-Identifier: GPL-2.0-or-later
#include "fakedrv_dev.h"

#include "base/clock.h"

#include <linux/virtio_config.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NEED(x)     ((x) ? (void)0 : (fprintf(stderr, "fakedrv: %s\n", #x), abort()))

#define TURNS       1000 /* of the loop, for a device that is quick to do what it is asked */
#define PATIENCE_NS 60000000000ull

/* The transport. */

static void queue_irq(struct virtio_dev *d, unsigned q)
{
	struct fakedev *f = d->transport_data;

	atomic_fetch_add(&f->queue_irqs[q], 1);
}

static void config_irq(struct virtio_dev *d)
{
	struct fakedev *f = d->transport_data;

	atomic_fetch_add(&f->config_irqs, 1);
}

static const struct virtio_transport_ops transport = { .queue_irq = queue_irq, .config_irq = config_irq };

/* The loop. */

struct quit {
	struct loop_task task;
	struct loop *loop;
};

static void on_quit(struct loop_task *t)
{
	loop_quit(((struct quit *)t)->loop);
}

/* Descriptors come before tasks in a turn, and our task comes last; the second turn sees what the first caused. */
void fakedev_turn(struct fakedev *f)
{
	struct quit q = { .task.cb = on_quit, .loop = f->loop };

	for (unsigned i = 0; f->loop && i < 2; i++) {
		loop_post(f->loop, &q.task);
		NEED(!loop_run(f->loop));
	}
}

/* Our own loop needs some turns. Where others run it there is no telling how long that takes. */
static bool wait_for(struct fakedev *f, bool (*done)(struct fakedev *f, unsigned i), unsigned i)
{
	for (unsigned n = 0; !f->loop || n < TURNS; n++) {
		if (done(f, i))
			return true;
		fakedev_turn(f);
		sched_yield();
	}
	return false;
}

/* Life and death. */

void fakedev_init(struct fakedev *f, struct virtio_dev *d, struct fakemem *mem, struct loop *loop)
{
	*f = (struct fakedev){ .d = d, .mem = mem, .loop = loop, .q = calloc(d->nqueues, sizeof(*f->q)) };
	NEED(f->q);
	d->transport = &transport;
	d->transport_data = f;
}

void fakedev_exit(struct fakedev *f)
{
	NEED(fakedev_reset(f));
	free(f->q);
	f->q = NULL;
}

static void add_status(struct fakedev *f, uint8_t bit)
{
	virtio_reg_set_status(f->d, virtio_reg_status(f->d) | bit);
}

bool fakedev_negotiate(struct fakedev *f, uint64_t features)
{
	NEED(fakedev_reset(f));
	add_status(f, VIRTIO_CONFIG_S_ACKNOWLEDGE);
	add_status(f, VIRTIO_CONFIG_S_DRIVER);
	virtio_reg_set_features(f->d, 0, (uint32_t)features);
	virtio_reg_set_features(f->d, 1, (uint32_t)(features >> 32));
	add_status(f, VIRTIO_CONFIG_S_FEATURES_OK);
	return virtio_reg_status(f->d) & VIRTIO_CONFIG_S_FEATURES_OK;
}

static void set_address(struct fakedev *f, unsigned i, enum virtio_queue_reg r, uint64_t gpa)
{
	virtio_reg_set_queue(f->d, i, r, 0, 32, (uint32_t)gpa);
	virtio_reg_set_queue(f->d, i, r, 32, 32, gpa >> 32);
	NEED(virtio_reg_queue(f->d, i, r) == gpa);
}

/* The queue's memory is that of its largest ring, always the same: a thousand resets cost no more than one. */
static void make_ring(struct fakedev *f, unsigned i, uint16_t size, uint16_t max)
{
	unsigned flags = (virtio_has(f->d, VIRTIO_F_RING_PACKED) ? FAKE_PACKED : 0) |
	                 (virtio_has(f->d, VIRTIO_RING_F_EVENT_IDX) ? FAKE_EVENT_IDX : 0) |
	                 (virtio_has(f->d, VIRTIO_RING_F_INDIRECT_DESC) ? FAKE_INDIRECT : 0);
	uint64_t top;

	if (!f->ring_mem[i]) {
		f->ring_mem[i] = f->mem->top;
		fakeq_init(&f->q[i], f->mem, max, 0);
	}
	top = f->mem->top;
	f->mem->top = f->ring_mem[i];
	fakeq_init(&f->q[i], f->mem, size, flags);
	f->mem->top = top;
}

void fakedev_queue(struct fakedev *f, unsigned i, uint16_t size)
{
	uint16_t max = (uint16_t)virtio_reg_queue(f->d, i, VQ_SIZE);

	NEED(max > 0 && size <= max);
	make_ring(f, i, size ? size : max, f->d->queue[i].max_size);
	virtio_reg_set_queue(f->d, i, VQ_SIZE, 0, 16, f->q[i].cfg.size);
	NEED(virtio_reg_queue(f->d, i, VQ_SIZE) == f->q[i].cfg.size);
	set_address(f, i, VQ_DESC, f->q[i].cfg.desc);
	set_address(f, i, VQ_DRIVER, f->q[i].cfg.driver);
	set_address(f, i, VQ_DEVICE, f->q[i].cfg.device);
	virtio_reg_set_queue(f->d, i, VQ_ENABLE, 0, 16, 1);
	NEED(virtio_reg_queue(f->d, i, VQ_ENABLE) == 1);
}

void fakedev_start(struct fakedev *f, uint64_t features, uint16_t size)
{
	NEED(fakedev_negotiate(f, features | 1ull << VIRTIO_F_VERSION_1));
	for (unsigned i = 0; i < f->d->nqueues; i++)
		fakedev_queue(f, i, size);
	add_status(f, VIRTIO_CONFIG_S_DRIVER_OK);
	NEED(virtio_reg_status(f->d) & VIRTIO_CONFIG_S_DRIVER_OK);
	fakedev_turn(f);
}

static bool reset_done(struct fakedev *f, unsigned i)
{
	return virtio_reg_status(f->d) == 0;
}

bool fakedev_reset(struct fakedev *f)
{
	virtio_reg_set_status(f->d, 0);
	return wait_for(f, reset_done, 0);
}

static bool queue_reset_done(struct fakedev *f, unsigned i)
{
	return !virtio_reg_queue(f->d, i, VQ_RESET) && !virtio_reg_queue(f->d, i, VQ_ENABLE);
}

bool fakedev_queue_reset(struct fakedev *f, unsigned i)
{
	virtio_reg_set_queue(f->d, i, VQ_RESET, 0, 16, 1);
	return wait_for(f, queue_reset_done, i);
}

void fakedev_pause(struct fakedev *f)
{
	NEED(!virtio_pause(f->d, clock_ns() + PATIENCE_NS));
}

/* Data. */

void fakedev_kick(struct fakedev *f, unsigned i)
{
	uint64_t one = 1;

	NEED(write(f->d->queue[i].kick_fd, &one, sizeof(one)) == sizeof(one));
	fakedev_turn(f);
}

void fakedev_publish(struct fakedev *f, unsigned i)
{
	if (fakeq_publish(&f->q[i]))
		fakedev_kick(f, i);
	else
		fakedev_turn(f);
}

static bool has_used(struct fakedev *f, unsigned i)
{
	return fakeq_has_used(&f->q[i]);
}

bool fakedev_get(struct fakedev *f, unsigned i, struct fake_used *u)
{
	return wait_for(f, has_used, i) && fakeq_get(&f->q[i], u);
}
