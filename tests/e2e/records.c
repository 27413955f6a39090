// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * records FILE BLOCKS STRIDE FIRST: writes records without end into the first
 *     BLOCKS blocks of 4 KiB, from number FIRST on. Record i is its number, over
 *     and over, in block i * STRIDE modulo BLOCKS, the two having no divisor in
 *     common. Prints i once that is durable.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define BLOCK 4096u

int main(int argc, char **argv)
{
	static uint64_t record[BLOCK / sizeof(uint64_t)];
	uint64_t blocks, stride;
	int fd;

	if (argc != 5)
		return 2;
	blocks = strtoull(argv[2], NULL, 10);
	stride = strtoull(argv[3], NULL, 10);
	fd = open(argv[1], O_RDWR);
	for (uint64_t i = strtoull(argv[4], NULL, 10);; i++) {
		off_t off = (off_t)(i * stride % blocks * BLOCK);

		for (size_t k = 0; k < BLOCK / sizeof(uint64_t); k++)
			record[k] = i;
		if (pwrite(fd, record, BLOCK, off) != BLOCK || fdatasync(fd)) {
			perror(argv[1]);
			return 1;
		}
		printf("%" PRIu64 "\n", i);
		fflush(stdout);
	}
}
