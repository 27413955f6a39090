// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * fsposix DIR [NAME...]: what a program may expect of a file system, tried in
 * DIR, each in a directory of its own. NAME: only those; "-NAME": all but those.
 * Prints "ok NAME" or "not ok NAME: line: what"; exit status 1 if one was not.
 * fsposix lock FILE: tries for a write lock on the whole of it (fcntl); prints
 * "locked", and holds it until its input ends, or prints "held" and ends.
 * fsposix sizes DIR N: makes files of N - 30 to N + 30 bytes there, by one write
 * each, and reads them by one read each.
 *
 * Run as root: it changes owners, and becomes others.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static const char *current;

/* stdio is not for a forked child: what it has buffered is its parent's. */
static void fail(int line, const char *what)
{
	dprintf(1, "not ok %s: line %d: %s (%s)\n", current, line, what, strerror(errno));
	_exit(1);
}

#define CHECK(cond)                            \
	do {                                   \
		if (!(cond))                   \
			fail(__LINE__, #cond); \
	} while (0)

/* It fails, and for this reason. */
#define FAILS(error, call) CHECK((errno = 0, (call) < 0 && errno == (error)))

static int make(const char *name, const char *text)
{
	int fd = open(name, O_RDWR | O_CREAT | O_EXCL, 0644);

	CHECK(fd >= 0);
	CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	return fd;
}

static void touch(const char *name)
{
	close(make(name, ""));
}

static bool holds(int fd, const char *text)
{
	char buf[256];
	ssize_t n = pread(fd, buf, sizeof(buf), 0);

	return n == (ssize_t)strlen(text) && !memcmp(buf, text, (size_t)n);
}

static struct stat stat_of(const char *name)
{
	struct stat st;

	CHECK(!lstat(name, &st));
	return st;
}

static struct stat fstat_of(int fd)
{
	struct stat st;

	CHECK(!fstat(fd, &st));
	return st;
}

static void join(pid_t pid)
{
	int status;

	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(!status); /* if not, the child has said why */
}

/* Opening. */

static void open_flags(void)
{
	char c;
	int fd = make("f", "0123456789");

	FAILS(EEXIST, open("f", O_CREAT | O_EXCL | O_RDWR, 0600));
	FAILS(ENOENT, open("none", O_RDWR));
	FAILS(ENOTDIR, open("f/below", O_RDONLY));
	FAILS(ENOTDIR, open("f", O_RDONLY | O_DIRECTORY));
	FAILS(EISDIR, open(".", O_WRONLY));
	CHECK(!symlink("f", "l") && !symlink("nowhere", "d"));
	FAILS(ELOOP, open("l", O_RDONLY | O_NOFOLLOW));
	FAILS(EEXIST, open("d", O_CREAT | O_EXCL | O_RDWR, 0600));
	close(fd);
	fd = open("l", O_RDONLY);
	FAILS(EBADF, write(fd, "x", 1));
	close(fd);
	fd = open("f", O_WRONLY);
	FAILS(EBADF, read(fd, &c, 1));
	close(fd);
	fd = open("f", O_RDWR | O_TRUNC);
	CHECK(fstat_of(fd).st_size == 0 && stat_of("f").st_size == 0);
	close(fd);
	fd = open("d", O_CREAT | O_RDWR, 0640); /* through a link that leads nowhere */
	CHECK(fd >= 0 && (stat_of("nowhere").st_mode & 07777) == 0640);
	close(fd);
}

/* Of several that create, one is the first. */
static void exclusive(void)
{
	char name[32];
	pid_t pid[4];
	int made[2];
	int n = 0;

	CHECK(!pipe(made));
	for (int i = 0; i < 4; i++) {
		pid[i] = fork();
		if (pid[i])
			continue;
		for (int k = 0; k < 10; k++) {
			sprintf(name, "x%d", k);
			if (open(name, O_CREAT | O_EXCL | O_WRONLY, 0600) >= 0)
				CHECK(write(made[1], "+", 1) == 1);
			else
				CHECK(errno == EEXIST);
		}
		_exit(0);
	}
	for (int i = 0; i < 4; i++)
		join(pid[i]);
	close(made[1]);
	while (read(made[0], name, 1) == 1)
		n++;
	CHECK(n == 10);
}

static void append_records(char who)
{
	char record[61];
	int fd = open("log", O_WRONLY | O_APPEND);

	memset(record, who, 60);
	record[60] = '\n';
	for (int i = 0; i < 100; i++)
		CHECK(write(fd, record, 61) == 61);
	close(fd);
}

/* Two processes: no record is lost or torn. */
static void append(void)
{
	char record[61];
	int fd = make("log", "");
	int n[128] = { 0 };
	pid_t pid = fork();

	append_records(pid ? 'a' : 'b');
	if (!pid)
		_exit(0);
	join(pid);
	CHECK(fstat_of(fd).st_size == 200 * 61);
	while (read(fd, record, 61) == 61) {
		for (int i = 1; i < 60; i++)
			CHECK(record[i] == record[0]);
		CHECK(record[60] == '\n');
		n[record[0] & 127]++;
	}
	CHECK(n['a'] == 100 && n['b'] == 100);
}

/* Names and what they name. */

static void unlink_open(void)
{
	struct stat st;
	int fd = make("f", "before");

	CHECK(!unlink("f"));
	FAILS(ENOENT, stat("f", &st));
	CHECK(fstat_of(fd).st_nlink == 0 && fstat_of(fd).st_size == 6);
	CHECK(holds(fd, "before"));
	CHECK(pwrite(fd, "after", 5, 0) == 5 && holds(fd, "aftere"));
	CHECK(!ftruncate(fd, 3) && fstat_of(fd).st_size == 3 && holds(fd, "aft"));
	CHECK(!fchmod(fd, 0600) && (fstat_of(fd).st_mode & 0777) == 0600);
	touch("f"); /* another one */
	CHECK(holds(fd, "aft") && stat_of("f").st_size == 0);
	close(fd);
}

static void rename_over(void)
{
	int old = make("old", "old"), new = make("new", "new");
	int fd;

	CHECK(!rename("new", "old"));
	CHECK(holds(old, "old") && fstat_of(old).st_nlink == 0);
	fd = open("old", O_RDONLY);
	CHECK(holds(fd, "new") && fstat_of(fd).st_ino == fstat_of(new).st_ino);
	CHECK(!mkdir("d", 0755) && !mkdir("e", 0755));
	touch("e/f");
	FAILS(EISDIR, rename("old", "d"));
	FAILS(ENOTDIR, rename("d", "old"));
	FAILS(ENOTEMPTY, rename("d", "e"));
	FAILS(EINVAL, rename("d", "d/d"));
	CHECK(!rename("e", "d") && stat_of("d/f").st_size == 0);
	CHECK(!rename("d/f", "d/f"));
}

static void hard_links(void)
{
	int fd = make("a", "text"), other;

	CHECK(!mkdir("d", 0755) && !link("a", "d/b"));
	CHECK(stat_of("a").st_nlink == 2 && stat_of("a").st_ino == stat_of("d/b").st_ino);
	other = open("d/b", O_RDWR);
	CHECK(pwrite(other, "TEXT", 4, 0) == 4 && holds(fd, "TEXT"));
	FAILS(EEXIST, link("a", "d/b"));
	FAILS(EPERM, link("d", "e"));
	FAILS(ENOENT, link("none", "e"));
	CHECK(!rename("a", "d/b")); /* the same file: nothing happens */
	CHECK(!unlink("a") && fstat_of(fd).st_nlink == 1 && stat_of("d/b").st_nlink == 1);
}

static void symlinks(void)
{
	char target[4096], got[4096];
	struct stat st;

	CHECK(!symlink("b", "a") && !symlink("a", "b"));
	FAILS(ELOOP, stat("a", &st));
	FAILS(ELOOP, open("a/x", O_RDONLY));
	CHECK(S_ISLNK(stat_of("a").st_mode) && stat_of("a").st_size == 1);
	memset(target, 't', 4095);
	target[1000] = '/';
	CHECK(!symlink("", "empty") || errno == ENOENT);
	for (size_t len = 1; len < 4095; len = len * 3 + 1) { /* 3279 at last */
		target[len] = '\0';
		CHECK(!symlink(target, "s"));
		CHECK(readlink("s", got, sizeof(got)) == (ssize_t)len && !memcmp(got, target, len));
		CHECK(!unlink("s"));
		target[len] = 't';
	}
	touch("f");
	FAILS(EINVAL, readlink("f", got, sizeof(got)));
	CHECK(readlink("a", got, 0) < 0 && errno == EINVAL);
}

static void long_names(void)
{
	char name[257];

	memset(name, 'n', 256);
	name[256] = '\0';
	FAILS(ENAMETOOLONG, open(name, O_CREAT | O_WRONLY, 0600));
	FAILS(ENAMETOOLONG, mkdir(name, 0700));
	name[255] = '\0';
	touch(name);
	CHECK(stat_of(name).st_size == 0);
	name[0] = 'm';
	CHECK(!mkdir(name, 0700) && !chdir(name) && !mkdir(name, 0700));
	CHECK(!rmdir(name) && !chdir("..") && !rmdir(name));
	touch(" \n\\\"*?\xff\x01");
	CHECK(!unlink(" \n\\\"*?\xff\x01"));
}

static void deep(void)
{
	for (int i = 0; i < 20; i++)
		CHECK(!mkdir("deep", 0755) && !chdir("deep"));
	touch("f");
	CHECK(stat_of("f").st_size == 0);
	for (int i = 0; i < 20; i++)
		CHECK(!chdir(".."));
	FAILS(ENOTEMPTY, rmdir("deep"));
}

/* What there is all the time is told exactly once, whatever comes and goes meanwhile. */
static void readdir_changes(void)
{
	int seen[120] = { 0 };
	struct dirent *e;
	char name[64];
	int n = 0;
	DIR *d;

	for (int i = 0; i < 120; i++) {
		sprintf(name, "stays-%03d", i);
		touch(name);
		sprintf(name, "goes-%03d", i);
		touch(name);
	}
	d = opendir(".");
	while ((e = readdir(d))) {
		if (sscanf(e->d_name, "stays-%d", &n) == 1)
			seen[n]++;
		sprintf(name, "goes-%03d", n);
		if (unlink(name))
			CHECK(errno == ENOENT);
		sprintf(name, "comes-%03d", n);
		close(open(name, O_CREAT | O_WRONLY, 0600));
	}
	closedir(d);
	for (int i = 0; i < 120; i++)
		CHECK(seen[i] == 1);
}

static void seekdir_works(void)
{
	struct dirent *e;
	char name[256];
	DIR *d;
	long at;

	for (int i = 0; i < 100; i++) {
		sprintf(name, "some-rather-long-name-%d", i);
		touch(name);
	}
	d = opendir(".");
	for (int i = 0; i < 50; i++)
		CHECK(readdir(d));
	at = telldir(d);
	e = readdir(d);
	CHECK(e);
	strcpy(name, e->d_name);
	while (readdir(d))
		;
	seekdir(d, at);
	e = readdir(d);
	CHECK(e && !strcmp(e->d_name, name));
	rewinddir(d);
	for (int i = 0; i < 102; i++)
		CHECK(readdir(d));
	CHECK(!readdir(d));
	closedir(d);
}

static void remove_directories(void)
{
	CHECK(!mkdir("d", 0755));
	touch("d/f");
	FAILS(ENOTEMPTY, rmdir("d"));
	FAILS(EISDIR, unlink("d"));
	FAILS(ENOTDIR, rmdir("d/f"));
	FAILS(EEXIST, mkdir("d", 0755));
	CHECK(!unlink("d/f") && !rmdir("d"));
	FAILS(ENOENT, rmdir("d"));
}

/* Contents. */

static void truncating(void)
{
	char buf[10000];
	int fd = make("f", "");

	memset(buf, 'x', sizeof(buf));
	CHECK(write(fd, buf, sizeof(buf)) == sizeof(buf));
	CHECK(!ftruncate(fd, 100) && !truncate("f", 5000) && fstat_of(fd).st_size == 5000);
	CHECK(pread(fd, buf, sizeof(buf), 0) == 5000);
	for (int i = 0; i < 5000; i++)
		CHECK(buf[i] == (i < 100 ? 'x' : '\0'));
	FAILS(EINVAL, ftruncate(fd, -1));
	FAILS(EISDIR, truncate(".", 0));
	close(fd);
	fd = open("f", O_RDONLY);
	FAILS(EINVAL, ftruncate(fd, 0));
}

static void holes(void)
{
	char buf[8192];
	int fd = make("f", "");

	CHECK(pwrite(fd, "end", 3, 50 << 20) == 3);
	CHECK(fstat_of(fd).st_size == (50 << 20) + 3);
	CHECK(pread(fd, buf, sizeof(buf), 1 << 20) == sizeof(buf));
	for (size_t i = 0; i < sizeof(buf); i++)
		CHECK(!buf[i]);
	CHECK(pread(fd, buf, sizeof(buf), 50 << 20) == 3 && !memcmp(buf, "end", 3));
	CHECK(pread(fd, buf, sizeof(buf), 60 << 20) == 0);
	CHECK(lseek(fd, 0, SEEK_END) == (50 << 20) + 3);
}

/* What is not written takes no room. */
static void sparse(void)
{
	int fd = make("f", "");

	CHECK(pwrite(fd, "end", 3, 50 << 20) == 3 && !fsync(fd));
	CHECK(fstat_of(fd).st_blocks < 1000);
	CHECK(!ftruncate(fd, 1000 << 20) && fstat_of(fd).st_blocks < 1000);
}

static void vectors(void)
{
	char a[3], b[5000];
	struct iovec iov[2] = { { a, 3 }, { b, 5000 } };
	int fd = make("f", "");

	memset(a, 'a', sizeof(a));
	memset(b, 'b', sizeof(b));
	CHECK(writev(fd, iov, 2) == 5003);
	memset(a, 0, sizeof(a));
	memset(b, 0, sizeof(b));
	CHECK(preadv(fd, iov, 2, 0) == 5003 && a[2] == 'a' && b[0] == 'b' && b[4999] == 'b');
}

static void mapped_private(void)
{
	int fd = make("f", "mapped text");
	char *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);

	CHECK(p != MAP_FAILED && !memcmp(p, "mapped text", 11) && !p[11]);
	p[0] = 'M';
	CHECK(holds(fd, "mapped text"));
	CHECK(!munmap(p, 4096));
}

