"""What attribution gives: every piece of work with the ranges that caused it, the steps, and places of its forest.

Adoption and linking append nodes, so one range below the same ranges can be several nodes. An *instance* is all of
them; GPU spans are measured, and timelines drawn, by instance. A *path* is the names of ranges, outermost first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..report.evidence import FOUND, NOT_ASKED, StepEvidence
from ..support.small_numbers import bounds, each_row, grouped_rows, summed
from ..trace import Bools, Columns, Int8s, Int32s, Int64s, Lines, Path, Ranges, Trace
from ..vocabulary import PhaseNames
from .forest import Forest
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
    evidence: Sequence[str] = FOUND  # by what steps may be known where no range names them, in the order of trust


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a report, in order of start; `range` are positions in the attribution's ranges.

    `ended_by` names what ends a step, `notes` are sentences about the choice, and `refusal` says why there are
    none although some ranges could be steps. `evidence` says by what they are known. `evaluation` marks the nodes
    of what was taken out of the steps, and `validation` are the program's own ranges that evaluate between them.
    If these are only some of the measured steps, `number` are their places among all of those.
    """

    range: Int32s
    warm_up: Bools
    evaluation: Bools
    validation: Int64s
    ended_by: str = ""
    notes: tuple[str, ...] = ()
    refusal: str = ""
    number: Int64s | None = None
    evidence: StepEvidence = NOT_ASKED


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
        default_factory=lambda: Steps(
            np.empty(0, np.int32), np.empty(0, np.bool_), np.empty(0, np.bool_), np.empty(0, np.int64)
        )
    )
    lines: Lines | None = None  # of the calls of all steps, if the trace has those of one
    # If this has only a part of another attribution's work: that one, and positions in its `Work`.
    part_of: tuple[Attribution, Int64s] | None = None

    @property
    def of_all_work(self) -> Attribution:
        """The attribution of all work, which a part needs to tell when a GPU was busy."""
        if self.part_of:
            return self.part_of[0]
        return self

    @property
    def rows_of_all(self) -> Int64s:
        """The position of each piece of work in that of all work: int64 (work,)."""
        if self.part_of:
            return self.part_of[1]
        return np.arange(len(self.trace.work))

    def left_out(self, *, include_warm_up: bool = False) -> Bools:
        """Mark the nodes of warm-up unless it is asked for, bool (nodes + 1,); the last is of work in no range."""
        return np.append(self.warm_up, False) & (not include_warm_up)


class Paths:
    """The distinct pairs of a path and a phase: nodes that agree in both share one.

    `of_node`, int32 (nodes + 1,), gives each node's pair, and -1 for node -1, which is the last entry;
    `names_of_node` likewise its path, of whatever phase, a position in `names`. `paths` and `names` end with the
    empty path of -1.
    """

    def __init__(self, attribution: Attribution) -> None:
        forest = attribution.forest
        names = attribution.trace.names
        tree, self.names_of_node, _ = forest.folded(attribution.ranges.name_id[forest.range])
        self.names: list[Path] = []
        for parent, name in each_row(tree.parent, tree.range):
            self.names.append((*(self.names[parent] if parent >= 0 else ()), names[name]))
        self.names.append(())
        (path, phase), of_node = grouped_rows(self.names_of_node[:-1], attribution.node_phase)
        self.of_node = np.append(of_node, -1).astype(np.int32)
        self.paths: list[Path] = [*(self.names[number] for number in path.tolist()), ()]
        self.phase: list[int] = phase.tolist()

    def __len__(self) -> int:
        return len(self.phase)


class Instances:
    """The forest of instances, and a node of each; `of_node` is per node of the attribution, and last of -1."""

    def __init__(self, attribution: Attribution) -> None:
        self.forest, self.of_node, self.node = attribution.forest.folded(attribution.forest.range)


@dataclass(frozen=True, slots=True)
class Projections(Columns):
    """Instances on the GPU, one row per instance and group (a stream, say): first start to last end of their work.

    `kernel_ns` is the time of the kernels launched inside, at any depth.
    """

    instance: Int32s
    group: Int32s
    start_ns: Int64s
    end_ns: Int64s
    kernel_ns: Int64s


def projections(
    places: Instances, work: Int64s, attribution: Attribution, group: Int32s, kernel: Bools
) -> Projections:
    """Project instances onto the chosen pieces of work, separately for each group of theirs.

    `work` are positions in `Work`; `group` and `kernel` have one entry per piece of all work.
    """
    table = attribution.trace.work
    chosen = work[attribution.node[work] >= 0]
    rows = _merged(
        Projections(
            places.of_node[attribution.node[chosen]],
            group[chosen],
            table.start_ns[chosen],
            table.end_ns[chosen],
            np.where(kernel[chosen], table.duration_ns[chosen], 0),
        )
    )
    depth = places.forest.depth()[rows.instance]
    below = rows.take(np.zeros(len(rows), np.bool_))
    merged_levels = []
    for level in range(int(depth.max(initial=-1)), -1, -1):
        merged_levels.append(_merged(Projections.joined([rows.take(depth == level), below])))
        parent = places.forest.parent[merged_levels[-1].instance]
        below = replace(merged_levels[-1], instance=parent).take(parent >= 0)
    if merged_levels:
        return Projections.joined(merged_levels[::-1])
    return below


def _merged(rows: Projections) -> Projections:
    """Merge all rows of an instance and group."""
    (instance, group), row = grouped_rows(rows.instance, rows.group)
    start, end = bounds(row, rows.start_ns, rows.end_ns, len(instance))
    return Projections(instance, group, start, end, summed(row, rows.kernel_ns, len(instance)))
