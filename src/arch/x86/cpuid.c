// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * How it works: KVM_GET_SUPPORTED_CPUID lists what a guest may see on this
 * host. That list is copied leaf by leaf, less the leaves that make no sense
 * here, and then a row of small functions corrects the copy: what the guest
 * may save (XCR0), who it is (APIC id), how its CPUs and caches hang together,
 * how fast its clocks run, what KVM offers. Each of them adds the leaf it
 * needs where KVM has not listed it.
 *
 * The topology is one package of ncpus cores with one thread each, and the
 * APIC id of a vCPU is its index. Caches of level 1 and 2 are private, the
 * others are everybody's.
 *
 * A full list is remembered in build.full and what no longer fits goes to
 * build.scrap, so that only cpuid_build() deals with -ENOSPC.
 *
 * Not done here: the bits that follow CR4 and XCR0 at run time (OSXSAVE, OSPKE,
 * size of the current XSAVE area) are given as after reset; KVM updates them.
 */
#include "arch/x86/cpuid.h"

#include <asm/kvm_para.h>
#include <asm/prctl.h>
#include <assert.h>
#include <cpuid.h>
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BIT(n)   (1u << (n))
#define BIT64(n) (1ull << (n))
#define LEN(a)   (sizeof(a) / sizeof((a)[0]))

/* XCR0, Intel SDM volume 1, 13.1. */
#define XCR0_BASE               0x3ull /* x87 and SSE: without them no XSAVE */
#define XCR0_AVX                BIT64(2)
#define XCR0_MPX                (BIT64(3) | BIT64(4))
#define XCR0_AVX512             (BIT64(5) | BIT64(6) | BIT64(7))
#define XCR0_PKRU               BIT64(9)
#define XCR0_AMX                (BIT64(17) | BIT64(18))
#define XCR0_APX                BIT64(19)
#define XCR0_LWP                BIT64(62)
#define XTILE_DATA              18

#define XSAVE_LEGACY            512 /* bytes of the x87 and SSE region */
#define XSAVE_HEADER            64

#define VENDOR_AMD              0x68747541u /* leaf 0 EBX: "Auth"enticAMD */
#define VENDOR_HYGON            0x6f677948u /* "Hygo"nGenuine */
#define CPUID1_ECX_TSC_DEADLINE BIT(24)
#define CPUID1_ECX_X2APIC       BIT(21)
#define CPUID1_ECX_OSXSAVE      BIT(27)
#define CPUID1_ECX_HYPERVISOR   BIT(31)
#define CPUID1_EDX_HTT          BIT(28)
#define CPUID6_EAX_ARAT         BIT(2)
#define CPUID7_EBX_SGX          BIT(2)
#define CPUID7_ECX_OSPKE        BIT(4)
#define CPUID7_ECX_SGX_LC       BIT(30)
#define CPUIDD1_EAX_COMPACT     (BIT(1) | BIT(3)) /* XSAVEC, XSAVES */
#define CPUID81_ECX_CMP_LEGACY  BIT(1)
#define CPUID81_ECX_TOPOEXT     BIT(22)
#define HOST_ID_LEAF            0x80000002u
#define CPUID_TIMING            0x40000010u /* "generic" timing leaf, after VMware's */
#define LEVEL_SMT               1u          /* leaf 0xb, ECX bits 15:8 */
#define LEVEL_CORE              2u
#define MIN_BASIC_LEAF          0xbu /* we always have topology to tell */
#define CACHE_TYPE(eax)         ((eax)&0x1f)
#define CACHE_LEVEL(eax)        (((eax) >> 5) & 7)
#define CACHE_SHARING_SHIFT     14 /* EAX, 12 bits, less one */
#define CACHE_CORES_SHIFT       26 /* EAX, 6 bits, less one, leaf 4 only */
#define CACHE_CORES_MAX         64u

enum reg { EAX, EBX, ECX, EDX };

struct build {
	const struct cpuid_config *cfg;
	struct kvm_cpuid2 *out;
	unsigned cap;     /* entries @out has room for */
	unsigned apic_id; /* of the vCPU at hand */
	unsigned id_bits; /* APIC id bits that tell the cores of a package apart */
	uint64_t xcr0;
	bool amd;
	bool full;
	struct kvm_cpuid_entry2 scrap;
};

