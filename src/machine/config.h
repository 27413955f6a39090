/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MACHINE_CONFIG_H
#define MACHINE_CONFIG_H

#include "machine/net_spec.h"

#include <stdbool.h>
#include <stdint.h>

/* What the user asked for: plain data, filled in by a command, constant from then on. Strings are the command's. */
struct config {
	char name[65];
	bool named;              /* by the user, who must get that name */
	const char *kernel;      /* path */
	const char *initrd;      /* path, or NULL: made on the fly */
	const char *modules_dir; /* where the kernel's modules are, or NULL: looked for */
	const char *cmdline;     /* the whole of it */
	uint64_t mem;            /* bytes */
	unsigned ncpus;
	bool no_reboot; /* a reset ends the VM */
	bool hugepages;
	struct net_config net;
	const char *pcap;    /* file for what passes on the network, or NULL */
	bool virtio_console; /* hvc0 has the terminal, and ttyS0's output goes there too */
	uint64_t timeout;    /* ns, 0: none */
	uint64_t grace;      /* ns after a polite stop */
};

#endif
