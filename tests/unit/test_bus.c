// SPDX-License-Identifier: GPL-2.0-or-later
/* The bus of windows, and guest RAM: who answers at an address, also at the edges and while windows move. */
#include "bus/bus.h"
#include "bus/gmem.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LEN(a)          (sizeof(a) / sizeof(*(a)))
#define MAX             UINT64_MAX
#define GIB             (1ull << 30)
#define WINDOWS_MAX     512
#define MOVER_SLOTS     8
#define MOVER_DEVS      4
#define MOVER_ROUNDS    3000
#define MOVER_READERS   3
#define SLOT_ADDR(slot) (0x1000ull * ((slot) + 1))

static const unsigned sizes[] = { 1, 2, 4, 8 };

/* A device that remembers its last access. */
struct dev {
	unsigned reads, writes, size;
	uint64_t off, val; /* @val: written, or to be read */
};

static uint64_t dev_read(void *dev, uint64_t off, unsigned size)
{
	struct dev *d = dev;

	d->reads++;
	d->off = off;
	d->size = size;
	return d->val;
}

static void dev_write(void *dev, uint64_t off, unsigned size, uint64_t val)
{
	struct dev *d = dev;

	d->writes++;
	d->off = off;
	d->size = size;
	d->val = val;
}

static const struct bus_ops dev_ops = { dev_read, dev_write };

static int setup(void **state)
{
	struct bus *b;
	struct err err;

	assert_int_equal(bus_new(&b, &err), 0);
	*state = b;
	return 0;
}

static int teardown(void **state)
{
	bus_free(*state);
	return 0;
}

static int add(struct bus *b, uint64_t base, uint64_t len, struct dev *d)
{
	struct window w = { .name = "dev", .base = base, .len = len, .ops = &dev_ops, .dev = d };
	int error = bus_add(b, &w);

	w = (struct window){ .name = NULL }; /* the bus has its own copy */
	return error;
}

static uint64_t ones(unsigned size)
{
	return MAX >> (64 - 8 * size);
}

static void free_null(void **state)
{
	bus_free(NULL);
}

/* Against windows at [0x1000, 0x2000) and [0x3000, 0x3001). */
static void overlaps(void **state)
{
	static const struct {
		uint64_t base, len;
		int error;
	} t[] = {
		{ 0x1000, 0x1000, -EEXIST },
		{ 0x1000, 1, -EEXIST },
		{ 0x1fff, 1, -EEXIST },
		{ 0x0fff, 2, -EEXIST },
		{ 0x1fff, 2, -EEXIST },
		{ 0x1800, 0x10, -EEXIST },
		{ 0, 0x4000, -EEXIST },
		{ 0, MAX, -EEXIST },
		{ 0x2000, 0x1001, -EEXIST },
		{ 0x3000, 1, -EEXIST },
		{ 0x3000, MAX - 0x2fff, -EEXIST },
		{ 0, 0x1000, 0 },
		{ 0x0fff, 1, 0 },
		{ 0x2000, 0x1000, 0 },
		{ 0x2000, 1, 0 },
		{ 0x2fff, 1, 0 },
		{ 0x3001, 1, 0 },
		{ 0x3001, MAX - 0x3000, 0 },
		{ MAX, 1, 0 },
		{ 0x4000, 0, -EINVAL },
		{ 0x1000, 0, -EINVAL },
		{ MAX, 2, -EINVAL },
		{ MAX - 0xfff, 0x1001, -EINVAL },
		{ 0x4000, MAX, -EINVAL },
	};
	struct dev d = { 0 };

	assert_int_equal(add(*state, 0x3000, 1, &d), 0);
	assert_int_equal(add(*state, 0x1000, 0x1000, &d), 0);
	for (size_t i = 0; i < LEN(t); i++) {
		assert_int_equal(add(*state, t[i].base, t[i].len, &d), t[i].error);
		if (!t[i].error)
			bus_del(*state, t[i].base);
	}
}

/* An access belongs to a window only if all of it does. */
static void bounds(void **state)
{
	static const uint64_t base = 0x1000, len = 0x100;
	struct dev d = { .val = 0x1122334455667788 };

	assert_int_equal(add(*state, base, len, &d), 0);
	for (size_t i = 0; i < LEN(sizes); i++) {
		for (uint64_t addr = base - 16; addr < base + len + 16; addr++) {
			bool in = addr >= base && addr + sizes[i] <= base + len;
			unsigned before = d.reads;
			uint64_t val = bus_read(*state, addr, sizes[i]);

			assert_int_equal(d.reads, before + in);
			assert_int_equal(val, in ? d.val & ones(sizes[i]) : ones(sizes[i]));
			if (in) {
				assert_int_equal(d.off, addr - base);
				assert_int_equal(d.size, sizes[i]);
			}
		}
	}
}

