// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Virtqueues: every kind of ring under a good driver (fakedrv.c), in one thread
 * and in two, and under a table of bad ones. After whatever the driver did,
 * virtq_pop() reports it or gives a chain that lies in guest memory.
 */
#include "fakedrv.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#define LEN(a)       (sizeof(a) / sizeof(*(a)))
#define BANK         (8ull << 20)
#define MAX_IOV      VIRTQ_MAX_SIZE
#define MODES        8 /* FAKE_PACKED | FAKE_EVENT_IDX | FAKE_INDIRECT */
#define SLOT         64u
#define MAX_SEGS     8u
#define STRESS_TOTAL 400000u /* chains, over all modes */
#define LOST_MS      20000   /* without a wake-up for so long: it was lost */

struct fixture {
	struct fakemem mem;
	struct fakeq drv;
	struct virtq *q;
	uint64_t buf; /* guest address: SLOT bytes per piece, MAX_SEGS pieces per slot */
	struct iovec iov[MAX_IOV];
	uint64_t seed;
};

/* splitmix64 */
static uint64_t rnd(uint64_t *seed, uint64_t below)
{
	uint64_t z = *seed += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return (z ^ z >> 31) % below;
}

static void open_ring(struct fixture *f, uint16_t size, unsigned mode)
{
	fakemem_init(&f->mem, BANK, 2);
	f->seed = size * 8u + mode;
	fakeq_init(&f->drv, &f->mem, size, mode);
	f->buf = fakemem_alloc(&f->mem, (uint64_t)size * MAX_SEGS * SLOT, SLOT);
	assert_int_equal(virtq_new(&f->mem.gmem, &f->drv.cfg, &f->q), 0);
}

static void close_ring(struct fixture *f)
{
	virtq_free(f->q);
	fakemem_free(&f->mem);
}

static int pop(struct fixture *f, struct chain *c)
{
	return virtq_pop(f->q, c, f->iov, MAX_IOV);
}

static void must_pop(struct fixture *f, struct chain *c)
{
	if (pop(f, c) != 1)
		fail_msg("nothing popped: %s", virtq_why(f->q));
}

/* A chain as a good device may see it. */
static void check_chain(const struct fixture *f, const struct chain *c)
{
	uint64_t out = 0, in = 0;

	assert_true(c->id < f->drv.cfg.size);
	assert_in_range(c->ndesc, 1, f->drv.cfg.size);
	assert_in_range(c->nout + c->nin, 0, MAX_IOV);
	for (unsigned i = 0; i < c->nout + c->nin; i++) {
		assert_true(c->iov[i].iov_len > 0);
		assert_true(fakemem_has(&f->mem, c->iov[i].iov_base, c->iov[i].iov_len));
		*(i < c->nout ? &out : &in) += c->iov[i].iov_len;
	}
	assert_true(out == c->out_len && in == c->in_len && out + in <= 1ull << 32);
	assert_true(!c->out_pos && !c->in_pos);
}

/* Good drivers. */

struct load {
	uint64_t sent, done;
	bool taken[VIRTQ_MAX_SIZE]; /* buffer slots on their way */
	struct {
		unsigned slot, nout, nin;
	} by_token[1 << 16];
};

/* One chain from a free slot; false: no room. Every readable byte is the low byte of the token. */
static bool add_random(struct fixture *f, struct load *l)
{
	unsigned n = (unsigned)rnd(&f->seed, MAX_SEGS) + 1, nout, slot = 0;
	struct fake_seg seg[MAX_SEGS];

	if (n > f->drv.cfg.size && !f->drv.use_indirect)
		n = f->drv.cfg.size;
	nout = (unsigned)rnd(&f->seed, n + 1);
	while (slot < f->drv.cfg.size && l->taken[slot])
		slot++;
	if (slot == f->drv.cfg.size)
		return false;
	for (unsigned i = 0; i < n; i++) {
		seg[i] = (struct fake_seg){ f->buf + (slot * MAX_SEGS + i) * SLOT, (uint32_t)rnd(&f->seed, SLOT) + 1,
			                    i >= nout };
		memset(fakemem_ptr(&f->mem, seg[i].addr, SLOT), i < nout ? (int)(l->sent & 0xff) : 0xee, SLOT);
	}
	if (fakeq_add(&f->drv, seg, n, l->sent) < 0)
		return false;
	l->taken[slot] = true;
	l->by_token[l->sent & 0xffff].slot = slot;
	l->by_token[l->sent & 0xffff].nout = nout;
	l->by_token[l->sent & 0xffff].nin = n - nout;
	l->sent++;
	return true;
}

/* The device's work: reads what there is, answers with its complement in odd bites. */
static uint32_t serve(struct fixture *f, struct chain *c, uint8_t *value)
{
	uint8_t buf[SLOT * MAX_SEGS];
	uint32_t want = (uint32_t)rnd(&f->seed, c->in_len + 1), put = 0;
	size_t n;

	check_chain(f, c);
	*value = 0x5a;
	while ((n = chain_get(c, buf, 1 + rnd(&f->seed, sizeof(buf))))) {
		for (size_t i = 0; i < n; i++)
			assert_int_equal(buf[i], buf[0]);
		*value = buf[0];
	}
	assert_true(c->out_pos == c->out_len);
	memset(buf, 0xff & ~*value, sizeof(buf));
	while (put < want) {
		n = 1 + rnd(&f->seed, want - put);
		assert_int_equal(chain_put(c, buf, n), n);
		put += (uint32_t)n;
	}
	assert_true(c->in_pos == put);
	return put;
}

static void check_answer(struct fixture *f, struct load *l, const struct fake_used *u)
{
	unsigned slot = l->by_token[u->token & 0xffff].slot, nout = l->by_token[u->token & 0xffff].nout;
	unsigned nin = l->by_token[u->token & 0xffff].nin;
	const uint8_t *p = fakemem_ptr(&f->mem, f->buf + (slot * MAX_SEGS + nout) * SLOT, SLOT);
	uint8_t value = nout ? (uint8_t)u->token : 0x5a;

	assert_true(l->taken[slot]);
	if (nin)
		assert_int_equal(p[0], u->len ? 0xff & ~value : 0xee);
	l->taken[slot] = false;
	l->done++;
}

static void collect(struct fixture *f, struct load *l)
{
	struct fake_used u;

	while (fakeq_get(&f->drv, &u))
		check_answer(f, l, &u);
}

/* Pops everything into @held, then gives back @n of them in any order. */
static unsigned serve_some(struct fixture *f, struct chain *held, uint32_t *written, unsigned nheld, bool all)
{
	struct chain c;
	uint8_t value;

	while (pop(f, &c) == 1) {
		written[nheld] = serve(f, &c, &value);
		held[nheld++] = c;
	}
	assert_null(virtq_why(f->q));
	for (unsigned n = all ? nheld : (unsigned)rnd(&f->seed, nheld + 1); n; n--) {
		unsigned i = (unsigned)rnd(&f->seed, nheld);

		virtq_push(f->q, &held[i], written[i]);
		held[i] = held[--nheld];
		written[i] = written[nheld];
	}
	assert_int_equal(virtq_inflight(f->q), nheld);
	return nheld;
}

static void run_load(struct fixture *f, uint64_t total)
{
	static struct chain held[VIRTQ_MAX_SIZE];
	static uint32_t written[VIRTQ_MAX_SIZE];
	struct load *l = calloc(1, sizeof(*l));
	unsigned nheld = 0;

	while (l->done < total) {
		unsigned batch = 1 + (unsigned)rnd(&f->seed, f->drv.cfg.size);

		while (batch-- && add_random(f, l))
			;
		fakeq_publish(&f->drv);
		nheld = serve_some(f, held, written, nheld, false);
		virtq_flush(f->q);
		collect(f, l);
	}
	nheld = serve_some(f, held, written, nheld, true);
	virtq_flush(f->q);
	collect(f, l);
	assert_true(l->done == l->sent && !nheld && !f->drv.live);
	assert_false(virtq_flush(f->q));
	free(l);
}

