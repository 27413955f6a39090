// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * How it works
 *
 * A codec is driven over the whole input one step at a time, into a buffer
 * that doubles when it is full, or has its size from the start where that is
 * known. The libraries have the same shape (bytes in, bytes out, "more" or
 * "done"), so a codec is a table entry and the loop is here once. zlib is
 * linked; the others are loaded when they are needed (see library.h).
 *
 * Data that end early, or that go on behind their end with what is not another
 * stream or frame, are an error.
 */
#include "base/unpack.h"
#include "base/library.h"

#include <endian.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#ifdef HAVE_BZIP2
#include <bzlib.h>
#endif
#ifdef HAVE_LZ4
#include <lz4.h>
#endif
#ifdef HAVE_LZMA
#include <lzma.h>
#endif
#ifdef HAVE_ZSTD
#include <zstd.h>
#endif

#define FIRST_ROOM (256u << 10)
#define LZMA_MEM   (256u << 20) /* xz -9 needs 65 MiB */
#define LZ4_BLOCK  (8u << 20)   /* what comes out of a block of the legacy frame, at most */
#define LZ4_MAGIC  0x184c2102u

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
	const char *magic;
	size_t magic_len;
	size_t room; /* that a step wants in the output */
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
	typeof(lzma_stream_decoder) *xz;
	typeof(lzma_alone_decoder) *alone;
	typeof(lzma_code) *code;
	typeof(lzma_end) *end;
	lzma_stream stream;
};

static int lzma_open(struct stream *s, bool alone, struct err *err)
{
	static const struct library_fn fns[] = {
		LIBRARY_FN(struct xz, xz, lzma_stream_decoder),
		LIBRARY_FN(struct xz, alone, lzma_alone_decoder),
		LIBRARY_FN(struct xz, code, lzma_code),
		LIBRARY_FN(struct xz, end, lzma_end),
		{},
	};
	static const struct library lzma = { .soname = "liblzma.so.5", .package = "liblzma5", .fns = fns };
	struct xz *x = calloc(1, sizeof(*x));
	lzma_ret r = LZMA_OK;
	int error;

	if (!x)
		return err_set(err, -ENOMEM, "liblzma: no memory");
	error = library_open(&lzma, x, &s->lib, err);
	x->stream = (lzma_stream)LZMA_STREAM_INIT;
	if (!error)
		r = alone ? x->alone(&x->stream, LZMA_MEM) : x->xz(&x->stream, LZMA_MEM, LZMA_CONCATENATED);
	if (r != LZMA_OK)
		error = err_set(err, -ENOMEM, "liblzma: no memory");
	if (error)
		free(x);
	else
		s->state = x;
	return error;
}

static int xz_open(struct stream *s, struct err *err)
{
	return lzma_open(s, false, err);
}

