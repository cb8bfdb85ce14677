"""What is kept of a big report is used only while it is true, and only from files that are ours alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from nvtx_kernels.analysis.report import PhaseRow, Report, Totals
from nvtx_kernels.analysis.summary import cache
from nvtx_kernels.analysis.trace import Provenance

TOTALS = Totals(7, 7, 7, 0, 0, 0, 0, 0, 0)


def summary(name="first"):
    return Report(Provenance(name), TOTALS, (PhaseRow("forward", 7, 1, 7, 1, 7),), (), ())


@pytest.fixture
def big(tmp_path, monkeypatch):
    """A file that counts as big, and a cache folder of its own."""
    monkeypatch.setattr(cache, "SMALLEST_BYTES", 1)
    monkeypatch.setenv("NVTX_KERNELS_CACHE", str(tmp_path / "cache" / "ours"))
    path = tmp_path / "report.sqlite"
    path.write_bytes(os.urandom(200_000))
    return path


def never():
    raise AssertionError("the report was read again")


def test_second_look_does_not_read_the_report(big):
    assert cache.kept(big, {}, summary) == cache.kept(big, {}, never)


def test_small_reports_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("NVTX_KERNELS_CACHE", str(tmp_path / "cache"))
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


def test_a_report_of_the_same_bytes_in_its_place_is_read_again(big):
    cache.kept(big, {}, summary)
    status, content = big.stat(), big.read_bytes()
    big.unlink()
    big.write_bytes(content)
    os.utime(big, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert cache.kept(big, {}, lambda: summary("second")).provenance.file == "second"


def test_a_report_that_changes_while_it_is_read_is_not_kept(big):
    def changing():
        big.write_bytes(b"changed" * 30_000)
        return summary("first")

    cache.kept(big, {}, changing)
    assert cache.kept(big, {}, lambda: summary("second")).provenance.file == "second"


def test_a_journal_beside_the_report_reads_again(big):
    cache.kept(big, {}, summary)
    big.with_name("report.sqlite-wal").touch()
    assert cache.kept(big, {}, lambda: summary("second")).provenance.file == "second"


def altered(place):
    content = place.read_bytes()
    assert b'"kernel_ns": 7' in content
    place.write_bytes(content.replace(b'"kernel_ns": 7', b'"kernel_ns": 8', 1))


def signed(content):
    return lambda place: place.write_bytes(cache._digest(content) + content)


def in_its_place(make):
    def change(place):
        place.unlink()
        make(place)

    return change


DAMAGE = {
    "empty": lambda place: place.write_bytes(b""),
    "cut": lambda place: place.write_bytes(place.read_bytes()[:100]),
    "one number altered": altered,
    "no summary": signed(b'{"fingerprint": 1}'),
    "a list": signed(b"[]"),
    "no text": signed(b"\xff\xfe"),
    "nested 200,000 deep": signed(b"[" * 200_000),
    "larger than any summary": lambda place: os.truncate(place, cache.MOST_BYTES + 1),
    "others may write it": lambda place: place.chmod(0o666),
    "a pipe": in_its_place(os.mkfifo),
    "a link to an endless device": in_its_place(lambda place: place.symlink_to("/dev/zero")),
    "a folder": in_its_place(Path.mkdir),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_no_summary_of_ours_is_made_again(big, damage):
    cache.kept(big, {}, summary)
    DAMAGE[damage](cache.place_of(big, {}))
    assert cache.kept(big, {}, lambda: summary("again")).provenance.file == "again"
    if damage != "a folder":
        assert cache.kept(big, {}, never).provenance.file == "again"


def test_what_another_user_put_there_is_made_again(big):
    cache.kept(big, {}, summary)
    try:
        os.chown(cache.place_of(big, {}), 12345, -1)
    except PermissionError:
        pytest.skip("only root may give files away")
    assert cache.kept(big, {}, lambda: summary("again")).provenance.file == "again"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o701])
def test_a_folder_that_others_may_use_is_not_used(big, mode):
    place = cache.place_of(big, {})
    cache.kept(big, {}, summary)
    place.parent.chmod(mode)
    assert cache.kept(big, {}, lambda: summary("again")).provenance.file == "again"
    assert len(list(place.parent.iterdir())) == 1


def test_a_summary_that_came_with_the_report_is_ignored(big):
    cache.kept(big, {}, summary)
    place = cache.place_of(big, {})
    (big.parent / f".{big.name}.0123456789ab.nvtx-kernels.json").write_bytes(place.read_bytes())
    place.unlink()
    assert cache.kept(big, {}, lambda: summary("again")).provenance.file == "again"


def test_the_folder_is_private_and_its_size_is_bounded(big, monkeypatch):
    monkeypatch.setattr(cache, "MOST_KEPT_BYTES", 5_000)
    for number in range(30):
        cache.kept(big, {"number": number}, summary)
        os.utime(cache.place_of(big, {"number": number}), ns=(number, number))
    files = list(cache.folder().iterdir())
    assert sum(file.stat().st_size for file in files) <= 5_000
    assert cache.place_of(big, {"number": 29}) in files
    assert cache.folder().stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_without_a_name_the_folder_is_the_users(monkeypatch, tmp_path):
    monkeypatch.delenv("NVTX_KERNELS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.folder().is_relative_to(tmp_path)
    assert cache.folder().name == "nvtx-kernels"


def test_folder_that_cannot_be_made_is_no_error(big, monkeypatch):
    monkeypatch.setenv("NVTX_KERNELS_CACHE", str(big / "below a file"))
    assert cache.kept(big, {}, summary) == summary()


def test_many_commands_at_once_leave_one_whole_summary(big):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path;"
        "from nvtx_kernels.analysis.summary import cache;"
        "from tests.analysis.summary import test_cache as t; cache.SMALLEST_BYTES = 1;"
        "[cache._keep(cache.place_of(Path(sys.argv[2]), {}), cache.fingerprint_of(Path(sys.argv[2])), t.summary())"
        " for _ in range(50)]"
    )
    root = str(Path(__file__).parents[3])
    running = [subprocess.Popen([sys.executable, "-c", code, root, str(big)]) for _ in range(4)]
    assert [process.wait() for process in running] == [0] * 4
    assert cache.kept(big, {}, never) == summary()
    assert list(cache.folder().iterdir()) == [cache.place_of(big, {})]
