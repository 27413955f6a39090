// SPDX-License-Identifier: GPL-2.0-or-later
#include "machine/machine.h"

#include "base/clock.h"
#include "bus/bus.h"
#include "bus/gmem.h"
#include "machine/devices.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/*
 * How it works
 *
 * The composition root: RAM, buses, VM, board, vCPUs, built in this order and
 * freed in the reverse one. Each vCPU has a thread, which runs guest code
 * until it is kicked or fails. Whatever ends the boot is an event; the first
 * one counts. It kicks every vCPU at once, so that a guest that has switched
 * itself off runs no further, and is passed on to the session.
 *
 * Pausing. A vCPU's thread asks under the lock whether it may run, before the
 * first time and after each kick. Pausing forbids it, kicks all and waits until
 * none is in the guest; then, with nobody left to change anything, it stops
 * the clocks and the devices. While it is paused the threads wait under the
 * lock, so an end needs no special case: @quit lets them go as it does a
 * running one.
 *
 * The clocks: kvmclock is set back to where it stopped, and every TSC by the
 * ticks that the first one has made meanwhile, all alike so that they stay in
 * step. Each of these may be missing on a host, which then lets that clock run
 * on. A timer that comes due while nothing runs fires at the resumption,
 * early by the guest's TSC; Linux sets it again. Last, the guest's watchdogs
 * are told (KVM_KVMCLOCK_CTRL), for what they read may still have jumped.
 */

#define CPU_STACK (256 * 1024) /* virtual; a few pages are used */
#define STOP_S    2            /* a vCPU leaves the guest within microseconds, or something is very wrong */
#define PAUSE_S   4            /* a disk may take longer; who asks has an answer within 5 s */

struct cpu {
	struct machine *m;
	struct vcpu *vcpu;
	pthread_t thread;
	bool started;
};

/* Where the clocks stopped. */
struct clocks {
	bool has_kvmclock, has_tsc;
	uint64_t kvmclock, tsc;
};

struct machine {
	/* [c] */
	struct config cfg;
	struct machine_parts parts;
	struct gmem mem;
	struct bus *ports, *mmio;
	struct vm *vm;
	struct arch_board *board;
	unsigned ncpus;
	struct cpu *cpu;
	struct devices *devices;

	/* [m] */
	pthread_mutex_t lock;
	pthread_cond_t change; /* of any of these */
	bool over;             /* an event has been passed on */
	bool hold;             /* no vCPU may begin to run */
	bool quit;             /* nor ever again */
	unsigned running;      /* vCPUs in vcpu_run() */
	struct err cpu_error;

	/* [l] main loop */
	bool paused;
	struct clocks clocks;
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
	m->over = m->quit = true;
	if (first && why)
		m->cpu_error = *why;
	pthread_cond_broadcast(&m->change);
	pthread_mutex_unlock(&m->lock);
	if (!first)
		return;
	kick_all(m);
	m->parts.event(m->parts.opaque, ev, code);
}

static void on_guest_event(void *opaque, enum guest_event ev, unsigned code)
{
	struct machine *m = opaque;

	switch (ev) {
	case GUEST_POWEROFF: raise_event(m, MACHINE_POWEROFF, code, NULL); break;
	case GUEST_RESET: raise_event(m, MACHINE_RESET, code, NULL); break;
	case GUEST_EXIT: raise_event(m, MACHINE_EXIT, code, NULL); break;
	case GUEST_PANIC: m->parts.panic(m->parts.opaque); break;
	}
}

/* Waits while the machine is paused. False: it ends. */
static bool cpu_may_run(struct machine *m)
{
	bool may;

	pthread_mutex_lock(&m->lock);
	while (m->hold && !m->quit)
		pthread_cond_wait(&m->change, &m->lock);
	may = !m->quit;
	m->running += may;
	pthread_mutex_unlock(&m->lock);
	return may;
}

static void cpu_stopped(struct machine *m)
{
	pthread_mutex_lock(&m->lock);
	m->running--;
	if (m->hold)
		pthread_cond_broadcast(&m->change);
	pthread_mutex_unlock(&m->lock);
}

