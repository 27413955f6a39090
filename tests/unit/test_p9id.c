// SPDX-License-Identifier: GPL-2.0-or-later
/* Whose files are over 9p: none, squash and mapped. */
#include "p9fix.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cmocka.h>

#define ROOT 0u
#define UID  1234u
#define GID  5678u
#define RDWR (P9_DOTL_CREATE | 2u)

static struct stat host_stat(struct p9fix *f, const char *name)
{
	struct stat st;

	assert_int_equal(fstatat(f->dirfd, name, &st, AT_SYMLINK_NOFOLLOW), 0);
	return st;
}

static void need_root(void)
{
	if (geteuid()) {
		print_message("needs root\n");
		skip();
	}
}

static int chown_to(struct p9c *c, uint32_t fid, uint32_t uid, uint32_t gid)
{
	return p9c_call(c, P9_TSETATTR, "uuuuuqqqqq", fid, P9_SET_UID | P9_SET_GID, 0u, uid, gid, (uint64_t)0,
	                (uint64_t)0, (uint64_t)0, (uint64_t)0, (uint64_t)0);
}

static int chmod_to(struct p9c *c, uint32_t fid, uint32_t mode)
{
	return p9c_call(c, P9_TSETATTR, "uuuuuqqqqq", fid, P9_SET_MODE, mode, 0u, 0u, (uint64_t)0, (uint64_t)0,
	                (uint64_t)0, (uint64_t)0, (uint64_t)0);
}

/* One of each kind, made by the user that attached. */
static void make_all(struct p9c *c)
{
	assert_int_equal(p9c_walk(c, ROOT, 1, ""), 0);
	assert_int_equal(p9c_call(c, P9_TLCREATE, "usuuu", 1u, "file", RDWR, 04751u, GID), 0);
	assert_int_equal(p9c_call(c, P9_TMKDIR, "usuu", ROOT, "dir", 01777u, GID), 0);
	assert_int_equal(p9c_call(c, P9_TSYMLINK, "ussu", ROOT, "link", "some/where", GID), 0);
	assert_int_equal(p9c_qid(c).type, P9_QTSYMLINK);
	assert_int_equal(p9c_call(c, P9_TMKNOD, "usuuuu", ROOT, "fifo", S_IFIFO | 0606u, 0u, 0u, GID), 0);
}

static void test_none(void **state)
{
	static const char *const names[] = { "file", "dir", "link", "fifo" };
	static const mode_t modes[] = { S_IFREG | 04751, S_IFDIR | 01777, S_IFLNK | 0777, S_IFIFO | 0606 };
	struct p9fix *f;
	mode_t old;

	need_root();
	f = p9fix_new(NULL, P9_MAP_NONE, false);
	old = umask(077); /* not the guest's */
	assert_int_equal(p9c_start(&f->c, 8192, ROOT, UID), 0);
	make_all(&f->c);
	umask(old);
	for (unsigned i = 0; i < 4; i++) {
		struct stat st = host_stat(f, names[i]);

		assert_int_equal(st.st_mode, modes[i]);
		assert_int_equal(st.st_uid, UID);
		assert_int_equal(st.st_gid, GID);
	}
	/* Nobody in particular: ours, with the group. */
	assert_int_equal(p9c_call(&f->c, P9_TATTACH, "uussu", 9u, P9_NOFID, "", "", P9_NONUNAME), 0);
	assert_int_equal(p9c_call(&f->c, P9_TMKDIR, "usuu", 9u, "dir2", 0755u, GID), 0);
	assert_int_equal(host_stat(f, "dir2").st_uid, 0);
	assert_int_equal(host_stat(f, "dir2").st_gid, GID);
	assert_int_equal(chown_to(&f->c, 1, 77, 88), 0);
	assert_int_equal(host_stat(f, "file").st_uid, 77);
	assert_int_equal(chown_to(&f->c, 1, ~0u, 88), -EINVAL);
	p9fix_free(f);
}

/* The group is the directory's, whatever the message says, and directories pass it on. */
static void test_setgid(void **state)
{
	struct p9fix *f;

	need_root();
	f = p9fix_new(NULL, P9_MAP_NONE, false);
	assert_int_equal(fchownat(f->topfd, "share", 0, 99, 0), 0);
	assert_int_equal(fchmodat(f->topfd, "share", 02755, 0), 0);
	assert_int_equal(p9c_start(&f->c, 8192, ROOT, UID), 0);
	make_all(&f->c);
	assert_int_equal(host_stat(f, "file").st_gid, 99);
	assert_int_equal(host_stat(f, "dir").st_gid, 99);
	assert_int_equal(host_stat(f, "dir").st_mode, S_IFDIR | 03777);
	assert_int_equal(host_stat(f, "dir").st_uid, UID);
	p9fix_free(f);
}

