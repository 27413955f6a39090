# SPDX-License-Identifier: GPL-2.0-or-later
"""
Disks in a Linux guest: what their options do, and what becomes of what is written. All of it is in one machine, whose
root is a disk; it ends in the last test, which looks at the images.
"""
import os
import re
import subprocess
import types

import pytest

import disks
import images
import vm
from test_command import kernel

pytestmark = pytest.mark.linux(machine="disks", weight=15)


@pytest.fixture(scope="module")
def machine(tmp_path_factory, linux_obstacle):
    """It is named d; .path has its images by name, .dev what they are in the guest."""
    if linux_obstacle:
        pytest.skip(linux_obstacle)
    tmp = tmp_path_factory.mktemp("disks")
    disks.make_tree(tmp / "tree")
    with disks.real_fs(tmp_path_factory.mktemp("real")) as real:
        p = {
            "root": disks.overlay(tmp / "root.qcow2", disks.make_fs(tmp / "base.img", tmp / "tree", 64), "raw"),
            "ro": disks.filled(tmp / "ro.img", 3),
            "cow": disks.filled(tmp / "cow.img", 16),
            "raw": disks.sparse(tmp / "raw.img", 16),
            "direct": disks.filled(real / "direct.img", 16),
            "chain": disks.chain(tmp, 16),
            "ext4": disks.qcow2(tmp / "ext4.qcow2", 64),
            "xfs": disks.sparse(tmp / "xfs.img", 320),
        }
        options = {"ro": ",ro,serial=abc", "cow": ",cow,queues=1", "raw": ",serial=a-serial-of-20-bytes",
                   "direct": ",cache=none"}
        before = {name: disks.digest(path) for name, path in p.items() if name in ("ro", "cow")}
        before["base"] = disks.digest(tmp / "base.img")
        more = [word for name in list(p)[1:] for word in ("-d", f"{p[name]}{options.get(name, '')}")]
        # pylint: disable-next=consider-using-with
        v = vm.Vm(tmp, *kernel(), "--name", "d", "-c", 2, *disks.HOST, p["root"], *more, "--", "sh", "-c",
                  f"{disks.MOUNT_HOST} && echo ready && read end; sync; exit 5", stdin="pipe", patience=3000)
        v.out.wait_for("ready")
        yield types.SimpleNamespace(vm=v, path=p, before=before, base=tmp / "base.img",
                                    dev={name: f"/dev/vd{chr(ord('a') + i)}" for i, name in enumerate(p)})
        ended = v.process.poll()
        v.kill()
        assert ended in (None, 5), v.story()


