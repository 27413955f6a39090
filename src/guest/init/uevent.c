// SPDX-License-Identifier: GPL-2.0-or-later
#include "guest/init/init.h"

#include <errno.h>
#include <linux/netlink.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/*
 * How it works
 *
 * The kernel multicasts every change of a device. What changed is not read:
 * any event makes the caller look again, which a lost message (ENOBUFS) does
 * as well. Pending messages are drained first, so a burst is one look.
 */
int uevent_open(void)
{
	struct sockaddr_nl addr = { .nl_family = AF_NETLINK, .nl_groups = 1 };
	int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT);

	if (fd >= 0 && bind(fd, (struct sockaddr *)&addr, sizeof(addr))) {
		close(fd);
		fd = -1;
	}
	return fd;
}

void uevent_close(int fd)
{
	if (fd >= 0)
		close(fd);
}

bool uevent_wait(int fd, int64_t deadline)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int64_t left = deadline < 0 ? -1 : deadline - now_ms();
	char buf[64];

	if (deadline >= 0 && left <= 0)
		return false;
	if (fd < 0 && (left < 0 || left > 100))
		left = 100;
	if (poll(&p, 1, (int)left) == 0)
		return fd < 0;
	while (recv(fd, buf, sizeof(buf), 0) >= 0 || errno == ENOBUFS)
		;
	return true;
}