static void test_squash(void **state)
{
	struct p9fix *f;
	struct p9c_attr a;

	need_root();
	f = p9fix_new(NULL, P9_MAP_SQUASH, false);
	assert_int_equal(chmod(f->top, 0755), 0);
	assert_int_equal(fchownat(f->topfd, "share", UID, GID, 0), 0);
	p9fix_put(f, "share/roots", "x");
	p9fix_put(f, "share/others", "x");
	assert_int_equal(fchownat(f->dirfd, "others", 77, 88, 0), 0);
	assert_true(!setegid(GID) && !seteuid(UID));
	p9fix_again(f, P9_MAP_SQUASH, false);
	assert_int_equal(p9c_start(&f->c, 8192, ROOT, 0), 0);
	make_all(&f->c);
	assert_int_equal(host_stat(f, "file").st_uid, UID);
	assert_int_equal(host_stat(f, "file").st_mode, S_IFREG | 04751);
	assert_int_equal(p9c_getattr(&f->c, 1, &a), 0);
	assert_true(a.uid == 0 && a.gid == 0);
	assert_int_equal(chown_to(&f->c, 1, 0, 0), 0); /* us */
	assert_int_equal(chown_to(&f->c, 1, 77, 88), -EPERM);
	assert_int_equal(p9c_walk(&f->c, ROOT, 2, "roots"), 0);
	assert_int_equal(p9c_getattr(&f->c, 2, &a), 0);
	assert_true(a.uid == 0 && a.gid == 0);
	assert_int_equal(p9c_open(&f->c, 2, 1), -EACCES);
	assert_int_equal(p9c_open(&f->c, 2, 0), 0); /* not ours: without O_NOATIME */
	assert_int_equal(p9c_walk(&f->c, ROOT, 3, "others"), 0);
	assert_int_equal(p9c_getattr(&f->c, 3, &a), 0);
	assert_true(a.uid == 77 && a.gid == 88);
	p9fix_again(f, P9_MAP_SQUASH, false);
	assert_true(!seteuid(0) && !setegid(0));
	p9fix_free(f);
}

static bool has_user_xattrs(struct p9fix *f)
{
	return !setxattr(f->top, "user.test", "x", 1, 0);
}

static uint32_t attr32(struct p9fix *f, const char *name, const char *attr)
{
	char path[256];
	uint32_t v = 0;

	snprintf(path, sizeof(path), "%s/share/%s", f->top, name);
	assert_int_equal(lgetxattr(path, attr, &v, sizeof(v)), sizeof(v));
	return v;
}

static void check_mapped(struct p9fix *f)
{
	static const struct {
		const char *name;
		uint32_t mode;
		uint8_t type;
	} want[] = {
		{ "file", S_IFREG | 04751, P9_QTFILE },   { "dir", S_IFDIR | 01777, P9_QTDIR },
		{ "link", S_IFLNK | 0777, P9_QTSYMLINK }, { "fifo", S_IFIFO | 0606, P9_QTFILE },
		{ "disk", S_IFBLK | 0660, P9_QTFILE },
	};
	struct p9c_attr a;

	for (unsigned i = 0; i < 5; i++) {
		struct stat st = host_stat(f, want[i].name);

		assert_int_equal(st.st_mode, i == 1 ? S_IFDIR | 0700 : S_IFREG | 0600);
		assert_int_equal(attr32(f, want[i].name, "user.virtfs.uid"), UID);
		assert_int_equal(attr32(f, want[i].name, "user.virtfs.gid"), GID);
		assert_int_equal(attr32(f, want[i].name, "user.virtfs.mode"), want[i].mode);
		assert_int_equal(p9c_walk(&f->c, ROOT, 20, want[i].name), 0);
		assert_int_equal(p9c_getattr(&f->c, 20, &a), 0);
		assert_int_equal(a.mode, want[i].mode);
		assert_int_equal(a.uid, UID);
		assert_int_equal(a.gid, GID);
		assert_int_equal(a.qid.type, want[i].type);
		assert_int_equal(p9c_clunk(&f->c, 20), 0);
	}
	assert_true(p9c_walk(&f->c, ROOT, 20, "disk") == 0 && p9c_getattr(&f->c, 20, &a) == 0);
	assert_true(a.rdev == makedev(8, 1));
	assert_int_equal(p9c_open(&f->c, 20, 0), -ENXIO);
	assert_int_equal(p9c_clunk(&f->c, 20), 0);
}

static void check_mapped_list(struct p9c *c)
{
	unsigned types = 0;

	assert_int_equal(p9c_walk(c, ROOT, 21, ""), 0);
	assert_int_equal(p9c_open(c, 21, 0), 0);
	assert_int_equal(p9c_call(c, P9_TREADDIR, "uqu", 21u, (uint64_t)0, 8000u), 0);
	wire_u32(&c->r);
	while (c->r.left) {
		char name[256];
		uint8_t type;

		p9c_qid(c);
		wire_u64(&c->r);
		type = wire_u8(&c->r);
		assert_true(wire_str(&c->r, name, sizeof(name)) > 0);
		types |= 1u << type;
		if (!strcmp(name, "link"))
			assert_int_equal(type, DT_LNK);
	}
	assert_int_equal(types, 1u << DT_DIR | 1u << DT_REG | 1u << DT_LNK | 1u << DT_FIFO | 1u << DT_BLK);
	assert_int_equal(p9c_clunk(c, 21), 0);
}

