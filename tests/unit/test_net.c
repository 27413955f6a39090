// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * virtio-net between a fake guest and a fake network: every frame arrives
 * whole, once and in order, however the guest cuts its buffers; who has no
 * room is waited for; what is no frame is counted; and a hostile ring costs the
 * guest its device until the next reset, nothing else.
 */
#include "base/clock.h"
#include "base/loop_thread.h"
#include "fakedrv_dev.h"
#include "fakedrv_hostile.h"
#include "fakenic.h"
#include "virtio/net.h"
#include "virtio/net_filter.h"

#include <errno.h>
#include <linux/virtio_config.h>
#include <linux/virtio_net.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define LEN(a)      (sizeof(a) / sizeof(*(a)))
#define BANK        (64ull << 20)
#define MODES       8
#define MIB         (1u << 20)
#define PAIRS       3
#define CTRL        (2 * PAIRS)
#define HDR         12u
#define NEEDS_RESET VIRTIO_CONFIG_S_NEEDS_RESET
#define BIT(f)      (1ull << VIRTIO_NET_F_##f)
#define MERGE       BIT(MRG_RXBUF)
#define CONTROL     (BIT(CTRL_VQ) | BIT(CTRL_RX) | BIT(CTRL_VLAN) | BIT(CTRL_MAC_ADDR))
#define ALL         (NIC_CSUM | NIC_TSO4 | NIC_TSO6 | NIC_ECN)

static const uint8_t mac[6] = { 2, 0, 0, 1, 2, 3 };

struct fixture {
	struct fakemem mem;
	struct loop *loop;
	struct fakenic *nic;
	struct vnet *v;
	struct virtio_dev *d;
	struct fakedev drv;
	uint64_t buf; /* guest memory: 16 MiB of data */
	uint64_t seed;
};

static unsigned rnd(struct fixture *f, unsigned below)
{
	f->seed = f->seed * 6364136223846793005 + 1442695040888963407;
	return (unsigned)(f->seed >> 33) % below;
}

static struct vnet_stats stats(struct fixture *f)
{
	struct vnet_stats s;

	vnet_stats(f->v, &s);
	return s;
}

static struct fixture *setup_engine(unsigned pairs, unsigned offloads, struct vnet_engine *engine)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct vnet_config cfg = { .name = "net0", .mtu = 1500, .engine = engine };
	struct err err;

	assert_non_null(f);
	f->nic = calloc(1, sizeof(*f->nic));
	assert_non_null(f->nic);
	fakemem_init(&f->mem, BANK, 1);
	f->buf = fakemem_alloc(&f->mem, 16 * MIB, 4096);
	fakenic_init(f->nic, pairs, offloads);
	memcpy(cfg.mac, mac, 6);
	cfg.nic = &f->nic->nic;
	assert_int_equal(loop_new(&f->loop, &err), 0);
	assert_int_equal(vnet_new(&cfg, &f->mem.gmem, f->loop, &f->v, &err), 0);
	f->d = vnet_dev(f->v);
	fakedev_init(&f->drv, f->d, &f->mem, f->loop);
	return f;
}

static struct fixture *setup_with(unsigned pairs, unsigned offloads)
{
	return setup_engine(pairs, offloads, NULL);
}

static struct fixture *setup(void)
{
	return setup_with(1, ALL);
}

static void teardown(struct fixture *f)
{
	fakedev_exit(&f->drv);
	vnet_free(f->v);
	fakenic_exit(f->nic);
	loop_free(f->loop);
	fakemem_free(&f->mem);
	free(f->nic);
	free(f);
}

static uint64_t features(unsigned mode)
{
	return (mode & FAKE_PACKED ? 1ull << VIRTIO_F_RING_PACKED : 0) |
	       (mode & FAKE_EVENT_IDX ? 1ull << VIRTIO_RING_F_EVENT_IDX : 0) |
	       (mode & FAKE_INDIRECT ? 1ull << VIRTIO_RING_F_INDIRECT_DESC : 0);
}

static void start(struct fixture *f, uint64_t feats)
{
	fakedev_start(&f->drv, feats, 0);
}

static uint8_t *at(struct fixture *f, uint64_t off)
{
	return fakemem_ptr(&f->mem, f->buf + off, 1);
}

/* A frame for us, of @len bytes that depend on @k. */
static void make_frame(uint8_t *p, size_t len, unsigned k)
{
	for (size_t i = 0; i < len; i++)
		p[i] = (uint8_t)(k * 31 + i * 7 + (i >> 8));
	memcpy(p, mac, len < 6 ? len : 6);
}

static void arrive(struct fixture *f, unsigned pair, size_t len, unsigned k)
{
	uint8_t *p = malloc(len + 1);

	assert_non_null(p);
	make_frame(p, len, k);
	fakenic_arrive(f->nic, pair, NULL, p, len);
	free(p);
}

/* Posts a receive buffer of @len bytes at @off in @pieces; its token is the place. */
static bool post(struct fixture *f, unsigned q, uint64_t off, unsigned len, unsigned pieces)
{
	struct fake_seg seg[FAKE_MAX_SEGS];

	for (unsigned i = 0, done = 0; i < pieces; i++) {
		unsigned part = i + 1 < pieces ? len / pieces : len - done;

		seg[i] = (struct fake_seg){ f->buf + off + done, part, true };
		done += part;
	}
	return fakeq_add(&f->drv.q[q], seg, pieces, off) >= 0;
}

/* The next frame that has come to queue @q, its buffers put together in @p; its length with the header, 0: none. */
static size_t received(struct fixture *f, unsigned q, uint8_t *p)
{
	struct virtio_net_hdr_v1 h;
	struct fake_used u;
	size_t n = 0;

	if (!fakeq_get(&f->drv.q[q], &u))
		return 0;
	assert_in_range(u.len, HDR, 16 * MIB);
	memcpy(&h, at(f, u.token), sizeof(h));
	assert_in_range(h.num_buffers, 1, 256);
	for (unsigned i = 0;; i++) {
		memcpy(p + n, at(f, u.token), u.len);
		n += u.len;
		if (i + 1 == h.num_buffers)
			break;
		assert_true(fakeq_get(&f->drv.q[q], &u));
	}
	return n;
}

static void check_frame(struct fixture *f, unsigned q, size_t len, unsigned k)
{
	uint8_t *p = malloc(MIB), *want = malloc(MIB);

	assert_true(p && want);
	make_frame(want, len, k);
	assert_int_equal(received(f, q, p), HDR + len);
	assert_memory_equal(p + HDR, want, len);
	free(p);
	free(want);
}

