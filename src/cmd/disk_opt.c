// SPDX-License-Identifier: GPL-2.0-or-later
#include "cmd/disk_opt.h"

#include "base/err.h"
#include "base/opt.h"
#include "cmd/cmd.h"

#include <stdlib.h>
#include <string.h>

#define MAX_QUEUES 16

/* One word out of a table. */
struct word {
	const char *name;
	int val;
};

static int take_word(const char *opt, const char *val, const struct word *table, int *out)
{
	char all[128] = "";

	for (const struct word *w = table; w->name; w++) {
		if (!strcmp(w->name, val)) {
			*out = w->val;
			return 0;
		}
		strncat(all, all[0] ? ", " : "", sizeof(all) - strlen(all) - 1);
		strncat(all, w->name, sizeof(all) - strlen(all) - 1);
	}
	return cmd_usage("run", "-d: %s=%s: %s", opt, val, all);
}

static int take_number(const char *opt, const char *val, unsigned min, unsigned max, unsigned *out)
{
	struct err err;

	return opt_uint(opt, val, min, max, out, &err) ? cmd_usage("run", "-d: %s", err.msg) : 0;
}

static int take_format(struct disk *d, const char *val)
{
	static const struct word table[] = { { "raw", BLK_RAW }, { "qcow2", BLK_QCOW2 }, { NULL, 0 } };
	int format = 0, status = take_word("format", val, table, &format);

	if (!status)
		d->opt.format = (enum blk_format)format;
	return status;
}

static int take_cache(struct disk *d, const char *val)
{
	static const struct word table[] = { { "writeback", BLK_WRITEBACK },
		                             { "writethrough", BLK_WRITETHROUGH },
		                             { "none", BLK_DIRECT },
		                             { "unsafe", BLK_UNSAFE },
		                             { NULL, 0 } };
	int cache = 0, status = take_word("cache", val, table, &cache);

	if (!status)
		d->opt.cache = (enum blk_cache)cache;
	return status;
}

static int take_switch(const char *opt, const char *val, const char *off, const char *on, bool *out)
{
	const struct word table[] = { { off, 0 }, { on, 1 }, { NULL, 0 } };
	int is_on = *out, status = take_word(opt, val, table, &is_on);

	*out = is_on;
	return status;
}

static int take_block(struct disk *d, const char *val)
{
	static const struct word table[] = { { "512", 512 }, { "4096", 4096 }, { NULL, 0 } };
	int block = 0, status = take_word("blocksize", val, table, &block);

	if (!status)
		d->block = (uint32_t)block;
	return status;
}

/* NAME=VALUE, or ro and cow. */
static int take_option(struct disk *d, char *word)
{
	char *val = strchr(word, '=');
	bool discard = !d->opt.no_discard;
	int status;

	if (!val && !strcmp(word, "ro"))
		d->opt.read_only = true;
	else if (!val && !strcmp(word, "cow"))
		d->opt.cow = true;
	if (!val && (!strcmp(word, "ro") || !strcmp(word, "cow")))
		return 0;
	if (val)
		*val++ = '\0';
	if (val && !strcmp(word, "format"))
		return take_format(d, val);
	if (val && !strcmp(word, "cache"))
		return take_cache(d, val);
	if (val && !strcmp(word, "queues"))
		return take_number("queues", val, 1, MAX_QUEUES, &d->queues);
	if (val && !strcmp(word, "on-error"))
		return take_switch("on-error", val, "report", "stop", &d->stop_on_error);
	if (val && !strcmp(word, "blocksize"))
		return take_block(d, val);
	if (val && !strcmp(word, "discard")) {
		status = take_switch("discard", val, "off", "on", &discard);
		d->opt.no_discard = !discard;
		return status;
	}
	if (val && !strcmp(word, "serial") && val[0] && strlen(val) <= 20) {
		d->serial = val;
		return 0;
	}
	if (val && !strcmp(word, "serial"))
		return cmd_usage("run", "-d: serial=%s: 1 to 20 characters", val);
	return cmd_usage("run",
	                 "-d: '%s' is no option of a disk: ro, cow, format=, cache=, queues=, discard=, on-error=, "
	                 "serial=, blocksize=",
	                 word);
}

int disk_opt(struct config *c, char *spec)
{
	char *rest = cmd_cut(spec), *word, *save = NULL;
	struct disk *d = &c->disk[c->ndisks];
	int status = 0;

	if (c->ndisks == CONFIG_DISKS_MAX)
		return cmd_usage("run", "-d: at most %d disks", CONFIG_DISKS_MAX);
	*d = (struct disk){ .path = spec };
	if (!spec[0])
		return cmd_usage("run", "-d: which file?");
	for (word = strtok_r(rest, ",", &save); !status && word; word = strtok_r(NULL, ",", &save))
		status = take_option(d, word);
	c->ndisks += !status;
	return status;
}

int disk_fault(struct config *c, char *spec)
{
	unsigned i = strncmp(spec, "disk", 4) ? CONFIG_DISKS_MAX : (unsigned)strtoul(spec + 4, NULL, 10);
	char *colon = strchr(spec, ':');

	if (!colon || i >= CONFIG_DISKS_MAX)
		return cmd_usage("run", "--fault: 'disk0:eio@7' is what one looks like");
	if (i >= c->ndisks)
		return cmd_usage("run", "--fault: there is no disk%u", i);
	c->disk[i].opt.fault = colon + 1;
	return 0;
}
