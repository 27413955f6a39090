// SPDX-License-Identifier: GPL-2.0-or-later
#include "raw.h"

#include <linux/pci_regs.h>
#include <linux/virtio_config.h>
#include <linux/virtio_pci.h>
#include <linux/virtio_ring.h>

#define VENDOR        0x1af4
#define DEVICE_0      0x1040 /* plus the type */
#define TIMEOUT_NS    10000000000ull
#define SPINS         (1 << 16) /* between looks at the clock */
#define NEVER         0x8000    /* distance of a used_event that is not reached */
#define BIT(n)        (1ull << (n))
#define FEATURES_RING (BIT(VIRTIO_F_VERSION_1) | BIT(VIRTIO_RING_F_EVENT_IDX))

static void fence(void)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* Order of two accesses which x86 keeps, and the compiler must. */
static void barrier(void)
{
	__asm__ volatile("" ::: "memory");
}

/* Set-up. */

static volatile uint8_t *cap_at(struct vdev *d, unsigned cap)
{
	volatile uint8_t *bar = pci_bar(d->pci, pci_read(d->pci, cap + VIRTIO_PCI_CAP_BAR, 1));

	return bar + pci_read(d->pci, cap + VIRTIO_PCI_CAP_OFFSET, 4);
}

static void find_registers(struct vdev *d)
{
	for (unsigned c = 0; (c = pci_cap(d->pci, PCI_CAP_ID_VNDR, c));) {
		switch (pci_read(d->pci, c + VIRTIO_PCI_CAP_CFG_TYPE, 1)) {
		case VIRTIO_PCI_CAP_COMMON_CFG: d->common = (volatile void *)cap_at(d, c); break;
		case VIRTIO_PCI_CAP_DEVICE_CFG: d->config = cap_at(d, c); break;
		case VIRTIO_PCI_CAP_NOTIFY_CFG:
			d->notify = cap_at(d, c);
			d->notify_mul = pci_read(d->pci, c + VIRTIO_PCI_NOTIFY_CAP_MULT, 4);
			break;
		default: break;
		}
	}
	if (!d->common || !d->notify)
		fail("pci %x lacks virtio's registers", (uint64_t)d->pci);
}

static void set_status(struct vdev *d, uint8_t add)
{
	d->common->device_status = d->common->device_status | add;
	if (d->common->device_status & VIRTIO_CONFIG_S_NEEDS_RESET)
		fail("the device asks for a reset");
}

static void agree(struct vdev *d, uint64_t wanted)
{
	d->common->device_feature_select = 0;
	d->features = d->common->device_feature;
	d->common->device_feature_select = 1;
	d->features |= (uint64_t)d->common->device_feature << 32;
	d->features &= wanted | FEATURES_RING;
	d->common->guest_feature_select = 0;
	d->common->guest_feature = (uint32_t)d->features;
	d->common->guest_feature_select = 1;
	d->common->guest_feature = (uint32_t)(d->features >> 32);
	set_status(d, VIRTIO_CONFIG_S_FEATURES_OK);
	if (!(d->common->device_status & VIRTIO_CONFIG_S_FEATURES_OK))
		fail("the device refuses features %x", d->features);
}

void vdev_init(struct vdev *d, unsigned type, unsigned nth, uint64_t wanted)
{
	*d = (struct vdev){ 0 };
	if (!pci_find(VENDOR, (uint16_t)(DEVICE_0 + type), nth, &d->pci))
		fail("no virtio device of type %u", (uint64_t)type);
	find_registers(d);
	d->common->device_status = 0;
	while (d->common->device_status)
		;
	set_status(d, VIRTIO_CONFIG_S_ACKNOWLEDGE);
	set_status(d, VIRTIO_CONFIG_S_DRIVER);
	agree(d, wanted);
}

void vdev_ready(struct vdev *d)
{
	set_status(d, VIRTIO_CONFIG_S_DRIVER_OK);
}

static void msix_on(struct vdev *d)
{
	unsigned cap = pci_cap(d->pci, PCI_CAP_ID_MSIX, 0);
	uint32_t table;

	if (!cap)
		fail("pci %x has no MSI-X", (uint64_t)d->pci);
	irq_on();
	table = pci_read(d->pci, cap + PCI_MSIX_TABLE, 4);
	d->msix = (volatile void *)((volatile uint8_t *)pci_bar(d->pci, table & PCI_MSIX_TABLE_BIR) +
	                            (table & PCI_MSIX_TABLE_OFFSET));
	pci_write(d->pci, cap + PCI_MSIX_FLAGS, 2, pci_read(d->pci, cap + PCI_MSIX_FLAGS, 2) | PCI_MSIX_FLAGS_ENABLE);
}

/* The selected queue @q gets the vector of its own number. */
static void take_vector(struct vdev *d, struct vq *q)
{
	volatile uint32_t *entry;

	if (!d->msix)
		msix_on(d);
	q->irq = q->index % IRQS;
	entry = d->msix + 4 * q->index;
	entry[0] = irq_msi_address();
	entry[1] = 0;
	entry[2] = irq_vector(q->irq);
	entry[3] = 0;
	d->common->queue_msix_vector = q->index;
	if (d->common->queue_msix_vector != q->index)
		fail("no vector for queue %u", (uint64_t)q->index);
}

