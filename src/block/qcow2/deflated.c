// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/qcow2/qcow2.h"

#include "base/library.h"

#include <errno.h>
#include <zlib.h>
#ifdef HAVE_ZSTD
#include <zstd.h>
#endif

/*
 * Compressed clusters to bytes and back. The data of a cluster ends somewhere
 * in its last sector, so what counts is that a whole cluster comes out.
 */

static int inflate_zlib(const void *in, size_t len, void *out, size_t size)
{
	z_stream z = { .next_in = (Bytef *)in, .avail_in = (uInt)len, .next_out = out, .avail_out = (uInt)size };
	int r;

	if (inflateInit2(&z, -15) != Z_OK) /* raw deflate, any window */
		return -ENOMEM;
	r = inflate(&z, Z_FINISH);
	inflateEnd(&z);
	return !z.avail_out && (r == Z_STREAM_END || r == Z_BUF_ERROR || r == Z_OK) ? 0 : -EIO;
}

static size_t deflate_zlib(const void *in, void *out, size_t size)
{
	z_stream z = { .next_in = (Bytef *)in, .avail_in = (uInt)size, .next_out = out, .avail_out = (uInt)size - 1 };
	int r;

	/* Other readers take windows of at most 4 KiB. */
	if (deflateInit2(&z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -12, 9, Z_DEFAULT_STRATEGY) != Z_OK)
		return 0;
	r = deflate(&z, Z_FINISH);
	deflateEnd(&z);
	return r == Z_STREAM_END ? z.total_out : 0;
}

#ifdef HAVE_ZSTD
struct libzstd {
	typeof(ZSTD_compress) *compress;
	typeof(ZSTD_createDStream) *create;
	typeof(ZSTD_decompressStream) *decompress;
	typeof(ZSTD_freeDStream) *free;
	typeof(ZSTD_isError) *is_error;
};

static const struct library_fn zstd_fns[] = {
	LIBRARY_FN(struct libzstd, compress, ZSTD_compress),
	LIBRARY_FN(struct libzstd, create, ZSTD_createDStream),
	LIBRARY_FN(struct libzstd, decompress, ZSTD_decompressStream),
	LIBRARY_FN(struct libzstd, free, ZSTD_freeDStream),
	LIBRARY_FN(struct libzstd, is_error, ZSTD_isError),
	{ NULL, 0 },
};
static const struct library zstd_library = { .soname = "libzstd.so.1", .package = "libzstd1", .fns = zstd_fns };

/* Loaded once for all images, and never unloaded. */
static pthread_once_t zstd_once = PTHREAD_ONCE_INIT;
static struct libzstd zstd;
static int zstd_error;
static struct err zstd_text;

static void zstd_load(void)
{
	void *handle;

	zstd_error = library_open(&zstd_library, &zstd, &handle, &zstd_text);
}

static int inflate_zstd(const void *in, size_t len, void *out, size_t size)
{
	ZSTD_inBuffer src = { in, len, 0 };
	ZSTD_outBuffer dst = { out, size, 0 };
	ZSTD_DStream *s = zstd.create();
	size_t was, r = 0;

	if (!s)
		return -ENOMEM;
	do {
		was = src.pos + dst.pos;
		r = zstd.decompress(s, &dst, &src);
	} while (!zstd.is_error(r) && dst.pos < size && src.pos + dst.pos > was);
	zstd.free(s);
	return dst.pos == size ? 0 : -EIO;
}

#define ZSTD_LEVEL 3 /* zstd's own default */

static size_t deflate_zstd(const void *in, void *out, size_t size)
{
	size_t n = zstd.compress(out, size - 1, in, size, ZSTD_LEVEL);

	return zstd.is_error(n) ? 0 : n;
}

int qcow2_compression_load(enum qcow2_compression type, struct err *err)
{
	if (type != QCOW2_ZSTD)
		return 0;
	pthread_once(&zstd_once, zstd_load);
	if (zstd_error)
		*err = zstd_text;
	return zstd_error;
}
#else
static int inflate_zstd(const void *in, size_t len, void *out, size_t size)
{
	return -EIO; /* never opened */
}

static size_t deflate_zstd(const void *in, void *out, size_t size)
{
	return 0;
}

int qcow2_compression_load(enum qcow2_compression type, struct err *err)
{
	return type == QCOW2_ZSTD ? err_set(err, -ENOTSUP, "zstd compression is not built in") : 0;
}
#endif

int qcow2_inflate_cluster(enum qcow2_compression type, const void *in, size_t len, void *out, size_t size)
{
	return type == QCOW2_ZSTD ? inflate_zstd(in, len, out, size) : inflate_zlib(in, len, out, size);
}

size_t qcow2_deflate_cluster(enum qcow2_compression type, const void *in, void *out, size_t size)
{
	return type == QCOW2_ZSTD ? deflate_zstd(in, out, size) : deflate_zlib(in, out, size);
}
