// SPDX-License-Identifier: GPL-2.0-or-later
#include "arch/x86/kernel.h"
#include "arch/x86/memmap.h"
#include "base/io.h"

#include <elf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * ELF kernels: Linux's vmlinux and small guests. The entry is that of a PVH
 * note where there is one (Xen's docs/misc/pvh.pandoc), else the ELF entry by
 * Linux's 64-bit boot protocol. 32-bit files are widened as they are read.
 */

#define XEN_NOTE_GUEST_OS     6
#define XEN_NOTE_PHYS32_ENTRY 18
#define MAX_PHDRS             64
#define MAX_NOTES             (1u << 20) /* bytes */

struct image {
	Elf64_Ehdr eh;
	unsigned nph;
	Elf64_Phdr ph[MAX_PHDRS];
};

static int bad(const struct kernel *k, struct err *err, const char *why)
{
	return err_set(err, -EINVAL, "%s: not a kernel for this machine: %s", k->path, why);
}

static int truncated(const struct kernel *k, struct err *err)
{
	return err_set(err, -EINVAL, "%s: truncated: the ELF file ends too early", k->path);
}

static int read_ehdr(const struct kernel *k, const uint8_t *head, size_t len, struct image *im, struct err *err)
{
	if (len < sizeof(Elf64_Ehdr))
		return truncated(k, err);
	if (head[EI_DATA] != ELFDATA2LSB)
		return bad(k, err, "big-endian ELF");
	if (head[EI_CLASS] != ELFCLASS64 && head[EI_CLASS] != ELFCLASS32)
		return bad(k, err, "an unknown ELF class");
	if (head[EI_CLASS] == ELFCLASS64) {
		memcpy(&im->eh, head, sizeof(im->eh));
	} else {
		Elf32_Ehdr e;

		memcpy(&e, head, sizeof(e));
		im->eh = (Elf64_Ehdr){ .e_type = e.e_type,
			               .e_machine = e.e_machine,
			               .e_entry = e.e_entry,
			               .e_phoff = e.e_phoff,
			               .e_phentsize = e.e_phentsize,
			               .e_phnum = e.e_phnum };
		memcpy(im->eh.e_ident, e.e_ident, EI_NIDENT);
	}
	if (im->eh.e_machine != EM_X86_64 && im->eh.e_machine != EM_386)
		return bad(k, err, "not x86");
	if (im->eh.e_type != ET_EXEC && im->eh.e_type != ET_DYN)
		return bad(k, err, "not an executable");
	return 0;
}

static int read_phdrs(const struct kernel *k, struct image *im, struct err *err)
{
	bool wide = im->eh.e_ident[EI_CLASS] == ELFCLASS64;
	size_t size = wide ? sizeof(Elf64_Phdr) : sizeof(Elf32_Phdr);

	if (!im->eh.e_phnum || im->eh.e_phnum > MAX_PHDRS || im->eh.e_phentsize != size)
		return bad(k, err, "no usable program headers");
	im->nph = im->eh.e_phnum;
	for (unsigned i = 0; i < im->nph; i++) {
		Elf32_Phdr p;
		void *to = wide ? (void *)&im->ph[i] : (void *)&p;

		if (read_at(k->fd, to, size, im->eh.e_phoff + i * size))
			return truncated(k, err);
		if (!wide)
			im->ph[i] = (Elf64_Phdr){ .p_type = p.p_type,
				                  .p_offset = p.p_offset,
				                  .p_vaddr = p.p_vaddr,
				                  .p_paddr = p.p_paddr,
				                  .p_filesz = p.p_filesz,
				                  .p_memsz = p.p_memsz,
				                  .p_align = p.p_align };
	}
	return 0;
}

static int add_segment(struct kernel *k, const Elf64_Phdr *p, struct err *err)
{
	struct kernel_segment *s = &k->seg[k->nsegs];

	if (!p->p_memsz)
		return 0;
	if (k->nsegs == KERNEL_MAX_SEGMENTS)
		return bad(k, err, "too many segments");
	if (p->p_filesz > p->p_memsz || p->p_paddr + p->p_memsz < p->p_paddr)
		return bad(k, err, "a segment with impossible sizes");
	if (p->p_offset > k->size || p->p_filesz > k->size - p->p_offset)
		return truncated(k, err);
	if (p->p_paddr < MM_HIGH_LOAD)
		return bad(k, err, "a segment below 1 MiB");
	*s = (struct kernel_segment){ p->p_offset, p->p_filesz, p->p_paddr, p->p_memsz };
	if (s->paddr < k->first)
		k->first = s->paddr;
	if (s->paddr + s->memsz > k->end)
		k->end = s->paddr + s->memsz;
	k->nsegs++;
	return 0;
}

/* One note: an owner's name and a value, both padded to @align bytes. */
static void read_note(struct kernel *k, const char *name, const Elf64_Nhdr *n, const uint8_t *desc)
{
	if (n->n_namesz == 6 && !memcmp(name, "Linux", 6))
		k->is_linux = true;
	if (n->n_namesz != 4 || memcmp(name, "Xen", 4))
		return;
	if (n->n_type == XEN_NOTE_GUEST_OS && n->n_descsz >= 5 && !memcmp(desc, "linux", 5))
		k->is_linux = true;
	if (n->n_type == XEN_NOTE_PHYS32_ENTRY && (n->n_descsz == 4 || n->n_descsz == 8)) {
		k->kind = KERNEL_PVH;
		k->entry = 0;
		memcpy(&k->entry, desc, n->n_descsz);
	}
}

static size_t pad(size_t n, size_t align)
{
	return (n + align - 1) & ~(align - 1);
}

static void scan_notes(struct kernel *k, const uint8_t *buf, size_t len, size_t align)
{
	size_t off = 0;

	while (len - off >= sizeof(Elf64_Nhdr)) {
		Elf64_Nhdr n;
		size_t name = off + sizeof(n), desc, next;

		memcpy(&n, buf + off, sizeof(n));
		if (n.n_namesz > len || n.n_descsz > len)
			return;
		desc = pad(name + n.n_namesz, align);
		next = pad(desc + n.n_descsz, align);
		if (desc + n.n_descsz > len)
			return;
		read_note(k, (const char *)buf + name, &n, buf + desc);
		if (next > len)
			return;
		off = next;
	}
}

static int read_notes(struct kernel *k, const Elf64_Phdr *p, struct err *err)
{
	uint8_t *buf;

	if (!p->p_filesz || p->p_filesz > MAX_NOTES)
		return 0;
	buf = malloc(p->p_filesz);
	if (!buf)
		return err_set(err, -ENOMEM, "out of memory");
	if (read_at(k->fd, buf, p->p_filesz, p->p_offset)) {
		free(buf);
		return truncated(k, err);
	}
	scan_notes(k, buf, p->p_filesz, p->p_align == 8 ? 8 : 4);
	free(buf);
	return 0;
}

/* e_entry may be a virtual address: then the segment that holds it tells the physical one. */
static int find_entry(struct kernel *k, const struct image *im, struct err *err)
{
	uint64_t e = im->eh.e_entry;

	if (k->kind == KERNEL_PVH)
		return 0;
	if (im->eh.e_machine != EM_X86_64 || im->eh.e_ident[EI_CLASS] != ELFCLASS64)
		return bad(k, err, "a 32-bit ELF file without a PVH note");
	k->entry = e;
	for (unsigned i = 0; i < im->nph; i++) {
		const Elf64_Phdr *p = &im->ph[i];

		if (p->p_type == PT_LOAD && e >= p->p_vaddr && e - p->p_vaddr < p->p_memsz)
			k->entry = p->p_paddr + (e - p->p_vaddr);
	}
	return 0;
}

/* What a boot loader tells a kernel that brings no setup header of its own. */
static void fake_header(struct kernel *k)
{
	k->hdr = (struct setup_header){ .boot_flag = 0xaa55,
		                        .header = 0x53726448 /* "HdrS" */,
		                        .version = 0x020f,
		                        .loadflags = LOADED_HIGH,
		                        .kernel_alignment = 0x200000 };
	k->cmdline_max = 2047;
	k->initrd_max = 0x7fffffff;
}

static int parse(struct kernel *k, const uint8_t *head, size_t len, struct image *im, struct err *err)
{
	int error = read_ehdr(k, head, len, im, err);

	k->kind = KERNEL_LINUX64;
	k->first = UINT64_MAX;
	if (!error)
		error = read_phdrs(k, im, err);
	for (unsigned i = 0; !error && i < im->nph; i++) {
		if (im->ph[i].p_type == PT_LOAD)
			error = add_segment(k, &im->ph[i], err);
		else if (im->ph[i].p_type == PT_NOTE)
			error = read_notes(k, &im->ph[i], err);
	}
	if (!error && !k->nsegs)
		error = bad(k, err, "nothing to load");
	if (!error)
		error = find_entry(k, im, err);
	if (!error && (k->entry < k->first || k->entry >= k->end))
		error = bad(k, err, "its entry point lies outside of it");
	return error;
}

int elf_parse(struct kernel *k, const uint8_t *head, size_t len, struct err *err)
{
	struct image *im;
	int error;

	if (len < SELFMAG || memcmp(head, ELFMAG, SELFMAG))
		return -ENOEXEC;
	im = calloc(1, sizeof(*im));
	if (!im)
		return err_set(err, -ENOMEM, "out of memory");
	error = parse(k, head, len, im, err);
	free(im);
	if (!error)
		fake_header(k);
	return error;
}
