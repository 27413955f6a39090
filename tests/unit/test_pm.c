// SPDX-License-Identifier: GPL-2.0-or-later
/* The chips by which a guest ends, resets or mourns its machine: pm, i8042, pvpanic. */
#include "dev/i8042.h"
#include "dev/pm.h"
#include "dev/pvpanic.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct fixture {
	struct irq irq;
	bool level;
	unsigned edges;
	struct guest_events events;
	unsigned raised[GUEST_EXIT + 1];
	struct pm *pm;
};

static void fake_set(struct irq *irq, bool level)
{
	struct fixture *f = irq->opaque;

	f->edges += level && !f->level;
	f->level = level;
}

static void fake_raise(void *opaque, enum guest_event ev, unsigned code)
{
	struct fixture *f = opaque;

	assert_in_range(ev, 0, GUEST_EXIT);
	assert_int_equal(code, 0);
	f->raised[ev]++;
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct err err;

	f->irq = (struct irq){ .set = fake_set, .opaque = f, .line = 9 };
	f->events = (struct guest_events){ .raise = fake_raise, .opaque = f };
	assert_int_equal(pm_new(&f->irq, &f->events, &f->pm, &err), 0);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	pm_free(f->pm);
	free(f);
	return 0;
}

static void assert_raised(struct fixture *f, unsigned poweroff, unsigned reset, unsigned panic)
{
	assert_int_equal(f->raised[GUEST_POWEROFF], poweroff);
	assert_int_equal(f->raised[GUEST_RESET], reset);
	assert_int_equal(f->raised[GUEST_PANIC], panic);
	assert_int_equal(f->raised[GUEST_EXIT], 0);
	memset(f->raised, 0, sizeof(f->raised));
}

static void pm_initial_values(void **state)
{
	struct fixture *f = *state;

	for (unsigned off = 0; off < PM_LEN; off++)
		assert_int_equal(pm_read(f->pm, off), 0);
	assert_int_equal(pm_read(f->pm, PM_LEN), 0xff);
	assert_int_equal(f->edges, 0);
}

/* Every value: only SLP_EN with S5 powers off; other sleeps wake at once. */
static void pm_sleep(void **state)
{
	struct fixture *f = *state;

	for (unsigned v = 0; v < 256; v++) {
		bool enabled = v & 0x20, s5 = (v >> 2 & 7) == PM_SLP_TYP_S5;

		pm_write(f->pm, PM_SLEEP_STATUS, 0x80);
		assert_int_equal(pm_read(f->pm, PM_SLEEP_STATUS), 0);
		pm_write(f->pm, PM_SLEEP_CONTROL, v);
		assert_raised(f, enabled && s5, 0, 0);
		assert_int_equal(pm_read(f->pm, PM_SLEEP_CONTROL), v & 0x1c);
		assert_int_equal(pm_read(f->pm, PM_SLEEP_STATUS), enabled && !s5 ? 0x80 : 0);
		pm_write(f->pm, PM_SLEEP_STATUS, 0x7f); /* writing zero keeps it */
		assert_int_equal(pm_read(f->pm, PM_SLEEP_STATUS), enabled && !s5 ? 0x80 : 0);
	}
}

static void pm_reset(void **state)
{
	struct fixture *f = *state;

	for (unsigned v = 0; v < 256; v++) {
		pm_write(f->pm, PM_RESET, v);
		assert_raised(f, 0, v == PM_RESET_VALUE, 0);
		assert_int_equal(pm_read(f->pm, PM_RESET), 0);
	}
}

static void pm_power_button(void **state)
{
	struct fixture *f = *state;

	pm_button(f->pm);
	pm_write(f->pm, PM_EVENTS, 0xff); /* read-only */
	assert_int_equal(f->edges, 1);
	assert_false(f->level);
	assert_int_equal(pm_read(f->pm, PM_EVENTS), PM_EVENT_BUTTON);
	assert_int_equal(pm_read(f->pm, PM_EVENTS), 0);
	pm_button(f->pm);
	pm_button(f->pm);
	assert_int_equal(f->edges, 3);
	assert_int_equal(pm_read(f->pm, PM_EVENTS), PM_EVENT_BUTTON);
	assert_int_equal(pm_read(f->pm, PM_EVENTS), 0);
	assert_raised(f, 0, 0, 0);
}

