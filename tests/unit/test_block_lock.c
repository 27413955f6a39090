// SPDX-License-Identifier: GPL-2.0-or-later
/* Image locks: between our own disks, and with QEMU's tools on the other side. */
#include "blkfix.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define SIZE 65536

static const struct blk_options writer = { .format = BLK_RAW };
static const struct blk_options reader = { .format = BLK_RAW, .read_only = true };
static const struct blk_options cow = { .format = BLK_RAW, .cow = true };
static const struct blk_options direct = { .format = BLK_RAW, .cache = BLK_DIRECT };

static char path[BLKFIX_PATH];

static int setup(void **state)
{
	blkfix_make(path, SIZE, 1);
	return 0;
}

static int teardown(void **state)
{
	blkfix_rm(path);
	return 0;
}

/* Refused, in one line that names the file and @holder. */
static void refused(const struct blk_options *opt, const char *holder)
{
	struct blk *b = NULL;
	struct err err = { .msg = "" };

	assert_int_equal(blk_open(path, opt, &b, &err), -EBUSY);
	if (!strstr(err.msg, path) || !strstr(err.msg, holder) || strchr(err.msg, '\n'))
		fail_msg("%s", err.msg);
}

static void test_writers(void **state)
{
	static const struct blk_options *const both[] = { &writer, &direct };

	for (unsigned i = 0; i < 4; i++) {
		struct blk *b = blkfix_open(path, both[i & 1]);
		char me[64];

		snprintf(me, sizeof(me), "(process %d)", (int)getpid());
		refused(both[i >> 1], me);
		refused(&reader, me);
		refused(&cow, me);
		blk_close(b);
		blk_close(blkfix_open(path, both[i >> 1]));
	}
}

static void test_readers(void **state)
{
	struct blk *a = blkfix_open(path, &reader), *b = blkfix_open(path, &cow), *c = blkfix_open(path, &reader);

	refused(&writer, "in use");
	blk_close(a);
	blk_close(c);
	refused(&writer, "in use");
	blk_close(b);
	blk_close(blkfix_open(path, &writer));
}

/* What QEMU looks for: these bytes, and no others. */
static void check_bytes(const char *bytes)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	assert_true(fd >= 0);
	for (off_t at = 90; at < 300; at++) {
		struct flock l = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1 };
		char number[8];

		assert_int_equal(fcntl(fd, F_OFD_GETLK, &l), 0);
		snprintf(number, sizeof(number), " %d ", (int)at);
		assert_int_equal(l.l_type, strstr(bytes, number) ? F_RDLCK : F_UNLCK);
	}
	close(fd);
}

/* They may have descriptors of their own: closing these gives no lock away. */
static void queues_come_and_go(struct blk *b)
{
	struct blk_queue *q[4];
	struct loop *loop;
	struct err err;
	uint8_t byte;

	assert_int_equal(loop_new(&loop, &err), 0);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(blk_queue_open(b, loop, &q[i], &err), 0);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(blkfix_io(q[i], BLK_READ, 0, 0, &byte, 1), 0);
	for (unsigned i = 4; i--;)
		blk_queue_close(q[i]);
	loop_free(loop);
}

static void test_bytes(void **state)
{
	struct blk *b = blkfix_open(path, &writer);

	check_bytes(" 100 101 103 201 203 ");
	queues_come_and_go(b);
	check_bytes(" 100 101 103 201 203 ");
	blk_close(b);
	b = blkfix_open(path, &reader);
	check_bytes(" 100 201 203 ");
	blk_close(b);
	check_bytes("");
}

/* QEMU's tools. */

static bool have_tools(void)
{
	return !system("qemu-img --version >/dev/null 2>&1 && qemu-io --version >/dev/null 2>&1");
}

static int run(const char *format)
{
	char command[256];
	int status;

	snprintf(command, sizeof(command), format, path);
	status = system(command);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* They share a raw image with whoever shares it with them; of QCOW2 they demand as much as we do of any. */
static void test_against_tools(void **state)
{
	struct blk *b;

	if (!have_tools())
		skip();
	b = blkfix_open(path, &writer);
	assert_int_equal(run("qemu-io -f raw -c 'write 0 512' %s >/dev/null 2>&1"), 1);
	assert_int_equal(run("qemu-io -r -f raw -c 'read 0 512' %s >/dev/null 2>&1"), 0);
	blk_close(b);
	b = blkfix_open(path, &reader);
	assert_int_equal(run("qemu-io -f raw -c 'write 0 512' %s >/dev/null 2>&1"), 1);
	assert_int_equal(run("qemu-io -r -f raw -c 'read 0 512' %s >/dev/null 2>&1"), 0);
	blk_close(b);
	assert_int_equal(run("qemu-io -f raw -c 'write 0 512' %s >/dev/null 2>&1"), 0);
	assert_int_equal(run("qemu-img create -q -f qcow2 %s 1M"), 0);
	b = blkfix_open(path, &writer);
	assert_int_equal(run("qemu-img info %s >/dev/null 2>&1"), 1);
	assert_int_equal(run("qemu-img info -U %s >/dev/null 2>&1"), 0);
	blk_close(b);
	b = blkfix_open(path, &reader);
	assert_int_equal(run("qemu-img info %s >/dev/null 2>&1"), 0);
	assert_int_equal(run("qemu-io -c 'write 0 512' %s >/dev/null 2>&1"), 1);
	blk_close(b);
	assert_int_equal(run("qemu-img info %s >/dev/null 2>&1"), 0);
}

/* A tool that has the image open, until its input ends. Returns its pid; the end to close in *@in. */
static pid_t start_tool(const char *mode, int *in)
{
	int to[2], from[2];
	char byte;
	pid_t pid;

	assert_int_equal(pipe2(to, O_CLOEXEC), 0);
	assert_int_equal(pipe2(from, O_CLOEXEC), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		dup2(to[0], 0);
		dup2(from[1], 1);
		execlp("qemu-io", "qemu-io", mode, "-f", "raw", path, (char *)NULL);
		_exit(127);
	}
	close(to[0]);
	close(from[1]);
	assert_int_equal(read(from[0], &byte, 1), 1); /* the prompt: it is open */
	close(from[0]);
	*in = to[1];
	return pid;
}

static void test_tools_first(void **state)
{
	int in, status;
	pid_t pid;

	if (!have_tools())
		skip();
	pid = start_tool("-n", &in); /* cache=none: it writes, as it would without */
	refused(&writer, "qemu-io");
	refused(&reader, "qemu-io");
	close(in);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	pid = start_tool("-r", &in);
	blk_close(blkfix_open(path, &reader));
	blk_close(blkfix_open(path, &cow));
	blk_close(blkfix_open(path, &writer)); /* it has no objection */
	close(in);
	assert_int_equal(waitpid(pid, &status, 0), pid);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_writers, setup, teardown),
		cmocka_unit_test_setup_teardown(test_readers, setup, teardown),
		cmocka_unit_test_setup_teardown(test_bytes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_against_tools, setup, teardown),
		cmocka_unit_test_setup_teardown(test_tools_first, setup, teardown),
	};

	signal(SIGPIPE, SIG_IGN); /* a tool may end before it has said all */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
