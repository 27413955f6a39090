// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Kernel files and the way into them. bzImages and ELF files are made here,
 * right and wrong, truncated at every length and damaged in every field: each
 * is refused with one line that names it, or what was understood of it holds
 * together. Then what a kernel finds in memory and registers when it starts.
 */
#include "arch/x86/boot.h"
#include "arch/x86/memmap.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define LEN(a)    (sizeof(a) / sizeof(*(a)))
#define KIB       1024ull
#define MIB       (1024 * KIB)
#define GIB       (1024 * MIB)
#define PAGE      4096ull
#define HDR       0x1f1
#define HDR_END   (HDR + sizeof(struct setup_header))
#define BUF_LEN   (512 * KIB)
#define SECTS     8                   /* setup sectors of the bzImages here */
#define SETUP_LEN ((SECTS + 1) * 512) /* and where their payload begins */
#define PAYLOAD   0x3000
#define BZ_LEN    (SETUP_LEN + PAYLOAD)
#define LOAD      0x1000000ull /* where the kernels here want to be */
#define RSDP      0xe0000ull

struct fixture {
	char dir[32], path[64], path2[64]; /* the kernel, an initrd */
	uint8_t *buf;
	size_t len; /* of the image in @buf */
	int fd;     /* the first free one: none may be left open */
};

static int first_free_fd(void)
{
	int fd = open("/dev/null", O_RDONLY);

	close(fd);
	return fd;
}

static int setup(void **state)
{
	struct fixture *x = calloc(1, sizeof(*x));

	strcpy(x->dir, "/tmp/kvm-test-XXXXXX");
	assert_non_null(mkdtemp(x->dir));
	snprintf(x->path, sizeof(x->path), "%s/kernel", x->dir);
	snprintf(x->path2, sizeof(x->path2), "%s/initrd", x->dir);
	x->buf = calloc(1, BUF_LEN);
	x->fd = first_free_fd();
	*state = x;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *x = *state;

	int leaked = first_free_fd() - x->fd;

	unlink(x->path);
	unlink(x->path2);
	rmdir(x->dir);
	free(x->buf);
	free(x);
	assert_int_equal(leaked, 0);
	return 0;
}

/* Not by O_TRUNC: ext4 then writes the disk at each close. */
static void write_file(const char *path, const void *buf, size_t len)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, buf, len), len);
	assert_int_equal(ftruncate(fd, (off_t)len), 0);
	close(fd);
}

static void write_image(struct fixture *x, size_t len)
{
	write_file(x->path, x->buf, len);
}

/* What must hold of any kernel that was accepted. */
static void assert_sound(const struct kernel *k)
{
	assert_in_range(k->nsegs, 1, KERNEL_MAX_SEGMENTS);
	for (unsigned i = 0; i < k->nsegs; i++) {
		const struct kernel_segment *s = &k->seg[i];

		assert_true(s->offset <= k->size && s->filesz <= k->size - s->offset);
		assert_true(s->filesz <= s->memsz);
		assert_true(s->paddr >= MM_HIGH_LOAD && s->paddr >= k->first);
		assert_true(s->paddr <= k->end && s->memsz <= k->end - s->paddr);
	}
	assert_true(k->entry >= k->first && k->entry < k->end);
	assert_true(memchr(k->version, '\0', sizeof(k->version)) != NULL);
}

static void assert_told(const struct err *err, const char *path, const char *why)
{
	if (!strstr(err->msg, path) || !strstr(err->msg, why))
		fail_msg("'%s' tells neither '%s' nor '%s'", err->msg, path, why);
	assert_null(strchr(err->msg, '\n'));
}

/* The file as it is now. */
static void open_good(struct fixture *x, struct kernel *k)
{
	struct err err = { "" };

	if (kernel_open(x->path, k, &err))
		fail_msg("%s", err.msg);
	assert_sound(k);
}

static void refuse(const char *path, const char *why)
{
	struct err err = { "" };
	struct kernel k;

	if (!kernel_open(path, &k, &err))
		fail_msg("accepted; expected: %s", why);
	assert_told(&err, path, why);
	assert_int_equal(k.fd, -1);
}

static void open_any(const char *path)
{
	struct err err = { "" };
	struct kernel k;

	if (kernel_open(path, &k, &err)) {
		assert_told(&err, path, "");
		return;
	}
	assert_sound(&k);
	kernel_close(&k);
}

static void put(uint8_t *p, unsigned size, uint64_t val)
{
	memcpy(p, &val, size); /* little-endian, as this host */
}

/* bzImage */

static struct setup_header bz_header(void)
{
	return (struct setup_header){ .setup_sects = SECTS,
		                      .syssize = PAYLOAD / 16,
		                      .boot_flag = 0xaa55,
		                      .jump = 0xeb | (HDR_END - 0x202) << 8,
		                      .header = 0x53726448,
		                      .version = 0x020f,
		                      .kernel_version = 0x200, /* at 0x400 */
		                      .loadflags = LOADED_HIGH,
		                      .initrd_addr_max = 0x7fffffff,
		                      .kernel_alignment = 0x200000,
		                      .relocatable_kernel = 1,
		                      .xloadflags = XLF_KERNEL_64,
		                      .cmdline_size = 2047,
		                      .pref_address = LOAD,
		                      .init_size = 0x1234567 };
}

/* The image in x->buf: noise, the header, a version, a payload whose bytes tell their place. */
static void bz_make(struct fixture *x, const struct setup_header *h)
{
	size_t end = 0x202 + (h->jump >> 8);

	memset(x->buf, 0xff, SETUP_LEN);
	memcpy(x->buf + HDR, h, end - HDR < sizeof(*h) ? end - HDR : sizeof(*h));
	strcpy((char *)x->buf + 0x400, "6.1.0-test (me@here) #1");
	for (unsigned i = 0; i < PAYLOAD; i++)
		x->buf[SETUP_LEN + i] = (uint8_t)(i ^ i >> 8);
	x->len = BZ_LEN;
}

static void bz_open(struct fixture *x, const struct setup_header *h, struct kernel *k)
{
	bz_make(x, h);
	write_image(x, x->len);
	open_good(x, k);
}

static void bz_refuse(struct fixture *x, const struct setup_header *h, const char *why)
{
	bz_make(x, h);
	write_image(x, x->len);
	refuse(x->path, why);
}

static void bz_entries(void **state)
{
	static const struct {
		uint16_t version, xload;
		uint8_t reloc;
		uint32_t init;
		enum kernel_entry kind;
		uint64_t entry, first, end;
	} t[] = {
		{ 0x020f, 1, 1, 0x2000000, KERNEL_LINUX64, LOAD + 0x200, LOAD, LOAD + 0x2000000 },
		{ 0x020c, 1, 1, 0x2000000, KERNEL_LINUX64, LOAD + 0x200, LOAD, LOAD + 0x2000000 },
		{ 0x020b, 1, 1, 0x2000000, KERNEL_LINUX32, LOAD, LOAD, LOAD + 0x2000000 },
		{ 0x020f, 0xfe, 1, 0x2000000, KERNEL_LINUX32, LOAD, LOAD, LOAD + 0x2000000 },
		{ 0x020f, 1, 1, 0x1000, KERNEL_LINUX64, LOAD + 0x200, LOAD, LOAD + PAYLOAD },
		{ 0x020f, 1, 0, 0x2000000, KERNEL_LINUX64, 0x100200, 0x100000, LOAD + 0x2000000 },
		{ 0x020f, 0, 0, 0x2000000, KERNEL_LINUX32, 0x100000, 0x100000, LOAD + 0x2000000 },
		{ 0x020a, 0, 1, 0, KERNEL_LINUX32, 0x100000, 0x100000, 0x100000 + 4 * PAYLOAD },
		{ 0x0209, 0, 1, 0x2000000, KERNEL_LINUX32, 0x100000, 0x100000, 0x100000 + 4 * PAYLOAD },
		{ 0x0204, 0, 0, 0, KERNEL_LINUX32, 0x100000, 0x100000, 0x100000 + 4 * PAYLOAD },
	};

	for (size_t i = 0; i < LEN(t); i++) {
		struct setup_header h = bz_header();
		struct kernel k;

		h.version = t[i].version;
		h.xloadflags = t[i].xload;
		h.relocatable_kernel = t[i].reloc;
		h.init_size = t[i].init;
		bz_open(*state, &h, &k);
		assert_int_equal(k.kind, t[i].kind);
		assert_int_equal(k.entry, t[i].entry);
		assert_int_equal(k.first, t[i].first);
		assert_int_equal(k.end, t[i].end);
		assert_int_equal(k.seg[0].paddr, t[i].first);
		assert_true(k.is_linux);
		kernel_close(&k);
	}
}

