// SPDX-License-Identifier: GPL-2.0-or-later
#include "guest/init/init.h"
#include "guest/init/plan.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

/*
 * How it works
 *
 * The kernel's command line is its user's word, so it wins over the orders,
 * and it means what Documentation/admin-guide/kernel-parameters.rst and
 * nfsroot.rst say it means. A root= that names another device takes the
 * orders' type and options for their device away with it.
 */
struct cmdline {
	char *root, *fstype, *flags;
	int ro; /* -1: not said */
};

/* The next parameter, quotes taken off as the kernel does; *@val is NULL without '='. */
static char *param_next(char **at, char **val)
{
	char *s = *at, *end, *name;
	bool quoted = false;

	s += strspn(s, " \t\n");
	if (!*s)
		return NULL;
	for (end = s; *end && (quoted || !strchr(" \t\n", *end)); end++)
		if (*end == '"')
			quoted = !quoted;
	*at = *end ? end + 1 : end;
	*end = '\0';
	name = s;
	if (*name == '"') {
		name++;
		if (end > name && end[-1] == '"')
			*--end = '\0';
	}
	*val = strchr(name, '=');
	if (*val) {
		*(*val)++ = '\0';
		if (**val == '"') {
			(*val)++;
			if (end > *val && end[-1] == '"')
				end[-1] = '\0';
		}
	}
	return name;
}

/* A dotted mask as a prefix length, or -1. */
static int mask_prefix(const char *text)
{
	struct in_addr in;
	uint32_t mask;

	if (inet_pton(AF_INET, text, &in) != 1)
		return -1;
	mask = ntohl(in.s_addr);
	if (~mask & (~mask + 1))
		return -1;
	return mask ? __builtin_popcount(mask) : 0;
}

/* The prefix that the kernel gives an address without a mask: its class. */
static int class_prefix(const char *addr)
{
	unsigned long first = strtoul(addr, NULL, 10);

	return first < 128 ? 8 : first < 192 ? 16 : 24;
}

/* Cuts "a:b:c" into at most @n fields; absent and empty ones are NULL. */
static void fields(char *s, char **field, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		field[i] = s && *s && *s != ':' ? s : NULL;
		s = s ? strchr(s, ':') : NULL;
		if (s)
			*s++ = '\0';
	}
}

/* The orders' addresses of the same interface make way. */
static void drop_ips(struct plan *p, const char *iface)
{
	unsigned n = 0;

	for (unsigned i = 0; i < p->nips; i++)
		if (iface && p->ip[i].iface && strcmp(iface, p->ip[i].iface))
			p->ip[n++] = p->ip[i];
	p->nips = n;
}

static bool is_word(const char *s, const char *const *list)
{
	for (; *list; list++)
		if (!strcmp(s, *list))
			return true;
	return false;
}

/* ip=CLIENT:SERVER:GATEWAY:NETMASK:HOST:DEVICE:AUTOCONF:DNS:DNS, or one word. */
static void param_ip(struct plan *p, char *val, bool *seen)
{
	enum { CLIENT, SERVER, GATEWAY, NETMASK, HOST, DEVICE, AUTOCONF, DNS0, DNS1, NFIELDS };
	static const char *const off[] = { "off", "none", NULL };
	static const char *const autoconf[] = { "on", "any", "dhcp", "bootp", "rarp", "both", NULL };
	char *f[NFIELDS];
	struct order_ip ip = { .prefix = -1 };

	if (is_word(val, off)) {
		drop_ips(p, NULL);
		return;
	}
	fields(val, f, NFIELDS);
	if (!f[CLIENT] || is_word(f[CLIENT], autoconf)) {
		say("ip=: this init has no DHCP: give an address, ip=CLIENT::GATEWAY:NETMASK::DEVICE, or leave it to "
		    "the guest's own system");
		return;
	}
	ip.iface = f[DEVICE];
	ip.addr = f[CLIENT];
	ip.gateway = f[GATEWAY];
	ip.dns[0] = f[DNS0];
	ip.dns[1] = f[DNS1];
	ip.prefix = f[NETMASK] ? mask_prefix(f[NETMASK]) : class_prefix(ip.addr);
	if (ip.prefix < 0) {
		say("ip=: '%s' is not a netmask; ignored", f[NETMASK]);
		return;
	}
	if (f[HOST])
		p->hostname = f[HOST];
	if (!*seen)
		drop_ips(p, ip.iface);
	*seen = true;
	if (p->nips < PLAN_IPS)
		p->ip[p->nips++] = ip;
}

static void param_wait(struct plan *p, const char *name, const char *val)
{
	char *end;
	unsigned long s = strtoul(val, &end, 10);

	if (end == val || s > 86400)
		say("%s=%s: seconds expected; ignored", name, val);
	else
		p->root_wait = (int)s;
}

static void merge_root(struct plan *p, const struct cmdline *c)
{
	bool other = c->root && (!p->root.source || strcmp(c->root, p->root.source));

	if (other) {
		p->root = (struct order_mount){ .source = c->root };
		p->root_ro = 1;
	}
	if (c->fstype)
		p->root.fstype = c->fstype;
	if (c->flags)
		p->root.options = c->flags;
	if (c->ro >= 0)
		p->root_ro = c->ro;
}

void plan_cmdline(struct plan *p, char *text)
{
	struct cmdline c = { .ro = -1 };
	char *name, *val;
	bool ip_seen = false;

	while ((name = param_next(&text, &val)) && strcmp(name, "--")) {
		if (!strcmp(name, "ro") && !val)
			c.ro = 1;
		else if (!strcmp(name, "rw") && !val)
			c.ro = 0;
		else if (!strcmp(name, "rootwait") && !val)
			p->root_wait = WAIT_FOREVER;
		else if (!val || !*val)
			continue;
		else if (!strcmp(name, "root"))
			c.root = val;
		else if (!strcmp(name, "rootfstype"))
			c.fstype = val;
		else if (!strcmp(name, "rootflags"))
			c.flags = val;
		else if (!strcmp(name, "rootwait") || !strcmp(name, "rootdelay"))
			param_wait(p, name, val);
		else if (!strcmp(name, "init"))
			p->init = val;
		else if (!strcmp(name, "ip"))
			param_ip(p, val, &ip_seen);
	}
	merge_root(p, &c);
}

/* Does the word at @s start with "module."? Returns what follows, or NULL. */
static const char *after_module(const char *s, const char *module)
{
	for (; *module; module++, s++) {
		char a = *s == '-' ? '_' : *s, b = *module == '-' ? '_' : *module;

		if (a != b)
			return NULL;
	}
	return *s == '.' && s[1] ? s + 1 : NULL;
}

void cmdline_params(const char *cmdline, const char *module, char *buf, size_t len)
{
	size_t used = 0;

	buf[0] = '\0';
	while (*(cmdline += strspn(cmdline, " \t\n"))) {
		const char *word = cmdline, *param = after_module(word, module);
		bool quoted = false;
		size_t n;

		for (; *cmdline && (quoted || !strchr(" \t\n", *cmdline)); cmdline++)
			if (*cmdline == '"')
				quoted = !quoted;
		if (cmdline - word == 2 && !memcmp(word, "--", 2))
			return;
		if (!param)
			continue;
		n = (size_t)(cmdline - param);
		if (used + n + 2 > len)
			return;
		if (used)
			buf[used++] = ' ';
		memcpy(buf + used, param, n);
		used += n;
		buf[used] = '\0';
	}
}
