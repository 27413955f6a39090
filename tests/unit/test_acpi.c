// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The tables are read back here the way a guest does: found by signature,
 * followed by their pointers, every byte fetched through checked accessors that
 * know nothing of the structs in acpi.c and mptable.c. Whether the DSDT means
 * something is for iasl to say.
 */
#include "arch/x86/acpi.h"
#include "arch/x86/memmap.h"
#include "arch/x86/mptable.h"
#include "dev/pm.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define ACPI_ROOM (MM_MPTABLE - MM_BIOS_TABLES)
#define MP_ROOM   (MM_HIGH_LOAD - MM_MPTABLE)

static const unsigned cpu_counts[] = { 1, 2, 254 };

struct image {
	uint64_t gpa;
	size_t len;
	uint8_t *bytes; /* exactly len, so that the address sanitizer sees any access beyond */
};

static struct image image_build(long (*build)(unsigned, uint64_t, void *, size_t), unsigned ncpus, uint64_t gpa,
                                size_t room)
{
	struct image img = { .gpa = gpa };
	uint8_t *buf = malloc(room);
	long n;

	assert_non_null(buf);
	memset(buf, 0xa5, room);
	n = build(ncpus, gpa, buf, room);
	assert_in_range(n, 1, room);
	img.len = n;
	img.bytes = realloc(buf, img.len);
	assert_non_null(img.bytes);
	return img;
}

static struct image acpi_image(unsigned ncpus)
{
	return image_build(acpi_build, ncpus, MM_BIOS_TABLES, ACPI_ROOM);
}

static struct image mp_image(unsigned ncpus)
{
	return image_build(mptable_build, ncpus, MM_MPTABLE, MP_ROOM);
}

static const uint8_t *at(const struct image *img, uint64_t gpa, size_t n)
{
	assert_true(gpa >= img->gpa && n <= img->len && gpa - img->gpa <= img->len - n);
	return img->bytes + (gpa - img->gpa);
}

static uint64_t get(const struct image *img, uint64_t gpa, size_t n)
{
	const uint8_t *p = at(img, gpa, n);
	uint64_t v = 0;

	while (n--)
		v = v << 8 | p[n];
	return v;
}

static uint8_t sum(const struct image *img, uint64_t gpa, size_t n)
{
	const uint8_t *p = at(img, gpa, n);
	uint8_t s = 0;

	while (n--)
		s += *p++;
	return s;
}

#define assert_signature(img, gpa, sig) assert_memory_equal(at(img, gpa, strlen(sig)), sig, strlen(sig))

/* ACPI */

enum { DSDT, FADT, MADT, MCFG, XSDT, NTABLES };
static const char *const signatures[NTABLES] = { "DSDT", "FACP", "APIC", "MCFG", "XSDT" };

struct tables {
	uint64_t gpa[NTABLES];
	size_t len[NTABLES];
};

static void table_check(const struct image *img, struct tables *t, unsigned i, uint64_t gpa)
{
	t->gpa[i] = gpa;
	t->len[i] = get(img, gpa + 4, 4);
	assert_int_equal(gpa % 16, 0);
	assert_signature(img, gpa, signatures[i]);
	assert_true(t->len[i] >= 36);
	assert_int_equal(sum(img, gpa, t->len[i]), 0);
}

/* From the RSDP to every table. */
static struct tables tables_find(const struct image *img)
{
	struct tables t;
	uint64_t x;

	assert_signature(img, img->gpa, "RSD PTR ");
	assert_int_equal(sum(img, img->gpa, 20), 0);
	assert_int_equal(get(img, img->gpa + 15, 1), 2);
	assert_int_equal(get(img, img->gpa + 20, 4), 36);
	assert_int_equal(sum(img, img->gpa, 36), 0);
	x = get(img, img->gpa + 24, 8);
	table_check(img, &t, XSDT, x);
	assert_int_equal(t.len[XSDT], 36 + 3 * 8);
	for (unsigned i = FADT; i <= MCFG; i++)
		table_check(img, &t, i, get(img, x + 36 + (i - FADT) * 8, 8));
	table_check(img, &t, DSDT, get(img, t.gpa[FADT] + 140, 8));
	return t;
}

