// SPDX-License-Identifier: GPL-2.0-or-later
#include "net/frames.h"

#include "base/evt.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

/*
 * How it works
 *
 * A ring of bytes. A frame is its length and its bytes in one piece; where it
 * does not fit before the end, a length of 0 says that the next one is at the
 * beginning. Bytes are copied without the lock: what lies between @tail and
 * @head belongs to the reader, the rest to the writer. An empty ring begins at
 * its beginning again, so that little traffic uses little memory.
 */
struct frames {
	uint8_t *buf; /* [c] */
	size_t size;  /* [c] */
	int fd;       /* [c] the reader's */
	pthread_mutex_t lock;
	size_t head, tail; /* [m] where the next is written, read; head == tail: empty */
	size_t used;       /* [m] bytes */
	bool reader_waits; /* [m] it has found nothing */
	int writer_waits;  /* [m] its eventfd, -1: it does not */
};

#define LEN_BYTES sizeof(uint32_t)

int frames_new(size_t bytes, struct frames **out, struct err *err)
{
	struct frames *f = calloc(1, sizeof(*f));
	int error = 0;

	if (!f)
		return err_set(err, -ENOMEM, "out of memory");
	*f = (struct frames){ .size = bytes, .reader_waits = true, .writer_waits = -1 };
	pthread_mutex_init(&f->lock, NULL);
	f->buf = malloc(bytes);
	f->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (!f->buf)
		error = err_set(err, -ENOMEM, "out of memory");
	else if (f->fd < 0)
		error = err_sys(err, -errno, "eventfd");
	if (error)
		frames_free(f);
	else
		*out = f;
	return error;
}

void frames_free(struct frames *f)
{
	if (!f)
		return;
	if (f->fd >= 0)
		close(f->fd);
	free(f->buf);
	pthread_mutex_destroy(&f->lock);
	free(f);
}

int frames_reader_fd(const struct frames *f)
{
	return f->fd;
}

/* Under the lock: a place for @need bytes in one piece, moving @head there if it is not there; false: none. */
static bool find_place(struct frames *f, size_t need)
{
	if (!f->used)
		f->head = f->tail = 0;
	if (f->head >= f->tail) {
		if (need + LEN_BYTES <= f->size - f->head) /* behind it there is always room for a length of 0 */
			return true;
		if (need >= f->tail) /* never so that head meets tail */
			return false;
		memset(f->buf + f->head, 0, LEN_BYTES);
		f->used += f->size - f->head;
		f->head = 0;
		return true;
	}
	return need < f->tail - f->head;
}

static void copy_in(uint8_t *to, const struct iovec *iov, unsigned niov, size_t skip)
{
	for (unsigned i = 0; i < niov; i++) {
		size_t cut = skip < iov[i].iov_len ? skip : iov[i].iov_len, n = iov[i].iov_len - cut;

		if (n)
			memcpy(to, (const uint8_t *)iov[i].iov_base + cut, n);
		to += n;
		skip -= cut;
	}
}

static size_t record_len(size_t len)
{
	return (LEN_BYTES + len + LEN_BYTES - 1) & ~(LEN_BYTES - 1);
}

bool frames_put(struct frames *f, const struct iovec *iov, unsigned niov, size_t skip, int fd)
{
	uint32_t len = 0;
	bool room, wake;

	for (unsigned i = 0; i < niov; i++)
		len += (uint32_t)iov[i].iov_len;
	assert(len > skip);
	len -= (uint32_t)skip;
	pthread_mutex_lock(&f->lock);
	room = find_place(f, record_len(len));
	if (!room)
		f->writer_waits = fd;
	pthread_mutex_unlock(&f->lock);
	if (!room)
		return false;
	memcpy(f->buf + f->head, &len, LEN_BYTES);
	copy_in(f->buf + f->head + LEN_BYTES, iov, niov, skip);
	pthread_mutex_lock(&f->lock);
	f->head += record_len(len);
	f->used += record_len(len);
	wake = f->reader_waits;
	f->reader_waits = false;
	pthread_mutex_unlock(&f->lock);
	if (wake)
		evt_signal(f->fd);
	return true;
}

bool frames_crowded(struct frames *f, int fd)
{
	bool crowded;

	pthread_mutex_lock(&f->lock);
	crowded = f->used > f->size / 2;
	if (crowded)
		f->writer_waits = fd;
	pthread_mutex_unlock(&f->lock);
	return crowded;
}

/* Under the lock; 0 also where nothing is. */
static uint32_t len_at_tail(const struct frames *f)
{
	uint32_t len = 0;

	if (f->used)
		memcpy(&len, f->buf + f->tail, LEN_BYTES);
	return len;
}

size_t frames_peek(struct frames *f, const uint8_t **p)
{
	uint32_t len;

	pthread_mutex_lock(&f->lock);
	len = len_at_tail(f);
	if (f->used && !len) { /* the next one is at the beginning, or will be when it is written */
		f->used -= f->size - f->tail;
		f->tail = 0;
		len = len_at_tail(f);
	}
	f->reader_waits = !f->used;
	*p = f->buf + f->tail + LEN_BYTES;
	pthread_mutex_unlock(&f->lock);
	return len;
}

void frames_drop(struct frames *f)
{
	uint32_t len;
	int wake = -1;

	pthread_mutex_lock(&f->lock);
	memcpy(&len, f->buf + f->tail, LEN_BYTES);
	f->tail += record_len(len);
	f->used -= record_len(len);
	if (f->used <= f->size / 2) {
		wake = f->writer_waits;
		f->writer_waits = -1;
	}
	pthread_mutex_unlock(&f->lock);
	if (wake >= 0)
		evt_signal(wake);
}
