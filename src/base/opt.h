/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BASE_OPT_H
#define BASE_OPT_H

#include "base/err.h"

#include <stdint.h>

/*
 * Values of options. @what names the option in messages. Each returns 0, or
 * -EINVAL/-ERANGE with a text that shows what was given and what is taken.
 */

/* A size: digits and K, M, G or T (any case); a plain number counts @unit bytes. Result in bytes. */
int opt_size(const char *what, const char *s, uint64_t unit, uint64_t *out, struct err *err);

/* A decimal number from @min to @max. */
int opt_uint(const char *what, const char *s, unsigned min, unsigned max, unsigned *out, struct err *err);

/* Seconds with an optional fraction, at most ten years. Result in nanoseconds. */
int opt_seconds(const char *what, const char *s, uint64_t *ns, struct err *err);

#endif
