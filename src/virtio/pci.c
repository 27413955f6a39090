// SPDX-License-Identifier: GPL-2.0-or-later
#include "virtio/pci.h"

#include "virtio/msix.h"

#include <assert.h>
#include <errno.h>
#include <linux/pci_regs.h>
#include <linux/virtio_ids.h>
#include <linux/virtio_pci.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * How it works
 *
 * One memory BAR holds everything, a page for each kind of register (see the
 * REGION_ table). Vendor capabilities in config space say where (virtio 1.2,
 * 4.1.4). Kicks have an address per queue, and while the BAR is mapped each
 * has an ioeventfd, so that they do not arrive here; where that failed they
 * do, and we write to the same eventfd.
 *
 * An interrupt goes to the vector that the driver chose for it. Without MSI-X
 * it sets a bit of the ISR status and the level of the pin; reading the ISR
 * clears both.
 */

#define PAGE          4096u
#define REGION_COMMON 0
#define REGION_ISR    (1 * PAGE)
#define REGION_DEVICE (2 * PAGE)
#define REGION_NOTIFY (3 * PAGE)
#define REGION_MSIX   (4 * PAGE)
#define REGION_PBA    (5 * PAGE)
#define BAR_LEN       (8 * PAGE)
#define NOTIFY_STRIDE 4

#define ISR_QUEUE     1
#define ISR_CONFIG    2

#define CAP_CFG_DATA  16 /* pci_cfg_data in the PCI configuration access capability */

struct virtio_pci {
	struct pci_func func;
	struct virtio_dev *d; /* [c] */
	struct pci_bus *bus;  /* [c] */
	struct evt_hub hub;   /* [c] */
	struct msix *msix;    /* [c] */
	unsigned msix_cap;    /* [c] offsets in config space */
	unsigned cfg_cap;     /* [c] */
	uint32_t notify_base; /* under the bus's lock: where the ioeventfds are, 0: none */
	pthread_mutex_t lock;
	struct irq intx;                         /* [m] */
	uint8_t isr;                             /* [m] */
	bool quiet;                              /* [m] a reset was asked for: no ISR bits until the next driver */
	uint32_t features_select, driver_select; /* [m] */
	uint16_t queue_select;                   /* [m] */
	_Atomic uint16_t config_vector;
	_Atomic uint16_t *queue_vector; /* nqueues */
};

/* Interrupts. */

/* Under the lock: the pin follows the ISR. */
static void update_intx(struct virtio_pci *p)
{
	bool off = pci_peek(&p->func, PCI_COMMAND, 2) & PCI_COMMAND_INTX_DISABLE;

	irq_set(&p->intx, p->isr && !off && !msix_enabled(p->msix));
}

static void raise_irq(struct virtio_pci *p, unsigned vector, uint8_t isr)
{
	if (msix_enabled(p->msix)) {
		msix_raise(p->msix, vector);
		return;
	}
	pthread_mutex_lock(&p->lock);
	if (!p->quiet)
		p->isr |= isr;
	update_intx(p);
	pthread_mutex_unlock(&p->lock);
}

static void queue_irq(struct virtio_dev *d, unsigned q)
{
	struct virtio_pci *p = d->transport_data;

	raise_irq(p, atomic_load(&p->queue_vector[q]), ISR_QUEUE);
}

static void config_irq(struct virtio_dev *d)
{
	struct virtio_pci *p = d->transport_data;

	raise_irq(p, atomic_load(&p->config_vector), ISR_CONFIG);
}

static int queue_irq_fd(struct virtio_dev *d, unsigned q)
{
	struct virtio_pci *p = d->transport_data;

	return msix_enabled(p->msix) ? msix_direct(p->msix, atomic_load(&p->queue_vector[q])) : -1;
}

static const struct virtio_transport_ops transport_ops = { queue_irq, config_irq, queue_irq_fd };

static uint8_t read_isr(struct virtio_pci *p)
{
	uint8_t isr;

	pthread_mutex_lock(&p->lock);
	isr = p->isr;
	p->isr = 0;
	update_intx(p);
	pthread_mutex_unlock(&p->lock);
	return isr;
}

static void clear_vectors(struct virtio_pci *p)
{
	atomic_store(&p->config_vector, VIRTIO_MSI_NO_VECTOR);
	for (unsigned i = 0; i < p->d->nqueues; i++)
		atomic_store(&p->queue_vector[i], VIRTIO_MSI_NO_VECTOR);
}

