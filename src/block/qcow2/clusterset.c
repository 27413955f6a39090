// SPDX-License-Identifier: GPL-2.0-or-later
#include "block/qcow2/clusterset.h"

#include <errno.h>
#include <stdlib.h>

static size_t hash(const struct clusterset *s, uint64_t c)
{
	return (size_t)(c * 0x9e3779b97f4a7c15ull >> 20) & (s->nslots - 1);
}

/* Where @c is, or where it would go. */
static size_t find(const struct clusterset *s, uint64_t c)
{
	size_t i = hash(s, c);

	while (s->slot[i] && s->slot[i] != c)
		i = (i + 1) & (s->nslots - 1);
	return i;
}

bool clusterset_has(const struct clusterset *s, uint64_t c)
{
	return !c || (s->nslots && s->slot[find(s, c)]);
}

static int grow(struct clusterset *s)
{
	struct clusterset bigger = { .nslots = s->nslots ? s->nslots * 2 : 64, .n = s->n };

	bigger.slot = calloc(bigger.nslots, sizeof(*bigger.slot));
	if (!bigger.slot)
		return -ENOMEM;
	for (size_t i = 0; i < s->nslots; i++)
		if (s->slot[i])
			bigger.slot[find(&bigger, s->slot[i])] = s->slot[i];
	free(s->slot);
	*s = bigger;
	return 0;
}

int clusterset_add(struct clusterset *s, uint64_t c)
{
	size_t i;

	if (!c)
		return 0;
	if (2 * s->n >= s->nslots && grow(s))
		return -ENOMEM;
	i = find(s, c);
	if (s->slot[i])
		return 0;
	s->slot[i] = c;
	s->n++;
	return 1;
}

/* What follows without a gap is put in anew, or a search would end at the gap. */
void clusterset_del(struct clusterset *s, uint64_t c)
{
	size_t i;

	if (!c || !clusterset_has(s, c))
		return;
	i = find(s, c);
	s->slot[i] = 0;
	s->n--;
	for (i = (i + 1) & (s->nslots - 1); s->slot[i]; i = (i + 1) & (s->nslots - 1)) {
		uint64_t moved = s->slot[i];

		s->slot[i] = 0;
		s->slot[find(s, moved)] = moved;
	}
}

void clusterset_free(struct clusterset *s)
{
	free(s->slot);
	*s = (struct clusterset){ 0 };
}