/* Leaves not copied: those we write anew, and those whose XCR0 bits are missing. */
#define ALWAYS (~0ull)
static const struct drop {
	uint32_t fn;
	uint64_t xcr0;
} drops[] = {
	{ 0xb, ALWAYS },          /* topology */
	{ 0x1f, ALWAYS },         /* topology */
	{ 0x80000026, ALWAYS },   /* AMD's other topology leaf: absent, guests fall back to 0xb */
	{ 0x12, ALWAYS },         /* SGX: a guest would need EPC sections */
	{ 0x8000001f, ALWAYS },   /* SEV: Linux would read an MSR that only encrypted guests have */
	{ 0x1d, XCR0_AMX },       /* tile palettes */
	{ 0x1e, XCR0_AMX },       /* tile multiplication */
	{ 0x24, XCR0_AVX512 },    /* AVX10 */
	{ 0x29, XCR0_APX },       /* APX */
	{ 0x8000001c, XCR0_LWP }, /* LWP */
};

/* A group of XCR0 bits goes all together, and only with those it rests upon. */
static const struct xcr0_group {
	uint64_t bits, needs;
} xcr0_groups[] = {
	{ XCR0_AVX, XCR0_BASE }, { XCR0_MPX, XCR0_BASE }, { XCR0_AVX512, XCR0_AVX }, { XCR0_PKRU, XCR0_BASE },
	{ XCR0_AMX, XCR0_BASE }, { XCR0_APX, XCR0_BASE }, { XCR0_LWP, XCR0_BASE },
};

/* Features that are useless, or worse, without state the guest can save. Bits as in Intel's and AMD's manuals. */
static const struct gate {
	uint32_t fn, index;
	enum reg reg;
	uint32_t bits;
	uint64_t xcr0;
} gates[] = {
	/* XSAVE */
	{ 1, 0, ECX, BIT(26), XCR0_BASE },
	/* FMA, AVX, F16C */
	{ 1, 0, ECX, BIT(12) | BIT(28) | BIT(29), XCR0_AVX },
	/* AVX2 */
	{ 7, 0, EBX, BIT(5), XCR0_AVX },
	/* VAES, VPCLMULQDQ */
	{ 7, 0, ECX, BIT(9) | BIT(10), XCR0_AVX },
	/* SHA512, SM3, SM4, AVX-VNNI, AVX-IFMA */
	{ 7, 1, EAX, BIT(0) | BIT(1) | BIT(2) | BIT(4) | BIT(23), XCR0_AVX },
	/* AVX-VNNI-INT8, AVX-NE-CONVERT, AVX-VNNI-INT16 */
	{ 7, 1, EDX, BIT(4) | BIT(5) | BIT(10), XCR0_AVX },
	/* XOP, FMA4 */
	{ 0x80000001, 0, ECX, BIT(11) | BIT(16), XCR0_AVX },
	/* MPX */
	{ 7, 0, EBX, BIT(14), XCR0_MPX },
	/* AVX512 F, DQ, IFMA, PF, ER, CD, BW, VL */
	{ 7, 0, EBX, BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31), XCR0_AVX512 },
	/* VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ */
	{ 7, 0, ECX, BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14), XCR0_AVX512 },
	/* 4VNNIW, 4FMAPS, VP2INTERSECT, FP16 */
	{ 7, 0, EDX, BIT(2) | BIT(3) | BIT(8) | BIT(23), XCR0_AVX512 },
	/* BF16 */
	{ 7, 1, EAX, BIT(5), XCR0_AVX512 },
	/* AVX10 */
	{ 7, 1, EDX, BIT(19), XCR0_AVX512 },
	/* PKU */
	{ 7, 0, ECX, BIT(3), XCR0_PKRU },
	/* AMX BF16, TILE, INT8 */
	{ 7, 0, EDX, BIT(22) | BIT(24) | BIT(25), XCR0_AMX },
	/* AMX FP16 */
	{ 7, 1, EAX, BIT(21), XCR0_AMX },
	/* AMX COMPLEX */
	{ 7, 1, EDX, BIT(8), XCR0_AMX },
	/* XFD: there is only tile data to disable */
	{ 0xd, 1, EAX, BIT(4), XCR0_AMX },
	/* APX */
	{ 7, 1, EDX, BIT(21), XCR0_APX },
	/* LWP */
	{ 0x80000001, 0, ECX, BIT(15), XCR0_LWP },
};

