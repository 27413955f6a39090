# SPDX-License-Identifier: GPL-2.0-or-later
"""Disks in Linux guests that take a machine of their own: roots, faults, a kvm that is killed."""
import os
import random
import re
import subprocess

import pytest

import disks
import images
import vm
from disks import make_fs, make_tree
from test_command import kernel

pytestmark = pytest.mark.long


def put_behind_efi(path, fs):
    """An EFI partition, and the file system behind it in one of Linux."""
    mib = os.path.getsize(fs) >> 20
    disks.sparse(path, mib + 30)
    table = f"label: gpt\nsize=20M, type=U\nsize={mib}M, type=L\n"
    subprocess.run(["sfdisk", "-q", path], input=table, text=True, check=True)
    disks.run("dd", f"if={fs}", f"of={path}", "bs=1M", "seek=21", "conv=notrunc,sparse", "status=none")
    return path


def cat(image, name):
    return subprocess.run(["debugfs", "-R", f"cat {name}", image], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def tree(tmp_path):
    make_tree(tmp_path / "tree")
    return tmp_path / "tree"


@pytest.mark.linux(boots=1)
def test_partitioned_and_init(kvm, tree, tmp_path):
    """Without a command the root's own init is run."""
    image = put_behind_efi(tmp_path / "disk.img", make_fs(tmp_path / "fs", tree, 60))
    vm = kvm(*kernel(), image)
    vm.ends("poweroff", 0)
    assert "@init of the root" in vm.out.text()


@pytest.mark.linux(boots=1)
def test_btrfs(kvm, tree, tmp_path):
    """A driver that comes as a module, with modules of its own."""
    image = make_fs(tmp_path / "root.img", tree, 120, "btrfs")
    vm = kvm(*kernel(), f"{image},ro", "--", "grep", " / ", "/proc/mounts")
    vm.ends("command", 0)
    assert "/dev/vda / btrfs ro," in vm.out.text()


@pytest.mark.linux(boots=1)
def test_many(kvm, tmp_path):
    """As many as there may be, each with its own content and serial."""
    paths = [tmp_path / f"disk{i}" for i in range(64)]
    for path in paths:
        path.write_bytes(os.urandom(65536))
    v = kvm(*kernel(), *disks.HOST_ROOT, *[word for p in paths for word in ("-d", f"{p},serial={p.name}")], "--", "sh", "-c",
            "for d in /sys/block/vd*; do echo @ $(cat $d/serial) $(md5sum </dev/${d##*/}); done")
    v.ends("command", 0)
    found = sorted(re.findall(r"^@ (disk\d+) (\w+) -$", v.out.text(), re.M))
    assert found == sorted((p.name, disks.digest(p)) for p in paths)


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


def kvm_does(*args):
    return subprocess.run([vm.KVM, *map(str, args)], capture_output=True, text=True, check=False)


# Integrity of what programs write, on every kind of image, with one queue and with as many as there are CPUs.

FORMATS = {"raw": "raw", "direct": "raw", "qcow2": "qcow2", "small": "qcow2", "chain": "qcow2", "cow": "raw"}


def make_images(tmp, real):
    return {
        "raw": disks.filled(tmp / "raw", 16), "direct": disks.filled(real / "direct", 16),
        "qcow2": disks.qcow2(real / "qcow2", 16), "small": disks.qcow2(tmp / "small", 16, "-o", "cluster_size=4k"),
        "chain": disks.chain(tmp, 16),
        "cow": disks.filled(tmp / "cow", 16),
    }


@pytest.mark.parametrize("queues", [1, 4])
@pytest.mark.linux(boots=1, weight=12)
def test_verify(kvm, tmp_path, queues):
    """fio, in several mixtures of sizes; the machine is paused meanwhile; the host finds what the guest has seen."""
    with disks.real_fs(tmp_path) as real:
        path = make_images(tmp_path, real)
        before = disks.digest(path["cow"])
        options = {"direct": ",cache=none", "qcow2": ",cache=none", "cow": ",cow"}
        more = [w for n, p in path.items() for w in ("-d", f"{p},queues={queues}{options.get(n, '')}")]
        v = kvm(*kernel(), *disks.HOST_ROOT, "--name", "v", "-c", 4, *more, "--",
                "sh", "-c", "echo ready; read end", stdin="pipe", patience=3000)
        v.out.wait_for("ready")
        dev = {n: f"/dev/vd{chr(ord('a') + i)}" for i, n in enumerate(path)}
        for job in "--bs=4k --numjobs=2 --offset_increment=8m --size=8m", "--bsrange=512-128k":
            argv = [vm.KVM, "exec", "v", "--", *disks.fio("v", dev.values(), "15m", job)]
            with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True) as p:
                assert p.stdout.readline() == "begun\n"
                assert disks.pauses_during(p, "v")
                assert p.returncode == 0, p.stdout.read()[-4000:]
        seen = {n: kvm_does("exec", "v", "--", "md5sum", d).stdout[:32] for n, d in dev.items()}
        v.type("end\n")
        v.ends("command", 0)
        assert disks.digest(path["cow"]) == before != seen.pop("cow")
        for n, was in seen.items():
            assert disks.contents(path[n], FORMATS[n]) == was, n
            if FORMATS[n] == "qcow2":
                disks.check(path[n])
                assert kvm_does("disk", "check", path[n]).returncode == 0


# What was durable stays.