static void writes(void **state)
{
	struct dev d = { 0 };

	assert_int_equal(add(*state, 0x1000, 0x10, &d), 0);
	for (size_t i = 0; i < LEN(sizes); i++) {
		d = (struct dev){ 0 };
		bus_write(*state, 0x1010 - sizes[i], sizes[i], MAX);
		assert_int_equal(d.writes, 1);
		assert_int_equal(d.off, 0x10 - sizes[i]);
		assert_int_equal(d.size, sizes[i]);
		assert_int_equal(d.val, ones(sizes[i]));
		bus_write(*state, 0x1011 - sizes[i], sizes[i], MAX);
		bus_write(*state, 0xfff, sizes[i], MAX);
		bus_write(*state, 0x1010, sizes[i], MAX);
		bus_write(*state, 0, sizes[i], MAX);
		assert_int_equal(d.writes, 1);
	}
}

/* Between two that touch, an access across the border is nobody's. */
static void neighbours(void **state)
{
	struct dev a = { .val = 0xaa }, b = { .val = 0xbb };

	assert_int_equal(add(*state, 0x1000, 0x1000, &a), 0);
	assert_int_equal(add(*state, 0x2000, 0x1000, &b), 0);
	assert_int_equal(bus_read(*state, 0x1fff, 1), 0xaa);
	assert_int_equal(bus_read(*state, 0x2000, 1), 0xbb);
	assert_int_equal(bus_read(*state, 0x1fff, 2), 0xffff);
	assert_int_equal(bus_read(*state, 0x1ffc, 8), MAX);
	bus_write(*state, 0x1fff, 2, 0);
	assert_int_equal(a.writes + b.writes, 0);
	bus_del(*state, 0x1000);
	assert_int_equal(bus_read(*state, 0x1fff, 1), 0xff);
	assert_int_equal(bus_read(*state, 0x2000, 1), 0xbb);
}

static void del_nothing(void **state)
{
	struct dev d = { .val = 0xdd };

	bus_del(*state, 0);
	assert_int_equal(add(*state, 0x1000, 0x1000, &d), 0);
	bus_del(*state, 0);
	bus_del(*state, 0x1001); /* not where it begins */
	bus_del(*state, 0x1fff);
	bus_del(*state, 0x2000);
	bus_del(*state, MAX);
	assert_int_equal(bus_read(*state, 0x1000, 1), 0xdd);
	bus_del(*state, 0x1000);
	assert_int_equal(bus_read(*state, 0x1000, 1), 0xff);
}

static void top_of_the_world(void **state)
{
	struct dev d = { .val = 0x1122334455667788 };

	assert_int_equal(add(*state, MAX - 15, 16, &d), 0);
	assert_int_equal(bus_read(*state, MAX - 7, 8), d.val);
	assert_int_equal(bus_read(*state, MAX, 1), 0x88);
	for (unsigned back = 0; back < 7; back++) /* would wrap around */
		assert_int_equal(bus_read(*state, MAX - back, 8), MAX);
	bus_del(*state, MAX - 15);

	assert_int_equal(add(*state, 0, MAX, &d), 0); /* all but the last byte */
	d.reads = 0;
	assert_int_equal(bus_read(*state, MAX - 8, 8), d.val);
	assert_int_equal(d.off, MAX - 8);
	assert_int_equal(d.reads, 1);
	assert_int_equal(bus_read(*state, MAX, 1), 0xff);
	for (unsigned back = 0; back < 8; back++)
		assert_int_equal(bus_read(*state, MAX - back, 8), MAX);
	assert_int_equal(d.reads, 1);
}

/* Windows enter and leave in no order. */
static void full(void **state)
{
	static struct dev d[WINDOWS_MAX];
	struct dev extra = { 0 };

	for (unsigned i = 0; i < WINDOWS_MAX; i++) {
		unsigned n = i * 197 % WINDOWS_MAX;

		d[n].val = n;
		assert_int_equal(add(*state, n * 0x20ull, 0x10, &d[n]), 0);
	}
	assert_int_equal(add(*state, 0x10, 0x10, &extra), -ENOSPC);
	assert_int_equal(add(*state, 0x1f, 2, &extra), -EEXIST);
	for (unsigned n = 0; n < WINDOWS_MAX; n++) {
		assert_int_equal(bus_read(*state, n * 0x20ull + 0xc, 4), n);
		assert_int_equal(bus_read(*state, n * 0x20ull + 0x10, 4), 0xffffffff);
	}
	for (unsigned i = 0; i < WINDOWS_MAX; i++) {
		unsigned n = i * 301 % WINDOWS_MAX;

		assert_int_equal(bus_read(*state, n * 0x20ull, 4), n);
		bus_del(*state, n * 0x20ull);
		assert_int_equal(bus_read(*state, n * 0x20ull, 4), 0xffffffff);
	}
	assert_int_equal(add(*state, 0, MAX, &extra), 0);
}

