/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef DEV_UART_H
#define DEV_UART_H

#include "base/err.h"
#include "bus/irq.h"
#include "console/con.h"

#include <stdint.h>

/*
 * A 16550A UART (TI PC16550D data sheet, section 8): 16-byte receive FIFO,
 * transmitter always empty, all registers, loopback mode. Eight ports wide.
 * Registers: any thread; con callbacks: the console's loop.
 */
struct uart;

/*
 * @irq is copied; @con is attached to and must outlive the uart. NULL: nothing
 * is plugged in, no modem line is on and bytes sent are lost. Input is taken
 * once the guest has raised RTS, or polls LSR for it (see uart.c).
 */
int uart_new(const char *name, const struct irq *irq, struct con *con, struct uart **out, struct err *err);
void uart_free(struct uart *u); /* NULL is fine */

/*
 * The line breaks, and then sends @then: both arrive next to each other, even
 * where the FIFO is full. -ENOTCONN: the guest does not receive at all (RTS is
 * low); -EBUSY: it has yet to read an earlier break. Any thread.
 */
int uart_break(struct uart *u, uint8_t then);

uint8_t uart_read(struct uart *u, unsigned off);
void uart_write(struct uart *u, unsigned off, uint8_t val);

#endif
