// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The initramfs made on the fly. Three sources of truth: cpio(1) unpacks what
 * we write, modprobe --show-depends says what a name needs, and a made-up tree
 * of modules, assembled here, has the odd cases: soft dependencies against hard
 * ones, three kinds of compression, and damage of every sort.
 *
 * KVM_TEST_MODULES names a real kernel's lib/modules/V; without it the one that
 * tests/images/get-kernel fetches is used.
 */
#include "guest/file.h"
#include "guest/initramfs.h"
#include "guest/initramfs_unpack.h"
#include "base/library.h"
#include "guest/modules.h"
#include "guest/newc.h"

#include <errno.h>
#include <glob.h>
#include <libgen.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define LEN(a) (sizeof(a) / sizeof(*(a)))
#define V      "6.6.6-test"
#define NAMES(...)                \
	(const char *const[])     \
	{                         \
		__VA_ARGS__, NULL \
	}

/* Stands in for the init binary. */
extern const uint8_t guest_init_start[], guest_init_end[];
__asm__(".section .rodata\n"
        ".globl guest_init_start, guest_init_end\n"
        "guest_init_start: .ascii \"#!made up\"\n"
        "guest_init_end:\n"
        ".previous\n");

static char top[] = "/tmp/kvm-initramfs.XXXXXX"; /* everything is in here, and goes with it */
static char *made;                               /* the made-up tree, PREFIX of lib/modules/V */
static char *why;                                /* why it could not be made, or NULL */
static char real_dir[PATH_MAX];                  /* the real kernel's lib/modules/V, or "" */

__attribute__((format(printf, 1, 2))) static char *fmt(const char *f, ...)
{
	va_list ap;
	char *s;

	va_start(ap, f);
	if (vasprintf(&s, f, ap) < 0)
		abort();
	va_end(ap);
	return s;
}

/* Runs a shell command in the temporary directory; returns whether it succeeded. */
__attribute__((format(printf, 1, 2))) static bool sh(const char *f, ...)
{
	va_list ap;
	char *cmd, *all;
	bool ok;

	va_start(ap, f);
	if (vasprintf(&cmd, f, ap) < 0)
		abort();
	va_end(ap);
	all = fmt("cd %s && { %s\n}", top, cmd);
	ok = system(all) == 0;
	free(cmd);
	free(all);
	return ok;
}

static char *first_missing(const char *tools)
{
	char *list = strdup(tools), *save, *missing = NULL;

	for (char *t = strtok_r(list, " ", &save); t && !missing; t = strtok_r(NULL, " ", &save))
		if (!sh("command -v %s >/dev/null", t))
			missing = fmt("%s is not installed", t);
	free(list);
	return missing;
}

static void need(const char *tools)
{
	char *missing = first_missing(tools);

	if (!missing)
		return;
	print_message("skipped: %s\n", missing);
	free(missing);
	skip();
}

static void need_made(void)
{
	if (!why)
		return;
	print_message("skipped: %s\n", why);
	skip();
}

static void need_real(void)
{
#ifndef HAVE_KMOD
	print_message("skipped: built without libkmod\n");
	skip();
#endif
	if (real_dir[0])
		return;
	print_message("skipped: no kernel with modules: run tests/images/get-kernel or set KVM_TEST_MODULES\n");
	skip();
}

static void load(const char *path, uint8_t **data, uint64_t *size)
{
	struct err err;

	if (file_load(path, data, size, &err))
		fail_msg("%s", err.msg);
}

static void save(const char *path, const void *data, size_t size)
{
	FILE *f;

	unlink(path); /* ext4 waits for the disk when a file is truncated and written anew */
	f = fopen(path, "w");
	assert_non_null(f);
	assert_int_equal(fwrite(data, 1, size, f), size);
	assert_int_equal(fclose(f), 0);
}

/* --- the made-up tree ---------------------------------------------------- */

/*
 * gz needs xz and zst; xz needs zst. soft wants "pre: hard", which needs soft.
 * lines has two lines of soft dependencies. post wants plain behind it.
 */
static const struct {
	const char *name, *modinfo, *needs, *exports, *pack;
} modules[] = {
	{ "gz", "alias=fs-gz", "sym_xz sym_zst", "", "gzip" },
	{ "xz", "", "sym_zst", "sym_xz", "xz --check=crc32" },
	{ "zst", "alias=virtio:d00000099v*", "", "sym_zst", "zstd -q --rm" },
	{ "plain-name", "alias=crypto-made", "", "", "" },
	{ "soft", "softdep=pre: hard", "", "sym_soft", "" },
	{ "hard", "", "sym_soft", "", "" },
	{ "lines", "softdep=pre: nosuch\\0softdep=pre: plain_name\\0softdep=pre: crypto-made soft", "", "", "" },
	{ "post", "softdep=post: plain-name pre: soft", "", "", "" },
	{ "loop1", "softdep=pre: loop2", "", "", "" },
	{ "loop2", "softdep=pre: loop1", "", "", "" },
};