/* The common configuration structure (virtio 1.2, 4.1.4.3). */

static uint16_t selected_queue(struct virtio_pci *p)
{
	uint16_t q;

	pthread_mutex_lock(&p->lock);
	q = p->queue_select;
	pthread_mutex_unlock(&p->lock);
	return q;
}

static uint32_t get_select(struct virtio_pci *p, const uint32_t *select)
{
	uint32_t val;

	pthread_mutex_lock(&p->lock);
	val = *select;
	pthread_mutex_unlock(&p->lock);
	return val;
}

static void set_select(struct virtio_pci *p, uint32_t *select, uint32_t val)
{
	pthread_mutex_lock(&p->lock);
	*select = val;
	pthread_mutex_unlock(&p->lock);
}

static uint16_t queue_vector(struct virtio_pci *p, unsigned q)
{
	return q < p->d->nqueues ? atomic_load(&p->queue_vector[q]) : VIRTIO_MSI_NO_VECTOR;
}

/* A vector that does not exist reads back as none. */
static uint16_t checked_vector(const struct virtio_pci *p, uint64_t val)
{
	return val <= p->d->nqueues ? (uint16_t)val : VIRTIO_MSI_NO_VECTOR;
}

static uint64_t half(uint64_t val, unsigned off, unsigned base)
{
	return off == base ? val : val >> 32;
}

static uint64_t common_read(struct virtio_pci *p, unsigned off)
{
	struct virtio_dev *d = p->d;
	unsigned q = selected_queue(p);

	switch (off) {
	case VIRTIO_PCI_COMMON_DFSELECT: return get_select(p, &p->features_select);
	case VIRTIO_PCI_COMMON_DF: return virtio_reg_features(d, get_select(p, &p->features_select));
	case VIRTIO_PCI_COMMON_GFSELECT: return get_select(p, &p->driver_select);
	case VIRTIO_PCI_COMMON_GF: return virtio_reg_driver_features(d, get_select(p, &p->driver_select));
	case VIRTIO_PCI_COMMON_MSIX: return atomic_load(&p->config_vector);
	case VIRTIO_PCI_COMMON_NUMQ: return d->nqueues;
	case VIRTIO_PCI_COMMON_STATUS: return virtio_reg_status(d);
	case VIRTIO_PCI_COMMON_CFGGENERATION: return virtio_reg_config_generation(d);
	case VIRTIO_PCI_COMMON_Q_SELECT: return q;
	case VIRTIO_PCI_COMMON_Q_SIZE: return virtio_reg_queue(d, q, VQ_SIZE);
	case VIRTIO_PCI_COMMON_Q_MSIX: return queue_vector(p, q);
	case VIRTIO_PCI_COMMON_Q_ENABLE: return virtio_reg_queue(d, q, VQ_ENABLE);
	case VIRTIO_PCI_COMMON_Q_NOFF: return q;
	case VIRTIO_PCI_COMMON_Q_DESCLO:
	case VIRTIO_PCI_COMMON_Q_DESCHI: return half(virtio_reg_queue(d, q, VQ_DESC), off, VIRTIO_PCI_COMMON_Q_DESCLO);
	case VIRTIO_PCI_COMMON_Q_AVAILLO:
	case VIRTIO_PCI_COMMON_Q_AVAILHI:
		return half(virtio_reg_queue(d, q, VQ_DRIVER), off, VIRTIO_PCI_COMMON_Q_AVAILLO);
	case VIRTIO_PCI_COMMON_Q_USEDLO:
	case VIRTIO_PCI_COMMON_Q_USEDHI:
		return half(virtio_reg_queue(d, q, VQ_DEVICE), off, VIRTIO_PCI_COMMON_Q_USEDLO);
	case VIRTIO_PCI_COMMON_Q_NDATA: return q;
	case VIRTIO_PCI_COMMON_Q_RESET: return virtio_reg_queue(d, q, VQ_RESET);
	default: return ~0ull;
	}
}

static void set_address(struct virtio_pci *p, enum virtio_queue_reg r, unsigned off, unsigned base, unsigned size,
                        uint64_t val)
{
	virtio_reg_set_queue(p->d, selected_queue(p), r, off == base ? 0 : 32, size * 8, val);
}

