// SPDX-License-Identifier: GPL-2.0-or-later
#include "net/passt.h"

#include "base/container_of.h"
#include "base/log.h"
#include "net/slirp_net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/*
 * How it works
 *
 * On the socket each frame has its length before it, 4 bytes, the highest
 * first. It is a stream: what is read may end in the middle of a frame, and
 * what is sent may be taken in part.
 *
 * In. As much as there is is read into @in, and frames are copied out of it.
 * Reading ends while the device does not want any, so @in holds what one read
 * has brought. Frames that are left when the device has had its turn are not
 * in the socket any more: a posted task calls again.
 *
 * Out. A frame that was taken in part is finished from @out before the next
 * one is begun; until then that one is EAGAIN.
 *
 * When the other side goes away the guest's cable is pulled, for good.
 */

#define LEN_BYTES 4
#define MOST      (LEN_BYTES + NIC_MAX_FRAME)
#define IN_BYTES  (2 * MOST)

struct passt {
	struct nic nic;
	int fd;
	pid_t pid;         /* 0: not ours */
	struct loop *loop; /* NULL: detached */
	struct nic_client client;
	struct loop_fd ready;
	struct loop_task more;
	short polled;
	size_t in_at, in_end; /* of @in: what was read and not received */
	size_t out_at, out_end;
	uint8_t in[IN_BYTES], out[MOST];
};

static struct passt *of_nic(struct nic *n)
{
	return container_of(n, struct passt, nic);
}

static void set_events(struct passt *p)
{
	short events = p->polled & POLLIN;

	if (p->polled & POLLOUT || p->out_at < p->out_end)
		events |= POLLOUT;
	p->ready.events = p->nic.up ? events : 0;
}

/* The other side is gone, or speaks no sense. */
static void hang_up(struct passt *p, const char *why)
{
	if (!p->nic.up)
		return;
	log_line("net: passt: %s: the network is gone", why);
	p->nic.up = false;
	p->in_at = p->in_end = p->out_at = p->out_end = 0;
	set_events(p);
	if (p->loop)
		p->client.link(p->client.dev);
}

/* In. */

/* The length of the frame at @in_at, if it is there whole; 0: it is not. */
static size_t whole_frame(struct passt *p)
{
	size_t have = p->in_end - p->in_at;
	uint32_t len;

	if (have < LEN_BYTES)
		return 0;
	memcpy(&len, p->in + p->in_at, LEN_BYTES);
	len = ntohl(len);
	if (!len || len > NIC_MAX_FRAME) {
		hang_up(p, "it sends what is no frame");
		return 0;
	}
	return have - LEN_BYTES >= len ? len : 0;
}

static void fill(struct passt *p)
{
	ssize_t n;

	memmove(p->in, p->in + p->in_at, p->in_end - p->in_at);
	p->in_end -= p->in_at;
	p->in_at = 0;
	n = recv(p->fd, p->in + p->in_end, IN_BYTES - p->in_end, MSG_DONTWAIT);
	if (n > 0)
		p->in_end += (size_t)n;
	else if (n == 0)
		hang_up(p, "it has ended");
	else if (errno != EAGAIN && errno != EINTR)
		hang_up(p, strerror(errno));
}

/* Copies @n bytes to @iov behind its first @skip, as far as it goes. */
static void scatter(const struct iovec *iov, unsigned niov, size_t skip, const uint8_t *from, size_t n)
{
	for (unsigned i = 0; i < niov && n; i++) {
		size_t cut = skip < iov[i].iov_len ? skip : iov[i].iov_len, part = iov[i].iov_len - cut;

		part = part < n ? part : n;
		if (part)
			memcpy((uint8_t *)iov[i].iov_base + cut, from, part);
		skip -= cut;
		from += part;
		n -= part;
	}
}

