"""What a program does on a CPU outside of operators, in steps and between them, by cause and range."""

import pytest
from nvtx_kernels.analysis.measures.idle_on_cpu import outside_operators
from nvtx_kernels.analysis.views.verdict import next_view, verdict

import nvtx_kernels as nk
from tests.analysis.making.building import AUTOGRAD, MAIN, WORKER, Launch, Range, Work, build
from tests.analysis.making.subjects import attributed, by, subject, table, viewed

US = 1000
ON_CPU = {"NVTX_KERNELS_WORK": "CPU"}


def recorded(folder, ranges, operators):
    """Write operators and ranges of a CPU, given in microseconds."""
    launches = [Launch(n, start * US, end * US, *of) for n, (start, end, *of) in enumerate(operators)]
    work = [Work(n, start * US, end * US, "aten::mm") for n, (start, end, *_) in enumerate(operators)]
    ranges = [Range(name, start * US, end * US, *of) for name, start, end, *of in ranges]
    names = {MAIN: "MainThread", AUTOGRAD: "pt_autograd_0", WORKER: "worker"}
    return build(folder, ranges=ranges, launches=launches, work=work, metadata=ON_CPU, thread_names=names)


STEPS = [("step", 0, 100), ("step", 140, 240), ("step", 240, 340)]


def times(path, **options):
    """Return the time of each cause and of operators in all steps, us."""
    rows = table(viewed("idle", path, **options), "outside")
    return {row["cause"]: row["time_ns"] / US for row in rows}


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "data loading"),
        ("load batch", "data loading"),
        ("barrier", "waiting"),
        ("Synchronize", "waiting"),
        ("loader", "Python"),
        ("await", "Python"),
        ("downloading", "Python"),
    ],
)
def test_the_name_of_a_range_says_what_the_program_does(tmp_path, name, cause):
    path = recorded(tmp_path, [("step", 0, 100), (name, 20, 60)], [(60, 90)])
    expected = {"Python": 30, "operators": 30, "sum": 100}
    expected[cause] = expected.get(cause, 0) + 40
    assert times(path) == expected


def test_the_innermost_range_that_says_something_counts(tmp_path):
    ranges = [("step", 0, 100), ("load batch", 0, 80), ("decode", 10, 70), ("wait for disk", 20, 30)]
    assert times(recorded(tmp_path, ranges, [(80, 100)])) == {
        "data loading": 70, "waiting": 10, "operators": 20, "sum": 100,
    }  # fmt: skip


def test_what_lies_between_steps_is_the_next_steps(tmp_path):
    operators = [(start, start + 50) for _, start, _ in STEPS]
    path = recorded(tmp_path, [*STEPS, ("load batch", 105, 135)], operators)
    assert times(path) == {"Python": 50 + 10 + 50 + 50, "data loading": 30, "operators": 150, "sum": 340}
    found = outside_operators(attributed(path), lambda path: path)
    assert found.wall_of_step == (100 * US, 140 * US, 100 * US)
    assert found.of_step["data loading"] == (0, 30 * US, 0)


def test_evaluation_and_warm_up_between_steps_are_left_out(tmp_path):
    ranges = [*STEPS, ("warmup step", 110, 130)]
    operators = [(start, start + 50) for _, start, _ in ranges]
    assert times(recorded(tmp_path, ranges, operators))["sum"] == 340 - 20


def test_operators_of_autograds_thread_are_the_programs(tmp_path):
    ranges = [("step", 0, 100), ("backward", 20, 100)]
    operators = [(0, 20), (30, 90, AUTOGRAD)]
    assert times(recorded(tmp_path, ranges, operators)) == {"Python": 20, "operators": 80, "sum": 100}


def test_without_steps_all_that_was_recorded_counts(tmp_path):
    path = recorded(tmp_path, [("load batch", 40, 60)], [(0, 20), (80, 100)])
    assert times(path) == {"Python": 40, "data loading": 20, "operators": 40, "sum": 100}


def test_rows_by_range_add_up_to_the_time_outside_of_operators(tmp_path):
    ranges = [*STEPS, *((f"layer {n}", 10 * n, 10 * n + 8) for n in range(9))]
    path = recorded(tmp_path, ranges, [(start + 50, start + 73) for _, start, _ in STEPS])
    shown = viewed("idle", path, per_step=True)
    whole = by(shown, "outside", "cause")
    assert sum(row["time_ns"] for row in table(shown, "places")) == whole["Python"]["time_ns"]
    assert whole["sum"]["time_ns"] * 3 == 340 * US
    assert whole["operators"]["time_ns"] * 3 == 3 * 23 * US


@pytest.mark.parametrize(("operator", "is_said"), [(50, True), (95, False)])
def test_the_overview_says_what_the_program_does_instead(tmp_path, operator, is_said):
    ranges = [("step", start, start + 100) for start in (0, 100, 200)]
    path = recorded(tmp_path, [*ranges, ("load batch", 260, 290)], [(at, at + operator) for _, at, _ in ranges])
    report = subject(path, per_step=True).report
    said = "runs no operator for 50.0 µs of a typical step: 50.0 µs of it in its own Python (most in step)"
    assert (said in verdict(report)) is is_said
    assert next_view(report) == ("idle" if is_said else "steps")
    rows = nk.rank(path).report.idle_on_cpu.rows
    assert {row.cause: row.alone_step for row in rows}.get("data loading", 2) == 2


def test_the_overview_says_so_as_recorded_where_the_step_is_told_without_recording(tmp_path):
    path = recorded(tmp_path, STEPS, [(start, start + 50) for _, start, _ in STEPS])
    given = nk.rank(path, unrecorded_step_ns=80 * US).report
    for report, program in ((given, "As recorded, the program"), (nk.rank(path).report, "The program")):
        assert f" {program} runs no operator for " in verdict(report)


@pytest.mark.parametrize(("lasts", "is_said"), [(400, True), (110, False)])
def test_what_one_step_alone_has_is_a_note_on_that_step(tmp_path, lasts, is_said):
    ranges = [
        ("step", 0, 100),
        ("step", 100, 200),
        ("step", 200, 200 + lasts),
        ("load batch", 220, 200 + lasts - 70),
    ]
    path = recorded(tmp_path, ranges, [(start + 10, start + 20) for start in (0, 100, 200)])
    said = verdict(subject(path, per_step=True).report)
    assert ("Step 2 loads data for 310 µs longer than any other." in said) is is_said
