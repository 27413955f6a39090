// SPDX-License-Identifier: GPL-2.0-or-later
#include "machine/unpack_kernel.h"

#include "base/io.h"
#include "base/log.h"
#include "base/unpack.h"
#include "machine/kernel_cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Linux' build puts the length of what comes out behind every kind of compressed data; gzip's own end has it. */
#define LENGTH_LEN 4

static uint64_t length_at(const uint8_t *p)
{
	return p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24;
}

/* Only what may be kept is worth unpacking, or it would be done at every start. */
static int unpack_data(const struct kcache *c, struct unpack_source *src, uint8_t **out, uint64_t *size,
                       struct err *err)
{
	int error;

	src->format = unpack_format(src->data, src->len);
	src->expect = length_at(src->data + src->len - LENGTH_LEN);
	if (src->format != UNPACK_GZIP)
		src->len -= LENGTH_LEN;
	if (!src->expect)
		return err_set(err, -EBADMSG, "%s: nothing is compressed in it", src->name);
	error = kcache_may_keep(c, src->expect, err);
	return error ? error : unpack(src, out, size, err);
}

static int read_and_unpack(const struct kcache *c, const struct arch_packed *p, const char *path, uint8_t **out,
                           uint64_t *size, struct err *err)
{
	struct unpack_source src = { .name = path, .len = p->len };
	uint8_t *in;
	int error;

	if (p->len <= LENGTH_LEN || p->len > UNPACK_MAX)
		return err_set(err, -EBADMSG, "%s: nothing is compressed in it", path);
	in = malloc(p->len);
	if (!in)
		return err_sys(err, -ENOMEM, "%s", path);
	src.data = in;
	error = read_at(p->fd, in, p->len, p->offset);
	error = error ? err_sys(err, error, "%s", path) : unpack_data(c, &src, out, size, err);
	free(in);
	return error;
}

/* Returns a descriptor, whose first @size bytes are the kernel, or an error. */
static int unpack_anew(const struct kcache *c, const struct kcache_key *key, const struct arch_packed *p,
                       const char *path, uint64_t *size, struct err *err)
{
	struct kcache_key now = { 0 };
	uint8_t *data = NULL;
	int fd = read_and_unpack(c, p, path, &data, size, err);

	if (fd)
		return fd;
	if (kcache_key(p->fd, p->offset, p->len, &now) || memcmp(&now, key, sizeof(now)))
		fd = err_set(err, -ESTALE, "%s: changed while it was being read", path);
	else
		fd = kcache_put(c, key, data, *size, err);
	free(data);
	return fd;
}

static int find_or_unpack(const struct kcache *c, const struct arch_packed *p, const char *path, uint64_t *size,
                          struct err *err)
{
	struct kcache_key key;
	int fd = kcache_key(p->fd, p->offset, p->len, &key);

	if (fd)
		return err_sys(err, fd, "%s", path);
	fd = kcache_find(c, &key, size);
	return fd >= 0 ? fd : unpack_anew(c, &key, p, path, size, err);
}

void unpack_kernel(struct arch_image *im, const char *path)
{
	struct arch_packed p;
	struct kcache c;
	struct err err;
	uint64_t size = 0;
	int fd;

	if (!arch_image_packed(im, &p))
		return;
	fd = kcache_open(&c, &err);
	if (!fd) {
		fd = find_or_unpack(&c, &p, path, &size, &err);
		kcache_close(&c);
	}
	/* It is kept also where it cannot be booted: the next start then sees that at once. */
	if (fd >= 0 && arch_image_set_unpacked(im, fd, size, &err)) {
		close(fd);
		fd = -EINVAL;
	}
	if (fd < 0)
		log_verbose("the guest unpacks its kernel itself: %s", err.msg);
}