/* In the modes that have it: what is stored is read, also by who opens the file later, and what is written is seen. */
static void mapped_shared(void)
{
	int fd = make("f", ""), other;
	char *p;

	CHECK(!ftruncate(fd, 10000));
	p = mmap(NULL, 10000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED);
	memcpy(p, "stored", 6);
	memcpy(p + 9000, "too", 3);
	CHECK(!msync(p, 10000, MS_SYNC));
	other = open("f", O_RDWR);
	CHECK(other >= 0);
	{
		char buf[10000];

		CHECK(read(other, buf, sizeof(buf)) == 10000 && !memcmp(buf, "stored", 6) &&
		      !memcmp(buf + 9000, "too", 3) && !buf[8999]);
	}
	CHECK(pwrite(other, "WRIT", 4, 0) == 4 && !memcmp(p, "WRITed", 6));
	CHECK(!munmap(p, 10000));
}

/* Attributes. */

/* Whole seconds: Linux's 9p client sets no others (s_time_gran). */
static void times(void)
{
	struct timespec ts[2] = { { 1234567890, 0 }, { 1000000000, 0 } };
	struct stat st;

	touch("f");
	CHECK(!symlink("f", "l"));
	CHECK(!utimensat(AT_FDCWD, "f", ts, 0));
	st = stat_of("f");
	CHECK(st.st_atim.tv_sec == 1234567890 && st.st_atim.tv_nsec == 0);
	CHECK(st.st_mtim.tv_sec == 1000000000 && st.st_mtim.tv_nsec == 0);
	ts[0].tv_nsec = UTIME_OMIT;
	ts[1].tv_nsec = UTIME_NOW;
	CHECK(!utimensat(AT_FDCWD, "f", ts, 0));
	st = stat_of("f");
	CHECK(st.st_atim.tv_sec == 1234567890 && st.st_mtim.tv_sec > 1700000000);
	ts[0] = ts[1] = (struct timespec){ 5, 0 };
	CHECK(!utimensat(AT_FDCWD, "l", ts, AT_SYMLINK_NOFOLLOW));
	CHECK(stat_of("l").st_mtim.tv_sec == 5 && stat_of("f").st_mtim.tv_sec > 1700000000);
}

