// SPDX-License-Identifier: GPL-2.0-or-later
#include "fakenic.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEED(x) ((x) ? (void)0 : (fprintf(stderr, "fakenic: %s\n", #x), abort()))

static struct fakenic *of_nic(struct nic *n)
{
	return (struct fakenic *)((char *)n - offsetof(struct fakenic, nic));
}

static struct fakenic_pair *pair_of(struct nic *n, unsigned pair)
{
	NEED(pair < n->max_pairs && of_nic(n)->attached);
	return &of_nic(n)->pair[pair];
}

static bool is_due(struct fakenic *f, const struct fakenic_pair *p, short event)
{
	return p->polled & event && (event == POLLIN ? p->in_first < p->in_end : f->room > 0);
}

static void call_later(struct fakenic *f)
{
	for (unsigned i = 0; f->attached && i < f->nic.max_pairs; i++)
		if (is_due(f, &f->pair[i], POLLIN) || is_due(f, &f->pair[i], POLLOUT))
			loop_post(f->loop, &f->task);
}

static void on_task(struct loop_task *t)
{
	struct fakenic *f = (struct fakenic *)((char *)t - offsetof(struct fakenic, task));

	for (unsigned i = 0; f->attached && i < f->nic.max_pairs; i++) {
		if (is_due(f, &f->pair[i], POLLIN))
			f->client.readable(f->client.dev, i);
		if (is_due(f, &f->pair[i], POLLOUT))
			f->client.writable(f->client.dev, i);
	}
	call_later(f);
}

static void attach(struct nic *n, const struct nic_client *client, struct loop *loop)
{
	struct fakenic *f = of_nic(n);

	if (f->attached)
		loop_task_del(f->loop, &f->task);
	f->attached = client;
	f->loop = loop;
	f->pairs = 1;
	f->offload = 0;
	for (unsigned i = 0; i < n->max_pairs; i++)
		f->pair[i].polled = 0;
	if (client)
		f->client = *client;
}

static int nic_out(struct nic *n, unsigned pair, const struct iovec *iov, unsigned niov)
{
	struct fakenic *f = of_nic(n);
	struct fakenic_pair *p = pair_of(n, pair);
	struct fakenic_frame *to = &p->out[p->nout];
	size_t at = 0;

	if (f->refuse)
		return f->refuse;
	if (!f->room)
		return -EAGAIN;
	NEED(p->nout < FAKENIC_FRAMES);
	for (unsigned i = 0; i < niov; i++)
		to->len += iov[i].iov_len;
	NEED(to->len >= NIC_HDR + 14 && to->len <= NIC_HDR + NIC_MAX_FRAME);
	to->p = malloc(to->len);
	NEED(to->p);
	for (unsigned i = 0; i < niov; at += iov[i++].iov_len)
		if (iov[i].iov_len)
			memcpy(to->p + at, iov[i].iov_base, iov[i].iov_len);
	p->nout++;
	f->room--;
	return 0;
}

static ssize_t nic_in(struct nic *n, unsigned pair, const struct iovec *iov, unsigned niov)
{
	struct fakenic_pair *p = pair_of(n, pair);
	size_t done = 0;
	struct fakenic_frame *from;

	p->reads++;
	if (p->in_first == p->in_end) {
		p->empty_reads++;
		return -EAGAIN;
	}
	from = &p->in[p->in_first++];
	for (unsigned i = 0; i < niov && done < from->len; i++) {
		size_t part = iov[i].iov_len < from->len - done ? iov[i].iov_len : from->len - done;

		memcpy(iov[i].iov_base, from->p + done, part);
		done += part;
	}
	free(from->p);
	if (p->in_first == p->in_end)
		p->in_first = p->in_end = 0;
	return (ssize_t)done;
}

static void nic_wants(struct nic *n, unsigned pair, short events)
{
	pair_of(n, pair)->polled = events;
	call_later(of_nic(n));
}

static int use_pairs(struct nic *n, unsigned pairs)
{
	struct fakenic *f = of_nic(n);

	NEED(pairs >= 1 && pairs <= n->max_pairs);
	if (!f->fail_set)
		f->pairs = pairs;
	return f->fail_set;
}

static int use_offloads(struct nic *n, unsigned offloads)
{
	struct fakenic *f = of_nic(n);

	unsigned may = n->offloads & NIC_VALID ? n->offloads | NIC_CSUM : n->offloads;

	NEED(!(offloads & ~may) && (!offloads || offloads & NIC_CSUM));
	if (!f->fail_set)
		f->offload = offloads;
	return f->fail_set;
}

static void nic_free_fake(struct nic *n)
{
	fakenic_exit(of_nic(n));
}

void fakenic_init(struct fakenic *f, unsigned pairs, unsigned offloads)
{
	static const struct nic_ops ops = { .attach = attach,
		                            .send = nic_out,
		                            .recv = nic_in,
		                            .poll = nic_wants,
		                            .set_pairs = use_pairs,
		                            .set_offloads = use_offloads,
		                            .free = nic_free_fake };

	*f = (struct fakenic){ .nic = { .ops = &ops, .max_pairs = pairs, .offloads = offloads, .up = true },
		               .task.cb = on_task,
		               .room = UINT32_MAX };
}

void fakenic_forget(struct fakenic *f)
{
	for (unsigned i = 0; i < f->nic.max_pairs; i++) {
		struct fakenic_pair *p = &f->pair[i];

		while (p->nout)
			free(p->out[--p->nout].p);
		while (p->in_first < p->in_end)
			free(p->in[p->in_first++].p);
		memset(p->out, 0, sizeof(p->out));
		p->in_first = p->in_end = 0;
	}
}

void fakenic_exit(struct fakenic *f)
{
	NEED(!f->attached);
	fakenic_forget(f);
}

void fakenic_arrive(struct fakenic *f, unsigned pair, const void *hdr, const uint8_t *frame, size_t len)
{
	struct fakenic_pair *p = &f->pair[pair];
	struct fakenic_frame *to;

	if (p->in_end == FAKENIC_FRAMES) {
		memmove(p->in, p->in + p->in_first, (p->in_end - p->in_first) * sizeof(p->in[0]));
		p->in_end -= p->in_first;
		p->in_first = 0;
	}
	NEED(p->in_end < FAKENIC_FRAMES);
	to = &p->in[p->in_end++];
	to->len = NIC_HDR + len;
	to->p = calloc(1, to->len);
	NEED(to->p);
	if (hdr)
		memcpy(to->p, hdr, NIC_HDR);
	memcpy(to->p + NIC_HDR, frame, len);
	call_later(f);
}

unsigned fakenic_waiting(const struct fakenic *f, unsigned pair)
{
	return f->pair[pair].in_end - f->pair[pair].in_first;
}

void fakenic_give(struct fakenic *f, unsigned n)
{
	f->room += n;
	call_later(f);
}

void fakenic_link(struct fakenic *f, bool up)
{
	f->nic.up = up;
	if (f->attached)
		f->client.link(f->client.dev);
}
