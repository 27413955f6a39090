# SPDX-License-Identifier: GPL-2.0-or-later
"""
Marks: linux(boots=N, weight=W) needs a host that runs Linux guests, boots N of them, and takes as long as W boots
(in the lab: about 10 s each; 16 kB of serial output are a boot, too). linux(machine=NAME, weight=W): all tests with
this NAME share a machine; it is one boot, and all of them together weigh W. kvm needs any /dev/kvm. long is for
`make check-long` only. `make check` may boot 25 Linux guests in all, which is checked here.
"""
import os
import subprocess

import pytest

import vm

BOOTS = 23  # tests/init/run boots two more


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="run the long tests as well")
    parser.addoption("--part", default="1/1", metavar="K/N", help="the K-th of N parts of the Linux guests")


def pytest_configure(config):
    config.addinivalue_line("markers", "linux(boots=1, weight=boots): boots so many Linux guests")
    config.addinivalue_line("markers", "kvm: needs /dev/kvm")
    config.addinivalue_line("markers", "long: not part of `make check`")


def marked(item, what, default):
    mark = item.get_closest_marker("linux")
    return mark.kwargs.get(what, default) if mark else default


def machines(items):
    """The Linux tests, those that share a machine together."""
    found = {}
    for item in items:
        if item.get_closest_marker("linux"):
            found.setdefault(marked(item, "machine", item.nodeid), []).append(item)
    return list(found.values())


def boots(tests):
    return marked(tests[0], "boots", 1)


def weight(tests):
    return marked(tests[0], "weight", boots(tests))


def part(items, k, n):
    """The heaviest first, each to the part that has least."""
    load, mine = [0] * n, []
    for tests in sorted(machines(items), key=weight, reverse=True):
        lightest = load.index(min(load))
        load[lightest] += weight(tests)
        if lightest == k - 1:
            mine += tests
    return mine


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Before -m and -k choose: the sum is the same whatever is chosen."""
    everyday = [item for item in items if not item.get_closest_marker("long")]
    total = sum(map(boots, machines(everyday)))
    if total > BOOTS:
        raise pytest.UsageError(f"{total} Linux boots, more than {BOOTS}: mark some as long")
    chosen = items if config.getoption("long") else everyday
    k, n = map(int, config.getoption("part").split("/"))
    mine = set(part(chosen, k, n) if n > 1 else chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in mine])
    items[:] = [item for item in items if item in mine]


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report):
    """A failure is told at once, not at the end of a long run (use it with --no-summary)."""
    if report.failed:
        print("\n" + report.longreprtext, flush=True)


@pytest.fixture(scope="session")
def linux_obstacle():
    """Why no Linux guest runs here, or None."""
    doctor = subprocess.run([vm.KVM, "doctor"], capture_output=True, text=True)
    return doctor.stdout.strip().split("\n")[-1] if doctor.returncode else None


@pytest.fixture(autouse=True)
def needs(request):
    if request.node.get_closest_marker("linux"):
        obstacle = request.getfixturevalue("linux_obstacle")
        if obstacle:
            pytest.skip(obstacle)
    if request.node.get_closest_marker("kvm") and not os.access("/dev/kvm", os.R_OK | os.W_OK):
        pytest.skip("no /dev/kvm that may be used")


@pytest.fixture
def kvm(tmp_path):
    """kvm(ARGS…) starts `kvm run ARGS…`; whatever still runs at the end of the test is killed."""
    started = []

    def start(*args, **how):
        started.append(vm.Vm(tmp_path, *args, **how))
        return started[-1]

    yield start
    for v in started:
        v.kill()