static void modes_and_owners(void)
{
	int fd = make("f", "#!/bin/sh\n");

	CHECK(!chmod("f", 06755) && (stat_of("f").st_mode & 07777) == 06755);
	CHECK(!chown("f", 1000, 100));
	CHECK(stat_of("f").st_uid == 1000 && stat_of("f").st_gid == 100);
	CHECK((stat_of("f").st_mode & 07777) == 0755); /* s bits are not for the next owner */
	CHECK(!fchown(fd, 7, (gid_t)-1) && fstat_of(fd).st_uid == 7 && fstat_of(fd).st_gid == 100);
	CHECK(!fchmod(fd, 0) && (fstat_of(fd).st_mode & 07777) == 0);
	CHECK(!symlink("f", "l") && !lchown("l", 8, 9));
	CHECK(stat_of("l").st_uid == 8 && stat_of("l").st_gid == 9 && stat_of("f").st_uid == 7);
	CHECK(!mkdir("t", 0755) && !chmod("t", 01777) && (stat_of("t").st_mode & 07777) == 01777);
}

static void setgid_directory(void)
{
	CHECK(!mkdir("d", 0755) && !chown("d", 5, 1234) && !chmod("d", 02775));
	touch("d/f");
	CHECK(!mkdir("d/d", 0755) && !symlink("x", "d/l") && !mknod("d/p", S_IFIFO | 0600, 0));
	CHECK(stat_of("d/f").st_gid == 1234 && stat_of("d/l").st_gid == 1234 && stat_of("d/p").st_gid == 1234);
	CHECK(stat_of("d/d").st_gid == 1234 && (stat_of("d/d").st_mode & 07777) == 02755);
	CHECK(stat_of("d/f").st_uid == 0 && !(stat_of("d/f").st_mode & S_ISGID));
}