static ssize_t passt_recv(struct nic *n, unsigned pair, const struct iovec *iov, unsigned niov)
{
	static const uint8_t hdr[NIC_HDR];
	struct passt *p = of_nic(n);
	size_t len = whole_frame(p), room = 0;

	if (!len && p->nic.up) {
		fill(p);
		len = whole_frame(p);
	}
	if (!len)
		return -EAGAIN;
	for (unsigned i = 0; i < niov; i++)
		room += iov[i].iov_len;
	scatter(iov, niov, 0, hdr, sizeof(hdr));
	scatter(iov, niov, NIC_HDR, p->in + p->in_at + LEN_BYTES, len);
	p->in_at += LEN_BYTES + len;
	return (ssize_t)(NIC_HDR + len < room ? NIC_HDR + len : room);
}

/* Out. */

/* Sends what is left of a frame. True: nothing is. */
static bool finish(struct passt *p)
{
	ssize_t n;

	if (p->out_at == p->out_end)
		return true;
	n = send(p->fd, p->out + p->out_at, p->out_end - p->out_at, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n > 0)
		p->out_at += (size_t)n;
	else if (errno != EAGAIN && errno != EINTR)
		hang_up(p, strerror(errno));
	set_events(p);
	return p->out_at == p->out_end;
}

static int passt_send(struct nic *n, unsigned pair, const struct iovec *iov, unsigned niov)
{
	struct passt *p = of_nic(n);
	size_t skip = NIC_HDR, len = 0;
	uint32_t be;

	if (!p->nic.up)
		return 0;
	if (!finish(p))
		return -EAGAIN;
	for (unsigned i = 0; i < niov; i++) {
		size_t cut = skip < iov[i].iov_len ? skip : iov[i].iov_len, part = iov[i].iov_len - cut;

		if (len + part > NIC_MAX_FRAME)
			return -EMSGSIZE;
		if (part)
			memcpy(p->out + LEN_BYTES + len, (const uint8_t *)iov[i].iov_base + cut, part);
		skip -= cut;
		len += part;
	}
	be = htonl((uint32_t)len);
	memcpy(p->out, &be, LEN_BYTES);
	p->out_at = 0;
	p->out_end = LEN_BYTES + len;
	finish(p);
	return 0;
}

/* Events. */

/* Frames that no event of the socket will tell of. */
static void check_more(struct passt *p)
{
	if (p->loop && p->polled & POLLIN && whole_frame(p))
		loop_post(p->loop, &p->more);
}

static void on_more(struct loop_task *t)
{
	struct passt *p = container_of(t, struct passt, more);

	if (p->polled & POLLIN)
		p->client.readable(p->client.dev, 0);
	check_more(p);
}

static void on_ready(struct loop_fd *f, short revents)
{
	struct passt *p = container_of(f, struct passt, ready);

	if (revents & POLLOUT && finish(p) && p->polled & POLLOUT)
		p->client.writable(p->client.dev, 0);
	if (revents & POLLIN && p->polled & POLLIN) {
		p->client.readable(p->client.dev, 0);
		check_more(p);
	} else if (revents & (POLLHUP | POLLERR) && !(revents & POLLIN)) {
		hang_up(p, "it has ended");
	}
}

static void passt_poll(struct nic *n, unsigned pair, short events)
{
	struct passt *p = of_nic(n);
	bool more = events & ~p->polled & POLLIN;

	p->polled = events;
	set_events(p);
	if (more)
		check_more(p);
}

static void passt_attach(struct nic *n, const struct nic_client *client, struct loop *loop)
{
	struct passt *p = of_nic(n);

	p->polled = 0;
	if (p->loop) {
		loop_fd_del(p->loop, &p->ready);
		loop_task_del(p->loop, &p->more);
	}
	p->loop = client ? loop : NULL;
	p->ready = (struct loop_fd){ .fd = p->fd, .cb = on_ready };
	p->more = (struct loop_task){ .cb = on_more };
	if (!client)
		return;
	p->client = *client;
	loop_fd_add(loop, &p->ready);
	set_events(p);
}

