"""The questions that `--view` answers: one line and one module each."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from analysis.attribution import Attribution
    from analysis.report import Report
    from analysis.tables import Document


class View(NamedTuple):
    """A view: the module that holds its `view`, the question it answers, and whether `--range` narrows it."""

    module: str
    question: str
    takes_range: bool = False


VIEWS = {
    "phases": View("analysis.views.phases", "what share of each phase is GEMM, and what is the rest?", True),
    "agreement": View("analysis.views.agreement", "do CPU range, GPU span and kernel time of a phase agree?"),
    "attention": View("analysis.views.attention", "what do scores, mask, softmax and final matmul cost?"),
    "steps": View("analysis.views.steps", "how much do the measured steps differ, and in which range?", True),
    "explain": View("analysis.views.explain", "where do a kernel's launches come from? (--kernel NAME)", True),
    "balance": View("analysis.views.balance", "does the GPU wait for launches, and where?"),
    "overlap": View("analysis.views.overlap", "how much communication and copying hides behind compute?"),
}


@dataclass(frozen=True, slots=True)
class Subject:
    """What a view looks at: the report of what was asked for, and where that does not say enough, all work.

    `top` bounds the rows of long tables; `kernel` is a part of a kernel's name; `one_phase` says that the report
    holds the one phase that was asked for; `timed` are times of phases measured elsewhere, ns; `whole` asks for
    every row as it is, for a program.
    """

    report: Report
    attribution: Callable[[], Attribution]
    one_phase: bool = False
    timed: Mapping[str, float] = field(default_factory=dict)
    whole: bool = False
    top: int = 10
    full_names: bool = False
    every_index: bool = False
    kernel: str = ""


class Viewer(Protocol):
    """What the module of a view offers."""

    def view(self, subject: Subject) -> Document:
        """Answer the view's question."""
        ...


def viewer(name: str) -> Viewer:
    """Return the module of a view."""
    module: Viewer = importlib.import_module(VIEWS[name].module)
    return module
