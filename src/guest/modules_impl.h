/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What modules.c, modules_dir.c and modules_index.c share, and nobody else. */
#ifndef GUEST_MODULES_IMPL_H
#define GUEST_MODULES_IMPL_H

#include "guest/modules.h"

enum modules_kind {
	MODULES_NONE,      /* nothing of the kind */
	MODULES_INSTALLED, /* has modules.dep */
	MODULES_UNINDEXED, /* modules, but depmod never ran */
	MODULES_TREE,      /* a kernel's build tree */
};

/* The best directory for @q: *@path (the caller frees it) and what it is; an error that lists the places if none. */
int modules_dir_find(const struct modules_query *q, char **path, enum modules_kind *kind, struct err *err);

/* The error for a directory that is not MODULES_INSTALLED: says which command makes it so. */
int modules_dir_remedy(const char *path, enum modules_kind kind, struct err *err);

/*
 * For a build tree @dir: 0 if everything in @names is built in, or unknown,
 * which then goes to @unknown; 1 if one of them is a module.
 */
int modules_tree_check(const char *dir, const char *const *names, struct name_list *unknown, struct err *err);

/* Whether libkmod can walk @dir's index files without leaving them: 0 or -EBADMSG. */
int modules_index_check(const char *dir, struct err *err);

#endif
