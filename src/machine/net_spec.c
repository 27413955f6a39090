// SPDX-License-Identifier: GPL-2.0-or-later
#include "machine/net_spec.h"

#include "base/opt.h"
#include "net/slirp_net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * How it works
 *
 * The kind decides which table of options applies. An option is a word, or
 * NAME=VALUE; it is looked up by name, and its function takes the value. Some
 * may be given again and again (hostfwd, allow).
 */

#define MAX_MTU 65535

struct option {
	const char *name;
	bool value; /* NAME=VALUE, else a word by itself */
	int (*take)(struct net_config *c, const char *val, struct err *err);
};

void net_config_default(struct net_config *out)
{
	*out = (struct net_config){ .kind = user_built_in() ? NET_USER : NET_NONE,
		                    .user = { .mtu = USER_MTU, .egress.relay = true },
		                    .tap = { .fd = -1, .queues = 1 } };
}

static int too_long(const char *what, const char *val, struct err *err)
{
	return err_set(err, -EINVAL, "-n: %s=%s: empty or too long", what, val);
}

/* Copies @val to a buffer of @size bytes. */
static int take_text(const char *what, const char *val, char *to, size_t size, struct err *err)
{
	size_t n = strlen(val);

	if (!n || n >= size)
		return too_long(what, val, err);
	memcpy(to, val, n + 1);
	return 0;
}

static int take_mac(struct net_config *c, const char *val, struct err *err)
{
	static const char form[] = "hh:hh:hh:hh:hh:hh";
	char *end;

	for (size_t i = 0; i < sizeof(form); i++)
		if (form[i] == 'h' ? !strchr("0123456789abcdefABCDEF", val[i]) || !val[i] : val[i] != form[i])
			return err_set(err, -EINVAL, "-n: mac=%s: not of the form 02:00:00:01:02:03", val);
	for (unsigned i = 0; i < 6; i++)
		c->mac[i] = (uint8_t)strtoul(val + 3ul * i, &end, 16);
	if (c->mac[0] & 1)
		return err_set(err, -EINVAL, "-n: mac=%s: a multicast address is nobody's own", val);
	c->has_mac = true;
	return 0;
}

static int take_user_mtu(struct net_config *c, const char *val, struct err *err)
{
	return opt_uint("-n: mtu", val, USER_MIN_MTU, USER_MTU, &c->user.mtu, err);
}

static int take_restrict(struct net_config *c, const char *val, struct err *err)
{
	c->user.restricted = true;
	return 0;
}

static int take_hostlo(struct net_config *c, const char *val, struct err *err)
{
	if (strcmp(val, "on") && strcmp(val, "off"))
		return err_set(err, -EINVAL, "-n: hostlo: '%s' is neither on nor off", val);
	c->user.egress.hostlo = !strcmp(val, "on");
	return 0;
}

static int take_allow(struct net_config *c, const char *val, struct err *err)
{
	struct egress *e = &c->user.egress;

	if (e->nrules == EGRESS_MAX_RULES)
		return err_set(err, -ERANGE, "-n: at most %u times allow=", EGRESS_MAX_RULES);
	e->listed = true;
	return egress_parse_rule(val, &e->rule[e->nrules++], err);
}

static int take_dns(struct net_config *c, const char *val, struct err *err)
{
	uint8_t addr[16];
	int family = strchr(val, ':') ? AF_INET6 : AF_INET;

	if (inet_pton(family, val, addr) != 1)
		return err_set(err, -EINVAL, "-n: dns=%s: not an address", val);
	if (family == AF_INET ? addr[0] == 127 : !strcmp(val, "::1"))
		return err_set(err, -EINVAL,
		               "-n: dns=%s: to the guest that is itself; without dns= it may use the host's", val);
	return take_text("dns", val, c->user.dns, sizeof(c->user.dns), err);
}

static int take_hostname(struct net_config *c, const char *val, struct err *err)
{
	return take_text("hostname", val, c->user.hostname, sizeof(c->user.hostname), err);
}

/* "1.2.3.4" or "[::1]", in @s which is changed: its family; 0: it is none. */
static int parse_address(char *s, union user_address *out)
{
	size_t n = strlen(s);

	if (inet_pton(AF_INET, s, &out->in4) == 1)
		return AF_INET;
	if (s[0] != '[' || s[n - 1] != ']')
		return 0;
	s[n - 1] = '\0';
	return inet_pton(AF_INET6, s + 1, &out->in6) == 1 ? AF_INET6 : 0;
}

