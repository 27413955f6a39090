// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Kernels that are unpacked once and kept: what is an entry and what is not,
 * who is let in, what is dropped. Then the whole of it, with bzImages made
 * here. The cache is below a directory of ours, $XDG_CACHE_HOME; the host's
 * clock is ours as well: clock_gettime() below stands before the C library's.
 */
#include "machine/kernel_cache.h"
#include "machine/unpack_kernel.h"

#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <asm/bootparam.h>
#include <cmocka.h>
#include <zlib.h>

#define LEN(a)    (sizeof(a) / sizeof(*(a)))
#define DATA_LEN  100000u
#define KEEP      8 /* entries */
#define SETUP_LEN 1024u
#define LOAD      0x100000u
#define BZ_MAX    65536u

struct fixture {
	char top[32], dir[48], file[64]; /* $XDG_CACHE_HOME, the cache, an entry or a kernel */
	struct kcache c;
	struct kcache_key key; /* of a file that is old enough */
	uint8_t data[DATA_LEN];
	int fd; /* the first free one */
};

static time_t later; /* than it is, seconds */

int clock_gettime(clockid_t id, struct timespec *ts)
{
	int error = (int)syscall(SYS_clock_gettime, id, ts);

	if (id == CLOCK_REALTIME)
		ts->tv_sec += later;
	return error;
}

static int first_free_fd(void)
{
	int fd = open("/dev/null", O_RDONLY);

	close(fd);
	return fd;
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct err err;

	f->fd = first_free_fd();
	later = 0;
	strcpy(f->top, "/tmp/kvm-cache.XXXXXX");
	assert_non_null(mkdtemp(f->top));
	setenv("XDG_CACHE_HOME", f->top, 1);
	snprintf(f->dir, sizeof(f->dir), "%s/kvm", f->top);
	f->key = (struct kcache_key){ 1, 2, 3, 1000000000, 4, 1000000001, 5, 6, 7 };
	snprintf(f->file, sizeof(f->file), "%s/1-2.elf", f->dir);
	for (unsigned i = 0; i < DATA_LEN; i++)
		f->data[i] = (uint8_t)(i ^ i >> 8);
	assert_int_equal(kcache_open(&f->c, &err), 0);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	char command[64];
	int leaked;

	kcache_close(&f->c);
	leaked = first_free_fd() - f->fd;
	snprintf(command, sizeof(command), "rm -rf %s", f->top);
	assert_int_equal(system(command), 0);
	free(f);
	assert_int_equal(leaked, 0);
	return 0;
}

static bool is_there(const char *path)
{
	struct stat st;

	return !lstat(path, &st);
}

