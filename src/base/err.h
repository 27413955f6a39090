/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BASE_ERR_H
#define BASE_ERR_H

/*
 * How a host or user error travels: a function returns -errno and leaves one
 * line of text in the caller's struct err. The line names the thing concerned
 * and, where there is one, the remedy; it has neither prefix nor newline. Only
 * a command prints it, once.
 */
struct err {
	char msg[1024];
};

/* Sets the text; returns @error (a negative errno) so that callers can `return err_set(…)`. */
int err_set(struct err *err, int error, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The same, with ": " and the meaning of -@error appended. */
int err_sys(struct err *err, int error, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
