/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef VIRTIO_P9_H
#define VIRTIO_P9_H

#include "fs/p9.h"
#include "virtio/virtio.h"

/*
 * A 9P share (virtio device 9; Linux: include/uapi/linux/virtio_9p.h): one
 * queue, whose chains are a message and room for its reply.
 */
struct vp9;

#define VP9_TAG_MAX 64 /* characters of a mount tag */

/* @loop is the queue's home, and the server's. Not yet run, or the caller's own. */
int vp9_new(const struct p9_export *ex, const char *tag, const struct gmem *mem, struct loop *loop, struct vp9 **out,
            struct err *err);
void vp9_free(struct vp9 *v); /* not on a bus any more, the loop does not run. NULL is fine */
struct virtio_dev *vp9_dev(struct vp9 *v);

#endif
