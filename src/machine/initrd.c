// SPDX-License-Identifier: GPL-2.0-or-later
#include "machine/initrd.h"

#include "base/bytes.h"
#include "base/log.h"
#include "machine/net.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_MODULES 32

/*
 * The root is only read where an overlay takes what is written, so the guest
 * may cache all of it. Elsewhere the host may write too: what is open is
 * cached, and looked at anew when it is opened.
 */
#define CACHE_READ  "cache=loose"
#define CACHE_WRITE "cache=mmap"

static int write_initramfs(void *opaque, uint8_t *to, struct err *err)
{
	return initramfs_write(opaque, to, err);
}

/* ext4's driver does for its elder brothers. */
static bool is_ext(const char *type)
{
	return !strncmp(type, "ext", 3);
}

/* In the order of loading; a module that the kernel has built in is no trouble. */
static void choose_modules(const struct config *cfg, const struct root *root, const char *names[MAX_MODULES])
{
	unsigned n = 0;

	names[n++] = "pvpanic-pci"; /* so that we hear of a panic at once */
	names[n++] = "virtio_pci";
	names[n++] = "virtio_console"; /* the host's commands, and hvc0 */
	if (cfg->nshares) {
		names[n++] = "9pnet_virtio";
		names[n++] = "9p";
	}
	if (cfg->overlay)
		names[n++] = "overlay";
	if (cfg->ndisks)
		names[n++] = "virtio_blk";
	for (unsigned i = 0; root->types[i]; i++)
		names[n++] = is_ext(root->types[i]) ? "ext4" : root->types[i];
	if (cfg->net.kind != NET_NONE)
		names[n++] = "virtio_net";
	if (cfg->vsock)
		names[n++] = "vmw_vsock_virtio_transport";
	names[n++] = "virtio-rng";
	names[n++] = "button"; /* the power button */
	names[n++] = "evdev";
	names[n] = NULL;
}

/* What this machine cannot do without. */
static bool is_needed(const struct config *cfg, const struct root *root, const char *module)
{
	if (cfg->disk_root &&
	    (!strcmp(module, "virtio_blk") || !strcmp(module, is_ext(root->type) ? "ext4" : root->type)))
		return true;
	if (cfg->command && !strcmp(module, "virtio_console"))
		return true;
	if (config_share_root(cfg) && (!strcmp(module, "9p") || !strcmp(module, "9pnet_virtio")))
		return true;
	return cfg->overlay && !strcmp(module, "overlay");
}

static int check_modules(const struct config *cfg, const struct root *root, const struct initramfs *r, struct err *err)
{
	const char *name;

	for (unsigned i = 0; (name = initramfs_unknown(r, i)); i++)
		if (is_needed(cfg, root, name))
			return err_set(err, -ENOENT, "kernel %s: it has no %s, neither built in nor as a module",
			               cfg->kernel, name);
	return 0;
}

static void add(struct bytes *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Out of memory shows at the end: the text then has no NUL. */
static void add(struct bytes *b, const char *fmt, ...)
{
	char *line;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vasprintf(&line, fmt, ap);
	va_end(ap);
	if (n < 0)
		return;
	(void)bytes_add(b, line, (size_t)n);
	free(line);
}

/* A word of an order: quoted, since a folder's name may have blanks in it. */
static void add_word(struct bytes *b, const char *word)
{
	add(b, " \"");
	for (; *word; word++) {
		if (*word == '"' || *word == '\\')
			add(b, "\\");
		if (*word == '\n')
			add(b, "\\n");
		else
			add(b, "%c", *word);
	}
	add(b, "\"");
}

static char *make_orders(const struct config *cfg, const struct root *root)
{
	struct bytes b = { 0 };
	char net[256];

	machine_net_orders(cfg, net, sizeof(net));
	add(&b, "hostname %s\nserve\n%s", cfg->name, net);
	if (config_share_root(cfg))
		add(&b, "root 9p:%s 9p %s,%s\n", cfg->share[0].tag, cfg->overlay ? CACHE_READ : CACHE_WRITE,
		    cfg->share[0].export.ro ? "ro" : "rw");
	if (cfg->disk_root)
		add(&b, "root %s %s %s\n", root->source, root->type, cfg->disk[0].opt.read_only ? "ro" : "rw");
	if (cfg->overlay)
		add(&b, "overlay\n");
	for (unsigned i = config_share_root(cfg); i < cfg->nshares; i++) {
		if (!cfg->share[i].at)
			continue;
		add(&b, "mount 9p:%s", cfg->share[i].tag);
		add_word(&b, cfg->share[i].at);
		add(&b, " 9p %s,%s\n", CACHE_WRITE, cfg->share[i].export.ro ? "ro" : "rw");
	}
	if (cfg->command)
		add(&b, "then serve\n");
	else if (cfg->switch_root || cfg->disk_root)
		add(&b, "then switch_root %s\n", cfg->switch_root ? cfg->switch_root : "");
	else if (config_share_root(cfg))
		add(&b, "then shell\n");
	if (!b.len || bytes_add(&b, "", 1)) {
		free(b.p);
		return NULL;
	}
	return b.p;
}

/*
 * A kernel without a modules directory may well have all it needs built in;
 * only a directory that the user has named must be there.
 */
static int without_modules(const struct config *cfg, struct initramfs_config *ic, struct initramfs **out,
                           struct err *err)
{
	static const char *const none[] = { NULL };

	if (cfg->modules_dir)
		return -ENOENT;
	log_line("going on without modules: %s", err->msg);
	ic->modules = none;
	return initramfs_new(ic, out, err);
}

int initrd_make(const struct config *cfg, const struct root *root, struct arch_image *im, struct initramfs **out,
                struct err *err)
{
	const char *names[MAX_MODULES];
	struct initramfs_config ic = {
		.kernel_version = arch_image_version(im)[0] ? arch_image_version(im) : NULL,
		.kernel_path = cfg->kernel,
		.modules_dir = cfg->modules_dir,
		.modules = names,
	};
	struct arch_initrd rd = { .write = write_initramfs };
	char *orders = make_orders(cfg, root);
	int error;

	if (!orders)
		return err_set(err, -ENOMEM, "out of memory");
	*out = NULL;
	choose_modules(cfg, root, names);
	ic.orders = orders;
	error = initramfs_new(&ic, out, err);
	if (error == -ENOENT)
		error = without_modules(cfg, &ic, out, err);
	if (!error)
		error = check_modules(cfg, root, *out, err);
	free(orders);
	if (error)
		return error;
	rd.size = initramfs_size(*out);
	rd.opaque = *out;
	arch_image_set_initrd(im, &rd);
	return 0;
}