static bool make_module(unsigned i)
{
	char *path = fmt("%s/m.S", top), *list, *sym, *tok;
	FILE *f = fopen(path, "w");
	bool ok;

	fprintf(f, ".section .modinfo,\"a\"\n.asciz \"name=%s\"\n", modules[i].name);
	if (modules[i].modinfo[0])
		fprintf(f, ".asciz \"%s\"\n", modules[i].modinfo);
	fprintf(f, ".section __ksymtab_strings,\"a\"\n");
	if (modules[i].exports[0])
		fprintf(f, ".asciz \"%s\"\n", modules[i].exports);
	fprintf(f, ".data\n");
	list = strdup(modules[i].needs);
	for (sym = strtok_r(list, " ", &tok); sym; sym = strtok_r(NULL, " ", &tok))
		fprintf(f, ".quad %s\n", sym);
	/* Numbers that do not compress well, so that buffers have to grow. */
	fprintf(f, "x = %u\n.rept 60000\nx = x * 1103515245 + 12345\n.quad x\n.endr\n", i + 1);
	fclose(f);
	free(list);
	free(path);
	ok = sh("cc -c m.S -o made/lib/modules/" V "/kernel/%s.ko && cp made/lib/modules/" V "/kernel/%s.ko plain/",
	        modules[i].name, modules[i].name);
	if (ok && modules[i].pack[0])
		ok = sh("%s made/lib/modules/" V "/kernel/%s.ko", modules[i].pack, modules[i].name);
	return ok;
}

static void make_tree(void)
{
#ifndef HAVE_KMOD
	why = fmt("built without libkmod");
	return;
#endif
	why = first_missing("cc depmod gzip xz zstd");
	if (why)
		return;
	assert_true(sh("mkdir -p made/lib/modules/" V "/kernel plain && touch made/lib/modules/" V
	               "/modules.order && echo kernel/drivers/inside-it.ko >made/lib/modules/" V "/modules.builtin && "
	               "printf 'inside_it.alias=fs-inside\\0' >made/lib/modules/" V "/modules.builtin.modinfo"));
	for (unsigned i = 0; i < LEN(modules); i++)
		assert_true(make_module(i));
	/* Debian's depmod is built without zlib and does not see .ko.gz. */
	assert_true(sh("depmod -b made " V " && { grep -q ^kernel/gz made/lib/modules/" V
	               "/modules.dep || { gunzip made/lib/modules/" V "/kernel/gz.ko.gz && depmod -b made " V
	               "; }; }"));
	assert_true(sh("mkdir packed && gzip -c plain/gz.ko >packed/m.gz && xz -c plain/gz.ko >packed/m.xz && "
	               "zstd -qc plain/gz.ko >packed/m.zst"));
}

/* A copy of the made-up tree that a test may damage: ./NAME/lib/modules/V; returns that path. */
static char *copy_tree(const char *name)
{
	assert_true(sh("rm -rf %s && cp -a made %s", name, name));
	return fmt("%s/%s/lib/modules/" V, top, name);
}

/* Where the module called @name is in the list, or -1. */
static int position(const struct modules *m, const char *name)
{
	for (unsigned i = 0; i < m->path.n; i++) {
		const char *base = strrchr(m->path.v[i], '/') + 1;

		if (!strncmp(base, name, strlen(name)) && !strncmp(base + strlen(name), ".ko", 3))
			return (int)i;
	}
	return -1;
}

static void find(const char *dir, const char *const *names, struct modules *m)
{
	struct modules_query q = { .kernel_version = V, .dir = dir, .names = names };
	struct err err;

	if (modules_find(&q, m, &err))
		fail_msg("%s", err.msg);
}

/* The query fails with @error, and the text has each of the NULL-terminated @words. */
static void assert_refused(const struct modules_query *q, int error, const char *const *words)
{
	struct err err = { "" };
	struct modules m;

	assert_int_equal(modules_find(q, &m, &err), error);
	for (; *words; words++)
		if (!strstr(err.msg, *words))
			fail_msg("no '%s' in: %s", *words, err.msg);
	assert_null(strchr(err.msg, '\n'));
	assert_int_equal(m.path.n, 0);
}

static void assert_no_duplicates(const struct modules *m)
{
	for (unsigned i = 0; i < m->path.n; i++)
		for (unsigned j = 0; j < i; j++)
			assert_string_not_equal(m->path.v[i], m->path.v[j]);
}

/* --- cpio ---------------------------------------------------------------- */

