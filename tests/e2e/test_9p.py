# SPDX-License-Identifier: GPL-2.0-or-later
"""
Shares over 9p, as programs in a Linux guest see them: what a file system must do, in each way of mounting. All of
it is in one machine, which has a share for each way.
"""
import contextlib
import fcntl
import os
import re
import shutil
import sqlite3
import subprocess
import textwrap

import pytest

import images
import vm
from test_command import kernel

pytestmark = pytest.mark.linux(machine="shares", weight=25)
MODES = {  # how to mount, and how it is shared
    "none": ("cache=none,msize=512000", "map=none"),
    "loose": ("cache=loose,msize=512000", "map=none"),
    "mmap": ("cache=mmap,msize=512000", "map=none"),
    "small": ("cache=none,msize=4096", "map=none"),
    "loose-small": ("cache=loose,msize=4096", "map=none"),
    "mapped": ("cache=none,msize=512000", "map=mapped"),
}
WAYS = ["none", "loose", "mmap"]


@contextlib.contextmanager
def disk(tmp):
    """A directory on a file system that has extended attributes, which tmpfs has of late only."""
    probe = tmp / "probe"
    probe.touch()
    try:
        os.setxattr(probe, "user.a", b"")
        yield tmp
        return
    except OSError:
        if os.geteuid():
            pytest.skip(f"no extended attributes in {tmp}, and only root can mount a file system that has them")
    image, at = tmp / "disk", tmp / "mounted"
    at.mkdir()
    subprocess.run(["truncate", "-s", "1G", image], check=True)
    subprocess.run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=1,root_owner=0:0", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, at], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", at], check=True)


@pytest.fixture(scope="module")
def shares(tmp_path_factory, linux_obstacle):
    """The host's directory of each mode; a machine named s has them mounted at /mnt/MODE."""
    if linux_obstacle:
        pytest.skip(linux_obstacle)
    mount = "".join(f"mkdir /mnt/{m}; mount -t 9p -o trans=virtio,version=9p2000.L,{how} {m} /mnt/{m} || exit 9\n"
                    for m, (how, _) in MODES.items())
    with disk(tmp_path_factory.mktemp("shares")) as top:
        for m in MODES:
            (top / m).mkdir()
        options = [word for m, (_, how) in MODES.items() for word in ("--9p", f"{top / m},{m},{how}")]
        # pylint: disable-next=consider-using-with
        machine = vm.Vm(tmp_path_factory.mktemp("machine"), *kernel(), "--name", "s", *options, "--", "sh", "-c",
                        mount + "mkdir /mnt/local; mount -t tmpfs local /mnt/local && echo ready && read end",
                        stdin="pipe", patience=3000)
        machine.out.wait_for("ready")
        yield {m: top / m for m in MODES}
        machine.type("end\n")
        machine.ends("command", 0)


@pytest.fixture(params=[pytest.param(m, marks=pytest.mark.long if "small" in m else ()) for m in MODES])
def mode(request):
    return request.param


def inside(script, *words, **how):
    """(status, stdout and stderr) of a script in the machine."""
    how.setdefault("stdin", subprocess.DEVNULL)
    r = subprocess.run([vm.KVM, "exec", "s", "--", "sh", "-euc", script, "sh", *map(str, words)],
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=vm.PATIENCE, check=False, **how)
    return r.returncode, r.stdout.decode("latin1")


def sh(script, *words, **how):
    """What a script prints that must succeed."""
    status, out = inside(script, *words, **how)
    assert status == 0, out
    return out


# What a file system is.

def differ(shares, mode, seed, count):
    """The same on the share, on a local file system of the guest, and as the host sees it."""
    program = images.program("fsdiff")
    sh("mkdir /mnt/$2/diff-$3 /mnt/local/$2-$3; exec $1 $3 $4 /mnt/$2/diff-$3 /mnt/local/$2-$3",
       program, mode, seed, count)
    local = sh(f"sync; {program} tree /mnt/local/{mode}-{seed}")
    if mode != "mapped":  # there, the host has other owners and modes
        assert subprocess.check_output([program, "tree", shares[mode] / f"diff-{seed}"], text=True) == local
    sh(f"rm -rf /mnt/{mode}/diff-{seed} /mnt/local/{mode}-{seed}")
    assert os.listdir(shares[mode]) == []


