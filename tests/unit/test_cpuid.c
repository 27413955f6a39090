// SPDX-License-Identifier: GPL-2.0-or-later
/* What guests are told about their CPUs, from made-up lists of an Intel and an AMD host. */
#include "arch/x86/cpuid.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LEN(a)   (sizeof(a) / sizeof((a)[0]))
#define CAP      128u
#define INDEXED  KVM_CPUID_FLAG_SIGNIFCANT_INDEX
#define XCR0_ALL 0x602e7ull /* x87 SSE AVX AVX512 PKRU AMX */
#define TSC_KHZ  2500000u
#define BUS_KHZ  1000000u

static const struct kvm_cpuid_entry2 intel_rows[] = {
	{ 0, 0, 0, 0x20, 0x756e6547, 0x6c65746e, 0x49656e69, { 0 } },
	/* APIC id 7, 64 CPUs; OSXSAVE and TSC_DEADLINE set, HYPERVISOR and x2APIC clear */
	{ 1, 0, 0, 0x000806f8, 0x07400800, 0x7fdaf3ff & ~(1u << 21), 0xbfebfbff, { 0 } },
	{ 2, 0, 0, 0x00feff01, 0xf0, 0, 0, { 0 } },
	{ 4, 0, INDEXED, 0xfc004121, 0x02c0003f, 0x3f, 0, { 0 } },
	{ 4, 1, INDEXED, 0xfc004122, 0x01c0003f, 0x3f, 0, { 0 } },
	{ 4, 2, INDEXED, 0xfc004143, 0x03c0003f, 0x7ff, 0, { 0 } },
	{ 4, 3, INDEXED, 0xfc1fc163, 0x0380003f, 0x1bfff, 4, { 0 } },
	{ 4, 4, INDEXED, 0, 0, 0, 0, { 0 } },
	{ 6, 0, 0, 0, 0, 0, 0, { 0 } },
	{ 7, 0, INDEXED, 2, 0xf3bfffff, 0x7bfb6f5e | 1u << 3, 0xffdd4ffc, { 0 } },
	{ 7, 1, INDEXED, 0xffffffff, 0, 0, 0xffffffff, { 0 } },
	{ 7, 2, INDEXED, 0, 0, 0, 0x3f, { 0 } },
	{ 0xa, 0, 0, 0x08300805, 0, 0xf, 0x8604, { 0 } },
	{ 0xb, 0, INDEXED, 1, 2, 0x100, 7, { 0 } },
	{ 0xb, 1, INDEXED, 7, 64, 0x201, 7, { 0 } },
	{ 0xb, 2, INDEXED, 9, 128, 0x302, 7, { 0 } },
	{ 0xb, 3, INDEXED, 0, 0, 3, 7, { 0 } },
	{ 0xd, 0, INDEXED, XCR0_ALL, 0x2b00, 0x2b00, 0, { 0 } },
	{ 0xd, 1, INDEXED, 0x1f, 0x2b80, 0x1800, 0, { 0 } },
	{ 0xd, 2, INDEXED, 256, 576, 0, 0, { 0 } },
	{ 0xd, 5, INDEXED, 64, 1088, 0, 0, { 0 } },
	{ 0xd, 6, INDEXED, 512, 1152, 0, 0, { 0 } },
	{ 0xd, 7, INDEXED, 1024, 1664, 0, 0, { 0 } },
	{ 0xd, 9, INDEXED, 8, 2688, 0, 0, { 0 } },
	{ 0xd, 11, INDEXED, 16, 0, 1, 0, { 0 } },
	{ 0xd, 12, INDEXED, 24, 0, 1, 0, { 0 } },
	{ 0xd, 17, INDEXED, 64, 2752, 2, 0, { 0 } },
	{ 0xd, 18, INDEXED, 8192, 2816, 6, 0, { 0 } },
	{ 0x12, 0, INDEXED, 3, 0, 0, 0, { 0 } },
	{ 0x15, 0, 0, 2, 200, 25000000, 0, { 0 } },
	{ 0x16, 0, 0, 2500, 3800, 100, 0, { 0 } },
	{ 0x1d, 0, INDEXED, 1, 0, 0, 0, { 0 } },
	{ 0x1d, 1, INDEXED, 0x04002000, 0x00080040, 16, 0, { 0 } },
	{ 0x1e, 0, INDEXED, 0, 0x4010, 0, 0, { 0 } },
	{ 0x1f, 0, INDEXED, 1, 2, 0x100, 7, { 0 } },
	{ 0x1f, 1, INDEXED, 7, 64, 0x201, 7, { 0 } },
	{ 0x1f, 2, INDEXED, 8, 128, 0x502, 7, { 0 } },
	{ 0x80000000, 0, 0, 0x80000008, 0, 0, 0, { 0 } },
	{ 0x80000001, 0, 0, 0, 0, 0x121, 0x2c100800, { 0 } },
	{ 0x80000002, 0, 0, 0, 0, 0, 0, { 0 } },
	{ 0x80000003, 0, 0, 1, 0, 0, 0, { 0 } },
	{ 0x80000008, 0, 0, 0x3934, 0x200, 0x7f, 0, { 0 } },
	{ 0x40000000, 0, 0, 0x40000001, 0x4b4d564b, 0x564b4d56, 0x4d, { 0 } },
	{ 0x40000001, 0, 0, 0x0103fefb, 0, 0, 1, { 0 } },
};

