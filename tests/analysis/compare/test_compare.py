"""What differs between two reports: every axis sums to the whole, and rules say which change is too much."""

import io
import json
import re
import shlex
import sqlite3
from dataclasses import replace
from itertools import accumulate
from typing import get_args

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvtx_kernels.analysis import compare as command
from nvtx_kernels.analysis.compare.answer import answer
from nvtx_kernels.analysis.compare.changes import Axis, changes, compare, notes
from nvtx_kernels.analysis.compare.rules import judge, parse
from nvtx_kernels.analysis.compare.sides import Recording
from nvtx_kernels.analysis.compare.tables import compared
from nvtx_kernels.analysis.document import WHOLE, Detail
from nvtx_kernels.analysis.errors import ReportError, UsageError
from nvtx_kernels.analysis.presenters import as_csv, as_table

from tests.analysis.making.building import MAIN, Launch, Range, Work, build, launched, steps_lasting
from tests.analysis.making.bundled import DATA
from tests.analysis.making.made_reports import REPORTS, report_of, row
from tests.analysis.measures.test_recording import MEASURED, TIMED, recorded

DOCUMENTED = re.findall(
    r"^\$ nvtx-kernels compare (.*)\n((?:.*\n)*?)```", (DATA.parents[1] / "docs" / "compare.md").read_text(), re.M
)
AXES = get_args(Axis)

BEFORE = report_of(
    row("sgemm", 8_000_000, "step", "forward", "layer 0", count=4, category="gemm"),
    row("exp", 2_000_000, "step", "forward", "layer 0", "softmax", count=2),
    row("exp", 2_000_000, "step", "forward", "layer 1", "softmax", count=2),
    row("Softmax", 400_000, "step", "backward", category="softmax"),
    steps=2,
)
AFTER = report_of(
    row("sgemm", 4_000_000, "step", "forward", "layer 0", count=2, category="gemm"),
    row("exp", 1_200_000, "step", "forward", "layer 0", "softmax"),
    row("fused", 900_000, "step", "forward", "layer 1", "softmax"),
    row("Softmax", 200_000, "step", "backward", category="softmax"),
    steps=1,
)


@given(REPORTS, REPORTS, st.booleans(), st.booleans(), st.sampled_from([None, False]))
def test_differences_along_every_axis_sum_to_the_total_difference(a, b, all_work, collapse, per_step):
    comparison = compare(a, b, per_step=per_step, all_work=all_work)
    total = comparison.total
    for axis in AXES:
        rows = changes(comparison, axis, comparison.naming(every_index=not collapse))
        assert sum(row.a_ns for row in rows) == pytest.approx(total.a_ns)
        assert sum(row.delta_ns for row in rows) == pytest.approx(total.delta_ns, abs=1e-3)
        assert sum(row.b_count - row.a_count for row in rows) == pytest.approx(total.b_count - total.a_count)


@given(REPORTS, st.sampled_from(AXES))
def test_a_report_differs_from_itself_by_exactly_nothing(report, axis):
    rows = changes(compare(report, report, all_work=True), axis)
    assert [(row.delta_ns, row.change or 0, row.state) for row in rows] == [(0, 0, "")] * len(rows)


@given(REPORTS, REPORTS)
def test_what_is_cut_is_a_row_so_that_each_table_still_sums_up(a, b):
    for table in compared(compare(a, b, per_step=False), (), Detail(2)).tables:
        *parts, total = [row.values[1:4] for row in table.rows]
        assert [sum(column) for column in zip(*parts, strict=True)] in ([*total], [])


def test_what_only_one_report_has_is_new_or_gone():
    states = {row.key[0]: row.state for row in changes(compare(BEFORE, AFTER), "kernel")}
    assert states == {"sgemm": "", "exp": "", "fused": "new", "Softmax": ""}
    states = {row.key[-1]: row.state for row in changes(compare(BEFORE, report_of(steps=1)), "range")}
    assert set(states.values()) == {"gone"}


def test_each_report_is_divided_by_its_own_steps():
    total = compare(BEFORE, AFTER).total
    assert (total.a_ns, total.b_ns, total.a_count) == (6_200_000, 6_300_000, 4.5)