static bool entry_is(const struct kvm_cpuid_entry2 *e, uint32_t fn, uint32_t index)
{
	if (e->function != fn)
		return false;
	return !(e->flags & KVM_CPUID_FLAG_SIGNIFCANT_INDEX) || e->index == index;
}

static const struct kvm_cpuid_entry2 *leaf_in(const struct kvm_cpuid2 *list, uint32_t fn, uint32_t index)
{
	for (unsigned i = 0; i < list->nent; i++) {
		if (entry_is(&list->entries[i], fn, index))
			return &list->entries[i];
	}
	return NULL;
}

/* The leaf in the guest's list, or NULL. */
static struct kvm_cpuid_entry2 *leaf_find(struct build *b, uint32_t fn, uint32_t index)
{
	for (unsigned i = 0; i < b->out->nent; i++) {
		if (entry_is(&b->out->entries[i], fn, index))
			return &b->out->entries[i];
	}
	return NULL;
}

/* A new, empty leaf; never NULL. */
static struct kvm_cpuid_entry2 *leaf_add(struct build *b, uint32_t fn, uint32_t index, uint32_t flags)
{
	struct kvm_cpuid_entry2 *e = &b->scrap;

	if (b->out->nent < b->cap)
		e = &b->out->entries[b->out->nent++];
	else
		b->full = true;
	*e = (struct kvm_cpuid_entry2){ .function = fn, .index = index, .flags = flags };
	return e;
}

/* The leaf, added empty where it is missing; never NULL. */
static struct kvm_cpuid_entry2 *leaf_get(struct build *b, uint32_t fn)
{
	struct kvm_cpuid_entry2 *e = leaf_find(b, fn, 0);

	return e ? e : leaf_add(b, fn, 0, 0);
}

static struct kvm_cpuid_entry2 *subleaf_get(struct build *b, uint32_t fn, uint32_t index)
{
	struct kvm_cpuid_entry2 *e = leaf_find(b, fn, index);

	return e ? e : leaf_add(b, fn, index, KVM_CPUID_FLAG_SIGNIFCANT_INDEX);
}

static uint32_t *entry_reg(struct kvm_cpuid_entry2 *e, enum reg reg)
{
	uint32_t *const regs[] = { &e->eax, &e->ebx, &e->ecx, &e->edx };

	return regs[reg];
}

static void entry_clear(struct kvm_cpuid_entry2 *e)
{
	e->eax = e->ebx = e->ecx = e->edx = 0;
}

static uint64_t pair(uint32_t low, uint32_t high)
{
	return low | (uint64_t)high << 32;
}

/* Bits needed to count to @n. */
static unsigned order(unsigned n)
{
	unsigned bits = 0;

	while ((1u << bits) < n)
		bits++;
	return bits;
}

static void set_bits(uint32_t *reg, uint32_t bits, bool on)
{
	*reg = on ? *reg | bits : *reg & ~bits;
}

static bool is_amd(uint32_t vendor_ebx)
{
	return vendor_ebx == VENDOR_AMD || vendor_ebx == VENDOR_HYGON;
}

/* What both KVM and the configuration allow, less groups that are not whole. */
static uint64_t usable_xcr0(const struct kvm_cpuid2 *supported, uint64_t wanted)
{
	const struct kvm_cpuid_entry2 *e = leaf_in(supported, 0xd, 0);
	uint64_t xcr0 = e ? wanted & pair(e->eax, e->edx) : 0;

	if ((xcr0 & XCR0_BASE) != XCR0_BASE)
		return 0;
	for (unsigned i = 0; i < LEN(xcr0_groups); i++) {
		uint64_t whole = xcr0_groups[i].bits | xcr0_groups[i].needs;

		if ((xcr0 & whole) != whole)
			xcr0 &= ~xcr0_groups[i].bits;
	}
	return xcr0;
}

