// SPDX-License-Identifier: GPL-2.0-or-later
/* --pcap: every frame that was sent or received is in the file, whole and in order; a full disk costs only the file. */
#include "fakenic.h"
#include "net/pcap.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define FRAMES 50u

struct fixture {
	struct fakenic fake;
	struct loop *loop;
	struct nic *nic;
	unsigned links;
};

static void nothing(void *dev, unsigned pair)
{
}

static void on_link(void *dev)
{
	((struct fixture *)dev)->links++;
}

static struct fixture *setup(const char *path)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct nic_client client = { .readable = nothing, .writable = nothing, .link = on_link, .dev = f };
	struct err err;

	assert_non_null(f);
	fakenic_init(&f->fake, 2, NIC_CSUM);
	assert_int_equal(loop_new(&f->loop, &err), 0);
	assert_int_equal(pcap_new(&f->fake.nic, path, &f->nic, &err), 0);
	assert_true(f->nic->max_pairs == 2 && f->nic->offloads == NIC_CSUM && f->nic->up && !f->nic->fd);
	nic_attach(f->nic, &client, f->loop);
	return f;
}

static void teardown(struct fixture *f)
{
	nic_attach(f->nic, NULL, NULL);
	nic_free(f->nic);
	loop_free(f->loop);
	free(f);
}

/* A frame each way, in pieces; @n bytes of it behind the header. */
static void talk(struct fixture *f, unsigned k, size_t n)
{
	uint8_t *p = malloc(NIC_HDR + n), *in = malloc(NIC_HDR + NIC_MAX_FRAME);
	struct iovec out[3] = { { p, 5 }, { p + 5, 20 }, { p + 25, NIC_HDR + n - 25 } },
	             iov[3] = { { in, 12 }, { in + 12, 7 }, { in + 19, NIC_MAX_FRAME - 7 } };

	assert_true(p && in);
	memset(p, 0xee, NIC_HDR);
	memset(p + NIC_HDR, (int)k, n);
	assert_int_equal(nic_send(f->nic, 1, out, 3), 0);
	fakenic_arrive(&f->fake, 0, NULL, p + NIC_HDR, n);
	assert_int_equal(nic_recv(f->nic, 0, iov, 3), NIC_HDR + n);
	assert_int_equal(nic_recv(f->nic, 0, iov, 3), -EAGAIN);
	free(p);
	free(in);
}

static void test_file(void **state)
{
	char path[] = "/tmp/kvm-pcap-XXXXXX";
	int fd = mkstemp(path);
	struct fixture *f = setup(path);
	static uint8_t got[70000];
	uint32_t h[6];

	for (unsigned k = 0; k < FRAMES; k++)
		talk(f, k, 60 + k * 100);
	f->fake.refuse = -EINVAL;
	assert_int_equal(nic_send(f->nic, 0, &(struct iovec){ got, 100 }, 1), -EINVAL);
	fakenic_link(&f->fake, false);
	assert_true(f->links == 1 && !f->nic->up);
	teardown(f);
	assert_int_equal(read(fd, h, 24), 24);
	assert_true(h[0] == 0xa1b23c4d && h[1] == (4u << 16 | 2) && h[4] >= NIC_MAX_FRAME && h[5] == 1);
	for (unsigned i = 0; i < 2 * FRAMES; i++) {
		size_t n = 60 + i / 2 * 100;

		assert_int_equal(read(fd, h, 16), 16);
		assert_true(h[0] && h[1] < 1000000000 && h[2] == n && h[3] == n);
		assert_int_equal(read(fd, got, n), n);
		for (size_t j = 0; j < n; j++)
			assert_int_equal(got[j], (uint8_t)(i / 2));
	}
	assert_int_equal(read(fd, got, 1), 0);
	close(fd);
	unlink(path);
}

static void test_no_file(void **state)
{
	struct fakenic fake;
	struct nic *nic;
	struct err err;

	fakenic_init(&fake, 1, 0);
	assert_int_equal(pcap_new(&fake.nic, "/nowhere/file", &nic, &err), -ENOENT);
	assert_string_equal(err.msg, "pcap /nowhere/file: No such file or directory");
	assert_int_equal(pcap_new(&fake.nic, "/dev/full", &nic, &err), -ENOSPC);
	fakenic_exit(&fake);
}

/* A pipe whose reader goes away in the middle. */
static void test_broken_file(void **state)
{
	char dir[] = "/tmp/kvm-pcap-XXXXXX", path[64];
	struct fixture *f;
	int fd;

	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/fifo", dir);
	assert_int_equal(mkfifo(path, 0600), 0);
	fd = open(path, O_RDONLY | O_NONBLOCK);
	f = setup(path);
	talk(f, 1, 100);
	close(fd);
	for (unsigned k = 0; k < 10; k++)
		talk(f, k, 100);
	teardown(f);
	unlink(path);
	rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_file),
		cmocka_unit_test(test_no_file),
		cmocka_unit_test(test_broken_file),
	};

	signal(SIGPIPE, SIG_IGN); /* as main() does */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
