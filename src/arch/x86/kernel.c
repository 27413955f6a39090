// SPDX-License-Identifier: GPL-2.0-or-later
#include "arch/x86/kernel.h"
#include "arch/x86/memmap.h"
#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEAD_LEN 65536 /* enough for a bzImage's largest setup part that we look at */

int open_regular(const char *what, const char *path, int *fd, uint64_t *size, struct err *err)
{
	struct stat st;

	/* O_NONBLOCK: a FIFO must not hold us. */
	*fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (*fd < 0)
		return err_sys(err, -errno, "%s %s", what, path);
	if (fstat(*fd, &st) < 0)
		err_sys(err, -errno, "%s %s", what, path);
	else if (S_ISDIR(st.st_mode))
		err_set(err, -EISDIR, "%s %s: is a directory", what, path);
	else if (!S_ISREG(st.st_mode))
		err_set(err, -EINVAL, "%s %s: not a regular file", what, path);
	else if (!st.st_size)
		err_set(err, -EINVAL, "%s %s: the file is empty", what, path);
	else {
		*size = (uint64_t)st.st_size;
		return 0;
	}
	close(*fd);
	*fd = -1;
	return -EINVAL;
}

static uint8_t head[HEAD_LEN]; /* one kernel is opened at a time */

static int read_head(const struct kernel *k, size_t *len, struct err *err)
{
	int error;

	*len = k->size < HEAD_LEN ? k->size : HEAD_LEN;
	error = read_at(k->fd, head, *len, 0);
	return error ? err_sys(err, error, "kernel %s", k->path) : 0;
}

static int parse(struct kernel *k, struct err *err)
{
	size_t len;
	int error = read_head(k, &len, err);

	if (error)
		return error;
	error = elf_parse(k, head, len, err);
	if (error == -ENOEXEC)
		error = bzimage_parse(k, head, len, err);
	if (error == -ENOEXEC)
		return err_set(err, error, "%s: not a kernel: neither a bzImage nor an ELF file (the first %s)",
		               k->path, len < 0x206 ? "bytes end before the header" : "kilobyte has no known magic");
	return error;
}

int kernel_open(const char *path, struct kernel *k, struct err *err)
{
	int error;

	*k = (struct kernel){ .path = path };
	error = open_regular("kernel", path, &k->fd, &k->size, err);
	if (error)
		return error;
	error = parse(k, err);
	if (error)
		kernel_close(k);
	return error;
}

int kernel_set_unpacked(struct kernel *k, int fd, uint64_t size, struct err *err)
{
	struct kernel elf = { .path = k->path, .fd = fd, .size = size };
	size_t len;
	int error = read_head(&elf, &len, err);

	if (error)
		return error;
	error = elf_parse(&elf, head, len, err);
	if (error == -ENOEXEC)
		return err_set(err, error, "%s: what is compressed in it is no ELF file", k->path);
	if (error)
		return error;
	elf.hdr = k->hdr;
	memcpy(elf.version, k->version, sizeof(elf.version));
	elf.is_linux = k->is_linux;
	elf.cmdline_max = k->cmdline_max;
	elf.initrd_max = k->initrd_max;
	if (elf.end < k->end)
		elf.end = k->end; /* how much memory is enough does not depend on whether it was unpacked */
	kernel_close(k);
	*k = elf;
	return 0;
}

void kernel_close(struct kernel *k)
{
	if (k->fd >= 0)
		close(k->fd);
	k->fd = -1;
}

/* As read_at(), into zeros: holes in the file are left out. */
static int read_data(int fd, uint8_t *to, uint64_t len, uint64_t off)
{
	while (len) {
		off_t data = lseek(fd, (off_t)off, SEEK_DATA), hole = data < 0 ? -1 : lseek(fd, data, SEEK_HOLE);
		uint64_t skip = (uint64_t)data - off, n;
		int error;

		if (hole < 0)
			return read_at(fd, to, len, off); /* the end of the file, or no holes here */
		if (skip >= len)
			return 0;
		n = (uint64_t)(hole - data) < len - skip ? (uint64_t)(hole - data) : len - skip;
		error = read_at(fd, to + skip, n, (uint64_t)data);
		if (error)
			return error;
		to += skip + n;
		off += skip + n;
		len -= skip + n;
	}
	return 0;
}

static int load_segment(const struct kernel *k, const struct kernel_segment *s, const struct gmem *mem, struct err *err)
{
	uint8_t *p = gmem_ptr(mem, s->paddr, s->memsz);
	int error;

	if (!p)
		return err_set(err, -ENOMEM, "%s: wants memory at 0x%llx, where this machine has none", k->path,
		               (unsigned long long)s->paddr);
	error = read_data(k->fd, p, s->filesz, s->offset); /* what lies behind is zero already */
	if (error)
		return err_sys(err, error, "kernel %s", k->path);
	return 0;
}

int kernel_load(const struct kernel *k, const struct gmem *mem, struct err *err)
{
	if (k->end > MM_LOW_RAM_END)
		return err_set(err, -ENOMEM, "%s: reaches up to 0x%llx, where no machine has memory for a kernel",
		               k->path, (unsigned long long)k->end);
	if (k->end > mem->bank[0].len)
		return err_set(err, -ENOMEM, "%s: this kernel needs at least %llu MiB of memory (-m), not %llu",
		               k->path, (unsigned long long)((k->end + (1 << 20) - 1) >> 20),
		               (unsigned long long)(mem->bank[0].len >> 20));
	for (unsigned i = 0; i < k->nsegs; i++) {
		int error = load_segment(k, &k->seg[i], mem, err);

		if (error)
			return error;
	}
	return 0;
}
