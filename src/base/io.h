/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BASE_IO_H
#define BASE_IO_H

#include <stdint.h>

/* Whole reads and writes of files: 0 or -errno. A file that ends before @len bytes is -ENODATA. */
int read_at(int fd, void *buf, uint64_t len, uint64_t off);
int write_at(int fd, const void *buf, uint64_t len, uint64_t off);

/* As many descriptors as this process may give itself. Where that is refused, fewer will have to do. */
void io_raise_fd_limit(void);

#endif