static bool dropped(uint32_t fn, uint64_t xcr0)
{
	for (unsigned i = 0; i < LEN(drops); i++) {
		if (drops[i].fn == fn && (xcr0 & drops[i].xcr0) != drops[i].xcr0)
			return true;
	}
	return false;
}

static void copy_leaves(struct build *b, const struct kvm_cpuid2 *supported)
{
	for (unsigned i = 0; i < supported->nent; i++) {
		const struct kvm_cpuid_entry2 *e = &supported->entries[i];

		if (!dropped(e->function, b->xcr0) && !leaf_find(b, e->function, e->index))
			*leaf_add(b, e->function, e->index, e->flags) = *e;
	}
}

static void gate_features(struct build *b)
{
	for (unsigned i = 0; i < LEN(gates); i++) {
		const struct gate *g = &gates[i];
		struct kvm_cpuid_entry2 *e = leaf_find(b, g->fn, g->index);

		if (e && (b->xcr0 & g->xcr0) != g->xcr0)
			*entry_reg(e, g->reg) &= ~g->bits;
	}
}

/* Removes the subleaves of leaf 0xd that describe state which is not in @state. */
static void drop_xsave_state(struct build *b, uint64_t state)
{
	struct kvm_cpuid_entry2 *list = b->out->entries;
	unsigned n = 0;

	for (unsigned i = 0; i < b->out->nent; i++) {
		unsigned k = list[i].index;
		bool gone = list[i].function == 0xd && k >= 2 && (k >= 64 || !(state & BIT64(k)));

		if (!gone)
			list[n++] = list[i];
	}
	b->out->nent = n;
}

/* Size of the area that saves @state in the standard format: up to the end of the last component. */
static uint32_t xsave_size(struct build *b, uint64_t state)
{
	uint32_t size = XSAVE_LEGACY + XSAVE_HEADER;

	for (unsigned k = 2; k < 64; k++) {
		struct kvm_cpuid_entry2 *e = state & BIT64(k) ? leaf_find(b, 0xd, k) : NULL;

		if (e && e->eax + e->ebx > size)
			size = e->eax + e->ebx;
	}
	return size;
}

/* The same in the compacted format: one component after the other, some aligned to 64 bytes. */
static uint32_t xsave_compact_size(struct build *b, uint64_t state)
{
	uint32_t size = XSAVE_LEGACY + XSAVE_HEADER;

	for (unsigned k = 2; k < 64; k++) {
		struct kvm_cpuid_entry2 *e = state & BIT64(k) ? leaf_find(b, 0xd, k) : NULL;

		if (!e)
			continue;
		if (e->ecx & BIT(1))
			size = (size + 63) & ~63u;
		size += e->eax;
	}
	return size;
}

/* Leaf 0xd says no more than the guest may put into XCR0. XSS, which is KVM's own affair, stays. */
static void fix_xsave(struct build *b)
{
	struct kvm_cpuid_entry2 *area, *ext = leaf_find(b, 0xd, 1);
	uint64_t xss = ext && b->xcr0 ? pair(ext->ecx, ext->edx) : 0;

	drop_xsave_state(b, b->xcr0 | xss);
	area = leaf_find(b, 0xd, 0);
	ext = leaf_find(b, 0xd, 1);
	if (area)
		entry_clear(area);
	if (ext && !b->xcr0)
		entry_clear(ext);
	if (!area || !b->xcr0)
		return;
	area->eax = (uint32_t)b->xcr0;
	area->edx = (uint32_t)(b->xcr0 >> 32);
	area->ebx = XSAVE_LEGACY + XSAVE_HEADER; /* XCR0 is 1 after reset */
	area->ecx = xsave_size(b, b->xcr0);
	if (ext)
		ext->ebx = ext->eax & CPUIDD1_EAX_COMPACT ? xsave_compact_size(b, b->xcr0 | xss) : 0;
}

