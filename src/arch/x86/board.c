// SPDX-License-Identifier: GPL-2.0-or-later
#include "arch/arch.h"
#include "arch/x86/acpi.h"
#include "arch/x86/boot.h"
#include "arch/x86/cpuid.h"
#include "arch/x86/memmap.h"
#include "arch/x86/mptable.h"
#include "arch/x86/probe.h"
#include "arch/x86/vcpu_state.h"
#include "bus/pci.h"
#include "dev/i8042.h"
#include "dev/pm.h"
#include "dev/pvpanic.h"
#include "dev/rtc.h"
#include "dev/uart.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * How it works
 *
 * The board is the table at the end of this file: which chip answers at which
 * port. A chip knows neither its address nor its interrupt; the small
 * functions here translate a bus access into the chip's register.
 *
 * COM1 and COM3 share an interrupt line, as do COM2 and COM4: the line is
 * high while any of its members is.
 */

#define KVM_APIC_BUS_KHZ 1000000 /* the clock of KVM's local APIC timer */

#define MIN_RAM          (2ull << 20)
#define MAX_RAM          (4ull << 40) /* KVM's own limits on a slot begin soon after */

struct shared_line {
	pthread_mutex_t lock;
	struct irq out;
	uint64_t high;     /* [m] a bit for each member that is high */
	unsigned nmembers; /* [c] while vCPUs run */
};

struct line_member {
	struct shared_line *line;
	uint64_t bit;
};

struct arch_image {
	struct kernel kernel;
	struct initrd initrd;
	char *cmdline;
	struct cpuid_config host; /* read before there is a VM, see cpuid_host() */
};

struct arch_board {
	struct arch_board_config cfg;
	const struct kernel *kernel; /* the image's, between arch_board_load() and the CPUs */
	struct cpuid_config cpuid;
	struct shared_line line[2];
	struct shared_line pci_line[GSI_PCI_COUNT];
	struct line_member member[UART_COUNT + 256]; /* UARTs, then a PCI function's by devfn */
	struct uart *uart[UART_COUNT];
	struct rtc *rtc;
	struct pm *pm;
	struct pci_bus *pci;
	struct pvpanic *pvpanic;
	uint32_t pci_address; /* port 0xcf8 */
	pthread_mutex_t lock; /* pci_address */
};

/* The image. */

static int image_open(const struct arch_image_config *cfg, struct arch_image *im, struct err *err)
{
	int error = kernel_open(cfg->kernel, &im->kernel, err);

	cpuid_host(&im->host);
	if (error)
		return error;
	im->initrd.path = cfg->initrd;
	if (cfg->initrd)
		return open_regular("initrd", cfg->initrd, &im->initrd.fd, &im->initrd.size, err);
	return 0;
}

int arch_image_open(const struct arch_image_config *cfg, struct arch_image **out, struct err *err)
{
	struct arch_image *im = calloc(1, sizeof(*im));
	int error;

	if (!im)
		return err_set(err, -ENOMEM, "out of memory");
	im->kernel.fd = im->initrd.fd = -1;
	im->cmdline = strdup(cfg->cmdline);
	error = im->cmdline ? image_open(cfg, im, err) : err_set(err, -ENOMEM, "out of memory");
	if (error)
		arch_image_free(im);
	else
		*out = im;
	return error;
}

void arch_image_free(struct arch_image *im)
{
	if (!im)
		return;
	kernel_close(&im->kernel);
	if (im->initrd.fd >= 0)
		close(im->initrd.fd);
	free(im->cmdline);
	free(im);
}

void arch_image_set_initrd(struct arch_image *im, const struct arch_initrd *initrd)
{
	im->initrd = (struct initrd){ .path = "made on the fly",
		                      .fd = -1,
		                      .size = initrd->size,
		                      .write = initrd->write,
		                      .opaque = initrd->opaque };
}

bool arch_image_packed(const struct arch_image *im, struct arch_packed *out)
{
	*out = (struct arch_packed){ im->kernel.fd, im->kernel.packed, im->kernel.packed_len };
	return out->len > 0;
}

int arch_image_set_unpacked(struct arch_image *im, int fd, uint64_t size, struct err *err)
{
	return kernel_set_unpacked(&im->kernel, fd, size, err);
}

const char *arch_image_version(const struct arch_image *im)
{
	return im->kernel.version;
}

bool arch_image_is_linux(const struct arch_image *im)
{
	return im->kernel.is_linux;
}

/* Memory. */

