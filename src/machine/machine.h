/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MACHINE_MACHINE_H
#define MACHINE_MACHINE_H

#include "arch/arch.h"
#include "base/err.h"
#include "base/loop.h"
#include "bus/event.h"
#include "machine/config.h"

#include <stdio.h>

/*
 * One boot of a virtual machine: everything that is thrown away and built
 * anew at a reset. Main thread, unless it says otherwise. What outlives it
 * (image, consoles) is lent by the session.
 */
struct machine;
struct disks;

enum machine_event {
	MACHINE_POWEROFF,
	MACHINE_RESET,        /* @code is MACHINE_RESET_ASKED when it was machine_reset() */
	MACHINE_EXIT,         /* debug exit port: @code */
	MACHINE_TRIPLE_FAULT, /* of vCPU @code */
	MACHINE_CPU_ERROR,    /* KVM gave up on vCPU @code */
};

#define MACHINE_RESET_ASKED 1

struct machine_parts {
	const struct arch_image *image;
	struct loop *loop; /* the main loop: home of slow devices */
	struct con *com[ARCH_COMS];
	struct con *hvc;     /* the virtio console's, or NULL */
	struct con *channel; /* the port's that our init serves, or NULL */
	struct nic *nic;     /* the network's back end, or NULL */
	struct disks *disks;
	/* A request of disk @i waits for machine_resume(), because of @error (-errno). Any thread. */
	void (*disk_failed)(void *opaque, unsigned i, int error);
	/* The first event of this boot, once; its vCPUs are stopping. Any thread. */
	void (*event)(void *opaque, enum machine_event ev, unsigned code);
	/* The guest tells a panic, by pvpanic; it goes on, and may have yet to print why. Any thread. */
	void (*panic)(void *opaque);
	void *opaque;
};

int machine_new(const struct config *cfg, const struct machine_parts *parts, struct machine **out, struct err *err);
void machine_free(struct machine *m); /* stops it first; NULL is fine */

/* Starts the vCPU threads. */
int machine_start(struct machine *m, struct err *err);

/* Ends the vCPU threads and waits for them. Safe on a stopped machine. */
void machine_stop(struct machine *m);

/*
 * Stops vCPUs, clocks and devices together: when this returns 0 nothing of the
 * guest runs and its memory stands still, until machine_resume(). Waits up to
 * 2 s for the vCPUs, and 4 s in all for them and for requests in flight; after
 * an error it runs on. Before machine_start() it makes a machine that starts
 * paused. Pausing twice is pausing once. A paused machine can be stopped and freed. Both on the main loop.
 */
int machine_pause(struct machine *m, struct err *err);
void machine_resume(struct machine *m);

/* As if the guest had asked for it: comes back as an event, unless another one came first. */
void machine_reset(struct machine *m);

/* These reach a paused guest when it is resumed. */
void machine_power_button(struct machine *m);

struct net_status;
/* What its network card has done. */
void machine_net_status(struct machine *m, struct net_status *out);

/* The host's terminal has this size now. */
void machine_resize(struct machine *m, uint16_t cols, uint16_t rows);
int machine_nmi(struct machine *m, struct err *err);             /* to the first CPU */
int machine_sysrq(struct machine *m, char key, struct err *err); /* by a break on COM1 */

/* What KVM said of a vCPU that failed, "" where nothing; of a stopped machine. */
const char *machine_cpu_error(const struct machine *m);

/* The state of vCPU @index of a stopped machine. */
void machine_dump(struct machine *m, unsigned index, FILE *to);

#endif
