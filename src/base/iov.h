/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BASE_IOV_H
#define BASE_IOV_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

/* Lists of memory. What changes a list changes the caller's array. */

size_t iov_len(const struct iovec *iov, unsigned n);
void iov_skip(struct iovec **iov, unsigned *n, size_t bytes); /* the first @bytes, which there are, are gone */
void iov_trim(struct iovec *iov, unsigned *n, size_t bytes);  /* at most the first @bytes stay */

/* Between the list, @from bytes after its beginning, and @buf; as far as the list goes. Returns how many. */
size_t iov_get(const struct iovec *iov, unsigned n, size_t from, void *buf, size_t len);
size_t iov_put(const struct iovec *iov, unsigned n, size_t from, const void *buf, size_t len);

/* The list from @from on, for @len bytes at most: makes it zero; is it? */
void iov_zero(const struct iovec *iov, unsigned n, size_t from, size_t len);
bool iov_is_zero(const struct iovec *iov, unsigned n, size_t from, size_t len);

#endif
