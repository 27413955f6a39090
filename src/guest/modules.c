// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Which modules, in which order
 *
 * How it works: libkmod answers two questions from depmod's files, which
 * modules a name or alias means and which hard dependencies a module has; we
 * walk. Before a module is listed its "pre" soft dependencies are walked, then
 * its hard ones, for they may have soft ones themselves. Each module is walked
 * once, so cycles of soft dependencies end. A module is then listed behind all
 * its hard dependencies, which libkmod gives in the order of loading: that
 * holds also where a soft dependency runs against a hard one.
 *
 * Soft dependencies are read from modules.softdep here: libkmod's function for
 * them stops at a module's first line, and btrfs has four.
 *
 * libkmod does not check its index files, so they are checked before
 * (modules_index.c), and it reports a dependency whose file is missing only to
 * its log: any error there becomes ours.
 */
#include "guest/modules.h"
#include "guest/file.h"
#include "base/library.h"
#include "guest/modules_impl.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

int name_list_add(struct name_list *l, const char *name)
{
	char **v = reallocarray(l->v, l->n + 1, sizeof(*v));

	if (!v)
		return -ENOMEM;
	l->v = v;
	v[l->n] = strdup(name);
	if (!v[l->n])
		return -ENOMEM;
	l->n++;
	return 0;
}

bool name_list_has(const struct name_list *l, const char *name)
{
	for (unsigned i = 0; i < l->n; i++)
		if (!strcmp(l->v[i], name))
			return true;
	return false;
}

void name_list_free(struct name_list *l)
{
	for (unsigned i = 0; i < l->n; i++)
		free(l->v[i]);
	free(l->v);
	*l = (struct name_list){ 0 };
}

void modules_free(struct modules *m)
{
	free(m->dir);
	name_list_free(&m->path);
	name_list_free(&m->unknown);
	*m = (struct modules){ 0 };
}

#ifdef HAVE_KMOD
#include <libkmod.h>

struct libkmod {
	typeof(kmod_new) *new;
	typeof(kmod_unref) *unref;
	typeof(kmod_set_log_fn) *set_log_fn;
	typeof(kmod_load_resources) *load_resources;
	typeof(kmod_list_next) *list_next;
	typeof(kmod_module_new_from_lookup) *lookup;
	typeof(kmod_module_get_module) *get_module;
	typeof(kmod_module_get_name) *get_name;
	typeof(kmod_module_get_path) *get_path;
	typeof(kmod_module_get_dependencies) *get_dependencies;
	typeof(kmod_module_unref) *module_unref;
	typeof(kmod_module_unref_list) *unref_list;
};

static const struct library_fn kmod_fns[] = {
	LIBRARY_FN(struct libkmod, new, kmod_new),
	LIBRARY_FN(struct libkmod, unref, kmod_unref),
	LIBRARY_FN(struct libkmod, set_log_fn, kmod_set_log_fn),
	LIBRARY_FN(struct libkmod, load_resources, kmod_load_resources),
	LIBRARY_FN(struct libkmod, list_next, kmod_list_next),
	LIBRARY_FN(struct libkmod, lookup, kmod_module_new_from_lookup),
	LIBRARY_FN(struct libkmod, get_module, kmod_module_get_module),
	LIBRARY_FN(struct libkmod, get_name, kmod_module_get_name),
	LIBRARY_FN(struct libkmod, get_path, kmod_module_get_path),
	LIBRARY_FN(struct libkmod, get_dependencies, kmod_module_get_dependencies),
	LIBRARY_FN(struct libkmod, module_unref, kmod_module_unref),
	LIBRARY_FN(struct libkmod, unref_list, kmod_module_unref_list),
	{},
};

static const struct library kmod_lib = { .soname = "libkmod.so.2", .package = "libkmod2", .fns = kmod_fns };

struct resolver {
	struct libkmod k;
	struct kmod_ctx *ctx;
	struct modules *out;
	struct name_list walked; /* names of modules */
	char *softdeps;          /* the text of modules.softdep, or NULL */
	char trouble[512];       /* libkmod's first error message */
};

static int walk(struct resolver *r, struct kmod_module *mod);

__attribute__((format(printf, 6, 0))) static void log_error(void *data, int priority, const char *file, int line,
                                                            const char *fn, const char *format, va_list args)
{
	struct resolver *r = data;

	if (priority > LOG_ERR || r->trouble[0])
		return;
	vsnprintf(r->trouble, sizeof(r->trouble), format, args);
	r->trouble[strcspn(r->trouble, "\n")] = 0;
}

static int list_path(struct resolver *r, const char *path)
{
	return name_list_has(&r->out->path, path) ? 0 : name_list_add(&r->out->path, path);
}

/* Calls @fn for each module of @list, which it frees. */
static int each(struct resolver *r, struct kmod_list *list, int (*fn)(struct resolver *r, struct kmod_module *mod))
{
	int error = 0;

	for (struct kmod_list *l = list; l && !error; l = r->k.list_next(list, l)) {
		struct kmod_module *mod = r->k.get_module(l);

		error = fn(r, mod);
		r->k.module_unref(mod);
	}
	r->k.unref_list(list);
	return error;
}

/* Returns how many modules the name means, or an error. */
static int walk_name(struct resolver *r, const char *name)
{
	struct kmod_list *list = NULL;
	int error = r->k.lookup(r->ctx, name, &list);

	/* A name that cannot be one, "a[b", is as unknown as any other. */
	if (error < 0)
		return error == -ENOMEM ? error : 0;
	if (!list)
		return 0;
	error = each(r, list, walk);
	return error < 0 ? error : 1;
}