static void test_tables(void **state)
{
	for (unsigned i = 0; i < 3; i++) {
		struct image img = acpi_image(cpu_counts[i]);
		struct tables t = tables_find(&img);

		for (unsigned a = 0; a < NTABLES; a++) {
			assert_true(t.gpa[a] >= img.gpa + 36);
			for (unsigned b = 0; b < a; b++)
				assert_true(t.gpa[a] + t.len[a] <= t.gpa[b] || t.gpa[b] + t.len[b] <= t.gpa[a]);
		}
		free(img.bytes);
	}
}

static void check_port(const struct image *img, uint64_t gas, unsigned port)
{
	assert_int_equal(get(img, gas, 4), 0x01000801); /* system I/O, 8 bits, offset 0, byte access */
	assert_int_equal(get(img, gas + 4, 8), port);
}

static void test_fadt(void **state)
{
	struct image img = acpi_image(1);
	struct tables t = tables_find(&img);
	uint64_t f = t.gpa[FADT];
	uint32_t flags = get(&img, f + 112, 4);

	assert_int_equal(t.len[FADT], 276);
	assert_int_equal(get(&img, f + 8, 1), 6);
	assert_int_equal(get(&img, f + 131, 1), 4);
	assert_int_equal(get(&img, f + 40, 4), t.gpa[DSDT]);
	assert_true(flags & 1 << 20); /* HW_REDUCED_ACPI */
	assert_true(flags & 1 << 10); /* RESET_REG_SUP */
	assert_true(flags & 1 << 4);  /* no fixed power button */
	assert_int_equal(get(&img, f + 109, 2), 1 << 2 | 1 << 4);
	check_port(&img, f + 116, PORT_PM + PM_RESET);
	assert_int_equal(get(&img, f + 128, 1), PM_RESET_VALUE);
	check_port(&img, f + 244, PORT_PM + PM_SLEEP_CONTROL);
	check_port(&img, f + 256, PORT_PM + PM_SLEEP_STATUS);
	for (unsigned i = 46; i < 109; i++)
		assert_int_equal(get(&img, f + i, 1), 0);
	for (unsigned i = 148; i < 244; i++)
		assert_int_equal(get(&img, f + i, 1), 0);
	free(img.bytes);
}

static void check_madt(const struct image *img, uint64_t m, size_t len, unsigned ncpus)
{
	uint64_t e = m + 44;

	assert_int_equal(get(img, m + 36, 4), MM_LAPIC);
	assert_int_equal(get(img, m + 40, 4), 1); /* PCAT_COMPAT */
	for (unsigned i = 0; i < ncpus; i++, e += 8) {
		assert_int_equal(get(img, e, 2), 0x0800);
		assert_int_equal(get(img, e + 2, 1), i);
		assert_int_equal(get(img, e + 3, 1), i);
		assert_int_equal(get(img, e + 4, 4), 1);
	}
	assert_int_equal(get(img, e, 4), 0x0c01); /* I/O APIC 0 */
	assert_int_equal(get(img, e + 4, 4), MM_IOAPIC);
	assert_int_equal(get(img, e + 8, 4), 0);
	e += 12;
	assert_int_equal(get(img, e, 6), 0x010000ff0604);
	assert_int_equal(e + 6, m + len);
}

static void test_madt(void **state)
{
	for (unsigned i = 0; i < 3; i++) {
		struct image img = acpi_image(cpu_counts[i]);
		struct tables t = tables_find(&img);

		check_madt(&img, t.gpa[MADT], t.len[MADT], cpu_counts[i]);
		free(img.bytes);
	}
}