static void set_queue_vector(struct virtio_pci *p, uint64_t val)
{
	unsigned q = selected_queue(p);

	if (q < p->d->nqueues)
		atomic_store(&p->queue_vector[q], checked_vector(p, val));
}

static void set_status(struct virtio_pci *p, uint8_t val)
{
	/* After a reset nothing of the last driver remains, nor comes while the device finishes its requests. */
	pthread_mutex_lock(&p->lock);
	p->quiet = !val;
	pthread_mutex_unlock(&p->lock);
	virtio_reg_set_status(p->d, val);
	if (val)
		return;
	clear_vectors(p);
	(void)read_isr(p);
}

static void select_queue(struct virtio_pci *p, uint64_t val)
{
	pthread_mutex_lock(&p->lock);
	p->queue_select = (uint16_t)val;
	pthread_mutex_unlock(&p->lock);
}

static void common_write(struct virtio_pci *p, unsigned off, unsigned size, uint64_t val)
{
	struct virtio_dev *d = p->d;

	switch (off) {
	case VIRTIO_PCI_COMMON_DFSELECT: set_select(p, &p->features_select, (uint32_t)val); break;
	case VIRTIO_PCI_COMMON_GFSELECT: set_select(p, &p->driver_select, (uint32_t)val); break;
	case VIRTIO_PCI_COMMON_GF: virtio_reg_set_features(d, get_select(p, &p->driver_select), (uint32_t)val); break;
	case VIRTIO_PCI_COMMON_MSIX: atomic_store(&p->config_vector, checked_vector(p, val)); break;
	case VIRTIO_PCI_COMMON_STATUS: set_status(p, (uint8_t)val); break;
	case VIRTIO_PCI_COMMON_Q_SELECT: select_queue(p, val); break;
	case VIRTIO_PCI_COMMON_Q_SIZE: virtio_reg_set_queue(d, selected_queue(p), VQ_SIZE, 0, 16, val); break;
	case VIRTIO_PCI_COMMON_Q_MSIX: set_queue_vector(p, val); break;
	case VIRTIO_PCI_COMMON_Q_ENABLE: virtio_reg_set_queue(d, selected_queue(p), VQ_ENABLE, 0, 16, val); break;
	case VIRTIO_PCI_COMMON_Q_RESET: virtio_reg_set_queue(d, selected_queue(p), VQ_RESET, 0, 16, val); break;
	case VIRTIO_PCI_COMMON_Q_DESCLO:
	case VIRTIO_PCI_COMMON_Q_DESCHI: set_address(p, VQ_DESC, off, VIRTIO_PCI_COMMON_Q_DESCLO, size, val); break;
	case VIRTIO_PCI_COMMON_Q_AVAILLO:
	case VIRTIO_PCI_COMMON_Q_AVAILHI: set_address(p, VQ_DRIVER, off, VIRTIO_PCI_COMMON_Q_AVAILLO, size, val); break;
	case VIRTIO_PCI_COMMON_Q_USEDLO:
	case VIRTIO_PCI_COMMON_Q_USEDHI: set_address(p, VQ_DEVICE, off, VIRTIO_PCI_COMMON_Q_USEDLO, size, val); break;
	default: break;
	}
}

/* The BAR. */

static uint64_t bar_read(void *dev, uint64_t off64, unsigned size)
{
	struct virtio_pci *p = dev;
	unsigned off = (unsigned)off64, reg = off % PAGE;

	switch (off - reg) {
	case REGION_COMMON: return common_read(p, reg);
	case REGION_ISR: return reg ? ~0ull : read_isr(p);
	case REGION_DEVICE: return virtio_reg_config(p->d, reg, size);
	case REGION_MSIX: return msix_table_read(p->msix, reg, size);
	case REGION_PBA: return msix_pba_read(p->msix, reg, size);
	default: return 0;
	}
}

static void bar_write(void *dev, uint64_t off64, unsigned size, uint64_t val)
{
	struct virtio_pci *p = dev;
	unsigned off = (unsigned)off64, reg = off % PAGE;

	switch (off - reg) {
	case REGION_COMMON: common_write(p, reg, size, val); break;
	case REGION_DEVICE: virtio_reg_set_config(p->d, reg, size, val); break;
	case REGION_NOTIFY:
		if (reg / NOTIFY_STRIDE < p->d->nqueues)
			virtio_again(p->d, reg / NOTIFY_STRIDE);
		break;
	case REGION_MSIX: msix_table_write(p->msix, reg, size, val); break;
	default: break;
	}
}

