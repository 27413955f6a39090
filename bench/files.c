// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * In the guest of `bench files`:
 *   files time KEY COMMAND...   runs it, prints "@KEY MICROSECONDS"; its output is dropped
 *   files fill FILE MIB         makes a file
 *   files read FILE COUNT       reads so many blocks of 4 KiB, at random
 *   files write FILE COUNT      writes so many
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BLOCK 4096

static char block[1 << 20];

static int fail(const char *what)
{
	perror(what);
	return 1;
}

static int64_t now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * INT64_C(1000000) + ts.tv_nsec / 1000;
}

static int time_command(const char *key, char **argv)
{
	int64_t start = now_us();
	int status;
	pid_t pid = fork();

	if (!pid) {
		int fd = open("/dev/null", O_WRONLY);

		dup2(fd, 1);
		execvp(argv[0], argv);
		_exit(fail(argv[0]));
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
		return fail(key);
	printf("@%s %lld\n", key, (long long)(now_us() - start));
	return 0;
}

static int fill(int fd, long mib)
{
	memset(block, 'f', sizeof(block));
	while (mib--)
		if (write(fd, block, sizeof(block)) != sizeof(block))
			return fail("write");
	return 0;
}

/* The same places in every run. */
static int blocks(int fd, long count, int writing)
{
	uint64_t state = 88172645463325252u, n = (uint64_t)lseek(fd, 0, SEEK_END) / BLOCK;

	while (count--) {
		off_t at;

		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		at = (off_t)(state % n) * BLOCK;
		if ((writing ? pwrite(fd, block, BLOCK, at) : pread(fd, block, BLOCK, at)) != BLOCK)
			return fail("transfer");
	}
	return 0;
}

int main(int argc, char **argv)
{
	int fd;

	if (argc > 3 && !strcmp(argv[1], "time"))
		return time_command(argv[2], argv + 3);
	if (argc != 4)
		return 2;
	fd = open(argv[2], O_RDWR | O_CREAT, 0600);
	if (fd < 0)
		return fail(argv[2]);
	if (!strcmp(argv[1], "fill"))
		return fill(fd, atol(argv[3]));
	return blocks(fd, atol(argv[3]), !strcmp(argv[1], "write"));
}
