// SPDX-License-Identifier: GPL-2.0-or-later
#include "guest/init/init.h"
#include "guest/init/plan.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <linux/if_addr.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * How it works
 *
 * Three rtnetlink requests, the same for IPv4 and IPv6, each acknowledged:
 * link up, add address, add default route. Nothing here is essential: what
 * fails is reported, and the guest starts without it.
 */
#define SYS_NET       "/sys/class/net"
#define IFACE_WAIT_MS 2000

struct request {
	struct nlmsghdr h;
	union {
		struct ifinfomsg link;
		struct ifaddrmsg addr;
		struct rtmsg route;
	};
	char attrs[128];
};

struct address {
	int family;
	size_t len;
	uint8_t bytes[16];
};

static bool parse_address(const char *text, struct address *a)
{
	a->family = strchr(text, ':') ? AF_INET6 : AF_INET;
	a->len = a->family == AF_INET ? 4 : 16;
	return inet_pton(a->family, text, a->bytes) == 1;
}

static void request_init(struct request *q, int type, int flags, size_t body)
{
	memset(q, 0, sizeof(*q));
	q->h.nlmsg_len = (uint32_t)NLMSG_LENGTH(body);
	q->h.nlmsg_type = (uint16_t)type;
	q->h.nlmsg_flags = (uint16_t)(NLM_F_REQUEST | NLM_F_ACK | flags);
}

/* At most three attributes of 16 bytes are ever added: they fit. */
static void request_attr(struct request *q, int type, const void *data, size_t len)
{
	struct rtattr *a = (struct rtattr *)((char *)q + NLMSG_ALIGN(q->h.nlmsg_len));

	a->rta_type = (unsigned short)type;
	a->rta_len = (unsigned short)RTA_LENGTH(len);
	memcpy(RTA_DATA(a), data, len);
	q->h.nlmsg_len = (uint32_t)(NLMSG_ALIGN(q->h.nlmsg_len) + RTA_ALIGN(a->rta_len));
}

/* Returns the kernel's answer, 0 or -errno. */
static int request_send(int fd, struct request *q)
{
	struct {
		struct nlmsghdr h;
		struct nlmsgerr e;
		char more[512];
	} answer;
	ssize_t n;

	if (send(fd, q, q->h.nlmsg_len, 0) < 0)
		return -errno;
	n = recv(fd, &answer, sizeof(answer), 0);
	if (n < 0)
		return -errno;
	return (size_t)n >= NLMSG_LENGTH(sizeof(answer.e)) && answer.h.nlmsg_type == NLMSG_ERROR ? answer.e.error
	                                                                                         : -EPROTO;
}

static int link_up(int fd, int index)
{
	struct request q;

	request_init(&q, RTM_NEWLINK, 0, sizeof(q.link));
	q.link.ifi_index = index;
	q.link.ifi_flags = q.link.ifi_change = 1; /* IFF_UP */
	return request_send(fd, &q);
}

static int add_address(int fd, int index, const struct address *a, int prefix)
{
	struct request q;

	request_init(&q, RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, sizeof(q.addr));
	q.addr.ifa_family = (uint8_t)a->family;
	q.addr.ifa_prefixlen = (uint8_t)prefix;
	q.addr.ifa_index = (uint32_t)index;
	/* Usable at once: nobody else has this address. */
	q.addr.ifa_flags = a->family == AF_INET6 ? IFA_F_NODAD : 0;
	request_attr(&q, IFA_LOCAL, a->bytes, a->len);
	request_attr(&q, IFA_ADDRESS, a->bytes, a->len);
	if (a->family == AF_INET && prefix < 31) {
		uint8_t broadcast[4];

		for (int i = 0; i < 4; i++)
			broadcast[i] = (uint8_t)(a->bytes[i] | (0xffffffffu >> prefix) >> (24 - 8 * i));
		request_attr(&q, IFA_BROADCAST, broadcast, 4);
	}
	return request_send(fd, &q);
}

/* On-link: the gateway need not be inside the prefix. */
static int add_gateway(int fd, int index, const struct address *gw)
{
	struct request q;

	request_init(&q, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, sizeof(q.route));
	q.route.rtm_family = (uint8_t)gw->family;
	q.route.rtm_table = RT_TABLE_MAIN;
	q.route.rtm_protocol = RTPROT_BOOT;
	q.route.rtm_scope = RT_SCOPE_UNIVERSE;
	q.route.rtm_type = RTN_UNICAST;
	q.route.rtm_flags = RTNH_F_ONLINK;
	request_attr(&q, RTA_GATEWAY, gw->bytes, gw->len);
	request_attr(&q, RTA_OIF, &index, sizeof(index));
	return request_send(fd, &q);
}