static void fill_archive(struct newc *w)
{
	uint8_t *p;

	newc_dir(w, "d", 0755);
	for (unsigned n = 0; n < 6; n++) {
		char name[16];

		snprintf(name, sizeof(name), "d/%.*s", (int)n + 1, "abcdef");
		p = newc_file(w, name, 0640, n);
		if (p)
			memcpy(p, "12345", n);
	}
	newc_symlink(w, "d/link", "abc/def");
	newc_chardev(w, "d/console", 0600, 5, 1);
	newc_end(w);
}

static void newc_bytes(void **state)
{
	static const char head[] = "070701"
	                           "00000001"
	                           "000041ED"
	                           "00000000"
	                           "00000000"
	                           "00000002"
	                           "00000000"
	                           "00000000"
	                           "00000000"
	                           "00000000"
	                           "00000000"
	                           "00000000"
	                           "00000002"
	                           "00000000d\0";
	struct newc count, w;
	uint8_t *buf;

	newc_init(&count, NULL, 0);
	fill_archive(&count);
	assert_int_equal(count.pos % 4, 0);
	buf = malloc(count.pos);
	memset(buf, 0xa5, count.pos); /* padding is ours to write */
	newc_init(&w, buf, count.pos);
	fill_archive(&w);
	assert_int_equal(w.pos, count.pos);
	assert_memory_equal(buf, head, sizeof(head) - 1);
	assert_null(memchr(buf, 0xa5, w.pos));
	free(buf);
}

static void newc_cpio(void **state)
{
	static uint8_t buf[8192];
	struct newc w;
	char *path;

	need("cpio");
	newc_init(&w, buf, sizeof(buf));
	fill_archive(&w);
	path = fmt("%s/a.cpio", top);
	save(path, buf, w.pos);
	free(path);
	assert_true(sh("cpio -tv --quiet -n <a.cpio >a.list 2>a.err && ! [ -s a.err ] && [ $(wc -l <a.list) = 9 ]"));
	assert_true(sh("grep -Eq '^crw------- +1 0 +0 +5, +1 .* d/console$' a.list"));
	assert_true(sh("grep -Eq '^drwxr-xr-x +2 0 +0 +0 .* d$' a.list"));
	assert_true(sh("grep -Eq '^lrwxrwxrwx .* d/link -> abc/def$' a.list"));
	/* Without the device: an ordinary user cannot make one. */
	assert_true(sh("mkdir x && cd x && cpio -id --quiet -f d/console <../a.cpio && "
	               "cat d/a d/ab d/abc d/abcd d/abcde d/abcdef | grep -qx 112123123412345"));
	assert_true(sh("cd x && [ \"$(readlink d/link)\" = abc/def ] && [ $(stat -c %%a d/ab) = 640 ]"));
}

/* --- order --------------------------------------------------------------- */

static void hard_dependencies(void **state)
{
	struct modules m;

	need_made();
	find(made, NAMES("gz"), &m);
	assert_int_equal(m.path.n, 3);
	assert_int_equal(position(&m, "zst"), 0);
	assert_int_equal(position(&m, "xz"), 1);
	assert_int_equal(position(&m, "gz"), 2);
	modules_free(&m);
}

static void several_names(void **state)
{
	struct modules m;

	need_made();
	find(made, NAMES("xz", "gz", "fs-gz", "virtio:d00000099v00001AF4", "plain_name", "plain-name", "crypto-made"),
	     &m);
	assert_int_equal(m.path.n, 4);
	assert_int_equal(m.unknown.n, 0);
	assert_int_equal(position(&m, "plain-name"), 3);
	modules_free(&m);
}

static void soft_dependencies(void **state)
{
	struct modules m;

	need_made();
	find(made, NAMES("lines"), &m); /* all of its lines count */
	assert_int_equal(m.path.n, 4);
	assert_int_equal(position(&m, "lines"), 3);
	assert_true(position(&m, "plain-name") >= 0);
	/* A soft dependency never goes before what it needs itself. */
	assert_true(position(&m, "soft") < position(&m, "hard"));
	modules_free(&m);

	find(made, NAMES("post"), &m);
	assert_int_equal(m.path.n, 4);
	assert_int_equal(position(&m, "post"), 2);
	assert_int_equal(position(&m, "plain-name"), 3);
	modules_free(&m);

	find(made, NAMES("loop1", "loop2"), &m);
	assert_int_equal(m.path.n, 2);
	modules_free(&m);
}

static void builtin_and_unknown(void **state)
{
	struct modules m;

	need_made();
	find(made, NAMES("inside_it", "inside-it", "nosuch", "fs-inside", "a[b", "", "../xz", "zst"), &m);
	assert_int_equal(m.path.n, 1);
	assert_int_equal(m.unknown.n, 4);
	assert_string_equal(m.unknown.v[0], "nosuch");
	assert_string_equal(m.unknown.v[1], "a[b");
	modules_free(&m);
}

