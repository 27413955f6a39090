// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The MSI-X table: a masked vector's interrupts wait in its pending bit and
 * nothing that is done to it reaches the hub; an interrupt is neither lost nor
 * doubled however raising and masking meet.
 */
#include "fakehub.h"
#include "virtio/msix.h"

#include <linux/pci_regs.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define LEN(a) (sizeof(a) / sizeof(*(a)))
#define VECS   5u
#define STORM  20000u
#define CTRL   PCI_MSIX_ENTRY_VECTOR_CTRL
#define DATA   PCI_MSIX_ENTRY_DATA
#define MASKED PCI_MSIX_ENTRY_CTRL_MASKBIT

struct fixture {
	struct fakehub hub;
	struct msix *x;
};

static struct fixture *setup(unsigned nvecs)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct err err;

	assert_non_null(f);
	fakehub_init(&f->hub);
	assert_int_equal(msix_new(nvecs, &f->hub.hub, &f->x, &err), 0);
	return f;
}

static void teardown(struct fixture *f)
{
	msix_free(f->x);
	fakehub_exit(&f->hub);
	assert_int_equal(f->hub.news >= f->hub.frees, 1);
	free(f);
}

static void write_entry(struct fixture *f, unsigned vec, unsigned reg, uint32_t val)
{
	msix_table_write(f->x, vec * MSIX_ENTRY_LEN + reg, 4, val);
}

static uint32_t read_entry(struct fixture *f, unsigned vec, unsigned reg)
{
	return (uint32_t)msix_table_read(f->x, vec * MSIX_ENTRY_LEN + reg, 4);
}

static uint32_t data_of(unsigned vec)
{
	return 0x4000 + vec;
}

/* As Linux does: written while masked. */
static void program(struct fixture *f, unsigned vec)
{
	write_entry(f, vec, PCI_MSIX_ENTRY_LOWER_ADDR, 0xfee00000 + (vec << 12));
	write_entry(f, vec, PCI_MSIX_ENTRY_UPPER_ADDR, 0);
	write_entry(f, vec, DATA, data_of(vec));
}

static void mask(struct fixture *f, unsigned vec, bool on)
{
	write_entry(f, vec, CTRL, on ? MASKED : 0);
}

static bool pending(struct fixture *f, unsigned vec)
{
	return msix_pba_read(f->x, vec / 64 * 8, 8) >> vec % 64 & 1;
}

static unsigned taken(struct fixture *f, unsigned vec)
{
	return fakehub_take(&f->hub, data_of(vec));
}

static unsigned calls(const struct fixture *f)
{
	return f->hub.news + f->hub.routes + f->hub.frees;
}

static void test_initial(void **state)
{
	struct fixture *f = setup(VECS);

	assert_false(msix_enabled(f->x));
	for (unsigned v = 0; v < VECS; v++) {
		assert_int_equal(read_entry(f, v, CTRL), MASKED);
		assert_int_equal(read_entry(f, v, DATA), 0);
		assert_false(pending(f, v));
	}
	msix_control(f->x, true, false);
	assert_true(msix_enabled(f->x));
	assert_int_equal(calls(f), 0);
	teardown(f);
}

static void test_masked(void **state)
{
	struct fixture *f = setup(VECS);

	msix_control(f->x, true, false);
	for (unsigned i = 0; i < 10; i++) {
		program(f, 2);
		msix_raise(f->x, 2);
		assert_true(pending(f, 2));
		mask(f, 2, true);
	}
	assert_int_equal(calls(f), 0);
	mask(f, 2, false);
	assert_false(pending(f, 2));
	assert_int_equal(taken(f, 2), 1); /* ten are one */
	assert_int_equal(f->hub.news, 1);
	assert_int_equal(f->hub.routes, 1);
	mask(f, 2, false);
	assert_int_equal(fakehub_take_all(&f->hub), 0);
	for (unsigned i = 0; i < 10; i++)
		msix_raise(f->x, 2);
	assert_int_equal(taken(f, 2), 10);
	mask(f, 2, true);
	msix_raise(f->x, 2);
	assert_int_equal(fakehub_take_all(&f->hub), 0);
	assert_true(pending(f, 2));
	teardown(f);
}

