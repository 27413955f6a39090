// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * ACPI tables for our board (ACPI 6.4).
 *
 * How it works
 *
 * Everything is written front to back through one cursor, struct out. The
 * first write that does not fit marks it full and later ones do nothing, so
 * only acpi_build() looks at the result. Tables come out in the order in which
 * they are pointed to: DSDT, FADT, MADT, MCFG, XSDT; room for the RSDP is left
 * at the front and filled in last.
 *
 * The DSDT's body is AML (ACPI 6.4, chapter 20), the byte code that ASL
 * compiles to. Only the few operators we need exist here, one function each.
 * An object with a body starts with its own length, which is not known yet and
 * takes one to four bytes depending on its value: pkg_open() leaves one byte,
 * pkg_close() makes more room if the body turned out longer. Bodies nest;
 * closing an inner one moves nothing that an outer one remembers.
 *
 * Hardware-reduced: there are no fixed registers, no SCI and no PM timer. Sleep
 * and reset are one-byte ports, events arrive through a generic event device.
 * Linux then gives interrupts numbers of its own choice, so ttyS0 is on I/O
 * APIC pin 4 but rarely "IRQ 4"; it also never programs the 8259, so whoever
 * makes the VM has to mask it.
 */
#include "arch/x86/acpi.h"

#include "arch/x86/memmap.h"
#include "dev/pm.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

/* Packed structs are copied to the guest as they are: right only on the machines we run on. */
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "ACPI tables are little-endian");

#define PACKED __attribute__((packed))

struct out {
	uint8_t *buf;
	size_t len, pos;
	uint64_t gpa; /* of buf[0] */
	bool full;
};

static bool out_room(struct out *o, size_t n)
{
	if (n > o->len - o->pos)
		o->full = true;
	return !o->full;
}

static void out_bytes(struct out *o, const void *p, size_t n)
{
	if (!out_room(o, n))
		return;
	memcpy(o->buf + o->pos, p, n);
	o->pos += n;
}

static void out_zero(struct out *o, size_t n)
{
	if (!out_room(o, n))
		return;
	memset(o->buf + o->pos, 0, n);
	o->pos += n;
}

static void out_u8(struct out *o, uint8_t v)
{
	out_bytes(o, &v, sizeof(v));
}

static void out_u16(struct out *o, uint16_t v)
{
	out_bytes(o, &v, sizeof(v));
}

static void out_u32(struct out *o, uint32_t v)
{
	out_bytes(o, &v, sizeof(v));
}

/* Overwrites what was written before at @at. */
static void out_patch(struct out *o, size_t at, const void *p, size_t n)
{
	if (o->full)
		return;
	assert(at + n <= o->pos);
	memcpy(o->buf + at, p, n);
}

/* Moves everything from @at on by @n bytes. */
static void out_gap(struct out *o, size_t at, size_t n)
{
	if (!out_room(o, n))
		return;
	memmove(o->buf + at + n, o->buf + at, o->pos - at);
	o->pos += n;
}

/* What makes the bytes of [@at, @at + @n) sum up to 0. */
static uint8_t out_checksum(const struct out *o, size_t at, size_t n)
{
	uint8_t sum = 0;

	if (o->full)
		return 0;
	for (size_t i = at; i < at + n; i++)
		sum += o->buf[i];
	return -sum;
}

/* AML: lengths and names (20.2.4, 20.2.2). */

static size_t pkg_open(struct out *o)
{
	out_u8(o, 0);
	return o->pos - 1;
}

/* Bytes a PkgLength takes that covers itself and @body bytes: six bits in one, else four and eight per byte more. */
static unsigned pkg_width(size_t body)
{
	unsigned n = 1;

	if (body + n < 1 << 6)
		return n;
	for (n = 2; n < 4; n++)
		if (body + n < (size_t)1 << (8 * n - 4))
			break;
	return n;
}