static const struct kvm_cpuid_entry2 amd_rows[] = {
	{ 0, 0, 0, 0x10, 0x68747541, 0x444d4163, 0x69746e65, { 0 } },
	{ 1, 0, 0, 0x00a20f12, 0x03200800, 0x76fa320b, 0x178bfbff, { 0 } },
	{ 4, 0, INDEXED, 0, 0, 0, 0, { 0 } },
	{ 7, 0, INDEXED, 0, 0x219c97a9, 0x0040068c, 0x10, { 0 } },
	{ 0xb, 0, INDEXED, 0, 0, 0, 3, { 0 } },
	{ 0xd, 0, INDEXED, 0x207, 0x988, 0x988, 0, { 0 } },
	{ 0xd, 1, INDEXED, 0xf, 0, 0x1800, 0, { 0 } },
	{ 0xd, 2, INDEXED, 256, 576, 0, 0, { 0 } },
	{ 0xd, 9, INDEXED, 8, 2432, 0, 0, { 0 } },
	{ 0xd, 11, INDEXED, 16, 0, 1, 0, { 0 } },
	{ 0xd, 12, INDEXED, 24, 0, 1, 0, { 0 } },
	{ 0x80000000, 0, 0, 0x80000021, 0x68747541, 0x444d4163, 0x69746e65, { 0 } },
	{ 0x80000001, 0, 0, 0x00a20f12, 0x40000000, 0x004003f1 & ~(1u << 22), 0x2fd3fbff, { 0 } },
	{ 0x80000008, 0, 0, 0x3030, 0x111ef657, 0x1701f, 0, { 0 } },
	{ 0x8000001d, 0, INDEXED, 0, 0, 0, 0, { 0 } },
	{ 0x8000001e, 0, 0, 3, 0x101, 0x300, 0, { 0 } },
	{ 0x8000001f, 0, 0, 0x1000f, 0x173, 509, 1, { 0 } },
	{ 0x80000026, 0, INDEXED, 1, 2, 0x100, 3, { 0 } },
	{ 0x40000000, 0, 0, 0x40000001, 0x4b4d564b, 0x564b4d56, 0x4d, { 0 } },
	{ 0x40000001, 0, 0, 0x01007efb, 0, 0, 0, { 0 } },
};

struct host {
	const struct kvm_cpuid_entry2 *rows;
	unsigned n;
};

static const struct host intel = { intel_rows, LEN(intel_rows) }, amd = { amd_rows, LEN(amd_rows) };

/* Leaf 4 or 0x8000001d as a processor has them: two private levels and a shared one. */
static const uint32_t host_cache[8][4] = {
	{ 0x4121, 0x01c0003f, 63, 0 },
	{ 0x4122, 0x01c0003f, 63, 0 },
	{ 0x4143, 0x01c0003f, 1023, 2 },
	{ 0x3c163, 0x03c0003f, 32767, 1 },
};

static struct kvm_cpuid2 *list_new(unsigned n)
{
	struct kvm_cpuid2 *l = calloc(1, sizeof(*l) + n * sizeof(l->entries[0]));

	assert_non_null(l);
	l->nent = n;
	return l;
}

static struct kvm_cpuid2 *supported_by(const struct host *h)
{
	struct kvm_cpuid2 *l = list_new(h->n);

	memcpy(l->entries, h->rows, h->n * sizeof(h->rows[0]));
	return l;
}

static struct cpuid_config config(unsigned ncpus)
{
	struct cpuid_config cfg = {
		.ncpus = ncpus, .tsc_deadline = true, .xcr0 = XCR0_ALL, .tsc_khz = TSC_KHZ, .bus_khz = BUS_KHZ
	};