/* --- places -------------------------------------------------------------- */

static void finds_as_dir(const char *dir, const char *version, const char *kernel)
{
	struct modules_query q = {
		.kernel_version = version, .dir = dir, .kernel_path = kernel, .names = NAMES("zst")
	};
	struct err err;
	struct modules m;

	if (modules_find(&q, &m, &err))
		fail_msg("%s", err.msg);
	assert_int_equal(m.path.n, 1);
	modules_free(&m);
}

static void places(void **state)
{
	char *dir, *kernel;

	need_made();
	assert_true(sh("mkdir -p made/boot made/lib/modules/" V " && touch made/boot/vmlinuz made/lib/modules/" V
	               "/vmlinuz && "
	               "ln -s ../made/boot/vmlinuz plain/link"));
	dir = fmt("%s/lib/modules/" V, made);
	finds_as_dir(dir, V, NULL);
	finds_as_dir(dir, NULL, NULL);
	finds_as_dir(made, V, "/nonexistent");
	kernel = fmt("%s/boot/vmlinuz", made);
	finds_as_dir(NULL, V, kernel);
	free(kernel);
	kernel = fmt("%s/plain/link", top);
	finds_as_dir(NULL, V, kernel);
	free(kernel);
	kernel = fmt("%s/vmlinuz", dir);
	finds_as_dir(NULL, NULL, kernel);
	free(kernel);
	free(dir);
}

static void no_place(void **state)
{
	struct modules_query q = { .kernel_version = V, .kernel_path = "/nonexistent/vmlinuz", .names = NAMES("x") };

	assert_refused(&q, -ENOENT, NAMES("/lib/modules/" V, V, "--modules"));
	q.kernel_version = NULL;
	assert_refused(&q, -ENOENT, NAMES("unknown version"));
	q.dir = "/nonexistent";
	q.kernel_version = V;
	assert_refused(&q, -ENOENT, NAMES("/nonexistent", "/nonexistent/lib/modules/" V));
	q.dir = "/dev/null";
	assert_refused(&q, -ENOENT, NAMES("/dev/null"));
}

static void no_names(void **state)
{
	struct modules_query q = { .dir = "/nonexistent" };
	struct err err;
	struct modules m;

	assert_int_equal(modules_find(&q, &m, &err), 0);
	q.names = &(const char *const){ NULL };
	assert_int_equal(modules_find(&q, &m, &err), 0);
	modules_free(&m);
}

static void no_modules_dep(void **state)
{
	struct modules_query q = { .kernel_version = V, .names = NAMES("zst") };
	char *dir, *prefix, *cmd;

	need_made();
	dir = copy_tree("bare");
	prefix = fmt("%s/bare", top);
	cmd = fmt("depmod -b %s " V, prefix);
	assert_true(sh("rm %s/modules.*", dir));
	q.dir = prefix;
	assert_refused(&q, -ENOENT, NAMES(dir, "modules.dep", cmd));
	q.dir = dir;
	assert_refused(&q, -ENOENT, NAMES(cmd));
	assert_true(sh("%s 2>/dev/null", cmd)); /* the command that was named helps */
	finds_as_dir(prefix, V, NULL);
	assert_true(sh("rm %s/modules.dep.bin", dir));
	assert_refused(&q, -ENOENT, NAMES(cmd));
	assert_true(sh("mv %s odd", dir));
	free(dir);
	dir = fmt("%s/odd", top);
	q.dir = dir;
	assert_refused(&q, -ENOENT, NAMES("depmod -b PREFIX odd"));
	free(dir);
	free(prefix);
	free(cmd);
}

