"""What is kept beside a big report is used only while it is true."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from analysis import cache
from analysis.provenance import Provenance
from analysis.report import PhaseRow, Report, Totals

TOTALS = Totals(7, 7, 7, 0, 0, 0, 0, 0)


def summary(name="first"):
    return Report(Provenance(name), TOTALS, (PhaseRow("forward", 7, 1, 7, 1, 7),), (), ())


@pytest.fixture
def big(tmp_path, monkeypatch):
    """A file that counts as big."""
    monkeypatch.setattr(cache, "SMALLEST_BYTES", 1)
    path = tmp_path / "report.sqlite"
    path.write_bytes(os.urandom(200_000))
    return path


def never():
    raise AssertionError("the report was read again")


def test_second_look_does_not_read_the_report(big):
    assert cache.kept(big, {}, summary) == cache.kept(big, {}, never)


def test_small_reports_leave_nothing_behind(tmp_path):
    path = tmp_path / "report.sqlite"
    path.write_bytes(b"small")
    cache.kept(path, {}, summary)
    assert list(tmp_path.iterdir()) == [path]


def test_other_options_are_kept_apart(big):
    cache.kept(big, {"warm_up": False}, summary)
    assert cache.kept(big, {"warm_up": True}, lambda: summary("other")).provenance.file == "other"


@pytest.mark.parametrize(("at", "later_ns"), [(0, 0), (-1, 0), (100_003, 1)])
def test_changed_report_is_read_again(big, at, later_ns):
    cache.kept(big, {}, summary)
    status, content = big.stat(), bytearray(big.read_bytes())
    content[at] ^= 1
    big.write_bytes(content)
    os.utime(big, ns=(status.st_atime_ns, status.st_mtime_ns + later_ns))
    assert cache.kept(big, {}, lambda: summary("second")).provenance.file == "second"


def test_other_code_reads_again(big, monkeypatch):
    cache.kept(big, {}, summary)
    monkeypatch.setattr(cache, "_code", lambda: [("attribution.py", 1, 2)])
    assert cache.kept(big, {}, lambda: summary("second")).provenance.file == "second"


@pytest.mark.parametrize("damage", [b"", b"{", b'{"fingerprint": 1}', b"[]", b"\xff\xfe"])
def test_damaged_summary_is_made_again(big, damage):
    cache.kept(big, {}, summary)
    cache.place_of(big, {}).write_bytes(damage)
    assert cache.kept(big, {}, lambda: summary("again")).provenance.file == "again"
    assert cache.kept(big, {}, never).provenance.file == "again"


def test_folder_that_cannot_be_written_is_no_error(big, monkeypatch):
    monkeypatch.setattr(cache, "replace_file", lambda *_: (_ for _ in ()).throw(OSError("read-only")))
    assert cache.kept(big, {}, summary) == summary()


def test_many_commands_at_once_leave_one_whole_summary(big):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; from analysis import cache;"
        "from tests.analysis import test_cache as t; cache.SMALLEST_BYTES = 1;"
        "[cache._keep(cache.place_of(Path(sys.argv[2]), {}), cache.fingerprint_of(Path(sys.argv[2])), t.summary())"
        " for _ in range(50)]"
    )
    root = str(Path(__file__).parents[2])
    running = [subprocess.Popen([sys.executable, "-c", code, root, str(big)]) for _ in range(4)]
    assert [process.wait() for process in running] == [0] * 4
    assert cache.kept(big, {}, never) == summary()
    assert len(list(big.parent.iterdir())) == 2
