// SPDX-License-Identifier: GPL-2.0-or-later
#include "net/user.h"

#include <errno.h>
#include <string.h>

void user_dns(const struct user_config *cfg, struct dns_choice *out)
{
	*out = (struct dns_choice){ .addr = "" };
	if (cfg->dns[0])
		memcpy(out->addr, cfg->dns, sizeof(out->addr));
	else if (!cfg->restricted && !cfg->egress.listed)
		dns_choose("", out);
}

#ifndef HAVE_SLIRP

bool user_built_in(void)
{
	return false;
}

int user_new(const struct user_config *cfg, struct nic **out, struct err *err)
{
	return err_set(err, -ENOSYS, "-n user: this program was built without libslirp");
}

#else

#include "base/clock.h"
#include "base/container_of.h"
#include "base/evt.h"
#include "base/io.h"
#include "base/library.h"
#include "base/log.h"
#include "net/frames.h"
#include "net/slirp_net.h"

#include <arpa/inet.h>
#include <linux/virtio_net.h>
#include <poll.h>
#include <pthread.h>
#include <slirp/libslirp.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

/*
 * How it works
 *
 * libslirp has a thread of its own: it is not made for more than one, and its
 * sockets may be thousands. Between that thread and the device's loop are two
 * bounded queues of frames.
 *
 * To the guest. libslirp offers no way to say "not now". But what it sends it
 * has read from its sockets, apart from small answers, so while the queue is
 * half full its sockets are not polled for input, and whoever sends to the
 * guest is held back by his own TCP. The other half of the queue is for what
 * the guest's acknowledgements release. Beyond that frames are lost, counted.
 *
 * From the guest. A full queue is EAGAIN to the device, whose guest waits.
 * Frames are judged (egress.h) in our copy, on the thread.
 *
 * Descriptors. A connection that the other side ended first keeps its socket
 * for ten seconds more (TIME-WAIT, libslirp's), so that a thousand of them in a
 * second need ten thousand: the limit is raised as far as it goes.
 *
 * Name servers. Where the relay cannot serve, the guest is told of a server
 * that it asks by itself; for guests with DHCP the answer is changed on its way.
 *
 * Everything lives as long as the machine's session; a reboot of the guest
 * finds its forwards as they were.
 */

/*
 * Of what libslirp sends. It cannot scale windows, so a guest's is at most 64
 * KiB. Where less than a segment of that is left it sends nothing before it was
 * told of more, or for five seconds. Linux tells of more when the window
 * doubles, and sets it in whole segments. Where three fit both go on always; of
 * two, or one, neither may.
 */
#define SLIRP_MTU        21840

#define TO_GUEST_BYTES   (2u << 20)
#define FROM_GUEST_BYTES (1u << 20)
#define THREAD_STACK     (1u << 20) /* libslirp has 64 KiB buffers on it, one in another */
#define TURN             64         /* frames of the guest, before the sockets have their turn */
#define MAX_TIMERS       4

struct libslirp {
	typeof(slirp_new) *new;
	typeof(slirp_cleanup) *cleanup;
	typeof(slirp_pollfds_fill) *pollfds_fill;
	typeof(slirp_pollfds_poll) *pollfds_poll;
	typeof(slirp_input) *input;
	typeof(slirp_add_hostxfwd) *add_hostxfwd;
};

static const struct library_fn slirp_fns[] = {
	LIBRARY_FN(struct libslirp, new, slirp_new),
	LIBRARY_FN(struct libslirp, cleanup, slirp_cleanup),
	LIBRARY_FN(struct libslirp, pollfds_fill, slirp_pollfds_fill),
	LIBRARY_FN(struct libslirp, pollfds_poll, slirp_pollfds_poll),
	LIBRARY_FN(struct libslirp, input, slirp_input),
	LIBRARY_FN(struct libslirp, add_hostxfwd, slirp_add_hostxfwd),
	{},
};

static const struct library slirp_library = { .soname = "libslirp.so.0", .package = "libslirp0", .fns = slirp_fns };

