// SPDX-License-Identifier: GPL-2.0-or-later
#include "raw.h"

#include <linux/virtio_9p.h>
#include <linux/virtio_ids.h>

/*
 * Messages to a 9p share: n=COUNT of each kind, irq=1 with interrupts.
 *
 * Files are 8 MiB of the guest's own making, requests of 4 KiB are at random
 * places of it. What Linux's client sends for names comes in cycles, and the
 * figures are for each message of them: to look a name up and forget it is
 * Twalk, Tgetattr, Tclunk; to open and close, Twalk, Tlopen, Tclunk; to make
 * a file and remove it, Twalk, Tlcreate, Tclunk, Tunlinkat.
 */

#define DEPTH     32
#define BLOCK     4096
#define BLOCKS    2048
#define MSG_SIZE  128
#define IO_HEADER 11
#define ROOT      1u
#define DATA      2u
#define SLOT_FID  100u /* and up: of each slot */

enum {
	RLERROR = 7,
	TLOPEN = 12,
	TLCREATE = 14,
	TGETATTR = 24,
	TUNLINKAT = 76,
	TVERSION = 100,
	TATTACH = 104,
	TWALK = 110,
	TREAD = 116,
	TWRITE = 118,
	TCLUNK = 120,
};

/* A request and its reply, each with the data that goes behind it in memory of its own, as Linux has it. */
struct slot {
	uint8_t msg[MSG_SIZE], reply[256], *data;
	uint32_t len, step;
	bool sent;
	char name[8];
};

static struct slot slots[DEPTH];
static struct vq queue;

static void put(struct slot *s, uint64_t v, unsigned size)
{
	for (unsigned i = 0; i < size; i++)
		s->msg[s->len++] = (uint8_t)(v >> 8 * i);
}

static void put_str(struct slot *s, const char *str)
{
	unsigned n = 0;

	while (str[n])
		n++;
	put(s, n, 2);
	for (unsigned i = 0; i < n; i++)
		put(s, (uint8_t)str[i], 1);
}

static void begin(struct slot *s, uint8_t type, uint32_t fid)
{
	s->len = 4;
	put(s, type, 1);
	put(s, (uint64_t)(s - slots), 2);
	put(s, fid, 4);
}

static void send(struct vq *q, struct slot *s, uint32_t out_data, uint32_t in_data)
{
	struct seg seg[3] = { { s->msg, s->len } };
	unsigned out = 1, in = 1;
	uint32_t size = s->len + out_data;

	for (unsigned i = 0; i < 4; i++)
		s->msg[i] = (uint8_t)(size >> 8 * i);
	if (out_data)
		seg[out++] = (struct seg){ s->data, out_data };
	seg[out] = (struct seg){ s->reply, in_data ? IO_HEADER : sizeof(s->reply) };
	if (in_data)
		seg[out + in++] = (struct seg){ s->data, in_data };
	if (!vq_add(q, seg, out, in, (uint32_t)(s - slots)))
		fail("no room");
	s->sent = true;
}

/* The reply of what was sent last has come: it must be the right one. */
static void check(struct slot *s)
{
	if (s->sent && s->reply[4] != s->msg[4] + 1)
		fail("message %u: reply %u, error %u", (uint64_t)s->msg[4], (uint64_t)s->reply[4],
		     (uint64_t)s->reply[7]);
	s->sent = false;
}

/* Whatever is answered. */
static void tell(struct slot *s, uint32_t out_data)
{
	uint32_t tag, len;

	send(&queue, s, out_data, 0);
	vq_kick(&queue);
	do
		vq_wait(&queue, 1);
	while (!vq_poll(&queue, &tag, &len));
}

static void call(struct slot *s, uint32_t out_data)
{
	tell(s, out_data);
	check(s);
}

static uint64_t place(void)
{
	static uint64_t state = 88172645463325252u;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % BLOCKS * BLOCK;
}

static void transfer(struct slot *s, uint8_t type, uint32_t fid, uint64_t offset)
{
	begin(s, type, fid);
	put(s, offset, 8);
	put(s, BLOCK, 4);
}

static void add_read(struct vq *q, unsigned slot)
{
	struct slot *s = &slots[slot];

	check(s);
	transfer(s, TREAD, DATA, place());
	send(q, s, 0, BLOCK);
}

static void add_write(struct vq *q, unsigned slot)
{
	struct slot *s = &slots[slot];

	check(s);
	transfer(s, TWRITE, DATA, place());
	send(q, s, BLOCK, 0);
}

static void walk(struct slot *s, uint32_t fid, const char *name)
{
	begin(s, TWALK, ROOT);
	put(s, fid, 4);
	put(s, name ? 1 : 0, 2);
	if (name)
		put_str(s, name);
}

