// SPDX-License-Identifier: GPL-2.0-or-later
#include "guest/init/blockdev.h"
#include "guest/init/init.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * How it works
 *
 * /sys/class/block has a link per block device, /sys/devices/…/vda/vda1: the
 * last component is the device, and for a partition the one before it is its
 * disk. Each search reads superblocks afresh, since devices come and change
 * while init waits; the kernel's cache makes that cheap. If two devices carry
 * the name that is looked for, the one with the least name wins.
 */
#define SYS_BLOCK "/sys/class/block"

struct blockdev {
	char name[64]; /* as in sysfs, with '!' for '/' */
	char disk[64]; /* its disk, when it is a partition */
	unsigned part; /* 0: not a partition */
	unsigned major, minor;
	uint64_t sectors; /* of 512 bytes */
	struct blkid fs;
	struct partid id;
};

struct fd_reader {
	struct blk_reader r;
	int fd;
};

static int fd_read(struct blk_reader *r, uint64_t off, void *buf, size_t len)
{
	int fd = ((struct fd_reader *)r)->fd;
	ssize_t n = pread(fd, buf, len, (off_t)off);

	return n < 0 ? -errno : (size_t)n < len ? -EIO : 0;
}

static void dev_path(const char *name, char *path, size_t len)
{
	snprintf(path, len, "/dev/%s", name);
	for (char *p = path; (p = strchr(p, '!'));)
		*p = '/';
}

void blockdev_probe(const char *path, struct blkid *out)
{
	struct fd_reader fr = { .r.read = fd_read, .fd = open(path, O_RDONLY | O_CLOEXEC) };

	memset(out, 0, sizeof(*out));
	if (fr.fd < 0)
		return;
	(void)blkid_probe(&fr.r, out);
	close(fr.fd);
}

/* A number out of SYS_BLOCK/NAME/FILE; 0 when there is none. */
static uint64_t attr(const char *name, const char *file)
{
	char path[PATH_MAX], buf[32];

	snprintf(path, sizeof(path), SYS_BLOCK "/%s/%s", name, file);
	return read_file(path, buf, sizeof(buf)) > 0 ? strtoull(buf, NULL, 10) : 0;
}

static void read_devno(struct blockdev *b)
{
	char path[PATH_MAX], buf[32], *minor;

	snprintf(path, sizeof(path), SYS_BLOCK "/%s/dev", b->name);
	if (read_file(path, buf, sizeof(buf)) <= 0)
		return;
	b->major = (unsigned)strtoul(buf, &minor, 10);
	b->minor = *minor == ':' ? (unsigned)strtoul(minor + 1, NULL, 10) : 0;
}

static void read_disk(struct blockdev *b)
{
	char path[PATH_MAX], link[PATH_MAX], *slash;
	ssize_t n;

	snprintf(path, sizeof(path), SYS_BLOCK "/%s", b->name);
	n = readlink(path, link, sizeof(link) - 1);
	if (n < 0)
		return;
	link[n] = '\0';
	slash = strrchr(link, '/');
	if (!slash)
		return;
	*slash = '\0';
	slash = strrchr(link, '/');
	snprintf(b->disk, sizeof(b->disk), "%.63s", slash ? slash + 1 : link);
}

static void read_partition(struct blockdev *b)
{
	char path[PATH_MAX];
	struct fd_reader fr = { .r.read = fd_read };
	uint64_t sector = attr(b->disk, "queue/logical_block_size");

	dev_path(b->disk, path, sizeof(path));
	fr.fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fr.fd < 0)
		return;
	(void)partid_probe(&fr.r, sector ? (unsigned)sector : 512, b->part, &b->id);
	close(fr.fd);
}

/* False for what cannot hold anything, such as loop devices without a file. */
static bool read_device(const char *name, struct blockdev *b)
{
	char path[PATH_MAX];

	memset(b, 0, sizeof(*b));
	snprintf(b->name, sizeof(b->name), "%s", name);
	b->sectors = attr(name, "size");
	if (!b->sectors)
		return false;
	b->part = (unsigned)attr(name, "partition");
	read_devno(b);
	if (b->part) {
		read_disk(b);
		read_partition(b);
	}
	dev_path(name, path, sizeof(path));
	blockdev_probe(path, &b->fs);
	return true;
}

