# SPDX-License-Identifier: GPL-2.0-or-later
"""The command line, with tiny guests: mistakes, messages, files written."""
import json
import os
import re
import shutil
import subprocess

import pytest

import vm
from guests import guest

TO_COME = ["--fs dir,tag", "--sandbox=off", "--trace=virtq"]
MISTAKES = {"--wrong": "--wrong is not an option", "-x": "-x is not an option", "-k": "-k needs a value",
            "--mem": "--mem needs a value",
            "-m 1x": "'1x' is not a size", "-m ''": "'' is not a size", "-m -5": "'-5' is not a size",
            "-m 1GG": "'1GG' is not a size", "-m 99999999T": "too large",
            "-c 0": "not between 1 and 254", "-c 255": "not between 1 and 254", "-c two": "'two' is not a number",
            "--unpack x": "neither auto nor off", "--unpack": "needs a value",
            "--timeout x": "number of seconds", "--grace -1": "number of seconds", "--grace 1e9": "number of seconds",
            "--timeout 99999999999": "too long",
            "--name ''": "not a name", "--name a/b": "not a name", f"--name {'a' * 65}": "not a name",
            "one two": "one image", "-d / -d /tmp": "one directory", "--9p /": "DIR,TAG is wanted",
            "--9p /,": "DIR,TAG is wanted", "--9p /,t,rw": "'rw': ro,", "--9p /,t,map=": "map=: none, squash or",
            f"--9p /,{'t' * 65}": "at most 64", "--9p /,t --9p /,t": "have the tag 't'", "-d /,rw": "'rw': ro, cow",
            "--env =x": "NAME or NAME=VALUE", "-d x,ro=1": "'ro' is no option of a disk", "-d x,cache=fast": "cache=fast: writeback,",
            "-d x,queues=0": "not between 1 and 16", "-d x,serial=": "1 to 20 characters", "-d ,ro": "which file",
            "-d x,blocksize=513": "blocksize=513: 512, 4096", "--fault disk1:eio@1": "there is no disk1",
            "-d x --fault vda:eio@1": "'disk0:eio@7'",
            "--vsock 2": "2 is reserved", "--vsock 0": "0 is reserved", "--vsock -1": "'-1' is not a number",
            "--vsock 4294967295": "not between 0 and 4294967294", "--vsock": "needs a value",
            "-n slirp": "'slirp' is none of", "-n user,mtu=1": "not between 68 and 65520",
            "-n tap,queues=99": "not between 1 and 16", "-n none,mac=1": "no option 'mac'"}

BENCH_MISTAKES = {"": "something is missing", "x y": "'y'", "-c 0 x": "-c: 0 is not between", "-d 1025 x": "-d: 1025 is not between",
                  "-s 0 x": "0 bytes", "-s 2G x": "too large", "-S '' x": "'' is not a size", "-o -1 x": "'-1' is not a size",
                  "-t fast x": "'fast' is not one of writeback,", "--pattern 7 x": "neither seq nor rand",
                  "--queues 17 x": "--queues: 17 is not between 1 and 16", "--flush-interval 1 x": "for writes: -w",
                  "-f vmdk x": "'vmdk' is not a format", "--repair x": "bench takes no --repair", "-O raw x": "-O is not an option"}


