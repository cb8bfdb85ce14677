"""What attribution gives: every piece of work with the ranges that caused it, and the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..trace import Bools, Int8s, Int32s, Int64s, Ranges, Trace
from ..vocabulary import PhaseNames
from .nesting import Forest
from .user_ranges import NameFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What counts as a parent; the defaults are this project's, `LAUNCHING_THREAD` is what nsys does."""

    domains: Sequence[str] = ()  # the only NVTX domains to take; empty: all but libraries'
    operators: str = "auto"  # PyTorch's operator ranges: "keep", "hide", or show those in no other range
    adopt: bool = True
    link: bool = True
    phase_names: PhaseNames = ()  # what phases are called, if not by the usual names; see vocabulary.phase_matcher
    step: str = ""  # what the measured steps are called, if not by the usual names; see vocabulary.step_matcher


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a report, in order of start; `range` are positions in the attribution's ranges.

    `ended_by` names what ends a step, `notes` are sentences about the choice, and `refusal` says why there are
    none although some ranges could be steps. `evaluation` marks the nodes of what was taken out of the steps.
    """

    range: Int32s
    warm_up: Bools
    evaluation: Bools
    ended_by: str = ""
    notes: tuple[str, ...] = ()
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Attribution:
    """Every piece of work with its node, the forest of nodes, and the steps.

    `ranges` are those that paths consist of; `forest.range` are positions in them; `home[r]` is the node
    of range r itself, -1 if it is not shown.
    `node` and `how` (a position in HOW) have one entry per piece of work; node is -1 for work in no range.
    """

    trace: Trace
    facts: NameFacts
    ranges: Ranges
    forest: Forest
    home: Int32s
    node: Int32s
    how: NDArray[np.uint8]
    phase: Int8s  # per piece of work, a position in PHASES
    node_phase: Int8s  # per node
    warm_up: Bools  # per node
    recompute: Bools  # per node: forward below backward, which is computed again and counts as backward
    linked: Bools  # per node: a place in another path that work was led to, a forward's or a capture's
    unfit: Bools  # per piece of work: in a numbered backward node that no forward operator fits
    rules: Rules
    # Per allocation or free of the trace's memory: its node, -1 for none, and its phase, a position in PHASES.
    memory_node: Int32s
    memory_phase: Int8s
    steps: Steps = field(
        default_factory=lambda: Steps(np.empty(0, np.int32), np.empty(0, np.bool_), np.empty(0, np.bool_))
    )
    # The attribution of which this has only some of the work, and which: positions in its `Work`.
    part_of: tuple[Attribution, Int64s] | None = None

    @property
    def of_all_work(self) -> Attribution:
        """The attribution of all work, which a part needs to tell when a GPU was busy."""
        return self.part_of[0] if self.part_of else self

    @property
    def rows_of_all(self) -> Int64s:
        """The position of each piece of work in that of all work: int64 (work,)."""
        return self.part_of[1] if self.part_of else np.arange(len(self.trace.work))
