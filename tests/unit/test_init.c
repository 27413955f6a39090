// SPDX-License-Identifier: GPL-2.0-or-later
/* The guests' init: what its orders and the command line mean, and whose superblock this is; also with random bytes. */
#include "guest/init/blkid.h"
#include "guest/init/init.h"
#include "guest/init/plan.h"
#include "guest/init/source.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LEN(a) (sizeof(a) / sizeof(*(a)))

static unsigned complaints;
static char last_complaint[1024];

void say(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(last_complaint, sizeof(last_complaint), fmt, ap);
	va_end(ap);
	complaints++;
}

static uint32_t seed = 1;

static uint32_t rnd(uint32_t n)
{
	seed = seed * 1664525 + 1013904223;
	return (uint32_t)((uint64_t)n * seed >> 32);
}

/* A plan is big and its texts must outlive it. */
struct fixture {
	struct plan p;
	char *orders, *cmdline;
};

static struct fixture *plan_of(const char *orders, const char *cmdline)
{
	struct fixture *f = calloc(1, sizeof(*f));

	complaints = 0;
	f->orders = strdup(orders);
	f->cmdline = strdup(cmdline);
	plan_init(&f->p);
	plan_orders(&f->p, f->orders);
	plan_cmdline(&f->p, f->cmdline);
	return f;
}

static void plan_done(struct fixture *f)
{
	free(f->orders);
	free(f->cmdline);
	free(f);
}

static void words(void **state)
{
	static const struct {
		const char *line;
		const char *word[6];
	} t[] = {
		{ "", { NULL } },
		{ "  \t ", { NULL } },
		{ "one", { "one" } },
		{ " one\ttwo  three ", { "one", "two", "three" } },
		{ "\"a b\" c", { "a b", "c" } },
		{ "a\" b \"c", { "a b c" } },
		{ "\"\" x", { "", "x" } },
		{ "a\\ b \\\"q\\\" \\\\", { "a b", "\"q\"", "\\" } },
		{ "\"line\\nnext\\tend\"", { "line\nnext\tend" } },
		{ "\"open end", { "open end" } },
		{ "end\\", { "end\\" } },
	};

	for (size_t i = 0; i < LEN(t); i++) {
		char *line = strdup(t[i].line), **w = word_split(line);
		size_t n = 0;

		for (; t[i].word[n]; n++)
			assert_string_equal(w[n], t[i].word[n]);
		assert_null(w[n]);
		free(w);
		free(line);
	}
}

static void orders(void **state)
{
	struct fixture *f = plan_of("# comment\n"
	                            "\n"
	                            "module /m/a.ko\n"
	                            "module /m/b.ko x=1 name=\"two words\"\n"
	                            "hostname guest\n"
	                            "env A=1\n"
	                            "env \"B=two words\"\n"
	                            "root LABEL=x ext4 noatime,ro\n"
	                            "rootwait 3\n"
	                            "overlay size=1G\n"
	                            "mount 9p:tag /mnt 9p cache=loose\n"
	                            "ip eth0 10.0.0.2/24 - 10.0.0.1\n"
	                            "ip - fd00::1\n"
	                            "reboot\n"
	                            "then run /bin/true \"a b\"",
	                            "");
	struct plan *p = &f->p;

	assert_int_equal(complaints, 0);
	assert_int_equal(p->nmodules, 2);
	assert_string_equal(p->module[0].file, "/m/a.ko");
	assert_string_equal(p->module[0].params, "");
	assert_string_equal(p->module[1].params, "x=1 name=\"two words\"");
	assert_string_equal(p->hostname, "guest");
	assert_int_equal(p->nenvs, 2);
	assert_string_equal(p->env[1], "B=two words");
	assert_string_equal(p->root.source, "LABEL=x");
	assert_string_equal(p->root.options, "noatime,ro");
	assert_int_equal(p->root_ro, -1);
	assert_int_equal(p->root_wait, 3);
	assert_true(p->overlay);
	assert_string_equal(p->overlay_options, "size=1G");
	assert_int_equal(p->nmounts, 1);
	assert_string_equal(p->mount[0].dir, "/mnt");
	assert_int_equal(p->nips, 2);
	assert_int_equal(p->ip[0].prefix, 24);
	assert_string_equal(p->ip[0].addr, "10.0.0.2");
	assert_null(p->ip[0].gateway);
	assert_string_equal(p->ip[0].dns[0], "10.0.0.1");
	assert_null(p->ip[1].iface);
	assert_int_equal(p->ip[1].prefix, 128);
	assert_true(p->reboot);
	assert_int_equal(p->then, THEN_RUN);
	assert_string_equal(p->command, "/bin/true \"a b\"");
	plan_done(f);
}