static void test_mcfg(void **state)
{
	struct image img = acpi_image(1);
	struct tables t = tables_find(&img);
	uint64_t m = t.gpa[MCFG];

	assert_int_equal(t.len[MCFG], 36 + 8 + 16);
	assert_int_equal(get(&img, m + 36, 8), 0);
	assert_int_equal(get(&img, m + 44, 8), MM_ECAM);
	assert_int_equal(get(&img, m + 52, 8), 0); /* segment 0, buses 0 to 0 */
	free(img.bytes);
}

/* Every shorter buffer is refused, and nothing is written behind it (the sanitizer watches exact allocations). */
static void check_too_small(long (*build)(unsigned, uint64_t, void *, size_t), uint64_t gpa, size_t need)
{
	for (size_t len = 0; len < need; len++) {
		uint8_t *buf = malloc(len + 1);

		assert_non_null(buf);
		buf[len] = 0x5a;
		assert_int_equal(build(2, gpa, buf, len), -ENOSPC);
		assert_int_equal(buf[len], 0x5a);
		free(buf);
	}
}

static void test_too_small(void **state)
{
	struct image acpi = acpi_image(2), mp = mp_image(2);

	check_too_small(acpi_build, MM_BIOS_TABLES, acpi.len);
	check_too_small(mptable_build, MM_MPTABLE, mp.len);
	assert_int_equal(acpi_build(2, MM_BIOS_TABLES, acpi.bytes, acpi.len), acpi.len);
	assert_int_equal(mptable_build(2, MM_MPTABLE, mp.bytes, mp.len), mp.len);
	free(acpi.bytes);
	free(mp.bytes);
}

/* What was in the buffer before makes no difference. */
static void test_repeatable(void **state)
{
	struct image a = acpi_image(5), b = acpi_image(5);

	memset(b.bytes, 0, b.len);
	assert_int_equal(acpi_build(5, b.gpa, b.bytes, b.len), a.len);
	assert_memory_equal(a.bytes, b.bytes, a.len);
	free(a.bytes);
	free(b.bytes);
}

/* iasl */

static bool have_iasl(void)
{
	return system("iasl -v >/dev/null 2>&1") == 0;
}

static void dump_table(const struct image *img, const struct tables *t, unsigned i, const char *dir)
{
	char path[256];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s.aml", dir, signatures[i]);
	f = fopen(path, "w");
	assert_non_null(f);
	assert_int_equal(fwrite(at(img, t->gpa[i], t->len[i]), 1, t->len[i], f), t->len[i]);
	assert_int_equal(fclose(f), 0);
}

/* Runs @cmd in @dir; it must succeed and must not print anything that has a warning, an error or a remark in it. */
static void run_quiet(const char *dir, const char *cmd)
{
	char line[512];
	FILE *p;

	snprintf(line, sizeof(line), "cd '%s' && %s 2>&1", dir, cmd);
	p = popen(line, "r");
	assert_non_null(p);
	while (fgets(line, sizeof(line), p)) {
		bool summary = strstr(line, " 0 Errors, 0 Warnings, 0 Remarks");

		if (!summary &&
		    (strcasestr(line, "warning") || strcasestr(line, "error") || strcasestr(line, "remark")))
			fail_msg("%s: %s", cmd, line);
	}
	assert_int_equal(pclose(p), 0);
}