static void pkg_close(struct out *o, size_t at)
{
	size_t body = o->pos - at - 1;
	unsigned n = pkg_width(body);
	size_t total = body + n;

	out_gap(o, at + 1, n - 1);
	if (o->full)
		return;
	if (n == 1) {
		o->buf[at] = total;
		return;
	}
	o->buf[at] = (n - 1) << 6 | (total & 0xf);
	for (unsigned i = 1; i < n; i++)
		o->buf[at + i] = total >> (8 * i - 4);
}

/* One segment of a path, filled up to four characters; returns where the next begins. */
static const char *aml_segment(struct out *o, const char *s)
{
	char seg[4] = { '_', '_', '_', '_' };
	size_t n = strcspn(s, ".");

	assert(n <= sizeof(seg));
	memcpy(seg, s, n);
	out_bytes(o, seg, sizeof(seg));
	return s[n] ? s + n + 1 : s + n;
}

/* A path of one or two segments: "_CRS", "\\_SB", "\\_SB.PWRB". */
static void aml_path(struct out *o, const char *s)
{
	if (*s == '\\')
		out_u8(o, *s++);
	if (strchr(s, '.'))
		out_u8(o, 0x2e); /* DualNamePrefix */
	while (*s)
		s = aml_segment(o, s);
}

/* AML: data (20.2.3). */

static void aml_int(struct out *o, uint32_t v)
{
	if (v <= 1) {
		out_u8(o, v); /* ZeroOp, OneOp */
	} else if (v <= UINT8_MAX) {
		out_u8(o, 0x0a);
		out_u8(o, v);
	} else if (v <= UINT16_MAX) {
		out_u8(o, 0x0b);
		out_u16(o, v);
	} else {
		out_u8(o, 0x0c);
		out_u32(o, v);
	}
}

static void aml_string(struct out *o, const char *s)
{
	out_u8(o, 0x0d);
	out_bytes(o, s, strlen(s) + 1);
}

static unsigned hex_digit(char c)
{
	return c <= '9' ? c - '0' : c - 'A' + 10;
}

/* "PNP0A08" as a number: three letters of five bits, four digits, the first byte most significant (19.3.4). */
static void aml_eisaid(struct out *o, const char *id)
{
	unsigned letters = (id[0] & 31) << 10 | (id[1] & 31) << 5 | (id[2] & 31);

	assert(strlen(id) == 7);
	out_u8(o, 0x0c);
	out_u8(o, letters >> 8);
	out_u8(o, letters);
	out_u8(o, hex_digit(id[3]) << 4 | hex_digit(id[4]));
	out_u8(o, hex_digit(id[5]) << 4 | hex_digit(id[6]));
}

static size_t aml_package(struct out *o, uint8_t elements)
{
	size_t pkg;

	out_u8(o, 0x12);
	pkg = pkg_open(o);
	out_u8(o, elements);
	return pkg;
}

/* AML: named objects (20.2.5). Those returning a position end with pkg_close(). */

static void aml_name(struct out *o, const char *path)
{
	out_u8(o, 0x08);
	aml_path(o, path);
}

static void aml_name_int(struct out *o, const char *path, uint32_t v)
{
	aml_name(o, path);
	aml_int(o, v);
}

static size_t aml_scope(struct out *o, const char *path)
{
	size_t pkg;

	out_u8(o, 0x10);
	pkg = pkg_open(o);
	aml_path(o, path);
	return pkg;
}

static size_t aml_device(struct out *o, const char *path)
{
	size_t pkg;

	out_u8(o, 0x5b);
	out_u8(o, 0x82);
	pkg = pkg_open(o);
	aml_path(o, path);
	return pkg;
}

/* A device known by an EISA id, with the instance number that tells it from others of its kind. */
static size_t aml_pnp_device(struct out *o, const char *path, const char *id, unsigned uid)
{
	size_t dev = aml_device(o, path);

	aml_name(o, "_HID");
	aml_eisaid(o, id);
	aml_name_int(o, "_UID", uid);
	return dev;
}

static size_t aml_method_serialized(struct out *o, const char *path, unsigned args)
{
	size_t pkg;

	out_u8(o, 0x14);
	pkg = pkg_open(o);
	aml_path(o, path);
	out_u8(o, args | 1 << 3);
	return pkg;
}

