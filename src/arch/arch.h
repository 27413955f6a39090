/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef ARCH_ARCH_H
#define ARCH_ARCH_H

#include "base/err.h"
#include "bus/event.h"
#include "bus/gmem.h"
#include "kvm/vcpu.h"
#include "kvm/vm.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* All that the machine asks of a processor architecture. Builder's thread unless it says otherwise. */

#define ARCH_MAX_CPUS 254
#define ARCH_COMS     4

/* A kernel, its initrd and its command line, opened and checked before any VM exists; they serve every boot. */
struct arch_image;

struct arch_image_config {
	const char *kernel;  /* path */
	const char *initrd;  /* path, or NULL */
	const char *cmdline; /* whole */
};
int arch_image_open(const struct arch_image_config *cfg, struct arch_image **out, struct err *err);
void arch_image_free(struct arch_image *im); /* NULL is fine */

/* An initrd that is made, not read: @write puts @size bytes into guest memory at every boot; 0 or -errno with a text.
 */
struct arch_initrd {
	uint64_t size;
	int (*write)(void *opaque, uint8_t *to, struct err *err);
	void *opaque;
};
void arch_image_set_initrd(struct arch_image *im, const struct arch_initrd *initrd);

/*
 * Where the kernel's file @fd (borrowed) has the kernel proper in compressed
 * form, which the guest would unpack before it can start. Returns false where
 * there is none, or where it was replaced already.
 */
struct arch_packed {
	int fd;
	uint64_t offset, len;
};
bool arch_image_packed(const struct arch_image *im, struct arch_packed *out);

/* Boots that kernel proper, @size bytes in @fd: takes @fd over, or returns an error and boots what it had before. */
int arch_image_set_unpacked(struct arch_image *im, int fd, uint64_t size, struct err *err);

/* The kernel's release ("6.1.0-9-amd64"), "" where it does not say. */
const char *arch_image_version(const struct arch_image *im);
bool arch_image_is_linux(const struct arch_image *im);

/* Where @bytes of RAM go (not yet mapped); refuses what cannot be. */
int arch_ram(uint64_t bytes, struct gmem *mem, struct err *err);

/* Fills in the addresses KVM needs for itself. */
void arch_vm_config(struct vm_config *cfg);

/* The board: every chip, on the buses of @vm. */
struct arch_board;
struct con;

struct arch_board_config {
	struct vm *vm;
	struct gmem *mem;
	struct bus *ports, *mmio;
	unsigned ncpus;
	struct con *com[ARCH_COMS]; /* NULL: unplugged */
	struct guest_events events;
};
int arch_board_new(const struct arch_board_config *cfg, struct arch_board **out, struct err *err);
void arch_board_free(struct arch_board *b); /* NULL is fine; before the VM, its buses and the consoles */

/* Puts the image and the firmware's tables into RAM. */
int arch_board_load(struct arch_board *b, const struct arch_image *im, struct err *err);

/* Makes @v the board's CPU of its index, ready to run: the first one at the image's entry. */
int arch_board_cpu(struct arch_board *b, struct vcpu *v, struct err *err);

/* The bus that PCI devices go on, and the line of interrupt pin @pin (1 to 4) of function @devfn there. */
struct pci_bus *arch_board_pci(struct arch_board *b);
struct irq arch_board_pci_irq(struct arch_board *b, uint8_t devfn, unsigned pin);

/* The first slot that is free for devices. */
#define ARCH_PCI_FIRST_SLOT 2

/* The power button. Any thread. */
void arch_board_power_button(struct arch_board *b);

/* Linux' "magic SysRq" @key, as a serial terminal sends it: a break and the key on COM1. As uart_break(). Any thread.
 */
int arch_board_sysrq(struct arch_board *b, char key);

/* Registers and the code around the instruction pointer, for a human. On the vCPU's thread. */
void arch_cpu_dump(struct vcpu *v, const struct gmem *mem, FILE *to);

/*
 * Can this host run Linux guests? 1 yes, 0 no (it only interprets guest
 * kernel code), or -errno. Quick where the processor says so itself.
 */
int arch_can_run_linux(struct err *err);

#endif