static void bad_orders(void **state)
{
	static const char *const t[] = {
		"frobnicate",
		"Module /x",
		"module",
		"hostname",
		"hostname 12345678901234567890123456789012345678901234567890123456789012345",
		"root",
		"rootwait",
		"rootwait soon",
		"rootwait 86401",
		"mount a",
		"mount a relative tmpfs",
		"ip eth0",
		"ip eth0 1.2.3.4/33",
		"ip eth0 1.2.3.4/",
		"ip eth0 ::1/129",
		"ip eth0 1.2.3.4/-1",
		"env",
		"env X",
		"env =x",
		"then",
		"then run",
		"then dance",
	};

	for (size_t i = 0; i < LEN(t); i++) {
		struct fixture *f = plan_of(t[i], "");
		struct plan none;

		assert_int_equal(complaints, 1);
		assert_non_null(strstr(last_complaint, "/kvm/orders:1:"));
		plan_init(&none);
		assert_int_equal(f->p.nmodules + f->p.nmounts + f->p.nips + f->p.nenvs, 0);
		assert_int_equal(f->p.then, THEN_UNSET);
		assert_int_equal(f->p.root_wait, none.root_wait);
		plan_done(f);
	}
}

static void too_many(void **state)
{
	static const char *const t[] = { "module /m\n", "mount a /b\n", "ip eth0 1.2.3.4/8\n", "env A=b\n" };
	static const unsigned max[] = { PLAN_MODULES, PLAN_MOUNTS, PLAN_IPS, PLAN_ENVS };

	for (size_t i = 0; i < LEN(t); i++) {
		unsigned n = max[i] + 3;
		char *text = calloc(n, strlen(t[i]) + 1);
		struct fixture *f;

		for (unsigned j = 0; j < n; j++)
			memcpy(text + j * strlen(t[i]), t[i], strlen(t[i]));
		f = plan_of(text, "");
		assert_int_equal(complaints, 3);
		plan_done(f);
		free(text);
	}
}

static void thens(void **state)
{
	static const struct {
		const char *line;
		enum then then;
	} t[] = {
		{ "then switch_root", THEN_SWITCH_ROOT },
		{ "then shell", THEN_SHELL },
		{ "then poweroff", THEN_POWEROFF },
		{ "then reboot", THEN_REBOOT },
		{ "then run x", THEN_RUN },
	};
	struct fixture *f;

	for (size_t i = 0; i < LEN(t); i++) {
		f = plan_of(t[i].line, "");
		assert_int_equal(f->p.then, t[i].then);
		plan_done(f);
	}
	f = plan_of("then switch_root /my/init", "");
	assert_string_equal(f->p.init, "/my/init");
	plan_done(f);
	f = plan_of("then switch_root /my/init", "init=/bin/bash");
	assert_string_equal(f->p.init, "/bin/bash");
	plan_done(f);
}