static void fix_basic(struct build *b)
{
	struct kvm_cpuid_entry2 *e = leaf_get(b, 0);

	if (e->eax < MIN_BASIC_LEAF)
		e->eax = MIN_BASIC_LEAF;

	e = leaf_get(b, 1);
	/* KVM's APIC has x2APIC and the deadline timer, whatever the host's processor has. */
	set_bits(&e->ecx, CPUID1_ECX_X2APIC | CPUID1_ECX_HYPERVISOR, true);
	set_bits(&e->ecx, CPUID1_ECX_TSC_DEADLINE, b->cfg->tsc_deadline);
	set_bits(&e->ecx, CPUID1_ECX_OSXSAVE, false);
	set_bits(&e->edx, CPUID1_EDX_HTT, b->cfg->ncpus > 1);
	e->ebx = (e->ebx & 0xffff) | b->cfg->ncpus << 16 | b->apic_id << 24;

	/* Else Linux looks for another timer, a PIT, to wake it from idle. */
	leaf_get(b, 6)->eax |= CPUID6_EAX_ARAT;

	e = leaf_find(b, 7, 0);
	if (e) {
		set_bits(&e->ebx, CPUID7_EBX_SGX, false);
		set_bits(&e->ecx, CPUID7_ECX_SGX_LC | CPUID7_ECX_OSPKE, false);
	}
}

static bool have_caches(struct build *b, uint32_t fn)
{
	struct kvm_cpuid_entry2 *e = leaf_find(b, fn, 0);

	return e && CACHE_TYPE(e->eax);
}

static void add_host_caches(struct build *b, uint32_t fn)
{
	for (unsigned i = 0; i < LEN(b->cfg->host_cache) && CACHE_TYPE(b->cfg->host_cache[i][0]); i++) {
		struct kvm_cpuid_entry2 *e = subleaf_get(b, fn, i);

		e->flags |= KVM_CPUID_FLAG_SIGNIFCANT_INDEX;
		e->eax = b->cfg->host_cache[i][0];
		e->ebx = b->cfg->host_cache[i][1];
		e->ecx = b->cfg->host_cache[i][2];
		e->edx = b->cfg->host_cache[i][3];
	}
}

/*
 * Who shares a cache. Intel counts the APIC ids that could, AMD the CPUs that do; both tell readers to round up to a
 * power of two. Leaf 4 cannot count beyond 64 cores: it is then to say 64, and leaf 0xb has the truth.
 */
static void share_cache(struct build *b, struct kvm_cpuid_entry2 *e)
{
	unsigned ids = 1u << b->id_bits;
	unsigned all = e->function == 4 ? ids : b->cfg->ncpus;

	e->eax &= 0x3fff;
	e->eax |= CACHE_LEVEL(e->eax) <= 2 ? 0 : (all - 1) << CACHE_SHARING_SHIFT;
	if (e->function == 4)
		e->eax |= ((ids < CACHE_CORES_MAX ? ids : CACHE_CORES_MAX) - 1) << CACHE_CORES_SHIFT;
}

static void fix_caches(struct build *b)
{
	if (!b->amd && !have_caches(b, 4))
		add_host_caches(b, 4);
	if (b->amd && !have_caches(b, 0x8000001d) && leaf_get(b, 0x80000000)->eax >= 0x8000001e)
		add_host_caches(b, 0x8000001d);
	for (unsigned i = 0; i < b->out->nent; i++) {
		struct kvm_cpuid_entry2 *e = &b->out->entries[i];

		if ((e->function == 4 || e->function == 0x8000001d) && CACHE_TYPE(e->eax))
			share_cache(b, e);
	}
}

static void add_level(struct build *b, uint32_t fn, uint32_t index, uint32_t type, unsigned bits, unsigned cpus)
{
	struct kvm_cpuid_entry2 *e = subleaf_get(b, fn, index);

	e->eax = bits;
	e->ebx = cpus;
	e->ecx = type << 8 | index;
	e->edx = b->apic_id;
}

/* Leaf 0xb or 0x1f: threads of a core, cores of the package, no more levels. */
static void add_levels(struct build *b, uint32_t fn)
{
	add_level(b, fn, 0, LEVEL_SMT, 0, 1);
	add_level(b, fn, 1, LEVEL_CORE, b->id_bits, b->cfg->ncpus);
	add_level(b, fn, 2, 0, 0, 0);
}

