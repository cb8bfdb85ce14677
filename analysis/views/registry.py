"""The questions that `nvtx-kernels view` answers: one line and one module each."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..document import SHORT, Detail
from ..vocabulary import PHASES

if TYPE_CHECKING:
    from ..attribution.causes import Attribution
    from ..document import Document
    from ..report import Report
    from ..summary.parallel import Ranked


class View(NamedTuple):
    """A view, in the module of its name: the question it answers, and whether `--range` narrows it.

    One that matches ranges looks for them among its own, which need not hold a kernel: the report is not narrowed.
    One that takes many has `held_by`, for each report where it is read, and `of_ranks`, for what these return.
    """

    question: str
    takes_range: bool = False
    takes_many: bool = False
    matches_ranges: bool = False


VIEWS = {
    "phases": View("what share of each phase is GEMM, and what is the rest?", True),
    "agreement": View("do CPU range, GPU span and kernel time of a phase agree?"),
    "attention": View("what do scores, mask, softmax and final matmul cost?"),
    "steps": View("how much do the measured steps differ, and in which range?", True),
    "explain": View("where do a kernel's launches come from? (--kernel NAME)", True),
    "balance": View("does the GPU wait for launches, and where?"),
    "overlap": View("how much communication and copying is hidden behind compute?"),
    "communication": View("which module's collectives are exposed, and who waits for whom?", True, True, True),
    "efficiency": View("what share of the GPU's peak does each range reach?", True),
    "memory": View("what does each range allocate, and what holds memory at its peak?", True, matches_ranges=True),
}


@dataclass(frozen=True, slots=True)
class Subject:
    """The input of a view: the report of the requested part, and all work for views that need more.

    `detail` is how much to show; `kernel` is a part of a kernel's name; `ranges` is the pattern of a view that
    matches ranges itself, empty for all; `some_phases` is true if the report has
    only the requested phases; `timed` are times of phases measured elsewhere, ns.
    """

    report: Report
    attribution: Attribution
    detail: Detail = SHORT
    some_phases: bool = False
    unselected: Report | None = None
    timed: Mapping[str, float] = field(default_factory=dict)
    kernel: str = ""
    ranges: str = ""

    @property
    def whole(self) -> Report:
        """The report before ranges or phases of it were chosen."""
        return self.unselected or self.report

    @property
    def phases(self) -> Collection[str]:
        """The requested phases."""
        return {row.phase for row in self.report.phases} if self.some_phases else PHASES


def subject_of(
    name: str, attribution: Attribution, report: Report, pattern: str, phases: Collection[str], **of_view: Any
) -> Subject:
    """Return what a view looks at: the requested part of a report, and the work that the report counts."""
    from ..summary.selection import part_of

    matches_ranges = VIEWS[name].matches_ranges
    part = part_of(report, "" if matches_ranges else pattern, phases)
    ranges = pattern if matches_ranges else ""
    return Subject(part, attribution, unselected=report, some_phases=bool(phases), ranges=ranges, **of_view)


class Viewer(Protocol):
    """What the module of a view offers: `view`, and where it takes several reports the other two."""

    def view(self, subject: Subject) -> Document:
        """Answer the view's question."""
        ...

    def held_by(self, subject: Subject) -> Any:
        """Return what the view needs of one report, to be sent to the process that shows all."""
        ...

    def of_ranks(self, ranked: Sequence[Ranked[tuple[Report, Any]]], detail: Detail = SHORT) -> Document:
        """Answer the view's question of several ranks' reports."""
        ...


def viewer(name: str) -> Viewer:
    """Return the module of a view."""
    module: Viewer = importlib.import_module(f"{__package__}.{name}")
    return module
