// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * libFuzzer target: the bytes are accesses to config space and BARs of a PCI
 * bus with two virtio devices, of every size at every offset, with a hub that
 * refuses now and then. Afterwards both devices reset, and nothing is left in
 * the hub.
 */
#include "device.h"
#include "fakehub.h"
#include "virtio/pci.h"
#include "virtio/rng.h"

#include <linux/pci_regs.h>
#include <linux/virtio_pci.h>
#include <string.h>

#define ECAM     0xe0000000ull
#define MMIO     0xc0000000u
#define MMIO_LEN 0x40000u
#define DEVICES  2

static struct fakehub hub;

struct machine {
	struct fuzz f;
	struct bus *mem;
	struct pci_bus *pci;
	struct irq line;
	unsigned sets;
	struct rng *rng[DEVICES];
	struct virtio_pci *vp[DEVICES];
};

static void set_line(struct irq *irq, bool level)
{
	((struct machine *)irq->opaque)->sets++;
}

static uint64_t cfg_addr(unsigned dev, unsigned off)
{
	return ECAM + ((8ull + dev) << 12) + off;
}

static uint32_t bar(struct machine *m, unsigned dev)
{
	return (uint32_t)bus_read(m->mem, cfg_addr(dev, PCI_BASE_ADDRESS_0), 4) & ~0xfu;
}

/* Where in the BAR: near something. */
static uint64_t take_off(struct fuzz *f, unsigned size)
{
	unsigned page = (unsigned)fuzz_take(f, 1), off = (unsigned)fuzz_take(f, 1);

	return (uint64_t)(page % 8) * 4096 + (page & 0x80 ? 4096 - size - off % 64 : off);
}

/* The first device's ring and the second's are one. */
static void bring_up(struct machine *m, unsigned dev)
{
	static const struct {
		uint8_t off, size;
		uint32_t val;
	} writes[] = {
		{ VIRTIO_PCI_COMMON_STATUS, 1, 0 },
		{ VIRTIO_PCI_COMMON_STATUS, 1, 3 },
		{ VIRTIO_PCI_COMMON_GFSELECT, 4, 1 },
		{ VIRTIO_PCI_COMMON_GF, 4, 0x101 },
		{ VIRTIO_PCI_COMMON_STATUS, 1, 0xb },
		{ VIRTIO_PCI_COMMON_Q_SELECT, 2, 0 },
		{ VIRTIO_PCI_COMMON_Q_SIZE, 2, 16 },
		{ VIRTIO_PCI_COMMON_Q_MSIX, 2, 1 },
		{ VIRTIO_PCI_COMMON_Q_DESCLO, 8, FUZZ_RINGS },
		{ VIRTIO_PCI_COMMON_Q_AVAILLO, 8, FUZZ_RINGS + 0x1000 },
		{ VIRTIO_PCI_COMMON_Q_USEDLO, 8, FUZZ_RINGS + 0x2000 },
		{ VIRTIO_PCI_COMMON_Q_ENABLE, 2, 1 },
		{ VIRTIO_PCI_COMMON_STATUS, 1, 0xf },
	};

	for (unsigned i = 0; i < sizeof(writes) / sizeof(writes[0]); i++)
		bus_write(m->mem, bar(m, dev) + writes[i].off, writes[i].size, writes[i].val);
}

struct quit {
	struct loop_task task;
	struct loop *loop;
};

static void on_quit(struct loop_task *t)
{
	loop_quit(((struct quit *)t)->loop);
}

static void turn(struct machine *m)
{
	struct quit q = { .task.cb = on_quit, .loop = m->f.loop };

	for (unsigned i = 0; i < 2; i++) {
		loop_post(m->f.loop, &q.task);
		CHECK(!loop_run(m->f.loop));
	}
}

