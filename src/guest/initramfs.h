/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef GUEST_INITRAMFS_H
#define GUEST_INITRAMFS_H

#include "base/err.h"

#include <stdint.h>

/*
 * An initramfs made on the fly: our init (src/guest/init), its orders, and the
 * kernel modules that the machine's devices and root need, dependencies first.
 * It exists as a list of pieces, not as one buffer: initramfs_write() puts it
 * together where the guest will find it (cpio "newc", uncompressed;
 * Documentation/driver-api/early-userspace/buffer-format.rst).
 */
struct initramfs;

struct initramfs_config {
	const char *kernel_version; /* "6.1.0-9-amd64": which modules fit; NULL when the kernel does not say */
	const char *kernel_path;    /* modules are looked for around it; may be NULL */
	const char *modules_dir;    /* the user's --modules, or NULL */
	const char *const *modules; /* names or aliases that are needed, NULL-terminated, in the order of loading */
	const char *orders;         /* the text of /kvm/orders behind the modules, or NULL; see docs/init.md */
};

/*
 * Finds everything; unpacks compressed modules. A module that is built into the
 * kernel is left out, and so is one that this kernel does not know at all: see
 * initramfs_unknown(). With no modules asked for, nothing is looked for.
 *
 * -ENOENT where there is no modules directory or no modules.dep (the text names
 * the command that makes it), or no libkmod (the text names the package);
 * -EBADMSG for a damaged index or compressed module.
 */
int initramfs_new(const struct initramfs_config *cfg, struct initramfs **out, struct err *err);
void initramfs_free(struct initramfs *r); /* NULL is fine */

/*
 * The @i-th name that this kernel does not know, neither as a module nor as
 * built in; NULL behind the last. What that means is the caller's to say: no
 * rng driver is nothing to talk about, no driver for the root is an error.
 */
const char *initramfs_unknown(const struct initramfs *r, unsigned i);

/* Bytes that initramfs_write() writes. */
uint64_t initramfs_size(const struct initramfs *r);

/* Writes the archive to @to, initramfs_size() bytes. Reads module files: 0 or -errno with a text. */
int initramfs_write(const struct initramfs *r, uint8_t *to, struct err *err);

#endif