static int iface_number(const char *name, const char *file)
{
	char path[PATH_MAX], buf[32];

	snprintf(path, sizeof(path), SYS_NET "/%s/%s", name, file);
	return read_file(path, buf, sizeof(buf)) > 0 ? atoi(buf) : 0;
}

/* The Ethernet interface (type 1) that the kernel found first; 0: none. */
static int first_ethernet(void)
{
	DIR *d = opendir(SYS_NET);
	struct dirent *e;
	int first = 0;

	while (d && (e = readdir(d))) {
		int index = e->d_name[0] != '.' && iface_number(e->d_name, "type") == 1
		                    ? iface_number(e->d_name, "ifindex")
		                    : 0;

		if (index > 0 && (!first || index < first))
			first = index;
	}
	if (d)
		closedir(d);
	return first;
}

/* The index of an interface, waited for; 0: none. */
static int find_iface(const char *name)
{
	int64_t deadline = now_ms() + IFACE_WAIT_MS;
	int fd = uevent_open(), index;

	do
		index = name ? iface_number(name, "ifindex") : first_ethernet();
	while (!index && uevent_wait(fd, deadline));
	uevent_close(fd);
	return index;
}

static void setup_one(int fd, const struct order_ip *ip)
{
	const char *name = ip->iface ? ip->iface : "(first Ethernet)";
	struct address a, gw;
	int index, err;

	if (!parse_address(ip->addr, &a)) {
		say("ip: '%s' is not an address; ignored", ip->addr);
		return;
	}
	if (ip->gateway && (!parse_address(ip->gateway, &gw) || gw.family != a.family)) {
		say("ip: '%s' is not a gateway for %s; ignored", ip->gateway, ip->addr);
		return;
	}
	index = find_iface(ip->iface);
	if (!index) {
		say("ip: no interface %s: is its driver among the modules (virtio_pci, virtio_net)?", name);
		return;
	}
	err = link_up(fd, index);
	if (!err)
		err = add_address(fd, index, &a, ip->prefix);
	if (err)
		say("ip: cannot give %s the address %s/%d: %s", name, ip->addr, ip->prefix, strerror(-err));
	else if (ip->gateway && (err = add_gateway(fd, index, &gw)))
		say("ip: cannot route through %s: %s", ip->gateway, strerror(-err));
}

void net_setup(const struct plan *p)
{
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE), err;

	if (fd < 0) {
		if (p->nips)
			say("ip: this kernel has no networking: %s", strerror(errno));
		return;
	}
	err = link_up(fd, 1); /* loopback is always the first interface */
	if (err && err != -ENODEV)
		say("cannot bring up the loopback interface: %s", strerror(-err));
	for (unsigned i = 0; i < p->nips; i++)
		setup_one(fd, &p->ip[i]);
	close(fd);
}

static size_t resolver_text(const struct plan *p, char *text, size_t len)
{
	size_t used = 0;

	text[0] = '\0';
	for (unsigned i = 0; i < p->nips; i++)
		for (unsigned j = 0; j < 2; j++)
			if (p->ip[i].dns[j] && used < len)
				used += (size_t)snprintf(text + used, len - used, "nameserver %s\n", p->ip[i].dns[j]);
	return used;
}

/* The folder that @path is in; if it is a dangling link, the one that it points into. */
static void make_folder_of(const char *path)
{
	char link[PATH_MAX], target[PATH_MAX * 2];
	ssize_t n = readlink(path, link, sizeof(link) - 1);
	int folder = (int)(strrchr(path, '/') - path);

	snprintf(target, sizeof(target), "%.*s", folder, path);
	mkdir_parents(target);
	if (n <= 0)
		return;
	link[n] = '\0';
	snprintf(target, sizeof(target), "%.*s/%s", link[0] == '/' ? 0 : folder, path, link);
	*strrchr(target, '/') = '\0';
	mkdir_parents(target);
}

/*
 * The file lies in /run and is bound over /etc/resolv.conf, so that a disk is
 * not changed. Where that name leads nowhere (systemd-resolved's link into an
 * empty /run, a bare root) the file is made.
 */
void net_resolver(const struct plan *p)
{
	static const char ours[] = RUN_DIR "/resolv.conf", theirs[] = "/etc/resolv.conf";
	char text[PLAN_IPS * 2 * 64];

	if (!resolver_text(p, text, sizeof(text)))
		return;
	if (write_file(ours, text)) {
		say("ip: cannot write %s", ours);
		return;
	}
	if (!mount(ours, theirs, NULL, MS_BIND, NULL))
		return;
	make_folder_of(theirs);
	if (write_file(theirs, text))
		say("ip: no %s could be made in this root; the name servers are in %s", theirs, ours);
}
