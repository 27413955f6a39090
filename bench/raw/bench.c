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

void measure(const char *name, struct vq *q, unsigned depth, uint64_t count, void (*add)(struct vq *q, unsigned slot))
{
	uint64_t done = 0, bytes = 0, left = count, kicks = q->kicks, irq = irqs[q->irq], at, ns;
	unsigned slot;

	at = mark("begin", name);
	ns = tsc();
	for (slot = 0; slot < depth && left && q->free_count; slot++, left--)
		add(q, slot);
	for (vq_kick(q); done < count; vq_kick(q)) {
		vq_wait(q);
		drain(q, &done, &bytes, &left, add);
	}
	ns = tsc_ns(tsc() - ns);
	irq = irqs[q->irq] - irq;
	kicks = q->kicks - kicks;
	mark("end", name);
	print("%s_at %f us\n", name, at);
	print("%s_ns %f ns\n", name, ns * 1000 / count);
	print("%s_kicks %f /request\n", name, kicks * 1000 / count);
	print("%s_irqs %f /request\n", name, irq * 1000 / count);
	print("%s_bytes %f /request\n", name, bytes * 1000 / count);
	print("%s_count %u requests\n", name, count);
	print("%s_depth %u requests\n", name, (uint64_t)slot);
}
