// SPDX-License-Identifier: GPL-2.0-or-later
#include "fs/p9wire.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

void wire_init(struct wire *w, const struct iovec *iov, unsigned n)
{
	*w = (struct wire){ .iov = iov, .n = n };
	for (unsigned i = 0; i < n; i++)
		w->left += iov[i].iov_len;
}

void wire_limit(struct wire *w, size_t left)
{
	if (w->left > left)
		w->left = left;
}

/* Takes up to @len bytes that lie together; *@len becomes how many. There is something left, so it ends. */
static uint8_t *step(struct wire *w, size_t *len)
{
	uint8_t *p;

	while (w->off == w->iov->iov_len) {
		w->iov++;
		w->n--;
		w->off = 0;
	}
	p = (uint8_t *)w->iov->iov_base + w->off;
	if (*len > w->iov->iov_len - w->off)
		*len = w->iov->iov_len - w->off;
	w->off += *len;
	w->left -= *len;
	return p;
}

static bool fits(struct wire *w, size_t len)
{
	if (len > w->left || w->bad)
		w->bad = true;
	return !w->bad;
}

void wire_get(struct wire *w, void *buf, size_t len)
{
	uint8_t *to = buf;

	if (!fits(w, len)) {
		memset(buf, 0, len);
		return;
	}
	while (len) {
		size_t n = len;
		const uint8_t *p = step(w, &n);

		memcpy(to, p, n);
		to += n;
		len -= n;
	}
}

uint8_t wire_u8(struct wire *w)
{
	uint8_t v;

	wire_get(w, &v, sizeof(v));
	return v;
}

uint16_t wire_u16(struct wire *w)
{
	uint16_t v;

	wire_get(w, &v, sizeof(v));
	return le16toh(v);
}

uint32_t wire_u32(struct wire *w)
{
	uint32_t v;

	wire_get(w, &v, sizeof(v));
	return le32toh(v);
}

uint64_t wire_u64(struct wire *w)
{
	uint64_t v;

	wire_get(w, &v, sizeof(v));
	return le64toh(v);
}

int wire_str(struct wire *w, char *buf, size_t size)
{
	size_t len = wire_u16(w);

	*buf = '\0';
	if (!fits(w, len))
		return -EINVAL;
	if (len >= size) {
		wire_skip(w, len);
		return -ENAMETOOLONG;
	}
	wire_get(w, buf, len);
	buf[len] = '\0';
	return strlen(buf) == len ? (int)len : -EINVAL;
}

void wire_put(struct wire *w, const void *buf, size_t len)
{
	const uint8_t *from = buf;

	if (!fits(w, len))
		return;
	while (len) {
		size_t n = len;
		uint8_t *p = step(w, &n);

		memcpy(p, from, n);
		from += n;
		len -= n;
	}
}

void wire_put_u8(struct wire *w, uint8_t v)
{
	wire_put(w, &v, sizeof(v));
}

void wire_put_u16(struct wire *w, uint16_t v)
{
	v = htole16(v);
	wire_put(w, &v, sizeof(v));
}

void wire_put_u32(struct wire *w, uint32_t v)
{
	v = htole32(v);
	wire_put(w, &v, sizeof(v));
}

void wire_put_u64(struct wire *w, uint64_t v)
{
	v = htole64(v);
	wire_put(w, &v, sizeof(v));
}

void wire_put_str(struct wire *w, const char *s)
{
	size_t len = strlen(s);

	wire_put_u16(w, (uint16_t)len);
	wire_put(w, s, len);
}

void wire_put_qid(struct wire *w, const struct qid *q)
{
	wire_put_u8(w, q->type);
	wire_put_u32(w, q->version);
	wire_put_u64(w, q->path);
}

void wire_skip(struct wire *w, size_t len)
{
	if (!fits(w, len))
		return;
	while (len) {
		size_t n = len;

		step(w, &n);
		len -= n;
	}
}

unsigned wire_pieces(const struct wire *w, size_t len, struct iovec *out)
{
	struct wire at = *w;
	unsigned count = 0;

	if (len > at.left)
		len = at.left;
	while (len) {
		size_t n = len;

		out[count].iov_base = step(&at, &n);
		out[count++].iov_len = n;
		len -= n;
	}
	return count;
}
