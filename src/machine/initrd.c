// SPDX-License-Identifier: GPL-2.0-or-later
#include "machine/initrd.h"

#include "base/log.h"
#include "machine/net.h"

#include <errno.h>
#include <stdio.h>

#define MAX_MODULES 32

static int write_initramfs(void *opaque, uint8_t *to, struct err *err)
{
	return initramfs_write(opaque, to, err);
}

/* In the order of loading; a module that the kernel has built in is no trouble. */
static void choose_modules(const struct config *cfg, const char *names[MAX_MODULES])
{
	unsigned n = 0;

	names[n++] = "pvpanic-pci"; /* so that we hear of a panic at once */
	names[n++] = "virtio_pci";
	if (cfg->virtio_console)
		names[n++] = "virtio_console";
	if (cfg->net.kind != NET_NONE)
		names[n++] = "virtio_net";
	names[n++] = "virtio-rng";
	names[n++] = "button"; /* the power button */
	names[n++] = "evdev";
	names[n] = NULL;
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

int initrd_make(const struct config *cfg, struct arch_image *im, struct initramfs **out, struct err *err)
{
	const char *names[MAX_MODULES];
	char orders[512], net[256];
	struct initramfs_config ic = {
		.kernel_version = arch_image_version(im)[0] ? arch_image_version(im) : NULL,
		.kernel_path = cfg->kernel,
		.modules_dir = cfg->modules_dir,
		.modules = names,
		.orders = orders,
	};
	struct arch_initrd rd = { .write = write_initramfs };
	int error;

	*out = NULL;
	if (!arch_image_is_linux(im))
		return 0;
	choose_modules(cfg, names);
	machine_net_orders(cfg, net, sizeof(net));
	snprintf(orders, sizeof(orders), "hostname %s\n%s", cfg->name, net);
	error = initramfs_new(&ic, out, err);
	if (error == -ENOENT)
		error = without_modules(cfg, &ic, out, err);
	if (error)
		return error;
	rd.size = initramfs_size(*out);
	rd.opaque = *out;
	arch_image_set_initrd(im, &rd);
	return 0;
}
