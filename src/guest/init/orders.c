// SPDX-License-Identifier: GPL-2.0-or-later
#include "guest/init/init.h"
#include "guest/init/plan.h"

#include <stdlib.h>
#include <string.h>

/*
 * How it works
 *
 * The text is cut in place: first into lines, then each line into its keyword
 * and, by the keyword's own function, into words. Nothing is carried out here;
 * the order of the stages is main()'s, and within one kind of order the file's.
 */

void plan_init(struct plan *p)
{
	memset(p, 0, sizeof(*p));
	p->root_ro = -1;
	p->root_wait = ROOT_WAIT_S;
}

static char escaped(char c)
{
	return c == 'n' ? '\n' : c == 't' ? '\t' : c;
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t';
}

char *word_next(char **at)
{
	char *r = *at, *w, *word;
	bool quoted = false;

	while (is_blank(*r))
		r++;
	word = w = r;
	*at = r;
	if (!*r)
		return NULL;
	for (; *r && (quoted || !is_blank(*r)); r++) {
		if (*r == '"')
			quoted = !quoted;
		else if (*r == '\\' && r[1])
			*w++ = escaped(*++r);
		else
			*w++ = *r;
	}
	*at = *r ? r + 1 : r;
	*w = '\0';
	return word;
}

char **word_split(char *line)
{
	/* A word takes at least one character and one blank. */
	char **words = calloc(strlen(line) / 2 + 2, sizeof(*words));
	unsigned n = 0;

	while (words && (words[n] = word_next(&line)))
		n++;
	return words;
}

/* The rest of a line as it is. */
static char *rest_of(char *at)
{
	while (is_blank(*at))
		at++;
	return at;
}

/* Each takes the text after its keyword and returns NULL, or what is wrong with it. */
static const char *order_module(struct plan *p, char *at)
{
	struct order_module *m = &p->module[p->nmodules];

	if (p->nmodules == PLAN_MODULES)
		return "too many modules";
	m->file = word_next(&at);
	m->params = rest_of(at);
	if (!m->file)
		return "names no file";
	p->nmodules++;
	return NULL;
}

static const char *order_hostname(struct plan *p, char *at)
{
	char *name = word_next(&at);

	if (!name || !*name || strlen(name) > 64)
		return "wants a name of 1 to 64 characters";
	p->hostname = name;
	return NULL;
}

static const char *order_root(struct plan *p, char *at)
{
	char *source = word_next(&at);

	if (!source)
		return "names no device";
	p->root.source = source;
	p->root.fstype = word_next(&at);
	p->root.options = word_next(&at);
	return NULL;
}

static const char *order_rootwait(struct plan *p, char *at)
{
	char *word = word_next(&at), *end;
	unsigned long s = word ? strtoul(word, &end, 10) : 0;

	if (!word || *end || s > 86400)
		return "wants seconds, at most a day";
	p->root_wait = (int)s;
	return NULL;
}

static const char *order_mount(struct plan *p, char *at)
{
	struct order_mount *m = &p->mount[p->nmounts];

	if (p->nmounts == PLAN_MOUNTS)
		return "too many mounts";
	m->source = word_next(&at);
	m->dir = word_next(&at);
	m->fstype = word_next(&at);
	m->options = word_next(&at);
	if (!m->dir || m->dir[0] != '/')
		return "wants SOURCE DIR [FSTYPE [OPTIONS]] with an absolute DIR";
	p->nmounts++;
	return NULL;
}

static const char *order_overlay(struct plan *p, char *at)
{
	p->overlay = true;
	p->overlay_options = word_next(&at);
	return NULL;
}

/* Cuts "/PREFIX" off @addr. A whole address where there is none. */
static int take_prefix(char *addr)
{
	int max = strchr(addr, ':') ? 128 : 32;
	char *slash = strchr(addr, '/'), *end;
	long prefix;

	if (!slash)
		return max;
	*slash = '\0';
	prefix = strtol(slash + 1, &end, 10);
	return *end || end == slash + 1 || prefix < 0 || prefix > max ? -1 : (int)prefix;
}

