# SPDX-License-Identifier: GPL-2.0-or-later
"""
The control socket, and the commands that use it. Tiny guests, but for the last part, which pauses Linux.

    /usr/bin/pytest-3 tests/e2e/test_control.py
"""
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

import pytest

import vm
from guests import guest

SAY = "#include \"guest.h\"\n.code32\n.globl guest\nguest:\n"
SOURCES = {
    # Counts, a line each, as fast as the port takes it.
    "count": SAY + "xor %eax, %eax\n1: call hex\npush %eax\nmov $'\\n', %al\ncall putc\npop %eax\ninc %eax\njmp 1b\n",
    # The same, but each character out by an interrupt.
    "count-irq": SAY + """
        mov $0x34, %eax; mov $4, %ecx; mov $handler, %edx; call irq_route
        OUT(COM1 + 4, 0x0b); OUT(COM1 + 1, 2)
1:      sti; hlt; cli; jmp 1b
handler: push %eax; push %edx
        IN(COM1 + 2); EQB($2, %al)
        mov n, %eax; and $63, %eax; mov digits(%eax), %al; incl n; call putc
        pop %edx; pop %eax; RETURN_FROM_IRQ
        .data
digits: .ascii "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-"
n:      .long 0
""",
    # Looks at its TSC all the time, and says when it has jumped by 2^31.
    "tsc": SAY + """
        SAY("ready\\n"); rdtsc; mov %eax, %esi; mov %edx, %edi
1:      mov $COM1 + 7, %edx; in %dx, %al
        rdtsc; mov %eax, %ebx; mov %edx, %ecx; sub %esi, %eax; sbb %edi, %edx
        mov %ebx, %esi; mov %ecx, %edi
        test %edx, %edx; jnz 2f; test %eax, %eax; jns 1b
2:      SAY("jump"); call hex; mov %edx, %eax; call hex; SAY("\\n"); rdtsc; mov %eax, %esi; mov %edx, %edi; jmp 1b
""",
    # An NMI ends it.
    "nmi": SAY + """
        mov $2, %eax; mov $23, %ecx; mov $handler, %edx; call irq_route
        SAY("ready\\n")
1:      hlt; jmp 1b
handler: SAY("nmi\\n"); EXIT(7)
""",
    # Prints what comes after a break, in brackets, and everything else as it is.
    "sysrq": SAY + """
        OUT(COM1 + 2, 7); OUT(COM1 + 4, 3); SAY("ready\\n")
1:      IN(COM1 + 5); mov %al, %bl; test $1, %al; jz 1b
        IN(COM1); test $0x10, %bl; jnz 2f; call putc; jmp 1b
2:      EQB($0, %al); SAY("[")
3:      IN(COM1 + 5); test $1, %al; jz 3b
        IN(COM1); call putc; mov $']', %al; call putc; jmp 1b
""",
    # Is up, says so, and nothing else, whatever happens.
    "deaf": SAY + "SAY(\"up\\n\")\n1: cli; hlt; jmp 1b\n",
    # Fills its console, then switches off.
    "talker": SAY + "mov $30000, %ecx\n1: SAY(\"0123456789\\n\"); loop 1b\nOUT(PM, PM_S5)\n2: hlt; jmp 2b\n",
    # Is up, and then resets itself, over and over.
    "resets": SAY + "SAY(\"up\\n\")\nmov $0xfe, %al; out %al, $0x64\n1: hlt; jmp 1b\n",
}
GUESTS = os.path.join(vm.TOP, "tests", "guests")
pytestmark = pytest.mark.kvm


@pytest.fixture(scope="session")
def guests(tmp_path_factory):
    """The path of a guest from SOURCES."""
    out = tmp_path_factory.mktemp("guests")
    for name, text in SOURCES.items():
        (out / (name + ".S")).write_text(text)
        objects = [str(out / (name + ".o")), str(out / "lib.o")]
        for source, o in zip((out / (name + ".S"), os.path.join(GUESTS, "lib.S")), objects):
            subprocess.run(["gcc", "-m32", "-ffreestanding", "-nostdinc", "-I", GUESTS, "-c", "-o", o, source], check=True)
        subprocess.run(["ld", "-m", "elf_i386", "-n", "-s", "--gc-sections", "--build-id=none", "-z", "noexecstack",
                        "--no-warn-rwx-segments", "-T", os.path.join(GUESTS, "guest.ld"), "-o", out / name, *objects],
                       check=True)
    return lambda name: str(out / name)


