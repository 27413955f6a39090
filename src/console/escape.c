// SPDX-License-Identifier: GPL-2.0-or-later
#include "console/escape.h"

#define ESCAPE_KEY 0x01 /* ^A */

static enum escape_action second_byte(uint8_t byte, uint8_t out[2], size_t *n)
{
	switch (byte) {
	case 'x': return ESCAPE_END;
	case 'h':
	case '?': return ESCAPE_HELP;
	}
	out[(*n)++] = ESCAPE_KEY;
	if (byte != ESCAPE_KEY)
		out[(*n)++] = byte;
	return ESCAPE_NONE;
}

enum escape_action escape_feed(struct escape *e, uint8_t byte, uint8_t out[2], size_t *n)
{
	*n = 0;
	if (e->held) {
		e->held = false;
		return second_byte(byte, out, n);
	}
	if (byte == ESCAPE_KEY)
		e->held = true;
	else
		out[(*n)++] = byte;
	return ESCAPE_NONE;
}