static char *dash_is_none(char *word)
{
	return word && !strcmp(word, "-") ? NULL : word;
}

static const char *order_ip(struct plan *p, char *at)
{
	struct order_ip *ip = &p->ip[p->nips];

	if (p->nips == PLAN_IPS)
		return "too many addresses";
	ip->iface = dash_is_none(word_next(&at));
	ip->addr = word_next(&at);
	if (!ip->addr)
		return "wants IFACE ADDRESS/PREFIX [GATEWAY [DNS [DNS]]]";
	ip->prefix = take_prefix(ip->addr);
	if (ip->prefix < 0)
		return "has no such prefix length";
	ip->gateway = dash_is_none(word_next(&at));
	ip->dns[0] = word_next(&at);
	ip->dns[1] = word_next(&at);
	p->nips++;
	return NULL;
}

static const char *order_env(struct plan *p, char *at)
{
	char *word = word_next(&at);

	if (!word || word[0] == '=' || !strchr(word, '='))
		return "wants NAME=VALUE";
	if (p->nenvs == PLAN_ENVS)
		return "too many variables";
	p->env[p->nenvs++] = word;
	return NULL;
}

static const char *order_then(struct plan *p, char *at)
{
	static const struct {
		const char *word;
		enum then then;
	} table[] = {
		{ "switch_root", THEN_SWITCH_ROOT },
		{ "shell", THEN_SHELL },
		{ "run", THEN_RUN },
		{ "serve", THEN_SERVE },
		{ "poweroff", THEN_POWEROFF },
		{ "reboot", THEN_REBOOT },
	};
	char *word = word_next(&at);

	for (unsigned i = 0; word && i < sizeof(table) / sizeof(*table); i++) {
		if (strcmp(word, table[i].word))
			continue;
		at = rest_of(at);
		if (table[i].then == THEN_RUN && !*at)
			return "names no command";
		if (table[i].then == THEN_RUN)
			p->command = at;
		if (table[i].then == THEN_SWITCH_ROOT)
			p->init = word_next(&at);
		p->then = table[i].then;
		return NULL;
	}
	return "wants switch_root, shell, run, serve, poweroff or reboot";
}

static const char *order_serve(struct plan *p, char *at)
{
	(void)at;
	p->serve = true;
	return NULL;
}

static const char *order_poweroff(struct plan *p, char *at)
{
	(void)at;
	p->reboot = false;
	return NULL;
}

static const char *order_reboot(struct plan *p, char *at)
{
	(void)at;
	p->reboot = true;
	return NULL;
}

static void carry(struct plan *p, unsigned nr, char *line)
{
	static const struct {
		const char *word;
		const char *(*carry)(struct plan *p, char *at);
	} table[] = {
		{ "module", order_module },
		{ "hostname", order_hostname },
		{ "root", order_root },
		{ "rootwait", order_rootwait },
		{ "mount", order_mount },
		{ "overlay", order_overlay },
		{ "ip", order_ip },
		{ "env", order_env },
		{ "then", order_then },
		{ "serve", order_serve },
		{ "poweroff", order_poweroff },
		{ "reboot", order_reboot },
	};
	char *word = word_next(&line);
	const char *wrong = "is not an order this init knows";

	if (!word || word[0] == '#')
		return;
	for (unsigned i = 0; i < sizeof(table) / sizeof(*table); i++) {
		if (strcmp(word, table[i].word))
			continue;
		wrong = table[i].carry(p, line);
		break;
	}
	if (wrong)
		say("%s:%u: '%s' %s; ignored", ORDERS_FILE, nr, word, wrong);
}

void plan_orders(struct plan *p, char *text)
{
	unsigned nr = 1;

	for (char *line = text, *next; line; line = next, nr++) {
		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		carry(p, nr, line);
	}
}