static void fix_topology(struct build *b)
{
	add_levels(b, 0xb);
	if (leaf_get(b, 0)->eax >= 0x1f)
		add_levels(b, 0x1f);
}

/* AMD's leaf 0x80000008 counts cores in ECX; Intel's reserves it. */
static void fix_core_count(struct build *b)
{
	struct kvm_cpuid_entry2 *e = leaf_find(b, 0x80000008, 0);

	if (e && b->amd)
		e->ecx = (e->ecx & ~0xf0ffu) | b->id_bits << 12 | (b->cfg->ncpus - 1);
	else if (e)
		e->ecx = 0;
}

static void fix_amd_topology(struct build *b)
{
	struct kvm_cpuid_entry2 *e = leaf_get(b, 0x80000001);

	/* The CPUs that HTT speaks of are cores, not threads. */
	set_bits(&e->ecx, CPUID81_ECX_CMP_LEGACY, b->cfg->ncpus > 1);
	if (have_caches(b, 0x8000001d))
		set_bits(&e->ecx, CPUID81_ECX_TOPOEXT, true);
	if (!(e->ecx & CPUID81_ECX_TOPOEXT))
		return;
	e = leaf_get(b, 0x8000001e);
	entry_clear(e);
	e->eax = b->apic_id;
	e->ebx = b->apic_id; /* core id; threads per core less one, in bits 15:8, is 0 */
}

/* KVM leaves the brand string and some AMD cache figures empty; guests like to show them. */
static void fix_host_id(struct build *b)
{
	for (uint32_t i = 0; i < LEN(b->cfg->host_id); i++) {
		const uint32_t *host = b->cfg->host_id[i];
		struct kvm_cpuid_entry2 *e = leaf_find(b, HOST_ID_LEAF + i, 0);

		if (!e || e->eax || e->ebx || e->ecx || e->edx)
			continue;
		e->eax = host[0];
		e->ebx = host[1];
		e->ecx = host[2];
		e->edx = host[3];
	}
}

static bool near_khz(uint64_t khz, uint64_t ref)
{
	uint64_t diff = khz > ref ? khz - ref : ref - khz;

	return ref && diff <= ref / 100;
}

/*
 * Leaf 0x15 is believed by guests both as TSC frequency and, its crystal, as
 * APIC timer frequency. KVM's APIC timer has a clock of its own, so a host's
 * leaf hardly ever fits. A leaf that does not is emptied: "not enumerated".
 */
static bool crystal_fits(const struct cpuid_config *cfg, const struct kvm_cpuid_entry2 *e)
{
	if (!e->eax || !e->ebx || !e->ecx)
		return false;
	return near_khz(e->ecx / 1000, cfg->bus_khz) &&
	       near_khz((uint64_t)e->ecx * e->ebx / e->eax / 1000, cfg->tsc_khz);
}

static void fix_frequency(struct build *b)
{
	struct kvm_cpuid_entry2 *e = leaf_find(b, 0x15, 0);

	if (e && !crystal_fits(b->cfg, e))
		entry_clear(e);
	e = leaf_find(b, 0x16, 0);
	if (e && !near_khz((e->eax & 0xffff) * 1000ull, b->cfg->tsc_khz))
		entry_clear(e);
}

/*
 * KVM's own leaves. Three of its features are promises of the VMM, which we
 * do not make, and so is the hint that vCPUs have host CPUs to themselves.
 * The timing leaf saves FreeBSD, XNU and newer Linux a calibration.
 */
