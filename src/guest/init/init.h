/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef GUEST_INIT_INIT_H
#define GUEST_INIT_INIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct plan;
struct order_mount;

/* The initramfs keeps what is ours in one folder. */
#define ORDERS_FILE "/kvm/orders"
#define NEW_ROOT    "/kvm/root"
#define RUN_DIR     "/run/kvm"

/* say.c: every message is a line "kvm-init: …" on the console and in the kernel log. */

/* Makes /dev/console descriptors 0, 1 and 2 (/dev/null where there is none); again when it may have changed. */
void console_open(void);

/* Waits, for a second, for the console hvcN that @cmdline asks for: its driver has only just been loaded. */
void console_wait(const char *cmdline);
void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Waits until the console has taken all that was written to it. */
void console_drain(void);

/* util.c */

/* Reads at most @len - 1 bytes of a file and ends them with a NUL. Returns the count or -errno. */
ssize_t read_file(const char *path, char *buf, size_t len);

/* Returns a NUL-terminated copy of a whole file for the caller to free, or NULL with errno. */
char *slurp(const char *path);
int write_file(const char *path, const char *text); /* 0 or -errno */
void mkdir_parents(const char *path);               /* the path itself too; errors show when it is used */
int64_t now_ms(void);                               /* CLOCK_MONOTONIC */

/* modules.c: loads the plan's modules in order; what does not load is reported, and the rest goes on. */
void modules_load(const struct plan *p);

/* uevent.c: the kernel's news about devices. A socket opened before one looks misses nothing after. */
int uevent_open(void); /* -1: none (no CONFIG_NET), and uevent_wait() then looks again ten times a second */
void uevent_close(int fd);

/* Sleeps until something happened to a device: true; false when @deadline (now_ms(); -1: never) has passed. */
bool uevent_wait(int fd, int64_t deadline);

/* mount.c */
void mount_basics(void); /* /proc /sys /dev /dev/pts /dev/shm /run */

/*
 * Mounts @m->source on @dir with @flags (MS_…) and its own options, waiting at
 * most @wait_ms (-1: for ever) for the source to appear. Returns 0, or -errno
 * after saying what is wrong and what to do about it.
 */
int mount_source(const struct order_mount *m, const char *dir, unsigned long flags, int64_t wait_ms);

/* The plan's extra mounts, in the root where the guest will find them. Returns 0 or the first -errno. */
int mount_extra(const struct plan *p);

/* Unmounts what can be, and makes read-only what stays. */
void unmount_all(void);

/* net.c: loopback and the plan's addresses; complaints only. net_resolver() wants to run in the final root. */
void net_setup(const struct plan *p);
void net_resolver(const struct plan *p);

/* root.c */
int root_mount(const struct plan *p);    /* on NEW_ROOT. Returns 0 or -errno, said */
int root_switch(void);                   /* makes NEW_ROOT the root and empties the initramfs. 0 or -errno, said */
void root_exec(char *init, char **argv); /* becomes the real init; returns only when there is none, said */

/*
 * getty.c: systemd opens a serial line for logins when udev has announced it. In a root without udev (a container's)
 * nobody ever would, so there, for this boot, the console gets its login as systemd has it in containers.
 */
void getty_without_udev(void);

/* run.c: runs @argv (@argv[0] looked up in PATH) on the console until it ends. */
enum run_end { RUN_ENDED, RUN_POWEROFF, RUN_REBOOT };

/*
 * @shell: SIGTERM means "reboot", as busybox sends it; otherwise it is passed
 * on. *@status is the exit status, 128 + n for a signal.
 */
enum run_end run_command(char **argv, bool shell, int *status);

/* end.c */
void end_processes(void); /* TERM, then KILL, to everything but us; returns when all are gone or 4 s have passed */
void report_oops(void);   /* says so if this kernel has oopsed */
void machine_end(bool reboot) __attribute__((noreturn)); /* sync, unmount, power off */

#endif
