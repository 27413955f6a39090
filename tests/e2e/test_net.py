# SPDX-License-Identifier: GPL-2.0-or-later
"""
The network under Linux's driver: user mode, and tap with and without vhost-net in a network namespace of the test's
own. A web server and a sink on the host are what the guest talks to; every byte is compared.
"""
import contextlib
import ctypes
import hashlib
import http.server
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import threading

import pytest

import images
import vm as vmlib
from test_command import kernel
from test_linux import check_quiet, facts

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
SIZES = [0, 1, 1447, 65536, 3000000]
UPLOAD = 2000000
INDEXES = itertools.count(1000)  # of macvtap interfaces


def sha(data):
    return hashlib.sha256(data).hexdigest()


class Peer:
    """What the guest talks to: files over HTTP, and a port where what it sends is taken and summed up."""

    def __init__(self, address, sizes):
        self.files = [random.Random(n).randbytes(n) for n in sizes]
        self.uploads = []
        peer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                data = peer.files[int(self.path[1:])]
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer((address, 0), Handler)
        self.sink = socket.create_server((address, 0))
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self.server.serve_forever, self.drain)]
        for thread in self.threads:
            thread.start()

    def drain(self):
        while True:
            try:
                s, _ = self.sink.accept()
            except OSError:
                return
            with s:
                data = b""
                while chunk := s.recv(1 << 16):
                    data += chunk
                self.uploads.append(data)

    def words(self, address):
        """The kernel parameters that tell the guest."""
        return f"peer={address} web={self.server.server_port} sink={self.sink.getsockname()[1]} files={len(self.files)}"

    def close(self):
        """None of its threads keeps a network namespace."""
        self.server.shutdown()
        self.server.server_close()
        self.sink.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()
        self.sink.close()


def boot(kvm, peer, address, what, *args, **how):
    return kvm("-k", images.vmlinux(), "-i", images.initrd(), "-m", 256,
               "-p", f"quiet {peer.words(address)} t={what}", *args, **how)


def check_transfers(f, peer, rounds):
    """Each file has come, each upload has gone, whole."""
    sums = [f"{i} {sha(data)}" for i, data in enumerate(peer.files)]
    assert f["got"] == sums * rounds
    assert f["sent"] == [sha(data) for data in peer.uploads] and len(peer.uploads) == rounds
    assert all(len(data) == UPLOAD for data in peer.uploads)


def free_port(kind):
    with socket.socket(socket.AF_INET, kind) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(port):
    """What the guest's web server says."""
    with socket.create_connection(("127.0.0.1", port), 60) as s:
        s.sendall(b"GET /hello HTTP/1.0\r\n\r\n")
        data = b""
        while chunk := s.recv(4096):
            data += chunk
        return data


@pytest.mark.linux(weight=3)
def test_user(kvm, tmp_path):
    """
    A flood while no driver is loaded; DHCP, ping, downloads and uploads, a port where nobody listens, a forward to
    the guest; the driver is unbound and bound again, and all works as before.
    """
    peer = Peer("127.0.0.1", SIZES)
    tcp, udp = free_port(socket.SOCK_STREAM), free_port(socket.SOCK_DGRAM)
    pcap, name = tmp_path / "pcap", f"net-{os.getpid()}"
    v = boot(kvm, peer, "10.0.2.2", f"user closed={free_port(socket.SOCK_STREAM)}", "--pcap", pcap,
             "--name", name, "-n",
             f"user,hostlo=on,hostfwd=tcp:{tcp}-80,hostfwd=udp:{udp}-7,mac=02:00:00:00:00:07", stdin="pipe")
    v.out.wait_for("^@ready")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for n in range(2000):
            s.sendto(b"%d" % n * 100, ("127.0.0.1", udp))
    v.type("go\n")
    v.out.wait_for("^@serving")
    assert b"hello from the guest" in get(tcp)
    machines = json.loads(subprocess.check_output([vmlib.KVM, "list", "--json"]))
    [card] = [m["net"] for m in machines if m["name"] == name][0]
    assert card["up"] and not card["vhost"]
    assert card["rx"]["packets"] > 100 and card["tx"]["packets"] > 100, card
    assert card["rx"]["bad"] == card["tx"]["bad"] == card["tx"]["dropped"] == 0, card
    v.type("go\n")
    v.ends("poweroff", 0)
    peer.close()
    f = facts(v)
    check_quiet(f)
    assert f["dhcp"] == ["10.0.2.15 255.255.255.0 10.0.2.2"] * 2
    assert f["mac"] == ["02:00:00:00:00:07"] and f["mtu"] == ["65520"]
    assert f["ping"] == ["0"] * 2 and f["ping6"] == ["0"] and f["refused"] == ["1"]
    check_transfers(f, peer, 2)
    data = pcap.read_bytes()
    assert data[:4] == bytes.fromhex("4d3cb2a1") and peer.files[2][:1000] in data


