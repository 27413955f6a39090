/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BENCH_RAW_H
#define BENCH_RAW_H

/*
 * A guest without a kernel that drives virtio devices itself, to measure a
 * VMM's data path alone: one CPU, CPL 3, long mode, memory up to 4 GiB at its
 * own addresses (entry.S). A benchmark is one .c file with a main(), which
 * returns the exit status; `run` builds it, runs it under each VMM and reads
 * its results from COM1, lines of "name value unit".
 *
 * Nothing here returns an error: what does not work prints "FAIL: why" and
 * ends the guest with status FAILED. Ports and device registers cost an exit,
 * so they are for set-up; a queue is worked through memory and its doorbell.
 */

#define IRQS   8  /* interrupts that are counted apart */
#define FAILED 99 /* exit status */

#ifndef __ASSEMBLER__
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The machine: raw.c */

/* %s, %u and %x (uint64_t), %f (uint64_t, in thousandths), %% */
void print(const char *fmt, ...);
_Noreturn void fail(const char *fmt, ...);
_Noreturn void finish(int status); /* kvm's debug port, or QEMU's isa-debug-exit at 0xf4 */

/* The number behind NAME= on the command line. */
uint64_t param(const char *name, uint64_t otherwise);

/* Zeroed memory, a power of two as alignment; it is never freed. */
void *alloc(size_t size, size_t align);

static inline uint64_t tsc(void)
{
	uint32_t lo, hi;

	__asm__ volatile("lfence; rdtsc" : "=a"(lo), "=d"(hi)::"memory");
	return (uint64_t)hi << 32 | lo;
}

/* Of a difference of two tsc(). */
uint64_t tsc_ns(uint64_t ticks);

/*
 * How often interrupt @n < IRQS came. It has vector irq_vector(n); IDT and
 * local APIC are ready after irq_on().
 */
extern volatile uint64_t irqs[IRQS];
void irq_on(void);
uint8_t irq_vector(unsigned n);
uint32_t irq_msi_address(void);

/* PCI, by ports 0xcf8 and 0xcfc; bus 0 only: pci.c */

typedef uint16_t pci_t; /* device << 3 | function */

/* The @nth function of that vendor and device; false: there are no so many. */
bool pci_find(uint16_t vendor, uint16_t device, unsigned nth, pci_t *out);
uint32_t pci_read(pci_t p, unsigned off, unsigned size);
void pci_write(pci_t p, unsigned off, unsigned size, uint32_t val);

/* The next capability with that id after @after (0: the first); 0: none. */
unsigned pci_cap(pci_t p, uint8_t id, unsigned after);

/* A memory BAR; given an address if nobody did, or one above 4 GiB. */
volatile void *pci_bar(pci_t p, unsigned bar);

/* Virtio over PCI (virtio 1.2, 4.1) with split queues (2.7): vdev.c */

#define VQ_MAX 256 /* entries of a queue */

struct vdev {
	pci_t pci;
	volatile struct virtio_pci_common_cfg *common;
	volatile uint8_t *config, *notify;
	uint32_t notify_mul;
	uint64_t features;       /* agreed on */
	volatile uint32_t *msix; /* table */
};

struct vq {
	struct vdev *d;
	uint16_t size;
	unsigned irq; /* whose count to watch, when @use_irq */
	bool use_irq;
	volatile struct vring_desc *desc;
	volatile struct vring_avail *avail;
	volatile struct vring_used *used;
	volatile uint16_t *used_event, *avail_event, *doorbell;
	uint16_t index, free_head, free_count;
	uint16_t added, published, seen; /* free-running */
	uint32_t tag[VQ_MAX];
	uint64_t kicks, irqs; /* irqs: as many have been waited for */
};

struct seg {
	void *at;
	uint32_t len;
};

/*
 * Finds the @nth device of virtio type @type, resets it, and agrees on
 * VERSION_1 and those of @wanted that it has. Then vq_init() for each queue,
 * then vdev_ready().
 */
void vdev_init(struct vdev *d, unsigned type, unsigned nth, uint64_t wanted);
void vdev_ready(struct vdev *d);

/*
 * Queue @index, with at most @size entries. Without @use_irq the device is
 * asked for none; else for one at the next used chain, always, as Linux does:
 * interrupt @index is counted, and vq_wait() looks at nothing else.
 */
void vq_init(struct vdev *d, struct vq *q, unsigned index, uint16_t size, bool use_irq);

/* Adds a chain: @out segments to be read, then @in to be written by the device. false: no room. */
bool vq_add(struct vq *q, const struct seg *seg, unsigned out, unsigned in, uint32_t tag);

/* Shows the device what was added, and rings if it asks for that. */
void vq_kick(struct vq *q);

/* The next used chain, if there is one: its tag and the bytes written into it. */
bool vq_poll(struct vq *q, uint32_t *tag, uint32_t *len);

/* Until there is one in one of @nq queues, or with interrupts until one comes. Ten seconds without one is a failure. */
void vq_wait(struct vq *q, unsigned nq);

/* A measured closed loop: bench.c */

/*
 * Handles @count requests, @depth at a time where the queue has room: @add(q, slot)
 * adds the request of slot 0 … depth - 1 under its number as the tag. Prints
 *   begin NAME, end NAME    around the loop, each followed by `pause` ms of quiet
 *   NAME_at    when the first mark was printed, us of the TSC
 *   NAME_ns  NAME_kicks  NAME_irqs    for each request
 *   NAME_bytes    written by the device for each request
 *   NAME_depth    requests at a time
 */
void measure(const char *name, struct vq *q, unsigned depth, uint64_t count, void (*add)(struct vq *q, unsigned slot));

/* The same on @nq queues, @depth in each: the slots of queue i are i * depth and those that follow. */
void measure_all(const char *name, struct vq *q, unsigned nq, unsigned depth, uint64_t count,
                 void (*add)(struct vq *q, unsigned slot));

/* The same around nothing: what the marks themselves cost, as "idle". Once, before the others. */
void measure_idle(void);

int main(void);
#endif
#endif
