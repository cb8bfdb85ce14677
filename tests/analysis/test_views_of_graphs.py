"""CUDA graphs launched whole: their time is ranked, beside the kernels of which the report hides theirs."""

import pytest

from analysis.views.overview import overview
from tests.analysis.building import Range, Work, build, launched
from tests.analysis.subjects import by, subject, table, viewed

RANGES = [Range("step", 0, 900), Range("forward", 10, 800)]


@pytest.fixture
def report(tmp_path):
    """Return a report of a graph of 500 ns and a copying kernel of 10 ns, both launched in forward."""
    rows = launched((20, 30), (40, 50), name="void at::native::direct_copy_kernel_cuda(int)")
    rows["work"][1] = Work(2, 100, 600, kind="graph")
    return build(tmp_path, ranges=RANGES, **rows)


def test_graphs_stand_beside_the_kernels_of_their_phase(report):
    document = viewed("phases", report)
    rows = by(document, "phases", "category")
    assert [rows[name]["forward_ns"] for name in ("sum", "CUDA graphs", "launches")] == [10, 500, 1]
    assert rows["sum"]["forward_share"] == 1
    assert "their kernels are not in the report" in document.tables[0].caption


def test_ranges_rank_graphs_among_their_kernels(report):
    document = overview(subject(report).report)
    rows = [(row["name"], row["kernel_ns"], row["count"]) for row in table(document, "ranges")]
    assert rows[:2] == [("forward", 510, 2), ("[CUDA graph]", 500, 1)]
    assert "kernels and CUDA graphs" in document.tables[1].title


def test_phase_that_holds_graphs_alone_is_shown(tmp_path):
    document = viewed("phases", build(tmp_path, ranges=RANGES, **launched((20, 30), lasts=500, kind="graph")))
    rows = by(document, "phases", "category")
    assert (rows["CUDA graphs"]["forward_ns"], rows["launches"]["forward_ns"]) == (500, 0)


def test_report_without_graphs_speaks_of_none(tmp_path):
    document = overview(subject(build(tmp_path, ranges=RANGES, **launched((20, 30)))).report)
    assert "CUDA graphs" not in by(document, "phases", "category")
    assert "graph" not in document.tables[0].caption + document.tables[1].title + document.tables[1].caption
