// SPDX-License-Identifier: GPL-2.0-or-later
#include "machine/machine.h"

#include "bus/bus.h"
#include "bus/gmem.h"
#include "machine/devices.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/*
 * How it works
 *
 * The composition root: RAM, buses, VM, board, vCPUs, built in this order and
 * freed in the reverse one. Each vCPU has a thread, which runs guest code
 * until it is kicked or fails. Whatever ends the boot is an event; the first
 * one counts. It kicks every vCPU at once, so that a guest that has switched
 * itself off runs no further, and is passed on to the session.
 */

#define CPU_STACK (256 * 1024) /* virtual; a few pages are used */

struct cpu {
	struct machine *m;
	struct vcpu *vcpu;
	pthread_t thread;
	bool started;
};

struct machine {
	/* [c] */
	struct config cfg;
	struct machine_parts parts;
	struct gmem mem;
	struct bus *ports, *mmio;
	struct vm *vm;
	struct arch_board *board;
	struct devices *devices;
	unsigned ncpus;
	struct cpu *cpu;

	/* [m] */
	pthread_mutex_t lock;
	bool over; /* an event has been passed on */
	struct err cpu_error;
};

static void kick_all(struct machine *m)
{
	for (unsigned i = 0; i < m->ncpus; i++)
		vcpu_kick(m->cpu[i].vcpu);
}

static void raise_event(struct machine *m, enum machine_event ev, unsigned code, const struct err *why)
{
	bool first;

	pthread_mutex_lock(&m->lock);
	first = !m->over;
	m->over = true;
	if (first && why)
		m->cpu_error = *why;
	pthread_mutex_unlock(&m->lock);
	if (!first)
		return;
	kick_all(m);
	m->parts.event(m->parts.opaque, ev, code);
}

static void on_guest_event(void *opaque, enum guest_event ev, unsigned code)
{
	static const enum machine_event map[] = {
		[GUEST_POWEROFF] = MACHINE_POWEROFF,
		[GUEST_RESET] = MACHINE_RESET,
		[GUEST_PANIC] = MACHINE_PANIC,
		[GUEST_EXIT] = MACHINE_EXIT,
	};

	raise_event(opaque, map[ev], code, NULL);
}

static void *cpu_thread(void *arg)
{
	struct cpu *c = arg;
	struct err why = { "" };

	switch (vcpu_run(c->vcpu, &why)) {
	case VCPU_KICKED: break;
	case VCPU_SHUTDOWN: raise_event(c->m, MACHINE_TRIPLE_FAULT, vcpu_index(c->vcpu), NULL); break;
	case VCPU_INTERNAL:
	case VCPU_ERROR: raise_event(c->m, MACHINE_CPU_ERROR, vcpu_index(c->vcpu), &why); break;
	}
	return NULL;
}

static int make_board(struct machine *m, struct err *err)
{
	struct arch_board_config bc = {
		.vm = m->vm,
		.mem = &m->mem,
		.ports = m->ports,
		.mmio = m->mmio,
		.ncpus = m->cfg.ncpus,
		.events = { .raise = on_guest_event, .opaque = m },
	};
	int error;

	memcpy(bc.com, m->parts.com, sizeof(bc.com));
	error = arch_board_new(&bc, &m->board, err);
	return error ? error : arch_board_load(m->board, m->parts.image, err);
}

static int make_devices(struct machine *m, struct err *err)
{
	struct devices_config dc = {
		.cfg = &m->cfg,
		.loop = m->parts.loop,
		.mem = &m->mem,
		.board = m->board,
		.vm = m->vm,
		.hvc = m->parts.hvc,
	};

	return devices_new(&dc, &m->devices, err);
}

static int make_cpus(struct machine *m, struct err *err)
{
	m->cpu = calloc(m->cfg.ncpus, sizeof(*m->cpu));
	if (!m->cpu)
		return err_set(err, -ENOMEM, "out of memory");
	for (unsigned i = 0; i < m->cfg.ncpus; i++) {
		int error = vcpu_new(m->vm, i, &m->cpu[i].vcpu, err);

		if (error)
			return error;
		m->cpu[i].m = m;
		m->ncpus = i + 1;
		error = arch_board_cpu(m->board, m->cpu[i].vcpu, err);
		if (error)
			return error;
	}
	return 0;
}

static int build(struct machine *m, struct err *err)
{
	struct vm_config vc = { .mem = &m->mem };
	int error = arch_ram(m->cfg.mem, &m->mem, err);

	if (!error)
		error = gmem_map(&m->mem, m->cfg.hugepages, err);
	if (!error)
		error = bus_new(&m->ports, err);
	if (!error)
		error = bus_new(&m->mmio, err);
	if (error)
		return error;
	vc.ports = m->ports;
	vc.mmio = m->mmio;
	arch_vm_config(&vc);
	error = vm_new(&vc, &m->vm, err);
	if (!error)
		error = make_board(m, err);
	if (!error)
		error = make_devices(m, err);
	if (!error)
		error = make_cpus(m, err);
	return error;
}

int machine_new(const struct config *cfg, const struct machine_parts *parts, struct machine **out, struct err *err)
{
	struct machine *m = calloc(1, sizeof(*m));
	int error;

	if (!m)
		return err_set(err, -ENOMEM, "out of memory");
	m->cfg = *cfg;
	m->parts = *parts;
	pthread_mutex_init(&m->lock, NULL);
	error = build(m, err);
	if (error)
		machine_free(m);
	else
		*out = m;
	return error;
}

void machine_free(struct machine *m)
{
	if (!m)
		return;
	machine_stop(m);
	for (unsigned i = 0; i < m->ncpus; i++)
		vcpu_free(m->cpu[i].vcpu);
	free(m->cpu);
	devices_free(m->devices);
	arch_board_free(m->board);
	vm_free(m->vm);
	bus_free(m->mmio);
	bus_free(m->ports);
	gmem_unmap(&m->mem);
	pthread_mutex_destroy(&m->lock);
	free(m);
}

int machine_start(struct machine *m, struct err *err)
{
	pthread_attr_t attr;
	int error = 0;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, CPU_STACK);
	for (unsigned i = 0; !error && i < m->ncpus; i++) {
		error = -pthread_create(&m->cpu[i].thread, &attr, cpu_thread, &m->cpu[i]);
		m->cpu[i].started = !error;
	}
	pthread_attr_destroy(&attr);
	return error ? err_sys(err, error, "cannot start a thread for each of %u vCPUs", m->ncpus) : 0;
}

void machine_stop(struct machine *m)
{
	kick_all(m);
	for (unsigned i = 0; i < m->ncpus; i++) {
		if (m->cpu[i].started)
			pthread_join(m->cpu[i].thread, NULL);
		m->cpu[i].started = false;
	}
}

void machine_power_button(struct machine *m)
{
	arch_board_power_button(m->board);
}

const char *machine_cpu_error(const struct machine *m)
{
	return m->cpu_error.msg;
}

void machine_dump(struct machine *m, unsigned index, FILE *to)
{
	arch_cpu_dump(m->cpu[index].vcpu, &m->mem, to);
}
