/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef FS_P9_H
#define FS_P9_H

#include "base/err.h"
#include "base/loop.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

/*
 * A 9P2000.L server for one directory of the host (Linux: include/net/9p/9p.h
 * and the protocol's description in diod's protocol.md). It knows nothing of
 * virtio: messages come as lists of memory, and replies go into lists of memory.
 * The client is hostile: no message makes the server leave the directory,
 * crash, block or hold more than P9_MAX_FIDS descriptors (or all but 256 of those
 * that the process may have, where that is less).
 *
 * Everything here runs on the loop that was given to p9_new().
 */

#define P9_MAX_IOV  256     /* pieces of a message or of the room for its reply */
#define P9_MAX_FIDS 262144u /* also: descriptors, of all servers together */

enum p9_map {
	P9_MAP_NONE,   /* ids of files are the host's */
	P9_MAP_SQUASH, /* root and the user that runs us both show as 0, and 0 means that user */
	P9_MAP_MAPPED, /* owner, mode and device number in user.virtfs.* attributes, as QEMU's
	                  security_model=mapped-xattr */
};

struct p9_export {
	const char *dir; /* must be a directory; the string is the caller's */
	bool ro;         /* every change is refused: EROFS */
	enum p9_map map;
};

struct p9;

/*
 * A message and where its reply goes. The caller owns it and everything it
 * names from p9_submit() until it is finished.
 */
struct p9_req {
	struct iovec *out; /* the client's message; consumed */
	unsigned nout;
	struct iovec *in; /* room for the reply; consumed */
	unsigned nin;
	/*
	 * Finished, with @len bytes of reply; 0: no reply, it was flushed or the
	 * message is beyond reply. Never called from inside p9_submit(); it may
	 * call everything here, p9_free() too.
	 */
	void (*done)(struct p9_req *r, uint32_t len);
	struct p9_req *next; /* the server's */
	uint32_t len;        /* the server's */
};

/* Opens the directory. The error names it. */
int p9_new(const struct p9_export *ex, struct loop *loop, struct p9 **out, struct err *err);
/* Forgets every request: none is finished after this. NULL is fine. Never waits, even if a worker hangs. */
void p9_free(struct p9 *p);

/*
 * Takes a message: returns the length of the reply (> 0) if that is there
 * already, which it is for whatever the host can do without waiting; else 0,
 * and @r->done is called later. -EINVAL: no message at all (too short, a size
 * that is not its own, no room for an error): the caller gives up on the client.
 */
int p9_submit(struct p9 *p, struct p9_req *r) __attribute__((warn_unused_result));

/* As a new connection begins: all fids and locks are released, every request is forgotten (not finished). Never waits.
 */
void p9_reset(struct p9 *p);

/*
 * While it is held no request that is on its way is finished, and of what is the
 * client's nothing is read or written. What workers have done meanwhile is told
 * once it is let go. Submit nothing to a server that is held.
 */
void p9_hold(struct p9 *p, bool on);

#endif
