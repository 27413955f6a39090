// SPDX-License-Identifier: GPL-2.0-or-later
#include "base/iov.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

size_t iov_len(const struct iovec *iov, unsigned n)
{
	size_t len = 0;

	for (unsigned i = 0; i < n; i++)
		len += iov[i].iov_len;
	return len;
}

void iov_skip(struct iovec **iov, unsigned *n, size_t bytes)
{
	while (*n && bytes >= (*iov)->iov_len) {
		bytes -= (*iov)->iov_len;
		(*iov)++;
		(*n)--;
	}
	if (!bytes)
		return;
	assert(*n);
	(*iov)->iov_base = (uint8_t *)(*iov)->iov_base + bytes;
	(*iov)->iov_len -= bytes;
}

void iov_trim(struct iovec *iov, unsigned *n, size_t bytes)
{
	for (unsigned i = 0; i < *n; i++) {
		if (bytes <= iov[i].iov_len) {
			iov[i].iov_len = bytes;
			*n = bytes ? i + 1 : i;
			return;
		}
		bytes -= iov[i].iov_len;
	}
}

/* Calls @each for the pieces of [from, from + len), until it says no; returns the bytes seen. */
static size_t walk(const struct iovec *iov, unsigned n, size_t from, size_t len,
                   bool (*each)(uint8_t *p, size_t n, size_t done, void *arg), void *arg)
{
	size_t done = 0;

	for (unsigned i = 0; i < n && done < len; i++) {
		size_t m = iov[i].iov_len;

		if (from >= m) {
			from -= m;
			continue;
		}
		m = m - from < len - done ? m - from : len - done;
		if (!each((uint8_t *)iov[i].iov_base + from, m, done, arg))
			return done;
		done += m;
		from = 0;
	}
	return done;
}

static bool get(uint8_t *p, size_t n, size_t done, void *arg)
{
	memcpy((uint8_t *)arg + done, p, n);
	return true;
}

static bool put(uint8_t *p, size_t n, size_t done, void *arg)
{
	memcpy(p, *(const uint8_t **)arg + done, n);
	return true;
}

static bool zero(uint8_t *p, size_t n, size_t done, void *arg)
{
	memset(p, 0, n);
	return true;
}

static bool is_zero(uint8_t *p, size_t n, size_t done, void *arg)
{
	bool *all = arg;

	*all = !n || (!p[0] && !memcmp(p, p + 1, n - 1));
	return *all;
}

size_t iov_get(const struct iovec *iov, unsigned n, size_t from, void *buf, size_t len)
{
	return walk(iov, n, from, len, get, buf);
}

size_t iov_put(const struct iovec *iov, unsigned n, size_t from, const void *buf, size_t len)
{
	return walk(iov, n, from, len, put, &buf);
}

void iov_zero(const struct iovec *iov, unsigned n, size_t from, size_t len)
{
	walk(iov, n, from, len, zero, NULL);
}

bool iov_is_zero(const struct iovec *iov, unsigned n, size_t from, size_t len)
{
	bool all = true;

	walk(iov, n, from, len, is_zero, &all);
	return all;
}
