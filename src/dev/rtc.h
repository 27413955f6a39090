/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef DEV_RTC_H
#define DEV_RTC_H

#include "base/err.h"

#include <stdint.h>

/*
 * An MC146818A real-time clock (Motorola data sheet) with 128 bytes of CMOS:
 * UTC from CLOCK_REALTIME plus what the guest has set, BCD or binary, 24 or
 * 12 hours, century at 0x32. No interrupts are wired; the alarm, update and
 * periodic flags of register C work by polling.
 * Offset 0 is the index port (0x70), offset 1 the data port (0x71).
 */
struct rtc;

int rtc_new(struct rtc **out, struct err *err);
void rtc_free(struct rtc *r); /* NULL is fine */
uint8_t rtc_read(struct rtc *r, unsigned off);
void rtc_write(struct rtc *r, unsigned off, uint8_t val);

#endif