/* Who wins: the command line, and nothing of the orders' device sticks to another one. */
static void roots(void **state)
{
	static const struct {
		const char *orders, *cmdline, *source, *fstype, *options;
		int ro, wait;
	} t[] = {
		{ "", "", NULL, NULL, NULL, -1, 10 },
		{ "", "root=/dev/vda", "/dev/vda", NULL, NULL, 1, 10 },
		{ "", "root=/dev/vda rw", "/dev/vda", NULL, NULL, 0, 10 },
		{ "", "ro root=/dev/vda rw", "/dev/vda", NULL, NULL, 0, 10 },
		{ "", "root=UUID=x rootfstype=xfs rootflags=noatime,norecovery", "UUID=x", "xfs", "noatime,norecovery",
		  1, 10 },
		{ "root 9p:r 9p cache=loose", "", "9p:r", "9p", "cache=loose", -1, 10 },
		{ "root 9p:r 9p cache=loose", "ro", "9p:r", "9p", "cache=loose", 1, 10 },
		{ "root 9p:r 9p cache=loose", "root=/dev/vda", "/dev/vda", NULL, NULL, 1, 10 },
		{ "root 9p:r 9p cache=loose", "root=9p:r", "9p:r", "9p", "cache=loose", -1, 10 },
		{ "root 9p:r 9p cache=loose", "rootflags=cache=none", "9p:r", "9p", "cache=none", -1, 10 },
		{ "root /dev/vda", "root=\"LABEL=my disk\" quiet", "LABEL=my disk", NULL, NULL, 1, 10 },
		{ "root /dev/vda", "\"root=LABEL=my disk\"", "LABEL=my disk", NULL, NULL, 1, 10 },
		{ "root /dev/vda", "rootwait", "/dev/vda", NULL, NULL, -1, WAIT_FOREVER },
		{ "root /dev/vda", "rootwait=7", "/dev/vda", NULL, NULL, -1, 7 },
		{ "root /dev/vda\nrootwait 5", "rootdelay=30", "/dev/vda", NULL, NULL, -1, 30 },
		{ "root /dev/vda", "rootdelay=soon", "/dev/vda", NULL, NULL, -1, 10 },
		{ "root /dev/vda", "quiet -- root=/dev/vdb ro", "/dev/vda", NULL, NULL, -1, 10 },
		{ "root /dev/vda", "root= ro=1 xroot=/dev/vdb root", "/dev/vda", NULL, NULL, -1, 10 },
	};

	for (size_t i = 0; i < LEN(t); i++) {
		struct fixture *f = plan_of(t[i].orders, t[i].cmdline);
		struct order_mount *r = &f->p.root;

		assert_string_equal(r->source ? r->source : "-", t[i].source ? t[i].source : "-");
		assert_string_equal(r->fstype ? r->fstype : "-", t[i].fstype ? t[i].fstype : "-");
		assert_string_equal(r->options ? r->options : "-", t[i].options ? t[i].options : "-");
		assert_int_equal(f->p.root_ro, t[i].ro);
		assert_int_equal(f->p.root_wait, t[i].wait);
		plan_done(f);
	}
}