/* Lines of the disassembly, and how often each must be there: the whole DSDT's meaning as iasl understands it. */
static const struct {
	const char *text;
	unsigned count;
} dsl_lines[] = {
	{ "Name (_HID, EisaId (\"PNP0A08\")", 1 },
	{ "Name (_CID, EisaId (\"PNP0A03\")", 1 },
	{ "Name (_HID, EisaId (\"PNP0C02\")", 1 },
	{ "Name (_HID, EisaId (\"PNP0501\")", 4 },
	{ "Name (_HID, EisaId (\"PNP0B00\")", 1 },
	{ "Name (_HID, EisaId (\"PNP0C0C\")", 1 },
	{ "Name (_HID, \"ACPI0013\"", 1 },
	{ "Interrupt (ResourceConsumer, Edge, ActiveHigh, Shared, ,, )", 4 },
	{ "Interrupt (ResourceConsumer, Edge, ActiveHigh, Exclusive, ,, )", 1 },
	{ "0xC0000000,         // Range Minimum", 1 },
	{ "0xDFFFFFFF,         // Range Maximum", 1 },
	{ "0x0CF7,             // Range Maximum", 1 },
	{ "0x0D00,             // Range Minimum", 1 },
	{ "0xFFFF,             // Range Maximum", 1 },
	{ "0xE0000000,         // Address Base", 1 },
	{ "OperationRegion (PMEV, SystemIO, 0x0603, One)", 1 },
	{ "Local0 = EVNT", 1 },
	{ "If ((Local0 & One))", 1 },
	{ "Notify (\\_SB.PWRB, 0x80)", 1 },
	{ "Name (\\_S5, Package (0x04)", 1 },
};

static unsigned count_text(const char *text, const char *what)
{
	unsigned n = 0;

	for (const char *p = text; (p = strstr(p, what)); p += strlen(what))
		n++;
	return n;
}

static char *read_file(const char *dir, const char *name)
{
	static char text[1 << 17];
	char path[256];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "r");
	assert_non_null(f);
	text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
	fclose(f);
	return text;
}

/* All 128 routes: function-independent address, pin, no link device, GSI. */
static void check_prt(const char *dsl)
{
	const char *p = strstr(dsl, "Name (_PRT, Package (0x80)");

	assert_non_null(p);
	for (unsigned slot = 0; slot < 32; slot++)
		for (unsigned pin = 0; pin < 4; pin++) {
			char a[16], b[16], z[16], g[16];

			p = strstr(p, "Package (0x04)");
			assert_non_null(p);
			assert_int_equal(sscanf(p, "Package (0x04) { %15[^,], %15[^,], %15[^,], %15s }", a, b, z, g),
			                 4);
			assert_int_equal(strtoul(a, NULL, 16), slot << 16 | 0xffff);
			assert_int_equal(!strcmp(b, "One") ? 1 : strtoul(b, NULL, 16), pin);
			assert_string_equal(z, "Zero");
			assert_int_equal(strtoul(g, NULL, 16), GSI_PCI_FIRST + (slot + pin) % GSI_PCI_COUNT);
			p++;
		}
}

static void test_iasl(void **state)
{
	char dir[] = "/tmp/test_acpi.XXXXXX", cmd[64];
	struct image img = acpi_image(254);
	struct tables t = tables_find(&img);
	const char *dsl;

	if (!have_iasl()) {
		print_message("skipped: no iasl here (apt-get install acpica-tools)\n");
		free(img.bytes);
		skip();
	}
	assert_non_null(mkdtemp(dir));
	for (unsigned i = DSDT; i < NTABLES; i++) {
		dump_table(&img, &t, i, dir);
		snprintf(cmd, sizeof(cmd), "iasl -d %s.aml", signatures[i]);
		run_quiet(dir, cmd);
	}
	dsl = read_file(dir, "DSDT.dsl");
	for (unsigned i = 0; i < sizeof(dsl_lines) / sizeof(*dsl_lines); i++)
		if (count_text(dsl, dsl_lines[i].text) != dsl_lines[i].count)
			fail_msg("DSDT: %u times, not %u: %s", count_text(dsl, dsl_lines[i].text), dsl_lines[i].count,
			         dsl_lines[i].text);
	check_prt(dsl);
	run_quiet(dir, "iasl -p again DSDT.dsl");
	run_quiet(dir, "rm -r \"$PWD\"");
	free(img.bytes);
}

/* MP tables */