BLOCKS, STRIDE = 65521, 28657  # more than are written before the end comes
ROUNDS = int(os.environ.get("KVM_KILL_ROUNDS", "50"))


def check_records(image, first, out, tag):
    """Everything that the guest was told to be durable is there."""
    told = [int(n) for n in re.findall(f"^{tag}([0-9]+)\n", out, re.M)]
    assert told == list(range(first, first + len(told))) and len(told) < BLOCKS // 2
    with open(image, "rb") as f:
        for i in told:
            f.seek(i * STRIDE % BLOCKS * 4096)
            assert f.read(4096) == i.to_bytes(8, "little") * 512, (i, told[-1])
    return len(told)


@pytest.mark.linux(boots=ROUNDS)
def test_kill(kvm, tmp_path):
    """kvm is killed at any time, again and again: with records on a raw disk and a qcow2 one, and fio on another."""
    raw, q = disks.sparse(tmp_path / "raw", 256), disks.qcow2(tmp_path / "q", 256)
    busy = disks.qcow2(tmp_path / "busy", 64)
    program, durable = images.program("records"), 0
    script = (f"r() {{ {program} $1 {BLOCKS} {STRIDE} $3 | while read i; do echo $2$i; done; }}; "
              "r /dev/vda a $1 & r /dev/vdb b $1 & "
              "exec fio --name=busy --filename=/dev/vdc --ioengine=libaio --direct=1 "
              "--rw=randrw --bsrange=512-64k --bs_unaligned=0 --blockalign=512 --iodepth=16 --fsync=32 --time_based "
              "--runtime=1000 --randrepeat=0 >/dev/null")
    for n in range(ROUNDS):
        first = n * 1000000
        v = kvm(*kernel(), *disks.HOST_ROOT, "-c", 2, "-d", raw, "-d", q, "-d", busy, "--",
                "sh", "-c", script, "sh", first)
        v.out.wait_for("^[ab][0-9]+\r?$", random.randint(1, 400))
        v.kill()
        v.out.thread.join()
        out = v.out.text()
        for image in q, busy:
            disks.check(image, leaks=True)
            assert "\ncorruptions: 0\n" in kvm_does("disk", "check", image).stdout
        durable += check_records(raw, first, out, "a")
        disks.run("qemu-img", "convert", "-O", "raw", q, tmp_path / "converted")
        durable += check_records(tmp_path / "converted", first, out, "b")
    assert durable > ROUNDS


@pytest.mark.linux(boots=1)
def test_flush_is_fdatasync(kvm, tmp_path):
    """The same as with io_uring, seen by strace."""
    image, log = disks.sparse(tmp_path / "raw", 4), tmp_path / "log"
    v = kvm(*kernel(), *disks.HOST_ROOT, "--name", "v", "-d", image, "--",
            "sh", "-c", "echo ready; read end", stdin="pipe", env=dict(os.environ, KVM_NO_URING="1", XDG_CACHE_HOME=vm.CACHE))
    v.out.wait_for("ready")

    def syncs(script):
        with subprocess.Popen(["strace", "-f", "-p", str(v.process.pid), "-e", "trace=fdatasync,fsync", "-o", log],
                              stderr=subprocess.PIPE) as tracer:
            tracer.stderr.readline()
            r = kvm_does("exec", "v", "--", "sh", "-euc", script)
            tracer.terminate()
        assert r.returncode == 0, r.stderr
        return len(re.findall(r"fdatasync\([0-9]+", log.read_text()))

    write = "dd if=/dev/zero of=/dev/vda bs=64k count=4 oflag=direct conv=notrunc"
    assert syncs(f"{write},fsync") == 1
    assert syncs("for i in 1 2 3; do dd if=/dev/null of=/dev/vda conv=notrunc,fsync; done") == 0
    assert syncs(f"echo 'write through' >/sys/block/vda/cache_type; {write}") == 4
    assert syncs(f"echo 'write back' >/sys/block/vda/cache_type; {write}") == 0
    v.type("end\n")
    v.ends("command", 0)


# A distribution's root.

@pytest.fixture(scope="module")
def debian():
    try:
        return images.debian_image()
    except images.Missing as e:
        return pytest.skip(str(e))


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.linux(boots=1, weight=12)
def test_debian(kvm, tmp_path, debian, partitioned):
    """systemd, udev and a getty, from a disk and a modular kernel alone; what is written is there in the end."""
    if partitioned:
        image = put_behind_efi(tmp_path / "disk", debian)
    else:
        image = disks.copy(debian, tmp_path / "disk")
    v = kvm("-k", images.bzimage(), "-m", 1024, "-d", image, stdin="pipe", patience=900)
    v.out.wait_for("login: ")
    v.type("root\n")
    v.out.wait_for("# ")
    v.type("echo kept >/root/kept; echo root=$(findmnt -no SOURCE,OPTIONS /)\n")
    v.out.wait_for(f"root=/dev/vda{'2' if partitioned else ''} rw")
    v.type("systemctl poweroff\n")
    v.ends("poweroff", 0)
    fs = tmp_path / "fs"
    skip = 21 if partitioned else 0
    disks.run("dd", f"if={image}", f"of={fs}", "bs=1M", f"skip={skip}", "conv=sparse", "status=none")
    assert cat(fs, "/root/kept") == "kept\n"
    assert subprocess.run(["e2fsck", "-fn", fs], capture_output=True, check=False).returncode == 0
