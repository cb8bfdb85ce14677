"""The result of a profiled block, and the next command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from nvtx_kernels.analysis.support.units import bytes_text

from ..recorder import Recording
from .loop import Phases

NO_MODEL = "No model was given: its phases are backward and optimizer, and its ranges the program's own."
NOT_STEPPED = "No step ended: the optimizer that was given did not step."
NO_MEMORY = "The report has no memory by range: {}."
NO_STEP = "No step ended: no optimizer stepped, and step() was not called after each."


class Profiled(Protocol):
    """A profile whose block has ended."""

    path: Path
    phases: Phases
    recording: Recording | None

    @property
    def has_models(self) -> bool:
        """Whether modules are annotated."""

    @property
    def memory_trouble(self) -> str:
        """Why allocations that were asked for are not in nsys's report, or empty."""

    @property
    def is_watched(self) -> bool:
        """Whether nsys records, and we do not."""


class Outcome(NamedTuple):
    """A report's path and size in bytes, its steps and what they count, remarks, and the next command."""

    path: Path
    size: int
    steps: str
    remarks: tuple[str, ...]
    next: str

    def text(self) -> str:
        """Return the lines to show."""
        what = f"{self.path}, {bytes_text(self.size)}" if self.size else f"{self.path}"
        return "\n".join((f"{what}, {self.steps}. Next: {self.next}", *self.remarks))


def of(profile: Profiled) -> Outcome:
    """Return the outcome of a profile whose block has ended."""
    phases = profile.phases
    warmed = f" after {phases.warmed} of warm-up" if phases.warmed else ""
    by = f" ({phases.counted_by})" if phases.counted_by and phases.measured else ""
    steps = f"{phases.measured} step{'' if phases.measured == 1 else 's'}{warmed}{by}"
    path = Path("what nsys records") if profile.is_watched else profile.path
    report = "REPORT.nsys-rep" if profile.is_watched else str(profile.path)
    size = 0 if profile.is_watched or not path.exists() else path.stat().st_size
    return Outcome(path, size, steps, tuple(_remarks(profile)), f"nvtx-kernels rank {report}{_options(profile)}")


def _options(profile: Profiled) -> str:
    return " --per-step" if profile.phases.measured else " --include-warmup"


def _remarks(profile: Profiled) -> Iterator[str]:
    phases = profile.phases
    if not profile.has_models:
        yield NO_MODEL
    if not phases.measured and not phases.warmed:
        yield NOT_STEPPED if phases.counted_by.startswith("steps of") else NO_STEP
    elif not phases.measured:
        yield "Every step was warm-up: run more, or pass warmup=0."
    if profile.memory_trouble:
        yield NO_MEMORY.format(profile.memory_trouble)
    if profile.recording is not None and profile.recording.ended_early:
        yield f"Recording ended early: {profile.recording.ended_early}."
