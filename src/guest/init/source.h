/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef GUEST_INIT_SOURCE_H
#define GUEST_INIT_SOURCE_H

#include <stddef.h>

/* How users name what they want mounted. Pure. */
enum source_kind {
	SOURCE_OTHER, /* nothing to look for: "tmpfs", a folder … */
	SOURCE_PATH,  /* /dev/X */
	SOURCE_DEVNO, /* 254:1, or fe01 as the kernel also takes it */
	SOURCE_LABEL,
	SOURCE_UUID,
	SOURCE_PARTUUID,
	SOURCE_PARTLABEL,
	SOURCE_9P,
	SOURCE_VIRTIOFS,
};

struct source {
	enum source_kind kind;
	char value[256];       /* without the prefix */
	unsigned major, minor; /* SOURCE_DEVNO */
	int partnroff;         /* SOURCE_PARTUUID: "/PARTNROFF=n" */
};

/* @fstype (may be NULL) makes a tag out of a plain word: root=TAG rootfstype=9p. */
void source_parse(const char *text, const char *fstype, struct source *out);

#endif