static void build_tree(void **state)
{
	struct modules_query q = { .kernel_version = V, .names = NAMES("ext4") };
	char *kernel, *tree = fmt("%s/tree", top);
	struct err err;
	struct modules m;

	assert_true(sh("mkdir -p tree/arch/x86/boot tree/include/config && cd tree && echo " V
	               " >include/config/kernel.release && touch vmlinux arch/x86/boot/bzImage && "
	               "printf 'kernel/fs/9p/9p.ko\\nkernel/drivers/virtio/virtio-rng.ko\\n' >modules.builtin && "
	               "printf '9p.license=GPL\\0009p.alias=fs-9p\\0' >modules.builtin.modinfo && "
	               "printf 'fs/ext4/ext4.o\\nkernel/fs/xfs/xfs.ko\\n' >modules.order"));
	kernel = fmt("%s/arch/x86/boot/bzImage", tree);
	q.kernel_path = kernel;
	assert_refused(&q, -ENOENT, NAMES("make -C", tree, "modules_install INSTALL_MOD_PATH=", "depmod", "--modules"));
	q.names = NAMES("9p", "fs-xfs");
	assert_refused(&q, -ENOENT, NAMES("modules_install"));
	q.names = NAMES("9p", "xfs");
	assert_refused(&q, -ENOENT, NAMES("modules_install"));
	q.names = NAMES("9p", "fs-9p", "virtio_rng", "ext", "nosuch-one");
	assert_int_equal(modules_find(&q, &m, &err), 0);
	assert_int_equal(m.path.n, 0);
	assert_int_equal(m.unknown.n, 2);
	modules_free(&m);
	free(kernel);
	kernel = fmt("%s/vmlinux", tree);
	q = (struct modules_query){ .kernel_path = kernel, .names = NAMES("ext4") };
	assert_refused(&q, -ENOENT, NAMES("modules_install"));
	q = (struct modules_query){ .dir = tree, .names = NAMES("ext4") };
	assert_refused(&q, -ENOENT, NAMES("modules_install"));
	free(kernel);
	free(tree);
}

/* --- damage -------------------------------------------------------------- */

/* Asks a damaged tree for everything: any answer is right, as long as one comes. */
static int ask(const char *dir)
{
	struct modules_query q = { .dir = dir,
		                   .names = NAMES("gz", "fs-gz", "virtio:d00000099v00001AF4", "inside_it", "lines",
		                                  "fs-inside", "crypto-made", "post", "nosuch") };
	struct err err = { "" };
	struct modules m;
	int error = modules_find(&q, &m, &err);

	assert_int_equal(!error, !err.msg[0]);
	modules_free(&m);
	return error;
}

static void damage(const char *dir, const char *file)
{
	char *path = fmt("%s/%s", dir, file);
	uint8_t *data, *bad;
	uint64_t size;
	unsigned refused = 0;

	load(path, &data, &size);
	bad = malloc(size);
	for (uint64_t n = 0; n < size; n++) { /* cut off */
		save(path, data, n);
		refused += ask(dir) != 0;
	}
	/* Whatever is cut off belongs to the root, at the end. Only an empty list of builtins is an answer. */
	assert_int_equal(refused, size - (strstr(file, "builtin") != NULL));
	srand(1);
	for (unsigned i = 0; i < 500; i++) {
		memcpy(bad, data, size);
		for (unsigned n = 0; n < 1 + i % 4; n++)
			bad[(size_t)rand() % size] = (uint8_t)rand();
		save(path, bad, size);
		ask(dir);
	}
	save(path, data, size);
	assert_int_equal(ask(dir), 0);
	free(bad);
	free(data);
	free(path);
}

static void damaged_index(void **state)
{
	struct modules_query q = { .names = NAMES("zst") };
	char *dir, *path;

	need_made();
	dir = copy_tree("damaged");
	q.dir = dir;
	damage(dir, "modules.dep.bin");
	damage(dir, "modules.alias.bin");
	damage(dir, "modules.builtin.bin");
	damage(dir, "modules.builtin.alias.bin");
	path = fmt("%s/modules.dep.bin", dir);
	save(path, "garbage garbage", 15);
	assert_refused(&q, -EBADMSG, NAMES("modules.dep.bin", "damaged", "depmod"));
	free(path);
	free(dir);
}

static void missing_file(void **state)
{
	struct modules_query q = { .names = NAMES("gz") };
	char *dir;

	need_made();
	dir = copy_tree("holes");
	q.dir = dir;
	assert_true(sh("rm %s/kernel/zst.ko.zst", dir));
	assert_refused(&q, -EBADMSG, NAMES("gz", "zst.ko.zst"));
	free(dir);
}

static void assert_unpacks(const char *path)
{
	char *original = fmt("%s/plain/gz.ko", top);
	uint8_t *out, *want;
	uint64_t size, want_size;
	struct err err;

	if (unpack_file(path, &out, &size, &err))
		fail_msg("%s", err.msg);
	load(original, &want, &want_size);
	assert_int_equal(size, want_size);
	assert_memory_equal(out, want, size);
	free(out);
	free(want);
	free(original);
}

