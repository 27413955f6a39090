/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef TESTS_FAKEDRV_H
#define TESTS_FAKEDRV_H

#include "bus/gmem.h"
#include "virtio/virtq.h"

#include <linux/virtio_ring.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * A guest driver in plain memory, for unit tests and fuzzers: it builds split
 * and packed rings, offers chains, collects what was used and holds the device
 * to the rules: whatever the device may not do aborts the program with a line
 * that says what. Everything it wrote lies open to be corrupted.
 *
 * A driver may run on another thread than the device: it uses the barriers that
 * a driver must, and no others.
 */

/* Guest RAM: one or two banks, the second right above the first for the guest, but apart, between guard pages. */
struct fakemem {
	struct gmem gmem; /* for virtq_new() */
	uint64_t top;     /* of what fakemem_alloc() gave away */
};

void fakemem_init(struct fakemem *m, uint64_t bank_len, unsigned nbanks);
void fakemem_free(struct fakemem *m);
/* Guest address of @len zeroed bytes in the first bank, which are never given back; never address 0. */
uint64_t fakemem_alloc(struct fakemem *m, uint64_t len, uint64_t align);
void *fakemem_ptr(const struct fakemem *m, uint64_t gpa, uint64_t len); /* aborts if that is not RAM */
bool fakemem_has(const struct fakemem *m, const void *p, uint64_t len); /* is host memory [p, p + len) RAM? */

/* A piece of a chain. */
struct fake_seg {
	uint64_t addr;
	uint32_t len;
	bool write; /* device-writable */
};

#define FAKE_MAX_SEGS 32 /* of a chain in an indirect table */

/* What the driver remembers of a chain that is on its way; index: buffer id. */
struct fake_req {
	bool live;
	uint16_t ndesc;  /* ring entries */
	uint64_t in_len; /* what the device may write */
	uint64_t token;
};

struct fakeq {
	struct fakemem *mem;
	struct virtq_config cfg; /* for virtq_new(), or to be written to the device's registers */
	bool use_indirect;       /* for chains of two pieces and more; initially: if negotiated */

	/* The areas, to read and to corrupt: the first three if split, the others if packed. */
	struct vring_desc *desc;
	struct vring_avail *avail;
	struct vring_used *used;
	struct vring_packed_desc *ring;
	struct vring_packed_desc_event *driver, *device;
	union {
		struct vring_desc *split;
		struct vring_packed_desc *packed;
	} table;            /* FAKE_MAX_SEGS entries for each id */
	uint64_t table_gpa; /* of the first */

	/* The driver's own state. */
	struct fake_req req[VIRTQ_MAX_SIZE];
	uint16_t free[VIRTQ_MAX_SIZE]; /* a stack: descriptors if split, ids if packed */
	unsigned nfree;
	uint16_t next[VIRTQ_MAX_SIZE];    /* split: of a descriptor in use, within its chain */
	unsigned live;                    /* chains on their way */
	unsigned room;                    /* packed: free ring entries */
	uint16_t avail_idx, used_idx;     /* split: free-running; packed: places */
	bool avail_wrap, used_wrap;       /* packed */
	unsigned unpublished;             /* entries added since fakeq_expose() */
	unsigned unkicked;                /* entries exposed since fakeq_must_kick() */
	uint16_t *first_flags, first_val; /* packed: of the first unpublished chain */
};

enum { FAKE_PACKED = 1, FAKE_EVENT_IDX = 2, FAKE_INDIRECT = 4 };

/* Allocates and clears the rings, @size entries. */
void fakeq_init(struct fakeq *q, struct fakemem *m, uint16_t size, unsigned flags);

/* Adds a chain: its buffer id, or -ENOSPC. @token comes back with it. The device sees it at fakeq_expose(). */
int fakeq_add(struct fakeq *q, const struct fake_seg *seg, unsigned n, uint64_t token);
void fakeq_expose(struct fakeq *q);
bool fakeq_must_kick(struct fakeq *q); /* for what was exposed since the last call */
bool fakeq_publish(struct fakeq *q);   /* both */

struct fake_used {
	uint16_t id;
	uint32_t len;
	uint64_t token;
};
/* The next chain that the device has used, or false. */
bool fakeq_get(struct fakeq *q, struct fake_used *u);
bool fakeq_has_used(const struct fakeq *q);

/*
 * Asks for an interrupt once @after more entries (chains if split, descriptors
 * if packed) have been used beyond the next; without EVENT_IDX @after is 0. True:
 * there are used ones already, and no interrupt may come. The halves are for
 * those who step between them.
 */
bool fakeq_arm(struct fakeq *q, unsigned after);
void fakeq_arm_store(struct fakeq *q, unsigned after);
void fakeq_disarm(struct fakeq *q);

#endif
