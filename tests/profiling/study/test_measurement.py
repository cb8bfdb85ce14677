"""What is measured and captured, and in which order; a GPU is pretended."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from nvtx_kernels.profiling import annotate
from nvtx_kernels.profiling.study.one_run import Capture, measure
from nvtx_kernels.profiling.study.settings import Settings
from nvtx_kernels.profiling.study.workload import Workload

from tests.profiling.making.pretended_gpu import moved, pretend

TINY = Settings(size="tiny", context_length=16, batch_size=1, mode="forward", warmup=1, steps=2, device="cpu")
OUTER = ("warmup", "measure", "step")


class Log(list):
    """A listener that writes the begin and end of the outer ranges to itself."""

    def __init__(self):
        self.open = []

    def push(self, name, payload):
        self.open.append(name)
        if name in OUTER:
            self.append(name)

    def pop(self):
        if (name := self.open.pop()) in OUTER:
            self.append(f"end of {name}")

    def mark(self, message):
        self.append("mark")


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
    assert kept == [*before, "measure", "mark", *steps, *steps, "end of measure", "profiler stops"]


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