struct user_timer {
	SlirpTimerCb cb; /* NULL: free */
	void *opaque;
	int64_t at; /* ms, INT64_MAX: not set */
};

struct user {
	struct nic nic;
	struct user_config cfg;    /* [c] */
	struct libslirp lib;       /* [c] */
	void *handle;              /* [c] */
	struct frames *to_guest;   /* [c] */
	struct frames *from_guest; /* [c] */
	uint32_t dhcp_dns;         /* [c] network order; 0: as libslirp says */
	int wake;                  /* [c] eventfd: the thread shall look around */
	int room;                  /* [c] eventfd: from_guest has room again */
	pthread_t thread;
	bool started;
	atomic_bool quit;

	/* The thread's, once it runs. */
	Slirp *slirp;
	struct pollfd *pfd;
	unsigned npfd, pfd_size;
	bool crowded, pushing; /* to_guest is half full; from_guest has more */
	struct user_timer timer[MAX_TIMERS];

	atomic_ullong lost; /* frames to the guest; read by any thread */

	/* [l] */
	struct loop *loop; /* NULL: detached */
	struct nic_client client;
	struct loop_fd readable, writable;
	short polled;
	bool valid; /* the guest takes our word for checksums */
};

static struct user *of_nic(struct nic *n)
{
	return container_of(n, struct user, nic);
}

bool user_built_in(void)
{
	return true;
}

/* The thread: what libslirp asks for. */

static int64_t now_ms(void)
{
	return (int64_t)(clock_ns() / 1000000);
}

/*
 * In an answer of DHCP: option 6 gets the address @dns. RFC 2131: the options
 * begin behind 236 bytes and a magic number. Without a checksum UDP is as good.
 */
static void set_dhcp_dns(uint8_t *frame, size_t len, uint32_t dns)
{
	const size_t udp = 14 + 20, options = udp + 8 + 236 + 4;

	if (len < options || frame[12] != 8 || frame[13] || frame[14] != 0x45 || frame[23] != IPPROTO_UDP ||
	    memcmp(frame + udp, (const uint8_t[]){ 0, 67, 0, 68 }, 4))
		return;
	for (size_t i = options; i + 2 < len && frame[i] != 255; i += frame[i] ? 2u + frame[i + 1] : 1u) {
		if (frame[i] == 6 && frame[i + 1] == 4 && i + 6 <= len) {
			memcpy(frame + i + 2, &dns, 4);
			memset(frame + udp + 6, 0, 2);
		}
	}
}

static ssize_t on_send_packet(const void *buf, size_t len, void *opaque)
{
	struct user *u = opaque;
	struct iovec iov = { (void *)(uintptr_t)buf, len };
	uint8_t copy[2048];

	if (u->dhcp_dns && len <= sizeof(copy)) {
		memcpy(copy, buf, len);
		set_dhcp_dns(copy, len, u->dhcp_dns);
		iov.iov_base = copy;
	}
	if (!frames_put(u->to_guest, &iov, 1, 0, u->wake))
		atomic_fetch_add(&u->lost, 1);
	return (ssize_t)len;
}

static void on_guest_error(const char *msg, void *opaque)
{
	log_verbose("net: libslirp: %s", msg);
}

static int64_t on_clock_get_ns(void *opaque)
{
	return (int64_t)clock_ns();
}

static void *on_timer_new(SlirpTimerCb cb, void *cb_opaque, void *opaque)
{
	struct user *u = opaque;

	for (unsigned i = 0; i < MAX_TIMERS; i++) {
		if (!u->timer[i].cb) {
			u->timer[i] = (struct user_timer){ cb, cb_opaque, INT64_MAX };
			return &u->timer[i];
		}
	}
	abort(); /* libslirp 4 has one */
}

static void on_timer_free(void *timer, void *opaque)
{
	((struct user_timer *)timer)->cb = NULL;
}

static void on_timer_mod(void *timer, int64_t at, void *opaque)
{
	((struct user_timer *)timer)->at = at;
}

