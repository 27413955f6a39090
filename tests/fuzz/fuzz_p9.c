// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * libFuzzer target: the bytes are a session of a hostile 9p client on a share
 * of its own. Each message is a type and a body, the body mostly taken from the
 * bytes as they are, with fids and names small enough to meet again. Afterwards
 * a good client finds the server in order, and the files outside untouched.
 */
#include "fs/p9.h"
#include "fs/p9wire.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHECK(x)                                                             \
	do {                                                                 \
		if (!(x)) {                                                  \
			fprintf(stderr, "fuzz_p9.c:%d: %s\n", __LINE__, #x); \
			abort();                                             \
		}                                                            \
	} while (0)

#define ROOM     8192
#define MESSAGES 48

struct fuzz {
	const uint8_t *data;
	size_t left;
	struct p9 *p9;
	struct loop *loop;
	uint8_t in[ROOM];
	bool done;
	uint32_t len;
};

struct fuzz_req {
	struct p9_req r;
	struct fuzz *f;
};

static char top[64];

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return ftw->level > 0 && strcmp(path + strlen(top), "/canary") && strcmp(path + strlen(top), "/share")
	               ? remove(path)
	               : 0;
}

static void remove_all(void)
{
	nftw(top, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	rmdir(top);
}

static void at_exit(void)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/canary", top);
	unlink(path);
	remove_all();
	snprintf(path, sizeof(path), "%s/share", top);
	rmdir(path);
	rmdir(top);
}

static void write_file(const char *name, const char *text)
{
	char path[128];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", top, name);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	close(fd);
}

/* An empty share with a file, a directory, and a symlink to what is outside. */
static void make_share(void)
{
	char path[128];

	if (!*top) {
		strcpy(top, access("/dev/shm", W_OK) ? "/tmp/fuzz-p9-XXXXXX" : "/dev/shm/fuzz-p9-XXXXXX");
		CHECK(mkdtemp(top));
		write_file("canary", "alive");
		atexit(at_exit);
	}
	remove_all();
	snprintf(path, sizeof(path), "%s/share", top);
	CHECK(!mkdir(path, 0755) || errno == EEXIST);
	write_file("share/a", "content");
	snprintf(path, sizeof(path), "%s/share/b", top);
	CHECK(!mkdir(path, 0755));
	snprintf(path, sizeof(path), "%s/share/c", top);
	CHECK(!symlink("../canary", path));
}

static uint8_t byte(struct fuzz *f)
{
	if (!f->left)
		return 0;
	f->left--;
	return *f->data++;
}

static void on_done(struct p9_req *r, uint32_t len)
{
	struct fuzz *f = ((struct fuzz_req *)r)->f;

	CHECK(!f->done);
	f->done = true;
	f->len = len;
	loop_quit(f->loop);
}

/* Sends a message, in pieces, and waits. Returns the type of the reply, 0: none. */
static uint8_t send_message(struct fuzz *f, uint8_t *m, size_t n, size_t cut)
{
	struct iovec out[2] = { { m, cut < n ? cut : n }, { m + (cut < n ? cut : n), n - (cut < n ? cut : n) } };
	struct iovec in[2] = { { f->in, 11 }, { f->in + 11, ROOM - 11 } };
	struct fuzz_req q = { .r = { .out = out, .nout = 2, .in = in, .nin = 2, .done = on_done }, .f = f };
	int len;

	f->done = false;
	len = p9_submit(f->p9, &q.r);
	CHECK(len <= ROOM && !f->done);
	if (len < 0)
		return 0;
	if (len) {
		f->len = (uint32_t)len;
	} else {
		while (!f->done)
			CHECK(!loop_run(f->loop));
	}
	return f->len ? f->in[4] : 0;
}

static size_t build(uint8_t *m, uint8_t type, const void *body, size_t n)
{
	size_t size = P9_HEADER + n;

	m[0] = (uint8_t)size;
	m[1] = (uint8_t)(size >> 8);
	m[2] = m[3] = 0;
	m[4] = type;
	m[5] = 1;
	m[6] = 0;
	memcpy(m + P9_HEADER, body, n);
	return size;
}

static void start(struct fuzz *f)
{
	static const uint8_t version[] = "\0\x20\0\0\x8\0"
	                                 "9P2000.L";
	static const uint8_t attach[] = "\0\0\0\0\xff\xff\xff\xff\0\0\0\0\0\0\0";
	uint8_t m[64];

	CHECK(send_message(f, m, build(m, P9_TVERSION, version, sizeof(version) - 1), 64) == P9_TVERSION + 1);
	CHECK(send_message(f, m, build(m, P9_TATTACH, attach, 16), 64) == P9_TATTACH + 1);
}

