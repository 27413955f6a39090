// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * fsx SEED COUNT FILE: COUNT random operations on a new file: reads, writes,
 *     mappings, truncations, holes, each held against what the file must be by
 *     now. Prints the first difference; exit status 1.
 *
 * How it works
 *
 * The model is the file as an array. Now and then the file's pages are dropped,
 * so that what is read next has been on the disk. O_DIRECT is used on another
 * descriptor, and only after that, since caches need not agree with it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_SIZE (1u << 20)
#define MAX_LEN  (1u << 17)
#define BLOCK    4096u

static uint8_t model[MAX_SIZE], buf[MAX_LEN] __attribute__((aligned(BLOCK)));
static size_t size;
static int fd, direct;
static unsigned long step;
static const char *doing = "";
static uint64_t state;

static size_t draw(size_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return below ? state % below : 0;
}

static void die(const char *what)
{
	printf("fsx: step %lu, %s: %s (%s)\n", step, doing, what, strerror(errno));
	exit(1);
}

static void must(int ok, const char *what)
{
	if (!ok)
		die(what);
}

static void compare(size_t off, size_t len, const uint8_t *got)
{
	for (size_t i = 0; i < len; i++)
		if (got[i] != model[off + i]) {
			printf("fsx: step %lu, %s of %zu at %zu: byte %zu is %02x, not %02x\n", step, doing, len, off,
			       off + i, got[i], model[off + i]);
			exit(1);
		}
}

static void fill(size_t len)
{
	uint8_t first = (uint8_t)draw(256), more = (uint8_t)(2 * draw(8) + 1);

	for (size_t i = 0; i < len; i++)
		buf[i] = (uint8_t)(first + more * i);
}

/* What is between the old end and the new one reads as zeroes. */
static void grow(size_t end)
{
	if (end > size) {
		memset(model + size, 0, end - size);
		size = end;
	}
}

static void put(size_t off, size_t len)
{
	if (off > size)
		memset(model + size, 0, off - size);
	memcpy(model + off, buf, len);
	if (off + len > size)
		size = off + len;
}

static void drop_pages(void)
{
	must(!fdatasync(fd), "fdatasync");
	must(!posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), "posix_fadvise");
}

static void do_read(size_t off, size_t len)
{
	size_t want = off >= size ? 0 : len < size - off ? len : size - off;

	must(pread(fd, buf, len, (off_t)off) == (ssize_t)want, "pread");
	compare(off, want, buf);
}

static void do_write(size_t off, size_t len)
{
	fill(len);
	must(pwrite(fd, buf, len, (off_t)off) == (ssize_t)len, "pwrite");
	put(off, len);
}

static void do_map(size_t off, size_t len)
{
	int write = (int)draw(2);
	size_t skew = off % BLOCK;
	uint8_t *p;

	if (off >= size)
		return;
	if (len > size - off)
		len = size - off;
	p = mmap(NULL, len + skew, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)(off - skew));
	must(p != MAP_FAILED, "mmap");
	compare(off, len, p + skew);
	if (write) {
		fill(len);
		memcpy(p + skew, buf, len);
		put(off, len);
		must(draw(2) || !msync(p, len + skew, MS_SYNC), "msync");
	}
	must(!munmap(p, len + skew), "munmap");
}

static void do_truncate(size_t off, size_t len)
{
	(void)len;
	must(!ftruncate(fd, (off_t)off), "ftruncate");
	grow(off);
	size = off;
}

static void do_punch(size_t off, size_t len)
{
	must(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off, (off_t)len), "fallocate: hole");
	if (off < size)
		memset(model + off, 0, len < size - off ? len : size - off);
}

static void do_zero(size_t off, size_t len)
{
	must(!fallocate(fd, FALLOC_FL_ZERO_RANGE, (off_t)off, (off_t)len), "fallocate: zeroes");
	grow(off + len);
	memset(model + off, 0, len);
}

static void do_allocate(size_t off, size_t len)
{
	must(!fallocate(fd, 0, (off_t)off, (off_t)len), "fallocate");
	grow(off + len);
}

static void do_drop(size_t off, size_t len)
{
	drop_pages();
	do_read(off, len);
}

static void do_direct_read(size_t off, size_t len)
{
	size_t want;

	off &= ~(size_t)(BLOCK - 1);
	len = (len + BLOCK - 1) & ~(size_t)(BLOCK - 1);
	want = off >= size ? 0 : len < size - off ? len : size - off;
	drop_pages();
	must(pread(direct, buf, len, (off_t)off) == (ssize_t)want, "pread");
	compare(off, want, buf);
}

static void do_direct_write(size_t off, size_t len)
{
	off &= ~(size_t)(BLOCK - 1);
	len = (len + BLOCK - 1) & ~(size_t)(BLOCK - 1);
	fill(len);
	drop_pages();
	must(pwrite(direct, buf, len, (off_t)off) == (ssize_t)len, "pwrite");
	put(off, len);
}

static const struct {
	const char *name;
	void (*run)(size_t off, size_t len);
} ops[] = {
	{ "read", do_read },         { "write", do_write },
	{ "map", do_map },           { "write", do_write },
	{ "truncate", do_truncate }, { "punch", do_punch },
	{ "zero", do_zero },         { "allocate", do_allocate },
	{ "drop", do_drop },         { "direct read", do_direct_read },
	{ "map", do_map },           { "direct write", do_direct_write },
};

int main(int argc, char **argv)
{
	unsigned long count;

	if (argc != 4)
		return 2;
	state = strtoull(argv[1], NULL, 10) * 0x9e3779b97f4a7c15ull + 1;
	count = strtoul(argv[2], NULL, 10);
	fd = open(argv[3], O_RDWR | O_CREAT | O_TRUNC, 0644);
	direct = open(argv[3], O_RDWR | O_DIRECT);
	must(fd >= 0 && direct >= 0, argv[3]);
	for (step = 0; step < count; step++) {
		size_t off = draw(MAX_SIZE - MAX_LEN), len = 1 + draw(draw(4) ? BLOCK * 2 : MAX_LEN),
		       n = draw(sizeof(ops) / sizeof(ops[0]));

		doing = ops[n].name;
		ops[n].run(off, len);
	}
	doing = "the end";
	drop_pages();
	for (size_t off = 0; off < size; off += MAX_LEN)
		do_read(off, MAX_LEN);
	return 0;
}