static void ips(void **state)
{
	static const char orders[] = "ip eth0 10.1.1.1/24\nip eth1 10.2.2.2/24";
	static const struct {
		const char *cmdline;
		unsigned n, complaints;
		const char *iface, *addr, *gateway, *dns; /* of the last one */
		int prefix;
	} t[] = {
		{ "", 2, 0, "eth1", "10.2.2.2", NULL, NULL, 24 },
		{ "ip=off", 0, 0, NULL, NULL, NULL, NULL, 0 },
		{ "ip=none", 0, 0, NULL, NULL, NULL, NULL, 0 },
		{ "ip=dhcp", 2, 1, "eth1", "10.2.2.2", NULL, NULL, 24 },
		{ "ip=::::::dhcp", 2, 1, "eth1", "10.2.2.2", NULL, NULL, 24 },
		{ "ip=1.2.3.4", 1, 0, NULL, "1.2.3.4", NULL, NULL, 8 },
		{ "ip=172.16.0.9", 1, 0, NULL, "172.16.0.9", NULL, NULL, 16 },
		{ "ip=1.2.3.4::1.2.3.1:255.255.255.128:n:eth0:off:8.8.8.8", 2, 0, "eth0", "1.2.3.4", "1.2.3.1",
		  "8.8.8.8", 25 },
		{ "ip=1.2.3.4:::255.255.255.255::eth2", 3, 0, "eth2", "1.2.3.4", NULL, NULL, 32 },
		{ "ip=1.2.3.4:::0.0.0.0::eth2", 3, 0, "eth2", "1.2.3.4", NULL, NULL, 0 },
		{ "ip=1.2.3.4:::255.0.255.0::eth2", 2, 1, "eth1", "10.2.2.2", NULL, NULL, 24 },
		{ "ip=1.2.3.4:::nonsense", 2, 1, "eth1", "10.2.2.2", NULL, NULL, 24 },
		{ "ip=1.1.1.1:::255.0.0.0::eth0 ip=2.2.2.2:::255.0.0.0::eth0", 3, 0, "eth0", "2.2.2.2", NULL, NULL, 8 },
	};

	for (size_t i = 0; i < LEN(t); i++) {
		struct fixture *f = plan_of(orders, t[i].cmdline);
		struct order_ip *ip = &f->p.ip[f->p.nips ? f->p.nips - 1 : 0];

		assert_int_equal(f->p.nips, t[i].n);
		assert_int_equal(complaints, t[i].complaints);
		if (t[i].n) {
			assert_string_equal(ip->iface ? ip->iface : "-", t[i].iface ? t[i].iface : "-");
			assert_string_equal(ip->addr, t[i].addr);
			assert_string_equal(ip->gateway ? ip->gateway : "-", t[i].gateway ? t[i].gateway : "-");
			assert_string_equal(ip->dns[0] ? ip->dns[0] : "-", t[i].dns ? t[i].dns : "-");
			assert_int_equal(ip->prefix, t[i].prefix);
		}
		plan_done(f);
	}
}

static void module_params(void **state)
{
	static const struct {
		const char *cmdline, *module, *params;
		size_t len;
	} t[] = {
		{ "quiet loop.max_loop=4 ro", "loop", "max_loop=4", 64 },
		{ "loop.max_loop=4 loop.hw=\"a b\" x", "loop", "max_loop=4 hw=\"a b\"", 64 },
		{ "virtio-blk.depth=3\n", "virtio_blk", "depth=3", 64 },
		{ "virtio_blk.depth=3", "virtio-blk", "depth=3", 64 },
		{ "xloop.a=1 loopx.a=1 loop.", "loop", "", 64 },
		{ "loop.a=1 -- loop.b=2", "loop", "a=1", 64 },
		{ "loop.a=1 loop.b=2", "loop", "a=1", 7 },
		{ "loop.a=1 loop.b=2", "loop", "a=1 b=2", 9 },
		{ "loop.a=1", "loop", "", 1 },
		{ "", "loop", "", 64 },
	};

	for (size_t i = 0; i < LEN(t); i++) {
		char *buf = malloc(t[i].len);

		cmdline_params(t[i].cmdline, t[i].module, buf, t[i].len);
		assert_string_equal(buf, t[i].params);
		free(buf);
	}
}

