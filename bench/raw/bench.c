// SPDX-License-Identifier: GPL-2.0-or-later
#include "raw.h"

static void quiet(uint64_t ms)
{
	uint64_t begin = tsc();

	while (tsc_ns(tsc() - begin) < ms * 1000000)
		__asm__ volatile("pause");
}

/* Returns when it was printed, in ns. */
static uint64_t mark(const char *what, const char *name)
{
	uint64_t at;

	print("\n%s %s\n", what, name);
	at = tsc_ns(tsc());
	quiet(param("pause", 0));
	return at;
}

void measure_idle(void)
{
	uint64_t at = mark("begin", "idle");

	mark("end", "idle");
	print("idle_at %f us\n", at);
}

static void drain(struct vq *q, uint64_t *done, uint64_t *bytes, uint64_t *left,
                  void (*add)(struct vq *q, unsigned slot))
{
	uint32_t slot, len;

	while (vq_poll(q, &slot, &len)) {
		++*done;
		*bytes += len;
		if (*left) {
			--*left;
			add(q, slot);
		}
	}
}

void measure_all(const char *name, struct vq *q, unsigned nq, unsigned depth, uint64_t count,
                 void (*add)(struct vq *q, unsigned slot))
{
	uint64_t done = 0, bytes = 0, left = count, kicks = 0, irq = 0, at, ns;
	unsigned slot, most = nq * depth;

	for (unsigned i = 0; i < nq; i++) {
		kicks -= q[i].kicks;
		irq -= irqs[q[i].irq];
	}
	at = mark("begin", name);
	ns = tsc();
	for (slot = 0; slot < most && left && q[slot / depth].free_count; slot++, left--)
		add(&q[slot / depth], slot);
	for (unsigned i = 0; i < nq; i++)
		vq_kick(&q[i]);
	while (done < count) {
		vq_wait(q, nq);
		for (unsigned i = 0; i < nq; i++) {
			drain(&q[i], &done, &bytes, &left, add);
			vq_kick(&q[i]);
		}
	}
	ns = tsc_ns(tsc() - ns);
	for (unsigned i = 0; i < nq; i++) {
		kicks += q[i].kicks;
		irq += irqs[q[i].irq];
	}
	mark("end", name);
	print("%s_at %f us\n", name, at);
	print("%s_ns %f ns\n", name, ns * 1000 / count);
	print("%s_kicks %f /request\n", name, kicks * 1000 / count);
	print("%s_irqs %f /request\n", name, irq * 1000 / count);
	print("%s_bytes %f /request\n", name, bytes * 1000 / count);
	print("%s_count %u requests\n", name, count);
	print("%s_depth %u requests\n", name, (uint64_t)slot);
}

void measure(const char *name, struct vq *q, unsigned depth, uint64_t count, void (*add)(struct vq *q, unsigned slot))
{
	measure_all(name, q, 1, depth, count, add);
}
