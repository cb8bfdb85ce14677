"""Whose backward is it: work of autograd's threads hangs under the thread that called backward and waits."""

import pytest

from analysis.attribution import attribute
from analysis.readers import read
from analysis.summary import summarize
from analysis.vocabulary import PHASES
from tests.analysis.building import (
    AUTOGRAD,
    MAIN,
    WORKER,
    Launch,
    Range,
    Work,
    build,
    launched,
    process_of,
    thread,
)
from tests.analysis.reference import ENGINE
from tests.analysis.traces import attributed

STEP = [Range("step", 0, 1000), Range("forward", 10, 200), Range("backward", 300, 700)]
OTHER = thread(100, 103)
FORWARD, BACKWARD = (20, 22), [(320, 322, AUTOGRAD), (400, 402, AUTOGRAD)]
NAMED = {MAIN: "python", AUTOGRAD: "pt_autograd_0"}


def backward_of(report, **rules):
    """Attribute a report and return where the work on autograd's thread went, each place once."""
    trace = read(report)
    on_engine = [trace.threads[trace.launches.thread[launch]].thread_id == 101 for launch in trace.work.launch]
    places = zip(attributed(report, **rules), on_engine, strict=True)
    return sorted({place for place, engine in places if engine})


@pytest.mark.parametrize("names", [{}, NAMED], ids=["nameless", "named"])
def test_work_of_autograds_thread_is_adopted_by_the_thread_that_waits_in_backward(tmp_path, names):
    report = build(tmp_path, ranges=STEP, thread_names=names, **launched(FORWARD, *BACKWARD))
    assert attributed(report) == ["own: step > forward", *["adopted: step > backward"] * 2]


def test_work_that_backward_launches_on_the_main_thread_stays_its_own(tmp_path):
    report = build(tmp_path, ranges=STEP, **launched((305, 307), *BACKWARD))
    assert attributed(report) == ["own: step > backward", *["adopted: step > backward"] * 2]


def test_ranges_on_autograds_thread_continue_the_path(tmp_path):
    ranges = [*STEP, Range("layer 3", 310, 390, AUTOGRAD), Range("attention", 315, 330, AUTOGRAD)]
    report = build(tmp_path, ranges=ranges, **launched(*BACKWARD))
    assert attributed(report) == ["adopted: step > backward > layer 3 > attention", "adopted: step > backward"]
    rows = {row.path: row.instances for row in summarize(attribute(read(report))).ranges}
    assert rows["step", "backward", "layer 3", "attention"] == 1


def test_adoption_can_be_switched_off(tmp_path):
    report = build(tmp_path, ranges=STEP, **launched(FORWARD, *BACKWARD))
    assert attributed(report, adopt=False) == ["own: step > forward", "outside", "outside"]


def test_autograds_operator_ranges_are_evidence_where_names_are_missing(tmp_path):
    ranges = [*STEP, Range(f"{ENGINE}MmBackward0", 310, 330, AUTOGRAD)]
    overlapping = [(350, 352, AUTOGRAD), (349, 353)]
    report = build(tmp_path, ranges=ranges, **launched(*BACKWARD, *overlapping))
    assert backward_of(report) == ["adopted: step > backward", "outside"], "one call met a busy main thread"


def test_a_nameless_thread_that_works_while_the_main_thread_does_is_not_autograds(tmp_path):
    report = build(tmp_path, ranges=STEP, **launched(*BACKWARD, (350, 352, AUTOGRAD), (349, 353)))
    assert backward_of(report) == ["outside"]


def test_a_nameless_thread_is_not_autograds_beside_one_that_is(tmp_path):
    report = build(tmp_path, ranges=STEP, thread_names=NAMED, **launched(*BACKWARD, (500, 502, OTHER)))
    assert attributed(report) == ["adopted: step > backward", "adopted: step > backward", "outside"]


@pytest.mark.parametrize("range_", [None, "layer 3"])
def test_a_data_loader_that_copies_during_backward_is_not_backward(tmp_path, range_):
    ranges = [*STEP, *([Range(range_, 340, 380, WORKER)] if range_ else [])]
    report = build(tmp_path, ranges=ranges, **launched((350, 352, WORKER), kind="memcpy"))
    assert attributed(report) == [f"own: {range_}" if range_ else "outside"]


@pytest.mark.parametrize(
    "name", ["pt_data_pin", "pt_nccl_watchdg", "pt_nccl_heartbt", "pt_inductor_0", "dali_worker"]
)
def test_worker_threads_are_not_adopted(tmp_path, name):
    report = build(tmp_path, ranges=STEP, thread_names={WORKER: name}, **launched((350, 352, WORKER)))
    assert attributed(report) == ["outside"]


@pytest.mark.parametrize("name", ["pt_data_pin", "pt_nccl_watchdg"])
def test_worker_threads_do_not_adopt(tmp_path, name):
    ranges = [Range("step", 0, 1000), Range("wait", 0, 1000, WORKER)]
    report = build(tmp_path, ranges=ranges, thread_names={WORKER: name}, **launched(*BACKWARD))
    assert backward_of(report) == ["adopted: step"]


def test_the_main_thread_is_never_adopted(tmp_path):
    ranges = [Range("backward", 0, 1000, WORKER), Range(f"{ENGINE}MmBackward0", 310, 330)]
    report = build(tmp_path, ranges=ranges, **launched((320, 322)))
    assert attributed(report, operators="hide") == ["outside"]


def test_a_thread_with_steps_of_its_own_is_not_adopted(tmp_path):
    ranges = [*STEP, Range("step", 310, 330, OTHER)]
    report = build(tmp_path, ranges=ranges, **launched((320, 322, OTHER), (400, 402, OTHER)))
    assert attributed(report) == ["own: step", "outside"]


