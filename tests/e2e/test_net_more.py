# SPDX-License-Identifier: GPL-2.0-or-later
"""
The network for longer, for `make check-long`: DHCP clients as distributions have them, MTUs, offloads, VLANs, IPv6,
bursts and floods, an interface that comes and goes under load, two guests on a bridge, thousands of connections. All of
it in a guest whose root is the host's, by `kvm exec`.
"""
import contextlib
import hashlib
import json
import os
import socket
import subprocess
import threading

import pytest

import vm
from test_command import kernel
from test_net import Namespace, free_port

pytestmark = pytest.mark.long
HOST, GUEST = "192.168.77.1", "192.168.77.2"
HOST6, GUEST6 = "fd77::1", "fd77::2"


class Machine(vm.Vm):
    """One that stays as long as the tests want it, and does what they say."""

    def __init__(self, tmp, name, *args, **how):
        self.name = f"{name}-{os.getpid()}"
        super().__init__(tmp, *kernel(), "--name", self.name, *args, "--", "sh", "-c", "echo @ready; read line",
                         stdin="pipe", patience=10 * vm.PATIENCE, **how)
        self.out.wait_for("@ready")

    def try_sh(self, script):
        return subprocess.run([vm.KVM, "exec", self.name, "--", "sh", "-uc", script], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=vm.PATIENCE, check=False)

    def sh(self, script):
        """What a script prints that must succeed."""
        r = self.try_sh("set -e\n" + script)
        assert r.returncode == 0, (script, r.returncode, r.stdout, r.stderr)
        return r.stdout

    @contextlib.contextmanager
    def doing(self, script):
        """A script that runs meanwhile, and is waited for."""
        with subprocess.Popen([vm.KVM, "exec", self.name, "--", "sh", "-uc", script], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, text=True) as p:
            yield p

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def card(self):
        machines = json.loads(subprocess.check_output([vm.KVM, "list", "--json"]))
        return [m["net"] for m in machines if m["name"] == self.name][0][0]

    def check_quiet(self):
        """Nothing that the kernel has to complain about, and the card has not asked for a reset."""
        said = self.sh("dmesg -l warn,err,crit,alert,emerg | grep -i 'eth0\\|virtio\\|netdev' || :")
        assert said == ""


def needs(obstacle):
    if obstacle:
        pytest.skip(obstacle)


class Server:
    """On the host: what comes to `sink` is summed up, and who connects to `source` gets as many bytes as he says."""

    def __init__(self, address, family=socket.AF_INET):
        self.sums = []
        both = address == "::"
        self.sink, self.source = (socket.create_server((address, 0), family=family, backlog=1024, dualstack_ipv6=both)
                                  for _ in range(2))
        for work in self.drain, self.give:
            threading.Thread(target=work, daemon=True).start()

    def port(self, which):
        return getattr(self, which).getsockname()[1]

    def drain(self):
        with contextlib.suppress(OSError):
            while True:
                s, _ = self.sink.accept()
                with s:
                    total = hashlib.md5()
                    while chunk := s.recv(1 << 18):
                        total.update(chunk)
                    self.sums.append(total.hexdigest())

    def give(self):
        block = bytes(range(256)) * 4096
        with contextlib.suppress(OSError):
            while True:
                s, _ = self.source.accept()
                with s, s.makefile("r") as f:
                    left = int(f.readline())
                    while left:
                        left -= s.send(block[:min(left, len(block))])

    def close(self):
        """None of its threads keeps a network namespace."""
        for s in self.sink, self.source:
            s.shutdown(socket.SHUT_RDWR)
            s.close()


def sum_of(n):
    """Of what `source` gives."""
    total = hashlib.md5()
    block = bytes(range(256)) * 4096
    for at in range(0, n, len(block)):
        total.update(block[:min(n - at, len(block))])
    return total.hexdigest()


