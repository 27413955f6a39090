/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef NET_SLIRP_NET_H
#define NET_SLIRP_NET_H

/* The network that libslirp makes for the guest: each has its own, so that the addresses can always be these. */
#define SLIRP_NET4   "10.0.2.0"
#define SLIRP_MASK4  "255.255.255.0"
#define SLIRP_HOST4  "10.0.2.2" /* gateway */
#define SLIRP_DNS4   "10.0.2.3" /* relay */
#define SLIRP_GUEST4 "10.0.2.15"
#define SLIRP_NET6   "fd00::"
#define SLIRP_LEN6   64
#define SLIRP_HOST6  "fd00::2"
#define SLIRP_DNS6   "fd00::3"

#endif