static void test_every_ring(void **state)
{
	static const uint16_t sizes[] = { 1, 2, 3, 4, 5, 8, 16, 32, 64, 100, 128, 256, 512, 777, 1024 };

	for (unsigned mode = 0; mode < MODES; mode++)
		for (unsigned i = 0; i < LEN(sizes); i++) {
			struct fixture f;

			if (!(mode & FAKE_PACKED) && (sizes[i] & (sizes[i] - 1)))
				continue;
			open_ring(&f, sizes[i], mode);
			run_load(&f, 1500);
			close_ring(&f);
		}
}

static struct fake_seg one_byte(const struct fixture *f, bool write)
{
	return (struct fake_seg){ f->buf, 1, write };
}

static void add_simple(struct fixture *f, unsigned n, unsigned nseg)
{
	struct fake_seg seg[MAX_SEGS];

	for (unsigned i = 0; i < nseg; i++)
		seg[i] = one_byte(f, true);
	while (n--)
		assert_true(fakeq_add(&f->drv, seg, nseg, 0) >= 0);
}

static void serve_n(struct fixture *f, unsigned n)
{
	struct chain c;

	while (n--) {
		must_pop(f, &c);
		virtq_push(f->q, &c, 0);
	}
}

static unsigned drain_used(struct fixture *f)
{
	struct fake_used u;
	unsigned n = 0;

	while (fakeq_get(&f->drv, &u))
		n++;
	return n;
}

/* 16-bit indices, and the wrap counters, go round and round. */
static void test_wrap(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture f;
		uint64_t total = 0;

		open_ring(&f, mode & FAKE_PACKED ? 7 : 8, mode);
		for (unsigned n; total < 3 * 65536; total += n) {
			n = 1 + (unsigned)total % 3;
			add_simple(&f, n, 1 + (unsigned)total % 2);
			fakeq_publish(&f.drv);
			serve_n(&f, n);
			virtq_flush(f.q);
			assert_int_equal(drain_used(&f), n);
		}
		run_load(&f, 5000);
		close_ring(&f);
	}
}

/* What is pushed is the driver's at the flush, not before, and all at once. */
static void test_flush_publishes(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture f;

		open_ring(&f, 8, mode);
		for (unsigned round = 0; round < 50; round++) {
			add_simple(&f, 3, 2);
			fakeq_publish(&f.drv);
			serve_n(&f, 3);
			assert_false(fakeq_has_used(&f.drv));
			virtq_flush(f.q);
			assert_int_equal(drain_used(&f), 3);
			assert_int_equal(virtq_inflight(f.q), 0);
		}
		close_ring(&f);
	}
}

/* How many of @n flushes, of one chain each, want an interrupt when the driver never re-arms. */
static unsigned irqs_of(struct fixture *f, unsigned n)
{
	unsigned irqs = 0;

	while (n--) {
		add_simple(f, 1, 1);
		fakeq_publish(&f->drv);
		serve_n(f, 1);
		irqs += virtq_flush(f->q);
		drain_used(f);
	}
	return irqs;
}

static void test_interrupts(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture f;
		bool event_idx = mode & FAKE_EVENT_IDX;

		open_ring(&f, 16, mode);
		assert_false(virtq_flush(f.q));      /* nothing pushed */
		assert_int_equal(irqs_of(&f, 1), 1); /* the very first */
		fakeq_disarm(&f.drv);
		assert_int_equal(irqs_of(&f, 100), 0);
		assert_false(fakeq_arm(&f.drv, 0));
		assert_int_equal(irqs_of(&f, 10), event_idx ? 1 : 10);
		if (event_idx) {
			assert_false(fakeq_arm(&f.drv, 11));
			assert_int_equal(irqs_of(&f, 11), 0);
			assert_int_equal(irqs_of(&f, 1), 1);
			assert_int_equal(irqs_of(&f, 15), 0);
		}
		close_ring(&f);
	}
}

/* One decision for a batch, wherever in it the awaited entry lies. */
static void test_interrupt_per_batch(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++)
		for (unsigned batch = 1; batch <= 8; batch++)
			for (unsigned after = 0; after < 8 && (mode & FAKE_EVENT_IDX); after++)
				for (unsigned skew = 0; skew < 9; skew++) {
					struct fixture f;

					open_ring(&f, 8, mode);
					irqs_of(&f, skew);
					fakeq_arm(&f.drv, after);
					add_simple(&f, batch, 1);
					fakeq_publish(&f.drv);
					serve_n(&f, batch);
					assert_int_equal(virtq_flush(f.q), after < batch);
					assert_false(virtq_flush(f.q));
					close_ring(&f);
				}
}

/* A packed driver may await an entry in the middle of a chain. */
static void test_interrupt_inside_chain(void **state)
{
	struct fixture f;

	open_ring(&f, 8, FAKE_PACKED | FAKE_EVENT_IDX);
	for (unsigned after = 0; after < 8; after++)
		for (unsigned round = 0; round < 8; round++) {
			fakeq_arm(&f.drv, after);
			add_simple(&f, 1, 3);
			fakeq_publish(&f.drv);
			serve_n(&f, 1);
			assert_int_equal(virtq_flush(f.q), after < 3);
			drain_used(&f);
		}
	close_ring(&f);
}

/* Kicks asked for while disarmed, armed, and at the first chain. */
static void test_kicks(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		bool event_idx = mode & FAKE_EVENT_IDX;
		struct fixture f;
		struct chain c;

		open_ring(&f, 16, mode);
		add_simple(&f, 1, 1);
		assert_true(fakeq_publish(&f.drv)); /* a new queue wants them */
		for (unsigned round = 0; round < 100; round++) {
			virtq_disarm(f.q);
			virtq_disarm(f.q);
			serve_n(&f, 1);
			for (unsigned i = 0; i < 5; i++) {
				add_simple(&f, 1, 1);
				assert_false(fakeq_publish(&f.drv));
			}
			assert_true(virtq_rearm(f.q)); /* they are there, and nobody kicked */
			virtq_disarm(f.q);
			serve_n(&f, 5);
			assert_int_equal(pop(&f, &c), 0);
			assert_false(virtq_rearm(f.q));
			assert_false(virtq_rearm(f.q));
			virtq_flush(f.q);
			drain_used(&f);
			add_simple(&f, 1, 1);
			assert_true(fakeq_publish(&f.drv));
			if (event_idx || round % 2)
				continue;
			add_simple(&f, 1, 1); /* without EVENT_IDX each one kicks */
			assert_true(fakeq_publish(&f.drv));
			serve_n(&f, 1);
		}
		close_ring(&f);
	}
}

/*
 * The driver offers a chain while the device goes to sleep, in every order of
 * their steps: the device sees it, or is kicked.
 */
static void test_sleep_against_offer(void **state)
{
	static const char *const orders[] = { "ekpr", "epkr", "eprk", "pekr", "perk", "prek" };

	for (unsigned mode = 0; mode < MODES; mode++)
		for (unsigned i = 0; i < LEN(orders); i++)
			for (unsigned skew = 0; skew < 20; skew++) {
				bool awake = false;
				struct fixture f;
				struct chain c;

				open_ring(&f, 8, mode);
				irqs_of(&f, skew);
				virtq_disarm(f.q);
				add_simple(&f, 1, 1);
				for (const char *s = orders[i]; *s; s++) {
					if (*s == 'e')
						fakeq_expose(&f.drv);
					else if (*s == 'k')
						awake |= fakeq_must_kick(&f.drv);
					else if (*s == 'p')
						awake |= pop(&f, &c) == 1;
					else
						awake |= virtq_rearm(f.q);
				}
				if (!awake)
					fail_msg("mode %u, order %s: a lost kick", mode, orders[i]);
				close_ring(&f);
			}
}

