// SPDX-License-Identifier: GPL-2.0-or-later
#include "base/privdir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

const char *privdir_env(const char *var)
{
	const char *dir = getenv(var);
	struct stat st;

	if (!dir || dir[0] != '/' || stat(dir, &st) || !S_ISDIR(st.st_mode) || st.st_uid != geteuid())
		return NULL;
	return dir;
}

static int check(int fd, const char *path, const char *var, struct err *err)
{
	struct stat st;

	if (fstat(fd, &st))
		return err_sys(err, -errno, "%s", path);
	if (st.st_uid != geteuid())
		return err_set(err, -EPERM, "%s belongs to uid %u, not to you: have it removed, or set %s", path,
		               (unsigned)st.st_uid, var);
	if (st.st_mode & 077)
		return err_set(err, -EPERM, "%s is open to others (mode %o): chmod 700 it", path,
		               (unsigned)st.st_mode & 0777);
	return 0;
}

int privdir_open(const char *path, bool make, const char *var, struct err *err)
{
	int fd = -1, error;

	if (!make || !mkdir(path, 0700) || errno == EEXIST)
		fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 && (errno == ENOTDIR || errno == ELOOP))
		return err_set(err, -ENOTDIR, "%s is no directory: remove it", path);
	if (fd < 0)
		return err_sys(err, -errno, "%s", path);
	error = check(fd, path, var, err);
	if (!error)
		return fd;
	close(fd);
	return error;
}
