// SPDX-License-Identifier: GPL-2.0-or-later
#include "virtio/p9.h"

#include "base/container_of.h"

#include <errno.h>
#include <linux/virtio_9p.h>
#include <linux/virtio_ids.h>
#include <stdlib.h>
#include <string.h>

/*
 * How it works
 *
 * A chain's pieces are handed to the server as they are: it reads the message
 * and writes the reply in the guest's memory. What it cannot answer at once
 * stays in flight, in a slot, and is given back in any order.
 *
 * A reset forgets what is in flight: the server promises that none of it
 * touches the guest's memory, or calls back, from then on. A pause keeps it in
 * the server, likewise.
 */

#define QUEUE_SIZE 128

struct slot {
	struct vp9 *v;
	struct slot *next, **at; /* free; or in flight, and what points here */
	struct chain chain;
	struct p9_req req;
	struct iovec iov[P9_MAX_IOV];
};

/* [l] */
struct vp9 {
	struct virtio_dev dev;
	struct p9 *server;
	struct slot *idle, *busy;
	bool held;
};

static struct slot *slot_get(struct vp9 *v)
{
	struct slot *s = v->idle;

	if (!s) {
		s = malloc(sizeof(*s));
		if (!s)
			return NULL;
		s->v = v;
	} else {
		v->idle = s->next;
	}
	s->next = v->busy;
	s->at = &v->busy;
	if (s->next)
		s->next->at = &s->next;
	v->busy = s;
	return s;
}

static void slot_put(struct slot *s)
{
	*s->at = s->next;
	if (s->next)
		s->next->at = s->at;
	s->next = s->v->idle;
	s->v->idle = s;
}

static void on_done(struct p9_req *r, uint32_t len)
{
	struct slot *s = container_of(r, struct slot, req);
	struct vp9 *v = s->v;

	virtq_push(v->dev.queue[0].ring, &s->chain, len);
	slot_put(s);
	virtio_flush(&v->dev, 0);
}

/* 1: taken; 0: there is none; or a negative errno: the queue is of no more use. */
static int serve_one(struct vp9 *v)
{
	struct slot *s = slot_get(v);
	int r;

	if (!s)
		return -ENOMEM;
	r = virtio_pop(&v->dev, 0, &s->chain, s->iov, P9_MAX_IOV);
	if (r <= 0) {
		slot_put(s);
		return r;
	}
	s->req = (struct p9_req){ .out = s->chain.iov,
		                  .nout = s->chain.nout,
		                  .in = s->chain.iov + s->chain.nout,
		                  .nin = s->chain.nin,
		                  .done = on_done };
	r = p9_submit(v->server, &s->req);
	if (r < 0)
		virtio_broken(&v->dev, "a message that is none");
	if (r) {
		virtq_push(v->dev.queue[0].ring, &s->chain, r > 0 ? (uint32_t)r : 0);
		slot_put(s);
	}
	return r < 0 ? r : 1;
}

/* After a pause. */
static void let_go(struct vp9 *v)
{
	if (v->held)
		p9_hold(v->server, false);
	v->held = false;
}

static void vp9_kick(struct virtio_dev *d, unsigned q)
{
	struct vp9 *v = container_of(d, struct vp9, dev);
	struct virtq *ring = d->queue[q].ring;
	unsigned n = 0;
	int r;

	let_go(v);
	do {
		virtq_disarm(ring);
		while ((r = serve_one(v)) > 0 && ++n < QUEUE_SIZE)
			;
	} while (!r && virtio_rearm(&d->queue[q]));
	virtio_flush(d, q);
	if (r > 0)
		virtio_again(d, q); /* others on the loop have their turn */
}

/* What a worker does may take for ever, but it does it with memory of its own. */
static void vp9_pause(struct virtio_dev *d, unsigned q)
{
	struct vp9 *v = container_of(d, struct vp9, dev);

	v->held = true;
	p9_hold(v->server, true);
	virtio_queue_paused(d, q);
}

static void vp9_stop(struct virtio_dev *d, unsigned q)
{
	struct vp9 *v = container_of(d, struct vp9, dev);

	p9_reset(v->server);
	let_go(v);
	while (v->busy) {
		virtq_push(d->queue[q].ring, &v->busy->chain, 0); /* never flushed */
		slot_put(v->busy);
	}
	virtio_queue_stopped(d, q);
}

static const struct virtio_class vp9_class = {
	.name = "9p",
	.id = VIRTIO_ID_9P,
	.features = 1ull << VIRTIO_9P_MOUNT_TAG,
	.config_len = sizeof(struct virtio_9p_config) + VP9_TAG_MAX,
	.kick = vp9_kick,
	.asks = true,
	.queue_pause = vp9_pause,
	.queue_stop = vp9_stop,
};

int vp9_new(const struct p9_export *ex, const char *tag, const struct gmem *mem, struct loop *loop, struct vp9 **out,
            struct err *err)
{
	struct virtio_init init = {
		.class = &vp9_class, .name = "9p", .mem = mem, .nqueues = 1, .queue_size = QUEUE_SIZE, .loop = loop
	};
	uint16_t len = (uint16_t)strlen(tag);
	struct vp9 *v = calloc(1, sizeof(*v));
	int error;

	if (!v)
		return err_set(err, -ENOMEM, "out of memory");
	error = virtio_dev_init(&v->dev, &init, err);
	if (!error)
		error = p9_new(ex, loop, &v->server, err);
	if (error) {
		vp9_free(v);
		return error;
	}
	memcpy(v->dev.config, &len, sizeof(len));
	memcpy(v->dev.config + sizeof(len), tag, len); /* NOLINT(bugprone-not-null-terminated-result): none is wanted */
	*out = v;
	return 0;
}

void vp9_free(struct vp9 *v)
{
	struct slot *s;

	if (!v)
		return;
	virtio_dev_exit(&v->dev);
	p9_free(v->server);
	while ((s = v->idle)) {
		v->idle = s->next;
		free(s);
	}
	free(v);
}

struct virtio_dev *vp9_dev(struct vp9 *v)
{
	return &v->dev;
}
