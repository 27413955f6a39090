// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * libFuzzer target: any bytes as a kernel file. It is refused with a line that
 * names it, or what was understood holds together and loads.
 *
 * clang -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -std=gnu11 -Isrc tests/fuzz/fuzz_kernel.c \
 *     src/arch/x86/{boot,bzimage,elf,kernel,memmap}.c src/bus/gmem.c src/base/err.c
 */
#include "arch/x86/boot.h"
#include "arch/x86/memmap.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s\n", #x), abort()))

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int file = -1;
static char path[32];
static struct gmem mem;

static void setup(void)
{
	struct err err;

	file = memfd_create("kernel", MFD_CLOEXEC);
	CHECK(file >= 0);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
	memmap_banks(64ull << 20, &mem);
	CHECK(!gmem_map(&mem, false, &err));
}

static void check(const struct kernel *k)
{
	CHECK(k->nsegs >= 1 && k->nsegs <= KERNEL_MAX_SEGMENTS);
	for (unsigned i = 0; i < k->nsegs; i++) {
		const struct kernel_segment *s = &k->seg[i];

		CHECK(s->offset <= k->size && s->filesz <= k->size - s->offset && s->filesz <= s->memsz);
		CHECK(s->paddr >= MM_HIGH_LOAD && s->paddr >= k->first);
		CHECK(s->paddr <= k->end && s->memsz <= k->end - s->paddr);
	}
	CHECK(k->entry >= k->first && k->entry < k->end);
	CHECK(memchr(k->version, '\0', sizeof(k->version)));
}

static void load(const struct kernel *k)
{
	static const struct initrd none = { .fd = -1 };
	struct err err = { "" };

	if (boot_load(k, &none, "", MM_BIOS_TABLES, &mem, &err))
		CHECK(strstr(err.msg, path));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct err err = { "" };
	struct kernel k;

	if (file < 0)
		setup();
	CHECK(!ftruncate(file, (off_t)size) && pwrite(file, data, size, 0) == (ssize_t)size);
	if (kernel_open(path, &k, &err)) {
		CHECK(strstr(err.msg, path) && !strchr(err.msg, '\n') && k.fd == -1);
		return 0;
	}
	check(&k);
	load(&k);
	kernel_close(&k);
	return 0;
}