static void cut_off(const char *name)
{
	char *whole = fmt("%s/packed/%s", top, name), *cut = fmt("%s/cut-%s", top, name);
	uint8_t *data, *out;
	uint64_t size, out_size;
	struct err err;

	assert_unpacks(whole);
	load(whole, &data, &size);
	for (uint64_t n = 1; n < size; n += n < 64 || n > size - 64 ? 1 : size / 50) {
		save(cut, data, n);
		assert_int_equal(unpack_file(cut, &out, &out_size, &err), -EBADMSG);
		assert_non_null(strstr(err.msg, cut));
	}
	memset(data + size / 2, 0x55, 64);
	save(cut, data, size);
	assert_int_equal(unpack_file(cut, &out, &out_size, &err), -EBADMSG);
	memset(data, 0xaa, size);
	save(cut, data, size);
	assert_int_equal(unpack_file(cut, &out, &out_size, &err), -EBADMSG);
	save(cut, "", 0);
	assert_int_equal(unpack_file(cut, &out, &out_size, &err), -EINVAL);
	free(data);
	free(whole);
	free(cut);
}

static void damaged_compression(void **state)
{
	need_made();
	cut_off("m.gz");
#ifdef HAVE_LZMA
	cut_off("m.xz");
#endif
#ifdef HAVE_ZSTD
	cut_off("m.zst");
#endif
}

/* Two compressed streams behind one another are one file. */
static void joined_streams(void **state)
{
	static const char *const suffix[] = { "gz", "xz", "zst" };
	uint8_t *out;
	uint64_t size;
	struct err err;

	need("gzip xz zstd");
	assert_true(sh("for s in 'gzip gz' 'xz xz' 'zstd zst'; do set -- $s; "
	               "(echo one | $1 -c; echo two | $1 -c) >joined.$2; done"));
	for (unsigned i = 0; i < LEN(suffix); i++) {
		char *path = fmt("%s/joined.%s", top, suffix[i]);
		int error = unpack_file(path, &out, &size, &err);

		free(path);
		if (error == -ENOTSUP)
			continue;
		assert_int_equal(error, 0);
		assert_int_equal(size, 8);
		assert_memory_equal(out, "one\ntwo\n", 8);
		free(out);
	}
}

static void missing_library(void **state)
{
	static const struct library_fn fns[] = { { .name = "no_such_function" }, {} };
	const struct library gone = { .soname = "libnosuch.so.9", .package = "libnosuch9", .fns = fns };
	const struct library old = { .soname = "libc.so.6", .package = "libc6", .fns = fns };
	struct err err;
	void *handle, *fn;

	assert_int_equal(library_open(&gone, &fn, &handle, &err), -ENOENT);
	assert_non_null(strstr(err.msg, "libnosuch9"));
	assert_null(handle);
	assert_int_equal(library_open(&old, &fn, &handle, &err), -ENOSYS);
	assert_non_null(strstr(err.msg, "no_such_function"));
	assert_null(handle);
}

/* --- the archive --------------------------------------------------------- */

/* Makes the archive and unpacks it into ./NAME. */
static void unpack_archive(const struct initramfs_config *cfg, const char *name)
{
	char *path = fmt("%s/%s.cpio", top, name);
	struct initramfs *r;
	struct err err;
	uint8_t *buf;

	if (initramfs_new(cfg, &r, &err))
		fail_msg("%s", err.msg);
	buf = malloc(initramfs_size(r));
	memset(buf, 0xa5, initramfs_size(r));
	if (initramfs_write(r, buf, &err))
		fail_msg("%s", err.msg);
	save(path, buf, initramfs_size(r));
	free(buf);
	free(path);
	initramfs_free(r);
	assert_true(sh("rm -rf %s && mkdir %s && cd %s && cpio -id --quiet -f dev/console <../%s.cpio", name, name,
	               name, name));
}

static void archive(void **state)
{
	struct initramfs_config cfg = {
		.kernel_version = V, .modules_dir = made, .modules = NAMES("gz", "plain-name"), .orders = "root 9p\n"
	};

	need_made();
	need("cpio");
#if !defined(HAVE_LZMA) || !defined(HAVE_ZSTD)
	print_message("skipped: built without liblzma or libzstd\n");
	skip();
#endif
	unpack_archive(&cfg, "out");
	assert_true(
	        sh("cd out && for m in gz xz zst plain-name; do cmp kvm/modules/$m.ko ../plain/$m.ko || exit 1; done"));
	assert_true(
	        sh("cd out && [ $(ls kvm/modules | wc -l) = 4 ] && [ \"$(cat init)\" = '#!made up' ] && [ -x init ]"));
	assert_true(sh("cd out && [ -d dev ] && [ -d proc ] && [ -d sys ] && cpio -tv --quiet <../out.cpio | "
	               "grep -Eq '^crw------- .* 5, +1 .* dev/console$'"));
	assert_true(sh("cat >want <<'END'\n"
	               "module /kvm/modules/zst.ko\n"
	               "module /kvm/modules/xz.ko\n"
	               "module /kvm/modules/gz.ko\n"
	               "module /kvm/modules/plain-name.ko\n"
	               "root 9p\n"
	               "END\n"
	               "cmp want out/kvm/orders"));
}

