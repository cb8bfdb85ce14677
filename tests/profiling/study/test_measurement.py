"""What is measured and captured, and in which order; a GPU is pretended."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.study import one_run
from nvtx_kernels.profiling.study.one_run import Capture, measure
from nvtx_kernels.profiling.study.settings import Settings
from nvtx_kernels.profiling.study.workload import Workload
from nvtx_kernels.profiling.tool import NSYS_SESSION

from tests.profiling.making.pretended_gpu import moved, pretend
from tests.profiling.making.recordings import told_of_times

TINY = Settings(size="tiny", context_length=16, batch_size=1, mode="forward", warmup=1, steps=2, device="cpu")
OUTER = ("warmup", "measure", "step")


class Log(list):
    """A listener that writes the begin and end of the outer ranges to itself."""

    def __init__(self):
        self.open, self.marks = [], []

    def push(self, name, payload):
        self.open.append(name)
        if name in OUTER:
            self.append(name)

    def pop(self):
        if (name := self.open.pop()) in OUTER:
            self.append(f"end of {name}")

    def mark(self, message):
        self.append("mark")
        self.marks.append(message)


def logged(run, settings=TINY):
    """What a listener and the GPU heard of a measurement."""
    workload = Workload(settings)
    with pytest.MonkeyPatch.context() as patch, annotate.listen(log := Log()):
        pretend(patch, log)
        run(moved(workload))
    return log


@pytest.fixture(scope="module")
def log():
    return logged(lambda workload: measure(workload, Capture()))


def test_cuda_profiler_api_surrounds_the_measured_steps_and_nothing_else(log):
    steps = ["step", "end of step"]
    kept = [word for word in log if word != "GPU is waited for"]
    before = ["warmup", *steps, "end of warmup", "peak is reset", "profiler starts"]
    assert kept == [*before, "measure", "mark", *steps, *steps, "mark", "end of measure", "profiler stops"]


def test_profiler_and_every_phase_and_step_end_when_the_gpu_has_done_all_it_was_given(log):
    assert log[-3:] == ["end of measure", "GPU is waited for", "profiler stops"]
    waits = [before for before, word in pairwise(log) if word == "end of step"]
    assert waits == ["GPU is waited for"] * 3
    assert log.count("GPU is waited for") == 3 * 2 + 1


def test_profiler_stops_when_a_step_fails():
    def run(workload):
        workload.forward = lambda: 1 / 0
        with pytest.raises(ZeroDivisionError):
            measure(workload, Capture())

    log = logged(run, replace(TINY, warmup=0))
    assert (log.count("step"), log[-1]) == (1, "profiler stops")


def test_cpu_is_measured_without_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "cudart", lambda: 1 / 0)
    row, _ = measure(Workload(TINY), Capture())
    assert (len(row["warmup"]), len(row["measured"])) == (1, 2)


@pytest.mark.parametrize(
    ("warmup", "flops", "heard", "timed", "emptied"),
    [(5, False, 2, 2, True), (5, True, 3, 2, False), (6, True, 3, 2, True), (3, False, 2, 1, False),
     (2, False, 2, 0, False), (0, False, 0, 0, False)],
)  # fmt: skip
def test_before_a_capture_of_nsys_steps_of_warm_up_are_timed_unheard(
    monkeypatch, warmup, flops, heard, timed, emptied
):
    monkeypatch.setenv(NSYS_SESSION, "1")
    monkeypatch.setattr(one_run, "captures_a_range", lambda: True)
    settings = replace(TINY, warmup=warmup, mode="train")
    with annotate.listen(log := Log()):
        row, _ = measure(Workload(settings), Capture(flops=flops))
    assert len(row["warmup"]) == warmup
    assert log.count("step") == heard + settings.steps  # the step of FLOPs is heard
    found = told_of_times(log.marks)
    assert found["recorded"]["shapes"] == ["fbA"] * settings.steps
    assert ("unrecorded" in found) is bool(timed)
    if timed:
        mark = found["unrecorded"]
        assert (mark["where"], mark["shape"], mark["dropped"]) == ("before", "fbA", {"cold": 2})
        assert [len(mark["step_ns"]), bool(mark["host_ns"])] == [timed, emptied]
        ms = [times["step"] for times in row["warmup"][2 : 2 + timed]]
        assert [ns / 1e6 for ns in mark["step_ns"]] == pytest.approx(ms, rel=0.2)


@pytest.mark.parametrize("is_watched", [True, False])
def test_without_a_capture_range_no_step_of_warm_up_is_timed(monkeypatch, is_watched):
    if is_watched:
        monkeypatch.setenv(NSYS_SESSION, "1")
    monkeypatch.setattr(one_run, "captures_a_range", lambda: not is_watched)
    with annotate.listen(log := Log()):
        measure(Workload(replace(TINY, warmup=5)), Capture())
    assert log.count("step") == 5 + TINY.steps
    assert "unrecorded" not in told_of_times(log.marks)