/* Descriptors are collected anew each time, and what is to be done is seen on the way there. */
static void on_poll_fd(int fd, void *opaque)
{
}

static void on_notify(void *opaque)
{
}

static const SlirpCb callbacks = {
	.send_packet = on_send_packet,
	.guest_error = on_guest_error,
	.clock_get_ns = on_clock_get_ns,
	.timer_new = on_timer_new,
	.timer_free = on_timer_free,
	.timer_mod = on_timer_mod,
	.register_poll_fd = on_poll_fd,
	.unregister_poll_fd = on_poll_fd,
	.notify = on_notify,
};

/* The thread: one turn. */

static int add_pollfd(struct user *u, int fd, short events)
{
	if (u->npfd == u->pfd_size) {
		struct pollfd *p = reallocarray(u->pfd, 2ul * u->pfd_size + 64, sizeof(*p));

		if (!p)
			return -1; /* that socket waits for a better time */
		u->pfd = p;
		u->pfd_size = 2 * u->pfd_size + 64;
	}
	u->pfd[u->npfd] = (struct pollfd){ .fd = fd, .events = events };
	return (int)u->npfd++;
}

static int on_add_poll(int fd, int events, void *opaque)
{
	struct user *u = opaque;
	short e = 0;

	if (u->crowded)
		events &= ~(SLIRP_POLL_IN | SLIRP_POLL_PRI | SLIRP_POLL_HUP);
	e |= events & SLIRP_POLL_IN ? POLLIN : 0;
	e |= events & SLIRP_POLL_OUT ? POLLOUT : 0;
	e |= events & SLIRP_POLL_PRI ? POLLPRI : 0;
	/* POLLHUP and POLLERR come unasked: of a socket that is not to be read they would come again and again. */
	return e ? add_pollfd(u, fd, e) : -1;
}

static int on_get_revents(int i, void *opaque)
{
	struct user *u = opaque;
	short e = i < 0 ? 0 : u->pfd[i].revents;

	return (e & POLLIN ? SLIRP_POLL_IN : 0) | (e & POLLOUT ? SLIRP_POLL_OUT : 0) |
	       (e & POLLPRI ? SLIRP_POLL_PRI : 0) | (e & POLLERR ? SLIRP_POLL_ERR : 0) |
	       (e & POLLHUP ? SLIRP_POLL_HUP : 0);
}

static void run_timers(struct user *u)
{
	for (unsigned i = 0; i < MAX_TIMERS; i++) {
		struct user_timer *t = &u->timer[i];

		if (t->cb && t->at <= now_ms()) {
			t->at = INT64_MAX;
			t->cb(t->opaque);
		}
	}
}

/* How long the thread may sleep: ms, or -1. */
static int patience(struct user *u, uint32_t slirp_ms)
{
	int64_t ms = slirp_ms == UINT32_MAX ? INT64_MAX : slirp_ms, now = now_ms();

	for (unsigned i = 0; i < MAX_TIMERS; i++)
		if (u->timer[i].cb && u->timer[i].at != INT64_MAX) {
			int64_t left = u->timer[i].at > now ? u->timer[i].at - now : 0;

			ms = left < ms ? left : ms;
		}
	if (u->pushing)
		return 0;
	return ms == INT64_MAX ? -1 : (int)(ms < 60000 ? ms : 60000);
}

static void drain_evt(const struct pollfd *p)
{
	uint64_t count;
	ssize_t n = p->revents ? read(p->fd, &count, sizeof(count)) : 0;

	(void)n; /* nonblocking: that somebody has signalled it is all there is to know */
}

/* Tells the guest that the frame goes nowhere. */
static void refuse(struct user *u, const uint8_t *frame, size_t len)
{
	uint8_t reply[EGRESS_MAX_REFUSAL];
	struct iovec iov = { reply, egress_refusal(frame, len, reply) };

	if (iov.iov_len && !frames_put(u->to_guest, &iov, 1, 0, u->wake))
		atomic_fetch_add(&u->lost, 1);
}