static const struct bus_ops bar_ops = { bar_read, bar_write };

static void move_doorbells(struct virtio_pci *p, uint32_t base)
{
	const struct evt_hub *h = &p->hub;

	for (unsigned q = 0; p->notify_base && q < p->d->nqueues; q++)
		h->ops->kick_del(h->opaque, p->notify_base + q * NOTIFY_STRIDE, p->d->queue[q].kick_fd);
	p->notify_base = 0;
	for (unsigned q = 0; base && q < p->d->nqueues; q++) {
		if (h->ops->kick_add(h->opaque, base + q * NOTIFY_STRIDE, p->d->queue[q].kick_fd) == 0)
			continue;
		while (q--) /* all or none; by hand then */
			h->ops->kick_del(h->opaque, base + q * NOTIFY_STRIDE, p->d->queue[q].kick_fd);
		return;
	}
	p->notify_base = base;
}

static void bar_mapped(void *dev, unsigned bar, uint32_t base)
{
	move_doorbells(dev, base ? base + REGION_NOTIFY : 0);
}

/* Config space. */

/* The access that the PCI configuration access capability describes (4.1.4.9): false: an impossible one. */
static bool cfg_window(struct virtio_pci *p, uint32_t *off, uint32_t *len)
{
	unsigned cap = p->cfg_cap;

	*off = pci_peek(&p->func, cap + offsetof(struct virtio_pci_cap, offset), 4);
	*len = pci_peek(&p->func, cap + offsetof(struct virtio_pci_cap, length), 4);
	return pci_peek(&p->func, cap + offsetof(struct virtio_pci_cap, bar), 1) == 0 &&
	       (*len == 1 || *len == 2 || *len == 4) && *off % *len == 0 && *off < BAR_LEN;
}

static bool touches(unsigned off, unsigned size, unsigned reg, unsigned len)
{
	return off < reg + len && reg < off + size;
}

static void cfg_reading(void *dev, unsigned off, unsigned size)
{
	struct virtio_pci *p = dev;
	uint32_t at, len;

	if (touches(off, size, p->cfg_cap + CAP_CFG_DATA, 4) && cfg_window(p, &at, &len))
		pci_poke(&p->func, p->cfg_cap + CAP_CFG_DATA, len, (uint32_t)bar_read(p, at, len));
}

static void cfg_written(void *dev, unsigned off, unsigned size)
{
	struct virtio_pci *p = dev;
	uint32_t at, len, ctl;

	if (touches(off, size, p->msix_cap + PCI_MSIX_FLAGS, 2)) {
		ctl = pci_peek(&p->func, p->msix_cap + PCI_MSIX_FLAGS, 2);
		msix_control(p->msix, ctl & PCI_MSIX_FLAGS_ENABLE, ctl & PCI_MSIX_FLAGS_MASKALL);
	}
	if (touches(off, size, PCI_COMMAND, 2) || touches(off, size, p->msix_cap + PCI_MSIX_FLAGS, 2)) {
		pthread_mutex_lock(&p->lock);
		update_intx(p);
		pthread_mutex_unlock(&p->lock);
	}
	if (touches(off, size, p->cfg_cap + CAP_CFG_DATA, 4) && cfg_window(p, &at, &len))
		bar_write(p, at, len, pci_peek(&p->func, p->cfg_cap + CAP_CFG_DATA, len));
}

static void add_msix_cap(struct virtio_pci *p)
{
	uint16_t flags = (uint16_t)p->d->nqueues; /* vectors - 1: one a queue and one for config */
	uint8_t body[PCI_CAP_MSIX_SIZEOF] = { PCI_CAP_ID_MSIX, 0, (uint8_t)flags, (uint8_t)(flags >> 8) };
	uint8_t wmask[PCI_CAP_MSIX_SIZEOF] = { 0, 0, 0, (PCI_MSIX_FLAGS_ENABLE | PCI_MSIX_FLAGS_MASKALL) >> 8 };
	uint32_t table = REGION_MSIX, pba = REGION_PBA; /* in BAR 0 */

	memcpy(body + PCI_MSIX_TABLE, &table, 4);
	memcpy(body + PCI_MSIX_PBA, &pba, 4);
	p->msix_cap = pci_add_cap(&p->func, body, wmask, sizeof(body));
}