/* Sends a chain of @hdr and a frame of @len bytes, in @pieces behind the header or with it. */
static void offer(struct fixture *f, unsigned q, const struct virtio_net_hdr_v1 *hdr, uint64_t off, unsigned len,
                  unsigned pieces, bool apart)
{
	struct virtio_net_hdr_v1 zero = { 0 };
	struct fake_seg seg[FAKE_MAX_SEGS];
	unsigned n = 0, done = 0;

	memcpy(at(f, off), hdr ? hdr : &zero, HDR);
	if (apart)
		seg[n++] = (struct fake_seg){ f->buf + off, HDR, false };
	for (unsigned i = 0; i < pieces; i++) {
		unsigned from = apart || i ? HDR + done : 0, part = i + 1 < pieces ? len / pieces : len - done;

		seg[n++] = (struct fake_seg){ f->buf + off + from, part + (apart || i ? 0 : HDR), false };
		done += part;
	}
	assert_true(fakeq_add(&f->drv.q[q], seg, n, off) >= 0);
}

static bool sent_back(struct fixture *f, unsigned q)
{
	struct fake_used u;

	return fakeq_get(&f->drv.q[q], &u);
}

/* Receiving. */

static void test_receive(void **state)
{
	for (unsigned mode = 0; mode < 2 * MODES; mode++) {
		struct fixture *f = setup();

		start(f, features(mode % MODES) | (mode < MODES ? 0 : MERGE));
		for (unsigned k = 0; k < 300; k++) {
			unsigned len = 14 + rnd(f, 1500);

			assert_true(post(f, 0, 4096 * (k % 64), 2048, 1 + k % 3));
			fakedev_publish(&f->drv, 0);
			arrive(f, 0, len, k);
			fakedev_turn(&f->drv);
			check_frame(f, 0, len, k);
		}
		assert_int_equal(stats(f).rx, 300);
		teardown(f);
	}
}

/* Any size of frame in any size of buffers; none is lost, whether buffers or frames come first. */
static void test_merge(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();
		unsigned next = 0, off = 0, len[64];

		f->seed = mode;
		start(f, features(mode) | MERGE);
		for (unsigned round = 0; round < 30; round++) {
			unsigned frames = 1 + rnd(f, 4), size = 64 + rnd(f, 5000);

			for (unsigned i = 0; i < frames; i++) {
				len[i] = rnd(f, 3) ? 14 + rnd(f, 1600) : 14 + rnd(f, 64 * size - 1000);
				len[i] = len[i] > NIC_MAX_FRAME ? NIC_MAX_FRAME : len[i];
				arrive(f, 0, len[i], next + i);
			}
			for (unsigned i = 0; i < frames;) {
				for (unsigned n = rnd(f, 20); n && post(f, 0, off, size, 1 + rnd(f, 3)); n--)
					off = (off + 8192) % (15 * MIB);
				fakedev_publish(&f->drv, 0);
				for (; i < frames && fakeq_has_used(&f->drv.q[0]); i++)
					check_frame(f, 0, len[i], next + i);
			}
			next += frames;
		}
		assert_int_equal(stats(f).rx, next);
		assert_false(virtio_reg_status(f->d) & NEEDS_RESET);
		teardown(f);
	}
}

/* The host is not even looked at while the guest has no buffers, and what waits there waits. */
static void test_no_buffers(void **state)
{
	struct fixture *f = setup();

	start(f, MERGE);
	for (unsigned k = 0; k < 200; k++)
		arrive(f, 0, 100, k);
	fakedev_turn(&f->drv);
	assert_int_equal(f->nic->pair[0].polled, 0);
	assert_int_equal(f->nic->pair[0].reads, 0);
	for (unsigned k = 0; k < 200; k++) {
		assert_true(post(f, 0, 0, 2048, 1));
		fakedev_publish(&f->drv, 0);
		check_frame(f, 0, 100, k);
		assert_int_equal(f->nic->pair[0].polled & POLLIN, 0);
		assert_int_equal(fakenic_waiting(f->nic, 0), 199 - k);
	}
	teardown(f);
}

/* Without mergeable buffers what is too long is lost, and only that; likewise runts and buffers of no use. */
static void test_receive_odd(void **state)
{
	struct fixture *f = setup();
	struct fake_used u;

	start(f, 0);
	assert_true(post(f, 0, 0, 1000, 1));
	fakedev_publish(&f->drv, 0);
	arrive(f, 0, 1000 - HDR + 1, 1);
	arrive(f, 0, 13, 2);
	arrive(f, 0, 0, 3);
	arrive(f, 0, 1000 - HDR, 4);
	fakedev_turn(&f->drv);
	check_frame(f, 0, 1000 - HDR, 4);
	assert_int_equal(stats(f).rx_oversized, 1);
	assert_int_equal(stats(f).rx_short, 2);
	for (unsigned i = 0; i < 3; i++)
		assert_true(post(f, 0, 0, 10 * i + 1, 1));
	assert_true(post(f, 0, 0, 1000, 1));
	fakedev_publish(&f->drv, 0);
	for (unsigned i = 0; i < 3; i++)
		assert_true(fakeq_get(&f->drv.q[0], &u) && u.len == 0);
	arrive(f, 0, 60, 5);
	fakedev_turn(&f->drv);
	check_frame(f, 0, 60, 5);
	teardown(f);
}

/* A frame that more buffers than the device can hold would not take is lost; the next one arrives. */
static void test_tiny_buffers(void **state)
{
	struct fixture *f = setup();

	start(f, MERGE);
	for (unsigned i = 0; i < 128; i++)
		assert_true(post(f, 0, 64 * i, 40, 1));
	fakedev_publish(&f->drv, 0);
	arrive(f, 0, 60000, 1);
	arrive(f, 0, 1000, 2);
	fakedev_turn(&f->drv);
	check_frame(f, 0, 1000, 2);
	assert_int_equal(stats(f).rx_oversized, 1);
	teardown(f);
}

/* A header of the back end's is the guest's, but for num_buffers. */
static void test_receive_header(void **state)
{
	struct virtio_net_hdr_v1 h = { .flags = VIRTIO_NET_HDR_F_NEEDS_CSUM,
		                       .gso_type = VIRTIO_NET_HDR_GSO_TCPV4,
		                       .hdr_len = 54,
		                       .gso_size = 1448,
		                       .csum_start = 34,
		                       .csum_offset = 16,
		                       .num_buffers = 77 };
	struct fixture *f = setup();
	uint8_t frame[3000], got[4000];

	start(f, MERGE | BIT(CSUM) | BIT(GUEST_CSUM) | BIT(GUEST_TSO4));
	assert_int_equal(f->nic->offload, NIC_CSUM | NIC_TSO4);
	make_frame(frame, sizeof(frame), 1);
	fakenic_arrive(f->nic, 0, &h, frame, sizeof(frame));
	for (unsigned i = 0; i < 4; i++)
		assert_true(post(f, 0, 1024 * i, 1024, 1));
	fakedev_publish(&f->drv, 0);
	assert_int_equal(received(f, 0, got), HDR + sizeof(frame));
	h.num_buffers = 3;
	assert_memory_equal(got, &h, HDR);
	assert_memory_equal(got + HDR, frame, sizeof(frame));
	teardown(f);
}

