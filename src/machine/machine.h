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

enum machine_event {
	MACHINE_POWEROFF,
	MACHINE_RESET,
	MACHINE_PANIC,        /* pvpanic */
	MACHINE_EXIT,         /* debug exit port: @code */
	MACHINE_TRIPLE_FAULT, /* of vCPU @code */
	MACHINE_CPU_ERROR,    /* KVM gave up on vCPU @code */
};

struct machine_parts {
	const struct arch_image *image;
	struct loop *loop; /* the main loop: home of slow devices */
	struct con *com[ARCH_COMS];
	struct con *hvc; /* the virtio console's, or NULL */
	/* The first event of this boot, once; its vCPUs are stopping. Any thread. */
	void (*event)(void *opaque, enum machine_event ev, unsigned code);
	void *opaque;
};

int machine_new(const struct config *cfg, const struct machine_parts *parts, struct machine **out, struct err *err);
void machine_free(struct machine *m); /* stops it first; NULL is fine */

/* Starts the vCPU threads. */
int machine_start(struct machine *m, struct err *err);

/* Ends the vCPU threads and waits for them. Safe on a stopped machine. */
void machine_stop(struct machine *m);

void machine_power_button(struct machine *m);

/* What KVM said of a vCPU that failed, "" where nothing; of a stopped machine. */
const char *machine_cpu_error(const struct machine *m);

/* The state of vCPU @index of a stopped machine. */
void machine_dump(struct machine *m, unsigned index, FILE *to);

#endif
