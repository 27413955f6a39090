/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef MACHINE_CONFIG_H
#define MACHINE_CONFIG_H

#include "machine/net_spec.h"

#include <stdbool.h>
#include <stdint.h>

#include "block/block.h"
#include "fs/p9.h"

struct guest_command;

#define CONFIG_SHARES_MAX 32
#define CONFIG_DISKS_MAX  64
/* Contexts that a guest may be for AF_VSOCK: 0 and 1 are reserved, 2 is the host, the last means any. */
#define CONFIG_MIN_CID 3
#define CONFIG_MAX_CID 0xfffffffeu

/* A disk of the guest's; the first one is vda. */
struct disk {
	const char *path;
	struct blk_options opt;
	unsigned queues;    /* 0: one for each vCPU, at most 8 */
	bool stop_on_error; /* pauses the machine instead of telling the guest */
	const char *serial; /* or NULL */
	uint32_t block;     /* what the guest takes for a sector; 0: 512 */
};

/* A folder of the host's, which the guest mounts by its tag. Strings are the command's. */
struct share {
	struct p9_export export;
	const char *tag;
	const char *at; /* where our init mounts it: the root is the first share, at "/"; NULL: the guest's business */
};

/* What the user asked for: plain data, filled in by a command, constant from then on. Strings are the command's. */
struct config {
	char name[65];
	bool named;              /* by the user, who must get that name */
	const char *kernel;      /* path */
	const char *initrd;      /* path, or NULL: made on the fly */
	const char *modules_dir; /* where the kernel's modules are, or NULL: looked for */
	const char *cmdline;     /* the whole of it */
	struct disk disk[CONFIG_DISKS_MAX];
	unsigned ndisks;
	bool disk_root; /* the root is on the first disk: look where */
	struct share share[CONFIG_SHARES_MAX];
	unsigned nshares;        /* those that our init mounts are there only with it */
	bool overlay;            /* what is written to the root stays in the guest's memory */
	const char *switch_root; /* the root's own init is to take over: NULL: no; "": wherever it is */
	uint64_t mem;            /* bytes */
	unsigned ncpus;
	const struct guest_command *command; /* what the machine is for, or NULL: it is for itself */
	bool verbose;
	bool no_reboot; /* a reset ends the VM */
	bool unpack;    /* a compressed kernel, before it is booted */
	bool hugepages;
	struct net_config net;
	uint32_t vsock;      /* the guest's context (CID); 0: there is no such device */
	const char *pcap;    /* file for what passes on the network, or NULL */
	bool virtio_console; /* hvc0 has the terminal, and ttyS0's output goes there too */
	uint64_t timeout;    /* ns, 0: none */
	uint64_t grace;      /* ns after a polite stop */
};

/* Is the root a share? */
static inline bool config_share_root(const struct config *c)
{
	return c->nshares && c->share[0].at && c->share[0].at[0] == '/' && !c->share[0].at[1];
}

#endif