/* An ordinary user's files are that user's, and nobody else's. */
static void users(void)
{
	pid_t pid;

	CHECK(!mkdir("d", 0755) && !chmod("d", 01777));
	close(make("secret", "s"));
	CHECK(!chmod("secret", 0600));
	pid = fork();
	if (!pid) {
		CHECK(!setgid(2000) && !setuid(1000));
		touch("d/f");
		CHECK(stat_of("d/f").st_uid == 1000 && stat_of("d/f").st_gid == 2000);
		CHECK(!mkdir("d/d", 0700) && stat_of("d/d").st_uid == 1000);
		FAILS(EACCES, open("secret", O_RDONLY));
		FAILS(EACCES, open("new", O_CREAT | O_WRONLY, 0600));
		FAILS(EPERM, chmod("secret", 0644));
		FAILS(EPERM, chown("d/f", 0, 0));
		_exit(0);
	}
	join(pid);
	pid = fork();
	if (!pid) {
		CHECK(!setgid(2000) && !setuid(1001));
		FAILS(EPERM, unlink("d/f")); /* the sticky bit */
		FAILS(EACCES, open("d/d/x", O_CREAT | O_WRONLY, 0600));
		_exit(0);
	}
	join(pid);
}

static void umasks(void)
{
	umask(027);
	close(open("f", O_CREAT | O_WRONLY, 0666));
	CHECK(!mkdir("d", 0777) && !mknod("p", S_IFIFO | 0666, 0));
	CHECK((stat_of("f").st_mode & 0777) == 0640 && (stat_of("d").st_mode & 0777) == 0750);
	CHECK((stat_of("p").st_mode & 0777) == 0640);
	umask(022);
}

