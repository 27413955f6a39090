// SPDX-License-Identifier: GPL-2.0-or-later
#include "cmd/disk.h"

#include "base/opt.h"
#include "block/image.h"
#include "cmd/cmd.h"

#include <errno.h>
#include <getopt.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Like qemu-img's, so that scripts which know that find what they look for. */
#define EXIT_CORRUPT 2
#define EXIT_LEAKS   3

const char disk_help[] =
        "  kvm disk create [-f FORMAT] [-o KEY=VALUE,...] [-b FILE -F FORMAT] IMAGE [SIZE]\n"
        "  kvm disk info [-f FORMAT] [--json] IMAGE\n"
        "  kvm disk check [-f FORMAT] [--repair] [--json] IMAGE\n"
        "  kvm disk convert [-f FORMAT] [-O FORMAT] [-o KEY=VALUE,...] [-c] [-p] IMAGE NEW\n"
        "  kvm disk resize [-f FORMAT] [--shrink] IMAGE [+|-]SIZE\n"
        "  kvm disk snapshot -c NAME|-a NAME|-d NAME|-l IMAGE\n"
        "  kvm disk bench [-f FORMAT] [-c COUNT] [-d DEPTH] [-s SIZE] [-w] [--pattern seq|rand] [--flush-interval N]\n"
        "                 [-t CACHE] [-o OFFSET] [-S STEP] [--queues N] [-q] [--json] IMAGE\n"
        "\n"
        "  -f FORMAT    raw or qcow2: the image's; without it the magic tells, and create makes QCOW2\n"
        "  -O FORMAT    the new image's, qcow2 if it is not given\n"
        "  -o OPTIONS   of a new QCOW2 image: compat=0.10|1.1, cluster_size=SIZE, refcount_bits=N,\n"
        "               lazy_refcounts=on|off, compression_type=zlib|zstd\n"
        "  -b FILE      what is below it; its name counts from the new image's directory\n"
        "  -F FORMAT    that one's\n"
        "  -c           convert: compress; snapshot: create one\n"
        "  -a, -d, -l   snapshot: go back to it, delete it, list them\n"
        "  -p           shows how far it is, also where standard error is no terminal\n"
        "  --repair     makes refcounts right, and clears the mark of an image that is sound then\n"
        "  --shrink     the disk may get shorter; what lies past its end is lost\n"
        "  --json       prints an object\n"
        "\n"
        "bench:\n"
        "  -w           writes, which destroys what is in the image; else it reads\n"
        "  -c COUNT     requests, 75000 if it is not given\n"
        "  -d DEPTH     at a time in each queue, 64\n"
        "  -s SIZE      bytes of each, 4096\n"
        "  -o OFFSET    of the first, 0\n"
        "  -S STEP      from one to the next, SIZE; behind the end of the disk it goes on at the beginning\n"
        "  --pattern P  seq: so; rand: at random multiples of STEP from OFFSET on\n"
        "  --flush-interval N\n"
        "               after N writes waits for all that are on their way, and flushes\n"
        "  -t CACHE     writeback (the default), writethrough, none, unsafe: as in kvm run -d\n"
        "  --queues N   as many threads and queues, 1\n"
        "  -q           prints nothing\n"
        "\n"
        "check ends with 0: sound, 1: could not be checked, 2: corrupt, 3: only space is lost.\n";

static const struct option longs[] = {
	{ "json", no_argument, NULL, 'j' },
	{ "repair", no_argument, NULL, 'r' },
	{ "shrink", no_argument, NULL, 'k' },
	{ "pattern", required_argument, NULL, 'P' },
	{ "flush-interval", required_argument, NULL, 'I' },
	{ "queues", required_argument, NULL, 'Q' },
	{ 0 },
};

/* Values of options. */

int disk_take_format(const char *s, enum blk_format *out)
{
	if (!s)
		return 0;
	if (!strcmp(s, "raw"))
		*out = BLK_RAW;
	else if (!strcmp(s, "qcow2"))
		*out = BLK_QCOW2;
	else
		return cmd_usage("disk", "'%s' is not a format: raw, qcow2", s);
	return 0;
}

/* The exponent of the power of two @v, or 99. */
static unsigned log2_of(uint64_t v)
{
	return v && !(v & (v - 1)) ? (unsigned)__builtin_ctzll(v) : 99;
}

