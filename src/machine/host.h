/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MACHINE_HOST_H
#define MACHINE_HOST_H

/* What this host can do for a virtual machine, as plain data. */

enum host_level {
	HOST_OK,
	HOST_WARN, /* something works less well, or not at all */
	HOST_FAIL, /* no Linux guest will run */
};

struct host_check {
	enum host_level level;
	const char *name; /* a constant */
	char found[256];
	char remedy[256]; /* what to do about it, "" where nothing */
};

#define HOST_MAX_CHECKS 48

struct host_report {
	unsigned n;
	struct host_check check[HOST_MAX_CHECKS];
};

/*
 * Looks at everything, in the order in which it matters; checks that need
 * /dev/kvm are left out where it cannot be used. Works without root and
 * changes nothing. May fork, and run a guest as arch_can_run_linux() does: at
 * most 10 s, and not beside a machine. Never fails: what it cannot find out is
 * a check that says so.
 */
void host_examine(struct host_report *out);

/* Appends a check. @remedy may be NULL; the texts are copied, and cut where too long. */
void host_add(struct host_report *r, enum host_level level, const char *name, const char *remedy, const char *fmt, ...)
        __attribute__((format(printf, 5, 6)));

/* The first check that keeps a Linux guest from running, or NULL. */
const struct host_check *host_obstacle(const struct host_report *r);

#endif
