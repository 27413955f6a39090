// SPDX-License-Identifier: GPL-2.0-or-later
#include "bus/gmem.h"

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>

#define HUGE_2M (2ull << 20)

/*
 * Huge pages, where the host has them, but for the first 2 MiB of the guest:
 * what is there is small and scattered (firmware tables, boot structures, a
 * small guest), and zeroing a huge page is a good part of a small guest's life.
 */
static void advise_huge(const struct gmem_bank *b, uint8_t *hva)
{
	uint64_t skip = b->gpa == 0 ? HUGE_2M : 0;

	if (b->len > skip)
		madvise(hva + skip, b->len - skip, MADV_HUGEPAGE);
}

static int map_bank(struct gmem_bank *b, bool hugepages, struct err *err)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | (hugepages ? MAP_HUGETLB : MAP_NORESERVE);
	uint64_t pad = hugepages ? 0 : HUGE_2M; /* host huge pages need gpa and hva to agree modulo 2 MiB */
	uint8_t *p, *aligned;

	if (hugepages && b->len % HUGE_2M)
		return err_set(err, -EINVAL, "with --hugepages the memory (-m) is a multiple of 2M");
	p = mmap(NULL, b->len + pad, PROT_READ | PROT_WRITE, flags, -1, 0);
	if (p == MAP_FAILED) {
		if (hugepages)
			return err_sys(err, -errno,
			               "cannot map %llu MiB of huge pages (reserve them in /proc/sys/vm/nr_hugepages)",
			               (unsigned long long)(b->len >> 20));
		return err_sys(err, -errno, "cannot map %llu MiB of guest memory", (unsigned long long)(b->len >> 20));
	}
	aligned = p + (-(uintptr_t)p & (HUGE_2M - 1));
	if (pad) {
		/* Give back both ends of the surplus. */
		if (aligned > p)
			munmap(p, (size_t)(aligned - p));
		munmap(aligned + b->len, (size_t)(p + pad - aligned));
		advise_huge(b, aligned);
	}
	madvise(aligned, b->len, MADV_DONTDUMP);
	b->hva = aligned;
	return 0;
}

int gmem_map(struct gmem *mem, bool hugepages, struct err *err)
{
	for (unsigned i = 0; i < mem->nbanks; i++) {
		int error = map_bank(&mem->bank[i], hugepages, err);

		if (error)
			return error;
	}
	return 0;
}

void gmem_unmap(struct gmem *mem)
{
	for (unsigned i = 0; i < mem->nbanks; i++) {
		if (mem->bank[i].hva)
			munmap(mem->bank[i].hva, mem->bank[i].len);
		mem->bank[i].hva = NULL;
	}
}

void *gmem_ptr(const struct gmem *mem, uint64_t gpa, uint64_t len)
{
	for (unsigned i = 0; i < mem->nbanks; i++) {
		const struct gmem_bank *b = &mem->bank[i];

		if (gpa >= b->gpa && gpa - b->gpa <= b->len && len <= b->len - (gpa - b->gpa))
			return b->hva + (gpa - b->gpa);
	}
	return NULL;
}