static int take_key(char *key, char *value, struct qcow2_create *q)
{
	struct err err;
	uint64_t n = 0;

	if (!strcmp(key, "cluster_size") || !strcmp(key, "refcount_bits")) {
		if (opt_size(key, value, 1, &n, &err))
			return cmd_usage("disk", "%s", err.msg);
		*(key[0] == 'c' ? &q->cluster_bits : &q->refcount_order) = log2_of(n);
	} else if (!strcmp(key, "compat") && (!strcmp(value, "0.10") || !strcmp(value, "v2"))) {
		q->version = 2;
	} else if (!strcmp(key, "compat") && (!strcmp(value, "1.1") || !strcmp(value, "v3"))) {
		q->version = 3;
	} else if (!strcmp(key, "lazy_refcounts") && (!strcmp(value, "on") || !strcmp(value, "off"))) {
		q->lazy_refcounts = value[1] == 'n';
	} else if (!strcmp(key, "compression_type") && (!strcmp(value, "zlib") || !strcmp(value, "zstd"))) {
		q->compression = value[1] == 's' ? QCOW2_ZSTD : QCOW2_ZLIB;
	} else {
		return cmd_usage("disk", "-o %s=%s: no such option, or not its value", key, value);
	}
	return 0;
}

/* -o KEY=VALUE,... */
static int take_keys(const char *s, struct qcow2_create *q)
{
	char text[256], *save, *key;
	int status = 0;

	if (!s)
		return 0;
	if (snprintf(text, sizeof(text), "%s", s) >= (int)sizeof(text))
		return cmd_usage("disk", "-o: too long");
	for (key = strtok_r(text, ",", &save); key && !status; key = strtok_r(NULL, ",", &save)) {
		char *value = strchr(key, '=');

		if (!value)
			return cmd_usage("disk", "-o %s: has no value", key);
		*value++ = 0;
		status = take_key(key, value, q);
	}
	return status;
}

/* The new image of create and convert; @format is the option that names its format. */
static int take_new(const struct cmd_options *o, char format, struct image_create *c)
{
	int status;

	*c = (struct image_create){ .format = BLK_QCOW2, .size = UINT64_MAX, .qcow2 = qcow2_create_default };
	status = disk_take_format(o->value[(int)format], &c->format);
	if (!status)
		status = take_keys(o->value['o'], &c->qcow2);
	if (!status && c->format == BLK_RAW && (o->given['o'] || o->given['b'] || o->given['c']))
		status = cmd_usage("disk", "-o, -b and -c are for QCOW2 images");
	return status;
}

static int end(int error, const struct err *err)
{
	return error ? cmd_fail(err) : 0;
}

/* Commands. */

static int disk_create(struct cmd_options *o)
{
	struct image_create c;
	struct err err;
	int status = take_new(o, 'f', &c);

	if (status)
		return status;
	if (o->given['b'] != o->given['F'])
		return cmd_usage("disk", "-b and -F go together: whose format is guessed could be made to lie");
	if (o->nargs < 2 && !o->given['b'])
		return cmd_usage("disk", "how large shall it be?");
	c.qcow2.backing = o->value['b'];
	c.qcow2.backing_format = o->value['F'];
	if (o->value['F'] && strcmp(o->value['F'], "raw") && strcmp(o->value['F'], "qcow2"))
		return cmd_usage("disk", "-F: '%s' is not a format: raw, qcow2", o->value['F']);
	if (o->nargs == 2 && opt_size("SIZE", o->args[1], 1, &c.size, &err))
		return cmd_usage("disk", "%s", err.msg);
	return end(image_create(o->args[0], &c, &err), &err);
}

static void add_int(struct json_object *o, const char *key, uint64_t v)
{
	json_object_object_add(o, key, json_object_new_int64((int64_t)v));
}

static void add_string(struct json_object *o, const char *key, const char *v)
{
	json_object_object_add(o, key, json_object_new_string(v));
}

static struct json_object *snapshots_json(const struct image_info *i)
{
	struct json_object *list = json_object_new_array();

	for (uint32_t k = 0; k < i->nsnapshots; k++) {
		struct json_object *s = json_object_new_object();

		add_string(s, "id", i->snapshots[k].id);
		add_string(s, "name", i->snapshots[k].name);
		add_int(s, "vm-state-size", i->snapshots[k].vm_state);
		add_int(s, "date-sec", i->snapshots[k].seconds);
		json_object_array_add(list, s);
	}
	return list;
}

static struct json_object *info_json(const char *path, const struct image_info *i)
{
	struct json_object *o = json_object_new_object();
	const struct qcow2_header *h = &i->header;

