// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * virtio over PCI as a guest's driver sees it: everything goes through config
 * space and the BAR of a real PCI bus; interrupts and doorbells end in a fake
 * hub.
 */
#include "bus/pci.h"
#include "fakedrv.h"
#include "fakehub.h"
#include "virtio/pci.h"
#include "virtio/rng.h"

#include <errno.h>
#include <linux/pci_regs.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ids.h>
#include <linux/virtio_pci.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define LEN(a)    (sizeof(a) / sizeof(*(a)))
#define BANK      (4ull << 20)
#define ECAM      0xe0000000ull
#define MMIO      0xc0000000u
#define MMIO_LEN  0x200000u
#define DEVFN     (3 << 3)
#define QUEUES    3
#define CONFIG    12
#define DEVICES   32
#define VECTORS   (QUEUES + 1)
#define MSI_DATA  0x4100u
#define CAP_DATA  16 /* pci_cfg_data */
#define V1        (1ull << VIRTIO_F_VERSION_1)
#define DRIVER_OK 0xf /* and the bits before it */

/* A device that does nothing by itself. */
struct toy {
	struct virtio_dev dev;
	bool slow; /* stops when the test says so */
	unsigned kicks[QUEUES], stopping;
};

static void toy_kick(struct virtio_dev *d, unsigned q)
{
	((struct toy *)d)->kicks[q]++;
}

static void toy_stop(struct virtio_dev *d, unsigned q)
{
	struct toy *t = (struct toy *)d;

	if (t->slow)
		t->stopping |= 1u << q;
	else
		virtio_queue_stopped(d, q);
}

static const struct virtio_class toy_class = {
	.name = "toy",
	.id = VIRTIO_ID_BLOCK,
	.features = 1ull << 5 | 1ull << 50,
	.config_len = CONFIG,
	.kick = toy_kick,
	.queue_stop = toy_stop,
};

struct fixture {
	struct fakemem ram;
	struct loop *loop;
	struct bus *mem;
	struct pci_bus *pci;
	struct fakehub hub;
	struct irq line;
	bool level;
	unsigned edges; /* how often the line went up */
	struct toy toy;
	struct virtio_dev *d;
	struct virtio_pci *vp;
	uint8_t devfn;
};

static void set_line(struct irq *irq, bool level)
{
	struct fixture *f = irq->opaque;

	f->edges += level && !f->level;
	f->level = level;
}

static void init_toy(struct fixture *f, struct toy *t)
{
	struct virtio_init init = { &toy_class, "toy", &f->ram.gmem, QUEUES, 64, f->loop };
	struct err err;

	assert_int_equal(virtio_dev_init(&t->dev, &init, &err), 0);
}

static struct fixture *setup_bus(void)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct err err;

	assert_non_null(f);
	fakemem_init(&f->ram, BANK, 1);
	fakehub_init(&f->hub);
	f->line = (struct irq){ .set = set_line, .opaque = f, .line = 10 };
	assert_int_equal(loop_new(&f->loop, &err), 0);
	assert_int_equal(bus_new(&f->mem, &err), 0);
	assert_int_equal(pci_new(f->mem, ECAM, MMIO, MMIO_LEN, &f->pci, &err), 0);
	return f;
}

static void teardown_bus(struct fixture *f)
{
	fakehub_exit(&f->hub);
	pci_free(f->pci);
	bus_free(f->mem);
	loop_free(f->loop);
	fakemem_free(&f->ram);
	free(f);
}

static void plug(struct fixture *f, struct virtio_dev *d)
{
	struct err err;

	f->d = d;
	f->devfn = DEVFN;
	assert_int_equal(virtio_pci_new(d, f->pci, DEVFN, &f->hub.hub, &f->line, &f->vp, &err), 0);
}

static struct fixture *setup(void)
{
	struct fixture *f = setup_bus();

	init_toy(f, &f->toy);
	plug(f, &f->toy.dev);
	return f;
}

static void unplug(struct fixture *f)
{
	virtio_dev_stop(f->d);
	virtio_pci_free(f->vp);
}

static void teardown(struct fixture *f)
{
	unplug(f);
	virtio_dev_exit(f->d);
	teardown_bus(f);
}

struct quit {
	struct loop_task task;
	struct loop *loop;
};

static void on_quit(struct loop_task *t)
{
	loop_quit(((struct quit *)t)->loop);
}

static void turn(struct fixture *f)
{
	struct quit q = { .task.cb = on_quit, .loop = f->loop };

	for (unsigned i = 0; i < 2; i++) {
		loop_post(f->loop, &q.task);
		assert_int_equal(loop_run(f->loop), 0);
	}
}

/* Accesses. */

static uint64_t cut(uint64_t val, unsigned size)
{
	return size == 8 ? val : val & ((1ull << (8 * size)) - 1);
}

static uint32_t cfg(const struct fixture *f, unsigned off, unsigned size)
{
	return (uint32_t)cut(bus_read(f->mem, ECAM + f->devfn * 4096ull + off, size), size);
}

static void set_cfg(struct fixture *f, unsigned off, unsigned size, uint32_t val)
{
	bus_write(f->mem, ECAM + f->devfn * 4096ull + off, size, val);
}