	memcpy(cfg.host_cache, host_cache, sizeof(host_cache));
	memcpy(cfg.host_id[0], "Hypothetical CPU", 16);
	return cfg;
}

/* The caller frees it. */
static struct kvm_cpuid2 *build(const struct host *h, const struct cpuid_config *cfg, unsigned index)
{
	struct kvm_cpuid2 *supported = supported_by(h), *out = list_new(CAP);

	assert_int_equal(cpuid_build(supported, cfg, index, out), 0);
	free(supported);
	return out;
}

static const struct kvm_cpuid_entry2 *find(const struct kvm_cpuid2 *l, uint32_t fn, uint32_t index)
{
	for (unsigned i = 0; i < l->nent; i++) {
		if (l->entries[i].function == fn && l->entries[i].index == index)
			return &l->entries[i];
	}
	return NULL;
}

static const struct kvm_cpuid_entry2 *leaf(const struct kvm_cpuid2 *l, uint32_t fn, uint32_t index)
{
	const struct kvm_cpuid_entry2 *e = find(l, fn, index);

	assert_non_null(e);
	return e;
}

static uint32_t reg(const struct kvm_cpuid_entry2 *e, char name)
{
	switch (name) {
	case 'a': return e->eax;
	case 'b': return e->ebx;
	case 'c': return e->ecx;
	default: return e->edx;
	}
}

static unsigned roundup_pow2(unsigned n)
{
	unsigned p = 1;

	while (p < n)
		p *= 2;
	return p;
}

static unsigned bits_for(unsigned n)
{
	return (unsigned)__builtin_ctz(roundup_pow2(n));
}

static const struct {
	unsigned ncpus, index;
} shapes[] = {
	{ 1, 0 }, { 2, 0 }, { 2, 1 },   { 4, 0 },     { 4, 3 },     { 9, 0 },
	{ 9, 5 }, { 9, 8 }, { 254, 0 }, { 254, 200 }, { 254, 253 },
};

static void check_leaf1(const struct kvm_cpuid2 *l, unsigned ncpus, unsigned index)
{
	const struct kvm_cpuid_entry2 *e = leaf(l, 1, 0);

	assert_int_equal(e->ebx >> 24, index);
	assert_int_equal(e->ebx >> 16 & 0xff, ncpus);
	assert_int_equal(e->ebx & 0xffff, 0x800); /* CLFLUSH size, as on the host */
	assert_int_equal(e->edx >> 28 & 1, ncpus > 1);
}

static void check_levels(const struct kvm_cpuid2 *l, uint32_t fn, unsigned ncpus, unsigned index)
{
	const struct kvm_cpuid_entry2 *smt = leaf(l, fn, 0), *core = leaf(l, fn, 1), *end = leaf(l, fn, 2);

	assert_int_equal(smt->eax, 0);
	assert_int_equal(smt->ebx, 1);
	assert_int_equal(smt->ecx, 0x100);
	assert_int_equal(core->eax, bits_for(ncpus));
	assert_int_equal(core->ebx, ncpus);
	assert_int_equal(core->ecx, 0x201);
	assert_int_equal(end->ebx, 0);
	assert_int_equal(end->ecx, 2);
	assert_int_equal(smt->edx, index);
	assert_int_equal(core->edx, index);
	assert_int_equal(end->edx, index);
	assert_int_equal(core->flags & INDEXED, INDEXED);
	assert_null(find(l, fn, 3));
}

static void check_cache(const struct kvm_cpuid_entry2 *e, unsigned sharing)
{
	assert_int_equal((e->eax >> 14 & 0xfff) + 1, sharing);
}

static void test_topology_intel(void **state)
{
	for (unsigned i = 0; i < LEN(shapes); i++) {
		unsigned n = shapes[i].ncpus, ids = roundup_pow2(n);
		struct cpuid_config cfg = config(n);
		struct kvm_cpuid2 *l = build(&intel, &cfg, shapes[i].index);

		check_leaf1(l, n, shapes[i].index);
		check_levels(l, 0xb, n, shapes[i].index);
		check_levels(l, 0x1f, n, shapes[i].index);
		for (unsigned k = 0; k < 4; k++) {
			check_cache(leaf(l, 4, k), k == 3 ? ids : 1);
			assert_int_equal((leaf(l, 4, k)->eax >> 26) + 1, ids < 64 ? ids : 64);
			assert_int_equal(leaf(l, 4, k)->eax & 0x3fff, intel_rows[3 + k].eax & 0x3fff);
			assert_int_equal(leaf(l, 4, k)->ecx, intel_rows[3 + k].ecx);
		}
		assert_int_equal(leaf(l, 4, 4)->eax, 0);
		assert_int_equal(leaf(l, 0x80000008, 0)->ecx, 0);
		assert_int_equal(leaf(l, 0x80000001, 0)->ecx, 0x121);
		assert_null(find(l, 0x8000001e, 0));
		free(l);
	}
}

