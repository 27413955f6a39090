// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/block_impl.h"

#include <errno.h>

int blk_cow_open(struct blk *below, struct blk **out, struct err *err)
{
	return err_set(err, -ENOTSUP, "%s: cow comes with a later version", blk_name(below));
}
