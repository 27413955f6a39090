// SPDX-License-Identifier: GPL-2.0-or-later
#include "virtio/blk.h"

#include "base/container_of.h"
#include "base/iov.h"
#include "base/log.h"
#include "block/merge.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <linux/virtio_blk.h>
#include <linux/virtio_ids.h>
#include <stdlib.h>
#include <string.h>

/*
 * How it works
 *
 * A request is a header to read (16 bytes), data, and a status byte to write,
 * cut into pieces as the driver likes (5.2.6). It is popped into a slot, which
 * has all that it needs until it is done: the image reads and writes the
 * guest's own memory, nothing is copied and nothing allocated. Free slots are
 * a stack, so that a guest with few requests in flight uses few of them, and
 * the memory of few.
 *
 * A kick takes all chains there are, a batch at a time: what comes from the
 * host's page cache ends at once, and the driver is to see it, and make the next
 * requests, while we work on the next batch. What else ends in one turn of the
 * loop is published at the end of it, together, with one interrupt.
 *
 * Reads and writes that follow each other become one (block/merge.h). Such a run
 * goes on from one batch to the next, but not into the loop's sleep.
 *
 * The image has one end (struct blk_queue) for each ring, opened when the ring
 * starts, on its home loop. A ring that is to stop is let go when that is idle,
 * and so is a pause at rest: the host's kernel may be writing into the guest's
 * memory until then.
 *
 * With on-error=stop a request that failed is parked instead of told. The
 * machine is paused; the kick that comes when it goes on starts it again, from
 * a copy of the list of its pieces, since the image has used that up. A ring
 * that stops gives parked ones back as failed.
 */

#define RING_SIZE  256
#define NSLOTS     (RING_SIZE + 1) /* one more: for a chain that cannot be, which virtq_pop() refuses */
#define SEG_MAX    126
#define MAX_PIECES (SEG_MAX + 4) /* with header and status, and a little for drivers who cut these too */
#define MAX_RANGES 16            /* of a discard */
#define BATCH      16            /* requests that are taken before what has ended is published; or else */
#define BATCH_LEN  (256u << 10)  /* with so many bytes */
#define SECTOR     512u
#define ID_LEN     20 /* VIRTIO_BLK_ID_BYTES */

/* 5.2.5: most sectors of one range. Zeroes may have to be written. */
#define MAX_DISCARD   (8u << 20)
#define MAX_ZEROES    (256u << 10)

#define LOGGED_ERRORS 10

/* A request on its way. */
struct slot {
	struct blk_req req;
	struct vblk_queue *q;
	struct slot *next;  /* free, or parked */
	uint8_t *status;    /* in the guest's memory */
	struct chain chain; /* for virtq_push() */
	unsigned range, nranges;
	struct virtio_blk_discard_write_zeroes ranges[MAX_RANGES];
	struct iovec iov[MAX_PIECES];
};

struct vblk_queue {
	struct vblk *v;          /* [c] */
	unsigned index;          /* [c] */
	struct slot *slots;      /* [c] RING_SIZE */
	struct iovec *copies;    /* [c] MAX_PIECES for each slot, or NULL: nothing is ever tried again */
	struct blk_merge *merge; /* [c] */
	struct blk_queue *blk;   /* [l] NULL while the ring is off */
	struct slot *free;       /* [l] */
	unsigned nfresh;         /* [l] slots that were never used, from there on */
	struct slot *parked;     /* [l] */
	struct loop_later publish, again;
};

struct vblk {
	struct virtio_dev dev;
	struct vblk_config cfg; /* [c] */
	char serial[ID_LEN];    /* [c] padded with zeroes */
	struct blk_listener listener;
	atomic_bool writeback; /* config.writeback */
	atomic_uint logged;
	struct vblk_queue queue[VBLK_MAX_QUEUES];
};

static struct vblk *vblk_of(struct virtio_dev *d)
{
	return container_of(d, struct vblk, dev);
}

/* Ends. */

static uint8_t status_of(int error)
{
	if (!error)
		return VIRTIO_BLK_S_OK;
	return error == -EOPNOTSUPP ? VIRTIO_BLK_S_UNSUPP : VIRTIO_BLK_S_IOERR;
}