static void sources(void **state)
{
	static const struct {
		const char *text, *fstype;
		enum source_kind kind;
		const char *value;
		unsigned major, minor;
		int partnroff;
	} t[] = {
		{ "/dev/vda1", NULL, SOURCE_PATH, "/dev/vda1", 0, 0, 0 },
		{ "LABEL=my disk", NULL, SOURCE_LABEL, "my disk", 0, 0, 0 },
		{ "UUID=AB-cd", "auto", SOURCE_UUID, "AB-cd", 0, 0, 0 },
		{ "PARTUUID=x/PARTNROFF=-2", NULL, SOURCE_PARTUUID, "x", 0, 0, -2 },
		{ "PARTLABEL=p", NULL, SOURCE_PARTLABEL, "p", 0, 0, 0 },
		{ "/dev/disk/by-label/a\\x20b\\x2", NULL, SOURCE_LABEL, "a b\\x2", 0, 0, 0 },
		{ "/dev/disk/by-uuid/u", NULL, SOURCE_UUID, "u", 0, 0, 0 },
		{ "/dev/disk/by-partuuid/u", NULL, SOURCE_PARTUUID, "u", 0, 0, 0 },
		{ "9p:host", NULL, SOURCE_9P, "host", 0, 0, 0 },
		{ "virtiofs:v", NULL, SOURCE_VIRTIOFS, "v", 0, 0, 0 },
		{ "host", "9p", SOURCE_9P, "host", 0, 0, 0 },
		{ "/dev/root", "9p", SOURCE_9P, "/dev/root", 0, 0, 0 },
		{ "v", "virtiofs", SOURCE_VIRTIOFS, "v", 0, 0, 0 },
		{ "254:1", NULL, SOURCE_DEVNO, "254:1", 254, 1, 0 },
		{ "fe01", NULL, SOURCE_DEVNO, "fe01", 254, 1, 0 },
		{ "801", NULL, SOURCE_DEVNO, "801", 8, 1, 0 },
		{ "tmpfs", "tmpfs", SOURCE_OTHER, "tmpfs", 0, 0, 0 },
		{ "/some/dir", "none", SOURCE_OTHER, "/some/dir", 0, 0, 0 },
		{ "vda1", NULL, SOURCE_OTHER, "vda1", 0, 0, 0 },
		{ "5000:1", NULL, SOURCE_OTHER, "5000:1", 0, 0, 0 },
		{ ":", NULL, SOURCE_OTHER, ":", 0, 0, 0 },
	};
	char *longest = malloc(5000);
	struct source s;

	for (size_t i = 0; i < LEN(t); i++) {
		source_parse(t[i].text, t[i].fstype, &s);
		assert_int_equal(s.kind, t[i].kind);
		assert_string_equal(s.value, t[i].value);
		assert_int_equal(s.partnroff, t[i].partnroff);
		assert_int_equal(s.major, t[i].major);
		assert_int_equal(s.minor, t[i].minor);
	}
	memset(longest, 'x', 5000);
	memcpy(longest, "LABEL=", 6);
	longest[4999] = '\0';
	source_parse(longest, NULL, &s);
	assert_int_equal(s.kind, SOURCE_LABEL);
	free(longest);
}

/* Texts made of what the parsers look for, in buffers that end where the text does. */
static void random_texts(void **state)
{
	static const char *const piece[] = {
		"module ", "root",     "root=",     "ip=",     "ip ",    "mount ",      "then run ", "env ",
		"\n",      " ",        "\"",        "\\",      ":",      "/",           "eth0",      "=",
		"--",      "-",        "1.2.3.4",   "/24",     "LABEL=", "fe01",        "\t",        "9p:",
		"ro",      "rw",       "#",         "overlay", "\\x41",  "\\",          "::",        "x.y=",
		"init=",   "rootwait", "hostname ", "",        "\x80",   "/PARTNROFF=",
	};

	for (unsigned round = 0; round < 20000; round++) {
		char text[512] = "", buf[40];
		unsigned n = rnd(30);
		struct fixture *f;
		struct source s;

		for (unsigned i = 0; i < n; i++)
			strcat(text, piece[rnd(LEN(piece))]);
		f = plan_of(text, text);
		for (unsigned i = 0; i < f->p.nmounts; i++)
			assert_true(f->p.mount[i].dir[0] == '/');
		if (f->p.root.source)
			source_parse(f->p.root.source, f->p.root.fstype, &s);
		if (f->p.command)
			free(word_split(f->p.command));
		plan_done(f);
		source_parse(text, NULL, &s);
		cmdline_params(text, "x", buf, 1 + rnd(sizeof(buf)));
	}
}

/* A disk in memory. Reads past its end fail, as a device's do. */
struct mem_reader {
	struct blk_reader r;
	const uint8_t *bytes;
	size_t len;
};