def test_a_range_has_what_is_launched_inside_it_beside_its_own():
    comparison = compare(BEFORE, AFTER)
    rows = {row.key: row for row in changes(comparison, "range", comparison.naming())}
    layer = rows["step", "forward", "layer *"]
    assert (layer.a_ns, layer.b_ns, layer.inside.a_ns, layer.inside.b_ns) == (4e6, 4e6, 6e6, 6.1e6)


@pytest.mark.parametrize(("axis", "name"), [("phase", "no phase"), ("category", "unknown")])
def test_work_in_no_phase_and_kernels_of_no_category_have_the_names_of_all_screens(axis, name):
    report = report_of(row("k", 40, "step", category="other"), steps=1)
    (table,) = compared(compare(report, report), by=axis).tables
    assert [each.values[0] for each in table.rows] == [name, "all kernels"]


@pytest.mark.parametrize(("grown", "shown"), [(1.5, 0.5), (10.9, 9.9), (11, "11×"), (36_432.3, "36,432×")])
def test_what_has_grown_manifold_is_a_multiple_with_a_legend(grown, shown):
    after = report_of(*(replace(row, total_ns=row.total_ns * grown) for row in BEFORE.kernels), steps=2)
    comparison = compare(BEFORE, after)
    verdicts = [judge(parse("total > +5%"), comparison)]
    for table in compared(comparison, verdicts).tables:
        place = [column.key for column in table.columns].index("change")
        assert table.rows[0].values[place] == (shown if isinstance(shown, str) else pytest.approx(shown))
        assert ("n×: B is n times A." in table.caption) == isinstance(shown, str)
    for table in compared(comparison, verdicts, WHOLE).tables:
        place = [column.key for column in table.columns].index("change")
        assert table.rows[0].values[place] == pytest.approx(grown - 1)


EXPECTED = """\
Cannot tell whether B is faster: kernels take 6.30 ms, was 6.20 ms per step,
+1.6%. Without steps on both sides, nothing says how much times vary.

A: r.sqlite · 2 steps → B: r.sqlite · 1 step. Launched per step: 4.50 → 5
kernels.

Kernel time inside each range, ms per step
range             A     B   B−A   % launches A B own B−A
step          6.200 6.300 0.100 1.6       4.50 5   0.000
  forward     6.000 6.100 0.100 1.7          4 4   0.000
    layer *   6.000 6.100 0.100 1.7          4 4   0.000
      softmax 2.000 2.100 0.100 5.0          2 2   0.100
  backward    0.200 0.200 0.000 0.0       0.50 1   0.000
all kernels   6.200 6.300 0.100 1.6       4.50 5   0.100
% is of A's time. own: in no inner range, which sums to the total.

Rules: 1 of 2 violated, ms per step
rule                A     B   B−A   % verdict
softmax > +5%   2.000 2.100 0.100 5.0 holds
  range softmax
total > +99us   6.200 6.300 0.100 1.6 VIOLATED
  all kernels
"""


def test_a_tree_and_its_rules_fit_eighty_columns():
    comparison = compare(BEFORE, AFTER)
    verdicts = [judge(parse(rule), comparison) for rule in ("softmax > +5%", "total > +99us")]
    document = replace(compared(comparison, verdicts, by="range"), accounting=())
    assert as_table.present(document, width=80) == EXPECTED


@pytest.mark.parametrize(
    ("text", "kind", "name", "operator", "amount", "relative"),
    [
        ("softmax > +5%", "", "softmax", ">", 0.05, True),
        ("total>=+0.3ms", "", "total", ">=", 300_000, False),
        ("phase:forward < -10 %", "phase", "forward", "<", -0.1, True),
        ("attention > softmax > +.5us", "", "attention > softmax", ">", 500, False),
        ("loss: mean > +5%", "", "loss: mean", ">", 0.05, True),
        ("kernel:void f<int>(T1) <= -1s", "kernel", "void f<int>(T1)", "<=", -1e9, False),
        ("category:gemm > +12.5µs", "category", "gemm", ">", 12_500, False),
    ],
)
def test_a_rule_says_what_may_change_by_how_much(text, kind, name, operator, amount, relative):
    rule = parse(text)
    assert (rule.kind, rule.name) == (kind, name)
    assert (rule.limit.operator, rule.limit.relative) == (operator, relative)
    assert rule.limit.amount == pytest.approx(amount)