/* Sending. */

static void check_sent(struct fixture *f, unsigned pair, unsigned i, const uint8_t *frame, size_t len)
{
	const struct fakenic_frame *out = &f->nic->pair[pair].out[i];

	assert_in_range(i, 0, f->nic->pair[pair].nout - 1);
	assert_int_equal(out->len, HDR + len);
	assert_memory_equal(out->p + HDR, frame, len);
}

static void test_send(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();

		start(f, features(mode));
		for (unsigned k = 0; k < 300; k++) {
			unsigned len = 14 + rnd(f, k % 7 ? 1500 : NIC_MAX_FRAME - 13), off = 128 * 1024 * (k % 100);

			make_frame(at(f, off + HDR), len, k);
			offer(f, 1, NULL, off, len, 1 + k % 5, k % 2);
			fakedev_publish(&f->drv, 1);
			assert_true(sent_back(f, 1));
			check_sent(f, 0, k, at(f, off + HDR), len);
		}
		assert_int_equal(stats(f).tx, 300);
		teardown(f);
	}
}

/* The header may be cut anywhere. */
static void test_send_split_header(void **state)
{
	for (unsigned cut = 1; cut < HDR + 14; cut++) {
		struct fixture *f = setup();
		struct fake_seg seg[3] = { { f->buf, cut / 2 ? cut / 2 : 1, false } };

		start(f, features(cut % MODES));
		make_frame(at(f, HDR), 60, cut);
		seg[1] = (struct fake_seg){ f->buf + seg[0].len, cut, false };
		seg[2] = (struct fake_seg){ seg[1].addr + cut, HDR + 60 - cut - seg[0].len, false };
		assert_true(fakeq_add(&f->drv.q[1], seg, 3, 0) >= 0);
		fakedev_publish(&f->drv, 1);
		check_sent(f, 0, 0, at(f, HDR), 60);
		teardown(f);
	}
}

/* A network that has no room now: the guest waits for its chain, and all frames leave in the end, in order. */
static void test_send_full(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();

		start(f, features(mode));
		f->nic->room = 0;
		for (unsigned k = 0; k < 50; k++) {
			make_frame(at(f, 4096 * k + HDR), 200, k);
			offer(f, 1, NULL, 4096 * k, 200, 1, false);
		}
		fakedev_publish(&f->drv, 1);
		assert_false(fakeq_has_used(&f->drv.q[1]));
		for (unsigned k = 0; k < 50; k++) {
			assert_int_equal(f->nic->pair[0].polled & POLLOUT, POLLOUT);
			fakenic_give(f->nic, 1);
			fakedev_turn(&f->drv);
			assert_true(sent_back(f, 1));
			check_sent(f, 0, k, at(f, 4096 * k + HDR), 200);
		}
		assert_int_equal(f->nic->pair[0].polled & POLLOUT, 0);
		teardown(f);
	}
}

/* What is no frame, or asks for what was not agreed on, comes back and is counted. */
static void test_send_bad(void **state)
{
	static const struct {
		const char *name;
		struct virtio_net_hdr_v1 h;
		unsigned len;
		uint64_t feats;
		enum { OK, BAD, SHORT, LONG } what;
	} t[] = {
		{ "plain", { 0 }, 60, 0, OK },
		{ "smallest", { 0 }, 14, 0, OK },
		{ "largest", { 0 }, NIC_MAX_FRAME, 0, OK },
		{ "runt", { 0 }, 13, 0, SHORT },
		{ "nothing but a header", { 0 }, 0, 0, SHORT },
		{ "too long", { 0 }, NIC_MAX_FRAME + 1, 0, LONG },
		{ "checksum", { 1, 0, 0, 0, { { 34, 16 } }, 0 }, 100, BIT(CSUM), OK },
		{ "checksum, not agreed on", { 1, 0, 0, 0, { { 34, 16 } }, 0 }, 100, 0, BAD },
		{ "checksum at the end", { 1, 0, 0, 0, { { 82, 16 } }, 0 }, 100, BIT(CSUM), OK },
		{ "checksum behind the end", { 1, 0, 0, 0, { { 83, 16 } }, 0 }, 100, BIT(CSUM), BAD },
		{ "checksum far away", { 1, 0, 0, 0, { { 65535, 65535 } }, 0 }, 100, BIT(CSUM), BAD },
		{ "TSO4", { 1, 1, 54, 1000, { { 34, 16 } }, 0 }, 5000, BIT(CSUM) | BIT(HOST_TSO4), OK },
		{ "TSO6", { 1, 4, 74, 1000, { { 54, 16 } }, 0 }, 5000, BIT(CSUM) | BIT(HOST_TSO6), OK },
		{ "TSO4, not agreed on", { 1, 1, 54, 1000, { { 34, 16 } }, 0 }, 5000, BIT(CSUM) | BIT(HOST_TSO6), BAD },
		{ "TSO6, not agreed on", { 1, 4, 74, 1000, { { 54, 16 } }, 0 }, 5000, BIT(CSUM) | BIT(HOST_TSO4), BAD },
		{ "TSO4 without a checksum",
		  { 0, 1, 54, 1000, { { 0, 0 } }, 0 },
		  5000,
		  BIT(CSUM) | BIT(HOST_TSO4),
		  BAD },
		{ "TSO4, segments of nothing",
		  { 1, 1, 54, 0, { { 34, 16 } }, 0 },
		  5000,
		  BIT(CSUM) | BIT(HOST_TSO4),
		  BAD },
		{ "ECN", { 1, 0x81, 54, 9, { { 34, 16 } }, 0 }, 99, BIT(CSUM) | BIT(HOST_TSO4) | BIT(HOST_ECN), OK },
		{ "ECN, not agreed on", { 1, 0x81, 54, 9, { { 34, 16 } }, 0 }, 99, BIT(CSUM) | BIT(HOST_TSO4), BAD },
		{ "UFO", { 1, 3, 42, 1000, { { 34, 6 } }, 0 }, 5000, BIT(CSUM) | BIT(HOST_TSO4), BAD },
		{ "GSO of a kind to come", { 1, 77, 42, 1000, { { 34, 6 } }, 0 }, 5000, BIT(CSUM), BAD },
	};

	for (unsigned i = 0; i < LEN(t); i++) {
		struct fixture *f = setup();
		struct vnet_stats s;

		start(f, t[i].feats);
		offer(f, 1, &t[i].h, 0, t[i].len, 1, false);
		fakedev_publish(&f->drv, 1);
		assert_true(sent_back(f, 1));
		s = stats(f);
		if (s.tx != (t[i].what == OK) || s.tx_bad_header != (t[i].what == BAD) ||
		    s.tx_short != (t[i].what == SHORT) || s.tx_oversized != (t[i].what == LONG))
			fail_msg("%s: counted wrongly", t[i].name);
		assert_int_equal(f->nic->pair[0].nout, t[i].what == OK);
		if (t[i].what == OK)
			assert_memory_equal(f->nic->pair[0].out[0].p, &t[i].h, HDR);
		assert_false(virtio_reg_status(f->d) & NEEDS_RESET);
		teardown(f);
	}
}

