// SPDX-License-Identifier: GPL-2.0-or-later
#include "bus/pci.h"

#include <assert.h>
#include <errno.h>
#include <linux/pci_regs.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/*
 * How it works
 *
 * Config space is bytes: a read copies them, a write changes the bits in
 * wmask. Nothing else happens unless the write touched the command register
 * or a BAR, after which every BAR's window on the memory bus is made to agree
 * with them: mapped when memory decoding is on and the address lies inside
 * the bridge's window and is free, else not mapped. A guest may point two
 * BARs at one place; the second then does not answer until the first leaves.
 *
 * One lock for the bus: config accesses are rare. Device hooks run without it.
 */

#define MAX_DEVFN 256

struct pci_bus {
	struct bus *mem;              /* [c] */
	uint64_t ecam_base;           /* [c] */
	uint32_t mmio_base, mmio_len; /* [c] */
	uint64_t mmio_next;           /* [m] first address not yet given to a BAR */
	pthread_mutex_t lock;
	struct pci_func *func[MAX_DEVFN]; /* [c] while vCPUs run */
	struct pci_func bridge;
};

static void put(uint8_t *p, uint32_t val, unsigned size)
{
	for (unsigned i = 0; i < size; i++)
		p[i] = (uint8_t)(val >> (8 * i));
}

static uint32_t get(const uint8_t *p, unsigned size)
{
	uint32_t val = 0;

	for (unsigned i = 0; i < size; i++)
		val |= (uint32_t)p[i] << (8 * i);
	return val;
}

static bool in_mmio(const struct pci_bus *b, uint32_t base, uint32_t len)
{
	return base >= b->mmio_base && base - b->mmio_base <= b->mmio_len - len;
}

/* Where the registers want a BAR on the memory bus; 0: nowhere. */
static uint32_t wanted(const struct pci_bus *b, const struct pci_func *f, unsigned i)
{
	uint32_t base = get(&f->cfg[PCI_BASE_ADDRESS_0 + 4 * i], 4) & PCI_BASE_ADDRESS_MEM_MASK;
	bool on = f->cfg[PCI_COMMAND] & PCI_COMMAND_MEMORY;

	return on && f->bar[i].len && in_mmio(b, base, f->bar[i].len) ? base : 0;
}

static void tell_mapped(struct pci_func *f, unsigned i)
{
	if (f->bar_mapped)
		f->bar_mapped(f->dev, i, f->mapped[i]);
}

static void unmap_bars(struct pci_bus *b, struct pci_func *f)
{
	for (unsigned i = 0; i < PCI_MAX_BARS; i++) {
		if (!f->mapped[i] || f->mapped[i] == wanted(b, f, i))
			continue;
		bus_del(b->mem, f->mapped[i]);
		f->mapped[i] = 0;
		tell_mapped(f, i);
	}
}

static void map_bars(struct pci_bus *b, struct pci_func *f)
{
	for (unsigned i = 0; i < PCI_MAX_BARS; i++) {
		const struct pci_bar *bar = &f->bar[i];
		uint32_t base = wanted(b, f, i);
		struct window w = { .name = bar->name, .base = base, .len = bar->len, .ops = bar->ops, .dev = f->dev };

		if (base && !f->mapped[i] && !bus_add(b->mem, &w)) {
			f->mapped[i] = base;
			tell_mapped(f, i);
		}
	}
}

/* Of all functions: what one gives up another may have waited for. */
static void update_bars(struct pci_bus *b)
{
	for (unsigned d = 0; d < MAX_DEVFN; d++)
		if (b->func[d])
			unmap_bars(b, b->func[d]);
	for (unsigned d = 0; d < MAX_DEVFN; d++)
		if (b->func[d])
			map_bars(b, b->func[d]);
}

static bool moves_bars(unsigned off, unsigned size)
{
	return off < PCI_COMMAND + 2u ? off + size > PCI_COMMAND
	                              : off < PCI_BASE_ADDRESS_5 + 4u && off + size > PCI_BASE_ADDRESS_0;
}