def check_gift(m, server, address, n):
    got = m.sh(f"busybox nc {address} {server.port('source')} <<-. | md5sum\n{n}\n.\n")
    assert got.split()[0] == sum_of(n)


def transfer(m, server, address, n=3000000):
    """Both ways, every byte summed up."""
    check_gift(m, server, address, n)
    m.sh(f"head -c {n} /dev/zero | busybox nc {address} {server.port('sink')}")
    vm.wait_until(lambda: server.sums)
    assert server.sums.pop() == hashlib.md5(bytes(n)).hexdigest()


# The user's network.

@pytest.fixture(scope="module")
def user(tmp_path_factory, linux_obstacle):
    needs(linux_obstacle)
    m = Machine(tmp_path_factory.mktemp("user"), "user", "-n", "user,hostlo=on")
    yield m
    m.kill()


user_machine = pytest.mark.linux(machine="net-user", weight=30)


def forget(m):
    m.sh("ip link set eth0 down; ip addr flush dev eth0; ip link set eth0 up")


def check_lease(m):
    addresses = json.loads(m.sh("ip -j -4 addr show dev eth0"))[0]["addr_info"]
    assert [(a["local"], a["prefixlen"]) for a in addresses] == [("10.0.2.15", 24)]
    m.sh("ping -c 1 -W 20 10.0.2.2 >/dev/null 2>&1 || busybox ping -c 1 -W 20 10.0.2.2 >/dev/null")


@user_machine
def test_udhcpc(user):
    forget(user)
    user.sh("""cat >/tmp/script <<-'.'
	#!/bin/sh
	[ "$1" = bound ] || exit 0
	ip addr add "$ip/$mask" dev "$interface"
	ip route add default via "$router"
.
chmod +x /tmp/script; busybox udhcpc -q -n -i eth0 -s /tmp/script >/dev/null 2>&1""")
    check_lease(user)


@user_machine
def test_dhclient(user):
    forget(user)
    user.sh("dhclient -1 -lf /tmp/leases -pf /tmp/dhclient.pid eth0 >/dev/null 2>&1; kill $(cat /tmp/dhclient.pid)")
    check_lease(user)


@user_machine
def test_networkd(user):
    """Without udev: to it /sys is as in a container, so that it does not wait for that."""
    forget(user)
    user.sh("""mkdir -p /run/systemd/network
cat >/run/systemd/network/a.network <<-'.'
	[Match]
	Name=eth0
	[Network]
	DHCP=ipv4
	IPv6AcceptRA=no
.
unshare -m sh -c 'mount -o remount,bind,ro /sys; exec /lib/systemd/systemd-networkd' >/tmp/networkd.log 2>&1 &
echo $! >/tmp/networkd
for i in $(seq 600); do ip -4 addr show dev eth0 | grep -q 10.0.2.15 && break; sleep 0.1; done
kill -9 $(cat /tmp/networkd) # asked politely it gives the lease back
ip -4 addr show dev eth0 | grep -q 10.0.2.15 || { cat /tmp/networkd.log; exit 1; }""")
    check_lease(user)


@user_machine
def test_user_ip6(user):
    """By router advertisement; TCP both ways through the gateway to the host's ::1."""
    user.sh("busybox ping -6 -c 3 -W 20 fd00::2 >/dev/null")
    server = Server("::1", socket.AF_INET6)
    transfer(user, server, "fd00::2")
    server.close()


@user_machine
def test_connections(user):
    """Two thousand connections, and two hundred that are refused: no descriptor is left."""
    server = Server("127.0.0.1")
    port, closed = server.port("source"), free_port(socket.SOCK_STREAM)
    connect = """/usr/bin/python3 -c '
import socket
for i in range(%d):
    with socket.socket() as s:
        s.connect(("10.0.2.2", %d))
        s.sendall(b"100\\n")
        n = 0
        while chunk := s.recv(1000):
            n += len(chunk)
        assert n == 100
for i in range(%d):
    with socket.socket() as s:
        try:
            s.connect(("10.0.2.2", %d))
            raise SystemExit("connected")
        except ConnectionRefusedError:
            pass
'"""
    user.sh(connect % (20, port, 20, closed))
    before = user.descriptors()
    user.sh(connect % (2000, port, 200, closed))
    vm.wait_until(lambda: user.descriptors() <= before)
    server.close()