/* " pre: a b post: c": walks the names of one of the two kinds. */
static int walk_softdep_line(struct resolver *r, char *line, const char *kind)
{
	char *save, *word;
	bool on = false;
	int error = 0;

	for (word = strtok_r(line, " \t", &save); word && error >= 0; word = strtok_r(NULL, " \t", &save)) {
		if (word[strlen(word) - 1] == ':')
			on = !strcmp(word, kind);
		else if (on)
			error = walk_name(r, word);
	}
	return error < 0 ? error : 0;
}

/* Walks the soft dependencies of one kind, "pre:" or "post:", of the module @name. */
static int walk_softdeps(struct resolver *r, const char *name, const char *kind)
{
	static const char word[] = "softdep ";
	const char *next = r->softdeps;
	size_t n = strlen(name);
	int error = 0;

	while (next && !error) {
		const char *line = next, *end = strchrnul(line, '\n');
		char *copy;

		next = *end ? end + 1 : NULL;
		if (strncmp(line, word, sizeof(word) - 1) != 0)
			continue;
		line += sizeof(word) - 1;
		if (strncmp(line, name, n) != 0 || line[n] != ' ')
			continue;
		copy = strndup(line + n, (size_t)(end - line) - n);
		error = copy ? walk_softdep_line(r, copy, kind) : -ENOMEM;
		free(copy);
	}
	return error;
}

static int list_one(struct resolver *r, struct kmod_module *mod)
{
	const char *path = r->k.get_path(mod);

	return path ? list_path(r, path) : 0; /* else it is built in */
}

static int walk_new(struct resolver *r, struct kmod_module *mod)
{
	const char *name = r->k.get_name(mod);
	int error = walk_softdeps(r, name, "pre:");

	if (!error)
		error = each(r, r->k.get_dependencies(mod), walk);
	if (!error)
		error = each(r, r->k.get_dependencies(mod), list_one);
	if (!error)
		error = list_one(r, mod);
	if (!error)
		error = walk_softdeps(r, name, "post:");
	return error;
}

static int walk(struct resolver *r, struct kmod_module *mod)
{
	const char *name = r->k.get_name(mod);

	if (name_list_has(&r->walked, name))
		return 0;
	if (name_list_add(&r->walked, name))
		return -ENOMEM;
	return walk_new(r, mod);
}

static int resolve_all(struct resolver *r, const char *const *names, struct err *err)
{
	for (; *names; names++) {
		int known = walk_name(r, *names);

		if (!known)
			known = name_list_add(&r->out->unknown, *names);
		if (r->trouble[0])
			return err_set(err, -EBADMSG, "%s: module %s: libkmod says: %s", r->out->dir, *names,
			               r->trouble);
		if (known < 0)
			return err_sys(err, known, "%s: module %s", r->out->dir, *names);
	}
	return 0;
}

/* No such file: no soft dependencies. */
static void load_softdeps(struct resolver *r)
{
	struct err ignored;
	uint64_t size;
	char *path;

	if (asprintf(&path, "%s/modules.softdep", r->out->dir) < 0)
		return;
	if (file_load(path, (uint8_t **)&r->softdeps, &size, &ignored) < 0)
		r->softdeps = NULL;
	free(path);
}

static int open_and_resolve(struct resolver *r, const char *const *names, struct err *err)
{
	static const char *const no_config[] = { NULL };
	int error;

	r->ctx = r->k.new(r->out->dir, no_config);
	if (!r->ctx)
		return err_set(err, -EINVAL, "%s: libkmod cannot use it", r->out->dir);
	r->k.set_log_fn(r->ctx, log_error, r);
	/* It may fail, on an empty index for instance: then libkmod reads the files again for each question. */
	(void)r->k.load_resources(r->ctx);
	r->trouble[0] = 0;
	error = resolve_all(r, names, err);
	r->k.unref(r->ctx);
	return error;
}

static int resolve(const char *const *names, struct modules *m, struct err *err)
{
	struct resolver r = { .out = m };
	void *handle;
	int error = modules_index_check(m->dir, err);

	if (error)
		return error;
	error = library_open(&kmod_lib, &r.k, &handle, err);
	if (error)
		return error;
	load_softdeps(&r);
	error = open_and_resolve(&r, names, err);
	free(r.softdeps);
	library_close(handle);
	name_list_free(&r.walked);
	return error;
}
#else
static int resolve(const char *const *names, struct modules *m, struct err *err)
{
	return err_set(err, -ENOTSUP, "module %s: this kvm was built without libkmod: give an initrd (-i)", names[0]);
}
#endif

int modules_find(const struct modules_query *q, struct modules *m, struct err *err)
{
	enum modules_kind kind = MODULES_NONE;
	int error;

	*m = (struct modules){ 0 };
	if (!q->names || !q->names[0])
		return 0;
	error = modules_dir_find(q, &m->dir, &kind, err);
	if (!error && kind == MODULES_INSTALLED) {
		error = resolve(q->names, m, err);
	} else if (!error) {
		error = kind == MODULES_TREE ? modules_tree_check(m->dir, q->names, &m->unknown, err) : 1;
		if (error > 0)
			error = modules_dir_remedy(m->dir, kind, err);
	}
	if (error)
		modules_free(m);
	return error;
}