static uint32_t bar(const struct fixture *f)
{
	return cfg(f, PCI_BASE_ADDRESS_0, 4) & ~0xfu;
}

/* Offset of the vendor capability of @type, or of the MSI-X one (@type 0). */
static unsigned cap(const struct fixture *f, unsigned type)
{
	unsigned at = cfg(f, PCI_CAPABILITY_LIST, 1);

	for (unsigned n = 0; at && n < 48; n++, at = cfg(f, at + 1, 1)) {
		unsigned id = cfg(f, at, 1);

		if (type ? id == PCI_CAP_ID_VNDR && cfg(f, at + 3, 1) == type : id == PCI_CAP_ID_MSIX)
			return at;
	}
	fail_msg("no capability of type %u", type);
	return 0;
}

static uint64_t region(const struct fixture *f, unsigned type)
{
	return bar(f) + cfg(f, cap(f, type) + 8, 4);
}

static uint64_t common(const struct fixture *f, unsigned off, unsigned size)
{
	return cut(bus_read(f->mem, region(f, VIRTIO_PCI_CAP_COMMON_CFG) + off, size), size);
}

static void set_common(struct fixture *f, unsigned off, unsigned size, uint64_t val)
{
	bus_write(f->mem, region(f, VIRTIO_PCI_CAP_COMMON_CFG) + off, size, val);
}

static unsigned isr(struct fixture *f)
{
	return (unsigned)cut(bus_read(f->mem, region(f, VIRTIO_PCI_CAP_ISR_CFG), 1), 1);
}

static uint64_t doorbell(const struct fixture *f, unsigned q)
{
	uint32_t mult = cfg(f, cap(f, VIRTIO_PCI_CAP_NOTIFY_CFG) + 16, 4);

	return region(f, VIRTIO_PCI_CAP_NOTIFY_CFG) + (uint64_t)q * mult;
}

/* Kicks that wait in queue @q's eventfd. */
static unsigned kicked(struct fixture *f, unsigned q)
{
	uint64_t n;

	return read(f->d->queue[q].kick_fd, &n, sizeof(n)) == sizeof(n) ? (unsigned)n : 0;
}

/* The capabilities. */

static uint32_t bar_len(struct fixture *f)
{
	uint32_t old = cfg(f, PCI_BASE_ADDRESS_0, 4), mask;

	set_cfg(f, PCI_BASE_ADDRESS_0, 4, ~0u);
	mask = cfg(f, PCI_BASE_ADDRESS_0, 4);
	set_cfg(f, PCI_BASE_ADDRESS_0, 4, old);
	return ~(mask & ~0xfu) + 1;
}

struct range {
	uint64_t from, to;
};

/* Records [@from, @from + @len) and fails where it meets another. */
static unsigned claim(struct range *r, unsigned n, uint64_t from, uint64_t len, uint64_t limit)
{
	assert_true(len > 0 && from + len <= limit);
	for (unsigned i = 0; i < n; i++)
		assert_true(from >= r[i].to || from + len <= r[i].from);
	r[n] = (struct range){ from, from + len };
	return n + 1;
}

static void test_capabilities(void **state)
{
	struct fixture *f = setup();
	unsigned seen = 0, ncfg = 0, nbar = 0, at;
	struct range in_cfg[16], in_bar[16];
	uint32_t len = bar_len(f);

	assert_int_equal(len, 0x8000);
	assert_true(cfg(f, PCI_STATUS, 2) & PCI_STATUS_CAP_LIST);
	assert_int_equal(cfg(f, PCI_VENDOR_ID, 4), 0x10421af4);
	assert_int_equal(cfg(f, PCI_REVISION_ID, 1), 1);
	for (at = cfg(f, PCI_CAPABILITY_LIST, 1); at; at = cfg(f, at + 1, 1)) {
		unsigned id = cfg(f, at, 1), type = id == PCI_CAP_ID_VNDR ? cfg(f, at + 3, 1) : 0;

		assert_true(at >= 0x40 && at % 4 == 0 && !(seen & 1u << type));
		seen |= 1u << type;
		ncfg = claim(in_cfg, ncfg, at, type ? cfg(f, at + 2, 1) : PCI_CAP_MSIX_SIZEOF, 256);
		if (!type) {
			assert_int_equal(id, PCI_CAP_ID_MSIX);
			assert_int_equal(cfg(f, at + 2, 2), VECTORS - 1);
			nbar = claim(in_bar, nbar, cfg(f, at + 4, 4), 16 * VECTORS, len);
			nbar = claim(in_bar, nbar, cfg(f, at + 8, 4), 8, len);
			continue;
		}
		assert_int_equal(cfg(f, at + 2, 1),
		                 type == VIRTIO_PCI_CAP_NOTIFY_CFG || type == VIRTIO_PCI_CAP_PCI_CFG ? 20 : 16);
		assert_int_equal(cfg(f, at + 4, 1), 0); /* BAR 0 */
		if (type != VIRTIO_PCI_CAP_PCI_CFG)
			nbar = claim(in_bar, nbar, cfg(f, at + 8, 4), cfg(f, at + 12, 4), len);
	}
	assert_int_equal(seen, 0x3f); /* MSI-X, common, notify, ISR, device, PCI access */
	for (unsigned q = 0; q < QUEUES; q++) {
		unsigned type = VIRTIO_PCI_CAP_NOTIFY_CFG;

		set_common(f, VIRTIO_PCI_COMMON_Q_SELECT, 2, q);
		assert_true(common(f, VIRTIO_PCI_COMMON_Q_NOFF, 2) * cfg(f, cap(f, type) + 16, 4) + 2 <=
		            cfg(f, cap(f, type) + 12, 4));
	}
	teardown(f);
}