# 0 bytes to 50 MB.
SIZES = [0, 1, 1459, 1460, 1461, 65535, 65536, 65537, *(int(1000 * 5e4 ** (i / 21)) for i in range(22))]


def downloads(m, server, address):
    for n in SIZES:
        check_gift(m, server, address, n)
    card = m.card()
    assert card["rx"]["bad"] == card["tx"]["bad"] == card["tx"]["dropped"] == 0


@user_machine
def test_user_downloads(user):
    server = Server("127.0.0.1")
    downloads(user, server, "10.0.2.2")
    server.close()


def speed(m, what, address):
    out = m.sh(f"iperf3 -J {what} -c {address} -t 5")
    return json.loads(out)["end"]["sum_received"]["bytes"]


@contextlib.contextmanager
def iperf_server(address, enter=None):
    # pylint: disable-next=subprocess-popen-preexec-fn
    with subprocess.Popen(["iperf3", "-s", "-B", address], stdout=subprocess.DEVNULL, preexec_fn=enter) as p:
        try:
            yield
        finally:
            p.kill()


@user_machine
def test_user_iperf(user):
    with iperf_server("127.0.0.1"):
        for what in "", "-R":
            assert speed(user, what, "10.0.2.2") > 1 << 20
    user.check_quiet()


@user_machine
def test_long_transfer(user):
    """Of a gigabyte."""
    server = Server("127.0.0.1")
    n = 1 << 30
    check_gift(user, server, "10.0.2.2", n)
    server.close()
    card = user.card()
    assert card["rx"]["packets"] > n // 65536 and card["rx"]["bad"] == card["tx"]["bad"] == card["tx"]["dropped"] == 0


# An interface of the host's.

@pytest.fixture(scope="module", params=[(1, "off"), (2, "off"), (1, "on"), (2, "on")], ids="{0[0]}-{0[1]}".format)
def tap(request, tmp_path_factory, linux_obstacle):
    """Its interface is t0, in the network namespace .net."""
    needs(linux_obstacle)
    if os.getuid():
        pytest.skip("needs root")
    queues, vhost = request.param
    net = Namespace()
    for words in (f"tuntap add t0 mode tap {'multi_queue' if queues > 1 else ''}",
                  "link set t0 mtu 65521",  # the guest is told, and takes no more later on
                  f"addr add {HOST}/24 dev t0", f"addr add {HOST6}/64 dev t0 nodad"):
        net.run("-n", net.name, *words.split())
    m = Machine(tmp_path_factory.mktemp("tap"), "tap", "-c", 2, "-n", f"tap,if=t0,queues={queues},vhost={vhost}",
                preexec_fn=net.enter)
    m.net, m.queues = net, queues
    host(m, "link", "set", "t0", "mtu", 1500)
    m.sh("ip link set lo up; ip link set eth0 mtu 1500\n" + address())
    yield m
    m.kill()
    net.close()


tap_machine = pytest.mark.linux(machine="net-tap", boots=4, weight=160)


def address(nic="eth0"):
    return (f"ip link set {nic} up; ip addr replace {GUEST}/24 dev {nic};"
            f"ip addr replace {GUEST6}/64 dev {nic} nodad\n")


def ping(m, to=HOST, more=""):
    m.sh(f"busybox ping -c 2 -W 20 {more} {to} >/dev/null")


@pytest.fixture
def peer(tap):
    server = tap.net.call(lambda: Server("::", socket.AF_INET6))
    yield server
    server.close()


def host(tap, *args):
    tap.net.run("-n", tap.net.name, *map(str, args))