/* The device finishes a chain while the driver goes to sleep: the driver sees it, or is interrupted. */
static void test_sleep_against_finish(void **state)
{
	static const char *const orders[] = { "fgah", "gfah", "gafh", "gahf" };

	for (unsigned mode = 0; mode < MODES; mode++)
		for (unsigned i = 0; i < LEN(orders); i++)
			for (unsigned skew = 0; skew < 20; skew++) {
				bool awake = false;
				struct fake_used u;
				struct fixture f;

				open_ring(&f, 8, mode);
				irqs_of(&f, skew);
				fakeq_disarm(&f.drv);
				add_simple(&f, 1, 1);
				fakeq_publish(&f.drv);
				serve_n(&f, 1);
				for (const char *s = orders[i]; *s; s++) {
					if (*s == 'f')
						awake |= virtq_flush(f.q);
					else if (*s == 'g')
						awake |= fakeq_get(&f.drv, &u);
					else if (*s == 'a')
						fakeq_arm_store(&f.drv, 0);
					else
						awake |= fakeq_has_used(&f.drv);
				}
				if (!awake)
					fail_msg("mode %u, order %s: a lost interrupt", mode, orders[i]);
				close_ring(&f);
			}
}

/* Chains put back come again, the same; they are no news to virtq_rearm(), a new one is. */
static void test_unpop(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture f;

		open_ring(&f, 16, mode);
		for (unsigned round = 0; round < 100; round++) {
			struct chain a, b, c, again;

			add_simple(&f, 1, 1);
			add_simple(&f, 2, 3);
			fakeq_publish(&f.drv);
			must_pop(&f, &a);
			must_pop(&f, &b);
			virtq_push(f.q, &a, 1);
			virtq_flush(f.q);
			must_pop(&f, &c);
			virtq_unpop(f.q, &c);
			virtq_unpop(f.q, &b);
			assert_int_equal(virtq_inflight(f.q), 0);
			assert_false(virtq_rearm(f.q));
			add_simple(&f, 1, 1);
			assert_true(fakeq_publish(&f.drv));
			assert_true(virtq_rearm(f.q));
			must_pop(&f, &again);
			assert_true(again.id == b.id && again.nin == b.nin && again.ndesc == b.ndesc);
			virtq_push(f.q, &again, 1);
			must_pop(&f, &again);
			assert_int_equal(again.id, c.id);
			virtq_push(f.q, &again, 1);
			serve_n(&f, 1);
			assert_int_equal(pop(&f, &again), 0);
			virtq_flush(f.q);
			assert_int_equal(drain_used(&f), 4);
		}
		close_ring(&f);
	}
}

/* Known but never popped: rearm says so, nobody will kick for it. */
static void test_rearm_unfinished(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture f;

		open_ring(&f, 8, mode);
		add_simple(&f, 3, 1);
		fakeq_publish(&f.drv);
		serve_n(&f, 1);
		assert_true(virtq_rearm(f.q));
		serve_n(&f, 2);
		assert_false(virtq_rearm(f.q));
		close_ring(&f);
	}
}

static void test_cursors(void **state)
{
	static const unsigned lens[] = { 1, 5, 3, 64, 2, 1 };
	uint8_t data[76], back[80];
	struct fake_seg seg[12];
	struct fixture f;
	struct chain c;

	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i * 7);
	for (unsigned step = 1; step <= 77; step++) {
		unsigned at = 0;
		size_t n;

		open_ring(&f, 16, 0);
		for (unsigned i = 0; i < 12; i++) {
			seg[i] = (struct fake_seg){ f.buf + i * SLOT, lens[i % 6], i >= 6 };
			if (i >= 6)
				continue;
			memcpy(fakemem_ptr(&f.mem, seg[i].addr, SLOT), data + at, lens[i]);
			at += lens[i];
		}
		assert_int_equal(at, sizeof(data));
		fakeq_add(&f.drv, seg, 12, 0);
		fakeq_publish(&f.drv);
		must_pop(&f, &c);
		assert_int_equal(chain_get(&c, back, 0), 0);
		for (at = 0; (n = chain_get(&c, back + at, step > 80 - at ? 80 - at : step)); at += (unsigned)n)
			assert_int_equal(n, at + step > sizeof(data) ? sizeof(data) - at : step);
		assert_memory_equal(back, data, sizeof(data));
		for (at = 0; at < sizeof(data); at += (unsigned)n)
			n = chain_put(&c, data + at, step > sizeof(data) - at ? sizeof(data) - at : step);
		assert_int_equal(chain_put(&c, data, 1), 0);
		assert_true(c.in_pos == sizeof(data) && c.out_pos == sizeof(data));
		at = 0;
		for (unsigned i = 6; i < 12; at += lens[i++ - 6])
			assert_memory_equal(fakemem_ptr(&f.mem, seg[i].addr, SLOT), data + at, lens[i - 6]);
		close_ring(&f);
	}
}

/* Where the rings may lie. */

static int try_config(struct virtq_config cfg, const struct fixture *f)
{
	struct virtq *q = NULL;
	int error = virtq_new(&f->mem.gmem, &cfg, &q);

	virtq_free(q);
	return error;
}

static void test_config(void **state)
{
	struct virtq_config good = { .size = 8, .desc = 0x1000, .driver = 0x2000, .device = 0x3000 }, c;
	struct fixture f;

	fakemem_init(&f.mem, BANK, 2);
	assert_int_equal(try_config(good, &f), 0);
	for (unsigned size = 0; size <= 0xffff; size++) {
		bool power = size && !(size & (size - 1));

		c = good;
		c.desc = 0x10000;
		c.size = (uint16_t)size;
		assert_int_equal(try_config(c, &f), power && size <= VIRTQ_MAX_SIZE ? 0 : -EINVAL);
		c.packed = true;
		assert_int_equal(try_config(c, &f), size && size <= VIRTQ_MAX_SIZE ? 0 : -EINVAL);
	}
	for (unsigned packed = 0; packed < 2; packed++)
		for (unsigned off = 1; off < 16; off++) {
			c = good, c.packed = packed, c.desc += off;
			assert_int_equal(try_config(c, &f), -EINVAL);
			c = good, c.packed = packed, c.driver += off;
			assert_int_equal(try_config(c, &f), off % (packed ? 4 : 2) ? -EINVAL : 0);
			c = good, c.packed = packed, c.device += off;
			assert_int_equal(try_config(c, &f), off % 4 ? -EINVAL : 0);
		}
	fakemem_free(&f.mem);
}

/* Each area in turn ends at, or one step beyond, the end of a bank or the end of RAM, or wraps. */
static void test_config_edges(void **state)
{
	static const uint64_t split_len[] = { 16 * 8, 4 + 2 * 8, 4 + 8 * 8 }, packed_len[] = { 16 * 8, 4, 4 };
	static const uint64_t align[] = { 16, 4, 4 };
	struct fixture f;

	fakemem_init(&f.mem, BANK, 2);
	for (unsigned mode = 0; mode < 4; mode++)
		for (unsigned i = 0; i < 3; i++)
			for (unsigned edge = 1; edge <= 2; edge++) {
				struct virtq_config c = { .size = 8,
					                  .desc = 0x1000,
					                  .driver = 0x2000,
					                  .device = 0x3000,
					                  .packed = mode & FAKE_PACKED,
					                  .event_idx = mode & FAKE_EVENT_IDX };
				uint64_t *at = i == 0 ? &c.desc : i == 1 ? &c.driver : &c.device;
				uint64_t len = (c.packed ? packed_len : split_len)[i];

				len += i && c.event_idx && !c.packed ? 2 : 0;
				*at = (edge * BANK - len) / align[i] * align[i];
				assert_int_equal(try_config(c, &f), 0);
				*at += align[i]; /* across the edge, or the first bytes of the second bank */
				assert_int_equal(try_config(c, &f), edge == 1 && *at == BANK ? 0 : -EFAULT);
				*at = 0 - align[i];
				assert_int_equal(try_config(c, &f), -EFAULT);
				*at = edge == 1 ? 2 * BANK : 1ull << 63;
				assert_int_equal(try_config(c, &f), -EFAULT);
			}
	fakemem_free(&f.mem);
}