static void pm_random(void **state)
{
	struct fixture *f = *state;
	unsigned seed = 5, presses = 0;

	for (unsigned i = 0; i < 100000; i++) {
		unsigned off = rand_r(&seed) % 6;

		if (rand_r(&seed) % 8 == 0) {
			pm_button(f->pm);
			presses++;
		}
		pm_write(f->pm, off, rand_r(&seed));
		pm_read(f->pm, rand_r(&seed) % 6);
		assert_int_equal(pm_read(f->pm, PM_SLEEP_CONTROL) & ~0x1c, 0);
		assert_int_equal(pm_read(f->pm, PM_SLEEP_STATUS) & ~0x80, 0);
	}
	assert_int_equal(f->edges, presses);
	pm_free(NULL);
}

/* Nothing to wait for and nothing to drain, whatever was written before. */
static void i8042_commands(void **state)
{
	struct fixture *f = *state;

	for (unsigned off = 0; off < 8; off++) {
		for (unsigned v = 0; v < 256; v++) {
			i8042_write(&f->events, off, v);
			assert_raised(f, 0, off == 4 && v >= 0xf0 && !(v & 1), 0);
			assert_int_equal(i8042_read(4), 0x15); /* bit 1, input buffer full, is clear */
			assert_int_equal(i8042_read(0), 0xff);
		}
	}
	i8042_write(&f->events, 4, 0xfe); /* Linux' reboot=k */
	assert_raised(f, 0, 1, 0);
}

static void pvpanic_identity(void **state)
{
	struct fixture *f = *state;
	struct pvpanic *p;
	struct pci_func *pci;
	struct err err;

	assert_int_equal(pvpanic_new(&f->events, &p, &err), 0);
	pci = pvpanic_pci(p);
	assert_int_equal(pci->vendor, 0x1b36);
	assert_int_equal(pci->device, 0x0011);
	assert_int_equal(pci->class_rev >> 16, 0x0880);
	assert_true(pci->bar[0].len >= 16);
	for (unsigned i = 1; i < PCI_MAX_BARS; i++)
		assert_int_equal(pci->bar[i].len, 0);
	assert_string_equal(pci->name, "pvpanic");
	pvpanic_free(p);
	pvpanic_free(NULL);
}

static void pvpanic_register(void **state)
{
	static const struct {
		unsigned size;
		uint64_t at_zero, elsewhere;
	} t[] = { { 1, 0x03, 0xff },
		  { 2, 0xff03, 0xffff },
		  { 4, 0xffffff03, 0xffffffff },
		  { 8, 0xffffffffffffff03, 0xffffffffffffffff } };
	struct fixture *f = *state;
	const struct pci_bar *bar;
	struct pvpanic *p;
	struct err err;
	void *dev;

	assert_int_equal(pvpanic_new(&f->events, &p, &err), 0);
	bar = &pvpanic_pci(p)->bar[0];
	dev = pvpanic_pci(p)->dev;
	for (size_t i = 0; i < sizeof(t) / sizeof(*t); i++) {
		assert_true(bar->ops->read(dev, 0, t[i].size) == t[i].at_zero);
		assert_true(bar->ops->read(dev, 8, t[i].size) == t[i].elsewhere);
	}
	for (unsigned off = 0; off < bar->len; off++) {
		for (unsigned v = 0; v < 256; v++) {
			bar->ops->write(dev, off, 1, v);
			assert_raised(f, 0, 0, !off && v & 1);
		}
	}
	pvpanic_free(p);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(pm_initial_values), TEST(pm_sleep),       TEST(pm_reset),         TEST(pm_power_button),
		TEST(pm_random),         TEST(i8042_commands), TEST(pvpanic_identity), TEST(pvpanic_register),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