@tap_machine
def test_queues(tap):
    assert tap.sh("ls -d /sys/class/net/eth0/queues/rx-* | wc -l") == f"{tap.queues}\n"
    ping(tap)


@tap_machine
def test_tap_ip6(tap, peer):
    ping(tap, HOST6, "-6")
    transfer(tap, peer, HOST6)


@tap_machine
def test_tap_downloads(tap, peer):
    downloads(tap, peer, HOST)


@tap_machine
def test_offloads(tap, peer):
    """Each offload off and on again, alone and together; what is moved stays whole."""
    for toggles in "tx off", "tx on", "rx off", "rx on", "tso off gso off", "tso on gso on", "gro off", "gro on", \
                   "tx off rx off tso off gso off gro off sg off", "sg on tx on rx on tso on gso on gro on":
        tap.sh(f"ethtool -K eth0 {toggles} >/dev/null 2>&1 || :")
        transfer(tap, peer, HOST, 1000000)


@tap_machine
def test_mtu(tap, peer):
    """From the least that IPv4 takes to the most that a tap does: the largest packet gets there and back."""
    for mtu in 68, 69, 576, 1280, 1499, 1501, 9000, 65520, 65521, 1500:
        host(tap, "link", "set", "t0", "mtu", mtu)
        tap.sh(f"ip link set eth0 mtu {mtu}")
        size = min(mtu, 65535) - 28
        ping(tap, HOST, f"-s {size}")
    tap.sh(address())
    host(tap, "addr", "replace", f"{HOST6}/64", "dev", "t0", "nodad")  # an MTU below 1280 takes IPv6 away
    transfer(tap, peer, HOST)


def load_vlan():
    """A command for host and guest, whose kernel is the same in the lab; it may be built in, or there already."""
    modules = kernel()[kernel().index("--modules") + 1]
    tree, version = modules.split("/lib/modules/")
    return f"modprobe 8021q 2>/dev/null || modprobe -d {tree} -S {version} 8021q || :"


@tap_machine
def test_vlan(tap, peer):
    subprocess.run(["sh", "-c", load_vlan()], check=False)
    tap.sh(load_vlan())
    host(tap, "link", "add", "link", "t0", "name", "t0.5", "type", "vlan", "id", 5)
    host(tap, "addr", "add", "192.168.78.1/24", "dev", "t0.5")
    host(tap, "link", "set", "t0.5", "up")
    tap.sh("ip link add link eth0 name v5 type vlan id 5; ip addr add 192.168.78.2/24 dev v5; ip link set v5 up")
    transfer(tap, peer, "192.168.78.1")
    tap.sh("ip link del v5")
    assert tap.try_sh("busybox ping -c 1 -W 1 192.168.78.1").returncode
    host(tap, "link", "del", "t0.5")


@tap_machine
def test_rebind(tap, peer):
    tap.sh("""d=$(basename $(readlink -f /sys/class/net/eth0/device))
cd /sys/bus/virtio/drivers/virtio_net
for i in $(seq 20); do echo $d >unbind; echo $d >bind; done
""" + address())
    transfer(tap, peer, HOST)


def send_frames(tap, n, size=1000):
    """As many datagrams at once, from the host to the guest's port 9."""
    def send():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            for i in range(n):
                with contextlib.suppress(OSError):
                    s.sendto(b"%06d" % i + bytes(size - 6), (GUEST, 9))
    tap.net.call(send)


@tap_machine
def test_burst_then_silence(tap):
    """2000 frames at once, then nothing: none stays behind in a ring, whoever comes next is served."""
    for _ in range(5):
        with tap.doing("busybox timeout 60 busybox nc -u -l -p 9 | head -c 1000 >/dev/null"):
            send_frames(tap, 2000)
            ping(tap)
            tap.sh("killall busybox 2>/dev/null || busybox killall nc || :")


