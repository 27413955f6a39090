// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The real-time clock against gmtime() and its data sheet. The host's clock is
 * ours: clock_gettime() below stands before the C library's.
 */
#include "dev/rtc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define NS       1000000000ll
#define AUG_2024 1723552496ll /* Tuesday 2024-08-13 12:34:56 UTC */

enum { SEC, SEC_ALARM, MIN, MIN_ALARM, HOUR, HOUR_ALARM, WDAY, MDAY, MON, YEAR, A, B, C, D, CENTURY = 0x32 };

#define B_24H    0x02
#define B_BINARY 0x04
#define B_SET    0x80

static int64_t host_ns;

int clock_gettime(clockid_t id, struct timespec *ts)
{
	if (id != CLOCK_REALTIME)
		return syscall(SYS_clock_gettime, id, ts);
	ts->tv_sec = host_ns / NS;
	ts->tv_nsec = host_ns % NS;
	return 0;
}

static int setup(void **state)
{
	struct rtc *r;
	struct err err;

	host_ns = AUG_2024 * NS;
	assert_int_equal(rtc_new(&r, &err), 0);
	*state = r;
	return 0;
}

static int teardown(void **state)
{
	rtc_free(*state);
	return 0;
}

static uint8_t get(struct rtc *r, uint8_t reg)
{
	rtc_write(r, 0, reg);
	return rtc_read(r, 1);
}

static void put(struct rtc *r, uint8_t reg, uint8_t val)
{
	rtc_write(r, 0, reg);
	rtc_write(r, 1, val);
}

static int bcd(int n)
{
	return n / 10 * 16 + n % 10;
}

static void assert_date(struct rtc *r, int year, int mon, int day, int hour, int min, int sec)
{
	assert_int_equal(get(r, CENTURY), bcd(year / 100));
	assert_int_equal(get(r, YEAR), bcd(year % 100));
	assert_int_equal(get(r, MON), bcd(mon));
	assert_int_equal(get(r, MDAY), bcd(day));
	assert_int_equal(get(r, HOUR), bcd(hour));
	assert_int_equal(get(r, MIN), bcd(min));
	assert_int_equal(get(r, SEC), bcd(sec));
}

static void put_date(struct rtc *r, int year, int mon, int day, int hour, int min, int sec)
{
	put(r, YEAR, bcd(year % 100));
	put(r, MON, bcd(mon));
	put(r, MDAY, bcd(day));
	put(r, HOUR, bcd(hour));
	put(r, MIN, bcd(min));
	put(r, SEC, bcd(sec));
	put(r, CENTURY, bcd(year / 100));
}

static void initial_values(void **state)
{
	struct rtc *r = *state;

	assert_date(r, 2024, 8, 13, 12, 34, 56);
	assert_int_equal(get(r, WDAY), 3);
	assert_int_equal(get(r, A), 0x26);
	assert_int_equal(get(r, B), 0x02);
	assert_int_equal(get(r, C), 0x00);
	assert_int_equal(get(r, D), 0x80);
	assert_int_equal(rtc_read(r, 0), 0xff);
	assert_int_equal(rtc_read(r, 2), 0xff);
}

static void nvram(void **state)
{
	struct rtc *r = *state;

	for (unsigned reg = 0x0e; reg < 0x80; reg++)
		if (reg != CENTURY)
			assert_int_equal(get(r, reg), 0);
	for (unsigned reg = 0x0e; reg < 0x80; reg++)
		put(r, reg | 0x80, reg ^ 0xa5); /* the index' top bit is for NMI */
	for (unsigned reg = 0x0e; reg < 0x80; reg++)
		assert_int_equal(get(r, reg), reg ^ 0xa5);
	rtc_write(r, 2, 0xff);
}

static void control_bits(void **state)
{
	struct rtc *r = *state;

	for (unsigned v = 0; v < 256; v++) {
		put(r, B, v);
		assert_int_equal(get(r, B), v & 0x80 ? v & ~0x10 : v); /* SET clears UIE */
		put(r, A, v);
		assert_int_equal(get(r, A), v & 0x7f);
		put(r, C, v);
		put(r, D, v);
		assert_int_equal(get(r, D), 0x80);
	}
	assert_int_equal(get(r, C), 0);
}

