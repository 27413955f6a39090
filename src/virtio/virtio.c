// SPDX-License-Identifier: GPL-2.0-or-later
#include "virtio/virtio.h"

#include "base/container_of.h"
#include "base/evt.h"
#include "base/log.h"

#include <assert.h>
#include <errno.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ring.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/*
 * How it works
 *
 * Registers say what the driver wants; each queue's home loop makes it so.
 * Whenever a register changes what a queue should be (wanted()), the queue's
 * task is posted, and update() compares: it makes the ring and listens to
 * kicks, or stops listening and asks the device to let go. A device may take
 * its time; virtio_queue_stopped() is the end of it, and the last queue to
 * stop finishes a device reset. So a register write never waits for a device.
 *
 * A driver that breaks the rules stops its queue and gets DEVICE_NEEDS_RESET;
 * only a reset leads out.
 */

#define CORE_FEATURES                                                                                  \
	(1ull << VIRTIO_F_VERSION_1 | 1ull << VIRTIO_F_RING_PACKED | 1ull << VIRTIO_RING_F_EVENT_IDX | \
	 1ull << VIRTIO_RING_F_INDIRECT_DESC | 1ull << VIRTIO_F_RING_RESET)

#ifndef VIRTIO_F_RING_RESET
#define VIRTIO_F_RING_RESET 40
#endif

/* Chains served before others on the loop have their turn. */
#define SERVE_BUDGET 128

static void update(struct virtio_queue *q);

static bool has_status(const struct virtio_dev *d, uint8_t bit)
{
	return d->status & bit;
}

/* Should the ring exist? Under the lock. */
static bool wanted(const struct virtio_queue *q)
{
	const struct virtio_dev *d = q->dev;

	return q->enabled && !q->resetting && !d->resetting && has_status(d, VIRTIO_CONFIG_S_DRIVER_OK);
}

/* Home loop: kicks. */

static void on_kick(struct loop_fd *f, short revents)
{
	struct virtio_queue *q = container_of(f, struct virtio_queue, kick);

	q->dev->class->kick(q->dev, q->index);
}

/* While the loop looks by itself the driver need not kick. */
static bool has_request(struct loop_fd *f, bool last)
{
	struct virtio_queue *q = container_of(f, struct virtio_queue, kick);

	if (!q->ring || q->broken)
		return false;
	if (last)
		return virtq_rearm(q->ring);
	virtq_disarm(q->ring);
	return virtq_unseen(q->ring);
}

bool virtio_rearm(struct virtio_queue *q)
{
	assert(q->kick.ready);
	return !loop_looks(q->home) && virtq_rearm(q->ring);
}

static void listen_to_kicks(struct virtio_queue *q, bool on)
{
	if (on == q->listening)
		return;
	q->listening = on;
	if (q->away)
		q->dev->class->queue_run(q->dev, q->index, on);
	else if (on)
		loop_fd_add(q->home, &q->kick);
	else
		loop_fd_del(q->home, &q->kick);
}

/* Under the lock. */
static bool any_pausing(const struct virtio_dev *d)
{
	for (unsigned i = 0; i < d->nqueues; i++)
		if (d->queue[i].pausing || d->queue[i].state == VQ_STOPPING)
			return true;
	return false;
}

static void set_pausing(struct virtio_queue *q, bool on)
{
	pthread_mutex_lock(&q->dev->lock);
	q->pausing = on;
	if (!any_pausing(q->dev))
		pthread_cond_broadcast(&q->dev->stopped);
	pthread_mutex_unlock(&q->dev->lock);
}

void virtio_queue_paused(struct virtio_dev *d, unsigned index)
{
	assert(loop_here(d->queue[index].home));
	set_pausing(&d->queue[index], false);
}

/* Home loop: the ring is there, and the machine runs or is paused. */
static void let_run(struct virtio_queue *q, bool on)
{
	struct virtio_dev *d = q->dev;

	if (on == q->running)
		return;
	q->running = on;
	if (!q->broken)
		listen_to_kicks(q, on);
	if (on)
		set_pausing(q, false);
	if (on && !q->broken) {
		d->class->kick(d, q->index);
	} else if (!on && d->class->queue_pause) {
		set_pausing(q, true);
		d->class->queue_pause(d, q->index);
	}
}

/* Home loop: the ring's life. */