static void on_publish(struct loop_later *t)
{
	struct vblk_queue *q = container_of(t, struct vblk_queue, publish);

	virtio_flush(&q->v->dev, q->index);
}

/*
 * The chain goes back to the driver, with a status where there is room for one.
 * All of its writable bytes count as written, after an error too: the status is
 * the last of them.
 */
static void answer(struct slot *s, uint8_t status)
{
	struct vblk_queue *q = s->q;
	struct virtio_queue *vq = &q->v->dev.queue[q->index];

	if (s->status)
		*s->status = status;
	virtq_push(vq->ring, &s->chain, (uint32_t)s->chain.in_len);
	s->next = q->free;
	q->free = s;
	loop_later(vq->home, &q->publish);
}

static const char *op_name(enum blk_op op)
{
	static const char *const names[] = { [BLK_READ] = "read",
		                             [BLK_WRITE] = "write",
		                             [BLK_FLUSH] = "flush",
		                             [BLK_DISCARD] = "discard",
		                             [BLK_WRITE_ZEROES] = "zeroes" };

	return names[op];
}

/* The host's user should know, but not fill a disk with it. */
static void log_error(const struct slot *s, int error)
{
	struct vblk *v = s->q->v;

	if (atomic_fetch_add(&v->logged, 1) < LOGGED_ERRORS)
		log_line("%s: %s at %llu: %s", v->cfg.name, op_name(s->req.op), (unsigned long long)s->req.off,
		         strerror(-error));
}

static void park(struct slot *s, int error)
{
	s->next = s->q->parked;
	s->q->parked = s;
	s->q->v->cfg.failed(s->q->v->cfg.arg, error);
}

static void next_range(struct slot *s);

static void on_done(struct blk_req *r, int error)
{
	struct slot *s = container_of(r, struct slot, req);

	if (error && error != -EOPNOTSUPP)
		log_error(s, error);
	if (error && error != -EOPNOTSUPP && s->q->v->cfg.failed)
		park(s, error);
	else if (!error && s->range < s->nranges)
		next_range(s);
	else
		answer(s, status_of(error));
}

/* Requests. */

/* Without a cache that the driver knows of, what is written is durable when it is done (5.2.6.2). */
static unsigned durability(struct vblk *v)
{
	if (!virtio_has(&v->dev, VIRTIO_BLK_F_FLUSH))
		return BLK_FUA;
	return virtio_has(&v->dev, VIRTIO_BLK_F_CONFIG_WCE) && !atomic_load(&v->writeback) ? BLK_FUA : 0;
}

static uint64_t capacity(const struct vblk *v)
{
	return blk_size(v->cfg.image) / SECTOR;
}

static bool within(const struct vblk *v, uint64_t sector, uint64_t nsectors)
{
	uint64_t all = capacity(v);

	return sector <= all && nsectors <= all - sector;
}

static void submit(struct slot *s)
{
	blk_submit(s->q->blk, &s->req);
}

/* The data of a read are the writable bytes but the last, of a write the readable ones after the header. */
static void transfer(struct slot *s, enum blk_op op, uint64_t sector)
{
	bool forbidden = op == BLK_WRITE && blk_info(s->q->v->cfg.image)->read_only;
	struct chain *c = &s->chain;
	struct blk_req *r = &s->req;

	r->len = op == BLK_READ ? c->in_len - 1 : c->out_len - sizeof(struct virtio_blk_outhdr);
	if (forbidden || r->len % SECTOR || !within(s->q->v, sector, r->len / SECTOR)) {
		answer(s, VIRTIO_BLK_S_IOERR);
		return;
	}
	r->op = op;
	r->flags = op == BLK_WRITE ? durability(s->q->v) : 0;
	r->off = sector * SECTOR;
	if (op == BLK_READ) {
		r->iov = c->iov + c->nout;
		r->niov = c->nin;
		iov_trim(r->iov, &r->niov, r->len);
	} else {
		r->iov = c->iov;
		r->niov = c->nout;
		iov_skip(&r->iov, &r->niov, sizeof(struct virtio_blk_outhdr));
	}
	blk_merge_add(s->q->merge, s->q->blk, r);
}