static unsigned entries(const char *path)
{
	DIR *d = opendir(path);
	unsigned n = 0;

	assert_non_null(d);
	for (struct dirent *e; (e = readdir(d));)
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

static int put(struct fixture *f)
{
	struct err err;
	int fd = kcache_put(&f->c, &f->key, f->data, DATA_LEN, &err);

	if (fd < 0)
		fail_msg("%s", err.msg);
	return fd;
}

static void keep(struct fixture *f)
{
	close(put(f));
}

static void check_data(const struct fixture *f, int fd)
{
	uint8_t *is = malloc(DATA_LEN);

	assert_int_equal(pread(fd, is, DATA_LEN, 0), DATA_LEN);
	assert_memory_equal(is, f->data, DATA_LEN);
	free(is);
	close(fd);
}

static void finds(const struct fixture *f)
{
	uint64_t size = 0;
	int fd = kcache_find(&f->c, &f->key, &size);

	assert_true(fd >= 0);
	assert_int_equal(size, DATA_LEN);
	check_data(f, fd);
}

static void misses(const struct fixture *f)
{
	uint64_t size;

	assert_true(kcache_find(&f->c, &f->key, &size) < 0);
}

/* Entries. */

static void kept(void **state)
{
	struct fixture *f = *state;
	struct stat st;

	misses(f);
	check_data(f, put(f)); /* what it returns can be booted at once */
	finds(f);
	finds(f);
	assert_int_equal(entries(f->dir), 1);
	assert_int_equal(stat(f->file, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_int_equal(stat(f->dir, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0700);
}

/* Blocks of zeros take no room, wherever they are. */
static void zeros(void **state)
{
	static const struct {
		unsigned at, len;
	} t[] = { { 0, DATA_LEN }, { 0, DATA_LEN - 1 }, { 1, DATA_LEN - 1 }, { 10000, 80000 }, { 70000, 30000 } };
	struct fixture *f = *state;
	struct stat st;

	for (unsigned i = 0; i < LEN(t); i++) {
		memset(f->data, 0xff, DATA_LEN);
		memset(f->data + t[i].at, 0, t[i].len);
		keep(f);
		finds(f);
		assert_int_equal(stat(f->file, &st), 0);
		if (i == 0 && st.st_blocks > 64)
			fail_msg("zeros take %lld blocks", (long long)st.st_blocks);
	}
}

/* Every part of what a kernel file is counts. */
static void another_file(void **state)
{
	struct fixture *f = *state;
	uint64_t *field = &f->key.dev;

	keep(f);
	for (unsigned i = 0; i < sizeof(f->key) / sizeof(*field); i++) {
		field[i]++;
		misses(f);
		field[i]--;
	}
	finds(f);
}

/* Built again in place: the new one takes the old one's place. */
static void replaced(void **state)
{
	struct fixture *f = *state;

	keep(f);
	f->key.ctime_ns++;
	f->data[5] = 99;
	misses(f);
	keep(f);
	finds(f);
	assert_int_equal(entries(f->dir), 1);
}

/* A file that has just changed might change again without a trace. */
static void not_settled(void **state)
{
	struct fixture *f = *state;

	f->key.ctime = (uint64_t)time(NULL);
	check_data(f, put(f));
	misses(f);
	f->key.ctime += 1000; /* a server's clock */
	check_data(f, put(f));
	misses(f);
	assert_int_equal(entries(f->dir), 0);
}

/* Whatever was done to the file afterwards, its mtime being set back or not. */
static void change(const struct fixture *f, off_t at, off_t size, bool hide)
{
	const struct timespec times[2] = { { .tv_nsec = UTIME_OMIT },
		                           { .tv_sec = (time_t)f->key.mtime, .tv_nsec = 4 } };
	int fd = open(f->file, O_RDWR);
	char c;

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, size), 0);
	if (at >= 0) {
		assert_int_equal(pread(fd, &c, 1, at), 1);
		c ^= 1;
		assert_int_equal(pwrite(fd, &c, 1, at), 1);
	}
	if (hide)
		assert_int_equal(futimens(fd, times), 0);
	close(fd);
}

static void torn(void **state)
{
	struct fixture *f = *state;
	struct stat st;

	keep(f);
	assert_int_equal(stat(f->file, &st), 0);
	for (off_t size = 0; size < st.st_size; size += size + 300 < st.st_size && size > 300 ? 9973 : 1) {
		change(f, -1, size, true);
		misses(f);
		assert_int_equal(unlink(f->file), 0);
		keep(f);
	}
	change(f, -1, st.st_size + 1, true);
	misses(f);
	for (off_t at = DATA_LEN; at < st.st_size; at++) { /* the trailer */
		keep(f);
		change(f, at, st.st_size, true);
		misses(f);
	}
	keep(f);
	finds(f);
	change(f, 1000, st.st_size, false); /* the kernel itself */
	misses(f);
}

static void foreign(void **state)
{
	struct fixture *f = *state;
	char other[64];

	snprintf(other, sizeof(other), "%s/other", f->top);
	keep(f);
	assert_int_equal(chmod(f->file, 0604), 0);
	misses(f);
	keep(f);
	if (!geteuid()) {
		assert_int_equal(chown(f->file, 1, 1), 0);
		misses(f);
		keep(f);
	}
	finds(f);
	assert_int_equal(rename(f->file, other), 0); /* through a link, as good as it was */
	assert_int_equal(symlink(other, f->file), 0);
	misses(f);
	keep(f);
	finds(f);
	assert_int_equal(unlink(f->file), 0);
	assert_int_equal(mkfifo(f->file, 0600), 0);
	misses(f);
	keep(f);
	finds(f);
	assert_int_equal(unlink(f->file), 0);
	assert_int_equal(mkdir(f->file, 0700), 0);
	misses(f);
	check_data(f, put(f)); /* it cannot be kept, but booted */
	assert_int_equal(entries(f->dir), 1);
}

/* Room. */

static void use(struct fixture *f, uint64_t ino)
{
	f->key.ino = ino;
	finds(f);
}

/* The atime that an entry has when it was last used then. */
static void age(const struct fixture *f, uint64_t ino, time_t when)
{
	const struct timespec times[2] = { { .tv_sec = when }, { .tv_nsec = UTIME_OMIT } };
	char path[64];

	snprintf(path, sizeof(path), "%s/1-%llx.elf", f->dir, (unsigned long long)ino);
	assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void dropped(void **state)
{
	struct fixture *f = *state;
	char left[64];
	int fd;

	for (uint64_t ino = 1; ino <= KEEP; ino++) {
		f->key.ino = ino;
		keep(f);
		age(f, ino, 1000 + (time_t)ino);
	}
	assert_int_equal(entries(f->dir), KEEP);
	use(f, 1);
	f->key.ino = 100;
	keep(f);
	assert_int_equal(entries(f->dir), KEEP);
	f->key.ino = 2;
	misses(f); /* the one that was not used for longest */
	use(f, 1);
	use(f, 100);
	snprintf(left, sizeof(left), "%s/new-1-2-3.elf", f->dir); /* by one who was killed */
	fd = open(left, O_WRONLY | O_CREAT, 0600);
	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(utimensat(AT_FDCWD, left, (struct timespec[2]){ { 1, 0 }, { 1, 0 } }, 0), 0);
	f->key.ino = 101;
	keep(f);
	assert_false(is_there(left));
	snprintf(left, sizeof(left), "%s/notes", f->dir); /* not ours */
	assert_int_equal(mkdir(left, 0700), 0);
	f->key.ino = 102;
	keep(f);
	assert_true(is_there(left));
}

/* A full disk, as far as it can be had: nothing half stays. */
static void no_room(void **state)
{
	struct fixture *f = *state;
	struct rlimit old, small = { DATA_LEN / 2, RLIM_INFINITY };
	struct err err = { "" };
	int fd;

	assert_int_equal(kcache_may_keep(&f->c, DATA_LEN, &err), 0);
	assert_int_equal(kcache_may_keep(&f->c, UINT64_MAX, &err), -ENOSPC);
	assert_non_null(strstr(err.msg, f->dir));
	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &old);
	small.rlim_max = old.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	fd = kcache_put(&f->c, &f->key, f->data, DATA_LEN, &err);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
	assert_int_equal(fd, -EFBIG);
	assert_int_equal(entries(f->dir), 0);
	misses(f);
}

#define STARTS 6

/* All start at once, and each has a whole kernel. */
static void at_once(void **state)
{
	struct fixture *f = *state;
	int gate[2], status;
	char c;

	assert_int_equal(pipe(gate), 0);
	for (unsigned i = 0; i < STARTS; i++) {
		if (fork())
			continue;
		close(gate[1]);
		if (read(gate[0], &c, 1) != 0)
			_exit(1);
		for (unsigned n = 0; n < 20; n++) {
			uint64_t size;
			int fd = kcache_find(&f->c, &f->key, &size);

			if (fd >= 0)
				check_data(f, fd);
			check_data(f, put(f));
		}
		_exit(0);
	}
	close(gate[0]);
	close(gate[1]);
	for (unsigned i = 0; i < STARTS; i++) {
		assert_true(wait(&status) > 0);
		assert_int_equal(status, 0);
	}
	finds(f);
	assert_int_equal(entries(f->dir), 1);
}

/* The directory. */

static void refused(const char *why)
{
	struct err err = { "" };
	struct kcache c;

	assert_true(kcache_open(&c, &err) < 0);
	if (!strstr(err.msg, why))
		fail_msg("'%s' is not '%s'", err.msg, why);
	assert_int_equal(c.fd, -1);
	assert_null(c.path);
}

static void whose_directory(void **state)
{
	struct fixture *f = *state;
	char other[48];

	snprintf(other, sizeof(other), "%s/other", f->top);
	assert_int_equal(chmod(f->dir, 0701), 0);
	refused("is open to others (mode 701)");
	assert_int_equal(chmod(f->dir, 0700), 0);
	if (!geteuid()) {
		assert_int_equal(chown(f->dir, 1, 1), 0);
		refused("belongs to uid 1, not to you: have it removed, or set XDG_CACHE_HOME");
		assert_int_equal(chown(f->dir, 0, 0), 0);
	}
	assert_int_equal(rename(f->dir, other), 0);
	assert_int_equal(symlink(other, f->dir), 0);
	refused("is no directory");
	assert_int_equal(unlink(f->dir), 0);
	close(open(f->dir, O_WRONLY | O_CREAT, 0600));
	refused("is no directory");
}

/* Who is not root has it below HOME; asked in a process of its own. */
static void below_home(void **state)
{
	struct fixture *f = *state;
	char path[64], want[64];
	struct err err;
	struct kcache c;
	int status;

	if (geteuid() == 0 && chown(f->top, 65534, 65534))
		fail_msg("chown");
	snprintf(want, sizeof(want), "%s/.cache/kvm", f->top);
	snprintf(path, sizeof(path), "%s/nowhere", f->top);
	if (!fork()) {
		if (geteuid() == 0 && setuid(65534))
			_exit(1);
		setenv("XDG_CACHE_HOME", path, 1);
		setenv("HOME", f->top, 1);
		if (kcache_open(&c, &err) || strcmp(c.path, want) != 0)
			_exit(2);
		kcache_close(&c);
		setenv("HOME", "/", 1); /* not ours */
		if (kcache_open(&c, &err) != -ENOENT)
			_exit(3);
		unsetenv("HOME");
		if (kcache_open(&c, &err) != -ENOENT)
			_exit(4);
		setenv("HOME", f->top, 1);
		if (chmod(want, 0500) || kcache_open(&c, &err)) /* read-only */
			_exit(5);
		if (kcache_may_keep(&c, 1, &err) != -EACCES)
			_exit(6);
		_exit(kcache_put(&c, &f->key, f->data, DATA_LEN, &err) == -EACCES ? 0 : 7);
	}
	assert_true(wait(&status) > 0);
	assert_int_equal(status, 0);
}

/* The whole of it. */

static const uint8_t pvh_code[] = { 0xf4, 0xeb, 0xfd };

/* A 32-bit ELF file with a PVH note, all in one segment; @mark makes it another one. */
static size_t make_elf(uint8_t *to, uint32_t mark)
{
	struct {
		Elf32_Ehdr eh;
		Elf32_Phdr ph[2];
		uint32_t note[3];
		char name[4];
		uint32_t entry, mark;
		uint8_t code[4];
	} e = { .eh = { .e_ident = ELFMAG,
		        .e_type = ET_EXEC,
		        .e_machine = EM_386,
		        .e_version = 1,
		        .e_phoff = sizeof(Elf32_Ehdr),
		        .e_ehsize = sizeof(Elf32_Ehdr),
		        .e_phentsize = sizeof(Elf32_Phdr),
		        .e_phnum = 2 },
		.note = { 4, 4, 18 },
		.name = "Xen",
		.mark = mark };
	const uint32_t note = offsetof(typeof(e), note);

	e.eh.e_ident[EI_CLASS] = ELFCLASS32;
	e.eh.e_ident[EI_DATA] = ELFDATA2LSB;
	e.ph[0] = (Elf32_Phdr){ PT_LOAD, 0, LOAD, LOAD, sizeof(e), sizeof(e), 7, 4 };
	e.ph[1] = (Elf32_Phdr){ PT_NOTE, note, LOAD + note, LOAD + note, 20, 20, 4, 4 };
	e.entry = LOAD + offsetof(typeof(e), code);
	memcpy(e.code, pvh_code, sizeof(pvh_code));
	memcpy(to, &e, sizeof(e));
	return sizeof(e);
}

/* As gzip writes it, but not compressed: so that kernels of one size differ in what is in them only. */
static size_t gzip(const uint8_t *data, size_t len, uint8_t *to)
{
	z_stream z = { 0 };

	assert_int_equal(deflateInit2(&z, 0, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
	z.next_in = (uint8_t *)data;
	z.avail_in = (unsigned)len;
	z.next_out = to;
	z.avail_out = BZ_MAX;
	assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
	len = z.total_out;
	deflateEnd(&z);
	return len;
}

static void write_file(const char *path, const uint8_t *data, size_t len)
{
	int fd = open(path, O_WRONLY | O_CREAT, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, data, len), len);
	assert_int_equal(ftruncate(fd, (off_t)len), 0);
	close(fd);
}

/* A bzImage at f->file: code, and behind it an ELF file, compressed. */
static void make_bzimage(struct fixture *f, uint32_t mark)
{
	static uint8_t buf[2 * BZ_MAX];
	uint8_t elf[512];
	size_t n = gzip(elf, make_elf(elf, mark), buf + SETUP_LEN + 64);
	struct setup_header h = { .setup_sects = 1,
		                  .syssize = (uint32_t)(64 + n + 15) / 16,
		                  .boot_flag = 0xaa55,
		                  .jump = 0xeb | (0x1f1 + sizeof(h) - 0x202) << 8,
		                  .header = 0x53726448,
		                  .version = 0x020f,
		                  .loadflags = LOADED_HIGH,
		                  .pref_address = LOAD,
		                  .init_size = 0x10000,
		                  .payload_offset = 64,
		                  .payload_length = (uint32_t)n };

	memcpy(buf + 0x1f1, &h, sizeof(h));
	snprintf(f->file, sizeof(f->file), "%s/bzImage", f->top);
	write_file(f->file, buf, SETUP_LEN + 64 + n);
}

static struct arch_image *open_image(const struct fixture *f)
{
	struct arch_image_config cfg = { .kernel = f->file, .cmdline = "" };
	struct arch_image *im;
	struct err err;

	if (arch_image_open(&cfg, &im, &err))
		fail_msg("%s", err.msg);
	return im;
}

/* Opened and unpacked; was it? */
static bool is_unpacked(const struct fixture *f)
{
	struct arch_image *im = open_image(f);
	struct arch_packed p;
	bool packed;

	assert_true(arch_image_packed(im, &p));
	unpack_kernel(im, f->file);
	packed = arch_image_packed(im, &p);
	arch_image_free(im);
	return !packed;
}

/* The mark of the kernel that is kept. */
static uint32_t kept_mark(const struct fixture *f)
{
	struct arch_image *im = open_image(f);
	struct arch_packed p;
	struct kcache_key key;
	uint8_t elf[512], none[512];
	uint64_t size = 0;
	uint32_t mark;
	int fd;

	assert_true(arch_image_packed(im, &p));
	assert_int_equal(kcache_key(p.fd, p.offset, p.len, &key), 0);
	arch_image_free(im);
	fd = kcache_find(&f->c, &key, &size);
	assert_true(fd >= 0 && size <= sizeof(elf));
	assert_int_equal(pread(fd, elf, size, 0), size);
	close(fd);
	assert_int_equal(make_elf(none, 0), size);
	memcpy(&mark, elf + size - 8, sizeof(mark));
	return mark;
}

static void unpacked(void **state)
{
	struct fixture *f = *state;

	make_bzimage(f, 1);
	assert_true(is_unpacked(f)); /* fresh as it is */
	assert_int_equal(entries(f->dir), 0);
	later = 4;
	assert_true(is_unpacked(f));
	assert_int_equal(kept_mark(f), 1);
	assert_true(is_unpacked(f));
	make_bzimage(f, 2); /* in place, of the same size */
	assert_true(is_unpacked(f));
	assert_int_equal(kept_mark(f), 2);
	assert_int_equal(entries(f->dir), 1);
}

/* Wherever it cannot be, the bzImage stays as it was. */
static void left_alone(void **state)
{
	struct fixture *f = *state;
	uint8_t buf[BZ_MAX];
	struct stat st;
	int fd;

	make_bzimage(f, 1);
	fd = open(f->file, O_RDWR);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(pread(fd, buf, sizeof(buf), 0), st.st_size);
	for (size_t at = SETUP_LEN + 64; at < (size_t)st.st_size; at++) { /* each byte of what is compressed */
		buf[at] ^= 0x81;
		assert_int_equal(pwrite(fd, buf + at, 1, (off_t)at), 1);
		if (is_unpacked(f) && (at < SETUP_LEN + 68 || at > SETUP_LEN + 73)) /* time and system say nothing */
			fail_msg("damage at %zu", at);
		buf[at] ^= 0x81;
		assert_int_equal(pwrite(fd, buf + at, 1, (off_t)at), 1);
	}
	close(fd);
	assert_true(is_unpacked(f));
	assert_int_equal(chmod(f->dir, 0755), 0);
	assert_false(is_unpacked(f));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(kept),        TEST(zeros),      TEST(another_file),    TEST(replaced),
		TEST(not_settled), TEST(torn),       TEST(foreign),         TEST(dropped),
		TEST(no_room),     TEST(at_once),    TEST(whose_directory), TEST(below_home),
		TEST(unpacked),    TEST(left_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
