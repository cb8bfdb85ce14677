"""The rows of a page: all work of its report, added up exactly whatever is cut, and the work of each change."""

from collections import Counter

import numpy as np
import pytest
from nvtx_kernels.analysis.opened import opened
from nvtx_kernels.analysis.page import work_rows
from nvtx_kernels.analysis.page.work_rows import JOINED, PathTree, packed
from nvtx_kernels.analysis.views.rows import kernels_of

from tests.analysis.making.building import Launch, Range, Work, build
from tests.analysis.making.bundled import readable
from tests.analysis.making.made_reports import two_steps
from tests.analysis.making.shown_page import drawn, numbers, rows_of
from tests.analysis.making.subjects import DATA, SHARED
from tests.analysis.making.subjects import opened as opened_once

REAL = sorted([*DATA.glob("*.sqlite"), *SHARED.glob("h200/*.sqlite"), *SHARED.glob("corpus/[!IY]*.sqlite")])


def rows(report):
    """Return a report's rows with the tree of their paths."""
    tree = PathTree(report.attribution)
    return work_rows.work_rows(report.counted, tree, include_warm_up=False)


@pytest.mark.parametrize("values", [[0], [255, 1], [256], [2**31, 7], [2**40, 3], []])
def test_packed_numbers_are_read_back(values):
    assert numbers(packed(np.array(values, np.int64))).tolist() == values


def test_rows_are_the_kernels_of_each_range_with_their_parts_of_a_step(tmp_path):
    found = rows_of(drawn(two_steps(tmp_path / "r.sqlite"))["data"])
    assert [(kernel, path, category, part, ns) for kernel, path, _, category, part, ns, _ in found] == [
        ("ampere_sgemm_32x128_nt", "step > backward", "GEMM", "compute backward", 600_000),
        ("ampere_sgemm_128x64_nn", "step > forward > layer 1", "GEMM", "compute forward", 420_000),
        ("ampere_sgemm_128x64_nn", "step > forward > layer 0", "GEMM", "compute forward", 400_000),
        ("softmax_warp_forward", "step > forward > layer 0 > softmax", "softmax", "compute forward", 80_000),
    ]  # fmt: skip


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name[:40])
def test_rows_of_real_reports_add_up_to_their_work_by_phase(path):
    report = opened_once(path)
    whole = report.whole.counted or report.whole if report.per_step else report.whole
    expected, kernels = Counter(), Counter()
    for row in whole.kernels:
        expected[row.phase.replace("other", "no phase")] += row.total_ns
    for row in kernels_of(whole):
        kernels[row.phase.replace("other", "no phase")] += row.total_ns
    found, computing = Counter(), Counter()
    for _, _, phase, _, part, ns, _ in rows_of(drawn(path)["data"]):
        found[phase] += ns
        computing[phase] += ns * (not part.startswith("copy"))
    assert found == expected
    graphs_ns = sum(row.total_ns for row in whole.kernels if row.kind == "graph")
    assert computing.total() == kernels.total() + graphs_ns


def test_rows_beyond_the_most_are_added_up(tmp_path, monkeypatch):
    monkeypatch.setattr(work_rows, "MAX_ROWS", 3)
    names = [f"k{number}" for number in range(9)]
    launches = [Launch(n, 10 * n, 10 * n + 5) for n in range(9)]
    work = [Work(n, 1000 + 100 * n, 1050 + 100 * n + n, name) for n, name in enumerate(names)]
    report = opened(build(tmp_path, ranges=[Range("step", 0, 900)], launches=launches, work=work))
    found = rows(report)
    assert numbers(found.columns["ns"]).tolist() == [58, 57, 56, 55 + 54 + 53 + 52 + 51 + 50]
    assert found.columns["kernels"][-1] == ("6 more", "")
    assert found.of_work.tolist() == [3, 3, 3, 3, 3, 3, 2, 1, 0]


def test_each_row_has_its_time_in_each_step(tmp_path):
    steps = drawn(two_steps(tmp_path / "r.sqlite", slower=60))["data"]["rows"]["steps"]
    assert (steps["numbers"], steps["rows"]) == ([0, 1], 4)
    assert numbers(steps["ns"]).tolist()[:2] == [300_000, 360_000]


@pytest.mark.parametrize(
    "name", ["loader.sqlite.xz", "small.sqlite.xz", "embed.record.sqlite.xz", "images.record.sqlite.xz"]
)
def test_a_change_selects_the_very_work_that_it_concerns(tmp_path, name):
    packed_file = SHARED / "gains" / name
    if not packed_file.exists():
        pytest.skip(f"{packed_file} is absent")
    report = opened(readable(packed_file, tmp_path))
    found = rows(report)
    for fix in report.fixes.fixes:
        selected = set(found.of_fix(fix))
        assert len(fix.work) == 0 or selected
        assert set(np.unique(found.of_work[fix.work])) - {-1} == selected
    everything = set(range(len(numbers(found.columns["ns"]))))
    assert all(set(found.of_fix(fix)) < everything for fix in report.fixes.fixes), (
        "no change lights up all of a step"
    )


def test_indices_are_kept_apart_and_known_together(tmp_path):
    report = opened(two_steps(tmp_path / "r.sqlite"))
    tree = PathTree(report.attribution)
    first, second = (tree.number(("step", "forward", f"layer {n}")) for n in (0, 1))
    assert first != second
    assert tree.joined[first] == tree.joined[second] == tree.of_names(("step", "forward", "layer *"))
    assert not tree.name[first].startswith(JOINED)