static void test_topology_amd(void **state)
{
	for (unsigned i = 0; i < LEN(shapes); i++) {
		unsigned n = shapes[i].ncpus, index = shapes[i].index;
		struct cpuid_config cfg = config(n);
		struct kvm_cpuid2 *l = build(&amd, &cfg, index);
		uint32_t features = leaf(l, 0x80000001, 0)->ecx, count = leaf(l, 0x80000008, 0)->ecx;

		check_leaf1(l, n, index);
		check_levels(l, 0xb, n, index);
		assert_null(find(l, 0x1f, 0));
		assert_null(find(l, 0x80000026, 0));
		assert_int_equal(features >> 1 & 1, n > 1); /* CmpLegacy */
		assert_int_equal(features >> 22 & 1, 1);    /* TopologyExtensions */
		assert_int_equal((count & 0xff) + 1, n);
		assert_int_equal(count >> 12 & 0xf, bits_for(n));
		assert_int_equal(count >> 16, 1); /* PerfTscSize, as on the host */
		for (unsigned k = 0; k < 4; k++) {
			check_cache(leaf(l, 0x8000001d, k), k == 3 ? n : 1);
			assert_int_equal(leaf(l, 0x8000001d, k)->eax >> 26, 0);
			assert_int_equal(leaf(l, 0x8000001d, k)->ecx, host_cache[k][2]);
		}
		assert_int_equal(leaf(l, 0x8000001e, 0)->eax, index);
		assert_int_equal(leaf(l, 0x8000001e, 0)->ebx, index); /* core id, one thread */
		assert_int_equal(leaf(l, 0x8000001e, 0)->ecx, 0);     /* node 0 of 1 */
		assert_int_equal(leaf(l, 4, 0)->eax, 0);
		free(l);
	}
}

/* KVM's own list knows no caches: they come from the host. */
static void test_caches_from_host(void **state)
{
	struct host bare = { intel_rows, 3 };
	struct cpuid_config cfg = config(2);
	struct kvm_cpuid2 *l = build(&bare, &cfg, 1);

	for (unsigned k = 0; k < 4; k++) {
		check_cache(leaf(l, 4, k), k == 3 ? 2 : 1);
		assert_int_equal(leaf(l, 4, k)->flags, INDEXED);
		assert_int_equal(leaf(l, 4, k)->ebx, host_cache[k][1]);
	}
	assert_null(find(l, 4, 4));
	free(l);
}

/* An AMD processor whose leaves end before 0x8000001e keeps the topology of its time. */
static void test_old_amd(void **state)
{
	struct kvm_cpuid2 *supported = supported_by(&amd), *out = list_new(CAP);
	struct cpuid_config cfg = config(4);

	for (unsigned i = 0; i < supported->nent; i++) {
		if (supported->entries[i].function == 0x80000000)
			supported->entries[i].eax = 0x8000000a;
	}
	assert_int_equal(cpuid_build(supported, &cfg, 2, out), 0);
	assert_int_equal(leaf(out, 0x80000001, 0)->ecx >> 22 & 1, 0);
	assert_int_equal(leaf(out, 0x8000001d, 0)->eax, 0);
	assert_int_equal(leaf(out, 0x80000008, 0)->ecx & 0xf0ff, 0x2003);
	free(supported);
	free(out);
}

