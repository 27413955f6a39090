/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef VIRTIO_VIRTIO_H
#define VIRTIO_VIRTIO_H

#include "base/err.h"
#include "base/loop.h"
#include "bus/gmem.h"
#include "virtio/virtq.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * What every virtio device has (virtio 1.2, chapter 2 and 3.1): status,
 * features, config space, queues and their life cycle. A device is a constant
 * class with a few functions and an instance; a transport (virtio/pci.h) calls
 * the virtio_reg_* functions from vCPU threads.
 *
 * Threads: registers under @lock on any vCPU's thread. Each queue has a home
 * loop; its ring and its class functions are touched only there. Starting and
 * stopping is posted to the home loop and completes later: a reset reads as
 * unfinished status, a queue reset as unfinished queue_reset, until then.
 */

#define VIRTIO_MAX_QUEUES 64

struct virtio_dev;

struct virtio_class {
	const char *name;
	uint16_t id;         /* virtio 1.2 chapter 5 */
	uint64_t features;   /* of the device type; the core adds ring and transport features */
	uint32_t config_len; /* bytes of struct virtio_*_config */
	/* The driver's features are final (FEATURES_OK). Under the device's lock; may be NULL. */
	void (*accepted)(struct virtio_dev *d);
	/* On the queue's home loop. */
	void (*queue_start)(struct virtio_dev *d, unsigned q); /* the ring is there; may be NULL */
	void (*kick)(struct virtio_dev *d, unsigned q); /* chains may have come; also once after start and resume */
	bool asks; /* a driver's next request often follows the answer to the last: worth spinning for (loop_spin()) */
	/*
	 * The ring is going away: finish or drop what is in flight and call
	 * virtio_queue_stopped(), now or later. NULL: the device holds nothing.
	 */
	void (*queue_stop)(struct virtio_dev *d, unsigned q);
	/*
	 * The machine pauses; kicks are not heard until kick() is called again.
	 * Finish or keep what is in flight, then touch the guest's memory no more
	 * and call virtio_queue_paused(), now or later. NULL: the device touches
	 * it only in kick(), and elsewhere only after a look at @paused.
	 */
	void (*queue_pause)(struct virtio_dev *d, unsigned q);
	/*
	 * Only of a queue that queue_start() has made @away: whoever works on
	 * its ring shall begin, or leave off until the next call. It has left
	 * off when queue_stop() comes.
	 */
	void (*queue_run)(struct virtio_dev *d, unsigned q, bool on);
	/* The driver writes @size bytes of config space at @off. Any vCPU's thread, without a lock; may be NULL. */
	void (*config_write)(struct virtio_dev *d, unsigned off, unsigned size, uint64_t val);
};

enum virtq_state { VQ_OFF, VQ_ON, VQ_STOPPING };

struct virtio_queue {
	struct virtio_dev *dev;  /* [c] */
	unsigned index;          /* [c] */
	uint16_t max_size;       /* [c] */
	struct loop *home;       /* [c] */
	int kick_fd;             /* [c] eventfd; the transport has it signalled by the guest's write */
	struct virtq *ring;      /* [l] NULL: off */
	struct loop_fd kick;     /* [l] */
	bool listening;          /* [l] @kick is registered */
	bool running;            /* [l] not paused */
	bool away;               /* [l] somebody else, the kernel, works on the ring: kicks are not heard here */
	bool broken;             /* [l] popping has failed: no more kicks */
	struct loop_task task;   /* start, stop, pause, resume: look at what is wanted */
	enum virtq_state state;  /* [m] */
	bool enabled;            /* [m] queue_enable */
	bool resetting;          /* [m] queue_reset asked for, not done */
	bool pausing;            /* [m] queue_pause() was called, and is not answered */
	struct virtq_config cfg; /* [m] while not enabled, then constant */
};

/* Whom the core tells; filled in by the transport. Any thread. */
struct virtio_transport_ops {
	void (*queue_irq)(struct virtio_dev *d, unsigned q);
	void (*config_irq)(struct virtio_dev *d);
	/* An eventfd that does what queue_irq() does, until the next reset, for the kernel; -1: there is none. */
	int (*queue_irq_fd)(struct virtio_dev *d, unsigned q);
};

struct virtio_dev {
	const struct virtio_class *class;             /* [c] */
	const char *name;                             /* [c] for messages: "disk0" */
	const struct gmem *mem;                       /* [c] */
	const struct virtio_transport_ops *transport; /* [c] */
	void *transport_data;                         /* [c] */
	uint64_t offered;                             /* [c] features */
	unsigned nqueues;                             /* [c] */
	struct virtio_queue *queue;                   /* [c] nqueues of them */

