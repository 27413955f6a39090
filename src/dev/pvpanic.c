// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * How it works
 *
 * One byte register, no state: the guest reads which events we know and writes
 * the one that happened. The rest of the BAR, which is larger than the device
 * because a BAR has a least size, reads as all ones.
 */
#include "dev/pvpanic.h"

#include <errno.h>
#include <stdlib.h>

#define PVPANIC_PANICKED     0x01
#define PVPANIC_CRASH_LOADED 0x02 /* a crash kernel takes over, and writes to us again if it panics too */

#define PVPANIC_BAR_LEN      16

struct pvpanic {
	struct pci_func pci;        /* [c] ours; the bus guards what it changes in it */
	struct guest_events events; /* [c] constant after pvpanic_new() */
};

static uint64_t pvpanic_read(void *dev, uint64_t off, unsigned size)
{
	uint64_t ones = size < 8 ? (1ull << size * 8) - 1 : ~0ull;

	if (off)
		return ones;
	return (ones & ~0xffull) | PVPANIC_PANICKED | PVPANIC_CRASH_LOADED;
}

static void pvpanic_write(void *dev, uint64_t off, unsigned size, uint64_t val)
{
	struct pvpanic *p = dev;

	if (!off && val & PVPANIC_PANICKED)
		p->events.raise(p->events.opaque, GUEST_PANIC, 0);
}

static const struct bus_ops pvpanic_ops = { .read = pvpanic_read, .write = pvpanic_write };

int pvpanic_new(const struct guest_events *events, struct pvpanic **out, struct err *err)
{
	struct pvpanic *p = calloc(1, sizeof(*p));

	if (!p)
		return err_set(err, -ENOMEM, "pvpanic: out of memory");
	p->events = *events;
	p->pci = (struct pci_func){
		.name = "pvpanic",
		.vendor = 0x1b36, /* Red Hat */
		.device = 0x0011,
		.subvendor = 0x1af4,
		.subdevice = 0x1100,
		.class_rev = 0x0880 << 16 | 1, /* a system device of no other kind */
		.bar[0] = { .len = PVPANIC_BAR_LEN, .ops = &pvpanic_ops, .name = "pvpanic" },
		.dev = p,
	};
	*out = p;
	return 0;
}

void pvpanic_free(struct pvpanic *p)
{
	free(p);
}

struct pci_func *pvpanic_pci(struct pvpanic *p)
{
	return &p->pci;
}
