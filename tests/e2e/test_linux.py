# SPDX-License-Identifier: GPL-2.0-or-later
"""Debian's kernels as guests. The initrd's /init (the file init here) does what the parameter t= says."""
import collections
import hashlib
import os
import random
import re
import signal
import subprocess
import time

import pytest

import images
from vm import CACHE, PATIENCE

EMULATED = "QEMU TCG" in open("/proc/cpuinfo").read()

# What the lab's emulated processor makes Linux warn of under any VMM (QEMU's too): XSETBV is not intercepted there.
LAB_WARNING = r"-{12}\[ cut here \](?:.*\n)(?:.*XSAVE consistency problem.*\n)(?:.*\n)*?(?:.*CPUID\[0d, 1c\].*\n)"

# What Linux warns of on flawed processors.
CPU_FLAW = r"Spectre|RETBleed|MDS|TAA|MMIO Stale Data|SRSO|L1TF|SRBDS|GDS|ITS|TSA|VMSCAPE|RFDS"

# What it says on a machine that has too much to do; a stall or a lockup is another matter.
SLOW_HOST = "hrtimer: interrupt took|perf: interrupt took|sched: RT throttling|hogged CPU"

# In emulation a processor may stand still for seconds between two readings of its clocks.
SLOW_CLOCKS = "clocksource: |sched_clock: Marking unstable"

# What it finds instead of a keyboard controller when it may not ask ACPI.
NO_KEYBOARD = r"i8042: Can't read CTR|i8042: probe of i8042 failed"


def boot(kvm, kernel, what, *args, params="quiet", **how):
    return kvm("-k", kernel, "-i", images.initrd(), "-p", f"{params} t={what}".strip(), *args, **how)


def small(kvm, what, *args, **how):
    """The quickest way to /init, for what does not depend on kernel and memory."""
    return boot(kvm, images.vmlinux(), what, "-m", 256, *args, **how)


def facts(vm):
    """{key: [value, …]} of the lines "@key value"."""
    got = collections.defaultdict(list)
    for key, value in re.findall(r"^@(\w+) ?(.*?) *$", vm.out.text(), re.M):
        got[key].append(value)
    return got


def check_quiet(f):
    """Nothing to worry about in the guest's log."""
    log = "".join(line + "\n" for line in f["warning"])
    known = f"{CPU_FLAW}|{NO_KEYBOARD}|{SLOW_HOST}"
    if EMULATED:
        log = re.sub(LAB_WARNING, "", log)
        known += f"|{SLOW_CLOCKS}"
    lines = [re.sub(r"^\[ *[\d.]+\] *", "", line) for line in log.splitlines()]
    assert not [line for line in lines if line and not re.search(known, line)]


def check_cpus(f, n):
    """One socket of n cores with a thread each, all online; paravirtual clock (or a true TSC), TSC deadline timer."""
    everyone = f"0-{n - 1}" if n > 1 else "0"
    assert f["nproc"] == [str(n)]
    assert f["online"] == f["present"] == [everyone]
    assert sorted(f["cpu"]) == sorted(f"0 {i} {i} {everyone}" for i in range(n))
    assert f["clocksource"][0] in ("kvm-clock", "tsc")
    assert f["clockevent"] == ["lapic-deadline"]


def check_memory(f, mib):
    """The map's usable ranges and the hole below 1 MiB are all of it, and the kernel keeps most."""
    ranges = [[int(x, 16) for x in re.findall("0x([0-9a-f]+)", line)] for line in f["e820"] if "usable" in line]
    usable = sum(last - first + 1 for first, last in ranges)
    hole = (1 << 20) - (ranges[0][1] + 1)
    assert ranges[0][0] == 0 and ranges[1][0] == 1 << 20
    assert usable + hole == mib << 20
    total = int(f["memtotal"][0].split()[1]) >> 10
    assert mib * 0.8 - 64 < total < mib


def check_devices(f):
    assert f["ports"] == ["4"]
    assert "0000:00:00.0 0x1b36 0x0008" in f["pci"]
    assert "0000:00:01.0 0x1b36 0x0011" in f["pci"]


def check_clock(f, before):
    assert int(before) - 1 <= int(f["date"][0]) <= time.time() + 1


