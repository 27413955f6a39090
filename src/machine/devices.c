// SPDX-License-Identifier: GPL-2.0-or-later
#include "machine/devices.h"

#include "base/loop_thread.h"
#include "bus/pci.h"
#include "guest/frames.h"
#include "virtio/console.h"
#include "virtio/p9.h"
#include "virtio/pci.h"
#include "virtio/rng.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/*
 * How it works
 *
 * A device and its place on the PCI bus, in the order of the table in
 * devices_new(); the order decides the addresses, and so what the guest calls
 * them. Eight functions share a slot, so that there is room for 240.
 */

#define MAX_DEVICES 240

struct placed {
	struct virtio_dev *dev;
	struct virtio_pci *pci;
};

struct devices {
	struct devices_config cfg;
	struct vconsole *console;
	struct rng *rng;
	struct loop_thread *fs_thread; /* home of the shares; NULL without any */
	struct vp9 *share[CONFIG_SHARES_MAX];
	unsigned n;
	struct placed placed[MAX_DEVICES];
};

static int place(struct devices *d, struct virtio_dev *dev, struct err *err)
{
	uint8_t devfn = (uint8_t)(ARCH_PCI_FIRST_SLOT * 8 + d->n);
	struct irq intx = arch_board_pci_irq(d->cfg.board, devfn, 1 + devfn % 4);
	struct evt_hub hub = vm_evt_hub(d->cfg.vm);
	struct placed *p = &d->placed[d->n];
	int error;

	assert(d->n < MAX_DEVICES);
	error = virtio_pci_new(dev, arch_board_pci(d->cfg.board), devfn, &hub, &intx, &p->pci, err);
	if (error)
		return error;
	p->dev = dev;
	d->n++;
	return 0;
}

static int make_rng(struct devices *d, struct err *err)
{
	int error = rng_new(d->cfg.mem, d->cfg.loop, &d->rng, err);

	return error ? error : place(d, rng_dev(d->rng), err);
}

static int make_console(struct devices *d, struct err *err)
{
	struct vconsole_port ports[2];
	unsigned n = 0;
	int error;

	if (d->cfg.hvc)
		ports[n++] = (struct vconsole_port){ .tty = true, .con = d->cfg.hvc };
	if (d->cfg.channel)
		ports[n++] = (struct vconsole_port){ .name = FRAME_PORT, .con = d->cfg.channel };
	if (!n)
		return 0;
	error = vconsole_new(ports, n, d->cfg.mem, d->cfg.loop, &d->console, err);
	return error ? error : place(d, vconsole_dev(d->console), err);
}

static int make_shares(struct devices *d, struct err *err)
{
	const struct config *cfg = d->cfg.cfg;
	int error = cfg->nshares ? loop_thread_new("kvm-fs", &d->fs_thread, err) : 0;

	for (unsigned i = 0; !error && i < cfg->nshares; i++) {
		if (cfg->share[i].at && !d->cfg.channel)
			continue;
		error = vp9_new(&cfg->share[i].export, cfg->share[i].tag, d->cfg.mem, loop_thread_loop(d->fs_thread),
		                &d->share[i], err);
		if (!error)
			error = place(d, vp9_dev(d->share[i]), err);
	}
	return error;
}

int devices_new(const struct devices_config *dc, struct devices **out, struct err *err)
{
	static int (*const table[])(struct devices * d, struct err * err) = { make_rng, make_console, make_shares };
	struct devices *d = calloc(1, sizeof(*d));
	int error = 0;

	if (!d)
		return err_set(err, -ENOMEM, "out of memory");
	d->cfg = *dc;
	for (unsigned i = 0; !error && i < sizeof(table) / sizeof(table[0]); i++)
		error = table[i](d, err);
	if (error)
		devices_free(d);
	else
		*out = d;
	return error;
}

void devices_free(struct devices *d)
{
	if (!d)
		return;
	for (unsigned i = 0; i < d->n; i++)
		virtio_dev_stop(d->placed[i].dev);
	for (unsigned i = 0; i < d->n; i++)
		virtio_pci_free(d->placed[i].pci);
	loop_thread_stop(d->fs_thread);
	for (unsigned i = 0; i < CONFIG_SHARES_MAX; i++)
		vp9_free(d->share[i]);
	loop_thread_free(d->fs_thread);
	vconsole_free(d->console);
	rng_free(d->rng);
	free(d);
}

void devices_pause(struct devices *d)
{
	for (unsigned i = 0; i < d->n; i++)
		virtio_pause(d->placed[i].dev);
}

void devices_resume(struct devices *d)
{
	for (unsigned i = 0; i < d->n; i++)
		virtio_resume(d->placed[i].dev);
}

void devices_settle(struct devices *d)
{
	if (d->console)
		vconsole_settle(d->console);
}

void devices_resize(struct devices *d, uint16_t cols, uint16_t rows)
{
	if (d->console)
		vconsole_resize(d->console, cols, rows);
}