int arch_ram(uint64_t bytes, struct gmem *mem, struct err *err)
{
	if (bytes < MIN_RAM || bytes > MAX_RAM)
		return err_set(err, -EINVAL, "a machine has between 2M and 4T of memory, not %llu bytes",
		               (unsigned long long)bytes);
	memmap_banks(bytes & ~4095ull, mem);
	return 0;
}

void arch_vm_config(struct vm_config *cfg)
{
	cfg->identity_addr = MM_KVM_IDENTITY;
	cfg->tss_addr = MM_KVM_TSS;
}

/* Shared interrupt lines. */

static void member_set(struct irq *irq, bool level)
{
	struct line_member *m = irq->opaque;
	struct shared_line *l = m->line;
	uint64_t high;

	pthread_mutex_lock(&l->lock);
	high = level ? l->high | m->bit : l->high & ~m->bit;
	if (!high != !l->high)
		irq_set(&l->out, high);
	l->high = high;
	pthread_mutex_unlock(&l->lock);
}

static void init_line(struct arch_board *b, struct shared_line *l, unsigned gsi)
{
	pthread_mutex_init(&l->lock, NULL);
	vm_irq(b->cfg.vm, gsi, &l->out);
}

static void init_lines(struct arch_board *b)
{
	static const unsigned irqs[UART_COUNT] = UART_IRQS;

	static_assert(UART_COUNT == 4, "two lines of two UARTs");
	init_line(b, &b->line[0], irqs[0]);
	init_line(b, &b->line[1], irqs[1]);
	for (unsigned i = 0; i < GSI_PCI_COUNT; i++)
		init_line(b, &b->pci_line[i], GSI_PCI_FIRST + i);
}

static struct irq join_line(struct shared_line *l, struct line_member *m)
{
	assert(l->nmembers < 64);
	*m = (struct line_member){ .line = l, .bit = 1ull << l->nmembers++ };
	return (struct irq){ .set = member_set, .opaque = m, .line = l->out.line };
}

struct irq arch_board_pci_irq(struct arch_board *b, uint8_t devfn, unsigned pin)
{
	struct shared_line *l = &b->pci_line[((devfn >> 3) + pin - 1) % GSI_PCI_COUNT];

	return join_line(l, &b->member[UART_COUNT + devfn]);
}

struct pci_bus *arch_board_pci(struct arch_board *b)
{
	return b->pci;
}

/* From bus accesses to chip registers: byte-wide chips answer each byte of a wider access in turn. */

static uint64_t uart_ports_read(void *dev, uint64_t off, unsigned size)
{
	uint64_t val = 0;

	for (unsigned i = 0; i < size; i++)
		val |= (uint64_t)uart_read(dev, (unsigned)off + i) << (8 * i);
	return val;
}

static void uart_ports_write(void *dev, uint64_t off, unsigned size, uint64_t val)
{
	for (unsigned i = 0; i < size; i++)
		uart_write(dev, (unsigned)off + i, (uint8_t)(val >> (8 * i)));
}

static uint64_t rtc_ports_read(void *dev, uint64_t off, unsigned size)
{
	return rtc_read(dev, (unsigned)off) | ~0xffull;
}

static void rtc_ports_write(void *dev, uint64_t off, unsigned size, uint64_t val)
{
	for (unsigned i = 0; i < size; i++)
		rtc_write(dev, (unsigned)off + i, (uint8_t)(val >> (8 * i)));
}

static uint64_t pm_ports_read(void *dev, uint64_t off, unsigned size)
{
	return pm_read(dev, (unsigned)off) | ~0xffull;
}

static void pm_ports_write(void *dev, uint64_t off, unsigned size, uint64_t val)
{
	pm_write(dev, (unsigned)off, (uint8_t)val);
}

/*
 * Among the i8042's ports sits 0x61. After an NMI Linux looks there for its
 * cause, in bits 6 and 7, so all ones is the wrong answer. Bit 5 is the output
 * of a timer that we have not; who waits for it waits for it to be high.
 */
#define NMI_STATUS_OFF   1
#define NMI_STATUS_TIMER 0x20

static uint64_t i8042_ports_read(void *dev, uint64_t off, unsigned size)
{
	if (off == NMI_STATUS_OFF)
		return NMI_STATUS_TIMER | ~0xffull;
	return i8042_read((unsigned)off) | ~0xffull;
}

static void i8042_ports_write(void *dev, uint64_t off, unsigned size, uint64_t val)
{
	const struct arch_board *b = dev;

	i8042_write(&b->cfg.events, (unsigned)off, (uint8_t)val);
}

static uint64_t exit_read(void *dev, uint64_t off, unsigned size)
{
	return 0;
}

