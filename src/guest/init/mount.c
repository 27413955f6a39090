// SPDX-License-Identifier: GPL-2.0-or-later
#include "guest/init/blockdev.h"
#include "guest/init/init.h"
#include "guest/init/plan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * How it works
 *
 * mount_source() tries, and as long as the source is not there (-EAGAIN from
 * its kind's function) sleeps until the kernel tells of a device and tries
 * again. A block device is "there" when it is found; a 9p or virtio-fs tag can
 * only be tried.
 */
#define OPTIONS_MAX 4096

/* Splits "ro,noatime,data=journal" into flags and what the file system itself reads. */
static unsigned long split_options(const char *options, char *data, size_t len)
{
	static const struct {
		const char *name;
		unsigned long set, clear;
	} table[] = {
		{ "ro", MS_RDONLY, 0 },
		{ "rw", 0, MS_RDONLY },
		{ "nosuid", MS_NOSUID, 0 },
		{ "suid", 0, MS_NOSUID },
		{ "nodev", MS_NODEV, 0 },
		{ "dev", 0, MS_NODEV },
		{ "noexec", MS_NOEXEC, 0 },
		{ "exec", 0, MS_NOEXEC },
		{ "sync", MS_SYNCHRONOUS, 0 },
		{ "async", 0, MS_SYNCHRONOUS },
		{ "dirsync", MS_DIRSYNC, 0 },
		{ "noatime", MS_NOATIME, 0 },
		{ "nodiratime", MS_NODIRATIME, 0 },
		{ "relatime", MS_RELATIME, 0 },
		{ "strictatime", MS_STRICTATIME, 0 },
		{ "lazytime", 1UL << 25, 0 },
		{ "bind", MS_BIND, 0 },
		{ "rbind", MS_BIND | MS_REC, 0 },
		{ "defaults", 0, 0 },
		{ "nofail", 0, 0 },
	};
	unsigned long flags = 0;
	size_t used = 0;

	data[0] = '\0';
	while (options && *options) {
		size_t n = strcspn(options, ","), i;

		for (i = 0; i < sizeof(table) / sizeof(*table); i++)
			if (n == strlen(table[i].name) && !memcmp(options, table[i].name, n))
				break;
		if (i < sizeof(table) / sizeof(*table)) {
			flags = (flags | table[i].set) & ~table[i].clear;
		} else if (n && used + n + 2 < len) {
			used += (size_t)snprintf(data + used, len - used, "%s%.*s", used ? "," : "", (int)n, options);
		}
		options += n + (options[n] == ',');
	}
	return flags;
}

static int try_mount(const char *dev, const char *dir, const char *fstype, unsigned long flags, const char *data)
{
	return mount(dev, dir, fstype, flags, data) ? -errno : 0;
}

/* As the kernel does for its root: a device that cannot be written is mounted read-only. */
static int try_type(const char *dev, const char *dir, const char *fstype, unsigned long flags, const char *data)
{
	int err = try_mount(dev, dir, fstype, flags, data);

	/* ext4 mounts its elder brothers, whose own drivers are seldom there. */
	if (err == -ENODEV && (!strcmp(fstype, "ext2") || !strcmp(fstype, "ext3")))
		return try_type(dev, dir, "ext4", flags, data);
	if ((err == -EACCES || err == -EROFS) && !(flags & MS_RDONLY)) {
		err = try_mount(dev, dir, fstype, flags | MS_RDONLY, data);
		if (!err)
			say("%s: mounted read-only, since it cannot be written", dev);
	}
	return err;
}

/* The types of a list "ext4,xfs" in turn. */
static int try_types(const char *dev, const char *dir, const char *list, unsigned long flags, const char *data)
{
	char type[64];
	int err = -EINVAL;

	while (*list) {
		size_t n = strcspn(list, ",");

		snprintf(type, sizeof(type), "%.*s", (int)n, list);
		list += n + (list[n] == ',');
		if (n)
			err = try_type(dev, dir, type, flags, data);
		if (n && !err)
			return 0;
	}
	return err;
}

/* A file system this init does not know: whatever the kernel has that wants a device. */
static int try_all(const char *dev, const char *dir, unsigned long flags, const char *data)
{
	char *text = slurp("/proc/filesystems"), *save = NULL;
	int err = -ENODEV;

	for (char *line = text ? strtok_r(text, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n", &save)) {
		if (line[0] != '\t')
			continue;
		err = try_mount(dev, dir, line + 1, flags, data);
		if (!err)
			break;
	}
	free(text);
	return err;
}

static bool is_auto(const char *fstype)
{
	return !fstype || !strcmp(fstype, "auto");
}

static void explain_device(const char *dev, const char *type, int err)
{
	switch (-err) {
	case ENODEV:
		say("%s: this kernel has no file system %s: is its module among those given to this init?", dev,
		    type ? type : "that fits");
		break;
	case EINVAL:
		say("%s: not a valid %s, or an option that it does not know (the kernel's log above says which)", dev,
		    type ? type : "file system");
		break;
	case EROFS:
		say("%s: its %s journal must be replayed but the device is read-only: mount it once writable, or "
		    "give rootflags=noload (ext4) or norecovery (xfs)",
		    dev, type ? type : "file system's");
		break;
	case EBUSY: say("%s: in use: it is mounted already, with the other one of ro and rw?", dev); break;
	default: say("%s: cannot mount %s: %s", dev, type ? type : "it", strerror(-err));
	}
}

static int mount_device(const struct order_mount *m, const struct source *s, const char *dir, unsigned long flags,
                        const char *data)
{
	struct blkid id = { 0 };
	const char *type = m->fstype;
	char dev[300];
	int err;

	if (blockdev_find(s, dev, sizeof(dev)))
		return -EAGAIN;
	if (is_auto(type)) {
		blockdev_probe(dev, &id);
		type = id.type;
	}
	err = type ? try_types(dev, dir, type, flags, data) : try_all(dev, dir, flags, data);
	if (err == -ENXIO || err == -ENOENT)
		return -EAGAIN; /* came and went */
	if (err)
		explain_device(dev, type, err);
	return err;
}

/* The later option wins in 9p, so the defaults come first. */
static int mount_tag(const struct source *s, const char *dir, unsigned long flags, const char *data)
{
	static const char defaults[] = "trans=virtio,version=9p2000.L,msize=512000";
	char all[OPTIONS_MAX + sizeof(defaults) + 1];
	bool p9 = s->kind == SOURCE_9P;
	int err;

	snprintf(all, sizeof(all), "%s%s%s", p9 ? defaults : "", p9 && *data ? "," : "", data);
	err = try_mount(s->value, dir, p9 ? "9p" : "virtiofs", flags, all);
	/* The answer to a tag that no device carries; virtio-fs does not tell it from a wrong option. */
	if (err == (p9 ? -ENOENT : -EINVAL))
		return -EAGAIN;
	if (err == -ENODEV)
		say("this kernel has no %s: is its module among those given to this init?",
		    p9 ? "9p (9p, 9pnet_virtio)" : "virtiofs");
	else if (err)
		say("cannot mount the share '%s': %s", s->value, strerror(-err));
	return err;
}

static int mount_other(const struct order_mount *m, const char *dir, unsigned long flags, const char *data)
{
	const char *type = is_auto(m->fstype) ? "none" : m->fstype;
	int err = try_mount(m->source, dir, type, flags, data);

	if (err)
		say("cannot mount %s (%s) on %s: %s", m->source, type, dir, strerror(-err));
	return err;
}

static int attempt(const struct order_mount *m, const struct source *s, const char *dir, unsigned long flags)
{
	char data[OPTIONS_MAX];

	flags |= split_options(m->options, data, sizeof(data));
	if (s->kind == SOURCE_OTHER || flags & MS_BIND)
		return mount_other(m, dir, flags, data);
	if (s->kind == SOURCE_9P || s->kind == SOURCE_VIRTIOFS)
		return mount_tag(s, dir, flags, data);
	return mount_device(m, s, dir, flags, data);
}

static void explain_missing(const char *name, const struct source *s)
{
	if (s->kind == SOURCE_9P || s->kind == SOURCE_VIRTIOFS)
		say("no share has the tag '%s'%s: check the name, and that virtio_pci and its driver are among the "
		    "modules",
		    s->value, s->kind == SOURCE_9P ? "" : " (or an option is wrong)");
	else
		say("%s is not there: check the name; drivers and file systems come as modules", name);
	if (s->kind != SOURCE_9P && s->kind != SOURCE_VIRTIOFS)
		blockdev_list();
}

int mount_source(const struct order_mount *m, const char *dir, unsigned long flags, int64_t wait_ms)
{
	const int64_t patience = 2000;
	int64_t start = now_ms(), deadline = wait_ms < 0 ? -1 : start + wait_ms;
	bool told = wait_ms >= 0 && wait_ms <= patience;
	struct source s;
	int fd, err;

	if (access(dir, F_OK)) {
		say("there is no folder %s to mount %s on", dir, m->source);
		return -ENOTDIR;
	}
	source_parse(m->source, m->fstype, &s);
	fd = uevent_open();
	while ((err = attempt(m, &s, dir, flags)) == -EAGAIN) {
		if (uevent_wait(fd, told ? deadline : start + patience))
			continue;
		if (told)
			break;
		told = true;
		if (wait_ms < 0)
			say("waiting for %s (for ever, as rootwait asks)", m->source);
		else
			say("waiting for %s, at most %d s", m->source, (int)(wait_ms / 1000));
	}
	uevent_close(fd);
	if (err == -EAGAIN) {
		explain_missing(m->source, &s);
		err = -ENOENT;
	}
	return err;
}

static bool has_option(const char *options, const char *name)
{
	size_t len = strlen(name);

	for (const char *p = options; p && (p = strstr(p, name)); p += len)
		if ((p == options || p[-1] == ',') && (p[len] == ',' || !p[len]))
			return true;
	return false;
}

int mount_extra(const struct plan *p)
{
	int first = 0;

	for (unsigned i = 0; i < p->nmounts; i++) {
		const struct order_mount *m = &p->mount[i];
		int64_t wait = p->root_wait < 0 ? ROOT_WAIT_S : p->root_wait;
		int err;

		mkdir_parents(m->dir);
		err = mount_source(m, m->dir, 0, wait * 1000);
		if (err && !has_option(m->options, "nofail") && !first)
			first = err;
	}
	return first;
}

static void dev_links(void)
{
	(void)!symlink("/proc/self/fd", "/dev/fd");
	(void)!symlink("/proc/self/fd/0", "/dev/stdin");
	(void)!symlink("/proc/self/fd/1", "/dev/stdout");
	(void)!symlink("/proc/self/fd/2", "/dev/stderr");
}

void mount_basics(void)
{
	static const struct {
		const char *type, *dir;
		unsigned long flags;
		const char *data, *needs;
	} table[] = {
		{ "devtmpfs", "/dev", MS_NOSUID, "mode=0755", "CONFIG_DEVTMPFS" },
		{ "proc", "/proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL, "CONFIG_PROC_FS" },
		{ "sysfs", "/sys", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL, "CONFIG_SYSFS" },
		{ "devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC, "gid=5,mode=620,ptmxmode=666", "CONFIG_UNIX98_PTYS" },
		{ "tmpfs", "/dev/shm", MS_NOSUID | MS_NODEV, "mode=1777", "CONFIG_TMPFS" },
		{ "tmpfs", "/run", MS_NOSUID | MS_NODEV, "mode=0755", "CONFIG_TMPFS" },
	};

	for (unsigned i = 0; i < sizeof(table) / sizeof(*table); i++) {
		int err;

		mkdir(table[i].dir, 0755);
		err = try_mount(table[i].type, table[i].dir, table[i].type, table[i].flags, table[i].data);
		if (i == 0)
			console_open();
		if (err && err != -EBUSY)
			say("cannot mount %s: %s (the kernel needs %s)", table[i].dir, strerror(-err), table[i].needs);
	}
	dev_links();
	mkdir(RUN_DIR, 0755);
}

/* Takes \040 and its like, as /proc/mounts writes blanks, back in place. */
static void unescape_octal(char *s)
{
	char *w = s;

	for (; *s; s++) {
		if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] && s[3]) {
			*w++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
			s += 3;
		} else {
			*w++ = *s;
		}
	}
	*w = '\0';
}

/* A line of /proc/mounts: SOURCE DIR … */
static void unmount_line(char *line)
{
	char *dir = strchr(line, ' ');

	if (!dir)
		return;
	dir++;
	dir[strcspn(dir, " ")] = '\0';
	unescape_octal(dir);
	if (!strcmp(dir, "/") || !strcmp(dir, "/dev") || !strcmp(dir, "/proc"))
		return;
	if (umount2(dir, 0))
		mount(NULL, dir, NULL, MS_REMOUNT | MS_RDONLY, NULL);
}

/* From the last line to the first: what was mounted later is on top. */
static void unmount_lines(char *text)
{
	for (;;) {
		size_t len = strlen(text);
		char *line;

		while (len && text[len - 1] == '\n')
			text[--len] = '\0';
		if (!len)
			return;
		line = strrchr(text, '\n');
		line = line ? line + 1 : text;
		unmount_line(line);
		*line = '\0';
	}
}

void unmount_all(void)
{
	char *text = slurp("/proc/self/mounts");

	if (text)
		unmount_lines(text);
	free(text);
	mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY, NULL);
}