	add_string(o, "filename", path);
	add_string(o, "format", i->format);
	add_int(o, "virtual-size", i->size);
	add_int(o, "actual-size", i->allocated);
	if (!h->version)
		return o;
	add_string(o, "compat", h->version == 2 ? "0.10" : "1.1");
	add_int(o, "cluster-size", qcow2_cluster_size(h));
	add_int(o, "refcount-bits", 1ull << h->refcount_order);
	add_string(o, "compression-type", h->compression == QCOW2_ZSTD ? "zstd" : "zlib");
	json_object_object_add(o, "lazy-refcounts", json_object_new_boolean(h->compatible & QCOW2_LAZY_REFCOUNTS));
	json_object_object_add(o, "dirty-flag", json_object_new_boolean(h->incompatible & QCOW2_DIRTY));
	json_object_object_add(o, "corrupt", json_object_new_boolean(h->incompatible & QCOW2_CORRUPT));
	if (h->backing[0]) {
		add_string(o, "backing-filename", h->backing);
		add_string(o, "backing-filename-format", h->backing_format);
	}
	json_object_object_add(o, "snapshots", snapshots_json(i));
	return o;
}

/* Objects as lines of "key: value"; what is in an image must not drive our terminal. */
static void print_lines(struct json_object *o)
{
	json_object_object_foreach(o, key, value)
	{
		if (json_object_is_type(value, json_type_array))
			continue;
		printf("%s: ", key);
		for (const char *s = json_object_get_string(value); *s; s++)
			putchar((unsigned char)*s < ' ' || *s == 127 ? '?' : *s);
		putchar('\n');
	}
}

void disk_print_object(struct json_object *o, bool json)
{
	if (json)
		printf("%s\n",
		       json_object_to_json_string_ext(o, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_NOSLASHESCAPE));
	else
		print_lines(o);
	json_object_put(o);
}

static void print_snapshots(const struct image_info *i)
{
	for (uint32_t k = 0; k < i->nsnapshots; k++) {
		time_t t = (time_t)i->snapshots[k].seconds;
		char when[32] = "";
		struct tm tm;

		if (localtime_r(&t, &tm))
			strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &tm);
		printf("%-8s %s  ", i->snapshots[k].id, when);
		for (const char *s = i->snapshots[k].name; *s; s++)
			putchar((unsigned char)*s < ' ' || *s == 127 ? '?' : *s);
		putchar('\n');
	}
}

static int disk_info(struct cmd_options *o)
{
	enum blk_format format = BLK_GUESS;
	struct image_info info;
	struct err err;
	int status = disk_take_format(o->value['f'], &format);

	if (status)
		return status;
	if (image_info(o->args[0], format, &info, &err))
		return cmd_fail(&err);
	disk_print_object(info_json(o->args[0], &info), o->given['j']);
	if (!o->given['j'])
		print_snapshots(&info);
	image_info_free(&info);
	return 0;
}

static int disk_check(struct cmd_options *o)
{
	enum blk_format format = BLK_GUESS;
	struct qcow2_check r;
	struct json_object *j;
	struct err err;
	int status = disk_take_format(o->value['f'], &format);

	if (status)
		return status;
	if (image_check(o->args[0], format, o->given['r'], &r, &err))
		return cmd_fail(&err);
	j = json_object_new_object();
	add_string(j, "filename", o->args[0]);
	add_int(j, "corruptions", r.corruptions);
	add_int(j, "leaks", r.leaks);
	add_int(j, "fixed", r.fixed);
	add_int(j, "total-clusters", r.clusters);
	add_int(j, "allocated-clusters", r.allocated);
	add_int(j, "compressed-clusters", r.compressed);
	add_int(j, "image-end-offset", r.end);
	disk_print_object(j, o->given['j']);
	if (o->given['r']) /* what is left */
		return r.bad ? EXIT_CORRUPT : 0;
	return r.corruptions ? EXIT_CORRUPT : r.leaks ? EXIT_LEAKS : 0;
}

static void progress(uint64_t done, uint64_t all)
{
	static int last = -1; /* per mille */
	int now = all ? (int)(done / (all / 1000 + 1)) : 1000;

	if (done == all)
		now = 1000;
	if (now != last)
		fprintf(stderr, "\r    (%d.%d/100%%)%s", now / 10, now % 10, now == 1000 ? "\n" : "");
	last = now;
}