/* Fields that a protocol did not have yet have its defaults. */
static void bz_limits(void **state)
{
	static const struct {
		uint16_t version;
		uint32_t cmdline, initrd, cmdline_max, initrd_max;
	} t[] = {
		{ 0x020f, 2047, 0x7fffffff, 2047, 0x7fffffff }, { 0x020f, 0, 0, 255, 0x37ffffff },
		{ 0x0206, 1000, 0x3fffffff, 1000, 0x3fffffff }, { 0x0205, 1000, 0x3fffffff, 255, 0x3fffffff },
		{ 0x0203, 1000, 0x3fffffff, 255, 0x3fffffff },  { 0x0202, 1000, 0x3fffffff, 255, 0x37ffffff },
	};

	for (size_t i = 0; i < LEN(t); i++) {
		struct setup_header h = bz_header();
		struct kernel k;

		h.version = t[i].version;
		h.cmdline_size = t[i].cmdline;
		h.initrd_addr_max = t[i].initrd;
		bz_open(*state, &h, &k);
		assert_int_equal(k.cmdline_max, t[i].cmdline_max);
		assert_int_equal(k.initrd_max, t[i].initrd_max);
		kernel_close(&k);
	}
}

/* A header says where it ends: what lies behind (0xff here) is code. */
static void bz_short_header(void **state)
{
	struct setup_header h = bz_header();
	struct kernel k;

	h.jump = 0xeb | (0x230 - 0x202) << 8; /* up to initrd_addr_max */
	bz_open(*state, &h, &k);
	assert_int_equal(k.kind, KERNEL_LINUX32);
	assert_int_equal(k.first, 0x100000);
	assert_int_equal(k.hdr.initrd_addr_max, 0x7fffffff);
	assert_int_equal(k.hdr.kernel_alignment, 0);
	assert_int_equal(k.hdr.pref_address, 0);
	assert_int_equal(k.cmdline_max, 255);
	kernel_close(&k);
	h.jump = 0xffeb; /* longer than any header we know */
	bz_open(*state, &h, &k);
	assert_int_equal(k.hdr.init_size, h.init_size);
	kernel_close(&k);
}

static void bz_setup_sects_zero(void **state)
{
	struct fixture *x = *state;
	struct setup_header h = bz_header();
	struct kernel k;

	h.setup_sects = 0; /* means four */
	bz_open(x, &h, &k);
	assert_int_equal(k.seg[0].offset, 5 * 512);
	assert_int_equal(k.seg[0].filesz, PAYLOAD);
	kernel_close(&k);
}

/* Padded, signed, or ending within the last paragraph. */
static void bz_lengths(void **state)
{
	static const size_t more[] = { 0, 1, 15, 512, 4096, 100000 };
	struct fixture *x = *state;
	struct setup_header h = bz_header();
	struct kernel k;

	bz_make(x, &h);
	memset(x->buf + BZ_LEN, 0xcc, 100000);
	for (size_t i = 0; i < LEN(more); i++) {
		write_image(x, BZ_LEN + more[i]);
		open_good(x, &k);
		assert_int_equal(k.seg[0].offset, SETUP_LEN);
		assert_int_equal(k.seg[0].filesz, PAYLOAD);
		kernel_close(&k);
	}
	for (unsigned less = 1; less < 16; less++) {
		write_image(x, BZ_LEN - less);
		open_good(x, &k);
		assert_int_equal(k.seg[0].filesz, PAYLOAD - less);
		kernel_close(&k);
	}
	write_image(x, BZ_LEN - 16);
	refuse(x->path, "truncated: it has");
}

static void bz_truncated(void **state)
{
	static const size_t more[] = { 0x400, SETUP_LEN - 1, SETUP_LEN, SETUP_LEN + 1, 0x2000, BZ_LEN - 17 };
	struct fixture *x = *state;
	struct setup_header h = bz_header();

	bz_make(x, &h);
	write_image(x, HDR_END + 64);
	for (size_t len = HDR_END + 64; len; len--) {
		assert_int_equal(truncate(x->path, (off_t)len), 0);
		refuse(x->path, len >= HDR_END ? "truncated: it has" : len >= 0x206 ? "truncated" : "not a kernel");
	}
	assert_int_equal(truncate(x->path, 0), 0);
	refuse(x->path, "empty");
	for (size_t i = 0; i < LEN(more); i++) {
		write_image(x, more[i]);
		refuse(x->path, "truncated: it has");
	}
}

/* The least of all: a file that ends with its setup part, and one paragraph. */
static void bz_smallest(void **state)
{
	struct fixture *x = *state;
	struct setup_header h = bz_header();
	struct kernel k;

	h.syssize = 1;
	bz_make(x, &h);
	write_image(x, SETUP_LEN);
	refuse(x->path, "truncated");
	write_image(x, SETUP_LEN + 1);
	open_good(x, &k);
	assert_int_equal(k.seg[0].filesz, 1);
	kernel_close(&k);
	h.init_size = 0; /* room neither for the entry */
	bz_refuse(x, &h, "damaged");
}

static void bz_old(void **state)
{
	static const struct {
		uint16_t version;
		uint8_t loadflags;
		const char *why;
	} t[] = {
		{ 0, 1, "protocol 0.00" },      { 0x0200, 1, "protocol 2.00" }, { 0x0201, 1, "protocol 2.01" },
		{ 0x0202, 0, "protocol 2.02" }, { 0x020f, 0, "protocol 2.15" }, { 0x01ff, 1, "too old to boot" },
	};

	for (size_t i = 0; i < LEN(t); i++) {
		struct setup_header h = bz_header();

		h.version = t[i].version;
		h.loadflags = t[i].loadflags;
		bz_refuse(*state, &h, t[i].why);
	}
}

/* Before 2.04 syssize had 16 bits and meant nothing for a big kernel: all that is there counts. */
static void bz_old_size(void **state)
{
	static const uint32_t syssize[] = { 0, 1, 0xffff, 0xffffffff, 0xabcd0100 };

	for (size_t i = 0; i < LEN(syssize); i++) {
		struct setup_header h = bz_header();
		struct kernel k;

		h.version = 0x0203;
		h.syssize = syssize[i];
		bz_open(*state, &h, &k);
		assert_int_equal(k.seg[0].filesz, PAYLOAD);
		kernel_close(&k);
	}
}

static void bz_damaged(void **state)
{
	struct fixture *x = *state;
	struct setup_header good = bz_header(), h;

	h = good;
	h.syssize = 0;
	bz_refuse(x, &h, "damaged: the kernel header gives no size");
	h.syssize = 0xffffffff;
	bz_refuse(x, &h, "truncated: it has");
	h = good;
	h.pref_address = 0;
	bz_refuse(x, &h, "damaged: the kernel header asks for address 0x0");
	h.pref_address = 0xff000;
	bz_refuse(x, &h, "address 0xff000");
	h.pref_address = -PAGE;
	bz_refuse(x, &h, "address 0xfffffffffffff000");
	h.relocatable_kernel = 0; /* goes there by itself */
	bz_refuse(x, &h, "address 0xfffffffffffff000");
	h = good;
	h.boot_flag = 0;
	bz_refuse(x, &h, "not a kernel");
	h = good;
	h.header = 0;
	bz_refuse(x, &h, "not a kernel");
}

static void bz_version(void **state)
{
	static const struct {
		unsigned at;
		const char *text, *version;
	} t[] = {
		{ 0x400, "6.1.0-13-amd64 (debian) #1", "6.1.0-13-amd64" },
		{ 0x400, "6.1", "6.1" },
		{ 0x400, "", "" },
		{ 0x400, " 6.1", "" },
		{ 0x200, "6.1", "" },
		/* offset 0: there is none */ { BZ_LEN - 4, "6.1", "6.1" },
		{ BZ_LEN, "6.1", "" },
		{ 0x101ff, "6.1", "" },
	};

	for (size_t i = 0; i < LEN(t); i++) {
		struct fixture *x = *state;
		struct setup_header h = bz_header();
		struct kernel k;

		h.kernel_version = (uint16_t)(t[i].at - 0x200);
		bz_make(x, &h);
		if (t[i].at != 0x200)
			strcpy((char *)x->buf + t[i].at, t[i].text);
		write_image(x, BZ_LEN);
		open_good(x, &k);
		assert_string_equal(k.version, t[i].version);
		assert_int_equal(k.is_linux, t[i].version[0] != 0);
		kernel_close(&k);
	}
}

