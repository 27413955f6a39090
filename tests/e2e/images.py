#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
What the Linux guests boot, below build/e2e: made once, and again when it is older than what it is made of. With
--long also what only long tests want.
"""
import functools
import os
import re
import shutil
import struct
import subprocess
import sys

from vm import HERE, TOP

OUT = os.path.join(TOP, "build", "e2e")
TOOLS = os.path.join(TOP, "tests", "images")
MODULES = ["button", "evdev", "pvpanic-pci", "virtio_pci", "virtio_console", "virtio_net", "virtio-rng"]


@functools.lru_cache
def bzimage(flavour="amd64"):
    return subprocess.run([os.path.join(TOOLS, "get-kernel"), flavour], check=True, stdout=subprocess.PIPE,
                          text=True).stdout.strip()


def made(name, sources, make):
    """The path of `name`, which make(path) makes from its sources."""
    path = os.path.join(OUT, name)
    if not os.path.exists(path) or any(os.stat(s).st_mtime > os.stat(path).st_mtime for s in sources):
        os.makedirs(OUT, exist_ok=True)
        tmp = f"{path}.{os.getpid()}"
        make(tmp)
        os.rename(tmp, path)
    return path


def initrd():
    init, tool = os.path.join(HERE, "init"), os.path.join(TOOLS, "mkinitrd")
    tree = bzimage().split("/boot/")[0]
    return made("initrd", [init, tool, bzimage(), __file__],
                lambda out: subprocess.run([tool, out, "--init", init, "--modules", tree, *MODULES], check=True))


def initrd32():
    """busybox is 64-bit: /init is a program of ours."""
    source, tool = os.path.join(HERE, "init32.c"), os.path.join(TOOLS, "mkinitrd")
    init = made("init32", [source], lambda out: subprocess.run(
        ["gcc", "-m32", "-Os", "-Wall", "-ffreestanding", "-fno-pie", "-no-pie", "-fno-stack-protector", "-nostdlib",
         "-static", "-o", out, source], check=True))
    return made("initrd32", [init, tool], lambda out: subprocess.run([tool, out, "--init", init], check=True))


def program(name):
    """One of ours for a guest: static, so that it starts quickly there."""
    source = os.path.join(HERE, name + ".c")
    return made(name, [source], lambda out: subprocess.run(
        ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-o", out, source], check=True))


def vmlinux():
    """Beside the bzImage, where the lab has it from, too."""
    path = bzimage().replace("/vmlinuz-", "/vmlinux-")
    if not os.path.exists(path):
        subprocess.run([os.path.join(TOOLS, "get-vmlinux"), bzimage(), path], check=True)
    return path


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def read(path):
    with open(path, "rb") as f:
        return f.read()


def without_note(elf):
    """The PVH note (owner Xen, type 18) gets another type."""
    note = struct.pack("<II", 4, 8) + struct.pack("<I", 18) + b"Xen\0"
    assert elf.count(note) == 1
    return elf.replace(note, note.replace(b"\x12\0\0\0", b"\xee\0\0\0"))


def vmlinux_without_note():
    return made("vmlinux-no-note", [vmlinux()], lambda out: write(out, without_note(read(vmlinux()))))


def padded_bzimage():
    """As a distribution's signature makes it: more behind the end, of an odd length."""
    return made("bzimage-padded", [bzimage()], lambda out: write(out, read(bzimage()) + b"\xa5" * 4321))


class Missing(Exception):
    """It cannot be made here, and why."""


def debian_tool(path, packages):
    include = "--include=" + ",".join(packages)
    if os.geteuid():
        raise Missing("a root directory of Debian is made by root only")
    if shutil.which("mmdebstrap"):
        return ["mmdebstrap", "--quiet", "--variant=minbase", include, "bookworm", path]
    if shutil.which("debootstrap"):
        return ["debootstrap", "--variant=minbase", include, "bookworm", path]
    raise Missing("no mmdebstrap and no debootstrap here")


def debian(*more):
    """
    A root directory with systemd, and @more packages, where root needs no password. Guests write to it, and what they
    wrote stays. It takes a minute and the network.
    """
    path = os.path.join(OUT, "-".join(["debian", *more]))
    if not os.path.exists(path):
        os.makedirs(OUT, exist_ok=True)
        tmp = f"{path}.{os.getpid()}"
        r = subprocess.run(debian_tool(tmp, ["systemd-sysv", "login", "passwd", *more]), stdin=subprocess.DEVNULL,
                           capture_output=True, text=True, errors="replace")
        if r.returncode:
            shutil.rmtree(tmp, ignore_errors=True)
            raise Missing("no root directory of Debian: " + (r.stderr.strip() or r.stdout.strip()).split("\n")[-1])
        shadow = os.path.join(tmp, "etc/shadow")
        write(shadow, re.sub(rb"(?m)^root:[^:]*:", b"root::", read(shadow)))
        os.rename(tmp, path)
    return path


def debian_image():
    """The one with udev, as the whole of a disk."""
    tree = debian("udev")

    def make(out):
        subprocess.run(["truncate", "-s", "1G", out], check=True)
        subprocess.run(["mkfs.ext4", "-q", "-d", tree, out], check=True)
    return made("debian.img", [], make)


def make_all(long=False):
    bzimage("i386-pae")
    for make in initrd, initrd32, vmlinux, vmlinux_without_note, padded_bzimage:
        make()
    for name in "fsdiff", "fsposix", "fsx", "records":
        program(name)
    try:
        if long:
            debian()
            debian_image()
    except Missing as e:
        print(e, file=sys.stderr)


if __name__ == "__main__":
    make_all("--long" in sys.argv[1:])
