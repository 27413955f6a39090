/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BUS_EVENT_H
#define BUS_EVENT_H

/* What the guest asks of the machine as a whole, through some chip's register. */
enum guest_event {
	GUEST_POWEROFF,
	GUEST_RESET,
	GUEST_PANIC, /* pvpanic: the guest's kernel has panicked */
	GUEST_EXIT,  /* debug exit port: end with @code */
};

/* The machine's ear. @raise may be called from any thread and never blocks; the vCPU may run on for a while. */
struct guest_events {
	void (*raise)(void *opaque, enum guest_event ev, unsigned code);
	void *opaque;
};

#endif