/* A device that moves its own window when touched, as a PCI function does. */
struct hopper {
	struct bus *b;
	uint64_t base;
	unsigned hops;
};

static uint64_t hopper_read(void *dev, uint64_t off, unsigned size);
static void hopper_write(void *dev, uint64_t off, unsigned size, uint64_t val);
static const struct bus_ops hopper_ops = { hopper_read, hopper_write };

static void hop(struct hopper *h, uint64_t to)
{
	struct window w = { .name = "hopper", .base = to, .len = 8, .ops = &hopper_ops, .dev = h };

	bus_del(h->b, h->base);
	h->base = to;
	h->hops++;
	assert_int_equal(bus_add(h->b, &w), 0);
}

static uint64_t hopper_read(void *dev, uint64_t off, unsigned size)
{
	struct hopper *h = dev;

	hop(h, h->base + 4);
	return h->hops > 10 ? 0x77 : bus_read(h->b, h->base, 1); /* and reads itself at the new place */
}

static void hopper_write(void *dev, uint64_t off, unsigned size, uint64_t val)
{
	hop(dev, val);
}

static void move_inside_access(void **state)
{
	struct hopper h = { .b = *state };

	hop(&h, 0x1000);
	bus_write(*state, 0x1007, 1, 0x80);
	assert_int_equal(h.base, 0x80);
	assert_int_equal(bus_read(*state, 0x1000, 1), 0xff);
	assert_int_equal(bus_read(*state, 0x80, 1), 0x77);
	assert_int_equal(h.hops, 11);
}

/* Readers against windows that move from slot to slot: an answer is nobody's or one device's, never a mixture. */
struct mover {
	struct bus *b;
	atomic_bool stop;
	atomic_uint ready;
	bool wrong; /* [m] only read after join */
	pthread_t thread;
};

static uint64_t mover_read(void *dev, uint64_t off, unsigned size)
{
	return (uint64_t)(uintptr_t)dev << 16 | off;
}

static void mover_write(void *dev, uint64_t off, unsigned size, uint64_t val)
{
}

static const struct bus_ops mover_ops = { mover_read, mover_write };

static bool plausible(uint64_t val, unsigned off)
{
	return val == 0xffffffff || ((val & 0xffff) == off && val >> 16 >= 1 && val >> 16 <= MOVER_DEVS);
}

static void *mover_reader(void *arg)
{
	struct mover *m = arg;

	for (unsigned i = 0; !atomic_load(&m->stop); i++) {
		unsigned slot = i % MOVER_SLOTS, off = i % 0x1000 & ~3u;

		if (!plausible(bus_read(m->b, SLOT_ADDR(slot) + off, 4), off))
			m->wrong = true;
		if (bus_read(m->b, SLOT_ADDR(MOVER_SLOTS) + off, 4) != (0xffu << 16 | off))
			m->wrong = true; /* the one that never moves */
		bus_write(m->b, SLOT_ADDR(slot) + off, 4, i);
		atomic_store(&m->ready, 1);
	}
	return NULL;
}

static int mover_add(struct bus *b, unsigned slot, uintptr_t id)
{
	struct window w = { "mover", SLOT_ADDR(slot), 0x1000, &mover_ops, (void *)id };

	return bus_add(b, &w);
}

static void move_windows(struct bus *b)
{
	unsigned at[MOVER_DEVS];

	for (unsigned d = 0; d < MOVER_DEVS; d++) {
		at[d] = d;
		assert_int_equal(mover_add(b, d, d + 1), 0);
	}
	for (unsigned i = 0; i < MOVER_ROUNDS; i++) {
		unsigned d = i % MOVER_DEVS, to = (at[d] + MOVER_DEVS) % MOVER_SLOTS;

		bus_del(b, SLOT_ADDR(at[d]));
		at[d] = to;
		assert_int_equal(mover_add(b, to, d + 1), 0);
	}
}

static void concurrent(void **state)
{
	struct mover m[MOVER_READERS] = { 0 };

	assert_int_equal(mover_add(*state, MOVER_SLOTS, 0xff), 0);
	for (unsigned i = 0; i < MOVER_READERS; i++) {
		m[i].b = *state;
		assert_int_equal(pthread_create(&m[i].thread, NULL, mover_reader, &m[i]), 0);
	}
	for (unsigned i = 0; i < MOVER_READERS; i++)
		while (!atomic_load(&m[i].ready))
			sched_yield();
	move_windows(*state);
	for (unsigned i = 0; i < MOVER_READERS; i++) {
		atomic_store(&m[i].stop, true);
		pthread_join(m[i].thread, NULL);
		assert_false(m[i].wrong);
	}
}

