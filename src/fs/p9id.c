// SPDX-License-Identifier: GPL-2.0-or-later
#include "fs/p9_impl.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

/*
 * How it works
 *
 * none    What the host has is what the client sees. Where we are root, what is
 *         made is given to the user that attached and the group in the message.
 * squash  Our own ids show as 0, and 0 means us; others are as they are, and
 *         the host will not let us give files away to them.
 * mapped  Owner, mode and device number are in extended attributes, in the same
 *         form as QEMU's mapped-xattr; the host's own are 0600 or 0700 and
 *         ours. Devices, sockets, FIFOs and symlinks are regular files.
 *
 * Between making something by name and giving it away somebody on the host may
 * put another file in its place. So what is given away is what was opened
 * afterwards, and only if it is of the kind that was made and has no other name.
 *
 * Setuid bits. A write by root does not clear them, and the server may be root
 * while the writer in the guest is not. That is left to the guest's kernel,
 * which knows who writes and takes the bits away itself, by Tsetattr; a server
 * that always did would break writers that are allowed to. What the host does by
 * itself at a change of owner stands, unless the message gives a mode as well.
 */

#define VIRTFS "user.virtfs."

/* Mapped attributes. */

static bool get_attr(const char *path, const char *name, void *v, size_t size)
{
	return getxattr(path, name, v, size) == (ssize_t)size;
}

static int set_attr32(const char *path, const char *name, uint32_t v)
{
	v = htole32(v);
	return setxattr(path, name, &v, sizeof(v), 0) ? -errno : 0;
}

static int set_rdev(const char *path, dev_t rdev)
{
	uint64_t v = htole64(rdev);

	return setxattr(path, VIRTFS "rdev", &v, sizeof(v), 0) ? -errno : 0;
}

/* A directory stays one, and nothing else becomes one, whatever the attribute says. */
static mode_t mapped_mode(mode_t host, uint32_t mode)
{
	if (!(mode & S_IFMT) || S_ISDIR(mode) != S_ISDIR(host))
		mode = (mode & ~(uint32_t)S_IFMT) | (host & S_IFMT);
	return mode & 0177777;
}

static void show_mapped(const char *path, struct statx *st)
{
	uint32_t v;
	uint64_t rdev;

	if (get_attr(path, VIRTFS "uid", &v, sizeof(v)))
		st->stx_uid = le32toh(v);
	if (get_attr(path, VIRTFS "gid", &v, sizeof(v)))
		st->stx_gid = le32toh(v);
	if (get_attr(path, VIRTFS "mode", &v, sizeof(v)))
		st->stx_mode = (uint16_t)mapped_mode(st->stx_mode, le32toh(v));
	if (!S_ISCHR(st->stx_mode) && !S_ISBLK(st->stx_mode))
		return;
	if (get_attr(path, VIRTFS "rdev", &rdev, sizeof(rdev))) {
		st->stx_rdev_major = major(le64toh(rdev));
		st->stx_rdev_minor = minor(le64toh(rdev));
	}
}

void id_show(struct host *h, int fd, struct statx *st)
{
	char path[PROC_FD_SIZE];

	if (h->map == P9_MAP_SQUASH) {
		if (st->stx_uid == h->euid)
			st->stx_uid = 0;
		if (st->stx_gid == h->egid)
			st->stx_gid = 0;
	} else if (h->map == P9_MAP_MAPPED) {
		show_mapped(proc_fd(fd, path), st);
	}
}

int id_stat(struct host *h, int fd, struct statx *st)
{
	int error = file_stat(fd, st);

	if (!error)
		id_show(h, fd, st);
	return error;
}

mode_t id_type_at(struct host *h, int dirfd, const char *name, mode_t type)
{
	char dir[PROC_FD_SIZE], path[PROC_FD_SIZE + NAME_SIZE];
	uint32_t v;

	if (h->map != P9_MAP_MAPPED || type != S_IFREG)
		return type;
	snprintf(path, sizeof(path), "%s/%s", proc_fd(dirfd, dir), name);
	if (lgetxattr(path, VIRTFS "mode", &v, sizeof(v)) != sizeof(v))
		return type;
	return mapped_mode(type, le32toh(v)) & S_IFMT;
}

mode_t id_create_mode(const struct host *h, mode_t mode)
{
	if (h->map == P9_MAP_MAPPED)
		return S_ISDIR(mode) ? 0700 : 0600;
	return mode & 07777;
}