static void fix_hypervisor(struct build *b)
{
	struct kvm_cpuid_entry2 *e = leaf_get(b, KVM_CPUID_SIGNATURE);
	bool timing = b->cfg->tsc_khz && b->cfg->bus_khz;
	uint32_t max = timing ? CPUID_TIMING : KVM_CPUID_FEATURES;

	memcpy(&e->ebx, "KVMK", 4);
	memcpy(&e->ecx, "VMKV", 4);
	memcpy(&e->edx, "M\0\0", 4);
	if (e->eax < max)
		e->eax = max;

	e = leaf_get(b, KVM_CPUID_FEATURES);
	e->eax &= ~(BIT(KVM_FEATURE_MSI_EXT_DEST_ID) | BIT(KVM_FEATURE_HC_MAP_GPA_RANGE) |
	            BIT(KVM_FEATURE_MIGRATION_CONTROL));
	e->edx &= ~BIT(KVM_HINTS_REALTIME);

	if (timing) {
		e = leaf_get(b, CPUID_TIMING);
		e->eax = b->cfg->tsc_khz;
		e->ebx = b->cfg->bus_khz;
	}
}

int cpuid_build(const struct kvm_cpuid2 *supported, const struct cpuid_config *cfg, unsigned index,
                struct kvm_cpuid2 *out)
{
	const struct kvm_cpuid_entry2 *id = leaf_in(supported, 0, 0);
	struct build b = {
		.cfg = cfg,
		.out = out,
		.cap = out->nent,
		.apic_id = index,
		.id_bits = order(cfg->ncpus),
		.xcr0 = usable_xcr0(supported, cfg->xcr0),
		.amd = id && is_amd(id->ebx),
	};

	assert(cfg->ncpus >= 1 && cfg->ncpus < 255 && index < cfg->ncpus);
	out->nent = 0;
	out->padding = 0;
	copy_leaves(&b, supported);
	gate_features(&b);
	fix_xsave(&b);
	fix_basic(&b);
	fix_caches(&b);
	fix_topology(&b);
	fix_core_count(&b);
	if (b.amd)
		fix_amd_topology(&b);
	fix_host_id(&b);
	fix_frequency(&b);
	fix_hypervisor(&b);
	return b.full ? -ENOSPC : 0;
}

static uint64_t host_xcr0(void)
{
	uint32_t eax, ebx, ecx, edx;

	if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & CPUID1_ECX_OSXSAVE))
		return 0;
	__asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
	return pair(eax, edx);
}

/*
 * State whose area is large is given to guests only on request, once per
 * process and before its first vCPU. A kernel that has never heard of this
 * gives its guests no such state. Needs arch_prctl(2).
 */
static uint64_t ask_guest_xcr0(uint64_t host)
{
	uint64_t perm = 0;

	if (host & BIT64(XTILE_DATA))
		syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_GUEST_PERM, XTILE_DATA);
	if (syscall(SYS_arch_prctl, ARCH_GET_XCOMP_GUEST_PERM, &perm))
		return host & ~XCR0_AMX;
	return host & perm;
}

/* The leaf that describes this processor's caches; 0: none. */
static uint32_t host_cache_leaf(void)
{
	uint32_t eax, ebx, ecx, edx;

	if (!__get_cpuid(0, &eax, &ebx, &ecx, &edx))
		return 0;
	if (!is_amd(ebx))
		return eax >= 4 ? 4 : 0;
	if ((uint32_t)__get_cpuid_max(0x80000000, NULL) < 0x8000001e)
		return 0;
	__cpuid(0x80000001, eax, ebx, ecx, edx);
	return ecx & CPUID81_ECX_TOPOEXT ? 0x8000001d : 0;
}

static void read_host_caches(struct cpuid_config *cfg)
{
	uint32_t leaf = host_cache_leaf();

	memset(cfg->host_cache, 0, sizeof(cfg->host_cache));
	for (unsigned i = 0; leaf && i < LEN(cfg->host_cache); i++) {
		uint32_t *c = cfg->host_cache[i];

		__cpuid_count(leaf, i, c[0], c[1], c[2], c[3]);
		if (!CACHE_TYPE(c[0]))
			break;
	}
}

void cpuid_host(struct cpuid_config *cfg)
{
	cfg->xcr0 = ask_guest_xcr0(host_xcr0());
	read_host_caches(cfg);
	memset(cfg->host_id, 0, sizeof(cfg->host_id));
	for (uint32_t i = 0; i < LEN(cfg->host_id); i++) {
		uint32_t *r = cfg->host_id[i];

		__get_cpuid(HOST_ID_LEAF + i, &r[0], &r[1], &r[2], &r[3]);
	}
}
