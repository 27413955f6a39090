// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/fault.h"

#include "base/container_of.h"
#include "block/block_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * How it works
 *
 * Each rule counts the operations that it is about; so the faults of one rule
 * do not shift those of another. A job that is to be late waits on a timer of
 * its queue's loop.
 */

enum { MAX_RULES = 16 };
enum what { EIO_, ENOSPC_, SHORT, SLOW };
enum which { ALL, READS, WRITES, FLUSHES };

struct rule {
	enum what what;
	enum which which;
	unsigned n;
	bool on; /* and all after it */
	unsigned ms;
	atomic_uint seen;
};

struct fault {
	unsigned nrules;
	struct rule rule[MAX_RULES];
};

static enum which which_of(const struct blk_job *j)
{
	return j->kind == JOB_READ ? READS : j->kind == JOB_SYNC ? FLUSHES : WRITES;
}

/* Does it happen to this one? */
static bool hits(struct rule *r, const struct blk_job *j)
{
	unsigned n;

	if (r->which != ALL && r->which != which_of(j))
		return false;
	n = atomic_fetch_add(&r->seen, 1) + 1;
	return n == r->n || (r->on && n > r->n);
}

struct late {
	struct loop_timer timer;
	struct engine_queue *q;
	struct blk_job *job;
	int error;
};

static void on_time(struct loop_timer *t)
{
	struct late *l = container_of(t, struct late, timer);

	if (l->error)
		l->job->done(l->job, l->error);
	else
		engine_start(l->q, l->job);
	free(l);
}

static int start_late(struct engine_queue *q, struct blk_job *j, int error, unsigned ms)
{
	struct late *l = calloc(1, sizeof(*l));

	if (!l)
		return -ENOMEM;
	*l = (struct late){ .timer.cb = on_time, .q = q, .job = j, .error = error };
	loop_timer_set(engine_queue_blk(q)->loop, &l->timer, ms * 1000000ull);
	return 0;
}

void fault_start(struct fault *f, struct engine_queue *q, struct blk_job *j)
{
	unsigned ms = 0;
	int error = 0;

	for (unsigned i = 0; i < f->nrules; i++) {
		struct rule *r = &f->rule[i];

		if (!hits(r, j))
			continue;
		switch (r->what) {
		case EIO_: error = -EIO; break;
		case ENOSPC_: error = -ENOSPC; break;
		case SHORT: j->flags |= JOB_CUT; break;
		case SLOW: ms = r->ms; break;
		}
	}
	if (ms) {
		error = start_late(q, j, error, ms);
		if (!error)
			return;
	}
	if (error)
		j->done(j, error);
	else
		engine_start(q, j);
}

/* Specifications. */

static int wrong(const char *spec, struct err *err)
{
	return err_set(
	        err, -EINVAL,
	        "%s: a fault is eio, enospc, short or slow @N, then + for all from there on, :read, :write or :flush, "
	        "=MS for slow",
	        spec);
}

/* The index of the word that *@s begins with, moved past it; or -1. */
static int take_word(char **s, const char *const *words)
{
	for (int i = 0; words[i]; i++) {
		size_t n = strlen(words[i]);

		if (!strncmp(*s, words[i], n)) {
			*s += n;
			return i;
		}
	}
	return -1;
}

static bool take_number(char **s, unsigned *n)
{
	char *end;
	unsigned long v;

	if (**s < '0' || **s > '9')
		return false;
	v = strtoul(*s, &end, 10);
	*s = end;
	*n = (unsigned)v;
	return v && v <= 1000000000;
}

static bool parse_rule(char *s, struct rule *r)
{
	static const char *const kinds[] = { "eio@", "enospc@", "short@", "slow@", NULL };
	static const char *const ops[] = { ":read", ":write", ":flush", NULL };
	int kind = take_word(&s, kinds), op;

	if (kind < 0 || !take_number(&s, &r->n))
		return false;
	r->what = (enum what)kind;
	r->ms = 5;
	r->on = *s == '+';
	s += r->on;
	op = take_word(&s, ops);
	r->which = (enum which)(op + 1);
	if (r->what == SLOW && *s == '=') {
		s++;
		if (!take_number(&s, &r->ms))
			return false;
	}
	return !*s;
}

static bool parse(char *spec, struct fault *f)
{
	char *one;

	while ((one = strsep(&spec, ",")))
		if (f->nrules == MAX_RULES || !parse_rule(one, &f->rule[f->nrules++]))
			return false;
	return true;
}

int fault_new(const char *spec, struct fault **out, struct err *err)
{
	struct fault *f = calloc(1, sizeof(*f));
	char *copy = strdup(spec);
	bool memory = f && copy, ok = memory && parse(copy, f);

	free(copy);
	if (ok) {
		*out = f;
		return 0;
	}
	free(f);
	return memory ? wrong(spec, err) : err_set(err, -ENOMEM, "out of memory");
}

void fault_free(struct fault *f)
{
	free(f);
}
