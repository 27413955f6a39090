// SPDX-License-Identifier: GPL-2.0-or-later
#include "machine/rundir.h"

#include "base/privdir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/*
 * How it works
 *
 * A machine lives exactly while somebody listens on its socket: the kernel
 * ends that with the process, whatever ends the process. So connecting is the
 * test, and connecting never waits: it succeeds as soon as there is room in
 * the backlog, whether or not the machine ever accepts. The kernel also says
 * whose socket it is, so even a wedged machine has a process number.
 *
 * A killed machine with much memory takes a while to die, and listens until it
 * is dead. Who starts another one under its name waits for that.
 *
 * Making, testing and removing a socket file are several steps. They are done
 * under a lock on the directory itself, held for microseconds, so that two
 * starts of one name, or a start and a sweep, come one after the other.
 *
 * Only we may enter the directory. That keeps others from the sockets, and
 * what somebody else has put in its place (in /tmp) is refused.
 */

#define LOCK_TRIES  1000 /* of 1 ms */
#define DEATH_TRIES 500  /* of 10 ms */
#define PF_EXITING  4    /* the kernel's flag in /proc/PID/stat, proc(5) */
#define BACKLOG     4096 /* the kernel takes fewer where somaxconn says so */
#define SUFFIX      ".sock"

bool rundir_name_ok(const char *name)
{
	size_t n = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");

	return n && n <= RUNDIR_NAME_MAX && !name[n];
}

static char *make_path(void)
{
	const char *xdg = privdir_env("XDG_RUNTIME_DIR");
	char *path;
	int n;

	if (xdg)
		n = asprintf(&path, "%s/kvm", xdg);
	else if (!geteuid())
		n = asprintf(&path, "/run/kvm");
	else
		n = asprintf(&path, "/tmp/kvm-%u", (unsigned)geteuid());
	return n < 0 ? NULL : path;
}

int rundir_open(struct rundir *d, bool make, struct err *err)
{
	d->fd = -1;
	d->path = make_path();
	if (!d->path)
		return err_set(err, -ENOMEM, "out of memory");
	d->fd = privdir_open(d->path, make, "XDG_RUNTIME_DIR", err);
	if (d->fd < 0) {
		int error = d->fd;

		rundir_close(d);
		return error;
	}
	return 0;
}

void rundir_close(struct rundir *d)
{
	if (d->fd >= 0)
		close(d->fd);
	d->fd = -1;
	free(d->path);
	d->path = NULL;
}

/* The lock is held for a few system calls; a holder that was stopped in between must not stop us. */
static int lock(const struct rundir *d, struct err *err)
{
	const struct timespec ms = { .tv_nsec = 1000000 };

	for (unsigned i = 0; i < LOCK_TRIES; i++) {
		if (!flock(d->fd, LOCK_EX | LOCK_NB))
			return 0;
		if (errno != EWOULDBLOCK)
			return err_sys(err, -errno, "%s", d->path);
		nanosleep(&ms, NULL);
	}
	return err_set(err, -EBUSY, "%s is locked by another kvm", d->path);
}

static void unlock(const struct rundir *d)
{
	flock(d->fd, LOCK_UN);
}

static void file_name(const char *name, char out[static RUNDIR_NAME_MAX + sizeof(SUFFIX)])
{
	snprintf(out, RUNDIR_NAME_MAX + sizeof(SUFFIX), "%s" SUFFIX, name);
}

/* An address has room for about 100 characters; a longer path is reached through our descriptor. */
static void address(const struct rundir *d, const char *name, struct sockaddr_un *a)
{
	int n;

	*a = (struct sockaddr_un){ .sun_family = AF_UNIX };
	n = snprintf(a->sun_path, sizeof(a->sun_path), "%s/%s" SUFFIX, d->path, name);
	if (n < 0 || (size_t)n >= sizeof(a->sun_path))
		snprintf(a->sun_path, sizeof(a->sun_path), "/proc/self/fd/%d/%.*s" SUFFIX, d->fd, RUNDIR_NAME_MAX,
		         name);
}

int rundir_connect(const struct rundir *d, const char *name, pid_t *pid)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error = 0;
	struct ucred cred = { 0 };
	socklen_t len = sizeof(cred);
	struct sockaddr_un a;

	if (fd < 0)
		return -errno;
	address(d, name, &a);
	if (connect(fd, (struct sockaddr *)&a, sizeof(a)) || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len))
		error = -errno;
	if (error) {
		close(fd);
		return error;
	}
	*pid = cred.pid;
	return fd;
}

/* Under the lock: makes sure that nobody lives under @name, and that nothing dead is in the way. */
static int free_name(const struct rundir *d, const char *name, struct err *err)
{
	char file[RUNDIR_NAME_MAX + sizeof(SUFFIX)];
	pid_t pid = 0;
	int fd = rundir_connect(d, name, &pid);

	if (fd >= 0)
		close(fd);
	if (fd >= 0 || fd == -EAGAIN)
		return pid ? err_set(err, -EEXIST, "%s is running already (pid %d)", name, (int)pid)
		           : err_set(err, -EEXIST, "%s is running already", name);
	if (fd != -ENOENT && fd != -ECONNREFUSED)
		return err_sys(err, fd, "cannot tell whether %s is running already", name);
	file_name(name, file);
	if (unlinkat(d->fd, file, 0) && errno != ENOENT)
		return err_sys(err, -errno, "%s/%s", d->path, file);
	return 0;
}