static void test_mapped(void **state)
{
	struct p9fix *f = p9fix_new(NULL, P9_MAP_MAPPED, false);
	struct p9c *c = &f->c;
	char buf[4096];

	if (!has_user_xattrs(f)) {
		print_message("no user xattrs here\n");
		p9fix_free(f);
		skip();
	}
	assert_int_equal(p9c_start(c, 8192, ROOT, UID), 0);
	make_all(c);
	assert_int_equal(p9c_call(c, P9_TMKNOD, "usuuuu", ROOT, "disk", S_IFBLK | 0660u, 8u, 1u, GID), 0);
	check_mapped(f);
	check_mapped_list(c);
	assert_int_equal(p9c_walk(c, ROOT, 2, "link"), 0);
	assert_int_equal(p9c_call(c, P9_TREADLINK, "u", 2u), 0);
	assert_int_equal(wire_str(&c->r, buf, sizeof(buf)), 10);
	assert_string_equal(buf, "some/where");
	assert_int_equal(p9c_open(c, 2, 0), -ELOOP);
	assert_int_equal(p9c_call(c, P9_TREADLINK, "u", 1u), -EINVAL);
	/* Anybody may be the owner, and any mode. */
	assert_int_equal(chown_to(c, 2, 0, 0), 0);
	assert_int_equal(attr32(f, "link", "user.virtfs.uid"), 0);
	assert_int_equal(chmod_to(c, 1, 0100000), 0);
	assert_int_equal(attr32(f, "file", "user.virtfs.mode"), S_IFREG);
	assert_int_equal(host_stat(f, "file").st_mode, S_IFREG | 0600);
	/* What holds this is not the client's to see. */
	assert_int_equal(p9c_getxattr(c, 1, "user.virtfs.uid", buf, sizeof(buf)), -ENODATA);
	assert_int_equal(p9c_setxattr(c, 1, "user.virtfs.uid", "0000", 4, 0), -EPERM);
	assert_int_equal(p9c_setxattr(c, 1, "user.other", "x", 1, 0), 0);
	assert_int_equal(p9c_getxattr(c, 1, "", buf, sizeof(buf)), 11);
	assert_string_equal(buf, "user.other");
	assert_int_equal(p9c_getxattr(c, 1, "system.posix_acl_access", buf, sizeof(buf)), -EOPNOTSUPP);
	/* Another server sees the same. */
	assert_int_equal(chown_to(c, 2, UID, GID), 0);
	assert_int_equal(chmod_to(c, 1, 04751), 0);
	p9fix_again(f, P9_MAP_MAPPED, false);
	assert_int_equal(p9c_start(c, 8192, ROOT, UID), 0);
	check_mapped(f);
	p9fix_free(f);
}

/* A file that says it is a directory, and the other way round: the host knows better. */
static void test_mapped_lies(void **state)
{
	struct p9fix *f = p9fix_new(NULL, P9_MAP_MAPPED, false);
	const uint32_t dir = S_IFDIR | 0755, file = S_IFREG | 0644;
	struct p9c_attr a;

	if (!has_user_xattrs(f)) {
		print_message("no user xattrs here\n");
		p9fix_free(f);
		skip();
	}
	p9fix_put(f, "share/file", "x");
	assert_int_equal(mkdirat(f->dirfd, "dir", 0700), 0);
	for (unsigned i = 0; i < 2; i++) {
		char path[128];

		snprintf(path, sizeof(path), "%s/share/%s", f->top, i ? "dir" : "file");
		assert_int_equal(setxattr(path, "user.virtfs.mode", i ? &file : &dir, 4, 0), 0);
	}
	assert_int_equal(p9c_start(&f->c, 8192, ROOT, 0), 0);
	assert_int_equal(p9c_walk(&f->c, ROOT, 1, "file"), 0);
	assert_int_equal(p9c_getattr(&f->c, 1, &a), 0);
	assert_int_equal(a.mode, S_IFREG | 0755);
	assert_int_equal(p9c_walk(&f->c, ROOT, 2, "dir"), 0);
	assert_int_equal(p9c_getattr(&f->c, 2, &a), 0);
	assert_int_equal(a.mode, S_IFDIR | 0644);
	p9fix_free(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_none),   cmocka_unit_test(test_setgid),      cmocka_unit_test(test_squash),
		cmocka_unit_test(test_mapped), cmocka_unit_test(test_mapped_lies),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