/* "[[ADDR]:]PORT" ending at @end; *@family is 0 where there is no ADDR. */
static bool parse_endpoint(const char *s, const char *end, int *family, union user_address *addr, uint16_t *port)
{
	char buf[64], *colon, *rest;
	size_t n = (size_t)(end - s);
	unsigned long p;

	if (n >= sizeof(buf))
		return false;
	memcpy(buf, s, n);
	buf[n] = '\0';
	colon = strrchr(buf, ':');
	*family = 0;
	if (colon)
		*colon = '\0';
	if (colon && buf[0]) {
		*family = parse_address(buf, addr);
		if (!*family)
			return false;
	}
	s = colon ? colon + 1 : buf;
	p = strtoul(s, &rest, 10);
	*port = (uint16_t)p;
	return *s >= '0' && *s <= '9' && !*rest && p >= 1 && p <= 65535;
}

static int take_hostfwd(struct net_config *c, const char *val, struct err *err)
{
	struct user_forward f = { .udp = !strncmp(val, "udp:", 4) };
	const char *dash = strchr(val, '-');
	int host, guest;

	if (c->user.nforwards == USER_MAX_FORWARDS)
		return err_set(err, -ERANGE, "-n: at most %u times hostfwd=", USER_MAX_FORWARDS);
	if ((!f.udp && strncmp(val, "tcp:", 4) != 0) || !dash ||
	    !parse_endpoint(val + 4, dash, &host, &f.host, &f.host_port) ||
	    !parse_endpoint(dash + 1, val + strlen(val), &guest, &f.guest, &f.guest_port))
		return err_set(err, -EINVAL,
		               "-n: hostfwd=%s: not tcp|udp:[ADDRESS:]PORT-[GUEST:]PORT, IPv6 as in [::1]:80", val);
	if (host && guest && host != guest)
		return err_set(err, -EINVAL, "-n: hostfwd=%s: nobody translates between IPv4 and IPv6", val);
	f.family = host ? host : guest ? guest : AF_INET;
	if (!host && f.family == AF_INET)
		f.host.in4.s_addr = htonl(INADDR_LOOPBACK);
	else if (!host)
		f.host.in6 = in6addr_loopback;
	c->user.forward[c->user.nforwards++] = f;
	return 0;
}

static int take_if(struct net_config *c, const char *val, struct err *err)
{
	return take_text("if", val, c->tap.ifname, sizeof(c->tap.ifname), err);
}

static int take_bridge(struct net_config *c, const char *val, struct err *err)
{
	return take_text("bridge", val, c->tap.bridge, sizeof(c->tap.bridge), err);
}

static int take_script(struct net_config *c, const char *val, struct err *err)
{
	return take_text("script", val, c->tap.script, sizeof(c->tap.script), err);
}

static int take_downscript(struct net_config *c, const char *val, struct err *err)
{
	return take_text("downscript", val, c->tap.downscript, sizeof(c->tap.downscript), err);
}

static int take_queues(struct net_config *c, const char *val, struct err *err)
{
	return opt_uint("-n: queues", val, 1, NIC_MAX_PAIRS, &c->tap.queues, err);
}

static int take_tap_mtu(struct net_config *c, const char *val, struct err *err)
{
	return opt_uint("-n: mtu", val, USER_MIN_MTU, MAX_MTU, &c->tap.mtu, err);
}

static int take_vhost(struct net_config *c, const char *val, struct err *err)
{
	if (!strcmp(val, "auto"))
		c->tap.vhost = TAP_VHOST_AUTO;
	else if (!strcmp(val, "on"))
		c->tap.vhost = TAP_VHOST_ON;
	else if (!strcmp(val, "off"))
		c->tap.vhost = TAP_VHOST_OFF;
	else
		return err_set(err, -EINVAL, "-n: vhost: '%s' is none of auto, on and off", val);
	return 0;
}

static int take_fd(struct net_config *c, const char *val, struct err *err)
{
	unsigned fd;
	int error = opt_uint("-n: fd", val, 3, 1u << 20, &fd, err);

	if (!error)
		c->tap.fd = (int)fd;
	return error;
}

static const struct option user_options[] = {
	{ "hostfwd", true, take_hostfwd },
	{ "restrict", false, take_restrict },
	{ "allow", true, take_allow },
	{ "hostlo", true, take_hostlo },
	{ "mtu", true, take_user_mtu },
	{ "dns", true, take_dns },
	{ "hostname", true, take_hostname },
	{ "mac", true, take_mac },
	{ 0 },
};

