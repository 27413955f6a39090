// SPDX-License-Identifier: GPL-2.0-or-later
#include "guest/init/init.h"
#include "guest/init/plan.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * How it works
 *
 * The host has put the modules in order, so each is one finit_module(). What
 * the kernel's command line says about a module ("loop.max_loop=4") follows
 * the order's own parameters and so wins, as it does with modprobe. A
 * compressed file goes to the kernel as it is; kernels before 5.17, or without
 * CONFIG_MODULE_DECOMPRESS, do not take it.
 */
#define INIT_COMPRESSED_FILE 4 /* MODULE_INIT_COMPRESSED_FILE, <linux/module.h> since 5.17 */

static bool is_compressed(int fd)
{
	static const struct {
		const char *magic;
		size_t len;
	} table[] = { { "\x1f\x8b", 2 },
		      { "\xfd"
		        "7zXZ",
		        6 },
		      { "\x28\xb5\x2f\xfd", 4 } };
	char head[6] = "";

	if (pread(fd, head, sizeof(head), 0) < 0)
		return false;
	for (unsigned i = 0; i < sizeof(table) / sizeof(*table); i++)
		if (!memcmp(head, table[i].magic, table[i].len))
			return true;
	return false;
}

/* "/lib/modules/virtio-blk.ko.xz" is virtio-blk. */
static void module_name(const char *file, char *name, size_t len)
{
	const char *slash = strrchr(file, '/'), *base = slash ? slash + 1 : file, *dot = strchr(base, '.');

	snprintf(name, len, "%.*s", dot ? (int)(dot - base) : (int)strlen(base), base);
}

static const char *meaning(int error, bool compressed)
{
	if (compressed && (error == EOPNOTSUPP || error == EINVAL))
		return "this kernel does not decompress modules (CONFIG_MODULE_DECOMPRESS): give it uncompressed";
	switch (error) {
	case ENOENT: return "not there, or it lacks a symbol: is the module it depends on loaded before it?";
	case ENOEXEC: return "made for another kernel, or not a module";
	case ENODEV: return "its device is not there";
	case EPERM: return "this kernel loads no modules (module_blacklist=, modules_disabled?)";
	case EKEYREJECTED: return "not signed for this kernel";
	case ENOSYS: return "this kernel has no modules (CONFIG_MODULES)";
	default: return strerror(error);
	}
}

static void load(const struct order_module *m, const char *cmdline)
{
	char name[128], params[2048], user[1024];
	bool compressed;
	int fd = open(m->file, O_RDONLY | O_CLOEXEC);

	if (fd < 0) {
		say("module %s: %s", m->file, strerror(errno));
		return;
	}
	module_name(m->file, name, sizeof(name));
	cmdline_params(cmdline, name, user, sizeof(user));
	snprintf(params, sizeof(params), "%s%s%s", m->params, *user ? " " : "", user);
	compressed = is_compressed(fd);
	if (syscall(SYS_finit_module, fd, params, compressed ? INIT_COMPRESSED_FILE : 0) && errno != EEXIST)
		say("module %s: %s", m->file, meaning(errno, compressed));
	close(fd);
}

void modules_load(const struct plan *p)
{
	char *cmdline = p->nmodules ? slurp("/proc/cmdline") : NULL;

	for (unsigned i = 0; i < p->nmodules; i++)
		load(&p->module[i], cmdline ? cmdline : "");
	free(cmdline);
}
