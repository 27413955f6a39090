// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * MP tables (Intel MultiProcessor Specification 1.4, chapter 4), for kernels
 * that do not read ACPI's.
 *
 * How it works
 *
 * Every entry has a fixed size and their numbers follow from our board, so the
 * whole size is known before the first byte is written; after that one check
 * entries are appended, in the order of their types as the specification asks.
 * The I/O APIC has ID 0, as its register in KVM says; local APICs use that ID
 * too, which the specification forbids but xAPIC systems never mind.
 */
#include "arch/x86/mptable.h"

#include "arch/x86/memmap.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/* Packed structs are copied to the guest as they are: right only on the machines we run on. */
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "MP tables are little-endian");

#define PACKED         __attribute__((packed))

#define MP_SPEC_REV    4 /* 1.4 */
#define LAPIC_VERSION  0x14
#define IOAPIC_VERSION 0x11
#define IOAPIC_ID      0
#define ALL_LAPICS     0xff

#define BUS_PCI        0 /* also the number PCI itself gives that bus */
#define BUS_ISA        1

#define ISA_IRQS       16
#define ISA_IRQ_NONE   2 /* the 8259s' cascade: no device is on it */
#define PCI_SLOTS      32
#define PCI_PINS       4

/* 4.1 */
struct mp_floating {
	char signature[4];
	uint32_t config;
	uint8_t length, revision, checksum, features[5];
} PACKED;
static_assert(sizeof(struct mp_floating) == 16, "4.1");

/* 4.2 */
struct mp_config {
	char signature[4];
	uint16_t length;
	uint8_t revision, checksum;
	char oem_id[8], product_id[12];
	uint32_t oem_table;
	uint16_t oem_table_size, entries;
	uint32_t lapic;
	uint16_t ext_length;
	uint8_t ext_checksum, reserved;
} PACKED;
static_assert(sizeof(struct mp_config) == 44, "4.2");

/* 4.3: each entry begins with its type. */
enum mp_type { MP_CPU, MP_BUS, MP_IOAPIC, MP_INTERRUPT, MP_LOCAL_INTERRUPT };

struct mp_cpu {
	uint8_t type, apic_id, apic_version, flags;
	uint32_t signature, features, reserved[2];
} PACKED;
static_assert(sizeof(struct mp_cpu) == 20, "4.3.1");

#define MP_CPU_ENABLED   1
#define MP_CPU_BSP       2
#define MP_CPU_SIGNATURE 0x600 /* some family 6; CPUID has the truth */
#define MP_CPU_FEATURES  0x201 /* FPU, APIC; likewise */

struct mp_bus {
	uint8_t type, id;
	char name[6];
} PACKED;
static_assert(sizeof(struct mp_bus) == 8, "4.3.2");

struct mp_ioapic {
	uint8_t type, id, version, flags;
	uint32_t address;
} PACKED;
static_assert(sizeof(struct mp_ioapic) == 8, "4.3.3");

struct mp_interrupt {
	uint8_t type, kind;
	uint16_t flags;
	uint8_t bus, source, apic_id, pin;
} PACKED;
static_assert(sizeof(struct mp_interrupt) == 8, "4.3.4, 4.3.5");

enum mp_kind { MP_INT = 0, MP_NMI = 1, MP_EXTINT = 3 };

#define MP_CONFORMING    0x0 /* as usual on its bus */
#define MP_LOW_LEVEL     0xf

#define MP_FIXED_ENTRIES (3 + (ISA_IRQS - 1) + PCI_SLOTS * PCI_PINS + 2) /* all but the CPUs, 8 bytes each */

static uint8_t checksum(const void *p, size_t n)
{
	const uint8_t *b = p;
	uint8_t sum = 0;

	while (n--)
		sum += *b++;
	return -sum;
}

static uint8_t *append(uint8_t *p, const void *entry, size_t n)
{
	memcpy(p, entry, n);
	return p + n;
}

static uint8_t *put_cpu(uint8_t *p, uint8_t id)
{
	struct mp_cpu e = { .type = MP_CPU, .apic_id = id, .apic_version = LAPIC_VERSION };

	e.flags = MP_CPU_ENABLED | (id == 0 ? MP_CPU_BSP : 0);
	e.signature = MP_CPU_SIGNATURE;
	e.features = MP_CPU_FEATURES;
	return append(p, &e, sizeof(e));
}

static uint8_t *put_bus(uint8_t *p, uint8_t id, const char *name)
{
	struct mp_bus e = { .type = MP_BUS, .id = id };

	memcpy(e.name, name, sizeof(e.name));
	return append(p, &e, sizeof(e));
}