static void ring_start(struct virtio_queue *q, const struct virtq_config *cfg, bool paused)
{
	struct virtio_dev *d = q->dev;
	int error = virtq_new(d->mem, cfg, &q->ring);

	q->broken = error;
	q->away = q->running = false;
	if (error) {
		virtio_broken(d, "queue %u: impossible ring (size %u at %llx, %llx, %llx)", q->index, cfg->size,
		              (unsigned long long)cfg->desc, (unsigned long long)cfg->driver,
		              (unsigned long long)cfg->device);
		return;
	}
	if (d->class->queue_start)
		d->class->queue_start(d, q->index);
	let_run(q, !paused);
}

static void ring_stop(struct virtio_queue *q)
{
	struct virtio_dev *d = q->dev;

	listen_to_kicks(q, false);
	if (q->ring && d->class->queue_stop)
		d->class->queue_stop(d, q->index);
	else
		virtio_queue_stopped(d, q->index);
}

static void clear_queue(struct virtio_queue *q)
{
	q->enabled = q->resetting = false;
	q->cfg = (struct virtq_config){ .size = q->max_size };
}

/* Under the lock. */
static bool all_off(const struct virtio_dev *d)
{
	for (unsigned i = 0; i < d->nqueues; i++)
		if (d->queue[i].state != VQ_OFF)
			return false;
	return true;
}

/* Under the lock. */
static void finish_reset(struct virtio_dev *d)
{
	for (unsigned i = 0; i < d->nqueues; i++)
		clear_queue(&d->queue[i]);
	d->status = 0;
	d->resetting = false;
	atomic_store(&d->features, 0);
	pthread_cond_broadcast(&d->stopped);
}

/* Under the lock. */
static void reset(struct virtio_dev *d)
{
	d->resetting = true;
	if (all_off(d))
		finish_reset(d);
}

void virtio_queue_stopped(struct virtio_dev *d, unsigned index)
{
	struct virtio_queue *q = &d->queue[index];

	assert(loop_here(q->home));
	assert(!q->ring || q->broken || !virtq_inflight(q->ring));
	virtq_free(q->ring);
	q->ring = NULL;
	pthread_mutex_lock(&d->lock);
	assert(q->state == VQ_STOPPING);
	q->state = VQ_OFF;
	q->pausing = false;
	if (q->resetting)
		clear_queue(q);
	if (d->resetting && all_off(d))
		finish_reset(d);
	pthread_cond_broadcast(&d->stopped);
	pthread_mutex_unlock(&d->lock);
	update(q); /* it may be wanted again */
}

/* On the home loop: makes the queue what the registers want it to be. */
static void update(struct virtio_queue *q)
{
	struct virtio_dev *d = q->dev;
	struct virtq_config cfg;
	enum { NOTHING, START, STOP, FOLLOW } todo = NOTHING;
	bool paused;

	pthread_mutex_lock(&d->lock);
	paused = d->paused;
	cfg = q->cfg;
	if (q->state == VQ_OFF && wanted(q)) {
		q->state = VQ_ON;
		todo = START;
	} else if (q->state == VQ_ON && !wanted(q)) {
		q->state = VQ_STOPPING;
		todo = STOP;
	} else if (q->state == VQ_ON) {
		todo = FOLLOW;
	}
	pthread_mutex_unlock(&d->lock);
	if (todo == START)
		ring_start(q, &cfg, paused);
	else if (todo == STOP)
		ring_stop(q);
	else if (todo == FOLLOW && q->ring)
		let_run(q, !paused);
}

static void on_task(struct loop_task *t)
{
	update(container_of(t, struct virtio_queue, task));
}

static void post_all(struct virtio_dev *d)
{
	for (unsigned i = 0; i < d->nqueues; i++)
		loop_post(d->queue[i].home, &d->queue[i].task);
}

/* The device's side. */

static int init_queue(struct virtio_dev *d, unsigned i, const struct virtio_init *init, struct err *err)
{
	struct virtio_queue *q = &d->queue[i];

	q->dev = d;
	q->index = i;
	q->max_size = init->queue_size;
	q->home = init->loop;
	q->task.cb = on_task;
	q->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (q->kick_fd < 0)
		return err_sys(err, -errno, "%s: eventfd", d->name);
	q->kick = (struct loop_fd){ .fd = q->kick_fd, .events = POLLIN, .counter = true, .cb = on_kick };
	if (q->dev->class->asks)
		q->kick.ready = has_request;
	clear_queue(q);
	return 0;
}

