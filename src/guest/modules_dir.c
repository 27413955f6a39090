// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Where a kernel's modules are
 *
 * How it works: the places are tried in order. The first with a modules.dep
 * wins; failing that, the first that could have one decides the error, which
 * names the command that is missing. With --modules only that place counts.
 *
 * A build tree never has modules.dep. Its lists of what is built in are text,
 * enough to see that nothing is needed from it: a kernel made for virtual
 * machines often has everything inside.
 */
#include "guest/file.h"
#include "guest/modules_impl.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TREE_MARK "include/config/kernel.release" /* every built tree has it, no installed one */

struct search {
	char *path; /* the best so far */
	enum modules_kind kind;
	char tried[512]; /* for the message */
};

static bool has(const char *dir, const char *name)
{
	char *path;
	bool yes;

	if (asprintf(&path, "%s/%s", dir, name) < 0)
		return false;
	yes = access(path, F_OK) == 0;
	free(path);
	return yes;
}

static enum modules_kind classify(const char *dir)
{
	if (has(dir, "modules.dep"))
		return MODULES_INSTALLED;
	if (has(dir, TREE_MARK))
		return MODULES_TREE;
	if (has(dir, "kernel/.") || has(dir, "modules.order"))
		return MODULES_UNINDEXED;
	return MODULES_NONE;
}

/* Tries BASE + REST + VERSION; a NULL version is left out. */
static void try(struct search *s, const char *base, const char *rest, const char *version)
{
	size_t n = strlen(s->tried);
	enum modules_kind kind;
	char *path, *real;

	if (s->kind == MODULES_INSTALLED || asprintf(&path, "%s%s%s", base, rest, version ? version : "") < 0)
		return;
	snprintf(s->tried + n, sizeof(s->tried) - n, "%s%s", n ? ", " : "", path);
	real = realpath(path, NULL);
	free(path);
	kind = real ? classify(real) : MODULES_NONE;
	/* What is only a clue never replaces an earlier clue. */
	if (kind == MODULES_INSTALLED || (kind != MODULES_NONE && s->kind == MODULES_NONE)) {
		free(s->path);
		s->path = real;
		s->kind = kind;
	} else {
		free(real);
	}
}

static void try_around_kernel(struct search *s, const struct modules_query *q)
{
	char *dir = q->kernel_path ? realpath(q->kernel_path, NULL) : NULL;

	if (!dir)
		return;
	*strrchr(dir, '/') = 0; /* "" for the root directory */
	if (q->kernel_version) {
		try(s, dir, "/../lib/modules/", q->kernel_version);
		try(s, dir, "/../usr/lib/modules/", q->kernel_version);
	}
	try(s, dir, "/", NULL);         /* /lib/modules/V/vmlinuz, and a tree's vmlinux */
	try(s, dir, "/../../..", NULL); /* arch/x86/boot/bzImage */
	free(dir);
}

int modules_dir_find(const struct modules_query *q, char **path, enum modules_kind *kind, struct err *err)
{
	const char *version = q->kernel_version;
	struct search s = { 0 };

	if (q->dir) {
		try(&s, q->dir, "", NULL);
		if (version) {
			try(&s, q->dir, "/lib/modules/", version);
			try(&s, q->dir, "/usr/lib/modules/", version);
		}
	} else {
		try_around_kernel(&s, q);
		if (version)
			try(&s, "/lib/modules/", version, NULL);
	}
	*path = s.path;
	*kind = s.kind;
	if (s.path)
		return 0;
	return err_set(err, -ENOENT, "no modules for kernel %s: looked at %s%s",
	               version ? version : "(unknown version)", s.tried[0] ? s.tried : "nothing",
	               q->dir ? "" : "; --modules DIR names another place");
}