static void flush(struct slot *s)
{
	blk_merge_end(s->q->merge); /* in the driver's order, though no one may count on it */
	s->req.op = BLK_FLUSH;
	s->req.off = s->req.len = 0;
	submit(s);
}

static void get_id(struct slot *s)
{
	size_t room = s->chain.in_len - 1;

	chain_put(&s->chain, s->q->v->serial, room < ID_LEN ? room : ID_LEN);
	answer(s, VIRTIO_BLK_S_OK);
}

/* The next range of a discard or of zeroes. */
static void next_range(struct slot *s)
{
	const struct virtio_blk_discard_write_zeroes *range = &s->ranges[s->range++];

	s->req.off = le64toh(range->sector) * SECTOR;
	s->req.len = (uint64_t)le32toh(range->num_sectors) * SECTOR;
	s->req.flags = s->req.op == BLK_WRITE_ZEROES ? durability(s->q->v) : 0;
	if (le32toh(range->flags) & VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP)
		s->req.flags |= BLK_MAY_UNMAP;
	submit(s);
}

/* 5.2.6.2: flags that there are not, or not for a discard, are unsupported. */
static uint8_t check_ranges(const struct slot *s)
{
	uint32_t max = s->req.op == BLK_DISCARD ? MAX_DISCARD : MAX_ZEROES;
	uint32_t known = s->req.op == BLK_DISCARD ? 0 : VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP;

	for (unsigned i = 0; i < s->nranges; i++)
		if (le32toh(s->ranges[i].flags) & ~known)
			return VIRTIO_BLK_S_UNSUPP;
	for (unsigned i = 0; i < s->nranges; i++) {
		uint32_t n = le32toh(s->ranges[i].num_sectors);

		if (n > max || !within(s->q->v, le64toh(s->ranges[i].sector), n))
			return VIRTIO_BLK_S_IOERR;
	}
	return VIRTIO_BLK_S_OK;
}

static void take_ranges(struct slot *s, enum blk_op op, unsigned feature)
{
	uint64_t len = s->chain.out_len - s->chain.out_pos;
	uint8_t status = VIRTIO_BLK_S_IOERR;

	s->req.op = op;
	if (!virtio_has(&s->q->v->dev, feature)) {
		status = VIRTIO_BLK_S_UNSUPP;
	} else if (len && len <= sizeof(s->ranges) && len % sizeof(s->ranges[0]) == 0) {
		chain_get(&s->chain, s->ranges, len);
		s->nranges = (unsigned)(len / sizeof(s->ranges[0]));
		status = check_ranges(s);
	}
	if (status == VIRTIO_BLK_S_OK)
		next_range(s);
	else
		answer(s, status);
}

/* The last writable byte. */
static uint8_t *find_status(const struct chain *c)
{
	for (unsigned i = c->nout + c->nin; i-- > c->nout;)
		if (c->iov[i].iov_len)
			return (uint8_t *)c->iov[i].iov_base + c->iov[i].iov_len - 1;
	return NULL;
}

static void start(struct slot *s)
{
	struct virtio_blk_outhdr h;
	struct vblk *v = s->q->v;

	s->range = s->nranges = 0;
	s->status = find_status(&s->chain);
	if (!s->status || chain_get(&s->chain, &h, sizeof(h)) != sizeof(h)) {
		guest_bug(v->cfg.name, "a request without header or status");
		answer(s, VIRTIO_BLK_S_IOERR);
		return;
	}
	switch (le32toh(h.type)) {
	case VIRTIO_BLK_T_IN: transfer(s, BLK_READ, le64toh(h.sector)); break;
	case VIRTIO_BLK_T_OUT: transfer(s, BLK_WRITE, le64toh(h.sector)); break;
	case VIRTIO_BLK_T_FLUSH: flush(s); break;
	case VIRTIO_BLK_T_GET_ID: get_id(s); break;
	case VIRTIO_BLK_T_DISCARD: take_ranges(s, BLK_DISCARD, VIRTIO_BLK_F_DISCARD); break;
	case VIRTIO_BLK_T_WRITE_ZEROES: take_ranges(s, BLK_WRITE_ZEROES, VIRTIO_BLK_F_WRITE_ZEROES); break;
	default: answer(s, VIRTIO_BLK_S_UNSUPP); break;
	}
}

