/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef VIRTIO_CONSOLE_H
#define VIRTIO_CONSOLE_H

#include "console/con.h"
#include "virtio/virtio.h"

/*
 * The console device (virtio 1.2, 5.3) with any number of ports, each joined
 * to a console of the host. Port 0 is hvc0. Everything runs on one loop, which
 * is also the loop of the ports' consoles.
 */
struct vconsole;

struct vconsole_port {
	const char *name; /* found in the guest as /sys/class/virtio-ports/…/name; NULL: none */
	bool tty;         /* a terminal (hvcN) rather than a plain stream (/dev/vport…) */
	struct con *con;  /* attached to; outlives the device */
};

int vconsole_new(const struct vconsole_port *ports, unsigned nports, const struct gmem *mem, struct loop *loop,
                 struct vconsole **out, struct err *err);
void vconsole_free(struct vconsole *v); /* NULL is fine; not on a bus any more */
struct virtio_dev *vconsole_dev(struct vconsole *v);

/* Takes what the driver has offered by now: its vCPUs are stopped, and these are its last words. On the loop. */
void vconsole_settle(struct vconsole *v);

/* The terminal behind port 0 has this size now. On the loop. */
void vconsole_resize(struct vconsole *v, uint16_t cols, uint16_t rows);

#endif
