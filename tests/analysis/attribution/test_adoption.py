"""Whose backward is it: work of autograd's threads hangs under the thread that called backward and waits."""

from dataclasses import replace

import pytest
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.summary.totals import summarize
from nvtx_kernels.analysis.vocabulary import PHASES

from tests.analysis.making.building import (
    AUTOGRAD,
    DOMAIN_CREATE,
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
from tests.analysis.making.reference import ENGINE
from tests.analysis.making.traces import answers, attributed, summary

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
    rows = {row.path: row.instances for row in summary(report).ranges}
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
    totals = summary(report).totals
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
    waiting, calls = [Range("step", 0, 1000)], [*BACKWARD, (414, 416, AUTOGRAD), (500, 502, AUTOGRAD)]
    report = build(tmp_path, ranges=[*waiting, *busy], **launched(*calls))
    assert backward_of(report) == ["adopted: step"]


@pytest.mark.parametrize("call", [(330, 331), (402, 410)], ids=["within the burst", "touching a call"])
def test_a_call_of_the_waiting_thread_ends_its_wait(tmp_path, call):
    waits = [Range("step", 0, 1000), Range("wait", 0, 1000, OTHER)]
    rows = launched(*BACKWARD, (500, 502, AUTOGRAD), call)
    rows["work"].pop()  # the call launched nothing: a synchronization
    report = build(tmp_path, ranges=waits, thread_names=NAMED, **rows)
    expected = {330: ["ambiguous"], 402: ["adopted: wait"]}  # in the second, it is busy during a call of the burst
    assert backward_of(report) == expected[call[0]]


def test_a_thread_inside_an_outer_call_does_not_wait_when_the_inner_one_is_over(tmp_path):
    step = [Range("step", 0, 1000)]
    report = build(tmp_path, ranges=step, thread_names=NAMED, **launched((310, 600), (311, 312), BACKWARD[0]))
    assert backward_of(report) == ["outside"]


def test_a_thread_alone_in_backward_waits_inside_one_call_around_the_burst(tmp_path):
    idle = Range("monitor", 0, 2000, OTHER)
    report = build(tmp_path, ranges=[*STEP, idle], thread_names=NAMED, **launched((310, 600), *BACKWARD))
    assert backward_of(report) == ["adopted: step > backward"]


@pytest.mark.parametrize("names", [{}, NAMED], ids=["nameless", "named"])
def test_a_thread_whose_call_ends_within_the_burst_does_not_wait_in_it(tmp_path, names):
    report = build(tmp_path, ranges=STEP, thread_names=names, **launched((310, 350), *BACKWARD))
    assert backward_of(report) == (["adopted: step > backward", "outside"] if names else ["outside"])


@pytest.mark.parametrize("writer", [(), ((2400, 2402, OTHER),)], ids=["without work", "with work on the GPU"])
def test_an_idle_thread_with_one_long_range_takes_nothing_from_a_range_without_a_word(tmp_path, writer):
    steps = [Range(f"train {n}", 1000 * n, 1000 * n + 900) for n in range(2)]
    calls = [call for n in (0, 1000) for call in ((n + 10, n + 12), *[(s + n, e + n, t) for s, e, t in BACKWARD])]
    idle = Range("checkpoint writer loop", 0, 3000, OTHER)
    report = build(tmp_path, ranges=[*steps, idle], thread_names=NAMED, **launched(*calls, *writer))
    assert backward_of(report) == (["ambiguous"] if writer else ["adopted: train 0", "adopted: train 1"])


def test_two_models_in_two_threads_are_told_apart_by_their_gpus(tmp_path):
    engines = [AUTOGRAD, thread(100, 105)]
    ranges = [Range("backward of A", 300, 700), Range("backward of B", 300, 700, OTHER)]
    calls = [(20, 22), (20, 22, OTHER), (320, 322, engines[0]), (321, 323, engines[1])]
    rows = launched(*calls)
    rows["work"] = [replace(work, device=device) for work, device in zip(rows["work"], (0, 1, 0, 1), strict=True)]
    names = {engines[0]: "pt_autograd_0", engines[1]: "pt_autograd_1"}
    report = build(tmp_path, ranges=ranges, thread_names=names, **rows)
    assert attributed(report)[2:] == ["adopted: backward of A", "adopted: backward of B"]


@pytest.mark.parametrize("word", ["forward", "optimizer"])
def test_a_nameless_thread_that_computes_again_or_steps_in_backward_is_adopted(tmp_path, word):
    report = build(tmp_path, ranges=[*STEP, Range(word, 310, 390, AUTOGRAD)], **launched(FORWARD, *BACKWARD))
    assert backward_of(report) == ["adopted: step > backward", f"adopted: step > backward > {word}"]


@pytest.mark.parametrize("names", [{}, NAMED], ids=["nameless", "named"])
def test_forward_in_backward_is_backward_and_marked(tmp_path, names):
    ranges = [*STEP, Range("forward", 310, 390, AUTOGRAD), Range("mlp", 315, 330, AUTOGRAD)]
    found = attribute(read(build(tmp_path, ranges=ranges, thread_names=names, **launched(*BACKWARD))))
    assert [phase for *_, phase in answers(found)] == ["backward", "backward"]
    assert found.recompute[found.node].tolist() == [True, False]
    rows = {row.path[-1]: row.phase for row in summarize(found).ranges if len(row.path) > 2}
    assert rows == {"forward": "backward", "mlp": "backward"}


def test_the_replicas_of_data_parallel_hang_under_the_thread_that_joins_them(tmp_path):
    replicas = [thread(100, 110 + n) for n in range(2)]
    ranges = [*STEP, *(Range("layer 3", 30, 60, replica) for replica in replicas)]
    calls = [(40 + n, 42 + n, replica) for n, replica in enumerate(replicas)]
    report = build(tmp_path, ranges=ranges, thread_names=NAMED, **launched(FORWARD, *calls, *BACKWARD))
    expected = ["adopted: step > forward > layer 3"] * 2 + ["adopted: step > backward"] * 2
    assert attributed(report) == ["own: step > forward", *expected]


@pytest.mark.parametrize(
    ("setting_up", "expected"),
    [
        (Range("ncclCommInitAll", 20, 190, domain=2), "adopted: step > forward"),
        (Range("ncclCommInitAll", 35, 190, domain=2), "outside"),  # the first copy was before it
        (Range("my own init", 20, 190, domain=2), "outside"),
    ],
)
def test_copies_of_threads_that_nccl_starts_are_of_the_thread_that_calls_it(tmp_path, setting_up, expected):
    domain = Range("NCCL", 0, None, domain=2, event=DOMAIN_CREATE)
    calls = launched((30, 32, thread(100, 110)), (50, 52, thread(100, 110)))
    calls["work"] = [replace(one, kind="memcpy") for one in calls["work"]]
    report = build(tmp_path, ranges=[*STEP, domain, setting_up], **calls)
    assert attributed(report) == [expected] * 2


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


@pytest.mark.parametrize("main", [[], [Range("serve", 0, 1000)]], ids=["main idle", "main waits"])
def test_workers_in_turn_have_their_own_ranges_and_not_each_others(tmp_path, main):
    turns = [(AUTOGRAD, 100), (OTHER, 300), (AUTOGRAD, 500), (OTHER, 700)]
    around = [Range("worker 0", 90, 990, AUTOGRAD), Range("worker 1", 95, 995, OTHER)]
    ranges = [*main, *around, *(Range("execute_model", start, start + 150, which) for which, start in turns)]
    report = build(
        tmp_path, ranges=ranges, **launched(*((start + 50, start + 52, which) for which, start in turns))
    )
    above = "adopted: serve > " if main else "own: "
    assert sorted(attributed(report)) == sorted(f"{above}worker {index % 2} > execute_model" for index in range(4))