static void xattrs(void)
{
	char big[3000], buf[3000];

	touch("f");
	FAILS(ENODATA, getxattr("f", "user.none", buf, sizeof(buf)));
	CHECK(!setxattr("f", "user.a", "value", 5, 0) && !setxattr("f", "user.empty", "", 0, XATTR_CREATE));
	CHECK(getxattr("f", "user.a", buf, sizeof(buf)) == 5 && !memcmp(buf, "value", 5));
	CHECK(getxattr("f", "user.a", NULL, 0) == 5 && getxattr("f", "user.empty", buf, sizeof(buf)) == 0);
	FAILS(ERANGE, getxattr("f", "user.a", buf, 2));
	FAILS(EEXIST, setxattr("f", "user.a", "x", 1, XATTR_CREATE));
	FAILS(ENODATA, setxattr("f", "user.b", "x", 1, XATTR_REPLACE));
	memset(big, 'b', sizeof(big));
	CHECK(!setxattr("f", "user.a", big, sizeof(big), XATTR_REPLACE));
	CHECK(getxattr("f", "user.a", buf, sizeof(buf)) == sizeof(buf) && !memcmp(buf, big, sizeof(big)));
	CHECK(listxattr("f", buf, sizeof(buf)) >= 18 && memmem(buf, sizeof(buf), "user.a", 7) &&
	      memmem(buf, sizeof(buf), "user.empty", 11));
	CHECK(!removexattr("f", "user.a"));
	FAILS(ENODATA, removexattr("f", "user.a"));
	FAILS(ENODATA, getxattr("f", "user.a", buf, sizeof(buf)));
	CHECK(!mkdir("d", 0755) && !setxattr("d", "user.d", "dir", 3, 0));
	CHECK(getxattr("d", "user.d", buf, sizeof(buf)) == 3);
}

