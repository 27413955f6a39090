/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef BASE_CONTAINER_OF_H
#define BASE_CONTAINER_OF_H

#include <stddef.h>

/* The struct @type whose member @member @p points to. */
#define container_of(p, type, member) ((type *)((char *)(p)-offsetof(type, member)))

#endif