/* Every format against the C library, over the clock's whole range. */
static void formats(void **state)
{
	static const uint8_t formats[] = { 0, B_24H, B_BINARY, B_BINARY | B_24H };
	struct rtc *r = *state;
	unsigned seed = 1;

	for (unsigned i = 0; i < 4000; i++) {
		time_t t = (((int64_t)rand_r(&seed) << 31) + rand_r(&seed)) % 9000000000ll; /* 1970 to 2255 */
		uint8_t b = formats[i % 4];
		struct tm tm;
		int h;

		gmtime_r(&t, &tm);
		host_ns = t * NS + rand_r(&seed) % NS;
		put(r, B, b);
#define FORMAT(n) (b & B_BINARY ? (n) : bcd(n))
		h = b & B_24H ? FORMAT(tm.tm_hour) : FORMAT((tm.tm_hour + 11) % 12 + 1) | (tm.tm_hour > 11 ? 0x80 : 0);
		assert_int_equal(get(r, HOUR), h);
		assert_int_equal(get(r, SEC), FORMAT(tm.tm_sec));
		assert_int_equal(get(r, MIN), FORMAT(tm.tm_min));
		assert_int_equal(get(r, WDAY), tm.tm_wday + 1);
		assert_int_equal(get(r, MDAY), FORMAT(tm.tm_mday));
		assert_int_equal(get(r, MON), FORMAT(tm.tm_mon + 1));
		assert_int_equal(get(r, YEAR), FORMAT(tm.tm_year % 100));
		assert_int_equal(get(r, CENTURY), FORMAT((tm.tm_year + 1900) / 100));
	}
}

static void twelve_hours(void **state)
{
	static const struct {
		uint8_t written, hour;
	} t[] = {
		{ 0x12, 0 },  { 0x01, 1 },  { 0x09, 9 },  { 0x10, 10 }, { 0x11, 11 },
		{ 0x92, 12 }, { 0x81, 13 }, { 0x89, 21 }, { 0x90, 22 }, { 0x91, 23 },
	};
	struct rtc *r = *state;

	for (size_t i = 0; i < sizeof(t) / sizeof(*t); i++) {
		put(r, B, 0);
		put(r, HOUR, t[i].written);
		assert_int_equal(get(r, HOUR), t[i].written);
		host_ns += NS;
		assert_int_equal(get(r, HOUR), t[i].written);
		put(r, B, B_24H);
		assert_int_equal(get(r, HOUR), bcd(t[i].hour));
	}
}

/* One second after. */
static void carries(void **state)
{
	static const struct {
		int year, mon, day, next_year, next_mon, next_day;
	} t[] = {
		{ 2024, 2, 28, 2024, 2, 29 }, { 2024, 2, 29, 2024, 3, 1 },    { 2023, 2, 28, 2023, 3, 1 },
		{ 2000, 2, 28, 2000, 2, 29 }, { 2100, 2, 28, 2100, 3, 1 },    { 1999, 12, 31, 2000, 1, 1 },
		{ 2024, 4, 30, 2024, 5, 1 },  { 2024, 12, 30, 2024, 12, 31 }, { 2099, 12, 31, 2100, 1, 1 },
	};
	struct rtc *r = *state;

	for (size_t i = 0; i < sizeof(t) / sizeof(*t); i++) {
		put(r, WDAY, 7);
		put_date(r, t[i].year, t[i].mon, t[i].day, 23, 59, 59);
		assert_date(r, t[i].year, t[i].mon, t[i].day, 23, 59, 59);
		host_ns += NS;
		assert_date(r, t[i].next_year, t[i].next_mon, t[i].next_day, 0, 0, 0);
		assert_int_equal(get(r, WDAY), 1);
		host_ns -= NS; /* the host's clock is set back */
		assert_date(r, t[i].year, t[i].mon, t[i].day, 23, 59, 59);
		assert_int_equal(get(r, WDAY), 7);
	}
}

/* What the guest sets stays set, and goes on from there, also by one register at a time. */
static void setting(void **state)
{
	struct rtc *r = *state;

	put(r, MDAY, 0x31);
	put(r, MON, 0x02);
	put(r, MON, 0x01);
	put(r, WDAY, 0);
	host_ns += 11 * 3600 * NS;
	assert_date(r, 2024, 1, 31, 23, 34, 56);
	host_ns += 3600 * NS;
	assert_date(r, 2024, 2, 1, 0, 34, 56);
	assert_int_equal(get(r, WDAY), 0); /* never set, never counted */
}

