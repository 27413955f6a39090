/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef TESTS_FAKENIC_H
#define TESTS_FAKENIC_H

#include "net/nic.h"

/*
 * A network without a host: it keeps what it is sent as far as the test gave
 * it room, and hands out what the test gave it to hand out. Like the real ones
 * it calls its device from the loop only, and only if it was asked to.
 */
#define FAKENIC_FRAMES 1024

struct fakenic_frame {
	uint8_t *p; /* with its header */
	size_t len;
};

struct fakenic_pair {
	short polled;
	struct fakenic_frame out[FAKENIC_FRAMES], in[FAKENIC_FRAMES];
	unsigned nout;
	unsigned in_first, in_end;
	unsigned reads, empty_reads; /* calls of recv, those that found nothing */
};

struct fakenic {
	struct nic nic; /* for the device */
	struct loop *loop;
	struct nic_client client;
	bool attached;
	struct loop_task task;
	unsigned room;    /* how many more frames it takes before it says EAGAIN */
	int refuse;       /* what it answers to a frame instead, 0: nothing */
	unsigned pairs;   /* as it was told */
	unsigned offload; /* likewise */
	int fail_set;     /* what set_pairs and set_offloads return */
	struct fakenic_pair pair[NIC_MAX_PAIRS];
};

void fakenic_init(struct fakenic *f, unsigned pairs, unsigned offloads);
void fakenic_exit(struct fakenic *f); /* detached */

/* A frame arrives: @len bytes behind the header @hdr (NULL: zeros). */
void fakenic_arrive(struct fakenic *f, unsigned pair, const void *hdr, const uint8_t *frame, size_t len);
unsigned fakenic_waiting(const struct fakenic *f, unsigned pair); /* that nobody has received */
void fakenic_give(struct fakenic *f, unsigned n);                 /* room for @n frames more */
void fakenic_forget(struct fakenic *f);                           /* all frames */
void fakenic_link(struct fakenic *f, bool up);

#endif
