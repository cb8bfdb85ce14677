"""What is no report is refused by name, in one sentence with a next step, and never with a traceback."""

import gzip
import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from nvtx_kernels.analysis.errors import NotAReport

from nvtx_kernels import analysis
from tests.analysis.making.bundled import SHARED
from tests.analysis.making.kineto import STEP, write_nsys
from tests.analysis.making.traces import summary

REAL = [SHARED / "h200" / "cuda_graph_nodes.sqlite", SHARED / "h200" / "train_fp32.sqlite"]
LFS_POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
PAGE = 4096


def database(path, *tables):
    """Write an SQLite database with these tables, and return its bytes."""
    with closing(sqlite3.connect(path)) as connection:
        for table in tables:
            connection.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, name TEXT)")
        connection.commit()
    return path.read_bytes()


def folder_of_exports(path):
    path.mkdir()
    write_nsys(path / "report.sqlite", STEP)


def holding(content):
    return lambda path: path.write_bytes(content)


WRONG = {
    "nothing": ("a.sqlite", lambda path: None, "does not exist. Use the path of a report, such as report1."),
    "empty": ("a.sqlite", holding(b""), "is empty: its recording or export did not finish. Record it"),
    "empty trace": ("a.pt.trace.json", holding(b""), "its recording or export did not finish. Record it"),
    "empty rep": ("a.nsys-rep", holding(b""), "is empty: its recording or export did not finish. Record it"),
    "zeros": ("a.sqlite", holding(bytes(8192)), "begins with zeros: its export was interrupted. Run `nsys export"),
    "pointer": ("a.sqlite", holding(LFS_POINTER), "is a Git LFS pointer, not the report itself. Fetch it"),
    "packed by xz": ("a.sqlite.xz", holding(b"\xfd7zXZ\0packed"), "packed with xz. Unpack it first: xz -dk "),
    "packed by zstd": ("a.json.zst", holding(b"(\xb5/\xfdpacked"), "packed with zstd. Unpack it first: zstd -dk "),
    "packed export": ("a.sqlite.gz", holding(gzip.compress(b"SQLite format 3\0" * 9)), "Unpack it first: gunzip"),
    "pointer to a trace": ("a.pt.trace.json.gz", holding(LFS_POINTER), "is a Git LFS pointer, not the report"),
    "folder": ("reports", Path.mkdir, "is a folder without a report that can be read. Use an nsys export"),
    "folder of reports": ("reports", folder_of_exports, "is a folder of reports. Use one of them, such as re"),
    "pipe": ("a.sqlite", os.mkfifo, "is not a regular file. Use the path of the report itself."),
    "device": ("/dev/null", lambda path: None, "is not a regular file. Use the path of the report itself."),
    "unreachable": ("file/a.sqlite", lambda path: path.parent.touch(), "cannot be read: Not a directory."),
    "endless": ("a.sqlite", lambda path: path.symlink_to(path), "cannot be read: Too many levels of symbolic"),
    "too long": ("a" * 300, lambda path: None, "cannot be read: File name too long."),
    "another database": ("a.sqlite", lambda path: database(path, "people"), "an SQLite database, but not one"),
    "DLProf's database": (
        "dlprof_dldb.sqlite",
        lambda path: database(path, "domains", "gpu_devices", "iterations", "kernels", "op_instances", "ops"),
        "an SQLite database, but not one that `nsys export` wrote.",
    ),
    "header only": ("a.sqlite", holding(b"SQLite format 3\0"), "is damaged: "),
    "noise": ("a.sqlite", holding(random.Random(3).randbytes(9000)), "is not a report that can be read. Use an"),
    "text": ("report.csv", holding(b"Time (%),Total Time (ns)\n"), "is not a report that can be read. Use an"),
    "gzipped text": ("a.gz", holding(gzip.compress(b"hello")), "is not a trace of PyTorch's profiler"),
    "no gzip": ("a.json.gz", holding(b"\x1f\x8b" + bytes(99)), "is damaged: "),
}  # fmt: skip


@pytest.mark.parametrize(("name", "make", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_what_is_no_report_is_refused_by_name(tmp_path, name, make, sentence):
    path = tmp_path / name
    make(path)
    with pytest.raises(NotAReport) as refusal:
        analysis.read(path)
    said = str(refusal.value)
    assert said.startswith(str(path))
    assert sentence in said
    assert "\n" not in said


def test_a_path_with_a_zero_byte_is_refused():
    with pytest.raises(NotAReport, match="is not a path: it contains a zero byte"):
        analysis.read("a\0b.sqlite")


def test_nsys_report_without_nsys_says_where_to_export_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(b"anything")
    with pytest.raises(NotAReport, match=r"nsys is not on the PATH\. On a machine that has it, run: nsys export"):
        analysis.read(path)


def every_cut_is_refused_or_right(export, lengths, path):
    """Hold the first bytes of an export, as many as each length says, against the report of the whole."""
    content, whole = export.read_bytes(), summary(export, file="")
    for length in lengths(len(content)):
        path.write_bytes(content[:length])
        try:
            answer = summary(path, file="")
        except NotAReport as refusal:
            answer = str(refusal)
        assert answer == whole or str(answer).startswith(str(path)), length


def at_pages(size):
    """Return where to cut: through the header, at the pages and just beside them, and in between."""
    pages = [page + beside for page in range(0, size, PAGE) for beside in (-1, 0, 1, 1777)]
    return sorted({length for length in (*range(0, 100, 9), *pages, size - 1) if 0 <= length < size})


def test_export_that_breaks_off_is_refused_or_right(tmp_path):
    every_cut_is_refused_or_right(write_nsys(tmp_path / "report.sqlite", STEP), at_pages, tmp_path / "cut.sqlite")


@pytest.mark.parametrize("export", REAL, ids=lambda path: path.stem)
def test_real_export_that_breaks_off_is_refused_or_right(export, tmp_path):
    if not export.exists():
        pytest.skip("the real reports next to the repository are absent")
    every_cut_is_refused_or_right(
        export, lambda size: random.Random(7).sample(range(size), 60), tmp_path / "cut.sqlite"
    )
