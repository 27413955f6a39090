/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef GUEST_FRAMES_H
#define GUEST_FRAMES_H

#include <stdint.h>

/*
 * What the host and our init say to each other on the port FRAME_PORT of the
 * console device, and `kvm exec` and a machine on their socket: frames, each a
 * header and its payload, little-endian. docs/channel.md tells it in full.
 *
 * A session is a command with its three streams. Whoever sends on a stream may
 * have FRAME_WINDOW bytes under way, and more as the reader grants it; other
 * frames need no credit. FRAME_EXIT is a session's last frame.
 */
#define FRAME_PORT      "kvm.init"
#define FRAME_VERSION   1
#define FRAME_WINDOW    65536u
#define FRAME_DATA_MAX  16384u   /* payload of a FRAME_DATA */
#define FRAME_START_MAX 1048576u /* payload of a FRAME_START, the longest of all */

enum frame_type {
	FRAME_HELLO = 1, /* init: it serves; @len 4: FRAME_VERSION */
	FRAME_START,     /* host: run a command: struct frame_start and strings */
	FRAME_STARTED,   /* init: it has been run, or cannot be (then standard error and FRAME_EXIT say so) */
	FRAME_DATA,      /* bytes of @stream */
	FRAME_END,       /* the sender has no more for @stream; or, from its reader: nobody reads it */
	FRAME_CREDIT,    /* @len 4: so many more bytes may be sent on @stream */
	FRAME_SIGNAL,    /* host: @len 4: a signal for the command's process group */
	FRAME_SIZE,      /* host: struct frame_size: the terminal's, from now on */
	FRAME_EXIT,      /* init: @len 4: the exit status, 128 + n for signal n */
	FRAME_POWEROFF,  /* host, session 0: end what runs, and power off */
};

struct frame {
	uint8_t type;
	uint8_t stream; /* 0, 1, 2: as the command's descriptors */
	uint16_t session;
	uint32_t len; /* of the payload */
};

struct frame_size {
	uint16_t cols, rows;
};

#define FRAME_TTY    1u /* standard input and output are a terminal */
#define FRAME_TTYERR 2u /* standard error too */
#define FRAME_MAIN   4u /* the machine is there for this command, and ends with it */

/* Then @nargs arguments (0: a login shell), @nenv times NAME=VALUE and the directory, each ended by a NUL. */
struct frame_start {
	uint32_t flags;
	struct frame_size size;
	uint32_t nargs, nenv;
};

#endif
