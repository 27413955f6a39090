// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The PCI root bus: config space as a plain array of bytes with a mask, and
 * BARs whose windows on the memory bus are always exactly those that the
 * registers ask for, whatever a guest writes and in whatever order.
 */
#include "bus/pci.h"

#include <errno.h>
#include <linux/pci_regs.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LEN(a)      (sizeof(a) / sizeof(*(a)))
#define ECAM        0xe0000000ull
#define MMIO        0xc0000000u
#define MMIO_LEN    0x10000u
#define BAR(i)      (PCI_BASE_ADDRESS_0 + 4u * (i))
#define DEVFN(s, f) ((uint8_t)((s) << 3 | (f)))
#define BRIDGE      0x00081b36u
#define STORM       200000
#define FUNCS       3

/* A function whose BARs answer with their own number. */
struct dev {
	struct pci_func f;
	struct pci_bus *pci;
	unsigned hooks, off, size;
};

struct fixture {
	struct bus *mem;
	struct pci_bus *pci;
	struct dev d[FUNCS];
};

static uint64_t bar0_read(void *dev, uint64_t off, unsigned size)
{
	return 0x0100 | ((struct dev *)dev)->f.devfn;
}

static uint64_t bar1_read(void *dev, uint64_t off, unsigned size)
{
	return 0x1100 | ((struct dev *)dev)->f.devfn;
}

static uint64_t bar5_read(void *dev, uint64_t off, unsigned size)
{
	return 0x5100 | ((struct dev *)dev)->f.devfn;
}

static void bar_write(void *dev, uint64_t off, unsigned size, uint64_t val)
{
}

static const struct bus_ops bar0_ops = { bar0_read, bar_write };
static const struct bus_ops bar1_ops = { bar1_read, bar_write };
static const struct bus_ops bar5_ops = { bar5_read, bar_write };

static void hook(void *dev, unsigned off, unsigned size)
{
	struct dev *d = dev;

	d->hooks++;
	d->off = off;
	d->size = size;
	pci_cfg_read(d->pci, d->f.devfn, off, size); /* hangs if called under the lock */
}

static void dev_init(struct dev *d, struct pci_bus *pci)
{
	*d = (struct dev){
		.f = { .name = "dev",
		       .vendor = 0x1af4,
		       .device = 0x1042,
		       .subvendor = 0x1234,
		       .subdevice = 0x5678,
		       .class_rev = 0x01800003,
		       .bar = { [0] = { 0x1000, &bar0_ops, "bar0" },
		                [1] = { 0x10, &bar1_ops, "bar1" },
		                [5] = { 0x400, &bar5_ops, "bar5" } },
		       .dev = d,
		       .cfg_written = hook },
		.pci = pci,
	};
}

static int setup(void **state)
{
	struct fixture *x = calloc(1, sizeof(*x));
	struct err err;

	assert_int_equal(bus_new(&x->mem, &err), 0);
	assert_int_equal(pci_new(x->mem, ECAM, MMIO, MMIO_LEN, &x->pci, &err), 0);
	*state = x;
	return 0;
}

static void assert_bus_empty(struct bus *mem)
{
	struct window all = { "all", 0, UINT64_MAX, &bar0_ops, NULL };

	assert_int_equal(bus_add(mem, &all), 0);
}

static int teardown(void **state)
{
	struct fixture *x = *state;

	pci_free(x->pci);
	assert_bus_empty(x->mem);
	bus_free(x->mem);
	free(x);
	return 0;
}

static void add(struct fixture *x, unsigned i, uint8_t devfn)
{
	struct err err;

	dev_init(&x->d[i], x->pci);
	assert_int_equal(pci_add(x->pci, &x->d[i].f, devfn, &err), 0);
}

static uint32_t rd(struct fixture *x, unsigned i, unsigned off, unsigned size)
{
	return pci_cfg_read(x->pci, x->d[i].f.devfn, off, size);
}

static void wr(struct fixture *x, unsigned i, unsigned off, unsigned size, uint32_t val)
{
	pci_cfg_write(x->pci, x->d[i].f.devfn, off, size, val);
}

static uint64_t mmio(struct fixture *x, uint64_t addr)
{
	return bus_read(x->mem, addr, 2);
}

