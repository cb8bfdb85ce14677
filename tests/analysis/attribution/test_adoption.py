"""Whose backward is it: work of autograd's threads hangs under the thread that called backward and waits."""

from dataclasses import replace

import pytest
from nvtx_kernels.analysis.attribution.causes import attribute
from nvtx_kernels.analysis.readers import read
from nvtx_kernels.analysis.summary.totals import summarize

from tests.analysis.making.building import (
    AUTOGRAD,
    DOMAIN_CREATE,
    MAIN,
    WORKER,
    Range,
    build,
    launched,
    thread,
)
from tests.analysis.making.reference import ENGINE
from tests.analysis.making.traces import answers, attributed, summary

STEP = [Range("step", 0, 1000), Range("forward", 10, 200), Range("backward", 300, 700)]
OTHER = thread(100, 103)
FORWARD, BACKWARD = (20, 22), [(320, 322, AUTOGRAD), (400, 402, AUTOGRAD)]
NAMED = {MAIN: "python", AUTOGRAD: "pt_autograd_0"}
ADOPTED = "adopted: step > backward"
WAITING = Range("wait", 0, 1000, OTHER)
#: Examples of what test_attribution_by_brute_force.py generates, and what no name tells of a thread that is not
#: named: the ranges, the threads' names, the calls, and where these go.
CASES = {
    "autograd's thread is adopted by the thread that waits in backward": (
        STEP, {}, [FORWARD, *BACKWARD], ["own: step > forward", ADOPTED, ADOPTED],
    ),
    **{
        f"a worker thread is not adopted: {name}": (STEP, {WORKER: name}, [(350, 352, WORKER)], ["outside"])
        for name in ("pt_data_pin", "pt_nccl_watchdg", "pt_nccl_heartbt", "pt_inductor_0", "dali_worker")
    },
    "operators' ranges are evidence without names, though one call met a busy main thread": (
        [*STEP, Range(f"{ENGINE}MmBackward0", 310, 330, AUTOGRAD)], {},
        [*BACKWARD, (350, 352, AUTOGRAD), (349, 353)], [ADOPTED, ADOPTED, "outside", "own: step > backward"],
    ),
    "a nameless thread that works while the main thread does is not autograd's": (
        STEP, {}, [*BACKWARD, (350, 352, AUTOGRAD), (349, 353)], ["outside"] * 3 + ["own: step > backward"],
    ),
    **{
        f"a worker thread does not adopt: {name}": (
            [Range("step", 0, 1000), Range("wait", 0, 1000, WORKER)], {WORKER: name}, BACKWARD,
            ["adopted: step"] * 2,
        )
        for name in ("pt_data_pin", "pt_nccl_watchdg")
    },
    "of two threads that wait the one in backward called it": (
        [*STEP, Range("wait", 250, 750, OTHER)], {}, BACKWARD, [ADOPTED] * 2,
    ),
    "a thread whose call ends within the burst does not wait in it": (
        STEP, {}, [(310, 350), *BACKWARD], ["own: step > backward", "outside", "outside"],
    ),
    "nor for the call of a named one": (
        STEP, NAMED, [(310, 350), *BACKWARD], ["own: step > backward", "outside", ADOPTED],
    ),
    **{
        f"a nameless thread is adopted that in backward has a range {name}": (
            [*STEP, Range(name, 310, 390, AUTOGRAD)], {}, [FORWARD, *BACKWARD],
            ["own: step > forward", f"{ADOPTED} > {name}", ADOPTED],
        )
        for name in ("forward", "optimizer")
    },
}  # fmt: skip


@pytest.mark.parametrize(("ranges", "names", "calls", "expected"), CASES.values(), ids=CASES)
def test_work_goes_to_the_thread_that_waits_for_it(tmp_path, ranges, names, calls, expected):
    assert attributed(build(tmp_path, ranges=ranges, thread_names=names, **launched(*calls))) == expected


