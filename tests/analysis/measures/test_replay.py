"""The replay of an unchanged report gives its step; what lacks for that is refused in a sentence."""

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from nvtx_kernels.analysis.account import partition
from nvtx_kernels.analysis.attribution.causes import Rules, attribute
from nvtx_kernels.analysis.errors import AnalysisError
from nvtx_kernels.analysis.measures.fix_list import REPLAY
from nvtx_kernels.analysis.measures.fixes import fixes_of
from nvtx_kernels.analysis.measures.host_line import Refused, window_of
from nvtx_kernels.analysis.measures.replay import replay_error, step_ns, timeline_of
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.readers.requirements import require_work

from tests.analysis.making import simulated
from tests.analysis.making.building import AUTOGRAD, Launch, Wait, Work, alter, write
from tests.analysis.making.bundled import SHARED, unpacked
from tests.analysis.making.generated import chaos, programs
from tests.analysis.making.simulated import MS, US

REAL = [
    *sorted(SHARED.glob("gains/*.sqlite*")),
    *SHARED.glob("idle/*.sqlite*"),
    *SHARED.glob("h200/compiled_*.sqlite*"),
    *SHARED.glob("h200/fsdp2_llama.sqlite*"),
    *SHARED.glob("h200/pipeline_1f1b.sqlite*"),
]


def two_streams(machine, *, copied=200 * US, waits=True):
    """Run a step that copies on a second stream what its kernels then wait for by an event."""
    machine.work(copied, 1, stream=9, kind="memcpy", bytes=1000, source=1)
    record = machine.call("cudaEventRecord_v3020")
    machine.rows.waits.append(Wait(record, 9, event=5, records=True))
    if waits:
        wait = machine.call("cudaStreamWaitEvent_v3020")
        machine.rows.waits.append(Wait(wait, 7, event=5))
    for number in range(5):
        machine.work(50 * US, after=machine.ends[9] if waits and not number else 0)
    machine.wait()


def without_events(machine, *, second=200 * US):
    """Run a step whose second stream waits for an event, of which only the waiting stream is known."""
    machine.work(300 * US)
    machine.call("cudaEventRecord_v3020")
    machine.rows.waits.append(Wait(machine.call("cudaStreamWaitEvent_v3020"), 9))
    machine.work(second, stream=9, after=machine.ends[7])
    machine.call("cudaEventRecord_v3020")
    machine.rows.waits.append(Wait(machine.call("cudaStreamWaitEvent_v3020"), 7))
    for number in range(5):
        machine.work(50 * US, after=0 if number else machine.ends[9])
    machine.wait()


def mixed(machine):
    """Run a step of all that a program does."""
    machine.upload(1 << 20)
    for number in range(60):
        machine.work((number % 7) * 10 * US)
    machine.read()
    machine.host(2 * MS)
    for _ in range(200):
        machine.work(2 * US)


@pytest.mark.parametrize("program", [two_streams, mixed, without_events], ids=lambda each: each.__name__)
@pytest.mark.parametrize("slower", [1.0, 1.7])
def test_the_unchanged_replay_gives_the_recorded_step(tmp_path, program, slower):
    timeline = timeline_of(partition(attribute(read(simulated.recorded(tmp_path, program, slower=slower)))))
    assert replay_error(timeline) == pytest.approx(0, abs=0.005)
    replayed = step_ns([timeline] * 2, np.array([1.0, 1 / slower]))
    assert replayed[0] == pytest.approx(simulated.step_ns(program, slower=slower), rel=0.01)
    assert replayed[1] == pytest.approx(simulated.step_ns(program), rel=0.02)


def paused(pauses, machine):
    """Run a step after a pause that differs from step to step."""
    machine.host(next(pauses))
    for _ in range(100):
        machine.work(50 * US)
    machine.wait()


#: What the steps pause, ms, and which of them count.
PAUSES = {
    "one is apart": ((0, 0, 0, 0, 30, 0, 0), [1, 2, 3, 5, 6]),
    "every third is apart": ((0, 0, 9, 0, 0, 9, 0, 0, 9), range(3, 9)),
    "they vary": ((0, 4, 9, 2, 12, 7, 1), range(1, 7)),
}


@pytest.mark.parametrize("case", PAUSES)
def test_the_replayed_step_is_the_mean_of_those_that_count(tmp_path, case):
    pauses, counted = PAUSES[case]
    program = partial(paused, iter([ms * MS for ms in pauses]))
    report = partition(attribute(read(simulated.recorded(tmp_path, program, steps=len(pauses)))))
    timeline = timeline_of(report)
    (replayed_ns,) = step_ns([timeline], np.ones(1))
    mean_ms = np.mean([pauses[number] for number in counted])
    assert replayed_ns == pytest.approx((5 + mean_ms) * MS, rel=0.03)
    assert replay_error(timeline) == pytest.approx(0, abs=0.005)