static void test_send_refused(void **state)
{
	struct fixture *f = setup();

	start(f, 0);
	f->nic->refuse = -EINVAL;
	for (unsigned i = 0; i < 3; i++)
		offer(f, 1, NULL, 4096 * i, 60, 1, false);
	fakedev_publish(&f->drv, 1);
	for (unsigned i = 0; i < 3; i++)
		assert_true(sent_back(f, 1));
	assert_int_equal(stats(f).tx_refused, 3);
	teardown(f);
}

/* Sending goes on whatever becomes of receiving, and the other way round. */
static void test_send_without_receive(void **state)
{
	struct fixture *f = setup();

	start(f, MERGE);
	for (unsigned k = 0; k < 500; k++) {
		arrive(f, 0, 100, k);
		offer(f, 1, NULL, 0, 60, 1, false);
		fakedev_publish(&f->drv, 1);
		assert_true(sent_back(f, 1));
	}
	assert_int_equal(f->nic->pair[0].reads, 0);
	f->nic->room = 0;
	offer(f, 1, NULL, 0, 60, 1, false);
	fakedev_publish(&f->drv, 1);
	assert_false(fakeq_has_used(&f->drv.q[1]));
	for (unsigned k = 0; k < 500; k++) {
		assert_true(post(f, 0, 4096, 2048, 1));
		fakedev_publish(&f->drv, 0);
		check_frame(f, 0, 100, k);
	}
	teardown(f);
}

/* The control queue. */

/* A command; returns the device's answer. */
static int control_on(struct fixture *f, unsigned q, unsigned class, unsigned cmd, const void *data, unsigned n)
{
	uint64_t place = 15 * MIB;
	struct fake_seg seg[3] = { { f->buf + place, 2, false },
		                   { f->buf + place + 2, n, false },
		                   { f->buf + place + 9000, 1, true } };
	struct fake_used u;

	at(f, place)[0] = (uint8_t) class;
	at(f, place)[1] = (uint8_t)cmd;
	if (n)
		memcpy(at(f, place + 2), data, n);
	*at(f, place + 9000) = 0x55;
	if (!n)
		seg[1] = seg[2];
	assert_true(fakeq_add(&f->drv.q[q], seg, n ? 3 : 2, 0) >= 0);
	fakedev_publish(&f->drv, q);
	assert_true(fakedev_get(&f->drv, q, &u) && u.len == 1);
	return *at(f, place + 9000);
}

static int control(struct fixture *f, unsigned class, unsigned cmd, const void *data, unsigned n)
{
	return control_on(f, 2, class, cmd, data, n);
}

static int mode_is(struct fixture *f, unsigned mode, uint8_t on)
{
	return control(f, VIRTIO_NET_CTRL_RX, mode, &on, 1);
}

/* Does a frame for @to, with the VLAN tag @vlan unless that is 0, reach the guest? */
static bool reaches(struct fixture *f, const uint8_t *to, unsigned vlan)
{
	uint64_t filtered = stats(f).rx_filtered, rx = stats(f).rx;
	uint8_t frame[60] = { 0 }, got[2048];

	memcpy(frame, to, 6);
	if (vlan)
		memcpy(frame + 12, (uint8_t[]){ 0x81, 0, (uint8_t)(0x60 | vlan >> 8), (uint8_t)vlan }, 4);
	assert_true(post(f, 0, 0, 2048, 1));
	fakedev_publish(&f->drv, 0);
	fakenic_arrive(f->nic, 0, NULL, frame, sizeof(frame));
	fakedev_turn(&f->drv);
	assert_int_equal(stats(f).rx_filtered - filtered + stats(f).rx - rx, 1);
	return received(f, 0, got) == HDR + sizeof(frame);
}

static void test_receive_modes(void **state)
{
	static const uint8_t other[] = { 2, 9, 9, 9, 9, 9 }, multi[] = { 0x33, 0x33, 0, 0, 0, 1 },
	                     all[] = { 255, 255, 255, 255, 255, 255 };
	static const uint8_t table[] = { 1, 0, 0, 0, 2, 9, 9, 9, 9, 9, 1, 0, 0, 0, 0x33, 0x33, 0, 0, 0, 1 };

	for (unsigned m = 0; m < MODES; m++) {
		struct fixture *f = setup();

		start(f, features(m) | CONTROL | BIT(CTRL_RX_EXTRA));
		assert_true(reaches(f, other, 0) && reaches(f, other, 5)); /* no word yet */
		assert_int_equal(mode_is(f, VIRTIO_NET_CTRL_RX_PROMISC, 0), VIRTIO_NET_OK);
		assert_true(reaches(f, mac, 0) && reaches(f, all, 0));
		assert_false(reaches(f, other, 0) || reaches(f, multi, 0));
		assert_int_equal(mode_is(f, VIRTIO_NET_CTRL_RX_ALLMULTI, 1), VIRTIO_NET_OK);
		assert_true(reaches(f, multi, 0));
		assert_int_equal(mode_is(f, VIRTIO_NET_CTRL_RX_ALLMULTI, 0), VIRTIO_NET_OK);
		assert_int_equal(mode_is(f, VIRTIO_NET_CTRL_RX_ALLUNI, 1), VIRTIO_NET_OK);
		assert_true(reaches(f, other, 0) && !reaches(f, multi, 0));
		assert_int_equal(mode_is(f, VIRTIO_NET_CTRL_RX_ALLUNI, 0), VIRTIO_NET_OK);
		assert_int_equal(control(f, VIRTIO_NET_CTRL_MAC, 0, table, sizeof(table)), VIRTIO_NET_OK);
		assert_true(reaches(f, other, 0) && reaches(f, multi, 0));
		assert_int_equal(mode_is(f, VIRTIO_NET_CTRL_RX_NOMULTI, 1), VIRTIO_NET_OK);
		assert_int_equal(mode_is(f, VIRTIO_NET_CTRL_RX_NOBCAST, 1), VIRTIO_NET_OK);
		assert_false(reaches(f, multi, 0) || reaches(f, all, 0));
		assert_int_equal(mode_is(f, VIRTIO_NET_CTRL_RX_NOUNI, 1), VIRTIO_NET_OK);
		assert_false(reaches(f, mac, 0));
		start(f, features(m) | CONTROL);
		assert_true(reaches(f, multi, 0)); /* a reset forgets it all */
		teardown(f);
	}
}

