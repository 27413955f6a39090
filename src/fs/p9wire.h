/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef FS_P9WIRE_H
#define FS_P9WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* The numbers of 9P2000.L. A reply's type is its request's, plus one. */
enum {
	P9_RLERROR = 7,
	P9_TSTATFS = 8,
	P9_TLOPEN = 12,
	P9_TLCREATE = 14,
	P9_TSYMLINK = 16,
	P9_TMKNOD = 18,
	P9_TRENAME = 20,
	P9_TREADLINK = 22,
	P9_TGETATTR = 24,
	P9_TSETATTR = 26,
	P9_TXATTRWALK = 30,
	P9_TXATTRCREATE = 32,
	P9_TREADDIR = 40,
	P9_TFSYNC = 50,
	P9_TLOCK = 52,
	P9_TGETLOCK = 54,
	P9_TLINK = 70,
	P9_TMKDIR = 72,
	P9_TRENAMEAT = 74,
	P9_TUNLINKAT = 76,
	P9_TVERSION = 100,
	P9_TAUTH = 102,
	P9_TATTACH = 104,
	P9_TFLUSH = 108,
	P9_TWALK = 110,
	P9_TREAD = 116,
	P9_TWRITE = 118,
	P9_TCLUNK = 120,
	P9_TREMOVE = 122,
};

#define P9_HEADER     7 /* size[4] type[1] tag[2] */
#define P9_ERROR_SIZE 11
#define P9_IO_HEADER  11 /* of Rread and Rreaddir: the header and count[4] */
#define P9_NOTAG      0xffffu
#define P9_NOFID      0xffffffffu
#define P9_NONUNAME   0xffffffffu
#define P9_MAX_WALK   16

/* qid types */
#define P9_QTDIR     0x80
#define P9_QTSYMLINK 0x02
#define P9_QTFILE    0x00

/* Tlopen and Tlcreate: Linux's values on x86, whatever the host is */
#define P9_DOTL_ACCMODE      03u
#define P9_DOTL_CREATE       0100u
#define P9_DOTL_EXCL         0200u
#define P9_DOTL_TRUNC        01000u
#define P9_DOTL_APPEND       02000u
#define P9_DOTL_DSYNC        010000u
#define P9_DOTL_DIRECTORY    0200000u
#define P9_DOTL_SYNC         04000000u

#define P9_DOTL_AT_REMOVEDIR 0x200u

/* Tgetattr */
#define P9_STATS_BASIC 0x7ffull
#define P9_STATS_BTIME 0x800ull

/* Tsetattr */
#define P9_SET_MODE      0x001u
#define P9_SET_UID       0x002u
#define P9_SET_GID       0x004u
#define P9_SET_SIZE      0x008u
#define P9_SET_ATIME     0x010u
#define P9_SET_MTIME     0x020u
#define P9_SET_CTIME     0x040u
#define P9_SET_ATIME_SET 0x080u
#define P9_SET_MTIME_SET 0x100u

/* Tlock */
#define P9_LOCK_RDLCK   0
#define P9_LOCK_WRLCK   1
#define P9_LOCK_UNLCK   2
#define P9_LOCK_SUCCESS 0
#define P9_LOCK_BLOCKED 1

struct qid {
	uint8_t type;
	uint32_t version;
	uint64_t path;
};

#define P9_QID_SIZE 13

/*
 * A place in a list of memory, to read a message from or to write one to. It
 * does not matter where the pieces are split. Each byte of the list is touched
 * once, so that nothing changes between a check and its use. What goes beyond
 * the end sets @bad and does nothing else; what is read then is zero.
 */
struct wire {
	const struct iovec *iov; /* what is left; the first @off bytes of iov[0] are behind us */
	unsigned n;
	size_t off, left;
	bool bad;
};

void wire_init(struct wire *w, const struct iovec *iov, unsigned n);
void wire_limit(struct wire *w, size_t left); /* as if the list ended after @left more bytes */

void wire_get(struct wire *w, void *buf, size_t len);
uint8_t wire_u8(struct wire *w);
uint16_t wire_u16(struct wire *w);
uint32_t wire_u32(struct wire *w);
uint64_t wire_u64(struct wire *w);
/*
 * A string, into @buf with a NUL. Its length, or -ENAMETOOLONG where that is
 * not below @size (it is skipped then), -EINVAL where the message ends first or
 * the string has a NUL in it.
 */
int wire_str(struct wire *w, char *buf, size_t size) __attribute__((warn_unused_result));

void wire_put(struct wire *w, const void *buf, size_t len);
void wire_put_u8(struct wire *w, uint8_t v);
void wire_put_u16(struct wire *w, uint16_t v);
void wire_put_u32(struct wire *w, uint32_t v);
void wire_put_u64(struct wire *w, uint64_t v);
void wire_put_str(struct wire *w, const char *s);
void wire_put_qid(struct wire *w, const struct qid *q);

void wire_skip(struct wire *w, size_t len);
/* The pieces of the next @len bytes (or of what is left) without going there. At most w->n. Returns how many. */
unsigned wire_pieces(const struct wire *w, size_t len, struct iovec *out);

#endif
