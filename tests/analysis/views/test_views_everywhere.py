"""Every view of every report: 80 columns are enough, machines get all of it, and nothing breaks a view."""

import csv
import io
import json
import re
import textwrap
from collections import namedtuple

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.document import WHOLE, Detail
from nvtx_kernels.analysis.errors import AnalysisError
from nvtx_kernels.analysis.measures.spans import Extents
from nvtx_kernels.analysis.measures.steps import steps_of
from nvtx_kernels.analysis.opened import Opened
from nvtx_kernels.analysis.presenters import PRESENTERS, presenter
from nvtx_kernels.analysis.summary.totals import accounted, summarize
from nvtx_kernels.analysis.support.text import cells
from nvtx_kernels.analysis.trace import KERNEL, NO_CATEGORY
from nvtx_kernels.analysis.views.like_nsys import like_nsys
from nvtx_kernels.analysis.views.overview import overview
from nvtx_kernels.analysis.views.registry import VIEWS, subject_of, viewer
from nvtx_kernels.analysis.views.rows import in_tree
from nvtx_kernels.analysis.vocabulary import PHASES, phase_of

from tests.analysis.making.answering import answering
from tests.analysis.making.building import Range, build, launched
from tests.analysis.making.generated import chaos, programs
from tests.analysis.making.plain_sql import OURS
from tests.analysis.making.subjects import REPORTS, attributed, screen, subject, summarized, viewed
from tests.analysis.making.traces import trace_of

