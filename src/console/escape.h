/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef CONSOLE_ESCAPE_H
#define CONSOLE_ESCAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The escape key of a terminal: ^A, then
 *	x	end the VM
 *	^A	one ^A for the guest
 *	h or ?	help
 *	other	^A and the other byte for the guest, so that ^A is still "start
 *		of line" for somebody who goes on typing
 * A pure state machine: it holds back the ^A until the next byte, which may
 * be in a later read, and nothing else. Zeroed is its initial state.
 */
struct escape {
	bool held; /* a ^A waits for its second byte */
};

enum escape_action { ESCAPE_NONE, ESCAPE_END, ESCAPE_HELP };

/* Feeds one byte. Stores the 0, 1 or 2 bytes for the guest in @out and their number in @n. */
enum escape_action escape_feed(struct escape *e, uint8_t byte, uint8_t out[2], size_t *n);

#endif
