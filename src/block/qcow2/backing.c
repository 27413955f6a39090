// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/qcow2/qcow2.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * The image below. Its name counts from the directory in which the image itself
 * lies, wherever a symbolic link to it may be. Before anything below is opened,
 * the chain is walked by the headers alone, so that a loop is told at once.
 */

#define CHAIN_MAX 200

/* The path that @name means in the image at @path. -ENOTSUP: it is not a file's. */
static int resolve(const char *path, const char *name, char out[PATH_MAX], struct err *err)
{
	const char *colon = strchr(name, ':'), *slash = strchr(name, '/');
	char real[PATH_MAX], *end;
	int n;

	if (!strncmp(name, "file:", 5))
		name += 5;
	else if (colon && (!slash || colon < slash))
		return err_set(err, -ENOTSUP, "%s: its backing file is %.200s, which is not a file's name", path, name);
	if (!realpath(path, real))
		snprintf(real, sizeof(real), "%s", path); /* what is wrong with it is told when it is opened */
	end = strrchr(real, '/');
	n = *name == '/' || !end ? snprintf(out, PATH_MAX, "%s", name)
	                         : snprintf(out, PATH_MAX, "%.*s/%s", (int)(end - real), real, name);
	return n < PATH_MAX ? 0 : err_set(err, -ENAMETOOLONG, "%s: the path of its backing file is too long", path);
}

static int read_header(int fd, const char *path, struct qcow2_header *h)
{
	uint8_t head[512], *buf;
	unsigned bits;
	struct err err;
	ssize_t n = pread(fd, head, sizeof(head), 0);
	int error = n < 0 ? -EIO : qcow2_header_cluster_bits(head, (size_t)n, path, &bits, &err);

	if (error)
		return error;
	buf = malloc(1ull << bits);
	if (!buf)
		return -ENOMEM;
	n = pread(fd, buf, 1ull << bits, 0);
	error = n < 0 ? -EIO : qcow2_header_parse(buf, (size_t)n, path, h, &err);
	free(buf);
	return error;
}

/* The header of the image at @path; -EINVAL: it has none. */
static int peek(const char *path, struct qcow2_header *h, struct stat *st)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), error;

	if (fd < 0)
		return -errno;
	error = fstat(fd, st) ? -errno : read_header(fd, path, h);
	close(fd);
	return error;
}

static bool same(const struct stat *a, const struct stat *b)
{
	return S_ISBLK(a->st_mode) && S_ISBLK(b->st_mode) ? a->st_rdev == b->st_rdev
	                                                  : a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Walks down from the image at @path. What cannot be read is told by whoever opens it. */
static int check_chain(const char *top, struct err *err)
{
	struct stat seen[CHAIN_MAX];
	struct qcow2_header h = { 0 };
	char path[PATH_MAX], below[PATH_MAX];

	snprintf(path, sizeof(path), "%s", top);
	for (unsigned n = 0; n < CHAIN_MAX; n++) {
		int error = peek(path, &h, &seen[n]);

		if (error && error != -EINVAL)
			return 0;
		for (unsigned i = 0; i < n; i++)
			if (same(&seen[i], &seen[n]))
				return err_set(err, -ELOOP, "%s: its chain of backing files comes back to %s", top,
				               path);
		if (error || !h.backing[0] || !strcmp(h.backing_format, "raw") || resolve(path, h.backing, below, err))
			return 0;
		memcpy(path, below, sizeof(path));
	}
	return err_set(err, -ELOOP, "%s: its chain of backing files is longer than %u", top, CHAIN_MAX);
}

static int format_of(const struct qcow2 *im, const char *path, enum blk_format *format, struct err *err)
{
	const char *name = im->h.backing_format;
	struct qcow2_header h = { 0 };
	struct stat st;

	*format = BLK_GUESS;
	if (!strcmp(name, "qcow2"))
		*format = BLK_QCOW2;
	else if (!strcmp(name, "raw") || !strcmp(name, "file") || !strcmp(name, "host_device"))
		*format = BLK_RAW;
	else if (name[0])
		return err_set(err, -ENOTSUP, "%s: its backing file %s has the format %s, which kvm does not have",
		               im->blk.name, path, name);
	/* Whoever could write a raw image could else make it name any file of the host. */
	if (*format == BLK_GUESS && !peek(path, &h, &st) && h.backing[0])
		return err_set(err, -EPERM,
		               "%s: the format of its backing file %s is not recorded, and it names another file "
		               "itself: record it with qemu-img rebase -u -F",
		               im->blk.name, path);
	return 0;
}

int qcow2_backing_open(struct qcow2 *im, const struct blk_options *opt, struct err *err)
{
	struct blk_options below = { .cache = opt->cache, .read_only = true };
	char path[PATH_MAX];
	struct err why;
	int error;

	if (!im->h.backing[0])
		return 0;
	error = resolve(im->blk.name, im->h.backing, path, err);
	if (!error)
		error = check_chain(im->blk.name, err);
	if (!error)
		error = format_of(im, path, &below.format, err);
	if (error)
		return error;
	error = blk_open(path, &below, &im->backing, &why);
	if (error)
		return err_set(err, error, "%.200s: backing file: %.700s", im->blk.name, why.msg);
	im->backing_size = blk_size(im->backing) < im->h.size ? blk_size(im->backing) : im->h.size;
	return 0;
}
