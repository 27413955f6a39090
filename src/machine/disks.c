// SPDX-License-Identifier: GPL-2.0-or-later
#include "machine/disks.h"

#include <errno.h>
#include <stdlib.h>

struct disks {
	unsigned n;
	struct blk *image[CONFIG_DISKS_MAX];
};

int disks_open(const struct config *cfg, struct disks **out, struct err *err)
{
	struct disks *d = calloc(1, sizeof(*d));
	int error = 0;

	if (!d)
		return err_set(err, -ENOMEM, "out of memory");
	while (!error && d->n < cfg->ndisks) {
		error = blk_open(cfg->disk[d->n].path, &cfg->disk[d->n].opt, &d->image[d->n], err);
		d->n += !error;
	}
	if (error)
		disks_close(d);
	else
		*out = d;
	return error;
}

void disks_close(struct disks *d)
{
	if (!d)
		return;
	for (unsigned i = 0; i < d->n; i++)
		blk_close(d->image[i]);
	free(d);
}

struct blk *disks_image(struct disks *d, unsigned i)
{
	return d->image[i];
}
