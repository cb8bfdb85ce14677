"""CUDA graphs launched whole: their time is ranked, beside the kernels of which the report hides theirs."""

from dataclasses import replace

import pytest
from nvtx_kernels.analysis.opened import opened
from nvtx_kernels.analysis.page.contents import contents
from nvtx_kernels.analysis.views import graphs
from nvtx_kernels.analysis.views.overview import overview

from tests.analysis.making.building import Range, Work, build, launched
from tests.analysis.making.subjects import by, subject, table, viewed

RANGES = [Range("step", 0, 900), Range("forward", 10, 800)]


def titled(document, key):
    """Return a table of a document."""
    return next(each for each in document.tables if each.key == key)


@pytest.fixture
def report(tmp_path):
    """Return a report of a graph of 500 ns and a copying kernel of 10 ns, both launched in forward."""
    rows = launched((20, 30), (40, 50), name="void at::native::direct_copy_kernel_cuda(int)")
    rows["work"][1] = Work(2, 100, 600, kind="graph")
    return build(tmp_path, ranges=RANGES, **rows)


def test_graphs_stand_beside_the_kernels_of_their_phase(report):
    document = overview(subject(report).report, with_kernels=True)
    rows = by(document, "phases", "category")
    assert [rows[name]["forward_ns"] for name in ("sum", "CUDA graphs", "launches")] == [10, 500, 1]
    assert rows["sum"]["forward_share"] == 1
    assert "without CUDA graphs launched whole" in titled(document, "phases").caption


def test_ranges_rank_graphs_among_their_kernels(report):
    document = overview(subject(report).report, with_kernels=True)
    rows = [(row["name"], row["kernel_ns"], row["count"]) for row in table(document, "ranges")]
    assert rows[:2] == [("forward", 510, 2), ("[CUDA graph]", 500, 1)]
    assert "Slowest ranges, own launches only" in titled(document, "ranges").title


def test_phase_that_holds_graphs_alone_is_shown(tmp_path):
    path = build(tmp_path, ranges=RANGES, **launched((20, 30), lasts=500, kind="graph"))
    document = overview(subject(path).report, with_kernels=True)
    rows = by(document, "phases", "category")
    assert (rows["CUDA graphs"]["forward_ns"], rows["launches"]["forward_ns"]) == (500, 0)


def test_report_without_graphs_speaks_of_none(tmp_path):
    document = overview(subject(build(tmp_path, ranges=RANGES, **launched((20, 30)))).report, with_kernels=True)
    assert "CUDA graphs" not in by(document, "phases", "category")
    assert not any("graph" in each.title + each.caption for each in document.tables)


def test_categories_have_a_row_of_graphs_beside_them(report):
    document = overview(subject(report).report, by="category")
    rows = by(document, "categories", "name")
    assert [(rows[name]["kernel_ns"], rows[name]["count"]) for name in rows] == [(10, 1), (500, 1)]
    assert (rows["copy"]["share"], rows["CUDA graphs"]["share"]) == (1, "")
    assert "sum: without CUDA graphs" in document.tables[0].caption


def test_kernels_and_graphs_are_ranked_together(report):
    (ranked,) = overview(subject(report).report, by="kernel").tables
    assert [row.values[:3] for row in ranked.rows] == [
        ("[CUDA graph]", "CUDA graph", 500), ("direct_copy_kernel_cuda", "copy", 10),
    ]  # fmt: skip
    assert "Kernels and CUDA graphs in forward by total time" in ranked.title


def test_the_tree_of_ranges_counts_graphs_among_their_kernels(report):
    document = overview(subject(report).report, by="range")
    rows = by(document, "ranges", "range")
    assert {name: (row["inclusive_ns"], row["self_ns"], row["kernels"]) for name, row in rows.items()} == {
        "step": (510, 0, 2),
        "forward": (510, 510, 2),
    }
    assert document.tables[0].columns[1].heading == "time"
    assert "all kernels and CUDA graphs inside" in document.tables[0].title


def test_steps_count_graphs_among_their_kernels(report):
    document = viewed("steps", report)
    (step, _), found = table(document, "steps"), by(document, "ranges", "range")
    assert (step["compute_ns"], step["kernels"], found["forward"]["median_ns"]) == (510, 2, 510)
    assert "kernels and CUDA graphs" in titled(document, "ranges").title


def test_a_program_gets_graphs_of_steps_apart(report):
    rows = table(viewed("steps", report, whole=True), "steps")
    assert [(row["level"], row["kernel_ns"], row["graph_ns"]) for row in rows] == [
        ("step", 10, 500), ("phase", 10, 500), ("range", 10, 500), ("range", 10, 500),
    ]  # fmt: skip


def test_graphs_inside_a_path_of_two_phases_are_counted_once(report):
    one = subject(report).report
    doubled = replace(one, ranges=(*one.ranges, replace(one.ranges[0], phase="forward", inclusive_ns=0)))
    times = [(row.path, row.phase, row.inclusive_ns) for row in graphs.counted(doubled).ranges]
    assert sorted(times) == [
        (("step",), "forward", 500), (("step",), "other", 10), (("step", "forward"), "forward", 510),
    ]  # fmt: skip


def test_a_page_shows_graphs_among_the_kernels(report):
    (page,) = contents([opened(report)]).reports
    assert page["phases"]["categories"] == ["CUDA graph", "copy"]
    assert page["icicles"]["together"]["ns"][0] == page["kernels"]["total_ns"] == 510
    assert page["steps"]["ranges"][0]["kernel_ns"] == [510]
    assert page["facts"]["measured"] == "Kernel and CUDA graph time"
    assert page["unit"]["name"] == "ns"