static void free_null(void **state)
{
	pci_free(NULL);
}

static void header(void **state)
{
	static const struct {
		unsigned off, size;
		uint32_t val;
	} t[] = {
		{ PCI_VENDOR_ID, 2, 0x1af4 },
		{ PCI_DEVICE_ID, 2, 0x1042 },
		{ PCI_VENDOR_ID, 4, 0x10421af4 },
		{ PCI_REVISION_ID, 1, 0x03 },
		{ PCI_CLASS_DEVICE, 2, 0x0180 },
		{ PCI_CLASS_REVISION, 4, 0x01800003 },
		{ PCI_HEADER_TYPE, 1, 0 },
		{ PCI_SUBSYSTEM_VENDOR_ID, 2, 0x1234 },
		{ PCI_SUBSYSTEM_ID, 2, 0x5678 },
		{ PCI_STATUS, 2, 0 },
		{ PCI_CAPABILITY_LIST, 1, 0 },
		{ PCI_INTERRUPT_PIN, 1, 0 },
		{ 0x100, 4, 0 },
	};
	struct fixture *x = *state;

	add(x, 0, DEVFN(3, 0));
	for (size_t i = 0; i < LEN(t); i++)
		assert_int_equal(rd(x, 0, t[i].off, t[i].size), t[i].val);
	assert_int_equal(pci_cfg_read(x->pci, 0, 0, 4), BRIDGE);
	assert_int_equal(pci_cfg_read(x->pci, 0, PCI_CLASS_DEVICE, 2), 0x0600);
}

static void nobody(void **state)
{
	struct fixture *x = *state;

	add(x, 0, DEVFN(3, 0));
	for (unsigned d = 1; d < 256; d++) {
		if (d == DEVFN(3, 0))
			continue;
		pci_cfg_write(x->pci, (uint8_t)d, PCI_COMMAND, 2, 0xffff);
		assert_int_equal(pci_cfg_read(x->pci, (uint8_t)d, 0, 4), 0xffffffff);
		assert_int_equal(pci_cfg_read(x->pci, (uint8_t)d, 0, 2) & 0xffff, 0xffff);
		assert_int_equal(bus_read(x->mem, ECAM + d * PCI_CFG_SIZE, 4), 0xffffffff);
	}
	assert_int_equal(x->d[0].hooks, 0);
}

/* Every size at every offset, against a plain copy; behind the end there is nothing. */
static void reads(void **state)
{
	static const unsigned sizes[] = { 1, 2, 4 };
	struct fixture *x = *state;
	uint8_t *cfg = x->d[0].f.cfg;

	add(x, 0, DEVFN(1, 0));
	for (unsigned i = 0x40; i < PCI_CFG_SIZE; i++)
		cfg[i] = (uint8_t)(i * 7 + i / 256);
	for (size_t s = 0; s < LEN(sizes); s++) {
		for (unsigned off = 0; off < PCI_CFG_SIZE + 8; off++) {
			uint32_t ones = 0xffffffffu >> (32 - 8 * sizes[s]), want = ones;

			if (off + sizes[s] <= PCI_CFG_SIZE) {
				want = 0;
				memcpy(&want, cfg + off, sizes[s]); /* the host is little-endian too */
			}
			assert_int_equal(rd(x, 0, off, sizes[s]) & ones, want);
		}
		assert_int_equal(rd(x, 0, UINT32_MAX - 3, sizes[s]), 0xffffffff);
		assert_int_equal(rd(x, 0, UINT32_MAX, sizes[s]), 0xffffffff);
	}
}

