// SPDX-License-Identifier: GPL-2.0-or-later
#include "virtio/away.h"

#include "base/container_of.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void on_irq(struct loop_fd *f, short revents)
{
	struct virtio_away *a = container_of(f, struct virtio_away, irq);
	uint64_t count;

	if (read(f->fd, &count, sizeof(count)) == sizeof(count))
		a->dev->transport->queue_irq(a->dev, a->queue);
}

int virtio_away_irq(struct virtio_away *a, struct virtio_dev *d, unsigned q)
{
	int fd = d->transport->queue_irq_fd ? d->transport->queue_irq_fd(d, q) : -1;

	*a = (struct virtio_away){ .dev = d, .queue = q, .irq.fd = -1 };
	if (fd >= 0)
		return fd;
	a->irq = (struct loop_fd){ .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .events = POLLIN, .cb = on_irq };
	if (a->irq.fd < 0)
		return -EMFILE;
	loop_fd_add(d->queue[q].home, &a->irq);
	return a->irq.fd;
}

void virtio_away_end(struct virtio_away *a)
{
	if (!a->dev || a->irq.fd < 0)
		return;
	loop_fd_del(a->dev->queue[a->queue].home, &a->irq);
	close(a->irq.fd);
	a->irq.fd = -1;
}