@pytest.mark.skipif(not REAL, reason="needs the reports of ../shared")
@pytest.mark.parametrize("lasts", [3, 8, 10, 13, 30])
def test_a_faster_host_gives_the_step_of_a_program_that_was_not_recorded(tmp_path, lasts):
    """Kernels that end just before the next is launched, or just after, were not queued."""
    slower = 2.2

    def program(machine):
        for kernel in (100 * US, *[lasts * US] * 300):
            machine.work(kernel)
        machine.read()

    timeline = timeline_of(partition(attribute(read(simulated.recorded(tmp_path, program, slower=slower)))))
    (replayed,) = step_ns([timeline], np.array([1 / slower]))
    assert replayed == pytest.approx(simulated.step_ns(program), rel=0.03)


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name.split(".sqlite")[0])
def test_the_replay_of_real_reports_is_within_two_percent(path, tmp_path):
    report = unpacked(str(path.relative_to(SHARED)), tmp_path) if path.suffix == ".xz" else path
    assert abs(replay_error(timeline_of(partition(attribute(read(report)))))) <= 0.02


def refusal(report, **rules):
    """Return why a report cannot be replayed."""
    with pytest.raises(Refused) as reason:
        timeline_of(partition(attribute(read(report), Rules(**rules))))
    return str(reason.value)


def test_by_likely_events_a_stream_waits_no_longer_than_for_shorter_work(tmp_path):
    timeline = timeline_of(partition(attribute(read(simulated.recorded(tmp_path, without_events)))))
    lasts = np.where(timeline.duration_ns == 200 * US, 20 * US, timeline.duration_ns)
    replayed = step_ns([timeline.lasting(lasts)], np.ones(1))[0]
    assert replayed == pytest.approx(simulated.step_ns(partial(without_events, second=20 * US)), rel=0.02)


def test_several_streams_that_wait_for_events_that_no_call_records_are_refused(tmp_path):
    machine = simulated.simulated(without_events)
    calls = [call for call in machine.rows.launches if "EventRecord" not in call.name]
    machine.rows.launches[:] = calls
    assert "2 streams, and no CUDA events" in refusal(write(tmp_path / "report.sqlite", machine.rows))


def test_one_stream_needs_no_events_and_no_waits(tmp_path):
    report = simulated.recorded(tmp_path, mixed)
    report = alter(report, "DROP TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION")
    assert replay_error(timeline_of(partition(attribute(read(report))))) == pytest.approx(0, abs=0.005)


def test_threads_that_launch_at_once_are_refused(tmp_path):
    machine = simulated.simulated(mixed)
    calls = [call for call in machine.rows.launches if call.name.startswith("cudaLaunch")]
    other = [Launch(10_000 + n, call.start + US, call.end + US, AUTOGRAD) for n, call in enumerate(calls)]
    work = [Work(call.correlation, call.end, call.end + 10) for call in other]
    machine.rows.launches.extend(other)
    machine.rows.work.extend(work)
    assert "several threads launch at once" in refusal(write(tmp_path / "report.sqlite", machine.rows))


def test_a_report_without_steps_or_of_a_cpu_is_refused(tmp_path):
    report = simulated.recorded(tmp_path, mixed)
    unnamed = alter(report, "UPDATE NVTX_EVENTS SET text = 'part'")
    assert refusal(unnamed, evidence=()).startswith("the report has no measured steps")


def test_a_full_queue_holds_the_host_up(tmp_path):
    def flooding(machine):
        for _ in range(1500):
            machine.work(20 * US)
        machine.wait()

    timeline = timeline_of(partition(attribute(read(simulated.recorded(tmp_path, flooding, steps=4)))))
    assert replay_error(timeline) == pytest.approx(0, abs=0.01)


def test_steps_between_which_evaluation_lies_are_not_replayed_together(tmp_path):
    machine = simulated.Simulated()
    for number in range(6):
        with machine.step():
            mixed(machine)
        if number == 3:
            with machine.range("warmup"):
                mixed(machine)
    window = window_of(partition(attribute(read(write(tmp_path / "report.sqlite", machine.rows)))))
    assert len(window.begin) == 4


@given(st.one_of(programs, chaos()))
def test_any_report_is_replayed_or_has_bounds_with_a_reason(rows):
    with tempfile.TemporaryDirectory() as folder:
        try:
            attribution = attribute(require_work(read(write(Path(folder) / "report.sqlite", rows))))
        except AnalysisError:
            assume(False)
    found = fixes_of(partition(attribution), unrecorded_step_ns=50.0)
    assert found.reason or abs(found.replay_error) <= 0.02
    assert (found.kind == REPLAY) is not bool(found.reason)