@tap_machine
def test_send_only(tap):
    """Datagrams to nobody, by the thousand."""
    tap.sh("""/usr/bin/python3 -c '
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    for i in range(20000):
        try:
            s.sendto(bytes(1400), ("%s", 9))
        except ConnectionRefusedError:
            pass
'""" % HOST)
    ping(tap)


@tap_machine
def test_flood_without_driver(tap, peer):
    """What nobody takes is in nobody's way when the driver comes back."""
    tap.sh("basename $(readlink -f /sys/class/net/eth0/device) >/tmp/d; cd /sys/bus/virtio/drivers/virtio_net;"
           "cat /tmp/d >unbind")
    host(tap, "neigh", "replace", GUEST, "lladdr", "02:00:00:00:00:01", "dev", "t0")
    send_frames(tap, 5000)
    tap.sh("cat /tmp/d >/sys/bus/virtio/drivers/virtio_net/bind\n" + address())
    host(tap, "neigh", "del", GUEST, "dev", "t0")
    ping(tap)
    transfer(tap, peer, HOST)


@tap_machine
def test_down_and_up_under_load(tap, peer):
    with iperf_server(HOST, tap.net.enter):
        with tap.doing(f"iperf3 -c {HOST} -t 20 -P 2 --bidir") as load:
            for _ in range(8):
                host(tap, "link", "set", "t0", "down")
                vm.wait_until(lambda: tap.sh("cat /sys/class/net/eth0/carrier 2>&1 || :").strip() == "0")
                host(tap, "link", "set", "t0", "up")
                vm.wait_until(lambda: tap.sh("cat /sys/class/net/eth0/carrier 2>&1 || :").strip() == "1")
            load.wait()
    host(tap, "addr", "replace", f"{HOST6}/64", "dev", "t0", "nodad")
    tap.sh(address())
    transfer(tap, peer, HOST)


@tap_machine
def test_tap_iperf(tap):
    with iperf_server(HOST, tap.net.enter):
        for what in "", "-R", "-P 4", "-u -b 0":
            assert speed(tap, what, HOST) > 1 << 20
    tap.check_quiet()
    card = tap.card()
    assert card["rx"]["bad"] == card["tx"]["bad"] == card["tx"]["dropped"] == 0


@pytest.mark.linux(boots=2, weight=5)
def test_bridge(tmp_path_factory, linux_obstacle):
    """Two guests on a bridge of the host's talk to each other and to the host; what we have made goes with them."""
    needs(linux_obstacle)
    if os.getuid():
        pytest.skip("needs root")
    net = Namespace()
    net.run("-n", net.name, "link", "add", "br0", "type", "bridge")
    net.run("-n", net.name, "addr", "add", f"{HOST}/24", "dev", "br0")
    net.run("-n", net.name, "link", "set", "br0", "up")
    guests = [Machine(tmp_path_factory.mktemp("bridge"), f"bridge{i}", "-n", "tap,bridge=br0", preexec_fn=net.enter)
              for i in range(2)]
    for i, g in enumerate(guests):
        g.sh(f"ip link set eth0 up; ip addr add 192.168.77.{i + 2}/24 dev eth0")
    ping(guests[0])
    ping(guests[0], "192.168.77.3")
    # A listener whose own input has ended does not take everything.
    with guests[1].doing("mkfifo /tmp/open; exec 3<>/tmp/open; busybox nc -l -p 7 <&3 | md5sum") as listener:
        guests[0].sh("for i in $(seq 100); do head -c 3000000 /dev/zero | busybox nc 192.168.77.3 7 && break;"
                     "sleep 0.1; done")
        assert listener.stdout.read().split()[0] == hashlib.md5(bytes(3000000)).hexdigest()
    for g in guests:
        g.kill()
    links = json.loads(subprocess.check_output(["ip", "-n", net.name, "-j", "link", "show"]))
    assert [link["ifname"] for link in links] == ["lo", "br0"]
    net.close()
