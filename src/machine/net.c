// SPDX-License-Identifier: GPL-2.0-or-later
#include "machine/net.h"

#include "base/log.h"
#include "net/passt.h"
#include "net/pcap.h"
#include "net/slirp_net.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int open_user(const struct config *cfg, struct machine_net *n, struct err *err)
{
	struct user_config uc = cfg->net.user;

	if (!uc.hostname[0])
		memcpy(uc.hostname, cfg->name, sizeof(uc.hostname));
	snprintf(n->address, sizeof(n->address), "%s", SLIRP_GUEST4);
	return user_new(&uc, &n->nic, err);
}

static int open_passt(const struct config *cfg, struct machine_net *n, struct err *err)
{
	snprintf(n->address, sizeof(n->address), "%s", SLIRP_GUEST4);
	return passt_new(&cfg->net.user, &n->nic, err);
}

/* A macvtap only brings what is for its own address, unless it has been made to bring everything. */
static void check_mac(const struct net_config *cfg, const struct nic *nic)
{
	const uint8_t *m = nic->mac;

	if (cfg->has_mac && nic->has_mac && memcmp(m, cfg->mac, 6) != 0)
		log_line("-n tap: %s may only bring frames for its own address: leave mac= out, or give it\n"
		         "%02x:%02x:%02x:%02x:%02x:%02x, or change it: ip link set %s address …",
		         tap_name(nic), m[0], m[1], m[2], m[3], m[4], m[5], tap_name(nic));
}

static int open_tap(const struct config *cfg, struct machine_net *n, struct err *err)
{
	int error = tap_new(&cfg->net.tap, &n->nic, err);

	if (!error) {
		snprintf(n->address, sizeof(n->address), "%s", tap_name(n->nic));
		check_mac(&cfg->net, n->nic);
	}
	if (!error || !cfg->net.fallback || !user_built_in())
		return error;
	log_line("%s", err->msg);
	log_line("-n virtio: going on with -n user");
	return open_user(cfg, n, err);
}

/* Between the device and what was opened. */
static int add_pcap(const struct config *cfg, struct machine_net *n, struct err *err)
{
	struct nic *inner = n->nic;
	int error;

	if (!cfg->pcap)
		return 0;
	if (!inner)
		return err_set(err, -EINVAL, "--pcap: there is no network to be seen");
	error = pcap_new(inner, cfg->pcap, &n->nic, err);
	if (error)
		machine_net_close(n);
	return error;
}

int machine_net_open(const struct config *cfg, struct machine_net *out, struct err *err)
{
	int error = 0;

	*out = (struct machine_net){ .address = "none" };
	if (cfg->net.kind == NET_TAP)
		error = open_tap(cfg, out, err);
	else if (cfg->net.kind == NET_USER)
		error = open_user(cfg, out, err);
	else if (cfg->net.kind == NET_PASST)
		error = open_passt(cfg, out, err);
	if (error && cfg->net.chosen)
		return error;
	if (error) {
		log_line("no network: %s", err->msg);
		*out = (struct machine_net){ .address = "none" };
	}
	return add_pcap(cfg, out, err);
}

void machine_net_close(struct machine_net *n)
{
	nic_free(n->nic);
	n->nic = NULL;
}

void machine_net_orders(const struct config *cfg, char *buf, size_t len)
{
	struct dns_choice dns = { .addr = SLIRP_DNS4 };

	buf[0] = '\0';
	if (cfg->net.kind == NET_USER)
		user_dns(&cfg->net.user, &dns);
	else if (cfg->net.kind != NET_PASST)
		return;
	snprintf(buf, len, "ip - %s/24 %s %s\n", SLIRP_GUEST4, SLIRP_HOST4, dns.addr);
}
