# SPDX-License-Identifier: GPL-2.0-or-later
"""Disk images to be measured: 64 KiB clusters, made by qemu-img, so that both sides have the same."""
import os
import subprocess

LAYERS = 4  # of a chain


def qemu_img(*argv):
    subprocess.run(["qemu-img", *map(str, argv)], check=True, stdout=subprocess.DEVNULL)


class Images:
    """
    Makes them in @top, of @mib each: raw, alloc (all of it allocated), chain (of LAYERS, each cluster in one of them,
    and an empty one on top); and anew at each get() empty, cow (on one that is full), and sparse, which is raw.
    """

    KINDS = ("raw", "alloc", "chain", "empty", "cow")

    def __init__(self, top, mib):
        self.top, self.mib = top, mib

    def settle(self):
        """What was written to them before is on the disk, so that nobody pays for others' dirty pages."""
        for name in os.listdir(self.top):
            fd = os.open(self.path(name), os.O_RDONLY)
            os.fdatasync(fd)
            os.close(fd)

    def read_in(self):
        """
        All files are in the host's memory as a reader brings them there. As a writer of small pieces leaves them they
        are in small pages, and then an image would be as slow to read as it was to make.
        """
        self.settle()
        for name in os.listdir(self.top):
            with open(self.path(name), "rb", buffering=0) as f:
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                while f.read(1 << 20):
                    pass

    def path(self, name):
        return os.path.join(self.top, name)

    def get(self, kind):
        """Its path and format."""
        path = self.path(kind)
        if kind in ("empty", "cow", "sparse"):
            if os.path.exists(path):
                os.unlink(path)
            getattr(self, "make_" + kind)(path)
        elif not os.path.exists(path):
            getattr(self, "make_" + kind)(path)
            self.read_in()
        return path, "raw" if kind in ("raw", "sparse") else "qcow2"

    def make_raw(self, path):
        with open(path, "wb") as f:
            for _ in range(self.mib):
                f.write(os.urandom(1 << 20))

    def make_sparse(self, path):
        with open(path, "wb") as f:
            f.truncate(self.mib << 20)

    def make_alloc(self, path):
        qemu_img("convert", "-O", "qcow2", self.get("raw")[0], path)

    def make_empty(self, path):
        qemu_img("create", "-f", "qcow2", path, "%dM" % self.mib)

    def make_cow(self, path):
        qemu_img("create", "-f", "qcow2", "-b", self.get("alloc")[0], "-F", "qcow2", path)

    def make_chain(self, path):
        below = self.path("chain0")
        qemu_img("convert", "-O", "qcow2", self.get("raw")[0], below)
        for i in range(1, LAYERS):
            layer = self.path("chain%d" % i)
            qemu_img("create", "-f", "qcow2", "-b", below, "-F", "qcow2", layer)
            # A quarter of the clusters that are left, all over the disk, is in this one.
            clusters = self.mib * 16 // LAYERS
            qemu_img("bench", "-q", "-w", "-f", "qcow2", "-s", "64k", "-c", clusters, "-d", 8,
                     "-o", i << 16, "-S", LAYERS << 16, layer)
            below = layer
        qemu_img("create", "-f", "qcow2", "-b", below, "-F", "qcow2", path)