def test_the_main_thread_is_never_adopted(tmp_path):
    ranges = [Range("backward", 0, 1000, WORKER), Range(f"{ENGINE}MmBackward0", 310, 330)]
    report = build(tmp_path, ranges=ranges, **launched((320, 322)))
    assert attributed(report, operators="hide") == ["outside"]


def test_two_threads_that_wait_alike_are_ambiguous(tmp_path):
    ranges = [Range("step", 0, 1000), WAITING]
    report = build(tmp_path, ranges=ranges, **launched(*BACKWARD))
    assert attributed(report) == ["ambiguous", "ambiguous"]
    totals = summary(report).totals
    assert totals.ambiguous_ns == totals.work_ns == 20


@pytest.mark.parametrize("call", [(330, 331), (402, 410)], ids=["within the burst", "touching a call"])
def test_a_call_of_the_waiting_thread_ends_its_wait(tmp_path, call):
    waits = [Range("step", 0, 1000), WAITING]
    rows = launched(*BACKWARD, (500, 502, AUTOGRAD), call)
    rows["work"].pop()  # the call launched nothing: a synchronization
    report = build(tmp_path, ranges=waits, thread_names=NAMED, **rows)
    expected = {330: "ambiguous", 402: "adopted: wait"}  # in the second, it is busy during a call of the burst
    assert attributed(report) == [expected[call[0]]] * 3


@pytest.mark.parametrize("writer", [(), ((2400, 2402, OTHER),)], ids=["without work", "with work on the GPU"])
def test_an_idle_thread_with_one_long_range_takes_nothing_from_a_range_without_a_word(tmp_path, writer):
    steps = [Range(f"train {n}", 1000 * n, 1000 * n + 900) for n in range(2)]
    calls = [call for n in (0, 1000) for call in ((n + 10, n + 12), *[(s + n, e + n, t) for s, e, t in BACKWARD])]
    idle = Range("checkpoint writer loop", 0, 3000, OTHER)
    report = build(tmp_path, ranges=[*steps, idle], thread_names=NAMED, **launched(*calls, *writer))
    of_backward = [["ambiguous" if writer else f"adopted: train {n}"] * 2 for n in range(2)]
    expected = ["own: train 0", *of_backward[0], "own: train 1", *of_backward[1]]
    assert attributed(report)[:6] == expected


def test_two_models_in_two_threads_are_told_apart_by_their_gpus(tmp_path):
    engines = [AUTOGRAD, thread(100, 105)]
    ranges = [Range("backward of A", 300, 700), Range("backward of B", 300, 700, OTHER)]
    calls = [(20, 22), (20, 22, OTHER), (320, 322, engines[0]), (321, 323, engines[1])]
    rows = launched(*calls)
    rows["work"] = [replace(work, device=device) for work, device in zip(rows["work"], (0, 1, 0, 1), strict=True)]
    names = {engines[0]: "pt_autograd_0", engines[1]: "pt_autograd_1"}
    report = build(tmp_path, ranges=ranges, thread_names=names, **rows)
    assert attributed(report)[2:] == ["adopted: backward of A", "adopted: backward of B"]


@pytest.mark.parametrize("names", [{}, NAMED], ids=["nameless", "named"])
def test_forward_in_backward_is_backward_and_marked(tmp_path, names):
    ranges = [*STEP, Range("forward", 310, 390, AUTOGRAD), Range("mlp", 315, 330, AUTOGRAD)]
    found = attribute(read(build(tmp_path, ranges=ranges, thread_names=names, **launched(*BACKWARD))))
    assert [phase for *_, phase in answers(found)] == ["backward", "backward"]
    assert found.recompute[found.node].tolist() == [True, False]
    rows = {row.path[-1]: row.phase for row in summarize(found).ranges if len(row.path) > 2}
    assert rows == {"forward": "backward", "mlp": "backward"}


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