/* Rings. */

static struct slot *take_slot(struct vblk_queue *q)
{
	struct slot *s = q->free;

	if (s) {
		q->free = s->next;
		return s;
	}
	assert(q->nfresh < NSLOTS); /* chains in flight have an id each */
	s = &q->slots[q->nfresh++];
	s->q = q;
	s->req.done = on_done;
	return s;
}

static struct iovec *copy_of(const struct slot *s)
{
	return &s->q->copies[(size_t)(s - s->q->slots) * MAX_PIECES];
}

/* A request is started, of so many bytes and one; 0: there is none, or no room. */
static uint64_t pop(struct vblk_queue *q)
{
	struct slot *s;

	s = take_slot(q);
	if (virtio_pop(&q->v->dev, q->index, &s->chain, s->iov, MAX_PIECES) != 1) {
		s->next = q->free;
		q->free = s;
		return 0;
	}
	if (q->copies)
		memcpy(copy_of(s), s->iov, (s->chain.nout + s->chain.nin) * sizeof(s->iov[0]));
	start(s);
	return s->chain.out_len + s->chain.in_len + 1;
}

static void restart_parked(struct vblk_queue *q)
{
	struct slot *s = q->parked, *next;

	q->parked = NULL; /* what fails again is parked anew, later */
	for (; s; s = next) {
		struct chain *c = &s->chain;

		next = s->next;
		memcpy(s->iov, copy_of(s), (c->nout + c->nin) * sizeof(s->iov[0]));
		c->out_pos = c->in_pos = 0;
		c->out_at = c->in_at = (struct chain_at){ 0 };
		start(s);
	}
}

/* False: there is nothing more. */
static bool pop_batch(struct vblk_queue *q)
{
	uint64_t n = 0, len;

	for (unsigned i = 0; i < BATCH && n < BATCH_LEN; i++) {
		len = pop(q);
		if (!len)
			return false;
		n += len;
	}
	return true;
}

static void take_requests(struct vblk_queue *q)
{
	struct virtio_queue *vq = &q->v->dev.queue[q->index];

	do {
		virtq_disarm(vq->ring);
		if (pop_batch(q)) {
			blk_merge_soon(q->merge);
			loop_later(vq->home, &q->again);
			return;
		}
		blk_merge_end(q->merge);
	} while (!vq->broken && virtio_rearm(vq));
}

/* Behind the ends of what was taken before. In a pause nothing is taken; a kick comes when it is over. */
static void on_again(struct loop_later *t)
{
	struct vblk_queue *q = container_of(t, struct vblk_queue, again);
	const struct virtio_queue *vq = &q->v->dev.queue[q->index];

	virtio_flush(&q->v->dev, q->index);
	if (vq->listening && !vq->broken)
		take_requests(q);
	else
		blk_merge_end(q->merge);
}

static void vblk_kick(struct virtio_dev *d, unsigned index)
{
	struct vblk_queue *q = &vblk_of(d)->queue[index];

	if (!q->blk)
		return;
	blk_queue_when_idle(q->blk, NULL, NULL); /* a pause that was given up */
	restart_parked(q);
	if (!q->again.queued)
		take_requests(q);
}

static void vblk_queue_start(struct virtio_dev *d, unsigned index)
{
	struct vblk_queue *q = &vblk_of(d)->queue[index];
	struct err err;

	if (blk_queue_open(q->v->cfg.image, d->queue[index].home, &q->blk, &err))
		virtio_broken(d, "queue %u: %s", index, err.msg);
}

static void publish_now(struct vblk_queue *q)
{
	loop_later_del(q->v->dev.queue[q->index].home, &q->publish);
	virtio_flush(&q->v->dev, q->index);
}

