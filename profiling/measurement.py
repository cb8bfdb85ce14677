"""Warm up, measure, and keep the times of every step."""

import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass

import torch

from profiling import annotate, recorder
from profiling.settings import Settings, environment
from profiling.workload import Workload, timed_steps

# A capture tells what it is by one mark: this word, a space, and a JSON object.
MARK = "nvtx-kernels.run"


@dataclass(frozen=True)
class Measurement:
    """Times in ms of every step, by phase and of the whole `step`, and the peak of memory in bytes."""

    warmup: list[dict[str, float]]
    measured: list[dict[str, float]]
    peak_bytes: int

    def of(self, phase: str) -> list[float]:
        """Return the measured times of a phase, ms."""
        return [times[phase] for times in self.measured]


@dataclass(frozen=True)
class Spread:
    """Mean, sample standard deviation (None of one value), smallest and largest of some times, ms."""

    mean: float
    std: float | None
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        """Summarize times."""
        std = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), std, min(values), max(values))


@dataclass(frozen=True)
class Capture:
    """How the measured steps are captured: recorded to a report, and with a range per operator."""

    record_to: str | None = None
    operators: bool = False

    def around(self) -> AbstractContextManager[object]:
        """Return the context that captures its block."""
        if self.record_to is not None:
            return recorder.record(self.record_to, operators=self.operators)
        return torch.autograd.profiler.emit_nvtx() if self.operators else nullcontext()  # type: ignore[no-untyped-call]


def measure(workload: Workload, capture: Capture, on_step: Callable[[], None]) -> Measurement:
    """Run the warm-up steps and the measured steps; only the latter are captured.

    `on_step` is called after each step.
    """
    settings = workload.settings
    with annotate.range("warmup"):
        warmup = _steps(workload, settings.warmup, on_step)
    if settings.device_type == "cuda":
        torch.cuda.reset_peak_memory_stats(settings.device)
    with capture.around(), _profiler_api(settings), annotate.range("measure"):
        annotate.mark(f"{MARK} {json.dumps(description(workload))}")
        measured = _steps(workload, settings.steps, on_step)
    return Measurement(warmup, measured, _peak_bytes(settings))


def description(workload: Workload) -> dict[str, object]:
    """Return what a capture should say of itself: settings, parameters and the state of the machine."""
    return {
        "settings": asdict(workload.settings),
        "parameters": workload.parameters,
        **environment(workload.settings),
    }


def _steps(workload: Workload, count: int, on_step: Callable[[], None]) -> list[dict[str, float]]:
    done = []
    for times in timed_steps(workload, count):
        done.append(times)
        on_step()
    return done


@contextmanager
def _profiler_api(settings: Settings) -> Iterator[None]:
    """Mark what `nsys profile -c cudaProfilerApi` captures."""
    if settings.device_type != "cuda":
        yield
        return
    torch.cuda.cudart().cudaProfilerStart()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.cuda.synchronize(settings.device)
        torch.cuda.cudart().cudaProfilerStop()  # type: ignore[no-untyped-call]


def _peak_bytes(settings: Settings) -> int:
    """Return the most memory that tensors held on the GPU while measuring; of the whole process on a CPU."""
    if settings.device_type == "cuda":
        return int(torch.cuda.max_memory_allocated(settings.device))
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
