// SPDX-License-Identifier: GPL-2.0-or-later
#include "base/opt.h"
#include "block/bench.h"
#include "cmd/cmd.h"
#include "cmd/disk.h"

#include <json-c/json.h>
#include <stdio.h>
#include <string.h>

#define COUNT    75000u
#define DEPTH    64u
#define SIZE     4096u
#define MAX_SIZE (1ull << 30)

/* A size, if the option was given. */
static int take_size(const struct cmd_options *o, char letter, uint64_t max, uint64_t *out)
{
	char name[] = { '-', letter, 0 };
	const char *s = o->value[(int)letter];
	struct err err;

	if (!s)
		return 0;
	if (opt_size(name, s, 1, out, &err))
		return cmd_usage("disk", "%s", err.msg);
	if (*out > max)
		return cmd_usage("disk", "%s: '%s' is too large", name, s);
	return 0;
}

static int take_number(const struct cmd_options *o, char letter, const char *name, unsigned max, unsigned *out)
{
	const char *s = o->value[(int)letter];
	struct err err;

	return s && opt_uint(name, s, 1, max, out, &err) ? cmd_usage("disk", "%s", err.msg) : 0;
}

static int take_cache(const char *s, enum blk_cache *out)
{
	static const struct {
		const char *name;
		enum blk_cache cache;
	} words[] = { { "writeback", BLK_WRITEBACK },
		      { "writethrough", BLK_WRITETHROUGH },
		      { "none", BLK_DIRECT },
		      { "unsafe", BLK_UNSAFE } };

	for (unsigned i = 0; s && i < sizeof(words) / sizeof(words[0]); i++)
		if (!strcmp(words[i].name, s)) {
			*out = words[i].cache;
			return 0;
		}
	return s ? cmd_usage("disk", "-t: '%s' is not one of writeback, writethrough, none, unsafe", s) : 0;
}

static int take_pattern(const char *s, bool *random)
{
	if (s && strcmp(s, "seq") && strcmp(s, "rand"))
		return cmd_usage("disk", "--pattern: '%s' is neither seq nor rand", s);
	*random = s && s[0] == 'r';
	return 0;
}

static int take_options(const struct cmd_options *o, struct bench *b, struct blk_options *opt)
{
	unsigned count = COUNT, interval = 0;
	int status = disk_take_format(o->value['f'], &opt->format);

	*b = (struct bench){ .queues = 1, .depth = DEPTH, .size = SIZE, .write = o->given['w'] };
	if (!status)
		status = take_cache(o->value['t'], &opt->cache);
	if (!status)
		status = take_pattern(o->value['P'], &b->random);
	if (!status)
		status = take_number(o, 'c', "-c", UINT32_MAX, &count);
	if (!status)
		status = take_number(o, 'd', "-d", BENCH_MAX_DEPTH, &b->depth);
	if (!status)
		status = take_number(o, 'Q', "--queues", BENCH_MAX_QUEUES, &b->queues);
	if (!status)
		status = take_number(o, 'I', "--flush-interval", UINT32_MAX, &interval);
	if (!status)
		status = take_size(o, 's', MAX_SIZE, &b->size);
	b->step = b->size;
	if (!status)
		status = take_size(o, 'S', INT64_MAX, &b->step);
	if (!status)
		status = take_size(o, 'o', INT64_MAX, &b->off);
	b->count = count;
	b->flush_interval = interval;
	if (!status && (!b->size || !b->step))
		status = cmd_usage("disk", "-s and -S: 0 bytes are none");
	if (!status && interval && !b->write)
		status = cmd_usage("disk", "--flush-interval is for writes: -w");
	return status;
}

static void add_number(struct json_object *o, const char *key, double v)
{
	char text[32];

	snprintf(text, sizeof(text), "%.3f", v);
	json_object_object_add(o, key, json_object_new_double_s(v, text));
}

static void print(const struct bench *b, const struct bench_result *r, bool json)
{
	struct json_object *o = json_object_new_object();
	double n = (double)b->count, s = r->ns ? (double)r->ns / 1e9 : 1e-9;

	json_object_object_add(o, "requests", json_object_new_int64((int64_t)b->count));
	json_object_object_add(o, "flushes", json_object_new_int64((int64_t)r->flushes));
	add_number(o, "seconds", s);
	add_number(o, "MB/s", n * (double)b->size / 1e6 / s);
	add_number(o, "IOPS", n / s);
	add_number(o, "CPU-us-per-request", (double)r->cpu_ns / 1e3 / n);
	disk_print_object(o, json);
}

int disk_bench(struct cmd_options *o)
{
	struct blk_options opt = { .read_only = !o->given['w'] };
	struct bench_result r;
	struct bench b;
	struct blk *image;
	struct err err;
	int status = take_options(o, &b, &opt), error;

	if (status)
		return status;
	if (blk_open(o->args[0], &opt, &image, &err))
		return cmd_fail(&err);
	error = bench_run(image, &b, &r, &err);
	blk_close(image);
	if (error)
		return cmd_fail(&err);
	if (!o->given['q'])
		print(&b, &r, o->given['j']);
	return 0;
}