/* The way into the BAR through config space. */

static void cfg_window(struct fixture *f, unsigned in_bar, uint32_t off, uint32_t len)
{
	unsigned at = cap(f, VIRTIO_PCI_CAP_PCI_CFG);

	set_cfg(f, at + 4, 1, in_bar);
	set_cfg(f, at + 8, 4, off);
	set_cfg(f, at + 12, 4, len);
}

static void test_cfg_access(void **state)
{
	struct fixture *f = setup();
	unsigned data = cap(f, VIRTIO_PCI_CAP_PCI_CFG) + CAP_DATA;
	uint32_t off = cfg(f, cap(f, VIRTIO_PCI_CAP_COMMON_CFG) + 8, 4);

	cfg_window(f, 0, off + VIRTIO_PCI_COMMON_DFSELECT, 4);
	set_cfg(f, data, 4, 0x12345678);
	assert_int_equal(common(f, VIRTIO_PCI_COMMON_DFSELECT, 4), 0x12345678);
	assert_int_equal(cfg(f, data, 4), 0x12345678);
	cfg_window(f, 0, off + VIRTIO_PCI_COMMON_Q_SELECT, 2);
	set_cfg(f, data, 2, 2);
	assert_int_equal(common(f, VIRTIO_PCI_COMMON_Q_SELECT, 2), 2);
	cfg_window(f, 0, off + VIRTIO_PCI_COMMON_Q_SIZE, 2);
	assert_int_equal(cfg(f, data, 2), 64);
	cfg_window(f, 0, off + VIRTIO_PCI_COMMON_STATUS, 1);
	set_cfg(f, data, 1, 3);
	assert_int_equal(common(f, VIRTIO_PCI_COMMON_STATUS, 1), 3);
	cfg_window(f, 0, (uint32_t)(doorbell(f, 1) - bar(f)), 2);
	set_cfg(f, data, 2, 1);
	assert_int_equal(kicked(f, 1), 1);
	f->d->transport->queue_irq(f->d, 0);
	cfg_window(f, 0, cfg(f, cap(f, VIRTIO_PCI_CAP_ISR_CFG) + 8, 4), 1);
	assert_true(f->level);
	assert_int_equal(cfg(f, data, 1), 1);
	assert_false(f->level);
	assert_int_equal(cfg(f, data, 1), 0);
	teardown(f);
}

static void test_cfg_access_impossible(void **state)
{
	static const struct {
		unsigned bar;
		uint32_t off, len;
	} bad[] = {
		{ 1, 0, 4 },   { 255, 0, 4 },    { 0, 0, 0 },      { 0, 0, 3 },          { 0, 0, 8 },
		{ 0, 1, 4 },   { 0, 2, 4 },      { 0, 1, 2 },      { 0, 0x8000, 4 },     { 0, 0xfffffffc, 4 },
		{ 0, 0, ~0u }, { 0, 0x7ffe, 4 }, { 0, 0x7fff, 2 }, { 0, 0xffffffff, 1 }, { 0, 0, 5 },
	};
	struct fixture *f = setup();
	unsigned data = cap(f, VIRTIO_PCI_CAP_PCI_CFG) + CAP_DATA;

	for (unsigned i = 0; i < LEN(bad); i++) {
		cfg_window(f, bad[i].bar, bad[i].off, bad[i].len);
		set_cfg(f, data, 4, 0x55aa55aa);
		assert_int_equal(cfg(f, data, 4), 0x55aa55aa); /* plain bytes */
	}
	assert_int_equal(common(f, VIRTIO_PCI_COMMON_DFSELECT, 4), 0);
	teardown(f);
}

/* Registers. */