static void nodes(void)
{
	static const struct {
		unsigned major, minor;
	} devs[] = { { 1, 3 }, { 8, 255 }, { 259, 256 }, { 4095, 1048575 } };
	struct sockaddr_un addr = { .sun_family = AF_UNIX, .sun_path = "socket" };
	int s = socket(AF_UNIX, SOCK_STREAM, 0);

	for (size_t i = 0; i < sizeof(devs) / sizeof(devs[0]); i++) {
		struct stat st;

		CHECK(!mknod("c", S_IFCHR | 0600, makedev(devs[i].major, devs[i].minor)));
		st = stat_of("c");
		CHECK(S_ISCHR(st.st_mode));
		CHECK(major(st.st_rdev) == devs[i].major && minor(st.st_rdev) == devs[i].minor);
		CHECK(!unlink("c"));
	}
	CHECK(!mknod("b", S_IFBLK | 0600, makedev(7, 1)) && S_ISBLK(stat_of("b").st_mode));
	CHECK(!bind(s, (struct sockaddr *)&addr, sizeof(addr)) && S_ISSOCK(stat_of("socket").st_mode));
	CHECK(!listen(s, 1) && !connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&addr, sizeof(addr)));
	CHECK(!mknod("r", S_IFREG | 0640, 0) && S_ISREG(stat_of("r").st_mode));
}

static void device_works(void)
{
	char c[4];
	int fd;

	CHECK(!mknod("zero", S_IFCHR | 0600, makedev(1, 5)));
	fd = open("zero", O_RDWR);
	CHECK(fd >= 0 && read(fd, c, 4) == 4 && !c[0] && !c[3]);
}

static void fifo(void)
{
	char buf[8];
	pid_t pid;
	int fd;

	CHECK(!mkfifo("p", 0600));
	pid = fork();
	if (!pid) {
		fd = open("p", O_WRONLY);
		CHECK(write(fd, "through", 7) == 7);
		_exit(0);
	}
	fd = open("p", O_RDONLY);
	CHECK(read(fd, buf, 8) == 7 && !memcmp(buf, "through", 7));
	join(pid);
}

