/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef TESTS_QCOW2FIX_H
#define TESTS_QCOW2FIX_H

#include "block/qcow2/create.h"
#include "logblk.h"

/*
 * Random operations on an image, and a model of what it must hold: per sector a
 * number that is written all over it; 0: zeroes. Misuse aborts.
 */

#define SECTOR      512u
#define OF_BACKING  0x80000000u /* | sector: what the image below has there */

#define FIX_NEED(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), abort()))

/* A state that a sector was told to be in. */
struct sector_event {
	uint32_t id;
	size_t began;   /* entries in the log then */
	size_t durable; /* the same, if it was durable when it ended; else SIZE_MAX */
	size_t ended;   /* by fix.clock; SIZE_MAX: it has not */
};

struct sector {
	uint32_t id;
	struct sector_event *event; /* with fix.history */
	unsigned nevents;
};

struct fix_flush {
	size_t began; /* by fix.clock */
	size_t ended; /* entries in the log then; SIZE_MAX: it has not */
};

struct fix {
	struct logblk *file;
	struct blk *b;
	uint64_t nsectors;
	struct sector *sector;
	bool history;
	struct fix_flush *flush; /* with history */
	size_t nflushes;
	pthread_mutex_t lock; /* of the flush list */
	_Atomic size_t clock;
	_Atomic uint32_t next_id;
	bool discards; /* use BLK_DISCARD; whole clusters of what reads as zero then */
	unsigned cluster;
	_Atomic unsigned failed; /* requests that ended in an error */
	bool may_fail;           /* then sectors may be either way; with a history it is known which ways */
};

/* An image that @c describes, on a new logblk; with OF_BACKING sectors below if c->backing is set. */
void fix_create(struct fix *f, const struct qcow2_create *c);
/* Before it is opened: so many clusters are leaked, so that little is missing to where a refcount table must grow. */
void fix_leak(struct fix *f, uint64_t clusters);
void fix_open(struct fix *f);            /* f->file is the image's afterwards */
struct logblk *fix_close(struct fix *f); /* the file, as the image left it */
void fix_free(struct fix *f);

/* A file of @sectors sectors to stand on; ends with unlink(). */
void fix_backing(char path[64], uint64_t sectors);

/*
 * @n random operations from @seed, up to @depth at once, on @threads loops with
 * a queue each. Reads are checked against the model.
 */
struct fix_mix {
	unsigned n, depth, threads, seed;
	unsigned max_sectors; /* of one operation; several threads: small ones */
	bool ring;            /* loops with one, where the host has them */
};
void fix_run(struct fix *f, const struct fix_mix *m);

/* The whole disk is as the model says. */
void fix_verify(struct fix *f);

/*
 * With history: @file, as a crash left it when the log had @at entries, has no
 * corruptions, and every sector holds what was made durable last or something
 * that was written after that.
 */
void fix_verify_crash(struct fix *f, struct logblk *file, size_t at);
/* The state that sectors are in now counts as durable. */
void fix_begin_history(struct fix *f);
/* Sector @i of @buf. */
bool sector_is(const uint8_t *buf, uint32_t id);
void sector_fill(uint8_t *buf, uint32_t id);

/* Our own check: no corruptions; @leaks may be. Prints what is wrong and aborts. */
void fix_check(struct logblk *file, bool leaks);
/* qemu-img's. False: it is not there. */
bool fix_qemu_check(struct logblk *file, bool leaks);
bool have_qemu_img(void);
/* Runs a shell command; aborts if it fails. */
void sh(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
int sh_status(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Opens @file as QCOW2; it belongs to *@out then. */
int fix_image_open(struct logblk *file, bool read_only, struct blk **out, struct err *err);

#endif
