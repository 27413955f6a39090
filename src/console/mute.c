// SPDX-License-Identifier: GPL-2.0-or-later
#include "console/mute.h"

#include "base/container_of.h"
#include "base/log.h"
#include "console/con_impl.h"

#include <errno.h>
#include <stdlib.h>

/* Bytes come one by one from a UART: the log file gets whole lines. */
struct mute {
	struct con con;
	pthread_mutex_t lock; /* a leaf */
	size_t len;           /* [m] */
	uint8_t line[512];    /* [m] */
};

static void mute_attached(struct con *con)
{
}

static void mute_send(struct con *con, const uint8_t *buf, size_t n)
{
	struct mute *m = container_of(con, struct mute, con);

	pthread_mutex_lock(&m->lock);
	for (size_t i = 0; i < n; i++) {
		m->line[m->len++] = buf[i];
		if (buf[i] != '\n' && m->len < sizeof(m->line))
			continue;
		log_raw(m->line, m->len);
		m->len = 0;
	}
	pthread_mutex_unlock(&m->lock);
}

static size_t mute_space(struct con *con, size_t want)
{
	return want;
}

static void mute_more(struct con *con)
{
}

int mute_new(struct con **out, struct err *err)
{
	static const struct con_ops ops = { mute_attached, mute_send, mute_space, mute_more };
	struct mute *m = calloc(1, sizeof(*m));

	if (!m || con_init(&m->con, &ops) < 0) {
		free(m);
		return err_set(err, -ENOMEM, "out of memory");
	}
	pthread_mutex_init(&m->lock, NULL);
	*out = &m->con;
	return 0;
}

void mute_free(struct con *con)
{
	struct mute *m = container_of(con, struct mute, con);

	if (!con)
		return;
	log_raw(m->line, m->len);
	pthread_mutex_destroy(&m->lock);
	con_destroy(con);
	free(m);
}
