/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef P9FIX_H
#define P9FIX_H

#include "p9client.h"

#include <limits.h>

/* A share on a directory of its own, TOP/share, with a server and a client; fid 0 is its root. */
struct p9fix {
	char top[64];
	int topfd, dirfd;
	unsigned fds; /* open before the server was there */
	struct loop *loop;
	struct p9 *p9;
	struct p9c c;
};

/* The test skips or fails if it cannot be. @dir: where to make TOP; NULL: /tmp. */
struct p9fix *p9fix_new(const char *dir, enum p9_map map, bool ro);
void p9fix_again(struct p9fix *f, enum p9_map map, bool ro); /* another server for the same directory */
void p9fix_stop(struct p9fix *f);                            /* the server, its loop and the client go */
void p9fix_end(struct p9fix *f);  /* no descriptor is left over, once the workers have ended; removes the directory */
void p9fix_free(struct p9fix *f); /* both */
unsigned p9fix_fds(void);
void p9fix_wait_fds(unsigned n);                                     /* until @n are open; fails if they never are */
void p9fix_put(struct p9fix *f, const char *name, const char *text); /* a file, relative to TOP */

#endif