/* Nothing is in flight but what is parked, and that stays. */
static void on_at_rest(void *arg)
{
	struct vblk_queue *q = arg;

	publish_now(q);
	virtio_queue_paused(&q->v->dev, q->index);
}

/* What is waited for since an earlier pause, or a pause, counts for nothing any more. */
static void wait_idle(struct vblk_queue *q, void (*idle)(void *arg))
{
	blk_queue_when_idle(q->blk, NULL, NULL);
	blk_queue_when_idle(q->blk, idle, q);
}

static void vblk_queue_pause(struct virtio_dev *d, unsigned index)
{
	struct vblk_queue *q = &vblk_of(d)->queue[index];

	blk_merge_end(q->merge);
	if (!q->blk)
		virtio_queue_paused(d, index);
	else if (!blk_queue_inflight(q->blk))
		on_at_rest(q);
	else
		wait_idle(q, on_at_rest);
}

/* Likewise, but the ring goes away. */
static void on_idle(void *arg)
{
	struct vblk_queue *q = arg;

	for (struct slot *s = q->parked, *next; s; s = next) {
		next = s->next;
		answer(s, VIRTIO_BLK_S_IOERR);
	}
	q->parked = NULL;
	publish_now(q);
	blk_queue_close(q->blk);
	q->blk = NULL;
	virtio_queue_stopped(&q->v->dev, q->index);
}

static void vblk_queue_stop(struct virtio_dev *d, unsigned index)
{
	struct vblk_queue *q = &vblk_of(d)->queue[index];

	loop_later_del(d->queue[index].home, &q->again);
	blk_merge_end(q->merge);
	if (q->blk)
		wait_idle(q, on_idle);
	else
		virtio_queue_stopped(d, index);
}

/* Config space. */

static void vblk_config_write(struct virtio_dev *d, unsigned off, unsigned size, uint64_t val)
{
	struct vblk *v = vblk_of(d);

	if (off != offsetof(struct virtio_blk_config, wce) || size != 1 || !virtio_has(d, VIRTIO_BLK_F_CONFIG_WCE))
		return;
	pthread_mutex_lock(&d->lock);
	d->config[off] = val & 1;
	atomic_store(&v->writeback, val & 1);
	pthread_mutex_unlock(&d->lock);
}

/* 5.2.5.2: each driver begins with the cache that there is, and with none if it cannot flush it. */
static void vblk_accepted(struct virtio_dev *d)
{
	struct vblk *v = vblk_of(d);
	bool cached = blk_info(v->cfg.image)->writeback && virtio_has(d, VIRTIO_BLK_F_FLUSH);

	d->config[offsetof(struct virtio_blk_config, wce)] = cached;
	atomic_store(&v->writeback, cached);
}

static void on_resized(struct blk_listener *l)
{
	struct vblk *v = container_of(l, struct vblk, listener);
	uint64_t sectors = htole64(capacity(v));

	virtio_set_config(&v->dev, offsetof(struct virtio_blk_config, capacity), &sectors, sizeof(sectors));
}

static uint8_t exponent(uint32_t n)
{
	uint8_t e = 0;

	while (n > 1u << e)
		e++;
	return e;
}

static void fill_config(struct vblk *v)
{
	const struct blk_info *i = blk_info(v->cfg.image);
	uint32_t physical = i->block > v->cfg.block ? i->block : v->cfg.block;
	struct virtio_blk_config c = {
		.capacity = htole64(capacity(v)),
		.seg_max = htole32(SEG_MAX),
		.blk_size = htole32(v->cfg.block),
		.physical_block_exp = exponent(physical / v->cfg.block),
		.min_io_size = htole16((uint16_t)(physical / v->cfg.block)),
		.wce = i->writeback,
		.num_queues = htole16((uint16_t)v->cfg.nqueues),
		.max_discard_sectors = htole32(MAX_DISCARD),
		.max_discard_seg = htole32(MAX_RANGES),
		.discard_sector_alignment = htole32(physical / SECTOR),
		.max_write_zeroes_sectors = htole32(MAX_ZEROES),
		.max_write_zeroes_seg = htole32(MAX_RANGES),
		.write_zeroes_may_unmap = i->can_discard,
	};

	memcpy(v->dev.config, &c, v->dev.class->config_len);
	atomic_store(&v->writeback, i->writeback);
}