def start(*argv):
    """A program of the host's in the machine."""
    return subprocess.Popen([vm.KVM, "exec", "d", "--", "chroot", "/host", *map(str, argv)], text=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finish(process):
    out, _ = process.communicate(timeout=vm.PATIENCE)
    assert process.returncode == 0, out[-4000:]
    return out


def sh(script, *words):
    """What a script prints that must succeed."""
    return finish(start("/bin/sh", "-euc", "PATH=/usr/sbin:/usr/bin:/sbin:/bin; " + script, "sh", *words))


def kvm(*args):
    subprocess.run([vm.KVM, *args], check=True)


def in_guest(machine, name):
    return sh("md5sum <$1", machine.dev[name])[:32]


def test_what_they_are(machine):
    """Root, queues, serials; read-only is read-only for a guest that does not believe it, too."""
    dev = machine.dev
    assert sh("cd /sys/block; for i in vdb/serial vdd/serial vdb/ro vdd/queue/logical_block_size; do "
              "echo $(cat $i); done; echo vda/mq/* vdc/mq/*"
              ) == "abc\na-serial-of-20-bytes\n1\n512\nvda/mq/0 vda/mq/1 vdc/mq/0\n"
    assert re.search("^/dev/vda / ext4 rw,", sh("cat /proc/1/mounts"), re.M)
    assert sh("blockdev --setrw $1; dd if=/dev/zero of=$1 bs=4k count=1 conv=fsync 2>/dev/null || echo refused; "
              "md5sum <$1", dev["ro"]) == f"refused\n{machine.before['ro']}  -\n"
    kvm("exec", "d", "--", "sh", "-c", "echo written >/new; sync")
    assert sh("dd if=/dev/zero of=$1 bs=4k count=9 conv=fsync 2>/dev/null; cmp -n 36864 $1 /dev/zero", dev["cow"]) == ""


def test_verify_and_pause(machine):
    """fio checks what it reads, on every kind of image at once, while the machine is paused again and again."""
    names = ["cow", "raw", "direct", "chain"]
    with start(*disks.fio("v", [machine.dev[n] for n in names], "4m")) as job:
        assert job.stdout.readline() == "begun\n"
        pauses = disks.pauses_during(job, "d")
        finish(job)
    assert pauses > 3


def test_cache_type(machine):
    """It is what the guest's root says that it is."""
    assert sh("cd /sys/block/vdd; cat cache_type; echo 'write through' >cache_type; cat cache_type queue/write_cache; "
              "echo 'write back' >cache_type; cat cache_type"
              ) == "write back\nwrite through\nwrite through\nwrite back\n"


def test_flush_is_fdatasync(machine):
    """The host is asked for what the guest was promised, and not when there was nothing to ask for.

    A disk on a real file system: for one in memory there is no need of a ring.
    """
    write = "dd if=/dev/zero of=/dev/vde bs=64k count=4 conv=notrunc 2>/dev/null oflag=direct"
    with disks.Syncs() as syncs:
        sh("sync")
        start_at = syncs.count()
        sh(f"{write} conv=fsync")
        assert syncs.count() == start_at + 1
        sh("for i in 1 2 3; do dd if=/dev/null of=/dev/vde conv=notrunc,fsync 2>/dev/null; done")
        assert syncs.count() == start_at + 1
        sh(f"echo 'write through' >/sys/block/vde/cache_type; {write}; echo 'write back' >/sys/block/vde/cache_type")
        assert syncs.count() == start_at + 5
        sh(write)
        assert syncs.count() == start_at + 5


def test_discard_and_zeroes(machine):
    """They reach the host's files as holes, and read as zeroes."""
    for name in "raw", "direct", "chain":
        path, dev = machine.path[name], machine.dev[name]
        sh("dd if=/dev/urandom of=$1 bs=1M count=8 oflag=direct conv=fsync 2>/dev/null", dev)
        before = disks.allocated(path)
        sh("blkdiscard -l 4M $1; blkdiscard -z -o 4M -l 2M $1; cmp -n 6291456 $1 /dev/zero; "
           "dd if=/dev/null of=$1 conv=notrunc,fsync 2>/dev/null", dev)
        vm.wait_until(lambda: disks.allocated(path) < before - (3 << 20))


REBIND = """
d=$(basename $(readlink -f /sys/block/vdd/device)); cd /sys/bus/virtio/drivers/virtio_blk
before=$(md5sum </dev/vdd)
for i in $(seq $1); do
    for k in 1 2 3 4; do dd if=/dev/vdd of=/dev/null bs=16k iflag=direct 2>/dev/null & done
    dd if=/dev/vdd of=/dev/vdd bs=4k iflag=direct oflag=direct conv=notrunc 2>/dev/null &
    head -c 100000 /dev/vdd >/dev/null
    echo $d >unbind
    wait || true
    test ! -e /sys/block/vdd
    echo $d >bind
    test "$(md5sum </dev/vdd)" = "$before"
done
"""


def test_driver_leaves_under_load(machine):
    """What it had in flight comes to an end; the next driver finds the disk as it was."""
    sh(REBIND, 3)


@pytest.mark.long
def test_driver_leaves_under_load_long(machine):
    sh(REBIND, 20)


MAKE_FS = """
case $1 in
ext4) mkfs.ext4 -q $2 ;;
xfs) modprobe -d $3 xfs; mkfs.xfs -q -f $2 ;;
esac
mkdir -p /mnt/$1; mount $2 /mnt/$1
"""


@pytest.fixture(scope="class", params=["ext4", "xfs"])
def fs(machine, request):
    """Mounted at /mnt/NAME; its file system is sound afterwards."""
    name = request.param
    sh(MAKE_FS, name, machine.dev[name], disks.modules_root())
    yield name
    sh("umount /mnt/$1; case $1 in ext4) fsck.ext4 -fn $2 ;; xfs) xfs_repair -n $2 ;; esac", name, machine.dev[name])


def exercise(fs, seed, count):
    sh("$1 $2 $3 /mnt/$4/fsx", images.program("fsx"), seed, count, fs)


class TestFiles:
    """File systems of the guest; each is checked at the end."""

    def test_random(self, machine, fs):
        """Random operations on a file, and what fstrim gives back of one that is removed."""
        exercise(fs, 1, 600)
        sh("dd if=/dev/urandom of=/mnt/$1/big bs=1M count=16 conv=fsync 2>/dev/null", fs)
        before = disks.allocated(machine.path[fs])
        sh("rm /mnt/$1/big; sync; fstrim /mnt/$1; sync", fs)
        vm.wait_until(lambda: disks.allocated(machine.path[fs]) <= before - (14 << 20))

    @pytest.mark.long
    @pytest.mark.parametrize("seed", range(2, 6))
    def test_random_long(self, fs, seed):
        exercise(fs, seed, 10000)

    @pytest.mark.long
    def test_stress(self, fs):
        for how in "dsync,fsync,rd-rnd,wr-rnd", "direct,wr-seq,rd-seq", "fdatasync,rd-seq,wr-rnd":
            sh("exec stress-ng --temp-path /mnt/$1 --hdd 3 --hdd-bytes 4m --hdd-ops 1000 --verify --quiet --hdd-opts $2",
               fs, how)


def test_after_the_end(machine):
    """The images have what the guest has seen, and are sound; what was not to be written was not."""
    v, path = machine.vm, machine.path
    seen = {name: in_guest(machine, name) for name in ("raw", "direct", "chain")}
    v.type("end\n")
    v.ends("command", 5)
    after = {name: disks.digest(path[name]) for name in ("ro", "cow")}
    assert after | {"base": disks.digest(machine.base)} == machine.before
    for name, was in seen.items():
        assert disks.contents(path[name], "qcow2" if name == "chain" else "raw") == was, name
    for name in "root", "chain", "ext4":
        disks.check(path[name])
        kvm("disk", "check", path[name])
    disks.run("qemu-img", "convert", "-O", "raw", path["root"], f"{path['root']}.raw")
    assert subprocess.check_output(["debugfs", "-R", "cat /new", f"{path['root']}.raw"], text=True) == "written\n"
    assert subprocess.run(["e2fsck", "-fn", f"{path['root']}.raw"], capture_output=True, check=False).returncode == 0
    assert os.path.getsize(path["raw"]) == 16 << 20
