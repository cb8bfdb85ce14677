"""Warm up, measure, and keep the times of every step."""

import json
import re
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from nvtx_kernels.model.config import name_of
from nvtx_kernels.model.cost import cost_by_range

from .. import annotate
from ..annotate.counting import Counting
from ..recorder import Recording, record
from ..recorder.session import Session
from ..recorder.trace_file import check_writable
from .environment import environment
from .settings import AUTOCAST_DTYPE, Settings, SettingsError
from .workload import Workload, timed_steps

MARK = "nvtx-kernels.run"
FLOPS_CONVENTION = "2 per multiply-add; softmax 5 per score forward, 4 backward; scale 1; one step"


@dataclass(frozen=True)
class Measurement:
    """Times in ms of every step, by phase and of the whole `step`, and the peak of memory in bytes.

    The peak is that of tensors while measuring on a GPU, of the whole process on a CPU. `recording` is the result
    of the recording, None without one.
    """

    warmup: list[dict[str, float]]
    measured: list[dict[str, float]]
    peak_bytes: int
    recording: Recording | None


@dataclass(frozen=True)
class Capture:
    """How the measured steps are captured: recorded to a file or not, with a range per operator or not.

    With `flops`, the last step of warm-up is counted, and the counts go into what is captured.
    With `memory`, the recording has every allocation.
    """

    record_to: str | None = None
    operators: bool = False
    flops: bool = False
    memory: bool = False

    def check(self, settings: Settings) -> None:
        """Raise, before any work is done, for what would make the capture fail later."""
        if self.flops and not settings.warmup:
            raise SettingsError("--flops counts the last step of warm-up: with it, --warmup must be ≥ 1")
        if self.memory and self.record_to is None:
            raise SettingsError("--memory writes allocations into a recording: add --record FILE")
        if self.record_to is not None:
            check_writable(self.record_to)
        elif self.operators and settings.device_type != "cuda":
            raise SettingsError("without a GPU, ranges for operators need a recording: add --record FILE")

    @contextmanager
    def warming(self, settings: Settings) -> Iterator[None]:
        """Profile the warm-up and drop what the profiler saw, so that measuring begins with the profiler warm."""
        session = None if self.record_to is None else Session(on_gpu=settings.device_type == "cuda")
        try:
            yield
        finally:
            if session is not None:
                session.stop()

    @contextmanager
    def measuring(self, settings: Settings) -> Iterator[Recording | None]:
        """Capture the block, and mark it as what `nsys profile -c cudaProfilerApi` captures."""
        with ExitStack() as capturing:
            recording = None
            if self.record_to is not None:
                options = {"operators": self.operators, "memory": self.memory}
                recorder = record(self.record_to, device=settings.device_type, quiet=True, **options)
                recording = capturing.enter_context(recorder)
            elif self.operators:
                capturing.enter_context(torch.autograd.profiler.emit_nvtx())  # type: ignore[no-untyped-call]
            if settings.device_type == "cuda":
                cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
                cudart.cudaProfilerStart()
                capturing.callback(cudart.cudaProfilerStop)
                capturing.callback(torch.cuda.synchronize, settings.device)
            yield recording


def measure(workload: Workload, capture: Capture, on_step: Callable[[], None]) -> Measurement:
    """Run the warm-up steps and the measured steps, of which only the latter are captured.

    `on_step` is called after each step.
    """
    settings, counting = workload.settings, Counting()
    with capture.warming(settings), annotate.range("warmup"):
        warmup = _steps(workload, settings.warmup - capture.flops, on_step)
        if capture.flops:
            with counting.step():
                warmup += _steps(workload, 1, on_step)
    on_gpu = settings.device_type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(settings.device)
    with capture.measuring(settings) as recording, annotate.range("measure"):
        annotate.mark(mark_text(workload))
        counting.send()
        measured = _steps(workload, settings.steps, on_step)
    most_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak_bytes = torch.cuda.max_memory_allocated(settings.device) if on_gpu else most_kib * 1024
    return Measurement(warmup, measured, int(peak_bytes), recording)


def _steps(workload: Workload, count: int, on_step: Callable[[], None]) -> list[dict[str, float]]:
    step_times = []
    for times in timed_steps(workload, count):
        step_times.append(times)
        on_step()
    return step_times


def mark_text(workload: Workload) -> str:
    """Return the message of the mark."""
    return f"{MARK} {json.dumps(description(workload), separators=(',', ':'))}"


def description(workload: Workload) -> dict[str, object]:
    """Return what affects the run's numbers, ready for JSON."""
    settings = workload.settings
    state = environment(settings)
    state.pop("host_cpu", None)
    flops, least_bytes = costs(settings)
    return {
        **settings.by_name(),
        "size": name_of(settings.by_name()),
        "parameters": workload.parameters,
        **state,
        "flops_convention": FLOPS_CONVENTION,
        "flops": flops,
        "bytes": least_bytes,
    }


def costs(settings: Settings) -> tuple[dict[str, int], dict[str, int]]:
    """Return the FLOPs and the least bytes moved of one step by range, of the phases that the mode runs."""
    flops: Counter[str] = Counter()
    least_bytes: Counter[str] = Counter()
    for path, cost in cost_by_range(
        settings.config,
        settings.batch_size,
        settings.context_length,
        attention=settings.attention,
        element_bytes=2 if settings.dtype in AUTOCAST_DTYPE else 4,
    ).items():
        if path[0] in settings.phases and not (settings.mode == "forward" and "loss" in path):
            name = re.sub(r"\blayer \d+", "layer *", " > ".join(path))
            flops[name] += cost.flops
            least_bytes[name] += cost.bytes
    return {name: count for name, count in flops.items() if count}, dict(least_bytes)