static int mem_read(struct blk_reader *r, uint64_t off, void *buf, size_t len)
{
	struct mem_reader *m = (struct mem_reader *)r;

	if (off > m->len || len > m->len - off)
		return -EIO;
	memcpy(buf, m->bytes + off, len);
	return 0;
}

static bool probe(const uint8_t *disk, size_t len, struct blkid *out)
{
	struct mem_reader m = { { mem_read }, disk, len };

	return blkid_probe(&m.r, out);
}

#define DISK 0x12000

struct bytes {
	uint32_t off;
	uint8_t len;
	const char *bytes;
};

static const char uuid_bytes[] = "\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10";
static const char uuid_text[] = "01020304-0506-0708-090a-0b0c0d0e0f10";

/* What is checked of each is what its own mkfs writes there. */
static const struct superblock {
	const char *type, *uuid, *label;
	struct bytes b[8];
} superblocks[] = {
	{ "ext2",
	  uuid_text,
	  "lab",
	  { { 1024, 8, "\x10\0\0\0\x40\0\0\0" },
	    { 1080, 2, "\x53\xef" },
	    { 1128, 16, uuid_bytes },
	    { 1144, 3, "lab" },
	    { 1120, 1, "\x02" },
	    { 1124, 1, "\x01" } } },
	{ "ext3",
	  uuid_text,
	  "sixteen bytes la",
	  { { 1024, 8, "\x10\0\0\0\x40\0\0\0" },
	    { 1080, 2, "\x53\xef" },
	    { 1128, 16, uuid_bytes },
	    { 1144, 16, "sixteen bytes la" },
	    { 1116, 1, "\x04" },
	    { 1120, 1, "\x06" } } },
	{ "ext4",
	  uuid_text,
	  "",
	  { { 1024, 8, "\x10\0\0\0\x40\0\0\0" },
	    { 1080, 2, "\x53\xef" },
	    { 1128, 16, uuid_bytes },
	    { 1116, 1, "\x04" },
	    { 1120, 1, "\x42" } } },
	{ "jbd",
	  uuid_text,
	  "",
	  { { 1024, 8, "\x10\0\0\0\x40\0\0\0" },
	    { 1080, 2, "\x53\xef" },
	    { 1128, 16, uuid_bytes },
	    { 1120, 1, "\x08" } } },
	{ "xfs",
	  uuid_text,
	  "twelve bytes",
	  { { 0, 8, "XFSB\0\0\x10\0" }, { 32, 16, uuid_bytes }, { 108, 12, "twelve bytes" } } },
	{ "btrfs",
	  uuid_text,
	  "a label",
	  { { 0x10020, 16, uuid_bytes },
	    { 0x10030, 4, "\0\0\1\0" },
	    { 0x10040, 8, "_BHRfS_M" },
	    { 0x1012b, 7, "a label" } } },
	{ "swap",
	  uuid_text,
	  "sw",
	  { { 1024, 1, "\1" }, { 1036, 16, uuid_bytes }, { 1052, 2, "sw" }, { 4086, 10, "SWAPSPACE2" } } },
	{ "erofs", uuid_text, "er", { { 1024, 4, "\xe2\xe1\xf5\xe0" }, { 1072, 16, uuid_bytes }, { 1088, 2, "er" } } },
	{ "f2fs",
	  uuid_text,
	  "f\xc3\xa4\xe2\x82\xac",
	  { { 1024, 4, "\x10\x20\xf5\xf2" }, { 1132, 16, uuid_bytes }, { 1148, 6, "f\0\xe4\0\xac\x20" } } },
	{ "squashfs", "", "", { { 0, 4, "hsqs" } } },
	{ "iso9660", "", "CD ROM", { { 0x8001, 5, "CD001" }, { 0x8028, 32, "CD ROM                          " } } },
	{ "vfat",
	  "ABCD-1234",
	  "DOS",
	  { { 11, 3, "\0\2\1" },
	    { 16, 1, "\2" },
	    { 67, 4, "\x34\x12\xcd\xab" },
	    { 71, 11, "DOS        " },
	    { 82, 8, "FAT32   " },
	    { 510, 2, "\x55\xaa" } } },
	{ "vfat",
	  "ABCD-1234",
	  "",
	  { { 11, 3, "\0\2\1" },
	    { 16, 1, "\2" },
	    { 39, 4, "\x34\x12\xcd\xab" },
	    { 43, 11, "NO NAME    " },
	    { 54, 8, "FAT16   " },
	    { 510, 2, "\x55\xaa" } } },
	{ "crypto_LUKS", "", "", { { 0, 6, "LUKS\xba\xbe" } } },
	{ "LVM2_member", "", "", { { 512, 8, "LABELONE" } } },
};