static void exit_write(void *dev, uint64_t off, unsigned size, uint64_t val)
{
	const struct arch_board *b = dev;

	b->cfg.events.raise(b->cfg.events.opaque, GUEST_EXIT, (uint8_t)val);
}

/*
 * PCI configuration mechanism #1: an address in dword 0xcf8, data in
 * 0xcfc-0xcff. A byte at 0xcf9 is the chipset's reset control instead: bit 2
 * resets.
 */
#define CF8_ENABLE 0x80000000u
#define CF9_RESET  0x04

static uint32_t pci_address(struct arch_board *b)
{
	uint32_t a;

	pthread_mutex_lock(&b->lock);
	a = b->pci_address;
	pthread_mutex_unlock(&b->lock);
	return a;
}

/* The function and register that port 0xcfc + @off means now; false: none on this bus. */
static bool pci_target(struct arch_board *b, unsigned off, uint8_t *devfn, unsigned *reg)
{
	uint32_t a = pci_address(b);

	*devfn = (uint8_t)(a >> 8);
	*reg = (a & 0xfc) + (off & 3);
	return (a & CF8_ENABLE) && !(a & 0x00ff0000);
}

static uint64_t pci_ports_read(void *dev, uint64_t off, unsigned size)
{
	struct arch_board *b = dev;
	uint8_t devfn;
	unsigned reg;

	if (off == 0 && size == 4)
		return pci_address(b);
	if (off < 4 || size > 4 || (off & 3) + size > 4 || !pci_target(b, (unsigned)off, &devfn, &reg))
		return ~0ull;
	return pci_cfg_read(b->pci, devfn, reg, size);
}

static void pci_ports_write(void *dev, uint64_t off, unsigned size, uint64_t val)
{
	struct arch_board *b = dev;
	uint8_t devfn;
	unsigned reg;

	if (off == 0 && size == 4) {
		pthread_mutex_lock(&b->lock);
		b->pci_address = (uint32_t)val;
		pthread_mutex_unlock(&b->lock);
	} else if (off == 1 && size == 1) {
		if (val & CF9_RESET)
			b->cfg.events.raise(b->cfg.events.opaque, GUEST_RESET, 0);
	} else if (off >= 4 && size <= 4 && (off & 3) + size <= 4 && pci_target(b, (unsigned)off, &devfn, &reg)) {
		pci_cfg_write(b->pci, devfn, reg, size, (uint32_t)val);
	}
}

static const struct bus_ops uart_ops = { uart_ports_read, uart_ports_write };
static const struct bus_ops rtc_ops = { rtc_ports_read, rtc_ports_write };
static const struct bus_ops pm_ops = { pm_ports_read, pm_ports_write };
static const struct bus_ops i8042_ops = { i8042_ports_read, i8042_ports_write };
static const struct bus_ops exit_ops = { exit_read, exit_write };
static const struct bus_ops pci_ops = { pci_ports_read, pci_ports_write };

static int make_chips(struct arch_board *b, struct err *err)
{
	static const char *const name[UART_COUNT] = { "COM1", "COM2", "COM3", "COM4" };
	struct irq irq;
	int error = 0;

	init_lines(b);
	for (unsigned i = 0; !error && i < UART_COUNT; i++) {
		irq = join_line(&b->line[i % 2], &b->member[i]);
		error = uart_new(name[i], &irq, b->cfg.com[i], &b->uart[i], err);
	}
	if (!error)
		error = rtc_new(&b->rtc, err);
	vm_irq(b->cfg.vm, GSI_PM, &irq);
	if (!error)
		error = pm_new(&irq, &b->cfg.events, &b->pm, err);
	if (!error)
		error = pci_new(b->cfg.mmio, MM_ECAM, MM_PCI_MMIO, MM_PCI_MMIO_LEN, &b->pci, err);
	if (!error)
		error = pvpanic_new(&b->cfg.events, &b->pvpanic, err);
	if (!error)
		error = pci_add(b->pci, pvpanic_pci(b->pvpanic), 1 << 3, err);
	return error;
}

