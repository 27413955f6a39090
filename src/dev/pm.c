// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * How it works
 *
 * Three fixed-hardware registers and one of our own. Only S5 is a sleep here:
 * entering it powers off, and the guest waits for a wake status that never
 * comes. Any other sleep type ends where it begins, with the wake status set,
 * so that a guest which asks for it goes on. An event is a bit that stays until
 * the guest reads it; every press of the button makes an edge of its own, so an
 * edge that came while the guest had the line masked is made good by the next.
 */
#include "dev/pm.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#define SLP_TYP_SHIFT 2
#define SLP_TYP_MASK  0x1c
#define SLP_EN        0x20
#define WAK_STS       0x80

struct pm {
	struct irq irq;             /* [c] constant after pm_new() */
	struct guest_events events; /* [c] */
	pthread_mutex_t lock;
	uint8_t control; /* [l] under the lock: the sleep type last written */
	uint8_t status;  /* [l] WAK_STS or 0 */
	uint8_t pending; /* [l] PM_EVENT_ bits the guest has not read */
};

static uint8_t take_events(struct pm *pm)
{
	uint8_t events = pm->pending;

	pm->pending = 0;
	return events;
}

static uint8_t read_locked(struct pm *pm, unsigned off)
{
	switch (off) {
	case PM_SLEEP_CONTROL: return pm->control; /* SLP_EN reads as zero */
	case PM_SLEEP_STATUS: return pm->status;
	case PM_RESET: return 0;
	case PM_EVENTS: return take_events(pm);
	default: return 0xff;
	}
}

uint8_t pm_read(struct pm *pm, unsigned off)
{
	uint8_t val;

	pthread_mutex_lock(&pm->lock);
	val = read_locked(pm, off);
	pthread_mutex_unlock(&pm->lock);
	return val;
}

/* Returns whether the guest powers off. */
static bool write_control(struct pm *pm, uint8_t val)
{
	pm->control = val & SLP_TYP_MASK;
	if (!(val & SLP_EN))
		return false;
	if (pm->control == PM_SLP_TYP_S5 << SLP_TYP_SHIFT)
		return true;
	pm->status = WAK_STS;
	return false;
}

void pm_write(struct pm *pm, unsigned off, uint8_t val)
{
	bool poweroff = false;

	pthread_mutex_lock(&pm->lock);
	if (off == PM_SLEEP_CONTROL)
		poweroff = write_control(pm, val);
	else if (off == PM_SLEEP_STATUS)
		pm->status &= ~val; /* a one clears */
	pthread_mutex_unlock(&pm->lock);
	if (poweroff)
		pm->events.raise(pm->events.opaque, GUEST_POWEROFF, 0);
	if (off == PM_RESET && val == PM_RESET_VALUE)
		pm->events.raise(pm->events.opaque, GUEST_RESET, 0);
}

void pm_button(struct pm *pm)
{
	pthread_mutex_lock(&pm->lock);
	pm->pending |= PM_EVENT_BUTTON;
	irq_set(&pm->irq, true);
	irq_set(&pm->irq, false);
	pthread_mutex_unlock(&pm->lock);
}

int pm_new(const struct irq *irq, const struct guest_events *events, struct pm **out, struct err *err)
{
	struct pm *pm = calloc(1, sizeof(*pm));

	if (!pm)
		return err_set(err, -ENOMEM, "power management: out of memory");
	pm->irq = *irq;
	pm->events = *events;
	pthread_mutex_init(&pm->lock, NULL);
	*out = pm;
	return 0;
}

void pm_free(struct pm *pm)
{
	if (!pm)
		return;
	pthread_mutex_destroy(&pm->lock);
	free(pm);
}
