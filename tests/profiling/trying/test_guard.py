"""What a program may not do while it is tried: write elsewhere, and connect to other machines."""

import os
import socket
import sqlite3
import sys
from pathlib import Path

import pytest
from nvtx_kernels.profiling.trying.guard import Guard

from tests.profiling.making.tried import forked

OTHER = "93.184.216.34"


def attempt(name, folder, elsewhere, may_connect=False):
    """Try something under a guard, in a fork: return what it raised, and what the guard refused."""
    os.chdir(folder)
    guard = Guard([folder], may_connect=may_connect)
    sys.addaudithook(guard.hear)
    guard.switch(on=True)
    raised = ""
    try:
        WAYS[name](Path(folder), Path(elsewhere))
    except OSError as error:
        raised = type(error).__name__
    guard.switch(on=False)
    return raised, len(guard.refused)


def connect(host, kind=socket.SOCK_STREAM):
    with socket.socket(type=kind) as opened:
        opened.settimeout(0.2)
        opened.connect((host, 9))


def through_a_link(inside, elsewhere):
    (inside / "link").symlink_to(elsewhere)
    (inside / "link" / "new").write_text("1")


def below_a_folder(inside, elsewhere):
    folder = os.open(elsewhere, os.O_RDONLY)
    os.remove("kept", dir_fd=folder)


WAYS = {
    "write": lambda inside, elsewhere: (elsewhere / "new").write_text("1"),
    "append": lambda inside, elsewhere: (elsewhere / "kept").open("a"),
    "create by a flag": lambda inside, elsewhere: os.open(elsewhere / "new", os.O_CREAT | os.O_WRONLY),
    "remove": lambda inside, elsewhere: (elsewhere / "kept").unlink(),
    "remove below a folder": below_a_folder,
    "rename away": lambda inside, elsewhere: (elsewhere / "kept").rename(inside / "new"),
    "rename over": lambda inside, elsewhere: (inside / "mine").rename(elsewhere / "kept"),
    "make a folder": lambda inside, elsewhere: (elsewhere / "folder").mkdir(),
    "cut": lambda inside, elsewhere: os.truncate(elsewhere / "kept", 0),
    "change its mode": lambda inside, elsewhere: (elsewhere / "kept").chmod(0o600),
    "by a relative path": lambda inside, elsewhere: Path("..", elsewhere.name, "new").write_text("1"),
    "through a link": through_a_link,
    "connect": lambda inside, elsewhere: connect(OTHER),
    "send": lambda inside, elsewhere: socket.socket(type=socket.SOCK_DGRAM).sendto(b"1", (OTHER, 9)),
    "look up": lambda inside, elsewhere: socket.getaddrinfo("example.org", 80),
}
REFUSED = {"connect": "ConnectionRefusedError", "send": "ConnectionRefusedError", "look up": "gaierror"}


@pytest.fixture
def folders(tmp_path):
    inside, elsewhere = tmp_path / "inside", tmp_path / "elsewhere"
    for folder, name in ((inside, "mine"), (elsewhere, "kept")):
        folder.mkdir()
        (folder / name).write_text("before")
    return inside, elsewhere


@pytest.mark.parametrize("way", WAYS)
def test_what_is_refused_is_not_done(way, folders):
    inside, elsewhere = folders
    assert forked(attempt, way, str(inside), str(elsewhere)) == (REFUSED.get(way, "PermissionError"), 1)
    assert [path.read_text() for path in elsewhere.iterdir()] == ["before"]
    assert (inside / "mine").read_text() == "before"


ALLOWED = {
    "write": lambda inside, elsewhere: (inside / "new").write_text("1"),
    "remove": lambda inside, elsewhere: (inside / "mine").unlink(),
    "read elsewhere": lambda inside, elsewhere: (elsewhere / "kept").read_text(),
    "a device": lambda inside, elsewhere: Path(os.devnull).write_text("1"),
    "a database": lambda inside, elsewhere: sqlite3.connect(inside / "base").execute("CREATE TABLE one (two)"),
    "a socket here": lambda inside, elsewhere: socket.create_server(("127.0.0.1", 0)),
    "this machine": lambda inside, elsewhere: socket.getaddrinfo(socket.gethostname(), 80),
}


def allowed_attempt(name, *words):
    WAYS[name] = ALLOWED[name]
    return attempt(name, *words)


@pytest.mark.parametrize("way", ALLOWED)
def test_what_is_allowed_is_done(way, folders):
    assert forked(allowed_attempt, way, *map(str, folders)) == ("", 0)


def test_other_machines_are_reached_if_that_is_allowed(folders):
    _, refused = forked(attempt, "connect", *map(str, folders), True)
    assert refused == 0
