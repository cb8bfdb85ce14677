"""The result of a profiled block, and the next command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from nvtx_kernels.analysis.support.units import bytes_text

from ..recorder import Recording
from ..recorder.trace_file import shortfall
from .loop import Phases

NO_MODEL = "No model was given: its phases are backward and optimizer, and its ranges the program's own."
NOT_UPDATED = "{} was given, and never updated."
NO_MEMORY = "The report has no memory by range: {}."
NO_STEP = "No step ended: nothing ran that a step could be made of."


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
        file_text = f"{self.path}, {bytes_text(self.size)}" if self.size else f"{self.path}"
        return "\n".join((f"{file_text}, {self.steps}. Next: {self.next}", *self.remarks))


def of(profile: Profiled) -> Outcome:
    """Return the outcome of a profile whose block has ended."""
    phases = profile.phases
    warmed = f" after {phases.warmed} of warm-up" if phases.warmed else ""
    by = f" ({phases.counted_by})" if phases.counted_by and phases.measured else ""
    steps = f"{phases.measured} step{'' if phases.measured == 1 else 's'}{warmed}{by}"
    if phases.warmed and not phases.measured:
        steps = f"no measured step, {phases.warmed} of warm-up"
    path = Path("what nsys records") if profile.is_watched else profile.path
    report = "REPORT.nsys-rep" if profile.is_watched else str(profile.path)
    size = 0 if profile.is_watched or not path.exists() else path.stat().st_size
    return Outcome(path, size, steps, tuple(_remarks(profile)), f"nvtx-kernels rank {report}{_options(profile)}")


def _options(profile: Profiled) -> str:
    if profile.recording is not None and profile.recording.ended_early:
        return ""
    return " --per-step" if profile.phases.measured else " --include-warmup"


def _remarks(profile: Profiled) -> Iterator[str]:
    phases = profile.phases
    if not profile.has_models:
        yield NO_MODEL
    if not phases.measured and not phases.warmed:
        yield NO_STEP
    for name in phases.never_updated:
        yield NOT_UPDATED.format(name)
    if phases.warmed and not phases.measured:
        yield "Every step was warm-up: run more, or measure from the first one (warmup=0, --warmup 0)."
    if profile.memory_trouble:
        yield NO_MEMORY.format(profile.memory_trouble)
    if profile.recording is not None and (missing := shortfall(profile.recording)):
        yield missing.strip()