static void set_freezes(void **state)
{
	struct rtc *r = *state;

	host_ns += NS / 4;
	put(r, B, B_24H | B_SET);
	host_ns += 100 * NS + NS / 2;
	assert_date(r, 2024, 8, 13, 12, 34, 56);
	assert_int_equal(get(r, C) & 0x10, 0);
	put(r, SEC, 0x58);
	assert_int_equal(get(r, SEC), 0x58);
	put(r, B, B_24H);
	assert_int_equal(get(r, SEC), 0x58);
	host_ns += NS / 4 - 1; /* the chain has gone on: the next tick is where it was */
	assert_int_equal(get(r, SEC), 0x58);
	host_ns++;
	assert_int_equal(get(r, SEC), 0x59);
}

/* Format bits may change with SET: the registers are then raw bytes. */
static void set_with_format(void **state)
{
	struct rtc *r = *state;

	put(r, B, B_SET | B_BINARY | B_24H);
	assert_int_equal(get(r, SEC), 0x56);
	put(r, SEC, 30);
	put(r, MIN, 59);
	put(r, HOUR, 23);
	put(r, B, B_BINARY | B_24H);
	host_ns += 30 * NS;
	assert_int_equal(get(r, SEC), 0);
	assert_int_equal(get(r, MIN), 0);
	assert_int_equal(get(r, HOUR), 0);
}

/* mc146818_set_time() and mc146818_get_time(): the first tick comes after half a second. */
static void linux_set_time(void **state)
{
	struct rtc *r = *state;

	host_ns += 123456789;
	put(r, B, get(r, B) | B_SET);
	put(r, A, get(r, A) | 0x70);
	put_date(r, 2031, 12, 31, 23, 59, 59);
	put(r, B, B_24H);
	host_ns += 5 * NS;
	assert_int_equal(get(r, SEC), 0x59);
	put(r, A, 0x26);
	host_ns += NS / 2 - 1;
	assert_int_equal(get(r, A), 0xa6);
	assert_date(r, 2031, 12, 31, 23, 59, 59);
	host_ns++;
	assert_int_equal(get(r, A), 0x26);
	assert_date(r, 2032, 1, 1, 0, 0, 0);
	host_ns += NS;
	assert_int_equal(get(r, SEC), 1);
}

static void update_in_progress(void **state)
{
	static const struct {
		int64_t ns;
		bool uip;
	} t[] = { { 0, 0 }, { NS / 2, 0 }, { NS - 2228001, 0 }, { NS - 2228000, 1 }, { NS - 1, 1 }, { NS, 0 } };
	struct rtc *r = *state;

	for (size_t i = 0; i < sizeof(t) / sizeof(*t); i++) {
		host_ns = AUG_2024 * NS + t[i].ns;
		assert_int_equal(get(r, A), t[i].uip ? 0xa6 : 0x26);
	}
	host_ns = AUG_2024 * NS + 2 * NS - 1;
	put(r, B, B_24H | B_SET);
	assert_int_equal(get(r, A), 0x26); /* no update, none in progress */
}

static void update_flag(void **state)
{
	struct rtc *r = *state;

	host_ns += NS - 1;
	assert_int_equal(get(r, C) & 0x10, 0);
	host_ns++;
	assert_int_equal(get(r, C) & 0x90, 0x10);
	assert_int_equal(get(r, C), 0);
	put(r, B, B_24H | 0x10);
	host_ns += NS;
	assert_int_equal(get(r, C) & 0x90, 0x90);
	host_ns -= 10 * NS;
	assert_int_equal(get(r, C), 0);
}

static void periodic_flag(void **state)
{
	static const int hz[] = { 0, 256, 128, 8192, 4096, 2048, 1024, 512, 256, 128, 64, 32, 16, 8, 4, 2 };
	struct rtc *r = *state;

	for (unsigned rate = 0; rate < 16; rate++) {
		int64_t period = rate ? (NS + hz[rate] - 1) / hz[rate] : NS;

		put(r, A, 0x60 | rate);
		put(r, A, 0x20 | rate); /* starts the divider here */
		get(r, C);
		host_ns += period - 1;
		assert_int_equal(get(r, C) & 0x40, 0);
		host_ns++;
		assert_int_equal(get(r, C) & 0x40, rate ? 0x40 : 0);
		assert_int_equal(get(r, C) & 0x40, 0);
		put(r, B, B_24H | 0x40);
		host_ns += period;
		assert_int_equal(get(r, C) & 0xc0, rate ? 0xc0 : 0);
		put(r, A, 0x60 | rate);
		host_ns += NS;
		assert_int_equal(get(r, C), 0); /* the divider stands still */
		put(r, B, B_24H);
	}
}