static void take_from_guest(struct user *u)
{
	const uint8_t *frame;
	size_t len;

	for (unsigned n = 0; n < TURN && (len = frames_peek(u->from_guest, &frame)); n++) {
		if (egress_allows(&u->cfg.egress, frame, len))
			u->lib.input(u->slirp, frame, (int)len);
		else
			refuse(u, frame, len);
		frames_drop(u->from_guest);
	}
	u->pushing = frames_peek(u->from_guest, &frame);
}

static void turn(struct user *u)
{
	uint32_t slirp_ms = UINT32_MAX;
	int n;

	u->crowded = frames_crowded(u->to_guest, u->wake);
	u->npfd = 0;
	add_pollfd(u, u->wake, POLLIN);
	add_pollfd(u, frames_reader_fd(u->from_guest), POLLIN);
	u->lib.pollfds_fill(u->slirp, &slirp_ms, on_add_poll, u);
	n = poll(u->pfd, u->npfd, patience(u, slirp_ms));
	if (n >= 0) {
		drain_evt(&u->pfd[0]);
		drain_evt(&u->pfd[1]);
	}
	u->lib.pollfds_poll(u->slirp, n < 0, on_get_revents, u);
	take_from_guest(u);
	run_timers(u);
}

static void *run_thread(void *arg)
{
	struct user *u = arg;

	while (!atomic_load(&u->quit))
		turn(u);
	return NULL;
}

/* The device's side. */

static void on_readable(struct loop_fd *f, short revents)
{
	struct user *u = container_of(f, struct user, readable);
	const uint8_t *frame;

	if (u->polled & POLLIN)
		u->client.readable(u->client.dev, 0);
	if (u->polled & POLLIN && frames_peek(u->to_guest, &frame))
		evt_signal(f->fd); /* there is more, and its turn comes again */
}

static void on_writable(struct loop_fd *f, short revents)
{
	struct user *u = container_of(f, struct user, writable);

	if (u->polled & POLLOUT)
		u->client.writable(u->client.dev, 0);
}

static void user_attach(struct nic *n, const struct nic_client *client, struct loop *loop)
{
	struct user *u = of_nic(n);
	const uint8_t *frame;

	u->polled = 0;
	u->valid = false;
	if (client) {
		u->client = *client;
		u->loop = loop;
		u->readable =
		        (struct loop_fd){ .fd = frames_reader_fd(u->to_guest), .counter = true, .cb = on_readable };
		u->writable = (struct loop_fd){ .fd = u->room, .counter = true, .cb = on_writable };
		loop_fd_add(loop, &u->readable);
		loop_fd_add(loop, &u->writable);
		return;
	}
	loop_fd_del(u->loop, &u->readable);
	loop_fd_del(u->loop, &u->writable);
	u->loop = NULL;
	while (frames_peek(u->to_guest, &frame)) /* for the guest that is gone */
		frames_drop(u->to_guest);
}

static int user_send(struct nic *n, unsigned pair, const struct iovec *iov, unsigned niov)
{
	struct user *u = of_nic(n);

	return frames_put(u->from_guest, iov, niov, NIC_HDR, u->room) ? 0 : -EAGAIN;
}

/* Copies @n bytes to @iov from its byte *@at on, as far as it goes, and moves *@at. */
static void scatter(const struct iovec *iov, unsigned niov, size_t *at, const void *from, size_t n)
{
	size_t skip = *at, done = 0;

	for (unsigned i = 0; i < niov && done < n; i++) {
		size_t cut = skip < iov[i].iov_len ? skip : iov[i].iov_len, part = iov[i].iov_len - cut;

		part = part < n - done ? part : n - done;
		if (part)
			memcpy((uint8_t *)iov[i].iov_base + cut, (const uint8_t *)from + done, part);
		skip -= cut;
		done += part;
	}
	*at += done;
}