static void test_mac_and_vlan(void **state)
{
	static const uint8_t other[] = { 2, 9, 9, 9, 9, 9 };
	static const uint8_t vlan5[] = { 5, 0 }, vlan4095[] = { 0xff, 0xf }, vlan4096[] = { 0, 0x10 };
	struct fixture *f = setup();

	start(f, CONTROL);
	mode_is(f, VIRTIO_NET_CTRL_RX_PROMISC, 0);
	assert_int_equal(control(f, VIRTIO_NET_CTRL_MAC, 1, other, 6), VIRTIO_NET_OK);
	assert_true(reaches(f, other, 0) && !reaches(f, mac, 0));
	assert_false(reaches(f, other, 5));
	assert_int_equal(control(f, VIRTIO_NET_CTRL_VLAN, 0, vlan5, 2), VIRTIO_NET_OK);
	assert_int_equal(control(f, VIRTIO_NET_CTRL_VLAN, 0, vlan4095, 2), VIRTIO_NET_OK);
	assert_int_equal(control(f, VIRTIO_NET_CTRL_VLAN, 0, vlan4096, 2), VIRTIO_NET_ERR);
	assert_true(reaches(f, other, 5) && reaches(f, other, 4095) && !reaches(f, other, 6));
	assert_int_equal(control(f, VIRTIO_NET_CTRL_VLAN, 1, vlan5, 2), VIRTIO_NET_OK);
	assert_true(!reaches(f, other, 5) && reaches(f, other, 4095));
	teardown(f);
}

/* Tables: as long as they may be, longer (then all pass), cut off, with lengths that lie. */
static void test_mac_tables(void **state)
{
	static uint8_t t[8000];
	static const uint8_t other[] = { 2, 9, 9, 9, 9, 9 };

	for (unsigned n = NET_FILTER_MACS - 1; n <= NET_FILTER_MACS + 1; n++) {
		struct fixture *f = setup();

		start(f, CONTROL);
		mode_is(f, VIRTIO_NET_CTRL_RX_PROMISC, 0);
		memset(t, 0, sizeof(t));
		t[0] = (uint8_t)n;
		for (unsigned i = 0; i < n; i++)
			memcpy(t + 4 + 6 * i, (uint8_t[]){ 2, 7, 7, 7, 7, (uint8_t)i }, 6);
		assert_int_equal(control(f, VIRTIO_NET_CTRL_MAC, 0, t, 8 + 6 * n), VIRTIO_NET_OK);
		assert_true(reaches(f, t + 4, 0) && reaches(f, t + 4 + 6 * (n - 1), 0));
		assert_int_equal(reaches(f, other, 0), n > NET_FILTER_MACS);
		for (unsigned cut = 0; cut < 8 + 6 * n; cut += 5)
			assert_int_equal(control(f, VIRTIO_NET_CTRL_MAC, 0, t, cut), VIRTIO_NET_ERR);
		assert_int_equal(control(f, VIRTIO_NET_CTRL_MAC, 0, t, 9 + 6 * n), VIRTIO_NET_ERR);
		memset(t, 0xff, 4);
		assert_int_equal(control(f, VIRTIO_NET_CTRL_MAC, 0, t, 8 + 6 * n), VIRTIO_NET_ERR);
		assert_true(reaches(f, t + 4, 0)); /* what is refused changes nothing */
		teardown(f);
	}
}

static void test_control_bad(void **state)
{
	struct fixture *f = setup();
	uint8_t two[2] = { 1, 0 }, long_data[8200] = { 0 };

	start(f, CONTROL);
	for (unsigned class = 0; class < 8; class ++)
		for (unsigned cmd = 0; cmd < 8; cmd++) {
			assert_int_equal(control(f, class, cmd, two, 0), VIRTIO_NET_ERR);
			assert_int_equal(control(f, class, cmd, long_data, 100), VIRTIO_NET_ERR);
		}
	assert_int_equal(control(f, VIRTIO_NET_CTRL_RX, 0, "\2", 1), VIRTIO_NET_ERR);
	assert_int_equal(control(f, VIRTIO_NET_CTRL_MQ, 0, two, 2), VIRTIO_NET_ERR);
	assert_int_equal(control(f, VIRTIO_NET_CTRL_ANNOUNCE, 0, two, 0), VIRTIO_NET_ERR);
	assert_false(virtio_reg_status(f->d) & NEEDS_RESET);
	teardown(f);
}

static void test_offloads(void **state)
{
	const uint64_t feats = CONTROL | BIT(CTRL_GUEST_OFFLOADS) | BIT(GUEST_CSUM) | BIT(GUEST_TSO4) | BIT(GUEST_TSO6);
	struct fixture *f = setup();
	uint64_t bits = BIT(GUEST_CSUM) | BIT(GUEST_TSO6);

	start(f, feats);
	assert_int_equal(f->nic->offload, NIC_CSUM | NIC_TSO4 | NIC_TSO6);
	assert_int_equal(control(f, VIRTIO_NET_CTRL_GUEST_OFFLOADS, 0, &bits, 8), VIRTIO_NET_OK);
	assert_int_equal(f->nic->offload, NIC_CSUM | NIC_TSO6);
	bits = BIT(GUEST_TSO4);
	assert_int_equal(control(f, VIRTIO_NET_CTRL_GUEST_OFFLOADS, 0, &bits, 8), VIRTIO_NET_OK);
	assert_int_equal(f->nic->offload, 0); /* segments without checksums: there is no such thing */
	bits = BIT(GUEST_ECN) | BIT(GUEST_CSUM);
	assert_int_equal(control(f, VIRTIO_NET_CTRL_GUEST_OFFLOADS, 0, &bits, 8), VIRTIO_NET_ERR);
	bits = 0;
	f->nic->fail_set = -EIO;
	assert_int_equal(control(f, VIRTIO_NET_CTRL_GUEST_OFFLOADS, 0, &bits, 8), VIRTIO_NET_ERR);
	f->nic->fail_set = 0;
	assert_int_equal(control(f, VIRTIO_NET_CTRL_GUEST_OFFLOADS, 0, &bits, 8), VIRTIO_NET_OK);
	start(f, feats);
	assert_int_equal(f->nic->offload, NIC_CSUM | NIC_TSO4 | NIC_TSO6);
	start(f, 0);
	assert_int_equal(f->nic->offload, 0);
	teardown(f);
}