static void getattr(struct slot *s, uint32_t fid)
{
	begin(s, TGETATTR, fid);
	put(s, 0x3fff, 8);
}

static void lopen(struct slot *s, uint32_t fid)
{
	begin(s, TLOPEN, fid);
	put(s, 2, 4); /* O_RDWR */
}

static void lcreate(struct slot *s, uint32_t fid, const char *name)
{
	begin(s, TLCREATE, fid);
	put_str(s, name);
	put(s, 0100 | 0200 | 2, 4); /* O_CREAT, O_EXCL, O_RDWR */
	put(s, 0644, 4);
	put(s, 0, 4);
}

static void unlinkat(struct slot *s, const char *name)
{
	begin(s, TUNLINKAT, ROOT);
	put_str(s, name);
	put(s, 0, 4);
}

/* The next step of a slot. */
static unsigned next(struct slot *s, unsigned steps)
{
	unsigned step = s->step;

	check(s);
	s->step = (step + 1) % steps;
	return step;
}

static void add_lookup(struct vq *q, unsigned slot)
{
	struct slot *s = &slots[slot];

	switch (next(s, 3)) {
	case 0: walk(s, SLOT_FID + slot, "data"); break;
	case 1: getattr(s, SLOT_FID + slot); break;
	default: begin(s, TCLUNK, SLOT_FID + slot); break;
	}
	send(q, s, 0, 0);
}

static void add_open(struct vq *q, unsigned slot)
{
	struct slot *s = &slots[slot];

	switch (next(s, 3)) {
	case 0: walk(s, SLOT_FID + slot, "data"); break;
	case 1: lopen(s, SLOT_FID + slot); break;
	default: begin(s, TCLUNK, SLOT_FID + slot); break;
	}
	send(q, s, 0, 0);
}

static void add_create(struct vq *q, unsigned slot)
{
	struct slot *s = &slots[slot];

	switch (next(s, 4)) {
	case 0: walk(s, SLOT_FID + slot, NULL); break;
	case 1: lcreate(s, SLOT_FID + slot, s->name); break;
	case 2: begin(s, TCLUNK, SLOT_FID + slot); break;
	default: unlinkat(s, s->name); break;
	}
	send(q, s, 0, 0);
}

/* A new connection, with the root as fid ROOT and an open file of BLOCKS blocks, DATA. */
static void connect(void)
{
	struct slot *s = slots;

	begin(s, TVERSION, 512000); /* where others have a fid */
	put_str(s, "9P2000.L");
	s->msg[5] = s->msg[6] = 0xff;
	call(s, 0);
	begin(s, TATTACH, ROOT);
	put(s, ~0u, 4);
	put_str(s, "bench");
	put_str(s, "");
	put(s, 0, 4);
	call(s, 0);
	walk(s, DATA, NULL);
	call(s, 0);
	lcreate(s, DATA, "data");
	call(s, 0);
	for (uint64_t i = 0; i < BLOCKS; i++) {
		transfer(s, TWRITE, DATA, i * BLOCK);
		call(s, BLOCK);
	}
}

/* The count may have ended in the middle of a cycle: what that left is taken away. */
static void clean(struct slot *s)
{
	check(s);
	s->step = 0;
	begin(s, TCLUNK, SLOT_FID + (uint32_t)(s - slots));
	tell(s, 0);
	unlinkat(s, s->name);
	tell(s, 0);
	s->sent = false;
}

static void phase(const char *name, unsigned depth, uint64_t n, void (*add)(struct vq *q, unsigned slot))
{
	measure(name, &queue, depth, n, add);
	for (unsigned i = 0; i < DEPTH; i++)
		clean(&slots[i]);
}

int main(void)
{
	static struct vdev d;
	uint64_t n = param("n", 10000);

	for (unsigned i = 0; i < DEPTH; i++) {
		slots[i].data = alloc(BLOCK, 4096);
		slots[i].name[0] = 'f';
		slots[i].name[1] = (char)('0' + i);
	}
	vdev_init(&d, VIRTIO_ID_9P, 0, 1ull << VIRTIO_9P_MOUNT_TAG);
	vq_init(&d, &queue, 0, 128, param("irq", 0));
	vdev_ready(&d);
	connect();
	measure_idle();
	phase("p9_read_d1", 1, n, add_read);
	phase("p9_read_d32", DEPTH, n, add_read);
	phase("p9_write_d1", 1, n, add_write);
	phase("p9_write_d32", DEPTH, n, add_write);
	phase("p9_lookup_d1", 1, n, add_lookup);
	phase("p9_lookup_d32", DEPTH, n, add_lookup);
	phase("p9_open_d1", 1, n, add_open);
	phase("p9_open_d32", DEPTH, n, add_open);
	phase("p9_create_d1", 1, n, add_create);
	phase("p9_create_d32", DEPTH, n, add_create);
	return 0;
}
