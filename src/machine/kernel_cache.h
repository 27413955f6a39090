/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MACHINE_KERNEL_CACHE_H
#define MACHINE_KERNEL_CACHE_H

#include "base/err.h"

#include <stdint.h>

/*
 * Kernels that were unpacked once: in $XDG_CACHE_HOME/kvm where that directory
 * is ours, for root in /var/cache/kvm, else in ~/.cache/kvm.
 */
struct kcache {
	int fd; /* of the directory */
	char *path;
	char boot[40]; /* the host's boot id, with NULs behind it */
};

int kcache_open(struct kcache *c, struct err *err);
void kcache_close(struct kcache *c);

/* What a kernel was unpacked from: a file as it is now, and where in it. */
struct kcache_key {
	uint64_t dev, ino, size;
	uint64_t mtime, mtime_ns, ctime, ctime_ns;
	uint64_t offset, len;
};

/* Fills in what is to be known of the file @fd; 0 or -errno. */
int kcache_key(int fd, uint64_t offset, uint64_t len, struct kcache_key *key);

/* Returns a descriptor of the unpacked kernel, whose first @size bytes are it; -ENOENT or -ESTALE: there is none. */
int kcache_find(const struct kcache *c, const struct kcache_key *key, uint64_t *size);

/* 0: @size bytes can be kept, as far as can be told before they are made. */
int kcache_may_keep(const struct kcache *c, uint64_t size, struct err *err);

/*
 * Writes an unpacked kernel and keeps it, if that is safe. Returns a descriptor
 * as kcache_find() does, in any case.
 */
int kcache_put(const struct kcache *c, const struct kcache_key *key, const uint8_t *data, uint64_t size,
               struct err *err);

#endif