static void step(struct machine *m)
{
	struct fuzz *f = &m->f;
	unsigned op = (unsigned)fuzz_take(f, 1), dev = op >> 4 & 1, size = 1u << (op >> 5 & 3), at;

	switch (op & 15) {
	case 0:
	case 1:
		at = (unsigned)fuzz_take(f, 1);
		bus_write(m->mem, cfg_addr(dev, at), size, fuzz_take(f, size));
		break;
	case 2: bus_write(m->mem, ECAM + fuzz_take(f, 3) % (PCI_ECAM_BUS_LEN - 8), size, fuzz_take(f, size)); break;
	case 3: (void)bus_read(m->mem, cfg_addr(dev, (unsigned)fuzz_take(f, 1)), size); break;
	case 4:
	case 5:
	case 6:
		at = (unsigned)take_off(f, size);
		bus_write(m->mem, bar(m, dev) + at, size, fuzz_take(f, size));
		break;
	case 7:
	case 8: (void)bus_read(m->mem, bar(m, dev) + take_off(f, size), size); break;
	case 9: bus_write(m->mem, MMIO + fuzz_take(f, 3) % MMIO_LEN, size, fuzz_take(f, size)); break;
	case 10: bring_up(m, dev); break;
	case 11: fuzz_poke_desc(f, FUZZ_RINGS, op >> 4); break;
	case 12: fuzz_offer(f, FUZZ_RINGS + 0x1000, 16); break;
	case 13:
		at = (unsigned)fuzz_take(f, 1);
		*(size & 1 ? &hub.fail_new : size & 2 ? &hub.fail_route : &hub.fail_kick) = (int)(at % 8) - 1;
		break;
	case 14:
		fakehub_ring(&hub, bar(m, dev) + 0x3000ull);
		virtio_again(rng_dev(m->rng[dev]), 0);
		break;
	default: turn(m);
	}
}

static void build(struct machine *m)
{
	struct err err;

	CHECK(!loop_new(&m->f.loop, &err) && !bus_new(&m->mem, &err));
	CHECK(!pci_new(m->mem, ECAM, MMIO, MMIO_LEN, &m->pci, &err));
	m->line = (struct irq){ .set = set_line, .opaque = m };
	for (unsigned i = 0; i < DEVICES; i++) {
		CHECK(!rng_new(&m->f.mem->gmem, m->f.loop, &m->rng[i], &err));
		CHECK(!virtio_pci_new(rng_dev(m->rng[i]), m->pci, (uint8_t)(8 + i), &hub.hub, &m->line, &m->vp[i],
		                      &err));
	}
}

/* Each device answers at an address of its own, whatever was done to it, and can be reset. */
static void check(struct machine *m)
{
	hub.fail_new = hub.fail_route = hub.fail_kick = -1;
	for (unsigned i = 0; i < DEVICES; i++)
		bus_write(m->mem, cfg_addr(i, PCI_COMMAND), 2, 0);
	for (unsigned i = 0; i < DEVICES; i++) {
		bus_write(m->mem, cfg_addr(i, PCI_BASE_ADDRESS_0), 4, MMIO + 0x10000 * i);
		bus_write(m->mem, cfg_addr(i, PCI_COMMAND), 2, PCI_COMMAND_MEMORY);
		bus_write(m->mem, MMIO + 0x10000 * i + VIRTIO_PCI_COMMON_STATUS, 1, 0);
	}
	turn(m);
	CHECK(hub.kicks == DEVICES);
	for (unsigned i = 0; i < DEVICES; i++) {
		CHECK((uint8_t)bus_read(m->mem, MMIO + 0x10000 * i + VIRTIO_PCI_COMMON_STATUS, 1) == 0);
		CHECK((uint16_t)bus_read(m->mem, MMIO + 0x10000 * i + VIRTIO_PCI_COMMON_NUMQ, 2) == 1);
		CHECK((uint16_t)bus_read(m->mem, MMIO + 0x10000 * i + VIRTIO_PCI_COMMON_MSIX, 2) == 0xffff);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct machine m = { .f = { .data = data, .left = size, .mem = fuzz_memory() } };

	fakehub_init(&hub);
	build(&m);
	while (m.f.left)
		step(&m);
	check(&m);
	for (unsigned i = 0; i < DEVICES; i++) {
		virtio_dev_stop(rng_dev(m.rng[i]));
		virtio_pci_free(m.vp[i]);
		rng_free(m.rng[i]);
	}
	fakehub_exit(&hub);
	pci_free(m.pci);
	bus_free(m.mem);
	loop_free(m.f.loop);
	return 0;
}
