"""Files that commands write are never the reports that they read."""

import shutil
from importlib import import_module
from pathlib import Path

import pytest

from tests.analysis.plain_sql import OURS


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
    assert "is a report to read; the answer needs a file of its own." in capsys.readouterr().err
    assert report.read_bytes() == OURS.read_bytes()
    assert report.with_name("link.sqlite").is_symlink()
