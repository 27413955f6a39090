// SPDX-License-Identifier: GPL-2.0-or-later
#include "net/tap.h"

#include "base/container_of.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/if_tun.h>
#include <linux/major.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

/*
 * How it works
 *
 * A descriptor per queue pair; a read is a frame in, a write a frame out, both
 * with the header that virtio-net has, so nothing is copied here. Queues beyond
 * those in use are detached from the interface: frames do not arrive there.
 *
 * What somebody does to the interface meanwhile never is our error. While it
 * is down what the guest sends is lost; reading fails or the descriptor claims
 * to be ready for ever, so such a queue is left alone for RETRY_NS. The guest
 * sees the cable unplugged: a netlink socket tells us of changes.
 *
 * An interface that we have made is not persistent and goes with its last
 * descriptor; of one that was there before we undo that it joined the bridge.
 */

#define RETRY_NS 1000000000ull

_Static_assert(NIC_CSUM == TUN_F_CSUM && NIC_TSO4 == TUN_F_TSO4 && NIC_TSO6 == TUN_F_TSO6 && NIC_ECN == TUN_F_TSO_ECN,
               "offloads go to the kernel as they are");

struct queue {
	struct loop_fd ready;
	struct tap *tap;
	unsigned index;
	short polled;
	bool silent; /* something is wrong with it: not polled until the retry */
};

struct tap {
	struct nic nic;
	struct tap_config cfg;
	char name[IFNAMSIZ];
	unsigned ifindex;
	bool made, joined; /* by us: the interface, its bridge */
	bool scripted;     /* the script has run */
	unsigned nfds;
	int fd[NIC_MAX_PAIRS];
	bool detached[NIC_MAX_PAIRS];
	int monitor; /* netlink socket, -1: the interface is not in our network namespace */

	struct loop *loop; /* NULL: detached */
	struct nic_client client;
	struct queue queue[NIC_MAX_PAIRS];
	struct loop_fd changes;
	struct loop_timer retry;
};

static struct tap *of_nic(struct nic *n)
{
	return container_of(n, struct tap, nic);
}

/* Frames. */

/* What @pair sends goes through this one: the kernel takes nothing from a queue that is detached. */
static unsigned sender(const struct tap *t, unsigned pair)
{
	return t->detached[pair] ? 0 : pair;
}

static void listen_to(struct tap *t, unsigned pair)
{
	struct queue *q = &t->queue[pair];
	short events = t->detached[pair] ? 0 : q->polled;

	for (unsigned i = 0; i < t->nfds; i++)
		if (sender(t, i) == pair)
			events |= t->queue[i].polled & POLLOUT;
	q->ready.events = q->silent ? 0 : events;
}

static void silence(struct tap *t, unsigned pair)
{
	t->queue[pair].silent = true;
	listen_to(t, pair);
	if (!t->retry.armed)
		loop_timer_set(t->loop, &t->retry, RETRY_NS);
}

static void on_retry(struct loop_timer *timer)
{
	struct tap *t = container_of(timer, struct tap, retry);

	for (unsigned i = 0; i < t->nfds; i++) {
		t->queue[i].silent = false;
		listen_to(t, i);
	}
}

static void on_ready(struct loop_fd *f, short revents)
{
	struct queue *q = container_of(f, struct queue, ready);
	struct tap *t = q->tap;

	if (!(revents & (POLLIN | POLLOUT))) {
		silence(t, q->index);
		return;
	}
	if (revents & POLLIN && q->polled & POLLIN)
		t->client.readable(t->client.dev, q->index);
	for (unsigned i = 0; revents & POLLOUT && i < t->nfds; i++)
		if (sender(t, i) == q->index && t->queue[i].polled & POLLOUT)
			t->client.writable(t->client.dev, i);
}

static int tap_send(struct nic *n, unsigned pair, const struct iovec *iov, unsigned niov)
{
	struct tap *t = of_nic(n);

	if (writev(t->fd[sender(t, pair)], iov, (int)niov) >= 0)
		return 0;
	switch (errno) {
	case EAGAIN: return -EAGAIN;
	case EIO:    /* down */
	case EBADFD: /* deleted */
	case ENETDOWN:
	case ENXIO: return 0;
	default: return -errno;
	}
}

