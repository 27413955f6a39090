/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BENCH_IO_H
#define BENCH_IO_H

#include <stdint.h>

/* I/O ports. */

static inline void outb(uint16_t port, uint8_t val)
{
	__asm__ volatile("outb %0, %1" ::"a"(val), "Nd"(port));
}

static inline void outw(uint16_t port, uint16_t val)
{
	__asm__ volatile("outw %0, %1" ::"a"(val), "Nd"(port));
}

static inline void outl(uint16_t port, uint32_t val)
{
	__asm__ volatile("outl %0, %1" ::"a"(val), "Nd"(port));
}

static inline uint8_t inb(uint16_t port)
{
	uint8_t val;

	__asm__ volatile("inb %1, %0" : "=a"(val) : "Nd"(port));
	return val;
}

static inline uint16_t inw(uint16_t port)
{
	uint16_t val;

	__asm__ volatile("inw %1, %0" : "=a"(val) : "Nd"(port));
	return val;
}

static inline uint32_t inl(uint16_t port)
{
	uint32_t val;

	__asm__ volatile("inl %1, %0" : "=a"(val) : "Nd"(port));
	return val;
}

#endif
