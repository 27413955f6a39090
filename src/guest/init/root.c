// SPDX-License-Identifier: GPL-2.0-or-later
#include "guest/init/init.h"
#include "guest/init/plan.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

/*
 * How it works
 *
 * The root is mounted on NEW_ROOT, directly or as the lower layer of an
 * overlay whose upper layer is a tmpfs. An overlay holds its layers by itself,
 * so their own mounts go away again. root_switch() then moves /dev, /proc,
 * /sys and /run into it, moves the whole onto "/" and frees the initramfs,
 * which is memory: only what lies on the first root's own file system, and
 * only if that is a ramfs or tmpfs. After that init itself runs from a file
 * that has no name any more.
 */
#define LOWER "/kvm/lower"
#define UPPER "/kvm/rw"

static int failed(const char *what)
{
	int err = -errno;

	say("%s: %s%s", what, strerror(-err),
	    err == -ENODEV ? " (this kernel has no such file system: is its module among those given?)" : "");
	return err;
}

static int overlay_mount(const struct plan *p)
{
	char options[256];
	struct stat st;

	mkdir(UPPER, 0755);
	snprintf(options, sizeof(options), "mode=0755%s%s", p->overlay_options ? "," : "",
	         p->overlay_options ? p->overlay_options : "");
	if (mount("overlay-rw", UPPER, "tmpfs", 0, options))
		return failed("the overlay's tmpfs");
	/* The merged root has the upper folder's owner and mode. */
	if (stat(LOWER, &st) || mkdir(UPPER "/upper", 0755) || mkdir(UPPER "/work", 0755) ||
	    chown(UPPER "/upper", st.st_uid, st.st_gid) || chmod(UPPER "/upper", st.st_mode & 07777))
		return failed("the overlay's folders");
	if (mount("overlay", NEW_ROOT, "overlay", 0,
	          "lowerdir=" LOWER ",upperdir=" UPPER "/upper,workdir=" UPPER "/work"))
		return failed("the overlay");
	umount2(UPPER, MNT_DETACH);
	umount2(LOWER, MNT_DETACH);
	return 0;
}

int root_mount(const struct plan *p)
{
	const char *dir = p->overlay ? LOWER : NEW_ROOT;
	struct order_mount m = p->root;
	char options[4096];
	int err;

	/* The last of ro and rw wins. */
	if (p->overlay || p->root_ro >= 0) {
		snprintf(options, sizeof(options), "%s%s%s", m.options ? m.options : "", m.options ? "," : "",
		         p->overlay || p->root_ro ? "ro" : "rw");
		m.options = options;
	}
	mkdir_parents(NEW_ROOT);
	mkdir_parents(LOWER);
	err = mount_source(&m, dir, 0, p->root_wait < 0 ? -1 : p->root_wait * 1000LL);
	return err || !p->overlay ? err : overlay_mount(p);
}

/* Takes ownership of @fd. */
static void empty_folder(int fd, dev_t dev)
{
	DIR *d = fdopendir(fd);
	struct dirent *e;
	struct stat st;

	if (!d) {
		close(fd);
		return;
	}
	while ((e = readdir(d))) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) || st.st_dev != dev)
			continue;
		if (S_ISDIR(st.st_mode)) {
			int sub = openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

			if (sub >= 0)
				empty_folder(sub, dev);
		}
		unlinkat(dirfd(d), e->d_name, S_ISDIR(st.st_mode) ? AT_REMOVEDIR : 0);
	}
	closedir(d);
}

static void free_initramfs(int fd)
{
	struct statfs fs;
	struct stat st;

	if (!fstatfs(fd, &fs) && (fs.f_type == RAMFS_MAGIC || fs.f_type == TMPFS_MAGIC) && !fstat(fd, &st))
		empty_folder(fd, st.st_dev);
	else
		close(fd);
}

/* A bare root may lack the folder, and be read-only. */
static void carry_over(const char *dir)
{
	char to[64];

	snprintf(to, sizeof(to), NEW_ROOT "%s", dir);
	if (!mount(dir, to, NULL, MS_MOVE, NULL))
		return;
	mkdir(to, 0755);
	if (!mount(dir, to, NULL, MS_MOVE, NULL))
		return;
	say("the new root has no %s: the guest starts without it", dir);
	umount2(dir, MNT_DETACH);
}

int root_switch(void)
{
	int old = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	carry_over("/dev");
	carry_over("/proc");
	carry_over("/sys");
	carry_over("/run");
	if (chdir(NEW_ROOT) || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/")) {
		if (old >= 0)
			close(old);
		return failed("cannot make the new root the root");
	}
	if (old >= 0)
		free_initramfs(old);
	return 0;
}

static void try_exec(char *path, char **argv)
{
	argv[0] = path;
	execv(path, argv);
}

void root_exec(char *init, char **argv)
{
	static char *const usual[] = { "/sbin/init", "/etc/init", "/bin/init", "/bin/sh" };
	sigset_t none, all;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, &all);
	if (init) {
		try_exec(init, argv);
		say("init=%s: %s; trying the usual places", init, strerror(errno));
	}
	for (unsigned i = 0; i < sizeof(usual) / sizeof(*usual); i++) {
		try_exec(usual[i], argv);
		if (errno != ENOENT)
			say("%s: %s", usual[i], strerror(errno));
	}
	sigprocmask(SIG_SETMASK, &all, NULL);
	say("the root has none of /sbin/init, /etc/init, /bin/init, /bin/sh: is it the right root? init=PATH names "
	    "another program");
}