/* The hub hears of an address only when the vector opens with another one. */
static void test_route_changes(void **state)
{
	struct fixture *f = setup(VECS);

	msix_control(f->x, true, false);
	program(f, 0);
	mask(f, 0, false);
	assert_int_equal(f->hub.routes, 1);
	for (unsigned i = 0; i < 100; i++) {
		mask(f, 0, true);
		program(f, 0);
		mask(f, 0, false);
		msix_control(f->x, true, true);
		msix_control(f->x, true, false);
		msix_control(f->x, false, false);
		msix_control(f->x, true, false);
	}
	assert_int_equal(f->hub.routes, 1);
	mask(f, 0, true);
	for (unsigned i = 0; i < 100; i++)
		write_entry(f, 0, DATA, i);
	write_entry(f, 0, DATA, 0x77);
	assert_int_equal(f->hub.routes, 1);
	mask(f, 0, false);
	assert_int_equal(f->hub.routes, 2);
	msix_raise(f->x, 0);
	assert_int_equal(fakehub_take(&f->hub, 0x77), 1);
	write_entry(f, 0, DATA, 0x78); /* while open: at once */
	write_entry(f, 0, PCI_MSIX_ENTRY_UPPER_ADDR, 1);
	assert_int_equal(f->hub.routes, 4);
	assert_true(f->hub.msi[0].addr == 0x1fee00000 && f->hub.msi[0].data == 0x78);
	assert_int_equal(f->hub.news, 1);
	teardown(f);
}

static void test_function_mask(void **state)
{
	struct fixture *f = setup(VECS);

	for (unsigned v = 0; v < VECS; v++) {
		program(f, v);
		mask(f, v, v == 3);
	}
	msix_control(f->x, true, true);
	assert_int_equal(calls(f), 0);
	for (unsigned v = 0; v < VECS; v++)
		msix_raise(f->x, v);
	assert_int_equal(msix_pba_read(f->x, 0, 8), 0x1f);
	msix_control(f->x, true, false);
	assert_int_equal(msix_pba_read(f->x, 0, 8), 0x08);
	for (unsigned v = 0; v < VECS; v++)
		assert_int_equal(taken(f, v), v != 3);
	assert_int_equal(f->hub.news, VECS - 1);
	mask(f, 3, false);
	assert_int_equal(taken(f, 3), 1);
	teardown(f);
}

/* Disabled: nothing is sent; what was raised meanwhile comes when it is enabled. */
static void test_enable(void **state)
{
	struct fixture *f = setup(VECS);

	program(f, 1);
	mask(f, 1, false);
	msix_raise(f->x, 1);
	assert_true(pending(f, 1));
	assert_int_equal(calls(f), 0);
	msix_control(f->x, true, false);
	assert_int_equal(taken(f, 1), 1);
	msix_control(f->x, false, false);
	msix_raise(f->x, 1);
	assert_int_equal(fakehub_take_all(&f->hub), 0);
	msix_control(f->x, false, true);
	msix_control(f->x, true, true);
	assert_int_equal(fakehub_take_all(&f->hub), 0);
	msix_control(f->x, true, false);
	assert_int_equal(taken(f, 1), 1);
	teardown(f);
}

static void test_no_such_vector(void **state)
{
	struct fixture *f = setup(VECS);

	msix_control(f->x, true, false);
	for (unsigned v = VECS; v <= 0x10000; v++)
		msix_raise(f->x, v);
	msix_raise(f->x, UINT32_MAX);
	for (unsigned off = VECS * MSIX_ENTRY_LEN; off < 4096; off += 4) {
		msix_table_write(f->x, off, 4, 0);
		assert_int_equal(msix_table_read(f->x, off, 4), 0);
	}
	for (unsigned off = 8; off < 4096; off += 8)
		assert_int_equal(msix_pba_read(f->x, off, 8), 0);
	assert_int_equal(calls(f), 0);
	assert_int_equal(msix_pba_read(f->x, 0, 8), 0);
	teardown(f);
}

/* Words and double words, aligned; nothing else does anything. */
static void test_access_sizes(void **state)
{
	static const unsigned sizes[] = { 1, 2, 4, 8 };
	struct fixture *f = setup(VECS);

	for (unsigned i = 0; i < LEN(sizes); i++)
		for (unsigned off = 0; off < VECS * MSIX_ENTRY_LEN; off++) {
			unsigned size = sizes[i], word = off & ~3u;
			bool good = size >= 4 && off % size == 0;
			uint64_t before = msix_table_read(f->x, word, 4);

			msix_table_write(f->x, off, size, 0x0123456789abcdef);
			assert_true(msix_table_read(f->x, word, 4) == (good ? 0x89abcdef : before));
			assert_true(msix_table_read(f->x, off, size) == (!good       ? 0
			                                                 : size == 8 ? 0x0123456789abcdef
			                                                             : 0x89abcdef));
			assert_int_equal(msix_pba_read(f->x, off, size), 0);
		}
	assert_int_equal(calls(f), 0);
	teardown(f);
}

