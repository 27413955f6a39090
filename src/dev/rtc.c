// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * How it works
 *
 * The time registers are the truth, as in the chip: bytes in ram[], in the
 * format register B asks for. `base` is the host's time at which they last
 * ticked. Nothing runs in between: every access first calls catch_up(), which
 * advances the registers by the whole seconds since `base` and sets the flags
 * of register C that would have risen meanwhile. So a new chip simply starts at
 * 1970 with base 0, a host clock that is stepped takes the guest's along, and
 * what the guest writes to a register stays there unchanged until the next tick.
 *
 * The clock stands still while SET (register B) or the divider reset (register
 * A) is on. SET alone leaves the divider chain running, so the seconds go on in
 * step with before; after a divider reset the first tick comes half a second
 * later, on which Linux counts when it sets the clock.
 *
 * UIP is on for the last 2.2 ms of a second (data sheet, update cycle times for
 * 32.768 kHz). The registers stay readable and change at its end.
 *
 * A change of format while the clock runs converts the time registers, where the
 * chip would want them set anew; the alarm stays as it is. The century is one of
 * them. The day of the week is a counter of its own, as in the chip. Daylight
 * saving and the square wave do nothing. The rest of ram[] is the guest's to keep.
 */
#include "dev/rtc.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#define PORT_INDEX 0
#define PORT_DATA  1

#define CMOS_LEN   128

enum {
	SECONDS,
	SECONDS_ALARM,
	MINUTES,
	MINUTES_ALARM,
	HOURS,
	HOURS_ALARM,
	WEEKDAY,
	DAY,
	MONTH,
	YEAR,
	REG_A,
	REG_B,
	REG_C,
	REG_D,
	CENTURY = 0x32,
};

#define A_RATE    0x0f
#define A_DIVIDER 0x70
#define A_32KHZ   0x20 /* the last of the three dividers that count; 11x is reset */
#define A_UIP     0x80
#define A_INITIAL (A_32KHZ | 0x06) /* 1024 Hz, as firmware leaves it */

#define B_24H     0x02
#define B_BINARY  0x04
#define B_UIE     0x10
#define B_SET     0x80

/* Register C; the enable bits in B are the same ones. */
#define C_UPDATE   0x10
#define C_ALARM    0x20
#define C_PERIODIC 0x40
#define C_FLAGS    0x70
#define C_IRQ      0x80

#define D_VALID    0x80 /* the battery is good */

#define HOUR_PM    0x80
#define ALARM_ANY  0xc0 /* the two top bits: matches always */

#define NS_PER_S   1000000000ll
#define UIP_NS     2228000 /* 244 us notice and 1984 us of update */
#define DAY_S      86400
#define EPOCH_WDAY 5 /* 1970 began on a Thursday; Sunday is 1 */

struct rtc {
	pthread_mutex_t lock;
	uint8_t index;          /* [l] under the lock, like all below: register behind the data port */
	uint8_t ram[CMOS_LEN];  /* [l] */
	int64_t base;           /* [l] host time of the last tick, ns; while standing still, of the chain's phase */
	int64_t seen;           /* [l] host time of the last catch_up(), ns */
	bool divider_was_reset; /* [l] since the clock last ran */
};

/* The time registers as numbers, which may be out of range where the guest wrote so. */
struct date {
	int sec, min, hour, wday, day, month, year;
};

static int64_t host_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return ts.tv_sec * NS_PER_S + ts.tv_nsec;
}

static int64_t floor_div(int64_t a, int64_t b)
{
	return a / b - (a % b < 0);
}

static bool divider_reset(const struct rtc *r)
{
	return (r->ram[REG_A] & A_DIVIDER) > A_32KHZ;
}

static bool running(const struct rtc *r)
{
	return !(r->ram[REG_B] & B_SET) && !divider_reset(r);
}

static int decode(const struct rtc *r, uint8_t byte)
{
	return r->ram[REG_B] & B_BINARY ? byte : (byte >> 4) * 10 + (byte & 0x0f);
}

static uint8_t encode(const struct rtc *r, int n)
{
	return r->ram[REG_B] & B_BINARY ? n : n / 10 << 4 | n % 10;
}

static int decode_hour(const struct rtc *r, uint8_t byte)
{
	if (r->ram[REG_B] & B_24H)
		return decode(r, byte);
	return decode(r, byte & ~HOUR_PM) % 12 + (byte & HOUR_PM ? 12 : 0);
}

