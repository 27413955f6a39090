/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef P9CLIENT_H
#define P9CLIENT_H

#include "base/loop.h"
#include "fs/p9.h"
#include "fs/p9wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A client of the 9p server. Messages and the room for replies are cut into
 * random pieces, each in memory of its own, so that a sanitizer sees a step
 * beyond one. What the server should never do ends the test with abort().
 *
 * Formats: b h u numbers of 1, 2, 4 bytes (unsigned), q of 8 (uint64_t), s a
 * string, d data (pointer, size_t).
 */

#define P9C_MAX (1u << 20)

struct p9c {
	struct p9 *p9;
	struct loop *loop;
	uint16_t tag;
	uint32_t room; /* for replies */
	unsigned seed;
	uint8_t *reply; /* the last one, joined */
	struct wire r;  /* its body, to be read */
	struct iovec iov;
};

struct p9c_req {
	struct p9_req req;
	struct p9c *c;
	struct iovec out[P9_MAX_IOV], in[P9_MAX_IOV];
	void *pieces[2 * P9_MAX_IOV];
	unsigned npieces;
	bool done;
	uint32_t len;
	uint8_t type;
	uint16_t tag;
};

void p9c_init(struct p9c *c, struct p9 *p9, struct loop *loop);
void p9c_exit(struct p9c *c);

/* Builds a message in @buf (P9C_MAX bytes): its size. */
size_t p9c_build(uint8_t *buf, uint8_t type, uint16_t tag, const char *format, ...);

/* Sends @n bytes as they are. Returns what p9_submit() did; the request stays until p9c_free(). */
int p9c_submit(struct p9c *c, struct p9c_req **out, const void *msg, size_t n);
/* Sends a message: finished already, or later. */
struct p9c_req *p9c_send(struct p9c *c, uint8_t type, const char *format, ...);
/* Waits until it is finished, takes the reply (0 or -errno; -ECANCELED: none) and frees it. */
int p9c_wait(struct p9c_req *r);
void p9c_free(struct p9c_req *r);

/* Sends a message and waits: 0 with the reply's body in c->r, or -errno. */
int p9c_call(struct p9c *c, uint8_t type, const char *format, ...);

struct p9c_attr {
	uint64_t valid;
	struct qid qid;
	uint32_t mode, uid, gid;
	uint64_t nlink, rdev, size, blksize, blocks, atime, atime_ns, mtime, mtime_ns, ctime, ctime_ns, btime, btime_ns;
};

struct qid p9c_qid(struct p9c *c);
int p9c_start(struct p9c *c, uint32_t msize, uint32_t fid, uint32_t uid); /* version and attach */
int p9c_walk(struct p9c *c, uint32_t fid, uint32_t newfid,
             const char *path); /* names between slashes; all or -ENOENT */
int p9c_getattr(struct p9c *c, uint32_t fid, struct p9c_attr *a);
int p9c_open(struct p9c *c, uint32_t fid, uint32_t flags);
int p9c_create(struct p9c *c, uint32_t dirfid, uint32_t newfid, const char *name, uint32_t flags, uint32_t mode);
int p9c_read(struct p9c *c, uint32_t fid, uint64_t off, void *buf, uint32_t n);
int p9c_write(struct p9c *c, uint32_t fid, uint64_t off, const void *buf, uint32_t n);
int p9c_clunk(struct p9c *c, uint32_t fid);
int p9c_setxattr(struct p9c *c, uint32_t fid, const char *name, const void *v, uint32_t n, uint32_t flags);
int p9c_getxattr(struct p9c *c, uint32_t fid, const char *name, void *v, uint32_t n);

#endif
