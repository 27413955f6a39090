# SPDX-License-Identifier: GPL-2.0-or-later
"""The tiny guests of tests/guests."""
import functools
import os
import subprocess

from vm import GUESTS, TOP


@functools.lru_cache
def build():
    subprocess.run([os.path.join(TOP, "tests/guests/run"), "none of them"], check=True, stdout=subprocess.DEVNULL)


def guest(name):
    """The path of a guest, made if need be."""
    build()
    return os.path.join(GUESTS, name)