/*
 * Two threads. Each side sleeps whenever it has nothing to do, on an eventfd
 * that the other writes only when asked, so a wake-up that is lost stops both.
 */
struct stress {
	struct fixture *f;
	uint64_t total;
	int kick, irq; /* eventfds */
	uint64_t kicks, irqs;
	atomic_bool lost, stop;
};

static void wake(int fd)
{
	uint64_t one = 1;

	if (write(fd, &one, sizeof(one)) != sizeof(one))
		abort();
}

static bool sleep_on(struct stress *s, int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	uint64_t count;

	if (poll(&p, 1, LOST_MS) != 1 || read(fd, &count, sizeof(count)) != sizeof(count))
		atomic_store(&s->lost, true);
	return !atomic_load(&s->lost);
}

/* Answers each chain with its token, complemented; some at once, some later, in any order. */
static unsigned device_turn(struct stress *s, struct chain *held, unsigned nheld, uint64_t *seed)
{
	struct iovec iov[4];
	uint64_t token;
	struct chain c;

	while (virtq_pop(s->f->q, &c, iov, LEN(iov)) == 1) {
		if (chain_get(&c, &token, 8) != 8)
			abort();
		token = ~token;
		if (chain_put(&c, &token, 8) != 8)
			abort();
		held[nheld++] = c;
		if (rnd(seed, 4))
			continue;
		for (unsigned n = (unsigned)rnd(seed, nheld + 1); n; n--) {
			unsigned i = (unsigned)rnd(seed, nheld);

			virtq_push(s->f->q, &held[i], 8);
			held[i] = held[--nheld];
		}
	}
	return nheld;
}

static void *device_thread(void *arg)
{
	struct stress *s = arg;
	struct chain held[VIRTQ_MAX_SIZE];
	uint64_t seed = 4711;

	do {
		do {
			unsigned nheld;

			virtq_disarm(s->f->q);
			nheld = device_turn(s, held, 0, &seed);
			while (nheld)
				virtq_push(s->f->q, &held[--nheld], 8);
			if (virtq_flush(s->f->q)) {
				s->irqs++;
				wake(s->irq);
			}
		} while (virtq_rearm(s->f->q));
	} while (sleep_on(s, s->kick) && !atomic_load(&s->stop));
	return NULL;
}

/* Two pieces out, one or two in: a slot of the token's own, free again when its chain is. */
static bool offer(struct stress *s, uint64_t token, uint64_t slot)
{
	uint64_t at = s->f->buf + slot * SLOT;
	unsigned n = token % 3 ? 2 : 4;
	struct fake_seg seg[4] = { { at, 8, false }, { at + 16, 8, true } };

	if (n == 4) {
		seg[0].len = 3;
		seg[1] = (struct fake_seg){ at + 3, 5, false };
		seg[2] = (struct fake_seg){ at + 16, 1, true };
		seg[3] = (struct fake_seg){ at + 17, 7, true };
	}
	if (fakeq_add(&s->f->drv, seg, n, slot) < 0)
		return false;
	memcpy(fakemem_ptr(&s->f->mem, at, 8), &token, 8);
	return true;
}

static void check_offer(struct stress *s, const struct fake_used *u)
{
	uint64_t sent, got, at = s->f->buf + u->token * SLOT;

	memcpy(&sent, fakemem_ptr(&s->f->mem, at, 8), 8);
	memcpy(&got, fakemem_ptr(&s->f->mem, at + 16, 8), 8);
	if (u->len != 8 || got != ~sent)
		abort();
}

/* Until @total are done: collect, offer a few, kick if asked to; sleep when there is neither. */
static void drive(struct stress *s)
{
	uint64_t free_slots[VIRTQ_MAX_SIZE], nfree = 0, sent = 0, done = 0, seed = 1147;
	struct fakeq *drv = &s->f->drv;
	struct fake_used u;

	for (; nfree < drv->cfg.size; nfree++)
		free_slots[nfree] = nfree;
	while (done < s->total) {
		uint64_t batch = 1 + rnd(&seed, 8), before = sent + done;

		fakeq_disarm(drv);
		while (fakeq_get(drv, &u)) {
			check_offer(s, &u);
			free_slots[nfree++] = u.token;
			done++;
		}
		while (batch-- && sent < s->total && nfree && offer(s, sent, free_slots[nfree - 1])) {
			nfree--;
			sent++;
		}
		if (fakeq_publish(drv)) {
			s->kicks++;
			wake(s->kick);
		}
		if (sent + done == before && !fakeq_arm(drv, 0) && !sleep_on(s, s->irq))
			return;
	}
}

static void stress(unsigned mode, uint16_t size, uint64_t total)
{
	struct fixture f;
	struct stress s = { .f = &f, .total = total, .kick = eventfd(0, 0), .irq = eventfd(0, 0) };
	pthread_t t;

	open_ring(&f, size, mode);
	assert_int_equal(pthread_create(&t, NULL, device_thread, &s), 0);
	drive(&s);
	atomic_store(&s.stop, true);
	wake(s.kick);
	pthread_join(t, NULL);
	if (atomic_load(&s.lost))
		fail_msg("mode %u, size %u: a lost wake-up", mode, size);
	assert_null(virtq_why(f.q));
	assert_int_equal(virtq_inflight(f.q), 0);
	if (getenv("VERBOSE"))
		printf("mode %u size %u: %llu chains, %llu kicks, %llu interrupts\n", mode, size,
		       (unsigned long long)total, (unsigned long long)s.kicks, (unsigned long long)s.irqs);
	close(s.kick);
	close(s.irq);
	close_ring(&f);
}

static void test_two_threads(void **state)
{
	static const uint16_t sizes[] = { 4, 16, 256 };

	for (unsigned mode = 0; mode < MODES; mode++)
		for (unsigned i = 0; i < LEN(sizes); i++)
			stress(mode, sizes[i], STRESS_TOTAL / MODES / LEN(sizes));
}

/*
 * The two races that the fences are for, started on both sides at the same
 * moment, often: asking for a kick against offering, and finishing against
 * asking for an interrupt. (Without its fence virtq.c fails here in
 * every few runs, if there are two CPUs.)
 */
struct race {
	struct fixture *f;
	atomic_uint round, answered;
	bool finish;   /* this round's race */
	bool dev_says; /* more came, or: interrupt */
};

#define RACES 20000u

static void wait_for(atomic_uint *at, unsigned round)
{
	for (unsigned spins = 0; atomic_load(at) != round; spins++)
		if (spins > 1000)
			sched_yield();
}

static void *racing_device(void *arg)
{
	struct race *r = arg;

	for (unsigned i = 1; i <= RACES; i++) {
		wait_for(&r->round, i);
		r->dev_says = r->finish ? virtq_flush(r->f->q) : virtq_rearm(r->f->q);
		atomic_store(&r->answered, i);
	}
	return NULL;
}

/* One race of either kind; false: neither side noticed the other. */
static bool race(struct race *r, unsigned i)
{
	struct fakeq *drv = &r->f->drv;
	bool drv_says;

	r->finish = i & 1;
	virtq_disarm(r->f->q);
	fakeq_disarm(drv);
	add_simple(r->f, 1, 1);
	if (r->finish) {
		fakeq_publish(drv);
		serve_n(r->f, 1);
	}
	atomic_store(&r->round, i);
	for (unsigned spins = i * 7 % 300; spins; spins--) /* the other needs a while to notice */
		__asm__ volatile("");
	drv_says = r->finish ? fakeq_arm(drv, 0) : fakeq_publish(drv);
	wait_for(&r->answered, i);
	if (!r->finish)
		serve_n(r->f, 1);
	virtq_flush(r->f->q);
	drain_used(r->f);
	return drv_says || r->dev_says;
}