/* A one-byte I/O port, readable as @field. */
static void aml_port_field(struct out *o, const char *region, uint16_t port, const char *field)
{
	size_t pkg;

	out_u8(o, 0x5b);
	out_u8(o, 0x80);
	aml_path(o, region);
	out_u8(o, 1); /* SystemIO */
	aml_int(o, port);
	aml_int(o, 1);

	out_u8(o, 0x5b);
	out_u8(o, 0x81);
	pkg = pkg_open(o);
	aml_path(o, region);
	out_u8(o, 1); /* ByteAcc, NoLock, Preserve */
	aml_path(o, field);
	out_u8(o, 8); /* bits, as a PkgLength */
	pkg_close(o, pkg);
}

/* Resource descriptors (6.4). */

struct crs {
	size_t pkg, size;
};

static struct crs crs_open(struct out *o)
{
	struct crs c;

	aml_name(o, "_CRS");
	out_u8(o, 0x11); /* BufferOp */
	c.pkg = pkg_open(o);
	out_u8(o, 0x0b); /* the buffer's size, as a word whatever it turns out to be */
	c.size = o->pos;
	out_u16(o, 0);
	return c;
}

static void crs_close(struct out *o, struct crs c)
{
	uint16_t size;

	out_u8(o, 0x79); /* end tag; a checksum of 0 counts as right */
	out_u8(o, 0);
	size = o->pos - c.size - sizeof(size);
	out_patch(o, c.size, &size, sizeof(size));
	pkg_close(o, c.pkg);
}

static void crs_io(struct out *o, uint16_t port, uint8_t len)
{
	out_u8(o, 0x47);
	out_u8(o, 1);     /* Decode16 */
	out_u16(o, port); /* minimum base */
	out_u16(o, port); /* maximum base */
	out_u8(o, 1);     /* alignment */
	out_u8(o, len);
}

static void crs_memory32(struct out *o, uint32_t base, uint32_t len)
{
	out_u8(o, 0x86);
	out_u16(o, 9);
	out_u8(o, 1); /* ReadWrite */
	out_u32(o, base);
	out_u32(o, len);
}

/* An edge, active high, like every ISA interrupt. */
static void crs_edge(struct out *o, uint32_t gsi, bool shared)
{
	out_u8(o, 0x89);
	out_u16(o, 6);
	out_u8(o, 1 | 1 << 1 | shared << 3); /* ResourceConsumer, Edge, ActiveHigh */
	out_u8(o, 1);                        /* one interrupt */
	out_u32(o, gsi);
}

enum window { WINDOW_MEMORY = 0, WINDOW_IO = 1, WINDOW_BUS = 2 };

#define WINDOW_FIXED 0x0c /* ResourceProducer, MinFixed, MaxFixed, PosDecode */

/* What a bridge passes on to its bus: bus numbers or ports. */
static void crs_window16(struct out *o, enum window type, uint16_t base, uint16_t len)
{
	out_u8(o, 0x88);
	out_u16(o, 13);
	out_u8(o, type);
	out_u8(o, WINDOW_FIXED);
	out_u8(o, type == WINDOW_IO ? 3 : 0); /* EntireRange */
	out_u16(o, 0);                        /* granularity */
	out_u16(o, base);
	out_u16(o, base + len - 1);
	out_u16(o, 0); /* translation */
	out_u16(o, len);
}

static void crs_window_memory(struct out *o, uint32_t base, uint32_t len)
{
	out_u8(o, 0x87);
	out_u16(o, 23);
	out_u8(o, WINDOW_MEMORY);
	out_u8(o, WINDOW_FIXED);
	out_u8(o, 1);  /* NonCacheable, ReadWrite */
	out_u32(o, 0); /* granularity */
	out_u32(o, base);
	out_u32(o, base + len - 1);
	out_u32(o, 0); /* translation */
	out_u32(o, len);
}

/* The DSDT's devices. */