/* The board. */
static int wire_ports(struct arch_board *b, struct err *err)
{
	static const uint16_t com[UART_COUNT] = UART_PORTS;
	const struct window table[] = {
		{ "COM1", com[0], UART_LEN, &uart_ops, b->uart[0] },
		{ "COM2", com[1], UART_LEN, &uart_ops, b->uart[1] },
		{ "COM3", com[2], UART_LEN, &uart_ops, b->uart[2] },
		{ "COM4", com[3], UART_LEN, &uart_ops, b->uart[3] },
		{ "i8042", PORT_I8042, 5, &i8042_ops, b },
		{ "RTC", PORT_RTC, 2, &rtc_ops, b->rtc },
		{ "debug exit", PORT_DEBUG_EXIT, 4, &exit_ops, b },
		{ "power management", PORT_PM, PM_LEN, &pm_ops, b->pm },
		{ "PCI configuration", 0xcf8, 8, &pci_ops, b },
	};

	for (unsigned i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		if (bus_add(b->cfg.ports, &table[i]))
			return err_set(err, -EEXIST, "%s: its ports are taken", table[i].name);
	return 0;
}

int arch_board_new(const struct arch_board_config *cfg, struct arch_board **out, struct err *err)
{
	struct arch_board *b;
	int error;

	if (cfg->ncpus < 1 || cfg->ncpus > ARCH_MAX_CPUS)
		return err_set(err, -EINVAL, "a machine has between 1 and %d vCPUs, not %u", ARCH_MAX_CPUS, cfg->ncpus);
	b = calloc(1, sizeof(*b));
	if (!b)
		return err_set(err, -ENOMEM, "out of memory");
	b->cfg = *cfg;
	pthread_mutex_init(&b->lock, NULL);
	error = make_chips(b, err);
	if (!error)
		error = wire_ports(b, err);
	if (error)
		arch_board_free(b);
	else
		*out = b;
	return error;
}

void arch_board_free(struct arch_board *b)
{
	if (!b)
		return;
	pci_free(b->pci);
	pvpanic_free(b->pvpanic);
	pm_free(b->pm);
	rtc_free(b->rtc);
	for (unsigned i = 0; i < UART_COUNT; i++)
		uart_free(b->uart[i]);
	free(b);
}

/*
 * All the firmware there is. Linux on hardware-reduced ACPI thinks that only
 * EFI can reset, finds none, and falls back on the BIOS: it jumps to F000:FFF0
 * in real mode. There the keyboard controller's reset line is pulled.
 */
static void write_reset_vector(struct arch_board *b)
{
	static const uint8_t code[] = {
		0xb0, 0xfe, /*    mov $0xfe, %al */
		0xe6, 0x64, /*    out %al, $0x64 */
		0xf4,       /* 1: hlt */
		0xeb, 0xfd, /*    jmp 1b */
	};

	memcpy(gmem_ptr(b->cfg.mem, MM_RESET_VECTOR, sizeof(code)), code, sizeof(code));
}

int arch_board_load(struct arch_board *b, const struct arch_image *im, struct err *err)
{
	uint8_t *acpi = gmem_ptr(b->cfg.mem, MM_BIOS_TABLES, MM_MPTABLE - MM_BIOS_TABLES);
	uint8_t *mp = gmem_ptr(b->cfg.mem, MM_MPTABLE, MM_RESET_VECTOR - MM_MPTABLE);
	long n;

	n = acpi_build(b->cfg.ncpus, MM_BIOS_TABLES, acpi, MM_MPTABLE - MM_BIOS_TABLES);
	assert(n > 0); /* the room is made for ARCH_MAX_CPUS */
	n = mptable_build(b->cfg.ncpus, MM_MPTABLE, mp, MM_RESET_VECTOR - MM_MPTABLE);
	assert(n > 0);
	(void)n;
	write_reset_vector(b);
	b->kernel = &im->kernel;
	b->cpuid = im->host;
	b->cpuid.ncpus = b->cfg.ncpus;
	b->cpuid.tsc_deadline = vm_check_cap(b->cfg.vm, KVM_CAP_TSC_DEADLINE_TIMER);
	return boot_load(&im->kernel, &im->initrd, im->cmdline, MM_BIOS_TABLES, b->cfg.mem, err);
}

int arch_board_cpu(struct arch_board *b, struct vcpu *v, struct err *err)
{
	int khz = vcpu_tsc_khz(v);

	b->cpuid.tsc_khz = khz > 0 ? (uint32_t)khz : 0;
	b->cpuid.bus_khz = KVM_APIC_BUS_KHZ;
	return vcpu_state_init(b->cfg.vm, v, &b->cpuid, vcpu_index(v) == 0 ? b->kernel : NULL, err);
}

void arch_board_power_button(struct arch_board *b)
{
	pm_button(b->pm);
}

int arch_board_sysrq(struct arch_board *b, char key)
{
	return uart_break(b->uart[0], (uint8_t)key);
}

int arch_can_run_linux(struct err *err)
{
	return probe_has_virt() ? 1 : probe_run(err);
}