static void test_common(void **state)
{
	struct fixture *f = setup();
	const uint64_t offered = f->d->offered;

	assert_int_equal(common(f, VIRTIO_PCI_COMMON_NUMQ, 2), QUEUES);
	for (unsigned select = 0; select < 4; select++) {
		set_common(f, VIRTIO_PCI_COMMON_DFSELECT, 4, select);
		assert_int_equal(common(f, VIRTIO_PCI_COMMON_DF, 4),
		                 select < 2 ? (uint32_t)(offered >> (32 * select)) : 0);
		set_common(f, VIRTIO_PCI_COMMON_GFSELECT, 4, select);
		set_common(f, VIRTIO_PCI_COMMON_GF, 4, 0xa0 + select);
		assert_int_equal(common(f, VIRTIO_PCI_COMMON_GF, 4), select < 2 ? 0xa0 + select : 0);
	}
	for (unsigned q = 0; q < QUEUES; q++) {
		set_common(f, VIRTIO_PCI_COMMON_Q_SELECT, 2, q);
		assert_int_equal(common(f, VIRTIO_PCI_COMMON_Q_SIZE, 2), 64);
		set_common(f, VIRTIO_PCI_COMMON_Q_SIZE, 2, 16u << q);
		for (unsigned i = 0; i < 6; i++)
			set_common(f, VIRTIO_PCI_COMMON_Q_DESCLO + 4 * i, 4, 0x10 * i + q);
	}
	for (unsigned q = 0; q < QUEUES; q++) {
		set_common(f, VIRTIO_PCI_COMMON_Q_SELECT, 2, q);
		assert_int_equal(common(f, VIRTIO_PCI_COMMON_Q_SIZE, 2), 16u << q);
		assert_int_equal(common(f, VIRTIO_PCI_COMMON_Q_NOFF, 2), q);
		for (unsigned i = 0; i < 6; i++)
			assert_int_equal(common(f, VIRTIO_PCI_COMMON_Q_DESCLO + 4 * i, 4), 0x10 * i + q);
		set_common(f, VIRTIO_PCI_COMMON_Q_USEDLO, 8, 0x1122334455667788);
		assert_true(common(f, VIRTIO_PCI_COMMON_Q_USEDLO, 8) == 0x1122334455667788);
		assert_int_equal(common(f, VIRTIO_PCI_COMMON_Q_USEDHI, 4), 0x11223344);
	}
	set_common(f, VIRTIO_PCI_COMMON_Q_SELECT, 2, QUEUES);
	assert_int_equal(common(f, VIRTIO_PCI_COMMON_Q_SIZE, 2), 0);
	assert_int_equal(common(f, VIRTIO_PCI_COMMON_Q_MSIX, 2), VIRTIO_MSI_NO_VECTOR);
	set_common(f, VIRTIO_PCI_COMMON_Q_MSIX, 2, 0);
	set_common(f, VIRTIO_PCI_COMMON_Q_ENABLE, 2, 1);
	assert_int_equal(common(f, VIRTIO_PCI_COMMON_Q_MSIX, 2), VIRTIO_MSI_NO_VECTOR);
	assert_int_equal(common(f, VIRTIO_PCI_COMMON_Q_ENABLE, 2), 0);
	teardown(f);
}

/* Every size at every place of the BAR: an answer, no matter which; the ends of the regions too. */
static void test_every_access(void **state)
{
	struct fixture *f = setup();
	uint64_t seed = 1;

	for (unsigned size = 1; size <= 8; size *= 2)
		for (unsigned off = 0; off + size <= 0x8000; off += off % 0x1000 < 96 || off % 0x1000 > 4080 ? 1 : 13) {
			uint64_t before;

			seed = seed * 6364136223846793005 + 1442695040888963407;
			bus_write(f->mem, bar(f) + off, size, seed >> 20);
			before = bus_read(f->mem, bar(f) + off, size);
			(void)before;
			turn(f);
		}
	set_common(f, VIRTIO_PCI_COMMON_STATUS, 1, 0);
	turn(f);
	assert_int_equal(common(f, VIRTIO_PCI_COMMON_STATUS, 1), 0);
	assert_int_equal(common(f, VIRTIO_PCI_COMMON_NUMQ, 2), QUEUES);
	teardown(f);
}

static void test_device_config(void **state)
{
	struct fixture *f = setup();
	uint64_t at = region(f, VIRTIO_PCI_CAP_DEVICE_CFG), gen;
	uint8_t val[CONFIG] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 };

	gen = common(f, VIRTIO_PCI_COMMON_CFGGENERATION, 1);
	virtio_set_config(f->d, 0, val, CONFIG);
	assert_int_equal(common(f, VIRTIO_PCI_COMMON_CFGGENERATION, 1), gen + 1);
	assert_true(bus_read(f->mem, at, 8) == 0x0807060504030201);
	assert_int_equal(bus_read(f->mem, at + 8, 4), 0x0c0b0a09);
	assert_int_equal(cut(bus_read(f->mem, at + 11, 2), 2), 0xffff);
	assert_int_equal(cut(bus_read(f->mem, at + 12, 1), 1), 0xff);
	assert_int_equal(cut(bus_read(f->mem, at + 4095, 1), 1), 0xff);
	teardown(f);
}

/* Doorbells. */

static void check_doorbells(struct fixture *f, bool by_hub)
{
	assert_int_equal(f->hub.kicks, by_hub ? QUEUES : 0);
	for (unsigned q = 0; q < QUEUES; q++) {
		assert_int_equal(fakehub_ring(&f->hub, doorbell(f, q)), by_hub);
		if (!by_hub)
			bus_write(f->mem, doorbell(f, q), 2, q);
		for (unsigned other = 0; other < QUEUES; other++)
			assert_int_equal(kicked(f, other), other == q);
	}
}

static void test_doorbells_follow(void **state)
{
	struct fixture *f = setup();

	check_doorbells(f, true);
	for (unsigned i = 1; i < 10; i++) {
		set_cfg(f, PCI_BASE_ADDRESS_0, 4, MMIO + 0x10000 * i);
		assert_int_equal(bar(f), MMIO + 0x10000 * i);
		check_doorbells(f, true);
	}
	set_cfg(f, PCI_COMMAND, 2, 0);
	assert_int_equal(f->hub.kicks, 0);
	set_cfg(f, PCI_BASE_ADDRESS_0, 4, MMIO + 0x8000);
	assert_int_equal(f->hub.kicks, 0);
	set_cfg(f, PCI_COMMAND, 2, PCI_COMMAND_MEMORY);
	check_doorbells(f, true);
	set_cfg(f, PCI_BASE_ADDRESS_0, 4, 0x1000); /* outside the window */
	assert_int_equal(f->hub.kicks, 0);
	set_cfg(f, PCI_BASE_ADDRESS_0, 4, ~0u); /* sizing */
	assert_int_equal(f->hub.kicks, 0);
	set_cfg(f, PCI_BASE_ADDRESS_0, 4, MMIO);
	check_doorbells(f, true);
	assert_int_equal(f->hub.kick_adds - f->hub.kick_dels, QUEUES);
	teardown(f);
}