#define PCI_PORT_CONFIG     0xcf8
#define PCI_PORT_CONFIG_LEN 8
#define PCI_PORTS_ABOVE     (PCI_PORT_CONFIG + PCI_PORT_CONFIG_LEN)
#define PCI_SLOTS           32
#define PCI_PINS            4

static void dsdt_pci_crs(struct out *o)
{
	struct crs c = crs_open(o);

	crs_window16(o, WINDOW_BUS, 0, 1);
	crs_io(o, PCI_PORT_CONFIG, PCI_PORT_CONFIG_LEN);
	crs_window16(o, WINDOW_IO, 0, PCI_PORT_CONFIG);
	crs_window16(o, WINDOW_IO, PCI_PORTS_ABOVE, 0x10000 - PCI_PORTS_ABOVE);
	crs_window_memory(o, MM_PCI_MMIO, MM_PCI_MMIO_LEN);
	crs_close(o, c);
}

/* Without a link device in third place the fourth is a GSI, level and active low (6.2.13). */
static void dsdt_pci_route(struct out *o, unsigned slot, unsigned pin)
{
	size_t pkg = aml_package(o, 4);

	aml_int(o, slot << 16 | 0xffff); /* any function */
	aml_int(o, pin);
	aml_int(o, 0);
	aml_int(o, GSI_PCI_FIRST + (slot + pin) % GSI_PCI_COUNT);
	pkg_close(o, pkg);
}

static void dsdt_pci_prt(struct out *o)
{
	size_t pkg;

	aml_name(o, "_PRT");
	pkg = aml_package(o, PCI_SLOTS * PCI_PINS);
	for (unsigned i = 0; i < PCI_SLOTS * PCI_PINS; i++)
		dsdt_pci_route(o, i / PCI_PINS, i % PCI_PINS);
	pkg_close(o, pkg);
}

static void dsdt_pci(struct out *o)
{
	size_t dev = aml_pnp_device(o, "PCI0", "PNP0A08", 0);

	aml_name(o, "_CID"); /* for systems that know conventional PCI only */
	aml_eisaid(o, "PNP0A03");
	aml_name_int(o, "_SEG", 0);
	aml_name_int(o, "_BBN", 0);
	dsdt_pci_crs(o);
	dsdt_pci_prt(o);
	pkg_close(o, dev);
}

/* Linux uses ECAM only where it finds it reserved by such a device, and puts no I/O BAR on the ports named here. */
static void dsdt_motherboard(struct out *o)
{
	size_t dev = aml_pnp_device(o, "MBRD", "PNP0C02", 0);
	struct crs c = crs_open(o);

	crs_memory32(o, MM_ECAM, MM_ECAM_LEN);
	crs_io(o, PORT_PM, PM_LEN);
	crs_close(o, c);
	pkg_close(o, dev);
}

static void dsdt_uart(struct out *o, unsigned i)
{
	static const uint16_t ports[UART_COUNT] = UART_PORTS;
	static const uint8_t irqs[UART_COUNT] = UART_IRQS;
	char name[] = { 'C', 'O', 'M', '1' + i, '\0' };
	size_t dev = aml_pnp_device(o, name, "PNP0501", i + 1);
	struct crs c = crs_open(o);

	crs_io(o, ports[i], UART_LEN);
	crs_edge(o, irqs[i], true);
	crs_close(o, c);
	pkg_close(o, dev);
}

static void dsdt_rtc(struct out *o)
{
	size_t dev = aml_pnp_device(o, "RTC", "PNP0B00", 0);
	struct crs c = crs_open(o);

	crs_io(o, PORT_RTC, 2);
	crs_close(o, c);
	pkg_close(o, dev);
}

static void dsdt_power_button(struct out *o)
{
	size_t dev = aml_pnp_device(o, "PWRB", "PNP0C0C", 0);

	pkg_close(o, dev);
}