def check_all(vm, ncpus, mib, before):
    f = facts(vm)
    assert f["reported"], vm.story()
    check_quiet(f)
    check_cpus(f, ncpus)
    check_memory(f, mib)
    check_devices(f)
    check_clock(f, before)
    return f


def default_mib():
    half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return min(1024, (half >> 21) * 2)


# Kernels, processors, memory.


@pytest.mark.linux
def test_defaults(kvm):
    """bzImage, which we unpack and keep, one vCPU, the default memory; nothing on stderr."""
    before = time.time()
    vm = boot(kvm, images.bzimage(), "report", params="")
    vm.ends("poweroff", 0)
    f = check_all(vm, 1, default_mib(), before)
    version = os.path.basename(images.bzimage()).removeprefix("vmlinuz-")
    assert f["uname"] == [f"Linux {version} x86_64"]
    assert f["cmdline"] == ["console=ttyS0 pci=noearly panic=-1 t=report"]
    assert f["loader"] == ["176"]  # the PVH entry's own mark
    assert vm.err.text() == ""
    st = os.stat(images.bzimage())
    kept = os.path.join(CACHE, "kvm", f"{st.st_dev:x}-{st.st_ino:x}.elf")
    assert open(kept, "rb").read(4) == b"\x7fELF"


@pytest.mark.linux
def test_padded_bzimage_and_power_button(kvm):
    """64-bit entry, with KASLR; 2 vCPUs; SIGTERM is a power button to a guest that looks at it."""
    before = time.time()
    vm = boot(kvm, images.padded_bzimage(), "button", "-c", 2, "--unpack=off")
    vm.out.wait_for("^@ready")
    vm.signal(signal.SIGTERM)
    vm.ends("poweroff", 0)
    f = check_all(vm, 2, default_mib(), before)
    assert f["input"] == ["Power Button"]
    assert f["pressed"]
    assert f["loader"] != ["176"]


@pytest.mark.linux
def test_pvh_and_memory_above_4_gib(kvm):
    """ELF through its PVH note; 3500 MiB are on both sides of the hole; 4 vCPUs."""
    before = time.time()
    vm = boot(kvm, images.vmlinux(), "report", "-m", 3500, "-c", 4)
    vm.ends("poweroff", 0)
    f = check_all(vm, 4, 3500, before)
    assert any("0x0000000100000000-" in line for line in f["e820"])
    assert f["loader"] == ["176"]  # the PVH entry's own mark


@pytest.mark.linux
def test_elf_64_bit_entry(kvm):
    """ELF without a PVH note; 9 vCPUs."""
    before = time.time()
    vm = boot(kvm, images.vmlinux_without_note(), "report", "-m", 256, "-c", 9)
    vm.ends("poweroff", 0)
    f = check_all(vm, 9, 256, before)
    assert f["loader"] != ["176"]


def load_kvm_amd(npt):
    subprocess.run(["modprobe", "-r", "kvm_amd"], check=True)
    subprocess.run(["modprobe", "kvm_amd", f"npt={npt}"], check=True)


@pytest.fixture
def pae_works():
    """
    The lab's emulated processor sets a reserved bit (Accessed) in a nested guest's PAE directory pointers, at which
    KVM then takes offence (#GP when CR4 is written). Shadow page tables are out of its reach.
    """
    if EMULATED:
        load_kvm_amd(0)
    yield
    if EMULATED:
        load_kvm_amd(1)


@pytest.mark.linux
@pytest.mark.parametrize("how", ["auto", pytest.param("off", marks=pytest.mark.long)])
def test_32_bit_kernel(kvm, pae_works, how):
    """Debian's 686-pae, unpacked (PVH entry) and as a bzImage (32-bit entry); 2 vCPUs. Its /init is init32.c."""
    vm = kvm("-k", images.bzimage("i386-pae"), "-i", images.initrd32(), "-m", 512, "-c", 2, "-p", "quiet",
             f"--unpack={how}")
    vm.ends("poweroff", 0)
    f = facts(vm)
    assert f["reported"], vm.story()
    assert re.match(r"Linux version \S+-686-pae ", f["uname"][0])
    assert f["cmdline"] == ["console=ttyS0 pci=noearly panic=-1 quiet"]
    assert f["online"] == ["0-1"]
    assert f["clocksource"][0] in ("kvm-clock", "tsc")
    assert f["clockevent"] == ["lapic-deadline"]
    assert 400 << 10 < int(f["memtotal"][0].split()[1]) < 512 << 10
    assert not re.search(r"^<\d+>.*(BUG:|lockup|stall|ACPI.*[Ee]rror)", vm.out.text(), re.M)