static ssize_t tap_recv(struct nic *n, unsigned pair, const struct iovec *iov, unsigned niov)
{
	struct tap *t = of_nic(n);
	ssize_t got;

	if (t->detached[pair])
		return -EAGAIN;
	got = readv(t->fd[pair], iov, (int)niov);
	if (got > 0)
		return got;
	if (got == 0 || (errno != EAGAIN && errno != EINTR))
		silence(t, pair);
	return -EAGAIN;
}

static void tap_poll(struct nic *n, unsigned pair, short events)
{
	struct tap *t = of_nic(n);

	t->queue[pair].polled = events;
	listen_to(t, pair);
	listen_to(t, sender(t, pair));
}

static int tap_set_offloads(struct nic *n, unsigned offloads)
{
	struct tap *t = of_nic(n);

	return ioctl(t->fd[0], TUNSETOFFLOAD, (unsigned long)offloads) < 0 ? -errno : 0;
}

static int tap_set_pairs(struct nic *n, unsigned pairs)
{
	struct tap *t = of_nic(n);

	for (unsigned i = 1; i < t->nfds; i++) {
		struct ifreq r = { .ifr_flags = (short)(i < pairs ? IFF_ATTACH_QUEUE : IFF_DETACH_QUEUE) };

		if (t->detached[i] == (i < pairs) && ioctl(t->fd[i], TUNSETQUEUE, &r) < 0)
			return -errno;
		t->detached[i] = i >= pairs;
	}
	for (unsigned i = 0; t->loop && i < t->nfds; i++)
		listen_to(t, i);
	return 0;
}

static int tap_fd(struct nic *n, unsigned pair)
{
	return of_nic(n)->fd[pair];
}

/* The interface's state. */

static int control(unsigned long request, void *arg)
{
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), error;

	if (fd < 0)
		return -errno;
	error = ioctl(fd, request, arg) < 0 ? -errno : 0;
	close(fd);
	return error;
}

static void set_up(struct tap *t, bool up)
{
	if (t->nic.up == up)
		return;
	t->nic.up = up;
	log_verbose("net: %s is %s", t->name, up ? "up" : "down");
	if (t->loop)
		t->client.link(t->client.dev);
}

/* Is the interface up? Its name may be somebody else's by now, its number is not. */
static void look(struct tap *t)
{
	struct ifreq r = { .ifr_flags = 0 };

	if (!if_indextoname(t->ifindex, r.ifr_name)) {
		set_up(t, false);
		return;
	}
	set_up(t, !control(SIOCGIFFLAGS, &r) && r.ifr_flags & IFF_UP);
}

/* What has changed is not read from the message: some may have been lost. */
static void on_changes(struct loop_fd *f, short revents)
{
	struct tap *t = container_of(f, struct tap, changes);
	char buf[8192];

	while (recv(f->fd, buf, sizeof(buf), MSG_DONTWAIT) > 0 || errno == ENOBUFS)
		;
	look(t);
}

static void tap_attach(struct nic *n, const struct nic_client *client, struct loop *loop)
{
	struct tap *t = of_nic(n);

	for (unsigned i = 0; i < t->nfds; i++) {
		struct queue *q = &t->queue[i];

		if (t->loop)
			loop_fd_del(t->loop, &q->ready);
		*q = (struct queue){ .ready = { .fd = t->fd[i], .cb = on_ready }, .tap = t, .index = i };
		if (client)
			loop_fd_add(loop, &q->ready);
	}
	if (t->loop) {
		loop_timer_del(t->loop, &t->retry);
		if (t->monitor >= 0)
			loop_fd_del(t->loop, &t->changes);
	}
	t->loop = client ? loop : NULL;
	if (!client)
		return;
	t->client = *client;
	if (t->monitor >= 0)
		loop_fd_add(loop, &t->changes);
	(void)tap_set_pairs(n, 1); /* a queue that cannot be detached stays: its frames wait for its turn */
	(void)tap_set_offloads(n, 0);
}

/* Making it. */

