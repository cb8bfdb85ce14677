"""The time of a step, against a count of nanoseconds, and for each kind of program."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.measures.step_time import step_time
from nvtx_kernels.analysis.report import as_object, merged, per_step
from nvtx_kernels.analysis.summary.totals import summarize
from nvtx_kernels.analysis.trace import Spots

from tests.analysis.making.building import MAIN, WORKER, Launch, Range, Rows, Work, build, in_process, process_of
from tests.analysis.making.step_time_reference import Stretch, own_times, step_ns
from tests.analysis.making.subjects import summarized
from tests.analysis.making.traces import trace_of

NAMES = {"step": "train step {}", "evaluation": "val step {}", "warm-up": "warmup {}"}


def rows_of(stretches, thread=MAIN, apart=1000, *, graphs=False):
    """Return the rows of a program; the ranges of its stretches are far apart on the CPU, and its work is not.

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


def measured(stretches, pauses=(), *, graphs=False, **options):
    trace = trace_of(rows_of(stretches, graphs=graphs))
    starts, ends = ([pause[side] for pause in pauses] for side in (0, 1))
    spots = Spots(np.array(starts, np.int64), np.array(ends, np.int64), np.zeros(len(pauses), np.int32))
    return step_time(attribute(replace(trace, pauses=spots)), **options)


def stepping(*works, kind="step"):
    return [Stretch(kind, tuple((*interval, 0) for interval in work)) for work in works]


@st.composite
def programs(draw):
    """Draw a program whose work may overlap that of the stretch before, on one GPU or two."""
    kinds = draw(
        st.lists(st.sampled_from(["step", "step", "step", "evaluation", "warm-up"]), min_size=1, max_size=7)
    )
    stretches, now = [], 0
    for kind in [*kinds, "step"]:
        work = []
        for _ in range(draw(st.integers(1, 3))):
            start = max(0, now + draw(st.integers(-6, 12)))
            work.append((start, start + draw(st.integers(1, 12)), draw(st.integers(0, 1))))
            now = work[-1][1]
        stretches.append(Stretch(kind, tuple(work)))
    pauses = draw(st.lists(st.tuples(st.integers(0, now), st.integers(1, 15)), max_size=3))
    return stretches, [(start, start + length) for start, length in pauses]


@settings(max_examples=150, deadline=None)
@given(programs(), st.booleans())
def test_every_nanosecond_of_a_loop_is_counted_once(program, graphs):
    stretches, pauses = program
    expected, found = own_times(stretches, pauses), measured(stretches, pauses, graphs=graphs)
    kinds = ("own", "window", "between", "evaluation", "warm-up", "recorder", "busy")
    names = {kind: f"{kind.replace('-', '_')}_ns" for kind in kinds} | {"busy between": "between_busy_ns"}
    assert [{name: getattr(row, of) for name, of in names.items()} for row in found.rows] == [
        {name: step[name] for name in names} for step in expected
    ]
    assert found.step_ns == pytest.approx(step_ns(expected))


@settings(max_examples=50, deadline=None)
@given(programs(), programs(), st.booleans())
def test_every_rank_of_a_report_has_its_own_times(one, other, graphs):
    """The ranks' GPUs and clocks are the same: what one does is no part of the other's steps."""
    ranks = [stretches for stretches, _ in (one, other)]
    rows = [in_process(rows_of(ranks[n], graphs=graphs), process) for n, process in enumerate((100, 200))]
    parts = (
        [row for of_rank in rows for row in getattr(of_rank, part)] for part in ("ranges", "launches", "work")
    )
    found = step_time(attribute(trace_of(Rows(*parts))))
    for process, stretches in zip((100, 200), ranks, strict=True):
        assert [
            (row.own_ns, row.window_ns, row.between_ns) for row in found.rows if row.process_id == process
        ] == [(step["own"], step["window"], step["between"]) for step in own_times(stretches)]


LOADER = stepping([(100, 130)], [(200, 230)], [(300, 330)])
PREFETCHING = stepping([(0, 100)], [(90, 200)], [(190, 300)])
TWO_KINDS = stepping(*[[(at, at + lasts)] for at, lasts in [(0, 60), (60, 40), (100, 60), (160, 40), (200, 60)]])


@pytest.mark.parametrize(
    ("stretches", "takes", "busy", "between"),
    [
        (LOADER, 100, 30, 70), (PREFETCHING, 100, 100, 0), (stepping([(5, 25), (30, 45)]), 40, 35, None),
        (TWO_KINDS, 50, 50, 0),
    ],
    ids=["a loader outside", "prefetching", "one step", "steps of two kinds"],
)  # fmt: skip
def test_a_step_is_from_end_to_end(stretches, takes, busy, between):
    time = measured(stretches)
    assert (time.step_ns, time.busy_ns, time.between_ns) == (takes, busy, between)


