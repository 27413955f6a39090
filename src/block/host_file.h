/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BLOCK_HOST_FILE_H
#define BLOCK_HOST_FILE_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* A regular file or block device of the host, open and locked, and what it is like. */
struct host_file {
	int fd;     /* for I/O as asked for: past the page cache if @direct */
	int cached; /* through the page cache; the same as @fd if that is too */
	bool is_device;
	bool can_discard;
	bool in_memory;            /* no disk below it: nothing to wait for */
	uint64_t size;             /* bytes, exactly */
	uint32_t block;            /* what the device writes at once: 512 to 4096 */
	uint32_t sector;           /* fallocate(2) wants multiples of it: 1 for files */
	uint32_t align, mem_align; /* what @fd demands of offsets and lengths, and of memory: 1 for anything */
};

/* On an error what is open stays so, for host_file_close(). */
int host_file_open(struct host_file *f, const char *path, bool write, bool direct, struct err *err);
void host_file_close(struct host_file *f); /* descriptors of -1 are fine */

/*
 * Descriptors of the same file for another thread. Each call on a descriptor
 * counts its users up and down, which threads that share one feel; and each has
 * a read-ahead of its own. Where they cannot be had, those of @f.
 */
struct host_fds {
	int fd, cached; /* as in struct host_file */
};
void host_file_again(const struct host_file *f, struct host_fds *fds);
void host_file_again_close(const struct host_file *f, const struct host_fds *fds);

#endif