static int explain(const struct tap_config *cfg, int error, const char *what, struct err *err)
{
	const char *name = cfg->ifname[0] ? cfg->ifname : "tap0";

	switch (error) {
	case -EPERM:
		return err_set(err, error,
		               "-n tap: %s needs CAP_NET_ADMIN: be root, or have an interface made for you\n"
		               "(ip tuntap add %s mode tap user $USER%s && ip link set %s up) and give it with if=",
		               what, name, cfg->queues > 1 ? " multi_queue" : "", name);
	case -EACCES: return err_set(err, error, "-n tap: /dev/net/tun may not be opened: see its mode and owner");
	case -ENOENT:
	case -ENODEV: return err_set(err, error, "-n tap: %s: this host has no tap driver: modprobe tun", what);
	case -EBUSY: return err_set(err, error, "-n tap: %s is in use by another program", name);
	case -EINVAL:
		return err_set(err, error,
		               "-n tap: %s does not take %u queue pair%s: it was made %s multi_queue, or is no tap",
		               name, cfg->queues, cfg->queues == 1 ? "" : "s", cfg->queues > 1 ? "without" : "with");
	default: return err_sys(err, error, "-n tap: %s", what);
	}
}

static int open_queue(struct tap *t, struct err *err)
{
	int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	struct ifreq r = { .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR };

	if (fd < 0)
		return explain(&t->cfg, -errno, "/dev/net/tun", err);
	if (t->cfg.queues > 1)
		r.ifr_flags |= IFF_MULTI_QUEUE;
	memcpy(r.ifr_name, t->nfds ? t->name : t->cfg.ifname, IFNAMSIZ);
	if (!r.ifr_name[0])
		memcpy(r.ifr_name, "tap%d", sizeof("tap%d"));
	if (ioctl(fd, TUNSETIFF, &r) < 0) {
		int error = -errno;

		close(fd);
		return explain(&t->cfg, error, "an interface", err);
	}
	memcpy(t->name, r.ifr_name, IFNAMSIZ);
	t->fd[t->nfds++] = fd;
	return 0;
}

/* Of another driver than taps have, or of none: a macvtap, if any that we can use. */
static bool is_no_tap(const char *name)
{
	struct ethtool_drvinfo info = { .cmd = ETHTOOL_GDRVINFO };
	struct ifreq r = { .ifr_data = (void *)&info };

	memcpy(r.ifr_name, name, IFNAMSIZ);
	return control(SIOCETHTOOL, &r) || strcmp(info.driver, "tun") != 0;
}

/*
 * Does @fd belong to the interface @name here? Devices have the interface's number in their name, and each network
 * namespace has numbers of its own: what is found may be the device of another one, even one with the same name.
 */
static bool is_queue_of(int fd, const char *name)
{
	struct ifreq q = { .ifr_flags = 0 }, addr = q, here = q;

	memcpy(here.ifr_name, name, IFNAMSIZ);
	return !ioctl(fd, TUNGETIFF, &q) && !strcmp(q.ifr_name, name) && !ioctl(fd, SIOCGIFHWADDR, &addr) &&
	       !control(SIOCGIFHWADDR, &here) && !memcmp(addr.ifr_hwaddr.sa_data, here.ifr_hwaddr.sa_data, 6);
}

/* It may be opened as often as it has queues, and by anybody else too; two machines on it would share the frames. */
static int open_macvtap_queue(struct tap *t, struct err *err)
{
	struct ifreq r = { .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR };
	const char *name = t->cfg.ifname;
	char path[32];
	int fd;

	snprintf(path, sizeof(path), "/dev/tap%u", if_nametoindex(name));
	fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT)
		return err_set(err, -EINVAL, "-n tap: %s is neither a tap nor a macvtap interface", name);
	if (fd < 0 && (errno == EACCES || errno == EPERM))
		return err_set(err, -errno, "-n tap: %s, of %s, may not be opened: chown $USER %s", path, name, path);
	if (fd < 0)
		return err_sys(err, -errno, "-n tap: %s", path);
	if (ioctl(fd, TUNSETIFF, &r) < 0 || !is_queue_of(fd, name)) {
		close(fd);
		return err_set(err, -ENODEV,
		               "-n tap: %s is not the device of %s, but of an interface of another network namespace",
		               path, name);
	}
	if (!t->nfds && flock(fd, LOCK_EX | LOCK_NB) < 0) {
		close(fd);
		return explain(&t->cfg, -EBUSY, path, err);
	}
	memcpy(t->name, name, IFNAMSIZ);
	t->fd[t->nfds++] = fd;
	return 0;
}

