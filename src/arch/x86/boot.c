// SPDX-License-Identifier: GPL-2.0-or-later
#include "arch/x86/boot.h"
#include "arch/x86/memmap.h"
#include "base/io.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>

/*
 * Linux: Documentation/arch/x86/boot.rst, "32-bit" and "64-bit Boot Protocol",
 * and zero-page.rst. PVH: Xen's docs/misc/pvh.pandoc and
 * xen/include/public/arch-x86/hvm/start_info.h.
 */

#define PAGE 4096ull

/* Selectors that Linux asks for. */
#define SEL_CODE    0x10
#define SEL_DATA    0x18
#define SEL_TSS     0x20

#define CR0_PE      0x1ull
#define CR0_ET      0x10ull
#define CR0_PG      0x80000000ull
#define CR4_PAE     0x20ull
#define EFER_LME    0x100ull
#define EFER_LMA    0x400ull

#define PTE_PRESENT 0x1ull
#define PTE_WRITE   0x2ull
#define PTE_HUGE    0x80ull

#define PVH_MAGIC   0x336ec578u

struct pvh_start_info {
	uint32_t magic, version, flags, nr_modules;
	uint64_t modlist_paddr, cmdline_paddr, rsdp_paddr, memmap_paddr;
	uint32_t memmap_entries, reserved;
};

struct pvh_module {
	uint64_t paddr, size, cmdline_paddr, reserved;
};

struct pvh_memmap_entry {
	uint64_t addr, size;
	uint32_t type, reserved;
};

struct pvh_page {
	struct pvh_start_info info;
	struct pvh_module module;
	struct pvh_memmap_entry map[E820_MAX];
};

/* Boot structures lie in the first MiB, which every machine has. */
static void *low(const struct gmem *mem, uint64_t gpa, uint64_t len)
{
	void *p = gmem_ptr(mem, gpa, len);

	assert(p);
	return p;
}

uint64_t boot_initrd_addr(const struct kernel *k, uint64_t size, uint64_t low_ram)
{
	uint64_t top = k->initrd_max + 1 < low_ram ? k->initrd_max + 1 : low_ram;
	uint64_t addr;

	if (size > top)
		return 0;
	addr = (top - size) & ~(PAGE - 1);
	return addr >= k->end ? addr : 0;
}

static uint64_t page_up(uint64_t addr)
{
	return (addr + PAGE - 1) & ~(PAGE - 1);
}

/* Sets @addr, before anything is read: too little memory is told once, with all that is needed. */
static int place_initrd(const struct kernel *k, const struct initrd *rd, const struct gmem *mem, uint64_t *addr,
                        struct err *err)
{
	uint64_t max = k->initrd_max + 1 < MM_LOW_RAM_END ? k->initrd_max + 1 : MM_LOW_RAM_END;
	uint64_t end = page_up(k->end);

	*addr = boot_initrd_addr(k, rd->size, mem->bank[0].len);
	if (*addr)
		return 0;
	if (end > max || rd->size > max - end)
		return err_set(err, -EFBIG, "initrd %s: too large: this kernel takes at most %llu MiB", rd->path,
		               (unsigned long long)(max > end ? (max - end) >> 20 : 0));
	return err_set(err, -ENOMEM, "kernel and initrd need at least %llu MiB of memory (-m), not %llu",
	               (unsigned long long)((end + rd->size + (1 << 20) - 1) >> 20),
	               (unsigned long long)(mem->bank[0].len >> 20));
}

static int load_initrd(const struct initrd *rd, uint8_t *to, struct err *err)
{
	int error;

	if (rd->write)
		return rd->write(rd->opaque, to, err);
	error = read_at(rd->fd, to, rd->size, 0);
	return error ? err_sys(err, error, "initrd %s", rd->path) : 0;
}

static int write_cmdline(const struct kernel *k, const char *cmdline, const struct gmem *mem, struct err *err)
{
	size_t len = strlen(cmdline), max = k->cmdline_max < MM_CMDLINE_MAX - 1 ? k->cmdline_max : MM_CMDLINE_MAX - 1;

	if (len > max)
		return err_set(err, -E2BIG, "the kernel's parameters have %zu characters, it takes at most %zu", len,
		               max);
	memcpy(low(mem, MM_CMDLINE, len + 1), cmdline, len + 1);
	return 0;
}

static void write_boot_params(const struct kernel *k, const struct gmem *mem, uint64_t initrd, uint64_t initrd_size,
                              uint64_t rsdp)
{
	struct boot_params *bp = low(mem, MM_BOOT_PARAMS, sizeof(*bp));
	struct e820_entry e[E820_MAX];

	memset(bp, 0, sizeof(*bp));
	bp->hdr = k->hdr;
	bp->hdr.type_of_loader = 0xff; /* a loader without a number of its own */
	bp->hdr.cmd_line_ptr = MM_CMDLINE;
	bp->hdr.vid_mode = 0xffff; /* "normal" */
	bp->hdr.ramdisk_image = (uint32_t)initrd;
	bp->hdr.ramdisk_size = (uint32_t)initrd_size;
	bp->hdr.code32_start = (uint32_t)k->seg[0].paddr;
	bp->acpi_rsdp_addr = rsdp;
	bp->e820_entries = (uint8_t)memmap_e820(mem, e);
	for (unsigned i = 0; i < bp->e820_entries; i++) {
		bp->e820_table[i].addr = e[i].addr;
		bp->e820_table[i].size = e[i].len;
		bp->e820_table[i].type = e[i].type;
	}
}

