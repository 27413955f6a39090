// SPDX-License-Identifier: GPL-2.0-or-later
#include "raw.h"

#include "io.h"

#include <stdarg.h>

#define COM1       0x3f8
#define DEBUG_EXIT 0xf4
#define LAPIC      0xfee00000u
#define VECTOR     0x40 /* of interrupt 0 */
#define USER_CODE  0x1b
#define HEAP_END   (256u << 20) /* of 512 MiB */

/* struct hvm_start_info, Xen's public/arch-x86/hvm/start_info.h */
struct start_info {
	uint32_t magic, version, flags, modules;
	uint64_t modlist, cmdline;
};

/* struct pvclock_vcpu_time_info, Linux's Documentation/virt/kvm/x86/msr.rst */
struct kvm_clock {
	uint32_t version, pad;
	uint64_t tsc_timestamp, system_time;
	uint32_t mul;
	int8_t shift;
};

struct gate {
	uint16_t low, selector, type, mid;
	uint32_t high, zero;
};

/* entry.S and raw.ld */
extern uint32_t start_info;
extern volatile struct kvm_clock kvm_clock;
extern struct gate idt[256];
extern char irq_0[], fault_0[], heap[];
_Noreturn void start(void);
_Noreturn void fault(uint64_t vector, const uint64_t *stack);

/* gcc calls these on its own. */
void *memset(void *to, int c, size_t n);
void *memcpy(void *to, const void *from, size_t n);

void *memset(void *to, int c, size_t n)
{
	void *p = to;

	__asm__ volatile("rep stosb" : "+D"(p), "+c"(n) : "a"(c) : "memory");
	return to;
}

void *memcpy(void *to, const void *from, size_t n)
{
	void *p = to;

	__asm__ volatile("rep movsb" : "+D"(p), "+S"(from), "+c"(n)::"memory");
	return to;
}

static void put(char c)
{
	while (!(inb(COM1 + 5) & 0x20))
		;
	outb(COM1, (uint8_t)c);
}

static void put_number(uint64_t n, unsigned base, unsigned digits)
{
	char s[24];
	unsigned len = 0;

	do {
		s[len++] = "0123456789abcdef"[n % base];
		n /= base;
	} while (n || len < digits);
	while (len)
		put(s[--len]);
}

static void put_text(const char *s)
{
	while (*s)
		put(*s++);
}

static void vprint(const char *fmt, va_list ap)
{
	uint64_t n;

	for (; *fmt; fmt++) {
		if (*fmt != '%') {
			put(*fmt);
			continue;
		}
		switch (*++fmt) {
		case 's': put_text(va_arg(ap, const char *)); break;
		case 'u': put_number(va_arg(ap, uint64_t), 10, 1); break;
		case 'x': put_number(va_arg(ap, uint64_t), 16, 1); break;
		case 'f':
			n = va_arg(ap, uint64_t);
			put_number(n / 1000, 10, 1);
			put('.');
			put_number(n % 1000, 10, 3);
			break;
		default: put(*fmt); break;
		}
	}
}

void print(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vprint(fmt, ap);
	va_end(ap);
}

void fail(const char *fmt, ...)
{
	va_list ap;

	print("\nFAIL: ");
	va_start(ap, fmt);
	vprint(fmt, ap);
	va_end(ap);
	print("\n");
	finish(FAILED);
}

void finish(int status)
{
	outb(DEBUG_EXIT, (uint8_t)status);
	for (;;)
		;
}

void fault(uint64_t vector, const uint64_t *stack)
{
	fail("exception %u, stack %x %x %x", vector, stack[0], stack[1], stack[2]);
}

uint64_t param(const char *name, uint64_t otherwise)
{
	const char *s = (const char *)(uintptr_t)((struct start_info *)(uintptr_t)start_info)->cmdline;
	uint64_t n = 0;

	while (s && *s) {
		size_t i = 0;

		while (name[i] && s[i] == name[i])
			i++;
		if (!name[i] && s[i] == '=') {
			for (s += i + 1; *s >= '0' && *s <= '9'; s++)
				n = n * 10 + (uint64_t)(*s - '0');
			return n;
		}
		while (*s && *s++ != ' ')
			;
	}
	return otherwise;
}

void *alloc(size_t size, size_t align)
{
	static uintptr_t next;
	uintptr_t p = ((next ? next : (uintptr_t)heap) + align - 1) & -align;

	if (p + size > HEAP_END)
		fail("out of memory");
	next = p + size;
	return memset((void *)p, 0, size);
}

uint64_t tsc_ns(uint64_t ticks)
{
	int shift = kvm_clock.shift;

	if (!kvm_clock.mul)
		fail("no kvmclock: how fast is the TSC?");
	ticks = shift < 0 ? ticks >> -shift : ticks << shift;
	return (uint64_t)((unsigned __int128)ticks * kvm_clock.mul >> 32);
}

/* Interrupts. */

/*
 * Trap gates: they leave the interrupt flag alone, which hosts that interpret
 * kernel code do not see an IRET at CPL 3 turn on again. An interrupt's own
 * vector is held back until its EOI.
 */
static void set_gate(unsigned vector, const char *handler)
{
	uintptr_t p = (uintptr_t)handler;

	idt[vector] =
	        (struct gate){ .low = (uint16_t)p, .selector = USER_CODE, .type = 0xef00, .mid = (uint16_t)(p >> 16) };
}

static void lapic_write(unsigned off, uint32_t val)
{
	*(volatile uint32_t *)(uintptr_t)(LAPIC + off) = val;
}

void irq_on(void)
{
	for (unsigned lvt = 0x320; lvt <= 0x370; lvt += 0x10)
		lapic_write(lvt, 0x10000);
	lapic_write(0x80, 0);     /* TPR */
	lapic_write(0xf0, 0x1ff); /* SVR: on */
	for (unsigned i = 0; i < IRQS; i++)
		set_gate(irq_vector(i), irq_0 + 8 * i);
}

uint8_t irq_vector(unsigned n)
{
	return (uint8_t)(VECTOR + n);
}

uint32_t irq_msi_address(void)
{
	return LAPIC | *(volatile uint32_t *)(uintptr_t)(LAPIC + 0x20) >> 24 << 12;
}

void start(void)
{
	for (unsigned i = 0; i < 32; i++)
		set_gate(i, fault_0 + 8 * i);
	outb(COM1 + 3, 3); /* 8N1, divisor latch off */
	outb(COM1 + 1, 0);
	finish(main());
}