void vq_init(struct vdev *d, struct vq *q, unsigned index, uint16_t size, bool use_irq)
{
	volatile struct virtio_pci_common_cfg *c = d->common;
	uint16_t most;

	c->queue_select = (uint16_t)index;
	most = c->queue_size;
	if (!most)
		fail("no queue %u", (uint64_t)index);
	size = size < most ? size : most;
	size = size < VQ_MAX ? size : VQ_MAX;
	*q = (struct vq){ .d = d, .size = size, .index = (uint16_t)index, .use_irq = use_irq, .free_count = size };
	q->desc = alloc(size * sizeof(*q->desc), 4096);
	q->avail = alloc(4 + 2 * size + 2, 4096);
	q->used = alloc(4 + 8 * size + 2, 4096);
	q->used_event = &q->avail->ring[size];
	q->avail_event = (volatile uint16_t *)&q->used->ring[size];
	for (unsigned i = 0; i < size; i++)
		q->desc[i].next = (uint16_t)(i + 1);
	if (use_irq)
		take_vector(d, q);
	else
		q->avail->flags = VRING_AVAIL_F_NO_INTERRUPT;
	*q->used_event = use_irq ? 0 : NEVER;
	c->queue_size = size;
	c->queue_desc_lo = (uint32_t)(uintptr_t)q->desc;
	c->queue_desc_hi = 0;
	c->queue_avail_lo = (uint32_t)(uintptr_t)q->avail;
	c->queue_avail_hi = 0;
	c->queue_used_lo = (uint32_t)(uintptr_t)q->used;
	c->queue_used_hi = 0;
	q->doorbell = (volatile uint16_t *)(d->notify + c->queue_notify_off * d->notify_mul);
	c->queue_enable = 1;
}

/* Work. */

bool vq_add(struct vq *q, const struct seg *seg, unsigned out, unsigned in, uint32_t tag)
{
	uint16_t head = q->free_head, at = head, last = head;

	if (q->free_count < out + in)
		return false;
	for (unsigned i = 0; i < out + in; i++) {
		q->desc[at].addr = (uintptr_t)seg[i].at;
		q->desc[at].len = seg[i].len;
		q->desc[at].flags = VRING_DESC_F_NEXT | (i < out ? 0 : VRING_DESC_F_WRITE);
		last = at;
		at = q->desc[at].next;
	}
	q->desc[last].flags &= (uint16_t)~VRING_DESC_F_NEXT;
	q->free_head = at;
	q->free_count = (uint16_t)(q->free_count - out - in);
	q->tag[head] = tag;
	q->avail->ring[q->added++ % q->size] = head;
	return true;
}

static bool asks_for_kick(const struct vq *q, uint16_t before)
{
	if (q->d->features & BIT(VIRTIO_RING_F_EVENT_IDX))
		return vring_need_event(*q->avail_event, q->added, before);
	return !(q->used->flags & VRING_USED_F_NO_NOTIFY);
}

void vq_kick(struct vq *q)
{
	uint16_t before = q->published;

	if (q->added == before)
		return;
	barrier();
	q->avail->idx = q->published = q->added;
	fence();
	if (asks_for_kick(q, before)) {
		*q->doorbell = q->index;
		q->kicks++;
	}
}

static void free_chain(struct vq *q, uint16_t head)
{
	uint16_t last = head;

	for (q->free_count++; q->desc[last].flags & VRING_DESC_F_NEXT; q->free_count++)
		last = q->desc[last].next;
	q->desc[last].next = q->free_head;
	q->free_head = head;
}

bool vq_poll(struct vq *q, uint32_t *tag, uint32_t *len)
{
	const volatile struct vring_used_elem *e = &q->used->ring[q->seen % q->size];

	if (q->seen == q->used->idx)
		return false;
	barrier();
	if (e->id >= q->size)
		fail("used chain %u of %u", (uint64_t)e->id, (uint64_t)q->size);
	*tag = q->tag[e->id];
	*len = e->len;
	free_chain(q, (uint16_t)e->id);
	q->seen++;
	*q->used_event = (uint16_t)(q->seen + (q->use_irq ? 0 : NEVER));
	if (q->use_irq)
		fence(); /* before the next look at used->idx */
	return true;
}

static bool waits(const struct vq *q)
{
	return q->use_irq ? irqs[q->irq] == q->irqs : q->seen == q->used->idx;
}

static bool all_wait(const struct vq *q, unsigned nq)
{
	for (unsigned i = 0; i < nq; i++)
		if (!waits(&q[i]))
			return false;
	return true;
}

void vq_wait(struct vq *q, unsigned nq)
{
	uint64_t begin = tsc();

	for (unsigned n = 1; all_wait(q, nq); n++) {
		__asm__ volatile("pause");
		if (n % SPINS == 0 && tsc_ns(tsc() - begin) > TIMEOUT_NS)
			fail("queue %u: nothing for 10 s; %u of %u used, %u kicks, %u interrupts", (uint64_t)q->index,
			     (uint64_t)q->used->idx, (uint64_t)q->published, q->kicks, irqs[q->irq]);
	}
	for (unsigned i = 0; i < nq; i++)
		q[i].irqs = irqs[q[i].irq];
}
