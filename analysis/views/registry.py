"""The questions that `nvtx-kernels view` answers: one line and one module each."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..document import SHORT, Detail
from ..vocabulary import PHASES

if TYPE_CHECKING:
    from ..account import Partition
    from ..attribution.causes import Attribution
    from ..opened import Opened
    from ..report import Report


class View(NamedTuple):
    """A view, in the module of its name: the question it answers, and whether `--range` narrows it.

    One that matches ranges looks for them among its own, which need not hold a kernel: the report is not narrowed.
    One that takes many has `held_by(subject)`, what it needs of one report, called where that is read and sent to
    the process that shows all, and `of_ranks(ranked, detail)`, the `Document` of these and their reports.
    """

    question: str
    takes_range: bool = False
    takes_many: bool = False
    matches_ranges: bool = False


VIEWS = {
    "agreement": View("do the CPU range, GPU span and kernel time of a phase agree?"),
    "attention": View("what do scores, mask, softmax and final matmul cost?"),
    "steps": View("how much do the measured steps differ, and in which range?", True),
    "kernels": View("which kernels does each phase and range launch, and how many? (--kernel NAME)", True),
    "idle": View("why is the GPU idle, by cause, phase and range?"),
    "communication": View(
        "which module's collectives and which copies are exposed, and who waits for whom?", True, True, True
    ),
    "fix": View("what should I change first, and how much time would it save?", takes_many=True),
    "efficiency": View("what share of the GPU's peak does each operator and range reach?", True),
    "memory": View("what does each range allocate, and what holds memory at its peak?", True, matches_ranges=True),
}


@dataclass(frozen=True, slots=True)
class Subject:
    """The input of a view: the report of the requested part, and all work for views that need more.

    `attribution` is of the work that the figures are of, and `partition` has where the time of all steps goes.

    `detail` is how much to show; `kernel` is a part of a kernel's name; `by` is what a view groups by, if
    not as usual; `ranges` is the pattern of a view that matches ranges itself, empty for all; `some_phases` is
    true if the report has only the requested phases; `launches` asks for their lags; `timed` are times of phases
    measured elsewhere, ns, and `unrecorded_step_ns` is how long a step takes without recording, where that was
    given.
    """

    report: Report
    attribution: Attribution
    partition: Partition
    detail: Detail = SHORT
    some_phases: bool = False
    unselected: Report | None = None
    timed: Mapping[str, float] = field(default_factory=dict)
    kernel: str = ""
    by: str = ""
    ranges: str = ""
    launches: bool = False
    unrecorded_step_ns: float | None = None

    @property
    def whole(self) -> Report:
        """The report before ranges or phases of it were chosen."""
        return self.unselected or self.report

    @property
    def phases(self) -> Collection[str]:
        """The requested phases."""
        return {row.phase for row in self.report.phases} if self.some_phases else PHASES


def subject_of(
    name: str, opened: Opened, pattern: str = "", phases: Collection[str] = (), **of_view: Any
) -> Subject:
    """Return the subject of a view: the requested part of a report, and all work that the report counts."""
    from ..summary.selection import part_of

    matches_ranges = VIEWS[name].matches_ranges
    part = part_of(opened.report, "" if matches_ranges else pattern, phases)
    return Subject(
        part,
        opened.counted,
        opened.partition,
        unselected=opened.report,
        some_phases=bool(phases),
        ranges=pattern if matches_ranges else "",
        **of_view,
    )


def viewer(name: str) -> ModuleType:
    """Return the module of a view: its `view(subject)` is a `Document`; for the others see `View`."""
    return importlib.import_module(f"{__package__}.{name}")