/* A 64-bit write that holds data and mask together opens the vector with the data. */
static void test_wide_write(void **state)
{
	struct fixture *f = setup(VECS);

	msix_control(f->x, true, false);
	msix_table_write(f->x, 0, 8, 0xfee00000);
	msix_table_write(f->x, 8, 8, 0x55);
	assert_int_equal(f->hub.routes, 1);
	msix_raise(f->x, 0);
	assert_int_equal(fakehub_take(&f->hub, 0x55), 1);
	teardown(f);
}

/* More than one word of pending bits. */
static void test_pending_bits(void **state)
{
	struct fixture *f = setup(150);

	for (unsigned v = 0; v < 150; v += 7)
		msix_raise(f->x, v);
	for (unsigned v = 0; v < 192; v++) {
		bool is = v < 150 && v % 7 == 0;

		assert_int_equal(pending(f, v), is);
		assert_int_equal(msix_pba_read(f->x, v / 32 * 4, 4) >> v % 32 & 1, is);
	}
	teardown(f);
}

/* Opens vector 0 a thousand times and returns how many bytes that put on stderr. */
static off_t noise(struct fixture *f)
{
	int saved = dup(STDERR_FILENO), file = memfd_create("stderr", MFD_CLOEXEC);
	off_t len;

	assert_true(saved >= 0 && file >= 0);
	assert_true(dup2(file, STDERR_FILENO) >= 0);
	for (unsigned i = 0; i < 1000; i++)
		mask(f, 0, false);
	assert_true(dup2(saved, STDERR_FILENO) >= 0);
	len = lseek(file, 0, SEEK_END);
	close(file);
	close(saved);
	return len;
}

/* The hub refuses: the interrupt waits, and comes once it can. */
static void test_hub_fails(void **state)
{
	struct fixture *f = setup(VECS);

	msix_control(f->x, true, false);
	program(f, 0);
	f->hub.fail_new = 0;
	msix_raise(f->x, 0);
	assert_in_range(noise(f), 10, 200); /* one line */
	assert_int_equal(f->hub.news, 1000);
	assert_true(pending(f, 0));
	assert_int_equal(f->hub.routes, 0);
	f->hub.fail_new = -1;
	f->hub.fail_route = 0;
	mask(f, 0, false);
	assert_int_equal(f->hub.msis, 1);
	assert_true(pending(f, 0));
	f->hub.fail_route = -1;
	mask(f, 0, false);
	assert_int_equal(taken(f, 0), 1);
	f->hub.fail_route = 0;
	write_entry(f, 0, DATA, 0x99); /* the old route may not be used */
	msix_raise(f->x, 0);
	assert_int_equal(fakehub_take_all(&f->hub), 0);
	f->hub.fail_route = -1;
	write_entry(f, 0, DATA, data_of(0)); /* as before it failed */
	assert_int_equal(taken(f, 0), 1);
	assert_int_equal(f->hub.msis, 1);
	teardown(f);
}

/* Two threads: one raises, the other opens and closes in every way there is. */

struct storm {
	struct fixture *f;
	atomic_uint seq;  /* how often it was raised */
	atomic_uint came; /* interrupts taken */
	atomic_uint seen; /* @seq when the last one was taken */
	atomic_bool stop;
	bool in_step;
};

static void storm_take(struct storm *s)
{
	unsigned n = fakehub_take_all(&s->f->hub);

	if (!n)
		return;
	atomic_store(&s->seen, atomic_load(&s->seq));
	atomic_fetch_add(&s->came, n);
}

static void *masking(void *arg)
{
	struct storm *s = arg;

	for (unsigned i = 0; !atomic_load(&s->stop); i++) {
		if (i % 3 == 0) {
			mask(s->f, 0, true);
			if (i % 2)
				write_entry(s->f, 0, DATA, i);
			mask(s->f, 0, false);
		} else if (i % 3 == 1) {
			msix_control(s->f->x, true, true);
			msix_control(s->f->x, true, false);
		} else {
			msix_control(s->f->x, false, false);
			msix_control(s->f->x, true, false);
		}
		storm_take(s);
		if (i % 64 == 0)
			sched_yield();
	}
	return NULL;
}

static void raise_storm(struct storm *s)
{
	for (unsigned i = 1; i <= STORM; i++) {
		atomic_store(&s->seq, i);
		msix_raise(s->f->x, 0);
		while (s->in_step && atomic_load(&s->came) < i)
			sched_yield();
	}
}

