"""What a program does on a CPU in its steps: operators in proportion, and outside of them causes by range."""

from collections import Counter

import pytest
from nvtx_kernels.analysis.account.cpu import CPU_CAUSES
from nvtx_kernels.analysis.account.sums import idle_places
from nvtx_kernels.analysis.views.verdict import next_view, verdict

from tests.analysis.making.building import AUTOGRAD, MAIN, WORKER, Launch, Range, Work, build
from tests.analysis.making.lined import mark
from tests.analysis.making.subjects import opened, subject, table, viewed

US = 1000
ON_CPU = {"NVTX_KERNELS_WORK": "CPU"}


def recorded(folder, ranges, operators, work=None):
    """Write operators and ranges of a CPU, given in microseconds; `work` are own times, if not the operators'."""
    launches = [Launch(n, start * US, end * US, *of) for n, (start, end, *of) in enumerate(operators)]
    work = work or [(start, end, "aten::mm") for start, end, *_ in operators]
    work = [Work(n, start * US, end * US, name) for n, (start, end, name) in enumerate(work)]
    ranges = [Range(name, start * US, end * US, *of) for name, start, end, *of in ranges]
    names = {MAIN: "MainThread", AUTOGRAD: "pt_autograd_0", WORKER: "worker"}
    return build(folder, ranges=ranges, launches=launches, work=work, metadata=ON_CPU, thread_names=names)


STEPS = [("step", 0, 100), ("step", 140, 240), ("step", 240, 340)]


def times(path):
    """Return the time of each cause and of operators in all steps, us."""
    cells, sums = opened(path).partition.cells, Counter()
    for kind, what, ns in zip(cells.kind.tolist(), cells.what.tolist(), cells.ns.tolist(), strict=True):
        sums["operators" if kind == 0 else CPU_CAUSES[what]] += ns / US
    return dict(sums)


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
    assert times(path) == Counter({"Python": 30, "operators": 30}) + Counter({cause: 40})


def test_the_innermost_range_that_says_something_counts(tmp_path):
    ranges = [("step", 0, 100), ("load batch", 0, 80), ("decode", 10, 70), ("wait for disk", 20, 30)]
    path = recorded(tmp_path, ranges, [(80, 100)])
    assert times(path) == {"data loading": 70, "waiting": 10, "operators": 20}


def test_what_lies_between_steps_is_the_next_steps(tmp_path):
    operators = [(start, start + 50) for _, start, _ in STEPS]
    path = recorded(tmp_path, [*STEPS, ("load batch", 105, 135)], operators)
    assert times(path) == {"Python": 50 + 10 + 50 + 50, "data loading": 30, "operators": 150}
    assert [row.own_ns for row in opened(path).whole.account.rows] == [100 * US, 140 * US, 100 * US]


def test_evaluation_and_warm_up_between_steps_are_left_out(tmp_path):
    ranges = [*STEPS, ("warmup step", 110, 130)]
    operators = [(start, start + 50) for _, start, _ in ranges]
    assert sum(times(recorded(tmp_path, ranges, operators)).values()) == 340 - 20


def test_operators_of_autograds_thread_are_the_programs(tmp_path):
    ranges = [("step", 0, 100), ("backward", 20, 100)]
    operators = [(0, 20), (30, 90, AUTOGRAD)]
    assert times(recorded(tmp_path, ranges, operators)) == {"Python": 20, "operators": 80}


def test_without_steps_all_that_was_recorded_counts(tmp_path):
    path = recorded(tmp_path, [("load batch", 40, 60)], [(0, 20), (80, 100)])
    assert times(path) == {"Python": 40, "data loading": 20, "operators": 40}


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        ([(0, 20, "aten::mm"), (50, 60, "aten::gelu")], {"gemm": 40_000, "elementwise": 20_000}),
        ([(0, 7, "aten::mm"), (50, 53, "aten::gelu")], {"gemm": 42_000, "elementwise": 18_000}),
        ([(0, 1, "aten::mm"), (50, 56, "aten::gelu")], {"gemm": 8_571, "elementwise": 51_429}),
    ],
)
def test_operators_have_their_time_in_proportion_to_their_own_and_exactly(tmp_path, work, expected):
    """The operators run for 60 us, of which what they call takes some."""
    path = recorded(tmp_path, [("step", 0, 100)], [(0, 30), (50, 80)], work)
    (cpu,) = opened(path).whole.account.gpus
    parts = {part.what: part.total_ns for part in cpu.parts if part.kind == "operators"}
    assert parts == expected
    assert cpu.total_own_ns == 100 * US == sum(parts.values()) + cpu.idle_ns