/* Locks: a child holds one, and lets go when it is told. */

struct holder {
	pid_t pid;
	int say, hear;
};

static struct holder hold(void (*take)(int fd))
{
	int to[2], from[2];
	struct holder h;
	char c;

	CHECK(!pipe(to) && !pipe(from));
	h.pid = fork();
	if (!h.pid) {
		close(to[1]);
		take(open("f", O_RDWR));
		CHECK(write(from[1], "x", 1) == 1);
		CHECK(read(to[0], &c, 1) == 1);
		_exit(0);
	}
	close(to[0]);
	close(from[1]);
	h.say = to[1];
	h.hear = from[0];
	CHECK(read(h.hear, &c, 1) == 1);
	return h;
}

static void let_go(const struct holder *h)
{
	CHECK(write(h->say, "x", 1) == 1);
	join(h->pid);
}

static void take_flock(int fd)
{
	CHECK(!flock(fd, LOCK_EX));
}

static void flocks(void)
{
	int fd = make("f", "text"), fd2 = open("f", O_RDWR);
	struct holder h = hold(take_flock);

	FAILS(EWOULDBLOCK, flock(fd, LOCK_EX | LOCK_NB));
	FAILS(EWOULDBLOCK, flock(fd, LOCK_SH | LOCK_NB));
	let_go(&h);
	CHECK(!flock(fd, LOCK_SH) && !flock(fd2, LOCK_SH | LOCK_NB));
	FAILS(EWOULDBLOCK, flock(fd2, LOCK_EX | LOCK_NB));
	CHECK(!flock(fd, LOCK_UN) && !flock(fd2, LOCK_EX | LOCK_NB));
}

static struct flock range(short type, off_t start, off_t len)
{
	return (struct flock){ .l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len };
}

static void take_range(int fd)
{
	struct flock w = range(F_WRLCK, 10, 10), r = range(F_RDLCK, 100, 1);

	CHECK(!fcntl(fd, F_SETLK, &w) && !fcntl(fd, F_SETLK, &r));
}

static bool can_lock(int fd, short type, off_t start, off_t len)
{
	struct flock l = range(type, start, len);

	if (!fcntl(fd, F_SETLK, &l))
		return true;
	CHECK(errno == EAGAIN || errno == EACCES);
	return false;
}

static void record_locks(void)
{
	int fd = make("f", "text");
	struct holder h = hold(take_range);
	struct flock l = range(F_WRLCK, 0, 0);

	CHECK(!fcntl(fd, F_GETLK, &l) && l.l_type == F_WRLCK && l.l_start == 10 && l.l_len == 10 && l.l_pid == h.pid);
	CHECK(!can_lock(fd, F_RDLCK, 15, 1) && !can_lock(fd, F_WRLCK, 0, 11) && !can_lock(fd, F_WRLCK, 100, 1));
	CHECK(can_lock(fd, F_WRLCK, 0, 10) && can_lock(fd, F_WRLCK, 20, 80) && can_lock(fd, F_RDLCK, 100, 1));
	let_go(&h);
	CHECK(can_lock(fd, F_WRLCK, 0, 0));
	l = range(F_WRLCK, 0, 0);
	CHECK(!fcntl(fd, F_GETLK, &l) && l.l_type == F_UNLCK); /* one's own is in nobody's way */
}

/* Who waits gets it when the holder goes. */
static void waiting_locks(void)
{
	int fd = make("f", "text");
	struct holder h = hold(take_range);
	struct flock l = range(F_WRLCK, 10, 1);
	pid_t pid = fork();

	if (!pid) {
		CHECK(!fcntl(fd, F_SETLKW, &l));
		CHECK(write(fd, "TAKEN", 5) == 5);
		_exit(0);
	}
	CHECK(holds(fd, "text"));
	let_go(&h);
	join(pid);
	CHECK(fstat_of(fd).st_size == 9);
}

static void space(void)
{
	struct statvfs v;

	CHECK(!statvfs(".", &v) && v.f_blocks && v.f_bavail <= v.f_blocks && v.f_namemax == 255);
}

