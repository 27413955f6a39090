/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MACHINE_DEVICES_H
#define MACHINE_DEVICES_H

#include "arch/arch.h"
#include "base/err.h"
#include "base/loop.h"
#include "machine/config.h"
#include "machine/net.h"

/* The virtio devices of one boot: one explicit, ordered table. Main loop. */
struct devices;

struct devices_config {
	const struct config *cfg;
	struct loop *loop; /* the main loop */
	const struct gmem *mem;
	struct arch_board *board; /* its PCI bus takes them */
	struct vm *vm;
	struct nic *nic;     /* NULL: no network */
	struct con *hvc;     /* what hvc0 is connected to, NULL: there is none */
	struct con *channel; /* likewise the port of our init */
	struct disks *disks; /* the images */
	/* on-error=stop: a request of disk @i waits because of @error (-errno). An I/O thread. */
	void (*disk_failed)(void *opaque, unsigned i, int error);
	void *opaque;
};

int devices_new(const struct devices_config *dc, struct devices **out, struct err *err);

/* vCPUs stopped; before the board is freed. NULL is fine. */
void devices_free(struct devices *d);

/*
 * vCPUs stopped: after devices_pause() no device takes a request, none is under
 * way and the guest's memory stands still until devices_resume(). Waits until
 * @until (clock_ns()) for disks; after an error it is as if nothing had been asked.
 */
int devices_pause(struct devices *d, uint64_t until, struct err *err);
void devices_resume(struct devices *d);

/* vCPUs stopped for good: what the guest has said last is taken. */
void devices_settle(struct devices *d);

/* What the network card has done since this boot. */
void devices_net_status(struct devices *d, struct net_status *out);

/* The terminal on the host has this size now. */
void devices_resize(struct devices *d, uint16_t cols, uint16_t rows);

#endif
