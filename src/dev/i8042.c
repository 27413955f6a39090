// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * How it works
 *
 * The status never changes. The input buffer is empty, so a driver about to
 * send (a reset, say) never waits. The output buffer is full, however often it
 * is read: that is how a driver learns at once that there is no controller to
 * speak of. Linux does not even ask when the FADT leaves out the 8042 flag;
 * with acpi=off it reads 16 bytes and says "No controller found".
 */
#include "dev/i8042.h"

#define PORT_COMMAND  4

#define STATUS_OUTPUT 0x01 /* output buffer full */
#define STATUS_SYSTEM 0x04 /* self-test passed */
#define STATUS_UNLOCK 0x10 /* keyboard not locked */

/* Commands 0xf0-0xff pulse the output port's lines whose bit is 0; line 0 is the reset. */
#define COMMAND_PULSE 0xf0
#define PULSE_RESET   0x01

uint8_t i8042_read(unsigned off)
{
	if (off == PORT_COMMAND)
		return STATUS_OUTPUT | STATUS_SYSTEM | STATUS_UNLOCK;
	return 0xff;
}

void i8042_write(const struct guest_events *events, unsigned off, uint8_t val)
{
	if (off == PORT_COMMAND && (val & (COMMAND_PULSE | PULSE_RESET)) == COMMAND_PULSE)
		events->raise(events->opaque, GUEST_RESET, 0);
}
