# SPDX-License-Identifier: GPL-2.0-or-later
"""Commands in a guest: `kvm run -- COMMAND`, `kvm exec`, `kvm shell`; roots and shares over 9p."""
import fcntl
import glob
import hashlib
import os
import pty
import random
import re
import shutil
import signal
import subprocess
import termios
import threading

import pytest

import images
import vm

pytestmark = pytest.mark.linux(machine="commands", weight=25)
HERE = os.path.dirname(os.path.realpath(__file__))


def kernel():
    """The quickest one to boot, and where its modules are."""
    modules = glob.glob(images.bzimage().split("/boot/")[0] + "/lib/modules/*")
    return ["-k", images.vmlinux(), "--modules", modules[0], "-m", 512]


@pytest.fixture(scope="module")
def share(tmp_path_factory):
    return tmp_path_factory.mktemp("share")


@pytest.fixture(scope="module")
def machine(tmp_path_factory, linux_obstacle, share):
    """One that stays while its command reads: a writable share at its place, another one to mount, its name is m."""
    if linux_obstacle:
        pytest.skip(linux_obstacle)
    tmp = tmp_path_factory.mktemp("machine")
    # pylint: disable-next=consider-using-with
    m = vm.Vm(tmp, *kernel(), "--name", "m", "--rwdir", share, "--9p", f"{share},ro-share,ro", "--env", "A=b c",
              "--", "sh", "-c", 'echo "@ready $A"; read line; echo "got $line"; echo oops >&2; exit 42', stdin="pipe",
              patience=10 * vm.PATIENCE)
    m.out.wait_for("@ready b c")
    yield m
    m.kill()


def run(*args, **how):
    how.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run([vm.KVM, *map(str, args)], capture_output=True, timeout=vm.PATIENCE, check=False, **how)


def inside(*command, **how):
    """(status, stdout, stderr) of a command in the machine."""
    r = run("exec", "m", "--", *command, **how)
    return r.returncode, r.stdout.decode("latin1"), r.stderr.decode("latin1")


def sh(script, **how):
    """What a script prints that must succeed."""
    status, out, err = inside("sh", "-euc", script, **how)
    assert (status, err) == (0, ""), (script, out, err)
    return out


# Status.

@pytest.mark.parametrize("command,status,err", [
    (["true"], 0, ""), (["false"], 1, ""), (["sh", "-c", "exit 255"], 255, ""), (["sh", "-c", "kill -9 $$"], 137, ""),
    (["no-such-program"], 127, "kvm: no-such-program: No such file or directory\n"),
    (["/etc/passwd"], 126, "kvm: /etc/passwd: Permission denied\n"), (["/etc"], 126, "kvm: /etc: Permission denied\n"),
])
def test_status(machine, command, status, err):
    assert inside(*command) == (status, "", err)


def test_words_and_environment(machine):
    """Every byte of arguments and variables arrives; the directory is ours."""
    words = ["", " ", "a  b", "'\"\\$x\n\t", "-n", "--", "äöü", "x" * 100000]
    r = run("exec", "--env", "V=1 2\n3", "--env", "HOME", "--env", "NOT_SET", "m", "--", "sh", "-c",
            'printf "%s\\0" "$@" "$V" "$HOME" "${NOT_SET-no}" "$PWD"', "sh", *words,
            env=dict(os.environ, HOME="/somewhere"))
    assert r.stdout.decode().split("\0")[:-1] == [*words, "1 2\n3", "/somewhere", "no", os.getcwd()]
    long = run("exec", "m", "--", "echo", *["y" * 100000] * 11)
    assert long.returncode == 254
    assert re.fullmatch(rb"kvm: the command's arguments have \d+ bytes, more than 1048576\n", long.stderr)


# Streams.

