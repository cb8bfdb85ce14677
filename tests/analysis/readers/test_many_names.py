"""A report with more names than any table shows is answered with the same sums, and says what was joined."""

import json
from itertools import pairwise

import pytest
from nvtx_kernels.analysis import kernels
from nvtx_kernels.analysis.readers import many_names
from nvtx_kernels.analysis.readers.many_names import MOST_NAMES, OTHER_NAMES
from nvtx_kernels.analysis.vocabulary.range_names import PHASE_NAMES, STEP_NAMES, WARM_UP_NAMES

from tests.analysis.making import checks, hostile
from tests.analysis.making.building import Range, build, launched

FEW = 20


def report(folder, count):
    """Write two steps with one forward each, of which each has ranges and kernels of so many names."""
    begins = (0, 1000 + 50 * count, 10**6)
    ranges = [Range(name, *times) for times in pairwise(begins) for name in ("step", "forward")]
    ranges += [Range(f"part {chr(65 + n % 26)}{n}", 1000 + 100 * n, 1001 + 100 * n + 2 * n) for n in range(count)]
    rows = launched(*((1001 + 100 * n, 1002 + 100 * n) for n in range(count)), name="gemm")
    return build(folder, ranges=ranges, **rows)


def answered(path, *options):
    """Return the JSON of a report."""
    status, out, err = checks.said(kernels, str(path), "--format", "json", *options)
    assert (status, err) == (0, "")
    return json.loads(out)


def test_joined_names_keep_all_sums_steps_and_phases(tmp_path, monkeypatch):
    path = report(tmp_path, 3 * FEW)
    whole = answered(path)
    monkeypatch.setattr(many_names, "MOST_NAMES", FEW)
    joined = answered(path)
    assert joined["totals"] == whole["totals"]
    assert joined["phases"] == whole["phases"]
    assert joined["report"]["steps"] == whole["report"]["steps"] == 2
    for column in ("self_ns", "self_kernels", "instances", "cpu_ns"):
        assert sum(row[column] or 0 for row in joined["ranges"]) == sum(
            row[column] or 0 for row in whole["ranges"]
        )


def test_names_with_the_most_time_are_kept_and_it_is_said_how_many_are_joined(tmp_path, monkeypatch):
    monkeypatch.setattr(many_names, "MOST_NAMES", FEW)
    answer = answered(report(tmp_path, 3 * FEW))
    names = {row["path"][-1] for row in answer["ranges"]}
    assert OTHER_NAMES in names
    assert f"part {chr(65 + (3 * FEW - 1) % 26)}{3 * FEW - 1}" in names
    assert answer["report"]["names_joined"] == 3 * FEW + 3 - FEW
    assert any(OTHER_NAMES in note for note in answer["report"]["notes"])


def test_a_report_of_few_names_joins_none(tmp_path):
    answer = answered(report(tmp_path, FEW))
    assert answer["report"]["names_joined"] == 0
    assert not [row for row in answer["ranges"] if OTHER_NAMES in row["path"]]


def test_nsys_rows_are_refused_where_names_are_joined(tmp_path, monkeypatch):
    monkeypatch.setattr(many_names, "MOST_NAMES", FEW)
    status, out, err = checks.said(kernels, str(report(tmp_path, 3 * FEW)), "--like-nsys")
    assert (status, out) == (1, "")
    assert "43 names of this report are joined" in err


@pytest.mark.parametrize("row", [*PHASE_NAMES, *STEP_NAMES, *WARM_UP_NAMES], ids=lambda row: row.example)
def test_names_of_phases_and_steps_are_kept_first(row):
    assert many_names.MAY_MEAN.search(row.example)


@pytest.mark.slow
@pytest.mark.parametrize("build_many", [hostile.distinct_kernels, hostile.distinct_ranges])
def test_a_million_names_take_little_more_than_a_hundred_thousand(tmp_path, build_many):
    said = hostile.run(build_many(tmp_path, 1_000_000), "--format", "json", memory=1 << 30)
    assert (said.status, said.err) == (0, "")
    answer = json.loads(said.out)
    assert answer["report"]["names_joined"] > 1_000_000 - MOST_NAMES
    assert len(answer["kernels"]) + len(answer["ranges"]) <= MOST_NAMES + 10