static int disk_convert(struct cmd_options *o)
{
	struct image_convert c = { .from = o->args[0], .to = o->args[1], .compress = o->given['c'] };
	struct err err;
	int status = take_new(o, 'O', &c.create);

	if (!status)
		status = disk_take_format(o->value['f'], &c.from_format);
	if (status)
		return status;
	if (o->given['p'] || isatty(STDERR_FILENO))
		c.progress = progress;
	return end(image_convert(&c, &err), &err);
}

/* [+|-]SIZE; with a sign it counts from what the disk has. */
static int new_size(const char *path, enum blk_format format, const char *s, uint64_t *size, struct err *err)
{
	struct image_info info;
	char sign = *s == '+' || *s == '-' ? *s : 0;
	int error = opt_size("SIZE", s + !!sign, 1, size, err);

	if (error || !sign)
		return error;
	error = image_info(path, format, &info, err);
	if (error)
		return error;
	if (sign == '+' ? __builtin_add_overflow(info.size, *size, size) : *size > info.size)
		error = err_set(err, -ERANGE, "%s: %s is not possible", path, s);
	else if (sign == '-')
		*size = info.size - *size;
	image_info_free(&info);
	return error;
}

static int disk_resize(struct cmd_options *o)
{
	enum blk_format format = BLK_GUESS;
	uint64_t size;
	struct err err;
	int status = disk_take_format(o->value['f'], &format), error;

	if (status)
		return status;
	error = new_size(o->args[0], format, o->args[1], &size, &err);
	if (!error)
		error = image_resize(o->args[0], format, size, o->given['k'], &err);
	return end(error, &err);
}

static int disk_snapshot(struct cmd_options *o)
{
	struct image_info info;
	struct err err;

	if (o->given['c'] + o->given['a'] + o->given['d'] + o->given['l'] != 1)
		return cmd_usage("disk", "one of -c, -a, -d and -l");
	if (o->given['c'])
		return end(image_snapshot(o->args[0], IMAGE_SNAPSHOT_CREATE, o->value['c'], &err), &err);
	if (o->given['a'])
		return end(image_snapshot(o->args[0], IMAGE_SNAPSHOT_APPLY, o->value['a'], &err), &err);
	if (o->given['d'])
		return end(image_snapshot(o->args[0], IMAGE_SNAPSHOT_DELETE, o->value['d'], &err), &err);
	if (image_info(o->args[0], BLK_QCOW2, &info, &err))
		return cmd_fail(&err);
	print_snapshots(&info);
	image_info_free(&info);
	return 0;
}

struct disk_command {
	const char *name, *shorts, *longs; /* longs: the letters of those that it takes */
	int min_args, max_args;
	int (*run)(struct cmd_options *o);
};

static const struct disk_command disk_commands[] = {
	{ "create", "f:o:b:F:", "", 1, 2, disk_create },
	{ "info", "f:", "j", 1, 1, disk_info },
	{ "check", "f:", "jr", 1, 1, disk_check },
	{ "convert", "f:O:o:cp", "", 2, 2, disk_convert },
	{ "resize", "f:", "k", 2, 2, disk_resize },
	{ "snapshot", "c:a:d:l", "", 1, 1, disk_snapshot },
	{ "bench", "f:c:d:s:wt:o:S:q", "jPIQ", 1, 1, disk_bench },
	{ NULL, NULL, NULL, 0, 0, NULL },
};

static int run(const struct disk_command *c, int argc, char **argv)
{
	struct cmd_options o = {
		.shorts = c->shorts, .options = longs, .min_args = c->min_args, .max_args = c->max_args
	};
	int status;

	argv[0] = "disk"; /* whose help is meant */
	status = cmd_parse(argc, argv, &o);
	if (status)
		return status < 0 ? 0 : status;
	for (const struct option *l = longs; l->name; l++)
		if (o.given[l->val] && !strchr(c->longs, l->val))
			return cmd_usage("disk", "%s takes no --%s", c->name, l->name);
	return c->run(&o);
}

int cmd_disk(int argc, char **argv)
{
	if (argc < 2)
		return cmd_usage("disk", "do what?");
	for (const struct disk_command *c = disk_commands; c->name; c++)
		if (!strcmp(c->name, argv[1]))
			return run(c, argc - 1, argv + 1);
	if (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help"))
		return cmd_help(2, (char *[]){ "help", "disk", NULL });
	return cmd_usage("disk", "cannot '%s'", argv[1]);
}