def test_uneven_steps_take_their_median_and_say_so():
    ends = [0, 50, 100, 150, 400, 450]
    time = measured(stepping(*[[(end + 10, end + 40)] for end in ends]))
    assert (time.step_ns, time.is_uneven, time.spread) == (50, True, 4.0)
    assert not measured(LOADER).is_uneven


def test_validation_between_steps_is_taken_out_with_its_loading():
    train = stepping([(0, 10)], [(20, 30)], [(40, 50)], [(90, 100)])
    time = measured([*train[:3], *stepping([(70, 80)], kind="evaluation"), *train[3:]])
    assert [row.own_ns for row in time.rows] == [10, 20, 20, 20]
    assert time.taken_out_ns == {"evaluation": 30}


def test_pauses_of_the_recorder_count_where_the_gpu_had_nothing_to_do():
    time = measured(LOADER, [(120, 170), (210, 220)])
    assert [row.own_ns for row in time.rows] == [30, 60, 100]
    assert time.taken_out_ns == {"pauses of the recorder": 40}


def test_rows_of_the_recorders_overhead_are_pauses(tmp_path):
    from tests.analysis.making.building import alter

    rows = rows_of(LOADER)
    path = build(tmp_path, ranges=rows.ranges, launches=rows.launches, work=rows.work)
    alter(path, "CREATE TABLE PROFILER_OVERHEAD (start, end, globalTid, nameId, returnValue)",
          "INSERT INTO PROFILER_OVERHEAD VALUES "
          f"(150, 170, {MAIN}, 0, 0), (150, 190, {WORKER}, 0, 0)")  # fmt: skip
    assert [row.own_ns for row in summarized(path).step_time.rows] == [30, 80, 100]


def test_each_process_has_its_own_steps(tmp_path):
    slow = in_process(rows_of(stepping([(0, 30)], [(100, 160)], [(200, 290)])), 200)
    rows = rows_of(LOADER)
    path = build(tmp_path, ranges=[*rows.ranges, *slow.ranges], launches=[*rows.launches, *slow.launches],
                 work=[*rows.work, *slow.work])  # fmt: skip
    time = summarized(path).step_time
    assert sorted((row.process_id, row.own_ns) for row in time.rows if not row.first) == [
        (100, 100), (100, 100), (200, 130), (200, 130),
    ]  # fmt: skip


def test_ranks_together_have_the_steps_of_all(tmp_path):
    rows = rows_of(LOADER)
    report = summarized(build(tmp_path, ranges=rows.ranges, launches=rows.launches, work=rows.work))
    both = merged([report, report], "both")
    assert both.step_ns == report.step_ns == 100
    assert len(both.step_time.rows) == 2 * len(report.step_time.rows)
    assert per_step(both).step_ns == 100


def test_threads_whose_steps_overlap_are_loops_of_their_own():
    ranges = [Range("step", at, at + 90, on) for on in (MAIN, WORKER) for at in (0, 100, 200)]
    launches = [Launch(n, 10 + n % 3 * 100, 11 + n % 3 * 100, MAIN if n < 3 else WORKER) for n in range(6)]
    work = [Work(n, 20 + n % 3 * 100 + n // 3, 60 + n % 3 * 100 + n // 3, device=n // 3) for n in range(6)]
    time = step_time(attribute(trace_of(Rows(ranges, launches, work))))
    assert [row.own_ns for row in time.rows if not row.first] == [100] * 4


def test_on_a_cpu_the_clock_of_the_steps_thread_tells(tmp_path):
    rows = rows_of(LOADER)
    path = build(tmp_path, ranges=rows.ranges, launches=rows.launches, work=rows.work,
                 metadata={"NVTX_KERNELS_WORK": "CPU"})  # fmt: skip
    time = summarized(path).step_time
    assert (time.step_ns, time.busy_ns, time.between_ns) == (1000, None, 10)


def test_json_has_the_time_of_the_step_and_of_each(tmp_path):
    rows = rows_of(LOADER)
    path = build(tmp_path, ranges=rows.ranges, launches=rows.launches, work=rows.work)
    for answer in (as_object(summarized(path)), as_object(summarized(path, per_step=True))):
        assert (answer["report"]["step_ns"], answer["report"]["step_busy_ns"]) == (100, 30)
        assert [row["own_ns"] for row in answer["steps"]] == [30, 100, 100]
    no_steps = as_object(summarize(attribute(trace_of(Rows(rows.ranges[1::2], rows.launches, rows.work)))))
    assert (no_steps["report"]["step_ns"], no_steps["steps"]) == (None, [])