/* depmod takes PREFIX/lib/modules/VERSION apart. */
static int depmod_remedy(const char *path, struct err *err)
{
	static const char mid[] = "/lib/modules/";
	const char *version = strrchr(path, '/') + 1;
	size_t n = (size_t)(version - path), m = sizeof(mid) - 1;

	if (n < m || strncmp(version - m, mid, m) != 0)
		return err_set(err, -ENOENT,
		               "%s: no modules.dep: put it at PREFIX/lib/modules/%s and run: depmod -b PREFIX %s", path,
		               version, version);
	if (n == m)
		return err_set(err, -ENOENT, "%s: no modules.dep: run: depmod %s", path, version);
	return err_set(err, -ENOENT, "%s: no modules.dep: run: depmod -b %.*s %s", path, (int)(n - m), path, version);
}

int modules_dir_remedy(const char *path, enum modules_kind kind, struct err *err)
{
	if (kind == MODULES_TREE)
		return err_set(
		        err, -ENOENT,
		        "%s: a build tree has no modules.dep: run: make -C %s modules_install INSTALL_MOD_PATH=DIR "
		        "(where depmod is), and give --modules DIR",
		        path, path);
	return depmod_remedy(path, err);
}

static char plain(char c)
{
	return c == '-' ? '_' : c;
}

/* Whether @entry ("kernel/fs/9p/9p.ko", "fs/9p/9p.o") is of the module @name. */
static bool is_module(const char *entry, size_t len, const char *name)
{
	const char *slash = memrchr(entry, '/', len), *dot;

	if (slash) {
		len -= (size_t)(slash + 1 - entry);
		entry = slash + 1;
	}
	dot = memchr(entry, '.', len);
	if (dot)
		len = (size_t)(dot - entry);
	for (size_t i = 0; i < len; i++)
		if (plain(entry[i]) != plain(name[i]))
			return false;
	return !name[len];
}

/* "9p.alias=fs-9p" */
static bool is_alias(const char *entry, size_t len, const char *name)
{
	const char *eq = memmem(entry, len, ".alias=", 7);
	char pattern[256];

	if (!eq)
		return false;
	snprintf(pattern, sizeof(pattern), "%.*s", (int)(len - (size_t)(eq + 7 - entry)), eq + 7);
	return fnmatch(pattern, name, 0) == 0;
}

/* A tree's file of entries that end with @sep. */
struct entries {
	uint8_t *data;
	uint64_t size;
	char sep;
	bool (*is)(const char *entry, size_t len, const char *name);
};

static bool entries_have(const struct entries *e, const char *name)
{
	const char *p = (const char *)e->data, *end = p + e->size, *next;

	for (; p < end; p = next + 1) {
		next = memchr(p, e->sep, (size_t)(end - p));
		if (!next)
			next = end;
		if (next > p && e->is(p, (size_t)(next - p), name))
			return true;
	}
	return false;
}

/* A file that is not there, or empty, has no entries. */
static void entries_load(struct entries *e, const char *dir, const char *file)
{
	struct err ignored;
	char *path;

	if (asprintf(&path, "%s/%s", dir, file) < 0)
		return;
	if (file_load(path, &e->data, &e->size, &ignored) < 0)
		e->size = 0;
	free(path);
}

int modules_tree_check(const char *dir, const char *const *names, struct name_list *unknown, struct err *err)
{
	struct entries builtin = { .sep = '\n', .is = is_module };
	struct entries alias = { .sep = 0, .is = is_alias };
	struct entries order = { .sep = '\n', .is = is_module };
	int result = 0;

	entries_load(&builtin, dir, "modules.builtin");
	entries_load(&alias, dir, "modules.builtin.modinfo");
	entries_load(&order, dir, "modules.order");
	for (; *names && !result; names++) {
		if (entries_have(&builtin, *names) || entries_have(&alias, *names))
			continue;
		/* A module's aliases are in its .ko only, but for a file system the name is enough. */
		if (entries_have(&order, !strncmp(*names, "fs-", 3) ? *names + 3 : *names))
			result = 1;
		else
			result = name_list_add(unknown, *names);
	}
	free(builtin.data);
	free(alias.data);
	free(order.data);
	return result < 0 ? err_sys(err, result, "%s", dir) : result;
}
