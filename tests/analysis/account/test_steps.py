"""The table of steps, against a count of nanoseconds, and for each kind of program."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nvtx_kernels.analysis.account import partition
from nvtx_kernels.analysis.account.sums import summed_up
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.report import as_object, merged, per_step
from nvtx_kernels.analysis.trace import Spots

from tests.analysis.making.building import (
    MAIN,
    WORKER,
    Launch,
    Range,
    Rows,
    Work,
    alter,
    build,
    in_process,
    process_of,
)
from tests.analysis.making.step_time_reference import Stretch, own_times
from tests.analysis.making.subjects import summarized
from tests.analysis.making.traces import trace_of

NAMES = {"step": "train step {}", "evaluation": "val step {}", "warm-up": "warmup {}"}
APART = 1000


def rows_of(stretches, thread=MAIN, apart=APART, *, graphs=False):
    """Return the rows of a program; the ranges of its stretches are apart on the CPU, and its work is not.

    With `graphs`, a stretch launches all its work at once.
    """
    rows = Rows()
    for number, stretch in enumerate(stretches):
        at = 10 + apart * number
        rows.ranges.append(Range(NAMES[stretch.kind].format(number), at, at + apart - 10, thread))
        trains = "forward" if stretch.kind == "evaluation" else "backward"
        rows.ranges.append(Range(trains, at + 1, at + apart - 20, thread))
        for place, (start, end, gpu) in enumerate(stretch.work):
            if not place or not graphs:
                call = at + 2 + 2 * len(rows.launches) % (apart // 2)
                rows.launches.append(Launch(len(rows.launches), call, call + 1, thread))
            work = Work(len(rows.launches) - 1, start, end, device=gpu, stream=gpu, process=process_of(thread))
            rows.work.append(work)
    return rows


def account_of(rows, pauses=()):
    """Return the account of a report of these rows, in which the recorder paused the main thread."""
    starts, ends = ([pause[side] for pause in pauses] for side in (0, 1))
    spots = Spots(np.array(starts, np.int64), np.array(ends, np.int64), np.zeros(len(pauses), np.int32))
    return summed_up(partition(attribute(replace(trace_of(rows), pauses=spots))), lambda path: path)


def measured(stretches, pauses=(), **options):
    return account_of(rows_of(stretches, **options), pauses)


def stepping(*works, kind="step"):
    return [Stretch(kind, tuple((*interval, 0) for interval in work)) for work in works]


def own_ns(account):
    return [row.own_ns for row in account.rows]


@st.composite
def programs(draw):
    """Draw a program whose work may overlap that before, on one GPU or two; a step may have none."""
    kinds = draw(
        st.lists(st.sampled_from(["step", "step", "step", "evaluation", "warm-up"]), min_size=1, max_size=7)
    )
    apart, stretches, now = draw(st.sampled_from([APART, 60])), [], 0
    for number, kind in enumerate([*kinds, "step"]):
        work = []
        for _ in range(draw(st.integers(1, 3))):
            start = max(0, now + draw(st.integers(-6, 12)))
            work.append((start, start + draw(st.integers(1, 12)), draw(st.integers(0, 1))))
            now = work[-1][1]
        stretches.append(Stretch(kind, tuple(work), 10 + apart * number))
    if "step" in kinds and draw(st.booleans()):
        empty = kinds.index("step")
        stretches[empty] = replace(stretches[empty], work=())
    pauses = draw(st.lists(st.tuples(st.integers(0, now), st.integers(1, 15)), max_size=3))
    return stretches, [(start, start + length) for start, length in pauses], apart


def as_counted(row):
    """Return a row of the account by the names of the reference."""
    kinds = ("own", "window", "between", "evaluation", "warm-up", "recorder", "busy")
    names = {kind: f"{kind.replace('-', '_')}_ns" for kind in kinds} | {"busy between": "between_busy_ns"}
    return {kind: getattr(row, name) for kind, name in names.items()}


@settings(max_examples=150, deadline=None)
@given(programs(), st.booleans())
def test_every_nanosecond_of_a_loop_is_counted_once(program, graphs):
    stretches, pauses, apart = program
    account = measured(stretches, pauses, apart=apart, graphs=graphs)
    expected = own_times(stretches, pauses)
    rows = [as_counted(row) for row in account.rows]
    assert rows == [{kind: of[kind] for kind in rows[0]} for of in expected]
    assert account.dropped == sum(not stretch.work for stretch in stretches)


@settings(max_examples=50, deadline=None)
@given(programs(), programs(), st.booleans())
def test_every_rank_of_a_report_has_its_own_times(one, other, graphs):
    """The ranks' GPUs and clocks are the same: what one does is no part of the other's steps."""
    rows = [rows_of(stretches, apart=apart, graphs=graphs) for stretches, _, apart in (one, other)]
    rows = [in_process(of_rank, process) for of_rank, process in zip(rows, (100, 200), strict=True)]
    divided = partition(attribute(trace_of(together(*rows))))
    for process, (stretches, _, _) in zip((100, 200), (one, other), strict=True):
        expected = [(step["window"], step["between"]) for step in own_times(stretches)]
        loops = [loop for loop in divided.steps.loops if process_id(divided, loop) == process]
        table = divided.table.take(np.concatenate([loop.rows for loop in loops])) if loops else None
        assert not loops or [*zip(table.window_ns.tolist(), table.between_ns.tolist(), strict=True)] == expected


def process_id(divided, loop):
    return divided.attribution.trace.processes[loop.process].process_id


def together(*parts):
    """Return the rows of several processes as those of one report."""
    columns = ([row for rows in parts for row in getattr(rows, name)] for name in ("ranges", "launches", "work"))
    return Rows(*columns)


LOADER = stepping([(100, 130)], [(200, 230)], [(300, 330)])
PREFETCHING = stepping([(0, 100)], [(90, 200)], [(190, 300)])


@pytest.mark.parametrize(
    ("stretches", "takes", "busy", "between"),
    [(LOADER, 100, 30, 70), (PREFETCHING, 100, 100, 0), (stepping([(5, 25), (30, 45)]), 40, 35, 0)],
    ids=["a loader outside", "prefetching", "one step"],
)
def test_a_step_is_from_end_to_end(stretches, takes, busy, between):
    account = measured(stretches)
    assert (account.step_ns, account.busy_ns, account.between_ns) == (takes, busy, between)


def test_validation_between_steps_is_taken_out_with_its_loading():
    train = stepping([(0, 10)], [(20, 30)], [(40, 50)], [(90, 100)])
    account = measured([*train[:3], *stepping([(70, 80)], kind="evaluation"), *train[3:]])
    assert own_ns(account) == [10, 20, 20, 20]
    assert account.taken_out_ns == {"evaluation": 30}


def test_pauses_of_the_recorder_count_where_the_gpu_had_nothing_to_do():
    account = measured(LOADER, [(120, 170), (210, 220)])
    assert own_ns(account)[1:] == [60, 100]
    assert account.taken_out_ns == {"profiler overhead": 40}


def test_rows_of_the_recorders_overhead_are_pauses(tmp_path):
    path = build(tmp_path, **vars(rows_of(LOADER)))
    alter(path, "CREATE TABLE PROFILER_OVERHEAD (start, end, globalTid, nameId, returnValue)",
          "INSERT INTO PROFILER_OVERHEAD VALUES "
          f"(150, 170, {MAIN}, 0, 0), (150, 190, {WORKER}, 0, 0)")  # fmt: skip
    assert own_ns(summarized(path).account)[1:] == [80, 100]


def test_each_process_has_its_own_steps():
    slow = in_process(rows_of(stepping([(0, 30)], [(100, 160)], [(200, 290)])), 200)
    account = account_of(together(rows_of(LOADER), slow))
    times = sorted((row.process_id, row.own_ns) for row in account.rows if not row.first)
    assert times == [(100, 100), (100, 100), (200, 130), (200, 130)]


def test_ranks_together_have_the_steps_of_all(tmp_path):
    report = summarized(build(tmp_path, **vars(rows_of(LOADER))))
    both = merged([report, report], "both")
    assert both.step_ns == report.step_ns == per_step(both).step_ns == 100
    assert len(both.account.rows) == 2 * len(report.account.rows)
    assert (both.account.steps_counted, both.counted_steps) == (2, 4)


def test_threads_whose_steps_overlap_are_loops_of_their_own():
    ranges = [Range("step", at, at + 90, on) for on in (MAIN, WORKER) for at in (0, 100, 200)]
    launches = [Launch(n, 10 + n % 3 * 100, 11 + n % 3 * 100, MAIN if n < 3 else WORKER) for n in range(6)]
    work = [Work(n, 20 + n % 3 * 100 + n // 3, 60 + n % 3 * 100 + n // 3, device=n // 3) for n in range(6)]
    account = account_of(Rows(ranges, launches, work))
    assert [row.own_ns for row in account.rows if not row.first] == [100] * 4
    assert account.loops == [0, 1]


@pytest.mark.parametrize(("lasts", "loops"), [(40, [0]), (60, [0, 1])])
def test_a_loop_of_less_than_half_of_the_main_one_is_none(lasts, loops):
    """Ranges called step on autograd's thread are such: they would halve the step."""
    main = rows_of(stepping(*[[(at, at + 30)] for at in range(100, 700, 100)]), apart=100)
    inner = stepping(*[[(at, at + 20)] for at in range(200, 560, lasts)])
    account = account_of(together(main, other_calls(rows_of(inner, thread=WORKER, apart=lasts))))
    assert account.loops == loops
    assert {row.own_ns for row in account.counted if row.loop == 0} == {100}


