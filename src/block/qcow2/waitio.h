/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BLOCK_QCOW2_WAITIO_H
#define BLOCK_QCOW2_WAITIO_H

#include "block/block_impl.h"

/*
 * I/O that is waited for, on a blk, without a loop made for each transfer: for
 * opening, closing, checking and the metadata thread. One thread at a time,
 * whichever it is. Each call returns 0 or -errno.
 */
struct waitio {
	struct loop *loop;
	struct blk_queue *q;
	int error; /* of the transfer that is waited for */
};

int waitio_open(struct waitio *w, struct blk *b, struct err *err);
void waitio_close(struct waitio *w);

int waitio_do(struct waitio *w, enum blk_op op, unsigned flags, uint64_t off, struct iovec *iov, unsigned niov,
              uint64_t len);
int waitio_read(struct waitio *w, uint64_t off, void *buf, size_t len);
int waitio_write(struct waitio *w, uint64_t off, const void *buf, size_t len);
int waitio_flush(struct waitio *w);

#endif