static void archive_without_modules(void **state)
{
	struct initramfs_config cfg = { .orders = "shell\n" };

	need("cpio");
	unpack_archive(&cfg, "bareout");
	assert_true(sh("cd bareout && [ \"$(cat kvm/orders)\" = shell ] && [ -d kvm/modules ]"));
	cfg.orders = NULL;
	unpack_archive(&cfg, "bareout");
	assert_true(sh("cd bareout && [ -f kvm/orders ] && ! [ -s kvm/orders ]"));
}

static void archive_unknown(void **state)
{
	struct initramfs_config cfg = { .kernel_version = V,
		                        .modules_dir = made,
		                        .modules = NAMES("nosuch", "soft", "x") };
	struct initramfs *r;
	struct err err;

	need_made();
	assert_int_equal(initramfs_new(&cfg, &r, &err), 0);
	assert_string_equal(initramfs_unknown(r, 0), "nosuch");
	assert_string_equal(initramfs_unknown(r, 1), "x");
	assert_null(initramfs_unknown(r, 2));
	initramfs_free(r);
	initramfs_free(NULL);
}

static void archive_changed(void **state)
{
	struct initramfs_config cfg = { .modules = NAMES("plain_name", "gz", "xz") };
	struct initramfs *r;
	char *dir, *path;
	uint8_t *buf;
	struct err err;

	need_made();
	dir = copy_tree("changing");
	path = fmt("%s/kernel/plain-name.ko", dir);
	cfg.modules_dir = dir;
	assert_int_equal(initramfs_new(&cfg, &r, &err), 0);
	buf = malloc(initramfs_size(r));
	save(path, "short", 5);
	assert_int_equal(initramfs_write(r, buf, &err), -ESTALE);
	assert_non_null(strstr(err.msg, path));
	assert_int_equal(unlink(path), 0);
	assert_int_equal(initramfs_write(r, buf, &err), -ENOENT);
	initramfs_free(r);
	assert_int_equal(initramfs_new(&cfg, &r, &err), -ENOENT);
	assert_null(r);
	assert_true(sh("truncate -s 5000 %s/kernel/xz.ko.xz; cp made/lib/modules/" V "/kernel/plain-name.ko %s", dir,
	               path));
	assert_int_equal(initramfs_new(&cfg, &r, &err), -EBADMSG);
	assert_non_null(strstr(err.msg, "xz.ko.xz"));
	free(buf);
	free(path);
	free(dir);
}

/* --- the real kernel ----------------------------------------------------- */

/* What modprobe would load, one path a line, in ./modprobe.NAME. */
static void show_depends(const char *name)
{
	assert_true(sh("v=$(basename %s); d=%s; mkdir -p noconf; modprobe -C noconf -d ${d%%/lib/modules/*} -S $v "
	               "--show-depends %s | sed -n 's/^insmod \\([^ ]*\\).*/\\1/p' | sort -u >modprobe.list",
	               real_dir, real_dir, name));
}

/* Each of @m stands behind all that modules.dep gives for it. */
static void check_order(const struct modules *m)
{
	char *path = fmt("%s/ours.list", top);
	FILE *f = fopen(path, "w");

	for (unsigned i = 0; i < m->path.n; i++)
		fprintf(f, "%s\n", m->path.v[i]);
	fclose(f);
	free(path);
	assert_true(
	        sh("awk -v d=%s/ 'FNR == NR { at[$0] = FNR; next } "
	           "{ sub(\":\", \"\", $1); me = at[d $1]; if (me) for (i = 2; i <= NF; i++) "
	           "if (!at[d $i] || at[d $i] >= me) { print \"wrong: \" $1 \" \" $i; bad = 1 } } END { exit bad }' "
	           "ours.list %s/modules.dep",
	           real_dir, real_dir));
}

static const char *const wanted[] = { "ext4",
	                              "xfs",
	                              "btrfs",
	                              "9p",
	                              "virtiofs",
	                              "virtio_net",
	                              "virtio_blk",
	                              "virtio_console",
	                              "virtio_pci",
	                              "virtio-rng",
	                              "overlay",
	                              "vmw_vsock_virtio_transport",
	                              "fs-ext4",
	                              "crypto-crc32c",
	                              "virtio:d00000001v00001AF4",
	                              "9pnet_virtio",
	                              "pvpanic-pci",
	                              "button",
	                              "nfsd",
	                              "cifs",
	                              "vfio_pci" };