@pytest.mark.parametrize(
    "text",
    ["", "softmax", "softmax > 5%", "softmax > +five%", "> +5%", "softmax = +5%", "softmax > +5", "a > +5% b"],
)
def test_what_is_no_rule_is_refused_with_the_form_of_one(text):
    with pytest.raises(UsageError, match="NAME > \\+5%"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "compared", "violated", "only_in"),
    [
        ("softmax > +5%", "range softmax", False, ""),
        ("softmax > +4.9%", "range softmax", True, ""),
        ("category:softmax > +0%", "category softmax", False, ""),
        ("forward >= +100us", "range forward", True, ""),
        ("phase:backward < -1%", "phase backward", False, ""),
        ("gemm < +0ms", "category gemm", False, ""),
        ("layer 1 > softmax < -9%", "range softmax", True, ""),
        ("layer [01] > +0.09ms", "range layer *", True, ""),
        ("kernel:fused > +1000%", "kernel fused", True, "B"),
        ("total > +0.2ms", "all kernels", False, ""),
    ],
)
def test_a_rule_is_held_against_the_part_it_names(text, compared, violated, only_in):
    verdict = judge(parse(text), compare(BEFORE, AFTER))
    assert (verdict.compared, verdict.violated, verdict.only_in) == (compared, violated, only_in)


@pytest.mark.parametrize("text", ["totally > +5%", "range:gemm > +5%", "phase:optimizer > +5%", "kernel:x > +5%"])
def test_a_rule_that_names_nothing_is_wrong_usage_and_lists_what_there_is(text):
    with pytest.raises(UsageError, match=r"cannot be checked. Phases: forward, backward. Categories: gemm, elem"):
        judge(parse(text), compare(BEFORE, AFTER))


def test_totals_are_compared_with_both_denominators_named_where_one_report_has_no_steps():
    comparison = compare(BEFORE, replace(AFTER, steps=0, counted_steps=0))
    assert comparison.total.a_ns == 12_400_000
    assert list(notes(comparison)) == [
        "Not per step: B has no measured step ranges. The totals are compared: A over 2 steps, B total."
    ]
    assert [table.title.split("{unit} ")[1] for table in compared(comparison).tables] == [
        "A over 2 steps, B total"
    ] * 2
    assert compared(compare(BEFORE, BEFORE, per_step=False)).tables[0].title.endswith("{unit} over 2 steps")
    with pytest.raises(ReportError, match="no common measure"):
        judge(parse("total > +5%"), comparison)
    with pytest.raises(ReportError, match="no measured step ranges"):
        compare(BEFORE, replace(AFTER, steps=0, counted_steps=0), per_step=True)


def test_hidden_kernels_are_told_of_and_no_rule_judges_around_them():
    graphs = report_of(row("[CUDA graph]", 5, "step", category="graph", kind="graph"), steps=1)
    comparison = compare(BEFORE, graphs)
    assert "without their kernels" in next(notes(comparison))
    with pytest.raises(ReportError, match="--all-work"):
        judge(parse("total > +5%"), comparison)
    assert judge(parse("total < -99%"), compare(BEFORE, graphs, all_work=True)).violated


def test_a_cpu_is_not_compared_with_a_gpu():
    with pytest.raises(ReportError, match="A counts GPU work and B CPU work"):
        compare(BEFORE, report_of(unit_of_work="CPU"))


def test_csv_has_every_row_in_full_and_no_formula():
    odd = report_of(row("=1+1", 7, "step", "layer 0"), steps=1)
    text = as_csv.present(compared(compare(BEFORE, odd), detail=WHOLE))
    tables = dict(list(pd.read_csv(io.StringIO(text)).groupby("table")))
    assert {key: len(table) for key, table in tables.items()} == {
        "by_phase": 3, "by_category": 3, "by_range": 8, "by_kernel": 4,
    }  # fmt: skip
    assert "'=1+1" in set(tables["by_kernel"]["kernel"])
    assert set(tables["by_range"]["range"]) >= {"step > forward > layer 1 > softmax", "step > layer 0"}


def reports(folder, *softmax_ends):
    """Write reports of one step whose softmax kernel takes from 20 ns to each of these ends."""
    for number, end in enumerate(softmax_ends):
        (at := folder / str(number)).mkdir()
        ranges = [Range("step", 0, 90), Range("forward", 1, 80), Range("softmax", 2, 70)]
        build(at, ranges=ranges, **launched((10, 19, MAIN), lasts=end - 20))
    return [str(folder / str(number) / "report.sqlite") for number in range(len(softmax_ends))]