static void put(uint8_t *disk, const struct superblock *s)
{
	for (size_t i = 0; i < LEN(s->b) && s->b[i].len; i++)
		memcpy(disk + s->b[i].off, s->b[i].bytes, s->b[i].len);
}

static void probes(void **state)
{
	for (size_t i = 0; i < LEN(superblocks); i++) {
		const struct superblock *s = &superblocks[i];
		uint8_t *disk = calloc(1, DISK);
		struct blkid id;

		put(disk, s);
		assert_true(probe(disk, DISK, &id));
		assert_string_equal(id.type, s->type);
		assert_string_equal(id.uuid, s->uuid);
		assert_string_equal(id.label, s->label);
		free(disk);
	}
}

static void probes_nothing(void **state)
{
	/* A magic number is there, but nothing else fits. */
	static const struct superblock t[] = {
		{ "ext: no inodes", "", "", { { 1080, 2, "\x53\xef" } } },
		{ "xfs: block size", "", "", { { 0, 8, "XFSB\0\0\x10\1" } } },
		{ "btrfs: another copy", "", "", { { 0x10030, 4, "\0\0\0\4" }, { 0x10040, 8, "_BHRfS_M" } } },
		{ "swap: version", "", "", { { 4086, 10, "SWAPSPACE2" } } },
		{ "vfat: no boot sector", "", "", { { 82, 8, "FAT32   " } } },
	};
	uint8_t *disk = calloc(1, DISK);
	struct blkid id;

	assert_false(probe(disk, DISK, &id));
	assert_null(id.type);
	assert_false(probe(disk, 0, &id));
	for (size_t i = 0; i < LEN(t); i++) {
		memset(disk, 0, DISK);
		put(disk, &t[i]);
		assert_false(probe(disk, DISK, &id));
		assert_null(id.type);
		assert_string_equal(id.label, "");
		assert_string_equal(id.uuid, "");
	}
	free(disk);
}

static void check_sane(bool known, const struct blkid *id)
{
	assert_int_equal(known, id->type != NULL);
	assert_true(strnlen(id->uuid, sizeof(id->uuid)) < sizeof(id->uuid));
	assert_true(strnlen(id->label, sizeof(id->label)) < sizeof(id->label));
}

/* Superblocks with some bytes changed, several in one, on disks cut short. */
static void probes_random(void **state)
{
	for (unsigned round = 0; round < 5000; round++) {
		size_t len = rnd(4) ? DISK : rnd(DISK);
		uint8_t *disk = calloc(1, DISK), *exact;
		unsigned changes = rnd(2) ? rnd(40) : rnd(3000);
		struct partid part;
		struct blkid id;

		for (unsigned i = rnd(3); i < 3; i++)
			put(disk, &superblocks[rnd(LEN(superblocks))]);
		for (unsigned i = 0; i < changes; i++)
			disk[rnd(2) ? rnd(5000) : 0x10000 + rnd(0x1000)] = (uint8_t)(rnd(2) ? rnd(256) : 255);
		exact = malloc(len ? len : 1);
		memcpy(exact, disk, len);
		check_sane(probe(exact, len, &id), &id);

		struct mem_reader m = { { mem_read }, exact, len };

		(void)partid_probe(&m.r, 512u << rnd(4), rnd(200), &part);
		free(exact);
		free(disk);
	}
}

