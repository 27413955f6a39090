#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
The job control of a shell, on request: jobshell.py KVM, with a terminal as descriptor $TTY_FD. Requests are lines on
stdin, each is answered by a line:

    start-fg ARG…, start-bg ARG…  `KVM run ARG…` as a job in the foreground or background: its process id
    fg, shell                     the job's, or this process's group to the foreground
    kill                          SIGQUIT to the job
    wait                          until it is stopped or ends: "stopped", "exited N", "killed N"
"""
import fcntl
import os
import signal
import sys
import termios

kvm, tty = sys.argv[1], int(os.environ["TTY_FD"])
job = 0


def foreground(group):
    os.tcsetpgrp(tty, group)


def start(args, in_foreground):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.close(write)
        os.read(read, 1)  # until the foreground is as it shall be
        os.dup2(tty, 0)
        os.dup2(tty, 1)
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.execv(kvm, [kvm, "run", *args])
    os.close(read)
    os.setpgid(pid, pid)
    if in_foreground:
        foreground(pid)
    os.close(write)
    return pid


def wait():
    _, status = os.waitpid(job, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        return "stopped"
    return f"exited {os.WEXITSTATUS(status)}" if os.WIFEXITED(status) else f"killed {os.WTERMSIG(status)}"


signal.signal(signal.SIGTTOU, signal.SIG_IGN)
os.setsid()
fcntl.ioctl(tty, termios.TIOCSCTTY, 0)
for line in sys.stdin:
    verb, *args = line.split()
    answer = "ok"
    if verb.startswith("start-"):
        answer = job = start(args, verb == "start-fg")
    elif verb == "fg":
        foreground(job)
    elif verb == "shell":
        foreground(os.getpgrp())
    elif verb == "kill":
        os.kill(job, signal.SIGQUIT)
    elif verb == "wait":
        answer = wait()
    print(answer, flush=True)
