"""The result of a profiled block, and the next command."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nvtx_kernels.analysis.support.units import bytes_text

from .capture import Capture
from .loop import Phases

NO_MODEL = "No model was given: its phases are backward and optimizer, and its ranges the program's own."
NO_STEP = "No step ended: nothing ran that a step could be made of."
ALL_WARM_UP = "Every step was warm-up: run more, or measure from the first one (warmup=0, --warmup 0)."


class Outcome(NamedTuple):
    """A report's path and size in bytes, its steps (also as text), remarks, and the next command."""

    path: Path
    size: int
    warmed: int
    measured: int
    steps: str
    remarks: tuple[str, ...]
    next: str

    def text(self) -> str:
        """Return the lines to show."""
        file_text = f"{self.path}, {bytes_text(self.size)}" if self.size else f"{self.path}"
        return "\n".join((f"{file_text}, {self.steps}. Next: {self.next}", *self.remarks))


def of(path: Path, phases: Phases, capture: Capture, *, has_models: bool) -> Outcome:
    """Return the outcome of a profile whose block has ended."""
    warmed = f" after {phases.warmed} of warm-up" if phases.warmed else ""
    by = f" ({phases.counted_by})" if phases.counted_by and phases.measured else ""
    steps = f"{phases.measured} step{'' if phases.measured == 1 else 's'}{warmed}{by}"
    if phases.warmed and not phases.measured:
        steps = f"no measured step, {phases.warmed} of warm-up"
    report = "REPORT.nsys-rep" if capture.is_watched else shlex.quote(str(path))
    size = 0 if capture.is_watched or not path.exists() else path.stat().st_size
    options = " --per-step" if phases.measured else " --include-warmup"
    if capture.recording is not None and capture.recording.ended_early:
        options = ""
    return Outcome(
        Path("what nsys records") if capture.is_watched else path,
        size,
        phases.warmed,
        phases.measured,
        steps,
        tuple(_remarks(phases, capture, has_models=has_models)),
        f"nvtx-kernels rank {report}{options}",
    )


def _remarks(phases: Phases, capture: Capture, *, has_models: bool) -> Iterator[str]:
    if not has_models:
        yield NO_MODEL
    if not phases.measured:
        yield ALL_WARM_UP if phases.warmed else NO_STEP
    for name in phases.never_updated:
        yield f"{name} was given, and never updated."
    if capture.memory_trouble:
        yield f"The report has no memory by range: {capture.memory_trouble}."
    if capture.recording is not None and capture.recording.shortfall:
        yield capture.recording.shortfall