def other_calls(rows):
    """Return rows on GPU 1 whose launches have numbers of their own."""
    launches = [replace(call, correlation=call.correlation + 100) for call in rows.launches]
    work = [replace(work, correlation=work.correlation + 100, device=1) for work in rows.work]
    return Rows(rows.ranges, launches, work)


def test_on_a_cpu_the_clock_of_the_steps_thread_tells(tmp_path):
    path = build(tmp_path, **vars(rows_of(LOADER)) | {"metadata": {"NVTX_KERNELS_WORK": "CPU"}})
    account = summarized(path).account
    assert [(row.own_ns, row.between_ns) for row in account.rows] == [(990, 0), (1000, 10), (1000, 10)]
    assert (account.steps_counted, account.busy_ns) == (3, None)


@pytest.mark.parametrize("place", [1, 2, 3])
def test_an_empty_step_changes_only_how_many_are_dropped(place):
    """At the end it is a ProfilerStep that the profiler opened and stopped in; others lost their kernels."""
    steps = stepping(*[[(at, at + 30)] for at in (1000, 2000, 3000)])
    rows, whole = rows_of([*steps[:place], *stepping([]), *steps[place:]]), rows_of(steps)
    account, expected = account_of(rows), account_of(whole)
    assert (account.dropped, expected.dropped) == (1, 0)
    if place == len(steps):
        assert account.evidence == replace(expected.evidence, count=place + 1)
        assert replace(account, dropped=0, evidence=expected.evidence) == expected
    else:
        assert len(account.rows) == len(expected.rows)


def test_json_has_the_time_of_the_step_and_of_each(tmp_path):
    path = build(tmp_path, **vars(rows_of(LOADER)))
    for answer in (as_object(summarized(path)), as_object(summarized(path, per_step=True))):
        assert (answer["report"]["step_ns"], answer["report"]["step_busy_ns"]) == (100, 30)
        assert [row["own_ns"] for row in answer["steps"]][1:] == [100, 100]
    without = replace(rows_of(LOADER), ranges=rows_of(LOADER).ranges[1::2])
    no_steps = as_object(summarized(build(tmp_path / "..", **vars(without))))
    assert (no_steps["report"]["step_ns"], no_steps["steps"]) == (None, [])