def test_rows_by_range_add_up_to_the_time_outside_of_operators(tmp_path):
    ranges = [*STEPS, *((f"layer {n}", 10 * n, 10 * n + 8) for n in range(9))]
    path = recorded(tmp_path, ranges, [(start + 50, start + 73) for _, start, _ in STEPS])
    shown, account = viewed("idle", path), opened(path).whole.account
    *causes, together = table(shown, "idle")
    assert together["idle_ns"] * len(account.counted) == account.gpus[0].idle_ns
    assert sum(row["idle_ns"] for row in causes) == pytest.approx(together["idle_ns"])
    assert sum(row["idle_ns"] for row in table(shown, "places")) == pytest.approx(together["idle_ns"])


@pytest.mark.parametrize(("operator", "is_said"), [(50, True), (95, False)])
def test_the_overview_says_what_the_program_does_instead(tmp_path, operator, is_said):
    ranges = [("step", start, start + 100) for start in (0, 100, 200)]
    path = recorded(tmp_path, [*ranges, ("load batch", 260, 290)], [(at, at + operator) for _, at, _ in ranges])
    report = subject(path, per_step=True).report
    said = (
        "Outside of operators: 40.0 µs while the program runs its own Python, 10.0 µs while the program loads its "
        "next batch (most in load batch)."
    )
    assert (said in verdict(report)) is is_said
    assert next_view(report) == ("idle" if is_said else "steps")


def test_a_range_that_closed_before_the_next_operator_does_not_get_its_line(tmp_path):
    """zero_grad runs no operator, so the next one is forward's, of the line below."""
    ranges, launches, work = [], [], []
    for step in range(3):
        begin = 1000 * step
        of_step = [("step", 10, 950), ("zero_grad", 20, 40), ("forward", 50, 505)]
        ranges += [Range(name, (begin + start) * US, (begin + end) * US) for name, start, end in of_step]
        launches.append(Launch(step, (begin + 400) * US, (begin + 500) * US, MAIN, name="aten::mm"))
        work.append(Work(step, (begin + 400) * US, (begin + 500) * US, "aten::mm"))
    log = [(MAIN, 1000, 0, -1), (MAIN, 1045, 1, -1)]
    ranges.append(mark(log, 3500, [0, 1000, 2000, 3000], (1000, 2000)))
    path = build(tmp_path, ranges=ranges, launches=launches, work=work, metadata=ON_CPU)
    places = {place.path[-1:]: place.lines for place in idle_places(opened(path).partition, lambda path: path)}
    assert [line.line.line for line in places["forward",]] == [13]
    assert places["zero_grad",] == ()


def test_what_precedes_the_waiting_for_data_does_not_get_its_line(tmp_path):
    """A step begins with 60 us of its own, then waits for a batch, whose first operator is called in line 13."""
    ranges, launches, work = [], [], []
    for step in range(3):
        begin = 1000 * step
        of_step = [("step", 10, 605), ("load batch", 70, 600)]
        ranges += [Range(name, (begin + start) * US, (begin + end) * US) for name, start, end in of_step]
        launches.append(Launch(step, (begin + 500) * US, (begin + 590) * US, MAIN, name="aten::mm"))
        work.append(Work(step, (begin + 500) * US, (begin + 590) * US, "aten::mm"))
    log = [(MAIN, 1000, 0, -1), (MAIN, 1072, 1, -1), (MAIN, 1595, 0, -1)]
    ranges.append(mark(log, 3500, [0, 1000, 2000, 3000], (1000, 2000)))
    path = build(tmp_path, ranges=ranges, launches=launches, work=work, metadata=ON_CPU)
    places = {place.path[-1:]: place.lines for place in idle_places(opened(path).partition, lambda path: path)}
    assert [line.line.line for line in places["load batch",]] == [13]
    assert 13 not in [line.line.line for line in places["step",]]
