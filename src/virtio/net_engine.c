// SPDX-License-Identifier: GPL-2.0-or-later
#include "virtio/net_impl.h"

#include "base/log.h"

#include <string.h>

/*
 * How it works
 *
 * Where there is an engine it gets each queue when that starts, and runs it
 * while the core lets it (not paused) and the driver uses the pair. For its
 * interrupts it has a descriptor (virtio/away.h).
 *
 * An engine that refuses a queue leaves it to us: the frames then go through
 * this process, as if there were no engine.
 */

static struct net_away *away_of(struct vnet *v, unsigned q)
{
	return &v->pair[q / 2].away[q % 2];
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
	int fd = virtio_away_irq(&a->irq, &v->dev, q);
	int error = fd < 0 ? fd : v->engine->start(v->engine, &v->dev, q, fd);

	a->wanted = a->running = false;
	if (!error)
		return true;
	virtio_away_end(&a->irq);
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
	virtio_away_end(&away_of(v, q)->irq);
}

void net_engine_update(struct vnet *v)
{
	for (unsigned q = 0; q < 2 * v->max_pairs; q++)
		if (v->dev.queue[q].away)
			update(v, q);
}
