// SPDX-License-Identifier: GPL-2.0-or-later
#include "guest/init/init.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

ssize_t read_file(const char *path, char *buf, size_t len)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t done = 0;
	ssize_t n = 0;

	buf[0] = '\0';
	if (fd < 0)
		return -errno;
	while (done < len - 1 && (n = read(fd, buf + done, len - 1 - done)) > 0)
		done += (size_t)n;
	n = n < 0 ? -errno : (ssize_t)done;
	close(fd);
	buf[done] = '\0';
	return n;
}

/* Files in /proc have no size, so the buffer grows until the whole file fits. */
char *slurp(const char *path)
{
	for (size_t len = 4096;; len *= 2) {
		char *buf = malloc(len);
		ssize_t n;

		if (!buf)
			return NULL;
		n = read_file(path, buf, len);
		if (n >= 0 && (size_t)n < len - 1)
			return buf;
		free(buf);
		if (n < 0) {
			errno = (int)-n;
			return NULL;
		}
	}
}

int write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	size_t len = strlen(text);
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = write(fd, text, len);
	n = n < 0 ? -errno : (size_t)n < len ? -EIO : 0;
	close(fd);
	return (int)n;
}

void mkdir_parents(const char *path)
{
	char buf[PATH_MAX];
	size_t len = strlen(path);

	if (len >= sizeof(buf))
		return;
	memcpy(buf, path, len + 1);
	for (char *p = buf + 1; (p = strchr(p, '/')); p++) {
		*p = '\0';
		mkdir(buf, 0755);
		*p = '/';
	}
	mkdir(buf, 0755);
}

int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}
