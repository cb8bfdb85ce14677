"""The first screen's list of what to change: what to do, what it saves, and where, in one line a row."""

import re
from functools import partial

import pytest
from nvtx_kernels.analysis import kernels, view

from tests.analysis.making import wasteful
from tests.analysis.making.simulated import FP32_GEMM, US, recorded
from tests.analysis.measures.test_fixes import training

PROGRAMS = {
    "to_cpu": partial(wasteful.trained, after=wasteful.computing_on_cpu),
    "from_cpu": partial(wasteful.trained, in_forward=wasteful.made_on_cpu),
    "allocating": partial(wasteful.trained, after=wasteful.allocating),
    "anomaly": partial(wasteful.trained, in_backward=wasteful.checked, lasts=20 * US),
    "device_sync": partial(wasteful.trained, in_backward=wasteful.synchronizing),
    "compile": partial(wasteful.trained, in_forward=wasteful.chained),
    "fp32": partial(wasteful.trained, gemm=FP32_GEMM),
    "fp64": partial(wasteful.trained, gemm=wasteful.DOUBLE_GEMM),
    "launching": partial(wasteful.trained, lasts=US, gemms=300),
}


def rows_of(screen):
    """Return the lines of each row of the list on a screen."""
    _, _, behind = screen.partition("\nFix first (")
    lines = behind.partition("\n\n")[0].splitlines()[1:]
    begins = [number for number, line in enumerate(lines) if re.match(r"\d\. ", line)]
    return [lines[begin:end] for begin, end in zip(begins, [*begins[1:], len(lines)], strict=True)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_row_is_one_line_of_eighty_columns_and_names_the_line(tmp_path, capsys, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    assert kernels.main([str(recorded(tmp_path, PROGRAMS[name]))]) == 0
    rows = rows_of(capsys.readouterr().out)
    assert rows
    assert all(len(row) == 1 and max(map(len, row)) <= 80 for row in rows)
    assert re.search(r"train\.py:\d+$", rows[0][-1])


def test_without_lines_a_row_names_the_range_inside_the_step(tmp_path, capsys):
    assert kernels.main([str(recorded(tmp_path, partial(training, reads=True)))]) == 0
    assert rows_of(capsys.readouterr().out)[0][-1].endswith(" forward")


def test_the_list_with_reasons_says_the_line_first(tmp_path, capsys):
    assert view.main(["fix", str(recorded(tmp_path, PROGRAMS["to_cpu"]))]) == 0
    assert "1. train.py:60: 1 copy brings 32 MiB" in " ".join(capsys.readouterr().out.split())
