/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BLOCK_QCOW2_CLUSTERSET_H
#define BLOCK_QCOW2_CLUSTERSET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A set of host clusters, by number; 0, the header's own, is always in it. */
struct clusterset {
	uint64_t *slot; /* open addressing; 0: free */
	size_t nslots, n;
};

bool clusterset_has(const struct clusterset *s, uint64_t c);
int clusterset_add(struct clusterset *s, uint64_t c); /* 1: new, 0: it was there, or -ENOMEM */
void clusterset_del(struct clusterset *s, uint64_t c);
void clusterset_free(struct clusterset *s);

#endif