static uint8_t encode_hour(const struct rtc *r, int hour)
{
	if (r->ram[REG_B] & B_24H)
		return encode(r, hour);
	return encode(r, hour % 12 ? hour % 12 : 12) | (hour >= 12 ? HOUR_PM : 0);
}

static void load_date(const struct rtc *r, struct date *d)
{
	d->sec = decode(r, r->ram[SECONDS]);
	d->min = decode(r, r->ram[MINUTES]);
	d->hour = decode_hour(r, r->ram[HOURS]);
	d->wday = decode(r, r->ram[WEEKDAY]);
	d->day = decode(r, r->ram[DAY]);
	d->month = decode(r, r->ram[MONTH]);
	d->year = decode(r, r->ram[CENTURY]) * 100 + decode(r, r->ram[YEAR]);
}

/* The guest may never have set it; then the chip does not count it either. */
static bool wday_valid(const struct date *d)
{
	return d->wday >= 1 && d->wday <= 7;
}

static void store_date(struct rtc *r, const struct date *d)
{
	r->ram[SECONDS] = encode(r, d->sec);
	r->ram[MINUTES] = encode(r, d->min);
	r->ram[HOURS] = encode_hour(r, d->hour);
	if (wday_valid(d))
		r->ram[WEEKDAY] = encode(r, d->wday);
	r->ram[DAY] = encode(r, d->day);
	r->ram[MONTH] = encode(r, d->month);
	r->ram[YEAR] = encode(r, d->year % 100);
	r->ram[CENTURY] = encode(r, d->year / 100 % 100);
}

static int month_days(int month, int year)
{
	static const uint8_t days[] = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };
	bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;

	if (month < 1 || month > 12)
		return 31; /* what the guest wrote; the next carry puts it right */
	return days[month - 1] + (month == 2 && leap);
}

static void next_month(struct date *d)
{
	d->day -= month_days(d->month, d->year);
	if (++d->month <= 12)
		return;
	d->month = 1;
	d->year++;
}

static void previous_month(struct date *d)
{
	if (--d->month < 1) {
		d->month = 12;
		d->year = d->year > 0 ? d->year - 1 : 9999;
	}
	d->day += month_days(d->month, d->year);
}

/* Both directions: the host's clock may be set back. */
static void add_days(struct date *d, int64_t days)
{
	if (wday_valid(d))
		d->wday = (d->wday - 1 + days % 7 + 7) % 7 + 1;
	d->day += days;
	while (d->day > month_days(d->month, d->year))
		next_month(d);
	while (d->day < 1)
		previous_month(d);
}

static void add_seconds(struct date *d, int64_t n)
{
	int64_t t = n + d->sec + d->min * 60ll + d->hour * 3600ll;
	int64_t days = floor_div(t, DAY_S);

	t -= days * DAY_S;
	d->hour = t / 3600;
	d->min = t / 60 % 60;
	d->sec = t % 60;
	if (days)
		add_days(d, days);
}

static bool alarm_any(uint8_t byte)
{
	return (byte & ALARM_ANY) == ALARM_ANY;
}

/* Whether the alarm falls on one of the @n seconds after @d. No more than a day need be looked at. */
static bool alarm_within(const struct rtc *r, const struct date *d, int64_t n)
{
	uint8_t s = r->ram[SECONDS_ALARM], m = r->ram[MINUTES_ALARM], h = r->ram[HOURS_ALARM];
	int64_t t = d->sec + d->min * 60 + d->hour * 3600 + 1, end = t + (n < DAY_S ? n : DAY_S);

	/* An hour or a minute that does not match is skipped whole. */
	while (t < end) {
		if (!alarm_any(h) && decode_hour(r, h) != t / 3600 % 24)
			t += 3600 - t % 3600;
		else if (!alarm_any(m) && decode(r, m) != t / 60 % 60)
			t += 60 - t % 60;
		else if (!alarm_any(s) && decode(r, s) != t % 60)
			t++;
		else
			return true;
	}
	return false;
}

/* How often the periodic flag has risen by @t; 0 is for never. */
static int64_t periods(const struct rtc *r, int64_t t)
{
	unsigned rate = r->ram[REG_A] & A_RATE;
	int64_t hz;

	if (!rate || divider_reset(r))
		return 0;
	hz = 32768 >> (rate < 3 ? rate + 6 : rate - 1); /* rates 1 and 2 repeat 8 and 9 */
	return floor_div(t, NS_PER_S) * hz + (t - floor_div(t, NS_PER_S) * NS_PER_S) * hz / NS_PER_S;
}