@pytest.mark.linux
@pytest.mark.long
def test_none(kvm):
    """No card, and so no way out."""
    v = kvm("-k", images.vmlinux(), "-i", images.initrd(), "-m", 256, "-n", "none", "-p", "quiet t=links")
    v.ends("poweroff", 0)
    assert facts(v)["links"] == ["lo"]


class Namespace:
    """A network namespace; `enter` moves the calling thread or a child process there."""

    numbers = itertools.count()

    def __init__(self):
        self.name = f"kvm-test-{os.getpid()}-{next(self.numbers)}"
        self.run("netns", "add", self.name)
        self.fd = os.open(f"/run/netns/{self.name}", os.O_RDONLY)
        self.run("-n", self.name, "link", "set", "lo", "up")

    def run(self, *args):
        subprocess.run(["ip", *args], check=True)

    def enter(self):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(self.fd, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")

    def call(self, function):
        """Calls it there."""
        result = []
        thread = threading.Thread(target=lambda: (self.enter(), result.append(function())))
        thread.start()
        thread.join()
        return result[0]

    def macvtap(self, name, index):
        """
        Makes one, whose other side is the interface host0. Its device, and its address. A device's name has the
        interface's number, and is the same for all namespaces.
        """
        self.run("-n", self.name, "link", "add", "host0", "type", "veth", "peer", "name", "below0")
        made = subprocess.run(["ip", "-n", self.name, "link", "add", "link", "below0", "name", name, "index", str(index),
                               "type", "macvtap", "mode", "bridge"], capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"no macvtap: {made.stderr.strip()}")
        for link in "host0", "below0":
            self.run("-n", self.name, "link", "set", link, "up")
        [link] = json.loads(subprocess.check_output(["ip", "-n", self.name, "-j", "link", "show", name]))
        return f"/dev/tap{index}", link["address"]

    def close(self):
        os.close(self.fd)
        self.run("netns", "del", self.name)


@pytest.fixture
def namespace():
    if os.getuid():
        pytest.skip("needs root")
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        pytest.skip("no /dev/net/tun that may be used")
    n = Namespace()
    yield n
    n.close()


def characters(pid):
    """Bytes that a process has read and written so far, by system calls."""
    with open(f"/proc/{pid}/io") as f:
        words = dict(line.split(": ") for line in f)
    return int(words["rchar"]) + int(words["wchar"])


def tap_guest(v, peer, namespace, interface, queues, vhost):
    """What the guest has to say that transfers files, has its cable pulled and plugged in, and does it again."""
    v.out.wait_for("^@ready")
    before = characters(v.process.pid)
    v.type("go\n")
    v.out.wait_for("^@moved")
    passed = characters(v.process.pid) - before
    namespace.run("-n", namespace.name, "link", "set", interface, "down")
    v.type("go\n")
    v.out.wait_for("^@down")
    namespace.run("-n", namespace.name, "link", "set", interface, "up")
    v.type("go\n")
    v.ends("poweroff", 0)
    peer.close()
    f = facts(v)
    check_quiet(f)
    assert f["down"] == ["0"] and f["up"] == ["1"]
    assert f["ping"] == ["0"] * 2
    check_transfers(f, peer, 2)
    assert f["queues"] == [str(queues)]
    assert (passed < sum(SIZES) / 10) == (vhost == "on"), passed
    namespace.run("-n", namespace.name, "link", "show", interface)  # it was not ours: it stays
    return f


@pytest.mark.linux(weight=2)
@pytest.mark.parametrize("vhost, queues", [
    ("on", 2),
    pytest.param("on", 1, marks=pytest.mark.long),
    pytest.param("off", 2, marks=pytest.mark.long),
    pytest.param("off", 1, marks=pytest.mark.long),
])
def test_tap(kvm, namespace, vhost, queues):
    """
    Both ways through an interface of the host; with vhost-net no frame passes through our process. Its cable is
    pulled and plugged in, the driver bound again.
    """
    if vhost == "on" and not os.access("/dev/vhost-net", os.R_OK | os.W_OK):
        pytest.skip("no /dev/vhost-net that may be used")
    namespace.run("-n", namespace.name, "tuntap", "add", "t0", "mode", "tap", *(["multi_queue"] if queues > 1 else []))
    namespace.run("-n", namespace.name, "addr", "add", "192.168.77.1/24", "dev", "t0")
    peer = namespace.call(lambda: Peer("0.0.0.0", SIZES))
    v = boot(kvm, peer, "192.168.77.1", "tap", "-c", queues, "-n", f"tap,if=t0,queues={queues},vhost={vhost}",
             stdin="pipe", preexec_fn=namespace.enter)
    tap_guest(v, peer, namespace, "t0", queues, vhost)


def refusal(namespace, net, user=0):
    """What `kvm run` says there, which fails in any case."""
    def there():
        namespace.enter()
        os.setgid(user)
        os.setuid(user)
    r = subprocess.run([vmlib.KVM, "run", "-k", images.vmlinux(), "-n", net, "--pcap", "/nowhere/pcap"], preexec_fn=there,
                       stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert r.returncode == 1, r
    return r.stderr


@pytest.mark.linux(weight=2)
@pytest.mark.parametrize("how, vhost", [
    ("if", "off"),
    *[pytest.param(how, vhost, marks=pytest.mark.long) for how, vhost in (("if", "on"), ("fd", "on"), ("fd", "off"))],
])
def test_macvtap(kvm, namespace, how, vhost):
    """By its name with two queues, or as a descriptor with one. The guest has its address; it is one machine's alone."""
    if vhost == "on" and not os.access("/dev/vhost-net", os.R_OK | os.W_OK):
        pytest.skip("no /dev/vhost-net that may be used")
    device, address = namespace.macvtap("mv0", next(INDEXES))
    namespace.run("-n", namespace.name, "addr", "add", "192.168.77.1/24", "dev", "host0")
    peer = namespace.call(lambda: Peer("0.0.0.0", SIZES))
    queues = 2 if how == "if" else 1
    with open(device, "r+b", buffering=0) if how == "fd" else contextlib.nullcontext() as opened:
        fds = [opened.fileno()] if opened else []
        net = f"fd={fds[0]}" if fds else f"if=mv0,queues={queues}"
        if fds:
            namespace.run("-n", namespace.name, "link", "set", "mv0", "up")
        v = boot(kvm, peer, "192.168.77.1", "tap", "-c", queues, "-n", f"tap,{net},vhost={vhost}", stdin="pipe",
                 preexec_fn=namespace.enter, pass_fds=fds)
    if not fds:
        v.out.wait_for("^@ready")
        assert "mv0 is in use" in refusal(namespace, "tap,if=mv0")
    f = tap_guest(v, peer, namespace, "mv0", queues, vhost)
    assert f["mac"] == [address]


@pytest.mark.linux(boots=0)
@pytest.mark.long
def test_macvtap_refused(namespace):
    """
    Of what is no tap at all; of another user's; with another's address; and where the device that has the number
    belongs to another namespace, nobody gets the other's frames.
    """
    other, index = Namespace(), next(INDEXES)
    try:
        device, address = other.macvtap("mv0", index)
        namespace.macvtap("mv0", index)
        assert "host0 is neither a tap nor a macvtap interface" in refusal(other, "tap,if=host0")
        assert f"chown $USER {device}" in refusal(other, "tap,if=mv0", user=65534)
        assert f"only bring frames for its own address: leave mac= out, or give it\n{address}" in \
            refusal(other, "tap,if=mv0,mac=02:00:00:00:00:01")
        assert address not in refusal(other, f"tap,if=mv0,mac={address}")
        assert f"/dev/tap{index} is not the device of mv0" in refusal(namespace, "tap,if=mv0")
    finally:
        other.close()


@pytest.mark.linux(weight=2)
@pytest.mark.long
def test_vhost_not_allowed(kvm, namespace):
    """vhost=on says what is in the way, vhost=auto (with -v) too, and goes on."""
    def there():
        """The device is not one in the mount namespace of the child process."""
        namespace.enter()
        if ctypes.CDLL(None).unshare(CLONE_NEWNS) or os.system(
                "mount --make-rprivate / && mount --bind /dev/vhost-net /dev/vhost-net && "
                "mount -o remount,bind,nodev /dev/vhost-net"):
            raise OSError("cannot hide /dev/vhost-net")

    namespace.run("-n", namespace.name, "tuntap", "add", "t0", "mode", "tap")
    namespace.run("-n", namespace.name, "addr", "add", "192.168.77.1/24", "dev", "t0")
    reason = "vhost-net: /dev/vhost-net may not be opened: see its mode and owner"
    peer = namespace.call(lambda: Peer("0.0.0.0", SIZES))
    v = boot(kvm, peer, "192.168.77.1", "tap", "-n", "tap,if=t0,vhost=on", stdin="pipe", preexec_fn=there)
    v.ends("error", 1)
    assert reason in v.err.text(), v.story()
    v = boot(kvm, peer, "192.168.77.1", "tap", "-v", "-n", "tap,if=t0", stdin="pipe", preexec_fn=there)
    tap_guest(v, peer, namespace, "t0", 1, "off")
    assert reason + "; going on without" in v.err.text(), v.story()


@pytest.mark.kvm
def test_tap_goes_away(kvm, namespace, tmp_path):
    """An interface that we made is there while the machine runs, up, and not afterwards."""
    out = os.path.join(vmlib.GUESTS, "hang")
    subprocess.run([os.path.join(vmlib.TOP, "tests/guests/run"), "none of them"], stdout=subprocess.DEVNULL)
    v = kvm("-k", out, "-m", 16, "-n", "tap,if=mine", "--name", f"net-{os.getpid()}", preexec_fn=namespace.enter)
    links = ["ip", "-n", namespace.name, "-j", "link", "show"]
    vmlib.wait_until(lambda: b'"mine"' in subprocess.run(links, capture_output=True).stdout)
    vmlib.wait_until(lambda: "UP" in [link["flags"] for link in json.loads(subprocess.check_output(links))
                                      if link["ifname"] == "mine"][0])
    v.signal(signal.SIGQUIT)
    v.end()
    assert b'"mine"' not in subprocess.check_output(links)


# Both sides talk first and last: whole, in either direction, and the guest's end of file arrives.
VSOCK_GUEST = """
import hashlib, socket
def whole(s):
    data = b""
    while chunk := s.recv(1 << 16):
        data += chunk
    return data
with socket.socket(socket.AF_VSOCK) as s:
    s.bind((socket.VMADDR_CID_ANY, 99))
    s.listen()
    print("@listening", flush=True)
    c, (cid, _) = s.accept()
    with c:
        print("@from", cid, hashlib.sha256(whole(c)).hexdigest(), flush=True)
        c.sendall(b"y" * 1000000)
for port in 98, 97:
    with socket.socket(socket.AF_VSOCK) as s:
        try:
            s.connect((socket.VMADDR_CID_HOST, port))
        except OSError as e:
            print("@error", e.errno, flush=True)
            continue
        s.sendall(b"hello from the guest")
        s.shutdown(socket.SHUT_WR)
        print("@answer", whole(s).decode(), flush=True)
"""


def whole(s):
    data = b""
    while chunk := s.recv(1 << 16):
        data += chunk
    return data


@pytest.mark.linux(boots=1, weight=4)
@pytest.mark.long
def test_vsock(kvm, tmp_path):
    """Connections both ways over AF_VSOCK, a port where nobody listens, and a context that somebody has."""
    if not os.access("/dev/vhost-vsock", os.R_OK | os.W_OK):
        pytest.skip("no /dev/vhost-vsock that may be used")
    with socket.socket(socket.AF_VSOCK) as server:
        server.bind((socket.VMADDR_CID_ANY, 98))
        server.listen()
        v = kvm(*kernel(), "--vsock", 77, "-n", "none", "--", "/usr/bin/python3", "-c", VSOCK_GUEST)
        v.out.wait_for("^@listening")
        second = subprocess.run([vmlib.KVM, "run", *map(str, kernel()), "--vsock", "77", "-n", "none", "--", "true"],
                                stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        assert second.returncode == 254 and "--vsock 77: somebody on this host has that CID" in second.stderr
        with socket.socket(socket.AF_VSOCK) as s:
            s.connect((77, 99))
            s.sendall(b"x" * 1000000)
            s.shutdown(socket.SHUT_WR)
            assert whole(s) == b"y" * 1000000
        connection, (cid, _) = server.accept()
        with connection:
            assert cid == 77 and whole(connection) == b"hello from the guest"
            connection.sendall(b"and back")
    v.ends("command", 0)
    assert f"@from 2 {sha(b'x' * 1000000)}\n" in v.out.text()
    assert "@answer and back\n" in v.out.text() and "@error 104\n" in v.out.text()