static void passt_free(struct nic *n)
{
	struct passt *p = of_nic(n);

	close(p->fd);
	if (p->pid) { /* it ends by itself when its socket does, but it may be busy with its own end */
		kill(p->pid, SIGTERM);
		while (waitpid(p->pid, NULL, 0) < 0 && errno == EINTR)
			;
	}
	free(p);
}

int passt_from_fd(int fd, unsigned mtu, struct nic **out, struct err *err)
{
	static const struct nic_ops ops = {
		.attach = passt_attach, .send = passt_send, .recv = passt_recv, .poll = passt_poll, .free = passt_free
	};
	struct passt *p = malloc(sizeof(*p)); /* the buffers are touched as far as they are used */

	if (!p)
		return err_set(err, -ENOMEM, "out of memory");
	memset(p, 0, offsetof(struct passt, in));
	p->nic = (struct nic){ .ops = &ops, .max_pairs = 1, .mtu = mtu, .up = true };
	p->fd = fd;
	*out = &p->nic;
	return 0;
}

/* Starting it. */

#define CHILD_FD "3"
#define MAX_ARGS (32 + 2 * USER_MAX_FORWARDS)

struct arguments {
	unsigned n;
	char *arg[MAX_ARGS];
	char text[USER_MAX_FORWARDS][64];
	char mtu[16];
};

static void add(struct arguments *a, const char *arg)
{
	a->arg[a->n++] = (char *)(uintptr_t)arg;
}

static void add_all(struct arguments *a, const char *const *args)
{
	while (*args)
		add(a, *args++);
}

/* The network is the one that libslirp would make, so that guests find what they know. */
static void make_arguments(struct arguments *a, const struct user_config *cfg)
{
	static const char *const fixed[] = { "passt",     "--foreground",  "--quiet",   "--fd", CHILD_FD,
		                             "--address", SLIRP_GUEST4,    "--netmask", "24",   "--gateway",
		                             SLIRP_HOST4, "--dns-forward", SLIRP_DNS4,  NULL };

	a->n = 0;
	add_all(a, fixed);
	snprintf(a->mtu, sizeof(a->mtu), "%u", cfg->mtu);
	add(a, "--mtu");
	add(a, a->mtu);
	if (!cfg->egress.hostlo)
		add(a, "--no-map-gw");
	for (unsigned i = 0; i < cfg->nforwards; i++) {
		const struct user_forward *f = &cfg->forward[i];
		char host[INET_ADDRSTRLEN];

		inet_ntop(AF_INET, &f->host.in4, host, sizeof(host));
		snprintf(a->text[i], sizeof(a->text[i]), "%s/%u:%u", host, f->host_port, f->guest_port);
		add(a, f->udp ? "-u" : "-t");
		add(a, a->text[i]);
	}
	add(a, NULL);
}

/* Its process, or a negative errno. @fd becomes its descriptor 3. */
static pid_t spawn(const struct user_config *cfg, int fd)
{
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attr;
	struct arguments a;
	sigset_t none, all;
	pid_t pid;
	int error;

	make_arguments(&a, cfg);
	sigemptyset(&none);
	sigfillset(&all);
	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_adddup2(&files, fd, atoi(CHILD_FD));
	posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setsigdefault(&attr, &all);
	error = posix_spawnp(&pid, "passt", &files, &attr, a.arg, environ);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&files);
	return error ? -error : pid;
}

int passt_new(const struct user_config *cfg, struct nic **out, struct err *err)
{
	int fds[2], error;
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
		return err_sys(err, -errno, "-n passt: a socket");
	pid = spawn(cfg, fds[1]);
	close(fds[1]);
	error = pid < 0 ? pid : passt_from_fd(fds[0], cfg->mtu, out, err);
	if (error) {
		close(fds[0]);
		return err_set(err, error, "-n passt: cannot start passt (%s): install Debian's package passt",
		               strerror(-error));
	}
	of_nic(*out)->pid = pid;
	return 0;
}
