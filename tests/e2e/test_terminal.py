# SPDX-License-Identifier: GPL-2.0-or-later
"""The console with a terminal, pipes and closed descriptors; tiny guests."""
import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios

import pytest

import vm
from guests import guest

pytestmark = pytest.mark.kvm


class Terminal:
    """A pty; kvm gets its slave side, the test types and reads on the other."""

    def __init__(self):
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = self.stty()
        self.screen = vm.Stream(self.master)

    def stty(self):
        return subprocess.run(["stty", "-a"], stdin=self.slave, capture_output=True, check=True, text=True).stdout

    def type(self, text):
        os.write(self.master, text.encode())

    def is_raw(self):
        return not termios.tcgetattr(self.slave)[3] & termios.ICANON

    def close(self):
        os.close(self.slave)
        self.screen.thread.join()
        os.close(self.master)


@pytest.fixture
def tty():
    t = Terminal()
    yield t
    t.close()


def control():
    """Before exec: the terminal is the controlling one, with the new process in its foreground."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def run(kvm, tty):
    """run(ARGS…): kvm on the terminal."""
    return lambda *args, **how: kvm(*args, stdin=tty.slave, stdout=tty.slave, preexec_fn=control, **how)


def hang(run, tty, *args):
    """A guest that runs for ever, and the terminal is raw."""
    v = run("-k", guest("hang"), *args)
    tty.screen.wait_for("ready")
    vm.wait_until(tty.is_raw)
    return v


def check_restored(tty):
    assert tty.stty() == tty.before


# Ends, each of which gives the terminal back.


@pytest.mark.parametrize("args, reason, code", [
    ("-k exit -p code=0", "exit", 0),
    ("-k poweroff", "poweroff", 0),
    ("-k panic", "panic", 250),
    ("-k crash", "internal-error", 251),
    ("-k hang --timeout 0.2", "timeout", 252),
    ("-k exit -m 1", "error", 1),
    ("-k nowhere", "error", 1),
    ("-k /dev/null", "error", 1),
    ("-k exit -i /dev/null", "error", 1),
])
def test_end(run, tty, args, reason, code):
    words = args.split()
    if "/" not in words[1] and words[1] != "nowhere":
        words[1] = guest(words[1])
    run(*words).ends(reason, code)
    check_restored(tty)


def test_triple_fault(run, tty):
    v = run("-k", guest("reset"))
    vm.wait_until(tty.is_raw)
    tty.type("t")
    v.ends("triple-fault", 251)
    check_restored(tty)
    assert "\r" not in v.err.text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal(run, tty, number):
    v = hang(run, tty, "--grace", "0.1")
    v.signal(number)
    v.ends("signal", 128 + number)
    check_restored(tty)


def test_quit(run, tty):
    v = hang(run, tty)
    v.signal(signal.SIGQUIT)
    v.ends("signal", 131)
    check_restored(tty)


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE])
def test_crash(run, tty, number):
    """A fatal signal gives the terminal back, and still kills."""
    v = hang(run, tty)
    v.signal(number)
    assert v.end() == -number
    check_restored(tty)


# Keys.


def test_key_end(run, tty):
    v = hang(run, tty)
    tty.type("\x01x")
    v.ends("key", 0)
    check_restored(tty)


def test_key_end_after_much_typed(run, tty):
    """The guest reads nothing, its FIFO is full: ^A x is heard."""
    v = hang(run, tty)
    tty.type("abc" * 300 + "\x01")
    tty.type("x")
    v.ends("key", 0)
    check_restored(tty)


def test_key_help(run, tty):
    v = hang(run, tty)
    tty.type("\x01h")
    v.err.wait_for(r"\^A x .*\n(.*\n)*.*\^A \^A .*\n(.*\n)*.*\^A h")
    assert v.err.data.count(b"\r\n") == v.err.data.count(b"\n")  # the terminal is raw
    tty.type("\x01x")
    v.ends("key", 0)


def test_key_itself(run, tty):
    """^A ^A is one ^A; ^A and another key are both; ^C, ^Z, ^D, ^S are bytes like others."""
    v = run("-k", guest("echo"), "-p", "bytes=9")
    tty.screen.wait_for(r"\[")
    vm.wait_until(tty.is_raw)
    tty.type("\x01\x01" "\x01b" "\x03\x1a\x04\x13" "\r\n")
    v.ends("exit", 0)
    tty.screen.wait_for(re.escape("[\x01\x01b\x03\x1a\x04\x13\r\n]"))
    check_restored(tty)


def test_no_keys_without_terminal(kvm):
    v = kvm("-k", guest("echo"), "-p", "bytes=4", stdin="pipe")
    v.type("\x01x\x01h")
    v.ends("exit", 0)
    assert v.out.text() == "[\x01x\x01h]"


# Job control: kvm as a job of a shell, which this process plays.


@contextlib.contextmanager
def as_shell(tty):
    """
    A session of its own on the terminal, in a child, which starts kvm as jobs and does what this process asks
    of it: each request is a line, "fg", "shell" (itself to the foreground), "start-fg ARGS" or "start-bg ARGS".
    """
    shell = subprocess.Popen(["/usr/bin/python3", os.path.join(vm.HERE, "jobshell.py"), vm.KVM], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True, bufsize=1, pass_fds=[tty.slave],
                             env={**os.environ, "TTY_FD": str(tty.slave)})

    def ask(request):
        shell.stdin.write(request + "\n")
        return shell.stdout.readline().strip()

    yield ask
    shell.stdin.close()
    shell.wait()
    shell.stdout.close()


def test_stop_and_continue(tty):
    """^Z of another process, as it were: stopped, the terminal is the shell's; continued, it is raw again."""
    with as_shell(tty) as ask:
        pid = int(ask("start-fg -k " + guest("hang")))
        tty.screen.wait_for("ready")
        vm.wait_until(tty.is_raw)
        os.kill(pid, signal.SIGTSTP)
        assert ask("wait") == "stopped"
        check_restored(tty)
        ask("shell")
        ask("fg")
        os.kill(pid, signal.SIGCONT)
        vm.wait_until(tty.is_raw)
        tty.type("\x01x")
        assert ask("wait") == "exited 0"
        check_restored(tty)


