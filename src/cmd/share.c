// SPDX-License-Identifier: GPL-2.0-or-later
#include "cmd/share.h"

#include "base/err.h"
#include "cmd/cmd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ROOT_TAG "kvm-root"
#define TAG_MAX  64

static enum p9_map default_map(void)
{
	return geteuid() ? P9_MAP_SQUASH : P9_MAP_NONE;
}

/* A place for one more; NULL: there are too many, which is said. */
static struct share *new_share(struct config *c, const char *option)
{
	struct share *s = &c->share[c->nshares];

	if (c->nshares == CONFIG_SHARES_MAX) {
		cmd_usage("run", "%s: at most %d folders", option, CONFIG_SHARES_MAX);
		return NULL;
	}
	*s = (struct share){ .export.map = default_map() };
	return s;
}

static int check_dir(const char *option, const char *dir)
{
	struct stat st;
	struct err err;

	if (stat(dir, &st)) {
		err_sys(&err, -errno, "%s %s", option, dir);
		return cmd_fail(&err);
	}
	if (S_ISDIR(st.st_mode))
		return 0;
	err_set(&err, -ENOTDIR, "%s %s: is not a directory", option, dir);
	return cmd_fail(&err);
}

static int take_map(const char *option, const char *word, enum p9_map *map)
{
	static const struct {
		const char *name;
		enum p9_map map;
	} table[] = { { "none", P9_MAP_NONE }, { "squash", P9_MAP_SQUASH }, { "mapped", P9_MAP_MAPPED } };

	for (unsigned i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		if (!strcmp(table[i].name, word)) {
			*map = table[i].map;
			return 0;
		}
	}
	return cmd_usage("run", "%s: map=%s: none, squash or mapped", option, word);
}

/* The options behind the first comma. @cow NULL: there is no such option here. */
static int take_options(const char *option, char *at, struct p9_export *ex, bool *cow)
{
	char *word, *save = NULL;
	int status = 0;

	for (word = strtok_r(at, ",", &save); !status && word; word = strtok_r(NULL, ",", &save)) {
		if (!strcmp(word, "ro"))
			ex->ro = true;
		else if (cow && !strcmp(word, "cow"))
			*cow = true;
		else if (!strncmp(word, "map=", 4))
			status = take_map(option, word + 4, &ex->map);
		else
			status = cmd_usage("run", "%s: '%s': ro, %smap=none, map=squash or map=mapped", option, word,
			                   cow ? "cow, " : "");
	}
	return status;
}

int share_9p(struct config *c, char *spec)
{
	struct share *s = new_share(c, "--9p");
	char *tag = cmd_cut(spec), *rest = cmd_cut(tag);
	int status;

	if (!s)
		return EXIT_USAGE;
	if (!spec[0] || !tag[0])
		return cmd_usage("run", "--9p: DIR,TAG is wanted, and options behind it");
	if (strlen(tag) > TAG_MAX)
		return cmd_usage("run", "--9p: tag '%s': at most %d characters", tag, TAG_MAX);
	for (unsigned i = 0; i < c->nshares; i++)
		if (!strcmp(c->share[i].tag, tag))
			return cmd_usage("run", "--9p: two folders have the tag '%s'", tag);
	s->export.dir = spec;
	s->tag = tag;
	status = take_options("--9p", rest, &s->export, NULL);
	if (!status)
		status = check_dir("--9p", spec);
	c->nshares += !status;
	return status;
}

/* The root is the first of the shares: the others move up. */
static int add_root(struct config *c, const struct share *root)
{
	if (!new_share(c, "-d"))
		return EXIT_USAGE;
	memmove(&c->share[1], &c->share[0], c->nshares * sizeof(c->share[0]));
	c->share[0] = *root;
	c->nshares++;
	return 0;
}

int share_root(struct config *c, char *spec)
{
	struct share s = { .tag = ROOT_TAG, .at = "/", .export.map = default_map() };
	int status = take_options("-d", cmd_cut(spec), &s.export, &c->overlay);

	s.export.dir = spec;
	s.export.ro |= c->overlay;
	if (!status)
		status = check_dir("-d", spec);
	return status ? status : add_root(c, &s);
}

int share_host(struct config *c, bool rw)
{
	struct share s = { .tag = ROOT_TAG, .at = "/", .export = { .dir = "/", .ro = !rw, .map = default_map() } };

	c->overlay = !rw;
	return add_root(c, &s);
}

int share_rwdir(struct config *c, const char *dir)
{
	struct share *s = new_share(c, "--rwdir");
	char *path, *tag;

	if (!s)
		return EXIT_USAGE;
	if (check_dir("--rwdir", dir))
		return EXIT_HOST;
	path = realpath(dir, NULL);
	if (!path || asprintf(&tag, "kvm-rw%u", c->nshares) < 0) {
		struct err err;

		free(path);
		err_sys(&err, -errno, "--rwdir %s", dir);
		return cmd_fail(&err);
	}
	s->export.dir = s->at = path;
	s->tag = tag;
	c->nshares++;
	return 0;
}

char *share_translate(const struct config *c, const char *dir)
{
	char *root = config_share_root(c) ? realpath(c->share[0].export.dir, NULL) : NULL;
	size_t n = root ? strlen(root) : 0;
	const char *rest = NULL;

	if (root && !strcmp(root, "/"))
		rest = dir;
	else if (root && !strncmp(root, dir, n) && (dir[n] == '/' || !dir[n]))
		rest = dir + n;
	free(root);
	return strdup(rest && rest[0] ? rest : "/");
}

/* As the guest will see it: links are followed within the root. */
static bool has_program(int root, const char *path)
{
	struct open_how how = { .flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT };
	int fd = (int)syscall(SYS_openat2, root, path, &how, sizeof(how));

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

bool share_has_init(const struct config *c)
{
	static const char *const usual[] = { "/sbin/init", "/etc/init", "/bin/init" };
	int root = open(c->share[0].export.dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	bool found = false;

	for (unsigned i = 0; root >= 0 && !found && i < sizeof(usual) / sizeof(usual[0]); i++)
		found = has_program(root, usual[i]);
	if (root >= 0)
		close(root);
	return found;
}