def test_differential(shares, mode):
    differ(shares, mode, 1, 2000)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 6))
def test_differential_long(shares, mode, seed):
    differ(shares, mode, seed, 20000)


# What Linux's client does not do.
BEYOND = {
    "none": ["mapped_shared"],  # no shared writable mappings without a cache
    "small": ["mapped_shared"],
    "mapped": ["mapped_shared"],
    "loose": ["sparse"],  # it counts blocks by itself
    "loose-small": ["sparse"],
}


def test_posix(shares, mode):
    at = f"/mnt/{mode}/posix"
    sh("mkdir $1", at)
    status, out = inside('exec "$@"', images.program("fsposix"), at, *("-" + b for b in BEYOND.get(mode, [])))
    sh("rm -rf $1", at)
    assert status == 0 and out.count("ok ") >= 30, "\n".join(re.findall("^(?!ok ).*", out, re.M))
    assert os.listdir(shares[mode]) == []


def test_no_shared_mapping_without_cache(shares):
    """The one thing that the list leaves out at cache=none is refused, not wrong."""
    status, out = inside(f"mkdir $1; exec {images.program('fsposix')} $1 mapped_shared", "/mnt/none/map")
    sh("rm -rf /mnt/none/map")
    assert status == 1 and "p != MAP_FAILED (Invalid argument)" in out


def test_links_of_directories(shares):
    """As the host's file system counts them."""
    for change in "mkdir -p a b/c; touch f", "rmdir a", "mv b/c a":
        out = sh(f"mkdir -p /mnt/none/links; cd /mnt/none/links; {change}; stat -c %h . b")
        assert [int(n) for n in out.split()] == [os.stat(shares["none"] / "links" / d).st_nlink for d in (".", "b")]
    shutil.rmtree(shares["none"] / "links")


def test_times_of_the_host(shares):
    """To the nanosecond."""
    path = shares["none"] / "times"
    path.touch()
    os.utime(path, ns=(1234567890123456789, 987654321987654321))
    assert sh("stat -c '%.9X %.9Y' /mnt/none/times; rm /mnt/none/times") == "1234567890.123456789 987654321.987654321\n"