static const struct option tap_options[] = {
	{ "if", true, take_if },         { "bridge", true, take_bridge },
	{ "script", true, take_script }, { "downscript", true, take_downscript },
	{ "queues", true, take_queues }, { "mtu", true, take_tap_mtu },
	{ "vhost", true, take_vhost },   { "fd", true, take_fd },
	{ "mac", true, take_mac },       { 0 },
};

static const struct option passt_options[] = {
	{ "hostfwd", true, take_hostfwd },
	{ "hostlo", true, take_hostlo },
	{ "mtu", true, take_user_mtu },
	{ "mac", true, take_mac },
	{ 0 },
};

static const struct option common_options[] = { { "mac", true, take_mac }, { 0 } };

static const struct option no_options[] = { { 0 } };

static const struct kind {
	const char *name;
	enum net_kind kind;
	bool fallback;
	const struct option *options;
} kinds[] = {
	{ "none", NET_NONE, false, no_options },      { "user", NET_USER, false, user_options },
	{ "tap", NET_TAP, false, tap_options },       { "virtio", NET_TAP, true, common_options },
	{ "passt", NET_PASST, false, passt_options },
};

static int take_option(struct net_config *c, const struct kind *k, char *word, struct err *err)
{
	char *val = strchr(word, '=');

	if (val)
		*val++ = '\0';
	for (const struct option *o = k->options; o->name; o++) {
		if (strcmp(o->name, word))
			continue;
		if (o->value != !!val)
			return err_set(err, -EINVAL, "-n %s: %s %s", k->name, word,
			               val ? "takes no value" : "needs a value");
		return o->take(c, val, err);
	}
	return err_set(err, -EINVAL, "-n %s: there is no option '%s'", k->name, word);
}

static int check_passt(const struct user_config *u, struct err *err)
{
	for (unsigned i = 0; i < u->nforwards; i++) {
		if (u->forward[i].family != AF_INET)
			return err_set(err, -EINVAL, "-n passt: hostfwd= is of IPv4 only; -n user has both");
		if (u->forward[i].guest.in4.s_addr)
			return err_set(err, -EINVAL, "-n passt: hostfwd= leads to the guest, by a port alone");
	}
	return 0;
}

/* What goes together. */
static int check(const struct net_config *c, struct err *err)
{
	const struct tap_config *t = &c->tap;

	if (c->kind == NET_USER && !user_built_in())
		return err_set(err, -ENOSYS, "-n user: this program was built without libslirp");
	if (c->user.restricted && c->user.egress.listed)
		return err_set(err, -EINVAL, "-n user: restrict allows nothing, so allow= has no place beside it");
	if (t->fd >= 0 && (t->ifname[0] || t->bridge[0] || t->mtu || t->queues > 1))
		return err_set(err, -EINVAL, "-n tap: fd= is an interface as it is: no if=, bridge=, mtu= or queues=");
	return c->kind == NET_PASST ? check_passt(&c->user, err) : 0;
}

int net_config_parse(const char *spec, struct net_config *out, struct err *err)
{
	char *copy = strdup(spec), *rest = copy, *word;
	const struct kind *k = kinds;
	int error = 0;

	if (!copy)
		return err_set(err, -ENOMEM, "out of memory");
	net_config_default(out);
	word = strsep(&rest, ",");
	while (k < kinds + sizeof(kinds) / sizeof(kinds[0]) && strcmp(k->name, word))
		k++;
	if (k == kinds + sizeof(kinds) / sizeof(kinds[0])) {
		error = err_set(err, -EINVAL, "-n: '%s' is none of none, user, tap, virtio and passt", word);
	} else {
		out->kind = k->kind;
		out->fallback = k->fallback;
		out->chosen = true;
	}
	while (!error && (word = strsep(&rest, ",")))
		error = take_option(out, k, word, err);
	free(copy);
	return error ? error : check(out, err);
}

/* Locally administered, unicast; the rest is FNV-1a of the name. */
void net_config_mac(const struct net_config *c, const uint8_t *own, const char *name, uint8_t mac[6])
{
	uint64_t h = 0xcbf29ce484222325;

	if (c->has_mac || own) {
		memcpy(mac, c->has_mac ? c->mac : own, 6);
		return;
	}
	for (; *name; name++)
		h = (h ^ (uint8_t)*name) * 0x100000001b3;
	h ^= h >> 40;
	mac[0] = 0x02;
	for (unsigned i = 1; i < 6; i++)
		mac[i] = (uint8_t)(h >> (8 * i - 8));
}
