// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Compressed modules
 *
 * How it works: the compressed file is read as a whole, and a codec is driven
 * over it one step at a time, into a buffer that doubles when it is full. The
 * three libraries have the same shape (bytes in, bytes out, "more" or "done"),
 * so a codec is a table entry and the loop is here once. zlib is linked;
 * libzstd and liblzma are loaded when a file needs them (see library.h).
 *
 * A file that ends early, or that has bytes left over that are not another
 * stream or frame, is an error. Output is limited to FILE_MAX.
 */
#include "guest/initramfs_unpack.h"
#include "guest/file.h"
#include "base/library.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#ifdef HAVE_LZMA
#include <lzma.h>
#endif
#ifdef HAVE_ZSTD
#include <zstd.h>
#endif

#define FIRST_ROOM (256u << 10)
#define LZMA_MEM   (256u << 20) /* xz -9 needs 65 MiB */

enum step { STEP_MORE, STEP_DONE, STEP_BAD };

struct stream {
	const uint8_t *in;
	size_t in_len, in_pos;
	uint8_t *out;
	size_t out_cap, out_pos;
	void *lib;
	void *state; /* the codec's */
};

struct codec {
	const char *suffix;
	int (*open)(struct stream *s, struct err *err);
	enum step (*step)(struct stream *s);
	void (*close)(struct stream *s);
};

static int gzip_open(struct stream *s, struct err *err)
{
	z_stream *z = calloc(1, sizeof(*z));

	/* 16: a gzip header */
	if (!z || inflateInit2(z, 16 + MAX_WBITS) != Z_OK) {
		free(z);
		return err_set(err, -ENOMEM, "zlib: no memory");
	}
	s->state = z;
	return 0;
}

static enum step gzip_step(struct stream *s)
{
	z_stream *z = s->state;
	int r;

	z->next_in = (uint8_t *)s->in + s->in_pos;
	z->avail_in = (unsigned)(s->in_len - s->in_pos);
	z->next_out = s->out + s->out_pos;
	z->avail_out = (unsigned)(s->out_cap - s->out_pos);
	r = inflate(z, Z_NO_FLUSH);
	s->in_pos = s->in_len - z->avail_in;
	s->out_pos = s->out_cap - z->avail_out;
	if (r == Z_OK || r == Z_BUF_ERROR)
		return STEP_MORE;
	if (r != Z_STREAM_END)
		return STEP_BAD;
	if (s->in_pos == s->in_len)
		return STEP_DONE;
	return inflateReset(z) == Z_OK ? STEP_MORE : STEP_BAD; /* gzip files may be put behind one another */
}

static void gzip_close(struct stream *s)
{
	inflateEnd(s->state);
	free(s->state);
}

#ifdef HAVE_LZMA
struct xz {
	typeof(lzma_stream_decoder) *decoder;
	typeof(lzma_code) *code;
	typeof(lzma_end) *end;
	lzma_stream stream;
};

static int xz_open(struct stream *s, struct err *err)
{
	static const struct library_fn fns[] = {
		LIBRARY_FN(struct xz, decoder, lzma_stream_decoder),
		LIBRARY_FN(struct xz, code, lzma_code),
		LIBRARY_FN(struct xz, end, lzma_end),
		{},
	};
	static const struct library lzma = { .soname = "liblzma.so.5", .package = "liblzma5", .fns = fns };
	struct xz *x = calloc(1, sizeof(*x));
	int error;

	if (!x)
		return err_set(err, -ENOMEM, "liblzma: no memory");
	error = library_open(&lzma, x, &s->lib, err);
	x->stream = (lzma_stream)LZMA_STREAM_INIT;
	if (!error && x->decoder(&x->stream, LZMA_MEM, LZMA_CONCATENATED) != LZMA_OK)
		error = err_set(err, -ENOMEM, "liblzma: no memory");
	if (error)
		free(x);
	else
		s->state = x;
	return error;
}

static enum step xz_step(struct stream *s)
{
	struct xz *x = s->state;
	lzma_ret r;

	x->stream.next_in = s->in + s->in_pos;
	x->stream.avail_in = s->in_len - s->in_pos;
	x->stream.next_out = s->out + s->out_pos;
	x->stream.avail_out = s->out_cap - s->out_pos;
	r = x->code(&x->stream, LZMA_FINISH);
	s->in_pos = s->in_len - x->stream.avail_in;
	s->out_pos = s->out_cap - x->stream.avail_out;
	if (r == LZMA_OK || r == LZMA_BUF_ERROR)
		return STEP_MORE;
	return r == LZMA_STREAM_END ? STEP_DONE : STEP_BAD;
}

static void xz_close(struct stream *s)
{
	struct xz *x = s->state;

	x->end(&x->stream);
	free(x);
}
#endif

#ifdef HAVE_ZSTD
struct zst {
	typeof(ZSTD_createDStream) *create;
	typeof(ZSTD_decompressStream) *decompress;
	typeof(ZSTD_isError) *is_error;
	typeof(ZSTD_freeDStream) *release;
	ZSTD_DStream *stream;
};

