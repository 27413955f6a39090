/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef GUEST_MODULES_H
#define GUEST_MODULES_H

#include "base/err.h"

#include <stdbool.h>

/* Strings that the list owns. */
struct name_list {
	char **v;
	unsigned n;
};

int name_list_add(struct name_list *l, const char *name); /* copies; 0 or -ENOMEM */
bool name_list_has(const struct name_list *l, const char *name);
void name_list_free(struct name_list *l);

/* Which modules are wanted, and for which kernel; see struct initramfs_config. */
struct modules_query {
	const char *kernel_version; /* or NULL: only directories that do not depend on it */
	const char *kernel_path;    /* or NULL */
	const char *dir;            /* --modules, or NULL */
	const char *const *names;   /* modules or aliases, NULL-terminated */
};

struct modules {
	char *dir;                /* where they are; NULL when none was needed */
	struct name_list path;    /* .ko files, each once, in an order in which they load */
	struct name_list unknown; /* names that this kernel does not know at all */
};

/*
 * Finds the directory and resolves the names: hard dependencies and "pre" soft
 * dependencies before a module, "post" soft ones behind it. What is built into
 * the kernel is in neither list. The host's modprobe.d does not matter: it is
 * about another machine.
 *
 * -ENOENT when there is no directory, no modules.dep, or no libkmod; -EBADMSG
 * when an index is damaged; -ENOTSUP when this program was built without
 * libkmod. On error *@m is empty.
 */
int modules_find(const struct modules_query *q, struct modules *m, struct err *err);
void modules_free(struct modules *m);

#endif
