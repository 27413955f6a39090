/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef VHOST_NET_H
#define VHOST_NET_H

#include "base/err.h"
#include "bus/gmem.h"
#include "virtio/net.h"

/*
 * vhost-net: the host's kernel moves frames between a guest's rings and a tap
 * interface. Kicks reach it by the ioeventfd and interrupts leave by the
 * irqfd, so no frame passes through this process.
 */

/*
 * An engine for the @npairs tap descriptors @tap, which stay the caller's.
 * -ENOENT, -EACCES and others where this host has no vhost-net for us; the
 * text says why. Freed after its device.
 */
int vhost_net_new(const struct gmem *mem, const int *tap, unsigned npairs, struct vnet_engine **out, struct err *err);
void vhost_net_free(struct vnet_engine *e); /* NULL is fine */

#endif
