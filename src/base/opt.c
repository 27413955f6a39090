// SPDX-License-Identifier: GPL-2.0-or-later
#include "base/opt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char digits[] = "0123456789";

int opt_size(const char *what, const char *s, uint64_t unit, uint64_t *out, struct err *err)
{
	static const char suffix[] = "KkMmGgTt";
	size_t n = strspn(s, digits);
	char *end;
	uint64_t v;

	errno = 0;
	v = strtoull(s, &end, 10);
	if (*end) {
		const char *p = strchr(suffix, *end);

		if (!p || end[1])
			n = 0;
		else
			unit = 1ull << (10 * ((p - suffix) / 2 + 1));
	}
	if (!n)
		return err_set(err, -EINVAL, "%s: '%s' is not a size: a number, with K, M, G or T", what, s);
	if (errno || __builtin_mul_overflow(v, unit, out))
		return err_set(err, -ERANGE, "%s: %s is too large", what, s);
	return 0;
}

int opt_uint(const char *what, const char *s, unsigned min, unsigned max, unsigned *out, struct err *err)
{
	size_t n = strspn(s, digits);
	unsigned long v;

	errno = 0;
	v = strtoul(s, NULL, 10);
	if (!n || s[n])
		return err_set(err, -EINVAL, "%s: '%s' is not a number", what, s);
	if (errno || v < min || v > max)
		return err_set(err, -ERANGE, "%s: %s is not between %u and %u", what, s, min, max);
	*out = (unsigned)v;
	return 0;
}

int opt_seconds(const char *what, const char *s, uint64_t *ns, struct err *err)
{
	size_t n = strspn(s, "0123456789.");
	char *end;
	double v;

	v = strtod(s, &end); /* too many digits: infinite; too small a fraction: 0 */
	if (!n || s[n] || *end)
		return err_set(err, -EINVAL, "%s: '%s' is not a number of seconds", what, s);
	if (v > 315360000)
		return err_set(err, -ERANGE, "%s: %s seconds is too long", what, s);
	*ns = (uint64_t)(v * 1e9);
	return 0;
}