/* What the back end cannot do is not offered. */
/* A back end that leaves nothing undone is told that its word will be taken. */
static void test_valid(void **state)
{
	struct fixture *f = setup_with(1, NIC_VALID);

	start(f, BIT(GUEST_CSUM));
	assert_int_equal(f->nic->offload, NIC_CSUM);
	start(f, 0);
	assert_int_equal(f->nic->offload, 0);
	teardown(f);
}

static void test_features(void **state)
{
	static const struct {
		unsigned offloads, pairs;
		uint64_t has, lacks;
	} t[] = {
		{ 0, 1, BIT(MAC) | BIT(MTU) | BIT(STATUS) | MERGE,
		  BIT(CSUM) | BIT(GUEST_CSUM) | BIT(HOST_TSO4) | BIT(GUEST_TSO6) | BIT(CTRL_GUEST_OFFLOADS) | BIT(MQ) },
		{ NIC_VALID, 1, BIT(GUEST_CSUM), BIT(CSUM) | BIT(CTRL_GUEST_OFFLOADS) | BIT(GUEST_TSO4) },
		{ NIC_CSUM, 2, BIT(CSUM) | BIT(GUEST_CSUM) | BIT(MQ), BIT(HOST_TSO4) | BIT(HOST_UFO) | BIT(GUEST_UFO) },
		{ ALL, 1, BIT(HOST_TSO4) | BIT(HOST_TSO6) | BIT(GUEST_TSO4) | BIT(GUEST_TSO6) | BIT(GUEST_ECN),
		  BIT(HOST_UFO) | BIT(GUEST_UFO) | BIT(MQ) },
	};

	for (unsigned i = 0; i < LEN(t); i++) {
		struct fixture *f = setup_with(t[i].pairs, t[i].offloads);

		assert_true((f->d->offered & t[i].has) == t[i].has);
		assert_true((f->d->offered & t[i].lacks) == 0);
		for (unsigned j = 0; j < 6; j++)
			assert_int_equal(virtio_reg_config(f->d, j, 1), mac[j]);
		assert_int_equal(virtio_reg_config(f->d, 6, 2), VIRTIO_NET_S_LINK_UP);
		assert_int_equal(virtio_reg_config(f->d, 8, 2), t[i].pairs);
		assert_int_equal(virtio_reg_config(f->d, 10, 2), 1500);
		teardown(f);
	}
}

static void test_link_and_announce(void **state)
{
	struct fixture *f = setup();
	unsigned irqs;

	start(f, CONTROL | BIT(STATUS) | BIT(GUEST_ANNOUNCE));
	irqs = f->drv.config_irqs;
	fakenic_link(f->nic, false);
	assert_int_equal(virtio_reg_config(f->d, 6, 2), 0);
	assert_int_equal(f->drv.config_irqs, irqs + 1);
	fakenic_link(f->nic, true);
	assert_int_equal(virtio_reg_config(f->d, 6, 2), VIRTIO_NET_S_LINK_UP | VIRTIO_NET_S_ANNOUNCE);
	assert_int_equal(f->drv.config_irqs, irqs + 2);
	assert_int_equal(control(f, VIRTIO_NET_CTRL_ANNOUNCE, VIRTIO_NET_CTRL_ANNOUNCE_ACK, NULL, 0), VIRTIO_NET_OK);
	assert_int_equal(virtio_reg_config(f->d, 6, 2), VIRTIO_NET_S_LINK_UP);
	teardown(f);
}

/* Queue pairs: each is a way of its own, the control queue comes last or, for a driver without MQ, third. */
static void test_pairs(void **state)
{
	static const uint16_t good[] = { 2, 3, 1 }, bad[] = { 0, 4, 0x8000 };

	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup_with(PAIRS, 0);

		start(f, features(mode) | CONTROL | BIT(MQ) | MERGE);
		for (unsigned i = 0; i < LEN(good); i++) {
			assert_int_equal(control_on(f, CTRL, VIRTIO_NET_CTRL_MQ, 0, &good[i], 2), VIRTIO_NET_OK);
			assert_int_equal(f->nic->pairs, good[i]);
			assert_int_equal(control_on(f, CTRL, VIRTIO_NET_CTRL_MQ, 0, &bad[i], 2), VIRTIO_NET_ERR);
			assert_int_equal(f->nic->pairs, good[i]);
		}
		for (unsigned i = 0; i < PAIRS; i++) {
			assert_true(post(f, 2 * i, MIB * i, 2048, 1));
			fakedev_publish(&f->drv, 2 * i);
			arrive(f, i, 500, i);
			offer(f, 2 * i + 1, NULL, MIB * i + 8192, 60, 1, false);
			fakedev_publish(&f->drv, 2 * i + 1);
			check_frame(f, 2 * i, 500, i);
			assert_true(sent_back(f, 2 * i + 1));
			assert_int_equal(f->nic->pair[i].nout, 1);
		}
		start(f, features(mode) | CONTROL);
		assert_int_equal(mode_is(f, VIRTIO_NET_CTRL_RX_PROMISC, 0), VIRTIO_NET_OK);
		assert_int_equal(f->nic->pairs, 1);
		teardown(f);
	}
}

/* Life. */

/* Chains in hand, a frame that waits for more and one that waits to be sent: all survive a pause, none a reset. */
static void test_pause_and_reset(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();

		start(f, features(mode) | MERGE);
		f->nic->room = 0;
		offer(f, 1, NULL, MIB, 60, 1, false);
		fakedev_publish(&f->drv, 1);
		assert_true(post(f, 0, 0, 500, 1));
		fakedev_publish(&f->drv, 0);
		arrive(f, 0, 900, 1);
		fakedev_turn(&f->drv);
		fakedev_pause(&f->drv);
		fakenic_give(f->nic, 10);
		assert_true(post(f, 0, 4096, 500, 1));
		fakeq_expose(&f->drv.q[0]);
		fakedev_kick(&f->drv, 0);
		assert_false(fakeq_has_used(&f->drv.q[0]) || fakeq_has_used(&f->drv.q[1]));
		virtio_resume(f->d);
		fakedev_turn(&f->drv);
		check_frame(f, 0, 900, 1);
		assert_true(sent_back(f, 1));

		f->nic->room = 0;
		offer(f, 1, NULL, MIB, 60, 1, false);
		fakedev_publish(&f->drv, 1);
		assert_true(post(f, 0, 0, 500, 1));
		fakedev_publish(&f->drv, 0);
		arrive(f, 0, 900, 2);
		fakedev_turn(&f->drv);
		start(f, features(mode ^ 1) | MERGE);
		assert_int_equal(f->nic->pair[0].polled, 0);
		fakenic_give(f->nic, 10);
		arrive(f, 0, 400, 3);
		assert_true(post(f, 0, 0, 500, 1));
		fakedev_publish(&f->drv, 0);
		check_frame(f, 0, 400, 3);
		assert_int_equal(f->nic->pair[0].nout, 1);
		teardown(f);
	}
}

