# SPDX-License-Identifier: GPL-2.0-or-later
"""Images for disks of Linux guests, and what is done with them on the host."""
import contextlib
import hashlib
import os
import shutil
import subprocess

import pytest

import images
import vm

APPLETS = "sh cat chroot grep mount sync dd poweroff ls md5sum mkdir blockdev stat".split()
HOST_ROOT = ["-d", "/,cow"]  # though there are disks
# The programs of the host, in a machine whose root is one of these trees: mounted at /host.
HOST = ["--9p", "/,host,ro"]
MOUNT_HOST = ("mkdir /host && mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose host /host && "
              "for d in dev proc sys; do mount --bind /$d /host/$d || exit 9; done; mount -t tmpfs none /host/mnt")


def make_tree(top):
    """A root that needs nothing but busybox, with an init of its own."""
    for name in "bin", "sbin", "proc", "sys", "dev", "run", "tmp":
        os.makedirs(top / name)
    shutil.copy("/bin/busybox", top / "bin")
    for name in APPLETS:
        os.symlink("busybox", top / "bin" / name)
    (top / "sbin/init").write_text("#!/bin/sh\necho '@init of the root'\npoweroff -f\n")
    os.chmod(top / "sbin/init", 0o755)


def run(*argv):
    subprocess.run([str(a) for a in argv], check=True, stdout=subprocess.DEVNULL)


def sparse(path, mib):
    with open(path, "wb") as f:
        f.truncate(mib << 20)
    return path


def make_fs(path, tree, mib, fs="ext4"):
    sparse(path, mib)
    if fs == "ext4":
        run("mkfs.ext4", "-q", "-d", tree, path)
    else:
        run("mkfs.btrfs", "-q", "--rootdir", tree, path)
    return path


def copy(path, to):
    run("cp", "--sparse=always", path, to)
    return to


def filled(path, mib):
    path.write_bytes(os.urandom(mib << 20))
    return path


def overlay(path, below, fmt):
    """A qcow2 image over another one."""
    run("qemu-img", "create", "-q", "-f", "qcow2", "-b", below, "-F", fmt, path)
    return path


def chain(tmp, mib):
    """The top one of three."""
    middle = overlay(tmp / "middle.qcow2", filled(tmp / "below.img", mib), "raw")
    return overlay(tmp / "top.qcow2", middle, "qcow2")


def qcow2(path, mib, *options):
    run("qemu-img", "create", "-q", "-f", "qcow2", *options, path, f"{mib}M")
    return path


def digest(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "md5").hexdigest()


def contents(image, fmt="raw"):
    """The digest of what a guest sees."""
    if fmt == "raw":
        return digest(image)
    raw = f"{image}.raw"
    run("qemu-img", "convert", "-f", fmt, "-O", "raw", image, raw)
    found = digest(raw)
    os.remove(raw)
    return found


def check(image, leaks=False):
    """qemu-img's own opinion: clean, or nothing worse than leaks."""
    r = subprocess.run(["qemu-img", "check", image], capture_output=True, text=True, check=False)
    assert r.returncode in ((0, 3) if leaks else (0,)), r.stdout + r.stderr


def allocated(path):
    return os.stat(path).st_blocks * 512


@contextlib.contextmanager
def real_fs(tmp, mib=1024):
    """A directory on a file system that has O_DIRECT, which tmpfs has of late only."""
    try:
        with open(tmp / "probe", "wb") as f:
            os.close(os.open(f.name, os.O_RDONLY | os.O_DIRECT))
        yield tmp
        return
    except OSError:
        pass
    image, at = sparse(tmp / "ext4", mib), tmp / "mounted"
    at.mkdir()
    run("mkfs.ext4", "-q", "-E", "lazy_itable_init=1", image)
    run("mount", "-o", "loop", image, at)  # as root, which the lab's tests are
    try:
        yield at
    finally:
        run("umount", "-l", at)


def fio(name, disks, size, more=""):
    """The command line of a job for each disk: random requests of many sizes, all checked. It says `begun` first."""
    common = ("--ioengine=libaio --direct=1 --rw=randrw --iodepth=16 --fsync=64 --verify=crc32c --verify_fatal=1 "
              "--verify_backlog=128 --bsrange=512-64k --bs_unaligned=0 --blockalign=512 --verify_interval=512 "
              f"--verify_state_save=0 --minimal --thread --randseed=7 --size={size} " + more).split()
    jobs = [word for d in disks for word in (f"--name={name}-{os.path.basename(d)}", f"--filename={d}")]
    return ["/bin/sh", "-c", 'echo begun; exec "$@"', "sh", "fio", *common, *jobs]


def pauses_during(process, machine):
    """
    How often the machine was paused and resumed until the program had ended. A host that is too busy to end what is in
    flight refuses a pause, and says so.
    """
    n = 0
    while process.poll() is None:
        r = subprocess.run([vm.KVM, "pause", machine], capture_output=True, text=True, check=False)
        if r.returncode == 0:
            n += 1
            subprocess.run([vm.KVM, "resume", machine], check=True)
        else:
            assert "takes the host too long" in r.stderr, r.stderr
    return n


class Syncs:
    """Counts the fdatasync calls of all rings of the host, without a hand on the program: by a tracepoint."""

    TRACING = "/sys/kernel/tracing"
    EVENTS = TRACING + "/events/io_uring/io_uring_submit_"  # sqe, and since 6.4 req
    FSYNC = 3  # IORING_OP_FSYNC

    def __init__(self):
        if not os.path.exists(self.TRACING + "/events") and not os.geteuid():
            subprocess.run(["mount", "-t", "tracefs", "none", self.TRACING], check=False)
        found = [self.EVENTS + how for how in ("sqe", "req") if os.path.exists(self.EVENTS + how)]
        if not found or not os.access(found[0] + "/enable", os.W_OK):
            pytest.skip("no tracepoints of io_uring that may be used")
        self.event = found[0]

    def put(self, name, text):
        with open(f"{self.event}/{name}", "w") as f:
            f.write(text)

    def __enter__(self):
        self.put("filter", f"opcode == {self.FSYNC}")
        self.put("enable", "1")
        return self

    def __exit__(self, *error):
        self.put("enable", "0")
        self.put("filter", "0")

    @classmethod
    def count(cls):
        with open(cls.TRACING + "/trace") as f:
            return sum("io_uring_submit_" in line for line in f)


def modules_root():
    """For modprobe -d."""
    return images.bzimage().split("/boot/")[0]
