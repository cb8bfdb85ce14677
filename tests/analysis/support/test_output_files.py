"""Files that commands write are never the reports that they read; what is no file is never replaced by one."""

import os
import shutil
import threading
from importlib import import_module
from pathlib import Path

import pytest
from nvtx_kernels.analysis.support.files import replace_file

from tests.analysis.making import nodes
from tests.analysis.making.checks import said
from tests.analysis.making.plain_sql import OURS


@pytest.fixture
def report(tmp_path):
    """A copy of a report, and a link to it beside it."""
    copy = Path(shutil.copy(OURS, tmp_path / "r.sqlite"))
    (tmp_path / "link.sqlite").symlink_to(copy)
    return copy


@pytest.mark.parametrize("output", ["r.sqlite", "link.sqlite"])
@pytest.mark.parametrize(
    ("command", "count"), [("kernels", 1), ("kernels", 2), ("compare", 2), ("page", 1), ("timeline", 1)]
)
def test_no_answer_takes_the_place_of_its_report(report, capsys, command, count, output):
    reports = [str(OURS), str(report)][-count:]
    assert import_module(f"analysis.{command}").main([*reports, "-o", str(report.with_name(output))]) == 2
    assert "is a report to read; write the answer to another file." in capsys.readouterr().err
    assert report.read_bytes() == OURS.read_bytes()
    assert report.with_name("link.sqlite").is_symlink()


WRITERS = {
    "kernels": ("kernels", "REPORT", "--format", "json"),
    "parquet": ("kernels", "REPORT", "--by", "kernel", "--format", "parquet"),
    "questions": ("questions", "REPORT"),
    "compare": ("compare", "REPORT", "REPORT"),
    "timeline": ("timeline", "REPORT"),
    "page": ("page", "REPORT"),
    "scrub": ("scrub", "REPORT"),
}
STREAMERS = [name for name in WRITERS if name != "scrub"]
SMALL = Path(OURS).with_name("h200_compiled.sqlite")


def words(writer, *more):
    module, *words = WRITERS[writer]
    return f"analysis.{module}", *(str(SMALL) if word == "REPORT" else word for word in words), *map(str, more)


def wrote(writer, target):
    """Run a command in this process; return its exit status and its errors."""
    module, *arguments = words(writer, "-o", target)
    status, _, err = said(import_module(f"nvtx_kernels.{module}"), *arguments)
    return status, err


@pytest.mark.parametrize("writer", STREAMERS)
def test_a_pipe_gets_the_answer_and_stays_a_pipe(tmp_path, writer):
    assert wrote(writer, tmp_path / "file") == (0, "")
    target, got = nodes.pipe(tmp_path), []
    # A reader may come later than the command asks for it.
    waiting = os.open(target, os.O_RDONLY | os.O_NONBLOCK)
    reader = threading.Thread(target=lambda: got.append(target.read_bytes()))
    reader.start()
    assert wrote(writer, target) == (0, "")
    reader.join()
    os.close(waiting)
    assert got == [(tmp_path / "file").read_bytes()]
    assert target.is_fifo()


def test_a_terminal_gets_the_answer():
    status, got = nodes.on_terminal(*words("questions", "-o"))
    assert status == 0
    assert b"softmax" in got


@pytest.mark.parametrize("writer", STREAMERS)
def test_a_device_is_written_to_and_stays(tmp_path, writer):
    target = nodes.characters(tmp_path)
    assert wrote(writer, target) == (0, "")
    assert target.is_char_device()
    assert list(tmp_path.iterdir()) == [target]


REFUSED = {
    "pipe": "No process reads from it", "disk": "It is a disk", "bound_socket": "It is a socket",
    "a_folder": "It is a folder",
}  # fmt: skip


@pytest.mark.parametrize("made", REFUSED)
@pytest.mark.parametrize("writer", WRITERS)
def test_what_cannot_be_written_to_is_refused_and_stays(tmp_path, writer, made):
    target = getattr(nodes, made)(tmp_path)
    mode = target.lstat().st_mode
    reason = "It is not a regular file" if (writer, made) == ("scrub", "pipe") else REFUSED[made]
    assert wrote(writer, target) == (2, f"error: {target} cannot be written: {reason}.\n")
    assert target.lstat().st_mode == mode
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("was", [b"old", None])
def test_a_link_is_followed(tmp_path, writer, was):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "target", tmp_path / "link"
    if was is not None:
        target.write_bytes(was)
    link.symlink_to(Path("there", "target"))
    assert wrote(writer, link) == (0, "")
    assert link.is_symlink()
    assert len(target.read_bytes()) > 100


def test_an_open_file_is_written_to_not_replaced(tmp_path):
    with (tmp_path / "log").open("w+b") as log:
        log.write(b"before\n")
        log.flush()
        assert nodes.ran(*words("questions", "-o", "/proc/self/fd/1"), stdout=log) == 0
        log.seek(0)
        assert log.read().startswith(b"before\n")
        assert log.tell() > 100


LOOP = "a link that leads to itself"
IMPOSSIBLE = {"x" * 300: "File name too long", LOOP: "Too many levels of symbolic links"}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("name", IMPOSSIBLE, ids=["a name of 300 characters", "a circle of links"])
def test_a_name_that_cannot_be_is_one_sentence(tmp_path, writer, name):
    (tmp_path / LOOP).symlink_to(LOOP)
    said_why = f"error: {tmp_path / name} cannot be written: {IMPOSSIBLE[name]}.\n"
    assert wrote(writer, tmp_path / name) == (2, said_why)


@pytest.mark.parametrize("writer", WRITERS)
def test_a_name_as_long_as_a_name_can_be_is_written(tmp_path, writer):
    assert wrote(writer, tmp_path / ("x" * 255)) == (0, "")
    assert [len(path.name) for path in tmp_path.iterdir()] == [255]


def test_a_file_stays_as_private_as_it_was(tmp_path):
    target = tmp_path / "private"
    target.touch()
    target.chmod(0o4600)  # what it lets a program do, others' content must not inherit
    replace_file(target, b"new")
    assert (target.read_bytes(), target.stat().st_mode & 0o7777) == (b"new", 0o600)