/* The same for writes: bits outside of the mask stay. */
static void writes(void **state)
{
	static const unsigned sizes[] = { 1, 2, 4 };
	struct fixture *x = *state;
	struct pci_func *f = &x->d[0].f;
	static uint8_t want[PCI_CFG_SIZE];

	add(x, 0, DEVFN(1, 0));
	for (unsigned i = 0x40; i < PCI_CFG_SIZE; i++)
		f->wmask[i] = (uint8_t)(i * 37);
	memcpy(want, f->cfg, sizeof(want));
	srandom(1);
	for (unsigned n = 0; n < 3 * (PCI_CFG_SIZE + 8); n++) {
		unsigned size = sizes[n % 3], off = n / 3;
		uint32_t val = (uint32_t)random() * 2 + n % 2;
		bool in = off + size <= PCI_CFG_SIZE;

		x->d[0].hooks = 0;
		for (unsigned i = 0; in && i < size; i++)
			want[off + i] = (want[off + i] & ~f->wmask[off + i]) |
			                (uint8_t)((val >> 8 * i) & f->wmask[off + i]);
		wr(x, 0, off, size, val);
		assert_int_equal(x->d[0].hooks, in);
		assert_memory_equal(f->cfg, want, sizeof(want));
		if (in) {
			assert_int_equal(x->d[0].off, off);
			assert_int_equal(x->d[0].size, size);
		}
	}
	wr(x, 0, UINT32_MAX - 1, 4, 0);
	wr(x, 0, UINT32_MAX, 1, 0);
	assert_memory_equal(f->cfg, want, sizeof(want));
}

/* What a guest may change in a header, and nothing else. */
static void read_only_fields(void **state)
{
	static const struct {
		unsigned off;
		uint32_t bits;
	} t[] = {
		{ PCI_COMMAND, PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_INTX_DISABLE },
		{ PCI_CACHE_LINE_SIZE, 0xff },
		{ PCI_INTERRUPT_LINE & ~3u, 0xff },
		{ BAR(0), 0xfffff000 },
		{ BAR(1), 0xfffffff0 },
		{ BAR(5), 0xfffffc00 },
	};
	struct fixture *x = *state;
	uint8_t before[PCI_CFG_SIZE];

	add(x, 0, DEVFN(1, 0));
	memcpy(before, x->d[0].f.cfg, sizeof(before));
	for (unsigned off = 0; off < PCI_CFG_SIZE; off += 4) {
		uint32_t old, bits = 0;

		memcpy(&old, before + off, 4);
		for (size_t i = 0; i < LEN(t); i++)
			bits |= t[i].off == off ? t[i].bits : 0;
		wr(x, 0, off, 4, ~0u);
		assert_int_equal(rd(x, 0, off, 4), old | bits);
		wr(x, 0, off, 4, 0);
		assert_int_equal(rd(x, 0, off, 4), old & ~bits);
	}
}

/* First addresses: in order, each aligned to its size, decoded from the start. */
static void bar_placement(void **state)
{
	struct fixture *x = *state;

	add(x, 0, DEVFN(1, 0));
	add(x, 1, DEVFN(2, 0));
	assert_int_equal(rd(x, 0, BAR(0), 4), MMIO);
	assert_int_equal(rd(x, 0, BAR(1), 4), MMIO + 0x1000);
	assert_int_equal(rd(x, 0, BAR(5), 4), MMIO + 0x1400);
	assert_int_equal(rd(x, 1, BAR(0), 4), MMIO + 0x2000);
	assert_int_equal(rd(x, 0, BAR(2), 4), 0);
	assert_int_equal(mmio(x, MMIO + 0xffe), 0x0108);
	assert_int_equal(mmio(x, MMIO + 0x100e), 0x1108);
	assert_int_equal(mmio(x, MMIO + 0x1010), 0xffff);
	assert_int_equal(mmio(x, MMIO + 0x17fe), 0x5108);
	assert_int_equal(mmio(x, MMIO + 0x2000), 0x0110);
}

/* As drivers do it, decoding or not; while all ones are there it answers nowhere. */
static void bar_sizing(void **state)
{
	static const unsigned bars[] = { 0, 1, 5 };
	struct fixture *x = *state;

	add(x, 0, DEVFN(1, 0));
	for (size_t i = 0; i < LEN(bars); i++) {
		uint32_t base = rd(x, 0, BAR(bars[i]), 4), len = x->d[0].f.bar[bars[i]].len;
		uint64_t answer = mmio(x, base);

		wr(x, 0, BAR(bars[i]), 4, ~0u);
		assert_int_equal(rd(x, 0, BAR(bars[i]), 4), -len);
		assert_int_equal(mmio(x, base), 0xffff);
		assert_int_equal(mmio(x, (uint32_t)-len), 0xffff);
		wr(x, 0, BAR(bars[i]), 4, base);
		assert_int_equal(mmio(x, base), answer);
	}
	wr(x, 0, BAR(2), 4, ~0u);
	assert_int_equal(rd(x, 0, BAR(2), 4), 0);
}