int virtio_dev_init(struct virtio_dev *d, const struct virtio_init *init, struct err *err)
{
	int error = 0;

	assert(init->nqueues <= VIRTIO_MAX_QUEUES && init->class->config_len <= sizeof(d->config));
	*d = (struct virtio_dev){ .class = init->class, .name = init->name, .mem = init->mem };
	d->offered = init->class->features | CORE_FEATURES;
	pthread_mutex_init(&d->lock, NULL);
	pthread_cond_init(&d->stopped, NULL);
	d->queue = calloc(init->nqueues, sizeof(d->queue[0]));
	if (!d->queue)
		return err_set(err, -ENOMEM, "out of memory");
	for (unsigned i = 0; !error && i < init->nqueues; i++) {
		error = init_queue(d, i, init, err);
		d->nqueues = i + 1;
	}
	return error;
}

static void update_now(void *q)
{
	update(q);
}

/* Runs update() of every queue on its home loop and waits for it. */
static void update_all_now(struct virtio_dev *d)
{
	for (unsigned i = 0; i < d->nqueues; i++)
		loop_call(d->queue[i].home, update_now, &d->queue[i]);
}

void virtio_dev_stop(struct virtio_dev *d)
{
	pthread_mutex_lock(&d->lock);
	reset(d);
	pthread_mutex_unlock(&d->lock);
	update_all_now(d);
	pthread_mutex_lock(&d->lock);
	while (!all_off(d))
		pthread_cond_wait(&d->stopped, &d->lock);
	pthread_mutex_unlock(&d->lock);
	update_all_now(d); /* whoever called virtio_queue_stopped() has returned to its loop */
}

void virtio_dev_exit(struct virtio_dev *d)
{
	if (!d->queue)
		return;
	virtio_dev_stop(d);
	for (unsigned i = 0; i < d->nqueues; i++) {
		if (loop_here(d->queue[i].home)) /* elsewhere it ran when the queue was stopped */
			loop_task_del(d->queue[i].home, &d->queue[i].task);
		if (d->queue[i].kick_fd >= 0)
			close(d->queue[i].kick_fd);
	}
	free(d->queue);
	d->queue = NULL;
	pthread_cond_destroy(&d->stopped);
	pthread_mutex_destroy(&d->lock);
}

int virtio_pop(struct virtio_dev *d, unsigned index, struct chain *c, struct iovec *iov, unsigned max_iov)
{
	struct virtio_queue *q = &d->queue[index];
	int r;

	assert(loop_here(q->home));
	if (!q->ring || q->broken)
		return -EINVAL;
	r = virtq_pop(q->ring, c, iov, max_iov);
	if (r < 0) {
		q->broken = true;
		listen_to_kicks(q, false);
		virtio_broken(d, "queue %u: %s", index, virtq_why(q->ring));
	}
	return r;
}

void virtio_flush(struct virtio_dev *d, unsigned index)
{
	struct virtq *ring = d->queue[index].ring;

	if (!ring)
		return;
	loop_served(d->queue[index].home, virtq_answers(ring));
	if (virtq_flush(ring))
		d->transport->queue_irq(d, index);
}

/* True: the budget is used up. */
static bool serve_some(struct virtio_dev *d, unsigned index, unsigned *budget, struct iovec *iov, unsigned max_iov,
                       void (*serve)(struct virtio_dev *d, unsigned q, struct chain *c))
{
	struct chain c;

	for (; *budget; --*budget) {
		if (virtio_pop(d, index, &c, iov, max_iov) != 1)
			return false;
		serve(d, index, &c);
	}
	return true;
}

void virtio_serve(struct virtio_dev *d, unsigned index, struct iovec *iov, unsigned max_iov,
                  void (*serve)(struct virtio_dev *d, unsigned q, struct chain *c))
{
	struct virtio_queue *q = &d->queue[index];
	unsigned budget = SERVE_BUDGET;
	bool more;

	do {
		if (!q->ring || q->broken)
			return;
		virtq_disarm(q->ring);
		more = serve_some(d, index, &budget, iov, max_iov, serve);
		virtio_flush(d, index);
		if (more) {
			virtio_again(d, index);
			return;
		}
	} while (!q->broken && virtq_rearm(q->ring));
}

void virtio_again(struct virtio_dev *d, unsigned index)
{
	evt_signal(d->queue[index].kick_fd);
}