/* As long as can be kept, also where the file ends without a NUL. */
static void bz_version_endless(void **state)
{
	struct fixture *x = *state;
	struct setup_header h = bz_header();
	struct kernel k;

	h.kernel_version = SETUP_LEN - 0x200;
	bz_make(x, &h);
	memset(x->buf + SETUP_LEN, 'v', PAYLOAD);
	write_image(x, BZ_LEN);
	open_good(x, &k);
	assert_int_equal(strlen(k.version), sizeof(k.version) - 1);
	kernel_close(&k);
	h.kernel_version = BZ_LEN - 3 - 0x200;
	memcpy(x->buf + HDR, &h, sizeof(h));
	write_image(x, BZ_LEN);
	open_good(x, &k);
	assert_string_equal(k.version, "vvv");
	kernel_close(&k);
}

static const uint8_t nasty[] = { 0x00, 0x01, 0x0f, 0x7f, 0x80, 0xfe, 0xff };

/* Each byte of x->buf up to @end replaced by each nasty value. */
static void corrupt_bytes(struct fixture *x, size_t from, size_t end)
{
	int fd;

	write_image(x, x->len);
	fd = open(x->path, O_WRONLY | O_CLOEXEC);
	for (size_t at = from; at < end; at++) {
		for (size_t i = 0; i < LEN(nasty); i++) {
			assert_int_equal(pwrite(fd, &nasty[i], 1, (off_t)at), 1);
			open_any(x->path);
		}
		assert_int_equal(pwrite(fd, x->buf + at, 1, (off_t)at), 1);
	}
	close(fd);
}

static void bz_corrupt(void **state)
{
	struct setup_header h = bz_header();

	bz_make(*state, &h);
	corrupt_bytes(*state, HDR, HDR_END);
}

/* ELF */

#define PH_OFF   sizeof(Elf64_Ehdr)
#define SEG_OFF  0x1000
#define SEG_LEN  0x800
#define NOTE_OFF 0x800
#define ELF_LEN  (SEG_OFF + SEG_LEN + 0x100)
#define ELF_END  (LOAD + 0x5100) /* in memory */
#define VIRT     0xffffffff81000000ull
#define ENTRY    (LOAD + 0x100)
#define EH(f)    offsetof(Elf64_Ehdr, f), sizeof(((Elf64_Ehdr *)0)->f)
#define PH(i, f) (PH_OFF + (i) * sizeof(Elf64_Phdr) + offsetof(Elf64_Phdr, f)), sizeof(((Elf64_Phdr *)0)->f)

struct note {
	const char *name;
	uint32_t type;
	const void *desc;
	uint32_t descsz;
};

static const uint32_t pvh32 = LOAD + 0x200;
static const uint64_t pvh64 = LOAD + 0x300;
static const struct note note_pvh32 = { "Xen", 18, &pvh32, 4 };
static const struct note note_pvh64 = { "Xen", 18, &pvh64, 8 };