@pytest.mark.linux
def test_acpi_off(kvm):
    """The MP table gives all CPUs; what cannot switch itself off resets."""
    vm = boot(kvm, images.vmlinux(), "report", "-m", 256, "-c", 4, "--no-reboot", params="quiet acpi=off reboot=k")
    vm.ends("reset", 0)
    f = facts(vm)
    assert f["reported"], vm.story()
    check_quiet(f)
    check_cpus(f, 4)
    assert f["ports"] == ["4"]


def start_with(kvm, mib):
    """Debian's kernel and our initrd in so much memory: (how much is needed, if this is too little; what it prints)."""
    vm = boot(kvm, images.bzimage(), "report", "-m", mib, "--no-reboot", params="earlyprintk=ttyS0")
    if vm.end() != 1:
        return None, vm.out.text()
    told = re.fullmatch(rf"kvm: .*at least (\d+) MiB.*, not {mib}\n", vm.err.text())
    assert told and vm.told() == {"reason": "error", "code": 1}, vm.story()
    return int(told[1]), vm.out.text()


@pytest.mark.linux
def test_least_memory(kvm):
    """What is refused names the least with which the kernel starts (if only to say that it has too little)."""
    least, text = start_with(kvm, 64)
    assert least and not text
    assert start_with(kvm, least - 1)[0] == least
    needed, text = start_with(kvm, least)
    assert not needed and "Linux version" in text


# Ends.


@pytest.mark.linux(boots=2, weight=6)
def test_reboot_and_stopped_reader(kvm):
    """
    Nobody reads while the guest prints 80 kB and resets: it is not held up. Then the reader comes back: what
    is printed from there on is complete, and it is told that something is missing.
    """
    vm = small(kvm, "choose", "-v", stdin="pipe", pipesize=4096)
    vm.out.wait_for("^@ready")
    vm.out.hold()
    vm.type("flood\n")
    vm.err.wait_for("the guest resets")
    vm.out.hold(False)
    vm.out.wait_for("^@ready", 2)
    vm.type("end\n")
    vm.ends("poweroff", 0)
    text = vm.out.text()
    assert text.count("@begin choose\n") == 2
    assert re.search(r"^@ready\n(.*\n)?@word end\n@end choose\n", text, re.M)  # the tty echoes "end"
    numbers = [int(n) for n in re.findall(r"^(1\d{5})$", text, re.M)]
    assert numbers[:8000] == list(range(100000, 108000))
    dropped = re.search(r"kvm: (\d+) bytes of console output were dropped", vm.err.text())
    assert dropped, vm.story()


@pytest.mark.long
@pytest.mark.linux
def test_panic(kvm):
    """A panic's text, then a reset."""
    vm = small(kvm, "panic")
    vm.ends("panic", 250)
    assert vm.err.text() == "kvm: the guest's kernel panicked: Kernel panic - not syncing: sysrq triggered crash\n"


@pytest.mark.long
@pytest.mark.linux
def test_panic_event(kvm):
    """panic=0: the kernel stays where it is, but pvpanic tells."""
    vm = small(kvm, "pvpanic", params="quiet panic=0")
    vm.ends("panic", 250)
    assert re.fullmatch(r"kvm: the guest's kernel panicked: Kernel panic - not syncing: Attempted to kill init! "
                        r"exitcode=0x00000300\n", vm.err.text()), vm.story()


@pytest.mark.long
@pytest.mark.linux
def test_init_exits(kvm):
    vm = small(kvm, "exit", "--no-reboot")
    vm.ends("panic", 250)
    assert "Kernel panic - not syncing: Attempted to kill init!" in vm.err.text()


@pytest.mark.long
@pytest.mark.linux
def test_reboot_by_triple_fault(kvm):
    vm = small(kvm, "reboot", params="quiet reboot=t")
    vm.ends("triple-fault", 251)
    assert re.match(r"kvm: triple fault of vCPU 0\n", vm.err.text())
    assert re.search(r"rip [0-9a-f]{16}", vm.err.text()), vm.story()


