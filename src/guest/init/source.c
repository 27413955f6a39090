// SPDX-License-Identifier: GPL-2.0-or-later
#include "guest/init/source.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* udev writes odd characters of a label as \xNN in /dev/disk/by-label. */
static void unescape(char *s)
{
	char *w = s;

	while (*s) {
		if (s[0] == '\\' && s[1] == 'x' && isxdigit((unsigned char)s[2]) && isxdigit((unsigned char)s[3])) {
			char hex[3] = { s[2], s[3], '\0' };

			*w++ = (char)strtoul(hex, NULL, 16);
			s += 4;
		} else {
			*w++ = *s++;
		}
	}
	*w = '\0';
}

static unsigned long number(const char *s, int base, const char *end)
{
	char *stop;
	unsigned long n = strtoul(s, &stop, base);

	return isxdigit((unsigned char)*s) && stop == end ? n : ~0UL;
}

/* "254:1", or "fe01": what the kernel's name_to_dev_t() takes besides names. */
static int parse_devno(const char *s, struct source *out)
{
	const char *colon = strchr(s, ':'), *end = s + strlen(s);
	unsigned long major, minor;

	if (colon) {
		major = number(s, 10, colon);
		minor = number(colon + 1, 10, end);
	} else {
		unsigned long dev = end - s >= 3 && end - s <= 8 ? number(s, 16, end) : ~0UL;

		/* The layout of the kernel's new_decode_dev(). */
		major = dev == ~0UL ? dev : (dev & 0xfff00) >> 8;
		minor = (dev & 0xff) | ((dev >> 12) & 0xfff00);
	}
	if (major > 0xfff || minor > 0xfffff)
		return -1;
	out->kind = SOURCE_DEVNO;
	out->major = (unsigned)major;
	out->minor = (unsigned)minor;
	return 0;
}

static void parse_partnroff(struct source *out)
{
	static const char key[] = "/PARTNROFF=";
	char *at = strstr(out->value, key);

	if (!at)
		return;
	out->partnroff = (int)strtol(at + sizeof(key) - 1, NULL, 10);
	*at = '\0';
}

static int is_tag_fs(const char *fstype, const char *name)
{
	return fstype && !strcmp(fstype, name);
}

void source_parse(const char *text, const char *fstype, struct source *out)
{
	static const struct {
		const char *prefix;
		enum source_kind kind;
	} table[] = {
		{ "LABEL=", SOURCE_LABEL },
		{ "UUID=", SOURCE_UUID },
		{ "PARTUUID=", SOURCE_PARTUUID },
		{ "PARTLABEL=", SOURCE_PARTLABEL },
		{ "9p:", SOURCE_9P },
		{ "virtiofs:", SOURCE_VIRTIOFS },
		{ "/dev/disk/by-label/", SOURCE_LABEL },
		{ "/dev/disk/by-uuid/", SOURCE_UUID },
		{ "/dev/disk/by-partuuid/", SOURCE_PARTUUID },
		{ "/dev/disk/by-partlabel/", SOURCE_PARTLABEL },
	};

	memset(out, 0, sizeof(*out));
	snprintf(out->value, sizeof(out->value), "%s", text);
	for (unsigned i = 0; i < sizeof(table) / sizeof(*table); i++) {
		size_t len = strlen(table[i].prefix);

		if (strncmp(text, table[i].prefix, len))
			continue;
		out->kind = table[i].kind;
		snprintf(out->value, sizeof(out->value), "%s", text + len);
		if (text[0] == '/')
			unescape(out->value);
		if (out->kind == SOURCE_PARTUUID)
			parse_partnroff(out);
		return;
	}
	if (is_tag_fs(fstype, "9p"))
		out->kind = SOURCE_9P;
	else if (is_tag_fs(fstype, "virtiofs"))
		out->kind = SOURCE_VIRTIOFS;
	else if (!strncmp(text, "/dev/", 5))
		out->kind = SOURCE_PATH;
	else if (!fstype || !strcmp(fstype, "auto") || strchr(text, ':'))
		(void)parse_devno(text, out);
}
