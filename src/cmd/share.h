/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef CMD_SHARE_H
#define CMD_SHARE_H

#include "machine/config.h"

/* Folders of the host for the guest: what -d DIR, --9p and --rwdir say. Each returns 0 or an exit status, having said
 * why. */

/* --9p DIR,TAG[,ro][,map=none|squash|mapped] */
int share_9p(struct config *c, char *spec);

/* DIR[,ro][,cow][,map=…] as the root. */
int share_root(struct config *c, char *spec);

/* The host's own root, which nothing is written to. */
int share_host(struct config *c, bool rw);

/* --rwdir DIR: at the same place in the guest, and written to. */
int share_rwdir(struct config *c, const char *dir);

/* Where the directory @dir of the host is in the guest whose root is a share; "/" where it is not. The caller frees it.
 */
char *share_translate(const struct config *c, const char *dir);

/* Has the root an init of its own, as our init looks for it? */
bool share_has_init(const struct config *c);

#endif