static void test_races(void **state)
{
	for (unsigned mode = 0; mode < FAKE_INDIRECT; mode++) {
		struct fixture f;
		struct race r = { .f = &f };
		unsigned lost = 0;
		pthread_t t;

		open_ring(&f, 8, mode);
		assert_int_equal(pthread_create(&t, NULL, racing_device, &r), 0);
		for (unsigned i = 1; i <= RACES; i++)
			lost += !race(&r, i);
		pthread_join(t, NULL);
		if (lost)
			fail_msg("mode %u: %u lost wake-ups", mode, lost);
		close_ring(&f);
	}
}

/* What is odd but allowed. */

/* Split: entry @i of @table, raw. */
static void put_split(struct vring_desc *table, unsigned i, uint64_t addr, uint64_t len, unsigned flags, unsigned next)
{
	table[i] = (struct vring_desc){ addr, (uint32_t)len, (uint16_t)flags, (uint16_t)next };
}

/* Split: offers @head, raw. */
static void put_avail(struct fixture *f, unsigned head)
{
	struct vring_avail *a = f->drv.avail;

	a->ring[a->idx % f->drv.cfg.size] = (uint16_t)head;
	a->idx++;
}

#define P_AVAIL (1u << VRING_PACKED_DESC_F_AVAIL)
#define P_USED  (1u << VRING_PACKED_DESC_F_USED)
#define P_LAP2  (P_AVAIL | P_USED) /* xor: available on the second lap */

/* Packed: entry @i, raw, available on the first lap. */
static void put_packed(struct fixture *f, unsigned i, uint64_t addr, uint64_t len, unsigned id, unsigned flags)
{
	f->drv.ring[i] = (struct vring_packed_desc){ addr, (uint32_t)len, (uint16_t)id, (uint16_t)(flags ^ P_AVAIL) };
}

/* Either: chain of the @n pieces, from ring entry 0, each with its own flags (WRITE) and no regard for anything. */
struct raw {
	uint64_t addr, len;
	unsigned flags;
};

static void put_chain(struct fixture *f, const struct raw *r, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		unsigned flags = r[i].flags | (i + 1 < n ? VRING_DESC_F_NEXT : 0);

		if (f->drv.cfg.packed)
			put_packed(f, i, r[i].addr, r[i].len, 0, flags);
		else
			put_split(f->drv.desc, i, r[i].addr, r[i].len, flags, i + 1);
	}
	if (!f->drv.cfg.packed)
		put_avail(f, 0);
}

/* Either: a chain of one entry that points to a table of @n pieces at @table; in it the bits of @noise are set, too. */
static void put_indirect(struct fixture *f, uint64_t table, const struct raw *r, unsigned n, unsigned noise)
{
	uint8_t *at = fakemem_ptr(&f->mem, table, n * 16);
	struct raw head = { table, n * 16, VRING_DESC_F_INDIRECT | noise };

	for (unsigned i = 0; i < n; i++, at += 16) {
		struct vring_packed_desc p = { r[i].addr, (uint32_t)r[i].len, 0xbad,
			                       (uint16_t)(r[i].flags | (noise ? ~VRING_DESC_F_WRITE : 0)) };
		struct vring_desc d = { r[i].addr, (uint32_t)r[i].len,
			                (uint16_t)(r[i].flags | (i + 1 < n ? VRING_DESC_F_NEXT : 0) |
			                           (noise ? 0x7ff8 : 0)),
			                (uint16_t)(i + 1) };

		memcpy(at, f->drv.cfg.packed ? (void *)&p : (void *)&d, 16);
	}
	put_chain(f, &head, 1);
}

#define R 0
#define W VRING_DESC_F_WRITE

static void expect(struct fixture *f, unsigned nout, unsigned nin, uint64_t out_len, uint64_t in_len)
{
	struct chain c;

	must_pop(f, &c);
	check_chain(f, &c);
	assert_true(c.nout == nout && c.nin == nin && c.out_len == out_len && c.in_len == in_len);
}

static void test_zero_length(void **state)
{
	const struct raw some[] = { { 0x5000, 0, R }, { 0x5000, 5, R },     { 0, 0, R },
		                    { ~0ull, 0, W },  { 0x5000, 0, R },     { 0x5000, 2, R },
		                    { 0x5000, 3, W }, { 1ull << 63, 0, R }, { 0x5000, 4, W } };
	const struct raw none[] = { { 0, 0, R }, { 0, 0, W } };

	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture f;

		open_ring(&f, 16, mode);
		put_chain(&f, some, LEN(some));
		expect(&f, 2, 2, 7, 7);
		close_ring(&f);
		open_ring(&f, 16, mode);
		put_chain(&f, none, LEN(none));
		expect(&f, 0, 0, 0, 0);
		close_ring(&f);
		if (!(mode & FAKE_INDIRECT))
			continue;
		open_ring(&f, 16, mode);
		put_indirect(&f, 0x5000, some, LEN(some), 0);
		expect(&f, 2, 2, 7, 7);
		close_ring(&f);
	}
}

/* At any address, longer than the ring, with bits that mean nothing there. */
static void test_indirect_tables(void **state)
{
	static struct raw r[VIRTQ_MAX_SIZE];

	for (unsigned i = 0; i < LEN(r); i++)
		r[i] = (struct raw){ 0x200000 + i, 2, i < 500 ? R : W };
	for (unsigned mode = FAKE_INDIRECT; mode < MODES; mode++)
		for (unsigned off = 0; off < 16 && mode & FAKE_INDIRECT; off++) {
			struct fixture f;

			open_ring(&f, 4, mode);
			put_indirect(&f, 0x100000 + off, r, LEN(r), off & 1 ? W : 0);
			expect(&f, 500, LEN(r) - 500, 1000, 2 * LEN(r) - 1000);
			close_ring(&f);
		}
}

/* Split: direct descriptors, then an indirect one. */
static void test_indirect_tail(void **state)
{
	const struct raw r[] = { { 0x5000, 1, R }, { 0x5000, 2, W } };
	struct fixture f;

	open_ring(&f, 4, FAKE_INDIRECT);
	put_indirect(&f, 0x6000, r, 2, 0);
	put_split(f.drv.desc, 1, 0x5000, 4, VRING_DESC_F_NEXT, 3);
	put_split(f.drv.desc, 3, 0x5000, 8, VRING_DESC_F_NEXT, 0);
	f.drv.avail->ring[0] = 1;
	expect(&f, 3, 1, 13, 2);
	close_ring(&f);
}

/* The same memory twice, up to the last byte of a bank, and exactly 4 GiB. */
static void test_extremes(void **state)
{
	const struct raw r[] = { { 0, BANK, R }, { 0, BANK, R }, { BANK, BANK, W }, { 2 * BANK - 1, 1, W } };
	static struct raw big[VIRTQ_MAX_SIZE];

	for (unsigned i = 0; i < LEN(big); i++)
		big[i] = (struct raw){ BANK, 4 << 20, i < 100 ? R : W };
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture f;

		open_ring(&f, 1024, mode);
		put_chain(&f, r, LEN(r));
		expect(&f, 2, 2, 2 * BANK, BANK + 1);
		close_ring(&f);
		open_ring(&f, 1024, mode);
		put_chain(&f, big, LEN(big));
		expect(&f, 100, 924, 400ull << 20, 3696ull << 20);
		close_ring(&f);
	}
}

/* Hostile drivers. */

#define LEN_OF_RING  16
#define OUTSIDE      "not in RAM"
#define TABLE_LEN    "wrong length"
#define BOTH(r, ...) static const struct raw r[] = { __VA_ARGS__ }