@pytest.mark.long
@pytest.mark.linux
def test_timeout(kvm):
    vm = small(kvm, "wait", "--timeout", 3)
    vm.ends("timeout", 252)
    assert vm.err.text() == "kvm: timed out after 3 s\n"


# Console and signals.


@pytest.mark.linux
def test_paste_and_deaf_guest(kvm):
    """10 kB arrive as they are; SIGTERM to a guest without the button module."""
    data = random.Random(1).randbytes(10240)
    vm = small(kvm, "paste", "--grace", 2, stdin="pipe")
    vm.out.wait_for("^@ready")
    vm.type(data)
    vm.out.wait_for("^@sum .*\n")
    assert facts(vm)["sum"] == [hashlib.sha256(data).hexdigest() + " -"]
    vm.signal(signal.SIGTERM)
    vm.ends("signal", 143)
    assert vm.err.text() == "kvm: the guest did not switch itself off within 2 s of the power button\n"


@pytest.mark.linux
def test_closed_stdin_and_two_signals(kvm):
    vm = small(kvm, "wait", "-v", stdin="closed")
    vm.out.wait_for("^@ready")
    vm.signal(signal.SIGINT)
    vm.err.wait_for("pressing the power button")
    vm.signal(signal.SIGINT)
    vm.ends("signal", 130)


@pytest.mark.long
@pytest.mark.linux
def test_closed_stdout(kvm, tmp_path):
    """Nobody sees this guest: it powers off if all is well, else it resets."""
    vm = small(kvm, "blind", "-c", 2, "--no-reboot", "--log", tmp_path / "log", "-v", stdout="closed")
    vm.ends("poweroff", 0)
    assert (tmp_path / "log").read_text() == vm.err.text()


# The long ones.


@pytest.mark.long
@pytest.mark.linux(boots=51)
def test_50_reboots(kvm):
    vm = small(kvm, "choose", stdin="pipe", patience=3 * PATIENCE)  # 7 s each in the lab
    for n in range(50):
        vm.out.wait_for("^@ready", n + 1)
        vm.type("reboot\n")
    vm.out.wait_for("^@ready", 51)
    vm.type("end\n")
    vm.ends("poweroff", 0)


@pytest.mark.long
@pytest.mark.linux(boots=2)
@pytest.mark.parametrize("ncpus", [1, 2, 4, 9, 16, 48])
@pytest.mark.parametrize("kernel", [images.bzimage, images.vmlinux, images.vmlinux_without_note])
def test_cpus(kvm, ncpus, kernel):
    before = time.time()
    # All CPUs spin together while one of them patches code; in the lab they take turns on a single emulated one.
    patience = "quiet watchdog_thresh=60" if EMULATED else "quiet"
    vm = boot(kvm, kernel(), "report", "-c", ncpus, "-m", 1024, params=patience)
    vm.ends("poweroff", 0)
    check_all(vm, ncpus, 1024, before)


@pytest.mark.long
@pytest.mark.linux
@pytest.mark.parametrize("mib", [128, 1023, 3071, 3072, 3073, 4096, 4097])
def test_memory(kvm, mib):
    before = time.time()
    vm = boot(kvm, images.bzimage(), "report", "-m", mib)
    vm.ends("poweroff", 0)
    check_all(vm, 1, mib, before)


@pytest.mark.long
@pytest.mark.linux
@pytest.mark.parametrize("ncpus", [1, 9])
def test_acpi_off_cpus(kvm, ncpus):
    vm = boot(kvm, images.bzimage(), "report", "-m", 256, "-c", ncpus, "--no-reboot", params="quiet acpi=off reboot=k")
    vm.ends("reset", 0)
    check_quiet(facts(vm))
    check_cpus(facts(vm), ncpus)


@pytest.mark.long
@pytest.mark.linux
@pytest.mark.parametrize("how", "kbpat")
def test_reset_path(kvm, how):
    """Each way that Linux knows: keyboard controller, BIOS, PCI, ACPI, triple fault."""
    vm = small(kvm, "reboot", "--no-reboot", params=f"quiet reboot={how}")
    vm.ends(*(("triple-fault", 251) if how == "t" else ("reset", 0)))