static void check_floating(const struct image *img, uint64_t *config)
{
	assert_signature(img, img->gpa, "_MP_");
	assert_int_equal(sum(img, img->gpa, 16), 0);
	assert_int_equal(get(img, img->gpa + 8, 2), 0x0401); /* one paragraph, version 1.4 */
	assert_int_equal(get(img, img->gpa + 11, 5), 0);     /* a table is there; virtual wire mode */
	*config = get(img, img->gpa + 4, 4);
}

static uint64_t check_mp_cpus(const struct image *img, uint64_t e, unsigned ncpus)
{
	for (unsigned i = 0; i < ncpus; i++, e += 20) {
		assert_int_equal(get(img, e, 2), i << 8);
		assert_int_equal(get(img, e + 3, 1), i == 0 ? 3 : 1);
	}
	return e;
}

static uint64_t check_mp_interrupt(const struct image *img, uint64_t e, unsigned flags, unsigned bus, unsigned source,
                                   unsigned pin)
{
	const uint8_t want[8] = { 3, 0, flags, 0, bus, source, 0, pin };

	assert_memory_equal(at(img, e, 8), want, 8);
	return e + 8;
}

static uint64_t check_mp_interrupts(const struct image *img, uint64_t e)
{
	for (unsigned irq = 0; irq < 16; irq++)
		if (irq != 2)
			e = check_mp_interrupt(img, e, 0, 1, irq, irq);
	for (unsigned slot = 0; slot < 32; slot++)
		for (unsigned pin = 0; pin < 4; pin++)
			e = check_mp_interrupt(img, e, 0xf, 0, slot << 2 | pin, 16 + (slot + pin) % 8);
	return e;
}

static uint64_t check_mp_entries(const struct image *img, uint64_t e, unsigned ncpus)
{
	static const uint8_t extint[8] = { 4, 3, 0, 0, 1, 0, 0, 0 };
	static const uint8_t nmi[8] = { 4, 1, 0, 0, 1, 0, 0xff, 1 };

	e = check_mp_cpus(img, e, ncpus);
	assert_memory_equal(at(img, e, 8), "\1\0PCI   ", 8);
	assert_memory_equal(at(img, e + 8, 8), "\1\1ISA   ", 8);
	assert_int_equal(get(img, e + 16, 4), 0x01110002);
	assert_int_equal(get(img, e + 20, 4), MM_IOAPIC);
	e = check_mp_interrupts(img, e + 24);
	assert_memory_equal(at(img, e, 8), extint, 8);
	assert_memory_equal(at(img, e + 8, 8), nmi, 8);
	return e + 16;
}

static void check_mptable(unsigned ncpus)
{
	struct image img = mp_image(ncpus);
	uint64_t c;
	size_t len;

	check_floating(&img, &c);
	assert_true(c >= img.gpa + 16);
	assert_signature(&img, c, "PCMP");
	len = get(&img, c + 4, 2);
	assert_int_equal(get(&img, c + 6, 1), 4);
	assert_int_equal(sum(&img, c, len), 0);
	assert_int_equal(get(&img, c + 34, 2), ncpus + 3 + 15 + 128 + 2);
	assert_int_equal(get(&img, c + 36, 4), MM_LAPIC);
	assert_int_equal(get(&img, c + 40, 4), 0);
	assert_int_equal(check_mp_entries(&img, c + 44, ncpus), c + len);
	assert_int_equal(c + len, img.gpa + img.len);
	free(img.bytes);
}

static void test_mptable(void **state)
{
	for (unsigned i = 0; i < 3; i++)
		check_mptable(cpu_counts[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tables), cmocka_unit_test(test_fadt),      cmocka_unit_test(test_madt),
		cmocka_unit_test(test_mcfg),   cmocka_unit_test(test_too_small), cmocka_unit_test(test_repeatable),
		cmocka_unit_test(test_iasl),   cmocka_unit_test(test_mptable),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
