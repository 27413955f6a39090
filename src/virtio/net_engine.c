// SPDX-License-Identifier: GPL-2.0-or-later
#include "virtio/net_impl.h"

#include "base/container_of.h"
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/*
 * How it works
 *
 * Where there is an engine it gets each queue when that starts, and runs it
 * while the core lets it (not paused) and the driver uses the pair. Interrupts
 * leave through the transport's eventfd. Without MSI-X there is none: then the
 * engine signals one of ours, and the loop raises the interrupt.
 *
 * An engine that refuses a queue leaves it to us: the frames then go through
 * this process, as if there were no engine.
 */

static struct net_away *away_of(struct vnet *v, unsigned q)
{
	return &v->pair[q / 2].away[q % 2];
}

static void on_irq(struct loop_fd *f, short revents)
{
	struct net_away *a = container_of(f, struct net_away, irq);
	struct net_pair *p = a->pair;
	uint64_t count;

	if (read(f->fd, &count, sizeof(count)) == sizeof(count))
		p->v->dev.transport->queue_irq(&p->v->dev, 2 * p->index + (a == &p->away[1]));
}

/* The descriptor that the engine signals; -1: there is none. */
static int irq_fd(struct vnet *v, unsigned q)
{
	struct net_away *a = away_of(v, q);
	int fd = v->dev.transport->queue_irq_fd ? v->dev.transport->queue_irq_fd(&v->dev, q) : -1;

	a->irq.fd = -1;
	if (fd >= 0)
		return fd;
	a->irq = (struct loop_fd){ .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .events = POLLIN, .cb = on_irq };
	if (a->irq.fd >= 0)
		loop_fd_add(v->dev.queue[q].home, &a->irq);
	return a->irq.fd;
}

static void close_irq(struct vnet *v, unsigned q)
{
	struct net_away *a = away_of(v, q);

	if (a->irq.fd < 0)
		return;
	loop_fd_del(v->dev.queue[q].home, &a->irq);
	close(a->irq.fd);
	a->irq.fd = -1;
}

/* Makes @q run or not, as all that is known wants it. */
static void update(struct vnet *v, unsigned q)
{
	struct net_away *a = away_of(v, q);
	bool on = a->wanted && q / 2 < v->pairs;
	int error;

	if (on == a->running)
		return;
	a->running = on;
	error = v->engine->run(v->engine, q, on);
	if (error)
		log_line("%s: queue %u: %s: no frame passes until the guest resets its card", v->dev.name, q,
		         strerror(-error));
}

bool net_engine_start(struct vnet *v, unsigned q)
{
	struct net_away *a = away_of(v, q);
	int fd = irq_fd(v, q), error = fd < 0 ? -EMFILE : v->engine->start(v->engine, &v->dev, q, fd);

	a->pair = &v->pair[q / 2];
	a->wanted = a->running = false;
	if (!error)
		return true;
	close_irq(v, q);
	log_line("%s: queue %u: the kernel does not take it (%s); going on without vhost-net", v->dev.name, q,
	         strerror(-error));
	return false;
}

void net_engine_run(struct vnet *v, unsigned q, bool on)
{
	away_of(v, q)->wanted = on;
	update(v, q);
}

void net_engine_stop(struct vnet *v, unsigned q)
{
	v->engine->stop(v->engine, q);
	close_irq(v, q);
}

void net_engine_update(struct vnet *v)
{
	for (unsigned q = 0; q < 2 * v->max_pairs; q++)
		if (v->dev.queue[q].away)
			update(v, q);
}