static void bad_address(struct fixture *f)
{
	BOTH(r, { 2 * BANK, 1, R });
	put_chain(f, r, LEN(r));
}

static void bad_last_byte(struct fixture *f)
{
	BOTH(r, { 0x5000, 1, R }, { 2 * BANK - 16, 17, W });
	put_chain(f, r, LEN(r));
}

static void bad_bank_edge(struct fixture *f)
{
	BOTH(r, { BANK - 1, 2, R });
	put_chain(f, r, LEN(r));
}

static void bad_wrapping(struct fixture *f)
{
	BOTH(r, { ~0ull - 7, 16, R });
	put_chain(f, r, LEN(r));
}

static void bad_wrapping_to_ram(struct fixture *f)
{
	BOTH(r, { 0 - 0x1000ull, 0x6000, W });
	put_chain(f, r, LEN(r));
}

static void bad_huge(struct fixture *f)
{
	BOTH(r, { 0, 0xffffffff, W });
	put_chain(f, r, LEN(r));
}

static void bad_sign(struct fixture *f)
{
	BOTH(r, { 1ull << 63, 0x80000000, W });
	put_chain(f, r, LEN(r));
}

static void bad_order(struct fixture *f)
{
	BOTH(r, { 0x5000, 1, R }, { 0x5000, 1, W }, { 0x5000, 1, R });
	put_chain(f, r, LEN(r));
}

static void bad_order_nested(struct fixture *f)
{
	BOTH(r, { 0x5000, 1, W }, { 0x5000, 1, R });
	put_indirect(f, 0x6000, r, LEN(r), 0);
}

static void bad_address_nested(struct fixture *f)
{
	BOTH(r, { 0x5000, 1, W }, { BANK - 3, 4, W });
	put_indirect(f, 0x6000, r, LEN(r), 0);
}

static void bad_4gib(struct fixture *f)
{
	static struct raw r[VIRTQ_MAX_SIZE];

	for (unsigned i = 0; i < LEN(r); i++)
		r[i] = (struct raw){ 0, (4 << 20) + (i == 700), i < 512 ? R : W };
	put_indirect(f, 0x100000, r, LEN(r), 0);
}

static void bad_table(struct fixture *f, uint64_t addr, uint64_t len)
{
	struct raw r = { addr, len, VRING_DESC_F_INDIRECT };

	put_chain(f, &r, 1);
}

static void bad_table_zero(struct fixture *f)
{
	bad_table(f, 0x6000, 0);
}

static void bad_table_15(struct fixture *f)
{
	bad_table(f, 0x6000, 15);
}

static void bad_table_17(struct fixture *f)
{
	bad_table(f, 0x6000, 17);
}

static void bad_table_long(struct fixture *f)
{
	bad_table(f, 0x6000, 16 * (VIRTQ_MAX_SIZE + 1));
}

static void bad_table_max(struct fixture *f)
{
	bad_table(f, 0, 0xfffffff0);
}

static void bad_table_address(struct fixture *f)
{
	bad_table(f, 2 * BANK, 16);
}

static void bad_table_edge(struct fixture *f)
{
	bad_table(f, BANK - 16, 32);
}

static void bad_table_wrapping(struct fixture *f)
{
	bad_table(f, 0 - 16ull, 32);
}

static void bad_indirect_next(struct fixture *f)
{
	BOTH(r, { 0x6000, 16, VRING_DESC_F_INDIRECT }, { 0x5000, 1, R });
	put_chain(f, r, LEN(r));
}

static void bad_nesting(struct fixture *f)
{
	BOTH(r, { 0x5000, 1, R }, { 0x7000, 16, VRING_DESC_F_INDIRECT });
	put_indirect(f, 0x6000, r, LEN(r), 0);
}

static void split_head(struct fixture *f)
{
	put_avail(f, LEN_OF_RING);
}

static void split_head_max(struct fixture *f)
{
	put_avail(f, 0xffff);
}

static void split_jump(struct fixture *f)
{
	f->drv.avail->idx = LEN_OF_RING + 1;
}

static void split_back(struct fixture *f)
{
	f->drv.avail->idx = 0xffff;
}

static void split_next(struct fixture *f)
{
	put_split(f->drv.desc, 3, 0x5000, 1, VRING_DESC_F_NEXT, LEN_OF_RING);
	put_avail(f, 3);
}

static void split_next_max(struct fixture *f)
{
	put_split(f->drv.desc, 3, 0x5000, 1, VRING_DESC_F_NEXT, 0xffff);
	put_avail(f, 3);
}

static void split_next_nested(struct fixture *f)
{
	BOTH(r, { 0x5000, 1, R }, { 0x5000, 1, R });
	put_indirect(f, 0x6000, r, LEN(r), 0);
	put_split(fakemem_ptr(&f->mem, 0x6000, 32), 1, 0x5000, 1, VRING_DESC_F_NEXT, 2); /* 2 is in the ring */
}

static void split_loop_self(struct fixture *f)
{
	put_split(f->drv.desc, 0, 0x5000, 1, VRING_DESC_F_NEXT, 0);
	put_avail(f, 0);
}

static void split_loop_empty(struct fixture *f)
{
	put_split(f->drv.desc, 0, 0x5000, 0, VRING_DESC_F_NEXT, 0);
	put_avail(f, 0);
}

static void split_loop_all(struct fixture *f)
{
	for (unsigned i = 0; i < LEN_OF_RING; i++)
		put_split(f->drv.desc, i, 0x5000, 1, W | VRING_DESC_F_NEXT, (i + 5) % LEN_OF_RING);
	put_avail(f, 9);
}

static void split_loop_nested(struct fixture *f)
{
	BOTH(r, { 0x5000, 1, R }, { 0x5000, 1, R });
	put_indirect(f, 0x6000, r, LEN(r), 0);
	put_split(fakemem_ptr(&f->mem, 0x6000, 32), 1, 0x5000, 1, VRING_DESC_F_NEXT, 0);
}

static void split_twice(struct fixture *f)
{
	struct chain c;

	put_split(f->drv.desc, 2, 0x5000, 1, W, 0);
	put_avail(f, 2);
	put_avail(f, 2);
	must_pop(f, &c);
}

static void split_twice_later(struct fixture *f)
{
	struct chain c;

	put_split(f->drv.desc, 2, 0x5000, 1, W, 0);
	put_avail(f, 2);
	must_pop(f, &c);
	assert_int_equal(pop(f, &c), 0);
	put_avail(f, 2);
}

static void split_taken_back(struct fixture *f)
{
	struct chain c;

	put_split(f->drv.desc, 2, 0x5000, 1, W, 0);
	put_split(f->drv.desc, 3, 0x5000, 1, W, 0);
	put_avail(f, 2);
	put_avail(f, 3);
	must_pop(f, &c);
	virtq_unpop(f->q, &c);
	f->drv.avail->idx--;
	assert_true(virtq_rearm(f->q)); /* go and look: the pop will tell */
}

static void packed_id(struct fixture *f)
{
	put_packed(f, 0, 0x5000, 1, LEN_OF_RING, W);
}

static void packed_id_max(struct fixture *f)
{
	put_packed(f, 0, 0x5000, 1, 0xffff, W);
}

static void packed_id_of_last(struct fixture *f)
{
	put_packed(f, 0, 0x5000, 1, 3, W | VRING_DESC_F_NEXT);
	put_packed(f, 1, 0x5000, 1, 0xffff, W);
}

static void packed_twice(struct fixture *f)
{
	struct chain c;

	put_packed(f, 0, 0x5000, 1, 5, W);
	put_packed(f, 1, 0x5000, 1, 5, W);
	must_pop(f, &c);
}

static void packed_not_available(struct fixture *f)
{
	put_packed(f, 0, 0x5000, 1, 5, W | VRING_DESC_F_NEXT);
}