/* What a field is, as in the server's table, with values that meet again. */
static const struct {
	uint8_t type;
	const char *format;
} shapes[] = {
	{ P9_TSTATFS, "f" },      { P9_TLOPEN, "fm" },         { P9_TLCREATE, "fnmmg" },
	{ P9_TSYMLINK, "fnng" },  { P9_TMKNOD, "fnmmmg" },     { P9_TRENAME, "ffn" },
	{ P9_TREADLINK, "f" },    { P9_TGETATTR, "fq" },       { P9_TSETATTR, "fmmggqqqqq" },
	{ P9_TXATTRWALK, "ffx" }, { P9_TXATTRCREATE, "fxqm" }, { P9_TREADDIR, "fqc" },
	{ P9_TFSYNC, "fm" },      { P9_TLOCK, "fbmqqmn" },     { P9_TGETLOCK, "fbqqmn" },
	{ P9_TLINK, "ffn" },      { P9_TMKDIR, "fnmg" },       { P9_TRENAMEAT, "fnfn" },
	{ P9_TUNLINKAT, "fnr" },  { P9_TATTACH, "fannm" },     { P9_TFLUSH, "bb" },
	{ P9_TWALK, "ffw" },      { P9_TREAD, "fqc" },         { P9_TWRITE, "fqd" },
	{ P9_TCLUNK, "f" },       { P9_TREMOVE, "f" },         { P9_TVERSION, "mn" },
};

static size_t put_name(struct fuzz *f, uint8_t *b)
{
	static const char *const names[] = { "a", "b", "c", "d", "..", ".", "", "a/b", "../canary", "e" };
	uint8_t k = byte(f);
	const char *s = names[k % 10];
	size_t n = strlen(s);

	if (k >= 240) { /* anything */
		n = k - 240;
		for (size_t i = 0; i < n; i++)
			b[2 + i] = byte(f);
	} else {
		memcpy(b + 2, s, n);
	}
	b[0] = (uint8_t)n;
	b[1] = 0;
	return 2 + n;
}

static size_t put_number(struct fuzz *f, uint8_t *b, unsigned size)
{
	uint8_t k = byte(f);

	memset(b, 0, size);
	if (k >= 250)
		memset(b, 0xff, size);
	else if (k >= 128)
		for (unsigned i = 0; i < (k & 3) + 1u && i < size; i++)
			b[i] = byte(f);
	else
		b[0] = k & 7;
	return size;
}

static size_t put_xattr(uint8_t *b, uint8_t k)
{
	static const char *const names[] = { "", "user.a", "user.b", "user.virtfs.uid" };
	const char *s = names[k % 4];

	b[0] = (uint8_t)strlen(s);
	b[1] = 0;
	memcpy(b + 2, s, strlen(s));
	return 2 + strlen(s);
}

static size_t put_data(struct fuzz *f, uint8_t *b)
{
	uint8_t n = byte(f) % 32;

	memset(b, 0, 4);
	b[0] = n;
	for (unsigned i = 0; i < n; i++)
		b[4 + i] = byte(f);
	return 4u + n;
}

static size_t put_field(struct fuzz *f, uint8_t *b, char kind)
{
	size_t n = 2;

	switch (kind) {
	case 'f':
		memset(b, 0, 4);
		b[0] = byte(f) % 6;
		return 4;
	case 'a': memset(b, 0xff, 4); return 4;
	case 'g': memset(b, 0, 4); return 4;
	case 'r':
		memset(b, 0, 4);
		b[1] = byte(f) & 2;
		return 4;
	case 'c':
		memset(b, 0, 4);
		b[1] = byte(f);
		return 4;
	case 'b': b[0] = byte(f) & 3; return 1;
	case 'm': return put_number(f, b, 4);
	case 'q': return put_number(f, b, 8);
	case 'n': return put_name(f, b);
	case 'x': return put_xattr(b, byte(f));
	case 'd': return put_data(f, b);
	default:
		b[0] = byte(f) % 5;
		b[1] = 0;
		for (unsigned i = 0; i < b[0]; i++)
			n += put_name(f, b + n);
		return n;
	}
}

static void one(struct fuzz *f)
{
	uint8_t body[1024], m[P9_HEADER + sizeof(body)];
	uint8_t k = byte(f), type;
	size_t n = 0;

	if (k < 216) {
		unsigned i = k % (sizeof(shapes) / sizeof(shapes[0]));

		type = shapes[i].type;
		for (const char *s = shapes[i].format; *s; s++)
			n += put_field(f, body + n, *s);
	} else { /* no shape at all */
		type = byte(f);
		for (unsigned len = byte(f) % 64; n < len; n++)
			body[n] = byte(f);
	}
	n = build(m, type, body, n);
	if (k >= 240)
		m[k % 7] = byte(f);
	if (k == 255)
		p9_reset(f->p9);
	send_message(f, m, n, byte(f));
}

static void check_canary(void)
{
	char path[128], buf[8] = "";
	struct stat st;
	int fd;

	snprintf(path, sizeof(path), "%s/canary", top);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0 && !fstat(fd, &st));
	CHECK(read(fd, buf, sizeof(buf)) == 5 && !strcmp(buf, "alive") && st.st_mode == (S_IFREG | 0644) &&
	      st.st_nlink == 1);
	close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz f = { .data = data, .left = size };
	char dir[128];
	struct p9_export ex = { .dir = dir };
	struct err err;
	uint8_t how = byte(&f);

	make_share();
	snprintf(dir, sizeof(dir), "%s/share", top);
	ex.map = how % 3;
	ex.ro = how & 64;
	CHECK(!loop_new(&f.loop, &err) && !p9_new(&ex, f.loop, &f.p9, &err));
	if (how & 128)
		start(&f);
	for (unsigned i = 0; i < MESSAGES && f.left; i++)
		one(&f);
	start(&f);
	check_canary();
	p9_free(f.p9);
	loop_free(f.loop);
	return 0;
}
