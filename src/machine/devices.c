// SPDX-License-Identifier: GPL-2.0-or-later
#include "machine/devices.h"

#include "base/log.h"
#include "bus/pci.h"
#include "vhost/net.h"
#include "virtio/console.h"
#include "virtio/net.h"
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
	struct vnet *net;
	struct vnet_engine *engine; /* the network's, or NULL */
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
	struct vconsole_port ports[] = { { .name = NULL, .tty = true, .con = d->cfg.hvc } };
	int error;

	if (!d->cfg.hvc)
		return 0;
	error = vconsole_new(ports, sizeof(ports) / sizeof(ports[0]), d->cfg.mem, d->cfg.loop, &d->console, err);
	return error ? error : place(d, vconsole_dev(d->console), err);
}

/* vhost-net where the back end can have it; only vhost=on insists. */
static int make_engine(struct devices *d, struct err *err)
{
	const struct tap_config *tap = &d->cfg.cfg->net.tap;
	struct nic *nic = d->cfg.nic;
	int fd[NIC_MAX_PAIRS], error;

	if (tap->vhost == TAP_VHOST_OFF || (!nic->fd && tap->vhost == TAP_VHOST_AUTO))
		return 0;
	if (!nic->fd)
		return err_set(err, -EINVAL, "-n tap: with vhost=on nothing passes that --pcap could see");
	for (unsigned i = 0; i < nic->max_pairs; i++)
		fd[i] = nic->fd(nic, i);
	error = vhost_net_new(d->cfg.mem, d->cfg.loop, fd, nic->max_pairs, &d->engine, err);
	if (!error || tap->vhost == TAP_VHOST_ON)
		return error;
	log_verbose("%s; going on without", err->msg);
	return 0;
}

static int make_net(struct devices *d, struct err *err)
{
	struct vnet_config vc = { .name = "net0", .nic = d->cfg.nic };
	int error;

	if (!d->cfg.nic)
		return 0;
	vc.mtu = d->cfg.nic->mtu;
	error = make_engine(d, err);
	if (error)
		return error;
	vc.engine = d->engine;
	net_config_mac(&d->cfg.cfg->net, d->cfg.cfg->name, vc.mac);
	error = vnet_new(&vc, d->cfg.mem, d->cfg.loop, &d->net, err);
	return error ? error : place(d, vnet_dev(d->net), err);
}

int devices_new(const struct devices_config *dc, struct devices **out, struct err *err)
{
	static int (*const table[])(struct devices * d, struct err * err) = { make_rng, make_console, make_net };
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
	vnet_free(d->net);
	vhost_net_free(d->engine);
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

void devices_resize(struct devices *d, uint16_t cols, uint16_t rows)
{
	if (d->console)
		vconsole_resize(d->console, cols, rows);
}