/* Method (_EVT, 1, Serialized) { Local0 = EVNT; If (Local0 & PM_EVENT_BUTTON) { Notify (\_SB.PWRB, 0x80) } } */
static void dsdt_event_method(struct out *o)
{
	size_t method = aml_method_serialized(o, "_EVT", 1), cond;

	out_u8(o, 0x70); /* Store: the register is read once, since reading clears it */
	aml_path(o, "EVNT");
	out_u8(o, 0x60); /* Local0 */

	out_u8(o, 0xa0); /* If */
	cond = pkg_open(o);
	out_u8(o, 0x7b); /* And */
	out_u8(o, 0x60);
	aml_int(o, PM_EVENT_BUTTON);
	out_u8(o, 0x00); /* no target */
	out_u8(o, 0x86); /* Notify */
	aml_path(o, "\\_SB.PWRB");
	aml_int(o, 0x80); /* the button was pressed */
	pkg_close(o, cond);
	pkg_close(o, method);
}

/* The generic event device (5.6.9): what a hardware-reduced platform has instead of the SCI. */
static void dsdt_events(struct out *o)
{
	size_t dev = aml_device(o, "GED");
	struct crs c;

	aml_name(o, "_HID");
	aml_string(o, "ACPI0013");
	aml_name_int(o, "_UID", 0);
	c = crs_open(o);
	crs_edge(o, GSI_PM, false);
	crs_close(o, c);
	aml_port_field(o, "PMEV", PORT_PM + PM_EVENTS, "EVNT");
	dsdt_event_method(o);
	pkg_close(o, dev);
}

/* Power off: the first element is what goes into SLP_TYPx (7.4.2). */
static void dsdt_s5(struct out *o)
{
	size_t pkg;

	aml_name(o, "\\_S5");
	pkg = aml_package(o, 4);
	aml_int(o, PM_SLP_TYP_S5);
	for (unsigned i = 1; i < 4; i++)
		aml_int(o, 0);
	pkg_close(o, pkg);
}

static void dsdt_body(struct out *o)
{
	size_t sb = aml_scope(o, "\\_SB");

	dsdt_pci(o);
	dsdt_motherboard(o);
	for (unsigned i = 0; i < UART_COUNT; i++)
		dsdt_uart(o, i);
	dsdt_rtc(o);
	dsdt_power_button(o);
	dsdt_events(o);
	pkg_close(o, sb);
	dsdt_s5(o);
}

/* Tables (5.2). */

#define OEM_ID       "KVMVMM"
#define OEM_TABLE_ID "KVMBOARD"
#define CREATOR_ID   "KVM "
#define TABLE_ALIGN  16

struct sdt_header {
	char signature[4];
	uint32_t length;
	uint8_t revision, checksum;
	char oem_id[6], oem_table_id[8];
	uint32_t oem_revision;
	char creator_id[4];
	uint32_t creator_revision;
} PACKED;
static_assert(sizeof(struct sdt_header) == 36, "5.2.6");

static size_t table_open(struct out *o, const char *signature, uint8_t revision)
{
	struct sdt_header h = { .revision = revision, .oem_revision = 1, .creator_revision = 1 };
	size_t at;

	memcpy(h.signature, signature, sizeof(h.signature));
	memcpy(h.oem_id, OEM_ID, sizeof(h.oem_id));
	memcpy(h.oem_table_id, OEM_TABLE_ID, sizeof(h.oem_table_id));
	memcpy(h.creator_id, CREATOR_ID, sizeof(h.creator_id));
	out_zero(o, -o->pos % TABLE_ALIGN);
	at = o->pos;
	out_bytes(o, &h, sizeof(h));
	return at;
}

/* Returns the table's address in the guest. */
static uint64_t table_close(struct out *o, size_t at)
{
	uint32_t length = o->pos - at;
	uint8_t sum;

	out_patch(o, at + offsetof(struct sdt_header, length), &length, sizeof(length));
	sum = out_checksum(o, at, length);
	out_patch(o, at + offsetof(struct sdt_header, checksum), &sum, sizeof(sum));
	return o->gpa + at;
}

