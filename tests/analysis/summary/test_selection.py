"""Parts of a report: phases, ranges that a pattern matches, and paths whose indices are collapsed."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvtx_kernels.analysis.errors import ReportError
from nvtx_kernels.analysis.report import RangeRow, in_tree_order
from nvtx_kernels.analysis.summary.selection import _module_matcher, of_phases, of_ranges, path_matcher, renamed
from nvtx_kernels.analysis.vocabulary.modules import ModuleName

from tests.analysis.making.made_reports import REPORTS, kernel_total, report_of, row

PATHS = (
    ("step", "forward", "layer 0", "attention", "computing softmax"),
    ("step", "forward", "layer 1", "attention", "computing softmax"),
    ("step", "forward", "layer 1", "ffn"),
    ("step", "backward", "layer 0", "attention", "Computing Softmax"),
    ("step", "lm head"),
)
REPORT = report_of(*(row(f"kernel {n}", 10**n, *path) for n, path in enumerate(PATHS)))


def kept(pattern):
    """Return the numbers of the paths whose kernels a pattern keeps."""
    return [int(found.kernel.split()[1]) for found in of_ranges(REPORT, pattern).kernels]


@pytest.mark.parametrize(
    ("pattern", "numbers"),
    [
        ("computing softmax", [0, 1, 3]),
        ("SOFTMAX", [0, 1, 3]),
        ("layer 1", [1, 2]),
        ("layer ?", [0, 1, 2, 3]),
        ("forward > attention", [0, 1]),
        ("forward>computing*", [0, 1]),
        ("layer 0 > softmax", [0, 3]),
        ("*head", [4]),
        ("lm?head", [4]),
        ("[lf]*", [0, 1, 2, 3, 4]),
        ("step", [0, 1, 2, 3, 4]),
    ],
)
def test_a_pattern_keeps_the_ranges_of_its_name_and_what_is_inside(pattern, numbers):
    assert kept(pattern) == numbers


@pytest.mark.parametrize("pattern", ["softmax > attention", "head*", "forward > forward", "layer 1 > layer 1"])
def test_order_and_whole_names_of_wildcards_matter(pattern):
    with pytest.raises(ReportError, match="No range matches"):
        kept(pattern)


def module_naming(path):
    """Name each range as the module of a model whose path it is."""
    names = [ModuleName(name) for name in path]
    for name in names:
        name.dotted = str(name)
    return tuple(names)


def by_plain_pattern(pattern, dotted):
    """Return whether a dotted path holds a pattern, by an expression that looks everywhere."""
    inner = "".join({"*": "[^.]*", "?": "[^.]"}.get(character, re.escape(character)) for character in pattern)
    end = "$" if set("*?") & set(pattern) else r"(?:\.|$)"
    return bool(re.search(rf"(?:^|\.){inner}{end}", dotted))


@given(st.text("ab.?*", max_size=7), st.text("ab.", max_size=9))
def test_a_pattern_of_modules_finds_what_looking_everywhere_finds(pattern, dotted):
    found = _module_matcher(pattern)(dotted)
    assert found == by_plain_pattern(pattern, dotted)


@pytest.mark.parametrize("pattern", ["*a" * 40 + "b", "?*" * 40 + "b", "[a*" * 40])
def test_no_pattern_runs_away(pattern):
    matches = path_matcher(pattern, module_naming)
    assert not matches(("a" * 5000, "a." * 2500))


def test_a_pattern_that_matches_nothing_names_the_ranges_there_are():
    with pytest.raises(ReportError, match=r"Ranges: step, forward, layer \*, attention, computing softmax"):
        of_ranges(REPORT, "conv")


def test_totals_and_phases_stay_those_of_the_whole_report():
    part = of_ranges(REPORT, "ffn")
    assert (part.totals, part.phases) == (REPORT.totals, REPORT.phases)
    assert {found.path[-1] for found in part.ranges} == {"ffn"}


def test_a_phase_keeps_its_kernels_ranges_and_row():
    part = of_phases(REPORT, "backward")
    assert [found.kernel for found in part.kernels] == ["kernel 3"]
    assert [found.phase for found in part.phases] == ["backward"]


def test_an_absent_phase_is_refused_with_those_that_are_there():
    with pytest.raises(ReportError, match=r"no optimizer work\. Its phases: forward, backward, other"):
        of_phases(REPORT, "optimizer")


@given(REPORTS)
def test_collapsing_conserves_time_launches_and_rows_of_each_phase(report):
    merged = renamed(report)
    for phase in ("forward", "backward", "other"):
        before, after = ([found for found in r.kernels if found.phase == phase] for r in (report, merged))
        assert kernel_total(before) == kernel_total(after)
        assert sum(found.count for found in before) == sum(found.count for found in after)
    assert len({(r.path, r.phase, r.kind, r.kernel) for r in merged.kernels}) == len(merged.kernels)


def test_collapsed_rows_add_up_but_for_extremes_and_what_is_absent():
    one = RangeRow(("layer 0",), "forward", 2, 3, 1, 10, 30, 11, 31, 7, 5)
    report = replace(REPORT, ranges=(one, replace(one, path=("layer 1",), span_ns=None)), kernels=(
        replace(row("k", 10, "layer 0"), min_ns=2), replace(row("k", 30, "layer 1"), min_ns=5),
    ))  # fmt: skip
    merged = renamed(report)
    assert merged.ranges == (RangeRow(("layer *",), "forward", 4, 6, 2, 20, 60, 22, 62, None, 10),)
    assert [(found.total_ns, found.min_ns, found.max_ns) for found in merged.kernels] == [(40, 2, 30)]


def test_a_range_without_work_takes_no_span_from_those_that_have_one():
    one = RangeRow(("layer 0",), "forward", 1, 3, 1, 10, 30, 11, 31, 7, 5)
    empty = RangeRow(("layer 1",), "forward", 1, 0, 0, 0, 0, 0, 0, None, 4)
    for ranges in ((one, empty), (empty, one)):
        (merged,) = renamed(replace(REPORT, ranges=ranges)).ranges
        assert (merged.instances, merged.span_ns, merged.cpu_ns) == (2, 7, 9)


def test_siblings_are_in_the_order_of_the_kernel_time_that_is_shown():
    sizes = {("a",): (1, 9), ("b",): (3, 3), ("b", "y"): (1, 1), ("b", "x"): (2, 2), ("c",): (1, 8)}
    rows = [
        RangeRow(path, "other", 1, 0, 0, 0, kernels, 0, work, None, None)
        for path, (kernels, work) in sizes.items()
    ]
    assert ["/".join(row.path) for row in in_tree_order(rows)] == ["b", "b/x", "b/y", "a", "c"]