void virtio_broken(struct virtio_dev *d, const char *fmt, ...)
{
	char text[256];
	bool tell;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	guest_bug(d->name, "%s", text);
	pthread_mutex_lock(&d->lock);
	tell = has_status(d, VIRTIO_CONFIG_S_DRIVER_OK) && !has_status(d, VIRTIO_CONFIG_S_NEEDS_RESET);
	d->status |= VIRTIO_CONFIG_S_NEEDS_RESET;
	pthread_mutex_unlock(&d->lock);
	if (tell)
		d->transport->config_irq(d);
}

void virtio_set_config(struct virtio_dev *d, unsigned off, const void *val, unsigned len)
{
	bool tell;

	assert(off + len <= d->class->config_len);
	pthread_mutex_lock(&d->lock);
	memcpy(d->config + off, val, len);
	d->config_gen++;
	tell = has_status(d, VIRTIO_CONFIG_S_DRIVER_OK);
	pthread_mutex_unlock(&d->lock);
	if (tell)
		d->transport->config_irq(d);
}

/* The machine's side. */

static void set_paused(struct virtio_dev *d, bool on)
{
	pthread_mutex_lock(&d->lock);
	d->paused = on;
	pthread_mutex_unlock(&d->lock);
	update_all_now(d);
}

/* Under the lock. Nobody turns the calling loop while we wait: what is still under way there stays so. */
static bool any_pausing_here(const struct virtio_dev *d)
{
	for (unsigned i = 0; i < d->nqueues; i++)
		if ((d->queue[i].pausing || d->queue[i].state == VQ_STOPPING) && loop_here(d->queue[i].home))
			return true;
	return false;
}

int virtio_pause(struct virtio_dev *d, uint64_t until)
{
	struct timespec ts = { .tv_sec = (time_t)(until / 1000000000u), .tv_nsec = (long)(until % 1000000000u) };
	int error = 0;

	set_paused(d, true);
	pthread_mutex_lock(&d->lock);
	if (any_pausing_here(d))
		error = EBUSY;
	while (!error && any_pausing(d))
		error = pthread_cond_clockwait(&d->stopped, &d->lock, CLOCK_MONOTONIC, &ts);
	if (!any_pausing(d))
		error = 0;
	pthread_mutex_unlock(&d->lock);
	return -error;
}

void virtio_resume(struct virtio_dev *d)
{
	set_paused(d, false);
}

/* The transport's side. */

uint32_t virtio_reg_features(struct virtio_dev *d, unsigned select)
{
	return select < 2 ? (uint32_t)(d->offered >> (32 * select)) : 0;
}

uint32_t virtio_reg_driver_features(struct virtio_dev *d, unsigned select)
{
	return select < 2 ? (uint32_t)(atomic_load(&d->features) >> (32 * select)) : 0;
}

void virtio_reg_set_features(struct virtio_dev *d, unsigned select, uint32_t val)
{
	uint64_t mask = select < 2 ? 0xffffffffull << (32 * select) : 0;

	pthread_mutex_lock(&d->lock);
	if (!has_status(d, VIRTIO_CONFIG_S_FEATURES_OK) && mask)
		atomic_store(&d->features,
		             (atomic_load(&d->features) & ~mask) | (((uint64_t)val << (32 * select)) & mask));
	pthread_mutex_unlock(&d->lock);
}

uint8_t virtio_reg_status(struct virtio_dev *d)
{
	uint8_t s;

	pthread_mutex_lock(&d->lock);
	s = d->status;
	pthread_mutex_unlock(&d->lock);
	return s;
}

/* Under the lock. A driver only ever adds bits. */
static void add_status(struct virtio_dev *d, uint8_t val)
{
	uint64_t f = atomic_load(&d->features);
	uint8_t add = val & ~d->status & (uint8_t)~VIRTIO_CONFIG_S_NEEDS_RESET;

	if ((add & VIRTIO_CONFIG_S_FEATURES_OK) && ((f & ~d->offered) || !(f >> VIRTIO_F_VERSION_1 & 1)))
		add &= (uint8_t)~VIRTIO_CONFIG_S_FEATURES_OK; /* refused: the driver reads it back */
	if ((add & VIRTIO_CONFIG_S_DRIVER_OK) && !((d->status | add) & VIRTIO_CONFIG_S_FEATURES_OK))
		add &= (uint8_t)~VIRTIO_CONFIG_S_DRIVER_OK;
	d->status |= add;
	if ((add & VIRTIO_CONFIG_S_FEATURES_OK) && d->class->accepted)
		d->class->accepted(d);
}

void virtio_reg_set_status(struct virtio_dev *d, uint8_t val)
{
	pthread_mutex_lock(&d->lock);
	if (!d->resetting) {
		if (val)
			add_status(d, val);
		else
			reset(d);
	}
	pthread_mutex_unlock(&d->lock);
	post_all(d);
}