static uint8_t *put_ioapic(uint8_t *p)
{
	struct mp_ioapic e = { .type = MP_IOAPIC, .id = IOAPIC_ID, .version = IOAPIC_VERSION, .flags = 1 };

	e.address = MM_IOAPIC;
	return append(p, &e, sizeof(e));
}

/* A line of bus @bus to the I/O APIC's pin @pin. */
static uint8_t *put_interrupt(uint8_t *p, uint8_t bus, uint8_t source, uint16_t flags, uint8_t pin)
{
	struct mp_interrupt e = { .type = MP_INTERRUPT, .kind = MP_INT, .apic_id = IOAPIC_ID };

	e.flags = flags;
	e.bus = bus;
	e.source = source;
	e.pin = pin;
	return append(p, &e, sizeof(e));
}

static uint8_t *put_isa_interrupts(uint8_t *p)
{
	for (unsigned irq = 0; irq < ISA_IRQS; irq++)
		if (irq != ISA_IRQ_NONE)
			p = put_interrupt(p, BUS_ISA, irq, MP_CONFORMING, irq);
	return p;
}

static uint8_t *put_pci_interrupts(uint8_t *p)
{
	for (unsigned slot = 0; slot < PCI_SLOTS; slot++)
		for (unsigned pin = 0; pin < PCI_PINS; pin++)
			p = put_interrupt(p, BUS_PCI, slot << 2 | pin, MP_LOW_LEVEL,
			                  GSI_PCI_FIRST + (slot + pin) % GSI_PCI_COUNT);
	return p;
}

static uint8_t *put_local(uint8_t *p, enum mp_kind kind, uint8_t lapic, uint8_t lint)
{
	struct mp_interrupt e = { .type = MP_LOCAL_INTERRUPT, .kind = kind, .bus = BUS_ISA };

	e.apic_id = lapic;
	e.pin = lint;
	return append(p, &e, sizeof(e));
}

/* KVM wires the 8259 to the first CPU's LINT0, and NMI to everybody's LINT1. */
static uint8_t *put_local_interrupts(uint8_t *p)
{
	p = put_local(p, MP_EXTINT, 0, 0);
	return put_local(p, MP_NMI, ALL_LAPICS, 1);
}

static uint8_t *put_entries(uint8_t *p, unsigned ncpus)
{
	for (unsigned i = 0; i < ncpus; i++)
		p = put_cpu(p, i);
	p = put_bus(p, BUS_PCI, "PCI   ");
	p = put_bus(p, BUS_ISA, "ISA   ");
	p = put_ioapic(p);
	p = put_isa_interrupts(p);
	p = put_pci_interrupts(p);
	return put_local_interrupts(p);
}

static void put_floating(uint8_t *p, uint64_t config)
{
	struct mp_floating f = { .config = config, .length = sizeof(f) / 16, .revision = MP_SPEC_REV };

	memcpy(f.signature, "_MP_", sizeof(f.signature));
	f.checksum = checksum(&f, sizeof(f));
	append(p, &f, sizeof(f));
}

/* The header goes before its entries, which have been written: the checksum covers both. */
static void put_config(uint8_t *p, unsigned entries, size_t length)
{
	struct mp_config c = { .revision = MP_SPEC_REV, .lapic = MM_LAPIC };

	memcpy(c.signature, "PCMP", sizeof(c.signature));
	memcpy(c.oem_id, "KVMVMM  ", sizeof(c.oem_id));
	memcpy(c.product_id, "KVMBOARD    ", sizeof(c.product_id));
	c.length = length;
	c.entries = entries;
	append(p, &c, sizeof(c));
	c.checksum = checksum(p, length);
	append(p, &c, sizeof(c));
}

long mptable_build(unsigned ncpus, uint64_t gpa, void *buf, size_t len)
{
	size_t entries = ncpus * sizeof(struct mp_cpu) + MP_FIXED_ENTRIES * sizeof(struct mp_interrupt);
	size_t length = sizeof(struct mp_config) + entries;
	uint8_t *config, *end;

	assert(ncpus >= 1 && ncpus <= 254);
	assert(gpa % 16 == 0);
	if (len < sizeof(struct mp_floating) + length)
		return -ENOSPC;
	config = (uint8_t *)buf + sizeof(struct mp_floating);
	end = put_entries(config + sizeof(struct mp_config), ncpus);
	assert(end == config + length);
	put_config(config, ncpus + MP_FIXED_ENTRIES, end - config);
	put_floating(buf, gpa + sizeof(struct mp_floating));
	return end - (uint8_t *)buf;
}