/* One queue is reset: what it held may be offered again, and the rest of the device does not notice. */
static void test_queue_reset(void **state)
{
	struct fixture *f = setup();

	start(f, CONTROL | MERGE | 1ull << 40);
	mode_is(f, VIRTIO_NET_CTRL_RX_PROMISC, 0);
	assert_true(post(f, 0, 0, 500, 1));
	fakedev_publish(&f->drv, 0);
	assert_true(fakedev_queue_reset(&f->drv, 0));
	fakedev_queue(&f->drv, 0, 16);
	fakedev_turn(&f->drv);
	assert_false(reaches(f, (const uint8_t[]){ 2, 9, 9, 9, 9, 9 }, 0));
	teardown(f);
}

static void test_hostile(void **state)
{
	struct fixture *f = setup();

	for (unsigned mode = 0; mode < MODES; mode++)
		for (unsigned i = 0; i < fake_hostile_count; i++)
			for (unsigned q = 0; q < 3; q++) {
				fakedev_start(&f->drv, features(mode) | CONTROL | MERGE, FAKE_HOSTILE_SIZE);
				if (!fake_hostile_fits(&fake_hostile[i], &f->drv.q[q]))
					continue;
				fake_hostile[i].corrupt(&f->drv.q[q]);
				arrive(f, 0, 100, 1);
				fakedev_kick(&f->drv, q);
				if (!(virtio_reg_status(f->d) & NEEDS_RESET))
					fail_msg("%s: the driver is not told", fake_hostile[i].name);
				fakenic_forget(f->nic);
				fakedev_start(&f->drv, features(mode) | MERGE, 0);
				assert_true(post(f, 0, 0, 500, 1));
				fakedev_publish(&f->drv, 0);
				arrive(f, 0, 400, 3);
				fakedev_turn(&f->drv);
				check_frame(f, 0, 400, 3);
			}
	teardown(f);
}

/* Thousands of frames both ways at once, buffers coming and going at random: each arrives once and in order. */
static void test_storm(void **state)
{
	for (unsigned mode = 0; mode < MODES; mode++) {
		struct fixture *f = setup();
		unsigned arrived = 0, got = 0, offered = 0, back = 0, place = 0;
		static uint8_t frame[1000];

		f->seed = mode + 1;
		f->nic->room = 0;
		start(f, features(mode) | MERGE);
		while (got < 3000 || back < 3000) {
			for (unsigned n = rnd(f, 40); n && arrived < 3000 && fakenic_waiting(f->nic, 0) < 500; n--)
				arrive(f, 0, 14 + arrived % 900, arrived), arrived++;
			for (unsigned n = rnd(f, 40); n && post(f, 0, 1024 * (place % 1024), 64 + rnd(f, 900), 1); n--)
				place++;
			fakedev_publish(&f->drv, 0);
			for (unsigned n = rnd(f, 40); n && offered - back < 64 && offered < 3000; n--, offered++) {
				uint64_t off = 8 * MIB + 4096 * (offered % 64);

				make_frame(at(f, off + HDR), 14 + offered % 900, offered);
				offer(f, 1, NULL, off, 14 + offered % 900, 1, offered % 2);
			}
			fakedev_publish(&f->drv, 1);
			fakenic_give(f->nic, rnd(f, 40));
			fakedev_turn(&f->drv);
			for (; fakeq_has_used(&f->drv.q[0]); got++)
				check_frame(f, 0, 14 + got % 900, got);
			for (unsigned i = 0; sent_back(f, 1); back++, i++) {
				make_frame(frame, 14 + back % 900, back);
				check_sent(f, 0, i, frame, 14 + back % 900);
			}
			for (struct fakenic_pair *p = &f->nic->pair[0]; p->nout;)
				free(p->out[--p->nout].p), p->out[p->nout].len = 0;
		}
		assert_int_equal(stats(f).rx, 3000);
		assert_int_equal(stats(f).tx, 3000);
		teardown(f);
	}
}

/* On a thread of its own: frames both ways while the machine is paused and resumed and the cable pulled from here. */

struct arrival {
	struct fixture *f;
	unsigned first, n;
	bool up;
};

static void do_arrive(void *arg)
{
	const struct arrival *a = arg;

	for (unsigned k = a->first; k < a->first + a->n; k++)
		arrive(a->f, 0, 14 + k % 900, k);
	fakenic_link(a->f->nic, a->up);
}

static void do_forget(void *arg)
{
	fakenic_forget(arg);
}

static void test_on_a_thread(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct vnet_config cfg = { .name = "net0" };
	struct loop_thread *t;
	struct err err;
	uint8_t frame[1024];
	struct fake_used u;
	unsigned k = 0;

	assert_non_null(f);
	f->nic = calloc(1, sizeof(*f->nic));
	assert_non_null(f->nic);
	fakemem_init(&f->mem, BANK, 1);
	f->buf = fakemem_alloc(&f->mem, 16 * MIB, 4096);
	fakenic_init(f->nic, 1, ALL);
	memcpy(cfg.mac, mac, 6);
	cfg.nic = &f->nic->nic;
	assert_int_equal(loop_thread_new("net", &t, &err), 0);
	assert_int_equal(vnet_new(&cfg, &f->mem.gmem, loop_thread_loop(t), &f->v, &err), 0);
	f->d = vnet_dev(f->v);
	fakedev_init(&f->drv, f->d, &f->mem, NULL);
	for (unsigned boot = 0; boot < 3; boot++) {
		start(f, features(FAKE_EVENT_IDX) | MERGE);
		for (unsigned round = 0; round < 20; round++) {
			struct arrival a = { f, k, 16, round % 2 };

			for (unsigned i = 0; i < 16; i++)
				assert_true(post(f, 0, 2048 * (k % 1024 + i), 2048, 1));
			fakedev_publish(&f->drv, 0);
			loop_call(loop_thread_loop(t), do_arrive, &a);
			if (round % 4 == 1)
				assert_int_equal(virtio_pause(f->d, clock_ns() + 60000000000ull), 0);
			offer(f, 1, NULL, 8 * MIB, 60 + round, 1, false);
			fakedev_publish(&f->drv, 1);
			if (round % 4 == 1)
				virtio_resume(f->d);
			for (unsigned i = 0; i < 16; i++, k++) {
				assert_true(fakedev_get(&f->drv, 0, &u));
				make_frame(frame, 14 + k % 900, k);
				assert_int_equal(u.len, HDR + 14 + k % 900);
				assert_memory_equal(at(f, u.token + HDR), frame, 14 + k % 900);
			}
			assert_true(fakedev_get(&f->drv, 1, &u));
			assert_int_equal(vnet_up(f->v), round % 2);
		}
		loop_call(loop_thread_loop(t), do_forget, f->nic);
	}
	assert_true(stats(f).rx == k && stats(f).tx == 60);
	fakedev_exit(&f->drv);
	vnet_free(f->v);
	loop_thread_free(t);
	fakenic_exit(f->nic);
	fakemem_free(&f->mem);
	free(f->nic);
	free(f);
}