static void test_doorbells_by_hand(void **state)
{
	struct fixture *f = setup();

	for (int n = 0; n < QUEUES; n++) {
		f->hub.fail_kick = n;
		set_cfg(f, PCI_BASE_ADDRESS_0, 4, MMIO + 0x10000 * (n + 1));
		check_doorbells(f, false);
	}
	for (unsigned q = QUEUES; q < 1024; q++)
		bus_write(f->mem, doorbell(f, q), 4, 0);
	bus_write(f->mem, doorbell(f, 1) + 3, 1, 0); /* anywhere in it, any size */
	assert_int_equal(kicked(f, 1), 1);
	assert_int_equal(kicked(f, 0) + kicked(f, 2), 0);
	f->hub.fail_kick = -1;
	set_cfg(f, PCI_BASE_ADDRESS_0, 4, MMIO + 0x10000);
	check_doorbells(f, true);
	teardown(f);
}

/* MSI-X. */

static void set_entry(struct fixture *f, unsigned vec, unsigned reg, uint32_t val)
{
	bus_write(f->mem, bar(f) + cfg(f, cap(f, 0) + 4, 4) + vec * 16 + reg, 4, val);
}

static void open_vector(struct fixture *f, unsigned vec)
{
	set_entry(f, vec, PCI_MSIX_ENTRY_LOWER_ADDR, 0xfee00000);
	set_entry(f, vec, PCI_MSIX_ENTRY_UPPER_ADDR, 0);
	set_entry(f, vec, PCI_MSIX_ENTRY_DATA, MSI_DATA + vec);
	set_entry(f, vec, PCI_MSIX_ENTRY_VECTOR_CTRL, 0);
}

static uint64_t pending(struct fixture *f)
{
	return bus_read(f->mem, bar(f) + cfg(f, cap(f, 0) + 8, 4), 8);
}

static void set_msix(struct fixture *f, unsigned bits)
{
	set_cfg(f, cap(f, 0) + PCI_MSIX_FLAGS, 2, bits);
}

static unsigned taken(struct fixture *f, unsigned vec)
{
	return fakehub_take(&f->hub, MSI_DATA + vec);
}

static void raise(struct fixture *f, int q)
{
	if (q < 0)
		f->d->transport->config_irq(f->d);
	else
		f->d->transport->queue_irq(f->d, (unsigned)q);
}

static void choose_vectors(struct fixture *f)
{
	set_common(f, VIRTIO_PCI_COMMON_MSIX, 2, 0);
	assert_int_equal(common(f, VIRTIO_PCI_COMMON_MSIX, 2), 0);
	for (unsigned q = 0; q < QUEUES; q++) {
		set_common(f, VIRTIO_PCI_COMMON_Q_SELECT, 2, q);
		assert_int_equal(common(f, VIRTIO_PCI_COMMON_Q_MSIX, 2), VIRTIO_MSI_NO_VECTOR);
		set_common(f, VIRTIO_PCI_COMMON_Q_MSIX, 2, q + 1);
		assert_int_equal(common(f, VIRTIO_PCI_COMMON_Q_MSIX, 2), q + 1);
	}
}

static void test_msix(void **state)
{
	struct fixture *f = setup();

	set_msix(f, PCI_MSIX_FLAGS_ENABLE);
	choose_vectors(f);
	for (int q = -1; q < QUEUES; q++) {
		raise(f, q);
		assert_int_equal(pending(f), 1u << (q + 1));
		assert_int_equal(f->hub.msis, q + 1);
		open_vector(f, (unsigned)(q + 1));
		assert_int_equal(pending(f), 0);
		assert_int_equal(taken(f, (unsigned)(q + 1)), 1);
		raise(f, q);
		raise(f, q);
		assert_int_equal(taken(f, (unsigned)(q + 1)), 2);
	}
	set_msix(f, PCI_MSIX_FLAGS_ENABLE | PCI_MSIX_FLAGS_MASKALL);
	for (int q = -1; q < QUEUES; q++)
		raise(f, q);
	assert_int_equal(fakehub_take_all(&f->hub), 0);
	assert_int_equal(pending(f), (1u << VECTORS) - 1);
	set_msix(f, PCI_MSIX_FLAGS_ENABLE);
	for (unsigned v = 0; v < VECTORS; v++)
		assert_int_equal(taken(f, v), 1);
	assert_int_equal(f->hub.news, VECTORS);
	assert_int_equal(f->hub.routes, VECTORS);
	assert_int_equal(f->edges, 0);
	assert_int_equal(isr(f), 0);
	set_common(f, VIRTIO_PCI_COMMON_STATUS, 1, 0);
	for (int q = -1; q < QUEUES; q++)
		raise(f, q); /* a reset takes the vectors away */
	assert_int_equal(fakehub_take_all(&f->hub), 0);
	assert_int_equal(common(f, VIRTIO_PCI_COMMON_MSIX, 2), VIRTIO_MSI_NO_VECTOR);
	choose_vectors(f);
	raise(f, 2);
	assert_int_equal(taken(f, 3), 1);
	teardown(f);
}