BRIEF = settings(max_examples=settings.default.max_examples // 3)
WORKING = [path for path in REPORTS if not path.name.startswith(("IhorAtlanov", "YoonKyonghwan"))]
Sized = namedtuple("Sized", "path size")
every_view = pytest.mark.parametrize("name", VIEWS)
every_report = pytest.mark.parametrize("path", WORKING, ids=lambda path: path.stem[:24])


@every_view
@every_report
def test_no_line_of_a_view_is_wider_than_80_columns(path, name):
    for per_step in (False, True) if summarized(path).steps else (False,):
        shown = said(name, subject(path, per_step=per_step, include_warm_up=True))
        assert max(map(cells, shown.splitlines())) <= 80


def said(name, asked):
    """Return what a view shows, or the sentence with which it refuses."""
    try:
        return screen(viewer(name).view(asked))
    except AnalysisError as error:
        return "\n".join(textwrap.wrap(str(error), 80))


@every_view
def test_a_view_of_a_program_and_of_people_says_nothing_without_a_number(name):
    document = viewed(name, answering(name))
    assert all(table.rows and table.title and table.columns for table in document.tables)
    assert all(
        re.search(r"\b(over|per|total|each)\b|mean", cells_text(table).lower()) for table in document.tables
    )


def cells_text(table):
    return f"{table.title} {' '.join(column.heading for column in table.columns)} {table.caption}"


SCOPE = re.compile(r"per step|over \d+ steps?|total")


@every_view
@pytest.mark.parametrize("per_step", [False, True])
def test_what_a_view_shows_and_its_accounting_are_of_the_same(name, per_step):
    document = viewed(name, answering(name), per_step=per_step)
    of = [SCOPE.findall(table.title) for table in document.tables]
    expected = "per step" if per_step or name in ("steps", "kernels", "fix", "idle") else "over 2 steps"
    assert {scope for found in of for scope in found} == {expected}
    assert not document.accounting or SCOPE.findall(document.accounting[0]) == [expected]


def test_work_in_no_step_is_not_called_that_of_the_steps(tmp_path):
    ranges = [Range("step", 0, 90), Range("forward", 5, 50), Range("validation", 100, 190)]
    path = build(tmp_path, ranges=ranges, **launched((10, 20), (110, 140), (200, 210)))
    whole, per_step, of_phase = (
        overview(subject(path, **asked).report, with_kernels=True)
        for asked in ({}, {"per_step": True}, {"phase": "forward"})
    )
    whole_phases, phases_of_phase = (
        next(each for each in document.tables if each.key == "phases") for document in (whole, of_phase)
    )
    assert SCOPE.findall(whole_phases.title) == ["total"]
    assert whole.accounting[:2] == (
        "66.7% of the 30 ns of GPU work is placed: 20 ns directly. 10 ns (33.3%) is outside all ranges.",
        "20 ns (66.7%) of the GPU work is in no measured step.",
    )
    assert per_step.accounting == ("Left out: 20 ns in no step: set-up or evaluation (--totals counts it).",)
    assert SCOPE.findall(phases_of_phase.title) == ["over 1 step"]


def test_launches_in_no_step_are_not_explained_per_step(tmp_path):
    ranges = [Range("step", 0, 90), Range("validation", 100, 190)]
    path = build(tmp_path, ranges=ranges, **launched((10, 20), (110, 140)))
    document = viewed("kernels", path)
    assert document.tables[-1].title == "kernel: 2 launches in no phase, total, {unit}"


@every_view
@pytest.mark.parametrize("format_", [name for name in PRESENTERS if name not in ("table", "parquet")])
def test_every_view_is_drawn_in_every_format(name, format_):
    text = presenter(format_).present(viewed(name, answering(name), top=3))
    assert text.endswith("\n")
    assert not re.search(r"object at 0x|\bnp\.", text)


@every_view
def test_csv_and_json_hold_the_same_numbers(name):
    document = viewed(name, answering(name), whole=True, every_index=True, full_names=True, top=10**9)
    tables = json.loads(presenter("json").present(document))["tables"]
    in_csv = list(csv.DictReader(io.StringIO(presenter("csv").present(document))))
    assert sum(len(found["rows"]) for found in tables) == len(in_csv)
    ours = ({"table": found["key"], **row} for found in tables for row in found["rows"])
    for row, theirs in zip(ours, in_csv, strict=True):
        assert {key: "" if value is None else str(value) for key, value in row.items()} == {
            key: theirs[key] for key in row
        }


@pytest.mark.parametrize("name", [name for name, view in VIEWS.items() if view.takes_range])
def test_a_view_that_takes_a_range_shows_less_of_one(name):
    asked = "forward" if name == "communication" else "computing softmax"
    whole, part = (viewed(name, answering(name), within=within) for within in (None, asked))
    assert screen(whole) != screen(part)


@pytest.mark.parametrize("strategy", [chaos(), programs], ids=["chaos", "programs"])
def test_generated_reports_are_answered_or_refused(strategy):
    @BRIEF
    @given(strategy, st.booleans())
    def answered_or_refused(rows, include_warm_up):
        trace = trace_of(rows)
        attribution = attribute(trace)
        if not len(trace.work):
            return
        opened = Opened(*accounted(attribution, include_warm_up=include_warm_up))
        for name in VIEWS:
            note(name)
            assert max(map(cells, said(name, subject_of(name, opened)).splitlines())) <= 80

    answered_or_refused()


def names_of(attribution, node):
    """Return the names of a node's path but for modules', which open no phase by their names."""
    names = []
    while node >= 0:
        at = attribution.forest.range[node]
        if attribution.ranges.category[at] == NO_CATEGORY:
            names.append(attribution.trace.names[attribution.ranges.name_id[at]])
        node = attribution.forest.parent[node]
    return names[::-1]


def phases_of(path):
    """Return the phases that the ranges of a path open; a forward below a backward opens none."""
    phases = list(filter(None, map(phase_of, path)))
    return {phase for n, phase in enumerate(phases) if phase != "forward" or "backward" not in phases[:n]}


@BRIEF
@given(programs, st.booleans())
def test_spans_have_the_kernels_of_all_ranges_that_open_the_phase(rows, include_warm_up):
    attribution = attribute(trace_of(rows))
    extents, work = Extents(attribution, include_warm_up=include_warm_up), attribution.trace.work
    spans, kernel_ns = extents.spans(apart=False), work.duration_ns * (work.kind == KERNEL)
    phases = [PHASES[phase] for phase in attribution.phase]
    inside = [phases_of(names_of(attribution, node)) for node in attribution.node]
    # A forward that is backward by its thread or its modules' ranges is none.
    inside = [
        found if "backward" in found or phase != "backward" else found - {"forward"}
        for found, phase in zip(inside, phases, strict=True)
    ]
    for number, phase in enumerate(PHASES[:3]):
        # Work in no phase's range counts where its thread or its modules say the phase.
        expected = sum(kernel_ns[n] for n in extents.kept if phase in (inside[n] or {phases[n]}))
        assert spans.kernel_ns[spans.kind == number].sum() == expected


@BRIEF
@given(programs, st.booleans())
def test_steps_and_limits_conserve_time_and_kernels(rows, include_warm_up):
    attribution = attribute(trace_of(rows))
    if not len(attribution.trace.work):
        return
    report = summarize(attribution, include_warm_up=include_warm_up)
    steps = steps_of(attribution, include_warm_up=include_warm_up)
    dropped = report.account.dropped if report.account.has_steps else len(steps)
    assert len(steps) - dropped >= report.steps
    assert sum(step.kernels for step in steps) <= sum(row.kernels for row in report.phases)
    assert all(0 <= row.waiting_ns <= row.span_ns - row.busy_ns for row in report.busy)


def test_one_phase_alone_is_not_shown_twice():
    report = subject(OURS, phase="forward").report
    phases, _ = overview(report, with_kernels=True).tables
    (kernels,) = overview(report, by="kernel").tables
    assert [column.heading for column in phases.columns] == ["category", "forward", "%"]
    assert phases.caption == "% is of the phase's kernel time."
    assert "phase" not in [column.key for column in kernels.columns]
    assert kernels.title.startswith("Kernels in forward by total time")


def headings(document):
    return {(table.key, column.key): column.heading for table in document.tables for column in table.columns}


def test_times_of_kernels_and_counts_of_launches_are_called_so():
    report = subject(OURS).report
    shown = [
        overview(report),
        overview(report, with_kernels=True),
        *(overview(report, by=by) for by in ("kernel", "category", "range")),
    ]
    shown += [viewed(name, answering(name)) for name in ("agreement", "attention", "steps")]
    assert "kernels" not in {heading for document in shown for heading in headings(document).values()}
    assert headings(like_nsys(attributed(OURS).trace))["nvtx_kern_sum", "count"] == "launches"


def test_a_category_that_shows_no_share_in_any_phase_has_no_row():
    phases = {each.key: each for each in overview(subject(OURS).report, with_kernels=True).tables}["phases"]
    assert [row.values[0] for row in phases.rows] == [
        "GEMM", "all else", "elementwise", "copy", "reduction", "index", "sum", "launches", "GEMM launches",
    ]  # fmt: skip
    assert "split" not in phases.caption


@pytest.mark.parametrize("top", [1, 4, 60])
@pytest.mark.parametrize("view", ["range", "steps"])
def test_a_tree_has_its_longest_ranges_whole_and_says_how_many_more_there_are(view, top):
    report = subject(OURS).report
    whole, part = (
        viewed("steps", OURS, top=most).tables[1] if view == "steps"
        else overview(report, Detail(most), by="range").tables[0]
        for most in (10**9, top)
    )  # fmt: skip
    assert [row for row in whole.rows if row in part.rows] == list(part.rows)
    assert min(top, len(whole.rows)) <= len(part.rows) <= top + len(("measure", "step", *PHASES))
    assert {"forward", "backward", "optimizer"} <= {row.values[0] for row in part.rows}
    rest = len(whole.rows) - len(part.rows)
    said = f" {rest} more ranges: --top {len(whole.rows)}." if rest > 0 else ""
    assert part.caption == whole.caption + said


def test_ranges_around_a_long_one_are_shown_with_it():
    rows = [Sized(("a",), 9), Sized(("a", "b"), 1), Sized(("a", "b", "c"), 8), Sized(("d",), 2)]
    assert in_tree(rows, "size", 2) == rows[:3]
    assert in_tree(rows, "size", 3) == rows


def test_no_phase_is_left_out_of_a_tree():
    sizes = [(("step",), 9), (("step", "forward"), 8), (("step", "forward", "forward 2"), 3), (("optimizer",), 1)]
    rows = [Sized(*each) for each in sizes]
    assert in_tree(rows, "size", 1) == [rows[0], rows[1], rows[3]]


def test_what_more_there_is_is_counted_as_it_is_shown():
    both, one = (overview(subject(OURS, phase=phase).report, by="kernel") for phase in (None, "forward"))
    assert "57 more rows: --top 67." in both.tables[0].caption
    assert re.search(r"\d+ more kernels: --top", one.tables[0].caption)


def test_a_report_without_phases_does_not_speak_of_one(tmp_path):
    report = subject(build(tmp_path, **launched((10, 20)))).report
    text = " ".join(
        table.title + table.caption for by in (None, "kernel") for table in overview(report, by=by).tables
    )
    assert "other" not in text
    assert "% is of all kernel time." in text


def test_what_is_not_there_is_a_sentence_and_no_empty_table(tmp_path):
    none = build(tmp_path, **launched((10, 20)))
    document = overview(subject(none).report, by="range")
    assert document.tables == ()
    assert document.notes[0] == "No range contains any of the work, so there is nothing to rank."
    counted = like_nsys(attributed(none).trace)
    assert counted.tables == ()
    assert "no NVTX push/pop ranges" in counted.notes[0]
    assert [len(table.rows) for table in like_nsys(attributed(none).trace, WHOLE).tables] == [0, 0]


@pytest.mark.parametrize("by", [None, "kernel", "category"])
def test_copies_alone_are_no_kernels_to_rank(tmp_path, by):
    copies = build(tmp_path, ranges=[Range("forward", 0, 90)], **launched((10, 20), kind="memcpy", name=1))
    document = overview(subject(copies).report, by=by)
    assert (document.tables, document.notes[0][:21]) == ((), "The selection contain")


def test_ranges_outside_the_steps_leave_no_empty_table(tmp_path):
    ranges = [Range("step", 0, 90), Range("validation", 100, 190)]
    report = build(tmp_path, ranges=ranges, **launched((10, 20), (110, 140)))
    document = viewed("steps", report, within="validation")
    assert [table.key for table in document.tables] == ["steps"]
    assert document.notes[0].startswith("No requested range contains work of a measured step")