/* Every feature with the XCR0 bits it cannot do without. All are set in intel_rows or by set_everything(). */
#define AVX    0x4ull
#define MPX    0x18ull
#define AVX512 0xe4ull
#define PKRU   0x200ull
#define AMX    0x60000ull
#define APX    0x80000ull
#define LWP    (1ull << 62)
static const struct feature {
	const char *name;
	uint32_t fn, index;
	char reg;
	unsigned bit;
	uint64_t xcr0;
} features[] = {
	{ "xsave", 1, 0, 'c', 26, 3 },
	{ "fma", 1, 0, 'c', 12, AVX },
	{ "avx", 1, 0, 'c', 28, AVX },
	{ "f16c", 1, 0, 'c', 29, AVX },
	{ "avx2", 7, 0, 'b', 5, AVX },
	{ "vaes", 7, 0, 'c', 9, AVX },
	{ "vpclmulqdq", 7, 0, 'c', 10, AVX },
	{ "sha512", 7, 1, 'a', 0, AVX },
	{ "sm3", 7, 1, 'a', 1, AVX },
	{ "sm4", 7, 1, 'a', 2, AVX },
	{ "avx-vnni", 7, 1, 'a', 4, AVX },
	{ "avx-ifma", 7, 1, 'a', 23, AVX },
	{ "avx-vnni-int8", 7, 1, 'd', 4, AVX },
	{ "avx-ne-convert", 7, 1, 'd', 5, AVX },
	{ "avx-vnni-int16", 7, 1, 'd', 10, AVX },
	{ "xop", 0x80000001, 0, 'c', 11, AVX },
	{ "fma4", 0x80000001, 0, 'c', 16, AVX },
	{ "mpx", 7, 0, 'b', 14, MPX },
	{ "avx512f", 7, 0, 'b', 16, AVX512 },
	{ "avx512dq", 7, 0, 'b', 17, AVX512 },
	{ "avx512ifma", 7, 0, 'b', 21, AVX512 },
	{ "avx512pf", 7, 0, 'b', 26, AVX512 },
	{ "avx512er", 7, 0, 'b', 27, AVX512 },
	{ "avx512cd", 7, 0, 'b', 28, AVX512 },
	{ "avx512bw", 7, 0, 'b', 30, AVX512 },
	{ "avx512vl", 7, 0, 'b', 31, AVX512 },
	{ "avx512vbmi", 7, 0, 'c', 1, AVX512 },
	{ "avx512vbmi2", 7, 0, 'c', 6, AVX512 },
	{ "avx512vnni", 7, 0, 'c', 11, AVX512 },
	{ "avx512bitalg", 7, 0, 'c', 12, AVX512 },
	{ "avx512vpopcntdq", 7, 0, 'c', 14, AVX512 },
	{ "avx5124vnniw", 7, 0, 'd', 2, AVX512 },
	{ "avx5124fmaps", 7, 0, 'd', 3, AVX512 },
	{ "avx512vp2intersect", 7, 0, 'd', 8, AVX512 },
	{ "avx512fp16", 7, 0, 'd', 23, AVX512 },
	{ "avx512bf16", 7, 1, 'a', 5, AVX512 },
	{ "avx10", 7, 1, 'd', 19, AVX512 },
	{ "pku", 7, 0, 'c', 3, PKRU },
	{ "amx-bf16", 7, 0, 'd', 22, AMX },
	{ "amx-tile", 7, 0, 'd', 24, AMX },
	{ "amx-int8", 7, 0, 'd', 25, AMX },
	{ "amx-fp16", 7, 1, 'a', 21, AMX },
	{ "amx-complex", 7, 1, 'd', 8, AMX },
	{ "xfd", 0xd, 1, 'a', 4, AMX },
	{ "apx", 7, 1, 'd', 21, APX },
	{ "lwp", 0x80000001, 0, 'c', 15, LWP },
};

/* A host that has all there is, and permits all of it. */
static struct kvm_cpuid2 *omnipotent(void)
{
	struct kvm_cpuid2 *l = supported_by(&intel);

	for (unsigned i = 0; i < l->nent; i++) {
		struct kvm_cpuid_entry2 *e = &l->entries[i];

		if (e->function == 1 || e->function == 0x80000001)
			e->ecx = ~0u;
		if (e->function == 7 && e->index < 2)
			e->eax = e->ebx = e->ecx = e->edx = ~0u;
		if (e->function == 0xd && e->index == 0)
			e->eax = e->edx = ~0u;
	}
	return l;
}

static uint32_t gated_bits(uint32_t fn, uint32_t index, char r, uint64_t xcr0)
{
	uint32_t gone = 0;

	for (unsigned i = 0; i < LEN(features); i++) {
		const struct feature *f = &features[i];

		if (f->fn == fn && f->index == index && f->reg == r && (xcr0 & f->xcr0) != f->xcr0)
			gone |= 1u << f->bit;
	}
	return gone;
}

/* What cpuid_build() changes in these registers whatever XCR0 is. */
static uint32_t ungated(uint32_t fn, uint32_t index, char r, uint32_t val)
{
	if (fn == 1 && r == 'c')
		val &= ~(1u << 27); /* OSXSAVE */
	if (fn == 7 && index == 0 && r == 'b')
		val &= ~(1u << 2); /* SGX */
	if (fn == 7 && index == 0 && r == 'c')
		val &= ~(1u << 4 | 1u << 30); /* OSPKE, SGX_LC */
	return val;
}