static void test_no_such_vector(void **state)
{
	struct fixture *f = setup();

	set_msix(f, PCI_MSIX_FLAGS_ENABLE);
	for (unsigned v = VECTORS; v <= 0xffff; v += v < 300 ? 1 : 499) {
		set_common(f, VIRTIO_PCI_COMMON_MSIX, 2, 1);
		set_common(f, VIRTIO_PCI_COMMON_MSIX, 2, v);
		assert_int_equal(common(f, VIRTIO_PCI_COMMON_MSIX, 2), VIRTIO_MSI_NO_VECTOR);
		set_common(f, VIRTIO_PCI_COMMON_Q_MSIX, 2, 1);
		set_common(f, VIRTIO_PCI_COMMON_Q_MSIX, 2, v);
		assert_int_equal(common(f, VIRTIO_PCI_COMMON_Q_MSIX, 2), VIRTIO_MSI_NO_VECTOR);
	}
	set_common(f, VIRTIO_PCI_COMMON_MSIX, 4, 0x10001); /* a wide write */
	raise(f, 0);
	raise(f, 1);
	assert_int_equal(pending(f), 0);
	teardown(f);
}

/* Message Control by bytes and words; the table's size cannot be written. */
static void test_msix_control(void **state)
{
	struct fixture *f = setup();
	unsigned at = cap(f, 0);

	choose_vectors(f);
	open_vector(f, 0);
	for (unsigned size = 1; size <= 4; size *= 2) {
		unsigned off = size == 1 ? at + 3 : size == 2 ? at + 2 : at, shift = 8 * (at + 3 - off);

		raise(f, -1);
		assert_true(f->level); /* not enabled: the pin */
		set_cfg(f, off, size, 0x80u << shift | 0x3fu);
		assert_false(f->level);
		assert_int_equal(cfg(f, at + 2, 2), PCI_MSIX_FLAGS_ENABLE | (VECTORS - 1));
		raise(f, -1);
		assert_int_equal(taken(f, 0), 1);
		set_cfg(f, off, size, 0);
		assert_int_equal(cfg(f, at + 2, 2), VECTORS - 1);
		assert_true(f->level);
		assert_int_equal(isr(f), 2);
	}
	teardown(f);
}

/* The pin. */

static void test_intx(void **state)
{
	struct fixture *f = setup();

	assert_int_equal(cfg(f, PCI_INTERRUPT_PIN, 1), 1 + DEVFN % 4);
	assert_false(f->level);
	raise(f, 0);
	assert_true(f->level);
	raise(f, 1);
	raise(f, 2);
	assert_int_equal(f->edges, 1);
	assert_int_equal(isr(f), 1);
	assert_false(f->level);
	assert_int_equal(isr(f), 0);
	raise(f, -1);
	assert_true(f->level);
	raise(f, 0);
	assert_int_equal(isr(f), 3);
	assert_false(f->level);
	set_cfg(f, PCI_COMMAND, 2, PCI_COMMAND_MEMORY | PCI_COMMAND_INTX_DISABLE);
	raise(f, 0);
	assert_false(f->level);
	set_cfg(f, PCI_COMMAND, 2, PCI_COMMAND_MEMORY);
	assert_true(f->level); /* it waited */
	set_cfg(f, PCI_COMMAND + 1, 1, PCI_COMMAND_INTX_DISABLE >> 8);
	assert_false(f->level);
	set_cfg(f, PCI_COMMAND + 1, 1, 0);
	assert_true(f->level);
	set_common(f, VIRTIO_PCI_COMMON_STATUS, 1, 0);
	assert_false(f->level);
	assert_int_equal(isr(f), 0);
	for (unsigned off = 1; off < 8; off++)
		assert_int_equal(cut(bus_read(f->mem, region(f, VIRTIO_PCI_CAP_ISR_CFG) + off, 1), 1), 0xff);
	teardown(f);
}

static void start_queue(struct fixture *f, unsigned q, const struct virtq_config *ring)
{
	set_common(f, VIRTIO_PCI_COMMON_Q_SELECT, 2, q);
	set_common(f, VIRTIO_PCI_COMMON_Q_SIZE, 2, ring->size);
	set_common(f, VIRTIO_PCI_COMMON_Q_DESCLO, 4, ring->desc);
	set_common(f, VIRTIO_PCI_COMMON_Q_DESCHI, 4, ring->desc >> 32);
	set_common(f, VIRTIO_PCI_COMMON_Q_AVAILLO, 4, ring->driver);
	set_common(f, VIRTIO_PCI_COMMON_Q_AVAILHI, 4, ring->driver >> 32);
	set_common(f, VIRTIO_PCI_COMMON_Q_USEDLO, 4, ring->device);
	set_common(f, VIRTIO_PCI_COMMON_Q_USEDHI, 4, ring->device >> 32);
	set_common(f, VIRTIO_PCI_COMMON_Q_ENABLE, 2, 1);
}