static void bar_move(void **state)
{
	struct fixture *x = *state;

	add(x, 0, DEVFN(1, 0));
	wr(x, 0, BAR(0), 4, MMIO + 0x8fff); /* low bits are not there */
	assert_int_equal(rd(x, 0, BAR(0), 4), MMIO + 0x8000);
	assert_int_equal(mmio(x, MMIO), 0xffff);
	assert_int_equal(mmio(x, MMIO + 0x8000), 0x0108);
	wr(x, 0, BAR(0) + 1, 1, 0xa0); /* a byte of it, and a half that begins before */
	assert_int_equal(mmio(x, MMIO + 0xa000), 0x0108);
	wr(x, 0, BAR(0) - 3, 4, 0);
	wr(x, 0, BAR(0) + 1, 2, 0x0090);
	assert_int_equal(mmio(x, MMIO + 0xa000), 0xffff);
	assert_int_equal(mmio(x, MMIO + 0x9000), 0x0108);
	wr(x, 0, BAR(0) + 2, 4, 0x3000c001); /* 0xc001 and 0x3000: across into BAR 1 */
	assert_int_equal(rd(x, 0, BAR(0), 4), 0xc0019000);
	assert_int_equal(rd(x, 0, BAR(1), 4), 0xc0003000);
	assert_int_equal(mmio(x, 0xc0003000), 0x1108);
	assert_int_equal(mmio(x, MMIO + 0x9000), 0xffff);
}

static void bar_outside(void **state)
{
	static const uint32_t bad[] = {
		0, 0x1000, MMIO - 0x1000, MMIO + MMIO_LEN, 0x80000000, ECAM + 0x1000, 0xfffff000
	};
	struct fixture *x = *state;

	add(x, 0, DEVFN(1, 0));
	for (size_t i = 0; i < LEN(bad); i++) {
		wr(x, 0, BAR(0), 4, bad[i]);
		assert_int_equal(rd(x, 0, BAR(0), 4), bad[i]);
		assert_int_not_equal(mmio(x, bad[i]), 0x0108);
		assert_int_equal(mmio(x, MMIO), 0xffff);
	}
	wr(x, 0, BAR(0), 4, MMIO + MMIO_LEN - 0x1000);
	assert_int_equal(mmio(x, MMIO + MMIO_LEN - 2), 0x0108);
}

static void decode_off(void **state)
{
	struct fixture *x = *state;

	add(x, 0, DEVFN(1, 0));
	assert_int_equal(rd(x, 0, PCI_COMMAND, 2), PCI_COMMAND_MEMORY);
	wr(x, 0, PCI_COMMAND, 2, PCI_COMMAND_MASTER);
	assert_int_equal(mmio(x, MMIO), 0xffff);
	assert_int_equal(mmio(x, MMIO + 0x1000), 0xffff);
	wr(x, 0, BAR(0), 4, MMIO + 0x4000);
	assert_int_equal(mmio(x, MMIO + 0x4000), 0xffff);
	wr(x, 0, PCI_COMMAND - 2, 4, PCI_COMMAND_MEMORY << 16); /* unaligned, from two bytes before */
	assert_int_equal(mmio(x, MMIO + 0x4000), 0x0108);
	wr(x, 0, PCI_COMMAND + 1, 1, 0xff); /* the other half: stays on */
	assert_int_equal(mmio(x, MMIO + 0x4000), 0x0108);
	wr(x, 0, PCI_COMMAND, 1, 0);
	assert_int_equal(mmio(x, MMIO + 0x4000), 0xffff);
}

