// SPDX-License-Identifier: GPL-2.0-or-later
#include "net/pcap.h"

#include "base/container_of.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/*
 * How it works
 *
 * A nic between the device and another nic: it passes everything on and keeps
 * a copy of each frame that was sent or received, without the header that only
 * the two know. The file is in the classic format with nanoseconds (draft-ietf-
 * opsawg-pcap), one write for each frame, so that it is whole whenever we end.
 * When it cannot be written any more, this is said, and the network goes on.
 */

#define PCAP_MAGIC_NS 0xa1b23c4du
#define LINK_ETHERNET 1
#define MOST_PIECES   1024 /* what a writev(2) takes */

struct file_header {
	uint32_t magic;
	uint16_t major, minor;
	uint32_t zone, accuracy, snap, link;
};

struct frame_header {
	uint32_t s, ns, kept, len;
};

struct pcap {
	struct nic nic;
	struct nic *inner;
	struct nic_client client;
	int fd; /* -1: given up */
	const char *path;
};

static struct pcap *of_nic(struct nic *n)
{
	return container_of(n, struct pcap, nic);
}

/* Appends the frame in @iov: @len bytes behind the header. */
static void keep(struct pcap *p, const struct iovec *iov, unsigned niov, size_t len)
{
	struct iovec v[MOST_PIECES] = { { NULL, 0 } };
	struct frame_header h = { .kept = (uint32_t)len, .len = (uint32_t)len };
	size_t skip = NIC_HDR, left = len;
	struct timespec now;
	unsigned n = 1;

	if (p->fd < 0)
		return;
	clock_gettime(CLOCK_REALTIME, &now);
	h.s = (uint32_t)now.tv_sec;
	h.ns = (uint32_t)now.tv_nsec;
	v[0] = (struct iovec){ &h, sizeof(h) };
	for (unsigned i = 0; i < niov && left && n < MOST_PIECES; i++) {
		size_t cut = skip < iov[i].iov_len ? skip : iov[i].iov_len, part = iov[i].iov_len - cut;

		part = part < left ? part : left;
		if (part)
			v[n++] = (struct iovec){ (uint8_t *)iov[i].iov_base + cut, part };
		skip -= cut;
		left -= part;
	}
	h.kept -= (uint32_t)left;
	if (writev(p->fd, v, (int)n) == (ssize_t)(sizeof(h) + h.kept))
		return;
	log_line("pcap %s: %s: no more is written to it", p->path, strerror(errno));
	close(p->fd);
	p->fd = -1;
}

static void on_readable(void *dev, unsigned pair)
{
	struct pcap *p = dev;

	p->client.readable(p->client.dev, pair);
}

static void on_writable(void *dev, unsigned pair)
{
	struct pcap *p = dev;

	p->client.writable(p->client.dev, pair);
}

static void on_link(void *dev)
{
	struct pcap *p = dev;

	p->nic.up = p->inner->up;
	p->client.link(p->client.dev);
}

static void pcap_attach(struct nic *n, const struct nic_client *client, struct loop *loop)
{
	struct pcap *p = of_nic(n);
	struct nic_client ours = { .readable = on_readable, .writable = on_writable, .link = on_link, .dev = p };

	if (client)
		p->client = *client;
	nic_attach(p->inner, client ? &ours : NULL, loop);
}

static int pcap_send(struct nic *n, unsigned pair, const struct iovec *iov, unsigned niov)
{
	struct pcap *p = of_nic(n);
	int error = nic_send(p->inner, pair, iov, niov);
	size_t len = 0;

	for (unsigned i = 0; i < niov; i++)
		len += iov[i].iov_len;
	if (!error)
		keep(p, iov, niov, len - NIC_HDR);
	return error;
}

static ssize_t pcap_recv(struct nic *n, unsigned pair, const struct iovec *iov, unsigned niov)
{
	struct pcap *p = of_nic(n);
	ssize_t got = nic_recv(p->inner, pair, iov, niov);

	if (got > NIC_HDR)
		keep(p, iov, niov, (size_t)got - NIC_HDR);
	return got;
}

static void pcap_poll(struct nic *n, unsigned pair, short events)
{
	nic_poll(of_nic(n)->inner, pair, events);
}

static int pcap_set_pairs(struct nic *n, unsigned pairs)
{
	return nic_set_pairs(of_nic(n)->inner, pairs);
}

static int pcap_set_offloads(struct nic *n, unsigned offloads)
{
	return nic_set_offloads(of_nic(n)->inner, offloads);
}

static void pcap_free(struct nic *n)
{
	struct pcap *p = of_nic(n);

	nic_free(p->inner);
	if (p->fd >= 0)
		close(p->fd);
	free(p);
}

int pcap_new(struct nic *inner, const char *path, struct nic **out, struct err *err)
{
	static const struct nic_ops ops = { .attach = pcap_attach,
		                            .send = pcap_send,
		                            .recv = pcap_recv,
		                            .poll = pcap_poll,
		                            .set_pairs = pcap_set_pairs,
		                            .set_offloads = pcap_set_offloads,
		                            .free = pcap_free };
	struct file_header h = { PCAP_MAGIC_NS, 2, 4, 0, 0, NIC_MAX_FRAME, LINK_ETHERNET };
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	struct pcap *p;

	if (fd < 0 || write(fd, &h, sizeof(h)) != sizeof(h)) {
		int error = -errno;

		if (fd >= 0)
			close(fd);
		return err_sys(err, error, "pcap %s", path);
	}
	p = calloc(1, sizeof(*p));
	if (!p) {
		close(fd);
		return err_set(err, -ENOMEM, "out of memory");
	}
	*p = (struct pcap){ .nic = *inner, .inner = inner, .fd = fd, .path = path };
	p->nic.ops = &ops;
	p->nic.fd = NULL;
	*out = &p->nic;
	return 0;
}
