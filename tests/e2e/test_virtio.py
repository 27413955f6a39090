# SPDX-License-Identifier: GPL-2.0-or-later
"""virtio devices under Linux's drivers, with the interrupts that a kernel may be told to use."""
import hashlib
import random
import re

import pytest

from test_linux import check_quiet, facts, small

SYSRQ = 0x0f  # ^O on hvc0 is a sysrq prefix to Linux

# With noapic no interrupt of ACPI's is left, and Linux says so.
NO_ISA_IRQS = "acpi-ged|setting ELCR"


def check_rng(f):
    """20 kB have come, and they are not the same twice."""
    assert f["rng"] == ["virtio_rng.0"]
    got = [re.match("20480 ([0-9a-f]{64})", words) for words in f["random"]]
    assert all(got) and len(got) >= 2, f["random"]
    assert len({match[1] for match in got}) == len(got)


@pytest.mark.linux
def test_hvc0_and_reloading(kvm):
    """
    hvc0: 10 kB in and 105 kB out, as they are. Then each driver is unloaded and loaded 20 times, and used again.
    """
    data = bytes(b for b in random.Random(2).randbytes(20000) if b != SYSRQ)[:10240]
    vm = small(kvm, "hvc", "-c", 2, "--console", "virtio", stdin="pipe")
    vm.out.wait_for("^@ready")
    vm.type(data)
    vm.out.wait_for("^@sum .*\n")
    vm.ends("poweroff", 0)
    f = facts(vm)
    check_quiet(f)
    assert f["sum"] == [hashlib.sha256(data).hexdigest() + " -"]
    flood = vm.out.text().split("@flood\n")[1].split("@flooded")[0]
    assert flood == "".join(f"{n}\n" for n in range(100000, 115000))
    assert "dropped" not in vm.err.text()
    assert f["reloaded"] == ["20"]
    check_rng(f)
    assert f["again"] == ["works"]


@pytest.mark.linux
@pytest.mark.parametrize("params, cpus, irqs, console", [
    ("nox2apic maxcpus=2", 4, "PCI-MSI", "serial"),
    ("pci=nomsi", 2, "IO-APIC", "serial"),
    pytest.param("acpi=off pci=nomsi reboot=k", 2, "IO-APIC", "serial", marks=pytest.mark.long),
    pytest.param("noapic", 1, "PCI-MSI", "virtio", marks=pytest.mark.long),  # ttyS0 has no interrupt then: ACPI says that there is no 8259
])
def test_interrupts(kvm, params, cpus, irqs, console):
    """Requests are answered by interrupts of the kind that the kernel was left with."""
    vm = small(kvm, "virtio", "-c", cpus, "--no-reboot", "--console", console, params=f"quiet {params}")
    vm.end()
    f = facts(vm)
    assert f["end"] == ["virtio"], vm.story()
    if params == "noapic":
        f["warning"] = [line for line in f["warning"] if not re.search(NO_ISA_IRQS, line)]
    check_quiet(f)
    check_rng(f)
    assert f["nproc"] == [str(min(cpus, 2))]
    kinds = [line.split() for line in f["virtio_irq"]]
    assert kinds and all(irqs in kind for kind in kinds), f["virtio_irq"]
    assert sum(int(n) for kind in kinds for n in kind[1:1 + min(cpus, 2)]) > 0