/* Two at one place: the first answers; when it goes, the other does, whichever of them it is. */
static void bar_overlap(void **state)
{
	struct fixture *x = *state;

	add(x, 0, DEVFN(1, 0));
	add(x, 1, DEVFN(2, 0));
	for (unsigned i = 0; i < 2; i++) {
		unsigned first = i, second = 1 - i;
		uint64_t answer[] = { 0x0108, 0x0110 };

		wr(x, second, BAR(0), 4, MMIO + 0x7000);
		wr(x, first, BAR(0), 4, MMIO + 0x8000);
		wr(x, second, BAR(0), 4, MMIO + 0x8000);
		assert_int_equal(mmio(x, MMIO + 0x8000), answer[first]);
		wr(x, first, BAR(0), 4, MMIO + 0x9000);
		assert_int_equal(mmio(x, MMIO + 0x9000), answer[first]);
		assert_int_equal(mmio(x, MMIO + 0x8000), answer[second]);
		wr(x, first, BAR(0), 4, MMIO + 0x8000);
		wr(x, second, PCI_COMMAND, 2, 0);
		assert_int_equal(mmio(x, MMIO + 0x8000), answer[first]);
		wr(x, second, PCI_COMMAND, 2, PCI_COMMAND_MEMORY);
		assert_int_equal(mmio(x, MMIO + 0x8000), answer[first]);
	}
}

/* A guest that swaps two addresses without turning decoding off: within a function, and between two. */
static void bar_swap(void **state)
{
	static const struct {
		unsigned i, bar;
	} t[][2] = { { { 0, 1 }, { 0, 5 } }, { { 0, 5 }, { 0, 1 } }, { { 0, 1 }, { 1, 5 } }, { { 1, 1 }, { 0, 5 } } };
	struct fixture *x = *state;

	add(x, 0, DEVFN(1, 0));
	add(x, 1, DEVFN(2, 0));
	for (size_t n = 0; n < LEN(t); n++) {
		uint32_t a = MMIO + 0x8000 + 0x1000 * (uint32_t)n, b = a + 0x800;
		uint64_t answer[2];

		wr(x, t[n][0].i, BAR(t[n][0].bar), 4, a);
		wr(x, t[n][1].i, BAR(t[n][1].bar), 4, b);
		answer[0] = mmio(x, a);
		answer[1] = mmio(x, b);
		wr(x, t[n][0].i, BAR(t[n][0].bar), 4, b);
		wr(x, t[n][1].i, BAR(t[n][1].bar), 4, a);
		assert_int_equal(mmio(x, b), answer[0]);
		assert_int_equal(mmio(x, a), answer[1]);
	}
}

static void ecam(void **state)
{
	struct fixture *x = *state;
	uint64_t base = ECAM + DEVFN(31, 7) * PCI_CFG_SIZE;

	add(x, 0, DEVFN(31, 7)); /* the last one */
	memset(&x->d[0].f.wmask[0xf00], 0xff, 0x100);
	assert_int_equal(bus_read(x->mem, base, 4), 0x10421af4);
	assert_int_equal(bus_read(x->mem, base + 2, 2), 0x1042);
	assert_int_equal(bus_read(x->mem, base, 8), 0x10421af4ull | (uint64_t)PCI_COMMAND_MEMORY << 32);
	bus_write(x->mem, base + 0xff8, 8, 0x8877665544332211);
	assert_int_equal(x->d[0].hooks, 2);
	assert_int_equal(rd(x, 0, 0xff8, 4), 0x44332211);
	assert_int_equal(rd(x, 0, 0xffc, 4), 0x88776655);
	assert_int_equal(bus_read(x->mem, base + 0xff8, 8), 0x8877665544332211);
	assert_int_equal(bus_read(x->mem, base + 0xfff, 1), 0x88);
	assert_int_equal(bus_read(x->mem, base + 0xffd, 4), 0xffffffff); /* leaves the bus's window */
	bus_write(x->mem, base + 0x10, 8, (MMIO + 0x9000ull) << 32 | (MMIO + 0x8000));
	assert_int_equal(mmio(x, MMIO + 0x8000), 0x01ff);
	assert_int_equal(mmio(x, MMIO + 0x9000), 0x11ff);
}

