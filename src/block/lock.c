// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/lock.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * How it works
 *
 * Each program tells by read locks on single bytes what it does with the image
 * (100 + n) and what it will not have others do (200 + n); n is 0 to read what
 * is consistent, 1 to write, 2 to write what changes nothing, 3 to resize.
 * Read locks do not exclude each other; whoever comes sets its own first and
 * then looks whether anybody's forbid it. When two come at once both may be
 * turned away, never both let in.
 *
 * The locks belong to the open file description, so two disks of one program
 * exclude each other as well, and the kernel does not tell who holds them. That
 * is found out, for the message, by looking through the descriptors in /proc.
 */

#define DOES(n)   (100 + (n))
#define DENIES(n) (200 + (n))

enum { READ, WRITE, WRITE_SAME, RESIZE };

static struct flock one_byte(short type, off_t at)
{
	return (struct flock){ .l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1 };
}

static int set_locks(int fd, const unsigned char *at, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct flock l = one_byte(F_RDLCK, at[i]);

		if (fcntl(fd, F_OFD_SETLK, &l))
			return -errno;
	}
	return 0;
}

/* Is one of these bytes locked by somebody else? 1, 0 or -errno. */
static int others_lock(int fd, const unsigned char *at, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct flock l = one_byte(F_WRLCK, at[i]); /* only asked about: in its way is every lock */

		if (fcntl(fd, F_OFD_GETLK, &l))
			return -errno;
		if (l.l_type != F_UNLCK)
			return 1;
	}
	return 0;
}

/* Who holds it? */

static bool fdinfo_has_lock(const char *pid, const char *fd)
{
	char path[600], line[256]; /* names of at most 255 bytes */
	bool has = false;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%s/fdinfo/%s", pid, fd);
	f = fopen(path, "re");
	if (!f)
		return false;
	while (!has && fgets(line, sizeof(line), f))
		has = !strncmp(line, "lock:", 5);
	fclose(f);
	return has;
}

/* Does the process hold locks on the file of @me, by another descriptor than @fd of ours? */
static bool process_locks(const char *pid, const struct stat *me, int fd)
{
	bool self = (pid_t)strtol(pid, NULL, 10) == getpid(), found = false;
	char path[300];
	struct dirent *e;
	struct stat st;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%s/fd", pid);
	d = opendir(path);
	if (!d)
		return false;
	while (!found && (e = readdir(d))) {
		if (!isdigit((unsigned char)e->d_name[0]) || (self && (int)strtol(e->d_name, NULL, 10) == fd))
			continue;
		found = !fstatat(dirfd(d), e->d_name, &st, 0) && st.st_dev == me->st_dev && st.st_ino == me->st_ino &&
		        fdinfo_has_lock(pid, e->d_name);
	}
	closedir(d);
	return found;
}

static void read_name(const char *pid, char *name, size_t n)
{
	char path[300]; /* likewise */
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%s/comm", pid);
	f = fopen(path, "re");
	if (!f || !fgets(name, (int)n, f))
		snprintf(name, n, "?");
	if (f)
		fclose(f);
	name[strcspn(name, "\n")] = '\0';
}

/* " by NAME (process PID)" or nothing. */
static void find_holder(int fd, char *text, size_t n)
{
	struct dirent *e;
	struct stat me;
	char name[64];
	DIR *proc;

	text[0] = '\0';
	proc = fstat(fd, &me) ? NULL : opendir("/proc");
	if (!proc)
		return;
	while (!text[0] && (e = readdir(proc))) {
		if (!isdigit((unsigned char)e->d_name[0]) || !process_locks(e->d_name, &me, fd))
			continue;
		if ((pid_t)strtol(e->d_name, NULL, 10) == getpid())
			snprintf(name, sizeof(name), "this command itself");
		else
			read_name(e->d_name, name, sizeof(name));
		snprintf(text, n, " by %s (process %.20s)", name, e->d_name);
	}
	closedir(proc);
}

static bool no_locks_here(int error)
{
	return error == -ENOLCK || error == -EOPNOTSUPP || error == -ENOSYS || error == -EINVAL;
}

int image_lock(int fd, const char *path, bool write, struct err *err)
{
	/* A reader minds writers; a writer minds those as well that want no writer. */
	static const unsigned char writer[] = { DOES(READ), DOES(WRITE), DOES(RESIZE), DENIES(WRITE), DENIES(RESIZE) };
	static const unsigned char reader[] = { DOES(READ), DENIES(WRITE), DENIES(RESIZE) };
	static const unsigned char writer_minds[] = { DOES(WRITE), DOES(RESIZE), DENIES(READ), DENIES(WRITE),
		                                      DENIES(RESIZE) };
	static const unsigned char reader_minds[] = { DOES(WRITE), DOES(RESIZE), DENIES(READ) };
	char holder[128];
	int r = write ? set_locks(fd, writer, sizeof(writer)) : set_locks(fd, reader, sizeof(reader));

	if (!r)
		r = write ? others_lock(fd, writer_minds, sizeof(writer_minds))
		          : others_lock(fd, reader_minds, sizeof(reader_minds));
	if (r <= 0)
		return r && !no_locks_here(r) ? err_sys(err, r, "%s: lock", path) : 0;
	find_holder(fd, holder, sizeof(holder));
	return err_set(err, -EBUSY, "%s: in use%s%s", path, holder,
	               write ? "; ro lets many read it, cow keeps the writes in memory" : "");
}
