// SPDX-License-Identifier: GPL-2.0-or-later
#include "virtio/net_filter.h"

#include <linux/if_ether.h>
#include <linux/virtio_net.h>
#include <string.h>

static uint16_t be16(const uint8_t *p)
{
	return (uint16_t)(p[0] << 8 | p[1]);
}

static uint32_t le32(const uint8_t *p)
{
	return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

void net_filter_init(struct net_filter *f, const uint8_t mac[6], bool vlans)
{
	*f = (struct net_filter){ .vlans = vlans };
	memcpy(f->mac, mac, 6);
	f->mode[VIRTIO_NET_CTRL_RX_PROMISC] = true; /* a driver without a control queue sees everything */
}

static bool lists(const struct net_filter_table *t, const uint8_t *mac)
{
	for (unsigned i = 0; i < t->n; i++)
		if (!memcmp(t->mac[i], mac, 6))
			return true;
	return t->all;
}

static bool wants_address(const struct net_filter *f, const uint8_t *mac)
{
	static const uint8_t broadcast[6] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff };

	if (!memcmp(mac, broadcast, 6))
		return !f->mode[VIRTIO_NET_CTRL_RX_NOBCAST];
	if (mac[0] & 1)
		return !f->mode[VIRTIO_NET_CTRL_RX_NOMULTI] &&
		       (f->mode[VIRTIO_NET_CTRL_RX_ALLMULTI] || lists(&f->multi, mac));
	return !f->mode[VIRTIO_NET_CTRL_RX_NOUNI] &&
	       (f->mode[VIRTIO_NET_CTRL_RX_ALLUNI] || !memcmp(mac, f->mac, 6) || lists(&f->uni, mac));
}

bool net_filter_accepts(const struct net_filter *f, const uint8_t *head, size_t n)
{
	unsigned id;

	if (f->mode[VIRTIO_NET_CTRL_RX_PROMISC])
		return true;
	if (f->vlans && n >= NET_FILTER_HEAD && be16(head + 12) == ETH_P_8021Q) {
		id = be16(head + 14) & (NET_FILTER_VLANS - 1);
		if (!(f->vlan[id / 64] >> id % 64 & 1))
			return false;
	}
	return wants_address(f, head);
}

static bool set_mode(struct net_filter *f, uint8_t cmd, const uint8_t *data, size_t n)
{
	if (cmd >= sizeof(f->mode) || n != 1 || *data > 1)
		return false;
	f->mode[cmd] = *data;
	return true;
}

/* A count and as many addresses; returns how many bytes that were, 0: it is cut off. */
static size_t read_table(struct net_filter_table *t, const uint8_t *data, size_t n)
{
	uint32_t count;

	if (n < 4)
		return 0;
	count = le32(data);
	if (count > (n - 4) / 6)
		return 0;
	t->all = count > NET_FILTER_MACS;
	t->n = t->all ? 0 : count;
	if (t->n)
		memcpy(t->mac, data + 4, t->n * 6ul);
	return 4 + 6ul * count;
}

static bool set_macs(struct net_filter *f, const uint8_t *data, size_t n)
{
	struct net_filter_table uni = { 0 }, multi = { 0 };
	size_t first = read_table(&uni, data, n), second;

	if (!first)
		return false;
	second = read_table(&multi, data + first, n - first);
	if (!second || first + second != n)
		return false;
	f->uni = uni;
	f->multi = multi;
	return true;
}

static bool set_mac(struct net_filter *f, const uint8_t *data, size_t n)
{
	if (n != 6)
		return false;
	memcpy(f->mac, data, 6);
	return true;
}

static bool set_vlan(struct net_filter *f, bool on, const uint8_t *data, size_t n)
{
	unsigned id = n == 2 ? data[0] | data[1] << 8 : NET_FILTER_VLANS;

	if (id >= NET_FILTER_VLANS || !f->vlans)
		return false;
	if (on)
		f->vlan[id / 64] |= 1ull << id % 64;
	else
		f->vlan[id / 64] &= ~(1ull << id % 64);
	return true;
}

bool net_filter_command(struct net_filter *f, uint8_t class, uint8_t cmd, const uint8_t *data, size_t n)
{
	switch (class << 8 | cmd) {
	case VIRTIO_NET_CTRL_MAC << 8 | VIRTIO_NET_CTRL_MAC_TABLE_SET: return set_macs(f, data, n);
	case VIRTIO_NET_CTRL_MAC << 8 | VIRTIO_NET_CTRL_MAC_ADDR_SET: return set_mac(f, data, n);
	case VIRTIO_NET_CTRL_VLAN << 8 | VIRTIO_NET_CTRL_VLAN_ADD: return set_vlan(f, true, data, n);
	case VIRTIO_NET_CTRL_VLAN << 8 | VIRTIO_NET_CTRL_VLAN_DEL: return set_vlan(f, false, data, n);
	default: return class == VIRTIO_NET_CTRL_RX && set_mode(f, cmd, data, n);
	}
}
