// SPDX-License-Identifier: GPL-2.0-or-later
#include "machine/devices.h"

#include "base/log.h"
#include "base/loop_thread.h"
#include "bus/pci.h"
#include "guest/frames.h"
#include "machine/disks.h"
#include "vhost/net.h"
#include "vhost/vsock.h"
#include "virtio/blk.h"
#include "virtio/console.h"
#include "virtio/net.h"
#include "virtio/p9.h"
#include "virtio/pci.h"
#include "virtio/rng.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

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

#define IO_THREADS 16
#define QUEUES_MAX 8 /* of a disk, unless the user wants more */

struct disk_at {
	struct devices *devices;
	char name[16];
	struct vblk *vblk;
};

struct devices {
	struct devices_config cfg;
	struct vconsole *console;
	struct rng *rng;
	struct vnet *net;
	struct loop_thread *net_thread; /* home of its queues */
	struct vnet_engine *engine;     /* the network's, or NULL */
	struct vsock *vsock;
	struct loop_thread *fs_thread; /* home of the shares; NULL without any */
	struct vp9 *share[CONFIG_SHARES_MAX];
	unsigned nio;
	struct loop_thread *io[IO_THREADS]; /* homes of the disks' queues */
	struct disk_at disk[CONFIG_DISKS_MAX];
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

/* Queues of disk @i. */
static unsigned disk_queues(const struct config *cfg, unsigned i)
{
	unsigned n = cfg->disk[i].queues;

	if (!n)
		n = cfg->ncpus < QUEUES_MAX ? cfg->ncpus : QUEUES_MAX;
	return n < VBLK_MAX_QUEUES ? n : VBLK_MAX_QUEUES;
}

/* As many threads as the disk with most queues has, but not more than the host has processors. */
static int make_io_threads(struct devices *d, struct err *err)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	unsigned want = 0;
	int error = 0;

	for (unsigned i = 0; i < d->cfg.cfg->ndisks; i++)
		if (disk_queues(d->cfg.cfg, i) > want)
			want = disk_queues(d->cfg.cfg, i);
	if (cpus > 0 && want > (unsigned long)cpus)
		want = (unsigned)cpus;
	while (!error && d->nio < want && d->nio < IO_THREADS) {
		char name[16];

		snprintf(name, sizeof(name), "kvm-io%u", d->nio);
		error = loop_thread_new(name, &d->io[d->nio], err);
		d->nio += !error;
	}
	return error;
}

static void on_disk_failed(void *arg, int error)
{
	struct disk_at *at = arg;
	struct devices *d = at->devices;

	d->cfg.disk_failed(d->cfg.opaque, (unsigned)(at - d->disk), error);
}

static int make_disk(struct devices *d, unsigned i, struct loop *const *loops, struct err *err)
{
	const struct disk *disk = &d->cfg.cfg->disk[i];
	struct disk_at *at = &d->disk[i];
	struct vblk_config vc = {
		.name = at->name,
		.serial = disk->serial,
		.image = disks_image(d->cfg.disks, i),
		.nqueues = disk_queues(d->cfg.cfg, i),
		.loops = loops,
		.nloops = d->nio,
		.block = disk->block ? disk->block : 512,
		.failed = disk->stop_on_error ? on_disk_failed : NULL,
		.arg = at,
	};
	int error;

	at->devices = d;
	snprintf(at->name, sizeof(at->name), "disk%u", i);
	error = vblk_new(&vc, d->cfg.mem, &at->vblk, err);
	return error ? error : place(d, vblk_dev(at->vblk), err);
}

static int make_disks(struct devices *d, struct err *err)
{
	struct loop *loops[IO_THREADS];
	int error = make_io_threads(d, err);

	for (unsigned i = 0; i < d->nio; i++)
		loops[i] = loop_thread_loop(d->io[i]);
	for (unsigned i = 0; !error && i < d->cfg.cfg->ndisks; i++)
		error = make_disk(d, i, loops, err);
	return error;
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
	error = vhost_net_new(d->cfg.mem, fd, nic->max_pairs, &d->engine, err);
	if (!error || tap->vhost == TAP_VHOST_ON)
		return error;
	log_verbose("%s; going on without", err->msg);
	return 0;
}

static int make_net(struct devices *d, struct err *err)
{
	const struct nic *nic = d->cfg.nic;
	struct vnet_config vc = { .name = "net0", .nic = d->cfg.nic };
	int error;

	if (!nic)
		return 0;
	vc.mtu = nic->mtu;
	error = loop_thread_new("kvm-net", &d->net_thread, err);
	if (!error)
		error = make_engine(d, err);
	if (error)
		return error;
	vc.engine = d->engine;
	net_config_mac(&d->cfg.cfg->net, nic->has_mac ? nic->mac : NULL, d->cfg.cfg->name, vc.mac);
	error = vnet_new(&vc, d->cfg.mem, loop_thread_loop(d->net_thread), &d->net, err);
	return error ? error : place(d, vnet_dev(d->net), err);
}

static int make_vsock(struct devices *d, struct err *err)
{
	uint32_t cid = d->cfg.cfg->vsock;
	int error = cid ? vsock_new(cid, d->cfg.mem, d->cfg.loop, &d->vsock, err) : 0;

	return error || !cid ? error : place(d, vsock_dev(d->vsock), err);
}

int devices_new(const struct devices_config *dc, struct devices **out, struct err *err)
{
	static int (*const table[])(struct devices * d, struct err * err) = { make_rng,    make_console, make_net,
		                                                              make_shares, make_disks,   make_vsock };
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
	loop_thread_free(d->net_thread);
	vsock_free(d->vsock);
	for (unsigned i = 0; i < CONFIG_DISKS_MAX; i++)
		vblk_free(d->disk[i].vblk);
	for (unsigned i = 0; i < d->nio; i++)
		loop_thread_free(d->io[i]);
	loop_thread_stop(d->fs_thread);
	for (unsigned i = 0; i < CONFIG_SHARES_MAX; i++)
		vp9_free(d->share[i]);
	loop_thread_free(d->fs_thread);
	vconsole_free(d->console);
	rng_free(d->rng);
	free(d);
}

int devices_pause(struct devices *d, uint64_t until, struct err *err)
{
	for (unsigned i = 0; i < d->n; i++) {
		struct virtio_dev *dev = d->placed[i].dev;
		int error = virtio_pause(dev, until);

		if (!error)
			continue;
		devices_resume(d);
		return err_set(err, error, "%s: a request takes the host too long", dev->name);
	}
	return 0;
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

void devices_net_status(struct devices *d, struct net_status *out)
{
	struct vnet_stats s;

	*out = (struct net_status){ .vhost = d->engine };
	if (!d->net)
		return;
	vnet_stats(d->net, &s);
	out->name = vnet_dev(d->net)->name;
	out->up = vnet_up(d->net);
	out->rx = s.rx;
	out->rx_filtered = s.rx_filtered;
	out->rx_dropped = s.rx_lost + s.rx_oversized;
	out->rx_bad = s.rx_short;
	out->tx = s.tx;
	out->tx_dropped = s.tx_refused;
	out->tx_bad = s.tx_bad_header + s.tx_short + s.tx_oversized;
}

void devices_resize(struct devices *d, uint16_t cols, uint16_t rows)
{
	if (d->console)
		vconsole_resize(d->console, cols, rows);
}
