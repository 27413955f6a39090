// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * PID 1 of the 32-bit guest: busybox is 64-bit there. Prints what test_linux.py wants to know as lines "@KEY VALUE"
 * and the kernel's log, and powers off. Without a C library, so that it needs no packages.
 */
/* System calls of the i386. */
enum { READ = 3, WRITE = 4, OPEN = 5, CLOSE = 6, MOUNT = 21, REBOOT = 88, SYSLOG = 103 };

#define LOG_READ_ALL 3
#define POWER_OFF    0x4321fedc

static char buf[1 << 18];

static long call(long n, long a, long b, long c, long d, long e)
{
	long ret;

	asm volatile("int $0x80" : "=a"(ret) : "a"(n), "b"(a), "c"(b), "d"(c), "S"(d), "D"(e) : "memory");
	return ret;
}

static void put(const char *s, long n)
{
	while (n > 0) {
		long w = call(WRITE, 1, (long)s, n, 0, 0);

		if (w <= 0)
			return;
		s += w;
		n -= w;
	}
}

static void say(const char *s)
{
	long n = 0;

	while (s[n])
		n++;
	put(s, n);
}

/* Nothing, when there is no such file. */
static void file(const char *key, const char *path)
{
	long fd = call(OPEN, (long)path, 0, 0, 0, 0), n;

	say(key);
	n = call(READ, fd, (long)buf, sizeof(buf), 0, 0);
	put(buf, n);
	call(CLOSE, fd, 0, 0, 0, 0);
}

void _start(void)
{
	call(MOUNT, (long)"proc", (long)"/proc", (long)"proc", 0, 0);
	call(MOUNT, (long)"sys", (long)"/sys", (long)"sysfs", 0, 0);
	file("@uname ", "/proc/version");
	file("@cmdline ", "/proc/cmdline");
	file("@online ", "/sys/devices/system/cpu/online");
	file("@memtotal ", "/proc/meminfo");
	file("@clocksource ", "/sys/devices/system/clocksource/clocksource0/current_clocksource");
	file("@clockevent ", "/sys/devices/system/clockevents/clockevent0/current_device");
	put(buf, call(SYSLOG, LOG_READ_ALL, (long)buf, sizeof(buf), 0, 0));
	say("@reported\n");
	call(REBOOT, (long)0xfee1dead, 672274793, POWER_OFF, 0, 0);
}
