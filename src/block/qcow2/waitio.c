// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/qcow2/waitio.h"

#include "base/container_of.h"

struct transfer {
	struct blk_req req;
	struct waitio *w;
};

int waitio_open(struct waitio *w, struct blk *b, struct err *err)
{
	int error = loop_new(&w->loop, err);

	w->q = NULL;
	if (error)
		return error;
	/* There is no queue above; this one says only that nobody minds if submit() blocks. */
	error = blk_queue_below(&(struct blk_queue){ .loop = w->loop, .blocks = true }, b, &w->q, err);
	if (error)
		waitio_close(w);
	return error;
}

void waitio_close(struct waitio *w)
{
	if (!w->loop)
		return;
	blk_queue_close(w->q);
	loop_free(w->loop);
	*w = (struct waitio){ 0 };
}

static void on_done(struct blk_req *r, int error)
{
	struct waitio *w = container_of(r, struct transfer, req)->w;

	w->error = error;
	loop_quit(w->loop);
}

int waitio_do(struct waitio *w, enum blk_op op, unsigned flags, uint64_t off, struct iovec *iov, unsigned niov,
              uint64_t len)
{
	struct transfer t = {
		.req = { .op = op, .flags = flags, .off = off, .len = len, .iov = iov, .niov = niov, .done = on_done },
		.w = w,
	};
	int error;

	blk_submit(w->q, &t.req);
	error = loop_run(w->loop);
	return error ? error : w->error;
}

int waitio_read(struct waitio *w, uint64_t off, void *buf, size_t len)
{
	return waitio_do(w, BLK_READ, 0, off, &(struct iovec){ buf, len }, 1, len);
}

int waitio_write(struct waitio *w, uint64_t off, const void *buf, size_t len)
{
	return waitio_do(w, BLK_WRITE, 0, off, &(struct iovec){ (void *)buf, len }, 1, len);
}

int waitio_flush(struct waitio *w)
{
	return waitio_do(w, BLK_FLUSH, 0, 0, NULL, 0, 0);
}