/* What this image is good for; the cache is offered only where there is one. */
static uint64_t features(const struct vblk *v)
{
	const struct blk_info *i = blk_info(v->cfg.image);
	uint64_t f = 1ull << VIRTIO_BLK_F_SEG_MAX | 1ull << VIRTIO_BLK_F_BLK_SIZE | 1ull << VIRTIO_BLK_F_TOPOLOGY;

	if (v->cfg.nqueues > 1)
		f |= 1ull << VIRTIO_BLK_F_MQ;
	if (i->read_only)
		return f | 1ull << VIRTIO_BLK_F_RO;
	if (i->writeback)
		f |= 1ull << VIRTIO_BLK_F_FLUSH | 1ull << VIRTIO_BLK_F_CONFIG_WCE;
	if (i->can_discard)
		f |= 1ull << VIRTIO_BLK_F_DISCARD;
	return f | 1ull << VIRTIO_BLK_F_WRITE_ZEROES;
}

/* Life. */

static const struct virtio_class vblk_class = {
	.name = "blk",
	.id = VIRTIO_ID_BLOCK,
	.config_len = offsetof(struct virtio_blk_config, max_secure_erase_sectors),
	.accepted = vblk_accepted,
	.queue_start = vblk_queue_start,
	.kick = vblk_kick,
	.asks = true,
	.queue_pause = vblk_queue_pause,
	.queue_stop = vblk_queue_stop,
	.config_write = vblk_config_write,
};

static int init_queue(struct vblk *v, unsigned i, struct err *err)
{
	struct vblk_queue *q = &v->queue[i];

	v->dev.queue[i].home = v->cfg.loops[i % v->cfg.nloops];
	q->v = v;
	q->index = i;
	q->publish.cb = on_publish;
	q->again.cb = on_again;
	q->slots = calloc(NSLOTS, sizeof(*q->slots));
	if (v->cfg.failed)
		q->copies = calloc(NSLOTS, sizeof(*q->copies) * MAX_PIECES);
	q->merge = blk_merge_new();
	return q->slots && q->merge && (q->copies || !v->cfg.failed) ? 0 : err_set(err, -ENOMEM, "out of memory");
}

int vblk_new(const struct vblk_config *cfg, const struct gmem *mem, struct vblk **out, struct err *err)
{
	struct virtio_init init = { .class = &vblk_class,
		                    .name = cfg->name,
		                    .mem = mem,
		                    .nqueues = cfg->nqueues,
		                    .queue_size = RING_SIZE,
		                    .loop = cfg->loops[0] };
	struct vblk *v = calloc(1, sizeof(*v));
	int error;

	assert(cfg->nqueues && cfg->nqueues <= VBLK_MAX_QUEUES && cfg->nloops);
	if (!v)
		return err_set(err, -ENOMEM, "out of memory");
	v->cfg = *cfg;
	if (cfg->serial)
		memcpy(v->serial, cfg->serial, strnlen(cfg->serial, ID_LEN));
	error = virtio_dev_init(&v->dev, &init, err);
	for (unsigned i = 0; !error && i < cfg->nqueues; i++)
		error = init_queue(v, i, err);
	if (error) {
		vblk_free(v);
		return error;
	}
	v->dev.offered |= features(v);
	fill_config(v);
	v->listener.resized = on_resized;
	blk_listen(cfg->image, &v->listener);
	*out = v;
	return 0;
}

void vblk_free(struct vblk *v)
{
	if (!v)
		return;
	virtio_dev_exit(&v->dev);
	if (v->listener.resized)
		blk_unlisten(v->cfg.image, &v->listener);
	for (unsigned i = 0; i < VBLK_MAX_QUEUES; i++) {
		free(v->queue[i].slots);
		free(v->queue[i].copies);
		blk_merge_free(v->queue[i].merge);
	}
	free(v);
}

struct virtio_dev *vblk_dev(struct vblk *v)
{
	return &v->dev;
}