static void write_pvh_info(const struct gmem *mem, uint64_t initrd, uint64_t initrd_size, uint64_t rsdp)
{
	struct pvh_page *p = low(mem, MM_PVH_INFO, sizeof(*p));
	struct e820_entry e[E820_MAX];
	unsigned n = memmap_e820(mem, e);

	*p = (struct pvh_page){
		.info = { .magic = PVH_MAGIC,
		          .version = 1,
		          .cmdline_paddr = MM_CMDLINE,
		          .rsdp_paddr = rsdp,
		          .memmap_paddr = MM_PVH_INFO + offsetof(struct pvh_page, map),
		          .memmap_entries = n },
	};
	if (initrd_size) {
		p->info.nr_modules = 1;
		p->info.modlist_paddr = MM_PVH_INFO + offsetof(struct pvh_page, module);
		p->module = (struct pvh_module){ .paddr = initrd, .size = initrd_size };
	}
	for (unsigned i = 0; i < n; i++)
		p->map[i] = (struct pvh_memmap_entry){ .addr = e[i].addr, .size = e[i].len, .type = e[i].type };
}

/* Identity map of the first 4 GiB in 2 MiB pages, for the 64-bit entry. */
static void write_page_tables(const struct gmem *mem)
{
	uint64_t *pml4 = low(mem, MM_PAGE_TABLES, 6 * PAGE), *pdpt = pml4 + 512, *pd = pdpt + 512;

	memset(pml4, 0, 2 * PAGE);
	pml4[0] = (MM_PAGE_TABLES + PAGE) | PTE_PRESENT | PTE_WRITE;
	for (uint64_t i = 0; i < 4; i++)
		pdpt[i] = (MM_PAGE_TABLES + (2 + i) * PAGE) | PTE_PRESENT | PTE_WRITE;
	for (uint64_t i = 0; i < 4 * 512; i++)
		pd[i] = i << 21 | PTE_PRESENT | PTE_WRITE | PTE_HUGE;
}

static bool is_long(const struct kernel *k)
{
	return k->kind == KERNEL_LINUX64;
}

/* What boot_regs() loads into the segment registers, for whoever reloads them. */
static void write_gdt(const struct kernel *k, const struct gmem *mem)
{
	const uint64_t code = is_long(k) ? 0x00af9b000000ffffull : 0x00cf9b000000ffffull;
	uint64_t *gdt = low(mem, MM_GDT, PAGE);

	memset(gdt, 0, PAGE);
	gdt[SEL_CODE / 8] = code;
	gdt[SEL_DATA / 8] = 0x00cf93000000ffffull;
	gdt[SEL_TSS / 8] = 0x00008b0000000067ull;
}

int boot_load(const struct kernel *k, const struct initrd *initrd, const char *cmdline, uint64_t rsdp,
              const struct gmem *mem, struct err *err)
{
	bool has_initrd = initrd->fd >= 0 || initrd->write;
	uint64_t addr = 0, size = has_initrd ? initrd->size : 0;
	int error = has_initrd ? place_initrd(k, initrd, mem, &addr, err) : 0;

	if (!error)
		error = kernel_load(k, mem, err);
	if (!error && has_initrd)
		error = load_initrd(initrd, low(mem, addr, size), err);
	if (!error)
		error = write_cmdline(k, cmdline, mem, err);
	if (error)
		return error;
	write_gdt(k, mem);
	if (k->kind == KERNEL_PVH)
		write_pvh_info(mem, addr, size, rsdp);
	else
		write_boot_params(k, mem, addr, size, rsdp);
	if (is_long(k))
		write_page_tables(mem);
	return 0;
}

static void set_segments(struct kvm_sregs *s, bool long_mode)
{
	struct kvm_segment code = { .limit = 0xffffffff,
		                    .selector = SEL_CODE,
		                    .type = 0xb,
		                    .present = 1,
		                    .s = 1,
		                    .g = 1,
		                    .l = long_mode,
		                    .db = !long_mode };
	struct kvm_segment data = {
		.limit = 0xffffffff, .selector = SEL_DATA, .type = 0x3, .present = 1, .s = 1, .g = 1, .db = 1
	};

	s->cs = code;
	s->ds = s->es = s->fs = s->gs = s->ss = data;
	s->tr = (struct kvm_segment){ .limit = 0x67, .selector = SEL_TSS, .type = 0xb, .present = 1 };
	s->gdt = (struct kvm_dtable){ .base = MM_GDT, .limit = PAGE - 1 };
	s->idt = (struct kvm_dtable){ .base = 0, .limit = 0 };
}

void boot_regs(const struct kernel *k, struct kvm_regs *regs, struct kvm_sregs *s)
{
	*regs = (struct kvm_regs){ .rip = k->entry, .rflags = 2 };
	if (k->kind == KERNEL_PVH)
		regs->rbx = MM_PVH_INFO;
	else
		regs->rsi = MM_BOOT_PARAMS;
	set_segments(s, is_long(k));
	s->cr0 = CR0_PE | CR0_ET;
	s->cr4 = 0;
	if (is_long(k)) {
		s->cr0 |= CR0_PG;
		s->cr3 = MM_PAGE_TABLES;
		s->cr4 = CR4_PAE;
		s->efer = EFER_LME | EFER_LMA;
	}
}