static void start_driver(struct fixture *f, uint64_t features)
{
	set_common(f, VIRTIO_PCI_COMMON_STATUS, 1, 1);
	set_common(f, VIRTIO_PCI_COMMON_STATUS, 1, 3);
	for (unsigned i = 0; i < 2; i++) {
		set_common(f, VIRTIO_PCI_COMMON_GFSELECT, 4, i);
		set_common(f, VIRTIO_PCI_COMMON_GF, 4, (features | V1) >> (32 * i));
	}
	set_common(f, VIRTIO_PCI_COMMON_STATUS, 1, 0xb);
	assert_int_equal(common(f, VIRTIO_PCI_COMMON_STATUS, 1), 0xb);
}

/* What a device still finishes while its reset goes on does not raise the pin, nor wait for the next driver. */
static void test_late_interrupt(void **state)
{
	struct fixture *f = setup();
	struct fakeq q;

	f->toy.slow = true;
	for (unsigned round = 0; round < 3; round++) {
		start_driver(f, 0);
		fakeq_init(&q, &f->ram, 16, 0);
		start_queue(f, 1, &q.cfg);
		set_common(f, VIRTIO_PCI_COMMON_STATUS, 1, DRIVER_OK);
		turn(f);
		assert_int_equal(f->toy.kicks[1], round + 1);
		raise(f, 1);
		assert_true(f->level);
		set_common(f, VIRTIO_PCI_COMMON_STATUS, 1, 0);
		turn(f);
		assert_int_equal(common(f, VIRTIO_PCI_COMMON_STATUS, 1), DRIVER_OK);
		assert_false(f->level);
		raise(f, 1);
		raise(f, -1);
		assert_false(f->level);
		assert_int_equal(f->toy.stopping, 2);
		f->toy.stopping = 0;
		virtio_queue_stopped(f->d, 1);
		assert_int_equal(common(f, VIRTIO_PCI_COMMON_STATUS, 1), 0);
		assert_int_equal(isr(f), 0);
		assert_false(f->level);
	}
	f->toy.slow = false;
	teardown(f);
}

/* A whole life through registers, with either kind of interrupt. */

static void ask_random(struct fixture *f, struct fakeq *q, uint64_t buf, unsigned n)
{
	struct fake_seg seg = { buf, n, true };
	struct fake_used u;

	memset(fakemem_ptr(&f->ram, buf, n + 1), 0, n + 1);
	assert_true(fakeq_add(q, &seg, 1, n) >= 0);
	if (fakeq_publish(q))
		assert_true(fakehub_ring(&f->hub, doorbell(f, 0)));
	turn(f);
	assert_true(fakeq_get(q, &u));
	assert_int_equal(u.len, n);
	assert_int_equal(*(uint8_t *)fakemem_ptr(&f->ram, buf + n, 1), 0);
}

static void test_rng_by_registers(void **state)
{
	struct fixture *f = setup_bus();
	struct rng *rng;
	struct err err;
	struct fakeq q;
	uint64_t buf = fakemem_alloc(&f->ram, 8192, 16);

	assert_int_equal(rng_new(&f->ram.gmem, f->loop, &rng, &err), 0);
	plug(f, rng_dev(rng));
	assert_int_equal(cfg(f, PCI_DEVICE_ID, 2), 0x1040 + VIRTIO_ID_RNG);
	for (unsigned round = 0; round < 8; round++) {
		bool msix = round & 1;

		start_driver(f, round & 2 ? 1ull << VIRTIO_F_RING_PACKED : 0);
		fakeq_init(&q, &f->ram, 16, round & 2 ? FAKE_PACKED : 0);
		set_msix(f, msix ? PCI_MSIX_FLAGS_ENABLE : 0);
		open_vector(f, 1);
		start_queue(f, 0, &q.cfg);
		set_common(f, VIRTIO_PCI_COMMON_Q_MSIX, 2, 1);
		set_common(f, VIRTIO_PCI_COMMON_STATUS, 1, DRIVER_OK);
		turn(f);
		for (unsigned n = 1; n <= 4096; n *= 4) {
			ask_random(f, &q, buf, n);
			assert_int_equal(f->level, !msix);
			assert_int_equal(isr(f), !msix);
			assert_int_equal(fakehub_take_all(&f->hub), msix);
		}
		set_common(f, VIRTIO_PCI_COMMON_STATUS, 1, 0);
		turn(f);
		assert_int_equal(common(f, VIRTIO_PCI_COMMON_STATUS, 1), 0);
	}
	unplug(f);
	rng_free(rng);
	teardown_bus(f);
}

/* Many on one bus. */

