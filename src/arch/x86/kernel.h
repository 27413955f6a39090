/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef ARCH_X86_KERNEL_H
#define ARCH_X86_KERNEL_H

#include "base/err.h"
#include "bus/gmem.h"

#include <asm/bootparam.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A kernel file: a Linux bzImage (Documentation/arch/x86/boot.rst) or an ELF image. */

enum kernel_entry {
	KERNEL_LINUX64, /* 64-bit boot protocol: long mode, rsi = boot_params */
	KERNEL_LINUX32, /* 32-bit boot protocol: protected mode, esi = boot_params */
	KERNEL_PVH,     /* Xen's PVH protocol: protected mode, ebx = hvm_start_info */
};

#define KERNEL_MAX_SEGMENTS 16

struct kernel_segment {
	uint64_t offset, filesz; /* in the file */
	uint64_t paddr, memsz;   /* in the guest; beyond filesz it is zero */
};

struct kernel {
	const char *path; /* the caller's string */
	int fd;
	uint64_t size;
	enum kernel_entry kind;
	uint64_t entry; /* guest-physical */
	unsigned nsegs;
	struct kernel_segment seg[KERNEL_MAX_SEGMENTS];
	uint64_t first, end;         /* what the kernel needs for itself while it starts */
	uint64_t initrd_max;         /* last address an initrd may occupy */
	uint32_t cmdline_max;        /* characters, without the final NUL */
	bool is_linux;               /* and not some other guest in the same clothes */
	char version[128];           /* of a bzImage, up to the first blank; "" where unknown */
	uint64_t packed, packed_len; /* in a bzImage: the kernel proper, compressed; length 0: not known */
	struct setup_header hdr;     /* of a bzImage; for ELF what a boot loader would fill in */
};

/*
 * Opens and checks @path. Every wrong, truncated or special file is refused
 * with one line naming it; nothing blocks. On success the caller owns @k.
 */
int kernel_open(const char *path, struct kernel *k, struct err *err);
void kernel_close(struct kernel *k);

/*
 * @fd holds what the bzImage @k has compressed, an ELF file of @size bytes: it
 * is booted in its place, with the bzImage's header, name, limits and need of
 * memory. Takes over @fd, or returns an error and leaves all as it was.
 */
int kernel_set_unpacked(struct kernel *k, int fd, uint64_t size, struct err *err);

/* Reads the segments into guest memory. -ENOMEM naming the minimum where RAM is too small. */
int kernel_load(const struct kernel *k, const struct gmem *mem, struct err *err);

/* The parsers: @head holds the first @len bytes of the file. 0, -ENOEXEC (not this format), or another error. */
int bzimage_parse(struct kernel *k, const uint8_t *head, size_t len, struct err *err);
int elf_parse(struct kernel *k, const uint8_t *head, size_t len, struct err *err);

/* Opens a regular file for reading, never blocking: sets @fd and @size. @what names its role in messages. */
int open_regular(const char *what, const char *path, int *fd, uint64_t *size, struct err *err);

#endif