def test_a_named_autograd_thread_is_adopted_whatever_its_own_ranges_are_called(tmp_path):
    ranges = [*STEP, Range("forward", 310, 390, AUTOGRAD)]  # as a checkpointed block computes again
    report = build(tmp_path, ranges=ranges, thread_names=NAMED, **launched(*BACKWARD))
    assert attributed(report) == ["adopted: step > backward > forward", "adopted: step > backward"]


def test_two_threads_that_wait_alike_are_ambiguous(tmp_path):
    ranges = [Range("step", 0, 1000), Range("wait", 0, 1000, OTHER)]
    report = build(tmp_path, ranges=ranges, **launched(*BACKWARD))
    assert attributed(report) == ["ambiguous", "ambiguous"]
    totals = summarize(attribute(read(report))).totals
    assert totals.ambiguous_ns == totals.work_ns == 20


def test_of_two_threads_that_wait_the_one_in_backward_called_it(tmp_path):
    report = build(tmp_path, ranges=[*STEP, Range("wait", 250, 750, OTHER)], **launched(*BACKWARD))
    assert backward_of(report) == ["adopted: step > backward"]


def test_a_thread_that_idles_through_all_steps_does_not_take_their_backward(tmp_path):
    second = [Range("backward", 1300, 1700)]
    calls = launched(*BACKWARD, (1320, 1322, AUTOGRAD), (1400, 1402, AUTOGRAD))
    report = build(tmp_path, ranges=[*STEP, *second, Range("monitor", 0, 2000, OTHER)], **calls)
    assert attributed(report) == [*["adopted: step > backward"] * 2, *["adopted: backward"] * 2]


def test_a_busy_thread_with_an_open_range_does_not_adopt(tmp_path):
    busy = [Range("serve", 0, 1000, OTHER), Range("request", 340, 345, OTHER), Range("request", 410, 415, OTHER)]
    waiting = [Range("step", 0, 1000)]
    report = build(tmp_path, ranges=[*waiting, *busy], **launched(*BACKWARD, (500, 502, AUTOGRAD)))
    assert backward_of(report) == ["adopted: step"]


@pytest.mark.parametrize("call", [(330, 331), (402, 410)], ids=["within the burst", "touching a call"])
def test_a_call_of_the_waiting_thread_ends_its_wait(tmp_path, call):
    waits = [Range("step", 0, 1000), Range("wait", 0, 1000, OTHER)]
    report = build(tmp_path, ranges=waits, thread_names=NAMED, **launched(*BACKWARD, (500, 502, AUTOGRAD), call))
    assert backward_of(report) == ["adopted: wait"], "the other thread waited longer"


def test_a_thread_inside_an_outer_call_does_not_wait_when_the_inner_one_is_over(tmp_path):
    report = build(tmp_path, ranges=STEP, thread_names=NAMED, **launched((310, 600), (311, 312), BACKWARD[0]))
    assert backward_of(report) == ["outside"]


@pytest.mark.parametrize("kind", ["a range that opens", "a range that closes"])
def test_a_thread_that_opens_or_closes_a_range_meanwhile_does_not_wait(tmp_path, kind):
    turning = Range("request", 321, 500) if kind == "a range that opens" else Range("request", 310, 321)
    report = build(tmp_path, ranges=[*STEP, turning], thread_names=NAMED, **launched(BACKWARD[0]))
    assert attributed(report) == ["outside"]


def test_two_processes_adopt_only_their_own(tmp_path):
    first, second = thread(100, 101), thread(200, 201)
    ranges = [Range("backward", 300, 700), Range("loss backward", 300, 700, thread(200))]
    launches = [Launch(1, 320, 322, first), Launch(1, 330, 332, second)]
    work = [Work(1, 340, 350, process=process_of(call.thread)) for call in launches]
    report = build(tmp_path, ranges=ranges, launches=launches, work=work)
    assert attributed(report) == ["adopted: backward", "adopted: loss backward"]


def test_a_process_without_open_ranges_adopts_nothing_of_another(tmp_path):
    report = build(tmp_path, ranges=STEP, **launched((320, 322, thread(200, 201))))
    assert attributed(report) == ["outside"]


def test_each_device_has_an_autograd_thread_and_both_are_adopted(tmp_path):
    second = thread(100, 104)
    names = {**NAMED, second: "pt_autograd_1"}
    report = build(tmp_path, ranges=STEP, thread_names=names, **launched(*BACKWARD, (410, 412, second)))
    assert attributed(report) == ["adopted: step > backward"] * 3


def test_an_autograd_thread_waits_for_nobody(tmp_path):
    second = thread(100, 104)
    ranges = [Range("step", 0, 1000), Range("layer 3", 310, 500, second)]
    names = {**NAMED, second: "pt_autograd_1"}
    calls = launched(*BACKWARD, (305, 306, second), (510, 512, second))
    report = build(tmp_path, ranges=ranges, thread_names=names, **calls)
    assert attributed(report) == ["adopted: step"] * 4


def test_without_any_range_autograds_thread_still_tells_the_phase(tmp_path):
    report = build(tmp_path, thread_names=NAMED, **launched(FORWARD, *BACKWARD))
    attribution = attribute(read(report))
    assert [PHASES[phase] for phase in attribution.phase] == ["other", "backward", "backward"]
    assert attributed(report) == ["outside"] * 3


def test_where_nobody_waits_work_of_autograds_thread_stays_outside(tmp_path):
    report = build(tmp_path, ranges=STEP[1:2], thread_names=NAMED, **launched(FORWARD, *BACKWARD))
    assert attributed(report) == ["own: forward", "outside", "outside"]