static void as_modprobe(void **state)
{
	need_real();
	need("modprobe awk");
	for (unsigned i = 0; i < LEN(wanted); i++) {
		struct modules m;

		find(real_dir, NAMES(wanted[i]), &m);
		assert_int_equal(m.unknown.n, 0);
		assert_no_duplicates(&m);
		check_order(&m);
		show_depends(wanted[i]);
		if (!sh("sort ours.list | comm -13 - modprobe.list | { ! grep .; }"))
			fail_msg("%s: modprobe loads more", wanted[i]);
		modules_free(&m);
	}
}

static void real_soft_dependencies(void **state)
{
	struct modules m;

	need_real();
	find(real_dir, NAMES("ext4"), &m);
	assert_true(position(&m, "crc32c_generic") >= 0);
	assert_true(position(&m, "crc32c_generic") < position(&m, "jbd2"));
	modules_free(&m);
	find(real_dir, NAMES("xfs"), &m);
	assert_true(position(&m, "crc32c_generic") >= 0);
	assert_true(position(&m, "crc32c_generic") < position(&m, "libcrc32c"));
	modules_free(&m);
	/* modprobe itself stops at the first of btrfs's four lines. */
	find(real_dir, NAMES("btrfs"), &m);
	assert_true(position(&m, "xxhash_generic") >= 0);
	assert_true(position(&m, "crc32c_generic") >= 0);
	modules_free(&m);
}

static void all_at_once(void **state)
{
	const char *names[LEN(wanted) + 1] = { 0 };
	struct modules m;

	need_real();
	need("awk");
	memcpy(names, wanted, sizeof(wanted));
	find(real_dir, names, &m);
	assert_int_equal(m.unknown.n, 0);
	assert_no_duplicates(&m);
	check_order(&m);
	modules_free(&m);
}

static void real_archive(void **state)
{
	struct initramfs_config cfg = { .modules_dir = real_dir, .modules = NAMES("virtio_pci", "virtio_blk", "ext4") };

	need_real();
	need("cpio");
	unpack_archive(&cfg, "real");
	assert_true(
	        sh("cd real && sed -n 's,^module /,,p' kvm/orders | while read -r m; do "
	           "cmp $m $(find %s/kernel -name ${m##*/}) || exit 1; done && [ $(ls kvm/modules | wc -l) -ge 12 ]",
	           real_dir));
}

/* --- ends ---------------------------------------------------------------- */

static void find_real(void)
{
	const char *given = getenv("KVM_TEST_MODULES");
	char *here = strdup(__FILE__), *pattern[2];

	if (given) {
		if (!realpath(given, real_dir))
			real_dir[0] = 0;
		free(here);
		return;
	}
	pattern[0] = fmt("%s/../../build/guest/amd64/lib/modules/*/modules.dep", dirname(here));
	pattern[1] = fmt("build/guest/amd64/lib/modules/*/modules.dep");
	for (unsigned i = 0; i < 2; i++) {
		glob_t g;

		if (!real_dir[0] && !glob(pattern[i], 0, NULL, &g)) {
			if (!realpath(dirname(g.gl_pathv[0]), real_dir))
				real_dir[0] = 0;
			globfree(&g);
		}
		free(pattern[i]);
	}
	free(here);
}

static int set_up(void **state)
{
	char *path = fmt("%s:/usr/sbin:/sbin", getenv("PATH") ? getenv("PATH") : "/usr/bin:/bin");

	setenv("PATH", path, 1);
	setenv("LC_ALL", "C", 1);
	free(path);
	if (!mkdtemp(top))
		return -1;
	find_real();
	made = fmt("%s/made", top);
	make_tree();
	return 0;
}

static int clean_up(void **state)
{
	free(made);
	free(why);
	return getenv("KEEP") || sh("rm -rf %s", top) ? 0 : -1;
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(newc_bytes),
		cmocka_unit_test(newc_cpio),
		cmocka_unit_test(hard_dependencies),
		cmocka_unit_test(several_names),
		cmocka_unit_test(soft_dependencies),
		cmocka_unit_test(builtin_and_unknown),
		cmocka_unit_test(places),
		cmocka_unit_test(no_place),
		cmocka_unit_test(no_names),
		cmocka_unit_test(no_modules_dep),
		cmocka_unit_test(build_tree),
		cmocka_unit_test(damaged_index),
		cmocka_unit_test(missing_file),
		cmocka_unit_test(damaged_compression),
		cmocka_unit_test(joined_streams),
		cmocka_unit_test(missing_library),
		cmocka_unit_test(archive),
		cmocka_unit_test(archive_without_modules),
		cmocka_unit_test(archive_unknown),
		cmocka_unit_test(archive_changed),
		cmocka_unit_test(as_modprobe),
		cmocka_unit_test(real_soft_dependencies),
		cmocka_unit_test(all_at_once),
		cmocka_unit_test(real_archive),
	};

	return cmocka_run_group_tests(tests, set_up, clean_up);
}