/* Under the lock. */
static int listen_at(const struct rundir *d, const char *name, struct rundir_claim *c, struct err *err)
{
	char file[RUNDIR_NAME_MAX + sizeof(SUFFIX)];
	struct sockaddr_un a;
	struct stat st;

	file_name(name, file);
	address(d, name, &a);
	c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (c->fd >= 0 && !bind(c->fd, (struct sockaddr *)&a, sizeof(a)) && !listen(c->fd, BACKLOG) &&
	    !fstatat(d->fd, file, &st, AT_SYMLINK_NOFOLLOW)) {
		c->ino = st.st_ino;
		return 0;
	}
	err_sys(err, -errno, "%s/%s", d->path, file);
	if (c->fd >= 0)
		close(c->fd);
	return -EIO;
}

/* Has process @pid been killed or exited, and is only not gone yet? Fields 9 and 31 of its line in proc(5). */
static bool is_ending(pid_t pid)
{
	char path[64], stat[1024] = "", *end, *save = NULL;
	unsigned long flags = 0, pending = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	f = fopen(path, "re");
	if (!f)
		return true;
	end = fgets(stat, sizeof(stat), f) ? strrchr(stat, ')') : NULL;
	fclose(f);
	if (!end)
		return true;
	end = strtok_r(end + 1, " ", &save);
	for (unsigned field = 3; end; field++, end = strtok_r(NULL, " ", &save)) {
		if (field == 9)
			flags = strtoul(end, NULL, 10);
		if (field == 31)
			pending = strtoul(end, NULL, 10);
	}
	return flags & PF_EXITING || pending & 1ul << (SIGKILL - 1);
}

/* Is who has the name dying, or dead by now? Waits a moment, so that asking again may have another answer. */
static bool await_death(const struct rundir *d, const char *name, unsigned tries)
{
	const struct timespec step = { .tv_nsec = 10000000 };
	pid_t pid = 0;
	int fd = rundir_connect(d, name, &pid);

	if (fd >= 0)
		close(fd);
	if (fd == -EAGAIN || (fd >= 0 && !is_ending(pid)) || tries == DEATH_TRIES)
		return false;
	nanosleep(&step, NULL);
	return true;
}

static int try_claim(const struct rundir *d, const char *name, struct rundir_claim *out, struct err *err)
{
	int error = lock(d, err);

	if (error)
		return error;
	error = free_name(d, name, err);
	if (!error)
		error = listen_at(d, name, out, err);
	unlock(d);
	return error;
}

int rundir_claim(const struct rundir *d, const char *name, struct rundir_claim *out, struct err *err)
{
	unsigned tries = 0;
	int error;

	do
		error = try_claim(d, name, out, err);
	while (error == -EEXIST && await_death(d, name, tries++));
	return error;
}

/* The file may have been removed by hand, and be another machine's now. */
void rundir_release(const struct rundir *d, const char *name, struct rundir_claim *c)
{
	char file[RUNDIR_NAME_MAX + sizeof(SUFFIX)];
	struct stat st;
	struct err dull;

	file_name(name, file);
	if (!lock(d, &dull)) {
		if (!fstatat(d->fd, file, &st, AT_SYMLINK_NOFOLLOW) && st.st_ino == c->ino)
			unlinkat(d->fd, file, 0);
		unlock(d);
	}
	close(c->fd);
	c->fd = -1;
}

void rundir_sweep(const struct rundir *d, const char *name)
{
	struct err dull;

	if (lock(d, &dull))
		return;
	(void)free_name(d, name, &dull); /* somebody may have started it meanwhile */
	unlock(d);
}

static int add_name(const char *file, char ***names, size_t *n)
{
	size_t len = strlen(file), cut = len - (sizeof(SUFFIX) - 1);
	char **more, *name;

	if (len < sizeof(SUFFIX) || strcmp(file + cut, SUFFIX))
		return 0;
	name = strndup(file, cut);
	more = name && rundir_name_ok(name) ? reallocarray(*names, *n + 1, sizeof(*more)) : NULL;
	if (!more) {
		int error = name && !rundir_name_ok(name) ? 0 : -ENOMEM;

		free(name);
		return error;
	}
	*names = more;
	more[(*n)++] = name;
	return 0;
}

static int compare(const void *a, const void *b)
{
	return strverscmp(*(char *const *)a, *(char *const *)b);
}

int rundir_names(const struct rundir *d, char ***out, struct err *err)
{
	int fd = openat(d->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), error = 0;
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;
	size_t n = 0;

	*out = NULL;
	if (!dir)
		return err_sys(err, -errno, "%s", d->path);
	while (!error && (e = readdir(dir)))
		error = add_name(e->d_name, out, &n);
	closedir(dir);
	if (n)
		qsort(*out, n, sizeof(**out), compare);
	return error ? err_sys(err, error, "%s", d->path) : (int)n;
}
