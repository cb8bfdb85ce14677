"""Targets of `-o` that are no regular files, all made in a folder of the test's own."""

import os
import pty
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
# The null device's number: a node of our own that behaves as the machine's, which no test may touch.
NULL = os.makedev(1, 3)
# Numbers for experiments, which no disk has.
NO_DISK = os.makedev(240, 77)


def pipe(folder):
    """Make a named pipe."""
    path = folder / "pipe"
    os.mkfifo(path)
    return path


def node(folder, kind, number):
    """Make a device node, or skip where the machine lets nobody."""
    path = folder / "device"
    try:
        os.mknod(path, kind | 0o600, number)
        os.close(os.open(path, os.O_WRONLY)) if kind == stat.S_IFCHR else None
    except OSError:
        pytest.skip("this machine lets us make no device nodes")
    return path


def characters(folder):
    """Make a device that swallows what is written to it."""
    return node(folder, stat.S_IFCHR, NULL)


def disk(folder):
    """Make a disk's node without a disk."""
    return node(folder, stat.S_IFBLK, NO_DISK)


def bound_socket(folder):
    """Make a socket that nobody listens at."""
    path = folder / "socket"
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))  # a socket's whole path may have 107 bytes
    return path


def a_folder(folder):
    """Make a folder."""
    path = folder / "folder"
    path.mkdir()
    return path


def on_terminal(*words):
    """Run a command with a terminal of its own as OUT; return its exit status and what the terminal got."""
    ours, theirs = pty.openpty()
    status = ran(*words, os.ttyname(theirs))
    os.close(theirs)
    got = os.read(ours, 100_000)
    os.close(ours)
    return status, got


def ran(*words, **options):
    """Run a command of ours in a process of its own; return its exit status."""
    with started(*words, **options) as process:
        return process.wait(120)


def started(module, *words, **options):
    """Start a command of ours in a process of its own."""
    return subprocess.Popen([sys.executable, "-m", module, *map(str, words)], cwd=REPOSITORY, **options)