uint64_t virtio_reg_config(struct virtio_dev *d, unsigned off, unsigned size)
{
	uint64_t val = 0;

	if (off >= d->class->config_len || size > d->class->config_len - off)
		return ~0ull;
	pthread_mutex_lock(&d->lock);
	memcpy(&val, d->config + off, size);
	pthread_mutex_unlock(&d->lock);
	return val;
}

void virtio_reg_set_config(struct virtio_dev *d, unsigned off, unsigned size, uint64_t val)
{
	if (off < d->class->config_len && size <= d->class->config_len - off && d->class->config_write)
		d->class->config_write(d, off, size, val);
}

uint8_t virtio_reg_config_generation(struct virtio_dev *d)
{
	uint8_t gen;

	pthread_mutex_lock(&d->lock);
	gen = d->config_gen;
	pthread_mutex_unlock(&d->lock);
	return gen;
}

/* Under the lock. */
static uint64_t queue_reg(const struct virtio_queue *q, enum virtio_queue_reg r)
{
	switch (r) {
	case VQ_SIZE: return q->cfg.size;
	case VQ_ENABLE: return q->enabled && !q->resetting;
	case VQ_RESET: return q->resetting;
	case VQ_DESC: return q->cfg.desc;
	case VQ_DRIVER: return q->cfg.driver;
	case VQ_DEVICE: return q->cfg.device;
	}
	return 0;
}

uint64_t virtio_reg_queue(struct virtio_dev *d, unsigned q, enum virtio_queue_reg r)
{
	uint64_t val;

	if (q >= d->nqueues)
		return 0; /* size 0: there is no such queue */
	pthread_mutex_lock(&d->lock);
	val = queue_reg(&d->queue[q], r);
	pthread_mutex_unlock(&d->lock);
	return val;
}

/* Under the lock: from now on the queue is what its registers say. */
static void enable(struct virtio_queue *q)
{
	uint64_t f = atomic_load(&q->dev->features);

	q->enabled = true;
	q->cfg.packed = f >> VIRTIO_F_RING_PACKED & 1;
	q->cfg.event_idx = f >> VIRTIO_RING_F_EVENT_IDX & 1;
	q->cfg.indirect = f >> VIRTIO_RING_F_INDIRECT_DESC & 1;
}

/* Under the lock: virtio 1.2, 2.6.1. */
static void reset_queue(struct virtio_queue *q)
{
	if (!(atomic_load(&q->dev->features) >> VIRTIO_F_RING_RESET & 1) || !q->enabled)
		return;
	if (q->state == VQ_OFF)
		clear_queue(q);
	else
		q->resetting = true;
}

static void put_part(uint64_t *reg, unsigned shift, unsigned bits, uint64_t val)
{
	uint64_t mask = bits == 64 ? ~0ull : ((1ull << bits) - 1) << shift;

	*reg = (*reg & ~mask) | (val << shift & mask);
}

/* Under the lock. */
static void set_queue_reg(struct virtio_queue *q, enum virtio_queue_reg r, unsigned shift, unsigned bits, uint64_t val)
{
	if (r == VQ_RESET && val == 1)
		reset_queue(q);
	if (q->enabled)
		return; /* what a ring is made of is fixed while it is in use */
	switch (r) {
	case VQ_SIZE:
		if (val && val <= q->max_size)
			q->cfg.size = (uint16_t)val;
		break;
	case VQ_DESC: put_part(&q->cfg.desc, shift, bits, val); break;
	case VQ_DRIVER: put_part(&q->cfg.driver, shift, bits, val); break;
	case VQ_DEVICE: put_part(&q->cfg.device, shift, bits, val); break;
	case VQ_ENABLE:
		if (val == 1 && has_status(q->dev, VIRTIO_CONFIG_S_FEATURES_OK))
			enable(q);
		break;
	case VQ_RESET: break;
	}
}

void virtio_reg_set_queue(struct virtio_dev *d, unsigned q, enum virtio_queue_reg r, unsigned shift, unsigned bits,
                          uint64_t val)
{
	if (q >= d->nqueues)
		return;
	pthread_mutex_lock(&d->lock);
	if (!d->resetting)
		set_queue_reg(&d->queue[q], r, shift, bits, val);
	pthread_mutex_unlock(&d->lock);
	loop_post(d->queue[q].home, &d->queue[q].task);
}