	pthread_mutex_t lock;
	pthread_cond_t stopped;    /* some queue is off, or at rest */
	uint8_t status;            /* [m] */
	_Atomic uint64_t features; /* what the driver took; written under the lock */
	uint8_t config_gen;        /* [m] */
	bool resetting;            /* [m] */
	bool paused;               /* [m] */
	uint8_t config[256];       /* [m] class->config_len bytes, little-endian */
};

/* The device's side. */

struct virtio_init {
	const struct virtio_class *class;
	const char *name;
	const struct gmem *mem;
	unsigned nqueues;
	uint16_t queue_size; /* of every queue */
	struct loop *loop;   /* home of every queue; a device may change queue[i].home before anything runs */
};
int virtio_dev_init(struct virtio_dev *d, const struct virtio_init *init, struct err *err);

/*
 * A reset, finished when this returns: every queue is off and no class
 * function runs. On the main loop, vCPUs stopped. A queue whose home is the
 * calling loop must stop at once when asked to.
 */
void virtio_dev_stop(struct virtio_dev *d);

/* Stops @d if need be and frees what virtio_dev_init() made. Its transport is gone. Safe on a half-made @d. */
void virtio_dev_exit(struct virtio_dev *d);

static inline bool virtio_has(struct virtio_dev *d, unsigned feature)
{
	return atomic_load_explicit(&d->features, memory_order_relaxed) >> feature & 1;
}

/* On the home loop: virtq_pop() which reports a broken driver; 1, 0, or a negative errno once the queue is no good. */
int virtio_pop(struct virtio_dev *d, unsigned q, struct chain *c, struct iovec *iov, unsigned max_iov);
/*
 * On the home loop, for devices that answer at once: takes chains, hands each
 * to @serve, which pushes it, and publishes, until there are none; after a
 * fair number it goes on in a later turn of the loop.
 */
void virtio_serve(struct virtio_dev *d, unsigned q, struct iovec *iov, unsigned max_iov,
                  void (*serve)(struct virtio_dev *d, unsigned q, struct chain *c));
/* As if the guest had kicked. Any thread. */
void virtio_again(struct virtio_dev *d, unsigned q);
/*
 * On the home loop, of a class that @asks: virtq_rearm(), unless the loop is
 * about to look at the queue by itself.
 */
bool virtio_rearm(struct virtio_queue *q);

/* On the home loop: virtq_flush() and the interrupt. */
void virtio_flush(struct virtio_dev *d, unsigned q);
/* On the home loop: the answer to queue_stop(). */
void virtio_queue_stopped(struct virtio_dev *d, unsigned q);
/* On the home loop: the answer to queue_pause(). */
void virtio_queue_paused(struct virtio_dev *d, unsigned q);
/* The driver broke the rules: told once in a while, DEVICE_NEEDS_RESET, config interrupt. Any thread. */
void virtio_broken(struct virtio_dev *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Changes config space from the device's side, with generation and interrupt. Any thread. */
void virtio_set_config(struct virtio_dev *d, unsigned off, const void *val, unsigned len);

/*
 * The machine's side, on the main loop, vCPUs stopped. When virtio_pause()
 * returns 0 no home loop takes a chain, nothing that was taken is under way and
 * the guest's memory stands still, until virtio_resume() lets them look again.
 * Waits until @until (clock_ns()) for what is in flight: -ETIMEDOUT; a queue
 * whose home is the calling loop must be at rest at once, or it is -EBUSY. After
 * an error it is half paused: resume it.
 */
int virtio_pause(struct virtio_dev *d, uint64_t until) __attribute__((warn_unused_result));
void virtio_resume(struct virtio_dev *d);

/* The transport's side: registers of struct virtio_pci_common_cfg by meaning. Any thread. */
uint32_t virtio_reg_features(struct virtio_dev *d, unsigned select);
void virtio_reg_set_features(struct virtio_dev *d, unsigned select, uint32_t val);
uint32_t virtio_reg_driver_features(struct virtio_dev *d, unsigned select);
uint8_t virtio_reg_status(struct virtio_dev *d);
void virtio_reg_set_status(struct virtio_dev *d, uint8_t val);
uint64_t virtio_reg_config(struct virtio_dev *d, unsigned off, unsigned size);
void virtio_reg_set_config(struct virtio_dev *d, unsigned off, unsigned size, uint64_t val);
uint8_t virtio_reg_config_generation(struct virtio_dev *d);

enum virtio_queue_reg { VQ_SIZE, VQ_ENABLE, VQ_RESET, VQ_DESC, VQ_DRIVER, VQ_DEVICE };
/* Of queue @q, which may be any number. 64-bit addresses are written in halves: @shift 0 or 32. */
uint64_t virtio_reg_queue(struct virtio_dev *d, unsigned q, enum virtio_queue_reg r);
void virtio_reg_set_queue(struct virtio_dev *d, unsigned q, enum virtio_queue_reg r, unsigned shift, unsigned bits,
                          uint64_t val);

#endif
