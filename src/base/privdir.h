/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BASE_PRIVDIR_H
#define BASE_PRIVDIR_H

#include "base/err.h"

#include <stdbool.h>

/*
 * A directory that only we may enter, mode 0700. Returns a descriptor, or an
 * error where it is somebody else's, open to others, a symbolic link or not
 * there. @make makes it first. @var is the environment variable that moves it.
 */
int privdir_open(const char *path, bool make, const char *var, struct err *err);

/*
 * The value of an environment variable that names a directory of ours; else
 * NULL. One that a `sudo -E` brought along is not ours, and not meant.
 */
const char *privdir_env(const char *var);

#endif