static void *cpu_thread(void *arg)
{
	struct cpu *c = arg;
	struct err why = { "" };
	enum vcpu_exit ended = VCPU_KICKED;

	while (ended == VCPU_KICKED && cpu_may_run(c->m)) {
		ended = vcpu_run(c->vcpu, &why);
		cpu_stopped(c->m);
	}
	switch (ended) {
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
		.channel = m->parts.channel,
		.disks = m->parts.disks,
		.disk_failed = m->parts.disk_failed,
		.opaque = m->parts.opaque,
		.nic = m->parts.nic,
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

static void init_locks(struct machine *m)
{
	pthread_condattr_t attr;

	pthread_mutex_init(&m->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&m->change, &attr);
	pthread_condattr_destroy(&attr);
}

int machine_new(const struct config *cfg, const struct machine_parts *parts, struct machine **out, struct err *err)
{
	struct machine *m = calloc(1, sizeof(*m));
	int error;

	if (!m)
		return err_set(err, -ENOMEM, "out of memory");
	m->cfg = *cfg;
	m->parts = *parts;
	init_locks(m);
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
	if (m->vm)
		vm_retire(m->vm);
	devices_free(m->devices);
	arch_board_free(m->board);
	vm_free(m->vm);
	bus_free(m->mmio);
	bus_free(m->ports);
	gmem_unmap(&m->mem);
	pthread_cond_destroy(&m->change);
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
	pthread_mutex_lock(&m->lock);
	m->quit = true;
	pthread_cond_broadcast(&m->change);
	pthread_mutex_unlock(&m->lock);
	kick_all(m);
	for (unsigned i = 0; i < m->ncpus; i++) {
		if (m->cpu[i].started)
			pthread_join(m->cpu[i].thread, NULL);
		m->cpu[i].started = false;
	}
	if (m->devices)
		devices_settle(m->devices);
}

/* Pausing. */

static void set_hold(struct machine *m, bool on)
{
	pthread_mutex_lock(&m->lock);
	m->hold = on;
	pthread_cond_broadcast(&m->change);
	pthread_mutex_unlock(&m->lock);
}

/* Waits until no vCPU runs. 0 or -ETIMEDOUT. */
static int wait_stopped(struct machine *m)
{
	struct timespec until;
	int error = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += STOP_S;
	pthread_mutex_lock(&m->lock);
	while (m->running && !error)
		error = pthread_cond_timedwait(&m->change, &m->lock, &until);
	if (!m->running)
		error = 0;
	pthread_mutex_unlock(&m->lock);
	return -error;
}

static void stop_clocks(struct machine *m)
{
	struct clocks *c = &m->clocks;

	c->has_kvmclock = !vm_get_clock(m->vm, &c->kvmclock);
	c->has_tsc = !vcpu_get_tsc(m->cpu[0].vcpu, &c->tsc);
}

static void start_clocks(struct machine *m)
{
	const struct clocks *c = &m->clocks;
	uint64_t tsc;

	if (c->has_tsc && !vcpu_get_tsc(m->cpu[0].vcpu, &tsc))
		for (unsigned i = 0; i < m->ncpus; i++)
			if (vcpu_move_tsc(m->cpu[i].vcpu, c->tsc - tsc))
				break; /* this KVM cannot: not the first either */
	if (c->has_kvmclock)
		(void)vm_set_clock(m->vm, c->kvmclock);
	for (unsigned i = 0; i < m->ncpus; i++)
		(void)vcpu_was_paused(m->cpu[i].vcpu); /* not every guest has asked to be told */
}

int machine_pause(struct machine *m, struct err *err)
{
	uint64_t until = clock_ns() + PAUSE_S * 1000000000ull;
	int error;

	if (m->paused)
		return 0;
	set_hold(m, true);
	kick_all(m);
	error = wait_stopped(m);
	if (error) {
		set_hold(m, false);
		return err_set(err, error, "a vCPU did not leave the guest within %d s", STOP_S);
	}
	stop_clocks(m);
	error = devices_pause(m->devices, until, err);
	if (error) {
		start_clocks(m);
		set_hold(m, false);
		return error;
	}
	m->paused = true;
	return 0;
}

void machine_resume(struct machine *m)
{
	if (!m->paused)
		return;
	m->paused = false;
	start_clocks(m);
	devices_resume(m->devices);
	set_hold(m, false);
}

/* What the user asks for. */

void machine_reset(struct machine *m)
{
	raise_event(m, MACHINE_RESET, MACHINE_RESET_ASKED, NULL);
}

void machine_net_status(struct machine *m, struct net_status *out)
{
	devices_net_status(m->devices, out);
}

void machine_resize(struct machine *m, uint16_t cols, uint16_t rows)
{
	devices_resize(m->devices, cols, rows);
}

void machine_power_button(struct machine *m)
{
	arch_board_power_button(m->board);
}

int machine_nmi(struct machine *m, struct err *err)
{
	int error = vm_nmi(m->vm, vcpu_index(m->cpu[0].vcpu));

	if (error == -EAGAIN)
		return err_set(err, error, "the guest takes no NMI: its local APIC is off");
	return error ? err_sys(err, error, "KVM_SIGNAL_MSI") : 0;
}

int machine_sysrq(struct machine *m, char key, struct err *err)
{
	int error = arch_board_sysrq(m->board, key);

	if (error == -ENOTCONN)
		return err_set(err, error,
		               "nothing in the guest has opened ttyS0, so its kernel does not listen there");
	return error ? err_set(err, error, "the guest does not read ttyS0: its receive buffer is full") : 0;
}

const char *machine_cpu_error(const struct machine *m)
{
	return m->cpu_error.msg;
}

void machine_dump(struct machine *m, unsigned index, FILE *to)
{
	arch_cpu_dump(m->cpu[index].vcpu, &m->mem, to);
}