static uint64_t put_dsdt(struct out *o)
{
	size_t at = table_open(o, "DSDT", 2); /* 2: integers are 64 bits wide */

	dsdt_body(o);
	return table_close(o, at);
}

/* Generic address structure, 5.2.3.2. */
struct gas {
	uint8_t space, bit_width, bit_offset, access_size;
	uint64_t address;
} PACKED;

static struct gas gas_port(uint16_t port)
{
	return (struct gas){ .space = 1, .bit_width = 8, .access_size = 1, .address = port };
}

/* 5.2.9, behind the header; what a hardware-reduced platform leaves out is kept together. */
struct fadt {
	uint32_t firmware_ctrl, dsdt;
	uint8_t reserved1, preferred_profile;
	uint8_t fixed_hardware[63];
	uint16_t iapc_boot_arch;
	uint8_t reserved2;
	uint32_t flags;
	struct gas reset_reg;
	uint8_t reset_value;
	uint16_t arm_boot_arch;
	uint8_t minor_version;
	uint64_t x_firmware_ctrl, x_dsdt;
	struct gas x_fixed_hardware[8];
	struct gas sleep_control, sleep_status;
	uint64_t hypervisor_id;
} PACKED;
static_assert(sizeof(struct fadt) == 276 - sizeof(struct sdt_header), "5.2.9");
static_assert(offsetof(struct fadt, flags) == 112 - sizeof(struct sdt_header), "5.2.9");
static_assert(offsetof(struct fadt, sleep_control) == 244 - sizeof(struct sdt_header), "5.2.9");

#define FADT_WBINVD        (1u << 0)
#define FADT_PWR_BUTTON    (1u << 4) /* not a fixed one */
#define FADT_SLP_BUTTON    (1u << 5) /* not a fixed one */
#define FADT_FIX_RTC       (1u << 6) /* no RTC wake-up in fixed registers */
#define FADT_RESET_REG_SUP (1u << 10)
#define FADT_HW_REDUCED    (1u << 20)

/* Clear: bit 0 (all devices are in the namespace), 1 (an 8042), 3 (no MSI), 5 (no CMOS RTC). */
#define BOOT_ARCH_NO_VGA  (1u << 2)
#define BOOT_ARCH_NO_ASPM (1u << 4)

static uint64_t put_fadt(struct out *o, uint64_t dsdt)
{
	size_t at = table_open(o, "FACP", 6);
	struct fadt f = {
		.dsdt = dsdt,
		.iapc_boot_arch = BOOT_ARCH_NO_VGA | BOOT_ARCH_NO_ASPM,
		.flags = FADT_WBINVD | FADT_PWR_BUTTON | FADT_SLP_BUTTON | FADT_FIX_RTC | FADT_RESET_REG_SUP |
		         FADT_HW_REDUCED,
		.reset_reg = gas_port(PORT_PM + PM_RESET),
		.reset_value = PM_RESET_VALUE,
		.minor_version = 4,
		.x_dsdt = dsdt,
		.sleep_control = gas_port(PORT_PM + PM_SLEEP_CONTROL),
		.sleep_status = gas_port(PORT_PM + PM_SLEEP_STATUS),
	};

	out_bytes(o, &f, sizeof(f));
	return table_close(o, at);
}

/* 5.2.12 */
struct madt {
	uint32_t lapic_address, flags;
} PACKED;

/*
 * KVM's irqchip has the two 8259s. Linux disregards this bit on a
 * hardware-reduced platform, but others learn that they have to mask them.
 */
#define MADT_PCAT_COMPAT 1u

struct madt_lapic {
	uint8_t type, length, uid, apic_id;
	uint32_t flags;
} PACKED;
static_assert(sizeof(struct madt_lapic) == 8, "5.2.12.2");

struct madt_ioapic {
	uint8_t type, length, id, reserved;
	uint32_t address, gsi_base;
} PACKED;
static_assert(sizeof(struct madt_ioapic) == 12, "5.2.12.3");