/* A descriptor that somebody has opened for us. */
static int take_fd(struct tap *t, struct err *err)
{
	struct ifreq r = { .ifr_flags = 0 };
	int flags = fcntl(t->cfg.fd, F_GETFL);

	if (flags < 0 || ioctl(t->cfg.fd, TUNGETIFF, &r) < 0)
		return err_set(err, -EBADF, "-n tap: fd=%d is no descriptor of a tap or macvtap interface", t->cfg.fd);
	if (!(r.ifr_flags & IFF_VNET_HDR) || !(r.ifr_flags & IFF_NO_PI) || !(r.ifr_flags & IFF_TAP))
		return err_set(err, -EINVAL,
		               "-n tap: %s, fd=%d, was opened without IFF_TAP, IFF_NO_PI and IFF_VNET_HDR", r.ifr_name,
		               t->cfg.fd);
	if (fcntl(t->cfg.fd, F_SETFL, flags | O_NONBLOCK) < 0 || fcntl(t->cfg.fd, F_SETFD, FD_CLOEXEC) < 0)
		return err_sys(err, -errno, "-n tap: fd=%d", t->cfg.fd);
	memcpy(t->name, r.ifr_name, IFNAMSIZ);
	t->fd[t->nfds++] = t->cfg.fd;
	return 0;
}

/* The header's size is not the kernel's default, and somebody may have changed it anyway. */
static int set_header(struct tap *t, struct err *err)
{
	int size = NIC_HDR;

	for (unsigned i = 0; i < t->nfds; i++)
		if (ioctl(t->fd[i], TUNSETVNETHDRSZ, &size) < 0)
			return err_sys(err, -errno, "-n tap: %s: TUNSETVNETHDRSZ", t->name);
	return 0;
}

/* What the kernel takes: all of it since Linux 2.6.27. */
static unsigned find_offloads(struct tap *t)
{
	static const unsigned sets[] = { NIC_CSUM | NIC_TSO4 | NIC_TSO6 | NIC_ECN, NIC_CSUM | NIC_TSO4 | NIC_TSO6,
		                         NIC_CSUM };

	for (unsigned i = 0; i < sizeof(sets) / sizeof(sets[0]); i++)
		if (!tap_set_offloads(&t->nic, sets[i]))
			return sets[i];
	return 0;
}

static struct ifreq request(const struct tap *t)
{
	struct ifreq r = { .ifr_flags = 0 };

	memcpy(r.ifr_name, t->name, IFNAMSIZ);
	return r;
}

static int join_bridge(struct tap *t, struct err *err)
{
	struct ifreq r = { .ifr_ifindex = (int)t->ifindex };
	int error;

	memcpy(r.ifr_name, t->cfg.bridge, IFNAMSIZ);
	if (!if_nametoindex(t->cfg.bridge))
		return err_set(err, -ENODEV, "-n tap: there is no bridge %s: ip link add %s type bridge", t->cfg.bridge,
		               t->cfg.bridge);
	error = control(SIOCBRADDIF, &r);
	if (error == -EBUSY) /* it is in one: somebody has seen to it */
		return 0;
	t->joined = !error;
	return error ? err_sys(err, error, "-n tap: %s cannot join the bridge %s", t->name, t->cfg.bridge) : 0;
}

static int bring_up(struct tap *t, struct err *err)
{
	struct ifreq r = request(t);
	int error;

	if (t->made && t->cfg.mtu) {
		r.ifr_mtu = (int)t->cfg.mtu;
		error = control(SIOCSIFMTU, &r);
		if (error)
			return err_sys(err, error, "-n tap: mtu=%u", t->cfg.mtu);
	}
	error = control(SIOCGIFFLAGS, &r);
	if (!error && !(r.ifr_flags & IFF_UP)) {
		r.ifr_flags |= IFF_UP;
		error = control(SIOCSIFFLAGS, &r);
	}
	if (error == -EPERM)
		return err_set(err, error, "-n tap: %s is down, and only root may change that: ip link set %s up",
		               t->name, t->name);
	if (error)
		return err_sys(err, error, "-n tap: cannot bring %s up", t->name);
	r = request(t);
	if (!control(SIOCGIFMTU, &r))
		t->nic.mtu = (unsigned)r.ifr_mtu;
	return 0;
}