/* vda before vdb before vdaa */
static int compare_names(const char *a, const char *b)
{
	size_t la = strlen(a), lb = strlen(b);

	return la != lb ? (la < lb ? -1 : 1) : strcmp(a, b);
}

static bool matches(const struct blockdev *b, const struct source *s)
{
	switch (s->kind) {
	case SOURCE_LABEL: return *b->fs.label && !strcmp(b->fs.label, s->value);
	case SOURCE_UUID: return *b->fs.uuid && !strcasecmp(b->fs.uuid, s->value);
	case SOURCE_PARTUUID: return *b->id.uuid && !strcasecmp(b->id.uuid, s->value);
	case SOURCE_PARTLABEL: return *b->id.name && !strcmp(b->id.name, s->value);
	case SOURCE_DEVNO: return b->major == s->major && b->minor == s->minor;
	default: return false;
	}
}

static bool find(const struct source *s, struct blockdev *best)
{
	DIR *d = opendir(SYS_BLOCK);
	struct blockdev b;
	struct dirent *e;
	bool found = false;

	while (d && (e = readdir(d))) {
		if (e->d_name[0] == '.' || !read_device(e->d_name, &b) || !matches(&b, s))
			continue;
		if (!found || compare_names(b.name, best->name) < 0)
			*best = b;
		found = true;
	}
	if (d)
		closedir(d);
	return found;
}

/* The partition of the same disk whose number is @n higher. */
static bool find_sibling(struct blockdev *b, int n)
{
	DIR *d = opendir(SYS_BLOCK);
	struct blockdev s;
	struct dirent *e;
	bool found = false;

	while (d && !found && (e = readdir(d))) {
		if (e->d_name[0] == '.' || !read_device(e->d_name, &s))
			continue;
		found = s.part && (int)s.part == (int)b->part + n && !strcmp(s.disk, b->disk);
	}
	if (d)
		closedir(d);
	if (found)
		*b = s;
	return found;
}

int blockdev_find(const struct source *s, char *path, size_t len)
{
	struct blockdev b;
	struct stat st;

	if (s->kind == SOURCE_PATH) {
		snprintf(path, len, "%s", s->value);
		return stat(path, &st) ? -ENOENT : 0;
	}
	if (!find(s, &b) || (s->partnroff && !find_sibling(&b, s->partnroff)))
		return -ENOENT;
	dev_path(b.name, path, len);
	return 0;
}

static void add(char *line, size_t len, const char *key, const char *value)
{
	size_t used = strlen(line);

	if (*value)
		snprintf(line + used, len - used, "  %s=%s", key, value);
	for (char *p = line + used; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			*p = '?';
}

static void list_one(const struct blockdev *b)
{
	char path[80], line[900];

	dev_path(b->name, path, sizeof(path));
	snprintf(line, sizeof(line), "  %s  %" PRIu64 " MiB  %s", path, b->sectors / 2048,
	         b->fs.type ? b->fs.type : "nothing known on it");
	add(line, sizeof(line), "LABEL", b->fs.label);
	add(line, sizeof(line), "UUID", b->fs.uuid);
	add(line, sizeof(line), "PARTLABEL", b->id.name);
	add(line, sizeof(line), "PARTUUID", b->id.uuid);
	say("%s", line);
}

void blockdev_list(void)
{
	struct dirent **e;
	int n = scandir(SYS_BLOCK, &e, NULL, alphasort);
	struct blockdev b;
	bool any = false;

	for (int i = 0; i < n; i++) {
		if (e[i]->d_name[0] == '.' || !read_device(e[i]->d_name, &b))
			continue;
		if (!any)
			say("the block devices are:");
		any = true;
		list_one(&b);
	}
	if (!any)
		say("there is no block device at all: is a disk attached, and its driver among the modules "
		    "(virtio_pci, virtio_blk)?");
}
