"""A report that changes while it is read is refused, whatever its format: half of it would be old."""

import os

import pytest
from nvtx_kernels.analysis.errors import NotAReport
from nvtx_kernels.analysis.support.progress import listening

from nvtx_kernels import analysis
from tests.analysis.making.kineto import STEP, write_kineto, write_nsys
from tests.analysis.making.parquet_folders import as_parquet


def parquet_folder(path):
    return as_parquet(write_nsys(path.with_name("source.sqlite"), STEP), path)


def appended(file):
    with file.open("ab") as end:
        end.write(b" ")


def rewritten(file):
    found, content = file.stat(), file.read_bytes()
    file.write_bytes(content)
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))


def replaced(file):
    other = file.with_name("other")
    other.write_bytes(file.read_bytes())
    other.replace(file)


FORMATS = {"SQLite": write_nsys, "trace": write_kineto, "Parquet": lambda path, _: parquet_folder(path)}
CHANGES = (appended, rewritten, replaced, os.unlink)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("format_", FORMATS)
def test_report_that_is_changed_while_it_is_read_is_refused(tmp_path, format_, change):
    path = FORMATS[format_](tmp_path / "report", STEP)
    file = min(path.iterdir()) if path.is_dir() else path
    changes = iter([change])

    def meanwhile(expected, read):
        if read:
            next(changes, lambda _: None)(file)

    with listening(meanwhile), pytest.raises(NotAReport, match="report was changed while it was read"):
        analysis.read(path)


@pytest.mark.parametrize("format_", FORMATS)
def test_report_that_is_only_looked_at_meanwhile_is_read(tmp_path, format_):
    path = FORMATS[format_](tmp_path / "report", STEP)
    with listening(lambda expected, read: path.stat()):
        assert len(analysis.read(path).work)