uint32_t pci_cfg_read(struct pci_bus *b, uint8_t devfn, unsigned off, unsigned size)
{
	struct pci_func *f = b->func[devfn];
	uint32_t val = ~0u;

	if (f && f->cfg_reading)
		f->cfg_reading(f->dev, off, size);
	pthread_mutex_lock(&b->lock);
	if (f && off <= PCI_CFG_SIZE - size)
		val = get(&f->cfg[off], size);
	pthread_mutex_unlock(&b->lock);
	return val;
}

static void cfg_write(struct pci_bus *b, struct pci_func *f, unsigned off, unsigned size, uint32_t val)
{
	uint32_t mask = get(&f->wmask[off], size), old = get(&f->cfg[off], size);

	put(&f->cfg[off], (old & ~mask) | (val & mask), size);
	if (moves_bars(off, size))
		update_bars(b);
}

void pci_cfg_write(struct pci_bus *b, uint8_t devfn, unsigned off, unsigned size, uint32_t val)
{
	struct pci_func *f = b->func[devfn];

	if (off > PCI_CFG_SIZE - size)
		return;
	pthread_mutex_lock(&b->lock);
	if (f)
		cfg_write(b, f, off, size, val);
	pthread_mutex_unlock(&b->lock);
	if (f && f->cfg_written)
		f->cfg_written(f->dev, off, size);
}

/* ECAM: bus << 20 | device << 15 | function << 12 | register; the window holds bus 0 only. */
static uint64_t ecam_read(void *dev, uint64_t off, unsigned size)
{
	uint8_t devfn = (uint8_t)(off / PCI_CFG_SIZE);
	unsigned reg = off % PCI_CFG_SIZE;

	if (size == 8)
		return pci_cfg_read(dev, devfn, reg, 4) | (uint64_t)pci_cfg_read(dev, devfn, reg + 4, 4) << 32;
	return pci_cfg_read(dev, devfn, reg, size);
}

static void ecam_write(void *dev, uint64_t off, unsigned size, uint64_t val)
{
	uint8_t devfn = (uint8_t)(off / PCI_CFG_SIZE);
	unsigned reg = off % PCI_CFG_SIZE;

	pci_cfg_write(dev, devfn, reg, size == 8 ? 4 : size, (uint32_t)val);
	if (size == 8)
		pci_cfg_write(dev, devfn, reg + 4, 4, (uint32_t)(val >> 32));
}

static const struct bus_ops ecam_ops = { .read = ecam_read, .write = ecam_write };

static void init_header(struct pci_func *f)
{
	put(&f->cfg[PCI_VENDOR_ID], f->vendor, 2);
	put(&f->cfg[PCI_DEVICE_ID], f->device, 2);
	put(&f->cfg[PCI_CLASS_REVISION], f->class_rev, 4);
	put(&f->cfg[PCI_SUBSYSTEM_VENDOR_ID], f->subvendor, 2);
	put(&f->cfg[PCI_SUBSYSTEM_ID], f->subdevice, 2);
	f->cfg[PCI_INTERRUPT_PIN] = f->pin;
	put(&f->wmask[PCI_COMMAND], PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_INTX_DISABLE, 2);
	f->wmask[PCI_CACHE_LINE_SIZE] = 0xff;
	f->wmask[PCI_INTERRUPT_LINE] = 0xff;
}

/* Gives each BAR an address of its own, aligned to its size. */
static int place_bars(struct pci_bus *b, struct pci_func *f)
{
	for (unsigned i = 0; i < PCI_MAX_BARS; i++) {
		uint32_t len = f->bar[i].len;
		uint64_t base;

		if (!len)
			continue;
		base = (b->mmio_next + len - 1) & ~(uint64_t)(len - 1);
		if (base + len > (uint64_t)b->mmio_base + b->mmio_len)
			return -ENOSPC;
		b->mmio_next = base + len;
		put(&f->cfg[PCI_BASE_ADDRESS_0 + 4 * i], (uint32_t)base, 4);
		put(&f->wmask[PCI_BASE_ADDRESS_0 + 4 * i], ~(len - 1), 4);
	}
	f->cfg[PCI_COMMAND] = PCI_COMMAND_MEMORY;
	return 0;
}

/* A guest looks at functions 1-7 only where function 0 says there are some. */
static void mark_multifunction(struct pci_func *const slot[8])
{
	for (unsigned i = 1; i < 8; i++)
		if (slot[0] && slot[i])
			slot[0]->cfg[PCI_HEADER_TYPE] |= 0x80;
}

