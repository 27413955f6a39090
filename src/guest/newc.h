/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef GUEST_NEWC_H
#define GUEST_NEWC_H

#include <stdint.h>

/*
 * Writes a cpio archive, format "newc", into memory. With no buffer it only
 * counts: the same calls give the exact size first and the archive then. The
 * caller guarantees the size: a buffer too small is our own mistake (assert).
 *
 * Names have no leading slash, and directories come before what is in them.
 * All is owned by root and dated 1970, so that equal input gives equal bytes.
 */
struct newc {
	uint8_t *buf; /* NULL: count only */
	uint64_t len; /* of buf */
	uint64_t pos; /* written, or counted */
	uint32_t ino;
};

void newc_init(struct newc *w, uint8_t *buf, uint64_t len);
void newc_dir(struct newc *w, const char *name, unsigned mode);
void newc_symlink(struct newc *w, const char *name, const char *target);
void newc_chardev(struct newc *w, const char *name, unsigned mode, unsigned major, unsigned minor);

/* Returns where the caller puts the file's @size (< 4 GiB) bytes; NULL when only counting. */
uint8_t *newc_file(struct newc *w, const char *name, unsigned mode, uint64_t size);

/* The trailer, once, last. */
void newc_end(struct newc *w);

#endif