def kvm(*args, **how):
    return subprocess.run([vm.KVM, *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=vm.PATIENCE, **how)


def words(text):
    return [] if not text else ["" if w == "''" else w for w in text.split(" ")]


def check_usage(r, text):
    """Exit status 2 and one line, with a hint at the help."""
    assert (r.returncode, r.stdout) == (2, "")
    assert r.stderr.startswith("kvm: ") and r.stderr.count("\n") == 1
    assert text in r.stderr and "kvm help" in r.stderr


def check_refused(r, text):
    assert (r.returncode, r.stdout) == (1, "")
    assert all(line.startswith("kvm: ") for line in r.stderr.splitlines())
    assert text in r.stderr


@pytest.mark.parametrize("args", MISTAKES)
def test_mistake(args):
    check_usage(kvm("run", *words(args)), MISTAKES[args])


@pytest.mark.parametrize("args", BENCH_MISTAKES)
def test_bench_mistake(args):
    check_usage(kvm("disk", "bench", *words(args)), BENCH_MISTAKES[args])


def test_bench_refuses(tmp_path):
    disk = tmp_path / "disk"
    check_refused(kvm("disk", "bench", disk), f"{disk}: No such file")
    disk.write_bytes(bytes(8192))
    for args in ["-s", 8193], ["-o", 8192], ["-o", 4097]:
        check_refused(kvm("disk", "bench", *args, disk), "too small")
    check_refused(kvm("disk", "bench", "-f", "qcow2", disk), str(disk))


@pytest.mark.parametrize("form", ["raw", "qcow2"])
def test_bench(form, tmp_path):
    """It does as many requests as it says, where it says, and leaves a sound image."""
    disk = tmp_path / "disk"
    assert kvm("disk", "create", "-f", form, disk, "1M").returncode == 0
    r = kvm("disk", "bench", "-w", "-c", 10, "-d", 4, "-s", 512, "-o", "64K", "-S", 1024, "--flush-interval", 3, "--json", disk)
    found = json.loads(r.stdout)
    assert (r.returncode, r.stderr, found["requests"], found["flushes"]) == (0, "", 10, 3)
    assert kvm("disk", "convert", "-O", "raw", disk, tmp_path / "raw").returncode == 0
    data = (tmp_path / "raw").read_bytes()
    assert [at for at in range(0, len(data), 512) if any(data[at:at + 512])] == [65536 + 1024 * i for i in range(10)]
    if form == "qcow2":
        assert kvm("disk", "check", disk).returncode == 0
    for more in [], ["-t", "none"], ["--queues", 3, "--pattern", "rand"], ["-w", "-t", "writethrough", "-d", 700]:
        r = kvm("disk", "bench", "-c", 1000, "-s", 4096, *more, disk)
        assert (r.returncode, r.stderr) == (0, "") and "requests: 1000\n" in r.stdout
    assert kvm("disk", "bench", "-q", "-c", 10, disk).stdout == ""


def test_no_image_below_itself(tmp_path):
    """What the new image would stand on is not what it overwrites, at any depth."""
    base, top, new = (tmp_path / name for name in ("base", "top", "new"))
    for words in ([base, "1M"], ["-b", "base", "-F", "qcow2", top]):
        assert kvm("disk", "create", *words).returncode == 0
    before = base.read_bytes(), top.read_bytes()
    for below, image in ("base", base), ("top", top), ("top", base):
        r = kvm("disk", "create", "-b", below, "-F", "qcow2", image)
        assert r.returncode == 1 and f"{image}: in use by" in r.stderr and r.stderr.count("\n") == 1, r
        assert (base.read_bytes(), top.read_bytes()) == before
    assert kvm("disk", "create", "-b", "top", "-F", "qcow2", new).returncode == 0


@pytest.mark.parametrize("args", TO_COME)
def test_part_to_come(args):
    check_usage(kvm("run", "-k", "/dev/null", *words(args)), "comes with")


@pytest.mark.parametrize("args", ["--9p {},t", "--rwdir {}"])
def test_wrong_folders(args, tmp_path):
    """A folder that is none: its name, once; with a command the status is not the command's."""
    (tmp_path / "file").write_text("")
    for name, why in ("nowhere", "No such file or directory"), ("file", "is not a directory"):
        path = tmp_path / name
        for more, status in ([], 1), (["--", "true"], 254):
            r = kvm("run", "-k", "/dev/null", *args.format(path).split(), *more)
            assert (r.returncode, r.stdout, r.stderr.count(str(path))) == (status, "", 1)
            assert r.stderr.endswith(why + "\n") and r.stderr.count("\n") == 1


@pytest.mark.kvm
def test_wrong_images(kvm, tmp_path):
    """No file, a FIFO, a device that is no disk: one line with its name."""
    os.mkfifo(tmp_path / "fifo")
    for path, why in (tmp_path / "nowhere", "No such file"), (tmp_path / "fifo", ""), ("/dev/null", ""):
        m = kvm("-k", guest("exit"), "-m", 16, "-d", path)
        m.ends("error", 1)
        text = m.err.text()
        assert str(path) in text and why in text and text.count("\n") == 1


def test_exec_mistakes():
    check_usage(kvm("exec"), "which command")
    check_usage(kvm("exec", "a", "b", "--", "true"), "one machine")
    check_usage(kvm("exec", "--wrong"), "is not an option")
    check_usage(kvm("shell", "a", "b"), "takes")


def test_unknown_command():
    check_usage(kvm("walk"), "there is no command 'walk'")


def test_help():
    for args in [], ["help"], ["--help"], ["-h"]:
        r = kvm(*args)
        assert (r.returncode, r.stderr) == (0, "")
        assert "kvm run" in r.stdout and "kvm doctor" in r.stdout
    check_usage(kvm("help", "walk"), "there is no command 'walk'")


def test_help_of_run():
    for args in ["help", "run"], ["run", "--help"], ["run", "-h"]:
        r = kvm(*args)
        assert (r.returncode, r.stderr) == (0, "")
        for option in "--kernel", "--initrd", "--params", "--mem", "--cpus", "--status-file", "--grace", "^A x":
            assert option in r.stdout


def test_version():
    for word in "version", "--version", "-V":
        r = kvm(word)
        assert (r.returncode, r.stderr) == (0, "")
        assert re.fullmatch(r"kvm [\d.]+\nwith: .+\n", r.stdout)
    assert kvm("version", "x").returncode == 2


def test_full_stdout():
    """What cannot be printed is an error."""
    for args in ["help"], ["version"], ["help", "run"], ["run", "--help"], ["doctor"]:
        with open("/dev/full", "w") as full:
            r = subprocess.run([vm.KVM, *args], stdout=full, stderr=subprocess.PIPE, text=True)
        assert (args, r.returncode) == (args, 1)


@pytest.mark.kvm
def test_sizes(kvm):
    """Suffixes, both cases; plain is MiB."""
    for size in "64", "64M", "65536k", "1g", "65536K":
        kvm("-k", guest("exit"), "-m", size, "-p", "code=0").ends("exit", 0)


@pytest.mark.kvm
def test_options_twice(kvm):
    """The last one counts."""
    kvm("-k", "nowhere", "-k", guest("exit"), "-c", "3", "-c", "1", "-p", "code=1", "-p", "code=5",
        "-n", "none", "--console", "serial").ends("exit", 5)


def in_empty_namespace(directory, *args):
    """kvm with an empty /boot, in `directory`; None where one may not hide /boot."""
    hide = ["unshare", *([] if os.geteuid() == 0 else ["-r"]), "-m", "sh", "-c",
            'mount -t tmpfs none /boot || exit 77; exec "$@"', "sh"]
    r = subprocess.run([*hide, vm.KVM, *args], cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return None if r.returncode == 77 or "unshare" in r.stderr else r


def test_no_kernel(tmp_path):
    r = in_empty_namespace(tmp_path, "run", "--status-file", "status")
    if r is None:
        pytest.skip("no mount namespace may be made here")
    check_refused(r, "no kernel found")
    for place in "./arch/x86/boot/bzImage", "./vmlinux", f"/boot/vmlinuz-{os.uname().release}", "/boot/vmlinuz-*":
        assert place in r.stderr
    assert "-k FILE" in r.stderr
    assert json.loads((tmp_path / "status").read_text()) == {"reason": "error", "code": 1}


@pytest.mark.kvm
def test_kernel_of_the_build_tree(tmp_path):
    """./vmlinux is found, and ./arch/x86/boot/bzImage comes before it."""
    shutil.copy(guest("exit"), tmp_path / "vmlinux")
    assert kvm("run", "-p", "code=3", cwd=tmp_path).returncode == 3
    os.makedirs(tmp_path / "arch/x86/boot")
    shutil.copy(guest("poweroff"), tmp_path / "arch/x86/boot/bzImage")
    assert kvm("run", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("args, text", [
    (["-k", "nowhere"], "kernel nowhere: No such file"),
    (["-k", "/"], "kernel /: is a directory"),
    (["-k", "/dev/null"], "not a regular file"),
    (["-k", "/etc/passwd"], "not a kernel"),
    (["-k", "GUEST", "-i", "nowhere"], "initrd nowhere: No such file"),
    (["-k", "GUEST", "-p", "x" * 3000], "2047"),
])
def test_refused(tmp_path, args, text):
    args = [guest("exit") if a == "GUEST" else a for a in args]
    check_refused(kvm("run", "--status-file", tmp_path / "status", *args), text)
    assert json.loads((tmp_path / "status").read_text()) == {"reason": "error", "code": 1}


@pytest.mark.kvm
def test_too_little_memory(tmp_path):
    check_refused(kvm("run", "-k", guest("exit"), "-m", "1"), "between 2M")


@pytest.mark.kvm
def test_status_file_is_replaced(tmp_path):
    status = tmp_path / "status"
    status.write_text("older\n")
    kvm("run", "-k", guest("exit"), "-p", "code=9", "--status-file", status)
    assert status.read_text() == '{"reason": "exit", "code": 9}\n'
    assert os.listdir(tmp_path) == ["status"]


@pytest.mark.kvm
def test_status_file_is_no_file(tmp_path):
    """A FIFO and a link stay what they are, and get it."""
    said = '{"reason": "exit", "code": 9}\n'
    fifo, real, link = tmp_path / "fifo", tmp_path / "real", tmp_path / "link"
    os.mkfifo(fifo)
    real.write_text("older\n")
    link.symlink_to("real")
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    for status in fifo, link:
        r = kvm("run", "-k", guest("exit"), "-p", "code=9", "--status-file", status)
        assert (r.returncode, r.stderr) == (9, "")
    assert os.read(reader, 100).decode() == said and fifo.is_fifo()
    assert real.read_text() == said and link.is_symlink()
    os.close(reader)
    r = kvm("run", "-k", guest("exit"), "-p", "code=9", "--status-file", fifo)
    assert r.returncode == 1 and f"status file {fifo}" in r.stderr
    r = kvm("run", "-k", guest("exit"), "-p", "code=9", "--status-file", tmp_path)
    assert r.returncode == 1 and f"status file {tmp_path}: Is a directory" in r.stderr
    assert sorted(os.listdir(tmp_path)) == ["fifo", "link", "real"]


@pytest.mark.kvm
def test_status_file_that_cannot_be(tmp_path):
    """The guest ran; it is an error all the same."""
    r = kvm("run", "-k", guest("exit"), "-p", "code=0", "--status-file", tmp_path / "no" / "status")
    assert (r.returncode, r.stdout) == (1, "exits\n")
    assert "status file" in r.stderr and "No such file" in r.stderr


@pytest.mark.kvm
def test_log(tmp_path):
    """Appended to, and the same as on stderr."""
    log = tmp_path / "log"
    log.write_text("before\n")
    r = kvm("run", "-k", guest("hang"), "--timeout", "0.1", "--log", log, "-v")
    assert r.returncode == 252
    assert log.read_text() == "before\n" + r.stderr


def test_log_that_cannot_be(tmp_path):
    check_refused(kvm("run", "-k", guest("exit"), "--log", tmp_path), "Is a directory")


@pytest.mark.kvm
def test_a_second_machine_beside_it(kvm):
    """Two at the same time, of any names."""
    one = kvm("-k", guest("hang"), "--name", "a.b_c-1")
    one.out.wait_for("^ready")
    kvm("-k", guest("exit"), "-p", "code=4").ends("exit", 4)
    one.signal(3)
    assert one.end() == 131
