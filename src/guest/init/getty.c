// SPDX-License-Identifier: GPL-2.0-or-later
#include "guest/init/init.h"

#include <linux/magic.h>
#include <sys/statfs.h>
#include <unistd.h>

#define UNITS "/run/systemd/system"

/* The first of two places, as not every root has /lib in /usr; NULL: it is in neither. */
static const char *either(const char *a, const char *b)
{
	return !access(a, F_OK) ? a : !access(b, F_OK) ? b : NULL;
}

void getty_without_udev(void)
{
	const char *unit = either("/usr/lib/systemd/system/console-getty.service",
	                          "/lib/systemd/system/console-getty.service");
	struct statfs fs;

	if (!unit || either("/usr/lib/systemd/systemd-udevd", "/lib/systemd/systemd-udevd"))
		return;
	if (statfs("/run", &fs) || fs.f_type != TMPFS_MAGIC)
		return; /* the root's own, which this is not to change */
	mkdir_parents(UNITS "/getty.target.wants");
	if (symlink(unit, UNITS "/getty.target.wants/console-getty.service") ||
	    symlink("/dev/null", UNITS "/serial-getty@.service"))
		say("no login on the console: %s cannot be written", UNITS);
}
