/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef VHOST_VSOCK_H
#define VHOST_VSOCK_H

#include "base/err.h"
#include "base/loop.h"
#include "bus/gmem.h"

#include <stdint.h>

/*
 * The socket device (virtio 1.2, 5.10), whose data the host's kernel moves
 * (vhost-vsock): connections between the guest, which is context @cid, and
 * AF_VSOCK sockets of the host, which is context 2. None passes through this
 * process.
 */
struct vsock;
struct virtio_dev;

/*
 * @cid: from 3 to 2^32 - 2. -EADDRINUSE: somebody on this
 * host has it; -ENOENT, -EACCES and others: no /dev/vhost-vsock for us. The
 * text says so. All its queues' home is @loop.
 */
int vsock_new(uint32_t cid, const struct gmem *mem, struct loop *loop, struct vsock **out, struct err *err);
void vsock_free(struct vsock *v); /* NULL is fine; not on a bus any more */
struct virtio_dev *vsock_dev(struct vsock *v);

#endif
