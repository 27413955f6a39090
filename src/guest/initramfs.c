// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The initramfs made on the fly
 *
 * How it works: initramfs_new() makes a list of module files with their sizes,
 * and the text of the orders. compose() is the only place that knows what the
 * archive consists of; it runs once to count the bytes and once to write them
 * (see newc.h), so the size is exact. A plain .ko is read straight to its place
 * in the archive, which is guest memory; a compressed one was unpacked by
 * initramfs_new() and is kept until initramfs_free().
 *
 * A module file that changes size in between is an error, not a bad archive.
 */
#include "guest/initramfs.h"
#include "base/log.h"
#include "guest/file.h"
#include "guest/initramfs_unpack.h"
#include "guest/modules.h"
#include "guest/newc.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODULES_DIR "kvm/modules"

extern const uint8_t guest_init_start[], guest_init_end[]; /* src/guest/init, embedded by an .S file */

struct piece {
	const char *path; /* on the host; owned by modules */
	char *name;       /* in the archive */
	uint64_t size;
	uint8_t *data; /* of a compressed module; NULL: read @path */
};

struct initramfs {
	struct modules modules;
	struct piece *piece; /* one for each of modules.path */
	unsigned npieces;
	char *orders;
	size_t orders_len;
	uint64_t size;
};

static int put_module(const struct piece *p, struct newc *w, struct err *err)
{
	uint8_t *to = newc_file(w, p->name, 0600, p->size);

	if (!to)
		return 0;
	if (!p->data)
		return file_read(p->path, to, p->size, err);
	memcpy(to, p->data, p->size);
	return 0;
}

static void put_file(struct newc *w, const char *name, unsigned mode, const void *data, size_t size)
{
	uint8_t *to = newc_file(w, name, mode, size);

	if (to && size)
		memcpy(to, data, size);
}

static int compose(const struct initramfs *r, struct newc *w, struct err *err)
{
	int error = 0;

	newc_dir(w, "dev", 0755);
	newc_chardev(w, "dev/console", 0600, 5, 1);
	newc_dir(w, "proc", 0555);
	newc_dir(w, "sys", 0555);
	put_file(w, "init", 0755, guest_init_start, (uintptr_t)guest_init_end - (uintptr_t)guest_init_start);
	newc_dir(w, "kvm", 0755);
	put_file(w, "kvm/orders", 0600, r->orders, r->orders_len);
	newc_dir(w, MODULES_DIR, 0755);
	for (unsigned i = 0; i < r->npieces && !error; i++)
		error = put_module(&r->piece[i], w, err);
	newc_end(w);
	return error;
}

static int add_piece(struct initramfs *r, const char *path, struct err *err)
{
	struct piece *p = &r->piece[r->npieces++];
	const char *base = strrchr(path, '/');

	p->path = path;
	base = base ? base + 1 : path;
	if (asprintf(&p->name, MODULES_DIR "/%.*s", (int)unpack_stem(base), base) < 0) {
		p->name = NULL;
		return err_sys(err, -ENOMEM, "%s", path);
	}
	return unpack_wanted(path) ? unpack_file(path, &p->data, &p->size, err) : file_size(path, &p->size, err);
}

static int add_pieces(struct initramfs *r, struct err *err)
{
	const struct name_list *l = &r->modules.path;
	int error = 0;

	if (!l->n)
		return 0;
	r->piece = calloc(l->n, sizeof(*r->piece));
	if (!r->piece)
		return err_sys(err, -ENOMEM, "initramfs");
	for (unsigned i = 0; i < l->n && !error; i++)
		error = add_piece(r, l->v[i], err);
	return error;
}

static int make_orders(struct initramfs *r, const struct initramfs_config *cfg, struct err *err)
{
	FILE *f = open_memstream(&r->orders, &r->orders_len);

	if (!f)
		return err_sys(err, -errno, "initramfs");
	for (unsigned i = 0; i < r->npieces; i++)
		fprintf(f, "module /%s\n", r->piece[i].name);
	if (cfg->orders)
		fputs(cfg->orders, f);
	return fclose(f) ? err_sys(err, -ENOMEM, "initramfs") : 0;
}

static int build(struct initramfs *r, const struct initramfs_config *cfg, struct err *err)
{
	struct modules_query q = { .kernel_version = cfg->kernel_version,
		                   .kernel_path = cfg->kernel_path,
		                   .dir = cfg->modules_dir,
		                   .names = cfg->modules };
	int error = modules_find(&q, &r->modules, err);
	struct newc w;

	if (!error)
		error = add_pieces(r, err);
	if (!error)
		error = make_orders(r, cfg, err);
	if (error)
		return error;
	newc_init(&w, NULL, 0);
	error = compose(r, &w, err);
	r->size = w.pos;
	return error;
}

int initramfs_new(const struct initramfs_config *cfg, struct initramfs **out, struct err *err)
{
	struct initramfs *r = calloc(1, sizeof(*r));
	int error;

	*out = NULL;
	if (!r)
		return err_sys(err, -ENOMEM, "initramfs");
	error = build(r, cfg, err);
	if (error) {
		initramfs_free(r);
		return error;
	}
	if (r->npieces)
		log_verbose("initramfs: %u modules from %s, %llu KiB", r->npieces, r->modules.dir,
		            (unsigned long long)r->size >> 10);
	*out = r;
	return 0;
}

void initramfs_free(struct initramfs *r)
{
	if (!r)
		return;
	for (unsigned i = 0; i < r->npieces; i++) {
		free(r->piece[i].name);
		free(r->piece[i].data);
	}
	free(r->piece);
	free(r->orders);
	modules_free(&r->modules);
	free(r);
}

const char *initramfs_unknown(const struct initramfs *r, unsigned i)
{
	return i < r->modules.unknown.n ? r->modules.unknown.v[i] : NULL;
}

uint64_t initramfs_size(const struct initramfs *r)
{
	return r->size;
}

int initramfs_write(const struct initramfs *r, uint8_t *to, struct err *err)
{
	struct newc w;

	newc_init(&w, to, r->size);
	return compose(r, &w, err);
}