def test_background(tty):
    """A background job neither touches the terminal nor stops; brought to the foreground, it is raw and hears."""
    with as_shell(tty) as ask:
        pid = int(ask("start-bg -k " + guest("hang")))
        tty.screen.wait_for("ready")
        check_restored(tty)
        ask("fg")  # as the shell does it for a job that is not stopped: no SIGCONT
        vm.wait_until(tty.is_raw)
        os.kill(pid, signal.SIGTSTP)
        assert ask("wait") == "stopped"
        check_restored(tty)
        ask("shell")
        os.kill(pid, signal.SIGCONT)  # bg
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGQUIT)
        assert ask("wait") in ("exited 143", "exited 131")
        check_restored(tty)


def test_background_ends(tty):
    """A background job's end leaves the terminal as somebody else has set it meanwhile."""
    with as_shell(tty) as ask:
        ask("start-bg -k " + guest("echo") + " -p bytes=1")
        tty.screen.wait_for(r"\[")
        subprocess.run(["stty", "-echo", "-icanon"], stdin=tty.slave, check=True)
        mine = tty.stty()
        ask("kill")
        assert ask("wait") == "exited 131"
        assert tty.stty() == mine


def test_terminal_goes_away(kvm):
    """SIGHUP: the end, without a fuss."""
    master, slave = pty.openpty()
    v = kvm("-k", guest("hang"), "--grace", "0.1", stdin=slave, stdout=slave, preexec_fn=control)
    os.close(slave)
    os.read(master, 1)
    os.close(master)
    v.ends("signal", 129)


# Pipes, files, nothing.


def test_only_output_is_terminal(kvm, tty):
    kvm("-k", guest("exit"), "-p", "code=6", stdout=tty.slave).ends("exit", 6)
    check_restored(tty)


def test_only_input_is_terminal(run, kvm, tty):
    v = kvm("-k", guest("echo"), "-p", "bytes=1", stdin=tty.slave)
    v.out.wait_for(r"\[")
    vm.wait_until(tty.is_raw)
    tty.type("q")
    v.ends("exit", 0)
    assert v.out.text() == "[q]"
    check_restored(tty)


@pytest.mark.parametrize("closed", [{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 1, 2}])
def test_closed_descriptors(tmp_path, closed):
    """The guest runs, and no file of kvm's own takes their place."""
    status, log = tmp_path / "status", tmp_path / "log"
    p = subprocess.Popen([vm.KVM, "run", "-k", guest("exit"), "-p", "code=7", "--status-file", status, "--log", log, "-v"],
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                         preexec_fn=lambda: [os.close(fd) for fd in closed])
    assert p.wait(vm.PATIENCE) == 7
    assert status.read_text() == '{"reason": "exit", "code": 7}\n'
    assert "exits" not in log.read_text()


def test_files(kvm, tmp_path):
    """Input from a file, output to a file."""
    (tmp_path / "in").write_bytes(b"0123456789")
    with open(tmp_path / "in") as fin, open(tmp_path / "out", "w") as fout:
        kvm("-k", guest("echo"), "-p", "bytes=10", stdin=fin, stdout=fout).ends("exit", 0)
    assert (tmp_path / "out").read_bytes() == b"[0123456789]"


def test_end_of_input(kvm):
    """The guest goes on without its keyboard."""
    v = kvm("-k", guest("echo"), "-p", "bytes=4", "--grace", "0.1", stdin="pipe")
    v.type("abc")
    v.process.stdin.close()
    v.out.wait_for(r"\[abc")
    v.signal(signal.SIGTERM)
    v.ends("signal", 143)


def test_reader_goes_away(kvm):
    """A closed pipe is no reason for the guest to end."""
    read, write = os.pipe()
    v = kvm("-k", guest("hang"), "-p", "how=3", "--timeout", "1", stdout=write)
    os.close(write)
    os.read(read, 100)
    os.close(read)
    v.ends("timeout", 252)


def test_stopped_reader(kvm):
    """The guest prints more than anybody keeps: it goes on, and what was lost is told."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    v = kvm("-k", guest("hang"), "-p", "how=3", "--timeout", "3", stdout=write)
    os.close(write)
    v.ends("timeout", 252)
    os.close(read)
    dropped = re.search(r"^kvm: (\d+) bytes of console output were dropped", v.err.text(), re.M)
    assert dropped and int(dropped[1]) > 0, v.story()


def test_flood_of_input(kvm):
    """A guest that reads nothing: what is not taken stays in the pipe."""
    v = kvm("-k", guest("hang"), "--grace", "0.1", stdin="pipe")
    v.out.wait_for("ready")
    os.set_blocking(v.process.stdin.fileno(), False)
    room = fcntl.fcntl(v.process.stdin, fcntl.F_GETPIPE_SZ)
    taken = os.write(v.process.stdin.fileno(), bytes(room))
    v.signal(signal.SIGTERM)
    v.ends("signal", 143)
    assert taken - pending(v.process.stdin) <= 64


def pending(f):
    return struct.unpack("i", fcntl.ioctl(f, termios.FIONREAD, bytes(4)))[0]