/* From 12:34:56: does it go off within so many seconds? */
static void alarm_flag(void **state)
{
	static const struct {
		uint8_t h, m, s;
		int wait;
		bool off;
	} t[] = {
		{ 0xff, 0xff, 0xff, 0, false },      { 0xff, 0xff, 0xff, 1, true },
		{ 0xc0, 0xc0, 0x57, 1, true },       { 0xc0, 0xc0, 0x56, 59, false },
		{ 0xc0, 0xc0, 0x56, 60, true },      { 0x12, 0x35, 0x00, 3, false },
		{ 0x12, 0x35, 0x00, 4, true },       { 0x13, 0x00, 0x00, 1503, false },
		{ 0x13, 0x00, 0x00, 1504, true },    { 0x12, 0x34, 0x56, 86399, false },
		{ 0x12, 0x34, 0x56, 86400, true },   { 0x00, 0x00, 0x00, 41103, false },
		{ 0x00, 0x00, 0x00, 41104, true },   { 0xff, 0x33, 0xff, 3483, false },
		{ 0xff, 0x33, 0xff, 3484, true },    { 0x24, 0xff, 0xff, 999999, false },
		{ 0xff, 0xff, 0x60, 999999, false }, { 0x12, 0x34, 0x57, 999999, true },
	};
	struct rtc *r = *state;

	for (size_t i = 0; i < sizeof(t) / sizeof(*t); i++) {
		put_date(r, 2024, 8, 13, 12, 34, 56);
		put(r, HOUR_ALARM, t[i].h);
		put(r, MIN_ALARM, t[i].m);
		put(r, SEC_ALARM, t[i].s);
		get(r, C);
		host_ns += t[i].wait * NS;
		assert_int_equal(get(r, C) & 0xa0, t[i].off ? 0x20 : 0);
		put(r, B, B_24H | 0x20);
		put_date(r, 2024, 8, 13, 12, 34, 56);
		host_ns += t[i].wait * NS;
		assert_int_equal(get(r, C) & 0xa0, t[i].off ? 0xa0 : 0);
		put(r, B, B_24H);
	}
	assert_int_equal(get(r, HOUR_ALARM), 0x12);
}

static void alarm_twelve_hours(void **state)
{
	struct rtc *r = *state;

	put(r, B, 0);
	put(r, HOUR_ALARM, 0x92); /* 12 PM, with PM and hour bits short of a wildcard */
	put(r, MIN_ALARM, 0x34);
	put(r, SEC_ALARM, 0x57);
	get(r, C);
	host_ns += NS;
	assert_int_equal(get(r, C) & 0x20, 0x20);
	host_ns += 43200 * NS;
	assert_int_equal(get(r, C) & 0x20, 0);
	host_ns += 43200 * NS;
	assert_int_equal(get(r, C) & 0x20, 0x20);
}

/* Whatever a guest writes and the host's clock does: no fault, and the fixed bits stay. */
static void random_operations(void **state)
{
	struct rtc *r = *state;
	unsigned seed = 146818;

	for (unsigned i = 0; i < 200000; i++) {
		uint8_t reg = rand_r(&seed) % 3 ? rand_r(&seed) % 16 : rand_r(&seed);

		if (rand_r(&seed) % 2)
			put(r, reg, rand_r(&seed));
		else
			get(r, reg);
		if (rand_r(&seed) % 4 == 0)
			host_ns += (rand_r(&seed) % 4000 - 1000ll) * 1000000;
		if (rand_r(&seed) % 1000 == 0)
			host_ns = rand_r(&seed) * 4ll * NS;
		assert_int_equal(get(r, D), 0x80);
		assert_int_equal(get(r, C) & 0x0f, 0);
	}
	put(r, A, 0x26);
	put(r, B, B_24H | B_SET);
	put_date(r, 2024, 8, 13, 12, 34, 56);
	put(r, B, B_24H);
	host_ns += 2 * NS;
	assert_date(r, 2024, 8, 13, 12, 34, 58);
}

static void free_null(void **state)
{
	rtc_free(NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(initial_values),
		TEST(nvram),
		TEST(control_bits),
		TEST(formats),
		TEST(twelve_hours),
		TEST(carries),
		TEST(setting),
		TEST(set_freezes),
		TEST(set_with_format),
		TEST(linux_set_time),
		TEST(update_in_progress),
		TEST(update_flag),
		TEST(periodic_flag),
		TEST(alarm_flag),
		TEST(alarm_twelve_hours),
		TEST(random_operations),
		TEST(free_null),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