static void run_storm(bool in_step)
{
	struct storm s = { .f = setup(1), .in_step = in_step };
	pthread_t t;

	msix_control(s.f->x, true, false);
	program(s.f, 0);
	mask(s.f, 0, false);
	assert_int_equal(pthread_create(&t, NULL, masking, &s), 0);
	raise_storm(&s);
	atomic_store(&s.stop, true);
	pthread_join(t, NULL);
	storm_take(&s);
	assert_false(pending(s.f, 0));
	assert_int_equal(s.seen, STORM); /* the last one has come, or one after it was raised */
	if (in_step)
		assert_int_equal(s.came, STORM);
	else
		assert_in_range(s.came, 1, STORM);
	assert_int_equal(s.f->hub.news, 1);
	teardown(s.f);
}

/* Each one arrives, once, before the next is raised. */
static void test_storm_in_step(void **state)
{
	run_storm(true);
}

static void test_storm(void **state)
{
	run_storm(false);
}

/* Two raisers on one vector and its pending bit. */
static void *raising(void *arg)
{
	raise_storm(arg);
	return NULL;
}

static void test_storm_of_two(void **state)
{
	struct storm s = { .f = setup(1) };
	pthread_t t[2];

	msix_control(s.f->x, true, false);
	program(s.f, 0);
	mask(s.f, 0, false);
	assert_int_equal(pthread_create(&t[0], NULL, masking, &s), 0);
	assert_int_equal(pthread_create(&t[1], NULL, raising, &s), 0);
	for (unsigned i = 0; i < STORM; i++)
		msix_raise(s.f->x, 0);
	pthread_join(t[1], NULL);
	atomic_store(&s.stop, true);
	pthread_join(t[0], NULL);
	storm_take(&s);
	assert_false(pending(s.f, 0));
	assert_in_range(s.came, 1, 2 * STORM);
	teardown(s.f);
}

/* A write to the descriptor, as from the kernel. */
static void write_fd(int fd)
{
	uint64_t one = 1;

	assert_int_equal(write(fd, &one, sizeof(one)), sizeof(one));
}

/* Who has the descriptor raises the vector; while it is masked nothing gets out, and nothing is lost. */
static void test_direct(void **state)
{
	struct fixture *f = setup(VECS);
	int fd;

	assert_int_equal(msix_direct(f->x, VECS), -1);
	assert_int_equal(msix_direct(f->x, 0xffff), -1);
	program(f, 1);
	msix_raise(f->x, 1); /* before it was direct */
	fd = msix_direct(f->x, 1);
	assert_true(fd >= 0 && msix_direct(f->x, 1) == fd);
	assert_true(pending(f, 1));
	msix_control(f->x, true, false);
	mask(f, 1, false);
	assert_in_range(taken(f, 1), 1, 2);
	for (unsigned round = 0; round < 20; round++) {
		write_fd(fd);
		assert_int_equal(taken(f, 1), 1);
		msix_raise(f->x, 1);
		assert_int_equal(taken(f, 1), 1);
		if (round & 1)
			mask(f, 1, true);
		else
			msix_control(f->x, true, true);
		assert_int_equal(f->hub.msis, 0);
		assert_false(pending(f, 1));
		mask(f, 1, round & 1);
		if (round & 2)
			write_fd(fd);
		else
			msix_raise(f->x, 1);
		assert_true(pending(f, 1));
		assert_int_equal(f->hub.msis, 0);
		msix_control(f->x, true, false);
		mask(f, 1, false);
		assert_int_equal(f->hub.msis, 1);
		assert_in_range(taken(f, 1), 1, 2);
		assert_false(pending(f, 1));
		mask(f, 1, true);
		mask(f, 1, false); /* nothing has come meanwhile */
		assert_int_equal(fakehub_take_all(&f->hub), 0);
	}
	msix_raise(f->x, 2);
	assert_true(pending(f, 2)); /* the others are as they were */
	teardown(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_initial),        cmocka_unit_test(test_direct),
		cmocka_unit_test(test_masked),         cmocka_unit_test(test_route_changes),
		cmocka_unit_test(test_function_mask),  cmocka_unit_test(test_enable),
		cmocka_unit_test(test_no_such_vector), cmocka_unit_test(test_access_sizes),
		cmocka_unit_test(test_wide_write),     cmocka_unit_test(test_pending_bits),
		cmocka_unit_test(test_hub_fails),      cmocka_unit_test(test_storm_in_step),
		cmocka_unit_test(test_storm),          cmocka_unit_test(test_storm_of_two),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