struct madt_lapic_nmi {
	uint8_t type, length, uid;
	uint16_t flags;
	uint8_t lint;
} PACKED;
static_assert(sizeof(struct madt_lapic_nmi) == 6, "5.2.12.7");

static void madt_cpu(struct out *o, uint8_t id)
{
	struct madt_lapic e = { .type = 0, .length = sizeof(e), .uid = id, .apic_id = id, .flags = 1 /* enabled */ };

	out_bytes(o, &e, sizeof(e));
}

/* ISA interrupts are one to one, edge and active high, which is what no source override means. */
static uint64_t put_madt(struct out *o, unsigned ncpus)
{
	struct madt m = { .lapic_address = MM_LAPIC, .flags = MADT_PCAT_COMPAT };
	struct madt_ioapic ioapic = { .type = 1, .length = sizeof(ioapic), .address = MM_IOAPIC };
	struct madt_lapic_nmi nmi = { .type = 4, .length = sizeof(nmi), .uid = 0xff /* all */, .lint = 1 };
	size_t at = table_open(o, "APIC", 5);

	out_bytes(o, &m, sizeof(m));
	for (unsigned i = 0; i < ncpus; i++)
		madt_cpu(o, i);
	out_bytes(o, &ioapic, sizeof(ioapic));
	out_bytes(o, &nmi, sizeof(nmi));
	return table_close(o, at);
}

/* PCI Firmware Specification 3.3, 4.1.2: one range. */
struct mcfg {
	uint64_t reserved1, base;
	uint16_t segment;
	uint8_t first_bus, last_bus;
	uint32_t reserved2;
} PACKED;
static_assert(sizeof(struct mcfg) == 24, "MCFG");

static uint64_t put_mcfg(struct out *o)
{
	struct mcfg m = { .base = MM_ECAM, .last_bus = (MM_ECAM_LEN >> 20) - 1 };
	size_t at = table_open(o, "MCFG", 1);

	out_bytes(o, &m, sizeof(m));
	return table_close(o, at);
}

static uint64_t put_xsdt(struct out *o, const uint64_t *tables, size_t n)
{
	size_t at = table_open(o, "XSDT", 1);

	out_bytes(o, tables, n * sizeof(*tables));
	return table_close(o, at);
}

/* 5.2.5.3 */
struct rsdp {
	char signature[8];
	uint8_t checksum;
	char oem_id[6];
	uint8_t revision;
	uint32_t rsdt, length;
	uint64_t xsdt;
	uint8_t extended_checksum, reserved[3];
} PACKED;
static_assert(sizeof(struct rsdp) == 36, "5.2.5.3");

#define RSDP_V1_LEN 20 /* what the first checksum covers */

/* At the front, where out_zero() has left room. */
static void fill_rsdp(struct out *o, uint64_t xsdt)
{
	struct rsdp r = { .revision = 2, .length = sizeof(r), .xsdt = xsdt };

	memcpy(r.signature, "RSD PTR ", sizeof(r.signature));
	memcpy(r.oem_id, OEM_ID, sizeof(r.oem_id));
	out_patch(o, 0, &r, sizeof(r));
	r.checksum = out_checksum(o, 0, RSDP_V1_LEN);
	out_patch(o, 0, &r, sizeof(r));
	r.extended_checksum = out_checksum(o, 0, sizeof(r));
	out_patch(o, 0, &r, sizeof(r));
}

long acpi_build(unsigned ncpus, uint64_t gpa, void *buf, size_t len)
{
	struct out o = { .buf = buf, .len = len, .gpa = gpa };
	uint64_t dsdt, tables[3];

	assert(ncpus >= 1 && ncpus <= 254);
	assert(gpa % TABLE_ALIGN == 0);
	out_zero(&o, sizeof(struct rsdp));
	dsdt = put_dsdt(&o);
	tables[0] = put_fadt(&o, dsdt);
	tables[1] = put_madt(&o, ncpus);
	tables[2] = put_mcfg(&o);
	fill_rsdp(&o, put_xsdt(&o, tables, 3));
	return o.full ? -ENOSPC : (long)o.pos;
}
