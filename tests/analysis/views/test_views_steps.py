"""How much the measured steps differ: against SQL on an H200's report, and on built ones."""

from dataclasses import replace

import pytest
from nvtx_kernels.analysis.errors import ReportError

from tests.analysis.making.building import AUTOGRAD, Launch, Range, Work, build, launched, steps_lasting
from tests.analysis.making.plain_sql import OURS, rows
from tests.analysis.making.reference import ENGINE
from tests.analysis.making.subjects import by, table, viewed

PER_STEP = """
SELECT s.start, sum(k.ns), count(*) FROM ranges s JOIN during k ON k.range = ? AND k.called >= s.start
 AND k.returned <= s.end WHERE s.name = 'step' GROUP BY s.start ORDER BY s.start
"""


def test_launches_spans_and_cpu_ranges_of_each_step_are_those_of_sql():
    shown = [row for row in table(viewed("steps", OURS, whole=True), "steps") if row["level"] == "step"]
    assert [row["kernels"] for row in shown] == [count for _, _, count in rows(OURS, PER_STEP, "step")]
    cpu = rows(OURS, "SELECT end - start FROM ranges WHERE name = 'step' ORDER BY start")
    assert [(row["cpu_ns"],) for row in shown] == cpu
    assert all(row["kernel_ns"] < row["span_ns"] < row["cpu_ns"] for row in shown)


def test_a_range_has_median_extremes_spread_and_its_slowest_step(tmp_path):
    row = by(viewed("steps", steps_lasting(tmp_path, 50, 100, 400, 200)), "ranges", "range")["forward"]
    assert (row["median_ns"], row["min_ns"], row["max_ns"], row["slowest"]) == (200, 100, 400, "2")
    assert row["spread"] == pytest.approx(1.5)


def test_siblings_are_in_the_order_of_their_medians(tmp_path):
    """One long kernel makes `b` the longer in sum, `a` the longer by the median that is shown."""
    ranges, calls = [], []
    for step, lasts in ((0, 60), (1000, 60), (2000, 60), (3000, 800)):
        ranges += [Range("step", step, step + 900), Range("a", step, step + 40), Range("b", step + 50, step + 90)]
        calls += [(step + 10, 100), (step + 60, lasts), (step + 890, 5)]
    launches = [Launch(number, at, at + 5) for number, (at, _) in enumerate(calls)]
    work = [Work(number, at + 10**6, at + 10**6 + lasts) for number, (at, lasts) in enumerate(calls)]
    shown = table(viewed("steps", build(tmp_path, ranges=ranges, launches=launches, work=work)), "ranges")
    assert [(row["range"], row["median_ns"]) for row in shown] == [("step", 165), ("a", 100), ("b", 60)]


def test_layers_are_added_up_within_a_step_unless_each_is_asked_for(tmp_path):
    ranges = [Range("step", 0, 90), Range("layer 0", 1, 40), Range("layer 1", 41, 80)]
    report = build(tmp_path, ranges=ranges, **launched((5, 10), (45, 50)))
    assert by(viewed("steps", report), "ranges", "range")["layer *"]["median_ns"] == 20
    assert by(viewed("steps", report, every_index=True), "ranges", "range")["layer 1"]["median_ns"] == 10


def test_a_range_that_some_steps_lack_says_how_many_have_it(tmp_path):
    ranges = [*(Range("step", at, at + 90) for at in (0, 100, 200)), Range("eval", 250, 280)]
    report = build(tmp_path, ranges=ranges, **launched((5, 10), (105, 110), (205, 210), (255, 260)))
    found = by(viewed("steps", report), "ranges", "range")
    assert (found["eval"]["steps"], found["step"]["steps"]) == (1, 2)
    assert (found["eval"]["slowest"], found["step"]["slowest"]) == ("2", "2")


def test_work_in_no_phase_is_other_and_a_step_without_work_has_no_span(tmp_path):
    report = build(tmp_path, ranges=[Range("step", 0, 90), Range("step", 100, 190)], **launched((5, 10)))
    rows = [row for row in table(viewed("steps", report, whole=True), "steps") if row["level"] != "range"]
    assert [(row["level"], row["phase"], row["kernel_ns"], row["span_ns"]) for row in rows] == [
        ("step", "", 10, 10), ("phase", "other", 10, None), ("step", "", 0, None),
    ]  # fmt: skip
    assert [row["step"] for row in table(viewed("steps", report), "steps")] == ["0", "mean"]


