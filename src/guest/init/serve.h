/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef GUEST_INIT_SERVE_H
#define GUEST_INIT_SERVE_H

#include "guest/frames.h"

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * The host's commands (docs/channel.md). serve.c has the port, its frames and
 * the loop; job.c has a command with its streams.
 */

/* serve.c */

/* The host's port, opened; waits until @deadline (now_ms()) for it. -1: there is none. */
int port_open(int64_t deadline);

/*
 * Serves the port @fd. As PID 1 it returns once the main command has ended, or
 * the machine is to: *@main_status is the command's, or -1. In another process
 * it does not return.
 */
enum serve_end { SERVE_ENDED, SERVE_POWEROFF, SERVE_REBOOT };
enum serve_end serve(int fd, int *main_status);

/* Says the main command's status, the last thing to be said. */
void serve_exit(int fd, int status);

/* Puts a frame into the queue for the host. */
void send_frame(enum frame_type type, unsigned session, unsigned stream, const void *payload, size_t len);
void send_value(enum frame_type type, unsigned session, unsigned stream, uint32_t value);
bool send_crowded(void); /* no more data now */

/* job.c */

#define JOB_FDS 3 /* descriptors that a job wants polled */

struct job {
	struct job *next;
	unsigned session;
	uint32_t flags;
	pid_t pid;      /* 0: it has ended */
	int status;     /* once it has */
	int in, out[2]; /* our ends; -1: closed. With a terminal @in and out[0] are both its master side */
	uint32_t credit[2];
	bool in_ended;        /* the host sends no more */
	size_t in_at, in_len; /* what @in has not taken yet, in a ring */
	uint8_t in_buf[FRAME_WINDOW];
};

struct job *job_start(unsigned session, const uint8_t *payload, size_t len); /* NULL: no memory */
void job_free(struct job *j);

void job_input(struct job *j, const uint8_t *buf, size_t len);
void job_input_end(struct job *j);
void job_unread(struct job *j, unsigned stream); /* nobody reads it: as a closed pipe */
void job_credit(struct job *j, unsigned stream, uint32_t n);
void job_signal(struct job *j, int sig);
void job_size(struct job *j, const struct frame_size *size);
void job_ended(struct job *j, int wait_status); /* its process has; what its pipes hold is still to come */

/* Fills in JOB_FDS entries (fd -1: not now), then looks at what poll() said. */
void job_poll(const struct job *j, struct pollfd *p);
void job_polled(struct job *j, const struct pollfd *p);

/* Its process has ended and everything that its pipes held is sent. */
bool job_done(struct job *j);

#endif