@pytest.mark.parametrize(
    ("rules", "status"),
    [
        ([], 0),
        (["softmax > +10%", "total > +1ms"], 0),
        (["total > +1ms", "softmax > +9.9%"], 3),
        (["softmax > +1%", "sofmax > +1%"], 2),
        (["softmax more"], 2),
    ],
)
def test_exit_status_says_what_the_rules_said(tmp_path, capsys, rules, status):
    before, after = reports(tmp_path, 120, 130)
    arguments = [argument for rule in rules for argument in ("--fail-on", rule)]
    assert command.main([before, after, *arguments]) == status
    shown = capsys.readouterr()
    assert all(rule in shown.out for rule in rules) == (status != 2)
    assert shown.err.startswith({0: "", 2: "error: ", 3: "violated: softmax > +9.9%\n"}[status])
    assert bool(shown.err) == bool(status)


QUIET = (100, 101, 99, 100, 102, 98, 100, 101, 99)
SLOWER = (120, 121, 119, 120, 122, 118, 120, 121, 119)
#: Kernel time of A's and B's steps, the verdict, and the status of a rule that leaves out noise.
JUDGED = {
    "13 times slower, one slow step of A": ((*QUIET, 1300), (1300,) * 10, "differs", 3),
    "20% slower, an outlier a side": ((*QUIET, 300), (*SLOWER, 320), "differs", 3),
    "equal": (QUIET, QUIET, "same", 0),
    "1% slower": (QUIET, (101, 102, 100, 101, 103, 99, 101, 102, 100), "same", 0),
    "three steps apart": ((100, 100, 101, 102), (109, 108, 109, 110), "differs", 3),
    "three steps that overlap": ((100, 100, 101, 109), (109, 108, 109, 110), "not known", 1),
    "two steps, 12%": ((100, 110), (112, 122), "not known", 1),
    "two steps, 40%": ((100, 110), (140, 150), "differs", 3),
    "one step, 40%": ((100,), (140,), "differs", 3),
    "one step, 12%": ((100,), (112,), "not known", 1),
    "one slow step of A, which does not count": ((100, 100, 100, 100, 1300), (450, 460, 470, 480), "differs", 3),
    "16% slower, and too varied to know": ((70, 100, 130, 100), (90, 116, 140, 118), "not known", 1),
}


@pytest.mark.parametrize("case", JUDGED)
def test_b_differs_where_its_steps_rank_above_or_below_those_of_a(tmp_path, capsys, case):
    a, b, verdict, status = JUDGED[case]
    paths = made(tmp_path, a=a, b=b)
    assert command.main([*paths, "--fail-on", "total > +2% beyond spread"]) == status
    assert ("not known" in capsys.readouterr().err) == (status == 1)
    answer = answered(capsys, *paths)
    within = {"same": True, "differs": False, "not known": None}[verdict]
    own = [change for change in answer["by"]["range"] if change["a_ns"]]
    for change in (answer["total"], *answer["by"]["kernel"], *own):
        assert (change["verdict"], change["within_spread"]) == (verdict, within)


def made(folder, **sides):
    """Write a report for each name, whose steps have a kernel of these durations, ns; return their paths."""
    for name in sides:
        (folder / name).mkdir()
    return [str(steps_lasting(folder / name, *durations)) for name, durations in sides.items()]