static ssize_t user_recv(struct nic *n, unsigned pair, const struct iovec *iov, unsigned niov)
{
	struct user *u = of_nic(n);
	const struct virtio_net_hdr_v1 hdr = { .flags = u->valid ? VIRTIO_NET_HDR_F_DATA_VALID : 0 };
	const uint8_t *frame;
	size_t len = frames_peek(u->to_guest, &frame), done = 0;

	if (!len)
		return -EAGAIN;
	scatter(iov, niov, &done, &hdr, sizeof(hdr));
	scatter(iov, niov, &done, frame, len);
	frames_drop(u->to_guest);
	return (ssize_t)done;
}

/* What libslirp has made needs no second look: it comes from this host's own sockets. */
static int user_set_offloads(struct nic *n, unsigned offloads)
{
	of_nic(n)->valid = offloads & NIC_CSUM;
	return 0;
}

static void user_poll(struct nic *n, unsigned pair, short events)
{
	struct user *u = of_nic(n);
	const uint8_t *frame;
	bool more = events & ~u->polled & POLLIN && frames_peek(u->to_guest, &frame);

	u->polled = events;
	u->readable.events = events & POLLIN ? POLLIN : 0;
	u->writable.events = events & POLLOUT ? POLLIN : 0;
	if (more)
		evt_signal(u->readable.fd);
}

static void user_free(struct nic *n)
{
	struct user *u = of_nic(n);

	if (u->started) {
		atomic_store(&u->quit, true);
		evt_signal(u->wake);
		pthread_join(u->thread, NULL);
	}
	if (u->lost)
		log_verbose("net: %llu frames to the guest were lost", u->lost);
	if (u->slirp)
		u->lib.cleanup(u->slirp);
	library_close(u->handle);
	frames_free(u->to_guest);
	frames_free(u->from_guest);
	if (u->wake >= 0)
		close(u->wake);
	if (u->room >= 0)
		close(u->room);
	free(u->pfd);
	free(u);
}

/* Making it. */

static struct in_addr in4(const char *text)
{
	struct in_addr a;

	inet_pton(AF_INET, text, &a);
	return a;
}

static struct in6_addr in6(const char *text)
{
	struct in6_addr a;

	inet_pton(AF_INET6, text, &a);
	return a;
}

static int make_slirp(struct user *u, struct err *err)
{
	const struct user_config *cfg = &u->cfg;
	SlirpConfig sc = {
		.version = 3,
		.restricted = cfg->restricted,
		.in_enabled = true,
		.vnetwork = in4(SLIRP_NET4),
		.vnetmask = in4(SLIRP_MASK4),
		.vhost = in4(SLIRP_HOST4),
		.in6_enabled = true,
		.vprefix_addr6 = in6(SLIRP_NET6),
		.vprefix_len = SLIRP_LEN6,
		.vhost6 = in6(SLIRP_HOST6),
		.vhostname = cfg->hostname[0] ? cfg->hostname : NULL,
		.vdhcp_start = in4(SLIRP_GUEST4),
		.vnameserver = in4(SLIRP_DNS4),
		.vnameserver6 = in6(SLIRP_DNS6),
		.if_mtu = cfg->mtu < SLIRP_MTU ? cfg->mtu : SLIRP_MTU,
		.if_mru = cfg->mtu,
		.disable_host_loopback = !cfg->egress.hostlo,
		.disable_dns = cfg->egress.listed && !cfg->dns[0],
	};

	u->slirp = u->lib.new(&sc, &callbacks, u);
	return u->slirp ? 0 : err_set(err, -EINVAL, "-n user: libslirp refuses this network");
}

/* Returns its length. */
static socklen_t socket_address(int family, const union user_address *a, uint16_t port, struct sockaddr_storage *out)
{
	struct sockaddr_in sin = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = a->in4 };
	struct sockaddr_in6 sin6 = { .sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = a->in6 };

	memset(out, 0, sizeof(*out));
	if (family == AF_INET)
		memcpy(out, &sin, sizeof(sin));
	else
		memcpy(out, &sin6, sizeof(sin6));
	return family == AF_INET ? sizeof(sin) : sizeof(sin6);
}