SOFTMAX = "computing softmax"
MIXED = {
    "ranges": [
        Range("step", 0, 1000), Range("layer 0", 20, 100), Range(SOFTMAX, 40, 60),
        Range("aten::softmax, seq = 12, op_id = 7", 45, 50), Range("backward", 300, 700),
        Range(f"{ENGINE}SoftmaxBackward0", 305, 340, AUTOGRAD),
        Range("SoftmaxBackward0, seq = 12, op_id = 99", 315, 330, AUTOGRAD),
        Range("layer 1", 400, 500), Range(SOFTMAX, 410, 490),
    ],
    **launched((320, 322, AUTOGRAD), (420, 422), (430, 433)),
}  # fmt: skip


def test_a_path_of_linked_and_own_work_has_no_span_for_a_part_of_it(tmp_path):
    report = build(tmp_path, **MIXED)
    split = {
        row["range"]: row["span_ns"]
        for row in table(viewed("steps", report, whole=True, every_index=True), "steps")
    }
    assert split[f"step > backward > layer 1 > {SOFTMAX}"] > 0
    assert split[f"step > backward > layer 0 > {SOFTMAX}"] is None
    document = viewed("steps", report)
    assert by(document, "ranges", "range")[SOFTMAX]["span_ns"] is None
    assert "–: the work was linked" in document.tables[1].caption


def test_a_step_without_a_span_leaves_the_range_without_a_median_span(tmp_path):
    later = [
        Range(name, start + 2000, end + 2000) for name, start, end in [("step", 0, 900), ("backward", 5, 800)]
    ]
    ranges = [*MIXED["ranges"], *later, Range("layer 0", 2010, 2500), Range(SOFTMAX, 2020, 2400)]
    ranges.append(Range("step", -1000, -100))  # whose own time nothing shows
    report = build(tmp_path, ranges=ranges, **launched((-990, -980), (320, 322, AUTOGRAD), (2030, 2040)))
    found = by(viewed("steps", report, every_index=True), "ranges", "range")
    assert found["layer 0"]["span_ns"] is found[SOFTMAX]["span_ns"] is None
    assert found["backward"]["span_ns"] > 0


def test_a_program_gets_every_range_in_every_step():
    document = viewed("steps", OURS, whole=True, every_index=True, phase="forward", within="computing softmax")
    found = table(document, "steps")
    assert {row["step"] for row in found} == {0, 1}
    found = [row for row in found if row["level"] == "range"]
    assert len(found) == 2 * 12
    assert sum(row["kernel_ns"] for row in found) == sum(
        ns for (ns,) in rows(OURS, "SELECT ns FROM inside WHERE range = 'computing softmax' AND thread = "
                             "(SELECT thread FROM ranges WHERE name = 'forward' LIMIT 1)"))  # fmt: skip


def test_many_steps_are_cut_and_say_which_do_not_count(tmp_path):
    ranges = [Range("step", 1000 * n, 1000 * n + 500) for n in range(30)]
    rows = launched(*((1000 * n + 5, 1000 * n + 9) for n in range(30)))
    rows["work"][3] = replace(rows["work"][3], end=3_800)
    document = viewed("steps", build(tmp_path, ranges=ranges, **rows))
    shown = table(document, "steps")
    assert [row["step"] for row in shown] == [*map(str, range(20)), "mean"]
    assert [row["step"] for row in shown if row["counted"] == "no"] == ["0", "3", "4"]
    assert document.tables[0].caption == "mean: of the 27 that count. 10 more steps: --format csv."


def test_the_states_of_a_step_make_it_up_and_their_means_the_mean():
    *steps, mean = table(viewed("steps", OURS), "steps")
    for row in (*steps, mean):
        assert row["own_ns"] == sum(row[f"{kind}_ns"] for kind in ("compute", "copy", "idle"))
    assert mean["own_ns"] == sum(row["own_ns"] for row in steps) / len(steps)


def test_a_report_without_steps_is_refused(tmp_path):
    with pytest.raises(ReportError, match="No steps are known"):
        viewed("steps", build(tmp_path, ranges=[Range("forward", 0, 90)], **launched((5, 10))))


def test_steps_of_the_warm_up_count_where_it_is_asked_for(tmp_path):
    ranges = [Range("warmup", 0, 100), Range("step", 5, 95), Range("step", 105, 195)]
    report = build(tmp_path, ranges=ranges, **launched((10, 12), (110, 112)))
    assert [len(table(viewed("steps", report, include_warm_up=both), "steps")) - 1 for both in (False, True)] == [
        1,
        2,
    ]


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
def test_a_program_gets_each_phase_of_each_step_too(phase):
    found = table(viewed("steps", OURS, whole=True, every_index=True), "steps")
    of_phase = [row["kernel_ns"] for row in found if (row["level"], row["phase"]) == ("phase", phase)]
    assert of_phase == [ns for _, ns, _ in rows(OURS, PER_STEP, phase)]
    whole = [(row["kernel_ns"], row["kernels"]) for row in found if row["level"] == "step"]
    assert whole == [(ns, count) for _, ns, count in rows(OURS, PER_STEP, "step")]
