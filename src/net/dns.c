// SPDX-License-Identifier: GPL-2.0-or-later
#include "net/dns.h"
#include "net/slirp_net.h"

#include <arpa/inet.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

struct servers {
	char v4[46], v6[46]; /* the first of each family, "" if there is none */
	char far[46];        /* the first that a guest can ask itself: not on the host's loopback, not link-local */
};

static void keep(char to[46], int family, const uint8_t *addr)
{
	if (!to[0])
		inet_ntop(family, addr, to, 46);
}

static bool is_far(int family, const uint8_t *a)
{
	static const uint8_t loopback[16] = { [15] = 1 };

	if (family == AF_INET)
		return a[0] != 127 && a[0] != 0;
	return memcmp(a, loopback, 16) && !(a[0] == 0xfe && (a[1] & 0xc0) == 0x80);
}

static void take_server(struct servers *s, char *word)
{
	char *scope = strchr(word, '%');
	uint8_t addr[16];
	int family;

	if (scope)
		*scope = '\0';
	family = strchr(word, ':') ? AF_INET6 : AF_INET;
	if (inet_pton(family, word, addr) != 1)
		return;
	keep(family == AF_INET ? s->v4 : s->v6, family, addr);
	if (is_far(family, addr))
		keep(s->far, family, addr);
}

static void read_servers(const char *root, const char *path, struct servers *s)
{
	char name[PATH_MAX], line[512], word[258];
	FILE *f;

	*s = (struct servers){ .v4 = "" };
	snprintf(name, sizeof(name), "%s%s", root, path);
	f = fopen(name, "re");
	if (!f)
		return;
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "nameserver%*[ \t]%257s", word) == 1)
			take_server(s, word);
	fclose(f);
}

void dns_choose(const char *root, struct dns_choice *out)
{
	/* Where the host's own resolver, or who looks after it, keeps the servers it asks. */
	static const char *const others[] = { "/run/systemd/resolve/resolv.conf", "/run/NetworkManager/resolv.conf",
		                              "/run/resolvconf/resolv.conf" };
	struct servers s;

	*out = (struct dns_choice){ .relay = true };
	read_servers(root, "/etc/resolv.conf", &s);
	if (s.v4[0] || s.v6[0]) {
		snprintf(out->addr, sizeof(out->addr), "%s", s.v4[0] ? SLIRP_DNS4 : SLIRP_DNS6);
		return;
	}
	out->relay = false;
	for (unsigned i = 0; i < sizeof(others) / sizeof(others[0]) && !out->addr[0]; i++) {
		read_servers(root, others[i], &s);
		memcpy(out->addr, s.far, sizeof(out->addr));
	}
}
