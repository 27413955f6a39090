// SPDX-License-Identifier: GPL-2.0-or-later
#include "arch/x86/kernel.h"
#include "arch/x86/memmap.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

/* Documentation/arch/x86/boot.rst, "The Real-Mode Kernel Header". */

#define HDR_OFF       0x1f1 /* setup_header in the file */
#define HDR_JUMP_OFF  0x201 /* length of the jump: where the header ends */
#define MAGIC_OFF     0x202 /* what a header of any version must reach */
#define ENTRY64_OFF   0x200 /* 64-bit entry, from the load address */
#define SECTOR        512
#define PROTO_CMDLINE 0x0202 /* cmd_line_ptr: older ones are not worth a second way */
#define PROTO_SYSSIZE 0x0204 /* syssize has 32 bits */
#define PROTO_PAYLOAD 0x0208 /* payload_offset, payload_length */

/* Copies the header that is in the file; fields of later versions stay zero. */
static int read_header(struct kernel *k, const uint8_t *head, size_t len, struct err *err)
{
	size_t end;

	if (len < MAGIC_OFF + 4 || memcmp(head + MAGIC_OFF, "HdrS", 4) || head[0x1fe] != 0x55 || head[0x1ff] != 0xaa)
		return -ENOEXEC;
	end = MAGIC_OFF + head[HDR_JUMP_OFF];
	if (end > HDR_OFF + sizeof(k->hdr))
		end = HDR_OFF + sizeof(k->hdr);
	if (end > len)
		return err_set(err, -EINVAL, "%s: truncated: it ends within the kernel header", k->path);
	memset(&k->hdr, 0, sizeof(k->hdr));
	memcpy(&k->hdr, head + HDR_OFF, end - HDR_OFF);
	return 0;
}

static void read_version(struct kernel *k, const uint8_t *head, size_t len)
{
	size_t off = (size_t)k->hdr.kernel_version + 0x200, n;

	if (!k->hdr.kernel_version || off >= len)
		return;
	n = strnlen((const char *)head + off, len - off);
	if (n >= sizeof(k->version))
		n = sizeof(k->version) - 1;
	memcpy(k->version, head + off, n);
	k->version[n] = '\0';
	k->version[strcspn(k->version, " ")] = '\0';
	k->is_linux = k->version[0];
}

/* The part that runs in protected or long mode, behind the setup sectors. */
static int find_code(struct kernel *k, struct err *err)
{
	uint64_t setup = (k->hdr.setup_sects ? k->hdr.setup_sects : 4u) * SECTOR + SECTOR;
	uint64_t want = (uint64_t)k->hdr.syssize * 16, have = k->size > setup ? k->size - setup : 0;
	struct kernel_segment *s = &k->seg[0];

	if (k->hdr.version < PROTO_SYSSIZE)
		want = have ? have : 1; /* syssize had 16 bits and is wrong for a big kernel: all that is there */
	if (!want)
		return err_set(err, -EINVAL, "%s: damaged: the kernel header gives no size", k->path);
	/* syssize counts paragraphs: the file may end in the last one. It may also go on (signature, padding). */
	if (!have || have + 15 < want)
		return err_set(err, -EINVAL, "%s: truncated: it has %llu bytes, the header promises %llu", k->path,
		               (unsigned long long)k->size, (unsigned long long)(setup + want));
	s->offset = setup;
	s->filesz = want < have ? want : have;
	s->memsz = s->filesz;
	k->nsegs = 1;
	return 0;
}

/* The compressed kernel within that; a header that is wrong about it is the business of the code that unpacks it. */
static void find_packed(struct kernel *k)
{
	const struct kernel_segment *s = &k->seg[0];
	uint64_t off = k->hdr.payload_offset, len = k->hdr.payload_length;

	if (k->hdr.version < PROTO_PAYLOAD || !off || off > s->filesz || len > s->filesz - off)
		return;
	k->packed = s->offset + off;
	k->packed_len = len;
}

/* Where it is loaded, and what it occupies until it runs decompressed. */
static int place(struct kernel *k, struct err *err)
{
	bool has_pref = k->hdr.version >= 0x020a && k->hdr.init_size;
	uint64_t pref = has_pref ? k->hdr.pref_address : MM_HIGH_LOAD;
	uint64_t need = has_pref ? k->hdr.init_size : 4 * k->seg[0].filesz; /* a guess for before 2.6.31 */
	uint64_t load = has_pref && k->hdr.relocatable_kernel ? pref : MM_HIGH_LOAD;

	k->seg[0].paddr = load;
	k->first = load;
	k->end = pref + need;
	if (k->end < load + k->seg[0].filesz)
		k->end = load + k->seg[0].filesz;
	k->entry = k->kind == KERNEL_LINUX64 ? load + ENTRY64_OFF : load;
	if (pref < MM_HIGH_LOAD || pref + need < pref || k->end < load || k->entry >= k->end)
		return err_set(err, -EINVAL, "%s: damaged: the kernel header asks for address 0x%llx", k->path,
		               (unsigned long long)pref);
	return 0;
}

int bzimage_parse(struct kernel *k, const uint8_t *head, size_t len, struct err *err)
{
	int error = read_header(k, head, len, err);

	if (error)
		return error;
	if (k->hdr.version < PROTO_CMDLINE || !(k->hdr.loadflags & LOADED_HIGH))
		return err_set(err, -EINVAL, "%s: a kernel of boot protocol %u.%02u, too old to boot", k->path,
		               k->hdr.version >> 8, k->hdr.version & 0xff);
	read_version(k, head, len);
	error = find_code(k, err);
	if (error)
		return error;
	find_packed(k);
	k->kind = k->hdr.version >= 0x020c && (k->hdr.xloadflags & XLF_KERNEL_64) ? KERNEL_LINUX64 : KERNEL_LINUX32;
	k->cmdline_max = k->hdr.version >= 0x0206 && k->hdr.cmdline_size ? k->hdr.cmdline_size : 255;
	k->initrd_max = k->hdr.version >= 0x0203 && k->hdr.initrd_addr_max ? k->hdr.initrd_addr_max : 0x37ffffff;
	return place(k, err);
}
