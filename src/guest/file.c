// SPDX-License-Identifier: GPL-2.0-or-later
#include "guest/file.h"
#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Returns a descriptor or -errno. */
static int open_file(const char *path, uint64_t *size, struct err *err)
{
	/* O_NONBLOCK: a FIFO must not hold us. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;
	int error;

	if (fd < 0)
		return err_sys(err, -errno, "%s", path);
	if (fstat(fd, &st) < 0)
		error = err_sys(err, -errno, "%s", path);
	else if (!S_ISREG(st.st_mode))
		error = err_set(err, -EINVAL, "%s: not a regular file", path);
	else if (!st.st_size)
		error = err_set(err, -EINVAL, "%s: the file is empty", path);
	else if (st.st_size > FILE_MAX)
		error = err_set(err, -EFBIG, "%s: more than 1 GiB, not what it should be", path);
	else {
		*size = (uint64_t)st.st_size;
		return fd;
	}
	close(fd);
	return error;
}

int file_size(const char *path, uint64_t *size, struct err *err)
{
	int fd = open_file(path, size, err);

	if (fd < 0)
		return fd;
	close(fd);
	return 0;
}

int file_read(const char *path, uint8_t *to, uint64_t size, struct err *err)
{
	uint64_t now = 0;
	int fd = open_file(path, &now, err), error;

	if (fd < 0)
		return fd;
	error = now == size ? read_at(fd, to, size, 0) : -ENODATA;
	close(fd);
	if (error == -ENODATA)
		return err_set(err, -ESTALE, "%s: changed while it was being read", path);
	return error ? err_sys(err, error, "%s", path) : 0;
}

int file_load(const char *path, uint8_t **data, uint64_t *size, struct err *err)
{
	int error = file_size(path, size, err);

	if (error)
		return error;
	*data = malloc(*size + 1); /* and a NUL, for who reads it as text */
	if (!*data)
		return err_sys(err, -ENOMEM, "%s", path);
	error = file_read(path, *data, *size, err);
	if (error) {
		free(*data);
		*data = NULL;
		return error;
	}
	(*data)[*size] = 0;
	return 0;
}
