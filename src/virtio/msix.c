// SPDX-License-Identifier: GPL-2.0-or-later
#include "virtio/msix.h"

#include "base/evt.h"
#include "base/log.h"

#include <assert.h>
#include <errno.h>
#include <linux/pci_regs.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

/*
 * How it works
 *
 * A vector is open when MSI-X is enabled and neither the vector nor the
 * function is masked. Raising an open vector is one write to its eventfd,
 * without a lock. Raising a closed one sets its pending bit; opening it sends
 * what is pending. The two may meet: so raise looks at @open again after it
 * has set the bit, and whoever takes the bit down sends.
 *
 * KVM hears of a vector's address and data when it opens, and only if they
 * differ from what KVM has: a guest that masks, writes and unmasks costs one
 * route change, one that only masks and unmasks costs none.
 *
 * The kernel raises a direct vector without asking us. While that is closed its
 * eventfd is taken out of KVM: what is written meanwhile stays in it, and is
 * the pending bit.
 */

enum { ENTRY_ADDR_LO, ENTRY_ADDR_HI, ENTRY_DATA, ENTRY_CTRL, ENTRY_WORDS };

struct vector {
	uint32_t entry[ENTRY_WORDS]; /* [m] as in the table */
	uint64_t routed_addr;        /* [m] what KVM has */
	uint32_t routed_data;        /* [m] */
	bool routed;                 /* [m] */
	atomic_bool direct;          /* for ever, once it is */
	int msi;                     /* [m] the hub's number, -1: none yet */
	int fd;                      /* [c] once @open has been true */
	atomic_bool open, pending;
};

struct msix {
	struct evt_hub hub; /* [c] */
	unsigned nvecs;     /* [c] */
	pthread_mutex_t lock;
	bool mask_all; /* [m] */
	bool told;     /* [m] that something failed: once, for the guest may make it fail again and again */
	atomic_bool enabled;
	struct vector vec[];
};

int msix_new(unsigned nvecs, const struct evt_hub *hub, struct msix **out, struct err *err)
{
	struct msix *x = calloc(1, sizeof(*x) + nvecs * sizeof(x->vec[0]));

	if (!x)
		return err_set(err, -ENOMEM, "out of memory");
	x->hub = *hub;
	x->nvecs = nvecs;
	pthread_mutex_init(&x->lock, NULL);
	for (unsigned i = 0; i < nvecs; i++) {
		x->vec[i].fd = x->vec[i].msi = -1;
		x->vec[i].entry[ENTRY_CTRL] = PCI_MSIX_ENTRY_CTRL_MASKBIT;
	}
	*out = x;
	return 0;
}

void msix_free(struct msix *x)
{
	if (!x)
		return;
	for (unsigned i = 0; i < x->nvecs; i++) {
		if (x->vec[i].msi >= 0)
			x->hub.ops->msi_free(x->hub.opaque, x->vec[i].msi, x->vec[i].fd);
		if (x->vec[i].fd >= 0)
			close(x->vec[i].fd);
	}
	pthread_mutex_destroy(&x->lock);
	free(x);
}

void msix_raise(struct msix *x, unsigned vec)
{
	struct vector *v;

	if (vec >= x->nvecs)
		return;
	v = &x->vec[vec];
	if (atomic_load(&v->open) || atomic_load(&v->direct)) {
		evt_signal(v->fd);
		return;
	}
	atomic_store(&v->pending, true);
	if (atomic_load(&v->open) && atomic_exchange(&v->pending, false))
		evt_signal(v->fd);
}

/* Under the lock. */
static int open_fd(struct vector *v)
{
	if (v->fd < 0)
		v->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return v->fd < 0 ? -errno : 0;
}

/* Under the lock: a descriptor and a number in KVM. */
static int wire(struct msix *x, struct vector *v)
{
	int error = open_fd(v);

	if (error)
		return error;
	v->msi = x->hub.ops->msi_new(x->hub.opaque, v->fd);
	return v->msi < 0 ? v->msi : 0;
}

/* Under the lock. */
static int route(struct msix *x, struct vector *v)
{
	uint64_t addr = v->entry[ENTRY_ADDR_LO] | (uint64_t)v->entry[ENTRY_ADDR_HI] << 32;
	uint32_t data = v->entry[ENTRY_DATA];
	int error = v->msi < 0 ? wire(x, v) : 0;

	if (error || (v->routed && v->routed_addr == addr && v->routed_data == data))
		return error;
	error = x->hub.ops->msi_route(x->hub.opaque, v->msi, addr, data);
	v->routed = !error;
	v->routed_addr = addr;
	v->routed_data = data;
	return error;
}