def test_streams_are_exact(machine):
    """Three streams at a time, each of random bytes, none of them aligned to anything."""
    data = random.Random(1).randbytes(1_500_001)
    want = hashlib.sha256(data).hexdigest()
    r = run("exec", "m", "--", "sh", "-c", "tee /dev/stderr", stdin=None, input=data)
    assert r.returncode == 0
    assert (hashlib.sha256(r.stdout).hexdigest(), hashlib.sha256(r.stderr).hexdigest()) == (want, want)


def test_order_and_end(machine):
    """The status comes last: what was written before it has been written."""
    for _ in range(5):
        assert inside("sh", "-c", "seq 1 20000; echo end >&2; exit 3") == \
            (3, "".join(f"{i}\n" for i in range(1, 20001)), "end\n")


def test_reader_goes_away(machine):
    """As in any pipe: SIGPIPE ends the command."""
    p = subprocess.run(["bash", "-c", f"{vm.KVM} exec m -- yes | head -2; echo ${{PIPESTATUS[*]}}"],
                       capture_output=True, text=True, timeout=vm.PATIENCE, check=True)
    assert (p.stdout, p.stderr) == ("y\ny\n141 0\n", "")


def test_slow_reader_slows_only_itself(machine):
    """Nobody reads one command's output: nothing of it is lost, and others are not held up."""
    with subprocess.Popen([vm.KVM, "exec", "m", "--", "sh", "-c", "seq 1 300000; echo done >&2"],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as slow:
        for _ in range(3):
            assert inside("echo", "x") == (0, "x\n", "")
        out, err = slow.communicate(timeout=vm.PATIENCE)
    assert out.split() == [b"%d" % i for i in range(1, 300001)] and err == b"done\n"


def test_left_behind(machine):
    """What a command leaves in the background holds its pipes, not its status."""
    assert inside("sh", "-c", "sleep 1000 & echo $!; exit 5")[0] == 5
    sh("pkill -x sleep")


def test_client_is_killed(machine):
    """Its command is hung up."""
    with subprocess.Popen([vm.KVM, "exec", "m", "--", "sh", "-c", "echo up; exec sleep 4321"], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE) as p:
        assert p.stdout.readline() == b"up\n"
        p.kill()
    vm.wait_until(lambda: inside("pgrep", "-f", "^sleep 4321") == (1, "", ""))


def test_signals(machine):
    for sig in signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT:
        with subprocess.Popen([vm.KVM, "exec", "m", "--", "bash", "-c", f'trap "echo {sig}; exit 9" {sig}; echo up; '
                               "while :; do sleep 0.05; done"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as p:
            assert p.stdout.readline() == b"up\n"
            p.send_signal(sig)
            assert p.communicate(timeout=vm.PATIENCE)[0] == b"%d\n" % sig
            assert p.returncode == 9


def test_many_at_a_time(machine):
    """Twenty commands, each with its own words back."""
    got = {}

    def one(i):
        got[i] = inside("sh", "-c", "cat; exit $1", "sh", i, stdin=None, input=(b"%d " % i) * 3000)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(20)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == {i: (i, f"{i} " * 3000, "") for i in range(20)}


# A terminal.

class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, *argv, rows=33, cols=99):
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (rows, cols))
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.process = subprocess.Popen(  # pylint: disable=consider-using-with
            [vm.KVM, *argv], stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.out = vm.Stream(os.dup(self.master))

    def type(self, text):
        os.write(self.master, text.encode())

    def end(self):
        status = self.process.wait(vm.PATIENCE)
        assert termios.tcgetattr(self.slave) == self.before
        os.close(self.slave)
        os.close(self.master)
        return status


def test_terminal(machine):
    t = Terminal("exec", "m", "--", "sh", "-c", "stty size; test -t 0 && test -t 1 && test -t 2 && echo all; tty; cat")
    t.out.wait_for("33 99\n?\r?\nall\r?\n/dev/pts/")
    t.type("word\r")
    t.out.wait_for("word\r?\nword")
    termios.tcsetwinsize(t.slave, (12, 34))
    os.kill(t.process.pid, signal.SIGWINCH)
    vm.wait_until(lambda: "12 34" in sh("stty size </dev/pts/0 || :"))
    t.type("\x03")  # a byte for the guest, whose terminal makes a signal of it
    assert t.end() == 130


def test_shell(machine):
    """A login shell with job control, and the escape key."""
    t = Terminal("shell", "m")
    t.type("echo $((6*7)) $0; sleep 1000\r")
    t.out.wait_for("42 -sh")
    vm.wait_until(lambda: inside("pgrep", "-x", "sleep")[0] == 0)  # and is in the foreground
    t.type("\x1a")
    t.out.wait_for("Stopped")
    t.type("kill %1; exit 17\r")
    t.out.wait_for("exit")
    t.type("exit 17\r")
    assert t.end() == 17
    t = Terminal("shell", "m")
    t.type("echo $((6*7))\r")
    t.out.wait_for("\\D42\\D")
    t.type("\x01x")
    assert t.end() == 128 + signal.SIGHUP


# Roots and shares.

def test_host_is_not_changed(machine, tmp_path):
    """What is not below --rwdir stays in the guest, also a removal."""
    victim = tmp_path / "file"
    victim.write_text("host")
    sh(f"cat {victim}; echo guest >{victim}; rm -f /etc/hostname; touch /new {tmp_path}/new; cat {victim}")
    assert victim.read_text() == "host" and os.listdir(tmp_path) == ["file"] and not os.path.exists("/new")


def test_rwdir(machine, share):
    (share / "from-host").write_text("host")
    assert sh(f"cat {share}/from-host; echo guest >{share}/from-guest; mkdir -p {share}/d/e; ln -s x {share}/l") == "host"
    assert (share / "from-guest").read_text() == "guest\n" and (share / "d/e").is_dir()
    assert os.readlink(share / "l") == "x"


def test_read_only_share(machine, share):
    """The server says no, whatever the guest mounts."""
    (share / "kept").write_text("kept")
    sh("mkdir -p /mnt/ro; mount -t 9p -o trans=virtio,version=9p2000.L,ro ro-share /mnt/ro; mount -o remount,rw /mnt/ro")
    for command in "echo x >/mnt/ro/kept", "rm /mnt/ro/kept", "touch /mnt/ro/new", "mkdir /mnt/ro/d2", \
            "chmod 777 /mnt/ro/kept", "ln -s a /mnt/ro/s", "mv /mnt/ro/kept /mnt/ro/k2", "truncate -s 0 /mnt/ro/kept":
        status, _, err = inside("sh", "-c", command)
        assert status and "Read-only file system" in err, (command, err)
    assert (share / "kept").read_text() == "kept"
    sh("umount /mnt/ro")


def test_main_command(machine):
    """Last: its input, both outputs, its status."""
    machine.type("a line\n")
    machine.ends("command", 42)
    assert machine.out.text().endswith("@ready b c\ngot a line\n")
    assert machine.err.text() == "oops\n"


# Each with a machine of its own.

@pytest.mark.long
@pytest.mark.linux(boots=1)
def test_panic(kvm):
    """A panic is no status of the command's."""
    m = kvm(*kernel(), "--", "sh", "-c", "echo begun; echo c >/proc/sysrq-trigger")
    m.ends("panic", 250)
    assert m.out.text() == "begun\n"
    assert "kvm: the guest's kernel panicked: Kernel panic - not syncing: sysrq triggered crash\n" in m.err.text()


@pytest.mark.linux(boots=1)
def test_never_there(kvm, tmp_path):
    """Our init cannot mount what it must, and says so on the console."""
    m = kvm(*kernel(), "-p", "root=9p:nosuch", "--log", tmp_path / "log", "--", "true")
    m.ends("no-command", 253)
    assert "kvm: the guest ended before it got to the command\n" in m.err.text()
    assert "kvm-init: giving up" in (tmp_path / "log").read_text()


@pytest.mark.long
@pytest.mark.linux(boots=1)
def test_timeout(kvm):
    m = kvm(*kernel(), "--timeout", 40, "--", "sh", "-c", "echo begun; sleep 1000")
    m.ends("timeout", 252)
    assert m.out.text() == "begun\n"


@pytest.mark.long
@pytest.mark.linux(boots=1)
def test_power_off(kvm):
    m = kvm(*kernel(), "--", "sh", "-c", "echo begun; busybox poweroff -f || echo o >/proc/sysrq-trigger; sleep 1000")
    m.ends("poweroff", 0)


@pytest.mark.long
@pytest.mark.linux(boots=1)
def test_directory_with_a_shell_alone(kvm, tmp_path):
    """A root that has nothing but /bin/sh, and is written to."""
    (tmp_path / "root/bin").mkdir(parents=True)
    shutil.copy("/bin/busybox", tmp_path / "root/bin/sh")
    m = kvm(*kernel(), tmp_path / "root", "--", "sh", "-c", "echo in $PWD; echo x >/made; exit 3")
    m.ends("command", 3)
    assert m.out.text() == "in /\n" and (tmp_path / "root/made").read_text() == "x\n"


@pytest.mark.long
@pytest.mark.linux(boots=1)
def test_ordinary_user(tmp_path):
    """Only /dev/kvm, a read-only directory, no terminal, no home."""
    os.chmod("/dev/kvm", 0o666)
    os.chmod(tmp_path, 0o755)
    r = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "-i", vm.KVM, "run",
                        *map(str, kernel()), "--", "sh", "-c", "id -u; cat /etc/shadow; stat -c %u /etc/passwd; exit 6"],
                       cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=vm.PATIENCE, check=False)
    assert (r.returncode, r.stdout) == (6, "0\n0\n"), r.stderr
    assert r.stderr == "cat: /etc/shadow: Permission denied\n"