/* Across the end of one function's registers: nothing of the next one is touched. */
static void ecam_straddle(void **state)
{
	struct fixture *x = *state;
	uint64_t base = ECAM + DEVFN(1, 0) * PCI_CFG_SIZE;

	add(x, 0, DEVFN(1, 0));
	add(x, 1, DEVFN(1, 1));
	memset(x->d[0].f.wmask + 0xff0, 0xff, 16);
	memset(x->d[1].f.wmask, 0xff, 16);
	assert_int_equal(bus_read(x->mem, base + 0xfff, 2), 0xffff);
	assert_int_equal(bus_read(x->mem, base + 0xffe, 4), 0xffffffff);
	assert_int_equal(bus_read(x->mem, base + 0xffc, 8), 0xffffffff00000000);
	bus_write(x->mem, base + 0xffe, 4, 0);
	bus_write(x->mem, base + 0xffc, 8, 0x8877665544332211);
	assert_int_equal(rd(x, 0, 0xffc, 4), 0x44332211);
	assert_int_equal(rd(x, 1, 0, 4), 0x10421af4);
}

static bool multi(struct fixture *x, uint8_t devfn)
{
	return pci_cfg_read(x->pci, devfn, PCI_HEADER_TYPE, 1) & 0x80;
}

/* Function 0 says that there are others, whichever came first. */
static void multifunction(void **state)
{
	struct fixture *x = *state;

	add(x, 0, DEVFN(4, 0));
	assert_false(multi(x, DEVFN(4, 0)));
	add(x, 1, DEVFN(4, 5));
	assert_true(multi(x, DEVFN(4, 0)));
	add(x, 2, DEVFN(0, 1));
	assert_true(multi(x, 0));
}

static void multifunction_late(void **state)
{
	struct fixture *x = *state;

	add(x, 0, DEVFN(4, 7));
	add(x, 1, DEVFN(5, 0));
	assert_false(multi(x, DEVFN(5, 0)));
	add(x, 2, DEVFN(4, 0));
	assert_true(multi(x, DEVFN(4, 0)));
	assert_false(multi(x, DEVFN(5, 0)));
}

static void slot_taken(void **state)
{
	struct fixture *x = *state;
	struct err err = { "" };

	add(x, 0, DEVFN(3, 1));
	dev_init(&x->d[1], x->pci);
	assert_int_equal(pci_add(x->pci, &x->d[1].f, DEVFN(3, 1), &err), -EEXIST);
	assert_string_equal(err.msg, "dev: PCI slot 3.1 is taken");
	assert_int_equal(pci_add(x->pci, &x->d[1].f, 0, &err), -EEXIST);
	assert_int_equal(rd(x, 0, 0, 4), 0x10421af4);
}

static void no_room(void **state)
{
	struct fixture *x = *state;
	struct err err = { "" };

	add(x, 0, DEVFN(1, 0));
	dev_init(&x->d[1], x->pci);
	x->d[1].f.bar[5].len = MMIO_LEN;
	assert_int_equal(pci_add(x->pci, &x->d[1].f, DEVFN(2, 0), &err), -ENOSPC);
	assert_string_equal(err.msg, "dev: no room for its PCI memory");
	assert_int_equal(pci_cfg_read(x->pci, DEVFN(2, 0), 0, 4), 0xffffffff);
	dev_init(&x->d[2], x->pci);
	x->d[2].f.bar[0].len = 0x80000000; /* more than the whole window */
	assert_int_equal(pci_add(x->pci, &x->d[2].f, DEVFN(3, 0), &err), -ENOSPC);
}

/* A bus that cannot have its ECAM leaves alone who is there. */
static void ecam_taken(void **state)
{
	static const uint64_t at[] = { ECAM, ECAM + PCI_ECAM_BUS_LEN - 1 };
	struct window w = { "other", 0, 1, &bar0_ops, NULL };
	struct dev d = { .f = { .devfn = 0x42 } };

	w.dev = &d;
	for (size_t i = 0; i < LEN(at); i++) {
		struct pci_bus *pci = NULL;
		struct bus *mem;
		struct err err;

		assert_int_equal(bus_new(&mem, &err), 0);
		w.base = at[i];
		assert_int_equal(bus_add(mem, &w), 0);
		assert_int_equal(pci_new(mem, ECAM, MMIO, MMIO_LEN, &pci, &err), -EEXIST);
		assert_null(pci);
		assert_int_equal(bus_read(mem, at[i], 1), 0x42);
		bus_free(mem);
	}
}

/* The storm. */

struct range {
	uint32_t base, len;
	bool wanted, mapped;
	uint64_t answer;
};