static unsigned add_vendor_cap(struct virtio_pci *p, uint8_t type, uint32_t offset, uint32_t length, uint32_t extra,
                               bool writable)
{
	struct {
		struct virtio_pci_cap cap;
		uint32_t extra; /* notify_off_multiplier or pci_cfg_data */
	} c = { .cap = { .cap_vndr = PCI_CAP_ID_VNDR,
		         .cap_len = sizeof(c.cap),
		         .cfg_type = type,
		         .offset = offset,
		         .length = length },
		.extra = extra },
	  mask = { 0 };

	if (type == VIRTIO_PCI_CAP_NOTIFY_CFG || type == VIRTIO_PCI_CAP_PCI_CFG)
		c.cap.cap_len = sizeof(c);
	if (writable) {
		mask.cap.bar = 0xff;
		mask.cap.offset = mask.cap.length = mask.extra = ~0u;
	}
	return pci_add_cap(&p->func, (uint8_t *)&c, (uint8_t *)&mask, c.cap.cap_len);
}

static void add_caps(struct virtio_pci *p)
{
	add_msix_cap(p);
	p->cfg_cap = add_vendor_cap(p, VIRTIO_PCI_CAP_PCI_CFG, 0, 0, 0, true);
	add_vendor_cap(p, VIRTIO_PCI_CAP_NOTIFY_CFG, REGION_NOTIFY, PAGE, NOTIFY_STRIDE, false);
	add_vendor_cap(p, VIRTIO_PCI_CAP_DEVICE_CFG, REGION_DEVICE, PAGE, 0, false);
	add_vendor_cap(p, VIRTIO_PCI_CAP_ISR_CFG, REGION_ISR, PAGE, 0, false);
	add_vendor_cap(p, VIRTIO_PCI_CAP_COMMON_CFG, REGION_COMMON, PAGE, 0, false);
}

/* Base class and subclass by device type: for lspci, and for guests that look. */
static uint32_t pci_class(uint16_t id)
{
	switch (id) {
	case VIRTIO_ID_NET: return 0x020000;
	case VIRTIO_ID_BLOCK: return 0x018000;
	case VIRTIO_ID_CONSOLE: return 0x078000;
	case VIRTIO_ID_9P:
	case VIRTIO_ID_FS: return 0x018000;
	default: return 0x00ff00;
	}
}

static int init(struct virtio_pci *p, uint8_t devfn, struct err *err)
{
	struct virtio_dev *d = p->d;
	int error;

	p->queue_vector = calloc(d->nqueues, sizeof(p->queue_vector[0]));
	if (!p->queue_vector)
		return err_set(err, -ENOMEM, "out of memory");
	error = msix_new(d->nqueues + 1, &p->hub, &p->msix, err);
	if (error)
		return error;
	d->transport = &transport_ops;
	d->transport_data = p;
	clear_vectors(p);
	error = pci_add(p->bus, &p->func, devfn, err);
	if (!error)
		add_caps(p);
	return error;
}

int virtio_pci_new(struct virtio_dev *d, struct pci_bus *bus, uint8_t devfn, const struct evt_hub *hub,
                   const struct irq *intx, struct virtio_pci **out, struct err *err)
{
	struct virtio_pci *p = calloc(1, sizeof(*p));
	int error;

	if (!p)
		return err_set(err, -ENOMEM, "out of memory");
	p->d = d;
	p->bus = bus;
	p->hub = *hub;
	p->intx = *intx;
	pthread_mutex_init(&p->lock, NULL);
	p->func = (struct pci_func){
		.name = d->name,
		.vendor = 0x1af4,
		.device = 0x1040 + d->class->id,
		.subvendor = 0x1af4,
		.subdevice = 0x1100,
		.class_rev = pci_class(d->class->id) << 8 | 1,
		.pin = (uint8_t)(1 + devfn % 4), /* INTA to INTD */
		.bar[0] = { .len = BAR_LEN, .ops = &bar_ops, .name = d->name },
		.dev = p,
		.cfg_written = cfg_written,
		.cfg_reading = cfg_reading,
		.bar_mapped = bar_mapped,
	};
	error = init(p, devfn, err);
	if (error)
		virtio_pci_free(p);
	else
		*out = p;
	return error;
}

void virtio_pci_free(struct virtio_pci *p)
{
	if (!p)
		return;
	pci_del(&p->func);
	msix_free(p->msix);
	free(p->queue_vector);
	pthread_mutex_destroy(&p->lock);
	free(p);
}