static void check_gates(uint64_t wanted, uint64_t given)
{
	static const struct {
		uint32_t fn, index;
		const char *regs;
	} checked[] = { { 1, 0, "c" }, { 7, 0, "abcd" }, { 7, 1, "abcd" }, { 7, 2, "abcd" }, { 0x80000001, 0, "acd" } };
	struct kvm_cpuid2 *supported = omnipotent(), *out = list_new(CAP);
	struct cpuid_config cfg = config(4);

	cfg.xcr0 = wanted;
	assert_int_equal(cpuid_build(supported, &cfg, 0, out), 0);
	for (unsigned i = 0; i < LEN(checked); i++) {
		uint32_t fn = checked[i].fn, index = checked[i].index;

		for (const char *r = checked[i].regs; *r; r++) {
			uint32_t was = ungated(fn, index, *r, reg(leaf(supported, fn, index), *r));

			assert_int_equal(reg(leaf(out, fn, index), *r), was & ~gated_bits(fn, index, *r, given));
		}
	}
	assert_int_equal(leaf(out, 0xd, 0)->eax, (uint32_t)given);
	assert_int_equal(leaf(out, 0xd, 0)->edx, given >> 32);
	if (given)
		assert_int_equal(leaf(out, 0xd, 1)->eax >> 4 & 1, (given & AMX) == AMX);
	assert_int_equal(find(out, 0x1d, 1) != NULL, (given & AMX) == AMX);
	assert_int_equal(find(out, 0x1e, 0) != NULL, (given & AMX) == AMX);
	free(supported);
	free(out);
}

static void test_xcr0_gates(void **state)
{
	const uint64_t all = 3 | AVX | MPX | AVX512 | PKRU | AMX | APX | LWP;

	check_gates(all, all);
	check_gates(0, 0);
	check_gates(all & ~1ull, 0);
	check_gates(all & ~2ull, 0);
	check_gates(3, 3);
	check_gates(all & ~AVX, all & ~AVX512); /* AVX-512 rests upon AVX */
	check_gates(all & ~0x20ull, all & ~0xe0ull);
	check_gates(all & ~0x40ull, all & ~0xe0ull);
	check_gates(all & ~0x80ull, all & ~0xe0ull);
	check_gates(all & ~0x8ull, all & ~MPX);
	check_gates(all & ~0x10ull, all & ~MPX);
	check_gates(all & ~PKRU, all & ~PKRU);
	check_gates(all & ~0x20000ull, all & ~AMX);
	check_gates(all & ~0x40000ull, all & ~AMX);
	check_gates(all & ~APX, all & ~APX);
	check_gates(all & ~LWP, all & ~LWP);
}

/* KVM's own limit counts as well: its list here has no MPX, APX and LWP. */
static void test_xcr0_of_kvm(void **state)
{
	struct cpuid_config cfg = config(1);
	struct kvm_cpuid2 *l;

	cfg.xcr0 = ~0ull;
	l = build(&intel, &cfg, 0);
	assert_int_equal(leaf(l, 0xd, 0)->eax, XCR0_ALL);
	assert_int_equal(leaf(l, 0xd, 0)->edx, 0);
	assert_int_equal(leaf(l, 7, 0)->ebx >> 14 & 1, 0);
	free(l);
}

static void test_xsave_sizes(void **state)
{
	static const struct {
		uint64_t xcr0;
		uint32_t standard, compact; /* compact: with CET (XSS 0x1800), 40 bytes */
	} sizes[] = {
		{ 0x3, 576, 576 + 40 },
		{ 0x7, 832, 832 + 40 },
		{ 0x203, 2696, 584 + 40 },
		{ 0x207, 2696, 840 + 40 },
		{ 0xe7, 2688, 2432 + 40 },
		{ 0x2e7, 2696, 2440 + 40 },
		/* 2480 up to 2496 for the configuration, 64 bytes, and 8192 of data already aligned */
		{ XCR0_ALL, 2816 + 8192, 2496 + 64 + 8192 },
	};

	for (unsigned i = 0; i < LEN(sizes); i++) {
		struct cpuid_config cfg = config(1);
		struct kvm_cpuid2 *l;

		cfg.xcr0 = sizes[i].xcr0;
		l = build(&intel, &cfg, 0);
		assert_int_equal(leaf(l, 0xd, 0)->ebx, 576);
		assert_int_equal(leaf(l, 0xd, 0)->ecx, sizes[i].standard);
		assert_int_equal(leaf(l, 0xd, 1)->ebx, sizes[i].compact);
		assert_int_equal(leaf(l, 0xd, 1)->ecx, 0x1800);
		for (unsigned k = 2; k < 64; k++) {
			if (find(l, 0xd, k))
				assert_true((sizes[i].xcr0 | 0x1800) >> k & 1);
			else
				assert_false((sizes[i].xcr0 | 0x1800) >> k & 1);
		}
		free(l);
	}
}

