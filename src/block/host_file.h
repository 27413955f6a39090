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

#endif