@pytest.fixture(autouse=True)
def rundir(tmp_path, monkeypatch):
    """A runtime directory of the test's own, empty at its end but for what was killed."""
    top = tmp_path / "runtime"
    top.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(top))
    return top / "kvm"


def ctl(*args, status=0, within=5.0):
    """A command that is to end by itself, in time; its output."""
    start = time.monotonic()
    r = subprocess.run([vm.KVM, *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    took = time.monotonic() - start
    assert r.returncode == status, f"{args}: {r.returncode}: {r.stdout}{r.stderr}"
    assert took < within, f"{args}: {took:.1f} s"
    return r.stdout + r.stderr


def listed():
    return {m["name"]: m for m in json.loads(ctl("list", "--json"))}


def state(name="m"):
    return listed()[name]["state"]


def silent(*args, **how):
    assert ctl(*args, **how) == ""


class Client:
    """A connection, without the commands in between."""

    def __init__(self, path):
        self.s = socket.socket(socket.AF_UNIX)
        self.s.settimeout(20)
        self.s.connect(str(path))
        self.f = self.s.makefile("r")

    def hear(self):
        line = self.f.readline()
        return json.loads(line) if line else None

    def ask(self, **rq):
        self.s.sendall(json.dumps(rq).encode() + b"\n")
        return self.hear()

    def close(self):
        self.f.close()
        self.s.close()


@pytest.fixture
def client(rundir):
    made = []

    def connect(name="m"):
        c = Client(rundir / (name + ".sock"))
        made.append(c)
        hello = c.hear()
        assert (hello["kvm"], hello["name"]) == (1, name)
        return c

    yield connect
    for c in made:
        c.close()


@pytest.fixture
def machine(kvm, guests):
    """machine(GUEST, OPTIONS…): one that runs, and has said something."""
    def start(name, *args, called="m", await_="^.", **how):
        m = kvm("-k", guests(name), "-m", 16, "--name", called, *args, **how)
        if m.out:
            m.out.wait_for(await_)
        else:
            vm.wait_until(lambda: called in listed())
        return m
    return start


# list

def user_network():
    """Is it built in?"""
    return "libslirp" in ctl("version")


def test_list(machine, rundir):
    assert ctl("list").splitlines() == ["NAME                 PID STATE     UPTIME CPUS     MEM ADDRESS         KERNEL"]
    assert listed() == {}
    assert not rundir.exists()
    m = machine("deaf", "-c", 2, called="web-10")
    n = machine("deaf", "-n", "none", called="web-9")
    first, second = json.loads(ctl("list", "--json"))
    assert (first["name"], second["name"]) == ("web-9", "web-10")
    assert second["pid"] == m.process.pid and second["state"] == "running"
    assert (second["cpus"], second["mem"], second["boots"]) == (2, 16 << 20, 1)
    assert (first["address"], second["address"]) == ("none", "10.0.2.15" if user_network() else "none")
    assert 0 < second["uptime"] < 60 and second["kernel"].endswith("/deaf")
    text = ctl("list").splitlines()
    assert re.fullmatch(r"web-9 +%d running +\d+s +1 +16M none +/\S+/deaf" % n.process.pid, text[1])
    assert oct(rundir.stat().st_mode)[-4:] == "0700"
    with open("/dev/full", "w") as full:
        assert subprocess.run([vm.KVM, "list"], stdout=full, stderr=subprocess.DEVNULL).returncode == 1


def test_default_name(kvm, guests):
    m = kvm("-k", guests("deaf"))
    m.out.wait_for("up")
    assert listed()["vm-%d" % m.process.pid]["mem"] >> 20 <= 1024


def test_usage(machine):
    for args in ["list", "x"], ["list", "-x"], ["pause", "a", "b"], ["sysrq"], ["sysrq", "m", "ab"], ["sysrq", "a", "b", "c"], \
            ["stop", "--all", "m"], ["stop", "--timeout"], ["stop", "--timeout", "x"], ["stop", "-f", "-t", "1"]:
        assert "see `kvm help " in ctl(*args, status=2)
    for command in "list", "stop", "pause", "resume", "reboot", "nmi", "sysrq":
        text = ctl("help", command)
        assert text.startswith("kvm " + command) and len(text.splitlines()) > 2
        assert ctl(command, "--help") == text == ctl(command, "-h")


def test_no_such_machine(machine):
    for command in "stop", "pause", "resume", "reboot", "nmi":
        assert ctl(command, status=1) == "kvm: no machine is running\n"
        assert ctl(command, "x", status=1) == "kvm: there is no machine 'x': none is running\n"
    silent("stop", "--all")
    machine("deaf", called="a")
    silent("pause")  # the only one
    machine("deaf", called="b")
    assert ctl("resume", "x", status=1) == "kvm: there is no machine 'x', but: a, b\n"
    assert "There are a, b" in ctl("resume", status=2)
    assert (state("a"), state("b")) == ("paused", "running")
    silent("stop", "a", "b", "-f")
    assert listed() == {}


# Names

def test_duplicate(machine, kvm, guests, rundir):
    m = machine("count")
    for _ in range(20):
        r = kvm("-k", guests("deaf"), "--name", "m")
        assert r.end() == 1
        assert r.err.text() == f"kvm: m is running already (pid {m.process.pid})\n"
        assert r.out.text() == "" and r.told() == {"reason": "error", "code": 1}
    n = len(m.out.data)
    m.out.wait_for("0000")
    vm.wait_until(lambda: len(m.out.data) > n)
    assert state() == "running"
    assert os.listdir(rundir) == ["m.sock"]


def test_disks_are_found(kvm, guests, tmp_path):
    """32 disks, each a function on the PCI bus; a second machine may not have them, and one that only reads may not either."""
    args = []
    for i in range(32):
        (tmp_path / f"d{i}").write_bytes(bytes(4096))
        args += ["-d", tmp_path / f"d{i}"]
    m = kvm("-k", guests("deaf"), "-m", 16, "--name", "holder", *args)
    m.out.wait_for("^up")
    for more in "", ",ro":
        second = kvm("-k", guests("deaf"), "-m", 16, "-d", f"{tmp_path}/d7{more}")
        second.ends("error", 1)
        assert f"{tmp_path}/d7" in second.err.text() and str(m.process.pid) in second.err.text()


def test_killed(machine, rundir):
    """kill -9 leaves nothing that blocks the next start, and list cleans up."""
    for _ in range(5):
        m = machine("deaf")
        m.process.kill()  # and the next one does not wait until it is gone
        assert os.listdir(rundir) == ["m.sock"]
    m.process.wait()
    assert listed() == {}
    assert os.listdir(rundir) == []


def test_no_directory(kvm, guests, rundir, monkeypatch):
    """Without a runtime directory a machine that has to have a name is refused, any other one warned about."""
    rundir.symlink_to("/tmp")
    m = kvm("-k", guests("deaf"), "--name", "m")
    assert m.end() == 1
    assert m.err.text() == f"kvm: {rundir} is no directory: remove it\n"
    m = kvm("-k", guests("deaf"))
    m.out.wait_for("up")
    m.err.wait_for("\n")
    assert m.err.text() == f"kvm: no control socket: {rundir} is no directory: remove it\n"
    assert "is no directory" in ctl("list", status=1)
    rundir.unlink()
    rundir.mkdir(mode=0o755)
    assert "is open to others" in ctl("list", status=1)
    rundir.chmod(0o700)
    assert listed() == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
def test_other_user(machine, client, rundir):
    """Another user is kept out by the directory, and where that is opened, by the socket."""
    machine("count")
    other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    r = subprocess.run([*other, vm.KVM, "stop", "m"], capture_output=True, text=True)
    assert r.returncode == 1 and "m" not in r.stdout
    for d in [rundir, *rundir.parents][:-1]:
        d.chmod(0o755)
    (rundir / "m.sock").chmod(0o777)
    try:
        talk = ("import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); "
                "s.sendall(b'{\"do\":\"stop\",\"force\":true}\\n'); print(s.recv(100))")
        r = subprocess.run([*other, "/usr/bin/python3", "-c", talk, str(rundir / "m.sock")], capture_output=True, text=True)
        assert r.stdout.strip() in ("b''", "") and ("b''" in r.stdout or "Error" in r.stderr)
        assert client().ask(do="status")["state"] == "running"
    finally:
        rundir.chmod(0o700)
    assert state() == "running"


def test_many_starts(kvm, guests, rundir, tmp_path):
    """A hundred, in threes; each is seen, stopped, and leaves nothing."""
    for _ in range(34):
        ms = [kvm("-k", guests("deaf"), "-m", 16, "--name", f"m{k}", "--status-file", tmp_path / str(k)) for k in range(3)]
        for m in ms:
            m.out.wait_for("up")
        assert sorted(listed()) == ["m0", "m1", "m2"]
        silent("stop", "--all", "--force")
        assert os.listdir(rundir) == []
        for m in ms:
            assert m.end() == 128 + 15


# stop

def test_stop(kvm, machine):
    m = kvm("-k", guest("button"), "--name", "m")
    m.out.wait_for("ready")
    silent("stop", "m")
    m.ends("poweroff", 0)
    assert "pressed" in m.out.text()


def test_stop_at_once_after_start(kvm):
    """The button is pressed before the guest looks, which this guest may not like."""
    for _ in range(10):
        m = kvm("-k", guest("button"), "--name", "m", "--grace", 1)
        vm.wait_until(lambda: "m" in listed())
        ctl("stop")
        assert m.end() in (0, 99, 128 + 15)


def test_stop_that_takes_longer(machine):
    m = machine("deaf", "--grace", 3)
    text = ctl("stop", within=8)
    assert text == ("kvm: m: the guest has been asked to switch itself off; it has 1 s for that "
                    "(kvm stop --force ends it now)\n") or "it has 2 s" in text
    m.ends("signal", 128 + 15)
    assert "did not switch itself off within 3 s" in m.err.text()


def test_stop_with_timeout(machine):
    m = machine("deaf")
    silent("stop", "--timeout", 0)
    assert state() == "stopping"
    for _ in range(3):  # asking politely does not become force
        assert "it has 2" in ctl("stop", "--timeout", ".5", status=1, within=2)
    assert "being stopped" in ctl("pause", status=1)
    silent("stop", "--force")
    m.ends("signal", 128 + 15)


def test_stop_is_waited_for(machine, client):
    """By several clients, one of which has closed its side."""
    m = machine("deaf")
    a, b = client(), client()
    assert a.ask(id=1, do="stop")["grace"] == pytest.approx(30, abs=1)
    assert a.ask(id=2, do="status")["state"] == "stopping"
    assert "waiting" in b.ask(do="stop")
    b.s.shutdown(socket.SHUT_WR)
    silent("stop", "-f")
    assert a.hear() == {"id": 1, "ok": True, "end": "signal"}
    assert b.hear() == {"ok": True, "end": "signal"}
    assert a.hear() is b.hear() is None
    m.ends("signal", 128 + 15)


def test_stop_all_at_once(machine):
    """All have the same time to switch off, not one after the other."""
    ms = [machine("deaf", "--grace", 2, called=f"m{i}") for i in range(3)]
    ctl("stop", "--all", within=5)
    for m in ms:
        m.ends("signal", 128 + 15)


def test_reader_stuck(machine):
    """Nobody reads the console: everything still works."""
    r, w = os.pipe()
    m = machine("count", stdout=w)
    time.sleep(0.5)  # the pipe is full
    for _ in range(3):
        silent("pause")
        assert state() == "paused"
        silent("resume")
    assert state() == "running"
    silent("stop", "--force", within=3)
    m.ends("signal", 128 + 15)
    os.close(r)
    os.close(w)


def test_reader_stuck_at_the_end(machine):
    """The guest has switched off, but its last words are not read: that is said, and force ends it."""
    r, w = os.pipe()
    m = machine("talker", stdout=w)
    vm.wait_until(lambda: state() == "ended")
    assert "its console has yet to read" in ctl("stop", "-t", 1, status=1, within=3)
    for command in "pause", "resume", "reboot", "nmi":
        assert ctl(command, status=1) == "kvm: m: the machine has ended\n"
    silent("stop", "--force", within=3)
    m.ends("poweroff", 0)
    os.close(r)
    os.close(w)


# Wedged

def test_wedged(machine):
    m = machine("deaf")
    os.kill(m.process.pid, signal.SIGSTOP)
    vm.wait_until(lambda: open(f"/proc/{m.process.pid}/stat").read().split(")")[1].split()[0] == "T")
    got = listed()["m"]
    assert (got["state"], got["pid"]) == ("wedged", m.process.pid) and "kill -CONT" in got["why"]
    assert "wedged" in ctl("list") and "kill -CONT" in ctl("list")
    for command in "stop", "pause", "resume", "reboot", "nmi":
        text = ctl(command, status=1)
        assert f"m (pid {m.process.pid}) does not answer" in text and f"kill -CONT {m.process.pid}" in text
    os.kill(m.process.pid, signal.SIGCONT)
    assert state() == "running"  # nothing of that has been kept for later
    assert listed()["m"]["boots"] == 1
    os.kill(m.process.pid, signal.SIGSTOP)
    assert ctl("stop", "--force") == f"kvm: m (pid {m.process.pid}) does not answer: killed\n"
    assert m.process.wait() == -signal.SIGKILL
    assert listed() == {}


def test_several_wedged(machine):
    """They are waited for together, and the others are not kept waiting."""
    ms = [machine("deaf", "--grace", 1, called=f"m{i}") for i in range(5)]
    for m in ms[:4]:
        os.kill(m.process.pid, signal.SIGSTOP)
    assert [m["state"] for m in listed().values()] == ["wedged"] * 4 + ["running"]
    text = ctl("stop", "--all", status=1)
    assert text.count("does not answer") == 4 and "m4" not in text
    for m in ms[:4]:
        os.kill(m.process.pid, signal.SIGCONT)


def test_backlog_full(machine):
    """So many have called a stopped machine that no more get in line."""
    m = machine("deaf")
    os.kill(m.process.pid, signal.SIGSTOP)
    made = []
    path = os.path.join(os.environ["XDG_RUNTIME_DIR"], "kvm", "m.sock")
    for _ in range(900):  # within the usual limit of descriptors
        s = socket.socket(socket.AF_UNIX)
        s.setblocking(False)
        try:
            s.connect(path)
        except BlockingIOError:
            break
        made.append(s)
    assert listed()["m"]["state"] == "wedged"
    os.kill(m.process.pid, signal.SIGCONT)
    vm.wait_until(lambda: state() == "running")
    for s in made:
        s.close()
    silent("stop", "-f")


def test_dying(machine):
    """Commands at the very moment of the end: each ends well, or says why."""
    for i in range(15):
        m = machine("deaf")
        asked = [subprocess.Popen([vm.KVM, c, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                 for c, *more in (["stop", "m"], ["pause", "m"], ["list"], ["reboot", "m"])]
        m.process.send_signal((signal.SIGKILL, signal.SIGQUIT)[i % 2])
        for p in asked:
            out, err = p.communicate(timeout=6)
            assert p.returncode == 0 or err.startswith("kvm: "), (p.args, p.returncode, out, err)
        m.end()


# pause, resume

def is_count(data):
    """Every number is there, once."""
    lines = data.decode().split()
    assert [int(n, 16) for n in lines[:-1]] == list(range(len(lines) - 1))
    return len(lines)


def quiet(m, seconds=0.02):
    """Nothing more comes for a while: what has come. What was printed may take its time to get here on a busy host."""
    n = -1
    while n != len(m.out.data):
        n = len(m.out.data)
        time.sleep(seconds)
    return n


def test_pause(machine):
    m = machine("count", "-c", 4)
    silent("pause")
    silent("pause")
    n = quiet(m, 2)
    time.sleep(1)
    assert len(m.out.data) == n and state() == "paused"
    silent("resume")
    silent("resume")
    vm.wait_until(lambda: len(m.out.data) > n)
    assert state() == "running"
    silent("stop", "-f")
    assert is_count(m.out.data) > 10


@pytest.mark.parametrize("name", ["count", "count-irq"])
def test_pause_200_times(machine, client, name):
    """Under load on the serial port: nothing runs while it is paused, and nothing is lost."""
    m = machine(name, "-c", 2)
    c = client()
    for i in range(200):
        n = len(m.out.data)
        vm.wait_until(lambda: len(m.out.data) > n)
        assert c.ask(id=i, do="pause") == {"id": i, "ok": True}
        time.sleep(i % 4 * 0.005)
        if i % 20 == 19:
            n = quiet(m, 1)
            time.sleep(0.1)
            assert len(m.out.data) == n
        assert c.ask(id=i, do="resume") == {"id": i, "ok": True}
    n = len(m.out.data)
    vm.wait_until(lambda: len(m.out.data) > n)
    silent("stop", "-f")
    if name == "count":
        assert is_count(m.out.data) > 400
    else:
        digits = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-"
        assert m.out.data == (digits * (len(m.out.data) // 64 + 1))[:len(m.out.data)]
    assert "dropped" not in m.err.text()


def test_pause_quickly(machine, client):
    """2000 times without a rest."""
    m = machine("count", "-c", 3)
    c = client()
    c.s.sendall(b'{"do":"pause"}\n{"do":"resume"}\n' * 2000)
    for _ in range(4000):
        assert c.hear() == {"ok": True}
    n = len(m.out.data)
    vm.wait_until(lambda: len(m.out.data) > n)
    silent("stop", "-f")
    is_count(m.out.data)


@pytest.mark.skipif(not re.search(r"\b(vmx|svm)\b", open("/proc/cpuinfo").read()), reason="its KVM has no TSC offset")
def test_tsc_stops(machine):
    m = machine("tsc", "-c", 2, await_="ready")
    silent("pause")
    time.sleep(3)
    silent("resume")
    time.sleep(0.5)
    silent("stop", "-f")
    assert m.out.text() == "ready\n"


def test_stop_while_paused(kvm, machine):
    m = kvm("-k", guest("button"), "--name", "m")
    m.out.wait_for("ready")
    silent("pause")
    silent("stop")
    m.ends("poweroff", 0)
    m = machine("count")
    silent("pause")
    silent("stop", "--force")
    m.ends("signal", 128 + 15)
    for sig in signal.SIGQUIT, signal.SIGTERM:
        m = machine("count", "--grace", 0)
        silent("pause")
        m.signal(sig)
        m.ends("signal", 128 + sig)


def test_timeout_while_paused(machine):
    """It counts on."""
    m = machine("count", "--timeout", 2)
    silent("pause")
    m.ends("timeout", 252)


def test_reboot_while_paused(machine):
    m = machine("deaf", await_="up")
    silent("pause")
    silent("reboot")
    assert (state(), listed()["m"]["boots"]) == ("paused", 2)
    quiet(m)
    assert m.out.text() == "up\n"
    silent("resume")
    m.out.wait_for("up", 2)


def test_input_while_paused(kvm):
    """What is typed meanwhile arrives afterwards."""
    m = kvm("-k", guest("echo"), "-p", "bytes=3000", "--name", "m", stdin="pipe")
    m.out.wait_for(r"\[")
    typed = os.urandom(3000)
    for i in range(0, 3000, 100):
        silent("pause")
        m.type(typed[i:i + 100])
        silent("resume")
    m.ends("exit", 0)
    assert m.out.data == b"[" + typed + b"]"


def test_sigtstp(machine):
    """The guest is paused while we are stopped, and goes on with us."""
    m = machine("count")
    for _ in range(5):
        m.signal(signal.SIGTSTP)
        vm.wait_until(lambda: open(f"/proc/{m.process.pid}/stat").read().split(")")[1].split()[0] == "T")
        m.signal(signal.SIGCONT)
        n = len(m.out.data)
        vm.wait_until(lambda: len(m.out.data) > n)
        assert state() == "running"
    silent("stop", "-f")
    is_count(m.out.data)


def test_commands_at_random(machine, client):
    """Three clients that know nothing of each other, and a guest that resets itself; then all is as it was."""
    m = machine("resets", await_="up")
    good = []

    def go(words):
        c = client()
        for _ in range(60):
            for word in words:
                assert c.ask(do=word)["ok"]
        good.append(words)

    threads = [threading.Thread(target=go, args=(w,)) for w in (["pause", "resume"], ["reboot"], ["status"])]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(good) == 3
    silent("resume")
    n = m.out.text().count("up")
    m.out.wait_for("up", n + 3)
    assert listed()["m"]["boots"] > 60


# reboot, nmi, sysrq

def test_reboot(machine, client):
    m = machine("deaf", await_="up")
    for i in range(20):
        silent("reboot")
        m.out.wait_for("up", i + 2)
    assert listed()["m"]["boots"] == 21
    assert client().ask(id="x", do="reboot") == {"id": "x", "ok": True}


def test_reboot_refused(machine):
    machine("deaf", "--no-reboot")
    assert ctl("reboot", status=1) == "kvm: m: it was started with --no-reboot: a reset would end it\n"
    assert state() == "running"


def test_reboot_of_a_guest_that_resets(machine):
    """Either reset may win; each asker gets his answer."""
    machine("resets")
    for _ in range(20):
        silent("reboot")
    assert listed()["m"]["boots"] > 20


def test_nmi(machine):
    m = machine("nmi", await_="ready")
    silent("nmi")
    m.ends("exit", 7)
    assert m.out.text() == "ready\nnmi\n"
    m = machine("nmi", await_="ready")
    silent("pause")
    silent("nmi")
    assert state() == "paused"
    silent("resume")
    m.ends("exit", 7)


def test_sysrq(machine):
    m = machine("sysrq", await_="ready", stdin="pipe")
    silent("sysrq", "h")
    m.out.wait_for(r"\[h\]")
    silent("sysrq", "m", "9")
    m.out.wait_for(r"\[9\]")
    silent("pause")
    m.type("abc" * 20)
    time.sleep(0.1)
    silent("sysrq", "z")
    assert ctl("sysrq", "y", status=1) == "kvm: m: the guest does not read ttyS0: its receive buffer is full\n"
    silent("resume")
    m.out.wait_for(r"\[z\]")
    vm.wait_until(lambda: m.out.text().count("c") == 20)
    assert m.out.text().split("[9]")[1].replace("[z]", "") == "abc" * 20
    machine("deaf", called="n")
    assert "nothing in the guest has opened ttyS0" in ctl("sysrq", "n", "h", status=1)


# Hostile clients

def test_hostile(machine, client, rundir):
    """Garbage, half lines, silence and floods, all at once: commands and guest do not notice."""
    m = machine("count")
    path = str(rundir / "m.sock")
    over = threading.Event()

    def attack(what):
        while not over.is_set():
            with contextlib.suppress(OSError):
                s = socket.socket(socket.AF_UNIX)
                s.settimeout(0.2)
                s.connect(path)
                what(s)
                s.close()

    def flood(s):
        for _ in range(200):
            s.sendall(b'{"do":"status"}\n' * 100)

    attacks = [lambda s: s.sendall(os.urandom(5000)), lambda s: s.sendall(b'{"do":"sto'), flood,
               lambda s: s.sendall(b"[" * 60000 + b"\n"), lambda s: s.sendall(b"x" * 200000),
               lambda s: time.sleep(0.1), lambda s: None]
    threads = [threading.Thread(target=attack, args=(a,)) for a in attacks]
    for t in threads:
        t.start()
    try:
        for _ in range(10):
            n = len(m.out.data)
            silent("pause")
            silent("resume")
            assert state() == "running"
            vm.wait_until(lambda: len(m.out.data) > n)
    finally:
        over.set()
        for t in threads:
            t.join()
    kib = int(re.search(r"RssAnon:\s+(\d+)", open(f"/proc/{m.process.pid}/status").read())[1])
    assert kib < 16 * 1024
    assert len(os.listdir(f"/proc/{m.process.pid}/fd")) < 40
    silent("stop", "-f")
    is_count(m.out.data)


def test_idle_clients(machine, rundir):
    """A crowd of silent connections keeps nobody out."""
    machine("deaf")
    crowd = []
    for _ in range(60):
        s = socket.socket(socket.AF_UNIX)
        s.connect(str(rundir / "m.sock"))
        crowd.append(s)
        if len(crowd) % 20 == 0:
            assert state() == "running"
    silent("stop", "-f")
    for s in crowd:
        s.close()


# Linux

INIT = r"""#!/bin/sh
/bin/busybox mount -t proc proc /proc
/bin/busybox --install -s /bin
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
load-modules
if grep -q ^hvc0 /proc/consoles; then
	exec </dev/hvc0 >/dev/hvc0 2>&1 9<>/dev/ttyS0 # which listens for SysRq only while it is open
	cat /dev/hwrng >/dev/null &
fi
echo "@clocksource $(cat /sys/devices/system/clocksource/clocksource0/current_clocksource)"
stty -echo # before the flood: it waits until the output has drained
dmesg -c >/dev/null
echo "@ready $(cut -d ' ' -f 1 /proc/uptime)"
(
	i=0
	while [ ! -e /over ]; do
		echo "line $i 0123456789012345678901234567890123456789"
		i=$((i + 1))
	done
	echo "@lines $i"
) &
counter=$!
read -r word
>/over
wait $counter
echo "@uptime $(cut -d ' ' -f 1 /proc/uptime)"
dmesg | sed -n 's/.*\(lockup\|stall\|hung\|unstable\|skew\|BUG\|WARNING: CPU\).*/@bad &/p'
echo "@interrupts $(grep -c . /proc/interrupts)"
echo "@reported"
read -r word
poweroff -f
"""


@pytest.fixture(scope="session")
def linux(tmp_path_factory):
    """
    Options of `kvm run` for a kernel and INIT, with the modules for its virtio devices. It prints on hvc0: a serial
    port that never makes its driver wait keeps one of two CPUs in interrupts for as long as the other one prints.
    """
    import images  # pylint: disable=import-outside-toplevel
    out, tree = tmp_path_factory.mktemp("linux"), images.bzimage().split("/boot/")[0]
    (out / "init").write_text(INIT)
    subprocess.run([os.path.join(images.TOOLS, "mkinitrd"), out / "initrd", "--init", out / "init", "--modules", tree,
                    *images.MODULES], check=True)
    return "-k", images.vmlinux(), "-i", out / "initrd", "-m", 256, "--name", "m", "--console", "virtio"


def number(m, fact):
    return float(re.search(rf"@{fact} ([\d.]+)", m.out.text())[1])


def pauses(m, c, lengths):
    """One pause of each length; the seconds that it was surely paused for, in all."""
    total = 0
    for s in lengths:
        assert c.ask(id=0, do="pause") == {"id": 0, "ok": True}
        start = time.monotonic()
        if s >= 20:
            n = quiet(m, 5)
            time.sleep(s - 5)
            assert len(m.out.data) == n
        else:
            time.sleep(s)
        total += time.monotonic() - start
        n = len(m.out.data)
        assert c.ask(id=0, do="resume") == {"id": 0, "ok": True}
        vm.wait_until(lambda n=n: len(m.out.data) > n)
    return total


def check_pauses(kvm, client, linux, params, lengths, ncpus=2):
    """Nothing is lost of what it prints, its clocks stood still, and it has noticed nothing."""
    m = kvm(*linux, "-c", ncpus, "-p", f"unknown_nmi_panic sysrq_always_enabled {params}", stdin="pipe")
    m.out.wait_for("line 100 ")
    start = time.monotonic()
    paused = pauses(m, client(), lengths)
    m.type("stop\n")
    m.out.wait_for("@reported")
    ran = time.monotonic() - start - paused
    said = re.sub(r"(?m)^line \d+ \d{40}\n", "", m.out.text().partition("@ready")[2])
    assert "@bad" not in said, said
    assert number(m, "uptime") - number(m, "ready") < ran + 5, (ran, paused, said)
    lines = [int(n) for n in re.findall(r"^line (\d+) (?:0123456789){4}$", m.out.text(), re.M)]
    assert lines == list(range(int(number(m, "lines"))))
    return m


@pytest.mark.linux(weight=4)
def test_linux_pauses_sysrq_nmi(kvm, client, linux):
    """
    200 short pauses and one longer than every watchdog's patience, with the console on hvc0 and the random number
    generator busy; then an NMI that makes it panic.
    """
    m = check_pauses(kvm, client, linux, "quiet", [0.02 * (i % 6) for i in range(200)] + [25])
    silent("sysrq", "h", within=20)
    m.out.wait_for(r"sysrq: HELP : .*reboot\(b\)")
    silent("sysrq", "m", "w", within=20)
    m.out.wait_for("sysrq: Show Blocked State")
    silent("nmi", within=20)
    m.ends("panic", 250)
    assert "NMI: Not continuing" in m.err.text()


@pytest.mark.linux
@pytest.mark.long
def test_linux_pauses_1000_times(kvm, client, linux):
    check_pauses(kvm, client, linux, "quiet", [0.02 * (i % 6) for i in range(1000)])
    silent("stop", "-f", within=20)


@pytest.mark.linux
@pytest.mark.long
@pytest.mark.parametrize("clock,ncpus", [("kvm-clock", 2), ("tsc", 1)])  # the lab's TSCs are not in step
def test_linux_clocks(kvm, client, linux, clock, ncpus):
    lengths = [0.02 * (i % 6) for i in range(200)] + [30, 45]
    m = check_pauses(kvm, client, linux, "quiet clocksource=" + clock, lengths, ncpus)
    assert f"@clocksource {clock}" in m.out.text()
    silent("stop", "-f", within=20)
    m.ends("signal", 128 + 15)