/* Guest RAM: 3 GiB at 0 and 1 GiB at 4 GiB. */
static void gmem_edges(void **state)
{
	static uint8_t host[2]; /* only its address is used */
	static const struct {
		uint64_t gpa, len;
		int bank; /* -1: none */
	} t[] = {
		{ 0, 1, 0 },
		{ 0, 3 * GIB, 0 },
		{ 0, 0, 0 },
		{ 0, 3 * GIB + 1, -1 },
		{ 1, 3 * GIB, -1 },
		{ 3 * GIB - 1, 1, 0 },
		{ 3 * GIB - 1, 2, -1 },
		{ 3 * GIB, 1, -1 },
		{ 3 * GIB + 1, 0, -1 },
		{ 4 * GIB - 1, 1, -1 },
		{ 4 * GIB - 1, 2, -1 },
		{ 4 * GIB, 1, 1 },
		{ 4 * GIB, GIB, 1 },
		{ 4 * GIB, GIB + 1, -1 },
		{ 5 * GIB - 8, 8, 1 },
		{ 5 * GIB - 8, 9, -1 },
		{ 5 * GIB, 1, -1 },
		{ 5 * GIB + 1, 0, -1 },
		{ 0, MAX, -1 },
		{ 1, MAX, -1 },
		{ 0x1000, MAX - 0xfff, -1 },
		{ 0x1000, MAX - 0xffe, -1 },
		{ 4 * GIB, MAX - 4 * GIB + 2, -1 },
		{ MAX, 0, -1 },
		{ MAX, 1, -1 },
		{ MAX, 2, -1 },
		{ MAX, MAX, -1 },
		{ MAX - 7, 16, -1 },
	};
	struct gmem m = { .nbanks = 2, .bank = { { 0, 3 * GIB, host }, { 4 * GIB, GIB, host + 1 } } };

	for (size_t i = 0; i < LEN(t); i++) {
		uintptr_t want = 0;

		if (t[i].bank >= 0)
			want = (uintptr_t)m.bank[t[i].bank].hva + (t[i].gpa - m.bank[t[i].bank].gpa);
		assert_int_equal((uintptr_t)gmem_ptr(&m, t[i].gpa, t[i].len), want);
	}
	m.nbanks = 1;
	assert_null(gmem_ptr(&m, 4 * GIB, 1));
	m.nbanks = 0;
	assert_null(gmem_ptr(&m, 0, 0));
}

static void gmem_maps(void **state)
{
	struct gmem m = { .nbanks = 2, .bank = { { 0, 5 << 20, NULL }, { 4 * GIB, 0x1000, NULL } } };
	struct err err;

	assert_int_equal(gmem_map(&m, false, &err), 0);
	for (unsigned i = 0; i < 2; i++) {
		uint8_t *first = gmem_ptr(&m, m.bank[i].gpa, m.bank[i].len), *last = first + m.bank[i].len - 1;

		assert_int_equal((uintptr_t)first % (2 << 20), 0);
		assert_int_equal(*first | *last, 0);
		*first = *last = 1;
	}
	gmem_unmap(&m);
	assert_null(m.bank[0].hva);
	gmem_unmap(&m);
}

/* More than any address space: refused naming how much, and what was mapped before goes. */
static void gmem_too_much(void **state)
{
	struct gmem m = { .nbanks = 2, .bank = { { 0, 1 << 20, NULL }, { 4 * GIB, 1ull << 58, NULL } } };
	struct err err = { "" };

	assert_int_equal(gmem_map(&m, false, &err), -ENOMEM);
	assert_non_null(strstr(err.msg, "274877906944 MiB"));
	gmem_unmap(&m);
}

static void gmem_odd_hugepages(void **state)
{
	struct gmem m = { .nbanks = 1, .bank = { { 0, 3 << 20, NULL } } };
	struct err err = { "" };

	assert_int_equal(gmem_map(&m, true, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "2M"));
	gmem_unmap(&m);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(free_null),
		TEST(overlaps),
		TEST(bounds),
		TEST(writes),
		TEST(neighbours),
		TEST(del_nothing),
		TEST(top_of_the_world),
		TEST(full),
		TEST(move_inside_access),
		TEST(concurrent),
		cmocka_unit_test(gmem_edges),
		cmocka_unit_test(gmem_maps),
		cmocka_unit_test(gmem_too_much),
		cmocka_unit_test(gmem_odd_hugepages),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
