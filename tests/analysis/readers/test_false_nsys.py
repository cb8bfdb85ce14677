"""A program that calls itself nsys and is none: a report is refused in one sentence, and in time."""

import stat
import time

import pytest
from nvtx_kernels.analysis.errors import NotAReport
from nvtx_kernels.analysis.readers import nsys_rep

from nvtx_kernels import analysis
from tests.analysis.making.checks import HARMLESS
from tests.analysis.making.standin_export import MAGIC

VERSION = 'if [ "$1" = --version ]; then echo NVIDIA Nsight Systems version 2026.1.1; exit; fi\n'
#: Finds what it is told to write in `$target`.
TARGET = 'while [ $# -gt 1 ]; do [ "$1" = --output ] && target=$2; shift; done\n'
FALSE = {
    "writes nothing": "exit 0",
    "writes nothing, with a version": VERSION + "exit 0",
    "fails without a word": "exit 3",
    "prints escapes": "printf '\\033[31mred\\033]0;x\\007 \\302\\233\\342\\200\\256\\r\\0\\n'; exit 1",
    "prints bytes": "head -c 100000 /dev/urandom; exit 1",
    "prints much": VERSION + "yes 'x 50 % y' | head -c 50000000; exit 1",
    "prints one long line": "head -c 50000000 /dev/zero | tr '\\0' 9; exit 1",
    "has a version of many digits": "yes 20261 | head -c 1000000 | tr -d '\\n' | sed s/2/2026./; exit 1",
    "writes bytes": VERSION + TARGET + 'head -c 5000 /dev/urandom > "$target"',
    "writes an empty file": VERSION + TARGET + ': > "$target"',
    "writes a folder": VERSION + TARGET + 'mkdir -p "$target"',
    "writes folders for tables": VERSION + TARGET + 'mkdir -p "$target/StringIds.parquet" "$target/a.parquet"',
    "writes bytes for tables": VERSION + TARGET + 'mkdir -p "$target"; for table in StringIds '
    'CUPTI_ACTIVITY_KIND_KERNEL; do head -c 500 /dev/urandom > "$target/$table.parquet"; done',
    "writes a link to itself": VERSION + TARGET + 'ln -s "$target" "$target"',
    "writes a link to nowhere": VERSION + TARGET + 'ln -s /nowhere "$target"',
    "writes a pipe": VERSION + TARGET + 'mkfifo "$target"',
    "writes pipes for tables": VERSION + TARGET + 'mkdir -p "$target"; for table in StringIds '
    'CUPTI_ACTIVITY_KIND_KERNEL; do mkfifo "$target/$table.parquet"; done',
    "kills itself": "kill -9 $$",
    "is no program": None,
}  # fmt: skip


@pytest.fixture
def nsys(tmp_path, monkeypatch):
    """Return what puts a program's text on the PATH as nsys."""

    def put(text):
        script = tmp_path / "bin" / "nsys"
        script.parent.mkdir()
        script.write_bytes(b"\x7fELF nothing" if text is None else f"#!/bin/sh\n{text}\n".encode())
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(script.parent), prepend=":")

    return put


def refused(folder):
    report = folder / "run.nsys-rep"
    report.write_bytes(MAGIC + bytes(1000))
    with pytest.raises(NotAReport) as refusal:
        analysis.read(report)
    assert HARMLESS.fullmatch(str(refusal.value))
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 1000
    assert {entry.name for entry in folder.iterdir()} == {"bin", "run.nsys-rep"}
    return str(refusal.value)


@pytest.mark.parametrize("what", FALSE)
def test_a_false_nsys_is_refused_in_one_sentence(tmp_path, nsys, what):
    nsys(FALSE[what])
    refused(tmp_path)


@pytest.mark.parametrize("text", ["exec sleep 60", "sleep 60", "trap '' TERM INT; sleep 60; sleep 60"])
def test_a_false_nsys_that_hangs_is_ended(tmp_path, nsys, monkeypatch, text):
    monkeypatch.setattr(nsys_rep, "EXPORT_TIMEOUT_S", 0.5)
    monkeypatch.setattr(nsys_rep, "VERSION_TIMEOUT_S", 0.5)
    nsys(text)
    began = time.monotonic()
    refused(tmp_path)
    assert time.monotonic() - began < 10