static int alone_open(struct stream *s, struct err *err)
{
	return lzma_open(s, true, err);
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

#ifdef HAVE_BZIP2
struct bz2 {
	typeof(BZ2_bzDecompressInit) *init;
	typeof(BZ2_bzDecompress) *decompress;
	typeof(BZ2_bzDecompressEnd) *end;
	bz_stream stream;
};

static int bz2_open(struct stream *s, struct err *err)
{
	static const struct library_fn fns[] = {
		LIBRARY_FN(struct bz2, init, BZ2_bzDecompressInit),
		LIBRARY_FN(struct bz2, decompress, BZ2_bzDecompress),
		LIBRARY_FN(struct bz2, end, BZ2_bzDecompressEnd),
		{},
	};
	static const struct library bzip2 = { .soname = "libbz2.so.1.0", .package = "libbz2-1.0", .fns = fns };
	struct bz2 *b = calloc(1, sizeof(*b));
	int error;

	if (!b)
		return err_set(err, -ENOMEM, "libbz2: no memory");
	error = library_open(&bzip2, b, &s->lib, err);
	if (!error && b->init(&b->stream, 0, 0) != BZ_OK)
		error = err_set(err, -ENOMEM, "libbz2: no memory");
	if (error)
		free(b);
	else
		s->state = b;
	return error;
}

static enum step bz2_step(struct stream *s)
{
	struct bz2 *b = s->state;
	int r;

	b->stream.next_in = (char *)s->in + s->in_pos;
	b->stream.avail_in = (unsigned)(s->in_len - s->in_pos);
	b->stream.next_out = (char *)s->out + s->out_pos;
	b->stream.avail_out = (unsigned)(s->out_cap - s->out_pos);
	r = b->decompress(&b->stream);
	s->in_pos = s->in_len - b->stream.avail_in;
	s->out_pos = s->out_cap - b->stream.avail_out;
	if (r == BZ_OK)
		return STEP_MORE;
	return r == BZ_STREAM_END ? STEP_DONE : STEP_BAD;
}

static void bz2_close(struct stream *s)
{
	struct bz2 *b = s->state;

	b->end(&b->stream);
	free(b);
}
#endif

#ifdef HAVE_LZ4
struct lz4 {
	typeof(LZ4_decompress_safe) *decompress;
};

static int lz4_open(struct stream *s, struct err *err)
{
	static const struct library_fn fns[] = { LIBRARY_FN(struct lz4, decompress, LZ4_decompress_safe), {} };
	static const struct library lib = { .soname = "liblz4.so.1", .package = "liblz4-1", .fns = fns };
	struct lz4 *z = calloc(1, sizeof(*z));
	int error;

	if (!z)
		return err_set(err, -ENOMEM, "liblz4: no memory");
	error = library_open(&lib, z, &s->lib, err);
	if (error)
		free(z);
	else
		s->state = z;
	return error;
}

/* A word, and where it is not the magic again, the block whose length it is. */
static enum step lz4_step(struct stream *s)
{
	const struct lz4 *z = s->state;
	size_t left = s->in_len - s->in_pos;
	const uint8_t *in = s->in + s->in_pos;
	uint32_t len;
	int n = 0;

	if (left < sizeof(len))
		return left ? STEP_MORE : STEP_DONE;
	memcpy(&len, in, sizeof(len));
	len = le32toh(len);
	if (len == LZ4_MAGIC)
		len = 0;
	else if (len > left - sizeof(len))
		return STEP_MORE; /* it ends too early */
	else
		n = z->decompress((const char *)in + sizeof(len), (char *)s->out + s->out_pos, (int)len, LZ4_BLOCK);
	s->in_pos += sizeof(len) + len;
	s->out_pos += n > 0 ? (size_t)n : 0;
	return n < 0 ? STEP_BAD : STEP_MORE;
}

static void lz4_close(struct stream *s)
{
	free(s->state);
}
#endif

#define MAGIC(s) .magic = (s), .magic_len = sizeof(s) - 1

/* The magics are those that Linux' own decompressors go by. */
static const struct codec codecs[UNPACK_FORMATS] = {
	[UNPACK_GZIP] = { MAGIC("\x1f\x8b"), 1, gzip_open, gzip_step, gzip_close },
#ifdef HAVE_LZMA
	[UNPACK_XZ] = { MAGIC("\xfd"
	                      "7zXZ\0"),
	                1, xz_open, xz_step, xz_close },
	[UNPACK_LZMA] = { MAGIC("\x5d\0\0"), 1, alone_open, xz_step, xz_close },
#endif
#ifdef HAVE_ZSTD
	[UNPACK_ZSTD] = { MAGIC("\x28\xb5\x2f\xfd"), 1, zst_open, zst_step, zst_close },
#endif
#ifdef HAVE_LZ4
	[UNPACK_LZ4] = { MAGIC("\x02\x21\x4c\x18"), LZ4_BLOCK, lz4_open, lz4_step, lz4_close },
#endif
#ifdef HAVE_BZIP2
	[UNPACK_BZIP2] = { MAGIC("BZh"), 1, bz2_open, bz2_step, bz2_close },
#endif
};

enum unpack_format unpack_format(const uint8_t *data, size_t len)
{
	for (enum unpack_format f = UNPACK_UNKNOWN + 1; f < UNPACK_FORMATS; f++) {
		const struct codec *c = &codecs[f];

		if (c->magic && len >= c->magic_len && !memcmp(data, c->magic, c->magic_len))
			return f;
	}
	return UNPACK_UNKNOWN;
}

static int make_room(struct stream *s, const struct codec *c, const struct unpack_source *src, struct err *err)
{
	size_t cap = s->out_cap ? 2 * s->out_cap : FIRST_ROOM;
	uint8_t *p;

	if (s->out_cap - s->out_pos >= c->room)
		return 0;
	if (s->out_pos > UNPACK_MAX)
		return err_set(err, -EFBIG, "%s: unpacks to more than 1 GiB, not what it should be", src->name);
	if (!s->out_cap && src->expect)
		cap = src->expect + c->room; /* all of it at once, and what a last step wants */
	if (cap < s->out_pos + c->room)
		cap = s->out_pos + c->room;
	p = realloc(s->out, cap);
	if (!p)
		return err_sys(err, -ENOMEM, "%s", src->name);
	s->out = p;
	s->out_cap = cap;
	return 0;
}

static int run(const struct codec *c, struct stream *s, const struct unpack_source *src, struct err *err)
{
	enum step r = STEP_MORE;

	while (r == STEP_MORE) {
		size_t in = s->in_pos, out = s->out_pos;
		int error = make_room(s, c, src, err);

		if (error)
			return error;
		r = c->step(s);
		if (r == STEP_MORE && in == s->in_pos && out == s->out_pos)
			return err_set(err, -EBADMSG, "%s: the compressed data end too early", src->name);
		if (src->expect && s->out_pos > src->expect)
			r = STEP_BAD;
	}
	if (r == STEP_BAD || s->in_pos != s->in_len)
		return err_set(err, -EBADMSG, "%s: the compressed data are damaged", src->name);
	if (!s->out_pos || (src->expect && s->out_pos != src->expect))
		return err_set(err, -EBADMSG, "%s: the compressed data hold %zu bytes, not what they should", src->name,
		               s->out_pos);
	return 0;
}

int unpack(const struct unpack_source *src, uint8_t **out, uint64_t *size, struct err *err)
{
	const struct codec *c = &codecs[src->format];
	struct stream s = { .in = src->data, .in_len = src->len };
	int error;

	if (!c->open)
		return err_set(err, -ENOTSUP, "%s: this kvm was built without what unpacks that, or does not know it",
		               src->name);
	if (src->expect > UNPACK_MAX)
		return err_set(err, -EFBIG, "%s: unpacks to more than 1 GiB, not what it should be", src->name);
	error = c->open(&s, err);
	if (!error) {
		error = run(c, &s, src, err);
		c->close(&s);
	}
	library_close(s.lib);
	if (error) {
		free(s.out);
		return error;
	}
	*out = s.out;
	*size = s.out_pos;
	return 0;
}