/* A port of IPv6 is one of IPv6 alone, so that the same one of IPv4 may lead elsewhere. */
static int add_forward(struct user *u, const struct user_forward *f)
{
	int flags = (f->udp ? SLIRP_HOSTFWD_UDP : 0) | (f->family == AF_INET6 ? SLIRP_HOSTFWD_V6ONLY : 0);
	struct sockaddr_storage host, guest;
	socklen_t host_len = socket_address(f->family, &f->host, f->host_port, &host);
	socklen_t guest_len = socket_address(f->family, &f->guest, f->guest_port, &guest);

	return u->lib.add_hostxfwd(u->slirp, (struct sockaddr *)&host, host_len, (struct sockaddr *)&guest, guest_len,
	                           flags);
}

static int add_forwards(struct user *u, struct err *err)
{
	for (unsigned i = 0; i < u->cfg.nforwards; i++) {
		const struct user_forward *f = &u->cfg.forward[i];
		char host[INET6_ADDRSTRLEN];
		int error;

		if (!add_forward(u, f))
			continue;
		error = -errno;
		inet_ntop(f->family, &f->host, host, sizeof(host));
		return err_sys(err, error,
		               f->family == AF_INET ? "hostfwd: cannot listen on %s:%u (%s)"
		                                    : "hostfwd: cannot listen on [%s]:%u (%s)",
		               host, f->host_port, f->udp ? "UDP" : "TCP");
	}
	return 0;
}

/* A name server of IPv4 that the relay does not stand for is told by DHCP, too. */
static void choose_dns(struct user *u)
{
	struct dns_choice dns;
	struct in_addr a;

	user_dns(&u->cfg, &dns);
	if (dns.addr[0] && !dns.relay && inet_pton(AF_INET, dns.addr, &a) == 1)
		u->dhcp_dns = a.s_addr;
	u->cfg.egress.relay = !u->cfg.egress.listed && !u->cfg.dns[0];
	if (!dns.addr[0] && !u->cfg.restricted && !u->cfg.egress.listed)
		log_line("-n user: this host names no DNS server; dns=ADDRESS gives the guest one");
}

static int start_thread(struct user *u, struct err *err)
{
	pthread_attr_t attr;
	int error;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, THREAD_STACK);
	error = -pthread_create(&u->thread, &attr, run_thread, u);
	pthread_attr_destroy(&attr);
	u->started = !error;
	return error ? err_sys(err, error, "-n user: cannot start its thread") : 0;
}

static int build(struct user *u, struct err *err)
{
	int error;

	io_raise_fd_limit();
	error = library_open(&slirp_library, &u->lib, &u->handle, err);

	if (!error)
		error = frames_new(TO_GUEST_BYTES, &u->to_guest, err);
	if (!error)
		error = frames_new(FROM_GUEST_BYTES, &u->from_guest, err);
	if (error)
		return error;
	u->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	u->room = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (u->wake < 0 || u->room < 0 || add_pollfd(u, u->wake, POLLIN) < 0)
		return err_sys(err, -errno, "-n user");
	choose_dns(u);
	error = make_slirp(u, err);
	if (!error)
		error = add_forwards(u, err);
	return error ? error : start_thread(u, err);
}

int user_new(const struct user_config *cfg, struct nic **out, struct err *err)
{
	static const struct nic_ops ops = { .attach = user_attach,
		                            .send = user_send,
		                            .recv = user_recv,
		                            .poll = user_poll,
		                            .set_offloads = user_set_offloads,
		                            .free = user_free };
	struct user *u = calloc(1, sizeof(*u));
	int error;

	if (!u)
		return err_set(err, -ENOMEM, "out of memory");
	u->nic = (struct nic){
		.ops = &ops, .max_pairs = 1, .mtu = cfg->mtu, .up = true, .offloads = NIC_VALID, .lost = &u->lost
	};
	u->cfg = *cfg;
	u->wake = u->room = -1;
	error = build(u, err);
	if (error)
		user_free(&u->nic);
	else
		*out = &u->nic;
	return error;
}

#endif