static struct range range_of(struct fixture *x, unsigned i, unsigned bar)
{
	struct pci_func *f = &x->d[i].f;
	struct range r = { .base = rd(x, i, BAR(bar), 4), .len = f->bar[bar].len };

	r.answer = (uint64_t)(bar << 12 | 0x100 | f->devfn);
	r.wanted = (rd(x, i, PCI_COMMAND, 2) & PCI_COMMAND_MEMORY) && r.base >= MMIO &&
	           (uint64_t)r.base + r.len <= (uint64_t)MMIO + MMIO_LEN;
	r.mapped = f->mapped[bar];
	if (r.mapped)
		assert_int_equal(f->mapped[bar], r.base);
	return r;
}

static bool overlap(const struct range *a, const struct range *b)
{
	return a->base < b->base + b->len && b->base < a->base + a->len;
}

static void check_range(struct fixture *x, const struct range *r, unsigned n, unsigned i)
{
	bool blocked = false;

	for (unsigned j = 0; j < n; j++) {
		if (j == i || !r[j].mapped || !overlap(&r[i], &r[j]))
			continue;
		assert_false(r[i].mapped);
		blocked = true;
	}
	assert_int_equal(r[i].mapped, r[i].wanted && !blocked);
	if (!r[i].mapped)
		return;
	assert_int_equal(mmio(x, r[i].base), r[i].answer);
	assert_int_equal(mmio(x, r[i].base + r[i].len - 2), r[i].answer);
}

/* The windows that are mapped are disjoint, wanted, and as many as there can be; nothing else answers. */
static void check_windows(struct fixture *x)
{
	static const unsigned bars[] = { 0, 1, 5 };
	struct range r[FUNCS * LEN(bars)];
	uint32_t probe = MMIO + ((uint32_t)random() % MMIO_LEN & ~1u);
	uint64_t want = 0xffff;
	unsigned n = 0;

	for (unsigned i = 0; i < FUNCS; i++)
		for (size_t b = 0; b < LEN(bars); b++)
			r[n++] = range_of(x, i, bars[b]);
	for (unsigned i = 0; i < n; i++) {
		check_range(x, r, n, i);
		if (r[i].mapped && probe >= r[i].base && probe - r[i].base < r[i].len)
			want = r[i].answer;
	}
	assert_int_equal(mmio(x, probe), want);
}

static uint32_t storm_value(void)
{
	switch (random() % 4) {
	case 0: return (uint32_t)random() * 2;
	case 1: return ~0u;
	default: return MMIO + (uint32_t)random() % 0x3000;
	}
}

static void storm(void **state)
{
	static const unsigned sizes[] = { 1, 2, 4, 4, 4 };
	struct fixture *x = *state;

	add(x, 0, DEVFN(1, 0));
	add(x, 1, DEVFN(1, 1));
	add(x, 2, DEVFN(2, 0));
	srandom(20240229);
	for (unsigned n = 0; n < STORM; n++) {
		unsigned i = (unsigned)random() % FUNCS, size = sizes[random() % 5];
		unsigned off = random() % 8 ? BAR((unsigned)random() % 6) : (unsigned)random() % 0x40;
		uint32_t val = storm_value();

		if (random() % 8 == 0) {
			off = PCI_COMMAND;
			val = random() % 4 ? PCI_COMMAND_MEMORY : 0;
		}
		if (random() % 2)
			wr(x, i, off, size, val);
		else
			bus_write(x->mem, ECAM + x->d[i].f.devfn * PCI_CFG_SIZE + off, size == 4 ? 8 : size,
			          (uint64_t)storm_value() << 32 | val);
		check_windows(x);
	}
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(free_null),
		TEST(header),
		TEST(nobody),
		TEST(reads),
		TEST(writes),
		TEST(read_only_fields),
		TEST(bar_placement),
		TEST(bar_sizing),
		TEST(bar_move),
		TEST(bar_outside),
		TEST(decode_off),
		TEST(bar_overlap),
		TEST(bar_swap),
		TEST(ecam),
		TEST(ecam_straddle),
		TEST(multifunction),
		TEST(multifunction_late),
		TEST(slot_taken),
		TEST(no_room),
		cmocka_unit_test(ecam_taken),
		TEST(storm),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