static bool is_signalled(const struct vector *v)
{
	struct pollfd p = { .fd = v->fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

/* Under the lock: a direct vector is closed. */
static void unwire(struct msix *x, struct vector *v)
{
	if (v->msi >= 0)
		x->hub.ops->msi_free(x->hub.opaque, v->msi, v->fd);
	v->msi = -1;
	v->routed = false;
}

/* Under the lock: after any change that concerns @v. */
static void update(struct msix *x, struct vector *v)
{
	bool open = atomic_load(&x->enabled) && !x->mask_all && !(v->entry[ENTRY_CTRL] & PCI_MSIX_ENTRY_CTRL_MASKBIT);
	bool waiting = atomic_load(&v->direct) && v->msi < 0 && is_signalled(v);
	int error = open ? route(x, v) : 0;

	if (error && !x->told)
		log_line("an interrupt of the guest cannot be set up (error %d): its device will seem dead", -error);
	x->told |= error != 0;
	atomic_store(&v->open, open && !error);
	if (open && !error && (atomic_exchange(&v->pending, false) || waiting))
		evt_signal(v->fd); /* again, where KVM got it before the route */
	if (!open && atomic_load(&v->direct))
		unwire(x, v);
}

int msix_direct(struct msix *x, unsigned vec)
{
	struct vector *v;
	int fd;

	if (vec >= x->nvecs)
		return -1;
	v = &x->vec[vec];
	pthread_mutex_lock(&x->lock);
	if (!open_fd(v)) {
		atomic_store(&v->direct, true);
		update(x, v);
		if (atomic_exchange(&v->pending, false)) /* it is kept in the descriptor from now on */
			evt_signal(v->fd);
	}
	fd = v->fd;
	pthread_mutex_unlock(&x->lock);
	return fd;
}

void msix_control(struct msix *x, bool enable, bool mask_all)
{
	pthread_mutex_lock(&x->lock);
	atomic_store(&x->enabled, enable);
	x->mask_all = mask_all;
	for (unsigned i = 0; i < x->nvecs; i++)
		update(x, &x->vec[i]);
	pthread_mutex_unlock(&x->lock);
}

bool msix_enabled(const struct msix *x)
{
	return atomic_load(&x->enabled);
}

/* The word of the table at @off, or NULL. Under the lock. */
static uint32_t *word(struct msix *x, unsigned off, unsigned *vec)
{
	*vec = off / MSIX_ENTRY_LEN;
	if (*vec >= x->nvecs)
		return NULL;
	return &x->vec[*vec].entry[off % MSIX_ENTRY_LEN / 4];
}

static bool is_aligned(unsigned off, unsigned size)
{
	return (size == 4 || size == 8) && off % size == 0;
}

uint64_t msix_table_read(struct msix *x, unsigned off, unsigned size)
{
	const uint32_t *w;
	uint64_t val = 0;
	unsigned vec;

	if (!is_aligned(off, size))
		return 0;
	pthread_mutex_lock(&x->lock);
	w = word(x, off, &vec);
	if (w)
		val = size == 8 ? w[0] | (uint64_t)w[1] << 32 : w[0];
	pthread_mutex_unlock(&x->lock);
	return val;
}

void msix_table_write(struct msix *x, unsigned off, unsigned size, uint64_t val)
{
	uint32_t *w;
	unsigned vec;

	if (!is_aligned(off, size))
		return;
	pthread_mutex_lock(&x->lock);
	w = word(x, off, &vec);
	if (w) {
		w[0] = (uint32_t)val;
		if (size == 8)
			w[1] = (uint32_t)(val >> 32);
		update(x, &x->vec[vec]);
	}
	pthread_mutex_unlock(&x->lock);
}

static bool is_pending(const struct vector *v)
{
	return atomic_load(&v->direct) ? !atomic_load(&v->open) && is_signalled(v) : atomic_load(&v->pending);
}

uint64_t msix_pba_read(struct msix *x, unsigned off, unsigned size)
{
	uint64_t val = 0;

	if (!is_aligned(off, size))
		return 0;
	for (unsigned i = 0; i < size * 8 && off * 8 + i < x->nvecs; i++)
		if (is_pending(&x->vec[off * 8 + i]))
			val |= 1ull << i;
	return val;
}
