# SPDX-License-Identifier: GPL-2.0-or-later
"""One run of ./kvm (or of the program that KVM names), seen from outside."""
import json
import os
import re
import subprocess
import threading
import time

HERE = os.path.dirname(os.path.realpath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
KVM = os.path.abspath(os.environ.get("KVM", os.path.join(TOP, "kvm")))
GUESTS = os.environ.get("GUESTS_OUT", os.path.join(TOP, "build", "guests"))
CACHE = os.path.join(TOP, "build", "e2e")  # the user's own is none of our business
PATIENCE = 300  # seconds; a safety net, nothing is timed


def wait_until(condition):
    """For what nobody announces."""
    for _ in range(PATIENCE * 50):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("that never was so")


class Stream:
    """Collects what a descriptor gives, in a thread; hold() stops the reading."""

    def __init__(self, fd):
        self.fd = fd
        self.data = b""
        self.cond = threading.Condition()
        self.held = self.ended = False
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        while True:
            with self.cond:
                self.cond.wait_for(lambda: not self.held)
            try:
                chunk = os.read(self.fd, 4096)
            except OSError:  # a terminal whose other side is closed
                chunk = b""
            with self.cond:
                self.data += chunk
                self.ended = not chunk
                self.cond.notify_all()
            if not chunk:
                return

    def hold(self, held=True):
        with self.cond:
            self.held = held
            self.cond.notify_all()

    def find(self, pattern, count):
        return len(re.findall(pattern.encode(), self.data, re.M)) >= count

    def wait_for(self, pattern, count=1):
        """Until the pattern has been seen so many times; fails when that cannot happen any more."""
        with self.cond:
            self.cond.wait_for(lambda: self.ended or self.find(pattern, count), PATIENCE)
            assert self.find(pattern, count), f"no {count} times {pattern!r} in {self.text()[-2000:]}"

    def text(self):
        return self.data.decode("latin1").replace("\r\n", "\n")


class Vm:
    """kvm run ARGS. stdin: "null", "pipe", "closed" or a descriptor; stdout: "pipe", "closed" or a descriptor. After
    @patience seconds it counts as hanging."""

    def __init__(self, tmp, *args, stdin="null", stdout="pipe", patience=PATIENCE, **popen):
        self.status_file = os.path.join(tmp, "status")
        self.argv = [KVM, "run", "--status-file", self.status_file, *map(str, args)]
        popen.setdefault("env", dict(os.environ, XDG_CACHE_HOME=CACHE))
        fds = {"null": subprocess.DEVNULL, "pipe": subprocess.PIPE, "closed": subprocess.DEVNULL}
        closed = [fd for fd, how in enumerate((stdin, stdout)) if how == "closed"]
        if closed:
            popen["preexec_fn"] = lambda: [os.close(fd) for fd in closed]
        self.process = subprocess.Popen(self.argv, stdin=fds.get(stdin, stdin), stdout=fds.get(stdout, stdout),
                                        stderr=subprocess.PIPE, **popen)
        self.out = Stream(self.process.stdout.fileno()) if stdout == "pipe" else None
        self.err = Stream(self.process.stderr.fileno())
        self.killer = threading.Timer(patience, self.process.kill)
        self.killer.start()

    def type(self, data):
        self.process.stdin.write(data if isinstance(data, bytes) else data.encode())
        self.process.stdin.flush()

    def signal(self, number):
        self.process.send_signal(number)

    def end(self):
        """Waits; returns the exit status."""
        status = self.process.wait()
        hung = not self.killer.is_alive()
        self.killer.cancel()
        for stream in (self.out, self.err):
            if stream:
                stream.thread.join()
        assert not hung, f"kvm hangs; {self.story()}"
        return status

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.killer.cancel()
        for f in (self.process.stdin, self.process.stdout, self.process.stderr):
            if f and not f.closed:
                try:
                    f.close()
                except BrokenPipeError:
                    pass

    def ends(self, reason, code):
        """Waits, and checks exit status and status file."""
        status = self.end()
        got = self.told()
        assert (status, got) == (code, {"reason": reason, "code": code}), self.story()

    def told(self):
        try:
            with open(self.status_file) as f:
                return json.load(f)
        except FileNotFoundError:
            return None

    def story(self):
        out = self.out.text() if self.out else ""
        return f"{' '.join(self.argv)}\nstatus file: {self.told()}\nstderr: {self.err.text()}\nstdout: {out[-4000:]}"