def answered(capsys, *words):
    """Return the JSON of a comparison."""
    capsys.readouterr()
    assert command.main([*words, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("a", "b", "spreads"), [((90, 100, 110), (90, 112, 115), (10, 3)), ((100,), (140,), (None,) * 2)]
)
def test_the_spread_is_the_slowest_less_the_fastest_step(tmp_path, capsys, a, b, spreads):
    total = answered(capsys, *made(tmp_path, a=a, b=b))["total"]
    assert (total["a_spread_ns"], total["b_spread_ns"]) == spreads


def test_reports_of_one_name_are_told_apart_by_their_folders(tmp_path, capsys):
    before, after = reports(tmp_path, 120, 130)
    assert command.main([before, after, "--format", "markdown", "-o", str(tmp_path / "out.md")]) == 0
    assert "0/report.sqlite → B: " in (tmp_path / "out.md").read_text()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("missing", [0, 1])
def test_a_report_that_cannot_be_read_is_named(tmp_path, capsys, missing):
    paths = reports(tmp_path, 120, 130)
    paths[missing] = str(tmp_path / "none.sqlite")
    assert command.main(paths) == 1
    assert "none.sqlite does not exist" in capsys.readouterr().err


def test_json_of_real_reports_says_what_plain_sql_says(capsys):
    files = [DATA / "h200_train_fp32.sqlite", DATA / "h200_compiled.sqlite"]
    assert command.main([*map(str, files), "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    sql = "SELECT sum(end - start), count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL"
    (a_ns, a_count), (b_ns, b_count) = (sqlite3.connect(file).execute(sql).fetchone() for file in files)
    total = answer["total"]
    assert (total["a_ns"], total["a_count"]) == (a_ns / 2, a_count / 2)
    assert (total["b_ns"], total["b_count"]) == (b_ns, b_count)
    for axis in AXES:
        assert sum(row["delta_ns"] for row in answer["by"][axis]) == pytest.approx(b_ns - a_ns / 2)


@pytest.mark.parametrize(("arguments", "output"), DOCUMENTED, ids=[row[0][-40:] for row in DOCUMENTED])
def test_the_documented_commands_print_what_the_document_says(monkeypatch, capsys, arguments, output):
    monkeypatch.chdir(DATA.parents[1])
    monkeypatch.setenv("COLUMNS", "80")
    command.main(shlex.split(arguments))
    assert capsys.readouterr().out == output


@pytest.mark.parametrize(("options", "status"), [((), 3), (("--allow-missing",), 0)])
def test_a_rule_fails_where_its_range_is_gone_unless_that_is_allowed(tmp_path, capsys, options, status):
    whole = [Range("step", 0, 90), Range("softmax", 10, 50)]
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    a, b = (
        str(build(f, ranges=r, **launched((20, 30)))) for f, r in zip(folders, (whole, whole[:1]), strict=True)
    )
    assert command.main([a, b, "--fail-on", "softmax > +5%", *options]) == status
    said = capsys.readouterr()
    assert "range softmax, only in A" in " ".join(said.out.split())
    assert ("violated: softmax > +5% (only in A; --allow-missing accepts it)" in said.err) is (status == 3)


UNDIVIDED = report_of(
    row("sgemm", 4_000_000, "step", "forward", "layer 0", count=2, category="gemm"),
    row("exp", 1_200_000, "step", "forward", "layer 0"),
    row("fused", 900_000, "step", "forward", "layer 1"),
    row("Softmax", 200_000, "step", "backward", category="softmax"),
    steps=1,
)


@pytest.mark.parametrize(("a", "b", "finer"), [(AFTER, UNDIVIDED, "A"), (UNDIVIDED, AFTER, "B")])
def test_ranges_are_compared_where_both_reports_divide_alike_and_that_is_said(a, b, finer):
    comparison = compare(a, b)
    found = changes(comparison, "range")
    assert {change.key[-1] for change in found} == {"step", "forward", "layer 0", "layer 1", "backward"}
    assert {(change.state, change.delta_ns) for change in found} == {("", 0)}
    assert sum(note.startswith(f"Only {finer} has ranges inside layer *;") for note in notes(comparison)) == 1


ANSWERS = {
    "faster": (
        (20, 21, 19, 20, 22, 20),
        (10, 11, 10, 10, 11, 10),
        "B is 1.81 times as fast: a step takes 12.4 ns, was 22.4 ns while recorded (5 steps a side).",
    ),
    "equal": (QUIET, QUIET, "Equal within 2.0%: "),
    "few": ((100, 110), (100, 112), "Cannot tell whether B is faster: "),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_the_first_line_is_the_answer_by_step_time(tmp_path, capsys, case):
    a, b, begins = ANSWERS[case]
    paths = []
    for name, durations in (("a", a), ("b", b)):
        (tmp_path / name).mkdir()
        paths.append(str(in_a_row(tmp_path / name, durations)))
    answer = answered(capsys, *paths)["answer"]
    assert command.main(paths) == 0
    first = " ".join(capsys.readouterr().out.split("\n\n")[0].split())
    assert (first, answer["measure"]) == (answer["sentence"], "step_ns")
    assert first.startswith(begins)


def in_a_row(folder, durations):
    """Write a report of steps that follow one another, each a kernel that lasts so long."""
    starts = list(accumulate([0, *(lasts + 2 for lasts in durations)]))[: len(durations)]
    rows = list(zip(starts, durations, strict=True))
    work = [Work(n, at + 1, at + 1 + lasts) for n, (at, lasts) in enumerate(rows)]
    ranges = [Range("step", at, at + lasts + 1) for at, lasts in rows]
    return build(folder, ranges=ranges, launches=[Launch(n, at, at + 1) for n, at in enumerate(starts)], work=work)


def test_recordings_of_one_side_that_differ_are_no_difference(tmp_path, capsys):
    slower = [101, 102, 103, 101, 102]
    paths = made(tmp_path, a1=[100, 101, 102, 100, 101], a2=[110, 111, 112, 110, 111], b1=slower, b2=slower)
    apart = answered(capsys, paths[0], paths[1], "--to", *paths[2:])
    assert (apart["recordings"], apart["total"]["verdict"]) == ([2, 2], "not known")
    assert apart["total"]["a_ns"] == 106, "the first step of each has no begin and does not count"
    twice = answered(capsys, *paths[:1] * 2, "--to", paths[1], paths[1])
    assert twice["total"]["verdict"] == "differs"


@pytest.mark.parametrize("count", [1, 3])
def test_without_to_two_reports_are_compared(tmp_path, capsys, count):
    path = made(tmp_path, a=QUIET)[0]
    assert command.main([path] * count) == 2
    assert "compare A1 A2 --to B1 B2" in capsys.readouterr().err


def test_steps_of_two_kinds_are_compared_kind_by_kind(tmp_path, capsys):
    """The optimizer works every other step; B's is 3% faster, which the difference of the kinds hides."""
    paths = [str(of_two_kinds(tmp_path / name, *fast)) for name, fast in (("a", (100, 300)), ("b", (97, 291)))]
    answer = answered(capsys, *paths)
    kinds = [row for row in answer["steps"] if row["measure"] == "work_ns"]
    assert [(row["a_launches"], row["a_ns"], row["b_ns"]) for row in kinds] == [(1, 100, 97), (2, 400, 388)]
    assert {row["verdict"] for row in kinds} == {answer["total"]["verdict"]} == {"differs"}


def of_two_kinds(folder, forward, optimizer):
    """Write a report of 24 steps, of which every other one also has an optimizer's kernel."""
    folder.mkdir()
    starts = [1000 * number for number in range(24)]
    work = [Work(2 * n, at + 30, at + 30 + forward) for n, at in enumerate(starts)]
    work += [Work(2 * n + 1, at + 400, at + 400 + optimizer) for n, at in enumerate(starts) if n % 2]
    launches = [Launch(2 * n, at + 10, at + 20) for n, at in enumerate(starts)]
    launches += [Launch(2 * n + 1, at + 21, at + 29) for n, at in enumerate(starts) if n % 2]
    return build(folder, ranges=[Range("step", at, at + 900) for at in starts], launches=launches, work=work)


@pytest.mark.parametrize(("rule", "status"), [("step time > +5%", 3), ("step time > +30%", 0)])
def test_a_rule_can_be_of_the_step_time(tmp_path, capsys, rule, status):
    for name in "ab":
        (tmp_path / name).mkdir()
    a, b = (str(in_a_row(tmp_path / name, lasts)) for name, lasts in (("a", QUIET), ("b", SLOWER)))
    assert command.main([a, b, "--fail-on", rule]) == status
    assert ("step time" in capsys.readouterr().err) == (status == 3)


@pytest.mark.parametrize("of_b", ["known", "not known", "another limit"])
def test_step_times_are_without_recording_where_both_sides_know_them(tmp_path, capsys, of_b):
    paths = []
    for name, ms in (("a", 55), ("b", 44)):
        (tmp_path / name).mkdir()
        step_ns = [ms * 1_000_000 + 10_000 * n for n in range(5)]
        where = {"where": "before"} if (name, of_b) == ("b", "another limit") else {}
        mark = None if (name, of_b) == ("b", "not known") else {**TIMED, "step_ns": step_ns, **where}
        paths.append(str(recorded(tmp_path / name, mark, MEASURED)))
    found = answered(capsys, *paths)
    if of_b != "known":
        assert "60.0 ms, was 60.0 ms while recorded" in found["answer"]["sentence"]
        return
    said = (
        "B takes 20.0% less time: a step takes at most 44.0 ms, was 55.0 ms (5 steps a side, without recording)."
    )
    assert found["answer"]["sentence"].startswith(said)
    assert found["answer"]["b_ns"] == 44_020_000
    (of_step,) = (row for row in found["steps"] if row["measure"] == "step_ns")
    assert (of_step["a_steps"], of_step["b_steps"], of_step["verdict"]) == (5, 5, "differs")
    (note,) = (note for note in found["notes"] if "of steps without recording, 5 of A and 5 of B" in note)
    assert "where launches limit a step, it may take less" in note


@pytest.mark.parametrize("limited", ["a", "b"])
def test_an_upper_limit_is_not_compared_with_an_exact_step(tmp_path, capsys, limited):
    paths = []
    for name in "ab":
        (tmp_path / name).mkdir()
        ms, of_gpu = (36, 0.24) if name == limited else (40, 0.61)
        step_ns = [ms * 1_000_000 + 10_000 * n for n in range(5)]
        paths.append(str(recorded(tmp_path / name, {**TIMED, "step_ns": step_ns}, MEASURED, busy=of_gpu)))
    sentence = answered(capsys, *paths)["answer"]["sentence"]
    assert "a step takes 60.0 ms, was 60.0 ms while recorded" in sentence


PAIR = DATA.parents[2] / "shared" / "modded-nanogpt"


@pytest.mark.skipif(not PAIR.is_dir(), reason="the pair of traces is not in ../shared/modded-nanogpt")
def test_the_pair_of_modded_nanogpt_is_not_known(capsys):
    paths = [str(PAIR / f"modded-nanogpt-{name}-gpu-rank-00-chrome-trace.json.gz") for name in ("current", "hook")]
    answer = answered(capsys, *paths)
    assert "Too few steps of each kind (2)" in answer["answer"]["sentence"]
    spans = [row for row in answer["steps"] if row["measure"] == "span_ns"]
    assert [round(row["delta_ns"] / 1e6, 2) for row in spans] == [-0.25, -0.87]


SPELLINGS = ("void f<(int)4>(const float *)", "void f<4>(float const*)")


def side(kernel):
    """Return the two steps of a recording of one kernel, of 40 and 60 ns."""
    nothing, launches = np.full(2, np.nan), np.ones(2, np.int64)
    return (Recording({(("step",), "other", "kernel", kernel): np.array([40, 60])}, launches, nothing, nothing),)


def of_steps(slower, recordings, *, is_limited):
    """Return recordings of eight steps of about 100 ns times `slower`, which the CPU may decide."""
    times, launches = {(("step",), "other", "kernel", "k"): np.full(8, 40)}, np.ones(8, np.int64)
    step_ns = slower * np.array([100, 101, 99, 100, 102, 98, 100, 101.0])
    return (Recording(times, launches, step_ns, np.full(8, np.nan), is_limited=is_limited),) * recordings


@pytest.mark.parametrize(
    ("slower", "recordings", "is_limited", "verdict"),
    [
        (1.1, 1, True, "not known"),
        (1.1, 2, True, "differs"),
        (1.1, 1, False, "differs"),
        (1.4, 1, True, "differs"),
        (1.0, 1, True, "same"),
    ],
)
def test_one_recording_that_the_cpu_decides_cannot_tell_a_small_difference(
    slower, recordings, is_limited, verdict
):
    reports = [report_of(row("k", 40, "step"), steps=8)] * 2
    a, b = (of_steps(times, recordings, is_limited=is_limited and times == slower) for times in (1.0, slower))
    comparison = compare(*reports, sides=(a, b))
    assert comparison.step_time.judged == verdict
    assert ("The CPU limits B" in answer(comparison).sentence) == (is_limited and recordings == 1 and slower > 1)


def spreads(*kernels):
    a, b = (report_of(row(kernel, 100, "step"), steps=2) for kernel in kernels)
    found = changes(compare(a, b, sides=(side(kernels[0]), side(kernels[1]))), "kernel")
    return {change.key[0]: (change.a_spread_ns, change.b_spread_ns) for change in found}


def test_the_spread_of_a_kernel_that_is_spelled_in_two_ways_is_kept():
    assert spreads(*SPELLINGS) == {SPELLINGS[0]: (20, 20)}


def test_what_one_report_lacks_has_no_spread_there():
    assert spreads("f", "g") == {"f": (20, 0), "g": (0, 20)}