static int zst_open(struct stream *s, struct err *err)
{
	static const struct library_fn fns[] = {
		LIBRARY_FN(struct zst, create, ZSTD_createDStream),
		LIBRARY_FN(struct zst, decompress, ZSTD_decompressStream),
		LIBRARY_FN(struct zst, is_error, ZSTD_isError),
		LIBRARY_FN(struct zst, release, ZSTD_freeDStream),
		{},
	};
	static const struct library zstd = { .soname = "libzstd.so.1", .package = "libzstd1", .fns = fns };
	struct zst *z = calloc(1, sizeof(*z));
	int error;

	if (!z)
		return err_set(err, -ENOMEM, "libzstd: no memory");
	error = library_open(&zstd, z, &s->lib, err);
	if (!error) {
		z->stream = z->create();
		if (!z->stream)
			error = err_set(err, -ENOMEM, "libzstd: no memory");
	}
	if (error)
		free(z);
	else
		s->state = z;
	return error;
}

static enum step zst_step(struct stream *s)
{
	struct zst *z = s->state;
	ZSTD_inBuffer in = { .src = s->in, .size = s->in_len, .pos = s->in_pos };
	ZSTD_outBuffer out = { .dst = s->out, .size = s->out_cap, .pos = s->out_pos };
	size_t r = z->decompress(z->stream, &out, &in);

	s->in_pos = in.pos;
	s->out_pos = out.pos;
	if (z->is_error(r))
		return STEP_BAD;
	return !r && in.pos == in.size ? STEP_DONE : STEP_MORE; /* 0: a frame is complete */
}

static void zst_close(struct stream *s)
{
	struct zst *z = s->state;

	z->release(z->stream);
	free(z);
}
#endif

static const struct codec codecs[] = {
	{ ".gz", gzip_open, gzip_step, gzip_close },
#ifdef HAVE_LZMA
	{ ".xz", xz_open, xz_step, xz_close },
#else
	{ .suffix = ".xz" },
#endif
#ifdef HAVE_ZSTD
	{ ".zst", zst_open, zst_step, zst_close },
#else
	{ .suffix = ".zst" },
#endif
};

static const struct codec *find_codec(const char *path)
{
	size_t len = strlen(path);

	for (size_t i = 0; i < sizeof(codecs) / sizeof(codecs[0]); i++) {
		size_t n = strlen(codecs[i].suffix);

		if (len > n && !strcmp(path + len - n, codecs[i].suffix))
			return &codecs[i];
	}
	return NULL;
}

size_t unpack_stem(const char *path)
{
	const struct codec *c = find_codec(path);

	return strlen(path) - (c ? strlen(c->suffix) : 0);
}

bool unpack_wanted(const char *path)
{
	return find_codec(path) != NULL;
}

static int make_room(struct stream *s, const char *path, struct err *err)
{
	size_t cap = s->out_cap ? 2 * s->out_cap : FIRST_ROOM;
	uint8_t *p;

	if (s->out_pos < s->out_cap)
		return 0;
	if (cap > FILE_MAX)
		return err_set(err, -EFBIG, "%s: unpacks to more than 1 GiB, not what it should be", path);
	p = realloc(s->out, cap);
	if (!p)
		return err_sys(err, -ENOMEM, "%s", path);
	s->out = p;
	s->out_cap = cap;
	return 0;
}

static int run(const struct codec *c, struct stream *s, const char *path, struct err *err)
{
	enum step r = STEP_MORE;

	while (r == STEP_MORE) {
		size_t in = s->in_pos, out = s->out_pos;
		int error = make_room(s, path, err);

		if (error)
			return error;
		r = c->step(s);
		if (r == STEP_MORE && in == s->in_pos && out == s->out_pos)
			return err_set(err, -EBADMSG, "%s: the compressed data end too early", path);
	}
	if (r == STEP_BAD)
		return err_set(err, -EBADMSG, "%s: the compressed data are damaged", path);
	if (!s->out_pos)
		return err_set(err, -EBADMSG, "%s: nothing in the compressed file", path);
	return 0;
}

static int unpack(const struct codec *c, struct stream *s, const char *path, struct err *err)
{
	int error = c->open(s, err);

	if (!error) {
		error = run(c, s, path, err);
		c->close(s);
	}
	library_close(s->lib);
	return error;
}

int unpack_file(const char *path, uint8_t **data, uint64_t *size, struct err *err)
{
	const struct codec *c = find_codec(path);
	struct stream s = { 0 };
	uint8_t *in;
	uint64_t len;
	int error;

	if (!c || !c->open)
		return err_set(err, -ENOTSUP, "%s: this kvm was built without what unpacks it", path);
	error = file_load(path, &in, &len, err);
	if (error)
		return error;
	s.in = in;
	s.in_len = len;
	error = unpack(c, &s, path, err);
	free(in);
	if (error) {
		free(s.out);
		return error;
	}
	*data = s.out;
	*size = s.out_pos;
	return 0;
}