static void packed_follower_used(struct fixture *f)
{
	put_packed(f, 0, 0x5000, 1, 5, W | VRING_DESC_F_NEXT);
	put_packed(f, 1, 0x5000, 1, 5, W | P_USED); /* used on this lap */
}

/* All entries, and on into the first one again. */
static void packed_round(struct fixture *f)
{
	for (unsigned i = 0; i < LEN_OF_RING; i++)
		put_packed(f, i, 0x5000, 1, 5, W | VRING_DESC_F_NEXT);
}

/* Into entries that are in flight, re-written as if for the next lap. */
static void packed_into_flight(struct fixture *f)
{
	struct chain c;

	for (unsigned i = 0; i < 4; i++)
		put_packed(f, i, 0x5000, 1, 5, W | (i < 3 ? VRING_DESC_F_NEXT : 0));
	must_pop(f, &c);
	assert_int_equal(c.ndesc, 4);
	for (unsigned i = 0; i < LEN_OF_RING; i++)
		put_packed(f, i, 0x5000, 1, 6, W | (i < 4 ? P_LAP2 : 0) | (i == 3 ? 0 : VRING_DESC_F_NEXT));
}

/* All in flight, and one more. */
static void packed_too_many(struct fixture *f, unsigned flags)
{
	struct chain c;

	for (unsigned i = 0; i < LEN_OF_RING; i++)
		put_packed(f, i, 0x5000, 1, i, W);
	for (unsigned i = 0; i < LEN_OF_RING; i++)
		must_pop(f, &c);
	assert_int_equal(pop(f, &c), 0);
	put_packed(f, 0, 0x6000, 16, 0, flags ^ P_LAP2);
}

static void packed_too_many_direct(struct fixture *f)
{
	packed_too_many(f, W);
}

static void packed_too_many_indirect(struct fixture *f)
{
	packed_too_many(f, VRING_DESC_F_INDIRECT);
}

static void packed_indirect_follower(struct fixture *f)
{
	put_packed(f, 0, 0x5000, 1, 5, VRING_DESC_F_NEXT);
	put_packed(f, 1, 0x6000, 16, 5, VRING_DESC_F_INDIRECT);
}

static void packed_taken_back(struct fixture *f)
{
	struct chain c;

	put_packed(f, 0, 0x5000, 1, 5, W);
	must_pop(f, &c);
	virtq_unpop(f->q, &c);
	f->drv.ring[0].flags = 0;
}

enum { SPLIT = 1, PACKED = 2, EITHER = 3, IND = 4, NO_IND = 8 };

static const struct {
	const char *name;
	unsigned where;
	void (*corrupt)(struct fixture *f);
	const char *why; /* part of what virtq_why() says */
} hostile[] = {
	{ "address outside RAM", EITHER, bad_address, OUTSIDE },
	{ "one byte beyond RAM", EITHER, bad_last_byte, OUTSIDE },
	{ "across two banks", EITHER, bad_bank_edge, OUTSIDE },
	{ "address wraps", EITHER, bad_wrapping, OUTSIDE },
	{ "address wraps into RAM", EITHER, bad_wrapping_to_ram, OUTSIDE },
	{ "length 2^32 - 1", EITHER, bad_huge, OUTSIDE },
	{ "address 2^63, length 2^31", EITHER, bad_sign, OUTSIDE },
	{ "readable after writable", EITHER, bad_order, "readable" },
	{ "readable after writable, indirect", EITHER | IND, bad_order_nested, "readable" },
	{ "address outside RAM, indirect", EITHER | IND, bad_address_nested, OUTSIDE },
	{ "more than 4 GiB", EITHER | IND, bad_4gib, "4 GiB" },
	{ "indirect, not negotiated", EITHER | NO_IND, bad_nesting, "VIRTIO_F_INDIRECT_DESC" },
	{ "empty table", EITHER | IND, bad_table_zero, TABLE_LEN },
	{ "table of 15 bytes", EITHER | IND, bad_table_15, TABLE_LEN },
	{ "table of 17 bytes", EITHER | IND, bad_table_17, TABLE_LEN },
	{ "table of 1025 entries", EITHER | IND, bad_table_long, TABLE_LEN },
	{ "table of 2^32 - 16 bytes", EITHER | IND, bad_table_max, TABLE_LEN },
	{ "table outside RAM", EITHER | IND, bad_table_address, OUTSIDE },
	{ "table across two banks", EITHER | IND, bad_table_edge, OUTSIDE },
	{ "table address wraps", EITHER | IND, bad_table_wrapping, OUTSIDE },
	{ "indirect with next", EITHER | IND, bad_indirect_next, "with a next one" },
	{ "indirect in indirect", SPLIT | IND, bad_nesting, "in an indirect table" },
	{ "head outside the table", SPLIT, split_head, "outside the table" },
	{ "head 65535", SPLIT, split_head_max, "outside the table" },
	{ "avail index jumps", SPLIT, split_jump, "more than the ring" },
	{ "avail index goes back", SPLIT, split_back, "more than the ring" },
	{ "next outside the table", SPLIT, split_next, "outside the table" },
	{ "next 65535", SPLIT, split_next_max, "outside the table" },
	{ "next outside the indirect table", SPLIT | IND, split_next_nested, "outside the table" },
	{ "loop of one", SPLIT, split_loop_self, "loop" },
	{ "loop of one, without length", SPLIT, split_loop_empty, "loop" },
	{ "loop of all", SPLIT, split_loop_all, "loop" },
	{ "loop in an indirect table", SPLIT | IND, split_loop_nested, "loop" },
	{ "head twice", SPLIT, split_twice, "twice" },
	{ "head again while in flight", SPLIT, split_twice_later, "twice" },
	{ "avail index takes one back", SPLIT, split_taken_back, "backwards" },
	{ "id outside the ring", PACKED, packed_id, "buffer id" },
	{ "id 65535", PACKED, packed_id_max, "buffer id" },
	{ "id 65535 in the last of two", PACKED, packed_id_of_last, "buffer id" },
	{ "id twice", PACKED, packed_twice, "twice" },
	{ "chain into the unavailable", PACKED, packed_not_available, "not available" },
	{ "chain into the used", PACKED, packed_follower_used, "not available" },
	{ "chain around the ring", PACKED, packed_round, "not available" },
	{ "chain into what is in flight", PACKED, packed_into_flight, "longer than" },
	{ "one more than the ring", PACKED, packed_too_many_direct, "longer than" },
	{ "one more than the ring, indirect", PACKED, packed_too_many_indirect, "more descriptors" },
	{ "indirect as second", PACKED, packed_indirect_follower, "within a chain" },
	{ "chain taken back", PACKED, packed_taken_back, "taken back" },
};

static void must_be_broken(struct fixture *f, const char *name, const char *why)
{
	unsigned inflight = virtq_inflight(f->q);
	struct chain c;

	for (unsigned i = 0; i < 3; i++) {
		int r = pop(f, &c);

		if (r != -EINVAL)
			fail_msg("%s: virtq_pop() says %d", name, r);
		if (!virtq_why(f->q) || !strstr(virtq_why(f->q), why))
			fail_msg("%s: %s", name, virtq_why(f->q));
		assert_false(virtq_rearm(f->q));
		virtq_disarm(f->q);
		assert_int_equal(virtq_inflight(f->q), inflight);
	}
}

static void test_hostile(void **state)
{
	unsigned n = 0;

	for (unsigned i = 0; i < LEN(hostile); i++)
		for (unsigned mode = 0; mode < MODES; mode++) {
			unsigned where = hostile[i].where;
			struct fixture f;

			if (!(where & (mode & FAKE_PACKED ? PACKED : SPLIT)) ||
			    (where & IND && !(mode & FAKE_INDIRECT)) || (where & NO_IND && mode & FAKE_INDIRECT))
				continue;
			if (where == PACKED && hostile[i].corrupt == packed_too_many_indirect &&
			    !(mode & FAKE_INDIRECT))
				continue;
			open_ring(&f, LEN_OF_RING, mode);
			hostile[i].corrupt(&f);
			must_be_broken(&f, hostile[i].name, hostile[i].why);
			close_ring(&f);
			n++;
		}
	print_message("%u hostile drivers\n", n);
}