static int made_mapped(const char *path, mode_t mode, uid_t uid, gid_t gid, dev_t rdev)
{
	int error = set_attr32(path, VIRTFS "uid", uid == P9_NONUNAME ? 0 : uid);

	if (!error)
		error = set_attr32(path, VIRTFS "gid", gid);
	if (!error)
		error = set_attr32(path, VIRTFS "mode", mode);
	if (!error && (S_ISCHR(mode) || S_ISBLK(mode)))
		error = set_rdev(path, rdev);
	return error;
}

/* In a setgid directory the host has given the right group already. */
static int give_group(struct file *dir, const struct statx *st, gid_t gid, gid_t *want)
{
	struct statx d;
	int error = 0;

	*want = (gid_t)-1;
	if (gid == st->stx_gid)
		return 0;
	error = file_stat(dir->fd, &d);
	if (!error && !(d.stx_mode & S_ISGID))
		*want = gid;
	return error;
}

static int give_away(struct op *op, struct file *dir, int fd, const struct statx *st, gid_t gid, bool *changed)
{
	uid_t uid = op->uid == st->stx_uid ? (uid_t)-1 : op->uid; /* P9_NONUNAME is -1 as well */
	gid_t want;
	int error = give_group(dir, st, gid, &want);

	if (error || (uid == (uid_t)-1 && want == (gid_t)-1))
		return error;
	if (!S_ISDIR(st->stx_mode) && st->stx_nlink != 1)
		return -ESTALE;
	*changed = true;
	return fchownat(fd, "", uid, want, AT_EMPTY_PATH) ? -errno : 0;
}

static int set_mode(const struct host *h, int fd, mode_t mode)
{
	char name[PROC_FD_SIZE];

	return fchmodat(h->fds, fd_name(fd, name), mode, 0) ? -errno : 0;
}

/*
 * The mode as it was asked for: the host's umask is not the guest's. EPERM for
 * what is our own comes from file systems without such modes (FAT); there
 * creat(2) succeeds as well, with the mode that they have.
 */
static int right_mode(const struct host *h, int fd, const struct statx *st, mode_t mode, bool given, bool *changed)
{
	int error;

	if (S_ISDIR(mode))
		mode |= st->stx_mode & S_ISGID; /* from a setgid directory */
	if (S_ISLNK(mode) || (!((st->stx_mode ^ mode) & 07777) && !(given && (mode & 06000))))
		return 0;
	*changed = true;
	error = set_mode(h, fd, mode & 07777);
	return error == -EPERM ? 0 : error;
}

int id_made(struct op *op, struct file *dir, int fd, struct statx *st, mode_t mode, gid_t gid, dev_t rdev)
{
	struct host *h = op->host;
	bool changed = false;
	char path[PROC_FD_SIZE];
	int error = 0;

	if ((st->stx_mode & S_IFMT) != (h->map != P9_MAP_MAPPED || S_ISDIR(mode) ? mode & S_IFMT : S_IFREG))
		return -ESTALE; /* not what we made */
	if (h->map == P9_MAP_MAPPED) {
		error = made_mapped(proc_fd(fd, path), mode, op->uid, gid, rdev);
		changed = true;
	} else {
		if (h->map == P9_MAP_NONE && !h->euid)
			error = give_away(op, dir, fd, st, gid, &changed);
		if (!error)
			error = right_mode(h, fd, st, mode, changed, &changed);
	}
	if (error)
		return error;
	if (changed)
		return id_stat(h, fd, st);
	id_show(h, fd, st);
	return 0;
}

int id_chown(struct host *h, int fd, uid_t uid, gid_t gid)
{
	char path[PROC_FD_SIZE];
	int error = 0;

	if (h->map == P9_MAP_MAPPED) {
		proc_fd(fd, path);
		if (uid != (uid_t)-1)
			error = set_attr32(path, VIRTFS "uid", uid);
		if (!error && gid != (gid_t)-1)
			error = set_attr32(path, VIRTFS "gid", gid);
		return error;
	}
	if (h->map == P9_MAP_SQUASH && !uid)
		uid = h->euid;
	if (h->map == P9_MAP_SQUASH && !gid)
		gid = h->egid;
	return fchownat(fd, "", uid, gid, AT_EMPTY_PATH) ? -errno : 0;
}

int id_chmod(struct host *h, int fd, mode_t mode)
{
	char path[PROC_FD_SIZE];
	struct statx st;
	int error;

	mode &= 07777;
	if (h->map != P9_MAP_MAPPED)
		return set_mode(h, fd, mode);
	error = id_stat(h, fd, &st);
	return error ? error : set_attr32(proc_fd(fd, path), VIRTFS "mode", (st.stx_mode & S_IFMT) | mode);
}