static size_t align(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

static size_t put_note(uint8_t *at, const struct note *n, size_t padding)
{
	Elf64_Nhdr h = { (uint32_t)strlen(n->name) + 1, n->descsz, n->type };
	size_t desc = align(sizeof(h) + h.n_namesz, padding);

	memcpy(at, &h, sizeof(h));
	strcpy((char *)at + sizeof(h), n->name);
	memcpy(at + desc, n->desc, n->descsz);
	return align(desc + n->descsz, padding);
}

static void put_ehdr(struct fixture *x, bool wide, uint16_t machine, uint64_t entry)
{
	Elf64_Ehdr e = { .e_ident = { 0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT },
		         .e_type = ET_EXEC,
		         .e_machine = machine,
		         .e_entry = entry,
		         .e_phoff = PH_OFF,
		         .e_phentsize = sizeof(Elf64_Phdr),
		         .e_phnum = 3 };
	Elf32_Ehdr n = { .e_ident = { 0x7f, 'E', 'L', 'F', ELFCLASS32, ELFDATA2LSB, EV_CURRENT },
		         .e_type = ET_EXEC,
		         .e_machine = machine,
		         .e_entry = (uint32_t)entry,
		         .e_phoff = PH_OFF,
		         .e_phentsize = sizeof(Elf32_Phdr),
		         .e_phnum = 3 };

	memcpy(x->buf, wide ? (void *)&e : (void *)&n, wide ? sizeof(e) : sizeof(n));
}

static void put_phdr(struct fixture *x, bool wide, unsigned i, const Elf64_Phdr *p)
{
	Elf32_Phdr n = { .p_type = p->p_type,
		         .p_offset = (uint32_t)p->p_offset,
		         .p_vaddr = (uint32_t)p->p_vaddr,
		         .p_paddr = (uint32_t)p->p_paddr,
		         .p_filesz = (uint32_t)p->p_filesz,
		         .p_memsz = (uint32_t)p->p_memsz,
		         .p_align = (uint32_t)p->p_align };

	if (wide)
		memcpy(x->buf + PH_OFF + i * sizeof(*p), p, sizeof(*p));
	else
		memcpy(x->buf + PH_OFF + i * sizeof(n), &n, sizeof(n));
}

/* Two segments with room for zeroes between them, and a segment of notes. */
static void elf_make(struct fixture *x, bool wide, uint16_t machine, uint64_t entry, const struct note *note,
                     size_t padding)
{
	Elf64_Phdr p[] = {
		{ PT_LOAD, PF_R | PF_X, SEG_OFF, VIRT, LOAD, SEG_LEN, 0x4000, PAGE },
		{ PT_LOAD, PF_R | PF_W, SEG_OFF + SEG_LEN, VIRT + 0x5000, LOAD + 0x5000, 0x100, 0x100, PAGE },
		{ PT_NOTE, PF_R, NOTE_OFF, 0, 0, 0, 0, padding },
	};

	memset(x->buf, 0, ELF_LEN);
	put_ehdr(x, wide, machine, entry);
	if (note)
		p[2].p_filesz = put_note(x->buf + NOTE_OFF, note, padding);
	for (unsigned i = 0; i < LEN(p); i++)
		put_phdr(x, wide, i, &p[i]);
	for (unsigned i = SEG_OFF; i < ELF_LEN; i++)
		x->buf[i] = (uint8_t)(i ^ i >> 8);
	x->len = ELF_LEN;
}

static void elf_entries(void **state)
{
	static const struct note gnu = { "GNU", 18, &pvh32, 4 }, odd = { "Xen", 18, &pvh64, 5 };
	static const struct note type = { "Xen", 17, &pvh32, 4 }, longer = { "Xenon", 18, &pvh32, 4 };
	static const struct {
		bool wide;
		uint16_t machine;
		uint64_t entry;
		const struct note *note;
		size_t padding;
		enum kernel_entry kind;
		uint64_t at; /* 0: refused */
	} t[] = {
		{ true, EM_X86_64, ENTRY, NULL, 4, KERNEL_LINUX64, ENTRY },
		{ true, EM_X86_64, VIRT + 0x100, NULL, 4, KERNEL_LINUX64, ENTRY },
		{ true, EM_X86_64, VIRT + 0x5010, NULL, 4, KERNEL_LINUX64, LOAD + 0x5010 },
		{ true, EM_X86_64, ENTRY, &note_pvh32, 4, KERNEL_PVH, LOAD + 0x200 },
		{ true, EM_X86_64, ENTRY, &note_pvh64, 4, KERNEL_PVH, LOAD + 0x300 },
		{ true, EM_X86_64, ENTRY, &note_pvh32, 8, KERNEL_PVH, LOAD + 0x200 },
		{ true, EM_X86_64, ENTRY, &note_pvh64, 8, KERNEL_PVH, LOAD + 0x300 },
		{ true, EM_X86_64, ENTRY, &gnu, 4, KERNEL_LINUX64, ENTRY },
		{ true, EM_X86_64, ENTRY, &odd, 4, KERNEL_LINUX64, ENTRY },
		{ true, EM_X86_64, ENTRY, &type, 4, KERNEL_LINUX64, ENTRY },
		{ true, EM_X86_64, ENTRY, &longer, 4, KERNEL_LINUX64, ENTRY },
		{ true, EM_386, ENTRY, &note_pvh32, 4, KERNEL_PVH, LOAD + 0x200 },
		{ true, EM_386, ENTRY, NULL, 4, 0, 0 },
		{ false, EM_386, ENTRY, &note_pvh32, 4, KERNEL_PVH, LOAD + 0x200 },
		{ false, EM_386, ENTRY, &note_pvh64, 4, KERNEL_PVH, LOAD + 0x300 },
		{ false, EM_386, ENTRY, NULL, 4, 0, 0 },
		{ false, EM_X86_64, ENTRY, NULL, 4, 0, 0 },
	};

	for (size_t i = 0; i < LEN(t); i++) {
		struct fixture *x = *state;
		struct kernel k;

		elf_make(x, t[i].wide, t[i].machine, t[i].entry, t[i].note, t[i].padding);
		write_image(x, x->len);
		if (!t[i].at) {
			refuse(x->path, "a 32-bit ELF file without a PVH note");
			continue;
		}
		open_good(x, &k);
		assert_int_equal(k.kind, t[i].kind);
		assert_int_equal(k.entry, t[i].at);
		assert_int_equal(k.nsegs, 2);
		assert_int_equal(k.first, LOAD);
		assert_int_equal(k.end, ELF_END);
		assert_false(k.is_linux);
		assert_int_equal(k.cmdline_max, 2047);
		kernel_close(&k);
	}
}

static void elf_is_linux(void **state)
{
	static const struct {
		struct note n;
		bool is;
	} t[] = {
		{ { "Linux", 0x100, "salt", 4 }, true }, { { "Xen", 6, "linux", 6 }, true },
		{ { "Xen", 6, "linux", 5 }, true },      { { "Xen", 6, "linu", 4 }, false },
		{ { "Xen", 6, "Mini-OS", 8 }, false },   { { "Xen", 7, "linux", 6 }, false },
		{ { "Linu", 0x100, "salt", 4 }, false },
	};

	for (size_t i = 0; i < LEN(t); i++) {
		struct fixture *x = *state;
		struct kernel k;

		elf_make(x, true, EM_X86_64, ENTRY, &t[i].n, 4);
		write_image(x, x->len);
		open_good(x, &k);
		assert_int_equal(k.is_linux, t[i].is);
		kernel_close(&k);
	}
}

/* Each field wrong, one at a time. */
static void elf_wrong_fields(void **state)
{
	static const struct {
		size_t off, size;
		uint64_t val;
		const char *why;
	} t[] = {
		{ EI_DATA, 1, ELFDATA2MSB, "big-endian" },
		{ EI_CLASS, 1, ELFCLASSNONE, "class" },
		{ EI_CLASS, 1, 3, "class" },
		{ EI_CLASS, 1, ELFCLASS32, "no usable program headers" },
		{ EH(e_machine), EM_AARCH64, "not x86" },
		{ EH(e_machine), 0, "not x86" },
		{ EH(e_type), ET_REL, "not an executable" },
		{ EH(e_type), ET_CORE, "not an executable" },
		{ EH(e_entry), 0, "entry point" },
		{ EH(e_entry), LOAD - 1, "entry point" },
		{ EH(e_entry), ELF_END, "entry point" },
		{ EH(e_entry), VIRT + 0x5100, "entry point" },
		{ EH(e_entry), UINT64_MAX, "entry point" },
		{ EH(e_phoff), ELF_LEN, "truncated" },
		{ EH(e_phoff), ELF_LEN - 3 * sizeof(Elf64_Phdr) + 1, "truncated" },
		{ EH(e_phoff), INT64_MAX, "truncated" },
		{ EH(e_phoff), UINT64_MAX, "truncated" },
		{ EH(e_phoff), -sizeof(Elf64_Phdr), "truncated" },
		{ EH(e_phentsize), 0, "no usable program headers" },
		{ EH(e_phentsize), sizeof(Elf32_Phdr), "no usable program headers" },
		{ EH(e_phentsize), 0xffff, "no usable program headers" },
		{ EH(e_phnum), 0, "no usable program headers" },
		{ EH(e_phnum), 65, "no usable program headers" },
		{ EH(e_phnum), 0xffff, "no usable program headers" },
		{ PH(0, p_offset), ELF_LEN, "truncated" },
		{ PH(0, p_offset), ELF_LEN - SEG_LEN + 1, "truncated" },
		{ PH(0, p_offset), UINT64_MAX, "truncated" },
		{ PH(0, p_offset), -SEG_LEN, "truncated" },
		{ PH(0, p_paddr), 0, "below 1 MiB" },
		{ PH(0, p_paddr), MM_HIGH_LOAD - 1, "below 1 MiB" },
		{ PH(0, p_paddr), -PAGE, "impossible sizes" },
		{ PH(0, p_paddr), UINT64_MAX, "impossible sizes" },
		{ PH(0, p_filesz), 0x4001, "impossible sizes" },
		{ PH(0, p_filesz), 0x4000, "truncated" },
		{ PH(0, p_filesz), UINT64_MAX, "impossible sizes" },
		{ PH(0, p_memsz), SEG_LEN - 1, "impossible sizes" },
		{ PH(0, p_memsz), UINT64_MAX, "impossible sizes" },
		{ PH(2, p_offset), ELF_LEN, "truncated" },
		{ PH(2, p_offset), UINT64_MAX, "truncated" },
		{ PH(2, p_filesz), ELF_LEN, "truncated" },
	};

	for (size_t i = 0; i < LEN(t); i++) {
		struct fixture *x = *state;

		elf_make(x, true, EM_X86_64, ENTRY, &note_pvh32, 4);
		memset(x->buf + NOTE_OFF, 0, 12); /* an empty one: the ELF entry counts */
		put(x->buf + t[i].off, (unsigned)t[i].size, t[i].val);
		write_image(x, x->len);
		refuse(x->path, t[i].why);
	}
}

static void elf_no_segments(void **state)
{
	struct fixture *x = *state;

	elf_make(x, true, EM_X86_64, ENTRY, &note_pvh32, 4);
	put(x->buf + PH_OFF, 4, PT_NULL);
	put(x->buf + PH_OFF + sizeof(Elf64_Phdr) + offsetof(Elf64_Phdr, p_filesz), 8, 0);
	put(x->buf + PH_OFF + sizeof(Elf64_Phdr) + offsetof(Elf64_Phdr, p_memsz), 8, 0);
	write_image(x, x->len);
	refuse(x->path, "nothing to load");
}

static void elf_many_segments(void **state)
{
	struct fixture *x = *state;
	struct kernel k;

	for (unsigned n = KERNEL_MAX_SEGMENTS; n <= KERNEL_MAX_SEGMENTS + 1; n++) {
		elf_make(x, true, EM_X86_64, ENTRY, NULL, 4);
		for (unsigned i = 0; i < n; i++)
			memcpy(x->buf + PH_OFF + i * sizeof(Elf64_Phdr), x->buf + PH_OFF, sizeof(Elf64_Phdr));
		put(x->buf + offsetof(Elf64_Ehdr, e_phnum), 2, n);
		write_image(x, x->len);
		if (n > KERNEL_MAX_SEGMENTS) {
			refuse(x->path, "too many segments");
			continue;
		}
		open_good(x, &k);
		assert_int_equal(k.nsegs, n);
		kernel_close(&k);
	}
}

static void elf_truncated(void **state)
{
	struct fixture *x = *state;

	for (unsigned wide = 0; wide < 2; wide++) {
		elf_make(x, wide, EM_X86_64, ENTRY, &note_pvh32, 4);
		write_image(x, x->len);
		for (size_t len = x->len - 1; len; len--) {
			assert_int_equal(truncate(x->path, (off_t)len), 0);
			refuse(x->path, len < 4 ? "not a kernel" : "truncated");
		}
	}
}

static void elf_corrupt(void **state)
{
	elf_make(*state, true, EM_X86_64, ENTRY, &note_pvh64, 4);
	corrupt_bytes(*state, 0, PH_OFF + 3 * sizeof(Elf64_Phdr));
	elf_make(*state, false, EM_386, ENTRY, &note_pvh32, 4);
	corrupt_bytes(*state, 0, PH_OFF + 3 * sizeof(Elf32_Phdr));
}

/* Notes that claim too much, in a segment cut at every length: passed over. */
static void elf_bad_notes(void **state)
{
	static const uint32_t sz[] = { 0, 1, 3, 4, 5, 8, 0x20, 0x7fffffff, 0x80000000, 0xfffffff0, 0xffffffff };
	struct fixture *x = *state;
	struct kernel k;

	for (size_t n = 0; n < LEN(sz) * LEN(sz) * 2; n++) {
		elf_make(x, true, EM_X86_64, ENTRY, &note_pvh32, n % 2 ? 4 : 8);
		put(x->buf + NOTE_OFF, 4, sz[n / 2 % LEN(sz)]);
		put(x->buf + NOTE_OFF + 4, 4, sz[n / 2 / LEN(sz)]);
		for (unsigned filesz = 0; filesz <= 24; filesz++) {
			put(x->buf + PH_OFF + 2 * sizeof(Elf64_Phdr) + offsetof(Elf64_Phdr, p_filesz), 8, filesz);
			write_image(x, x->len);
			open_any(x->path);
		}
	}
	elf_make(x, true, EM_X86_64, ENTRY, &note_pvh32, 4);
	for (unsigned filesz = 0; filesz <= 20; filesz++) {
		put(x->buf + PH_OFF + 2 * sizeof(Elf64_Phdr) + offsetof(Elf64_Phdr, p_filesz), 8, filesz);
		write_image(x, x->len);
		open_good(x, &k);
		assert_int_equal(k.kind, filesz == 20 ? KERNEL_PVH : KERNEL_LINUX64);
		kernel_close(&k);
	}
}

/* What is no file, or no kernel. */
static void other_files(void **state)
{
	struct fixture *x = *state;

	refuse(x->path, "No such file");
	refuse(x->dir, "is a directory");
	refuse("/dev/null", "not a regular file");
	assert_int_equal(mkfifo(x->path, 0600), 0);
	refuse(x->path, "not a regular file");
	unlink(x->path);
	memset(x->buf, 'x', 70000);
	write_image(x, 70000);
	refuse(x->path, "neither a bzImage nor an ELF file");
	write_image(x, 100);
	refuse(x->path, "bytes end before the header");
}

/* Into memory. */

static void map(struct gmem *m, uint64_t bytes)
{
	struct err err;

	memmap_banks(bytes, m);
	assert_int_equal(gmem_map(m, false, &err), 0);
}

static void load_bz(void **state)
{
	struct fixture *x = *state;
	struct setup_header h = bz_header();
	struct kernel k;
	struct gmem m;
	struct err err;

	bz_open(x, &h, &k);
	map(&m, 64 * MIB);
	assert_int_equal(kernel_load(&k, &m, &err), 0);
	assert_memory_equal(gmem_ptr(&m, LOAD, PAYLOAD), x->buf + SETUP_LEN, PAYLOAD);
	assert_int_equal(*(uint8_t *)gmem_ptr(&m, LOAD - 1, 1) | *(uint8_t *)gmem_ptr(&m, LOAD + PAYLOAD, 1), 0);
	gmem_unmap(&m);
	kernel_close(&k);
}

static void load_elf(void **state)
{
	static const uint8_t zero[0x4000 - SEG_LEN];
	struct fixture *x = *state;
	struct kernel k;
	struct gmem m;
	struct err err;

	elf_make(x, true, EM_X86_64, ENTRY, NULL, 4);
	write_image(x, x->len);
	open_good(x, &k);
	map(&m, 64 * MIB);
	assert_int_equal(kernel_load(&k, &m, &err), 0);
	assert_memory_equal(gmem_ptr(&m, LOAD, SEG_LEN), x->buf + SEG_OFF, SEG_LEN);
	assert_memory_equal(gmem_ptr(&m, LOAD + SEG_LEN, sizeof(zero)), zero, sizeof(zero));
	assert_memory_equal(gmem_ptr(&m, LOAD + 0x5000, 0x100), x->buf + SEG_OFF + SEG_LEN, 0x100);
	gmem_unmap(&m);
	kernel_close(&k);
}

/* A file with holes, in every place that a segment can have them: the same as one of zeros. */
static void load_holes(void **state)
{
	static const struct {
		uint64_t at, len;
	} data[][3] = {
		{ { 0, 4096 }, { 65536, 8192 }, { 131000, 100 } },
		{ { 65536, 1 }, { 0, 0 }, { 0, 0 } },
		{ { 4000, 100000 }, { 262143, 1 }, { 0, 0 } },
		{ { 0, 0 }, { 0, 0 }, { 0, 0 } },
	};
	struct fixture *x = *state;
	struct setup_header h = bz_header();

	h.syssize = 262144 / 16;
	for (size_t i = 0; i < LEN(data); i++) {
		uint8_t *want = calloc(1, 262144);
		struct kernel k;
		struct gmem m;
		struct err err;
		int fd;

		bz_make(x, &h);
		unlink(x->path);
		write_image(x, SETUP_LEN);
		fd = open(x->path, O_WRONLY);
		assert_int_equal(ftruncate(fd, (off_t)SETUP_LEN + 262144 + 5000), 0);
		for (size_t j = 0; j < LEN(data[i]); j++) {
			memset(want + data[i][j].at, 0xa0 + (int)j, data[i][j].len);
			assert_int_equal(
			        pwrite(fd, want + data[i][j].at, data[i][j].len, (off_t)(SETUP_LEN + data[i][j].at)),
			        data[i][j].len);
		}
		close(fd);
		open_good(x, &k);
		map(&m, 64 * MIB);
		assert_int_equal(kernel_load(&k, &m, &err), 0);
		assert_memory_equal(gmem_ptr(&m, LOAD, 262144), want, 262144);
		gmem_unmap(&m);
		kernel_close(&k);
		free(want);
	}
}

/* A file that shrinks after it was opened. */
static void load_shrunk(void **state)
{
	struct fixture *x = *state;
	struct setup_header h = bz_header();
	struct err err = { "" };
	struct kernel k;
	struct gmem m;

	bz_open(x, &h, &k);
	map(&m, 64 * MIB);
	assert_int_equal(truncate(x->path, SETUP_LEN + 100), 0);
	assert_int_equal(kernel_load(&k, &m, &err), -ENODATA);
	assert_told(&err, x->path, "");
	gmem_unmap(&m);
	kernel_close(&k);
}

/* The minimum that is named is the minimum. */
static void load_too_little(void **state)
{
	static const uint32_t init_size[] = { 0x3000000, 0x3000000 - 1, 0x3000000 + 1, 0x20000 };

	for (size_t i = 0; i < LEN(init_size); i++) {
		struct setup_header h = bz_header();
		uint64_t end = LOAD + init_size[i], mib = (end + MIB - 1) / MIB;
		struct err err = { "" };
		struct kernel k;
		struct gmem m;
		char why[80];

		h.init_size = init_size[i];
		bz_open(*state, &h, &k);
		snprintf(why, sizeof(why), "needs at least %u MiB of memory (-m), not %u", (unsigned)mib,
		         (unsigned)mib - 1);
		map(&m, (mib - 1) * MIB);
		assert_int_equal(kernel_load(&k, &m, &err), -ENOMEM);
		assert_told(&err, k.path, why);
		gmem_unmap(&m);
		map(&m, mib * MIB);
		assert_int_equal(kernel_load(&k, &m, &err), 0);
		gmem_unmap(&m);
		kernel_close(&k);
	}
}

/* Beyond the low RAM that any machine has: no minimum would help. */
static void load_too_high(void **state)
{
	static const uint64_t paddr[] = { MM_LOW_RAM_END, 0xfee00000, 4 * GIB, 1ull << 40, -0x8000ull };

	for (size_t i = 0; i < LEN(paddr); i++) {
		struct fixture *x = *state;
		struct err err = { "" };
		struct kernel k;
		struct gmem m;

		elf_make(x, true, EM_X86_64, ENTRY, NULL, 4);
		put(x->buf + PH_OFF + sizeof(Elf64_Phdr) + offsetof(Elf64_Phdr, p_paddr), 8, paddr[i]);
		write_image(x, x->len);
		open_good(x, &k);
		memmap_banks(6 * GIB, &m); /* without memory: nothing may be written */
		assert_int_equal(kernel_load(&k, &m, &err), -ENOMEM);
		assert_told(&err, x->path, "where no machine has memory for a kernel");
		kernel_close(&k);
	}
}

/* initrd */

static void initrd_places(void **state)
{
	static const struct {
		uint64_t end, max, low, size, addr; /* 0: nowhere */
	} t[] = {
		{ 0x3000000, 0x7fffffff, 128 * MIB, 1, 0x7fff000 },
		{ 0x3000000, 0x7fffffff, 128 * MIB, PAGE, 0x7fff000 },
		{ 0x3000000, 0x7fffffff, 128 * MIB, PAGE + 1, 0x7ffe000 },
		{ 0x3000000, 0x7fffffff, 128 * MIB, 0x5000000, 0x3000000 },
		{ 0x3000000, 0x7fffffff, 128 * MIB, 0x5000001, 0 },
		{ 0x3000000, 0x7fffffff, 128 * MIB, 128 * MIB, 0 },
		{ 0x3000000, 0x7fffffff, 128 * MIB, 128 * MIB + 1, 0 },
		{ 0x3000000, 0x7fffffff, 128 * MIB, UINT64_MAX, 0 },
		{ 0x2fff001, 0x7fffffff, 128 * MIB, 0x5000000, 0x3000000 },
		{ 0x3000001, 0x7fffffff, 128 * MIB, 0x5000000, 0 },
		{ 0x3000001, 0x7fffffff, 128 * MIB, 0x4fff000, 0x3001000 },
		{ 0x3000000, 0x7fffffff, 0x3000000, 1, 0 },
		{ 0x3000000, 0x7fffffff, 0x3001000, 1, 0x3000000 },
		{ 0x3000000, 0x7fffffff, 16 * MIB, 1, 0 },
		{ 0x3000000, 0x7fffffff, 2 * GIB - PAGE, PAGE, 0x7fffe000 },
		{ 0x3000000, 0x7fffffff, 2 * GIB, PAGE, 0x7ffff000 },
		{ 0x3000000, 0x7fffffff, 3 * GIB, PAGE, 0x7ffff000 },
		{ 0x3000000, 0x7fffffff, 3 * GIB, 0x7d000000, 0x3000000 },
		{ 0x3000000, 0x7fffffff, 3 * GIB, 0x7d000001, 0 },
		{ 0x3000000, 0x37ffffff, 3 * GIB, 1, 0x37fff000 },
		{ 0x3000000, 0x37fffffe, 3 * GIB, PAGE, 0x37ffe000 },
		{ 0x3000000, 0xffffffff, 3 * GIB, PAGE, 0xbffff000 },
		{ 0x3000000, 0x2ffffff, 3 * GIB, 1, 0 },
		{ 0x3000000, 0, 3 * GIB, 1, 0 },
	};

	for (size_t i = 0; i < LEN(t); i++) {
		struct kernel k = { .first = LOAD, .end = t[i].end, .initrd_max = t[i].max };

		assert_int_equal(boot_initrd_addr(&k, t[i].size, t[i].low), t[i].addr);
	}
}

static uint64_t rnd(uint64_t below)
{
	return ((uint64_t)random() << 31 ^ (uint64_t)random()) % below;
}

/* Wherever it is put: inside, clear of the kernel, aligned, and no page higher would do. */
static void initrd_anywhere(void **state)
{
	srandom(6);
	for (unsigned n = 0; n < 100000; n++) {
		struct kernel k = { .first = MIB, .end = MIB + 1 + rnd(64 * MIB), .initrd_max = rnd(4 * GIB) };
		uint64_t low = PAGE * (1 + rnd(1ull << (8 + n % 11))), size = 1 + rnd(1ull << (10 + n % 22));
		uint64_t addr = boot_initrd_addr(&k, size, low);
		uint64_t top = k.initrd_max + 1 < low ? k.initrd_max + 1 : low;

		if (!addr) {
			assert_true(align(k.end, PAGE) + size > top);
			continue;
		}
		assert_int_equal(addr % PAGE, 0);
		assert_true(addr >= k.end);
		assert_true(addr + size <= top);
		assert_true(addr + PAGE + size > top);
	}
}

static struct initrd open_initrd(struct fixture *x, uint64_t size)
{
	struct initrd rd = { .path = x->path2 };
	struct err err;

	write_file(x->path2, "initrd!", 7);
	assert_int_equal(truncate(x->path2, (off_t)size), 0);
	assert_int_equal(open_regular("initrd", x->path2, &rd.fd, &rd.size, &err), 0);
	assert_int_equal(rd.size, size);
	return rd;
}

/* The minimum named with an initrd is the minimum, too. */
static void initrd_too_little(void **state)
{
	static const uint64_t size[] = { 1, 5 * MIB, 5 * MIB - PAGE + 1, 5 * MIB + 1 };
	struct fixture *x = *state;
	struct setup_header h = bz_header();
	struct kernel k;

	h.init_size = 0x1000000 - 0x800; /* ends below a page's end */
	bz_open(x, &h, &k);
	for (size_t i = 0; i < LEN(size); i++) {
		uint64_t mib = (LOAD + 0x1000000 + size[i] + MIB - 1) / MIB;
		struct initrd rd = open_initrd(x, size[i]);
		struct err err = { "" };
		struct gmem m;
		char why[100];

		/* Also where not even the kernel fits. */
		for (unsigned have = (unsigned)mib - 1; have; have = have > 2 ? 2 : 0) {
			snprintf(why, sizeof(why), "kernel and initrd need at least %u MiB of memory (-m), not %u",
			         (unsigned)mib, have);
			map(&m, have * MIB);
			assert_int_equal(boot_load(&k, &rd, "", RSDP, &m, &err), -ENOMEM);
			assert_told(&err, "", why);
			gmem_unmap(&m);
		}
		map(&m, mib * MIB);
		assert_int_equal(boot_load(&k, &rd, "", RSDP, &m, &err), 0);
		gmem_unmap(&m);
		close(rd.fd);
	}
	kernel_close(&k);
}

static void initrd_too_large(void **state)
{
	static const uint64_t less[] = { 0, 1, PAGE - 1 }; /* how far below a page's end the kernel ends */
	struct fixture *x = *state;

	for (size_t i = 0; i < LEN(less); i++) {
		struct setup_header h = bz_header();
		struct initrd rd = open_initrd(x, 16 * MIB + 1);
		struct err err = { "" };
		struct kernel k;
		struct gmem m;

		h.init_size = (uint32_t)(0x1000000 - less[i]);
		h.initrd_addr_max = 0x2ffffff;
		bz_open(x, &h, &k);
		map(&m, 512 * MIB);
		assert_int_equal(boot_load(&k, &rd, "", RSDP, &m, &err), -EFBIG);
		assert_told(&err, x->path2, "too large: this kernel takes at most 16 MiB");
		rd.size--;
		assert_int_equal(boot_load(&k, &rd, "", RSDP, &m, &err), 0);
		assert_memory_equal(gmem_ptr(&m, 0x2000000, 7), "initrd!", 7);
		gmem_unmap(&m);
		kernel_close(&k);
		close(rd.fd);
	}
}

/* A kernel that would take one anywhere: our own 3 GiB of low RAM are the limit then. */
static void initrd_beyond_low_ram(void **state)
{
	struct fixture *x = *state;
	struct setup_header h = bz_header();
	struct initrd rd = open_initrd(x, 3 * GIB);
	struct err err = { "" };
	struct kernel k;
	struct gmem m;

	h.initrd_addr_max = 0xffffffff;
	h.init_size = 0x1000000;
	bz_open(x, &h, &k);
	map(&m, 6 * GIB);
	assert_int_equal(boot_load(&k, &rd, "", RSDP, &m, &err), -EFBIG);
	assert_told(&err, x->path2, "at most 3040 MiB");
	gmem_unmap(&m);
	kernel_close(&k);
	close(rd.fd);
}

static const struct initrd no_initrd = { .fd = -1 };

static void cmdline_limit(void **state)
{
	static const struct {
		uint32_t size;
		size_t max;
		const char *why;
	} t[] = {
		{ 2047, 2047, "2048 characters, it takes at most 2047" },
		{ 0, 255, "256 characters, it takes at most 255" },
		{ 0xffffffff, 65535, "65536 characters, it takes at most 65535" },
	};
	static char line[70000];

	for (size_t i = 0; i < LEN(t); i++) {
		struct setup_header h = bz_header();
		struct err err = { "" };
		struct kernel k;
		struct gmem m;

		h.cmdline_size = t[i].size;
		bz_open(*state, &h, &k);
		map(&m, 64 * MIB);
		memset(line, 0, sizeof(line));
		memset(line, 'a', t[i].max);
		assert_int_equal(boot_load(&k, &no_initrd, line, RSDP, &m, &err), 0);
		assert_string_equal(gmem_ptr(&m, MM_CMDLINE, t[i].max + 1), line);
		line[t[i].max] = 'a';
		assert_int_equal(boot_load(&k, &no_initrd, line, RSDP, &m, &err), -E2BIG);
		assert_told(&err, "", t[i].why);
		gmem_unmap(&m);
		kernel_close(&k);
	}
}

/* A bzImage, and what was compressed in it. */

static int elf_fd(struct fixture *x, bool wide, uint16_t machine, const struct note *note)
{
	int fd;

	elf_make(x, wide, machine, ENTRY, note, 4);
	write_file(x->path2, x->buf, x->len);
	fd = open(x->path2, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	return fd;
}

/* The ELF file's entry and segments; the bzImage's name, limits and need of memory. */
static void unpacked_elf(void **state)
{
	static const struct {
		const struct note *note;
		enum kernel_entry kind;
		uint32_t init_size;
	} t[] = {
		{ &note_pvh32, KERNEL_PVH, 0x2000000 },
		{ NULL, KERNEL_LINUX64, 0x2000000 },
		{ &note_pvh32, KERNEL_PVH, PAYLOAD },
	};
	struct fixture *x = *state;

	for (size_t i = 0; i < LEN(t); i++) {
		struct setup_header h = bz_header();
		struct kernel k, elf;
		struct err err;
		int fd;

		h.init_size = t[i].init_size;
		h.cmdline_size = 1234;
		h.initrd_addr_max = 0x3fffffff;
		bz_open(x, &h, &k);
		fd = elf_fd(x, true, EM_X86_64, t[i].note);
		assert_int_equal(kernel_open(x->path2, &elf, &err), 0);
		assert_int_equal(kernel_set_unpacked(&k, fd, x->len, &err), 0);
		assert_sound(&k);
		assert_int_equal(k.kind, t[i].kind);
		assert_int_equal(k.entry, elf.entry);
		assert_int_equal(k.nsegs, elf.nsegs);
		assert_memory_equal(k.seg, elf.seg, sizeof(k.seg));
		assert_string_equal(k.version, "6.1.0-test");
		assert_true(k.is_linux);
		assert_int_equal(k.cmdline_max, 1234);
		assert_int_equal(k.initrd_max, 0x3fffffff);
		assert_int_equal(k.end, LOAD + h.init_size > elf.end ? LOAD + h.init_size : elf.end);
		assert_memory_equal(&k.hdr, &h, sizeof(h));
		assert_int_equal(k.packed_len, 0);
		assert_string_equal(k.path, x->path);
		kernel_close(&elf);
		kernel_close(&k);
	}
}

/* What cannot be booted leaves the bzImage as it was, and the descriptor to the caller. */
static void unpacked_wrong(void **state)
{
	struct fixture *x = *state;
	struct setup_header h = bz_header();
	struct kernel k, old;
	struct err err = { "" };
	int fd;

	bz_open(x, &h, &k);
	old = k;
	fd = elf_fd(x, false, EM_386, NULL); /* 32-bit, and no PVH entry */
	assert_int_equal(kernel_set_unpacked(&k, fd, x->len, &err), -EINVAL);
	assert_told(&err, x->path, "without a PVH note");
	assert_int_equal(kernel_set_unpacked(&k, fd, 100, &err), -EINVAL);
	assert_told(&err, x->path, "truncated");
	close(fd);
	write_file(x->path2, "#!/bin/sh", 9);
	fd = open(x->path2, O_RDONLY | O_CLOEXEC);
	assert_int_equal(kernel_set_unpacked(&k, fd, 9, &err), -ENOEXEC);
	assert_told(&err, x->path, "no ELF file");
	assert_int_equal(kernel_set_unpacked(&k, fd, 10, &err), -ENODATA);
	close(fd);
	assert_memory_equal(&k, &old, sizeof(k));
	kernel_close(&k);
}

/* Where the header says that something is compressed; one that is wrong about it is believed to have nothing. */
static void packed_where(void **state)
{
	static const struct {
		uint16_t version;
		uint32_t offset, len;
		uint64_t packed, packed_len;
	} t[] = {
		{ 0x0208, 0x100, 0x200, SETUP_LEN + 0x100, 0x200 },
		{ 0x0208, 0x100, PAYLOAD - 0x100, SETUP_LEN + 0x100, PAYLOAD - 0x100 },
		{ 0x0208, 0x100, PAYLOAD - 0xff, 0, 0 },
		{ 0x0208, PAYLOAD + 1, 1, 0, 0 },
		{ 0x0208, 0xffffffff, 0xffffffff, 0, 0 },
		{ 0x0208, 0, 0x200, 0, 0 },
		{ 0x0207, 0x100, 0x200, 0, 0 },
	};

	for (size_t i = 0; i < LEN(t); i++) {
		struct setup_header h = bz_header();
		struct kernel k;

		h.version = t[i].version;
		h.payload_offset = t[i].offset;
		h.payload_length = t[i].len;
		bz_open(*state, &h, &k);
		assert_int_equal(k.packed, t[i].packed);
		assert_int_equal(k.packed_len, t[i].packed_len);
		kernel_close(&k);
	}
}

/* What it finds. */

static void check_page_tables(const struct gmem *m)
{
	static const uint64_t gpa[] = { 0, PAGE, 2 * MIB - 1, LOAD, GIB - 1, GIB, 3 * GIB + 5 * MIB, 4 * GIB - 1 };
	const uint64_t *pml4 = gmem_ptr(m, MM_PAGE_TABLES, PAGE);

	for (size_t i = 0; i < LEN(gpa); i++) {
		const uint64_t *pdpt = gmem_ptr(m, pml4[0] & -PAGE, PAGE);
		const uint64_t *pd = gmem_ptr(m, pdpt[gpa[i] >> 30] & -PAGE, PAGE);

		assert_int_equal(pml4[0] & 0xfff, 3); /* present, writable */
		assert_int_equal(pdpt[gpa[i] >> 30] & 0xfff, 3);
		assert_int_equal(pd[gpa[i] >> 21 & 511], (gpa[i] & -(2 * MIB)) | 0x83); /* and a large page */
	}
	assert_int_equal(pml4[1] | pml4[511], 0);
	assert_int_equal(((uint64_t *)gmem_ptr(m, pml4[0] & -PAGE, PAGE))[4], 0);
}

/* A descriptor in memory against the segment that boot_regs() loads. */
static void check_descriptor(const uint64_t *gdt, const struct kvm_segment *s)
{
	uint64_t d = gdt[s->selector / 8];
	uint32_t limit = (uint32_t)((d & 0xffff) | (d >> 32 & 0xf0000));

	assert_int_equal((d >> 16 & 0xffffff) | (d >> 56) << 24, s->base);
	assert_int_equal(d >> 55 & 1 ? limit << 12 | 0xfff : limit, s->limit);
	assert_int_equal(d >> 40 & 0xf, s->type);
	assert_int_equal(d >> 44 & 1, s->s);
	assert_int_equal(d >> 45 & 3, s->dpl);
	assert_int_equal(d >> 47 & 1, s->present);
	assert_int_equal(d >> 53 & 1, s->l);
	assert_int_equal(d >> 54 & 1, s->db);
	assert_int_equal(d >> 55 & 1, s->g);
}

static void check_segments(const struct gmem *m, const struct kvm_sregs *s)
{
	const struct kvm_segment *data[] = { &s->ds, &s->es, &s->fs, &s->gs, &s->ss };
	const uint64_t *gdt = gmem_ptr(m, s->gdt.base, s->gdt.limit + 1ull);

	assert_int_equal(gdt[0], 0);
	check_descriptor(gdt, &s->cs);
	check_descriptor(gdt, &s->tr);
	assert_int_equal(s->cs.selector, 0x10); /* Linux' __BOOT_CS and __BOOT_DS */
	assert_int_equal(s->cs.type, 0xb);
	for (size_t i = 0; i < LEN(data); i++) {
		check_descriptor(gdt, data[i]);
		assert_int_equal(data[i]->selector, 0x18);
		assert_int_equal(data[i]->type, 0x3);
		assert_int_equal(data[i]->limit, 0xffffffff);
	}
}

/* Registers and tables of an entry agree. */
static void check_entry(const struct kernel *k, const struct gmem *m)
{
	struct kvm_sregs s = { .cr0 = 0x60000010, .apic_base = 0xfee00900 };
	bool wide = k->kind == KERNEL_LINUX64;
	struct kvm_regs r;

	memset(&r, 0xff, sizeof(r));
	boot_regs(k, &r, &s);
	assert_int_equal(r.rip, k->entry);
	assert_int_equal(r.rflags, 2);
	assert_int_equal(r.rbx, k->kind == KERNEL_PVH ? MM_PVH_INFO : 0);
	assert_int_equal(r.rsi, k->kind == KERNEL_PVH ? 0 : MM_BOOT_PARAMS);
	assert_int_equal(r.rax | r.rcx | r.rdx | r.rdi | r.rbp | r.rsp | r.r8 | r.r15, 0);
	assert_int_equal(s.cr0, wide ? 0x80000011 : 0x11);
	assert_int_equal(s.cr4, wide ? 0x20 : 0);
	assert_int_equal(s.efer, wide ? 0x500 : 0);
	assert_int_equal(s.cr3, wide ? MM_PAGE_TABLES : 0);
	assert_int_equal(s.cs.l, wide);
	assert_int_equal(s.cs.db, !wide);
	assert_int_equal(s.apic_base, 0xfee00900);
	check_segments(m, &s);
	if (wide)
		check_page_tables(m);
}

static void check_boot_params(const struct kernel *k, const struct gmem *m, uint64_t rd, uint64_t rd_size)
{
	const struct boot_params *bp = gmem_ptr(m, MM_BOOT_PARAMS, sizeof(*bp));
	struct setup_header h = k->hdr;
	struct e820_entry e[E820_MAX];
	unsigned n = memmap_e820(m, e);

	h.type_of_loader = 0xff;
	h.cmd_line_ptr = MM_CMDLINE;
	h.vid_mode = 0xffff;
	h.ramdisk_image = (uint32_t)rd;
	h.ramdisk_size = (uint32_t)rd_size;
	h.code32_start = (uint32_t)k->seg[0].paddr;
	assert_memory_equal(&bp->hdr, &h, sizeof(h));
	assert_int_equal(bp->hdr.header, 0x53726448);
	assert_int_equal(bp->acpi_rsdp_addr, RSDP);
	assert_int_equal(bp->sentinel, 0);
	assert_int_equal(bp->ext_ramdisk_image | bp->ext_ramdisk_size | bp->ext_cmd_line_ptr, 0);
	assert_int_equal(bp->e820_entries, n);
	for (unsigned i = 0; i < n; i++) {
		assert_int_equal(bp->e820_table[i].addr, e[i].addr);
		assert_int_equal(bp->e820_table[i].size, e[i].len);
		assert_int_equal(bp->e820_table[i].type, e[i].type);
	}
	assert_int_equal(bp->e820_table[n].size, 0);
}

static void start_linux(void **state)
{
	struct fixture *x = *state;

	for (unsigned n = 0; n < 4; n++) {
		struct setup_header h = bz_header();
		struct initrd rd = open_initrd(x, 9999);
		uint64_t at = 64 * MIB - 3 * PAGE;
		struct kernel k;
		struct gmem m;
		struct err err;

		if (n & 1)
			h.xloadflags = 0;
		bz_open(x, &h, &k);
		map(&m, 64 * MIB);
		memset(gmem_ptr(&m, MM_BOOT_PARAMS, PAGE), 0xee, PAGE);
		memset(gmem_ptr(&m, MM_PAGE_TABLES, 6 * PAGE), 0xee, 6 * PAGE);
		assert_int_equal(boot_load(&k, n & 2 ? &rd : &no_initrd, "quiet", RSDP, &m, &err), 0);
		assert_string_equal(gmem_ptr(&m, MM_CMDLINE, 6), "quiet");
		check_boot_params(&k, &m, n & 2 ? at : 0, n & 2 ? 9999 : 0);
		if (n & 2)
			assert_memory_equal(gmem_ptr(&m, at, 7), "initrd!", 7);
		check_entry(&k, &m);
		gmem_unmap(&m);
		kernel_close(&k);
		close(rd.fd);
	}
}

static void start_vmlinux(void **state)
{
	struct fixture *x = *state;
	struct kernel k;
	struct gmem m;
	struct err err;

	elf_make(x, true, EM_X86_64, VIRT + 0x100, NULL, 4);
	write_image(x, x->len);
	open_good(x, &k);
	map(&m, 6 * GIB);
	assert_int_equal(boot_load(&k, &no_initrd, "", RSDP, &m, &err), 0);
	check_boot_params(&k, &m, 0, 0);
	check_entry(&k, &m);
	gmem_unmap(&m);
	kernel_close(&k);
}

/* hvm_start_info, by the offsets in Xen's start_info.h. */
static void check_pvh(const struct gmem *m, uint64_t rd, uint64_t rd_size)
{
	const uint32_t *info = gmem_ptr(m, MM_PVH_INFO, 56);
	const uint64_t *addr = (const uint64_t *)(const void *)(info + 4), *entry, *mod;
	struct e820_entry e[E820_MAX];
	unsigned n = memmap_e820(m, e);

	assert_int_equal(info[0], 0x336ec578);
	assert_int_equal(info[1], 1); /* version */
	assert_int_equal(info[2], 0); /* flags */
	assert_int_equal(info[3], rd_size != 0);
	assert_int_equal(addr[1], MM_CMDLINE);
	assert_int_equal(addr[2], RSDP);
	assert_int_equal(info[12], n);
	assert_int_equal(info[13], 0);
	entry = gmem_ptr(m, addr[3], n * 24);
	for (unsigned i = 0; i < n; i++, entry += 3) {
		assert_int_equal(entry[0], e[i].addr);
		assert_int_equal(entry[1], e[i].len);
		assert_int_equal(entry[2], e[i].type);
	}
	if (!rd_size)
		return;
	mod = gmem_ptr(m, addr[0], 32);
	assert_int_equal(mod[0], rd);
	assert_int_equal(mod[1], rd_size);
	assert_int_equal(mod[2] | mod[3], 0);
}

static void start_pvh(void **state)
{
	struct fixture *x = *state;

	for (unsigned n = 0; n < 4; n++) {
		struct initrd rd = open_initrd(x, 9999);
		struct kernel k;
		struct gmem m;
		struct err err;

		elf_make(x, n & 1, n & 1 ? EM_X86_64 : EM_386, ENTRY, &note_pvh32, 4);
		write_image(x, x->len);
		open_good(x, &k);
		map(&m, 5 * GIB);
		memset(gmem_ptr(&m, MM_PVH_INFO, PAGE), 0xee, PAGE);
		assert_int_equal(boot_load(&k, n & 2 ? &rd : &no_initrd, "a=b", RSDP, &m, &err), 0);
		assert_string_equal(gmem_ptr(&m, MM_CMDLINE, 4), "a=b");
		check_pvh(&m, 2 * GIB - 3 * PAGE, n & 2 ? 9999 : 0);
		check_entry(&k, &m);
		gmem_unmap(&m);
		kernel_close(&k);
		close(rd.fd);
	}
}

/* The memory map. */

static bool is_ram(const struct gmem *m, uint64_t addr, uint64_t len)
{
	for (unsigned i = 0; i < m->nbanks; i++)
		if (addr >= m->bank[i].gpa && addr + len <= m->bank[i].gpa + m->bank[i].len)
			return true;
	return false;
}

static void e820_sizes(void **state)
{
	static const struct {
		uint64_t mib, low_end, high_len;
	} t[] = {
		{ 2, 2 * MIB, 0 },
		{ 80, 80 * MIB, 0 },
		{ 127, 127 * MIB, 0 },
		{ 3071, 3071 * MIB, 0 },
		{ 3072, 3 * GIB, 0 },
		{ 3073, 3 * GIB, MIB },
		{ 3327, 3 * GIB, 255 * MIB },
		{ 3328, 3 * GIB, 256 * MIB },
		{ 4095, 3 * GIB, 1023 * MIB },
		{ 4096, 3 * GIB, GIB },
		{ 4097, 3 * GIB, 1025 * MIB },
		{ 6144, 3 * GIB, 3 * GIB },
		{ 2097152, 3 * GIB, 2045 * GIB },
	};

	for (size_t i = 0; i < LEN(t); i++) {
		uint64_t ram = 0, last = 0;
		struct e820_entry e[E820_MAX];
		bool ecam = false;
		struct gmem m;
		unsigned n;

		memmap_banks(t[i].mib * MIB, &m);
		n = memmap_e820(&m, e);
		assert_in_range(n, 5, E820_MAX);
		for (unsigned j = 0; j < n; j++) {
			assert_true(e[j].len && e[j].addr >= last);
			last = e[j].addr + e[j].len;
			ecam |= e[j].type == E820_RESERVED && e[j].addr == MM_ECAM && e[j].len == MM_ECAM_LEN;
			if (e[j].type != E820_RAM)
				continue;
			assert_true(is_ram(&m, e[j].addr, e[j].len));
			ram += e[j].len;
		}
		assert_true(ecam);
		assert_int_equal(ram, t[i].mib * MIB - (MM_HIGH_LOAD - MM_EBDA));
		assert_int_equal(e[0].addr, 0);
		assert_int_equal(e[3].addr, MM_HIGH_LOAD);
		assert_int_equal(e[3].addr + e[3].len, t[i].low_end);
		assert_int_equal(m.nbanks, t[i].high_len ? 2 : 1);
		assert_int_equal(n, t[i].high_len ? 6 : 5);
		if (t[i].high_len) {
			assert_int_equal(e[5].addr, 4 * GIB);
			assert_int_equal(e[5].len, t[i].high_len);
		}
	}
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(bz_entries),
		TEST(bz_limits),
		TEST(bz_short_header),
		TEST(bz_setup_sects_zero),
		TEST(bz_lengths),
		TEST(bz_truncated),
		TEST(bz_smallest),
		TEST(bz_old),
		TEST(bz_old_size),
		TEST(bz_damaged),
		TEST(bz_version),
		TEST(bz_version_endless),
		TEST(bz_corrupt),
		TEST(elf_entries),
		TEST(elf_is_linux),
		TEST(elf_wrong_fields),
		TEST(elf_no_segments),
		TEST(elf_many_segments),
		TEST(elf_truncated),
		TEST(elf_corrupt),
		TEST(elf_bad_notes),
		TEST(other_files),
		TEST(load_bz),
		TEST(load_elf),
		TEST(load_holes),
		TEST(load_shrunk),
		TEST(load_too_little),
		TEST(load_too_high),
		cmocka_unit_test(initrd_places),
		cmocka_unit_test(initrd_anywhere),
		TEST(initrd_too_little),
		TEST(initrd_too_large),
		TEST(initrd_beyond_low_ram),
		TEST(cmdline_limit),
		TEST(packed_where),
		TEST(unpacked_elf),
		TEST(unpacked_wrong),
		TEST(start_linux),
		TEST(start_vmlinux),
		TEST(start_pvh),
		cmocka_unit_test(e820_sizes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