static void test_no_xsave(void **state)
{
	struct cpuid_config cfg = config(1);
	struct kvm_cpuid2 *l;

	cfg.xcr0 = 0;
	l = build(&intel, &cfg, 0);
	for (unsigned k = 0; k < 2; k++) {
		const struct kvm_cpuid_entry2 *e = leaf(l, 0xd, k);

		assert_int_equal(e->eax | e->ebx | e->ecx | e->edx, 0);
	}
	for (unsigned k = 2; k < 64; k++)
		assert_null(find(l, 0xd, k));
	free(l);
}

static void check_unique(const struct kvm_cpuid2 *l)
{
	for (unsigned i = 0; i < l->nent; i++) {
		for (unsigned k = 0; k < i; k++) {
			const struct kvm_cpuid_entry2 *a = &l->entries[i], *b = &l->entries[k];

			if (a->function == b->function)
				assert_true(a->flags & b->flags & INDEXED && a->index != b->index);
		}
	}
}

static void test_no_duplicates(void **state)
{
	for (unsigned i = 0; i < LEN(shapes); i++) {
		struct cpuid_config cfg = config(shapes[i].ncpus);
		struct kvm_cpuid2 *a = build(&intel, &cfg, shapes[i].index), *b = build(&amd, &cfg, shapes[i].index);

		check_unique(a);
		check_unique(b);
		free(a);
		free(b);
	}
}

/* A list that has everything twice is cleaned up. */
static void test_duplicates_in_list(void **state)
{
	struct kvm_cpuid2 *twice = list_new(2 * intel.n), *out = list_new(CAP), *once;
	struct cpuid_config cfg = config(4);

	memcpy(twice->entries, intel_rows, sizeof(intel_rows));
	memcpy(twice->entries + intel.n, intel_rows, sizeof(intel_rows));
	assert_int_equal(cpuid_build(twice, &cfg, 0, out), 0);
	once = build(&intel, &cfg, 0);
	assert_int_equal(out->nent, once->nent);
	assert_memory_equal(out->entries, once->entries, once->nent * sizeof(once->entries[0]));
	free(twice);
	free(once);
	free(out);
}

static void test_no_space(void **state)
{
	struct cpuid_config cfg = config(4);
	struct kvm_cpuid2 *supported = supported_by(&intel), *whole = build(&intel, &cfg, 0);

	for (unsigned cap = 0; cap <= whole->nent; cap++) {
		struct kvm_cpuid2 *out = list_new(cap); /* a sanitizer sees a write behind it */

		assert_int_equal(cpuid_build(supported, &cfg, 0, out), cap < whole->nent ? -ENOSPC : 0);
		assert_true(out->nent <= cap);
		free(out);
	}
	free(supported);
	free(whole);
}

/* With all of XCR0, leaves that are nobody's business arrive as they were. */
static void test_untouched(void **state)
{
	static const uint32_t same[] = { 2, 0xa, 0x1d, 0x1e, 0x80000000, 0x80000001, 0x80000003 };
	struct cpuid_config cfg = config(4);
	struct kvm_cpuid2 *l = build(&intel, &cfg, 2);

	for (unsigned i = 0; i < intel.n; i++) {
		const struct kvm_cpuid_entry2 *was = &intel_rows[i];

		for (unsigned k = 0; k < LEN(same); k++) {
			if (was->function == same[k])
				assert_memory_equal(leaf(l, was->function, was->index), was, sizeof(*was));
		}
	}
	assert_int_equal(leaf(l, 1, 0)->eax, 0x000806f8);
	assert_int_equal(leaf(l, 1, 0)->edx, 0xbfebfbff);
	assert_null(find(l, 0x12, 0)); /* SGX has no memory here */
	free(l);
	l = build(&amd, &cfg, 2);
	assert_null(find(l, 0x8000001f, 0)); /* nor are guests encrypted */
	assert_int_equal(leaf(l, 7, 0)->ebx, 0x219c97a9);
	free(l);
}

