// SPDX-License-Identifier: GPL-2.0-or-later
#include "cmd/cmd.h"

#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#define NEWEST "/boot/vmlinuz-*"

/* The last of /boot's kernels in the order of their version numbers. */
static char *newest(void)
{
	char *best = NULL;
	glob_t g;

	if (!glob(NEWEST, 0, NULL, &g)) {
		for (size_t i = 0; i < g.gl_pathc; i++)
			if (!best || strverscmp(g.gl_pathv[i], best) > 0)
				best = g.gl_pathv[i];
		if (best)
			best = strdup(best);
	}
	globfree(&g);
	return best;
}

char *find_kernel(struct err *err)
{
	char running[128];
	const char *const list[] = { "arch/x86/boot/bzImage", "vmlinux", running };
	struct utsname u;
	char *found;

	uname(&u);
	snprintf(running, sizeof(running), "/boot/vmlinuz-%s", u.release);
	for (unsigned i = 0; i < sizeof(list) / sizeof(list[0]); i++)
		if (!access(list[i], F_OK))
			return strdup(list[i]);
	found = newest();
	if (!found)
		err_set(err, -ENOENT,
		        "no kernel found: looked at ./%s, ./%s, %s, " NEWEST "\n"
		        "name one with -k FILE, build one, or install your distribution's "
		        "(Debian: apt-get install linux-image-amd64)",
		        list[0], list[1], running);
	return found;
}
