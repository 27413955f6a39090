// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/block_impl.h"
#include "block/qcow2/qcow2.h"

#include <errno.h>
#include <string.h>

#define MAGIC(s) .magic = (s), .magic_len = sizeof(s) - 1

/*
 * What an image's first 512 bytes can look like. Not all of these can be
 * opened; but a guest must not make a raw disk look like one of them.
 */
const struct blk_format_entry blk_formats[] = {
	{ .name = "qcow2", .format = BLK_QCOW2, MAGIC("QFI\xfb"), .open = qcow2_open },
	{ .name = "qed", MAGIC("QED\0") },
	{ .name = "vmdk", MAGIC("KDMV") },
	{ .name = "vmdk", MAGIC("COWD") },
	{ .name = "vmdk", MAGIC("# Disk DescriptorFile") },
	{ .name = "vdi", .at = 64, MAGIC("\x7f\x10\xda\xbe") },
	{ .name = "vhdx", MAGIC("vhdxfile") },
	{ .name = "vhd", MAGIC("conectix") },
	{ .name = "luks", MAGIC("LUKS\xba\xbe") },
	{ .name = "parallels", MAGIC("WithoutFreeSpace") },
	{ .name = "parallels", MAGIC("WithouFreSpacExt") },
	{ .name = "bochs", MAGIC("Bochs Virtual HD Image") },
	{ .name = "cloop", MAGIC("#!/bin/sh\n#V2.0 Format\n") },
	{ .name = NULL },
};

const struct blk_format_entry *blk_probe(const uint8_t *head, size_t n)
{
	for (const struct blk_format_entry *e = blk_formats; e->name; e++)
		if (n >= e->at + e->magic_len && !memcmp(head + e->at, e->magic, e->magic_len))
			return e;
	return NULL;
}

static const struct blk_format_entry *asked_for(enum blk_format format)
{
	for (const struct blk_format_entry *e = blk_formats; e->name; e++)
		if (e->format == format)
			return e;
	return NULL;
}

static int read_head(struct blk *file, uint8_t *head, size_t *n, struct err *err)
{
	int error;

	*n = blk_size(file) < 512 ? blk_size(file) : 512;
	error = blk_do(file, BLK_READ, 0, 0, head, *n);
	return error ? err_sys(err, error, "%s: read", blk_name(file)) : 0;
}

static int open_raw(struct blk *file, const struct blk_options *opt, struct blk **out, struct err *err)
{
	bool guard = opt->format == BLK_GUESS && !blk_info(file)->read_only;
	int error = guard ? blk_file_use(file, BLK_FILE_GUARDED, err) : 0;

	*out = file;
	return error;
}

static int open_format(struct blk *file, const struct blk_format_entry *e, const struct blk_options *opt,
                       struct blk **out, struct err *err)
{
	int error;

	if (!e->open)
		return err_set(err, -ENOTSUP, "%s: %s images come with a later version; format=raw takes it as it is",
		               blk_name(file), e->name);
	error = blk_file_use(file, BLK_FILE_GROWS, err); /* read-only, too: the last cluster may be cut short */
	return error ? error : e->open(file, opt, out, err);
}

/* What @opt asks for on @file, which is owned by *@out if that is made. */
static int open_on(struct blk *file, const struct blk_options *opt, struct blk **out, struct err *err)
{
	const struct blk_format_entry *e = NULL;
	uint8_t head[512];
	size_t n;
	int error = 0;

	if (opt->format == BLK_GUESS)
		error = read_head(file, head, &n, err);
	if (error)
		return error;
	e = opt->format == BLK_GUESS ? blk_probe(head, n) : asked_for(opt->format);
	return e ? open_format(file, e, opt, out, err) : open_raw(file, opt, out, err);
}

int blk_open(const char *path, const struct blk_options *opt, struct blk **out, struct err *err)
{
	struct blk_options below = *opt;
	struct blk *b = NULL, *image = NULL;
	int error;

	below.read_only |= opt->cow;
	error = blk_file_open(path, &below, &b, err);
	if (error)
		return error;
	error = open_on(b, &below, &image, err);
	if (!error)
		b = image;
	if (!error && opt->cow)
		error = blk_cow_open(b, &image, err);
	if (error)
		blk_close(b);
	else
		*out = image;
	return error;
}
