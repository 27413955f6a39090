/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BASE_LIBRARY_H
#define BASE_LIBRARY_H

#include "base/err.h"

#include <stddef.h>

/*
 * Libraries that are loaded only when they are used: linked, each would cost
 * every VM its memory. Their functions are called through a struct of typed
 * pointers (`typeof(fn) *`), described by a table:
 *
 *	struct libfoo { typeof(foo_open) *open; };
 *	static const struct library_fn fns[] = { LIBRARY_FN(struct libfoo, open, foo_open), {} };
 */
struct library_fn {
	const char *name;
	size_t offset; /* of its pointer in the struct */
};
#define LIBRARY_FN(type, member, fn)                          \
	{                                                     \
		.name = #fn, .offset = offsetof(type, member) \
	}

struct library {
	const char *soname;  /* "libfoo.so.2" */
	const char *package; /* Debian's, for the message */
	const struct library_fn *fns;
};

/*
 * Loads @lib and fills the struct @fns; *@handle is for library_close().
 * -ENOENT when it is not there, -ENOSYS when it lacks a function.
 */
int library_open(const struct library *lib, void *fns, void **handle, struct err *err);
void library_close(void *handle); /* NULL is fine */

#endif
