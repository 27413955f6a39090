// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Both ends of the network's benchmark: streams of TCP in either direction, and single bytes to and fro.
 *
 *	netbench serve ADDRESS              on the host, until it is killed; prints a line for each phase
 *	netbench run ADDRESS SECONDS N      in the guest: N streams in, N out, one of single bytes
 *
 * A connection begins with a letter: s: the server takes what comes; g: it gives; r: it sends each byte back; c: the
 * phases' begin and end are told. Whoever takes counts: at the end the guest tells what it got, and 0 where that
 * was the server. The line is: PHASE BYTES NANOSECONDS CPU-NANOSECONDS, of all of the host's processors.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PORT  5001
#define BLOCK (128u << 10)

static char block[BLOCK];
static atomic_ullong *taken; /* bytes, by all connections of this phase */

static void die(const char *what)
{
	fprintf(stderr, "netbench: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* What all processors have been busy for. */
static uint64_t busy(void)
{
	unsigned long long user, nice, system, idle, wait, irq, softirq;
	FILE *f = fopen("/proc/stat", "r");

	if (!f || fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &wait, &irq,
	                 &softirq) != 7)
		die("/proc/stat");
	fclose(f);
	return (user + nice + system + irq + softirq) * 10000000u;
}

static struct sockaddr_in address(const char *text)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(PORT) };

	if (inet_pton(AF_INET, text, &a.sin_addr) != 1)
		die(text);
	return a;
}

static void no_delay(int fd)
{
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
}

/* The server's side. */

static void phases(int fd)
{
	FILE *f = fdopen(fd, "r+");
	char line[64], name[16];
	unsigned long long told;
	uint64_t at = 0, cpu = 0;

	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "-%15s %llu", name, &told) == 2) {
			printf("%s %llu %llu %llu\n", name, told ? told : atomic_load(taken),
			       (unsigned long long)(now() - at), (unsigned long long)(busy() - cpu));
			fflush(stdout);
		}
		atomic_store(taken, 0);
		at = now();
		cpu = busy();
		fflush(f);
		if (write(fd, "k", 1) != 1)
			return;
	}
}

static void serve_one(int fd)
{
	char letter;
	ssize_t n = read(fd, &letter, 1);

	no_delay(fd);
	if (n != 1)
		return;
	if (letter == 'c') {
		phases(fd);
		return;
	}
	for (;;) {
		if (letter != 'g') {
			n = read(fd, block, letter == 'r' ? 1 : BLOCK);
			if (n <= 0)
				return;
			if (letter == 's')
				atomic_fetch_add(taken, (uint64_t)n);
		}
		if (letter != 's') {
			n = write(fd, block, letter == 'r' ? 1 : BLOCK);
			if (n <= 0)
				return;
		}
	}
}

static void serve(const char *text)
{
	struct sockaddr_in a = address(text);
	int s = socket(AF_INET, SOCK_STREAM, 0);

	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int));
	if (bind(s, (struct sockaddr *)&a, sizeof(a)) || listen(s, 64))
		die("listen");
	for (;;) {
		int fd = accept(s, NULL, NULL);

		if (fd >= 0 && fork() == 0) {
			serve_one(fd);
			_exit(0);
		}
		if (fd >= 0)
			close(fd);
	}
}

/* The guest's side. */

static int start(const struct sockaddr_in *a, char letter)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (connect(fd, (const struct sockaddr *)a, sizeof(*a)) || write(fd, &letter, 1) != 1)
		die("connect");
	no_delay(fd);
	return fd;
}

static void stream(const struct sockaddr_in *a, char letter, uint64_t end)
{
	int fd = start(a, letter);
	ssize_t n = 1;

	while (n > 0 && now() < end) {
		if (letter != 'g')
			n = write(fd, block, letter == 'r' ? 1 : BLOCK);
		if (letter != 's' && n > 0)
			n = read(fd, block, letter == 'r' ? 1 : BLOCK);
		if (letter != 's' && n > 0)
			atomic_fetch_add(taken, (uint64_t)n);
	}
	if (letter == 's') { /* until all has got there */
		shutdown(fd, SHUT_WR);
		n = read(fd, block, 1);
	}
	close(fd);
}

static void tell(int fd, const char *what)
{
	char k;

	if (write(fd, what, strlen(what)) < 0 || read(fd, &k, 1) != 1)
		die("the server");
}

static void phase(const struct sockaddr_in *a, int control, const char *name, char letter, unsigned seconds, unsigned n)
{
	char text[64];

	atomic_store(taken, 0);
	tell(control, "+\n");
	for (unsigned i = 0; i < n; i++)
		if (fork() == 0) {
			stream(a, letter, now() + seconds * 1000000000ull);
			_exit(0);
		}
	while (wait(NULL) > 0)
		;
	snprintf(text, sizeof(text), "-%s %llu\n", name, atomic_load(taken));
	tell(control, text);
}

int main(int argc, char **argv)
{
	signal(SIGPIPE, SIG_IGN);
	taken = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (argc == 3 && !strcmp(argv[1], "serve")) {
		signal(SIGCHLD, SIG_IGN);
		serve(argv[2]);
	} else if (argc == 5 && !strcmp(argv[1], "run")) {
		struct sockaddr_in a = address(argv[2]);
		unsigned seconds = (unsigned)atoi(argv[3]), n = (unsigned)atoi(argv[4]);
		int control = start(&a, 'c');

		phase(&a, control, "out", 's', seconds, n);
		phase(&a, control, "in", 'g', seconds, n);
		phase(&a, control, "rr", 'r', seconds, 1);
		return 0;
	}
	fprintf(stderr, "netbench serve ADDRESS | netbench run ADDRESS SECONDS N\n");
	return 2;
}