static void tick(struct rtc *r, int64_t n)
{
	struct date d;

	load_date(r, &d);
	if (n > 0) {
		r->ram[REG_C] |= C_UPDATE;
		if (alarm_within(r, &d, n))
			r->ram[REG_C] |= C_ALARM;
	}
	add_seconds(&d, n);
	store_date(r, &d);
}

/* Brings registers and flags to @now. */
static void catch_up(struct rtc *r, int64_t now)
{
	int64_t n = floor_div(now - r->base, NS_PER_S);

	if (now > r->seen && periods(r, now - r->base) != periods(r, r->seen - r->base))
		r->ram[REG_C] |= C_PERIODIC;
	r->seen = now;
	if (!n)
		return;
	r->base += n * NS_PER_S;
	if (running(r))
		tick(r, n);
}

/* After a write to register A or B, which may have stopped or started the clock. */
static void set_phase(struct rtc *r, int64_t now)
{
	if (divider_reset(r))
		r->divider_was_reset = true;
	if (!r->divider_was_reset || divider_reset(r))
		return;
	r->base = now - NS_PER_S / 2;
	r->divider_was_reset = false;
}

static void write_a(struct rtc *r, uint8_t val, int64_t now)
{
	r->ram[REG_A] = val & ~A_UIP;
	set_phase(r, now);
}

static void write_b(struct rtc *r, uint8_t val)
{
	uint8_t changed = val ^ r->ram[REG_B];
	bool convert = running(r) && !(val & B_SET) && changed & (B_BINARY | B_24H);
	struct date d;

	if (convert)
		load_date(r, &d);
	if (val & B_SET)
		val &= ~B_UIE; /* the data sheet's words on SET */
	r->ram[REG_B] = val;
	if (convert)
		store_date(r, &d);
}

static uint8_t read_a(const struct rtc *r, int64_t now)
{
	bool uip = running(r) && now - r->base >= NS_PER_S - UIP_NS;

	return r->ram[REG_A] | (uip ? A_UIP : 0);
}

static uint8_t read_c(struct rtc *r)
{
	uint8_t flags = r->ram[REG_C] & C_FLAGS;

	r->ram[REG_C] = 0;
	return flags | (flags & r->ram[REG_B] ? C_IRQ : 0);
}

static uint8_t read_data(struct rtc *r)
{
	int64_t now = host_now();

	catch_up(r, now);
	switch (r->index) {
	case REG_A: return read_a(r, now);
	case REG_C: return read_c(r);
	case REG_D: return D_VALID;
	default: return r->ram[r->index];
	}
}

static void write_data(struct rtc *r, uint8_t val)
{
	int64_t now = host_now();

	catch_up(r, now);
	switch (r->index) {
	case REG_A: write_a(r, val, now); break;
	case REG_B: write_b(r, val); break;
	case REG_C:
	case REG_D: break;
	default: r->ram[r->index] = val;
	}
}

uint8_t rtc_read(struct rtc *r, unsigned off)
{
	uint8_t val;

	if (off != PORT_DATA)
		return 0xff; /* the index port is write-only */
	pthread_mutex_lock(&r->lock);
	val = read_data(r);
	pthread_mutex_unlock(&r->lock);
	return val;
}

void rtc_write(struct rtc *r, unsigned off, uint8_t val)
{
	pthread_mutex_lock(&r->lock);
	if (off == PORT_INDEX)
		r->index = val % CMOS_LEN; /* the top bit masks NMI on a PC */
	else if (off == PORT_DATA)
		write_data(r, val);
	pthread_mutex_unlock(&r->lock);
}

int rtc_new(struct rtc **out, struct err *err)
{
	struct date epoch = { .wday = EPOCH_WDAY, .day = 1, .month = 1, .year = 1970 };
	struct rtc *r = calloc(1, sizeof(*r));

	if (!r)
		return err_set(err, -ENOMEM, "rtc: out of memory");
	pthread_mutex_init(&r->lock, NULL);
	r->ram[REG_A] = A_INITIAL;
	r->ram[REG_B] = B_24H;
	store_date(r, &epoch);
	catch_up(r, host_now());
	r->ram[REG_C] = 0;
	*out = r;
	return 0;
}

void rtc_free(struct rtc *r)
{
	if (!r)
		return;
	pthread_mutex_destroy(&r->lock);
	free(r);
}