/* More pieces than the device has room for: at the limit, and one less. */
static void test_max_iov(void **state)
{
	BOTH(r, { 0x5000, 1, R }, { 0x5000, 0, R }, { 0x5000, 1, W }, { 0x5000, 1, W });

	for (unsigned mode = 0; mode < MODES; mode++)
		for (unsigned max = 0; max <= 3; max++) {
			struct iovec iov[3];
			struct fixture f;
			struct chain c;

			open_ring(&f, LEN_OF_RING, mode);
			put_chain(&f, r, LEN(r));
			assert_int_equal(virtq_pop(f.q, &c, iov, max), max == 3 ? 1 : -EINVAL);
			assert_int_equal(!virtq_why(f.q), max == 3);
			close_ring(&f);
		}
}

/* A broken queue takes back what is in flight. */
static void test_broken_in_flight(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture f;
		struct chain c, bad;

		open_ring(&f, LEN_OF_RING, mode);
		add_simple(&f, 1, 2);
		fakeq_publish(&f.drv);
		must_pop(&f, &c);
		if (mode & FAKE_PACKED)
			put_packed(&f, c.ndesc, 1ull << 40, 1, 3, W);
		else
			f.drv.avail->idx = 1000;
		assert_int_equal(pop(&f, &bad), -EINVAL);
		virtq_push(f.q, &c, 1);
		assert_true(virtq_flush(f.q));
		assert_int_equal(drain_used(&f), 1);
		close_ring(&f);
	}
}

/* Every value of the packed driver's event structure: an answer, and the sure one for what is not valid. */
static void test_event_values(void **state)
{
	for (unsigned event_idx = 0; event_idx < 2; event_idx++) {
		struct fixture f;

		open_ring(&f, 8, FAKE_PACKED | (event_idx ? FAKE_EVENT_IDX : 0));
		for (unsigned v = 0; v < 0x40000; v += 1 + v % 7) {
			unsigned flags = v >> 16;
			bool irq;

			f.drv.driver->off_wrap = (uint16_t)v;
			f.drv.driver->flags = (uint16_t)(flags | 0xff00);
			add_simple(&f, 1, 1);
			fakeq_publish(&f.drv);
			serve_n(&f, 1);
			irq = virtq_flush(f.q);
			if (flags != VRING_PACKED_EVENT_FLAG_DESC || !event_idx)
				assert_int_equal(irq, flags != VRING_PACKED_EVENT_FLAG_DISABLE);
			drain_used(&f);
		}
		close_ring(&f);
	}
}

/* A second vCPU scribbles over the rings while the device looks. */
struct scribble {
	struct fixture *f;
	atomic_bool stop;
};

/* Word @i of a table of descriptors: something that could be meant, mostly. */
static uint64_t any_word(const struct fakeq *d, uint64_t i, uint64_t *seed)
{
	uint64_t len = rnd(seed, 8) ? rnd(seed, 64) : rnd(seed, 1ull << 32);
	uint64_t flags = rnd(seed, 2) ? rnd(seed, 8) : W, other = rnd(seed, LEN_OF_RING + 1);

	if (!rnd(seed, 32))
		return rnd(seed, UINT64_MAX);
	if (i % 2 == 0)
		return rnd(seed, 2 * BANK);
	if (d->cfg.packed)
		return len | other << 32 | (flags | (rnd(seed, 2) ? P_AVAIL : P_USED)) << 48;
	return len | flags << 32 | other << 48;
}

static void *scribbler(void *arg)
{
	struct scribble *s = arg;
	struct fakeq *d = &s->f->drv;
	uint64_t seed = 99, *ring = (uint64_t *)(void *)d->desc, *table = (uint64_t *)(void *)d->table.split;

	while (!atomic_load_explicit(&s->stop, memory_order_relaxed)) {
		uint64_t i = rnd(&seed, 2 * LEN_OF_RING);

		__atomic_store_n(&ring[i], any_word(d, i, &seed), __ATOMIC_RELAXED);
		__atomic_store_n(&table[i], any_word(d, i, &seed), __ATOMIC_RELAXED);
		if (d->cfg.packed) {
			__atomic_store_n((uint32_t *)(void *)d->driver, (uint32_t)rnd(&seed, 1u << 18),
			                 __ATOMIC_RELAXED);
			continue;
		}
		__atomic_store_n(&d->avail->ring[rnd(&seed, LEN_OF_RING)], (uint16_t)rnd(&seed, LEN_OF_RING),
		                 __ATOMIC_RELAXED);
		if (!rnd(&seed, 64))
			__atomic_fetch_add(&d->avail->idx, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* Half of the chains go back at once, half are put back or dropped with the queue. Until there were @enough. */
static unsigned survive(struct fixture *f, unsigned enough)
{
	unsigned popped = 0;

	for (unsigned tries = 1; popped < enough && tries; tries++) {
		struct chain c;
		int r = pop(f, &c);

		assert_in_range(r + EINVAL, 0, EINVAL + 1);
		if (r == 1) {
			check_chain(f, &c);
			popped++;
			if (tries & 1)
				virtq_push(f->q, &c, 0);
			else if (tries & 2)
				virtq_unpop(f->q, &c);
			virtq_flush(f->q);
		} else if (r < 0 || virtq_inflight(f->q) == LEN_OF_RING) {
			virtq_free(f->q);
			assert_int_equal(virtq_new(&f->mem.gmem, &f->drv.cfg, &f->q), 0);
			if (!f->drv.cfg.packed)
				__atomic_store_n(&f->drv.avail->idx, 1, __ATOMIC_RELAXED);
		} else {
			virtq_rearm(f->q);
		}
	}
	return popped;
}

static void test_scribbling(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture f;
		struct scribble s = { .f = &f };
		unsigned popped;
		pthread_t t;

		open_ring(&f, LEN_OF_RING, mode);
		put_indirect(&f, f.drv.table_gpa, (const struct raw[]){ { 0x5000, 1, W } }, 1, 0);
		assert_int_equal(pthread_create(&t, NULL, scribbler, &s), 0);
		popped = survive(&f, 1000);
		atomic_store(&s.stop, true);
		pthread_join(t, NULL);
		if (getenv("VERBOSE"))
			printf("mode %u: %u chains popped from under the pen\n", mode, popped);
		assert_int_equal(popped, 1000);
		close_ring(&f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_config),
		cmocka_unit_test(test_config_edges),
		cmocka_unit_test(test_every_ring),
		cmocka_unit_test(test_wrap),
		cmocka_unit_test(test_flush_publishes),
		cmocka_unit_test(test_interrupts),
		cmocka_unit_test(test_interrupt_per_batch),
		cmocka_unit_test(test_interrupt_inside_chain),
		cmocka_unit_test(test_kicks),
		cmocka_unit_test(test_sleep_against_offer),
		cmocka_unit_test(test_sleep_against_finish),
		cmocka_unit_test(test_unpop),
		cmocka_unit_test(test_rearm_unfinished),
		cmocka_unit_test(test_cursors),
		cmocka_unit_test(test_two_threads),
		cmocka_unit_test(test_races),
		cmocka_unit_test(test_zero_length),
		cmocka_unit_test(test_indirect_tables),
		cmocka_unit_test(test_indirect_tail),
		cmocka_unit_test(test_extremes),
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_max_iov),
		cmocka_unit_test(test_broken_in_flight),
		cmocka_unit_test(test_event_values),
		cmocka_unit_test(test_scribbling),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