#define ENTRY(name)         \
	{                   \
#name, name \
	}

static const struct {
	const char *name;
	void (*run)(void);
} checks[] = {
	ENTRY(open_flags),
	ENTRY(exclusive),
	ENTRY(append),
	ENTRY(unlink_open),
	ENTRY(rename_over),
	ENTRY(hard_links),
	ENTRY(symlinks),
	ENTRY(long_names),
	ENTRY(deep),
	ENTRY(readdir_changes),
	ENTRY(seekdir_works),
	ENTRY(remove_directories),
	ENTRY(truncating),
	ENTRY(holes),
	ENTRY(vectors),
	ENTRY(sparse),
	ENTRY(mapped_private),
	ENTRY(mapped_shared),
	ENTRY(times),
	ENTRY(modes_and_owners),
	ENTRY(setgid_directory),
	ENTRY(users),
	ENTRY(umasks),
	ENTRY(xattrs),
	ENTRY(nodes),
	ENTRY(device_works),
	ENTRY(fifo),
	ENTRY(flocks),
	ENTRY(record_locks),
	ENTRY(waiting_locks),
	ENTRY(space),
};

static bool is_named(const char *name, int argc, char **argv)
{
	bool all = true;

	for (int i = 2; i < argc; i++) {
		if (*argv[i] == '-' && !strcmp(argv[i] + 1, name))
			return false;
		if (!strcmp(argv[i], name))
			return true;
		all = all && *argv[i] == '-';
	}
	return all;
}

static bool passes(size_t i)
{
	int status;
	pid_t pid;

	current = checks[i].name;
	pid = fork();
	if (!pid) {
		CHECK(!mkdir(current, 0755) && !chdir(current));
		checks[i].run();
		_exit(0);
	}
	if (waitpid(pid, &status, 0) != pid || status) {
		if (!WIFEXITED(status))
			dprintf(1, "not ok %s: signal %d\n", current, WTERMSIG(status));
		return false;
	}
	dprintf(1, "ok %s\n", current);
	return true;
}

static int lock_file(const char *name)
{
	int fd = open(name, O_RDWR);
	char c;

	current = name;
	CHECK(fd >= 0);
	if (!can_lock(fd, F_WRLCK, 0, 0)) {
		puts("held");
		return 0;
	}
	dprintf(1, "locked\n");
	CHECK(read(0, &c, 1) == 0);
	return 0;
}

/* The bytes of no two sizes are the same. */
static void one_size(size_t n, char *buf, char *got)
{
	char name[32];
	int fd;

	snprintf(name, sizeof(name), "%zu", n);
	for (size_t i = 0; i < n; i++)
		buf[i] = (char)(i * n >> 3);
	fd = open(name, O_RDWR | O_CREAT | O_EXCL, 0644);
	CHECK(fd >= 0 && write(fd, buf, n) == (ssize_t)n);
	close(fd);
	fd = open(name, O_RDONLY);
	CHECK(fstat_of(fd).st_size == (off_t)n && read(fd, got, n + 1) == (ssize_t)n && !memcmp(buf, got, n));
	close(fd);
}

static int sizes(const char *dir, size_t n)
{
	char *buf = malloc(n + 31), *got = malloc(n + 31);

	current = "sizes";
	CHECK(!chdir(dir));
	for (size_t i = n - 30; i <= n + 30; i++)
		one_size(i, buf, got);
	free(buf);
	free(got);
	return 0;
}

int main(int argc, char **argv)
{
	int status = 0;

	umask(022);
	if (argc == 3 && !strcmp(argv[1], "lock"))
		return lock_file(argv[2]);
	if (argc == 4 && !strcmp(argv[1], "sizes"))
		return sizes(argv[2], strtoul(argv[3], NULL, 0));
	if (argc < 2 || chdir(argv[1])) {
		perror(argc < 2 ? "fsposix" : argv[1]);
		return 2;
	}
	for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++)
		if (is_named(checks[i].name, argc, argv) && !passes(i))
			status = 1;
	return status;
}