static void test_apic_features(void **state)
{
	struct cpuid_config cfg = config(2);
	struct kvm_cpuid2 *l = build(&intel, &cfg, 0);
	uint32_t ecx = leaf(l, 1, 0)->ecx;

	assert_int_equal(ecx >> 21 & 1, 1); /* x2APIC */
	assert_int_equal(ecx >> 24 & 1, 1); /* TSC deadline */
	assert_int_equal(ecx >> 27 & 1, 0); /* OSXSAVE follows CR4 */
	assert_int_equal(ecx >> 31, 1);     /* hypervisor */
	assert_int_equal(leaf(l, 6, 0)->eax, 4);
	free(l);
	cfg.tsc_deadline = false;
	l = build(&amd, &cfg, 0);
	assert_int_equal(leaf(l, 1, 0)->ecx >> 24 & 1, 0);
	assert_int_equal(leaf(l, 6, 0)->eax, 4); /* a leaf that was not listed */
	free(l);
}

static void test_hypervisor(void **state)
{
	struct cpuid_config cfg = config(1);
	struct kvm_cpuid2 *l = build(&intel, &cfg, 0);

	assert_int_equal(leaf(l, 0x40000000, 0)->eax, 0x40000010);
	assert_memory_equal(&leaf(l, 0x40000000, 0)->ebx, "KVMKVMKVM\0\0\0", 12);
	assert_int_equal(leaf(l, 0x40000001, 0)->eax, 0x01007efb); /* less 15, 16, 17, which a VMM must provide */
	assert_int_equal(leaf(l, 0x40000001, 0)->edx, 0);          /* no KVM_HINTS_REALTIME */
	assert_int_equal(leaf(l, 0x40000010, 0)->eax, TSC_KHZ);
	assert_int_equal(leaf(l, 0x40000010, 0)->ebx, BUS_KHZ);
	free(l);
	cfg.tsc_khz = 0;
	l = build(&intel, &cfg, 0);
	assert_int_equal(leaf(l, 0x40000000, 0)->eax, 0x40000001);
	assert_null(find(l, 0x40000010, 0));
	free(l);
}

static void test_frequency(void **state)
{
	struct cpuid_config cfg = config(1);
	struct kvm_cpuid2 *l = build(&intel, &cfg, 0);

	/* A 25 MHz crystal is not what the APIC timer runs at. */
	assert_int_equal(leaf(l, 0x15, 0)->eax | leaf(l, 0x15, 0)->ebx | leaf(l, 0x15, 0)->ecx, 0);
	assert_int_equal(leaf(l, 0x16, 0)->eax, 2500);
	free(l);
	cfg.bus_khz = 25000;
	l = build(&intel, &cfg, 0);
	assert_int_equal(leaf(l, 0x15, 0)->ecx, 25000000);
	free(l);
	cfg.tsc_khz = 2000000;
	l = build(&intel, &cfg, 0);
	assert_int_equal(leaf(l, 0x15, 0)->ecx, 0);
	assert_int_equal(leaf(l, 0x16, 0)->eax | leaf(l, 0x16, 0)->ebx | leaf(l, 0x16, 0)->ecx, 0);
	free(l);
}

/* The brand string is the host's where KVM has none. */
static void test_brand(void **state)
{
	struct cpuid_config cfg = config(1);
	struct kvm_cpuid2 *l = build(&intel, &cfg, 0);

	assert_memory_equal(&leaf(l, 0x80000002, 0)->eax, "Hypothetical CPU", 16);
	assert_int_equal(leaf(l, 0x80000003, 0)->eax, 1);
	assert_null(find(l, 0x80000004, 0));
	free(l);
}

/* This host, whatever it is: only what must hold everywhere. */
static void test_host(void **state)
{
	struct cpuid_config cfg = { .ncpus = 1 };

	cpuid_host(&cfg);
	assert_true(cfg.xcr0 == 0 || (cfg.xcr0 & 1));
	assert_int_equal(cfg.ncpus, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_topology_intel),
		cmocka_unit_test(test_topology_amd),
		cmocka_unit_test(test_caches_from_host),
		cmocka_unit_test(test_old_amd),
		cmocka_unit_test(test_xcr0_gates),
		cmocka_unit_test(test_xcr0_of_kvm),
		cmocka_unit_test(test_xsave_sizes),
		cmocka_unit_test(test_no_xsave),
		cmocka_unit_test(test_no_duplicates),
		cmocka_unit_test(test_duplicates_in_list),
		cmocka_unit_test(test_no_space),
		cmocka_unit_test(test_untouched),
		cmocka_unit_test(test_apic_features),
		cmocka_unit_test(test_hypervisor),
		cmocka_unit_test(test_frequency),
		cmocka_unit_test(test_brand),
		cmocka_unit_test(test_host),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
