# SPDX-License-Identifier: GPL-2.0-or-later
"""Disks in Linux guests: which one is the root, what their options do, what becomes of what is written."""
import hashlib
import os
import shutil
import subprocess

import pytest

from test_command import kernel

APPLETS = "sh cat grep mount sync dd poweroff ls md5sum blockdev stat".split()


def make_tree(top):
    """A root that needs nothing but busybox, with an init of its own."""
    for name in "bin", "sbin", "proc", "sys", "dev", "run", "tmp":
        os.makedirs(top / name)
    shutil.copy("/bin/busybox", top / "bin")
    for name in APPLETS:
        os.symlink("busybox", top / "bin" / name)
    (top / "sbin/init").write_text("#!/bin/sh\necho '@init of the root'\npoweroff -f\n")
    os.chmod(top / "sbin/init", 0o755)


def make_fs(path, tree, mib, fs="ext4"):
    with open(path, "wb") as f:
        f.truncate(mib << 20)
    if fs == "ext4":
        subprocess.run(["mkfs.ext4", "-q", "-d", tree, path], check=True)
    else:
        subprocess.run(["mkfs.btrfs", "-q", "--rootdir", tree, path], check=True)
    return path


def make_partitioned(path, tree, tmp, mib=60):
    """An EFI partition, and one of Linux behind it."""
    fs = make_fs(tmp / "part", tree, mib)
    with open(path, "wb") as f:
        f.truncate((mib + 30) << 20)
    subprocess.run(["sfdisk", "-q", path], input=f"label: gpt\nsize=20M, type=U\nsize={mib}M, type=L\n", text=True, check=True)
    subprocess.run(["dd", f"if={fs}", f"of={path}", "bs=1M", "seek=21", "conv=notrunc", "status=none"], check=True)
    return path


def digest(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def cat(image, name):
    return subprocess.run(["debugfs", "-R", f"cat {name}", image], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def tree(tmp_path):
    make_tree(tmp_path / "tree")
    return tmp_path / "tree"


@pytest.mark.linux(boots=1)
def test_root_and_more_disks(kvm, tree, tmp_path):
    """vda is the root, a QCOW2 image over a raw one, and is written to; the others are what they were said to be."""
    base, image = make_fs(tmp_path / "root.img", tree, 64), tmp_path / "root.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "-b", base, "-F", "raw", image], check=True)
    data, cow = tmp_path / "data.img", tmp_path / "cow.img"
    data.write_bytes(os.urandom(3 << 20))
    cow.write_bytes(os.urandom(1 << 20))
    before = digest(data), digest(cow), digest(base)
    vm = kvm(*kernel(), "-c", 2, image, "-d", f"{data},ro,serial=abc", "-d", f"{cow},cow,queues=1", "--", "sh", "-c",
             "grep ' / ' /proc/mounts; cat /sys/block/vdb/serial /sys/block/vdb/ro; ls /sys/block/vda/mq /sys/block/vdc/mq;"
             "echo written >/new; blockdev --setrw /dev/vdb; dd if=/dev/zero of=/dev/vdb bs=4k count=1 conv=fsync 2>/dev/null"
             " && echo wrote; md5sum </dev/vdb; dd if=/dev/zero of=/dev/vdc bs=4k count=9 conv=fsync 2>/dev/null;"
             "dd if=/dev/vdc bs=4k count=9 2>/dev/null | md5sum; exit 5")
    vm.ends("command", 5)
    out = vm.out.text()
    assert "/dev/vda / ext4 rw," in out and "\nabc" in out and "wrote" not in out, vm.story()
    assert "/sys/block/vda/mq:\n0\n1\n" in out and "/sys/block/vdc/mq:\n0\n" in out, vm.story()
    assert hashlib.md5(data.read_bytes()).hexdigest() in out and hashlib.md5(bytes(9 * 4096)).hexdigest() in out
    assert (digest(data), digest(cow), digest(base)) == before
    assert subprocess.run(["qemu-img", "check", "-q", image], check=False).returncode == 0
    raw = tmp_path / "raw.img"
    subprocess.run(["qemu-img", "convert", "-O", "raw", image, raw], check=True)
    assert cat(raw, "/new") == "written\n"
    assert subprocess.run(["e2fsck", "-fn", raw], capture_output=True, check=False).returncode == 0


@pytest.mark.long
@pytest.mark.linux(boots=1)
def test_partitioned_and_init(kvm, tree, tmp_path):
    """Without a command the root's own init is run."""
    image = make_partitioned(tmp_path / "disk.img", tree, tmp_path)
    vm = kvm(*kernel(), image)
    vm.ends("poweroff", 0)
    assert "@init of the root" in vm.out.text()


@pytest.mark.long
@pytest.mark.linux(boots=1)
def test_btrfs(kvm, tree, tmp_path):
    """A driver that comes as a module, with modules of its own."""
    image = make_fs(tmp_path / "root.img", tree, 120, "btrfs")
    vm = kvm(*kernel(), f"{image},ro", "--", "grep", " / ", "/proc/mounts")
    vm.ends("command", 0)
    assert "/dev/vda / btrfs ro," in vm.out.text()


@pytest.mark.long
@pytest.mark.linux(boots=1)
def test_error_stops_the_machine(kvm, tree, tmp_path):
    """on-error=stop: the guest sees nothing of an error that has passed when it is resumed."""
    image, data = make_fs(tmp_path / "root.img", tree, 64), tmp_path / "data.img"
    data.write_bytes(bytes(1 << 20))
    vm = kvm(*kernel(), "--name", "m", image, "-d", f"{data},on-error=stop", "--fault", "disk1:eio@3:write", "--", "sh", "-c",
             "for i in 0 1 2 3 4 5 6 7; do dd if=/dev/zero of=/dev/vdb bs=4k count=1 seek=$i conv=fsync 2>&1 || exit 9; done")
    vm.err.wait_for("the machine is paused; `kvm resume m` tries again")
    assert subprocess.run([vm.argv[0], "resume", "m"], check=False).returncode == 0
    vm.ends("command", 0)


@pytest.mark.long
@pytest.mark.linux(boots=1)
def test_flushed_data_survives_kill(kvm, tree, tmp_path):
    """What the guest has synced is in the image when kvm is killed."""
    image = make_fs(tmp_path / "root.img", tree, 64)
    vm = kvm(*kernel(), image, "--", "sh", "-c", "echo kept >/kept; sync; echo @synced; while :; do :; done")
    vm.out.wait_for("@synced")
    vm.process.kill()
    vm.process.wait()
    subprocess.run(["e2fsck", "-fy", image], capture_output=True, check=False)
    assert cat(image, "/kept") == "kept\n"