static void put64(uint8_t *p, uint64_t v)
{
	for (unsigned i = 0; i < 8; i++)
		p[i] = (uint8_t)(v >> 8 * i);
}

/* A GPT whose second entry is used. */
static void put_gpt(uint8_t *disk, unsigned sector)
{
	uint8_t *h = disk + sector, *e = disk + 2 * (size_t)sector + 128;

	memset(disk, 0, DISK);
	memcpy(disk + 510, "\x55\xaa", 2);
	disk[446 + 4] = 0xee;
	memcpy(h, "EFI PART\0\0\1\0\x5c\0\0\0", 16);
	put64(h + 72, 2);
	put64(h + 80, 128 | 128ull << 32);
	memset(e, 0x11, 16);
	memcpy(e + 16, uuid_bytes, 16);
	memcpy(e + 56, "p\0\xe4\0\x00\xd8!\0", 8);
}

static void partitions(void **state)
{
	uint8_t *disk = calloc(1, DISK);
	struct mem_reader m = { { mem_read }, disk, DISK };
	struct partid id;

	for (unsigned sector = 512; sector <= 4096; sector *= 8) {
		put_gpt(disk, sector);
		assert_true(partid_probe(&m.r, sector, 2, &id));
		assert_string_equal(id.uuid, "04030201-0605-0807-090a-0b0c0d0e0f10");
		assert_string_equal(id.name, "p\xc3\xa4?!");
		assert_false(partid_probe(&m.r, sector, 1, &id));
		assert_false(partid_probe(&m.r, sector, 0, &id));
		assert_false(partid_probe(&m.r, sector, 129, &id));
		assert_string_equal(id.uuid, "");
	}
	/* Entries that lie anywhere. */
	put_gpt(disk, 512);
	put64(disk + 512 + 72, UINT64_MAX);
	assert_false(partid_probe(&m.r, 512, 2, &id));
	put64(disk + 512 + 72, UINT64_MAX / 512);
	assert_false(partid_probe(&m.r, 512, 2, &id));
	put_gpt(disk, 512);
	put64(disk + 512 + 80, 0xffffffffffffffff);
	assert_false(partid_probe(&m.r, 512, 2, &id));
	put64(disk + 512 + 80, 0xffffffff | 128ull << 32);
	assert_false(partid_probe(&m.r, 512, 0xffffffff, &id));
	free(disk);
}

static void partitions_mbr(void **state)
{
	uint8_t *disk = calloc(1, DISK);
	struct mem_reader m = { { mem_read }, disk, DISK };
	struct partid id;

	assert_false(partid_probe(&m.r, 512, 1, &id));
	memcpy(disk + 510, "\x55\xaa", 2);
	assert_false(partid_probe(&m.r, 512, 1, &id));
	memcpy(disk + 440, "\xcd\xab\x34\x12", 4);
	disk[446 + 4] = 0x83;
	assert_true(partid_probe(&m.r, 512, 1, &id));
	assert_string_equal(id.uuid, "1234abcd-01");
	assert_true(partid_probe(&m.r, 512, 12, &id));
	assert_string_equal(id.uuid, "1234abcd-0c");
	/* A GPT under a table that does not point to it is a leftover. */
	put_gpt(disk, 512);
	disk[446 + 4] = 0x83;
	assert_false(partid_probe(&m.r, 512, 2, &id));
	free(disk);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(words),         cmocka_unit_test(orders),        cmocka_unit_test(bad_orders),
		cmocka_unit_test(too_many),      cmocka_unit_test(thens),         cmocka_unit_test(roots),
		cmocka_unit_test(ips),           cmocka_unit_test(module_params), cmocka_unit_test(sources),
		cmocka_unit_test(random_texts),  cmocka_unit_test(probes),        cmocka_unit_test(probes_nothing),
		cmocka_unit_test(probes_random), cmocka_unit_test(partitions),    cmocka_unit_test(partitions_mbr),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
