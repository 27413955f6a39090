/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef DEV_PM_H
#define DEV_PM_H

#include "base/err.h"
#include "bus/event.h"
#include "bus/irq.h"

#include <stdint.h>

/*
 * Power management of a hardware-reduced ACPI platform (ACPI 6.4, 4.8.3.7
 * sleep control and status registers, 4.8.3.6 reset register), and the event
 * register behind our generic event device.
 */
#define PM_SLEEP_CONTROL 0 /* SLP_TYPx bits 2-4, SLP_EN bit 5 */
#define PM_SLEEP_STATUS  1 /* WAK_STS bit 7 */
#define PM_RESET         2 /* PM_RESET_VALUE resets */
#define PM_EVENTS        3 /* read: pending events, and clears them */
#define PM_LEN           4

#define PM_SLP_TYP_S5    5
#define PM_RESET_VALUE   1
#define PM_EVENT_BUTTON  0x01 /* power button pressed */

struct pm;

/* @irq (edge) and @events are copied. */
int pm_new(const struct irq *irq, const struct guest_events *events, struct pm **out, struct err *err);
void pm_free(struct pm *pm); /* NULL is fine */
uint8_t pm_read(struct pm *pm, unsigned off);
void pm_write(struct pm *pm, unsigned off, uint8_t val);

/* The power button: event bit and interrupt. Any thread. */
void pm_button(struct pm *pm);

#endif
