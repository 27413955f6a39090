/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef GUEST_INIT_PLAN_H
#define GUEST_INIT_PLAN_H

#include <stdbool.h>
#include <stddef.h>

/*
 * What init is to do: the orders (docs/init.md) with the kernel's command line
 * laid over them. Pure text work, no system calls; complaints go to say().
 * All strings point into the two texts, which are cut up in place and must
 * outlive the plan.
 */
#define PLAN_MODULES 256
#define PLAN_MOUNTS  64
#define PLAN_IPS     16
#define PLAN_ENVS    256

#define ROOT_WAIT_S  10
#define WAIT_FOREVER (-1)

enum then { THEN_UNSET, THEN_SWITCH_ROOT, THEN_SHELL, THEN_RUN, THEN_SERVE, THEN_POWEROFF, THEN_REBOOT };

struct order_module {
	char *file;
	char *params; /* the rest of the line as it is; may be "" */
};

struct order_mount {
	char *source;
	char *dir;     /* not used for the root */
	char *fstype;  /* NULL or "auto": find out; may be a list a,b,c */
	char *options; /* NULL: none */
};

struct order_ip {
	char *iface; /* NULL: the first Ethernet interface */
	char *addr;
	int prefix;
	char *gateway; /* NULL: none */
	char *dns[2];  /* NULL: none */
};

struct plan {
	struct order_module module[PLAN_MODULES];
	unsigned nmodules;
	struct order_mount mount[PLAN_MOUNTS];
	unsigned nmounts;
	struct order_ip ip[PLAN_IPS];
	unsigned nips;
	char *env[PLAN_ENVS]; /* "N=V" */
	unsigned nenvs;
	char *hostname;
	struct order_mount root; /* source NULL: none */
	int root_ro;             /* 1, 0, or -1: as the options say, else read-write */
	int root_wait;           /* seconds, or WAIT_FOREVER */
	bool overlay;
	char *overlay_options; /* for its tmpfs, may be NULL */
	bool serve;            /* the host has a port for commands */
	enum then then;
	char *command; /* THEN_RUN: words, not yet cut */
	char *init;    /* THEN_SWITCH_ROOT: or NULL */
	bool reboot;   /* at the end of a command, instead of powering off */
};

void plan_init(struct plan *p);

/* Carries the orders in @text into @p. An order that is unknown or wrong is reported and has no effect. */
void plan_orders(struct plan *p, char *text);

/* Lays the kernel's command line over the plan: what it says wins. */
void plan_cmdline(struct plan *p, char *text);

/*
 * Collects "@module.param=value" of the command line @cmdline as "param=value …"
 * in @buf, '-' and '_' being the same in the module's name. Cuts off at @len.
 */
void cmdline_params(const char *cmdline, const char *module, char *buf, size_t len);

/*
 * The next word at *@at, cut out and unquoted in place: "…" groups, \ takes the
 * next character as it is (\n: newline, \t: tab). NULL at the end of the line.
 */
char *word_next(char **at);

/* Every word of @line and a NULL; the caller frees the array. NULL: no memory. */
char **word_split(char *line);

#endif