@pytest.mark.parametrize("mode,msize", [("small", 4096), ("loose-small", 4096), ("none", 512000), ("loose", 512000)])
def test_sizes_around_msize(shares, mode, msize):
    """One write, one read, each of the whole file; the host has the same."""
    sh("mkdir /mnt/$2/sizes; $1 sizes /mnt/$2/sizes $3; sync", images.program("fsposix"), mode, msize)
    for n in range(msize - 30, msize + 31):
        want = bytes((i * n >> 3) & 255 for i in range(min(n, 2048)))
        # The pattern begins again after 2048 bytes.
        assert (shares[mode] / "sizes" / str(n)).read_bytes() == (want * (n // 2048 + 1))[:n], n
    shutil.rmtree(shares[mode] / "sizes")


# The host is there as well.

def test_host_replaces_files(shares):
    """At cache=none nothing is old: contents, sizes, names, and what an opened file has."""
    top = shares["none"] / "seen"
    top.mkdir()
    (top / "open").write_text("0")
    with subprocess.Popen([vm.KVM, "exec", "s", "--", "sh", "-c", "exec 5</mnt/none/seen/open; while read x; do "
                           "cat /mnt/none/seen/f; stat -c %s /mnt/none/seen/f; cat <&5; done"], text=True, bufsize=1,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as guest:
        for i in range(20):
            (top / "new").write_text(f"{i} " + "x" * i * 3000 + "\n")
            os.rename(top / "new", top / "f")
            with open(top / "open", "a") as f:
                f.write(f"more {i}\n")
            guest.stdin.write("\n")
            assert guest.stdout.readline() == f"{i} " + "x" * i * 3000 + "\n"
            assert int(guest.stdout.readline()) == os.stat(top / "f").st_size
            assert guest.stdout.readline() == ("0" if not i else "") + f"more {i}\n"
        guest.stdin.close()
        assert guest.wait(vm.PATIENCE) == 0
    (top / "f").unlink()
    assert inside("cat /mnt/none/seen/f")[0] == 1
    (top / "f").mkdir()
    assert sh("stat -c %F /mnt/none/seen/f") == "directory\n"
    shutil.rmtree(top)


@pytest.mark.parametrize("mode", WAYS)
def test_locks_against_the_host(shares, mode):
    """Either side keeps the other one out; flock and fcntl are one kind of lock on the wire."""
    path = shares[mode] / "lock"
    program = images.program("fsposix")
    path.touch()
    with open(path, "r+") as f:
        fcntl.lockf(f, fcntl.LOCK_EX)
        assert sh(f"{program} lock /mnt/$1/lock; flock -n /mnt/$1/lock true || echo held", mode) == "held\nheld\n"
        fcntl.lockf(f, fcntl.LOCK_UN)
        for holder in f"{program} lock", "flock":
            more = "sh -c 'echo locked; exec cat'" if holder == "flock" else ""
            with subprocess.Popen([vm.KVM, "exec", "s", "--", "sh", "-c", f"exec {holder} /mnt/{mode}/lock {more}"],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE) as guest:
                assert guest.stdout.readline() == b"locked\n"
                with pytest.raises(BlockingIOError):
                    fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                guest.stdin.close()
                assert guest.wait(vm.PATIENCE) == 0
            fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(f, fcntl.LOCK_UN)
    path.unlink()


# What people do with it.

@pytest.mark.parametrize("mode", WAYS)
def test_exec_and_map(shares, mode):
    """A program, a script, a library that is linked to, from the share; a program that runs is not written to."""
    top = shares[mode] / "exec"
    top.mkdir()
    shutil.copy(images.program("fsposix"), top / "program")
    (top / "script").write_text("#!/bin/sh\necho script $0 $1\n")
    (top / "script").chmod(0o755)
    shutil.copy(re.search(r"/\S+/libc\.so\.6", subprocess.check_output(["ldd", "/bin/cat"], text=True))[0], top)
    out = sh("cd /mnt/$1/exec; ./script x; mkdir d; ./program d append mapped_private; "
             "LD_LIBRARY_PATH=$PWD sh -c 'cat /proc/self/maps' | grep -c /exec/libc.so.6; : >f; mkfifo p q; "
             "./program lock f <p >q & exec 5>p; read up <q; (: >>program) 2>&1 || true; exec 5>&-; wait", mode)
    assert re.fullmatch("script ./script x\nok append\nok mapped_private\n[1-9]\n.*Text file busy\n", out), out
    shutil.rmtree(top)


GIT = """
export HOME=/tmp GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
cd /mnt/$1
git init -q --template= repo
cd repo
git config maintenance.auto false
for i in 1 2 3; do mkdir d$i; echo $i >d$i/file; done
: >file; git add .
for i in $(seq $2); do echo line $i >>file; git commit -qam "change $i"; done
test -z "$(git status --porcelain)"
git log --oneline | wc -l
git fsck --full --strict --no-dangling
sync
"""


@pytest.mark.parametrize("mode", ["none", pytest.param("loose", marks=pytest.mark.long),
                                  pytest.param("mmap", marks=pytest.mark.long)])
def test_git(shares, mode):
    assert sh(GIT, mode, 50).strip() == "50"
    repo = shares[mode] / "repo"
    subprocess.run(["git", "-c", "safe.directory=*", "-C", repo, "fsck", "--full", "--no-dangling"], check=True)
    assert len((repo / "file").read_text().splitlines()) == 50
    shutil.rmtree(repo)


@pytest.mark.parametrize("mode", WAYS)
def test_dpkg(shares, mode, tmp_path):
    """A package of our own with files, directories, links and owners, installed, upgraded and removed."""
    for version in 1, 2:
        tree = tmp_path / f"p{version}"
        (tree / "DEBIAN").mkdir(parents=True)
        (tree / "DEBIAN/control").write_text(textwrap.dedent(f"""\
            Package: ours
            Version: {version}
            Architecture: all
            Maintainer: nobody <nobody@example.org>
            Description: test
            """))
        (tree / "usr/share/ours").mkdir(parents=True)
        for i in range(20):
            (tree / f"usr/share/ours/{version}-{i}").write_text(f"{version} {i}\n" * 1000)
        (tree / "usr/share/ours/same").write_text(f"version {version}\n")
        (tree / "usr/share/ours/link").symlink_to("same")
        os.link(tree / "usr/share/ours/same", tree / "usr/share/ours/hard")
        subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "-b", tree, shares[mode] / f"{version}.deb"],
                       check=True, stdout=subprocess.DEVNULL)
    sh("cd /mnt/$1; mkdir -p root admin/updates admin/info; : >admin/status; : >admin/available; "
       "PATH=/usr/sbin:/usr/bin:/sbin:/bin; "
       "d() { dpkg --instdir=$PWD/root --admindir=$PWD/admin --log=/dev/null \"$@\" >/dev/null; }; "
       "d -i 1.deb; cat root/usr/share/ours/link; d -i 2.deb; d --verify ours; sync", mode)
    top = shares[mode] / "root/usr/share/ours"
    assert sorted(os.listdir(top)) == sorted([f"2-{i}" for i in range(20)] + ["hard", "link", "same"])
    assert (top / "link").read_text() == "version 2\n" and os.stat(top / "same").st_nlink == 2
    assert (top / "2-19").read_text() == "2 19\n" * 1000
    sh("PATH=/usr/sbin:/usr/bin:/sbin:/bin; cd /mnt/$1; "
       "dpkg --instdir=$PWD/root --admindir=$PWD/admin --log=/dev/null -P ours >/dev/null; "
       "find root -mindepth 1; cd ..; rm -rf $1/root $1/admin $1/*.deb; sync", mode)
    assert os.listdir(shares[mode]) == []


SQL = """
cd /mnt/$1
q() { sqlite3 -cmd '.timeout 200000' base "$@"; }
q "pragma journal_mode=$2; create table t(who, n, text)"
many() { for i in $(seq 20); do echo "begin immediate; insert into t values('$1', $i, hex(randomblob(500)));
    insert into t values('$1', -$i, hex(randomblob(500))); commit;"; done | q; }
many a & many b; wait
q 'begin; delete from t; rollback; pragma integrity_check; select who, count(*), sum(n) from t group by who'
"""


@pytest.mark.parametrize("mode,journal", [("none", "delete"), ("mmap", "wal"), ("loose", "wal")])
def test_sqlite(shares, mode, journal):
    """Two writers at a time; the host reads it afterwards."""
    assert sh(SQL + "sync", mode, journal).split() == [journal, "ok", "a|40|0", "b|40|0"]
    with contextlib.closing(sqlite3.connect(shares[mode] / "base")) as db:
        assert db.execute("select count(*), sum(length(text)) from t").fetchone() == (80, 80000)
        assert db.execute("pragma integrity_check").fetchone() == ("ok",)
    for f in shares[mode].glob("base*"):
        f.unlink()


@pytest.mark.parametrize("mode", ["mmap", pytest.param("none", marks=pytest.mark.long),
                                  pytest.param("loose", marks=pytest.mark.long)])
def test_compile(shares, mode):
    """A small C project, by make, with a library; changed by the host, and made again."""
    top = shares[mode] / "project"
    top.mkdir()
    for i in range(4):
        (top / f"f{i}.c").write_text(f'#include "all.h"\nint f{i}(int n) {{ return n + {i} + ADD; }}\n')
    (top / "all.h").write_text("#define ADD 1\n" + "".join(f"int f{i}(int n);\n" for i in range(4)))
    (top / "main.c").write_text('#include "all.h"\n#include <stdio.h>\n'
                                'int main(void) { return !printf("%d\\n", f0(f1(f2(f3(0))))); }\n')
    (top / "Makefile").write_text("prog: main.o liball.a\n\tgcc -o $@ $^\n"
                                  "liball.a: f0.o f1.o f2.o f3.o\n\tar rcs $@ $^\n"
                                  "%.o: %.c all.h\n\tgcc -O1 -c -o $@ $<\n")
    # make warns of clock skew where the guest's clock has drifted from the host's, as the lab's does: not of interest
    assert sh("cd /mnt/$1/project; make -s 2>log || cat log; make -q 2>log || cat log; ./prog; sync", mode) == "10\n"
    assert subprocess.check_output([top / "prog"], text=True) == "10\n"
    (top / "f3.c").write_text('#include "all.h"\nint f3(int n) { return n + 100; }\n')
    if mode == "none":
        assert sh("cd /mnt/$1/project; make -s 2>log || cat log; ./prog", mode) == "106\n"
    shutil.rmtree(top)
