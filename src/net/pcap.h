/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef NET_PCAP_H
#define NET_PCAP_H

#include "base/err.h"
#include "net/nic.h"

/*
 * A nic like @inner, whose frames are written to the new file @path as they
 * pass, in the format of tcpdump and wireshark. @inner belongs to the result;
 * after an error it does not. Whoever goes past the nic (vhost-net) is not seen,
 * so it has no descriptors.
 */
int pcap_new(struct nic *inner, const char *path, struct nic **out, struct err *err);

#endif
