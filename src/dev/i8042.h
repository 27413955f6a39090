/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef DEV_I8042_H
#define DEV_I8042_H

#include "bus/event.h"

#include <stdint.h>

/*
 * What is left of the keyboard controller: its reset line. Command 0xfe at
 * port 0x64 resets; the status reads as "input buffer empty, output buffer
 * full" for ever, by which drivers that probe find no controller.
 * Offset 0 is port 0x60, offset 4 port 0x64. Stateless.
 */
uint8_t i8042_read(unsigned off);
void i8042_write(const struct guest_events *events, unsigned off, uint8_t val);

#endif
