/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BUS_GMEM_H
#define BUS_GMEM_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * Guest RAM: a few banks of host memory, constant after gmem_new(). The guest
 * writes to it at any time, so whatever is read from it is read once, into a
 * local copy, and then checked.
 */
#define GMEM_MAX_BANKS 2

struct gmem_bank {
	uint64_t gpa, len; /* bytes, multiples of 4096 */
	uint8_t *hva;
};

struct gmem {
	unsigned nbanks;
	struct gmem_bank bank[GMEM_MAX_BANKS];
};

/*
 * Maps every bank (@gpa and @len filled in by the caller in @mem), untouched
 * and unreserved, with huge pages where the host gives them; @hugepages
 * demands them from hugetlbfs.
 */
int gmem_map(struct gmem *mem, bool hugepages, struct err *err);
void gmem_unmap(struct gmem *mem); /* safe on half-mapped */

/* Host address of [@gpa, @gpa + @len), or NULL unless the whole range lies in one bank. Any thread. */
void *gmem_ptr(const struct gmem *mem, uint64_t gpa, uint64_t len);

#endif