uint32_t pci_peek(const struct pci_func *f, unsigned off, unsigned size)
{
	uint32_t val;

	pthread_mutex_lock(&f->bus->lock);
	val = get(&f->cfg[off], size);
	pthread_mutex_unlock(&f->bus->lock);
	return val;
}

void pci_poke(struct pci_func *f, unsigned off, unsigned size, uint32_t val)
{
	pthread_mutex_lock(&f->bus->lock);
	put(&f->cfg[off], val, size);
	pthread_mutex_unlock(&f->bus->lock);
}

unsigned pci_add_cap(struct pci_func *f, const uint8_t *body, const uint8_t *wmask, unsigned len)
{
	unsigned off = f->caps_end ? f->caps_end : PCI_STD_HEADER_SIZEOF;

	assert(off + len <= PCI_CFG_SPACE_SIZE);
	memcpy(&f->cfg[off], body, len);
	if (wmask)
		memcpy(&f->wmask[off], wmask, len);
	/* The newest goes in front of the list. */
	f->cfg[off + PCI_CAP_LIST_NEXT] = f->cfg[PCI_CAPABILITY_LIST];
	f->cfg[PCI_CAPABILITY_LIST] = (uint8_t)off;
	f->cfg[PCI_STATUS] |= PCI_STATUS_CAP_LIST;
	f->caps_end = (off + len + 3) & ~3u;
	return off;
}

static int add(struct pci_bus *b, struct pci_func *f, uint8_t devfn)
{
	if (b->func[devfn])
		return -EEXIST;
	f->bus = b;
	f->devfn = devfn;
	init_header(f);
	if (place_bars(b, f) < 0)
		return -ENOSPC;
	b->func[devfn] = f;
	mark_multifunction(&b->func[devfn & ~7]);
	update_bars(b);
	return 0;
}

int pci_add(struct pci_bus *b, struct pci_func *f, uint8_t devfn, struct err *err)
{
	int error;

	pthread_mutex_lock(&b->lock);
	error = add(b, f, devfn);
	pthread_mutex_unlock(&b->lock);
	if (error == -EEXIST)
		return err_set(err, error, "%s: PCI slot %u.%u is taken", f->name, devfn >> 3, devfn & 7);
	if (error)
		return err_set(err, error, "%s: no room for its PCI memory", f->name);
	return 0;
}

int pci_new(struct bus *mem, uint64_t ecam_base, uint32_t mmio_base, uint32_t mmio_len, struct pci_bus **out,
            struct err *err)
{
	struct pci_bus *b = calloc(1, sizeof(*b));
	struct window w = { .name = "ecam", .base = ecam_base, .len = PCI_ECAM_BUS_LEN, .ops = &ecam_ops, .dev = b };

	if (!b)
		return err_set(err, -ENOMEM, "out of memory");
	b->mem = mem;
	b->ecam_base = ecam_base;
	b->mmio_base = mmio_base;
	b->mmio_len = mmio_len;
	b->mmio_next = mmio_base;
	pthread_mutex_init(&b->lock, NULL);
	b->bridge = (struct pci_func){
		.name = "host bridge",
		.vendor = 0x1b36, /* a generic PCI Express host bridge, without quirks in Linux */
		.device = 0x0008,
		.class_rev = 0x060000 << 8,
	};
	if (bus_add(mem, &w)) {
		pthread_mutex_destroy(&b->lock);
		free(b);
		return err_set(err, -EEXIST, "no room for PCI config space");
	}
	*out = b;
	return pci_add(b, &b->bridge, 0, err);
}

void pci_del(struct pci_func *f)
{
	struct pci_bus *b = f->bus;

	if (!b || b->func[f->devfn] != f)
		return;
	pthread_mutex_lock(&b->lock);
	b->func[f->devfn] = NULL;
	f->cfg[PCI_COMMAND] = 0;
	unmap_bars(b, f);
	pthread_mutex_unlock(&b->lock);
}

void pci_free(struct pci_bus *b)
{
	if (!b)
		return;
	for (unsigned d = 0; d < MAX_DEVFN; d++)
		if (b->func[d])
			pci_del(b->func[d]);
	bus_del(b->mem, b->ecam_base);
	pthread_mutex_destroy(&b->lock);
	free(b);
}