/* Runs @script with the interface's name, with the signals a program expects. */
static int run_script(struct tap *t, char *script, struct err *err)
{
	char *argv[] = { script, t->name, NULL };
	posix_spawnattr_t attr;
	sigset_t none, all;
	int error, status = 0;
	pid_t pid;

	sigemptyset(&none);
	sigfillset(&all);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setsigdefault(&attr, &all);
	error = -posix_spawn(&pid, script, NULL, &attr, argv, environ);
	posix_spawnattr_destroy(&attr);
	if (error)
		return err_sys(err, error, "-n tap: %s", script);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		return err_set(err, -EIO, "-n tap: %s %s failed (%s %d)", script, t->name,
		               WIFEXITED(status) ? "status" : "signal",
		               WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
	return 0;
}

static void open_monitor(struct tap *t)
{
	struct sockaddr_nl sa = { .nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK };

	t->monitor = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
	if (t->monitor >= 0 && bind(t->monitor, (struct sockaddr *)&sa, sizeof(sa)) < 0) {
		close(t->monitor);
		t->monitor = -1; /* the guest's cable then always seems to be plugged in */
	}
	t->changes = (struct loop_fd){ .fd = t->monitor, .events = POLLIN, .cb = on_changes };
}

static int open_interface(struct tap *t, struct err *err)
{
	int (*open_one)(struct tap * t, struct err * err) = open_queue;
	int error = 0;

	if (t->cfg.fd >= 0)
		return take_fd(t, err);
	t->made = !t->cfg.ifname[0] || !if_nametoindex(t->cfg.ifname);
	if (!t->made && is_no_tap(t->cfg.ifname))
		open_one = open_macvtap_queue;
	while (!error && t->nfds < t->cfg.queues)
		error = open_one(t, err);
	return error;
}

/* The driver of taps is one of the kernel's misc devices, each other has a number of its own. */
static void find_mac(struct tap *t)
{
	struct ifreq r = { .ifr_flags = 0 };
	struct stat st;

	t->nic.has_mac = !fstat(t->fd[0], &st) && major(st.st_rdev) != MISC_MAJOR &&
	                 !ioctl(t->fd[0], SIOCGIFHWADDR, &r);
	memcpy(t->nic.mac, r.ifr_hwaddr.sa_data, sizeof(t->nic.mac));
}

static int configure(struct tap *t, struct err *err)
{
	int error = 0;

	t->ifindex = if_nametoindex(t->name);
	/* Handed over from another network namespace, where there may be a namesake? */
	if (!t->ifindex || (t->cfg.fd >= 0 && !is_queue_of(t->fd[0], t->name)))
		return 0;
	open_monitor(t);
	if (t->cfg.bridge[0])
		error = join_bridge(t, err);
	if (!error && t->cfg.fd < 0)
		error = bring_up(t, err);
	if (!error && t->cfg.script[0]) {
		error = run_script(t, t->cfg.script, err);
		t->scripted = !error;
	}
	if (!error)
		look(t);
	return error;
}

static void tap_free(struct nic *n)
{
	struct tap *t = of_nic(n);
	struct err err;

	if (t->cfg.downscript[0] && (t->scripted || !t->cfg.script[0]) && t->nfds &&
	    run_script(t, t->cfg.downscript, &err))
		log_line("%s", err.msg);
	if (t->joined && !t->made) {
		struct ifreq r = { .ifr_ifindex = (int)t->ifindex };

		memcpy(r.ifr_name, t->cfg.bridge, IFNAMSIZ);
		(void)control(SIOCBRDELIF, &r); /* somebody may have done it before */
	}
	for (unsigned i = 0; i < t->nfds; i++)
		close(t->fd[i]);
	if (t->monitor >= 0)
		close(t->monitor);
	free(t);
}

const char *tap_name(const struct nic *n)
{
	return container_of(n, const struct tap, nic)->name;
}

int tap_new(const struct tap_config *cfg, struct nic **out, struct err *err)
{
	static const struct nic_ops ops = { .attach = tap_attach,
		                            .send = tap_send,
		                            .recv = tap_recv,
		                            .poll = tap_poll,
		                            .set_pairs = tap_set_pairs,
		                            .set_offloads = tap_set_offloads,
		                            .free = tap_free };
	struct tap *t = calloc(1, sizeof(*t));
	int error;

	if (!t)
		return err_set(err, -ENOMEM, "out of memory");
	t->nic = (struct nic){ .ops = &ops, .up = true, .fd = tap_fd };
	t->cfg = *cfg;
	t->monitor = -1;
	t->retry.cb = on_retry;
	error = open_interface(t, err);
	t->nic.max_pairs = t->nfds;
	if (!error)
		error = set_header(t, err);
	if (!error) {
		t->nic.offloads = find_offloads(t);
		find_mac(t);
		error = configure(t, err);
	}
	if (error)
		tap_free(&t->nic);
	else
		*out = &t->nic;
	return error;
}
