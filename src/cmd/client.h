/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef CMD_CLIENT_H
#define CMD_CLIENT_H

#include "base/err.h"
#include "machine/rundir.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct json_object;

/* The other end of a machine's control socket (docs/control.md). Nothing here waits beyond its deadline. */
struct client {
	char name[RUNDIR_NAME_MAX + 1];
	pid_t pid;  /* 0: not known */
	int pidfd;  /* -1: the process is gone, or pidfd_open(2) is not there */
	int fd;     /* -1: it takes no more connections */
	bool ended; /* the connection: nothing more comes */
	char *buf;
	size_t len;
};

/* Milliseconds of CLOCK_MONOTONIC: deadlines. */
uint64_t now_ms(void);

/* Connects. -ENOENT: no such machine runs. A machine that takes no connections is 0, with fd -1. */
int client_open(const struct rundir *d, const char *name, struct client *c);
void client_close(struct client *c);

/* The next line, the caller's to put; NULL: none until @deadline, or (@ended) never. */
struct json_object *client_recv(struct client *c, uint64_t deadline);

/*
 * Sends {"do": @verb} with @more's members, which it takes (NULL: none), at
 * once: a machine that only finds it after @deadline will refuse it.
 */
void client_send(struct client *c, const char *verb, struct json_object *more, uint64_t deadline);

/* Waits for the greeting. 0; -ETIMEDOUT; -EPIPE: the machine ended meanwhile; -EPROTO: it is no `kvm` we know. */
int client_greeting(struct client *c, uint64_t deadline);

/* True once its process has ended. */
bool client_gone(struct client *c, uint64_t deadline);

/* Why it may not answer, for people. */
const char *client_excuse(const struct client *c, char *buf, size_t len);

/*
 * All machines that live, sorted; what dead ones left is removed. The caller
 * closes each and frees the array. Count or -errno with a text.
 */
int client_open_all(struct client **out, struct err *err);

/* The machine @name, or without one (NULL) the only one that runs. 0, or the exit status after having said why. */
int client_pick(const char *command, const char *name, struct client *out);

#endif