static void test_many_devices(void **state)
{
	struct fixture *f = setup_bus();
	struct toy *toys = calloc(DEVICES, sizeof(*toys));
	struct virtio_pci *vp[DEVICES];
	struct err err;

	assert_non_null(toys);
	for (unsigned i = 0; i < DEVICES; i++) {
		init_toy(f, &toys[i]);
		toys[i].dev.config[0] = (uint8_t)(i + 1);
		assert_int_equal(
		        virtio_pci_new(&toys[i].dev, f->pci, (uint8_t)(8 + i), &f->hub.hub, &f->line, &vp[i], &err), 0);
	}
	assert_int_equal(f->hub.kicks, DEVICES * QUEUES);
	for (unsigned i = 0; i < DEVICES; i++) {
		f->devfn = (uint8_t)(8 + i);
		f->d = &toys[i].dev;
		assert_int_equal(cfg(f, PCI_HEADER_TYPE, 1), i % 8 ? 0 : 0x80);
		assert_int_equal(cfg(f, PCI_INTERRUPT_PIN, 1), 1 + i % 4);
		assert_int_equal(bus_read(f->mem, region(f, VIRTIO_PCI_CAP_DEVICE_CFG), 1), i + 1);
		for (unsigned q = 0; q < QUEUES; q++) {
			assert_true(fakehub_ring(&f->hub, doorbell(f, q)));
			assert_int_equal(kicked(f, q), 1);
		}
		for (unsigned j = 0; j < i; j++) {
			uint32_t mine = bar(f), its;

			f->devfn = (uint8_t)(8 + j);
			its = bar(f);
			f->devfn = (uint8_t)(8 + i);
			assert_true(mine >= its + 0x8000 || its >= mine + 0x8000);
		}
	}
	for (unsigned i = 0; i < DEVICES; i++) {
		virtio_pci_free(vp[i]);
		assert_int_equal(f->hub.kicks, (DEVICES - i - 1) * QUEUES);
		virtio_dev_exit(&toys[i].dev);
	}
	free(toys);
	teardown_bus(f);
}

static void test_no_place(void **state)
{
	struct fixture *f = setup();
	struct virtio_pci *vp[80];
	unsigned n = 0;
	struct toy toy;
	struct err err;
	int error;

	init_toy(f, &toy);
	assert_int_equal(virtio_pci_new(&toy.dev, f->pci, DEVFN, &f->hub.hub, &f->line, &vp[0], &err), -EEXIST);
	while (!(error = virtio_pci_new(&toy.dev, f->pci, (uint8_t)(64 + n), &f->hub.hub, &f->line, &vp[n], &err)))
		n++;
	assert_int_equal(error, -ENOSPC);
	assert_int_equal(n, MMIO_LEN / 0x8000 - 1);
	while (n--)
		virtio_pci_free(vp[n]);
	virtio_dev_exit(&toy.dev);
	teardown(f);
}

/* vCPUs against each other: one moves the BAR and switches interrupts about, one uses registers, one is the device. */

#define ROUNDS 3000u

static void *move_about(void *arg)
{
	struct fixture *f = arg;

	for (unsigned i = 0; i < ROUNDS; i++) {
		set_cfg(f, PCI_BASE_ADDRESS_0, 4, MMIO + 0x8000 * (i % 5));
		set_cfg(f, PCI_COMMAND, 2, PCI_COMMAND_MEMORY | (i % 3 ? 0 : PCI_COMMAND_INTX_DISABLE));
		set_msix(f, i % 4 ? PCI_MSIX_FLAGS_ENABLE : 0);
		cfg_window(f, 0, i * 4 % 0x6000, 4);
		set_cfg(f, cap(f, VIRTIO_PCI_CAP_PCI_CFG) + CAP_DATA, 4, i % 2);
	}
	return NULL;
}

static void *be_device(void *arg)
{
	struct fixture *f = arg;
	uint8_t val = 0;

	for (unsigned i = 0; i < ROUNDS; i++) {
		raise(f, (int)(i % 4) - 1);
		virtio_set_config(f->d, 0, &val, 1);
		virtio_broken(f->d, "storm");
	}
	return NULL;
}

static void test_threads(void **state)
{
	struct fixture *f = setup();
	pthread_t a, b;

	assert_int_equal(pthread_create(&a, NULL, move_about, f), 0);
	assert_int_equal(pthread_create(&b, NULL, be_device, f), 0);
	for (unsigned i = 0; i < ROUNDS; i++) {
		set_common(f, VIRTIO_PCI_COMMON_STATUS, 1, i % 16);
		set_common(f, VIRTIO_PCI_COMMON_Q_SELECT, 2, i % 4);
		set_common(f, VIRTIO_PCI_COMMON_Q_MSIX, 2, i % 5);
		set_common(f, VIRTIO_PCI_COMMON_Q_ENABLE, 2, 1);
		(void)isr(f);
	}
	pthread_join(a, NULL);
	pthread_join(b, NULL);
	turn(f);
	teardown(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_capabilities),
		cmocka_unit_test(test_cfg_access),
		cmocka_unit_test(test_cfg_access_impossible),
		cmocka_unit_test(test_common),
		cmocka_unit_test(test_every_access),
		cmocka_unit_test(test_device_config),
		cmocka_unit_test(test_doorbells_follow),
		cmocka_unit_test(test_doorbells_by_hand),
		cmocka_unit_test(test_msix),
		cmocka_unit_test(test_no_such_vector),
		cmocka_unit_test(test_msix_control),
		cmocka_unit_test(test_intx),
		cmocka_unit_test(test_late_interrupt),
		cmocka_unit_test(test_rng_by_registers),
		cmocka_unit_test(test_many_devices),
		cmocka_unit_test(test_no_place),
		cmocka_unit_test(test_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