# Roots of Debian, as mmdebstrap makes them.

def debian(*more):
    try:
        return images.debian(*more)
    except images.Missing as e:
        return pytest.skip(str(e))


@pytest.mark.long
@pytest.mark.linux(boots=1, weight=3)
def test_debian_command(kvm):
    """Its own programs run, also those that look at every file of a package, and what they write is in the directory."""
    root = debian("udev")
    m = kvm(*kernel(), root, "--", "sh", "-c", '. /etc/os-release; echo "$ID in $PWD"; dpkg --audit; dpkg --verify dpkg; '
            "useradd --create-home --shell /bin/sh someone && su - someone -c 'id -un; echo x >made' || exit 1; "
            "ls -l /home/someone/made | cut -d' ' -f1,3,4; userdel --remove someone 2>/dev/null; echo y >/var/tmp/made; exit 5")
    m.ends("command", 5)
    assert m.out.text() == "debian in /\nsomeone\n-rw-r--r-- someone someone\n"
    with open(f"{root}/var/tmp/made") as f:
        assert f.read() == "y\n"


@pytest.mark.long
@pytest.mark.linux(boots=1, weight=10)
@pytest.mark.parametrize("more", [["udev"], []], ids=["udev", "no-udev"])
def test_debian_systemd(kvm, more):
    """Up to the login on the console, and down again. Without udev nobody tells systemd of the serial line."""
    m = kvm(*kernel(), "-p", "quiet", debian(*more), stdin="pipe", patience=4 * vm.PATIENCE)
    m.out.wait_for("login: ")
    m.type("root\n")
    m.out.wait_for(r"root@\S+:~# ?")
    m.type("systemctl start multi-user.target; echo it is $(systemctl is-active multi-user.target)\n")
    m.out.wait_for("it is [a-z]+")  # bash says more at the start of a line
    m.type("findmnt -no FSTYPE,OPTIONS /; systemctl poweroff\n")
    m.ends("poweroff", 0)
    assert "it is active" in m.out.text(), m.story()
    assert re.search("9p +rw,", m.out.text()), m.story()
