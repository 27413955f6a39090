/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Messages of the program itself. Every line goes to stderr as "kvm: …", in
 * one write(2), and to the file of --log when there is one. Any thread.
 */
void log_line(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The same, only with -v. */
void log_verbose(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Before other threads start. */
void log_set_verbose(bool on);

/* While the terminal is raw a line needs "\r\n". Any thread, also a signal handler. */
void log_set_raw(bool on);

/* The console of a guest: to the log file alone, as it is. Any thread. */
void log_raw(const void *buf, size_t n);

/* Appends every line to the file @path too. Returns 0 or -errno. Before other threads start. */
int log_open(const char *path);

/*
 * The guest did something no correct driver does; @name is the device. Only
 * the first ten are told, so that a hostile guest cannot fill a disk; the VM
 * lives on. Any thread.
 */
void guest_bug(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