/* The engine: somebody who would move the frames himself. Here he only keeps count. */

struct engine {
	struct vnet_engine e;
	bool started[2 * PAIRS], running[2 * PAIRS];
	unsigned starts, refuse; /* refuses queues from this one on */
	int irq_fd[2 * PAIRS];
};

static int engine_start(struct vnet_engine *e, struct virtio_dev *d, unsigned q, int irq_fd)
{
	struct engine *g = (struct engine *)e;

	if (q >= g->refuse)
		return -EINVAL;
	assert_false(g->started[q]);
	assert_true(irq_fd >= 0 && d->queue[q].cfg.size);
	g->started[q] = true;
	g->irq_fd[q] = irq_fd;
	g->starts++;
	return 0;
}

static int engine_run(struct vnet_engine *e, unsigned q, bool on)
{
	struct engine *g = (struct engine *)e;

	assert_true(g->started[q] && g->running[q] != on);
	g->running[q] = on;
	return 0;
}

static void engine_stop(struct vnet_engine *e, unsigned q)
{
	struct engine *g = (struct engine *)e;

	assert_true(g->started[q] && !g->running[q]);
	g->started[q] = false;
}

static struct engine engine(unsigned refuse)
{
	return (struct engine){ .e = { 1ull << VIRTIO_F_RING_PACKED, engine_start, engine_run, engine_stop },
		                .refuse = refuse };
}

static unsigned running(const struct engine *g)
{
	unsigned n = 0;

	for (unsigned q = 0; q < 2 * PAIRS; q++)
		n += g->running[q];
	return n;
}

/* It has the queues of the pairs in use, and only while the machine runs; control stays here. */
static void test_engine(void **state)
{
	static const uint16_t two = 2, one = 1, three = 3;
	struct engine g = engine(UINT32_MAX);
	struct fixture *f = setup_engine(PAIRS, ALL, &g.e);
	uint64_t beat = 1;

	assert_false(f->d->offered >> VIRTIO_F_RING_PACKED & 1);
	start(f, CONTROL | BIT(MQ) | MERGE);
	assert_true(g.starts == 2 * PAIRS && running(&g) == 2);
	assert_int_equal(control_on(f, CTRL, VIRTIO_NET_CTRL_MQ, 0, &three, 2), VIRTIO_NET_OK);
	assert_int_equal(running(&g), 6);
	assert_int_equal(control_on(f, CTRL, VIRTIO_NET_CTRL_MQ, 0, &two, 2), VIRTIO_NET_OK);
	assert_int_equal(running(&g), 4);
	fakedev_pause(&f->drv);
	assert_int_equal(running(&g), 0);
	virtio_resume(f->d);
	assert_int_equal(running(&g), 4);
	/* Nobody here touches its rings. */
	assert_true(post(f, 0, 0, 2048, 1));
	offer(f, 1, NULL, 8192, 60, 1, false);
	fakeq_expose(&f->drv.q[0]);
	fakeq_expose(&f->drv.q[1]);
	fakedev_turn(&f->drv);
	assert_true(f->nic->pair[0].nout == 0 && f->nic->pair[0].reads == 0 && f->nic->pair[0].polled == 0);
	/* Without an eventfd of the transport's its interrupts come by the loop. */
	beat = f->drv.queue_irqs[3];
	assert_int_equal(write(g.irq_fd[3], &(uint64_t){ 1 }, 8), 8);
	fakedev_turn(&f->drv);
	assert_int_equal(f->drv.queue_irqs[3], beat + 1);
	assert_int_equal(control_on(f, CTRL, VIRTIO_NET_CTRL_MQ, 0, &one, 2), VIRTIO_NET_OK);
	assert_int_equal(running(&g), 2);
	start(f, CONTROL | BIT(MQ) | MERGE);
	assert_true(g.starts == 4 * PAIRS && running(&g) == 2);
	teardown(f);
	assert_int_equal(running(&g), 0);
	for (unsigned q = 0; q < 2 * PAIRS; q++)
		assert_false(g.started[q]);
}

/* What it refuses goes through us. */
static void test_engine_refuses(void **state)
{
	struct engine g = engine(0);
	struct fixture *f = setup_engine(1, ALL, &g.e);

	start(f, MERGE);
	assert_int_equal(g.starts, 0);
	assert_true(post(f, 0, 0, 2048, 1));
	fakedev_publish(&f->drv, 0);
	arrive(f, 0, 100, 1);
	offer(f, 1, NULL, 8192, 60, 1, false);
	fakedev_publish(&f->drv, 1);
	check_frame(f, 0, 100, 1);
	assert_true(sent_back(f, 1));
	teardown(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_on_a_thread),
		cmocka_unit_test(test_receive),
		cmocka_unit_test(test_merge),
		cmocka_unit_test(test_no_buffers),
		cmocka_unit_test(test_receive_odd),
		cmocka_unit_test(test_tiny_buffers),
		cmocka_unit_test(test_receive_header),
		cmocka_unit_test(test_send),
		cmocka_unit_test(test_send_split_header),
		cmocka_unit_test(test_send_full),
		cmocka_unit_test(test_send_bad),
		cmocka_unit_test(test_send_refused),
		cmocka_unit_test(test_send_without_receive),
		cmocka_unit_test(test_receive_modes),
		cmocka_unit_test(test_mac_and_vlan),
		cmocka_unit_test(test_mac_tables),
		cmocka_unit_test(test_control_bad),
		cmocka_unit_test(test_offloads),
		cmocka_unit_test(test_valid),
		cmocka_unit_test(test_features),
		cmocka_unit_test(test_link_and_announce),
		cmocka_unit_test(test_pairs),
		cmocka_unit_test(test_pause_and_reset),
		cmocka_unit_test(test_queue_reset),
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_storm),
		cmocka_unit_test(test_engine),
		cmocka_unit_test(test_engine_refuses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
